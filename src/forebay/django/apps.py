"""The Django application ``forebay``."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.signals import setting_changed
from django.db import connections
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from forebay.django._app import app, follow_settings
from forebay.django._settings import has_schema
from forebay.django._test_copies import own_test_copy
from forebay.upgrade.migrate import migrate


class ForebayConfig(AppConfig):
    """Imports the project's handlers and keeps the schema at the version of the library."""

    name = "forebay.django"
    label = "forebay"
    verbose_name = "Forebay"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import the modules ``jobs`` and ``tasks`` of all applications."""
        # Projects that share a database must have different names.
        app._internals.name = project_name()
        autodiscover_modules("jobs", "tasks")
        follow_settings()
        setting_changed.connect(follow_settings)
        post_migrate.connect(_bring_up_to_date, sender=self)
        connection_created.connect(own_test_copy)


def project_name() -> str:
    """Return the name of the project: the package of its URLs or settings."""
    place = getattr(settings, "ROOT_URLCONF", None) or getattr(settings, "SETTINGS_MODULE", None)
    return str(place or "django").partition(".")[0]


def apply_schema(connection: Any) -> None:
    """Apply pending migrations of Forebay, in the open transaction if there is one."""
    if has_schema(connection.alias):
        migrate(connection)


def _bring_up_to_date(using: str, **_: Any) -> None:
    # A new version of the library may contain migrations of Forebay but none of Django.
    apply_schema(connections[using])
