"""forebay alerts: what is wrong. forebay thresholds: from when on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

from forebay.cli._commands import Commands, argument, option
from forebay.cli._database import address_of, client_of
from forebay.cli.exit import ExitCode
from forebay.cli.options import Dsn, Json, Queue
from forebay.cli.output import ago, print_json, table
from forebay.cli.text import Text, console
from forebay.errors import ConfigError
from forebay.model.text import human_bytes
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from forebay.cli.text import Console
    from forebay.model.problems import Problem

commands = Commands()

#: How a problem that does not hold, or not for long enough, is shown; and one that holds.
MARKS: Final = {"pending": ("…", "dim"), "ending": ("✓", "dim"), "noted": ("‖", "dim")}
_STATES: Final = {"ending": "over", "noted": "wanted"}
SEVERITIES: Final = {"error": ("✗", "bold red"), "warning": ("!", "bold yellow")}


def state_of(problem: Problem) -> str:
    """Return the state of a problem in words; empty: it holds."""
    if problem.state != "pending":
        return _STATES.get(problem.state, "")
    seen = 0.0
    if problem.since is not None:
        seen = max(0.0, (datetime.now(UTC) - problem.since).total_seconds())
    return (
        f"seen for {human_duration(round(seen))}, becomes a problem after"
        f" {human_duration(problem.for_seconds)}"
    )


def alerts(
    *,
    pending: Annotated[
        bool, option("--pending", "Also list conditions that have not lasted long enough.")
    ] = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Check the alerts, and list those that fire.

    The exit code is 1 if an alert fires, else 0. A running worker checks every 15 to 60 seconds.
    """
    from forebay.watch.metrics import check

    found = check(address_of(dsn))
    if as_json:
        print_json({"fine": not found.alerts, "alerts": found.alerts, "pending": found.pending})
    else:
        _print(console(), found.alerts, found.pending if pending else [])
    if found.alerts:
        raise SystemExit(ExitCode.FAILED)


def drop_ballast(*, dsn: Dsn = None, as_json: Json = False) -> None:
    """Release the room that is kept for a full disk.

    The checks of the alerts keep 16 MB in the database. On a full disk that is enough to
    pause queues, to cancel and to purge jobs, and to shorten retention. Producers and
    workers use it up too. The checks fill it again from an hour later on.
    """
    released = client_of(dsn).drop_ballast()
    if as_json:
        print_json({"released_bytes": released})
    elif released:
        console().print(f"released {human_bytes(released)}: now pause what writes, then delete")
    else:
        console().print("no room is kept: free some on the disk, outside of the database")


@commands.add("list")
def list_(*, dsn: Dsn = None, as_json: Json = False) -> None:
    """List the thresholds: the defaults, and what was set."""
    from forebay.db.own import run_own
    from forebay.watch import operations
    from forebay.watch.watched import THRESHOLDS

    changed = run_own(address_of(dsn), operations.thresholds())
    if as_json:
        print_json({"defaults": dict(THRESHOLDS), "set": changed})
        return
    rows = table("threshold", "queue", "tag", "value", right=("value",))
    for name, value in THRESHOLDS.items():
        rows.add_row(name, "-", "-", Text(f"{value:g}", "dim"))
        for one in changed:
            if one["name"] == name:
                rows.add_row("", one["queue"] or "-", one["tag"] or "-", f"{one['value']:g}")
    console().print(rows)


@commands.add("set")
def set_(
    name: Annotated[str, argument("THRESHOLD", "Name of the threshold.")],
    value: Annotated[str, argument("VALUE", "A number from 0, or default to remove it.")],
    *,
    queue: Queue = None,
    tag: Annotated[str | None, option("--tag TAG", "Only dead letters with this tag.")] = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Set a threshold for all queues, or for one."""
    number = None if value == "default" else _number(value)
    before = client_of(dsn).set_threshold(name, number, queue=queue, tag=tag)
    if as_json:
        print_json(
            {"threshold": name, "queue": queue, "tag": tag, "value": number, "before": before}
        )
        return
    shown = "default" if number is None else f"{number:g}"
    earlier = "default" if before is None else f"{before:g}"
    console().print(f"{name}: {earlier} -> {shown}")


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ConfigError("threshold", f"{value} is not a number from 0") from None


def _print(out: Console, alerts: list[Problem], pending: list[Problem]) -> None:
    if not alerts:
        out.print(Text.assemble(("✓ ", "bold green"), "no alerts"))
    for problem in [*alerts, *pending]:
        print_problem(out, problem)


def print_problem(out: Console, problem: Problem) -> None:
    """Print a problem in two parts: what is wrong since when, and what mends it."""
    mark, style = MARKS.get(problem.state) or SEVERITIES[problem.severity]
    line = Text.assemble((f"{mark} ", style), (problem.code, style))
    place = problem.name.removeprefix(problem.code)
    if place:
        line.append(place, "bold")
    line.append(f": {problem.cause}")
    if problem.since is not None:
        line.append(f", {ago(problem.since)}", "dim")
    if problem.state == "ending":
        line.append("; over, clears after two minutes", "dim")
    out.print(line)
    out.print(Text(f"→ {problem.hint}", "dim"), indent=5)
