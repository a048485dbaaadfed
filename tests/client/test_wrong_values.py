"""Every method of the clients is given wrong values: it refuses them by a typed error."""

import asyncio
import contextlib
import inspect
import typing
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from forebay import App, AsyncClient, Client, JobFilter
from forebay.errors import ForebayError, InvalidJob
from tests.support.wrong_values import Attempt, attempts, chosen, good_arguments, problem

NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)

#: Good values by the name of the parameter. A new parameter needs one.
GOOD = {
    "act": "cancel", "age": 60, "app": "shop", "at": NEW_YEAR - timedelta(days=3650),
    "attempts": 5, "backfill_id": 1,
    "cause": "x", "concurrency": 3, "config": {"url": "https://example.com/x"}, "dead_id": 1,
    "enabled": True, "end": NEW_YEAR + timedelta(days=1), "endpoint": "main",
    "event_type": "shop.paid",
    "file": "x", "first": 1, "from_version": 0, "function": lambda state, args: (state, args),
    "job_id": 1, "jobs": 1, "key": "42", "kind": "mail", "lanes": 4, "last": 2, "limit_key": "k",
    "name": "main", "payload": {"a": 1}, "payloads": [{"a": 1}], "priority": 5, "queue": "mail",
    "queues": [App().queue("mail", max_waiting=5)], "replay_id": 1,
    "rows": "select '{}'::jsonb as args", "schedules": [], "secret": "env:SECRET",
    "segment_id": 1, "since": NEW_YEAR - timedelta(days=3650), "sink": "http", "start": NEW_YEAR,
    "step": "minute", "subject": "page", "subjects": [{"queue": "mail", "kind": "crawl",
    "subject": "page"}], "to_version": 1, "value": 5, "what": 1, "which": JobFilter(queue="mail"),
}  # fmt: skip

#: Good values of one method: where others of the same name have other ones, or one of several
#: options is needed. Those that commit find no jobs.
OWN: dict[str, dict[str, object]] = {
    "backfill_subjects": {"rows": "select 'page' as subject"},
    "configure": {"name": "args_bytes_max", "value": 1_000_000},
    "create_endpoint": {"name": "other"},
    "create_export": {"name": "other"},
    "create_schedule": {"name": "other", "cron": "* * * * *"},
    "drop_subjects": {"queue": "none"},
    "key": {"limit_key": "k"},
    "limit_key": {"rate": 5},
    "pause_key": {"limit_key": "k"},
    "plan_rewind": {"job_id": 999_999},
    "rewind": {"job_id": 999_999},
    "plan_subjects": {"rows": "select 'page' as subject"},
    "redact_queue": {"queue": "none"},
    "replay_jobs": {"which": JobFilter(queue="none")},
    "reprioritise_matching": {"which": JobFilter(queue="none")},
    "reschedule_matching": {"which": JobFilter(queue="none"), "run_at": NEW_YEAR},
    "result": {"timeout": 0.01},
    "resume_key": {"limit_key": "k"},
    "retry_matching": {"which": JobFilter(queue="none")},
    "set_threshold": {"name": "ready.age"},
    "subscribe": {"start": "now"},
    "upgrade_subjects": {"queue": "none"},
}


