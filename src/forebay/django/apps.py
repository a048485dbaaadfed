"""The Django application ``forebay``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.signals import setting_changed
from django.db import connections
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate
from django.utils.module_loading import module_has_submodule

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
        """Import the modules ``jobs`` and ``tasks`` of all other applications."""
        # Projects that share a database must have different names.
        app._internals.name = project_name()
        self._discover("jobs", "tasks")
        follow_settings()
        setting_changed.connect(follow_settings)
        post_migrate.connect(_bring_up_to_date, sender=self)
        connection_created.connect(own_test_copy)

    def _discover(self, *names: str) -> None:
        """Import modules as ``autodiscover_modules`` does, without this application's own.

        Its module ``tasks`` is the backend: it needs Django 6.0 or django-tasks, and is imported by
        projects that name it in TASKS.
        """
        for config in apps.get_app_configs():
            for name in names:
                if config is not self and module_has_submodule(config.module, name):
                    import_module(f"{config.name}.{name}")


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
