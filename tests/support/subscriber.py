"""A logical subscriber: another database of the same server that gets every change of every
table.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from forebay.embedded import EmbeddedServer
from forebay.upgrade.migrate import migrate
from tests.support.engine import connect, one
from tests.support.waiting import wait_for

#: What a server needs for it.
SETTINGS = {"wal_level": "logical", "max_replication_slots": "20", "max_wal_senders": "20"}

_TABLES = (
    "select c.oid::regclass::text from pg_class c where c.relnamespace = 'forebay'::regnamespace"
    " and c.relkind in ('r', 'p') and not c.relispartition and c.relname !~ '^lock_' order by 1"
)

#: The source makes segments that the copy does not have.
_PLAIN_LOG = """
create table forebay.plain (like forebay.log);
drop table forebay.log cascade;
alter table forebay.plain rename to log"""


class Subscriber:
    """The copy of a database.

    Attributes:
        conn: a connection to the copy.
    """

    def __init__(
        self,
        server: EmbeddedServer,
        source: psycopg.Connection,
        conn: psycopg.Connection,
        slot: str,
    ) -> None:
        self._server = server
        self._source = source
        self.conn = conn
        self._slot = slot

    def wait(self) -> None:
        """Wait until the copy has all that the source has committed so far."""
        self._source.execute("select pg_logical_emit_message(false, 'test', 'x', true)") if (
            self._source.info.server_version >= 170_000
        ) else None
        target = one(self._source, "select pg_current_wal_lsn()::text")
        wait_for(
            lambda: one(
                self._source,
                (
                    "select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots where "
                    "slot_name = %s"
                ),
                target,
                self._slot,
            ),
            30,
            lambda: f"errors of the subscription: {self.errors()}\n{self._logged_errors()}",
        )

    def errors(self) -> int:
        """Return how often applying a change failed."""
        return one(self.conn, "select sum(apply_error_count)::int from pg_stat_subscription_stats")

    def _logged_errors(self) -> str:
        """Return the last errors of the server and what they say of themselves."""
        lines = self._server.log_path.read_text(encoding="utf-8").splitlines()
        return "\n".join(line for line in lines if re.search(r"ERROR|DETAIL|CONTEXT", line))[-2000:]

    def differing(self) -> list[str]:
        """Return the tables whose rows differ in the copy."""
        return [
            table
            for (table,) in self._source.execute(_TABLES).fetchall()
            if _digest(self._source, table) != _digest(self.conn, table)
        ]


def _digest(conn: psycopg.Connection, table: str) -> tuple[object, ...]:
    query = f"select count(*), sum(hashtextextended(to_jsonb(t)::text, 0)) from {table} t"
    return conn.execute(query).fetchone()


@contextmanager
def subscriber(server: EmbeddedServer, dsn: str) -> Iterator[Subscriber]:
    """Publish all tables of a database, and lend a copy that follows it.

    In the copy the log is one table.
    """
    source = connect(dsn)
    name = conninfo_to_dict(dsn)["dbname"]
    copy = f"{name}_copy"
    with connect(server.dsn()) as admin:
        admin.execute(sql.SQL("create database {} template template0").format(sql.Identifier(copy)))
        migrate(server.dsn(copy))
        target = connect(server.dsn(copy))
        try:
            tables = ", ".join(table for (table,) in target.execute(_TABLES).fetchall())
            target.execute(f"truncate {tables}")
            target.execute(_PLAIN_LOG)
            source.execute(
                "create publication everything for all tables with "
                "(publish_via_partition_root = true)"
            )
            source.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [copy])
            # The rows of a new schema, such as its settings, come by a copy; no one writes yet.
            target.execute(
                sql.SQL(
                    "create subscription everything connection {} publication everything"
                    " with (create_slot = false, slot_name = {}, copy_data = true)"
                ).format(sql.Literal(dsn), sql.Literal(copy))
            )
            wait_for(
                lambda: one(
                    target,
                    "select count(*) = 0 from pg_subscription_rel where srsubstate <> 'r'",
                ),
                120,  # A worker of the server copies each table, one after another.
            )
            yield Subscriber(server, source, target, copy)
            target.execute("alter subscription everything disable")
            target.execute("alter subscription everything set (slot_name = none)")
            target.execute("drop subscription everything")
        finally:
            target.close()
            source.close()
