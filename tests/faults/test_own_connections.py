"""Apps that give their connections, or the password of each, themselves."""

import asyncio
import secrets
import time

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import forebay
from forebay import App
from forebay.errors import ConfigError, DatabaseUnavailable
from tests.support.engine import connect, depth, enqueue, one
from tests.support.fix_db import make_migrated
from tests.support.rotating_app import KINDS, VARIABLE
from tests.support.standby import primary_and_standby, wait_until_replayed
from tests.support.waiting import wait_for
from tests.support.worker_process import crew

pytestmark = [
    pytest.mark.direct,
    pytest.mark.usual("it makes a role with a password, and needs its own rules of login"),
]


class Vault:
    """A role whose password changes; the file has the present one."""

    def __init__(self, server, database, path):
        self.server, self.database, self.path = server, database, path
        self.admin = psycopg.connect(server.dsn(database), autocommit=True)
        self.admin.execute("create role rotating login")
        self.admin.execute("grant forebay_worker, forebay_producer, forebay_operator to rotating")
        self.change()
        rules = server.data_dir / "pg_hba.conf"
        rules.write_text("local all rotating scram-sha-256\n" + rules.read_text())
        self.admin.execute("select pg_reload_conf()")
        self.address = make_conninfo(server.dsn(database), user="rotating")
        wait_for(self._is_locked, 10)

    def _is_locked(self):
        try:
            psycopg.connect(self.address, password="wrong").close()
        except psycopg.OperationalError:
            return True
        return False

    def change(self):
        """Another password; sessions that knew the old one end, but for those that run a handler:
        its transaction would fail with its attempt, as always.
        """
        new = secrets.token_hex(8)
        self.admin.execute(f"alter role rotating password '{new}'")
        self.path.write_text(new)
        self.admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'rotating'"
            " and state = 'idle' and clock_timestamp() - state_change > '20 ms'"
        )


@pytest.fixture
def vault(own_server, tmp_path, monkeypatch):
    path = tmp_path / "password"
    monkeypatch.setenv(VARIABLE, str(path))
    found = Vault(own_server, make_migrated(own_server, "test"), path)
    path.chmod(0o644)
    yield found
    found.admin.close()


def rotate(vault, workers, *, changes, every_seconds, **options):
    """Change the password while a worker runs under load; compare what ran with what was asked."""
    address = vault.server.dsn(vault.database)
    with connect(address) as conn, crew(address, workers.path) as crowd:
        worker = crowd.start(**options)
        entry = 0
        for _ in range(changes):
            vault.change()
            until = time.monotonic() + every_seconds
            while time.monotonic() < until:
                for kind in KINDS:
                    entry += 1
                    enqueue(conn, kind=kind.kind.name, args={"entry": entry})
                time.sleep(0.05)
        wait_for(lambda: depth(conn) == {"default": (0, 0, 0)}, 60, lambda: worker.log[-3000:])
        worker.terminate()
        worker.wait(30)
        ends = workers.all("end")
        assert {each.entry for each in ends} == set(range(1, entry + 1))
        assert {each.attempt for each in ends} == {1}
        states = one(conn, "select array_agg(distinct j.state) from forebay.jobs(most => 1000) j")
        assert states == ["done"]
        assert "ERROR" not in worker.log, worker.log[-4000:]


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize(
    ("changes", "every_seconds"),
    [
        pytest.param(10, 1, id="ten seconds"),
        pytest.param(6, 10, id="a minute", marks=pytest.mark.nightly),
    ],
)
def test_a_password_that_changes_costs_no_attempt(vault, effects, changes, every_seconds):
    """
    Each change ends all idle sessions: the worker, its children and the connections of its handlers
    ask for the password again. No attempt is used, no job is lost, and the log has no error.
    """
    rotate(
        vault,
        effects,
        changes=changes,
        every_seconds=every_seconds,
        app="tests.support.rotating_app:app",
        dsn=vault.address,
    )


@pytest.mark.slow
@pytest.mark.crash
def test_an_app_that_connects_itself_gets_through_changes_too(vault, effects):
    """
    The same with ``connect``, a coroutine function that returns a synchronous connection, in two
    processes.
    """
    rotate(
        vault,
        effects,
        changes=3,
        every_seconds=1,
        app="tests.support.rotating_app:connecting_app",
        environment={VARIABLE + "_ADDRESS": vault.address},
    )


def sync_connection(address):
    return lambda: psycopg.connect(address)


def sync_text(address):
    return lambda: address


def async_parameters(address):
    async def connect_parameters():
        await asyncio.sleep(0)
        return psycopg.conninfo.conninfo_to_dict(address)

    return connect_parameters


def async_connection(address):
    async def connect_async():
        return await psycopg.AsyncConnection.connect(address)

    return connect_async


WAYS = [sync_connection, sync_text, async_parameters, async_connection]


