"""Every error Forebay raises, and the SQLSTATE of those that come from its SQL functions.

ForebayError
├── ConfigError               a setting or a handler's declaration is missing or wrong
├── ServerStartError          an embedded PostgreSQL did not start
├── SchemaError               the schema is not installed, too old or too new
├── ForeignCluster            the data was copied from another cluster: claims wait for adopt
├── AdoptRefused              there is nothing to adopt
├── DatabaseUnavailable       the connection failed or was lost; try again
├── TargetUnavailable         the target of a synchronisation cannot be asked now; try again
├── WrongConnection           what was passed as the connection is none, or of the other kind
├── TransactionStateError     this function runs alone, autocommitted, at READ COMMITTED
├── EnqueueError              the job was refused and nothing was written
│   ├── InvalidJob            an option or an argument is wrong
│   ├── PayloadTooLarge       gives bytes and limit
│   ├── PayloadTooDeep        gives depth and limit
│   ├── KeyBusy               another open transaction is taking the unique key
│   ├── PayloadDiffers        an idempotency key belongs to another request: gives its job
│   └── QueueFull             as many jobs wait as the queue's max_waiting allows
├── BackfillError
│   ├── BackfillChanged       the jobs are not those that were counted
│   └── BackfillNotFound      no such backfill in chunks, or another's
├── GroupNotFound             no such queue or group
├── DeadLetterError
│   ├── DeadLetterNotFound
│   └── AlreadyRedriven       gives the new job
├── AttemptError              about work in hand
│   ├── LeaseLost             the lease is no longer current: stop, write nothing
│   ├── UnknownBatch          the database does not know the batch, or the job is not in it
│   └── JobNotFound
├── ResultError               a result that was waited for is not to be had
│   ├── JobDied               the job is a dead letter
│   ├── NoResult              it ended otherwise, or its result was not kept
│   └── ResultTimeout         it has not ended in time; it goes on
├── UnknownKind               no handler of that name here
└── HandlerError              how an attempt ended without an exception of its own
    ├── SoftTimeout           the handler was asked to stop
    ├── HardTimeout           the handler was stopped
    ├── JobCancelled          somebody cancelled the job
    └── WorkerLost            the process died with the job in its hands

The classes differ by what the caller does about them. Each carries its facts as attributes, makes
its message from them, keeps advice apart in ``hint`` and pickles. ``retryable`` tells whether the
same call may succeed later; no code has to read messages.
"""

# ruff: noqa: N818 - names say what happened; an "Error" behind each would only be longer.
from __future__ import annotations

import copy
import re
import reprlib
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "SQLSTATES",
    "AdoptRefused",
    "AlreadyRedriven",
    "AttemptError",
    "BackfillChanged",
    "BackfillError",
    "BackfillNotFound",
    "ConfigError",
    "DatabaseUnavailable",
    "DeadLetterError",
    "DeadLetterNotFound",
    "EnqueueError",
    "ForebayError",
    "ForeignCluster",
    "GroupNotFound",
    "HandlerError",
    "HardTimeout",
    "InvalidJob",
    "JobCancelled",
    "JobDied",
    "JobNotFound",
    "KeyBusy",
    "LeaseLost",
    "NoResult",
    "PayloadDiffers",
    "PayloadTooDeep",
    "PayloadTooLarge",
    "QueueFull",
    "ResultError",
    "ResultTimeout",
    "SchemaError",
    "ServerStartError",
    "SoftTimeout",
    "TargetUnavailable",
    "TransactionStateError",
    "UnknownBatch",
    "UnknownKind",
    "WorkerLost",
    "WrongConnection",
    "error_from_sqlstate",
]


