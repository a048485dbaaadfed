"""Flows that live through deploys which change their steps."""

import json

import pytest

import forebay
from tests.support.engine import one
from tests.support.waiting import wait_for


@pytest.mark.slow
def test_a_flow_lives_through_four_deploys_that_change_its_steps(conn, workers, effects):
    """Steps are inserted, removed, renamed and reordered while flows wait, and workers of two
    versions run at once. Each effect is there once, each flow ends, and a step that the code does
    not ask for any more is told.
    """
    conn.execute("create table booking (what text, entry integer)")
    orders = list(range(6))
    enqueue = "select forebay.enqueue('fulfil', %s::jsonb)"

    def start(version: int):
        environment = {"DEPLOYED": str(version)}
        return workers.start(app="tests.support.deployed_flow_app:app", environment=environment)

    def wait_until_woken(nr: int, count: int) -> None:
        query = "select count(*) from forebay.step where kind = 'w' and key = %s"
        wait_for(lambda: one(conn, query, str(nr)) >= count, 120, lambda: workers.logs)

    def wake(nr: int, some: list[int]) -> None:
        for order in some:
            assert forebay.signal(conn, "deployed", f"{order} {nr}")

    old = start(0)
    for order in orders:
        one(conn, enqueue, json.dumps({"order": order}))
    waiting = "select count(*) from forebay.waiter"
    wait_for(lambda: one(conn, waiting) == len(orders), 120, lambda: workers.logs)
    for version in range(1, 5):
        new = start(version)
        # Either version may get these.
        wake(version, orders[:4])
        wait_until_woken(version, 4)
        if version == 3:
            # A flow that begins while two versions run.
            orders.append(one(conn, "select 6"))
            one(conn, enqueue, json.dumps({"order": 6}))
            for nr in (1, 2):
                wake(nr, [6])
        old.terminate()
        old.wait(30)
        wake(version, orders[4:])
        wait_until_woken(version, len(orders))
        old = new
    ends = "select count(*) from booking where what like 'ended by version %%'"
    wait_for(lambda: one(conn, ends) == len(orders), 120, lambda: workers.logs)
    jobs = "select count(*) filter (where state = 'done'), count(*) from forebay.jobs()"
    wait_for(lambda: conn.execute(jobs).fetchone() == (7, 7), 30, lambda: workers.logs)

    booked = conn.execute("select what, count(*), count(distinct entry) from booking group by 1")
    counts = {what: (times, entries) for what, times, entries in booked}
    assert counts["book"] == counts["charge"] == (7, 7)
    assert sum(times for what, (times, _) in counts.items() if what.startswith("ended")) == 7
    assert effects.count("reserve") == dict.fromkeys(range(7), 1)
    assert effects.count("price") == dict.fromkeys(range(6), 1)
    assert effects.count("check") == dict.fromkeys(range(7), 1)
    told = [line for line in workers.logs.splitlines() if "did not ask for" in line]
    assert len(told) >= 6
    assert all(line.rstrip().endswith("price") for line in told if "price" in line)
    assert one(conn, waiting) == 0
    assert one(conn, "select count(*) from forebay.signal") == 0
