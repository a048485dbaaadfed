"""Sinks: where drains send messages. The classes of the sinks are in the modules of this package.

>>> from forebay.sinks.redis import RedisStream
>>> RedisStream("redis://localhost:6379", stream="orders").place
'orders at localhost:6379'
"""

from forebay.errors import SinkUnavailable
from forebay.sinks._contract import (
    Accepted,
    Answer,
    EndpointGone,
    FromRow,
    Message,
    Refused,
    Rejected,
    Sent,
    Sink,
    TryLater,
    message_id,
)
from forebay.sinks._permissions import NotPermitted, Permissions, checked_row_sink
from forebay.sinks._registry import (
    ENTRY_POINTS,
    make_sink,
    own_sink_types,
    row_settings,
    sink_class,
    sink_settings,
    sink_types,
)
from forebay.sinks._secrets import Secret
from forebay.sinks._support import call_in_thread

__all__ = [
    "ENTRY_POINTS",
    "Accepted",
    "Answer",
    "EndpointGone",
    "FromRow",
    "Message",
    "NotPermitted",
    "Permissions",
    "Refused",
    "Rejected",
    "Secret",
    "Sent",
    "Sink",
    "SinkUnavailable",
    "TryLater",
    "call_in_thread",
    "checked_row_sink",
    "make_sink",
    "message_id",
    "own_sink_types",
    "row_settings",
    "sink_class",
    "sink_settings",
    "sink_types",
]