class ForebayError(Exception):
    """Base of every error of this library.

    Attributes:
        message: one line, lower-case, the facts.
        detail: more facts, possibly several lines; None when there are none.
        hint: what to do about it; None when nothing better than the message is known.
    """

    retryable: ClassVar[bool] = False
    sqlstate: ClassVar[str | None] = None
    fields: ClassVar[tuple[str, ...]] = ()
    default_hint: ClassVar[str | None] = None

    message: str
    detail: str | None
    hint: str | None

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint or self.default_hint

    @classmethod
    def from_sql(
        cls,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        column: str | None = None,
    ) -> ForebayError:
        """Return the error for what a SQL function said, keeping its own words.

        The attributes that only Python knows are None. ``column`` is the COLUMN item of the
        server's message, where our functions put the name of the parameter they refuse.
        """
        error = cls.__new__(cls)
        ForebayError.__init__(error, message, detail=detail, hint=hint)
        for name in cls.fields:
            setattr(error, name, None)
        if column and "field" in cls.fields:
            setattr(error, "field", column)  # noqa: B010 - declared by the subclasses only.
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call __init__ with the message alone, which no subclass accepts.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(cls: type[ForebayError], args: tuple[Any, ...], state: dict[str, Any]) -> ForebayError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigError(ForebayError):
    """A setting, or the declaration of a handler, is missing, wrong or contradicts another."""

    fields = ("field", "problem", "value", "source")

    field: str
    problem: str
    value: object
    source: str | None

    def __init__(
        self,
        field: str,
        problem: str,
        *,
        value: object = None,
        source: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.field = field
        self.problem = problem
        self.value = value
        self.source = source
        origin = f" (from {source})" if source else ""
        super().__init__(f"{field} {problem}{origin}", hint=hint)

    def with_source(self, source: str | None) -> ConfigError:
        """Return the same error, naming where the value came from."""
        return type(self)(self.field, self.problem, value=self.value, source=source, hint=self.hint)

    @classmethod
    def no_address(cls) -> ConfigError:
        """Return the error for a database address that nobody gave."""
        return cls(
            "database address",
            "is missing: none of --dsn, FOREBAY_DATABASE_URL, DATABASE_URL or PG* is set",
            hint="Set one of the four, or FOREBAY_DATABASE_URL=embedded for a server of your own.",
        )


class ServerStartError(ForebayError):
    """An embedded PostgreSQL server could not be started or did not answer in time."""

    fields = ("folder",)

    folder: str | None

    def __init__(
        self,
        problem: str,
        *,
        folder: str | None = None,
        detail: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.folder = folder
        place = f" in {folder}" if folder else ""
        super().__init__(
            f"embedded server{place} did not start: {problem}", detail=detail, hint=hint
        )


class SchemaError(ForebayError):
    """The schema in the database is not the one this library needs.

    Attributes:
        found: the installed version; None when the schema is not installed.
        needed: the version this library needs.
    """

    sqlstate = "JQ020"
    fields = ("found", "needed")

    found: int | None
    needed: int | None

    def __init__(self, *, found: int | None, needed: int) -> None:
        self.found = found
        self.needed = needed
        if found is None:
            message = f"schema forebay is not installed; this library needs version {needed}"
            hint = "Run `forebay migrate`."
        elif found < needed:
            message = f"schema forebay is too old: version {found}, needed {needed}"
            hint = "Run `forebay migrate`."
        else:
            message = f"schema forebay is too new: version {found}, this library knows {needed}"
            hint = "Upgrade the library; a schema is never downgraded."
        super().__init__(message, hint=hint)


class ForeignCluster(ForebayError):
    """The database was restored or copied from another cluster, so its cursors mean nothing here.

    Enqueues go on; claims stop until somebody decides.
    """

    sqlstate = "JQ030"
    fields = ("recorded", "actual")
    default_hint = (
        "Run `forebay adopt --resume` to run what was waiting, or `forebay adopt --discard`."
    )

    recorded: str | None
    actual: str | None

    def __init__(self, *, recorded: str, actual: str) -> None:
        self.recorded = recorded
        self.actual = actual
        super().__init__(
            f"database belongs to cluster {recorded} by its records, but runs in {actual}"
        )


class AdoptRefused(ForebayError):
    """Nothing to adopt: the database already belongs to this cluster."""

    sqlstate = "JQ031"

    def __init__(self) -> None:
        super().__init__("nothing to adopt: the database belongs to this cluster")


class DatabaseUnavailable(ForebayError):
    """The database could not be reached, or the connection was lost; the outcome is unknown."""

    retryable = True

    def __init__(self, problem: str, *, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(f"database unavailable: {problem}", detail=detail, hint=hint)


class TargetUnavailable(ForebayError):
    """The target of a synchronisation cannot be asked now; nothing is said about any item."""

    retryable = True

    def __init__(self, problem: str, *, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(f"target unavailable: {problem}", detail=detail, hint=hint)


class WrongConnection(ForebayError):
    """What was passed as the connection is none, or is for the other of sync and async.

    Attributes:
        given: the type that was passed, with its module.
    """

    fields = ("given",)

    given: str | None

    def __init__(self, problem: str, *, given: str, hint: str | None = None) -> None:
        self.given = given
        super().__init__(problem, hint=hint)


class TransactionStateError(ForebayError):
    """The function was called inside a transaction, or at another isolation level."""

    sqlstate = "JQ012"
    fields = ("function",)
    default_hint = "Call it alone on an autocommit connection at READ COMMITTED."

    function: str | None

    def __init__(self, function: str, problem: str) -> None:
        self.function = function
        super().__init__(f"{function} must run alone and autocommitted: {problem}")


class EnqueueError(ForebayError):
    """A job was refused at the door; nothing was written.

    Attributes:
        index: position of the job in a bulk call, from 0; None for a single one.
    """

    fields: ClassVar[tuple[str, ...]] = ("index",)

    index: int | None = None

    def at_index(self, index: int) -> EnqueueError:
        """Return the same error, naming the position of the job in a bulk call."""
        error = copy.copy(self)
        error.index = index
        error.message = f"job {index}: {self.message}"
        error.args = (error.message,)
        return error


class InvalidJob(EnqueueError):
    """An option or an argument is unknown, missing, of the wrong type or out of range.

    Attributes:
        field: the option or argument, with its path inside: ``user_id``, ``items[2].name``.
        problem: what is wrong with it.
        kind: the kind of the job; None when it is not known yet.
    """

    sqlstate = "JQ001"
    fields = ("field", "problem", "kind", "index")

    field: str | None
    problem: str | None
    kind: str | None

    def __init__(
        self,
        field: str,
        problem: str,
        *,
        kind: str | None = None,
        index: int | None = None,
        hint: str | None = None,
    ) -> None:
        self.field = field
        self.problem = problem
        self.kind = kind
        message = f"{kind}: {field} {problem}" if kind else f"{field} {problem}"
        if index is not None:
            self.index = index
            message = f"job {index}: {message}"
        super().__init__(message, hint=hint)

    def of_kind(self, kind: str) -> InvalidJob:
        """Return the same error, naming the kind of the job."""
        if self.kind is not None:
            return self
        return type(self)(
            str(self.field), str(self.problem), kind=kind, index=self.index, hint=self.hint
        )


class PayloadTooLarge(EnqueueError):
    """The arguments of a job, as JSON, have more bytes than allowed.

    Attributes:
        bytes: the size; a lower bound where counting stopped at the limit.
        limit: the most that is allowed, setting ``args_bytes_max``.
    """

    sqlstate = "JQ002"
    fields = ("bytes", "limit", "index")
    default_hint = "Store the data in a table and pass its key, or raise args_bytes_max."

    bytes: int | None
    limit: int | None

    def __init__(self, *, bytes: int, limit: int) -> None:  # noqa: A002
        self.bytes = bytes
        self.limit = limit
        super().__init__(f"arguments have {bytes} bytes, the limit is {limit}")


class PayloadTooDeep(EnqueueError):
    """The arguments of a job are nested deeper than allowed.

    Attributes:
        depth: the level at which counting stopped; the arguments' own object is level 1.
        limit: the most that is allowed, setting ``args_depth_max``.
    """

    sqlstate = "JQ003"
    fields = ("depth", "limit", "index")
    default_hint = "Flatten the data, or store it in a table and pass its key."

    depth: int | None
    limit: int | None

    def __init__(self, *, depth: int, limit: int) -> None:
        self.depth = depth
        self.limit = limit
        super().__init__(f"arguments are nested {depth} levels deep, the limit is {limit}")


class KeyBusy(EnqueueError):
    """Another open transaction is taking the unique key, and the caller did not want to wait.

    Attributes:
        key: the key.
    """

    retryable = True
    sqlstate = "JQ004"
    fields = ("key", "index")
    default_hint = "Try again when that transaction has ended."

    key: str | None

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"key {shown(key)} is being taken by another open transaction")


class PayloadDiffers(EnqueueError):
    """An idempotency key belongs to a live job of another kind or with other arguments.

    Attributes:
        job_id: that job.
    """

    sqlstate = "JQ005"
    fields = ("job_id", "index")
    default_hint = "An idempotency key stands for one request: use another key."

    job_id: int | None

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        super().__init__(f"key belongs to job {job_id}, whose kind or arguments differ")

    @classmethod
    def from_sql(
        cls,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        column: str | None = None,
    ) -> ForebayError:
        """Return the error for what the SQL function said, with the job that it names."""
        error = super().from_sql(message, detail=detail, hint=hint, column=column)
        named = re.search(r" belongs to job (\d+),", message)
        if named and isinstance(error, PayloadDiffers):
            error.job_id = int(named[1])
        return error


class QueueFull(EnqueueError):
    """As many jobs wait in the queue as its ``max_waiting`` allows.

    Attributes:
        queue: the queue.
        waiting: how many wait in it, at most.
        max_waiting: how many may.
    """

    retryable = True
    sqlstate = "53400"
    fields = ("queue", "waiting", "max_waiting", "index")
    default_hint = "Try again when workers have caught up, or raise the queue's max_waiting."

    queue: str | None
    waiting: int | None
    max_waiting: int | None

    def __init__(self, queue: str, *, waiting: int, max_waiting: int) -> None:
        self.queue = queue
        self.waiting = waiting
        self.max_waiting = max_waiting
        super().__init__(
            f"queue {queue} is full: {waiting} jobs wait, max_waiting is {max_waiting}"
        )

    @classmethod
    def from_sql(
        cls,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        column: str | None = None,
    ) -> ForebayError:
        """Return the error for what the SQL function said, with its facts."""
        error = super().from_sql(message, detail=detail, hint=hint, column=column)
        said = _FULL.match(message)
        if said and isinstance(error, QueueFull):
            error.queue, error.waiting, error.max_waiting = said[1], int(said[2]), int(said[3])
        return error


_FULL: Final = re.compile(r"queue (\S+) is full: (\d+) jobs wait, .* exceed max_waiting (\d+)$")


class BackfillError(ForebayError):
    """A backfill cannot be done as it was asked for."""


class BackfillChanged(BackfillError):
    """The rows would give other jobs than those that were counted; none of them was enqueued.

    Attributes:
        token: what was to be enqueued; None for a chunk.
    """

    sqlstate = "JQ040"
    fields = ("token",)
    default_hint = "Look at a new dry run; kind and options belong to the token, too."

    token: str | None

    def __init__(self, token: str) -> None:
        self.token = token
        super().__init__(f"the jobs are not those of token {shown(token)} any more")


class BackfillNotFound(BackfillError):
    """There is no backfill in chunks with this number, or somebody else began it.

    Attributes:
        backfill_id: the number.
    """

    sqlstate = "JQ041"
    fields = ("backfill_id",)
    default_hint = "Those in chunks are in the table forebay.backfill, for 30 days."

    backfill_id: int | None

    def __init__(self, backfill_id: int) -> None:
        self.backfill_id = backfill_id
        super().__init__(f"there is no backfill {backfill_id}")


class GroupNotFound(ForebayError):
    """No queue or group of that name is known."""

    sqlstate = "JQ014"
    fields = ("queue", "group")

    queue: str | None
    group: str | None

    def __init__(self, *, queue: str, group: str | None = None) -> None:
        self.queue = queue
        self.group = group
        message = f"queue {shown(queue)} not found"
        if group is not None:
            message = f"group {shown(group)} of queue {shown(queue)} not found"
        super().__init__(message)


class DeadLetterError(ForebayError):
    """A dead letter cannot be redriven or shown."""


class DeadLetterNotFound(DeadLetterError):
    """No such dead letter; it may have been purged."""

    sqlstate = "JQ015"
    fields = ("job_id", "group")

    job_id: int | None
    group: str | None

    def __init__(self, job_id: int, *, group: str | None = None) -> None:
        self.job_id = job_id
        self.group = group
        super().__init__(f"dead letter of job {job_id}{_of_group(group)} not found")


class AlreadyRedriven(DeadLetterError):
    """The dead letter has been redriven before; a second time would run the job twice.

    Attributes:
        new_job_id: the job it became.
    """

    sqlstate = "JQ016"
    fields = ("job_id", "new_job_id")

    job_id: int | None
    new_job_id: int | None

    def __init__(self, job_id: int, *, new_job_id: int | None = None) -> None:
        self.job_id = job_id
        self.new_job_id = new_job_id
        became = f" as job {new_job_id}" if new_job_id is not None else ""
        super().__init__(f"dead letter of job {job_id} was already redriven{became}")


class AttemptError(ForebayError):
    """Work in hand cannot be settled or found."""


class LeaseLost(AttemptError):
    """The lease is no longer current; its jobs belong to somebody else: stop, write nothing."""

    sqlstate = "JQ010"
    fields = ("lease",)

    lease: int | None

    def __init__(self, lease: int) -> None:
        self.lease = lease
        super().__init__(f"lease {lease} is no longer current")


class UnknownBatch(AttemptError):
    """The database does not know the batch, or a settled job is not in it."""

    fields = ("lease", "claim_no")

    lease: int | None
    claim_no: int | None

    def __init__(self, *, lease: int, claim_no: int) -> None:
        self.lease = lease
        self.claim_no = claim_no
        super().__init__(f"batch {claim_no} of lease {lease} is unknown")


class JobNotFound(AttemptError):
    """No such job; it may be past retention, or its transaction has not committed."""

    sqlstate = "JQ013"
    fields = ("job_id",)

    job_id: int | None

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id} not found")


class ResultError(ForebayError):
    """A result that was waited for is not to be had."""


class NoResult(ResultError):
    """The job ended without dying, and there is no result of it.

    Attributes:
        state: how it ended: done, cancelled or expired.
        reason: why there is none; None when the state says it.
    """

    fields = ("job_id", "state", "reason")

    job_id: int | None
    state: str | None
    reason: str | None

    def __init__(self, job_id: int, *, state: str, reason: str | None = None) -> None:
        self.job_id = job_id
        self.state = state
        self.reason = reason
        why = f": {reason}" if reason else ""
        super().__init__(f"job {job_id} is {state} and has no result{why}")


class JobDied(ResultError):
    """The job whose result was waited for is a dead letter.

    Attributes:
        reason: of the dead letter: exhausted, permanent, expired or worker lost.
        error_type: class of its last error.
        error_message: what that said.
    """

    fields = ("job_id", "reason", "error_type", "error_message")

    job_id: int | None
    reason: str | None
    error_type: str | None
    error_message: str | None

    def __init__(
        self,
        job_id: int,
        *,
        reason: str | None = None,
        error_type: str | None = None,
        error_message: str | None = None,
    ) -> None:
        self.job_id = job_id
        self.reason = reason
        self.error_type = error_type
        self.error_message = error_message
        why = f" ({reason})" if reason else ""
        first_line = (error_message or "").partition("\n")[0]
        said = f": {error_type}: {first_line}" if error_type else ""
        super().__init__(f"job {job_id} is dead{why}{said}")


class ResultTimeout(ResultError):
    """The job has not ended in the time that was given; it goes on.

    Attributes:
        state: where it stood last.
    """

    retryable = True
    fields = ("job_id", "state", "seconds")

    job_id: int | None
    state: str | None
    seconds: float | None

    def __init__(self, job_id: int, *, state: str, seconds: float) -> None:
        self.job_id = job_id
        self.state = state
        self.seconds = seconds
        super().__init__(f"job {job_id} is still {state} after {seconds:g} s")


class UnknownKind(ForebayError):
    """No handler is registered under that name here; another worker may have it."""

    retryable = True
    fields = ("kind", "known")

    kind: str | None
    known: tuple[str, ...]

    def __init__(self, kind: str, *, known: Iterable[str] = ()) -> None:
        self.kind = kind
        self.known = tuple(sorted(known))
        names = ", ".join(self.known[:10]) + (", ..." if len(self.known) > 10 else "")
        super().__init__(
            f"no handler for kind {shown(kind)}",
            detail=f"known here: {names or 'none'}",
            hint="Import the module that declares it before the worker starts.",
        )


class HandlerError(ForebayError):
    """An attempt ended without an exception of the handler's own."""

    retryable = True


class SoftTimeout(HandlerError):
    """The handler ran longer than its soft timeout and was asked to stop."""

    fields = ("seconds",)

    seconds: float | None

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"handler was asked to stop after {seconds:g} s")


class HardTimeout(HandlerError):
    """The handler ran longer than its hard timeout and was stopped."""

    fields = ("seconds",)

    seconds: float | None

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"handler was stopped after {seconds:g} s")


