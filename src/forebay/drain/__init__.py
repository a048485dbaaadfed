"""Drains: they send the jobs of a queue to a sink. See ``Drain``, and ``forebay.sinks`` for the sinks."""

from forebay.drain._audit import DrainAudit
from forebay.drain._drain import Drain, drains_of

__all__ = ["Drain", "DrainAudit", "drains_of"]
