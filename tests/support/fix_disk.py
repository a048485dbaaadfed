"""A small file system for the tables of a database, so that its disk can be full for real."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from forebay.embedded import EmbeddedServer
from forebay.embedded.owner import Owner, temporary_parent
from tests.support.fix_db import migrated_database

_MEGABYTES = 96


class SmallDisk:
    """A mounted file system in memory.

    Args:
        folder: where it is mounted.
        dsn: a database whose tables are in it.
    """

    def __init__(self, folder: Path, dsn: str) -> None:
        self._ballast = folder / "ballast"
        self.dsn = dsn

    def fill(self) -> None:
        """Leave no page free."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (65536, 4096):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue

    def free(self) -> None:
        """Give the room back."""
        self._ballast.unlink()


@pytest.fixture
def small_disk(server: EmbeddedServer, template: str) -> Iterator[SmallDisk]:
    """A fresh, migrated database on a file system of its own, which can be filled."""
    owner = Owner.current()
    folder = temporary_parent(owner) / f"forebay-disk-{os.getpid()}"
    folder.mkdir(mode=0o755)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_MEGABYTES}m,mode=755", "tmpfs", folder],
        check=False, capture_output=True,
    )  # fmt: skip
    if made.returncode:
        folder.rmdir()
        pytest.skip("an ordinary user cannot mount a file system")
    try:
        owner.make_folder(folder / "tables")
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute(f"create tablespace small location '{folder}/tables'")
            try:
                with migrated_database(
                    server, template, "tablespace small strategy wal_log"
                ) as dsn:
                    disk = SmallDisk(folder, dsn)
                    yield disk
                    disk._ballast.unlink(missing_ok=True)
            finally:
                conn.execute("drop tablespace small")
    finally:
        subprocess.run(["umount", folder], check=True)
        folder.rmdir()
