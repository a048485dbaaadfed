"""The server is upgraded to another major version with pg_upgrade, the log and all."""

import shutil
from pathlib import Path

import pytest

from forebay.embedded import EmbeddedServer, temporary_server
from forebay.embedded.owner import Owner
from tests.faults.test_restore import adopted_once, some_of_everything
from tests.support.engine import connect
from tests.support.fix_db import make_migrated
from tests.support.restore import run

pytestmark = [pytest.mark.crash, pytest.mark.slow]

#: Of the version before: where Debian puts it.
OLD_BIN = Path("/usr/lib/postgresql/15/bin")


@pytest.fixture
def old_bin(pg_bin) -> Path:
    if pg_bin is not None and Path(pg_bin) == OLD_BIN:
        pytest.skip("this is the older version itself")
    if not (OLD_BIN / "pg_upgrade").exists():
        pytest.skip("PostgreSQL 15 is not installed")
    return OLD_BIN


def upgrade(old: EmbeddedServer, new: EmbeddedServer, folder: Path) -> None:
    """Bring the data of a stopped server into the empty, stopped one."""
    owner = Owner.current()
    folder.mkdir()
    if owner.is_other_account:
        shutil.chown(folder, owner.uid, owner.gid)
    # From 18 on a new cluster has checksums; both must be alike.
    run(new, "pg_checksums", "--disable", f"--pgdata={new.data_dir}", user=_user(owner))
    run(
        new,
        "pg_upgrade",
        f"--old-bindir={old.binaries.bin_dir}",
        f"--new-bindir={new.binaries.bin_dir}",
        f"--old-datadir={old.data_dir}",
        f"--new-datadir={new.data_dir}",
        f"--socketdir={folder}",
        "--username=postgres",
        "--no-sync",
        user=_user(owner),
        folder=folder,
    )


def said(new: EmbeddedServer) -> str:
    """Return the ends of what pg_upgrade wrote when it failed."""
    logs = sorted((new.data_dir / "pg_upgrade_output.d").rglob("*.log"))
    return "\n".join(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in logs)


def _user(owner: Owner) -> int | None:
    return owner.uid if owner.is_other_account else None


def test_after_pg_upgrade_nothing_runs_until_the_log_is_adopted(old_bin, pg_bin):
    """
    The new cluster has the old one's transaction ids and another identity, as a restored dump has:
    nothing is handed out, enqueues are kept, and adopted everything that had not ended runs once
    for each group.
    """
    with temporary_server(old_bin) as old, temporary_server(pg_bin) as new:
        dsn = old.dsn(make_migrated(old, "test"))
        some_of_everything(dsn)
        with connect(dsn) as conn:
            # Some builds of PostgreSQL 15 note a version at every column, which pg_upgrade of
            # others does not take.
            conn.execute("set allow_system_table_mods = on")
            conn.execute("update pg_attribute set attoptions = null where attoptions is not null")
        old.stop()
        new.stop()
        try:
            upgrade(old, new, new.data_dir.parent / "work")
        except AssertionError:
            print(said(new))
            raise
        new.start()
        adopted_once(new.dsn("test"), resume=True)
