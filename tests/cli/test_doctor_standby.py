"""A standby that tells its primary what its queries still need."""

import os
import shutil
import subprocess

import psycopg
import pytest

from forebay.embedded import EmbeddedServer, temporary_server
from forebay.ops.doctor import _snapshots
from tests.support.engine import connect
from tests.support.waiting import wait_for


@pytest.mark.slow
def test_a_query_on_a_standby_is_named_as_its_standby(pg_bin):
    """
    With hot_standby_feedback a report on the standby keeps vacuum from working on the primary, where
    no session of it is to be seen.
    """
    settings = {"wal_receiver_status_interval": "1s", "hot_standby_feedback": "on"}
    with temporary_server(pg_bin, extra_settings=settings) as primary:
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
        settings["primary_conninfo"] = (
            f"host={primary.socket_dir} user=postgres application_name=standby_1"
        )

        with EmbeddedServer(data, pg_bin, extra_settings=settings) as standby:
            with connect(primary.dsn()) as conn:
                conn.execute("create table t as select 1 as n")

                def replayed():
                    with psycopg.connect(standby.dsn()) as probe:
                        row = probe.execute("select to_regclass('t')").fetchone()
                    return row and row[0]

                wait_for(replayed, 20)
                with psycopg.connect(standby.dsn()) as report:
                    report.execute("set transaction isolation level repeatable read")
                    report.execute("select * from t")
                    conn.execute("insert into t values (2)")
                    conn.execute("insert into t values (3)")

                    def named():
                        rows = conn.execute(_snapshots._HELD_SQL.replace("%%", "%")).fetchall()
                        return [row for row in rows if row[0] == "standby"]

                    (row,) = wait_for(named, 20)
                    assert row[1] == "standby_1"
                    (finding,) = _snapshots._judge([row])
                    assert finding.what.startswith("the oldest snapshot is held by standby")
                    report.rollback()
