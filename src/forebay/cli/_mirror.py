"""forebay mirror: status of a mirror; compare both stores and repair differences."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, cast

import click

from forebay.cli._commands import Commands, argument, option
from forebay.cli._load import load_app
from forebay.cli._worker import AppPlace
from forebay.cli.exit import ExitCode
from forebay.cli.options import Dsn, Json, duration
from forebay.cli.output import ago, facts_table, one_line, print_json, table
from forebay.cli.text import Text, console
from forebay.errors import ConfigError
from forebay.model.text import counted
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.cli.text import Console
    from forebay.mirror import Mirror
    from forebay.model.alerts import Alert
    from forebay.model.mirrors import AuditRecord, MirrorStatus

commands = Commands()

_SHOWN: int = 5

#: Samples of a curve, and the characters for its heights.
_CURVE: int = 48
_HEIGHTS: str = "▁▂▃▄▅▆▇█"

Name = Annotated[str, argument("NAME", "Name of the mirror.")]


@commands.add("status")
def status(
    app: AppPlace,
    name: Name,
    *,
    group: Annotated[str, option("--group GROUP", "Consumer group of its workers.")] = "default",
    tags: Annotated[
        bool, option("--tags", "Also list completed work by tag and priority.")
    ] = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Show the status of a mirror: waiting and completed jobs, and alerts.

    The exit code is 1 if there is an alert, else 0. The command reads every waiting job: seconds
    for millions of jobs.
    """
    mirror = _mirror_of(app, name, dsn)
    try:
        found = mirror.status(group=group)
    finally:
        mirror.close()
    if as_json:
        facts = {name: getattr(found.facts, name) for name in found.facts.__dataclass_fields__}
        print_json(
            {
                "mirror": name,
                "queue": found.queue,
                "fine": found.is_fine,
                "alerts": found.alerts,
                "thresholds": found.thresholds,
                **facts,
            }
        )
    else:
        _print_status(console(), found, by_tag=tags)
    if not found.is_fine:
        raise SystemExit(ExitCode.FAILED)


@commands.add("heartbeat")
def heartbeat(app: AppPlace, name: Name, *, dsn: Dsn = None, as_json: Json = False) -> None:
    """Enqueue a job that changes nothing, to detect that jobs stop arriving.

    It completes when both stores are reachable. Send one every few minutes from where changes come
    from.
    """
    mirror = _mirror_of(app, name, dsn)
    job_id = mirror.heartbeat_now()
    if as_json:
        print_json({"mirror": name, "job_id": int(job_id)})
    else:
        console().print(f"job {job_id} enqueued")


