"""Other libraries, used if installed, with the best settings that they document.

A Python library is a module with what ``Peer`` lists and ``Queue``, an ``Engine``, which runs in a
separate process. The libraries of Node.js are in ``javascript``. A library that is not installed is
left out, and the report says so.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Final, Protocol, cast

from forebay.errors import ConfigError, shown
from forebay_bench.peers import javascript

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Module of this package, and what must be importable for it.
PEERS: Final = {
    "pgqueuer": ("pgqueuer", "asyncpg", "uvloop"),
    "procrastinate": ("procrastinate", "uvloop"),
}

#: Libraries of flows, which take part in the scenario steps alone.
FLOW_PEERS: Final = {"absurd": ("absurd_sdk", "absurdctl"), "dbos": ("dbos",)}

#: Those of Node.js: they take part where they are named, because their first use installs them.
NODE_PEERS: Final = {peer.NAME: peer for peer in javascript.PEERS}


class Peer(Protocol):
    """A library to compare with."""

    @property
    def NAME(self) -> str:  # noqa: N802 - a constant of a module
        """Its name in reports and in ``--compare``."""

    @property
    def NOTE(self) -> str:  # noqa: N802 - a constant of a module
        """Its settings, for the report."""

    def create(self, dsn: str) -> None:
        """Install its schema in an empty database."""


def installed(
    compare: tuple[str, ...] | None, peers: Mapping[str, tuple[str, ...]] = PEERS
) -> list[Peer]:
    """Return the peers that take part.

    Args:
        compare: names of engines; names of other engines than peers are ignored; None takes every
            installed one of Python.
        peers: those of Python that the scenario has.

    Raises:
        ConfigError: one that was named is not installed.
    """
    found: list[Peer] = []
    for name, packages in peers.items():
        if compare is not None and name not in compare:
            continue
        if all(importlib.util.find_spec(package) is not None for package in packages):
            found.append(cast("Peer", importlib.import_module(f"forebay_bench.peers.{name}")))
        elif compare is not None:
            raise ConfigError(
                "--compare",
                f"names {shown(name)}, which is not installed",
                hint="pip install 'forebay-bench[flows]'",
            )
    for name, peer in NODE_PEERS.items():
        if compare is None or name not in compare or peers is not PEERS:
            continue
        try:
            javascript.installed_folder()
        except javascript.MissingPeerError as error:
            raise ConfigError(
                "--compare",
                f"names {shown(name)}, which cannot be used: {error.message}",
                hint="It needs node and npm, which installs it from its registry at the first use.",
            ) from error
        found.append(peer)
    return found


def available() -> tuple[tuple[str, ...], list[str]]:
    """Return the names of all peers that can be used here, and a line for each that cannot.

    Install those of Node.js.
    """
    names, missing = [], []
    for name in (*PEERS, *NODE_PEERS, *FLOW_PEERS):
        try:
            installed((name,), FLOW_PEERS if name in FLOW_PEERS else PEERS)
        except ConfigError as error:
            missing.append(f"left out: {name}, {error.message.split(', which ')[-1]}")
        else:
            names.append(name)
    return tuple(names), missing
