"""The application of a Django project: an ``App`` whose address is one of DATABASES."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from asgiref.sync import sync_to_async

from forebay.app import App, Handler
from forebay.db.handler_connections_django import address_of_alias, close_old_connections
from forebay.policy.error_text import calls_handlers


class DjangoApp(App):
    """An ``App`` on one of Django's databases.

    The address is read from DATABASES at each use, so that the database of a test runner is found.
    An address on the command line takes precedence.

    Args:
        alias: alias of the database with the schema.
    """

    def __init__(self, alias: str = "default") -> None:
        super().__init__()
        self.alias = alias
        #: Django tasks and their handlers, by the alias of their backend and their full name.
        self.tasks: dict[tuple[str, str], tuple[Any, Handler[..., ..., Any]]] = {}

    @property
    def dsn(self) -> str:
        """The address of the database."""
        return super().dsn if self._internals.dsn is not None else address_of_alias(self.alias)

    def _declared(self, function: Callable[..., Any], **options: Any) -> Handler[..., ..., Any]:
        handler = super()._declared(function, **options)
        kind = handler.kind
        if not kind.transaction:  # a transactional handler receives a fresh connection
            around = _with_fresh_connections_async if kind.is_async else _with_fresh_connections
            # Only in the worker: the application calls the function itself.
            self._internals.add_kind(replace(kind, function=around(kind.function)))
        return handler


def _with_fresh_connections(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a handler that closes old connections of Django before and after, as for a request."""

    @calls_handlers
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        close_old_connections()
        try:
            return function(*args, **kwargs)
        finally:
            close_old_connections()

    return run


def _with_fresh_connections_async(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same for a coroutine function, in the thread of Django's asynchronous calls."""
    close = sync_to_async(close_old_connections, thread_sensitive=True)

    @calls_handlers
    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        await close()
        try:
            return await function(*args, **kwargs)
        finally:
            await close()

    return run


#: The project's application.
app = DjangoApp()
#: A child process sets up Django before it imports the application.
app._internals.found_at = ("forebay.django.entry", "app", False)
