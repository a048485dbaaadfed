"""A standby that tells its primary what its queries still need."""

import psycopg
import pytest

from forebay.db.drivers import run
from forebay.doctor import _snapshots
from forebay.guard.holder_query import holders
from tests.support.engine import connect
from tests.support.standby import primary_and_standby, wait_until_replayed
from tests.support.waiting import wait_for


@pytest.mark.slow
def test_a_query_on_a_standby_is_named_as_its_standby(pg_bin):
    """
    With hot_standby_feedback a report on the standby keeps vacuum from working on the primary,
    where no session of it is to be seen.
    """
    with primary_and_standby(pg_bin) as (primary, standby), connect(primary.dsn()) as conn:
        conn.execute("create table t as select 1 as n")
        wait_until_replayed(primary, standby)
        with psycopg.connect(standby.dsn()) as report:
            report.execute("set transaction isolation level repeatable read")
            report.execute("select * from t")
            conn.execute("insert into t values (2)")
            conn.execute("insert into t values (3)")

            def named():
                return [holder for holder in run(conn, holders()) if holder.sort == "standby"]

            (holder,) = wait_for(named, 20)
            assert holder.name == "standby_1"
            (finding,) = _snapshots.judge_holders([holder])
            assert finding.what.startswith("the oldest snapshot is held by standby")
            report.rollback()
