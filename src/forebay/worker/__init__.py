"""The worker: claims jobs, runs their handlers, settles."""

from forebay.worker._worker import Stats, Worker

__all__ = ["Stats", "Worker"]
