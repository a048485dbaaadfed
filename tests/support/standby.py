"""A primary and its standby, which tells it what its queries still need."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psycopg

from forebay.embedded import EmbeddedServer, temporary_server
from tests.support.engine import connect
from tests.support.waiting import wait_for


@contextmanager
def primary_and_standby(
    pg_bin: str | None, settings: Mapping[str, str] = {}, *, name: str = "standby_1"
) -> Iterator[tuple[EmbeddedServer, EmbeddedServer]]:
    """Lend both, running; the standby has hot_standby_feedback and reports every second."""
    chosen = {"wal_receiver_status_interval": "1s", "hot_standby_feedback": "on", **settings}
    with temporary_server(pg_bin, extra_settings=chosen) as primary:
        # A copy of the stopped server is its standby.
        primary.stop()
        data = primary.data_dir.with_name("standby")
        subprocess.run(["cp", "-a", primary.data_dir, data], check=True)
        (data / "server.log").unlink()
        signal_file = data / "standby.signal"
        signal_file.touch()
        shutil.copystat(data / "PG_VERSION", signal_file)
        os.chown(signal_file, data.stat().st_uid, data.stat().st_gid)
        primary.start()
        chosen["primary_conninfo"] = (
            f"host={primary.socket_dir} user=postgres application_name={name}"
        )
        with EmbeddedServer(data, pg_bin, extra_settings=chosen) as standby:
            yield primary, standby


def wait_until_replayed(primary: EmbeddedServer, standby: EmbeddedServer) -> None:
    """Wait until the standby has all that the primary has written so far."""
    with connect(primary.dsn()) as conn, psycopg.connect(standby.dsn(), autocommit=True) as probe:
        (written,) = conn.execute("select pg_current_wal_lsn()::text").fetchone()
        wait_for(
            lambda: probe.execute(
                "select pg_last_wal_replay_lsn() >= %s::pg_lsn", [written]
            ).fetchone()[0],
            20,
        )
