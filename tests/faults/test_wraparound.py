"""The server is about to run out of transaction ids, and refuses to give out more until it is
vacuumed.
"""

import os
import time

import psycopg
import pytest

from forebay.embedded import EmbeddedServer, temporary_server
from tests.support.effects import Effects
from tests.support.engine import connect, enqueue, one, sqlstate
from tests.support.fix_db import make_migrated
from tests.support.fix_worker import make_effect_table
from tests.support.restore import run
from tests.support.waiting import wait_for
from tests.support.worker_process import crew

pytestmark = [pytest.mark.crash, pytest.mark.slow]

#: How far from the end of all ids the server stops to give them out (PostgreSQL manual, "Preventing
#: Transaction ID Wraparound Failures").
MARGIN = 3_000_000
#: Ids that are left when the test begins.
LEFT = 3000
IDS_PER_FILE = 32 * 8192 * 4

REFUSAL = "is not accepting commands"


def move_to_the_end(server: EmbeddedServer, dsn: str) -> None:
    """Let the server go on a little before the last transaction id that it would give out."""
    with connect(dsn) as conn:
        oldest = one(
            conn,
            "select min(pg_current_xact_id()::text::bigint - age(datfrozenxid)) from pg_database",
        )
    server.stop()
    xid = oldest + 2**31 - 1 - MARGIN - LEFT
    owner = server.data_dir.stat()
    # What became of the transactions in between: nobody will ask, but the file of the newest has to
    # be there.
    file = server.data_dir / "pg_xact" / f"{xid // IDS_PER_FILE:04X}"
    file.write_bytes(bytes(32 * 8192))
    file.chmod(0o600)
    os.chown(file, owner.st_uid, owner.st_gid)
    options = (f"--next-transaction-id={xid}", f"--pgdata={server.data_dir}")
    run(server, "pg_resetwal", *options, user=owner.st_uid)
    server.extra_settings |= {"autovacuum": "off"}
    server.start()


def test_without_transaction_ids_work_stops_and_goes_on_after_a_vacuum(pg_bin, effects: Effects):
    """
    A stranger's lock keeps vacuum from a table until nobody gets an id any more: enqueues are
    refused in PostgreSQL's own words, a worker says why it stands still and says it seldom. When
    the table has been vacuumed everything goes on without a restart; what was committed runs, at
    its first attempt.
    """
    with temporary_server(pg_bin) as server:
        dsn = server.dsn(make_migrated(server, "test"))
        with connect(dsn) as conn:
            make_effect_table(conn)
            conn.execute("create table held ()")
        move_to_the_end(server, dsn)
        with (
            psycopg.connect(dsn) as stranger,
            connect(dsn) as conn,
            crew(dsn, effects.path) as workers,
        ):
            # Without an id of its own.
            stranger.execute("lock table held in share update exclusive mode")
            worker = workers.start(concurrency=4)
            entries = []
            while (entry := len(entries)) < 2 * LEFT:
                call = "select forebay.enqueue('work', jsonb_build_object('entry', %s::int))"
                if sqlstate(conn, call, entry) is not None:
                    break
                entries.append(entry)
            assert sqlstate(conn, "select forebay.enqueue('work')") == "54000"
            assert len(entries) > 10
            began = time.monotonic()
            worker.wait_for_log(REFUSAL, 60)
            wait_for(lambda: time.monotonic() > began + 5, 10)
            lines = [line for line in worker.log.splitlines() if REFUSAL in line]
            print(f"{len(entries)} jobs; {len(lines)} lines, such as: {lines[0]}")
            assert len(lines) < 5 * (time.monotonic() - began)
            assert worker.is_running

            conn.execute("alter system set autovacuum = on")
            conn.execute("alter system set autovacuum_naptime = '1s'")
            conn.execute("select pg_reload_conf()")
            stranger.rollback()
            wait_for(lambda: sqlstate(conn, "select pg_current_xact_id()") is None, 60)
            entries.append(-1)
            enqueue(conn, args={"entry": -1})
            wait_for(lambda: set(entries) <= effects.entries("end"), 60, lambda: workers.logs)
            assert {effect.attempt for effect in effects.all("start")} == {1}
            assert worker.is_running
