"""What sends jobs out of the database: drains send those of a queue to a sink, deliverers send
events and messages to endpoints.

See ``Drain``, ``Deliverer``, and ``forebay.sinks`` for the places to which both send. A router
expands events to deliveries.
"""

from forebay.sending._audit import DrainAudit
from forebay.sending._deliverer import SLOTS_DEFAULT, Deliverer
from forebay.sending._drain import Drain, drains_of
from forebay.sending._phases import delivering, in_this_process, phases_of
from forebay.sending._presets import PRESETS, as_retries
from forebay.sending._router import Router

__all__ = [
    "PRESETS",
    "SLOTS_DEFAULT",
    "Deliverer",
    "Drain",
    "DrainAudit",
    "Router",
    "as_retries",
    "delivering",
    "drains_of",
    "in_this_process",
    "phases_of",
]
