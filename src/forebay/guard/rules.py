"""What the guard does about a holder of old rows and segments: a rule and a verdict.

A rule without an action never ends anything. A rule with an action ends a session only if no
condition speaks against it; every verdict gives its reason.
"""

from __future__ import annotations

from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

from forebay._dataclass import dataclass
from forebay.guard.holders import described_ranges
from forebay.model.alerts import UNSEEN_AGE_MOST
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.guard.holders import Holder

Action = Literal["cancel", "terminate", "rollback prepared"]

#: young: not older than the limit. spared: the rule excepts it. reported: older, and the rule has
#: no action, or none that would help. refused: the rule covers it, but this role may not end it.
#: unknown: this role may not see how old it is.
Kind = Literal["act", "young", "reported", "spared", "refused", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Which holders the guard ends, and how.

    Attributes:
        older_than: seconds; younger transactions are left alone.
        act: the action; None for none.
        users: only these roles; empty means every role.
        not_users: never these roles.
        applications: only these application names, with ``*`` and ``?``; empty means all.
        not_applications: never these application names.
        rollback_prepared: roll back prepared transactions, which no signal ends.
    """

    older_than: float
    act: Literal["cancel", "terminate"] | None = None
    users: tuple[str, ...] = ()
    not_users: tuple[str, ...] = ()
    applications: tuple[str, ...] = ()
    not_applications: tuple[str, ...] = ()
    rollback_prepared: bool = False

    @property
    def acts(self) -> bool:
        """Whether the rule has any action."""
        return self.act is not None or self.rollback_prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The server on which a holder was seen.

    Attributes:
        name: ``primary``, or the name of the replica.
        standby: it is a standby.
        feedback: it tells its primary which rows its queries still need.
    """

    name: str = "primary"
    standby: bool = False
    feedback: bool = False


@dataclass(frozen=True, slots=True)
class GuardDecision:
    """What to do about a holder, and why.

    Attributes:
        action: the action; only with kind ``act``.
        reason: the deciding reason, as half a sentence.
    """

    kind: Kind
    reason: str
    action: Action | None = None

    @property
    def is_over(self) -> bool:
        """Whether the holder is older than the limit and not excepted, even if nothing is done
        about it.
        """
        return self.kind not in {"young", "spared", "unknown"}


def judge(rule: Rule, holder: Holder, place: Place = Place()) -> GuardDecision:  # noqa: B008 - it is immutable
    """Return the verdict of a rule on a holder.

    >>> from forebay.guard.holders import Holder
    >>> idle = Holder(sort="idle in transaction", name="7", user="app", seconds=70, may_end=True)
    >>> judge(Rule(older_than=60), idle)
    GuardDecision(kind='reported', reason='the rule has no action', action=None)
    >>> judge(Rule(older_than=60, act="terminate"), idle).action
    'terminate'
    >>> judge(Rule(older_than=60, act="terminate", not_users=("app",)), idle).reason
    'user app is excepted'
    """
    limit = human_duration(rule.older_than)
    if holder.seconds is None and holder.is_session:
        excepted = _excepted(rule, holder)
        if excepted:
            return GuardDecision("spared", excepted)
        return GuardDecision(
            "unknown", "this role may not see how old it is: grant pg_monitor to it"
        )
    if holder.seconds is None and holder.sort == "prepared transaction":
        return GuardDecision("unknown", "the time it was prepared is not known")
    if not _is_old(rule, holder):
        return GuardDecision("young", f"not older than {limit}")
    if place.standby and not place.feedback:
        # Replay may remove rows that its queries need and cancel them; the queries keep no rows.
        return GuardDecision("young", "a standby without hot_standby_feedback holds nothing back")
    if holder.is_replication:
        return GuardDecision("reported", "it holds rows for another server")
    if holder.sort == "background process":
        return GuardDecision("reported", "it is a process of the server")
    excepted = _excepted(rule, holder)
    if excepted:
        return GuardDecision("spared", excepted)
    action = _action(rule, holder)
    if action is None:
        return GuardDecision("reported", _no_action(rule))
    if action == "cancel" and holder.sort != "session" and holder.state != "active":
        return GuardDecision("reported", "it runs no statement to cancel")
    if action == "rollback prepared" and not holder.here:
        return GuardDecision(
            "refused", f"it must be rolled back in its database, {holder.database}"
        )
    if not holder.may_end:
        return GuardDecision("refused", f"this role may not end sessions of user {holder.user}")
    return GuardDecision("act", f"older than {limit}", action)


def _is_old(rule: Rule, holder: Holder) -> bool:
    if holder.sort == "inactive replication slot":
        # It has no reader. It moves only when a person acts or its consumer returns.
        return True
    if holder.seconds is None:
        return holder.age >= UNSEEN_AGE_MOST
    return holder.seconds > rule.older_than


def _action(rule: Rule, holder: Holder) -> Action | None:
    if holder.sort == "prepared transaction":
        return "rollback prepared" if rule.rollback_prepared else None
    return rule.act


def _no_action(rule: Rule) -> str:
    return "only --rollback-prepared ends it" if rule.act else "the rule has no action"


def _excepted(rule: Rule, holder: Holder) -> str | None:
    """Return the part of the rule that spares a holder; None when the rule covers it."""
    user, application = holder.user or "", holder.application or ""
    if user in rule.not_users:
        return f"user {user} is excepted"
    if rule.users and user not in rule.users:
        return f"user {user or 'unknown'} is not in the rule"
    for pattern in rule.not_applications:
        if fnmatchcase(application, pattern):
            return f"application {application or '(none)'} is excepted"
    if rule.applications and not any(fnmatchcase(application, p) for p in rule.applications):
        return f"application {application or '(none)'} is not in the rule"
    return None


@dataclass(frozen=True, slots=True)
class Segment:
    """A sealed segment that is not emptied yet.

    Attributes:
        number: its id.
        xid: above the transaction ids of all its rows.
        due: when it is old enough to be emptied; in the past when it can be emptied now.
        is_due: it is old enough, or the log is larger than its limit.
    """

    number: int
    xid: int
    due: datetime
    is_due: bool


@dataclass(frozen=True, slots=True)
class HeldSegments:
    """The segments that a holder keeps from being emptied.

    Attributes:
        segments: their numbers.
        due: those that are due.
        first_due: when the first of the others is due.
    """

    segments: tuple[int, ...] = ()
    due: tuple[int, ...] = ()
    first_due: datetime | None = None

    def described(self, *, has_ended: bool = False) -> str:
        """Return the segments and when they can be emptied; empty text when there are none.

        Args:
            has_ended: the holder has already ended.

        >>> print(HeldSegments((3, 4, 5), (3, 4)).described())
        segments 3 to 5; 3 to 4 are due, and leave at a worker's next retention pass after it ends
        """
        if not self.segments:
            return ""
        is_one = len(self.segments) == 1
        label = f"{'segment' if is_one else 'segments'} {described_ranges(self.segments)}"
        if not self.due:
            day = f"{self.first_due:%Y-%m-%d}" if self.first_due else "its time"
            return f"{label}, {'not' if is_one else 'none of them'} due before {day}"
        if self.due == self.segments:
            who = "it is" if is_one else "they are"
        else:
            who = f"{described_ranges(self.due)} {'is' if len(self.due) == 1 else 'are'}"
        leave = "leaves" if len(self.due) == 1 else "leave"
        after = "" if has_ended else " after it ends"
        return f"{label}; {who} due, and {leave} at a worker's next retention pass{after}"


def held_segments(holder: Holder, segments: Sequence[Segment]) -> HeldSegments:
    """Return the segments that a holder keeps from being emptied.

    A segment stays while a transaction that may have written to it is open: one with an id below
    that of the seal. A segment that another session has locked cannot be truncated. A snapshot
    alone keeps none.
    """
    kept = [
        segment
        for segment in segments
        if segment.number in holder.segments
        or (holder.xid is not None and holder.xid < segment.xid)
    ]
    return HeldSegments(
        tuple(segment.number for segment in kept),
        tuple(segment.number for segment in kept if segment.is_due),
        min((segment.due for segment in kept if not segment.is_due), default=None),
    )
