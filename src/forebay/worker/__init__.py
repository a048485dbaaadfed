"""The worker: claims jobs, runs their handlers, settles."""

from forebay.worker._loop import run_to_the_end
from forebay.worker._worker import Stats, Worker

__all__ = ["Stats", "Worker", "run_to_the_end"]
