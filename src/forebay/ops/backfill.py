"""Backfills: a job for each row of a query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from forebay.arguments.json_guard import encode_args
from forebay.errors import InvalidJob, shown
from forebay.model import JobOptions, checks
from forebay.model.backfill import BackfillPlan, BackfillProgress, Rows
from forebay.model.subjects import checked_version
from forebay.ops.enqueue import checked_expires_in
from forebay.ops.operation import Operation, scalar
from forebay.ops.records import rows_as

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

CHUNK_MAX: Final = 1_000_000

#: The server quotes the values. The rest of the query text stays unchanged.
_WHAT: Final = """\
%(kind)s, format(%(template)s, variadic array(
    select v.value from jsonb_array_elements_text(%(values)s::jsonb) with ordinality v
        order by v.ordinality))"""

_BACKFILL: Final = f"""\
select forebay.backfill({_WHAT}, options => %(options)s::jsonb, token => %(token)s)"""

_PLAN: Final = f"""\
select to_jsonb(p.*)::text from forebay.backfill_plan({_WHAT}, options => %(options)s::jsonb) p"""

_BEGIN: Final = f"""\
select forebay.backfill_begin(
    {_WHAT}, key => %(key)s, chunk => %(chunk)s::integer, options => %(options)s::jsonb,
        token => %(token)s)"""

_NEXT: Final = """\
select (to_jsonb(n.*) operator(pg_catalog.||)
        jsonb_build_object('backfill_id', %(backfill_id)s::bigint))::text
from forebay.backfill_next(%(backfill_id)s::bigint) n"""


class Backfill(msgspec.Struct, frozen=True, kw_only=True):
    """One checked backfill: the parameters that all its calls share."""

    params: dict[str, Any]
    key: str | None


def backfill_of(
    kind: str,
    rows: Rows | str,
    *,
    args: Mapping[str, Any] | None,
    expires_in: float | timedelta | None = None,
    subjects: bool = False,
    version: int | None = None,
    options: Mapping[str, Any],
) -> Backfill:
    """Return a backfill, checked as far as possible without a database.

    With ``subjects`` each row becomes a subject; ``version`` is that of its arguments.

    Raises:
        InvalidJob: an option or an argument is invalid.
    """
    if isinstance(rows, str):
        rows = Rows.query(rows)
    if not isinstance(rows, Rows):
        raise InvalidJob("rows", f"must be Rows or a query, not {shown(rows)}")
    given = JobOptions().merged(**options).given()
    if "unique" in given:
        raise InvalidJob(
            "unique",
            "would give all jobs the same key",
            hint="Add a column unique_as to the query, beside a column args.",
        )
    for name in ("run_at", "expires_at"):
        if name in given:
            given[name] = given[name].isoformat()
    seconds = checked_expires_in(expires_in)
    if seconds is not None:
        given["expires_in"] = seconds
    if subjects:
        given["subjects"] = True
        if version is not None:
            given["version"] = checked_version(version)
    if args:
        given["args"] = msgspec.Raw(encode_args(args).encode())
    select = rows.select
    params = {
        "kind": checks.checked_name(kind, "kind"),
        "template": select.template,
        "values": msgspec.json.encode(select.values).decode(),
        "options": msgspec.json.encode(given).decode(),
    }
    return Backfill(params=params, key=select.key)


def backfill(what: Backfill, token: str | None) -> Operation[int]:
    """Return the call that enqueues all jobs and returns how many."""
    return Operation(_BACKFILL, lambda rows: int(scalar(rows)), {**what.params, "token": token})


def plan(what: Backfill) -> Operation[BackfillPlan]:
    """Return the call that shows what would be enqueued, without enqueuing it."""
    return Operation(_PLAN, lambda rows: rows_as(BackfillPlan, rows)[0], what.params)


def begin(what: Backfill, key: str | None, chunk: int, token: str | None) -> Operation[int]:
    """Return the call that begins a backfill in chunks and returns its id.

    Raises:
        InvalidJob: the key is missing, or the chunk is out of range.
    """
    key = key or what.key
    if key is None:
        raise InvalidJob(
            "key", "is missing", hint="Name the column of the rows by which chunks are formed."
        )
    chunk = checks.checked_integer(chunk, "chunk", least=1, most=CHUNK_MAX)
    return Operation(
        _BEGIN,
        lambda rows: int(scalar(rows)),
        {**what.params, "key": key, "chunk": chunk, "token": token},
    )


def next_chunk(backfill_id: int) -> Operation[BackfillProgress | None]:
    """Return the call that enqueues the next chunk; it returns None when all are done."""
    number = checks.checked_integer(backfill_id, "backfill_id", least=1, most=checks.BIGINT_MAX)
    return Operation(
        _NEXT,
        lambda rows: rows_as(BackfillProgress, rows)[0] if rows else None,
        {"backfill_id": number},
    )
