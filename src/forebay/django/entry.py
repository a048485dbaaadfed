"""The project's application for workers and their child processes, with Django set up."""

import django
from django.apps import apps

if not apps.ready:
    django.setup()

from forebay.django import app

__all__ = ["app"]