def methods(client: type) -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the public methods of a client."""
    for name in sorted(dir(client)):
        if not name.startswith("_"):
            yield name, getattr(client, name)


def calls(client: type) -> Iterator[Attempt]:
    for name, method in methods(client):
        yield from attempts(name, method, GOOD, OWN.get(name, {}))


@pytest.fixture
def shop(database):
    """A database with a dead letter, and one of each thing that has a name."""
    app = App(database)

    @app.job(queue="mail", max_attempts=1)
    def mail():
        raise ValueError("x")

    client = Client(database)
    mail.enqueue_now()
    app.run_worker(until_idle=True)
    client.create_endpoint("main", "http", {"url": "https://example.com/x"})
    client.create_event_type("shop.paid")
    client.push_subjects([{"queue": "mail", "kind": "crawl", "subject": "page"}])
    client.create_schedule("main", "mail", "* * * * *")
    client.create_export("main")
    return database


def answers(dsn: str, some: list[Attempt]) -> Iterator[str]:
    """Call the client; yield each answer that is not as it should be."""
    client = Client(dsn)
    with psycopg.connect(dsn) as conn:
        for attempt in some:
            method = getattr(client, attempt.door)
            named = {"conn": conn} if "conn" in typing.get_type_hints(method) else {}
            error = None
            try:
                method(**named, **attempt.arguments)
            except Exception as raised:
                error = raised
            wrong = problem(attempt, error)
            if wrong is not None:
                yield wrong
            if error is not None and conn.info.transaction_status is TransactionStatus.INTRANS:
                # In a transaction that an error aborted nothing is left to ask.
                row = conn.execute("select pg_current_xact_id_if_assigned()").fetchone()
                if row != (None,):
                    yield f"{attempt}: wrote before it refused"
            conn.rollback()


async def awaited_answers(dsn: str, some: list[Attempt]) -> list[str]:
    """As ``answers``, of the asynchronous client, without a transaction around."""
    client = AsyncClient(dsn)
    found = []
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        for attempt in some:
            method = getattr(client, attempt.door)
            named = {"conn": conn} if "conn" in typing.get_type_hints(method) else {}
            error = None
            try:
                result = method(**named, **attempt.arguments)
                if inspect.isasyncgen(result):  # It checks when it is asked for its first item.
                    async with contextlib.aclosing(result):
                        await anext(result, None)
                else:
                    await result
            except Exception as raised:
                error = raised
            wrong = problem(attempt, error)
            if wrong is not None:
                found.append(wrong)
            await conn.rollback()
    return found


@pytest.mark.parametrize(
    "count", [120, pytest.param(3_000, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_wrong_values_are_refused_by_their_name_and_nothing_is_written(shop, count, seed):
    """
    Each parameter of each method has each wrong value in turn, the others have good ones: some of
    these calls, at random.
    """
    every = list(calls(Client))
    assert len(every) > 15_000
    found = list(answers(shop, chosen(every, count, seed)))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "count", [60, pytest.param(1_000, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_the_asynchronous_client_refuses_them_too(shop, count, seed):
    """
    Its methods are the source of the other client's.
    """
    found = asyncio.run(awaited_answers(shop, chosen(calls(AsyncClient), count, seed)))
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_good_values_are_good(shop):
    """
    A wrong value is one only beside good ones: no method refuses those for their form.
    """
    client = Client(shop)
    refused = []
    with psycopg.connect(shop) as conn:
        for name, method in methods(Client):
            good = good_arguments(method, GOOD, OWN.get(name, {}))
            named = {"conn": conn} if "conn" in typing.get_type_hints(method) else {}
            with contextlib.suppress(ForebayError):
                try:
                    method(client, **named, **good)
                except InvalidJob as error:
                    if "not found" not in error.message:
                        refused.append(f"{name}: {error}")
            conn.rollback()
    assert not refused, "\n".join(refused)


def test_a_secret_of_a_wrong_type_is_not_shown():
    """
    Errors go to logs.
    """
    client = Client("host=nowhere.invalid")
    for secret in (b"whsec_plain", "whsec_plain\x00"):
        with pytest.raises(InvalidJob, match="secret") as refused:
            client.rotate_secret("shop", secret)
        assert "whsec_plain" not in str(refused.value)


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("countdown", "Write delay=60."),
        ("max_retries", "Write max_attempts=..., which counts the first attempt, too."),
        ("priorty", "Do you mean priority?"),
        ("bogus", "Options: correlation_id, delay, "),
    ],
)
def test_an_option_of_another_library_is_answered_with_ours(option, hint):
    """
    And a slip of the hand with the likely one.
    """
    with pytest.raises(InvalidJob, match=option) as refused:
        Client("host=nowhere.invalid").enqueue_now("mail", {}, **{option: 5})
    assert refused.value.hint.startswith(hint)
