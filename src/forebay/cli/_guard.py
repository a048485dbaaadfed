"""forebay guard: list sessions that block clean-up; optionally cancel or terminate them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

from forebay._error import is_database_error
from forebay.cli._commands import option
from forebay.cli._database import address_of
from forebay.cli._serving import set_up_log
from forebay.cli.exit import ExitCode
from forebay.cli.options import Dsn, Json, duration
from forebay.cli.output import print_json
from forebay.cli.text import Table, Text, console
from forebay.errors import ConfigError, DatabaseUnavailable, ForebayError, shown
from forebay.model.text import counted, logger
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.guard.operations import Found, GuardPass
    from forebay.guard.rules import Rule

log = logger("forebay.cli")

#: Default of --older-than, for reports only.
_MINUTES: Final = 15

_VERBS: Final = {
    "cancel": ("cancel it", "cancelled"),
    "terminate": ("terminate it", "terminated"),
    "rollback prepared": ("roll it back", "rolled back"),
}

_LIMIT_HINT: Final = "Any action needs an explicit age: --older-than 15m."


def guard(
    *,
    dsn: Dsn = None,
    replica: Annotated[
        list[str] | None, option("--replica ADDRESS", "Also examine this standby; repeatable.")
    ] = None,
    older_than: Annotated[
        str | None,
        option(
            "--older-than DURATION",
            f"Only transactions older than this (default {_MINUTES}m, for reports only).",
        ),
    ] = None,
    act: Annotated[
        str | None,
        option(
            "--act ACTION", "cancel the statement or terminate the session. Default: only report."
        ),
    ] = None,
    user: Annotated[
        list[str] | None, option("--user ROLE", "Only sessions of this role; repeatable.")
    ] = None,
    not_user: Annotated[
        list[str] | None, option("--not-user ROLE", "Never sessions of this role; repeatable.")
    ] = None,
    application: Annotated[
        list[str] | None,
        option("--application PATTERN", "Only applications that match, with * and ?; repeatable."),
    ] = None,
    not_application: Annotated[
        list[str] | None,
        option("--not-application PATTERN", "Never applications that match; repeatable."),
    ] = None,
    rollback_prepared: Annotated[
        bool, option("--rollback-prepared", "Roll back prepared transactions. They are lost.")
    ] = False,
    dry_run: Annotated[bool, option("--dry-run", "Only show what would be done.")] = False,
    every: Annotated[
        str | None, option("--every DURATION", "Repeat at this interval until stopped.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List sessions that block clean-up; optionally cancel or terminate them.

    It examines active sessions, sessions idle in a transaction, handlers, prepared transactions,
    replication slots and standbys. Without --act or --rollback-prepared it only reports. Each
    action is recorded in forebay.guard_event before it is taken. The exit code is 1 if something
    older than the limit remains, and 3 if a replica could not be examined, or the age of a
    transaction not be seen.
    """
    from forebay.guard.rules import Rule
    from forebay.guard.run import guard as look

    limit, pause = duration(older_than, "--older-than"), duration(every, "--every")
    if act not in {None, "cancel", "terminate"}:
        raise ConfigError("--act", f"is {shown(act)}, not cancel or terminate", value=act)
    if limit is None and (act or rollback_prepared):
        option = "--act" if act else "--rollback-prepared"
        raise ConfigError(option, "needs --older-than", hint=_LIMIT_HINT)
    if pause is not None and pause.total_seconds() < 1:
        raise ConfigError("--every", f"is {shown(every)}, less than a second", value=every)
    if limit is None:
        limit = timedelta(minutes=_MINUTES)
    rule = Rule(
        older_than=limit.total_seconds(),
        act=cast("Literal['cancel', 'terminate'] | None", act),
        users=tuple(user or ()),
        not_users=tuple(not_user or ()),
        applications=tuple(application or ()),
        not_applications=tuple(not_application or ()),
        rollback_prepared=rollback_prepared,
    )
    address = address_of(dsn)
    replicas = [address_of(one) for one in replica or ()]
    if pause is None:
        seen = asyncio.run(look(address, replicas, rule, dry_run=dry_run))
        _print(seen, rule, address, dry_run=dry_run, as_json=as_json)
        if seen.over:
            raise SystemExit(ExitCode.FAILED)
        if seen.unseen or seen.unknown:
            raise SystemExit(ExitCode.DATABASE)
        return
    set_up_log("info", "text")
    asyncio.run(
        _watch(address, replicas, rule, pause.total_seconds(), dry_run=dry_run, as_json=as_json)
    )


