"""Forebay is a transactional job queue and outbox for Python and PostgreSQL.

Enqueue jobs in the same transaction as your data; workers run only what commits.

>>> import forebay
>>> app = forebay.App()
>>> @app.job(queue="mail")
... def send_welcome(user_id: int) -> None: ...

In a psycopg transaction, call ``send_welcome.enqueue(conn, user_id=42)``.
"""

from typing import TYPE_CHECKING, Any

from forebay.app import App, Handler, JobHandle, SubjectHandler
from forebay.client import AsyncClient, Client, abackfill, backfill
from forebay.errors import ForebayError
from forebay.model import (
    Again,
    Cancel,
    Coalesce,
    Complete,
    Dead,
    Debounce,
    Drop,
    Idempotent,
    Job,
    JobId,
    JobOptions,
    JobState,
    Once,
    Outcome,
    Replace,
    Retry,
    Snooze,
    Throttle,
    Unique,
)
from forebay.model.attempts import AttemptEnded, LostWorker
from forebay.model.backfill import BackfillPlan, BackfillProgress, Rows
from forebay.model.change import ChangePlan, ChangeResult, JobFilter
from forebay.model.context import Context, TransactionContext
from forebay.model.declared import Queue, QueueDifference
from forebay.model.middleware import Attempt, Middleware, NewJob
from forebay.model.schedules import Schedule, Scheduled, ScheduleDifference
from forebay.model.subjects import SubjectResult, SubjectRun, SubjectStatus, UpgradeProgress
from forebay.ops.enqueue import Call
from forebay.ops.events import acting_as
from forebay.policy.retry import RetryPolicy
from forebay.upgrade.migrate import migrate, migration_sql

if TYPE_CHECKING:
    from forebay.drain import Drain
    from forebay.mirror import Mirror

    __version__: str

__all__ = [
    "Again",
    "App",
    "AsyncClient",
    "Attempt",
    "AttemptEnded",
    "BackfillPlan",
    "BackfillProgress",
    "Call",
    "Cancel",
    "ChangePlan",
    "ChangeResult",
    "Client",
    "Coalesce",
    "Complete",
    "Context",
    "Dead",
    "Debounce",
    "Drain",
    "Drop",
    "ForebayError",
    "Handler",
    "Idempotent",
    "Job",
    "JobFilter",
    "JobHandle",
    "JobId",
    "JobOptions",
    "JobState",
    "LostWorker",
    "Middleware",
    "Mirror",
    "NewJob",
    "Once",
    "Outcome",
    "Queue",
    "QueueDifference",
    "Replace",
    "Retry",
    "RetryPolicy",
    "Rows",
    "Schedule",
    "ScheduleDifference",
    "Scheduled",
    "Snooze",
    "SubjectHandler",
    "SubjectResult",
    "SubjectRun",
    "SubjectStatus",
    "Throttle",
    "TransactionContext",
    "Unique",
    "UpgradeProgress",
    "abackfill",
    "acting_as",
    "backfill",
    "migrate",
    "migration_sql",
]

if not TYPE_CHECKING:  # a type checker would accept any attribute of the module

    def __getattr__(name: str) -> Any:
        """Import on first use what most programs do not need."""
        if name == "__version__":
            import importlib.metadata  # noqa: PLC0415 - it reads files

            return importlib.metadata.version("forebay")
        if name in ("Mirror", "mirror"):
            import forebay.mirror  # noqa: PLC0415 - with its targets, a fifth of the import time

            globals()["Mirror"] = forebay.mirror.Mirror
            return globals()[name]
        if name == "Drain":
            import forebay.drain  # noqa: PLC0415 - with the worker

            globals()["Drain"] = forebay.drain.Drain
            return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
