"""forebay guard: who holds old rows and segments back; end them, if a rule says so."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import typer
from rich.table import Table
from rich.text import Text

from forebay.cli._worker import log_to_stderr
from forebay.cli.exit import ExitCode, is_database_error
from forebay.cli.options import Dsn, Json, duration
from forebay.cli.output import console, print_json
from forebay.client import address_of
from forebay.config import masked_dsn
from forebay.doctor import counted
from forebay.errors import ConfigError, DatabaseUnavailable, ForebayError, shown
from forebay.guard.holders import described_ranges
from forebay.guard.rules import Rule
from forebay.guard.run import guard as look
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from forebay.guard.operations import Found, GuardPass

log = logging.getLogger("forebay.cli")

#: Without --older-than, which is for a report only.
_MINUTES: Final = 15

_VERBS: Final = {
    "cancel": ("cancel it", "cancelled"),
    "terminate": ("terminate it", "terminated"),
    "rollback prepared": ("roll it back", "rolled back"),
}

_LIMIT_HINT: Final = "Say it whenever something is to be ended: --older-than 15m."


def _names(option: str, metavar: str, said: str) -> Any:
    return typer.Option(option, metavar=metavar, help=said, show_default=False)


def guard(
    *,
    dsn: Dsn = None,
    replica: Annotated[
        list[str] | None,
        _names("--replica", "ADDRESS", "A standby to look at too; repeatable."),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help=f"Transactions older than this (default {_MINUTES}m, for a report only).",
            show_default=False,
        ),
    ] = None,
    act: Annotated[
        str | None,
        typer.Option(
            "--act",
            metavar="ACTION",
            help="cancel their statement, or terminate their session. Without it nothing is done.",
            show_default=False,
        ),
    ] = None,
    user: Annotated[
        list[str] | None, _names("--user", "ROLE", "Only of this role; repeatable.")
    ] = None,
    not_user: Annotated[
        list[str] | None, _names("--not-user", "ROLE", "Never of this role; repeatable.")
    ] = None,
    application: Annotated[
        list[str] | None,
        _names("--application", "PATTERN", "Only this application, * and ? allowed; repeatable."),
    ] = None,
    not_application: Annotated[
        list[str] | None,
        _names("--not-application", "PATTERN", "Never this application; repeatable."),
    ] = None,
    rollback_prepared: Annotated[
        bool,
        typer.Option(
            "--rollback-prepared", help="Roll back prepared transactions, which are then lost."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    every: Annotated[
        str | None,
        typer.Option(
            "--every",
            metavar="DURATION",
            help="Look again and again, until stopped.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Name who keeps old rows and segments from being cleared; end them, if a rule says so.

    Sessions at work or idle in a transaction, handlers, prepared transactions, replication slots and
    standbys. Nothing is ended without --act or --rollback-prepared, and each act is recorded in
    forebay.guard_event first. Ends with 1 when something older than the limit goes on.
    """
    limit, pause = duration(older_than, "--older-than"), duration(every, "--every")
    if act not in {None, "cancel", "terminate"}:
        raise ConfigError("--act", f"is {shown(act)}, not cancel or terminate", value=act)
    if limit is None and (act or rollback_prepared):
        asked = "--act" if act else "--rollback-prepared"
        raise ConfigError(asked, "needs --older-than beside it", hint=_LIMIT_HINT)
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
            raise typer.Exit(ExitCode.FAILED)
        if seen.unseen:
            raise typer.Exit(ExitCode.DATABASE)
        return
    log_to_stderr("info")
    asyncio.run(
        _watch(address, replicas, rule, pause.total_seconds(), dry_run=dry_run, as_json=as_json)
    )


