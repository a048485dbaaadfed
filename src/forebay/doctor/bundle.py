"""A bundle for a bug report: what a maintainer asks for, without what jobs carry."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import zipfile
from typing import TYPE_CHECKING, Any, Final

from forebay.doctor.examine import examine, read_session
from forebay.errors import DatabaseUnavailable
from forebay.ops.bundle import ERROR_COLUMNS, SECTIONS, section

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from forebay.doctor import Finding

_README: Final = """\
A bundle of Forebay for a bug report. Read the files before you send them.

In it: versions, settings with masked secrets, findings of the doctor, queues, groups, workers,
segments, duties, events, dead letters by kind, sessions by application, and statistics of Forebay's
tables. Names of queues, kinds, groups, workers and hosts are in it.
Not in it: arguments, headers, tags, keys, correlation ids and results of jobs{errors}.
"""
_PACKAGES: Final = ("forebay", "psycopg", "psycopg-binary", "msgspec", "click", "rich", "django")


async def collect(dsn: str, settings: Mapping[str, Any], *, with_errors: bool) -> dict[str, object]:
    """Return the parts of a bundle by name. A part that cannot be read says why.

    Args:
        dsn: the database.
        settings: those of this process, with masked secrets.
        with_errors: include texts of errors, which may contain data.

    Raises:
        DatabaseUnavailable: the database cannot be reached.
    """
    found: dict[str, object] = {
        "versions": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            **{name: _version(name) for name in _PACKAGES},
        },
        "settings": settings,
        "findings": [_finding(one, with_errors) for one in await examine(dsn)],
    }
    session = read_session(dsn)
    try:
        for name in SECTIONS:
            try:
                rows = await session.run(section(name))
            except DatabaseUnavailable:
                raise
            except Exception as error:
                # For example a missing right or an older schema: the other parts matter too.
                reason = getattr(error, "sqlstate", None) or type(error).__name__
                found[name] = {"problem": reason, **_text(error, with_errors)}
                continue
            found[name] = [
                {key: row[key] for key in row if with_errors or key not in ERROR_COLUMNS}
                for row in rows
            ]
    finally:
        await session.close()
    return found


def write(path: Path, parts: Mapping[str, object], *, with_errors: bool) -> None:
    """Write the parts into a new ZIP file.

    Raises:
        FileExistsError: there is such a file.
        OSError: it cannot be written.
    """
    errors = "" if with_errors else ", and texts of errors"
    with path.open("xb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README.txt", _README.format(errors=errors))
        for name, part in parts.items():
            text = json.dumps(part, ensure_ascii=False, indent=1, default=str)
            archive.writestr(f"{name}.json", text + "\n")


def _finding(one: Finding, with_errors: bool) -> dict[str, object]:
    """Return a finding; without texts of errors its sentence up to the colon, and its numbers."""
    if with_errors:
        return {"check": one.check, "level": one.level, "what": one.what, "facts": dict(one.facts)}
    return {
        "check": one.check,
        "level": one.level,
        "what": one.what.partition(": ")[0],
        "facts": {
            name: value
            for name, value in one.facts.items()
            if value is None or isinstance(value, bool | int | float)
        },
    }


def _text(error: Exception, with_errors: bool) -> dict[str, str]:
    return {"message": str(error)} if with_errors else {}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def unread(parts: Mapping[str, object]) -> Sequence[str]:
    """Return the names of the parts that could not be read."""
    return [name for name, part in parts.items() if isinstance(part, dict) and "problem" in part]