class JobCancelled(HandlerError):
    """Somebody cancelled the job while it ran; there is no further attempt."""

    retryable = False
    fields = ("job_id", "reason")

    job_id: int | None
    reason: str | None

    def __init__(self, job_id: int, *, reason: str | None = None) -> None:
        self.job_id = job_id
        self.reason = reason
        super().__init__(f"job {job_id} was cancelled" + (f": {reason}" if reason else ""))


class WorkerLost(HandlerError):
    """The process died, or stopped answering, with the job in its hands."""

    fields = ("problem",)

    problem: str | None

    def __init__(self, problem: str = "the process ended without an answer") -> None:
        self.problem = problem
        super().__init__(f"worker lost: {problem}")


#: Every SQLSTATE our SQL functions raise. Class JQ belongs to nobody: classes that begin with
#: 0 to 4 or A to H are the SQL standard's, and drivers read some of the rest as lost connections.
SQLSTATES: Final[dict[str, type[ForebayError]]] = {
    "JQ001": InvalidJob,
    "JQ002": PayloadTooLarge,
    "JQ003": PayloadTooDeep,
    "JQ004": KeyBusy,
    "JQ005": PayloadDiffers,
    "JQ010": LeaseLost,
    "JQ012": TransactionStateError,
    "JQ013": JobNotFound,
    "JQ014": GroupNotFound,
    "JQ015": DeadLetterNotFound,
    "JQ016": AlreadyRedriven,
    "JQ020": SchemaError,
    "JQ030": ForeignCluster,
    "JQ031": AdoptRefused,
    "JQ040": BackfillChanged,
    "JQ041": BackfillNotFound,
}


