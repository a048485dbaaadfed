"""The application of outages of sinks: the drains that the environment names, and a sink that is
slow.
"""

import asyncio
import json
import os
from collections.abc import Sequence

import forebay
from forebay.sinks import Answer, Message, make_sink
from forebay.sinks.redis import RedisStream


class SlowStream(RedisStream):
    """A stream whose every call takes half a second longer."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Answer]:
        await asyncio.sleep(0.5)
        return await super().send(messages)


app = forebay.App()

for name, one in json.loads(os.environ["OUTAGE_DRAINS"]).items():
    sink = (
        SlowStream(**one["config"])
        if one["sink"] == "slow"
        else make_sink(one["sink"], one["config"])
    )
    forebay.Drain(app, name, sink=sink, queue="orders", group=name, timeout=one.get("timeout", 5))
