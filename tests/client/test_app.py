"""Declaring handlers: what a decorated function is, and what an app knows of it."""

import asyncio
import contextlib
import inspect
import subprocess
import sys
import typing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

import forebay
from forebay import App, Client, Context, Job, RetryPolicy
from forebay.app._mistakes import refuse_unknown_options
from forebay.config import RetrySettings, Settings
from forebay.errors import ConfigError, InvalidJob

this_app = App()


@dataclass
class Row:
    document_id: int


@pytest.fixture
def app():
    return App()


def test_a_decorated_function_is_still_the_function(app):
    """
    It is called as before, and shows its name, documentation and signature.
    """

    @app.job(queue="mail")
    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    assert add(1, b=2) == 3
    assert (add.__name__, add.__doc__) == ("add", "Add two numbers.")
    assert str(inspect.signature(add)) == "(a: int, b: int = 1) -> int"
    assert "add" in repr(add)


@pytest.mark.anyio
async def test_a_coroutine_function_is_awaited_as_before(app):
    """
    The call gives its coroutine.
    """

    @app.job
    async def double(n: int) -> int:
        return 2 * n

    assert await double(21) == 42
    assert double.kind.is_async


def test_the_bare_decorator_declares_with_defaults(app):
    """
    ``@app.job`` and ``@app.job()`` are the same.
    """

    @app.job
    def one() -> None: ...

    @app.job()
    def two() -> None: ...

    for handler in (one, two):
        assert handler.kind.queue == "default"
        assert handler.options.given() == {"queue": "default", "priority": 100}
    assert [kind.name for kind in app.kinds] == ["one", "two"]


def test_every_option_reaches_the_kind(app):
    """
    Durations are seconds or timedeltas; a tag and an expiry go with each job.
    """

    @app.job(
        name="mail.welcome",
        queue="mail",
        priority=5,
        tag="signup",
        retry=RetryPolicy(strategy="fixed", base_seconds=1),
        max_attempts=4,
        timeout=timedelta(minutes=1),
        soft_timeout=50,
        transaction=True,
        expires_in=timedelta(hours=1),
    )
    def send(ctx: Context, user_id: int) -> None: ...

    kind = app.kinds.get("mail.welcome")
    assert (kind.queue, kind.priority, kind.transaction, kind.takes_context) == (
        "mail",
        5,
        True,
        True,
    )
    assert (kind.soft_timeout_seconds, kind.hard_timeout_seconds) == (50, 60.0)
    assert (kind.retry.strategy, kind.retry.max_attempts) == ("fixed", 4)
    call = send.call(1)
    assert (call.kind, call.args, call.options.tag) == ("mail.welcome", '{"user_id":1}', "signup")
    assert call.expires_in_seconds == 3600


@pytest.mark.parametrize(
    "options",
    [
        {"queue": "no good"},
        {"name": "no good"},
        {"priority": "high"},
        {"tag": ""},
        {"timeout": -1},
        {"soft_timeout": 10, "timeout": 5},
        {"expires_in": 0},
        {"expires_in": "1h"},
        {"max_attempts": 0},
        {"retry": "twice"},
    ],
    ids=str,
)
def test_a_bad_declaration_is_an_error_at_import(app, options):
    """
    It is found when the module is imported, not when the first job fails.
    """
    with pytest.raises(ConfigError):

        @app.job(**options)
        def send(user_id: int) -> None: ...

    assert "send" not in app.kinds


def test_what_is_no_function_cannot_be_declared(app):
    """
    Options without their names, an unknown option, and a handler twice are refused.
    """
    with pytest.raises(ConfigError, match="not a function"):
        app.job("mail")
    with pytest.raises(ConfigError, match="colour"):
        app.job(colour="red")(lambda: None)
    handler = app.job(_plain)
    with pytest.raises(ConfigError, match="already"):
        app.job(handler)


def _plain() -> None: ...


def test_options_go_on_copies(app):
    """
    ``using`` leaves the handler as it is, and its copies can be changed again.
    """

    @app.job(queue="mail", tag="a", expires_in=60)
    def send(user_id: int) -> None: ...

    later = send.using(delay=30, tag="b")
    assert (send.options.delay, send.options.tag) == (None, "a")
    assert (later.options.delay, later.options.tag, later.options.queue) == (30.0, "b", "mail")
    at = later.using(run_at=datetime(2030, 1, 1, tzinfo=UTC), tag=None)
    assert (at.options.delay, at.options.tag) == (None, None)
    assert later.kind is send.kind
    assert later(user_id=1) is None


