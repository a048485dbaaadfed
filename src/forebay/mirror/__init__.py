"""Keep a second store up to date with the first one: a search index, a cache, another database.

A transaction that changes an item enqueues a job. The job compares the copy in the second store,
the *target*, with the item in the first store, the *source*. It repairs the copy, and ends only
when a later read of the target shows it right. The invariants, and what a crash leaves:
docs/design/reconcile.md.
"""

from forebay.mirror._audit import Drift
from forebay.mirror._mirror import Mirror
from forebay.mirror._model import (
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
from forebay.mirror._query import QuerySource
from forebay.mirror.targets import (
    DualTarget,
    ElasticsearchTarget,
    GroongaTarget,
    PostgresTarget,
    SQLiteTarget,
)
from forebay.model.alerts import Alert
from forebay.model.mirrors import AuditRecord, MirrorFacts, MirrorStatus, Thresholds

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
    "Mirror",
    "MirrorFacts",
    "MirrorStatus",
    "PostgresTarget",
    "QuerySource",
    "Rejected",
    "SQLiteTarget",
    "Seen",
    "Source",
    "Target",
    "Thresholds",
    "checksum_of",
]
