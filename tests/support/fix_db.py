"""A real PostgreSQL server for the session, and a fresh database for each test.

The server is the embedded one unless ``--pg-bin`` or ``FOREBAY_TEST_PG_BIN`` names the bin folder
of another. The schema is migrated once into a template, of which most empty segments are removed; a
test that asks for ``database`` gets a copy of it, in some fifty milliseconds, which no other test
sees. Copies are not made ahead in the background: making one is a transaction of the cluster, and
claims of the test that runs meanwhile would wait for it.

The shared server would lose its data in a crash (``fsync`` is off, its files may be in memory), so
it must never crash: a test that kills a server takes ``own_server``.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from forebay.embedded import EmbeddedServer, temporary_server
from forebay.testing.copies import OWN_COPY
from forebay.upgrade.migrate import migrate
from tests.support.hostile import Hostile
from tests.support.pgbouncer import PgBouncer
from tests.support.settings import OUR_HOSTS
from tests.support.subscriber import SETTINGS as LOGICAL

_SETTINGS = {"max_connections": "200", "max_prepared_transactions": "20"}
_LOSSY_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "checkpoint_timeout": "1h",
    "max_wal_size": "512MB",
}
_SEGMENTS = 8
#: The oid of a migrated copy, when no other copy on the server has it. The template names it as its
#: home, so that a copy needs no transaction of its own for that. Not before PostgreSQL 18:
#: PostgreSQL 15 loses sessions over the statistics of databases that have one oid after another.
_HOME = 4_000_000_000
_HOME_SINCE = 180_000
_MEMORY = Path("/dev/shm")
_MEMORY_BYTES_MIN = 4_000_000_000


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pg-bin",
        default=os.environ.get("FOREBAY_TEST_PG_BIN"),
        help="bin folder of the PostgreSQL to test on (default: the embedded one)",
    )


def pytest_report_header(config: pytest.Config) -> str:
    return f"PostgreSQL: {config.getoption('--pg-bin') or 'embedded'}"


@pytest.fixture(scope="session")
def pg_bin(pytestconfig: pytest.Config) -> str | None:
    """The bin folder named on the command line or in the environment; None for the default."""
    return pytestconfig.getoption("--pg-bin") or None


@pytest.fixture(scope="session")
def server(pg_bin: str | None, hostile: Hostile | None) -> Iterator[EmbeddedServer]:
    """The server of the session. Its databases come and go, the server stays."""
    with (
        temporary_server(
            pg_bin,
            parent=fast_folder(),
            extra_settings=_SETTINGS | _LOSSY_SETTINGS | ({} if hostile is None else LOGICAL),
        ) as server,
        _administered(server),
    ):
        yield server


@pytest.fixture(scope="session")
def template(server: EmbeddedServer, hostile: Hostile | None) -> str:
    """The name of a database on ``server`` with the migrated schema and few segments, and
    nothing else.
    """
    make = make_migrated if hostile is None else hostile.make
    name = make(server, "forebay_template")
    _keep_few_segments(server.dsn(name))
    _shrink_catalogs(server.dsn(name))
    return for_copies(server, name)


@pytest.fixture
def database(
    server: EmbeddedServer, template: str, via_pooler: PgBouncer | None, hostile: Hostile | None
) -> Iterator[str]:
    """The address of a fresh database with the migrated schema, dropped afterwards."""
    with migrated_database(server, template) as dsn:
        if hostile is not None:
            yield hostile.address(dsn)
        elif via_pooler is not None:
            yield via_pooler.dsn(str(conninfo_to_dict(dsn)["dbname"]))
        else:
            yield dsn


@pytest.fixture
def empty_database(server: EmbeddedServer) -> Iterator[str]:
    """The address of a fresh database with nothing in it, dropped afterwards."""
    with fresh_database(server, "template0") as dsn:
        yield dsn


@pytest.fixture
def own_server(pg_bin: str | None) -> Iterator[EmbeddedServer]:
    """A running, durable server of the test's own, to be killed and started again; it is empty."""
    with temporary_server(pg_bin, extra_settings=_SETTINGS) as server:
        yield server


@pytest.fixture
def own_database(own_server: EmbeddedServer, hostile: Hostile | None) -> str:
    """The address of a migrated database on ``own_server``."""
    if hostile is not None:
        return hostile.address(own_server.dsn(hostile.make(own_server, "test")))
    return own_server.dsn(make_migrated(own_server, "test"))


