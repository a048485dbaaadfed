"""Databases of the hostile row; see ``fix_hostile``."""

from forebay.embedded import EmbeddedServer
from tests.support.engine import connect
from tests.support.least_privilege import as_login, make_least
from tests.support.settings import EVIL, HOSTILE, OUR_HOSTS, SEARCH_PATH, impose

#: Login roles: the roles that each is a member of.
_LOGINS = {
    "hostile_worker": ("worker", "producer"),
    "hostile_operator": ("operator", "reader", "producer", "worker"),
}

#: Handlers in transactions have the defaults of the worker's role. Serializable ones may fail and
#: run again, and no program that a handler uses survives other operators than those of the catalog.
_OF_HANDLERS = {"search_path": "rogue, public", "default_transaction_isolation": "repeatable read"}

#: Where each query is compiled, a call of many queries takes a busy machine longer than a second.
_OF_OPERATORS = {"search_path": SEARCH_PATH, "statement_timeout": "15s"}


class Hostile:
    """Makes databases for the row."""

    def make(self, server: EmbeddedServer, name: str) -> str:
        """Create a database with the migrated schema; return its name."""
        with connect(server.dsn()) as admin:
            for login in _LOGINS:
                if not admin.execute(
                    "select count(*) from pg_roles where rolname = %s", [login]
                ).fetchone()[0]:
                    admin.execute(f"create role {login} login")
                    chosen = _OF_HANDLERS if login == "hostile_worker" else _OF_OPERATORS
                    impose(admin, HOSTILE | chosen, f"role {login}")
        with connect(make_least(server, name)) as admin:
            for login, roles in _LOGINS.items():
                for role in roles:
                    admin.execute(f"grant forebay_{role} to {login}")
            admin.execute(EVIL)
            admin.execute("create publication everything for all tables")
            admin.execute(OUR_HOSTS)
            # Handlers use the tables that tests make.
            admin.execute("alter default privileges grant all on tables to public")
            admin.execute("alter default privileges grant all on sequences to public")
        return name

    def address(self, dsn: str) -> str:
        """Return the address for the product."""
        return as_login(dsn, "hostile_worker")
