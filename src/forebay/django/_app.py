"""The application of a Django project: an ``App`` whose address is one of DATABASES."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from asgiref.sync import sync_to_async
from django.apps import apps

from forebay.app import App, Handler
from forebay.arguments.kinds import Kind
from forebay.config import UnkeptAddress
from forebay.db.handler_connections_django import (
    address_of_alias,
    after_handler,
    before_handler,
)
from forebay.django._eager import Eager
from forebay.django._settings import setting
from forebay.policy.error_text import calls_handlers

#: All applications of the process.
_apps: weakref.WeakSet[DjangoApp] = weakref.WeakSet()


def follow_settings(*, setting: str = "FOREBAY", **_: Any) -> None:
    """Do what the setting FOREBAY says now; also a receiver of Django's ``setting_changed``."""
    if setting == "FOREBAY":
        for each in _apps:
            each.follow_settings()


class DjangoApp(App):
    """An ``App`` on one of Django's databases.

    The address is read from DATABASES at each use, so that the database of a test runner is found.
    An address on the command line takes precedence.

    Args:
        alias: alias of the database with the schema.
    """

    def __init__(self, alias: str = "default") -> None:
        super().__init__()
        self._internals.for_workers = _for_workers
        self.alias = alias
        #: Django tasks and their handlers, by the alias of their backend and their full name.
        self.tasks: dict[tuple[str, str], tuple[Any, Handler[..., ..., Any]]] = {}
        self._eager = Eager(self)
        _apps.add(self)
        if apps.ready:
            self.follow_settings()

    def follow_settings(self) -> None:
        """Begin or end to run jobs where they are enqueued, as the setting FOREBAY says."""
        middlewares = self._internals.middlewares
        is_eager = self._eager in middlewares.all
        if bool(setting("EAGER")) != is_eager:
            (middlewares.remove if is_eager else middlewares.add)(self._eager)

    @property
    def dsn(self) -> str:
        """The address of the database."""
        if self._internals.dsn is not None:
            return super().dsn
        # Django's test runner drops its database, which must have no other session then.
        return UnkeptAddress(address_of_alias(self.alias))


def _for_workers(kind: Kind) -> Kind:
    """Return a kind as workers run it; the application calls its function itself."""
    if kind.transaction:  # a transactional handler receives a fresh connection
        return kind
    around = _with_fresh_connections_async if kind.is_async else _with_fresh_connections
    return replace(kind, function=around(kind.function))


def _with_fresh_connections(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a handler that renews Django's connections, as for a request."""

    @calls_handlers
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        before_handler()
        try:
            return function(*args, **kwargs)
        finally:
            after_handler()

    return run


def _with_fresh_connections_async(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same for a coroutine function, in the thread of Django's asynchronous calls."""
    before = sync_to_async(before_handler, thread_sensitive=True)
    after = sync_to_async(after_handler, thread_sensitive=True)

    @calls_handlers
    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        await before()
        try:
            return await function(*args, **kwargs)
        finally:
            await after()

    return run


#: The project's application.
app = DjangoApp()
#: A child process sets up Django before it imports the application.
app._internals.found_at = ("forebay.django.entry", "app", False)
