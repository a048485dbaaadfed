"""Maintenance of an idle database: duties that visit each lane pause for minutes, until
something happens.
"""

import math

import pytest

from forebay.db.session import Session
from forebay.worker.maintain.maintenance import Leading, Maintenance
from tests.support.engine import Reader, enqueue, one
from tests.support.waiting import wait_for_async

pytestmark = [pytest.mark.anyio, pytest.mark.direct]

FOLDED = "select coalesce(max(c.totals[%s]), 0) from forebay.counter c where c.segment_id = -1"


@pytest.mark.slow
async def test_counters_are_folded_soon_after_the_first_job_in_a_long_time(conn, database):
    """
    An enqueue, a claim and a settlement each end the pause of the folds. PostgreSQL's statistics
    may report the last two ten seconds late.
    """
    session = Session(database, name="test")
    maintenance = Maintenance(session, leading=Leading(1))

    def pause():
        maintenance._folding.every_seconds = 300.0
        maintenance._folding.due_at = maintenance._renewal.due_at = math.inf

    async def has_folded(event, jobs):
        await maintenance._schedule.run_next()
        return one(conn, FOLDED, event) == jobs

    try:
        with Reader(database) as reader:
            await maintenance._fold(maintenance._folding)
            await maintenance._maintain(maintenance._promotion)
            pause()
            enqueue(conn)
            await wait_for_async(lambda: has_folded(2, 1))
            pause()
            batch = reader.claim()
            await wait_for_async(lambda: has_folded(3, 1))
            pause()
            reader.finish(batch)
            await wait_for_async(lambda: has_folded(4, 1))
    finally:
        await session.close()


async def test_a_fold_that_found_nothing_pauses_for_longer_and_longer(conn, database):
    """
    At least 500 times its duration, twice the last pause, and at most five minutes.
    """
    session = Session(database, name="test")
    maintenance = Maintenance(session, leading=Leading(1))
    try:
        duty = maintenance._folding
        await maintenance._fold(duty)
        pauses = []
        for _ in range(12):
            await maintenance._fold(duty)
            pauses.append(duty.every_seconds)
    finally:
        await session.close()
    assert pauses == sorted(pauses)
    assert pauses[-1] == 300.0
    assert duty.least_seconds < 10.0
