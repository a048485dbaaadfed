"""The composition root: the one object that knows handlers, settings, database and worker.

Creating an ``App`` and declaring handlers reads no settings and does not access the database, so a
module with an app can be imported anywhere. Settings and address are looked up on first use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from forebay.app._declarations import Declaration
from forebay.app._internals import Internals
from forebay.app._jobs import Jobs
from forebay.app._queues import AppQueues
from forebay.app._schedules import AppSchedules
from forebay.app._workers import AppWorkers
from forebay.arguments.kinds import Kinds
from forebay.config import Connect, Password, Settings
from forebay.errors import ConfigError, shown
from forebay.model.doors import declaring_door

if TYPE_CHECKING:
    from forebay.model.middleware import Middleware


class App(Jobs, AppQueues, AppSchedules, AppWorkers):
    """Handlers, and everything needed to enqueue and run them.

    It declares as a ``Jobs`` does. The methods that apply queues and schedules, and those for
    workers, are in the base classes ``AppQueues``, ``AppSchedules`` and ``AppWorkers``, in modules
    beside this one.

    Args:
        dsn: the database address. Default: FOREBAY_DATABASE_URL, DATABASE_URL or PG*.
        settings: default: forebay.toml or pyproject.toml, and FOREBAY_* variables.
        middleware: what runs around enqueues, attempts and settlements, outermost first.
        name: the name of the app among those that apply declarations to one database. Default:
            ``module:attribute``. A renamed app does not remove what it applied under its old name.
        connect: called for each new connection, instead of an address. It returns a new psycopg
            connection, or its parameters: an address, or a dict of libpq's parameters. May be a
            coroutine function. ``--dsn`` on the command line takes its place.
        password: called for each new connection to an address without a password; returns the
            password. May be a coroutine function.

    >>> app = App()
    >>> @app.job(queue="mail", timeout=30)
    ... def send_welcome(user_id: int, locale: str = "en") -> None: ...
    >>> send_welcome.call(42, locale="it").args
    '{"user_id":42,"locale":"it"}'
    """

    @declaring_door
    def __init__(
        self,
        dsn: str | None = None,
        *,
        settings: Settings | None = None,
        name: str | None = None,
        middleware: Iterable[Middleware] = (),
        connect: Connect | None = None,
        password: Password | None = None,
    ) -> None:
        module = sys._getframe(2).f_globals.get("__name__")  # noqa: SLF001 - the caller of the door
        self._own = Internals(self, dsn, settings, module, name)
        self._own.is_app = True
        if connect is not None and (dsn is not None or password is not None):
            other = "dsn" if dsn is not None else "password"
            problem = f"is given with {other}, which it would replace"
            raise ConfigError("connect", problem, hint="Return all parameters from connect.")
        self._own.functions = {"connect": connect, "password": password}
        for each in middleware:
            self._own.middlewares.add(each)

    def __repr__(self) -> str:
        return f"<app {self._own.name}>"

    @property
    def dsn(self) -> str:
        """The address of the database; for ``embedded``, the local server is started if needed.

        Raises:
            ConfigError: no address is set.
        """
        return self._internals.address

    @property
    def settings(self) -> Settings:
        """The settings of this process.

        Raises:
            ConfigError: a setting is invalid; the error names it and its source.
        """
        return self._internals.settings

    @property
    def kinds(self) -> Kinds:
        """The declared kinds; a kind without a retry policy gets that of the settings."""
        return self._internals.kinds

    @property
    def mirrors(self) -> Mapping[str, Declaration]:
        """The declared mirrors, by name."""
        return self._internals.mirrors


def require_app(app: object) -> None:
    """Refuse what is not an app.

    Raises:
        ConfigError: it is not an app.
    """
    if not isinstance(app, App):
        hint = "Pass the App that declares the handlers."
        if isinstance(app, Jobs):
            hint = "Pass the App that includes it."
        raise ConfigError("app", f"is {shown(app)}, not an App", hint=hint)
