"""The application whose drains the demo runs: `forebay drain six_sinks.app:app`."""

import json
import os
from datetime import timedelta

import forebay
from forebay.sinks import make_sink
from forebay.testing import LyingSink

app = forebay.App()

for name, (sink_type, config) in json.loads(os.environ["SIX_SINKS"]).items():
    sink = make_sink(sink_type, config)
    is_lying = name == "redis"
    if is_lying:
        # One message in a hundred is accepted and never written.
        sink = LyingSink(sink, {"drop": 0.01}, seed=os.getpid())
    # One row of the queue serves all of them: each drain is a consumer group.
    forebay.Drain(
        app,
        name,
        sink=sink,
        queue="orders",
        group=name,
        batch_size=200,
        verify=is_lying,
        linger=timedelta(milliseconds=50),
    )
