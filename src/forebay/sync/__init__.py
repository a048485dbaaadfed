"""Keeping a second store in step with the first: a search index, a cache, another database.

A transaction that changes an item enqueues a job. The job compares the copy in the second store, the
*target*, with the item in the first, the *source*, repairs it, and ends only when a later read of the
target has shown it right. What must hold, and what a crash leaves: docs/design/reconcile.md.
"""

from forebay.model.syncs import Alert, AuditRecord, Marks, SyncFacts, SyncStatus
from forebay.sync._audit import Drift
from forebay.sync._model import (
    Checksum,
    Compare,
    Document,
    Gone,
    Id,
    Rejected,
    Seen,
    Source,
    Target,
    checksum_of,
)
from forebay.sync._query import QuerySource
from forebay.sync._sync import Sync
from forebay.sync.targets import (
    DualTarget,
    ElasticsearchTarget,
    GroongaTarget,
    PostgresTarget,
    SQLiteTarget,
)

__all__ = [
    "Alert",
    "AuditRecord",
    "Checksum",
    "Compare",
    "Document",
    "Drift",
    "DualTarget",
    "ElasticsearchTarget",
    "Gone",
    "GroongaTarget",
    "Id",
    "Marks",
    "PostgresTarget",
    "QuerySource",
    "Rejected",
    "SQLiteTarget",
    "Seen",
    "Source",
    "Sync",
    "SyncFacts",
    "SyncStatus",
    "Target",
    "checksum_of",
]
