"""Enqueuing: one job, or many in chunks of one JSON parameter each.

A call is a job before it is enqueued: its kind, its arguments as checked JSON text, its options.
The text of the statements is fixed, so that drivers can reuse prepared statements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from forebay._family import OWN_HEADERS, PARENT_HEADER, RUNNING
from forebay.errors import EnqueueError, InvalidJob, shown
from forebay.model import JobId, JobOptions, checks
from forebay.model.options import KEPT_OPTION_NAMES, OPTION_NAMES
from forebay.ops.operation import Operation, ResultRows, scalar

#: Jobs per statement. Even 1,000 are within a few percent of the best rate.
CHUNK_DEFAULT: Final = 5000
CHUNK_MAX: Final = 100_000

#: Most text of one statement; a chunk of large arguments ends here.
CHUNK_BYTES: Final = 8_000_000

#: Options that an endpoint decides for its deliveries.
_OF_ENDPOINTS: Final = ("queue", "limit_key", "max_attempts")

_SQL_TYPES: Final = {"max_attempts": "integer", "headers": "jsonb"}


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"{name} => %({name})s::{_SQL_TYPES.get(name, 'text')}" for name in names)


#: The parameters that many messages to an endpoint share; see ``message_parameters``.
MESSAGES: Final = f"""\
priority => %(priority)s::integer, delay => make_interval(secs => %(delay)s::double precision),
    run_at => %(run_at)s::timestamptz, expires_at => %(expires_at)s::timestamptz,
    {_named(name for name in KEPT_OPTION_NAMES if name not in _OF_ENDPOINTS)}"""

#: Those of an event, or of one message.
MESSAGE: Final = f"{MESSAGES}, unique_as => %(unique_as)s::jsonb"

_ENQUEUE: Final = f"""\
select forebay.enqueue(
    %(kind)s, %(args)s::jsonb, queue => %(queue)s, priority => %(priority)s::integer,
    delay => make_interval(secs => %(delay)s::double precision), run_at => %(run_at)s::timestamptz,
    expires_at => coalesce(%(expires_at)s::timestamptz,
        greatest(clock_timestamp(), %(run_at)s::timestamptz,
                 clock_timestamp() operator(pg_catalog.+)
                     make_interval(secs => %(delay)s::double precision))
        operator(pg_catalog.+) make_interval(secs => %(expires_in)s::double precision)),
    {_named(KEPT_OPTION_NAMES)}, unique_as => %(unique_as)s::jsonb)"""

#: With a unique key; also returns whether the job is new.
_ENQUEUE_UNIQUE: Final = _ENQUEUE.replace(
    "select forebay.enqueue(", "select * from forebay.enqueue_unique("
)

#: For jobs that differ only in their arguments.
_ENQUEUE_ALIKE: Final = f"""\
select forebay.enqueue_many(
    %(kind)s, array(select jsonb_array_elements(%(args)s::jsonb)), queue => %(queue)s,
    priority => %(priority)s::integer, delay => make_interval(secs => %(delay)s::double precision),
    run_at => %(run_at)s::timestamptz, expires_at => %(expires_at)s::timestamptz,
    {_named(KEPT_OPTION_NAMES)})"""

_ENQUEUE_MANY: Final = "select cardinality(forebay.enqueue_many(%(jobs)s::jsonb))"


#: Also returns the id of each job and whether it is new.
_ENQUEUE_EACH: Final = "select job_id, is_new from forebay.enqueue_each(%(jobs)s::jsonb)"

_NO_OPTIONS: Final = JobOptions()


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One job, checked and ready to be enqueued.

    Attributes:
        kind: the name of the handler.
        args: its arguments as JSON text.
        options: as sent to the database; None means the default of the schema.
        expires_in_seconds: the job expires this long after the enqueue, or after its start time if
            it is delayed, by the database's clock; ``options.expires_at`` takes precedence.
        not_unique: it has no unique key, also if its kind declares one.
    """

    kind: str
    args: str
    options: JobOptions = _NO_OPTIONS
    expires_in_seconds: float | None = None
    not_unique: bool = False


def enqueue(call: Call) -> Operation[JobId]:
    """Return the call that enqueues one job and returns its id."""
    if (parent := RUNNING.get()) is not None:
        call = _with_options(call, in_family(call.options, parent))
    parameters = _parameters(call.kind, call.options)
    parameters["args"] = call.args
    parameters["expires_in"] = call.expires_in_seconds
    parameters["unique_as"] = '"none"' if call.not_unique else None
    if call.options.unique is not None:
        parameters["unique_as"] = _json(call.options.unique.as_json())
        return Operation(_ENQUEUE_UNIQUE, _unique_job_id, parameters)
    return Operation(_ENQUEUE, _job_id, parameters)