@pytest.mark.anyio
@pytest.mark.parametrize("way", WAYS)
async def test_every_call_goes_through_the_app(way, database, monkeypatch):
    """
    Plain and awaited calls, handles, workers and the connections of handlers, whatever the function
    returns; no address of the environment is taken.
    """
    monkeypatch.setenv("FOREBAY_DATABASE_URL", "host=/nonexistent")
    app = App(connect=way(database))

    @app.job(transaction=True, keep_result=True)
    def plain(ctx: forebay.Context) -> int:
        return ctx.conn.execute("select 1").fetchone()[0]

    @app.job(transaction=True, keep_result=True)
    async def awaited(ctx: forebay.Context) -> int:
        return (await (await ctx.conn.execute("select 2")).fetchone())[0]

    ids = [await awaited.aenqueue_now(), await asyncio.to_thread(plain.enqueue_now)]
    ids.append(plain.enqueue_now())  # below a running loop
    await app.worker().run(until_idle=True)
    results = [await awaited.handle(ids[0]).aresult(5), plain.handle(ids[1]).result(5)]
    assert results == [2, 1]
    assert {job.state for job in app.client().jobs()} == {"done"}
    assert len(await app.async_client().jobs()) == 3


def test_a_password_of_the_address_is_not_replaced(vault):
    """
    An operator's ``--dsn`` with a password is what it says.
    """
    called = []
    app = App(password=lambda: called.append(1) or "wrong")
    app._internals.use(dsn=make_conninfo(vault.address, password=vault.path.read_text()))
    assert app.client().jobs() == []
    assert not called
    app._internals.use(dsn=vault.address)
    with pytest.raises(DatabaseUnavailable, match="password authentication failed"):
        app.client().jobs()
    assert called


def test_an_address_replaces_the_function(database):
    """
    ``--dsn`` on the command line takes the place of ``connect``.
    """
    app = App(connect=lambda: pytest.fail("called"))
    app._internals.use(dsn=database)
    assert app.client().jobs() == []


@pytest.mark.parametrize(
    ("returns", "words"),
    [
        (lambda dsn: 5, "returned int, neither a psycopg connection nor its parameters"),
        (lambda dsn: None, "returned NoneType"),
        (lambda dsn: {1: 2}, "returned dict"),
        (lambda dsn: "host=a password='x", "malformed"),
        (lambda dsn: begun(dsn), "closed or in a transaction"),
        (lambda dsn: closed(dsn), "closed or in a transaction"),
    ],
    ids=["number", "None", "no names", "malformed", "in a transaction", "closed"],
)
def test_a_wrong_answer_is_named(database, returns, words):
    """
    It is the app's mistake, and says so; an address is shown without its secrets.
    """
    app = App(connect=lambda: returns(database))
    with pytest.raises(ConfigError, match=words) as said:
        app.client().jobs()
    assert "password='x" not in str(said.value)


def begun(dsn):
    conn = psycopg.connect(dsn)
    conn.execute("select 1")
    return conn


def closed(dsn):
    conn = psycopg.connect(dsn)
    conn.close()
    return conn


def test_a_password_that_is_no_text_is_refused(database):
    """
    As None, which would let libpq look elsewhere.
    """
    with pytest.raises(ConfigError, match="password of the app returned NoneType, not text"):
        App(database, password=lambda: None).client().jobs()


def test_a_vault_that_is_away_is_a_database_that_is_away(database):
    """
    Its error has a type that workers wait for, and never the text, which may be a secret.
    """

    def away():
        raise OSError("s3cret")

    with pytest.raises(DatabaseUnavailable, match="password of the app raised OSError") as said:
        App(database, password=away).client().jobs()
    assert "s3cret" not in str(said.value)


def test_what_contradicts_is_refused_where_it_is_declared():
    """
    ``connect`` has all there is to say.
    """
    with pytest.raises(ConfigError, match="is given with dsn"):
        App("dbname=shop", connect=lambda: "dbname=shop")
    with pytest.raises(ConfigError, match="is given with password"):
        App(connect=lambda: "dbname=shop", password=lambda: "x")
    with pytest.raises(ConfigError, match="connect"):
        App(connect="dbname=shop")


@pytest.mark.slow
@pytest.mark.crash
def test_several_hosts_lead_to_the_one_that_writes(pg_bin, effects):
    """
    With ``target_session_attrs=read-write`` and both servers in the address, a worker goes on
    after the standby is promoted: no job is lost, and no attempt is used but of jobs that ran.
    """
    with primary_and_standby(pg_bin) as (primary, standby):
        name = make_migrated(primary, "test")
        both = make_conninfo(
            primary.dsn(name),
            host=f"{standby.socket_dir},{primary.socket_dir}",
            port="5432,5432",
            target_session_attrs="read-write",
        )
        with crew(both, effects.path) as crowd:
            worker = crowd.start()
            with connect(both) as conn:
                for entry in range(20):
                    enqueue(conn, kind="work_in_thread", args={"entry": entry})
                wait_for(lambda: len(effects.entries("end")) == 20, 30, lambda: worker.log)
                wait_for(lambda: depth(conn) == {"default": (0, 0, 0)}, 30)
            wait_until_replayed(primary, standby)
            primary.kill()
            with connect(standby.dsn()) as conn:
                assert one(conn, "select pg_promote(true, 60)")
            with connect(both) as conn:
                for entry in range(20, 40):
                    enqueue(conn, kind="work_in_thread", args={"entry": entry})
                wait_for(lambda: len(effects.entries("end")) == 40, 60, lambda: worker.log)
                wait_for(lambda: depth(conn) == {"default": (0, 0, 0)}, 30)
            assert {each.attempt for each in effects.all("end")} == {1}
