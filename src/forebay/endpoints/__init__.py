"""Endpoints: destinations of published events that are rows of the database."""

from forebay.endpoints._deliverer import QUEUE, SLOTS_DEFAULT, Deliverer

__all__ = ["QUEUE", "SLOTS_DEFAULT", "Deliverer"]
