"""Run the checks of the doctor on a database: each independently, read-only, briefly.

Safe at any time on any database: the doctor writes nothing but a row that is undone, waits for a
lock for at most a second, and runs no statement longer than five seconds.
"""

from __future__ import annotations

import importlib.metadata
import platform
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import pq

from forebay.db.session import Session
from forebay.doctor import (
    CHECKS,
    Check,
    Finding,
    Level,
    catalog,
    installed,
    judge_installed,
    not_compared,
    without_workers,
)
from forebay.doctor._log import judge_measured_queues
from forebay.doctor._space import judge_measured
from forebay.doctor._trouble import AFTER_WHICH_TROUBLE_COUNTS, TROUBLES, with_trouble
from forebay.errors import DatabaseUnavailable, ForebayError
from forebay.model.explanation import Explanation
from forebay.watch import operations
from forebay.watch.explain import explain_job

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STATEMENT_SECONDS: Final = 5

_SETTINGS: Final = {
    "statement_timeout": f"{_STATEMENT_SECONDS}s",
    "jit": "off",
}

_QUERY_CANCELED: Final = "57014"
_INSUFFICIENT_PRIVILEGE: Final = "42501"


async def examine(
    dsn: str,
    *,
    data: Mapping[str, Any] | None = None,
    kept: Mapping[str, Sequence[Finding]] | None = None,
) -> list[Finding]:
    """Return the findings about a database, in the order of the checks.

    Args:
        dsn: the address.
        data: what was just measured, which is judged instead of a count of all that waits; None:
            count and measure now.
        kept: by the name of a check, what it found before: it does not run again.

    Raises:
        DatabaseUnavailable: the database cannot be reached.
    """
    session = read_session(dsn)
    try:
        missing = judge_installed(*await session.run(installed()))
        found = [driver(), connection(is_pooled=session.is_pooled)]
        known = dict(kept or {})
        if data is not None:
            known["queues"] = judge_measured_queues(data)
        there = {"nothing"} if missing else {"nothing", "schema", "version"}
        for check in CHECKS:
            if check.name == "schema":
                found += missing
            if check.needs in there:
                before = known.get(check.name)
                seen = await look(session, check) if before is None else before
                found += seen
                facts = seen[-1].facts
                if check.name == "schema" and facts.get("version") != facts.get("needed"):
                    there.discard("version")  # objects of another version cannot be compared
                    found.append(not_compared())
        if "schema" in there:
            found += await _look_at_measured(dsn, data)
        return without_workers(found)
    finally:
        await session.close()


async def compare(dsn: str) -> list[Finding]:
    """Return what the comparison of the schema with the migrations finds.

    Raises:
        DatabaseUnavailable: the database cannot be reached.
    """
    session = read_session(dsn)
    try:
        return await look(session, next(check for check in CHECKS if check.name == "objects"))
    finally:
        await session.close()


async def examine_job(dsn: str, job_id: int) -> list[Explanation]:
    """Return why a job does not run, one entry for each group of its queue.

    Where the job should start soon, or only lacks a worker, a problem of the database is the
    answer.

    Raises:
        DatabaseUnavailable: the database cannot be reached.
        SchemaError: the database has no schema, or an old one.
    """
    session = read_session(dsn)
    try:
        found = await session.run(explain_job(job_id))
        if all(one.cause not in AFTER_WHICH_TROUBLE_COUNTS for one in found):
            return found
        checks = [check for check in CHECKS if check.name in TROUBLES]
        seen = [finding for check in checks for finding in await look(session, check)]
        return [with_trouble(one, seen) for one in found]
    finally:
        await session.close()


def read_session(dsn: str, *, may_write: bool = False) -> Session:
    """Return a session that only reads unless it may write, and briefly."""
    return Session(
        dsn,
        name="forebay doctor",
        call_seconds=3.0 * _STATEMENT_SECONDS,
        lock_timeout="1s",
        settings=_SETTINGS | {"default_transaction_read_only": "off" if may_write else "on"},
    )


async def _look_at_measured(dsn: str, given: Mapping[str, Any] | None) -> list[Finding]:
    """Try a write, which is undone: on another session, since that of the doctor only reads."""
    session = read_session(dsn, may_write=True)
    try:
        data = (
            await session.run(operations.measurements(with_counters=False))
            if given is None
            else dict(given)
        )
        data["write_failed"] = await session.run(operations.probe_write())
        return judge_measured(data)
    except DatabaseUnavailable:
        raise
    except ForebayError as error:
        return [Finding("space", Level.ERROR, error.message, error.hint)]
    except psycopg.Error as error:
        return [_unseen("space", error)]
    finally:
        await session.close()


async def read_catalog(dsn: str) -> dict[str, str]:
    """Return the objects of the schema with their definitions.

    Raises:
        DatabaseUnavailable: the database cannot be reached.
    """
    session = Session(dsn, name="forebay catalog")
    try:
        return await session.run(catalog())
    finally:
        await session.close()


def driver() -> Finding:
    """Return which database driver this process uses."""
    implementation = pq.__impl__
    facts = {
        "forebay": importlib.metadata.version("forebay"),
        "python": platform.python_version(),
        "psycopg": psycopg.__version__,
        "implementation": implementation,
        "libpq": pq.version(),
    }
    what = (
        f"forebay {facts['forebay']}, Python {facts['python']},"
        f" psycopg {psycopg.__version__} ({implementation}), libpq {_libpq(pq.version())}"
    )
    if implementation == "python":
        return Finding(
            "driver",
            Level.NOTICE,
            f"{what}: the slow implementation",
            "pip install 'psycopg[binary]', or psycopg[c] built against your libpq.",
            facts,
        )
    return Finding("driver", Level.OK, what, facts=facts)


def connection(*, is_pooled: bool) -> Finding:
    """Return whether a pooler is between this process and the server."""
    facts = {"pooled": is_pooled}
    if not is_pooled:
        return Finding("connection", Level.OK, "no pooler in between", facts=facts)
    return Finding(
        "connection",
        Level.NOTICE,
        "through a pooler: workers with this address find jobs by polling, and recover the jobs of"
        " a dead worker after lease_seconds",
        "For a quicker start, give the workers an address that bypasses the pooler; if the "
        "pooler is in"
        " session mode, set pooler = session.",
        facts,
    )


def _libpq(number: int) -> str:
    return f"{number // 10_000}.{number % 10_000}"


async def look(session: Session, check: Check) -> list[Finding]:
    """Return what a check finds; one that fails, or may not look, is a finding too."""
    try:
        return await session.run(check.operation)
    except DatabaseUnavailable:
        raise
    except ForebayError as error:
        return [Finding(check.name, Level.ERROR, error.message, error.hint)]
    except psycopg.Error as error:
        return [_unseen(check.name, error)]


def _unseen(name: str, error: psycopg.Error) -> Finding:
    """Return the finding that a check failed: a fact like any other, of which the exit code
    tells.
    """
    message = error.diag.message_primary or str(error)
    facts: dict[str, Any] = {
        "unchecked": True,
        "sqlstate": error.sqlstate,
        "message": message,
    }
    remedy = None
    if error.sqlstate == _QUERY_CANCELED:
        message = f"the check took longer than {_STATEMENT_SECONDS} s"
        remedy = "The server is very busy, or holds very much data; try again."
    elif error.sqlstate == _INSUFFICIENT_PRIVILEGE:
        remedy = "Run the doctor as a member of forebay_operator or forebay_reader."
    return Finding(name, Level.NOTICE, f"could not be checked: {message}", remedy, facts)
