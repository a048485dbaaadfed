"""Every error Forebay raises, and the SQLSTATE of those that come from its SQL functions.

There is one class for each reaction of the caller. Each class declares its facts as fields and
builds its message from one template; ``hint`` contains advice. All errors can be pickled.
``retryable`` tells whether the same call may succeed later. Code never parses messages: the SQL
functions send the facts of an error in DETAIL, as a JSON object.
"""

# ruff: noqa: N818 - the names say what happened; a suffix "Error" would only make them longer.
from __future__ import annotations

import copy
import dataclasses
from dataclasses import KW_ONLY
from typing import Final, Self

from forebay._endpoint_errors import (
    EndpointDisabled,
    EndpointError,
    EndpointExists,
    EndpointInUse,
    EndpointNotFound,
)
from forebay._error import (
    ForebayError,
    OutcomeRefused,
    ScheduleChanged,
    ScheduleError,
    ScheduleNotFound,
    SubjectNotFound,
    facts_in,
    shown,
)
from forebay._flow_errors import (
    ChildrenDied,
    FlowError,
    ParkingSwallowed,
    StepChanged,
    StepFailed,
    StepRefused,
    StepTooLarge,
    WaitTaken,
    WaitTimeout,
)

__all__ = [
    "SQLSTATES", "AdoptRefused", "AlreadyRedriven", "AttemptError", "BackfillChanged",
    "BackfillError", "BackfillNotFound", "ChildrenDied", "ConfigError", "DatabaseUnavailable",
    "DeadLetterError", "DeadLetterNotFound", "EndpointDisabled", "EndpointError", "EndpointExists",
    "EndpointInUse", "EndpointNotFound", "EnqueueError", "FlowError", "ForebayError",
    "ForeignCluster", "GroupInUse", "GroupNotFound", "HandlerError", "HardTimeout", "InvalidJob",
    "JobCancelled", "JobDied", "JobNotFound", "JobsChanged", "KeyBusy", "LaneTaken", "LeaseLost",
    "NoResult", "NotIncluded", "OutcomeRefused", "ParkingSwallowed", "PayloadDiffers",
    "PayloadTooDeep", "PayloadTooLarge", "PermissionDenied", "QueueFull", "ResultError",
    "ResultTimeout", "ScheduleChanged", "ScheduleError", "ScheduleNotFound", "SchemaError",
    "ServerStartError", "SinkUnavailable", "SoftTimeout", "StepChanged", "StepFailed",
    "StepRefused", "StepTooLarge", "SubjectNotFound", "TargetUnavailable", "TooManyWatched",
    "TransactionStateError", "UnknownBatch", "UnknownKind", "WaitTaken", "WaitTimeout",
    "WorkerLost", "WrongConnection", "error_from_sqlstate", "shown",
]  # fmt: skip


class ConfigError(ForebayError):
    """A setting, or the declaration of a handler, is missing, wrong or contradicts another."""

    template = "{field} {problem}[ (from {source})]"
    field: str
    problem: str
    _: KW_ONLY
    value: object = None
    source: str | None = None
    hint: str | None = None

    def with_source(self, source: str | None) -> ConfigError:
        """Return the same error with the source of the value."""
        return dataclasses.replace(self, source=source)

    @classmethod
    def no_address(cls) -> ConfigError:
        """Return the error for a missing database address."""
        return cls(
            "database address",
            "is missing: none of --dsn, FOREBAY_DATABASE_URL, DATABASE_URL or PG* is set",
            hint="Set one of the four, or FOREBAY_DATABASE_URL=embedded for a bundled server.",
        )


class NotIncluded(ForebayError):
    """A handler of a ``Jobs`` needs its app, and no app includes it in this process."""

    template = "jobs of module {module} are not included in an app"
    default_hint = (
        "Import the module that calls app.include(jobs) first, or enqueue on a connection."
    )
    module: str | None


