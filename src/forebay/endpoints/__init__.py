"""Endpoints: destinations of published events that are rows of the database."""

from forebay.endpoints._router import Router

__all__ = ["Router"]
