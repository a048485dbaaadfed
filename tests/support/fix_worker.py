"""Workers for tests: in the test's own event loop, or as processes."""

from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import psycopg
import pytest

import forebay
from forebay.config import Settings, WorkerSettings
from forebay.worker import Worker
from tests.support.effects import PATH_VARIABLE, Effects
from tests.support.engine import connect
from tests.support.worker_process import FAST, Crew, crew


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="run crashes and kills for minutes instead of seconds"
    )


@pytest.fixture
def is_long(pytestconfig: pytest.Config) -> bool:
    """Whether crashes and kills go on for minutes."""
    return bool(pytestconfig.getoption("--long"))


@pytest.fixture
def conn(database: str) -> Iterator[psycopg.Connection]:
    """An autocommitting connection to the test's database."""
    with connect(database) as conn:
        yield conn


@pytest.fixture
def effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Effects:
    """The file that handlers note their deeds in."""
    found = Effects(tmp_path / "effects")
    found.path.chmod(0o666)
    monkeypatch.setenv(PATH_VARIABLE, str(found.path))
    return found


@pytest.fixture
def workers(database: str, effects: Effects) -> Iterator[Crew]:
    """Worker processes on the test's database; all are ended with the test."""
    with connect(database) as conn:
        make_effect_table(conn)
    with crew(database, effects.path) as found:
        yield found


def make_effect_table(conn: psycopg.Connection) -> None:
    """Make the tables that handlers and producers write to in their own transactions."""
    conn.execute("create table effect (entry bigint, job_id bigint)")
    conn.execute("create table witness (entry bigint)")


@pytest.fixture
def app(database: str) -> forebay.App:
    """An application without handlers, at home in the test's database."""
    return forebay.App(database, settings=Settings(worker=WorkerSettings(**FAST)))


@asynccontextmanager
async def running(app: forebay.App, *, group: str = "default", queues=None, dsn=None, **settings):
    """Run a worker of an application in this loop, and stop it at the end."""
    chosen = WorkerSettings(**(FAST | {"grace_seconds": 0.0} | settings))
    worker = Worker(app._internals, dsn or app.dsn, settings=chosen, group=group, queues=queues)
    failures: list[BaseException] = []

    async def run() -> None:
        try:
            await worker.run()
        except BaseException as error:
            failures.append(error)
            raise

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        with anyio.fail_after(10):
            await worker.started.wait()
        try:
            yield worker
        finally:
            worker.stop()


async def run_retries(app: forebay.App, conn: psycopg.Connection, **settings) -> None:
    """
    Run workers until nothing is left to do, also for jobs whose retries are due in a moment.

    One may become ready when its worker has just ended. Jobs that three further workers leave
    ready are of others.
    """
    ready: list[int] = []
    query = (
        "select coalesce(sum(ready), 0)::int, coalesce(sum(retrying), 0)::int from forebay.depth()"
    )
    for _ in range(50):
        await run_until_idle(app, **settings)
        left, retrying = conn.execute(query).fetchone()
        ready.append(left)
        if not retrying and (not left or ready[-4:] == [left] * 4):
            return
    pytest.fail("jobs are retried for ever")


async def run_until_idle(app: forebay.App, *, group: str = "default", **settings) -> Worker:
    """Run a worker until nothing is left to do at once; return it."""
    chosen = WorkerSettings(**(FAST | settings))
    worker = Worker(app._internals, app.dsn, settings=chosen, group=group)
    with anyio.fail_after(30):
        await worker.run(until_idle=True)
    return worker