class ServerStartError(ForebayError):
    """An embedded PostgreSQL server could not be started or did not answer in time."""

    template = "embedded server[ in {folder}] did not start: {problem}"
    problem: str
    _: KW_ONLY
    folder: str | None = None
    detail: str | None = None
    hint: str | None = None


class SchemaError(ForebayError, kw_only=True):
    """The schema is not installed, too old or too new, or no longer serves code of this version."""

    sqlstate = "JQ020"
    template = "schema forebay is too old: version {found}, needed {needed}"
    found: int | None  # the installed version; None when the schema is not installed
    needed: int | None  # the version this library needs

    def __post_init__(self) -> None:
        self.hint = "Run `forebay migrate`."
        if self.found is None:
            self.template = "schema forebay is not installed; this library needs version {needed}"
        elif self.needed is not None and self.found > self.needed:
            self.template = "schema forebay is too new: version {found}, this library has {needed}"
            self.hint = "Upgrade the library; a schema is never downgraded."
        super().__post_init__()


class ForeignCluster(ForebayError, kw_only=True):
    """Another cluster has written the database: enqueues work, claims wait for `forebay adopt`."""

    sqlstate = "JQ030"
    template = "database was copied from cluster {recorded} and runs in cluster {actual}"
    default_hint = "Run `forebay adopt --resume` to run waiting jobs, or `forebay adopt --discard`."
    recorded: str | None
    actual: str | None


class AdoptRefused(ForebayError):
    """There is nothing to adopt: the database already belongs to this cluster."""

    sqlstate = "JQ031"
    template = "nothing to adopt: the database belongs to this cluster"


class DatabaseUnavailable(ForebayError):
    """The database could not be reached, or the connection was lost; the outcome is unknown."""

    retryable = True
    template = "database unavailable: {problem}"
    problem: str
    _: KW_ONLY
    detail: str | None = None
    hint: str | None = None


class PermissionDenied(ForebayError):
    """The login of a connection of Forebay may not call a function of the schema.

    On a connection of the caller, the driver's exception passes unchanged.

    Attributes:
        problem: the server's message.
        roles: the roles of which the login needs one; all four if the login has none of them, empty
            if only the owner of the schema may do it.
    """

    template = "{problem}"
    problem: str
    _: KW_ONLY
    roles: tuple[str, ...] = ()
    hint: str | None = None

    def __post_init__(self) -> None:
        if self.roles:
            one = self.roles[0]
            needed = " or ".join(self.roles)
            self.hint = (
                f"The login needs the role {needed}, for example: grant {one} to LOGIN."
                " docs/security.md says what each role may do."
            )
        else:
            self.hint = (
                "Only the owner of the schema may do this: the login that ran `forebay migrate`."
            )
        super().__post_init__()


class TargetUnavailable(ForebayError):
    """The target of a mirror cannot be reached now; the state of the items is unknown."""

    retryable = True
    template = "target unavailable: {problem}"
    problem: str
    _: KW_ONLY
    detail: str | None = None
    hint: str | None = None


class SinkUnavailable(ForebayError):
    """A sink cannot be used now, whatever the message; messages of the call may have arrived."""

    retryable = True
    template = "sink unavailable: {problem}"
    problem: str
    _: KW_ONLY
    detail: str | None = None
    hint: str | None = None


class WrongConnection(ForebayError):
    """The argument is not a connection, or is asynchronous for a synchronous call, or the
    reverse.
    """

    template = "{problem}"
    problem: str
    _: KW_ONLY
    given: str | None  # type of the argument, with its module
    hint: str | None = None


class TransactionStateError(ForebayError):
    """The function must run alone, autocommitted, at READ COMMITTED."""

    sqlstate = "JQ012"
    template = "{function} must run alone in autocommit mode: {problem}"
    default_hint = "Call it alone on an autocommit connection at READ COMMITTED."
    function: str | None
    problem: str | None


