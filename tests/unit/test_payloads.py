"""Payloads are read for many deliveries at once, and kept for those of other endpoints."""

import asyncio
from datetime import UTC, datetime

import pytest

from forebay.errors import DatabaseUnavailable
from forebay.ops.deliveries import PublishedEvent
from forebay.sending._payloads import Payloads

pytestmark = pytest.mark.anyio

AT = datetime(2026, 1, 1, tzinfo=UTC)


class Far:
    def __init__(self):
        self.calls = []
        self.error = None

    async def __call__(self, keys):
        self.calls.append([number for number, _ in keys])
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return {key: PublishedEvent(b"x" * 100, {}, None) for key in keys if key[0] > 0}


async def get(payloads, number):
    found = payloads.get((number, AT))
    return await asyncio.shield(found) if asyncio.isfuture(found) else found


async def test_what_is_wanted_during_a_call_is_read_by_the_next_one():
    far = Far()
    payloads = Payloads(far)
    await asyncio.gather(*(get(payloads, number) for number in (1, 2, 2, 3)))
    assert far.calls == [[1, 2, 3]]
    await get(payloads, 2)
    assert far.calls == [[1, 2, 3]]


async def test_an_event_that_was_deleted_is_none():
    assert await get(Payloads(Far()), -1) is None


async def test_an_error_reaches_those_who_wait_and_the_next_call_may_succeed():
    far = Far()
    far.error = DatabaseUnavailable("away")
    payloads = Payloads(far)
    found = await asyncio.gather(*(get(payloads, n) for n in (1, 2)), return_exceptions=True)
    assert [type(one) for one in found] == [DatabaseUnavailable] * 2
    far.error = None
    assert await get(payloads, 1) is not None


async def test_the_oldest_payloads_are_dropped_beyond_the_bound():
    far = Far()
    payloads = Payloads(far, bytes_max=1300)
    for number in (1, 2, 1, 3, 1, 2):
        await get(payloads, number)
    assert far.calls == [[1], [2], [3], [2]]


async def test_a_caller_that_leaves_takes_nothing_from_the_others():
    far = Far()
    payloads = Payloads(far)
    leaves, stays = (asyncio.create_task(get(payloads, 1)) for _ in range(2))
    await asyncio.sleep(0)
    leaves.cancel()
    assert await stays is not None


async def test_closing_ends_those_who_wait():
    far = Far()
    payloads = Payloads(far)
    waits = asyncio.create_task(get(payloads, 1))
    await asyncio.sleep(0)
    await payloads.close()
    with pytest.raises(asyncio.CancelledError):
        await waits
