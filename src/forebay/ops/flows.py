"""Flows: their checkpoints, the signals that they wait for, and the jobs that they gather."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

import msgspec

from forebay._dataclass import dataclass
from forebay._family import PARENT_HEADER
from forebay.errors import InvalidJob, shown
from forebay.model import JobId
from forebay.model.checks import UNREADABLE, plain_text
from forebay.model.flows import FlowState, RewindPlan
from forebay.ops.jobs import checked_id
from forebay.ops.operation import Operation, ResultRows, nothing, scalar
from forebay.ops.records import rows_as
from forebay.ops.sendable import sendable_json

StepStatus = Literal["recorded", "repeated", "refused"]


class Checkpoint(NamedTuple):
    """What a flow has recorded; see ``forebay.steps_v1``.

    Attributes:
        no: its place among the checkpoints of the job, from 1.
        kind: one letter, as in the view ``forebay.code``.
        name: of the step.
        key: of one of several steps with that name; None for the only one.
        value: the result as JSON text; None for nothing.
        at: when a sleep or a wait began, by the clock of the database; None for others.
        age: seconds since then, when it was read; None for others.
    """

    no: int
    kind: str
    name: str
    key: str | None
    value: str | None
    at: datetime | None
    age: float | None


@dataclass(slots=True)
class NewStep:
    """A checkpoint to record; see ``forebay.record_steps_v1``."""

    job_id: int
    group_id: int
    no: int
    kind: str
    name: str
    key: str | None = None
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


@dataclass(slots=True)
class Wait:
    """The signal that a flow waits for; see ``forebay.settle_v1``."""

    name: str
    key: str
    step: str
    step_key: str | None = None


@dataclass(slots=True)
class FlowEnd:
    """What a flow waits for after an attempt; see ``forebay.settle_v1``."""

    steps: list[NewStep] = field(default_factory=list)
    after: float | msgspec.UnsetType = msgspec.UNSET
    until: str | msgspec.UnsetType = msgspec.UNSET
    wait: Wait | msgspec.UnsetType = msgspec.UNSET
    gather: str | msgspec.UnsetType = msgspec.UNSET


@dataclass(slots=True)
class ChildEnd:
    """How a job ended that is the child of a flow; see ``forebay.settle_v1``."""

    gather: str
    nr: int
    job_id: int
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    problem: str | msgspec.UnsetType = msgspec.UNSET


class Gathered(NamedTuple):
    """How a child ended; the outcome is None while it has not."""

    nr: int
    job_id: int
    outcome: Literal["done", "dead", "cancelled"] | None
    value: str | None
    problem: str | None


#: The header of a callback that `forebay.enqueue_gather` enqueued; its value is `on_dead`.
CALLBACK_HEADER: Final = "forebay-gather"

#: The arguments that a worker gives a callback whose handler names them.
GIVEN_TO_CALLBACKS: Final = ("results", "died")


def is_callback(headers: Any) -> bool:
    """Whether a job waited for others, whose results it gets, by its headers."""
    return headers is not None and CALLBACK_HEADER in headers


class _Parent(msgspec.Struct):
    gather: str
    nr: int


def parent_of(headers: Any) -> _Parent | None:
    """Return which child of which gather a job is, by its headers; None for none."""
    if not headers or not headers.get(PARENT_HEADER, "").startswith("{"):
        return None  # No parent, or one that does not wait for it.
    try:
        return msgspec.json.decode(headers[PARENT_HEADER], type=_Parent)
    except (msgspec.MsgspecError, TypeError):
        return None


#: The steps of a job, one row for each group.
FLOW: Final = """\
select (to_jsonb(f) operator(pg_catalog.||) jsonb_build_object('group', f.group_name))::text
from forebay.flow(%(job_id)s::bigint) f"""


def flow(job_id: int, *, values: bool = False) -> Operation[list[FlowState]]:
    """Return the call that reads the steps of a job and what it waits for, for each group."""
    return Operation(
        "select to_jsonb(f)::text from forebay.flow(%(job_id)s::bigint, %(values)s::boolean) f",
        lambda rows: rows_as(FlowState, rows),
        {"job_id": checked_id(job_id, "job_id"), "values": values},
    )


def rewind(job_id: int, step: str, key: str | None, group: str | None) -> Operation[int]:
    """Return the call that lets a flow continue again from a step; its result is the job."""
    return Operation(
        "select forebay.rewind(%(job_id)s::bigint, %(step)s, %(key)s, %(group)s)",
        scalar,
        {"job_id": checked_id(job_id, "job_id"), "step": step, "key": key, "group": group},
    )


def plan_rewind(
    job_id: int, step: str, key: str | None, group: str | None
) -> Operation[RewindPlan]:
    """Return the call that tells what a rewind would do."""
    return Operation(
        "select to_jsonb(p)::text"
        " from forebay.plan_rewind(%(job_id)s::bigint, %(step)s, %(key)s, %(group)s) p",
        lambda rows: rows_as(RewindPlan, rows)[0],
        {"job_id": checked_id(job_id, "job_id"), "step": step, "key": key, "group": group},
    )


def steps(job_id: int, group_id: int) -> Operation[list[Checkpoint]]:
    """Return the call that reads the checkpoints of a job in a group."""
    return Operation(
        "select no, kind, name, key, value, at, age"
        " from forebay.steps_v1(%(job_id)s::bigint, %(group_id)s::bigint)",
        _checkpoints,
        {"job_id": job_id, "group_id": group_id},
    )


def record(lease_id: int, new: Sequence[NewStep]) -> Operation[list[StepStatus]]:
    """Return the call that records checkpoints, in a transaction without effects of their steps.

    Args:
        lease_id: the lease of their jobs.
        new: the checkpoints.
    """
    return Operation(
        "select forebay.record_steps_v1(%(lease)s::bigint, %(steps)s::jsonb, false)",
        scalar,
        {"lease": lease_id, "steps": sendable_json(new).decode()},
    )


def record_once(lease_id: int, step: NewStep, *, clears: bool = False) -> Operation[None]:
    """Return the call that records a checkpoint as the last act of its function's transaction.

    It fails if it records nothing: an error of the primary key tells that another attempt has
    continued.

    Args:
        lease_id: the lease of the job.
        step: the checkpoint.
        clears: whether it also clears the session, except for roles; the commit must follow in the
            same message.
    """
    value = None if isinstance(step.value, msgspec.UnsetType) else bytes(step.value).decode()
    return Operation(
        "select forebay.record_once_v1(%(lease)s::bigint, %(job_id)s::bigint, "
        "%(group_id)s::bigint, %(no)s::integer, %(name)s::text, %(key)s::text, "
        "%(value)s::jsonb, %(clears)s::boolean)",
        nothing,
        {
            "lease": lease_id, "job_id": step.job_id, "group_id": step.group_id, "no": step.no,
            "name": step.name, "key": step.key, "value": value, "clears": clears,
        },
    )  # fmt: skip


def end_wait(
    lease_id: int, job_id: int, group_id: int, no: int, wait: Wait
) -> Operation[list[Checkpoint]]:
    """Return the call that ends a wait whose time is over.

    Args:
        lease_id: the lease of the job.
        job_id: the flow.
        group_id: its consumer group.
        no: the number of the checkpoint that ends the wait.
        wait: what it waits for.
    """
    return Operation(
        "select no, kind, name, key, value, at, age from forebay.end_wait_v1("
        "%(lease)s::bigint, %(job_id)s::bigint, %(group_id)s::bigint, %(no)s::integer,"
        " %(wait)s::jsonb)",
        _checkpoints,
        {
            "lease": lease_id, "job_id": job_id, "group_id": group_id, "no": no,
            "wait": msgspec.json.encode(wait).decode(),
        },
    )  # fmt: skip


def gather(lease_id: int, step: NewStep, children: int, jobs: str) -> Operation[int]:
    """Return the call that enqueues the children of a step; its result is the gather.

    Args:
        lease_id: the lease of the parent.
        step: number, name and key of the checkpoint.
        children: how many jobs.
        jobs: a JSON array of them, as for ``forebay.enqueue_many``.
    """
    return Operation(
        "select g.id, forebay.gather_children_v1(g.id, 1, %(jobs)s::jsonb)::text"
        " from (select forebay.gather_v1(%(lease)s::bigint, %(job_id)s::bigint,"
        " %(group_id)s::bigint, %(no)s::integer, %(name)s, %(key)s, %(children)s::integer) as id"
        " offset 0) g",
        lambda rows: int(rows[0][0]),
        {
            "lease": lease_id, "job_id": step.job_id, "group_id": step.group_id, "no": step.no,
            "name": step.name, "key": step.key, "children": children, "jobs": jobs,
        },
    )  # fmt: skip


def gathered(gather_id: int) -> Operation[list[Gathered]]:
    """Return the call that reads how the children of a gather ended."""
    return Operation(
        "select nr, job_id, outcome, value, problem from forebay.gathered_v1(%(gather)s::bigint)",
        lambda rows: [Gathered(*row) for row in rows],
        {"gather": gather_id},
    )


def enqueue_gather(jobs: str, callback: str, on_dead: str) -> Operation[JobId]:
    """Return the call that enqueues jobs and their callback, whose id is the result.

    Args:
        jobs: a JSON array of them.
        callback: the callback as JSON.
        on_dead: ``raise`` or ``collect``.
    """
    return Operation(
        "select forebay.enqueue_gather(%(jobs)s::jsonb, %(callback)s::jsonb, %(on_dead)s)",
        lambda rows: JobId(scalar(rows)),
        {"jobs": jobs, "callback": callback, "on_dead": on_dead},
    )


def results_of(job_id: int, *, values: bool) -> Operation[list[Gathered]]:
    """Return the call that reads how the jobs of a callback ended."""
    return Operation(
        "select nr, job_id, outcome, value, problem"
        " from forebay.gathered(%(job_id)s::bigint, %(values)s::boolean)",
        lambda rows: [Gathered(*row) for row in rows],
        {"job_id": job_id, "values": values},
    )


def note_unasked(kind: str, names: Sequence[str]) -> Operation[None]:
    """Return the call that notes which recorded steps the code of a kind did not ask for."""
    return Operation(
        "select forebay.note_unasked_v1(%(kind)s, %(names)s::text[])",
        nothing,
        {"kind": kind, "names": list(names)},
    )


def signal_waits(key: str) -> Operation[list[tuple[str, int]]]:
    """Return the call that finds the flows that wait for a signal with a key: names and jobs."""
    return Operation("select name, job_id from forebay.signal_waits(%(key)s)", list, {"key": key})


def signal(name: str, key: object, payload: object = None) -> Operation[bool]:
    """Return the call that sends a signal; its result is False if one waits to be taken.

    Raises:
        InvalidJob: the key is no text and no number, or the payload has no JSON form.
    """
    from forebay.arguments.json_guard import encode_json  # noqa: PLC0415 - most programs need none

    return Operation(
        "select forebay.signal(%(name)s, %(key)s, %(payload)s::jsonb)",
        scalar,
        {
            "name": checked_address(name, "name"),
            "key": checked_address(key, "key"),
            "payload": None if payload is None else encode_json(payload),
        },
    )


#: Characters of a name or key of a step or signal.
_ADDRESS_MOST: Final = 200


def checked_address(value: object, field: str) -> str:
    """Return a name, or a key, of a step or signal as text.

    Raises:
        InvalidJob: it is no text, nor a key that is a whole number; or the database could not keep
            it.
    """
    if field == "name" and not isinstance(value, str):
        raise InvalidJob(field, f"must be a text, not {shown(value)}")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidJob(field, f"must be a text or a whole number, not {shown(value)}")
    if isinstance(value, int):
        if not -(10**_ADDRESS_MOST) < value < 10**_ADDRESS_MOST:
            raise InvalidJob(field, f"is out of range: {shown(value)}")
        return as_text(value)
    if not 1 <= len(value) <= _ADDRESS_MOST:
        raise InvalidJob(field, f"has {len(value)} characters; 1 to {_ADDRESS_MOST} are possible")
    if UNREADABLE.search(value):
        raise InvalidJob(field, f"has a control character or a lone surrogate: {shown(value)}")
    return as_text(value)


def as_text(address: str | int) -> str:
    """Return a checked name or key as text; of a member of an enumeration, its value.

    What ``str()`` and the driver make of such a member differs, so both get this text.
    """
    return plain_text(address) if isinstance(address, str) else str(int(address))


def _checkpoints(rows: ResultRows) -> list[Checkpoint]:
    return [Checkpoint(*row) for row in rows]
