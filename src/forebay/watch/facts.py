"""What is known of a job that does not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import Any

from forebay._dataclass import dataclass
from forebay.model.flows import FlowState
from forebay.model.keys import KeyInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What ``forebay.explain_job`` found; its header explains the names.

    The group is None if no such job is visible; only the last three facts are present then.
    """

    read_at: datetime
    is_same_cluster: bool = True
    paused_at: datetime | None = None
    resume_at: datetime | None = None
    closing_at: datetime | None = None
    is_suspect: bool = False
    is_served: bool = False
    is_watched: bool = False
    workers: Sequence[str] = ()
    others: Sequence[str] = ()
    silent: Mapping[str, float] = field(default_factory=dict)
    kind_queue: str | None = None
    has_kinds: bool = False
    app: str | None = None
    tick_ended_at: datetime | None = None
    tick_expected_by: datetime | None = None
    last_claim_at: datetime | None = None
    last_claim_by: str | None = None
    last_claim_alive: bool = False
    holder: dict[str, Any] | None = None
    ordering_key: str | None = None
    key_job: int | None = None
    held_by: int | None = None
    key: KeyInfo | None = None
    limit_key: str | None = None
    paused_key: str | None = None
    key_paused_at: datetime | None = None
    key_resume_at: datetime | None = None
    limits: dict[str, float | None] | None = None
    running: int = 0
    key_running: int = 0
    permits: int | None = None
    key_permits: int | None = None
    next_start_at: datetime | None = None
    key_next_start_at: datetime | None = None
    breaker_opened_at: datetime | None = None
    probe_at: datetime | None = None
    before: int = 0
    last_id: int = 0
    is_past_retention: bool = False
    flow: FlowState | None = None
    writers: Sequence[str] = ()
