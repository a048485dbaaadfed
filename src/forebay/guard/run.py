"""Examine a primary and its replicas for holders of old rows and segments.

End them if the rule says so.

A pass opens its connections and closes them again: a failover between two passes changes nothing.
Examining is read-only: no statement runs longer than five seconds or waits for a lock longer than
one.

Invariant "no act without its record": an act is recorded on the primary, and committed, before the
signal is sent to any server. If it cannot be recorded, it does not happen.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Final

import psycopg
import psycopg.conninfo

from forebay.db.session import Session
from forebay.errors import ConfigError, DatabaseUnavailable, ForebayError, SchemaError
from forebay.guard import operations as calls
from forebay.guard.holder_query import holders
from forebay.guard.holders import Holder
from forebay.guard.operations import Found, GuardPass, Server, Unseen
from forebay.guard.rules import Place, Rule, Segment, held_segments, judge
from forebay.sql import latest_version

_STATEMENT_SECONDS: Final = 5

#: How long to wait for the end of a transaction after the signal.
_END_SECONDS: Final = 3.0
_PAUSE_SECONDS: Final = 0.05


async def guard(
    primary: str, replicas: Sequence[str], rule: Rule, *, dry_run: bool = False
) -> GuardPass:
    """Examine the servers once, and apply the rule.

    Args:
        primary: its address.
        replicas: addresses of its standbys.
        rule: which holders to end; a rule without an action ends none.
        dry_run: end nothing, whatever the rule says.

    Raises:
        DatabaseUnavailable: the primary cannot be reached.
        ConfigError: the rule has an action, and the given primary is a standby.
        SchemaError: the rule has an action, and the primary has no table to record acts in.
    """
    acts = rule.acts and not dry_run
    at = datetime.now(UTC)
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(_session(primary, writes=acts))
        primary_server = await session.run(calls.server("primary"))
        if acts:
            _require_record(primary_server)
        kept = await _segments(session, primary_server)
        seen = _judged(rule, primary_server.place, await session.run(holders()), kept or [])
        sessions = [session] * len(seen)
        unseen = []
        for address in replicas:
            name = f"replica {_name(address)}"
            try:
                other = await stack.enter_async_context(_session(address))
                there = await other.run(calls.server(name))
                _require_replica(primary_server, there)
                found = _judged(rule, there.place, await other.run(holders()), [])
            except (ForebayError, psycopg.Error) as error:
                unseen.append(Unseen(name, _message_of(error), getattr(error, "hint", None)))
            else:
                seen += found
                sessions += [other] * len(found)
        if acts:
            seen = [await act(session, own, one) for own, one in zip(sessions, seen, strict=True)]
    return GuardPass(at, tuple(seen), tuple(unseen), segments_seen=kept is not None)


async def act(primary: Session, server: Session, found: Found) -> Found:
    """Apply the verdict on a holder, if it is to act; return the holder with the outcome.

    Args:
        primary: records the act first.
        server: the server of the holder.
        found: the holder and the verdict.
    """
    action = found.verdict.action
    if action is None:
        return found
    event_id = await primary.run(calls.record_act(found.place, found.holder, found.verdict))
    try:
        if action == "rollback prepared":
            outcome = await _roll_back(server, found.holder)
        else:
            sent = await server.run(calls.signal(found.holder, action))
            outcome = await _end_of(server, found.holder, sent)
    except DatabaseUnavailable as error:
        outcome = f"unknown: {error.message}"
    except (ForebayError, psycopg.Error) as error:
        outcome = f"failed: {_message_of(error)}"
    await primary.run(calls.record_outcome(event_id, outcome))
    return dataclasses.replace(found, event_id=event_id, outcome=outcome)


def _judged(rule: Rule, place: Place, found: list[Holder], kept: Sequence[Segment]) -> list[Found]:
    return [Found(place, one, judge(rule, one, place), held_segments(one, kept)) for one in found]


async def _segments(session: Session, server: Server) -> list[Segment] | None:
    """Return the sealed segments; None when this role may not read them, or the query timed out."""
    if not server.has_segments:
        return []
    if not server.may_read:
        return None
    with contextlib.suppress(psycopg.Error):
        return await session.run(calls.segments())
    return None


async def _end_of(server: Session, holder: Holder, sent: bool | None) -> str:
    if sent is None:
        return "gone before"
    if not sent:
        return "failed: the signal was not sent"
    until = time.monotonic() + _END_SECONDS
    while await server.run(calls.continues(holder)):
        if time.monotonic() > until:
            return "still there"
        await asyncio.sleep(_PAUSE_SECONDS)
    return "ended"


async def _roll_back(server: Session, holder: Holder) -> str:
    text = await server.run(calls.rollback_statement(holder))
    if text is None:
        return "gone before"
    await server.run(calls.statement(text))
    return "ended"


@contextlib.asynccontextmanager
async def _session(dsn: str, *, writes: bool = False) -> AsyncIterator[Session]:
    session = Session(
        dsn,
        name="forebay guard",
        call_seconds=3.0 * _STATEMENT_SECONDS,
        lock_timeout="1s",
        settings={
            "statement_timeout": f"{_STATEMENT_SECONDS}s",
            "jit": "off",
            "default_transaction_read_only": "off" if writes else "on",
        },
    )
    try:
        yield session
    finally:
        await session.close()


def _require_record(primary_server: Server) -> None:
    if primary_server.place.standby:
        raise ConfigError(
            "--act",
            "needs the primary, and --dsn names a standby",
            hint="Acts are recorded on the primary: pass its address, and this one as --replica.",
        )
    if not primary_server.has_record:
        raise SchemaError.from_sql(
            f"the schema has no table to record acts in; version {latest_version()} has it",
            hint="Run `forebay migrate`. Without --act the table is not needed.",
        )
    if not primary_server.may_record:
        raise ConfigError(
            "--act",
            "needs a role that may record acts",
            hint="grant forebay_operator to it, and pg_monitor and pg_signal_backend.",
        )


def _require_replica(primary_server: Server, found: Server) -> None:
    if found.cluster != primary_server.cluster:
        raise ConfigError("--replica", f"belongs to another cluster, {found.cluster}")
    if not found.place.standby:
        raise ConfigError("--replica", "is not a standby: it accepts writes")


def _message_of(error: ForebayError | psycopg.Error) -> str:
    if isinstance(error, ForebayError):
        return error.message
    return error.diag.message_primary or str(error)


def _name(dsn: str) -> str:
    """Return host and port of an address, without secrets."""
    try:
        given = psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        return "unknown"
    host = given.get("host") or given.get("hostaddr") or given.get("service") or "local"
    return f"{host}:{given['port']}" if given.get("port") else str(host)
