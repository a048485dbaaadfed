"""forebay apply: make queues and schedules in the database what an application declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from forebay.cli._commands import argument, option
from forebay.cli._differences import value_text
from forebay.cli._load import load_app
from forebay.cli._schedules import print_schedules
from forebay.cli.exit import ExitCode
from forebay.cli.options import AppDir, Dsn, Json
from forebay.cli.output import ago, print_json, table
from forebay.cli.text import Text, console
from forebay.model.text import counted

if TYPE_CHECKING:
    from forebay.app import App
    from forebay.model.declared import QueueDifference

_STYLES = {"kept": "yellow", "conflict": "bold yellow", "forget": "dim", "remove": "magenta"}
_DONE = {"set": "set", "change": "changed", "remove": "removed", "open": "opened"}


def apply(
    app: Annotated[str, argument("MODULE:APP", "The application: shop.jobs:app.")],
    *,
    dry_run: Annotated[bool, option("--dry-run", "Only show what would be done.")] = (False),
    check: Annotated[
        bool, option("--check", "Change nothing; exit with 1 if code and database differ.")
    ] = False,
    overwrite: Annotated[
        bool,
        option("--overwrite", "Take the code's value also where a change by hand would be kept."),
    ] = False,
    app_dir: AppDir = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Apply the queues and schedules of an application.

    The command is safe to repeat. What was changed by hand since it was applied is kept and shown.
    """
    found, _ = load_app(app, app_dir)
    found._internals.use(dsn=dsn)
    dry_run = dry_run or check
    differences = found.apply(overwrite=overwrite, dry_run=dry_run)
    schedules = found.apply_schedules(overwrite=overwrite, dry_run=dry_run)
    if as_json:
        print_json(
            {
                "app": found.name,
                "dry_run": dry_run,
                "differences": differences,
                "schedules": schedules,
            }
        )
    else:
        if differences or found.queues or not (schedules or found.schedules):
            print_differences(found, differences, dry_run=dry_run)
        if found.schedules and not schedules:
            count = counted(len(found.schedules), "schedule")
            console().print(f"{count} of {found.name}: as declared", style="dim")
        print_schedules(schedules, dry_run=dry_run)
    if check and (differences or schedules):
        raise SystemExit(ExitCode.FAILED)


def print_differences(app: App, differences: list[QueueDifference], *, dry_run: bool) -> None:
    """Print what was done about each difference, or would be."""
    out = console()
    if not differences:
        same = f"{counted(len(app.queues), 'queue')} of {app.name}: as declared"
        out.print(same if app.queues else f"{app.name} declares no queues", style="dim")
        return
    rows = table("queue", "setting", "database", "code", "", loose=("queue", "setting", ""))
    for one in differences:
        rows.add_row(
            one.queue,
            one.setting.replace("_", " "),
            value_text(one.database),
            value_text(one.code),
            Text(_in_words(one, app.name, dry_run=dry_run), style=_STYLES.get(one.action, "green")),
        )
    out.print(rows)
    changed = sum(one.is_pending for one in differences)
    kept = sum(one.action in ("kept", "conflict") for one in differences)
    text = f"{app.name}: {changed} {'to change' if dry_run else 'changed'}"
    if kept:
        text += f", {kept} kept; --overwrite takes the values of the code"
    out.print(text)


def _in_words(one: QueueDifference, app: str, *, dry_run: bool) -> str:
    is_group = one.setting.startswith("group ")
    changed = f" ({one.changed_by}, {ago(one.changed_at)})" if one.changed_by else ""
    match one.action:
        case "kept":
            return f"kept: changed by hand{changed}"
        case "conflict" if one.applied is None:
            return f"kept: set by hand before it was declared{changed}"
        case "conflict" if one.applied_by != app:
            return f"kept: applied by {one.applied_by}{changed}"
        case "conflict":
            return f"kept: changed by hand{changed}, and in code (was {value_text(one.applied)})"
        case "forget" if is_group:
            return (
                f"not declared any more, stays open: forebay groups close {one.setting[6:]} "
                f"--queue {one.queue}"
            )
        case "forget":
            return f"not declared any more, stays: changed by hand{changed}"
        case action:
            verb = "open" if is_group else action
            return f"would {verb}" if dry_run else _DONE[verb]