def in_family(options: JobOptions, parent: tuple[int, str | None]) -> JobOptions:
    """Return the options of a job with what it has from the job whose handler enqueues it.

    Headers of the library are of one job: those of the running job, passed on, are left out.

    Args:
        options: as given; a correlation id there counts.
        parent: id and correlation id of that job.
    """
    job_id, correlation_id = parent
    given = options.headers or {}
    headers = {name: text for name, text in given.items() if not name.startswith(OWN_HEADERS)}
    # A header more must not make an enqueue fail.
    if len(headers) < checks.HEADERS_COUNT_MAX and (
        not headers or len(_json(headers).encode()) < checks.HEADERS_BYTES_MAX - 100
    ):
        headers = {PARENT_HEADER: str(job_id), **headers}
    return replace(
        options,
        headers=headers or None,
        correlation_id=options.correlation_id or correlation_id,
    )


def _with_options(call: Call, options: JobOptions) -> Call:
    return msgspec.structs.replace(call, options=options)


def _parameters(kind: str, options: JobOptions) -> dict[str, Any]:
    return {"kind": kind, **_of_options(options)}


def _of_options(options: JobOptions) -> dict[str, Any]:
    parameters = {name: getattr(options, name) for name in OPTION_NAMES}
    del parameters["unique"]
    parameters["delay"] = options.delay_seconds
    for name in ("run_at", "expires_at"):
        parameters[name] = _instant(parameters[name])
    if options.priority is None:
        parameters["priority"] = checks.PRIORITY_DEFAULT
    if options.headers is not None:
        parameters["headers"] = _json(options.headers)
    return parameters


def message_parameters(options: Mapping[str, Any], refused: str) -> dict[str, Any]:
    """Return the parameters of an event, or of a message to an endpoint.

    Args:
        options: options of a job. Queue, limit key and attempts are those of the endpoint, and not
            among them.
        refused: why these are refused, after "option queue".

    Raises:
        InvalidJob: an option is refused or unknown.
    """
    for name in _OF_ENDPOINTS:
        if name in options:
            raise InvalidJob(f"option {name}", refused)
    checked = JobOptions().merged(**options)
    parameters = _of_options(checked)
    for name in _OF_ENDPOINTS:
        del parameters[name]
    parameters["unique_as"] = None if checked.unique is None else _json(checked.unique.as_json())
    return parameters


def throttled(queue: str, keys: Sequence[str]) -> Operation[set[str]]:
    """Return the call that tells which of these throttle keys of a queue are held."""
    return Operation(
        "select key from forebay.throttled(%(queue)s, %(keys)s)",
        lambda rows: {str(key) for (key,) in rows},
        {"queue": queue, "keys": list(keys)},
    )


def database_clock() -> Operation[datetime]:
    """Return the call that reads the database's time."""
    return Operation(
        "select extract(epoch from clock_timestamp())::double precision",
        lambda rows: datetime.fromtimestamp(float(scalar(rows)), tz=UTC),
    )


