"""Where a benchmark runs: a server, and the databases it creates there."""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import psycopg.conninfo
from psycopg import sql

from forebay.embedded import EmbeddedServer, temporary_server
from forebay.errors import ConfigError
from forebay.upgrade.migrate import migrate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Settings of a server that the benchmark starts. Durability is not changed: fsync and
#: synchronous_commit stay on.
SERVER_SETTINGS: Final = {
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
    "max_connections": "500",
    "max_prepared_transactions": "10",
    "max_locks_per_transaction": "1024",
    "wal_level": "logical",
    "max_replication_slots": "10",
    "max_wal_senders": "10",
}

#: Settings that influence the figures; each report shows them.
SHOWN_SETTINGS: Final = (
    "server_version",
    "shared_buffers",
    "max_wal_size",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "autovacuum",
    "autovacuum_naptime",
)


@dataclass(frozen=True, slots=True)
class Place:
    """A server on which a benchmark may create databases."""

    dsn: str
    """Address of one of its databases, used to create others."""
    is_own: bool
    """It was started for this run, and has no other users."""
    data_dir: Path | None = None
    """Its data folder, if it was started for this run."""
    postmaster_pid: int | None = None
    """Its main process, if it was started for this run."""
    bin_dir: Path | None = None
    """The folder of its programs, if it was started for this run."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Machine, version and settings."""

    @contextlib.contextmanager
    def database(self, purpose: str, *, migrated: bool = True) -> Iterator[str]:
        """Create a database, and drop it at the end; yield its address.

        Args:
            purpose: part of its name.
            migrated: with the newest schema of Forebay.
        """
        name = f"forebay_bench_{purpose}_{secrets.token_hex(3)}"
        self._admin("create database {}", name)
        try:
            dsn = psycopg.conninfo.make_conninfo(self.dsn, dbname=name)
            if migrated:
                migrate(dsn)
            yield dsn
        finally:
            self._admin("drop database if exists {} with (force)", name)

    def _admin(self, statement: str, name: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(sql.SQL(statement).format(sql.Identifier(name)))


@contextlib.contextmanager
def open_place(dsn: str | None, pg_bin: str | None = None) -> Iterator[Place]:
    """Use the server of an address, or start one for this run.

    Args:
        dsn: address of a database on a server where databases may be created; None starts the
            embedded PostgreSQL on a new data folder, which is deleted at the end.
        pg_bin: a folder of PostgreSQL programs to start instead; only without an address.

    Raises:
        ConfigError: the role may not create databases, or no PostgreSQL was found to start.
    """
    if dsn is None:
        with temporary_server(pg_bin, extra_settings=SERVER_SETTINGS) as server:
            yield _place_of(server)
        return
    with psycopg.connect(dsn) as conn:
        allowed = conn.execute(
            "select rolcreatedb or rolsuper from pg_roles where rolname = current_user"
        ).fetchone()
    if not allowed or not allowed[0]:
        raise ConfigError(
            "--dsn",
            "names a role that may not create databases",
            hint="A benchmark creates databases and drops them: use a role with CREATEDB.",
        )
    yield Place(dsn, is_own=False, facts=_facts(dsn))


def _place_of(server: EmbeddedServer) -> Place:
    address = server.dsn()
    return Place(
        address,
        is_own=True,
        data_dir=server.data_dir,
        postmaster_pid=server.pid,
        bin_dir=server.binaries.bin_dir,
        facts=_facts(address),
    )


def _facts(dsn: str) -> dict[str, Any]:
    with psycopg.connect(dsn) as conn:
        settings = {
            name: conn.execute(("select current_setting(%s)"), [name]).fetchone()[0]  # type: ignore[index]
            for name in SHOWN_SETTINGS
        }
    return {
        "postgresql": settings.pop("server_version"),
        "settings": settings,
        "machine": {
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "memory_gib": _memory_gib(),
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
        },
    }


def _cpu_name() -> str:
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return None
