"""Other libraries, used if installed, with the best settings that they document.

Each module has ``NAME``, ``NOTE`` (its settings, for the report), ``create`` (install its schema in an empty
database) and ``Queue``, a ``Engine``, which runs in a separate process. A library that is not installed is left out,
and the report says so.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import Final

from forebay.errors import ConfigError, shown

#: Module of this package, and what must be importable for it.
PEERS: Final = {
    "pgqueuer": ("pgqueuer", "asyncpg", "uvloop"),
    "procrastinate": ("procrastinate", "uvloop"),
}


def installed(compare: tuple[str, ...] | None) -> list[ModuleType]:
    """Return the peers that take part.

    Args:
        compare: names of engines; names of other engines than peers are ignored; None takes every
            installed one.

    Raises:
        ConfigError: one that was named is not installed.
    """
    found = []
    for name, packages in PEERS.items():
        if compare is not None and name not in compare:
            continue
        if all(importlib.util.find_spec(package) is not None for package in packages):
            found.append(importlib.import_module(f"forebay_bench.peers.{name}"))
        elif compare is not None:
            raise ConfigError(
                "--compare",
                f"names {shown(name)}, which is not installed",
                hint="pip install 'forebay[bench]'",
            )
    return found
