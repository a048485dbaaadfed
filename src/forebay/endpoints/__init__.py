"""Endpoints, destinations of published events that are rows of the database: the router and the deliverer."""

from forebay.endpoints._deliverer import SLOTS_DEFAULT, Deliverer
from forebay.endpoints._presets import PRESETS, as_retries
from forebay.endpoints._router import Router

__all__ = ["PRESETS", "SLOTS_DEFAULT", "Deliverer", "Router", "as_retries"]
