"""Every public function, constructor and method is given wrong values: it refuses them by a typed
error. The doors are read from ``__all__`` of the public modules.
"""

import asyncio
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

import forebay
from forebay import App, Job, Jobs, Mirror
from forebay.errors import ConfigError, DatabaseUnavailable
from forebay.mirror import Drift, Target
from forebay.model.spans import PLACE
from forebay.sinks import Sink
from forebay.testing import context
from forebay.worker import Worker
from tests.support.wrong_values import Attempt, attempts, chosen, problem

#: Its socket does not exist: what goes on to the database ends with ``DatabaseUnavailable``.
NOWHERE = "host=/nonexistent dbname=shop"
NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)

MODULES = ("forebay", "forebay.testing", "forebay.mirror", "forebay.sinks", "forebay.tracing")

#: What is no door, and why. A line that is not needed fails the test.
NO_DOORS = {
    "the clients have a test of their own": {"Client", "AsyncClient"},
    "the library makes it": {
        "Attempt", "AttemptEnded", "BackfillPlan", "BackfillProgress", "Call", "ChangePlan",
        "AsyncContext", "ChangeResult", "Context", "Handler", "Job", "JobHandle", "JobId",
        "LostWorker", "PlainContext",
        "NewJob", "Queue", "QueueDifference", "ScheduleDifference", "Scheduled", "SubjectHandler",
        "SubjectResult", "SubjectRun", "SubjectStatus", "TransactionContext", "UpgradeProgress",
        "mirror.Alert", "mirror.AuditRecord", "mirror.Checksum", "mirror.MirrorFacts",
        "mirror.MirrorStatus", "mirror.Seen", "sinks.Message", "testing.Received",
        "testing.IdleRun", "testing.Performed", "testing.RecordingContext", "mirror.Drift",
        "sinks.Sent",
    },
    "it is an error or an enumeration": {
        "ForebayError", "JobState", "testing.JobFailed", "mirror.Rejected", "sinks.FromRow",
        "sinks.NotPermitted", "sinks.Refused", "sinks.SinkUnavailable",
    },
    "it is called for each message, by a drain": {"sinks.message_id"},
    "it is a type": {"mirror.Compare", "mirror.Id", "sinks.Answer", "Outcome"},
    "the source of a mirror makes it, for each item": {"mirror.Document", "mirror.Gone"},
    "it runs what it is given": {"sinks.call_in_thread"},
    "its rows are those of a scan of a store": {"mirror.checksum_of"},
    "subclasses are written by users, and the library calls them": {
        "Middleware", "testing.SinkContract", "testing.TargetContract", "sinks.Sink",
        "mirror.Source", "mirror.Target",
    },
}  # fmt: skip


class Items(Target):
    """A source and a target without items."""

    def read(self, ids):
        return {}

    def write(self, documents):
        return {}

    def delete(self, gone):
        return {}

    def scan(self, after, until=None, limit=0):
        return []


class Nothing(Sink):
    """A sink that takes nothing."""

    async def open(self): ...

    async def send(self, messages): ...

    async def close(self): ...


def send_mail(user_id: int = 1): ...


def send_mails(jobs: list[Job]): ...


def app() -> App:
    return App(NOWHERE)


def mirror() -> Mirror:
    return Mirror(app(), "docs", source=Items(), target=Items())


