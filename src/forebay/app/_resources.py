"""Resources that handlers of a worker share: clients, pools, models.

``@app.resource`` declares a factory. A worker builds each resource once when it starts and closes
the resources in reverse order when it ends. Handlers find them in ``ctx.resources``.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any

from forebay.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Resources:
    """The factories of an app, by the name of the resource."""

    def __init__(self) -> None:
        self._factories: dict[str, Callable[[], Any]] = {}

    def add(self, name: str, factory: Callable[[], Any]) -> None:
        """Add a factory: a function without arguments.

        A generator function, plain or asynchronous, yields the resource once and cleans up after
        the yield. Any other function, plain or asynchronous, returns the resource. If it returns a
        context manager, the manager is entered, and its value is the resource.

        Raises:
            ConfigError: the factory is not callable, or another factory has this name.
        """
        if not callable(factory):
            raise ConfigError(f"resource {name}", "is not a function")
        known = self._factories.get(name)
        if known is not None and _place(known) != _place(factory):
            raise ConfigError(f"resource {name}", "is declared twice")
        self._factories[name] = factory

    def add_all(self, other: Resources) -> None:
        """Add the factories of another object; see ``add``."""
        for name, factory in other._factories.items():
            self.add(name, factory)

    async def open(self, stack: contextlib.AsyncExitStack) -> Mapping[str, Any]:
        """Build every resource and return them by name; the stack closes them."""
        built: dict[str, Any] = {}
        for name, factory in self._factories.items():
            try:
                built[name] = await _opened(factory, stack)
            except Exception as error:
                error.add_note(f"while building the resource {name!r}")
                raise
        return built


async def _opened(factory: Callable[[], Any], stack: contextlib.AsyncExitStack) -> Any:
    if inspect.isasyncgenfunction(factory):
        factory = contextlib.asynccontextmanager(factory)
    elif inspect.isgeneratorfunction(factory):
        factory = contextlib.contextmanager(factory)
    made = factory()
    if inspect.isawaitable(made) and not hasattr(made, "__aenter__"):
        made = await made
    if hasattr(made, "__aenter__"):
        return await stack.enter_async_context(made)
    if hasattr(made, "__enter__"):
        return stack.enter_context(made)
    return made


def _place(factory: Callable[[], Any]) -> tuple[str, str]:
    # By location: reloading a module declares its factories again.
    return (getattr(factory, "__module__", ""), getattr(factory, "__qualname__", repr(factory)))
