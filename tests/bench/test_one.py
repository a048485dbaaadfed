"""The scenario of single enqueues: its figures, and processes that commit what they say."""

import time

import psycopg
import pytest

from forebay_bench import Options, Place
from forebay_bench._processes import scripts
from forebay_bench.engines import plain
from forebay_bench.scenarios import one
from tests.support.engine import connect
from tests.support.engine import one as value

NAMES = [
    "ours_per_s",
    "python_per_s",
    "plain_per_s",
    "ours8_per_s",
    "plain8_per_s",
    "peers",
    "cpu_us",
]


@pytest.mark.nightly
@pytest.mark.slow
def test_each_contestant_is_measured(server):
    """
    The promised names, each above zero; what was not compared is not measured and no failure.
    """
    place = Place(server.dsn(), is_own=False)
    report = one.run(place, Options(scale=0.05, rounds=1, compare=()), lambda _: None)
    assert list(report.figures) == NAMES
    assert report.figures.pop("peers") == {}
    assert report.figures.pop("cpu_us").keys() >= {"ours", "plain8"}
    assert min(report.figures.values()) > 0
    assert [bar.value is None for bar in report.bars] == [False, False, True]


@pytest.mark.direct
def test_what_a_process_says_it_enqueued_is_there(database, conn):
    """
    Each step is committed when it is counted, in the queue and in the plain table.
    """
    plain.create(conn)
    with scripts("forebay_bench._enqueuers", [database, database]) as (script,):
        counts = {}
        for name in ("ours", "python", "plain"):
            now = time.monotonic()
            script.send({"name": name, "from": now, "until": now + 0.1})
            counts[name] = script.read_message() + 1  # one prepares the statement
    assert min(counts.values()) > 1
    with connect(database) as other:
        assert value(other, "select count(*) from forebay.log") == counts["ours"] + counts["python"]
        assert value(other, "select count(*) from plain_job") == counts["plain"]


def test_the_plain_table_has_the_columns_of_the_log(conn: psycopg.Connection):
    """
    The rival writes what a job is, column for column and type for type, with an index like the one
    that claims use.
    """
    plain.create(conn)
    columns = (
        "select attname::text, format_type(atttypid, atttypmod) from pg_attribute"
        " where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attname"
    )
    ours = conn.execute(columns, ["forebay.log"]).fetchall()
    assert conn.execute(columns, ["plain_job"]).fetchall() == ours