class EnqueueError(ForebayError, kw_only=True):
    """A job was refused; nothing was written."""

    template = "[job {index}: ]"
    index: int | None = None  # position of the job in a bulk call, from 0; None for a single one

    def at_index(self, index: int, noun: str = "job") -> Self:
        """Return the same error with the position of the job in a bulk call; noun: what it is."""
        error = copy.copy(self)
        error.index = index
        error.message = f"{noun} {index}: {self.message.removeprefix(f'job {self.index}: ')}"
        error.args = (error.message,)
        return error


class InvalidJob(EnqueueError):
    """An option or an argument is unknown, missing, of the wrong type or out of range."""

    sqlstate = "JQ001"
    template = "[job {index}: ][{kind}: ]{field} {problem}"
    field: str | None  # the option or argument, with the path inside it: items[2].name
    problem: str | None
    _: KW_ONLY
    kind: str | None = None  # None if not known yet
    hint: str | None = None

    def of_kind(self, kind: str) -> InvalidJob:
        """Return the same error with the kind of the job."""
        return self if self.kind is not None else dataclasses.replace(self, kind=kind)


class PayloadTooLarge(EnqueueError, kw_only=True):
    """The arguments of a job have more bytes as JSON than ``args_bytes_max``."""

    sqlstate = "JQ002"
    template = "[job {index}: ]arguments have {bytes} bytes, the limit is {limit}"
    default_hint = "Store the data in a table and pass its key, or raise args_bytes_max."
    bytes: int | None  # the size; a lower bound where counting stopped at the limit
    limit: int | None  # setting args_bytes_max


class PayloadTooDeep(EnqueueError, kw_only=True):
    """The arguments of a job are nested deeper than ``args_depth_max``."""

    sqlstate = "JQ003"
    template = "[job {index}: ]arguments are nested {depth} levels deep, the limit is {limit}"
    default_hint = "Flatten the data, or store it in a table and pass its key."
    depth: int | None  # the level at which counting stopped; the arguments' own object is level 1
    limit: int | None  # setting args_depth_max


class KeyBusy(EnqueueError):
    """Another open transaction is taking the unique key, and ``on_busy`` is ``"raise"``."""

    retryable = True
    sqlstate = "JQ004"
    template = "[job {index}: ]key {key!r} is being taken by another open transaction"
    default_hint = "Try again after that transaction has ended."
    key: str | None


class PayloadDiffers(EnqueueError):
    """An idempotency key belongs to a live job of another kind or with other arguments."""

    sqlstate = "JQ005"
    template = "[job {index}: ]key belongs to job {job_id}, whose kind or arguments differ"
    default_hint = "An idempotency key identifies one request: use another key."
    job_id: int | None


class LaneTaken(EnqueueError):
    """By chance, another queue, priority or limit key has the internal number of this one.

    The numbers cannot be foreseen, so this happens by chance only: with a million limit keys, in
    one of 280 databases.
    """

    sqlstate = "JQ006"
    template = (
        "[job {index}: ]the lane of queue {queue}, priority {priority} is in use under another name"
    )
    default_hint = "Use another queue, priority or limit key."
    queue: str | None
    _: KW_ONLY
    priority: int | None


class QueueFull(EnqueueError):
    """As many jobs wait in the queue, or deliveries for the endpoint, as its ``max_waiting``
    allows.
    """

    retryable = True
    sqlstate = "53400"
    template = (
        "[job {index}: ]queue {queue} is full: {waiting} jobs wait, max_waiting is {max_waiting}"
    )
    default_hint = "Try again when workers have caught up, or raise the queue's max_waiting."
    queue: str | None
    _: KW_ONLY
    waiting: int | None  # an upper bound
    max_waiting: int | None  # maximum number of waiting jobs
    endpoint: str | None = None  # the endpoint that is full; then the queue is None


class BackfillError(ForebayError):
    """A backfill cannot be executed as requested."""


