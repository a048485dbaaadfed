"""forebay settings: what holds for a whole database."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from forebay.cli._commands import Commands, argument, option
from forebay.cli._database import client_of
from forebay.cli.options import Dsn, Json
from forebay.cli.output import ago, facts_table, print_json, table
from forebay.cli.text import Text, console
from forebay.errors import ConfigError

if TYPE_CHECKING:
    from forebay.model.settings import DatabaseSetting

commands = Commands()

Name = Annotated[str, argument("SETTING", "Name of the setting.")]
DryRun = Annotated[bool, option("--dry-run", "Only check, and show what would change.")]


@commands.add("list")
def list_(*, dsn: Dsn = None, as_json: Json = False) -> None:
    """List the settings of the database, and who has set them.

    They hold for what no endpoint, queue, kind or process has set itself. forebay settings show
    has the range of one, and what it does.
    """
    found = client_of(dsn).settings()
    if as_json:
        print_json(found)
        return
    rows = table("setting", "value", "unit", "set", right=("value",), loose=("value", "set"))
    for each in found:
        is_set = each.set_at is not None
        rows.add_row(
            Text(each.name, style="bold" if is_set else "default"),
            Text(_short(each.value), "cyan" if is_set else "dim"),
            Text(each.unit or "", "dim"),
            f"{ago(each.set_at)} by {each.set_by}" if is_set else "",
        )
    console().print(rows)


@commands.add("show")
def show(name: Name, *, dsn: Dsn = None, as_json: Json = False) -> None:
    """Show a setting: its value, what it may be, who has set it, and what it does."""
    each = _setting(dsn, name)
    if as_json:
        print_json(each)
        return
    facts = facts_table()
    facts.add_row("setting", Text(each.name, "bold"))
    facts.add_row("value", _with_unit(each, each.value))
    facts.add_row("built in", _with_unit(each, each.built_in))
    facts.add_row("may be", each.range)
    if each.set_at is not None:
        facts.add_row("set", f"{ago(each.set_at)} by {each.set_by}")
    facts.add_row("meaning", each.meaning)
    console().print(facts)


@commands.add("set")
def set_(
    name: Name,
    value: Annotated[str, argument("VALUE", "A number, a word, true or false, or JSON.")],
    *,
    dry_run: DryRun = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Set a setting for the whole database.

    Running workers know it with their next heartbeat, deliverers within a second, enqueues and
    maintenance at once. A value out of range is refused.
    """
    _change(dsn, name, value, dry_run=dry_run, as_json=as_json)


@commands.add("reset")
def reset(name: Name, *, dry_run: DryRun = False, dsn: Dsn = None, as_json: Json = False) -> None:
    """Give a setting its built-in value back."""
    _change(dsn, name, None, dry_run=dry_run, as_json=as_json)


def _change(dsn: str | None, name: str, value: str | None, *, dry_run: bool, as_json: bool) -> None:
    client = client_of(dsn)
    before = client.configure(name, value, dry_run=dry_run)
    if dry_run:
        known = _setting(dsn, name)
        after = known.built_in if value is None else value
    else:
        after = _setting(dsn, name).value
    if as_json:
        print_json({"setting": name, "before": before, "value": after, "dry_run": dry_run})
        return
    changes = "would be" if dry_run else "is"
    console().print(
        Text.assemble((name, "bold"), f" {changes} {_shown(after)}, was {_shown(before)}"),
        soft_wrap=True,
    )


def _setting(dsn: str | None, name: str) -> DatabaseSetting:
    found = client_of(dsn).settings()
    for each in found:
        if each.name == name:
            return each
    known = ", ".join(sorted(each.name for each in found))
    raise ConfigError("setting", f"{name} is unknown", value=name, hint=f"One of {known}.")


def _with_unit(each: DatabaseSetting, value: Any) -> str:
    return _shown(value) + (f" {each.unit}" if each.unit and value is not None else "")


def _short(value: Any) -> str:
    """Return a value for a cell: retries with their sum, since their JSON fills the screen."""
    if isinstance(value, list | dict):
        from forebay.sending import as_retries

        return str(as_retries(value))
    return _shown(value)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    if isinstance(value, bool | list | dict):
        return json.dumps(value)
    return f"{value:,}"
