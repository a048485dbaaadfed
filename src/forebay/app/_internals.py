"""The internal state of an app: declarations, settings, address, and where a child process finds
the app.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from forebay.app._declarations import Declarations
from forebay.arguments.follow_up import check_follow_ups, with_known_follow_ups
from forebay.arguments.json_guard import ArgumentLimits
from forebay.arguments.kinds import Kind, Kinds
from forebay.client import address_of
from forebay.config import DEFAULT, RetrySettings, Settings, load_settings, with_functions
from forebay.db.address import parsed_address
from forebay.errors import ConfigError, InvalidJob
from forebay.model import checks
from forebay.policy.retry import RetryPolicy

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Mapping, Sequence

    from forebay.model.middleware import Middleware
    from forebay.model.schedules import Schedule

APP_NAME_CHARACTERS_MAX: Final = 200


class Owner(Protocol):
    """An app, or a part of one."""

    @property
    def dsn(self) -> str:
        """The address of the database."""


class Internals(Declarations):
    """The state of an app, as handlers, workers, mirrors and commands use it.

    Args:
        owner: the app.
        dsn: see ``App``.
        settings: see ``App``.
        module: the name of the module that created the app.
        name: see ``App``.

    Attributes:
        dsn: the address that was given, if any.
        module: the name of the module that created the app.
        functions: ``connect`` and ``password`` of the app, which open its connections.
        found_at: where a child process finds the app, if its module does not tell.
        owner: the app, or the ``Jobs``.
        is_app: whether the owner is an app.
        for_workers: returns a kind as workers run it.
    """

    is_app = False

    def __init__(
        self,
        owner: Owner,
        dsn: str | None,
        settings: Settings | None,
        module: str | None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.dsn = dsn
        self.functions: dict[str, Callable[[], Any] | None] = {}
        self.found_at: tuple[str, str, bool] | None = None
        self.owner = owner
        self.module = module
        self._name = None if name is None else _checked_app_name(name)
        self._address: str | None = None
        self._settings = settings
        self.for_workers: Callable[[Kind], Kind] = lambda kind: kind
        #: The settings of the database, as a worker of this process has last read them.
        self._followed: Mapping[str, Any] = {}

    def add_kind(self, kind: Kind) -> None:
        """Add a kind; it replaces one of the same name and function."""
        super().add_kind(self.for_workers(kind))

    def use(self, *, dsn: str | None = None, settings: Settings | None = None) -> None:
        """Replace the address or the settings; for the command line and tests."""
        if dsn is not None:
            self.dsn, self._address = dsn, None
        if settings is not None:
            self._settings, self._retries_known = settings, False
            self._encoders.clear()

    # --- looked up when first needed ---

    @property
    def name(self) -> str:
        """The name of the app among those that apply declarations to one database."""
        if self._name is not None:
            return self._name
        place = self.location()
        if place is None:
            return self.module or "app"
        module, attribute, is_script = place
        return f"{Path(module).stem if is_script else module}:{attribute}"

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    @property
    def address(self) -> str:
        """The address of the database.

        Raises:
            ConfigError: no address is set.
        """
        if self._address is None:
            gives = self.dsn is None and self.functions.get("connect") is not None
            self._address = self.with_functions("" if gives else address_of(self.dsn))
        return self._address

    def with_functions(self, dsn: str) -> str:
        """Return an address with the functions of the app: ``connect`` if it is empty, and
        ``password`` if it has none.
        """
        functions = self.functions
        if functions.get("password") is not None and parsed_address(dsn).get("password"):
            functions = {}
        return with_functions(dsn, functions)

    @property
    def settings(self) -> Settings:
        """The settings of this process.

        Raises:
            ConfigError: a setting is invalid; the error names it and its source.
        """
        if self._settings is None:
            self._settings = load_settings()
        return self._settings

    @property
    def middleware(self) -> Sequence[Middleware]:
        """The middlewares, outermost first."""
        return self.middlewares.all

    @property
    def intake(self) -> None:
        """None: only the free slots of a worker bound its claims."""
        return

    @property
    def title(self) -> None:
        """None: its workers show where it can be imported."""
        return

    @property
    def kinds(self) -> Kinds:
        """The declared kinds; a kind without a retry policy gets that of the settings.

        Raises:
            ConfigError: the follow-up of a kind cannot be one.
        """
        if not self._retries_known:
            for name, max_attempts in self._without_retry.items():
                self._kinds.add(self.with_retry(self._kinds.get(name), max_attempts))
            self._retries_known = True
        if not self._follow_ups_known:
            check_follow_ups(self._kinds)
            for kind in list(self._kinds):
                self._kinds.add(with_known_follow_ups(kind, self.options_of))
            self._follow_ups_known = True
        return self._kinds

    def with_retry(self, kind: Kind, max_attempts: int | None = None) -> Kind:
        """Return a kind with the retry policy of the settings, except for the attempts if given."""
        base = self._retry_setting("retry_base_seconds")
        policy = RetryPolicy(
            strategy=self._retry_setting("retry_strategy"),
            base_seconds=base,
            # One of the two may come from the database and the other from the process.
            cap_seconds=max(base, self._retry_setting("retry_cap_seconds")),
            max_attempts=max_attempts or self._retry_setting("max_attempts"),
            jitter=self._followed.get("retry_jitter", True),
        )
        return replace(kind, retry=policy)

    def _retry_setting(self, name: str) -> Any:
        """Return a setting of this process, else that of the database, else the built-in one."""
        chosen = getattr(self.settings.retry, name)
        is_own = self.settings.sources.get(name, DEFAULT) != DEFAULT
        is_own = is_own or chosen != getattr(RetrySettings(), name)
        return chosen if is_own else self._followed.get(name, chosen)

    def follow(self, found: Mapping[str, Any]) -> None:
        """Take the settings of the database: kinds without a retry policy have them from now on."""
        if found != self._followed:
            self._followed = dict(found)
            self._retries_known = False
            _ = self.kinds

    def encoder(self, kind: Kind, without: tuple[str, ...] = ()) -> Callable[..., str]:
        """Return the function that encodes the arguments of a kind as JSON, within the size
        limits; perhaps without some that the worker gives.
        """
        place = (kind.name, *without)
        encode = self._encoders.get(place)
        if encode is None:
            payload = self.settings.payload
            bounds = ArgumentLimits(payload.args_bytes_max, payload.args_depth_max)
            encode = replace(kind.without(without), limits=bounds).encode
            self._encoders[place] = encode
        return encode

    def declared_schedules(self) -> tuple[str, Sequence[Schedule]]:
        """Return the name of the app, and the schedules that it declares."""
        return self.name, list(self.schedules.values())

    async def open_resources(self, stack: contextlib.AsyncExitStack) -> Mapping[str, Any]:
        """Build every resource and return them by name; the stack closes them."""
        return await self.resources.open(stack)

    def location(self) -> tuple[str, str, bool] | None:
        """Return where another process finds the app: module or script, attribute, is a script.

        The result is None if the app is not a global of the module that created it.
        """
        if self.found_at is not None:
            return self.found_at
        module = sys.modules.get(self.module or "")
        named = vars(module).items() if module else ()
        names = [name for name, value in named if value is self.owner]
        if module is None or not names:
            return None
        if self.module != "__main__":
            return module.__name__, names[0], False
        spec = getattr(module, "__spec__", None)
        if spec is not None:
            # Run as `python -m package.module`.
            return spec.name, names[0], False
        path = getattr(module, "__file__", None)
        return None if path is None else (path, names[0], True)


def _checked_app_name(name: str) -> str:
    try:
        return checks.checked_text(name, "name", characters_max=APP_NAME_CHARACTERS_MAX)
    except InvalidJob as error:
        raise ConfigError("name of the app", str(error.problem)) from None