class BackfillChanged(BackfillError):
    """The rows produce other jobs than those that were counted; none was enqueued."""

    sqlstate = "JQ040"
    template = "the jobs differ from those of token {token!r}"
    default_hint = "Make a new dry run. The token also covers the kind and the options."
    token: str | None  # the expected jobs; None for a chunk


class BackfillNotFound(BackfillError):
    """No backfill in chunks has this number, or another role began it."""

    sqlstate = "JQ041"
    template = "backfill {backfill_id} not found"
    default_hint = "Table forebay.backfill lists backfills in chunks for 30 days."
    backfill_id: int | None


class JobsChanged(ForebayError, kw_only=True):
    """Other jobs match than those of the token, or the token is that of another act.

    Nothing was changed.

    Attributes:
        token: the token.
    """

    sqlstate = "JQ042"
    template = "token {token!r} is not that of this act, or other jobs match by now"
    default_hint = "Do a new dry run. The token also covers the filter and the options."
    token: str


class GroupNotFound(ForebayError, kw_only=True):
    """The queue or group does not exist, or the group was closed."""

    sqlstate = "JQ014"
    template = "[group {group!r} of ]queue {queue!r} not found"
    queue: str | None
    group: str | None = None


class GroupInUse(ForebayError, kw_only=True):
    """The group is not closed, since workers serve it, or not opened, since it is being closed."""

    sqlstate = "JQ017"
    template = "group {group!r} of queue {queue!r} is in use"
    queue: str
    group: str


class DeadLetterError(ForebayError):
    """A dead letter cannot be redriven or shown."""


class DeadLetterNotFound(DeadLetterError):
    """The dead letter does not exist; it may have been purged."""

    sqlstate = "JQ015"
    template = "dead letter of job {job_id}[ for group {group!r}] not found"
    job_id: int | None
    _: KW_ONLY
    group: str | None = None


class AlreadyRedriven(DeadLetterError):
    """The dead letter was redriven before; to redrive it again would run the job twice."""

    sqlstate = "JQ016"
    template = "dead letter of job {job_id} was already redriven[ as job {new_job_id}]"
    job_id: int | None
    _: KW_ONLY
    new_job_id: int | None = None  # the new job


class AttemptError(ForebayError):
    """A claimed job cannot be settled or found."""


class LeaseLost(AttemptError):
    """The lease is no longer current and other workers have its jobs: stop and write nothing."""

    sqlstate = "JQ010"
    template = "lease {lease} is no longer current"
    lease: int | None


class UnknownBatch(AttemptError, kw_only=True):
    """The batch does not exist, or a settled job is not in it, or was settled before."""

    sqlstate = "JQ019"
    template = "batch {claim_no} of lease {lease} is unknown"
    lease: int | None
    claim_no: int | None


class JobNotFound(AttemptError):
    """The job does not exist: it is past retention, or its transaction has not committed."""

    sqlstate = "JQ013"
    template = "job {job_id} not found"
    job_id: int | None


class ResultError(ForebayError):
    """There is no result to return."""


class NoResult(ResultError):
    """The result was not kept, too large or of another type.

    The error is also raised if the job was cancelled or expired.
    """

    template = "job {job_id} is {state} and has no result[: {reason}]"
    job_id: int | None
    _: KW_ONLY
    state: str | None  # how it ended: done, cancelled or expired
    reason: str | None = None  # why there is no result; None if the state explains it


class JobDied(ResultError):
    """The job is a dead letter, or a flow that gathers it finds that it was cancelled."""

    template = "job {job_id} is dead[ ({reason})][: {error_type}][: {error_message!l}]"
    job_id: int | None
    _: KW_ONLY
    reason: str | None = None  # of the dead letter: exhausted, permanent, expired or worker lost
    error_type: str | None = None  # class of its last error
    error_message: str | None = None
    is_cancelled: bool = False

    def __post_init__(self) -> None:
        if self.is_cancelled:
            self.template = "job {job_id} was cancelled[ ({reason})]"
        super().__post_init__()


