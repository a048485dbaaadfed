"""What a deliverer tells the database, which checks endpoints by it when they are saved: sinks of
other distributions, and hosts that are not public.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import DatabaseUnavailable, SchemaError
from forebay.model.text import logger
from forebay.ops import deliveries, endpoints
from forebay.sinks import own_sink_types, row_settings, sink_types

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

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


async def record_hosts(
    run: Callable[[Operation[Any]], Awaitable[Any]], hosts: Iterable[str]
) -> None:
    """Record which hosts this process may call besides public addresses. Return when that is done.

    A list that the database refuses is logged: endpoints with such hosts can then not be saved.
    """
    try:
        await _until_possible(run, endpoints.allow_hosts(hosts))
    except Exception as error:
        log.warning("endpoint_hosts could not be recorded: %s", error)


async def _until_possible(
    run: Callable[[Operation[Any]], Awaitable[Any]], operation: Operation[Any]
) -> None:
    while True:
        try:
            await run(operation)
        except (DatabaseUnavailable, SchemaError) as error:
            log.debug("what this deliverer allows is recorded later: %s", error)
            await asyncio.sleep(_AGAIN_SECONDS)
        else:
            return
