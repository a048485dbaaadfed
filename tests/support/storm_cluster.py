"""A primary and a synchronous standby that takes its place, again and again, behind one address.

Each server has a folder, as root a small file system in memory that can be filled.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

from forebay.embedded import EmbeddedServer
from forebay.embedded.owner import Owner
from forebay.errors import ServerStartError
from tests.support.engine import connect, one
from tests.support.proxy import Proxy
from tests.support.waiting import wait_for

_DATABASE = "test"
_NODE_BYTES = 900_000_000
_SETTINGS = {
    "max_connections": "200",
    "max_prepared_transactions": "20",
    "dynamic_shared_memory_type": "mmap",
    "max_wal_size": "192MB",
    "wal_keep_size": "128MB",
    "wal_retrieve_retry_interval": "200ms",
    "wal_receiver_status_interval": "1s",
}
IS_ROOT = os.geteuid() == 0
#: A server that recovers on a busy machine.
PATIENCE_SECONDS = 120


class Cluster:
    """The servers. ``dsn`` leads through the proxy to the primary of the moment."""

    def __init__(self, folder: Path, pg_bin: str | None, cleanup: ExitStack) -> None:
        self._folder = folder
        self._pg_bin = pg_bin
        self._cleanup = cleanup
        self._count = 0
        self.primary = self._node()
        self.primary.start()
        self.proxy: Proxy
        self.standby: EmbeddedServer

    @property
    def direct(self) -> str:
        """The address of the primary without the proxy."""
        return self.primary.dsn(_DATABASE)

    @property
    def dsn(self) -> str:
        return self.proxy.dsn

    def _node(self) -> EmbeddedServer:
        self._count += 1
        node = self._folder / f"node-{self._count}"
        node.mkdir(mode=0o711)
        if IS_ROOT:
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={_NODE_BYTES},mode=711", "storm", node],
                check=True,
            )
            self._cleanup.callback(self._unmount, node)
        server = EmbeddedServer(node / "data", self._pg_bin, extra_settings=_SETTINGS)
        self._cleanup.callback(self._stop, server)
        return server

    @staticmethod
    def _unmount(node: Path) -> None:
        subprocess.run(["umount", "--lazy", node], check=False, capture_output=True)

    @staticmethod
    def _stop(server: EmbeddedServer) -> None:
        with contextlib.suppress(Exception):
            server.stop(immediate=True)

    def add_standby(self) -> None:
        """Make a standby of the primary, and let commits wait for it from now on."""
        standby = self._node()
        owner = Owner.current()
        # A backup reads it as well; who started the server owns it.
        os.chown(self.primary.log_path, owner.uid, owner.gid)
        standby.data_dir.mkdir(mode=0o700)
        os.chown(standby.data_dir, owner.uid, owner.gid)
        subprocess.run(
            [
                standby.binaries.program("pg_basebackup"),
                *("--pgdata", standby.data_dir, "--host", self.primary.socket_dir),
                *("--port", "5432", "--username", "postgres", "--wal-method", "stream"),
                *("--checkpoint", "fast", "--no-sync", "--write-recovery-conf"),
            ],
            check=True,
            cwd="/",
            env=owner.environment(),
            timeout=PATIENCE_SECONDS,
            **owner.popen_arguments(),
        )
        for name in ("server.log", ".s.PGSQL.5432.lock"):  # of the primary
            (standby.data_dir / name).unlink(missing_ok=True)
        standby.start(timeout_seconds=PATIENCE_SECONDS)
        self.standby = standby
        with connect(self.primary.dsn()) as admin:
            admin.execute("alter system set synchronous_standby_names = '*'")
            one(admin, "select pg_reload_conf()")
            self._wait_for_sync()

    def _wait_for_sync(self) -> None:
        """Wait until the standby has all that was confirmed, and every commit waits for it."""

        def is_in_sync() -> bool:
            try:
                with connect(self.primary.dsn()) as admin:
                    return one(
                        admin,
                        "select count(*) from pg_stat_replication where sync_state = 'sync'"
                        " and flush_lsn >= pg_current_wal_flush_lsn() - 1000000",
                    )
            except psycopg.OperationalError:
                return False

        wait_for(is_in_sync, PATIENCE_SECONDS, "a synchronous standby")

    def promote(self) -> None:
        """Kill the primary, let the standby take its place, and make a new standby."""
        self._wait_for_sync()
        with connect(self.primary.dsn()) as admin:
            written = one(admin, "select pg_current_wal_flush_lsn()::text")
            query = (
                "select flush_lsn >= %s::pg_lsn from pg_stat_replication where sync_state = 'sync'"
            )
            wait_for(
                lambda: admin.execute(query, [written]).fetchone() == (True,), PATIENCE_SECONDS
            )
        old = self.primary
        old.kill()
        self.primary = self.standby
        with connect(self.primary.dsn()) as admin:
            assert one(admin, "select pg_promote(true, %s)", PATIENCE_SECONDS)
        self.proxy.lead_to(self.direct)
        self.proxy.cut_all()
        shutil.rmtree(old.data_dir, ignore_errors=True)
        if IS_ROOT:
            self._unmount(old.data_dir.parent)
        self.add_standby()

    def ensure_running(self) -> None:
        """Start the primary, or wait for its recovery."""

        def is_up() -> bool:
            try:
                self.primary.start(timeout_seconds=PATIENCE_SECONDS)
                with connect(self.direct):
                    return True
            except (ServerStartError, psycopg.OperationalError):
                return False

        wait_for(is_up, PATIENCE_SECONDS, "the primary accepts connections")

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Take all that is free on the primary's file system. Its server may stop."""
        node = self.primary.data_dir.parent
        filling = node / "filling"
        with filling.open("wb") as file:
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(node).free)
            try:
                yield
            finally:
                filling.unlink()


@contextmanager
def storm_cluster(pg_bin: str | None, make) -> Iterator[Cluster]:
    """Lend a cluster whose database ``make`` made on the first primary."""
    folder = Path(tempfile.mkdtemp(prefix="storm-"))
    folder.chmod(0o711)
    with ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        cluster = Cluster(folder, pg_bin, cleanup)
        make(cluster.primary, _DATABASE)
        cluster.proxy = cleanup.enter_context(Proxy(cluster.direct))
        cluster.add_standby()
        yield cluster
