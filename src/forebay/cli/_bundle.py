"""forebay bundle: one file for a bug report."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from forebay.cli._commands import option
from forebay.cli._database import address_of
from forebay.cli.options import Dsn, Json
from forebay.cli.output import print_json
from forebay.cli.text import console
from forebay.errors import ConfigError


def bundle(
    file: Annotated[
        Path | None, option("--file FILE", "Default: forebay-bundle-TIME.zip in this folder.")
    ] = None,
    *,
    errors: Annotated[
        bool, option("--errors", "Include texts of errors, which may contain data.")
    ] = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Write one file for a bug report, without data of jobs.

    It has no arguments, headers, tags, keys or results of jobs, and secrets are masked. It only
    reads the database.
    """
    from forebay.config import load_settings, masked_dsn
    from forebay.doctor.bundle import collect, unread, write

    address = address_of(dsn)
    path = file or Path(f"forebay-bundle-{datetime.now(UTC):%Y%m%d-%H%M%S}.zip")
    settings: dict[str, Any] = {
        row.name: {"value": _masked(row.value), "source": row.source}
        for row in load_settings({}).rows()
    }
    parts = asyncio.run(
        collect(address, {"address": masked_dsn(address), **settings}, with_errors=errors)
    )
    try:
        write(path, parts, with_errors=errors)
    except OSError as error:
        raise ConfigError("--file", f"cannot be written: {error.strerror}: {path}") from None
    if as_json:
        print_json({"file": str(path), "parts": sorted(parts), "unread": unread(parts)})
        return
    out = console()
    out.print(f"{path}: {len(parts)} parts, {path.stat().st_size:,} bytes", soft_wrap=True)
    for name in unread(parts):
        out.print(f"{name} could not be read", style="yellow")
    out.print("→ read it before you send it: unzip -p FILE | less", style="dim")


def _masked(value: object) -> object:
    """Return a setting without a password that an address in it may have."""
    from forebay.config import masked_dsn

    return masked_dsn(value) if isinstance(value, str) and "://" in value else value
