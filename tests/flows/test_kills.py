"""Workers that are killed in the middle of flows: nothing is forgotten, nothing in this database is
done twice.
"""

import json

import pytest

import forebay
from tests.support.engine import one
from tests.support.waiting import wait_for

SORTS = ("in_async", "in_thread", "in_process")


def still_open(conn, orders) -> int:
    return orders - one(conn, "select count(*) from booking where what = 'end'")


@pytest.mark.slow
def test_flows_survive_killed_workers(conn, workers, effects):
    """Each effect of once() is there once, each step outside at most once more for each kill, each
    flow ends, and no signal, wait or child is left.
    """
    orders, kills = 60, 4
    conn.execute("create table booking (what text, entry integer)")
    options = {"app": "tests.support.flow_app:app", "concurrency": 6}
    for order in range(orders):
        text = json.dumps({"order": order})
        one(conn, "select forebay.enqueue(%s, %s::jsonb)", SORTS[order % 3], text)
        if order % 2:
            assert forebay.signal(conn, "approval", order, {"for": order})

    def bookings() -> int:
        return one(conn, "select count(*) from booking")

    for nr in range(kills):
        worker = workers.start(wait=False, **options)
        wanted = orders * 5 * (nr + 1) // (kills + 2)
        wait_for(lambda wanted=wanted: bookings() >= wanted, 120, lambda: workers.logs)
        worker.kill()
        for order in range(nr, orders, kills):
            if order % 2 == 0:
                forebay.signal(conn, "approval", order, {"for": order})
    workers.start(wait=False, **options)
    wait_for(lambda: still_open(conn, orders) == 0, 180, lambda: f"{bookings()} {workers.logs}")
    doubles = conn.execute(
        "select what, entry, count(*) from booking group by 1, 2 having count(*) > 1"
    ).fetchall()
    assert doubles == []
    assert one(conn, "select count(*) from booking") == orders * 5
    charges = effects.count("charge")
    assert set(charges) == set(range(orders))
    assert max(charges.values()) <= kills + 1
    assert one(conn, "select count(*) from forebay.signal") == 0
    assert one(conn, "select count(*) from forebay.waiter") == 0
    assert one(conn, "select count(*) from forebay.dead_letter") == 0
    ended = "select count(*) from forebay.gather_end"
    assert one(conn, ended) == orders * 3
