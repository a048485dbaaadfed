"""Sessions on other databases, for sources and targets."""

import asyncio

import pytest

from forebay.db.foreign_session import ForeignSession
from forebay.ops.operation import Operation, scalar
from tests.support.engine import one
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio

NAME = "somebody-elsewhere"


@pytest.mark.direct  # counts sessions of the server
async def test_a_session_that_is_in_use_at_the_end_is_closed_when_it_comes_back(conn, database):
    """
    Whoever waits for it or gives up: no connection is left open.
    """

    def sessions(state: str) -> int:
        return one(
            conn,
            "select count(*) from pg_stat_activity where application_name = %s and state like %s",
            NAME,
            state,
        )

    there = ForeignSession(database, name=NAME)
    lock = "select pg_advisory_xact_lock(1)"
    one(conn, "select 1 from (select pg_advisory_lock(1)) x")
    calls = [asyncio.create_task(there.run(Operation(lock, scalar))) for _ in range(2)]
    await wait_for_async(lambda: sessions("active") == 2)
    await there.close()
    calls[0].cancel()
    one(conn, "select pg_advisory_unlock(1)")
    assert await calls[1] == ""
    with pytest.raises(asyncio.CancelledError):
        await calls[0]
    await wait_for_async(lambda: sessions("%") == 0)
