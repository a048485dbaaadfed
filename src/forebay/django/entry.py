"""Where workers and their children import the project's application from: with Django set up."""

import django
from django.apps import apps

if not apps.ready:
    django.setup()

from forebay.django import app

__all__ = ["app"]
