"""Forebay in a Django project: add ``"forebay.django"`` to INSTALLED_APPS.

``app`` is the project's Forebay application. Declare handlers with it in modules named ``jobs``;
Django imports them at start, and ``manage.py forebay worker`` runs the jobs. The database is that
of Django.

>>> from forebay.django import app
>>> @app.job(queue="mail")
... def send_welcome(user_id: int) -> None: ...
"""

from forebay.django._app import DjangoApp, app
from forebay.django._databases import embedded

__all__ = ["DjangoApp", "app", "embedded"]
