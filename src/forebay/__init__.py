"""Forebay is a transactional job queue and outbox for Python and PostgreSQL.

Enqueue jobs in the same transaction as your data; workers run only what commits.

>>> import forebay
>>> app = forebay.App()
>>> @app.job(queue="mail")
... def send_welcome(user_id: int) -> None: ...

In a psycopg transaction, call ``send_welcome.enqueue(conn, user_id=42)``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay._actor import acting_as
    from forebay.app import App, Handler, JobHandle, Jobs, SubjectHandler
    from forebay.client import AsyncClient, Client, abackfill, backfill
    from forebay.client.gathers import agather, gather
    from forebay.client.signals import asignal, signal
    from forebay.errors import ForebayError
    from forebay.mirror import Mirror
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
    from forebay.model.typed_context import AsyncContext, PlainContext
    from forebay.ops.enqueue import Call
    from forebay.policy.key_breaker import Breaker
    from forebay.policy.retry import RetryPolicy
    from forebay.sending import Drain
    from forebay.upgrade.migrate import migrate, migration_sql

    __version__: str

__all__ = [
    "Again",
    "App",
    "AsyncClient",
    "AsyncContext",
    "Attempt",
    "AttemptEnded",
    "BackfillPlan",
    "BackfillProgress",
    "Breaker",
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
    "Jobs",
    "LostWorker",
    "Middleware",
    "Mirror",
    "NewJob",
    "Once",
    "Outcome",
    "PlainContext",
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
    "agather",
    "asignal",
    "backfill",
    "gather",
    "migrate",
    "migration_sql",
    "signal",
]

if not TYPE_CHECKING:  # a type checker would accept any attribute of the module
    import importlib

    #: Where the public names are: a program loads the modules of those that it uses.
    _NAMES = {
        "forebay.app": ("App", "Handler", "JobHandle", "Jobs", "SubjectHandler"),
        "forebay.client": ("AsyncClient", "Client", "abackfill", "backfill"),
        "forebay.client.gathers": ("agather", "gather"),
        "forebay.client.signals": ("asignal", "signal"),
        "forebay.sending": ("Drain",),
        "forebay.errors": ("ForebayError",),
        "forebay.mirror": ("Mirror",),
        "forebay.model": (
            "Again",
            "Cancel",
            "Coalesce",
            "Complete",
            "Dead",
            "Debounce",
            "Drop",
            "Idempotent",
            "Job",
            "JobId",
            "JobOptions",
            "JobState",
            "Once",
            "Outcome",
            "Replace",
            "Retry",
            "Snooze",
            "Throttle",
            "Unique",
        ),
        "forebay.model.attempts": ("AttemptEnded", "LostWorker"),
        "forebay.model.backfill": ("BackfillPlan", "BackfillProgress", "Rows"),
        "forebay.model.change": ("ChangePlan", "ChangeResult", "JobFilter"),
        "forebay.model.context": ("Context", "TransactionContext"),
        "forebay.model.declared": ("Queue", "QueueDifference"),
        "forebay.model.middleware": ("Attempt", "Middleware", "NewJob"),
        "forebay.model.schedules": ("Schedule", "ScheduleDifference", "Scheduled"),
        "forebay.model.subjects": (
            "SubjectResult",
            "SubjectRun",
            "SubjectStatus",
            "UpgradeProgress",
        ),
        "forebay.model.typed_context": ("AsyncContext", "PlainContext"),
        "forebay.ops.enqueue": ("Call",),
        "forebay._actor": ("acting_as",),
        "forebay.policy.key_breaker": ("Breaker",),
        "forebay.policy.retry": ("RetryPolicy",),
        "forebay.upgrade.migrate": ("migrate", "migration_sql"),
    }
    _PLACES = {name: place for place, names in _NAMES.items() for name in names}

    #: Modules that are attributes of this one: `forebay.errors` works after `import forebay`.
    _MODULES = frozenset(
        (
            "app",
            "arguments",
            "client",
            "config",
            "db",
            "errors",
            "mirror",
            "model",
            "ops",
            "policy",
            "sql",
            "upgrade",
        )
    )

    def __getattr__(name: str) -> Any:
        """Import on first use."""
        if name in _PLACES:
            found = getattr(importlib.import_module(_PLACES[name]), name)
        elif name in _MODULES:
            found = importlib.import_module(f"forebay.{name}")
        elif name == "__version__":
            from importlib.metadata import version  # noqa: PLC0415 - it reads files

            return version("forebay")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
