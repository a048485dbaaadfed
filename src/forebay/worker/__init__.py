"""The worker: claims jobs, runs their handlers, settles them, and maintains the log."""

from forebay.worker._application import OneHandlerApplication
from forebay.worker._fleet import run_workers
from forebay.worker._log_format import as_log_format, log_to_stderr
from forebay.worker._loop import run_to_the_end
from forebay.worker._maintenance import Maintenance
from forebay.worker._probes import serve_metrics
from forebay.worker._stats import Stats
from forebay.worker._worker import Worker

__all__ = [
    "Maintenance",
    "OneHandlerApplication",
    "Stats",
    "Worker",
    "as_log_format",
    "log_to_stderr",
    "run_to_the_end",
    "run_workers",
    "serve_metrics",
]