def make_migrated(server: EmbeddedServer, name: str) -> str:
    """Create a database with the migrated schema; return its name."""
    _admin(server, sql.SQL("create database {} template template0").format(sql.Identifier(name)))
    migrate(server.dsn(name))
    with psycopg.connect(server.dsn(name)) as conn:
        conn.execute(OUR_HOSTS)
    return name


def for_copies(server: EmbeddedServer, name: str) -> str:
    """Let a database with the migrated schema be the template of migrated databases."""
    with psycopg.connect(server.dsn(name)) as conn:
        conn.execute("update forebay.cluster set database_oid = %s", [_HOME])
    return name


def _keep_few_segments(dsn: str) -> None:
    """Remove most of the empty segments: three quarters of the files that each test would copy.

    A new database has 64, so that jobs can be enqueued for weeks without a worker. No test needs
    them.
    """
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "select forebay.configure('reserve_rows', %s * value::bigint) from forebay.setting"
            " where name = 'segment_rows'",
            [_SEGMENTS],
        )
        spare = conn.execute(
            "delete from forebay.segment where segment_id >= %s returning segment_id", [_SEGMENTS]
        )
        for (segment_id,) in spare.fetchall():
            conn.execute(f"drop table forebay.log_{segment_id}")
            functions = conn.execute(
                "select oid::regprocedure::text from pg_proc"
                " where pronamespace = 'forebay'::regnamespace and proname ~ %s",
                [f"^_[a-z_]+_{segment_id}$"],
            ).fetchall()
            for (signature,) in functions:
                conn.execute(f"drop function {signature}")
        assert conn.execute("select forebay.extend_v1()").fetchone() == (0,)


def _shrink_catalogs(dsn: str) -> None:
    """Give up the room of what migrations and removed segments left in the catalogs.

    It is a third of the bytes that each test would copy.
    """
    with psycopg.connect(dsn, autocommit=True) as conn:
        catalogs = conn.execute(
            "select oid::regclass::text from pg_class where relkind = 'r' and "
            "pg_relation_size(oid) > 65536"
            " and relnamespace = 'pg_catalog'::regnamespace"
        ).fetchall()
        for (catalog,) in catalogs:
            conn.execute(f"vacuum full {catalog}")


_numbers = count(1)


@contextmanager
def migrated_database(
    server: EmbeddedServer, template: str, how: str = "strategy file_copy"
) -> Iterator[str]:
    """Lend a copy of the template in which jobs run; ``how`` says how it is made."""
    with fresh_database(server, template, how, oid=_HOME) as dsn:
        yield dsn


@contextmanager
def fresh_database(
    server: EmbeddedServer,
    template: str,
    how: str = "strategy file_copy",
    *,
    oid: int | None = None,
) -> Iterator[str]:
    """Lend a copy of a database, by its address; it has the oid, if that is free."""
    name = f"test_{next(_numbers)}"
    # Copying files is the fastest strategy where files are in memory, and never much slower.
    create = sql.SQL("create database {} template {} {}").format(
        sql.Identifier(name), sql.Identifier(template), sql.SQL(how)
    )
    is_at_home = oid is not None and _reuses_oids(server)
    if is_at_home:
        try:
            _admin(server, sql.SQL("{} oid {}").format(create, oid))
        except psycopg.errors.InvalidParameterValue:
            is_at_home = False  # Another copy has the oid.
    if not is_at_home:
        _admin(server, create)
    if oid is not None and not is_at_home:
        with psycopg.connect(server.dsn(name)) as conn:
            conn.execute(OWN_COPY)
    try:
        yield server.dsn(name)
    finally:
        _admin(server, sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def _reuses_oids(server: EmbeddedServer) -> bool:
    admin = _admins.get(server.data_dir)
    return admin is not None and admin.info.server_version >= _HOME_SINCE


def _admin(server: EmbeddedServer, statement: sql.Composable) -> None:
    admin = _admins.get(server.data_dir)
    if admin is not None and not admin.closed:
        admin.execute(statement)
        return
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(statement)


#: By the data folder of a server that never restarts: a session of ours. Each test would make two.
_admins: dict[Path, psycopg.Connection] = {}


@contextmanager
def _administered(server: EmbeddedServer) -> Iterator[None]:
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        if conn.info.server_version >= 180_000:
            conn.execute("set file_copy_method = 'clone'")  # a quarter faster
        _admins[server.data_dir] = conn
        yield
        del _admins[server.data_dir]


def fast_folder() -> Path | None:
    """Return a folder in memory, where making and dropping a database costs ten times less."""
    usable = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)
    return _MEMORY if usable and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN else None
