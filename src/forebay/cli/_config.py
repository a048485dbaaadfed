"""forebay config: every setting, its value and where it comes from."""

from __future__ import annotations

import os
from typing import Annotated, Any

from forebay.cli.options import Dsn, Json, setting_flags
from forebay.cli.output import facts_table, print_json, table
from forebay.cli.text import Text, console
from forebay.config import GROUPS
from forebay.errors import ConfigError


def config(
    *,
    dsn: Dsn = None,
    as_json: Json = False,
    flags: Annotated[dict[str, Any], setting_flags(*GROUPS)],
) -> None:
    """Show every setting, its value and where it comes from; passwords are masked.

    The flags are those of the other commands: use them to see their effect.
    """
    from forebay.config import DEFAULT, load_settings, resolve_address

    settings = load_settings(flags)
    try:
        address = resolve_address(dsn, os.environ)
        place, origin = address.masked, address.source
    except ConfigError as error:
        place, origin = None, error.message
    if as_json:
        print_json(
            {
                "database": {"address": place, "source": origin},
                "settings": {
                    row.name: {"value": row.value, "source": row.source, "default": row.default}
                    for row in settings.rows()
                },
                "ignored": settings.ignored,
            }
        )
        return
    out = console()
    database = facts_table()
    database.add_row("database", Text(place, style="bold") if place else Text("-", style="red"))
    database.add_row("from", origin)
    out.print(database)
    out.print()
    rows = table("setting", "value", "from", "meaning", right=("value",), loose=("meaning", "from"))
    for row in settings.rows():
        changed = row.source != DEFAULT
        rows.add_row(
            Text(row.name, style="bold" if changed else "default"),
            Text("not set" if row.value is None else str(row.value), "cyan" if changed else "dim"),
            Text(row.source, style="default" if changed else "dim"),
            row.meaning,
        )
    out.print(rows)
    for name in settings.ignored:
        out.print(f"\n{name} is not a setting of this version; it was ignored", style="yellow")
