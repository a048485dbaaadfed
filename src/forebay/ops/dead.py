"""Dead letters: list, show, summarize, redrive, purge, keep."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack, get_args

from forebay._dataclass import dataclass
from forebay.errors import DeadLetterNotFound, InvalidJob, shown
from forebay.model import checks
from forebay.model.status import DeadGroup, DeadLetter, DeadSummary, PurgePlan, RedrivePlan
from forebay.ops.jobs import LIST_MAX, checked_id
from forebay.ops.operation import Operation, ResultRows, number, scalar, scalar_or_none
from forebay.ops.records import rows_as

if TYPE_CHECKING:
    from collections.abc import Iterator

Reason = Literal["exhausted", "permanent", "expired", "worker lost"]

REASONS: Final[tuple[str, ...]] = get_args(Reason)

#: Dead letters of one step of a redrive.
_STEP: Final = 1000

#: Plans of one redrive without a token of the caller's, while others change what it plans.
_PLANS_MOST: Final = 10


class DeadFilter(TypedDict, total=False):
    """Which dead letters: those for which every given condition holds.

    Attributes:
        queue: only this queue.
        kind: only this kind.
        reason: exhausted, permanent, expired or worker lost.
        tag: only this tag.
        group: only this consumer group.
        job_id: only those of this job, one for each group in which it died.
        cause: only this cause, from ``dead_groups``.
        endpoint: only deliveries to this endpoint.
        died_after: only those that died since this instant.
        died_before: only those that died before this instant.
    """

    queue: str | None
    kind: str | None
    reason: Reason | None
    tag: str | None
    group: str | None
    job_id: int | None
    cause: str | None
    endpoint: str | None
    died_after: datetime | None
    died_before: datetime | None


_LETTER: Final = """\
select (to_jsonb(d) operator(pg_catalog.||) jsonb_build_object(
    'group', g.name,
    'endpoint', case when d.queue operator(pg_catalog.=) 'forebay.deliver' then d.limit_key end,
    'max_attempts', coalesce(d.max_attempts,
        (d.errors operator(pg_catalog.->) -1 operator(pg_catalog.->>) 'max_attempts')::integer),
    'expires_at',
    case when d.expires_at operator(pg_catalog.<) '9999-01-01' then d.expires_at end))::text
from forebay.dead_letter d
join (select group_id, name from forebay.queue_group
      union all select group_id, name from forebay.closed_group) g
    on g.group_id operator(pg_catalog.=) d.group_id"""

# If no dead letter has the number, a job that died may have it: the error then names the job's dead
# letters.
_ONE: Final = f"""\
{_LETTER}
where d.dead_id operator(pg_catalog.=) %(dead_id)s::bigint
   or d.job_id operator(pg_catalog.=) %(dead_id)s::bigint
order by d.dead_id operator(pg_catalog.<>) %(dead_id)s::bigint, d.dead_id
limit 20"""

_MANY: Final = f"""\
{_LETTER}
where (%(queue)s::text is null or d.queue operator(pg_catalog.=) %(queue)s)
  and (%(kind)s::text is null or d.kind operator(pg_catalog.=) %(kind)s)
  and (%(reason)s::text is null or d.reason operator(pg_catalog.=) %(reason)s)
  and (%(tag)s::text is null or d.tag operator(pg_catalog.=) %(tag)s)
  and (%(group)s::text is null or g.name operator(pg_catalog.=) %(group)s)
  and (%(job_id)s::bigint is null or d.job_id operator(pg_catalog.=) %(job_id)s)
  and (%(cause)s::text is null or d.cause operator(pg_catalog.=) %(cause)s)
  and (%(endpoint)s::text is null or d.queue operator(pg_catalog.=) 'forebay.deliver'
       and d.limit_key operator(pg_catalog.=) %(endpoint)s)
  and (%(died_after)s::timestamptz is null
       or d.died_at operator(pg_catalog.>=) %(died_after)s::timestamptz)
  and (%(died_before)s::timestamptz is null
       or d.died_at operator(pg_catalog.<) %(died_before)s::timestamptz)
  and (%(redriven)s::boolean is null
       or (d.redriven_at is not null) operator(pg_catalog.=) %(redriven)s)
  and (%(before)s::bigint is null or d.dead_id operator(pg_catalog.<) %(before)s)
