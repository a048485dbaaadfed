"""Forebay, a transactional job log for PostgreSQL.

Write your rows and enqueue your jobs in one transaction: both exist or neither does.

>>> import forebay
>>> app = forebay.App()
>>> @app.job(queue="mail")
... def send_welcome(user_id: int) -> None: ...

Inside a transaction of psycopg, ``send_welcome.enqueue(conn, user_id=42)``.
"""

from typing import TYPE_CHECKING, Any

from forebay.app import App, Handler, JobHandle
from forebay.client import AsyncClient, Client, abackfill, backfill
from forebay.errors import ForebayError
from forebay.model import (
    Cancel,
    Coalesce,
    Dead,
    Debounce,
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
from forebay.model.backfill import BackfillPlan, BackfillProgress, Rows
from forebay.model.context import Context, TransactionContext
from forebay.ops.enqueue import Call
from forebay.policy.retry import RetryPolicy
from forebay.upgrade.migrate import migrate, migration_sql

if TYPE_CHECKING:
    from forebay.mirror import Mirror

__all__ = [
    "App",
    "AsyncClient",
    "BackfillPlan",
    "BackfillProgress",
    "Call",
    "Cancel",
    "Client",
    "Coalesce",
    "Context",
    "Dead",
    "Debounce",
    "ForebayError",
    "Handler",
    "Idempotent",
    "Job",
    "JobHandle",
    "JobId",
    "JobOptions",
    "JobState",
    "Mirror",
    "Once",
    "Outcome",
    "Replace",
    "Retry",
    "RetryPolicy",
    "Rows",
    "Snooze",
    "Throttle",
    "TransactionContext",
    "Unique",
    "abackfill",
    "backfill",
    "migrate",
    "migration_sql",
]

if not TYPE_CHECKING:  # for a type checker the module would have any attribute

    def __getattr__(name: str) -> Any:
        """Import what most programs do without when it is first used."""
        if name in ("Mirror", "mirror"):
            import forebay.mirror  # noqa: PLC0415 - a fifth of the import's time, with its targets

            globals()["Mirror"] = forebay.mirror.Mirror
            return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
