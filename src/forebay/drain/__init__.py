"""Drains: they send the jobs of a queue to a sink. See ``Drain``, and ``forebay.sinks`` for the sinks."""

from forebay.drain._drain import Drain
from forebay.drain._run import run_workers, worker_of

__all__ = ["Drain", "run_workers", "worker_of"]