class Chunks:
    """Collects calls and returns a statement whenever a chunk is full.

    It keeps at most one chunk in memory.

    Args:
        size: most jobs per statement.
        ids: gets the id of each job, in order, as soon as its statement has run; None: not read.

    Raises:
        InvalidJob: the size is out of range.
    """

    def __init__(self, size: int = CHUNK_DEFAULT, ids: list[JobId] | None = None) -> None:
        self._size = checks.checked_integer(size, "chunk", least=1, most=CHUNK_MAX)
        self._ids = ids
        #: Arguments of calls that differ only in these, and one of the calls.
        self._alike: list[str] = []
        self._model: Call | None = None
        #: Complete jobs, if the calls of a chunk differ in more.
        self._texts: list[str] = []
        self._opening: tuple[Call, str] | None = None
        #: The job whose handler enqueues, and the last options, without and with what it adds.
        self._parent = RUNNING.get()
        self._known: tuple[JobOptions | None, JobOptions] = (None, _NO_OPTIONS)
        self._bytes = 0
        #: The database's time; needed once a call has ``expires_in``.
        self.now: datetime | None = None
        #: The number of jobs in all returned statements, and in the last one.
        self.handed_out = 0
        self.last_size = 0

    def needs_clock(self, call: Call) -> bool:
        """Whether ``now`` must be set before this call is added."""
        return call.expires_in_seconds is not None and self.now is None

    def add(self, call: Call) -> Operation[int] | None:
        """Add a call; return a statement if the chunk is full."""
        call = self._in_family(call)
        # The statement for jobs that differ only in arguments supports no unique keys, and returns
        # no ids.
        if (
            not self._texts
            and self._ids is None
            and call.options.unique is None
            and not call.not_unique
            and (self._model is None or _are_alike(self._model, call))
        ):
            self._model = call
            self._alike.append(call.args)
        else:
            if self._model is not None:
                self._texts = [self._job(self._model, args) for args in self._alike]
                self._alike, self._model = [], None
            self._texts.append(self._job(call, call.args))
            self._bytes += len(self._texts[-1]) - len(call.args)
        self._bytes += len(call.args)
        if len(self._alike) + len(self._texts) >= self._size or self._bytes >= CHUNK_BYTES:
            return self.rest()
        return None

    def rest(self) -> Operation[int] | None:
        """Return a statement for the remaining calls; None if there are none."""
        count = len(self._alike) + len(self._texts)
        if self._model is not None:
            options = self._options(self._model)
            parameters = _parameters(self._model.kind, options)
            parameters["args"] = f"[{','.join(self._alike)}]"
            operation = Operation(_ENQUEUE_ALIKE, _counted(count), parameters)
        elif self._texts:
            parameters = {"jobs": f"[{','.join(self._texts)}]"}
            if self._ids is None:
                operation = Operation(_ENQUEUE_MANY, _counted(count), parameters)
            else:
                operation = Operation(_ENQUEUE_EACH, _collected(count, self._ids), parameters)
        else:
            return None
        self._alike, self._model, self._texts, self._bytes = [], None, [], 0
        self.handed_out += count
        self.last_size = count
        return operation

    def _options(self, call: Call) -> JobOptions:
        """Return the options of a call, with ``expires_in`` as an instant."""
        options = call.options
        if call.expires_in_seconds is None or options.expires_at is not None:
            return options
        assert self.now is not None, "the database's clock was not asked"
        start = options.run_at or self.now + timedelta(seconds=options.delay_seconds or 0)
        start = max(start, self.now)
        return replace(options, expires_at=start + timedelta(seconds=call.expires_in_seconds))

    def text_of(self, call: Call) -> str:
        """Return a call as the JSON text of a job."""
        call = self._in_family(call)
        return self._job(call, call.args)

    def _in_family(self, call: Call) -> Call:
        if self._parent is None:
            return call
        if call.options is not self._known[0]:
            self._known = (call.options, in_family(call.options, self._parent))
        return _with_options(call, self._known[1])

    def _job(self, call: Call, args: str) -> str:
        # Consecutive calls often differ only in arguments: the text before these is built once.
        if self._opening is None or not _are_alike(self._opening[0], call):
            options = self._options(call).given()
            for name in ("run_at", "expires_at"):
                if name in options:
                    options[name] = options[name].isoformat()
            if "unique" in options:
                options["unique_as"] = options.pop("unique").as_json()
            elif call.not_unique:
                options["unique_as"] = "none"
            self._opening = (call, _json({"kind": call.kind, **options})[:-1] + ',"args":')
        return f"{self._opening[1]}{args}}}"


def jobs_json(calls: Iterable[Call]) -> str:
    """Return calls as a JSON array of jobs, as ``forebay.enqueue_many`` takes them.

    Those with ``expires_in`` expire by the clock of this process.
    """
    chunk = Chunks()
    chunk.now = datetime.now(UTC)
    return f"[{','.join(chunk.text_of(call) for call in calls)}]"


def _are_alike(one: Call, other: Call) -> bool:
    return (
        one.kind == other.kind
        and (one.options is other.options or one.options == other.options)
        and one.expires_in_seconds == other.expires_in_seconds
        and one.not_unique == other.not_unique
    )


def checked_expires_in(value: object) -> float | None:
    """Return ``expires_in`` in seconds, from seconds or a timedelta; above 0."""
    if value is None:
        return None
    seconds = checks.checked_seconds(value, "expires_in")
    if seconds <= 0:
        raise InvalidJob("expires_in", f"is {shown(value)}, not above 0")
    return seconds


def shifted(error: EnqueueError, by: int) -> EnqueueError:
    """Return the error of a chunk with the job's index counted from the start of the whole bulk.

    The SQL function counts within one call.
    """
    return error if error.index is None else error.at_index(by + error.index)


def with_written(error: EnqueueError, count: int) -> EnqueueError:
    """Return the error with a detail that states how many jobs of the bulk were written before
    it.
    """
    if count:
        error.detail = f"{count} jobs of this call were written before it, in your transaction"
    return error


def _job_id(rows: ResultRows) -> JobId:
    # The caller's connection may have a custom loader for numbers.
    return JobId(scalar(rows))


def _unique_job_id(rows: ResultRows) -> JobId:
    ((job_id, is_new, replaced),) = rows
    return JobId(job_id, is_new=is_new, replaced=None if replaced is None else int(replaced))


def _counted(count: int) -> Callable[[ResultRows], int]:
    def decode(rows: ResultRows) -> int:
        written = int(scalar(rows))
        assert written == count, f"{written} of {count} jobs were written"
        return written

    return decode


def _collected(count: int, ids: list[JobId]) -> Callable[[ResultRows], int]:
    def decode(rows: ResultRows) -> int:
        written = [JobId(job_id, is_new=is_new) for job_id, is_new in rows]
        assert len(written) == count, f"{len(written)} of {count} jobs were answered"
        ids.extend(written)
        return count

    return decode


def _instant(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat()


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
