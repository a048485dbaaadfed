"""``forebay worker`` without the machinery of the command line.

A worker is started far more often than its help is read: by each deployment, after each crash and for each process of a fleet. The
usual form of its command line is parsed here, in a millisecond; typer, rich and the other commands would take longer to load than
all that a worker needs. Everything else, help and mistakes included, is left to them.
"""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: The options of the command that are no settings, with their defaults.
_TEXTS: Final[dict[str, str | None]] = {
    "group": "default",
    "app_dir": None,
    "log_level": "info",
    "log_format": "text",
    "dsn": None,
}
_SWITCHES: Final = {"--endpoints": "endpoints", "--until-idle": "until_idle", "--json": "as_json"}


def worker_call(arguments: Sequence[str] | None) -> Callable[[], None] | None:
    """Return what runs a command line; None if it is not the usual form of ``forebay worker``."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] != ["worker"] or "_FOREBAY_COMPLETE" in os.environ:
        return None
    parsed = parse_worker(given[1:])
    if parsed is None:
        return None
    from forebay.cli._serving import run_worker  # noqa: PLC0415 - the other commands do without

    return partial(run_worker, **parsed)


def parse_worker(given: Sequence[str]) -> dict[str, Any] | None:
    """Return the arguments of ``run_worker``; None if the command line has anything unusual."""
    from forebay.config import GROUPS  # noqa: PLC0415 - the other commands do without

    texts: dict[str, Any] = dict(_TEXTS)
    flags: dict[str, Any] = {
        item.name: None
        for group in ("worker", "retry")
        for item in fields(GROUPS[group])
        if item.name not in texts
    }
    switches = dict.fromkeys(_SWITCHES.values(), False)
    places = []
    rest = iter(given)
    for word in rest:
        name, has_value, value = word.partition("=")
        if not word.startswith("-"):
            places.append(word)
        elif word in _SWITCHES:
            switches[_SWITCHES[word]] = True
        else:
            where = name.removeprefix("--").replace("-", "_")
            target = texts if where in texts else flags
            if not name.startswith("--") or where not in target or "_" in name:
                return None
            target[where] = value if has_value else next(rest, "-")
            if target[where].startswith("-"):
                return None
    if len(places) != 1:
        return None
    if texts["app_dir"] is not None:
        texts["app_dir"] = Path(texts["app_dir"])
    return {"app": places[0], **texts, **switches, "flags": flags}