def error_from_sqlstate(
    sqlstate: str,
    message: str,
    *,
    detail: str | None = None,
    hint: str | None = None,
    column: str | None = None,
) -> ForebayError | None:
    """Return the error of one of our SQL functions; None for a SQLSTATE that is not ours.

    A code of class JQ that this version does not know gives a plain ``ForebayError``: the schema
    may be newer than the library.

    >>> error_from_sqlstate("JQ010", "lease 7 is no longer current")
    LeaseLost('lease 7 is no longer current')
    >>> error_from_sqlstate("23505", "duplicate key") is None
    True
    """
    if sqlstate == QueueFull.sqlstate and _FULL.match(message):
        # Of a class of PostgreSQL's own, which also says it of its temporary files.
        return QueueFull.from_sql(message, detail=detail, hint=hint, column=column)
    if not sqlstate.startswith("JQ"):
        return None
    cls = SQLSTATES.get(sqlstate, ForebayError)
    return cls.from_sql(message, detail=detail, hint=hint, column=column)


class _Shown(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80
        self.maxlong = 40


_SHOWN: Final = _Shown()


def shown(value: object) -> str:
    """Return a short one-line form of any value for a message, whatever its ``__repr__`` does.

    >>> shown("x" * 200)[:12], len(shown("x" * 200))
    ("'xxxxxxxxxxx", 80)
    """
    try:
        text = _SHOWN.repr(value)
    except Exception:
        # A value that cannot be shown must not hide the error it belongs to.
        text = f"<{type(value).__name__}>"
    return text.replace("\n", " ").replace("\x00", "\\x00")


def _of_group(group: str | None) -> str:
    return f" for group {shown(group)}" if group is not None else ""
