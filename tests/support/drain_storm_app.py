"""The application of storms of drains: one drain, to the sink that the environment names."""

import json
import os

import forebay
from forebay.sinks import make_sink

app = forebay.App()

sink = make_sink(os.environ["STORM_SINK"], json.loads(os.environ["STORM_CONFIG"]))
drain = forebay.Drain(app, "storm", sink=sink, queue="storm", batch_size=100)
