"""An entry of DATABASES for the bundled server."""

from __future__ import annotations

from typing import Any

from forebay.db.address import parsed_address
from forebay.embedded import Project, start_or_find


def embedded() -> dict[str, Any]:
    """Return the entry of DATABASES for this project's database on the bundled server.

    It starts the server if none runs, and creates the database if it is missing:
    ``DATABASES = {"default": forebay.django.embedded()}``. It is the database that ``forebay dev``
    and the address ``embedded`` use in this project, so what they do is done there.

    Raises:
        ConfigError: no PostgreSQL of version 15 or newer was found.
        ServerStartError: the server did not start.
    """
    parts = parsed_address(Project.of().ensure(start_or_find()))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts["dbname"],
        "HOST": parts["host"],
        "PORT": parts["port"],
        "USER": parts["user"],
    }
