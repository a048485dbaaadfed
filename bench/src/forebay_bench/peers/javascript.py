"""graphile-worker and pg-boss: libraries of Node.js, each in a process of Node.js that knows the
commands of ``_engine``.

npm installs the versions of ``node/package-lock.json`` into a folder in the user's cache, once, and
nothing elsewhere. Without node and npm, or without their registry at the first use, they are left
out.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from psycopg.conninfo import conninfo_to_dict

from forebay.errors import ForebayError
from forebay_bench._processes import Script

if TYPE_CHECKING:
    from collections.abc import Sequence

_SOURCE: Final = Path(__file__).parent / "node"
_LISTS: Final = ("package.json", "package-lock.json")
_INSTALL_SECONDS: Final = 300.0

#: The options of the package pg, by the names of libpq.
_OPTIONS: Final = {
    "host": "host",
    "port": "port",
    "user": "user",
    "password": "password",
    "dbname": "database",
}


class MissingPeerError(ForebayError):
    """A library cannot be used here; the message says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A library of Node.js; see ``peers.Peer``."""

    NAME: str
    NOTE: str
    module: str
    """Its module in the folder ``node``."""

    def create(self, dsn: str) -> None:
        """Install its schema: each process does so before it is ready."""
        process = Script.of(self.command(dsn), environment())
        try:
            process.read_message()
        finally:
            process.close()

    def command(self, dsn: str) -> Sequence[str | os.PathLike[str]]:
        """Return the command of a process that works with a database."""
        found = conninfo_to_dict(dsn)
        options = {name: found[key] for key, name in _OPTIONS.items() if found.get(key) is not None}
        return [_program("node"), _SOURCE / "engine.cjs", self.module, json.dumps(options)]


PEERS: Final = (
    Peer(
        "graphile-worker",
        "graphile-worker 0.17: the settings of its page about performance: 24 jobs at a "
        "time on 25 connections, a local queue of 500,"
        " completions in batches; ended jobs are deleted",
        "graphile_worker",
    ),
    Peer(
        "pg-boss",
        "pg-boss 10, the newest one for Node.js 20: batches of 500, no order by priority, "
        "polled every 0.5 s, at once after a full batch;"
        " ended jobs are kept for a day",
        "pg_boss",
    ),
)


def environment() -> dict[str, str]:
    """Return the environment of these processes; the first call installs the libraries.

    Raises:
        MissingPeerError: they cannot be installed.
    """
    return {
        **os.environ,
        "NODE_PATH": os.fspath(installed_folder() / "node_modules"),
        "NODE_ENV": "production",
    }


@cache
def installed_folder(source: Path = _SOURCE, purpose: str = "bench-node") -> Path:
    """Return the folder with the libraries, in the user's cache; install them if they are missing.

    Args:
        source: the folder with the lists of npm.
        purpose: the beginning of the folder's name.

    Raises:
        MissingPeerError: node or npm is missing, or npm failed.
    """
    _program("node")
    lists = b"".join((source / name).read_bytes() for name in _LISTS)
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forebay"
    folder = cache_folder / f"{purpose}-{hashlib.sha256(lists).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    try:
        cache_folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{purpose}-", dir=cache_folder) as temporary:
            made = Path(temporary) / "made"
            made.mkdir()
            for name in _LISTS:
                shutil.copy(source / name, made)
            _install(made)
            # Complete or not there, also beside another process that does the same.
            made.rename(folder)
    except OSError as error:
        if not folder.is_dir():
            raise MissingPeerError(f"{cache_folder} cannot be written: {error}") from error
    return folder


def _install(folder: Path) -> None:
    command = [_program("npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_SECONDS,
            check=False
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise MissingPeerError("npm takes too long to install it") from error
    if done.returncode != 0:
        raise MissingPeerError("npm cannot install it", detail=(done.stdout + done.stderr)[-2000:])


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise MissingPeerError(f"{name} is not installed")
    return found