def test_an_expiry_is_an_instant_or_a_duration(app):
    """
    Each of ``expires_at`` and ``expires_in`` replaces the other.
    """

    @app.job(expires_in=60)
    def send() -> None: ...

    instant = datetime(2030, 1, 1, tzinfo=UTC)
    at = send.using(expires_at=instant)
    assert (at.options.expires_at, at.expires_in_seconds) == (instant, None)
    within = at.using(expires_in=timedelta(minutes=2))
    assert (within.options.expires_at, within.expires_in_seconds) == (None, 120)
    assert send.using(expires_in=None).expires_in_seconds is None
    with pytest.raises(InvalidJob):
        send.using(expires_in=-1)


@pytest.mark.parametrize(
    "options",
    [{"qeue": "mail"}, {"priority": "high"}, {"delay": 1, "run_at": datetime.now(UTC)}],
    ids=["unknown", "wrong type", "contradiction"],
)
def test_bad_options_of_a_job_are_refused(app, options):
    """
    When the copy is made, before any job is.
    """

    @app.job
    def send() -> None: ...

    with pytest.raises(InvalidJob):
        send.using(**options)


def test_two_functions_cannot_share_a_name(app):
    """
    The second one says where the first one is.
    """

    @app.job(name="send")
    def one() -> None: ...

    with pytest.raises(ConfigError, match="declared twice"):

        @app.job(name="send")
        def two() -> None: ...


def test_batch_handlers_take_values_or_jobs(app):
    """
    One item of the list is what is enqueued.
    """

    @app.batch_job(size=500, queue="search")
    def index(rows: list[Row]) -> None: ...

    @app.batch_job()
    def free(ctx: Context, jobs: list[Job]) -> None: ...

    assert index.kind.batch_size == 500
    assert index.call(Row(1)).args == '{"document_id":1}'
    assert free.call(a=1).args == '{"a":1}'
    assert free.kind.takes_context
    with pytest.raises(InvalidJob):
        index.call([Row(1)])
    with pytest.raises(ConfigError):
        app.batch_job(size=0)(index.kind.function)


def test_retries_come_from_the_settings_where_a_kind_says_nothing():
    """
    A kind's own policy stays; its own number of attempts goes before the settings' number.
    """
    app = App(settings=Settings(retry=RetrySettings(retry_strategy="linear", max_attempts=7)))

    @app.job
    def plain() -> None: ...

    @app.job(max_attempts=2)
    def few() -> None: ...

    @app.job(retry=RetryPolicy())
    def own() -> None: ...

    policies = {kind.name: kind.retry for kind in app.kinds}
    assert (policies["plain"].strategy, policies["plain"].max_attempts) == ("linear", 7)
    assert (policies["few"].strategy, policies["few"].max_attempts) == ("linear", 2)
    assert policies["own"] == RetryPolicy()

    app._internals.use(settings=Settings(retry=RetrySettings(max_attempts=9)))
    assert app.kinds.get("plain").retry.max_attempts == 9


