"""The schema, installed the way an operator installs it."""

from forebay.db.migrate import migrate

__all__ = ["migrate"]
