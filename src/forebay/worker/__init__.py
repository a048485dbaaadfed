"""The worker: claims jobs, runs their handlers, settles them, and maintains the log."""

from forebay.worker.ground.application import OneHandlerApplication
from forebay.worker.ground.log_format import as_log_format, log_to_stderr
from forebay.worker.ground.stats import Stats
from forebay.worker.maintain.maintenance import Maintenance
from forebay.worker.maintain.scheduler import Scheduler
from forebay.worker.process.fleet import run_workers
from forebay.worker.process.loop import run_to_the_end
from forebay.worker.process.probes import serve_metrics
from forebay.worker.process.worker import Worker

__all__ = [
    "Maintenance",
    "OneHandlerApplication",
    "Scheduler",
    "Stats",
    "Worker",
    "as_log_format",
    "log_to_stderr",
    "run_to_the_end",
    "run_workers",
    "serve_metrics",
]