class ResultTimeout(ResultError):
    """The job has not ended within the timeout; it keeps running."""

    retryable = True
    template = "job {job_id} is still {state} after {seconds:g} s"
    job_id: int | None
    _: KW_ONLY
    state: str | None  # its last known state
    seconds: float | None


class TooManyWatched(ResultError):
    """This process watches as many jobs of the database as it may; this one is not watched."""

    retryable = True
    template = "too many jobs are watched: this process watches {limit} already"
    default_hint = "Watch fewer jobs at once, or ask handle.status() from time to time."
    limit: int  # jobs that a process watches at most


class UnknownKind(ForebayError):
    """This process has no handler for the kind; another worker may have it."""

    retryable = True
    template = "no handler for kind {kind!r}"
    default_hint = (
        "Import the module that declares the handler before the worker starts. A handler that was"
        " renamed keeps its jobs: @app.job(name=OLD_NAME)."
    )
    kind: str | None
    _: KW_ONLY
    known: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.known = tuple(sorted(self.known))
        names = ", ".join(self.known[:10]) + (", ..." if len(self.known) > 10 else "")
        self.detail = f"known kinds: {names or 'none'}"
        super().__post_init__()


class HandlerError(ForebayError):
    """An attempt ended without an exception of the handler."""

    retryable = True


class SoftTimeout(HandlerError):
    """The handler ran longer than its soft timeout and was requested to stop."""

    template = "handler was requested to stop after {seconds:g} s"
    seconds: float | None


class HardTimeout(HandlerError):
    """The handler ran longer than its hard timeout and was stopped."""

    template = "handler was stopped after {seconds:g} s"
    seconds: float | None


class JobCancelled(HandlerError):
    """The job was cancelled while it ran; there is no further attempt."""

    retryable = False
    template = "job {job_id} was cancelled[: {reason}]"
    job_id: int | None
    _: KW_ONLY
    reason: str | None = None


class WorkerLost(HandlerError):
    """The process died or stopped responding while it ran the job."""

    template = "worker lost: {problem}"
    problem: str | None = "the process ended without a response"


for _cls in (
    EndpointDisabled, EndpointError, EndpointExists, EndpointInUse, EndpointNotFound,
    ChildrenDied, FlowError, ParkingSwallowed, StepChanged, StepFailed, StepRefused, StepTooLarge,
    WaitTaken, WaitTimeout,
):  # fmt: skip
    _cls.__module__ = __name__  # The name that dead letters and logs have, and users import.

#: Every SQLSTATE that our SQL functions raise. Class JQ is unassigned: classes from 0 to 4 and A to
#: H belong to the standard.
SQLSTATES: Final[dict[str, type[ForebayError]]] = {
    cls.sqlstate: cls
    for cls in tuple(globals().values())
    if isinstance(cls, type) and issubclass(cls, ForebayError)
    if cls.sqlstate is not None and cls.sqlstate.startswith("JQ")
}


def error_from_sqlstate(
    sqlstate: str,
    message: str,
    *,
    detail: str | None = None,
    hint: str | None = None,
    column: str | None = None,
) -> ForebayError | None:
    """Return the error of one of our SQL functions; None for any other SQLSTATE.

    An unknown code of class JQ gives a plain ``ForebayError``: the schema may be newer than the
    library.

    >>> error_from_sqlstate("JQ010", "lease 7 is closed", detail='{"lease": 7}').lease
    7
    """
    cls = SQLSTATES.get(sqlstate, ForebayError)
    if sqlstate == QueueFull.sqlstate and "max_waiting" in facts_in(detail):
        cls = QueueFull  # PostgreSQL also uses this code, for temporary files.
    elif not sqlstate.startswith("JQ"):
        return None
    return cls.from_sql(message, detail=detail, hint=hint, column=column)
