"""Calls of plain functions in threads, for code on an event loop.

A future takes no ``StopIteration``: ``asyncio.to_thread`` of a function that raises one never
returns, and its caller waits without end. Python makes it a ``RuntimeError`` where a coroutine
raises it (PEP 479), and so does this module.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def for_future(error: BaseException) -> BaseException:
    """Return what a future can have in place of an error: itself, or a ``RuntimeError`` from it.

    >>> for_future(ValueError("wrong"))
    ValueError('wrong')
    >>> for_future(StopIteration())
    RuntimeError('the function raised StopIteration')
    """
    if not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    made = RuntimeError(f"the function raised {type(error).__name__}")
    made.__cause__ = error
    return made.with_traceback(error.__traceback__)


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Do as ``asyncio.to_thread``, and return whatever the function raises.

    Raises:
        RuntimeError: the function raised ``StopIteration`` or ``StopAsyncIteration``.
        BaseException: anything else that it raised.
    """

    def call() -> T:
        try:
            return function(*args)
        except (StopIteration, StopAsyncIteration) as error:
            raise for_future(error) from error

    return await asyncio.to_thread(call)
