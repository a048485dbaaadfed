"""The loop on which a mirror calls stores."""

import asyncio

from forebay.mirror._loop_thread import Calls, LoopThread
from tests.support.waiting import wait_for


def test_the_end_of_the_loop_cancels_a_call_once():
    """
    A driver that was cancelled asks its server to stop and waits for the answer. A second
    cancellation would interrupt that: the connection is lost, and the driver complains.
    """
    began, said = [], []

    async def query() -> None:
        began.append(True)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            said.append("the server stopped it")
            raise

    loop_thread, calls = LoopThread("test"), Calls()
    # Several, since tasks are cancelled in the order of a set.
    for call in [query, lambda: query()] * 5:
        loop_thread.submit(calls.call(call, seconds=60))
    wait_for(lambda: len(began) == 10)
    loop_thread.close()
    assert said == ["the server stopped it"] * 10
