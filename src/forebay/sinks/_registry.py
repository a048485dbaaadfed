"""The sinks by the names of their types: those of the library, and those of other packages by
entry points.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import inspect
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import ConfigError, shown
from forebay.model.doors import declaring_door
from forebay.sinks._contract import Sink

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Packages register their sinks under this group: ``mytype = "package.module:Class"``.
ENTRY_POINTS: Final = "forebay.sinks"

#: The sinks of the library: type, and where its class is.
_OWN: Final = {
    "bullmq": "forebay.sinks.bullmq:BullMQ",
    "celery": "forebay.sinks.celery:Celery",
    "dramatiq": "forebay.sinks.dramatiq:Dramatiq",
    "forebay": "forebay.sinks.forebay:ForebayDatabase",
    "http": "forebay.sinks.http:Http",
    "kafka": "forebay.sinks.kafka:Kafka",
    "mqtt": "forebay.sinks.mqtt:Mqtt",
    "nats": "forebay.sinks.nats:JetStream",
    "rabbitmq": "forebay.sinks.rabbitmq:RabbitMQ",
    "redis-list": "forebay.sinks.redis:RedisList",
    "redis-stream": "forebay.sinks.redis:RedisStream",
    "rq": "forebay.sinks.rq:RQ",
    "sidekiq": "forebay.sinks.sidekiq:Sidekiq",
    "sqs": "forebay.sinks.sqs:Sqs",
}


def sink_types() -> list[str]:
    """Return the names of all sinks, sorted."""
    found = {point.name for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    return sorted(found | _OWN.keys())


def own_sink_types() -> frozenset[str]:
    """Return the names of the sinks that come with the library: every database knows them."""
    return frozenset(_OWN)


@declaring_door
def sink_settings(name: str) -> tuple[list[str], list[str]]:
    """Return the settings of a sink, and of these the ones that every configuration has.

    Raises:
        ConfigError: the type is unknown, or the entry point names something else.

    >>> sink_settings("redis-list")[1]
    ['url', 'key']
    """
    parameters = inspect.signature(sink_class(name)).parameters
    empty = inspect.Parameter.empty
    return list(parameters), [key for key, one in parameters.items() if one.default is empty]


@declaring_door
def row_settings(name: str) -> tuple[list[str], list[str]]:
    """Return the settings of a sink that an endpoint can have, and of these the required ones.

    Raises:
        ConfigError: the type is unknown, or the entry point names something else.
    """
    rules = sink_class(name).row_rules
    settings, required = sink_settings(name)
    return [key for key in settings if key in rules], [key for key in required if key in rules]


@declaring_door
def sink_class(name: str) -> type[Sink]:
    """Return the class of a sink by the name of its type.

    Raises:
        ConfigError: the type is unknown, or the entry point names something else.
    """
    place = _OWN.get(name)
    if place is not None:
        module, _, attribute = place.partition(":")
        found = getattr(importlib.import_module(module), attribute)
    else:
        points = importlib.metadata.entry_points(group=ENTRY_POINTS, name=name)
        if not points:
            near = difflib.get_close_matches(name, sink_types(), n=1)
            raise ConfigError(
                "sink",
                f"has the unknown type {shown(name)}",
                value=name,
                hint=(f"Did you mean {near[0]}? " if near else "")
                + f"Types: {', '.join(sink_types())}.",
            )
        found = next(iter(points)).load()
    if not (isinstance(found, type) and issubclass(found, Sink)):
        raise ConfigError("sink", f"of type {name} is {shown(found)}, not a subclass of Sink")
    return found


@declaring_door
def make_sink(name: str, config: Mapping[str, Any]) -> Sink:
    """Return a sink of a type with a configuration: the arguments of its constructor.

    Raises:
        ConfigError: the type or an argument is unknown, missing or refused; nothing was connected.

    >>> make_sink("redis-stream", {"url": "redis://localhost:6379", "stream": "orders"}).place
    'orders at localhost:6379'
    """
    cls = sink_class(name)
    settings, required = sink_settings(name)
    for key in config:
        if key not in settings:
            near = difflib.get_close_matches(key, settings, n=1)
            raise ConfigError(
                f"sink {name}",
                f"has no setting {shown(key)}",
                value=key,
                hint=(f"Did you mean {near[0]}? " if near else "")
                + f"Settings: {', '.join(settings)}.",
            )
    for key in required:
        if key not in config:
            raise ConfigError(f"sink {name}", f"needs the setting {key}")
    return cls(**config)
