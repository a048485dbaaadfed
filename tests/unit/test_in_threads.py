"""What a function in a thread raises reaches its caller, also what a future cannot have."""

import asyncio

import pytest

from forebay.config import OwnAddress
from forebay.db.opening import connected_async
from forebay.errors import DatabaseUnavailable
from forebay.in_threads import in_thread
from forebay.mirror._loop_thread import Calls
from forebay.sinks import call_in_thread
from forebay.worker.ground.threads import Threads

pytestmark = pytest.mark.anyio


def ends():
    return next(iter([]))


async def by_worker_thread():
    return await Threads(1).submit(ends).future


WAYS = {
    "in_thread": lambda: in_thread(ends),
    "sinks": lambda: call_in_thread(ends, name="test"),
    "mirror": lambda: Calls().call(ends, seconds=5),
    "worker": by_worker_thread,
}


@pytest.mark.parametrize("way", WAYS)
async def test_stop_iteration_becomes_a_runtime_error(way):
    """
    As where a coroutine raises it; with its cause and the place.
    """
    with pytest.raises(RuntimeError, match="StopIteration") as found:
        async with asyncio.timeout(10):
            await WAYS[way]()
    assert isinstance(found.value.__cause__, StopIteration)


async def test_other_errors_and_results_pass():
    """
    They are those of the function.
    """
    assert await in_thread(int, "7") == 7
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 1, 0)


async def test_an_apps_own_connection_that_ends_is_an_error():
    """
    Its function runs in a thread, too.
    """
    with pytest.raises(DatabaseUnavailable):
        async with asyncio.timeout(10):
            await connected_async(OwnAddress("dbname=none", connect=ends))
