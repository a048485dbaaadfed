"""The setting FOREBAY of a Django project: what is not said by a handler or by an environment
variable.

    FOREBAY = {"DATABASES": ["default", "shop"], "EAGER": DEBUG}
"""

from __future__ import annotations

from typing import Any, Final

from django.conf import settings
from django.db import connections, router

from forebay.errors import ConfigError, shown

#: The entries with what holds if they are absent.
_DEFAULTS: Final[dict[str, Any]] = {
    "DATABASES": ("default",),  # aliases of the databases that have the schema
    "EAGER": False,  # jobs run in the process that enqueues them, when its transaction commits
}


def setting(name: str) -> Any:
    """Return an entry of FOREBAY, or its default.

    Raises:
        ConfigError: FOREBAY is no dict, or has an entry that does not exist.
    """
    given = getattr(settings, "FOREBAY", {})
    if not isinstance(given, dict):
        raise ConfigError("FOREBAY", f"is {shown(given)}, not a dict")
    for entry in given:
        if entry not in _DEFAULTS:
            raise ConfigError(
                "FOREBAY", f"has no entry {shown(entry)}", hint=f"Entries: {', '.join(_DEFAULTS)}."
            )
    return given.get(name, _DEFAULTS[name])


def has_schema(alias: str) -> bool:
    """Return whether one of Django's databases is to have the schema of Forebay.

    It is PostgreSQL, FOREBAY names it, and no router excludes the application ``forebay``.

    Raises:
        ConfigError: FOREBAY names databases that are not there.
    """
    aliases = setting("DATABASES")
    if isinstance(aliases, str) or not set(aliases) <= set(connections.settings):
        raise ConfigError(
            'FOREBAY["DATABASES"]',
            f"is {shown(aliases)}, not a list of aliases of DATABASES",
            hint=f"Aliases: {', '.join(connections.settings)}.",
        )
    is_ours = alias in aliases and connections[alias].vendor == "postgresql"
    return is_ours and router.allow_migrate(alias, "forebay")