@commands.add("audit")
def audit(
    app: AppPlace,
    name: Name,
    *,
    repair: Annotated[bool, option("--repair", "Enqueue a job for each difference.")] = False,
    rate: Annotated[
        float, option("--rate N", "Maximum number of rows read per second.")
    ] = 10_000.0,
    settle: Annotated[
        str | None,
        option(
            "--settle TIME",
            "Compare a difference again after this time before reporting it: 90s, 2min.",
        ),
    ] = None,
    compare: Annotated[
        str | None, option("--compare version|hash", "What to compare. Default: as declared.")
    ] = None,
    history: Annotated[
        bool, option("--history", "Show the results of earlier audits instead.")
    ] = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Compare a whole target with its source.

    It can run during live writes. The exit code is 1 if there are differences, also with --repair.
    """
    if compare not in (None, "version", "hash"):
        raise click.UsageError(f"--compare is {compare}, not version or hash")
    if history and repair:
        raise click.UsageError("--history cannot be combined with --repair")
    mirror = _mirror_of(app, name, dsn)
    if history:
        _print_history(mirror.audits(), as_json=as_json)
        return
    begun = time.monotonic()
    try:
        drift = mirror.audit(
            rows_per_second=rate,
            settle=duration(settle, "--settle"),
            compare=compare,  # type: ignore[arg-type]  # checked above
        )
        enqueued = mirror.repair(drift) if repair else 0
    finally:
        mirror.close()
    kinds = {
        "missing": drift.missing,
        "stale": drift.stale,
        "orphaned": drift.orphaned,
        "ahead": drift.ahead,
    }
    if as_json:
        counts = {kind: len(ids) for kind, ids in kinds.items()}
        print_json(
            {
                "mirror": name,
                "items": drift.items,
                "copies": drift.copies,
                "suspects": drift.suspects,
                "compared": drift.compared,
                "rows": drift.rows,
                "rows_per_second": round(drift.rows_per_second, 1),
                "rows_per_second_max": rate,
                "ranges": drift.ranges,
                "differed": drift.differed,
                **counts,
                "ids": kinds,
                "enqueued": enqueued,
                "seconds": round(drift.seconds, 3),
            }
        )
    else:
        out = console()
        seconds = max(time.monotonic() - begun, 0.001)
        out.print(
            f"{drift.items} items, {drift.copies} copies, {drift.suspects} compared again, "
            f"in {seconds:.1f} s"
        )
        ranges = ""
        if drift.ranges:
            ranges = (
                f"; {drift.differed:,} of {counted(drift.ranges, 'range')} differed; their "
                f"rows were read"
            )
        out.print(
            (
                f"{drift.rows:,} rows read, {drift.rows_per_second:,.0f} per second, at most "
                f"{rate:,.0f}{ranges}"
            ),
            style="dim",
        )
        rows = table("", "count", "examples", right=("count",))
        for kind, ids in kinds.items():
            some = ", ".join(map(str, ids[:_SHOWN])) + (", ..." if len(ids) > _SHOWN else "")
            rows.add_row(kind, Text(str(len(ids)), "bold red" if ids else "dim"), some)
        out.print(rows)
        if repair:
            out.print(f"enqueued {counted(enqueued, 'job')}")
        elif drift.repairable:
            out.print("→ --repair enqueues a job for each difference")
    if drift.total:
        raise SystemExit(ExitCode.FAILED)


def _mirror_of(app: str, name: str, dsn: str | None) -> Mirror:
    found, _ = load_app(app)
    found._internals.use(dsn=dsn)
    if name not in found.mirrors:
        known = ", ".join(sorted(found.mirrors)) or "none"
        raise ConfigError("mirror", f"{name} is not declared in {app}", hint=f"Declared: {known}.")
    return cast("Mirror", found.mirrors[name])


# --- status ---


def _print_status(out: Console, found: MirrorStatus, *, by_tag: bool) -> None:
    facts, thresholds = found.facts, found.thresholds
    if found.is_fine:
        out.print(Text.assemble(("✓ ", "bold green"), (found.name, "bold"), ": no alerts"))
    for alert in found.alerts:
        _print_alert(out, found.name, alert)
    out.print()
    rows = facts_table()
    rows.add_row("waiting", _waiting(found))
    if facts.oldest_due_at is not None:
        late = (facts.at - facts.oldest_due_at).total_seconds() >= thresholds.unproved_for
        rows.add_row(
            "oldest",
            Text(f"due since {_age(found, facts.oldest_due_at)}", "yellow" if late else ""),
        )
    rows.add_row("completed", _completed(found))
    for breaker in facts.breakers:
        breaker_state = f"open, in {breaker.who}" + (f": {breaker.why}" if breaker.why else "")
        rows.add_row(
            "breaker" if breaker.place == "pass" else "direct writes",
            Text(breaker_state, "bold yellow"),
        )
    if not facts.breakers:
        rows.add_row("breaker", "closed")
    if facts.paused_at is not None:
        rows.add_row(
            "queue", Text(f"{found.queue} is paused, {ago(facts.paused_at)}", "bold yellow")
        )
    curve = [due for _, due in facts.samples[-_CURVE:]]
    if len(curve) > 1 and any(curve):
        rows.add_row("due over time", f"{_curve(curve)}  up to {max(curve):,}")
    rows.add_row("last audit", _last_audit(facts.audits))
    out.print(rows)
    if facts.by:
        out.print()
        out.print(_waiting_table(found))
    if facts.counts:
        out.print()
        out.print(_outcome_table(found, by_tag=by_tag))


def _print_alert(out: Console, name: str, alert: Alert) -> None:
    line = Text.assemble(("✗ ", "bold red"), (f"{alert.code} ", "bold red"), (name, "bold"), ": ")
    out.print(line.append(alert.problem))
    out.print(Text(f"→ {alert.hint}", "dim"), indent=5)


def _waiting(found: MirrorStatus) -> Text:
    facts = found.facts
    if not facts.waiting:
        return Text("no job", "green")
    text = Text.assemble(
        f"{counted(facts.waiting, 'job')}: ",
        (f"{facts.due_all:,} due", "blue" if facts.due_all else ""),
    )
    parts = [
        (facts.due_all - facts.due, "of them excluded from alerts"),
        (facts.waiting - facts.due_all, "later"),
        (facts.claimed, "claimed"),
        (facts.running, "running"),
        (facts.tried, "failed before"),
    ]
    return text.append("".join(f", {count:,} {what}" for count, what in parts if count))


def _completed(found: MirrorStatus) -> str:
    facts, seconds = found.facts, found.thresholds.completed_within
    rate = facts.completed / seconds * 60
    last = f"; last {ago(facts.completed_at)}" if facts.completed_at is not None else ""
    within = human_duration(seconds)
    jobs = counted(facts.completed, "job")
    return f"{jobs} within {within}, {rate:,.3g} per minute{last}; bulk jobs are left out"


def _last_audit(audits: list[AuditRecord]) -> Text:
    if not audits:
        return Text("none; run forebay mirror audit", "dim")
    last = audits[0]
    text = Text(f"{ago(last.ended_at)}: ")
    text.append(_found(last), "bold red" if last.total else "green")
    if last.repaired:
        text.append(f", {counted(last.repaired, 'job')} enqueued for repair")
    if len(audits) > 1:
        before = ", ".join(f"{audit.total:,}" for audit in audits[1:])
        text.append(f"; earlier differences: {before}", "dim")
    return text


def _found(audit: AuditRecord) -> str:
    kinds = ("missing", "stale", "orphaned", "ahead")
    found = [f"{getattr(audit, kind):,} {kind}" for kind in kinds if getattr(audit, kind)]
    return ", ".join(found) or f"no differences, {audit.items:,} items"


def _waiting_table(found: MirrorStatus) -> Any:
    right = ("priority", "due", "later", "failed")
    rows = table("waiting", *right, "oldest", "", right=right)
    for line in found.facts.by:
        rows.add_row(
            line.tag or "-",
            str(line.priority),
            _number(line.due, "blue"),
            _number(line.later, "yellow"),
            _number(line.tried, "red"),
            _age(found, line.oldest_due_at) if line.oldest_due_at else "-",
            Text("no alerts" if line.is_bulk else "", "dim"),
        )
    return rows


def _outcome_table(found: MirrorStatus, *, by_tag: bool) -> Any:
    seconds = found.thresholds.completed_within
    within = f"last {human_duration(seconds)}"
    named = ("tag", "priority") if by_tag else ()
    rows = table(
        "done", *named, within, "per minute", "in all",
        right=("priority", within, "per minute", "in all"),
    )  # fmt: skip
    lately: Counter[tuple[str, ...]] = Counter()
    total: Counter[tuple[str, ...]] = Counter()
    for count in found.facts.counts:
        key: tuple[str, ...] = (count.outcome,)
        if by_tag:
            key = (
                count.outcome,
                count.tag or "-",
                "-" if count.priority is None else str(count.priority),
            )
        lately[key] += count.lately
        total[key] += count.total
    for key in sorted(total):
        rows.add_row(
            *map(one_line, key),
            _number(lately[key], "default"),
            Text(f"{lately[key] / seconds * 60:,.3g}", "default" if lately[key] else "dim"),
            f"{total[key]:,}",
        )
    return rows


def _curve(values: Iterable[int]) -> str:
    """Return a curve of small blocks.

    >>> _curve([0, 1, 5, 10])
    '▁▁▄█'
    """
    known = list(values)
    most = max(known) or 1
    return "".join(_HEIGHTS[value * (len(_HEIGHTS) - 1) // most] for value in known)


def _age(found: MirrorStatus, since: Any) -> str:
    return f"{human_duration(max(0.0, (found.facts.at - since).total_seconds()))} ago"


def _number(value: int, style: str) -> Text:
    return Text(f"{value:,}", style=style if value else "dim")


# --- earlier audits ---


def _print_history(audits: list[AuditRecord], *, as_json: bool) -> None:
    if as_json:
        print_json(audits)
        return
    out = console()
    if not audits:
        out.print("No audits.", style="dim")
        return
    numbers = ("items", "missing", "stale", "orphaned", "ahead", "repaired", "took")
    rows = table("audit", *numbers, "", right=numbers)
    for audit in audits:
        wrong = [
            _number(getattr(audit, kind), "bold red")
            for kind in ("missing", "stale", "orphaned", "ahead")
        ]
        rows.add_row(
            f"{audit.ended_at.astimezone():%Y-%m-%d %H:%M}",
            f"{audit.items:,}",
            *wrong,
            _number(audit.repaired, "green"),
            human_duration(audit.seconds),
            Text("by hash" if audit.compared == "hash" else "", "dim"),
        )
    out.print(rows)