async def _watch(
    address: str, replicas: list[str], rule: Rule, pause: float, *, dry_run: bool, as_json: bool
) -> None:
    """Repeat until SIGTERM or SIGINT; wait for a primary server that is unavailable."""
    from forebay.guard.run import guard as look

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    logged: set[object] = set()
    is_first = True
    try:
        while not stop.is_set():
            try:
                seen = await look(address, replicas, rule, dry_run=dry_run)
            except Exception as error:
                # An error of the first pass is permanent; a later one may be temporary, as a
                # failover is.
                is_ours = isinstance(error, ForebayError) or is_database_error(error)
                if not is_ours or (is_first and not isinstance(error, DatabaseUnavailable)):
                    raise
                log.warning("%s", error)
            else:
                is_first = False
                if as_json:
                    _print(seen, rule, address, dry_run=dry_run, as_json=True)
                    sys.stdout.flush()
                logged = _log_news(seen, logged, rule, dry_run=dry_run)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stop.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _log_news(seen: GuardPass, logged: set[object], rule: Rule, *, dry_run: bool) -> set[object]:
    """Log what the previous pass did not log, and return the keys of what is logged now."""
    now: set[object] = set()
    for one in seen.found:
        if not (one.verdict.is_over or one.verdict.kind == "unknown"):
            continue
        key = (one.place.name, one.holder.sort, one.holder.name, one.holder.since)
        now.add(key)
        if key not in logged or one.outcome:
            log.warning("%s; %s", _label(one), "; ".join(_done(one, rule, dry_run=dry_run)))
    for lost in seen.unseen:
        now.add(lost.name)
        if lost.name not in logged:
            log.warning("%s could not be examined: %s", lost.name, lost.why)
    if logged and not now:
        log.info("nothing is older than %s now", human_duration(rule.older_than))
    return now


def _print(seen: GuardPass, rule: Rule, address: str, *, dry_run: bool, as_json: bool) -> None:
    from forebay.config import masked_dsn

    if as_json:
        print_json(
            {
                "address": masked_dsn(address),
                "at": seen.at,
                "older_than_seconds": rule.older_than,
                "dry_run": dry_run or not rule.acts,
                "found": [_facts(one) for one in seen.found],
                "unseen": seen.unseen,
                "segments_seen": seen.segments_seen,
            }
        )
        return
    out = console()
    out.print(_report(seen, rule, dry_run=dry_run))
    if seen.found or seen.unseen:
        out.print()
    out.print(_summary(seen, rule, dry_run=dry_run))


def _report(seen: GuardPass, rule: Rule, *, dry_run: bool) -> Table:
    rows = Table(gap=1)
    rows.add_column(no_wrap=True)
    rows.add_column()
    # The oldest last, next to the prompt when the command has ended; an unknown age counts as the
    # oldest.
    for one in sorted(
        seen.found,
        key=lambda one: (one.verdict.is_over, one.holder.seconds is None, one.holder.seconds or 0),
    ):
        mark, style = ("!", "bold yellow") if one.verdict.is_over else ("·", "cyan")
        if one.verdict.kind == "unknown":
            mark, style = "?", "bold yellow"
        if one.has_ended:
            mark, style = "✓", "green"
        text = Text(_label(one))
        for line in _held(one):
            text.append(f"\n{line}", "dim")
        for line in _done(one, rule, dry_run=dry_run):
            text.append("\n→ ", style).append(line)
        rows.add_row(Text(mark, style), text)
    for lost in seen.unseen:
        text = Text(f"{lost.name} could not be examined: {lost.why}")
        if lost.hint:
            text.append("\n→ ", "bold red").append(lost.hint)
        rows.add_row(Text("✗", "bold red"), text)
    if not seen.segments_seen:
        rows.add_row(Text("·", "cyan"), "the segments that are kept could not be determined")
    return rows


def _label(one: Found) -> str:
    return str(one.holder) if one.place.name == "primary" else f"{one.place.name}: {one.holder}"


