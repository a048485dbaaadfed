"""Forebay in a Django project: put ``"forebay.django"`` into INSTALLED_APPS.

``app`` is the project's Forebay application. Handlers are declared on it in modules named ``jobs``, which are imported
when Django has started, and ``manage.py forebay worker`` runs them. Its database is Django's own.

>>> from forebay.django import app
>>> @app.job(queue="mail")
... def send_welcome(user_id: int) -> None: ...
"""

from forebay.django._app import DjangoApp, app

__all__ = ["DjangoApp", "app"]
