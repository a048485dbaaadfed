"""Jobs that wait in the tables of procrastinate and of pgqueuer."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from forebay.errors import ConfigError
from forebay.model import checks
from forebay.moving.found import (
    FoundJob,
    FoundSchedule,
    Refused,
    UnkeptError,
    Work,
    digest_of,
    instant_of,
    source_id_of,
)
from forebay.moving.sql_words import place_of
from forebay.ops.operation import Operation
from forebay.ops.records import rows_as

#: Rows of one statement.
_PAGE: Final = 1000


class _Library(NamedTuple):
    """How its jobs are read.

    Attributes:
        table: its table.
        members: what makes the JSON of a row.
        waits: which rows wait.
        farewell: how they are ended there.
    """

    table: str
    members: str
    waits: str
    farewell: str


_LIBRARIES: Final = {
    "procrastinate": _Library(
        table="procrastinate_jobs",
        members="'task', t.task_name, 'args', t.args::text, 'priority', t.priority, "
        "'due', t.scheduled_at, 'queue', t.queue_name, 'lock', t.lock",
        waits="t.status = 'todo'",
        farewell="once all is well here, cancel the copied jobs before its workers start again: "
        "update procrastinate_jobs set status = 'cancelled' where status = 'todo'",
    ),
    "pgqueuer": _Library(
        table="pgqueuer",
        members="'task', t.entrypoint, 'payload', encode(t.payload, 'base64'), "
        "'priority', t.priority, 'due', t.execute_after, "
        "'made', extract(epoch from t.created)::text",
        waits="t.status = 'queued'",
        farewell="once all is well here, delete the copied jobs before its workers start again: "
        "delete from pgqueuer where status = 'queued'",
    ),
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A job that waits; the members of one library are None in the other."""

    id: int
    task: str
    args: str | None = None
    payload: str | None = None
    made: str | None = None
    priority: int = 0
    due: str | None = None
    queue: str | None = None
    lock: str | None = None


class SqlQueue:
    """The jobs of a table that wait.

    Args:
        library: procrastinate or pgqueuer.
        run: runs an operation in that database.
        queue: of procrastinate, only this one; None: all.

    Raises:
        ConfigError: the table is not there.
    """

    def __init__(
        self, library: str, run: Callable[[Operation[Any]], Any], queue: str | None = None
    ) -> None:
        self._library = _LIBRARIES[library]
        self.farewell = self._library.farewell
        place = place_of(run, self._library.table)
        if place.table is None:
            raise ConfigError(
                "--from",
                f"leads to database {place.database}, and its search path shows no "
                f"{self._library.table}",
                hint=f"Give the address of the database of {library}: --from postgresql://...",
            )
        self._run, self._queue = run, queue
        self._place = f"{library}:{place.identity}"
        self.label = f"import {library} {place.database}"

    def read(self) -> Iterator[FoundSchedule | FoundJob | Refused]:
        """Yield the jobs in the order in which they were made."""
        after = -1
        while rows := self._run(self._page(after)):
            for row in rows:
                after = row.id
                if self._queue in (None, row.queue):
                    yield self._found(row)

    def _page(self, after: int) -> Operation[list[Row]]:
        one = self._library
        return Operation(
            f"select jsonb_build_object('id', t.id, {one.members})::text from {one.table} t "
            f"where {one.waits} and t.id > %(after)s order by t.id limit {_PAGE}",
            lambda rows: rows_as(Row, rows),
            {"after": after},
        )

    def _found(self, row: Row) -> FoundJob | Refused:
        name = f"{row.task} {row.id}"
        try:
            return FoundJob(
                name=name,
                # The ids of a table that was emptied may begin again.
                source_id=source_id_of(
                    self._place, row.id, digest_of(row.task, row.args, row.payload, row.made)
                ),
                work=Work(
                    task=row.task,
                    named=_arguments(row),
                    # Both take the higher one first.
                    priority=_priority(row.priority),
                ),
                run_at=None if row.due is None else instant_of(row.due),
                ordering_key=row.lock,
            )
        except UnkeptError as error:
            return Refused(name=name, reason=str(error))


def _priority(priority: int) -> int | None:
    if priority == 0:
        return None
    found = checks.PRIORITY_DEFAULT - priority
    if not checks.PRIORITY_MIN <= found <= checks.PRIORITY_MAX:
        raise UnkeptError(f"its priority {priority} is out of range")
    return found


def _arguments(row: Row) -> Mapping[str, Any]:
    if row.args is None and row.payload is None:
        return {}
    try:
        found = json.loads(row.args or base64.b64decode(row.payload or ""))
    except RecursionError:
        raise UnkeptError("its arguments are nested too deeply") from None
    except ValueError:
        raise UnkeptError("its payload is not JSON") from None
    if not isinstance(found, dict):
        raise UnkeptError("its arguments are not a JSON object")
    return found