def _held(one: Found) -> Iterable[str]:
    """Yield its start, what it keeps, and its statement."""
    holder = one.holder
    since = f"since {holder.since.astimezone():%Y-%m-%d %H:%M:%S}" if holder.since else ""
    age = f"{counted(holder.age, 'transaction')} ago" if holder.age else ""
    if since or age:
        yield ", ".join(part for part in (since, age) if part)
    keeps = []
    if holder.catalog_only:
        keeps.append("dead rows of the system catalogs")
    elif holder.age or holder.xid is not None:
        keeps.append("dead rows")
    if one.held_segments.segments:
        keeps.append(one.held_segments.described(has_ended=one.has_ended))
    if keeps:
        yield f"{'kept' if one.has_ended else 'keeps'} {' and '.join(keeps)}"
    if holder.locks and one.verdict.is_over:
        shown = ", ".join(holder.locks[:3]) + (" and more" if holder.locks[3:] else "")
        yield f"{'held' if one.has_ended else 'holds'} a lock that stops workers, on {shown}"
    if holder.query and one.verdict.is_over:
        yield f"last statement: {holder.query}"


def _done(one: Found, rule: Rule, *, dry_run: bool) -> Iterable[str]:
    """Yield what was or would be done, and the remedy where the guard does nothing."""
    if one.verdict.kind == "young":
        return
    if rule.acts or one.verdict.kind != "reported":
        yield _decided(one, dry_run=dry_run)
    if one.verdict.kind in {"reported", "refused"}:
        yield one.holder.remedy


def _decided(one: Found, *, dry_run: bool) -> str:
    verdict = one.verdict
    if verdict.action is None:
        word = verdict.kind if verdict.kind in {"refused", "unknown"} else "left alone"
        return f"{word}: {verdict.reason}"
    would, did = _VERBS[verdict.action]
    if one.outcome is None:
        assert dry_run
        return f"would {would}: {verdict.reason}"
    if one.outcome == "ended":
        return f"{did}: {verdict.reason}; event {one.event_id}"
    return f"could not {would}: {one.outcome}; event {one.event_id}"


def _facts(one: Found) -> dict[str, Any]:
    holder, verdict = one.holder, one.verdict
    return {
        "server": one.place.name,
        "sort": holder.sort,
        "name": holder.name,
        "pid": holder.pid,
        "user": holder.user,
        "application": holder.application,
        "worker": holder.worker,
        "address": holder.address,
        "database": holder.database,
        "state": holder.state,
        "since": holder.since,
        "seconds": None if holder.seconds is None else round(holder.seconds, 3),
        "age": holder.age,
        "writes": holder.xid is not None,
        "catalog_only": holder.catalog_only,
        "query": holder.query,
        "segments": one.held_segments.segments,
        "locks": holder.locks,
        "segments_due": one.held_segments.due,
        "verdict": verdict.kind,
        "reason": verdict.reason,
        "action": verdict.action,
        "event_id": one.event_id,
        "outcome": one.outcome,
        "remedy": holder.remedy,
    }


def _summary(seen: GuardPass, rule: Rule, *, dry_run: bool) -> Text:
    from forebay.guard.holders import described_ranges

    limit = human_duration(rule.older_than)
    kinds = Counter(one.verdict.kind for one in seen.found)
    ended = sum(one.has_ended for one in seen.found)
    parts = []
    if ended:
        parts.append(Text(f"{ended} ended", "green"))
    if seen.over:
        parts.append(Text(f"{len(seen.over)} older than {limit}", "bold yellow"))
    if seen.unknown:
        parts.append(Text(f"{len(seen.unknown)} whose age cannot be seen", "bold yellow"))
    if kinds["spared"]:
        parts.append(Text(f"{kinds['spared']} excepted", "default"))
    if kinds["young"]:
        parts.append(Text(f"{kinds['young']} not yet older than {limit}: left alone", "default"))
    nothing = Text("nothing blocks clean-up", "bold green")
    if seen.unseen:
        nothing = Text("nothing that could be examined blocks clean-up")
    line = Text(", ").join(parts) if parts else nothing
    if rule.acts and dry_run:
        line.append("; nothing was done: --dry-run", "dim")
    due = sorted(
        {number for one in seen.found if not one.has_ended for number in one.held_segments.due}
    )
    holding = sum(bool(one.held_segments.due) and not one.has_ended for one in seen.found)
    if holding > 1:
        line.append(
            f"\nsegments that are due but kept: {described_ranges(tuple(due))};"
            f" each can be dropped when the last session that keeps it has ended",
            "dim",
        )
    return line
