"""The application of a Django project: an ``App`` whose address is one of DATABASES."""

from __future__ import annotations

from typing import Any

from forebay.app import App, Handler
from forebay.db.lent_django import address_of_alias


class DjangoApp(App):
    """An ``App`` on one of Django's databases.

    The address is taken from DATABASES whenever it is needed, so that a test runner's database is found too. An
    address given to ``use`` goes before it.

    Args:
        alias: of the database that has the schema.
    """

    def __init__(self, alias: str = "default") -> None:
        super().__init__()
        self.alias = alias
        #: Django's tasks as handlers, by the alias of their backend and their full name.
        self.tasks: dict[tuple[str, str], Handler[..., ..., Any]] = {}

    @property
    def dsn(self) -> str:
        """The address of the database."""
        return super().dsn if self._dsn is not None else address_of_alias(self.alias)

    def location(self) -> tuple[str, str, bool] | None:
        """Return where a child process finds it, with Django set up."""
        return ("forebay.django.entry", "app", False) if self is app else super().location()


#: The project's application.
app = DjangoApp()
