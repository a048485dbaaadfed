"""One database for each project on the user's server.

A worker takes every job of its queues. In one database for all projects, the workers of one project
would take the jobs of the others. The project is found from the current folder, so that every
command and script in it finds the same database.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from forebay._dataclass import dataclass
from forebay.db.own import run_own
from forebay.ops.operation import Operation, nothing, scalar

if TYPE_CHECKING:
    from forebay.embedded._server import EmbeddedServer

#: What the root folder of a project contains.
_MARKERS: Final = ("pyproject.toml", "forebay.toml", "manage.py", "setup.py", ".git")
_NAME_CHARACTERS_MAX: Final = 40


@dataclass(frozen=True, slots=True)
class Project:
    """A project of the user.

    Attributes:
        folder: its root folder.
        database: the name of its database on the embedded server: the folder's name, and a hash of
            its path.
    """

    folder: Path
    database: str

    @classmethod
    def of(cls, folder: Path | None = None) -> Project:
        """Return the project of a folder.

        Its root is the nearest folder, from this one upwards, with a pyproject.toml, forebay.toml,
        manage.py, setup.py or .git; the home folder and those above it do not count. Without one it
        is the folder itself.

        Args:
            folder: None means the current folder.
        """
        start = (folder or Path.cwd()).resolve()
        home = Path.home().resolve()
        root = start
        for place in (start, *start.parents):
            if place == home or place in home.parents:
                break
            if any((place / marker).exists() for marker in _MARKERS):
                root = place
                break
        slug = re.sub(r"[^a-z0-9]+", "_", root.name.lower()).strip("_")[:_NAME_CHARACTERS_MAX]
        digest = hashlib.sha256(str(root).encode(errors="surrogateescape")).hexdigest()[:8]
        return cls(root, f"{slug or 'project'}_{digest}")

    def ensure(self, server: EmbeddedServer) -> str:
        """Return the address of the database on a running server.

        Create the database if it is missing.
        """
        if not self._exists(server):
            try:
                _run(server, f"create database {self.database} template template0")
            except Exception:
                if not self._exists(server):  # else another process has just created it
                    raise
        return server.dsn(self.database)

    def drop(self, server: EmbeddedServer) -> None:
        """Delete the database, if there is one; end the connections to it."""
        _run(server, f"drop database if exists {self.database} with (force)")

    def _exists(self, server: EmbeddedServer) -> bool:
        found: bool = run_own(
            server.dsn(),
            Operation(
                "select exists (select from pg_database where datname = %(name)s)",
                scalar,
                {"name": self.database},
            ),
        )
        return found


def sessions_of(server: EmbeddedServer) -> int:
    """Return how many programs are connected to a running server."""
    found: int = run_own(
        server.dsn(),
        Operation(
            "select count(*) from pg_stat_activity"
            " where backend_type = 'client backend' and pid <> pg_backend_pid()",
            scalar,
        ),
    )
    return found


def _run(server: EmbeddedServer, statement: str) -> None:
    run_own(server.dsn(), Operation(statement, nothing, outside_block=True))
