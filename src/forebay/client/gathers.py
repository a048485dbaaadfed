"""Jobs with a callback, enqueued in the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Literal, Protocol

from forebay.db.drivers import run, run_async
from forebay.errors import InvalidJob, shown
from forebay.ops import flows
from forebay.ops.enqueue import Call, jobs_json

if TYPE_CHECKING:
    from forebay.db.drivers import AsyncConnection, SyncConnection
    from forebay.model import JobId
    from forebay.ops.operation import Operation

OnDead = Literal["raise", "collect"]

#: Jobs of one gather.
_JOBS_MOST: Final = 100_000

#: Most text of the statement: PostgreSQL keeps less than 256 MiB in one JSON value.
_BYTES_MOST: Final = 200_000_000


class Callback(Protocol):
    """A handler whose job may be a callback."""

    def callback(self, /) -> Call:
        """Return the job, without the arguments that the worker gives."""


def gather(
    conn: SyncConnection,
    calls: Iterable[Call],
    *,
    then: Call | Callback,
    on_dead: OnDead = "raise",
) -> JobId:
    """Enqueue jobs of any kinds, and one that runs when the last of them has ended.

    All are written by one statement in the connection's transaction: they exist if, and only if, it
    commits. Without jobs the callback runs at once. Cancelling it while it waits cancels the jobs
    that have not started. Middlewares around enqueues do not run.

    Its handler gets two arguments, if it names them. ``results`` is a list in the order of the
    calls, of what the handlers returned; None for a job that died. ``died`` is a list with a
    ``dict`` for each job that died or was cancelled: ``index`` (from 0), ``job_id``, ``outcome``
    and ``problem``.

    Args:
        conn: the connection.
        calls: at most 100,000, such as ``handler.calls(items)``. None has a unique key.
        then: the callback: a handler, or ``handler.callback(...)`` with its other arguments. It has
            no unique key, no expiry and no start time.
        on_dead: ``raise``: if a job died or was cancelled, the callback becomes a dead letter, and
            is redriven when all these were redriven and are done. ``collect``: it runs.

    Returns:
        The id of the callback.

    Raises:
        InvalidJob: a call or the callback is refused, or all jobs are too large; nothing was
            written.
        PayloadTooLarge: the arguments of a job are too large.
        WrongConnection: the first argument is not a synchronous connection.
        SchemaError: the database has no schema.
    """
    return run(conn, _operation(calls, then, on_dead))


async def agather(
    conn: AsyncConnection,
    calls: Iterable[Call],
    *,
    then: Call | Callback,
    on_dead: OnDead = "raise",
) -> JobId:
    """Asynchronous form of ``gather``."""
    return await run_async(conn, _operation(calls, then, on_dead))


def _operation(calls: object, then: object, on_dead: object) -> Operation[JobId]:
    if on_dead not in ("raise", "collect"):
        raise InvalidJob("on_dead", f"must be 'raise' or 'collect', not {shown(on_dead)}")
    callback = _checked_callback(then)
    jobs = jobs_json(_checked_calls(calls))
    # A character may take four bytes; most texts are far below.
    if len(jobs) > _BYTES_MOST // 4 and (size := len(jobs.encode())) > _BYTES_MOST:
        raise InvalidJob(
            "calls",
            f"must have at most {_BYTES_MOST} bytes as JSON, not {size}",
            hint="Store the data in a table and pass its key, or gather in parts.",
        )
    return flows.enqueue_gather(jobs, jobs_json([callback])[1:-1], str(on_dead))


def _checked_callback(then: object) -> Call:
    make = getattr(then, "callback", None)
    call = make() if callable(make) and not isinstance(then, type) else then
    if not isinstance(call, Call):
        raise InvalidJob(
            "then",
            f"must be a handler or handler.callback(...), not {shown(then)}",
            hint="gather(conn, part.calls(items), then=whole)",
        )
    given = call.options
    for name, value in (
        ("unique", given.unique),
        ("delay", given.delay_seconds),
        ("run_at", given.run_at),
        ("expires_at", given.expires_at),
        ("expires_in", call.expires_in_seconds),
    ):
        if value is not None:
            raise InvalidJob(
                "then",
                f"is a job of kind {call.kind} with the option {name}",
                hint=f"It starts when the last job has ended. Use using({name}=None).",
            )
    return call


def _checked_calls(calls: object) -> list[Call]:
    if not isinstance(calls, Iterable) or isinstance(calls, str | bytes):
        raise InvalidJob("calls", f"must be a list of calls, not {shown(calls)}")
    found: list[Call] = []
    for index, call in enumerate(calls):
        if not isinstance(call, Call):
            problem = InvalidJob(
                "calls",
                f"must hold calls, not {shown(call)}",
                hint="Use handler.calls(items), or a list of handler.call(...).",
            )
            raise problem.at_index(index)
        if call.options.unique is not None:
            problem = InvalidJob(
                "calls",
                f"must not hold a job with a unique key, as this one of kind {call.kind}",
                hint="The key could belong to a job outside. Use using(unique=None).",
            )
            raise problem.at_index(index)
        if index == _JOBS_MOST:
            raise InvalidJob("calls", f"must be at most {_JOBS_MOST}")
        found.append(call)
    return found