def decorated(method: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(**options):
        return getattr(app(), method)(**options)(function)

    call.__signature__ = inspect.signature(getattr(App, method))
    return call


def bound(make: Callable[[], Any], name: str) -> Callable[..., Any]:
    """Return a method of a new object, with its positional arguments by name."""
    signature = inspect.signature(getattr(make(), name))

    def call(**named):
        positional = [
            named.pop(each.name)
            for each in signature.parameters.values()
            if each.kind is each.POSITIONAL_ONLY and each.name in named
        ]
        return getattr(make(), name)(*positional, **named)

    call.__signature__ = signature
    return call


OBJECTS: Mapping[str, Callable[[], Any]] = {
    "App": app,
    "Jobs": Jobs,
    "Handler": lambda: app().job(name="mail")(send_mail),
    "JobHandle": lambda: app().handle(1),
    "SubjectHandler": lambda: app().subject(name="page")(send_mail),
    "Mirror": mirror,
    "Context": lambda: context("mail"),
}

#: Methods that are tried in another way, or are no doors, and why.
NO_METHODS = {
    "a decorator, tried with its function": {
        f"{owner}.{name}"
        for owner in ("App", "Jobs")
        for name in ("job", "batch_job", "subject", "cron")
    },
    "its arguments are those of the handler": {
        f"{owner}.{prefix}{name}"
        for owner in ("Handler", "SubjectHandler")
        for prefix in ("", "a")
        for name in ("append", "call", "enqueue", "enqueue_now", "item", "push", "upsert")
        if hasattr(getattr(forebay, owner), prefix + name)
    },
    "the library calls it": {"Mirror.close", "Context.request_stop"},
    "it takes options of jobs, as JobOptions does": {"Handler.using", "SubjectHandler.using"},
    "it waits, as it is told to": {"Context.wait_cancelled"},
}  # fmt: skip

#: Good values by names of parameters.
GOOD: dict[str, Any] = {
    "after": None,
    "alias": "docs",
    "app": app(),
    "at": NEW_YEAR,
    "calls": [],
    "config": {"url": "https://a.example/x"},
    "conn": None,
    "current": Items(),
    "done": 0.5,
    "drift": Drift(),
    "dsn": NOWHERE,
    "endpoint": "main",
    "enqueued_at": NEW_YEAR,
    "function": send_mail,
    "group": "default",
    "handler": app().job(name="mail")(send_mail),
    "item": 1,
    "items": [],
    "job_id": 1,
    "key": "k",
    "kind": "mail",
    "lies": {},
    "listener": send_mail,
    "middleware": forebay.Middleware(),
    "name": "http",
    "named": send_mail,
    "new": Items(),
    "number": 1,
    "path": ":memory:",
    "period": 5,
    "read": "select 1",
    "reason": "x",
    "rows": [],
    "scan": "select 1",
    "secret": "s3cret",
    "sink": Nothing(),
    "source": Items(),
    "table": "t",
    "target": Items(),
    "then": forebay.Call(kind="mail", args="{}"),
    "url": "http://a.example",
    "wait": 5,
    "sql": "select 1",
    "queue": "mail",
    "by": 5,
}

OWN: dict[str, dict[str, Any]] = {
    "App.cron": {"expression": "* * * * *"},
    "App.queue": {"name": "q"},
    "Jobs.queue": {"name": "q"},
    "Schedule": {"name": "s", "cron": "* * * * *"},
    "Snooze": {"delay": 5},
    "Drain": {"name": "d"},
    "Mirror": {"name": "m"},
    "Mirror.backfill": {"rows": "select 1"},
    "Mirror.plan_backfill": {"rows": "select 1"},
    "backfill": {"rows": "select 1"},
    "abackfill": {"rows": "select 1"},
    "testing.run_until_idle": {"dsn": NOWHERE},
    "testing.run_until_idle_async": {"dsn": NOWHERE},
}


def doors() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the name of each door and how it is called with arguments by name."""
    not_doors = set().union(*NO_DOORS.values())
    not_methods = set().union(*NO_METHODS.values())
    yield "App.job", job_door()
    yield "App.batch_job", decorated("batch_job", send_mails)
    yield "App.subject", decorated("subject", send_mail)
    yield "App.cron", decorated("cron", send_mail)
    for module in MODULES:
        prefix = module.removeprefix("forebay").removeprefix(".")
        for each in importlib.import_module(module).__all__:
            name = f"{prefix}.{each}".removeprefix(".")
            found = getattr(importlib.import_module(module), each)
            if callable(found) and name not in not_doors and type(found) is not type(str | int):
                yield name, found
    for owner, make in OBJECTS.items():
        for each in dir(type(make())):
            method = inspect.getattr_static(type(make()), each)
            if each.startswith("_") or not inspect.isfunction(method):
                continue
            if f"{owner}.{each}" not in not_methods and not is_inherited(owner, each):
                yield f"{owner}.{each}", bound(make, each)


def is_inherited(owner: str, name: str) -> bool:
    """A handler of subjects has the methods of jobs, and refuses them."""
    return owner == "SubjectHandler" and hasattr(forebay.Handler, name)


def job_door() -> Callable[..., Any]:
    def call(**options):
        return app().job(**options)(send_mail)

    # Its options are those of batch_job, which has them in its signature.
    parameters = inspect.signature(App.batch_job).parameters
    call.__signature__ = inspect.Signature(
        [each for name, each in parameters.items() if name not in ("self", "size", "linger")]
    )
    return call


def calls() -> Iterator[tuple[Attempt, Callable[..., Any]]]:
    for name, door in doors():
        own = OWN.get(name, {})
        if "conn" in inspect.signature(door).parameters:
            own = {"conn": None} | own
        for attempt in attempts(name, door, GOOD, own):
            # What Python says of an option of a class or a function that does not exist stays.
            if attempt.wrong != "unknown option" or name.startswith(("App.", "Mirror.")):
                yield attempt, door


@pytest.fixture
def no_workers(monkeypatch):
    """A worker that is made does not run."""

    async def run(self, **_):
        raise DatabaseUnavailable("there is none")

    monkeypatch.setattr(Worker, "run", run)
    monkeypatch.setattr(PLACE, "installed", PLACE.installed)


def answer(attempt: Attempt, door: Callable[..., Any]) -> str | None:
    """Call a door; return what is wrong with the answer."""
    error = None
    try:
        result = door(**attempt.arguments)
        if inspect.iscoroutine(result):
            asyncio.run(result)
    except AssertionError:
        pass  # an assertion about jobs did not hold: that is its answer
    except Exception as raised:
        error = raised
    return problem(attempt, error)


@pytest.mark.parametrize(
    "count", [200, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_a_wrong_value_is_refused_by_its_name(no_workers, count, seed):
    """
    Each parameter of each door has each wrong value in turn, the others have good ones: some of
    these calls, at random.
    """
    every = list(calls())
    assert len(every) > 8_000
    some = every if count is None else chosen(every, count, seed)
    found = [wrong for attempt, door in some if (wrong := answer(attempt, door)) is not None]
    assert not found, "\n".join(found)


def test_what_is_no_door_is_public():
    """
    A name that is not there any more has no reason to be left out.
    """
    public = {
        f"{module}.{name}".removeprefix("forebay").removeprefix(".")
        for module in MODULES
        for name in importlib.import_module(module).__all__
    }
    assert set().union(*NO_DOORS.values()) <= public
    for name in set().union(*NO_METHODS.values()):
        owner, _, method = name.partition(".")
        assert hasattr(type(OBJECTS[owner]()), method), name


@pytest.mark.parametrize("decorator", ["job", "batch_job", "subject"])
@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("max_retries", "Write max_attempts=..., which counts the first attempt, too."),
        ("autoretry_for", "Write retry=RetryPolicy(...)"),
        ("rate_limit", "Write app.queue(name, rate=...)"),
        ("countdown", "Write handler.using(delay=60).enqueue(conn, ...)."),
        ("bind", "Write a first parameter annotated Context."),
        ("time_limit", "Write timeout=...."),
        ("priorty", "Do you mean priority? Options: "),
    ],
)
def test_a_word_of_celery_at_a_decorator_is_answered_with_ours(decorator, option, hint):
    """
    And a slip of the hand with the likely option.
    """
    with pytest.raises(ConfigError, match=option) as refused:
        getattr(app(), decorator)(**{option: 5})
    assert refused.value.hint.startswith(hint)


def test_methods_of_a_subclass_of_the_application_are_its_business():
    """
    The library does not compare the arguments of functions that are not its own.
    """

    class Shop(App):
        def greet(self, name: str) -> object:
            return name

    assert Shop(NOWHERE).greet(5) == 5