order by d.dead_id desc
limit %(limit)s::integer"""

_FILTER: Final = """\
    queue => %(queue)s, kind => %(kind)s, reason => %(reason)s, tag => %(tag)s,
    group_name => %(group)s, died_after => %(died_after)s::timestamptz,
    died_before => %(died_before)s::timestamptz, most => %(limit)s::integer,
    job_id => %(job_id)s::bigint, cause => %(cause)s, to_group => %(to_group)s,
    endpoint => %(endpoint)s"""

_REDRIVE_MATCHING: Final = f"""\
select forebay.redrive_matching({_FILTER}, token => %(token)s, step => %(step)s::integer)"""

_PURGED: Final = """\
    make_interval(secs => %(age)s::double precision), queue => %(queue)s, cause => %(cause)s"""

_PLAN_REDRIVE: Final = f"select to_jsonb(p)::text from forebay.plan_redrive({_FILTER}) p"


def dead_letters(
    *,
    redriven: bool | Literal["any"] | None = None,
    limit: int = 50,
    before: int | None = None,
    **which: Unpack[DeadFilter],
) -> Operation[list[DeadLetter]]:
    """Return the call that lists dead letters, newest first."""
    params = {
        **_checked(which),
        "redriven": _checked_redriven(redriven, which.get("job_id")),
        "limit": checks.checked_integer(limit, "limit", least=1, most=LIST_MAX),
        "before": before,
    }
    return Operation(_MANY, lambda rows: rows_as(DeadLetter, rows), params)


def dead_letter(dead_id: int) -> Operation[DeadLetter]:
    """Return the call that shows one dead letter.

    Running it raises ``DeadLetterNotFound`` if no dead letter has this id.
    """

    def decode(rows: ResultRows) -> DeadLetter:
        found = rows_as(DeadLetter, rows)
        if found and found[0].dead_id == dead_id:
            return found[0]
        hint = "It may have been purged."
        if found:
            hint = f"Job {dead_id} is dead letter {', '.join(str(x.dead_id) for x in found)}."
        raise DeadLetterNotFound.from_sql(f"there is no dead letter {dead_id}", hint=hint)

    return Operation(_ONE, decode, {"dead_id": checked_id(dead_id, "dead_id")})


def redrive(
    dead_id: int,
    to_group: str | None = None,
    *,
    from_step: str | None = None,
    from_key: str | None = None,
) -> Operation[int]:
    """Return the call that enqueues a new job from a dead letter and returns its id."""
    return Operation(
        "select forebay.redrive(%(dead_id)s::bigint, %(to_group)s, %(step)s, %(key)s)",
        number,
        {
            "dead_id": checked_id(dead_id, "dead_id"), "to_group": to_group,
            "step": from_step, "key": from_key,
        },
    )  # fmt: skip


def skip_dead(dead_id: int) -> Operation[bool]:
    """Return the call that frees the ordering key of a dead letter."""
    return Operation(
        "select forebay.skip_dead(%(dead_id)s::bigint)",
        lambda rows: bool(rows[0][0]),
        {"dead_id": checked_id(dead_id, "dead_id")},
    )


def plan_redrive(
    which: DeadFilter, limit: int | None, to_group: str | None
) -> Operation[RedrivePlan]:
    """Return the call that tells what a redrive would take."""
    params = _redrive_params(which, limit, to_group)
    return Operation(_PLAN_REDRIVE, lambda rows: rows_as(RedrivePlan, rows)[0], params)


@dataclass(slots=True)
class RedriveSteps:
    """The steps of a redrive, each a separate transaction: run each operation of ``operations()``.

    Args:
        which: the dead letters.
        limit: maximum number; None for all.
        to_group: the group that gets the jobs; None for that in which they died.
        token: of the plan; None for none.
        at_once: one step takes all dead letters.
    """

    which: DeadFilter
    limit: int | None
    to_group: str | None
    token: str | None
    at_once: bool
    redriven: int = 0
    plans: int = 0

    def plan(self) -> Operation[RedrivePlan]:
        """Return the call that plans what is left."""
        self.plans += 1
        return plan_redrive(self.which, self._left(), self.to_group)

    def may_plan_again(self) -> bool:
        """Whether another plan may be tried, since others changed what the last one counted."""
        return self.plans < _PLANS_MOST

    def _left(self) -> int | None:
        return None if self.limit is None else max(0, self.limit - self.redriven)

    def operations(self) -> Iterator[Operation[int]]:
        """Yield the call of each step; its result is the number of dead letters so far."""
        params = _redrive_params(self.which, self._left(), self.to_group)
        step = None if self.at_once else _STEP
        call = {**params, "token": self.token, "step": step}
        while True:
            before = self.redriven
            yield Operation(_REDRIVE_MATCHING, self._note, call)
            if step is None or self.redriven - before < step:
                return

    def _note(self, rows: ResultRows) -> int:
        self.redriven += number(rows)
        return self.redriven


def purge_dead(
    age: float | timedelta,
    queue: str | None = None,
    cause: str | None = None,
    token: str | None = None,
) -> Operation[int]:
    """Return the call that deletes dead letters older than an age, in seconds or a timedelta."""
    return Operation(
        f"select forebay.purge_dead({_PURGED}, token => %(token)s)",
        number,
        {**_purge_params(age, queue, cause), "token": token},
    )


def plan_purge_dead(
    age: float | timedelta, queue: str | None = None, cause: str | None = None
) -> Operation[PurgePlan]:
    """Return the call that tells what a deletion would take."""
    return Operation(
        f"select to_jsonb(p)::text from forebay.plan_purge_dead({_PURGED}) p",
        lambda rows: rows_as(PurgePlan, rows)[0],
        _purge_params(age, queue, cause),
    )


def _purge_params(
    age: float | timedelta, queue: str | None, cause: str | None
) -> dict[str, object]:
    return {"age": checks.checked_seconds(age, "age"), "queue": queue, "cause": cause}


def dead_groups(
    queue: str | None = None,
    kind: str | None = None,
    cause: str | None = None,
    endpoint: str | None = None,
) -> Operation[list[DeadGroup]]:
    """Return the call that groups dead letters by cause and endpoint, the newest death first."""
    return Operation(
        "select to_jsonb(g)::text from forebay.dead_groups("
        "only_queue => %(queue)s, only_kind => %(kind)s, only_cause => %(cause)s, "
        "only_endpoint => %(endpoint)s) g",
        lambda rows: rows_as(DeadGroup, rows),
        {"queue": queue, "kind": kind, "cause": cause, "endpoint": endpoint},
    )


def mute_cause(cause: str, duration: float | timedelta | None = None) -> Operation[datetime | None]:
    """Return the call that mutes a cause, and returns the end of that."""
    return Operation(
        "select extract(epoch from forebay.mute_cause("
        "%(cause)s, make_interval(secs => %(seconds)s::double precision)))::double precision",
        lambda rows: (
            None
            if (end := scalar_or_none(rows)) is None
            else datetime.fromtimestamp(float(end), UTC)
        ),
        {
            "cause": cause,
            "seconds": None if duration is None else checks.checked_seconds(duration, "duration"),
        },
    )


def unmute_cause(cause: str) -> Operation[bool]:
    """Return the call that unmutes a cause, and returns whether it was muted."""
    return Operation(
        "select forebay.unmute_cause(%(cause)s)",
        lambda rows: bool(scalar(rows)),
        {"cause": cause},
    )


def keep_dead(
    queue: str | None = None, *, days: int | None = None, inherit: bool = False
) -> Operation[int | None]:
    """Return the call that sets how long dead letters are kept.

    It returns the previous number of days.
    """
    return Operation(
        "select forebay.keep_dead("
        "queue => %(queue)s, days => %(days)s::integer, inherit => %(inherit)s::boolean)",
        scalar_or_none,
        {
            "queue": queue,
            "days": (
                None if days is None else checks.checked_integer(days, "days", least=1, most=36_500)
            ),
            "inherit": inherit,
        },
    )


def dead_summary(
    queue: str | None = None, endpoint: str | None = None
) -> Operation[list[DeadSummary]]:
    """Return the call that counts dead letters by queue, endpoint, kind, reason and error."""
    return Operation(
        "select to_jsonb(s)::text from forebay.dead_summary("
        "only_queue => %(queue)s, only_endpoint => %(endpoint)s) s",
        lambda rows: rows_as(DeadSummary, rows),
        {"queue": queue, "endpoint": endpoint},
    )


def _checked(which: DeadFilter) -> dict[str, Any]:
    for name in which.keys() - DeadFilter.__annotations__.keys():
        raise TypeError(f"{name!r} is no condition of dead letters")
    job_id = which.get("job_id")
    return {
        **dict.fromkeys(DeadFilter.__annotations__),
        **which,
        "reason": _checked_reason(which.get("reason")),
        "job_id": None if job_id is None else checked_id(job_id, "job_id"),
        "died_after": checks.instant_text(which.get("died_after"), "died_after"),
        "died_before": checks.instant_text(which.get("died_before"), "died_before"),
    }


def _redrive_params(which: DeadFilter, limit: int | None, to_group: str | None) -> dict[str, Any]:
    if limit is not None:
        checks.checked_integer(limit, "limit", least=1, most=checks.INTEGER_MAX)
    return {
        **_checked(which),
        "limit": limit,
        "to_group": None if to_group is None else checks.checked_name(to_group, "to_group"),
    }


def _checked_reason(value: str | None) -> str | None:
    if value is not None and value not in REASONS:
        raise InvalidJob("reason", f"is {shown(value)}", hint=f"Reasons are {', '.join(REASONS)}.")
    return value


def _checked_redriven(value: object, job_id: int | None) -> bool | None:
    if value is None:
        return False if job_id is None else None
    if value == "any":
        return None
    if not isinstance(value, bool):
        raise InvalidJob("redriven", f"is {shown(value)}", hint="It is True, False or 'any'.")
    return value