async def _watch(
    address: str, replicas: list[str], rule: Rule, pause: float, *, dry_run: bool, as_json: bool
) -> None:
    """Look until SIGTERM or SIGINT; a leader that is away is waited for."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    said: set[object] = set()
    is_first = True
    try:
        while not stop.is_set():
            try:
                seen = await look(address, replicas, rule, dry_run=dry_run)
            except Exception as error:
                # What was wrong from the start stays wrong; what comes later may pass, as a failover does.
                is_ours = isinstance(error, ForebayError) or is_database_error(error)
                if not is_ours or (is_first and not isinstance(error, DatabaseUnavailable)):
                    raise
                log.warning("%s", error)
            else:
                is_first = False
                if as_json:
                    _print(seen, rule, address, dry_run=dry_run, as_json=True)
                    sys.stdout.flush()
                said = _log_news(seen, said, rule, dry_run=dry_run)
            try:
                await asyncio.wait_for(stop.wait(), pause)
            except TimeoutError:
                pass
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _log_news(seen: GuardPass, said: set[object], rule: Rule, *, dry_run: bool) -> set[object]:
    """Log what was not said in the pass before, and return what need not be said in the next."""
    now: set[object] = set()
    for one in seen.found:
        if not one.verdict.is_over:
            continue
        key = (one.place.name, one.holder.sort, one.holder.name, one.holder.since)
        now.add(key)
        if key not in said or one.outcome:
            log.warning("%s; %s", _label(one), "; ".join(_done(one, rule, dry_run=dry_run)))
    for lost in seen.unseen:
        now.add(lost.name)
        if lost.name not in said:
            log.warning("%s could not be looked at: %s", lost.name, lost.why)
    if said and not now:
        log.info("nothing is older than %s any more", human_duration(rule.older_than))
    return now


def _print(seen: GuardPass, rule: Rule, address: str, *, dry_run: bool, as_json: bool) -> None:
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


def _report(seen: GuardPass, rule: Rule, *, dry_run: bool) -> RenderableType:
    rows = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold")
    # The oldest last, where the eye is when the command has ended; what tells no time is the oldest of all.
    for one in sorted(
        seen.found,
        key=lambda one: (one.verdict.is_over, one.holder.seconds is None, one.holder.seconds or 0),
    ):
        mark, style = ("!", "bold yellow") if one.verdict.is_over else ("·", "cyan")
        if one.has_ended:
            mark, style = "✓", "green"
        said = Text(_label(one))
        for line in _held(one):
            said.append(f"\n{line}", "dim")
        for line in _done(one, rule, dry_run=dry_run):
            said.append("\n→ ", style).append(line)
        rows.add_row(Text(mark, style), said)
    for lost in seen.unseen:
        said = Text(f"{lost.name} could not be looked at: {lost.why}")
        if lost.hint:
            said.append("\n→ ", "bold red").append(lost.hint)
        rows.add_row(Text("✗", "bold red"), said)
    if not seen.segments_seen:
        rows.add_row(Text("·", "cyan"), "which segments are kept could not be seen")
    return rows


def _label(one: Found) -> str:
    return str(one.holder) if one.place.name == "leader" else f"{one.place.name}: {one.holder}"


def _held(one: Found) -> Iterable[str]:
    """Yield since when, what it keeps, and its statement."""
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
    if holder.query and one.verdict.is_over:
        yield f"last statement: {holder.query}"


def _done(one: Found, rule: Rule, *, dry_run: bool) -> Iterable[str]:
    """Yield what was done, or would be; and what a person can do where the guard does nothing."""
    if one.verdict.kind == "young":
        return
    if rule.acts or one.verdict.kind != "reported":
        yield _decided(one, dry_run=dry_run)
    if one.verdict.kind in {"reported", "refused"}:
        yield one.holder.remedy


def _decided(one: Found, *, dry_run: bool) -> str:
    verdict = one.verdict
    if verdict.action is None:
        return f"{'refused' if verdict.kind == 'refused' else 'left alone'}: {verdict.reason}"
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
        "segments_due": one.held_segments.due,
        "verdict": verdict.kind,
        "reason": verdict.reason,
        "action": verdict.action,
        "event_id": one.event_id,
        "outcome": one.outcome,
        "remedy": holder.remedy,
    }


def _summary(seen: GuardPass, rule: Rule, *, dry_run: bool) -> Text:
    limit = human_duration(rule.older_than)
    kinds = Counter(one.verdict.kind for one in seen.found)
    ended = sum(one.has_ended for one in seen.found)
    parts = []
    if ended:
        parts.append(Text(f"{ended} ended", "green"))
    if seen.over:
        parts.append(Text(f"{len(seen.over)} older than {limit}", "bold yellow"))
    if kinds["spared"]:
        parts.append(Text(f"{kinds['spared']} excepted", "default"))
    if kinds["young"]:
        parts.append(Text(f"{kinds['young']} younger", "default"))
    nobody = Text("nobody holds anything back", "bold green")
    if seen.unseen:
        nobody = Text("nobody who was seen holds anything back")
    line = Text(", ").join(parts) if parts else nobody
    if rule.acts and dry_run:
        line.append("; nothing was done: --dry-run", "dim")
    due = sorted(
        {number for one in seen.found if not one.has_ended for number in one.held_segments.due}
    )
    holding = sum(bool(one.held_segments.due) and not one.has_ended for one in seen.found)
    if holding > 1:
        line.append(
            f"\nsegments that are due and kept: {described_ranges(tuple(due))};"
            f" each leaves when the last of those that keep it has ended",
            "dim",
        )
    return line
