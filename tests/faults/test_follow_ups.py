"""Workers that are killed: each job that ends has exactly one follow-up."""

import json

import pytest

from tests.support.engine import Reader, connect, one
from tests.support.follow_up_app import SORTS
from tests.support.waiting import wait_for

#: How each job has ended, and how many follow-ups name it.
ENDS = """
select g.args ->> 'entry', j.state, (select count(*) from forebay.log f
    where f.kind = 'follow' and f.job_id is null and f.args ->> 'job_id' = g.seq::text
      and f.args ->> 'outcome' = j.state)
from forebay.log g cross join lateral forebay.job(g.seq) j
where g.kind <> 'follow' and g.job_id is null
"""


def still_open(conn) -> int:
    return one(
        conn,
        "select count(*) from forebay.log g cross join lateral forebay.job(g.seq) j"
        " where g.job_id is null and j.state not in ('done', 'dead')",
    )


@pytest.mark.slow
def test_killed_workers_lose_no_follow_up_and_enqueue_none_twice(conn, workers):
    """Of every sort of handler, with kills in the middle of calls and of settlements."""
    options = {"app": "tests.support.follow_up_app:app", "concurrency": 4}
    for entry in range(150):
        text = json.dumps({"entry": entry})
        one(conn, "select forebay.enqueue(%s, %s::jsonb)", SORTS[entry % len(SORTS)], text)
    for share in (0.25, 0.5, 0.75):
        worker = workers.start(wait=False, **options)
        ended = "select count(*) from forebay.log where kind = 'follow'"
        wait_for(lambda share=share: one(conn, ended) >= 150 * share, 120, lambda: workers.logs)
        worker.kill()
    workers.start(wait=False, **options)
    wait_for(lambda: still_open(conn) == 0, 120, lambda: f"{still_open(conn)} {workers.logs}")
    found = conn.execute(ENDS).fetchall()
    assert len(found) == 150
    wrong = [row for row in found if row[1:] != ("dead" if int(row[0]) % 3 == 0 else "done", 1)]
    assert wrong == []


@pytest.mark.slow
def test_a_server_that_crashes_has_a_settlement_with_its_follow_up_or_neither(
    own_server, own_database
):
    """Committed: both are there. Open at the crash: neither, and the job runs again."""
    dsn = own_database
    end = {
        "outcome": "done",
        "follow_up": {"kind": "follow", "returned": {"seconds": 0, "value": 1}},
    }
    with connect(dsn) as conn, Reader(dsn) as reader:
        for _ in range(2):
            one(conn, "select forebay.enqueue('work')")
        batch = reader.claim()
        assert reader.settle(batch.claim_no, ended=[end | {"offset": 1}]) == "settled"
        reader.conn.execute("begin")
        assert reader.settle(batch.claim_no, ended=[end | {"offset": 2}], flush_no=2) == "settled"
        own_server.kill()
    own_server.start()
    with connect(dsn) as conn:
        found = conn.execute("select args -> 'job_id' from forebay.log where kind = 'follow'")
        assert found.fetchall() == [(batch.job_ids[0],)]