def test_an_app_without_a_database_can_be_imported_and_called(monkeypatch, tmp_path):
    """
    Nothing is looked up until it is needed: then the missing address is an error.
    """
    for name in ("FOREBAY_DATABASE_URL", "DATABASE_URL", "PGHOST", "PGDATABASE", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    app = App()

    @app.job
    def send(user_id: int) -> int:
        return user_id

    assert send(1) == 1
    with pytest.raises(ConfigError, match="database address"):
        send.enqueue_now(1)
    with pytest.raises(ConfigError, match="database address"):
        app.client().depth()
    app._internals.use(dsn="postgresql://db/shop")
    assert app.dsn == "postgresql://db/shop"


def test_enqueue_now_commits_by_itself(app, database):
    """
    The job is there when the call returns.
    """
    app._internals.use(dsn=database)

    @app.job(queue="mail")
    def send(user_id: int) -> None: ...

    job_id = send.using(tag="now").enqueue_now(42)
    assert app.client().job(job_id)[0].tag == "now"


@pytest.mark.anyio
async def test_enqueue_now_has_an_asynchronous_twin(app, database):
    """
    It does the same without blocking the loop.
    """
    app._internals.use(dsn=database)

    @app.job(queue="mail")
    def send(user_id: int) -> None: ...

    job_id = await send.aenqueue_now(42)
    (job,) = await app.async_client().job(job_id)
    assert job.args == {"user_id": 42}


@pytest.mark.anyio
async def test_resources_are_built_in_order_and_closed_in_reverse(app):
    """
    Generators, coroutine functions, context managers and plain values all will do.
    """
    events = []

    @app.resource
    async def first():
        events.append("first opened")
        yield 1
        events.append("first closed")

    @app.resource("second")
    def build():
        events.append("second opened")
        yield 2
        events.append("second closed")

    @app.resource
    async def third():
        return 3

    @app.resource
    @contextlib.asynccontextmanager
    async def fourth():
        yield 4

    app.resource("fifth")(lambda: 5)

    async with contextlib.AsyncExitStack() as stack:
        built = await app._internals.open_resources(stack)
        assert built == {"first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5}
    assert events == ["first opened", "second opened", "second closed", "first closed"]


@pytest.mark.anyio
async def test_a_resource_that_cannot_be_built_closes_the_others_and_is_named(app):
    """
    The exception tells which one it was.
    """
    closed = []

    @app.resource
    def fine():
        try:
            yield 1
        finally:
            closed.append("fine")

    @app.resource
    def broken():
        raise OSError("no such host")

    with pytest.raises(OSError, match="no such host") as caught:
        async with contextlib.AsyncExitStack() as stack:
            await app._internals.open_resources(stack)
    assert "broken" in caught.value.__notes__[0]
    assert closed == ["fine"]


def test_a_resource_has_one_factory(app):
    """
    Two under one name, and what is no function, are refused.
    """
    app.resource("it")(lambda: 1)
    with pytest.raises(ConfigError, match="twice"):
        app.resource("it")(contextlib.nullcontext)
    with pytest.raises(ConfigError, match="not a function"):
        app.resource("other")(5)


def test_an_app_knows_where_another_process_finds_it(app):
    """
    Its module and global name; None when it is no global.
    """
    assert this_app._internals.location() == (__name__, "this_app", False)
    assert app._internals.location() is None


@pytest.mark.parametrize("as_module", [True, False], ids=["module", "script"])
def test_an_app_in_a_program_is_found_too(tmp_path, as_module):
    """
    Run as ``python -m`` it is a module, run by its path a script.
    """
    path = tmp_path / "shop.py"
    path.write_text("import forebay\napp = forebay.App()\nprint(app._internals.location())\n")
    program = ["-m", "shop"] if as_module else [str(path)]
    done = subprocess.run(
        [sys.executable, *program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    expected = ("shop", "app", False) if as_module else (str(path), "app", True)
    assert done.stdout.strip() == str(expected)


def test_public_names_are_what_they_say():
    """
    Everything in ``__all__`` exists, and every public name of the package is in it.
    """
    assert all(hasattr(forebay, name) for name in forebay.__all__)
    assert forebay.__all__ == sorted(forebay.__all__)


def test_a_worker_of_the_app_runs_its_jobs(app, database):
    """
    ``run_worker`` until idle: every committed job has run, with its context and resources.
    """
    app._internals.use(dsn=database)
    seen = []

    @app.resource
    def greeting():
        return "hello"

    @app.job(queue="mail")
    def send(ctx: Context, user_id: int) -> None:
        seen.append((ctx.resources["greeting"], user_id, ctx.attempt))

    send.enqueue_now(7)
    stats = app.run_worker(until_idle=True)

    assert seen == [("hello", 7, 1)]
    assert stats.done == 1


def test_a_client_of_the_app_enqueues_by_name_as_the_kind_declares(database):
    """
    Queue and other options are those of the kind, unless they are given; a plain client does not
    know them.
    """
    app = App(database)

    @app.job(queue="mail", priority=7, tag="shop", expires_in=60)
    def send_welcome(user_id: int) -> None: ...

    async def enqueue_async():
        return await app.async_client().enqueue_now("send_welcome", {"user_id": 1})

    client = app.client()
    for job_id in (
        client.enqueue_now("send_welcome", {"user_id": 1}),
        asyncio.run(enqueue_async()),
    ):
        (job,) = client.job(job_id)
        assert (job.queue, job.priority, job.tag) == ("mail", 7, "shop")
        assert timedelta(seconds=30) < job.expires_at - job.enqueued_at <= timedelta(seconds=61)
    later = datetime(2090, 1, 1, tzinfo=UTC)
    given = client.enqueue_now("send_welcome", queue="slow", priority=1, expires_at=later)
    (job,) = client.job(given)
    assert (job.queue, job.priority, job.tag, job.expires_at) == ("slow", 1, "shop", later)
    (job,) = client.job(client.enqueue_now("foreign"))
    assert job.queue == "default"
    with psycopg.connect(database) as conn:
        assert (
            client.backfill(
                "send_welcome", "select n as user_id from generate_series(1, 2) n", conn=conn
            )
            == 2
        )
    assert {job.queue for job in client.jobs(state="ready", kind="send_welcome")} == {
        "mail",
        "slow",
    }
    (job,) = client.job(Client(database).enqueue_now("send_welcome"))
    assert job.queue == "default"


def test_an_option_of_another_library_is_refused_with_what_to_write():
    """
    The error names the decorator, not a function inside of this library.
    """
    app = forebay.App()
    for option, hint in {
        "max_retries": "max_attempts",
        "rate_limit": "app.queue",
        "x": "Options",
    }.items():
        with pytest.raises(ConfigError, match=f"@app.job: {option} is not an option") as caught:
            app.job(**{option: 3})
        assert hint in str(caught.value.hint)

    (_, _, _, declared) = typing.get_overloads(forebay.App.job)
    for option in set(inspect.signature(declared).parameters) - {"self"}:
        refuse_unknown_options({option: None})
