"""Wait for a condition instead of sleeping, and say what was seen when it never came."""

import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import psycopg
import pytest

T = TypeVar("T")

_PAUSE_SECONDS = 0.01


def wait_for(
    condition: Callable[[], T],
    deadline_seconds: float = 30,
    describe: str | Callable[[], str] = "",
) -> T:
    """Call ``condition`` until it is true and return what it returned; fail at the deadline.

    Args:
        condition: asked about every ten milliseconds.
        deadline_seconds: how long to ask.
        describe: what was waited for, or a function that says at the deadline what is the case.
    """
    deadline = time.monotonic() + deadline_seconds
    while not (answer := condition()):
        if time.monotonic() > deadline:
            _fail(condition, deadline_seconds, describe)
        time.sleep(_PAUSE_SECONDS)
    return answer


async def wait_for_async(
    condition: Callable[[], T | Awaitable[T]],
    deadline_seconds: float = 30,
    describe: str | Callable[[], str] = "",
) -> T:
    """Do as ``wait_for`` while the event loop runs on.

    ``condition`` may be a coroutine function.
    """
    deadline = time.monotonic() + deadline_seconds
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        if time.monotonic() > deadline:
            _fail(condition, deadline_seconds, describe)
        await anyio.sleep(_PAUSE_SECONDS)


def describe_sessions(dsn: str) -> str:
    """Return a line for each session of the database: its state, and who blocks it."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        rows = conn.execute(
            "select format('pid %s %s, blocked by %s, waits for %s, %s: %s', pid, state,"
            " pg_blocking_pids(pid), coalesce(wait_event, 'nothing'), application_name,"
            " left(query, 200)) from pg_stat_activity where datname = current_database()"
            " and pid <> pg_backend_pid() order by pid"
        ).fetchall()
    return "\n".join(line for (line,) in rows)


def _fail(
    condition: Callable[[], object], seconds: float, describe: str | Callable[[], str]
) -> None:
    seen = describe() if callable(describe) else describe
    name = getattr(condition, "__qualname__", "the condition")
    pytest.fail(f"not within {seconds} s: {seen or name}")
