"""Subjects: push, upsert, list, change and upgrade."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from forebay._dataclass import dataclass
from forebay.arguments.json_guard import encode_args
from forebay.errors import EnqueueError, InvalidJob, shown
from forebay.model import JobOptions, checks
from forebay.model.options import OPTION_NAMES
from forebay.model.subjects import (
    SubjectCount,
    SubjectEvent,
    SubjectResult,
    SubjectStatus,
    TraceEntry,
    checked_state,
    checked_subject,
    checked_version,
)
from forebay.ops.enqueue import CHUNK_BYTES
from forebay.ops.operation import Operation, ResultRows, boolean, nothing, scalar
from forebay.ops.records import rows_as

#: Most rows of a list, and of a statement of a push or upsert.
LIST_MAX: Final = 10_000
CHUNK_DEFAULT: Final = 1000

_ENCODER: Final = msgspec.json.Encoder()
_OPTIONS: Final = tuple(name for name in OPTION_NAMES if name != "unique")
_KEYS: Final = ("kind", "subject", "args", "version", *_OPTIONS)


class SubjectItem(msgspec.Struct, frozen=True):
    """A subject to push or upsert, checked.

    Attributes:
        text: the JSON that the SQL function takes.
        subject: its name; None: a random one.
        queue: its queue; None: that of the kind.
    """

    text: str
    subject: str | None
    queue: str | None


def subject_maker(
    *, kind: str | None, version: int | None = None, options: Mapping[str, Any]
) -> Callable[[str | None, str | None], SubjectItem]:
    """Return a function that makes subjects to push or upsert, of a name and arguments as JSON.

    Of a name that is None the database makes a random one; arguments that are None stay as they
    are, or are none. What the subjects have in common is checked once.

    Args:
        kind: of the subjects; None: as it is.
        version: of their arguments; None: as it is, or 0.
        options: options of their runs, of ``JobOptions``.

    Raises:
        InvalidJob: a value is refused, or the option is not one of subjects; the function raises
            it for a name.
    """
    for name in options:
        if name not in _OPTIONS:
            raise InvalidJob(
                f"option {shown(name)}",
                "is not one of subjects",
                hint=f"Known options: {', '.join(_OPTIONS)}.",
            )
    checked = JobOptions().merged(**options)
    given = checked.given()
    if "delay" in given:
        given["delay"] = checked.delay_seconds
    for name in ("run_at", "expires_at"):
        if name in given:
            given[name] = given[name].isoformat()
    if kind is not None:
        given["kind"] = checks.checked_name(kind, "kind")
    if version is not None:
        given["version"] = checked_version(version)
    queue = checked.queue
    common = _ENCODER.encode(given).decode()[1:-1]

    def make(subject: str | None, args: str | None) -> SubjectItem:
        parts = [common] if common else []
        if subject is not None:
            parts.append(f'"subject":{_ENCODER.encode(checked_subject(subject)).decode()}')
        if args is not None:
            parts.append(f'"args":{args}')
        return SubjectItem(f"{{{','.join(parts)}}}", subject, queue)

    return make


def subject_item(
    subject: str | None,
    *,
    kind: str | None,
    version: int | None = None,
    args: str | None = None,
    options: Mapping[str, Any],
) -> SubjectItem:
    """Return a subject to push or upsert: see ``subject_maker``."""
    return subject_maker(kind=kind, version=version, options=options)(subject, args)


def item_from(given: Any, default_queue: str | None = None) -> SubjectItem:
    """Return a subject to push or upsert from a mapping of its parts by name.

    Times may be ISO 8601 texts.

    Raises:
        InvalidJob: a part is refused or unknown.
        PayloadTooLarge, PayloadTooDeep: as for the arguments of a job.
    """
    if isinstance(given, SubjectItem):
        return given
    if not isinstance(given, Mapping):
        raise InvalidJob("subject", f"must be a mapping of its parts, not {shown(given)}")
    for name in given:
        if name not in _KEYS:
            raise InvalidJob(shown(name), "is unknown", hint=f"Known parts: {', '.join(_KEYS)}.")
    options = {name: given[name] for name in _OPTIONS if given.get(name) is not None}
    for name in ("run_at", "expires_at"):
        if isinstance(options.get(name), str):
            options[name] = _instant(options[name], name)
    if default_queue is not None:
        options.setdefault("queue", default_queue)
    args = given.get("args")
    return subject_item(
        given.get("subject"),
        kind=given.get("kind"),
        version=given.get("version"),
        args=None if args is None else encode_args(args),
        options=options,
    )


def checked_items(items: Iterable[SubjectItem | EnqueueError]) -> list[SubjectItem]:
    """Return the items of one call; refuse the same subject twice, before anything is sent.

    Raises:
        InvalidJob: a subject is given twice; it has the index.
    """
    found: list[SubjectItem] = []
    names: set[tuple[str | None, str]] = set()
    for index, item in enumerate(items):
        if isinstance(item, EnqueueError):
            raise item.at_index(index)
        if item.subject is not None:
            name = (item.queue, item.subject)
            if name in names:
                raise InvalidJob("subject", f"{shown(item.subject)} is given twice").at_index(index)
            names.add(name)
        found.append(item)
    return found


def chunks(
    items: list[SubjectItem], size: int = CHUNK_DEFAULT
) -> Iterator[tuple[int, list[SubjectItem]]]:
    """Yield the items in chunks for one statement each, with the index of the first one."""
    size = checks.checked_integer(size, "chunk", least=1, most=LIST_MAX)
    begin, length = 0, 0
    for index, item in enumerate(items):
        if index > begin and (index - begin >= size or length + len(item.text) > CHUNK_BYTES):
            yield begin, items[begin:index]
            begin, length = index, 0
        length += len(item.text)
    if begin < len(items):
        yield begin, items[begin:]


def _results(rows: ResultRows) -> list[SubjectResult]:
    return [
        SubjectResult(subject=subject, result=result, reason=reason)
        for subject, result, reason in rows
    ]


def push_subjects(items: Iterable[SubjectItem]) -> Operation[list[SubjectResult]]:
    """Return the call that creates subjects; those that exist are left as they are."""
    return Operation(
        "select r.subject, r.result, r.reason from forebay.push_subjects(%(subjects)s::jsonb) r",
        _results,
        {"subjects": f"[{','.join(item.text for item in items)}]"},
    )


def upsert_subjects(
    items: Iterable[SubjectItem], *, revive: bool = False
) -> Operation[list[SubjectResult]]:
    """Return the call that creates or changes subjects."""
    return Operation(
        "select r.subject, r.result, r.reason"
        " from forebay.upsert_subjects(%(subjects)s::jsonb, %(revive)s::boolean) r",
        _results,
        {"subjects": f"[{','.join(item.text for item in items)}]", "revive": revive},
    )


def subject(queue: str, name: str) -> Operation[SubjectStatus | None]:
    """Return the call that reads a subject."""
    return Operation(
        "select to_jsonb(s)::text from forebay.subject(%(queue)s, %(subject)s) s",
        lambda rows: rows_as(SubjectStatus, rows)[0] if rows else None,
        _name(queue, name),
    )


def subjects(
    queue: str, state: str | None, after: str | None, limit: int
) -> Operation[list[SubjectStatus]]:
    """Return the call that lists subjects of a queue in the order of their names."""
    return Operation(
        "select to_jsonb(s)::text from forebay.subjects("
        "%(queue)s, %(state)s::text, %(after)s::text, %(most)s::integer) s",
        lambda rows: rows_as(SubjectStatus, rows),
        {
            "queue": checks.checked_name(queue, "queue"),
            "state": checked_state(state),
            "after": None if after is None else checked_subject(after, "after"),
            "most": _limit(limit),
        },
    )


def subject_history(queue: str, name: str, limit: int) -> Operation[list[SubjectEvent]]:
    """Return the call that lists what happened to a subject, newest first."""
    return Operation(
        "select to_jsonb(h)::text"
        " from forebay.subject_history(%(queue)s, %(subject)s, %(most)s::integer) h",
        lambda rows: rows_as(SubjectEvent, rows),
        _name(queue, name) | {"most": _limit(limit)},
    )


def trace_subject(name: str, limit: int) -> Operation[list[TraceEntry]]:
    """Return the call that lists what happened under a name in all queues, newest first."""
    return Operation(
        "select to_jsonb(t)::text from forebay.trace(%(name)s, %(most)s::integer) t",
        lambda rows: rows_as(TraceEntry, rows),
        {"name": checked_subject(name, "name"), "most": _limit(limit)},
    )


def drop_subject(queue: str, name: str) -> Operation[str]:
    """Return the call that drops a subject; it returns dropped or requested."""
    return Operation(
        "select forebay.drop_subject(%(queue)s, %(subject)s)", scalar, _name(queue, name)
    )


def drop_subjects(queue: str, after: str, most: int) -> Operation[tuple[int, str | None]]:
    """Return the call that drops subjects after a name.

    It returns their number, and the name after which to continue, None at the end.
    """
    return Operation(
        "select dropped, next from forebay.drop_subjects(%(queue)s, %(after)s, %(most)s::integer)",
        lambda rows: (int(rows[0][0]), rows[0][1]),
        {"queue": checks.checked_name(queue, "queue"), "after": after, "most": _limit(most)},
    )


def kill_subject(queue: str, name: str, reason: str | None) -> Operation[str]:
    """Return the call that kills a subject; it returns killed, requested or unchanged."""
    return Operation(
        "select forebay.kill_subject(%(queue)s, %(subject)s, %(reason)s::text)",
        scalar,
        _name(queue, name) | {"reason": reason},
    )


def revive_subject(queue: str, name: str, run_at: datetime | None) -> Operation[str]:
    """Return the call that schedules a subject that is over; it returns revived or unchanged."""
    return Operation(
        "select forebay.revive_subject(%(queue)s, %(subject)s, %(run_at)s::timestamptz)",
        scalar,
        _name(queue, name) | {"run_at": checks.instant_text(run_at, "run_at")},
    )


def subject_counts(queue: str | None) -> Operation[list[SubjectCount]]:
    """Return the call that reads the numbers of subjects by queue and state."""
    return Operation(
        "select to_jsonb(c)::text from forebay.subject_counts(%(queue)s::text) c",
        lambda rows: rows_as(SubjectCount, rows),
        {"queue": None if queue is None else checks.checked_name(queue, "queue")},
    )


# --- upgrades ---


@dataclass(frozen=True, slots=True)
class LockedSubject:
    """A subject of the old version; ``is_running``: it is not locked."""

    subject_id: int
    subject: str
    args: dict[str, Any]
    data: dict[str, Any] | None
    is_running: bool


@dataclass(frozen=True, slots=True)
class LockedSubjects:
    """Subjects of the old version; ``passed``: the name after which to continue, None at the
    end.
    """

    subjects: list[LockedSubject]
    passed: str | None


def lock_subjects_for_upgrade(
    queue: str, kind: str, from_version: int, after: str | None, most: int
) -> Operation[LockedSubjects]:
    """Return the call that locks subjects of a version until the transaction ends; ``after``
    None: where the last upgrade stopped.
    """
    return Operation(
        "select to_jsonb(l)::text from forebay.lock_subjects_for_upgrade("
        "%(queue)s, %(kind)s, %(from_version)s::integer, %(after)s::text, %(most)s::integer) l",
        _locked,
        {
            "queue": checks.checked_name(queue, "queue"),
            "kind": checks.checked_name(kind, "kind"),
            "from_version": checked_version(from_version, "from_version"),
            "after": after,
            "most": _limit(most),
        },
    )


def upgrade_subject(
    one: LockedSubject, from_version: int, to_version: int, args: object, data: object
) -> Operation[bool]:
    """Return the call that gives a locked subject new arguments and another version.

    Raises:
        InvalidJob, PayloadTooLarge, PayloadTooDeep: the arguments or the state are refused.
    """
    return Operation(
        "select forebay.upgrade_subject(%(id)s::bigint, %(from_version)s::integer, "
        "%(to_version)s::integer,"
        " %(args)s::jsonb, %(data)s::jsonb)",
        boolean,
        {
            "id": one.subject_id,
            "from_version": from_version,
            "to_version": checked_version(to_version, "to_version"),
            "args": encode_args(args),
            "data": "null" if data is None else encode_args(data),
        },
    )


def record_upgrade(
    queue: str, kind: str, versions: tuple[int, int], passed: str | None, upgraded: int
) -> Operation[None]:
    """Return the call that records up to which name an upgrade has come; ``versions``: from and
    to.
    """
    return Operation(
        "select forebay.record_upgrade(%(queue)s, %(kind)s, %(from_version)s::integer, "
        "%(to_version)s::integer,"
        " %(passed)s::text, %(upgraded)s::bigint)",
        nothing,
        {
            "queue": queue,
            "kind": kind,
            "from_version": versions[0],
            "to_version": checked_version(versions[1], "to_version"),
            "passed": passed,
            "upgraded": upgraded,
        },
    )


def _locked(rows: ResultRows) -> LockedSubjects:
    found = [json.loads(text) for (text,) in rows]
    return LockedSubjects(
        [
            LockedSubject(**{name: each[name] for name in LockedSubject.__slots__})
            for each in found
            if each["subject_id"] is not None
        ],
        found[0]["passed"] if found else None,
    )


def _name(queue: str, name: str) -> dict[str, Any]:
    return {"queue": checks.checked_name(queue, "queue"), "subject": checked_subject(name)}


def _limit(limit: int) -> int:
    return checks.checked_integer(limit, "limit", least=1, most=LIST_MAX)


def _instant(text: str, field: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidJob(field, f"is {shown(text)}, not an ISO 8601 time") from None
