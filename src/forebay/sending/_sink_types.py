"""Sinks of other distributions: endpoints can have those that a deliverer has."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from forebay.errors import DatabaseUnavailable, SchemaError
from forebay.model.text import logger
from forebay.ops import deliveries
from forebay.sinks import own_sink_types, row_settings, sink_types

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from forebay.ops.operation import Operation

log = logger("forebay.endpoints")

#: After a call that could not be made.
_AGAIN_SECONDS: Final = 1.0


async def record_sink_types(run: Callable[[Operation[None]], Awaitable[None]]) -> None:
    """Record the types of sinks that come with other distributions of this process.

    Return when that is done.

    The database accepts an endpoint only if it knows the type of its sink. A type that it refuses
    is logged.
    """
    for name in sorted(set(sink_types()) - own_sink_types()):
        try:
            found = deliveries.record_sink_type(name, *row_settings(name))
            await _until_possible(run, found)
        except Exception as error:  # the module of another package may raise anything
            log.warning("no endpoint can have the sink %s: %s", name, error)


async def _until_possible(
    run: Callable[[Operation[None]], Awaitable[None]], operation: Operation[None]
) -> None:
    while True:
        try:
            return await run(operation)
        except (DatabaseUnavailable, SchemaError) as error:
            log.debug("types of sinks are recorded later: %s", error)
        await asyncio.sleep(_AGAIN_SECONDS)
