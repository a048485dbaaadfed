"""Metrics in the text format of Prometheus, and the check of the alerts: both read
``forebay.measurements()``.
"""

from forebay.watch.metrics._check import acheck, check, check_session
from forebay.watch.metrics._exporter import CONTENT_TYPE, Exporter
from forebay.watch.metrics._families import DATABASE as DATABASE_METRICS
from forebay.watch.metrics._families import WORKER as WORKER_METRICS
from forebay.watch.metrics._families import Family, Sample, metric_names

__all__ = [
    "CONTENT_TYPE",
    "DATABASE_METRICS",
    "WORKER_METRICS",
    "Exporter",
    "Family",
    "Sample",
    "acheck",
    "check",
    "check_session",
    "metric_names",
]
