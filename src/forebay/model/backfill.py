"""The rows of an application's tables that become jobs, and the progress of a backfill.

A condition is SQL of the application. Values are never part of the SQL text: the server quotes each
value with ``format('%L')``, so that no value can end its literal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

import msgspec

from forebay._dataclass import dataclass
from forebay.errors import InvalidJob, shown
from forebay.model.doors import door

#: Placeholders of values in a condition or a query, and the percent sign, which must be doubled.
_PLACE: Final = re.compile(r"%(?:%|\((?P<name>\w+)\)s|(?P<bad>.?))", re.DOTALL)

_AS_WRITTEN: Final = (int, float, Decimal, UUID)
_ISO: Final = (datetime, date, time)


@dataclass(frozen=True, slots=True)
class Select:
    """A query with placeholders for values.

    Attributes:
        template: for PostgreSQL's ``format``; ``%N$L`` is value N.
        values: the values as text; None for NULL.
        key: the column that chunks are formed by; None if the backfill must name it.
    """

    template: str
    values: list[str | None]
    key: str | None = None


class Rows:
    """Rows of a table or query; each becomes a job.

    A table is given by name (``page``, ``shop.page``; names are quoted and case-sensitive). All
    conditions must hold. The columns are the arguments of the handler.

    Args:
        table: name of the table.
        columns: the arguments: a column, several columns, or a mapping of argument names to
            columns.
        ids: only rows with these ids.
        id_column: the column that ``ids`` refers to.
        equal: only rows with these values by column, e.g. of one user. None is NULL; a list matches
            any of its values.
        between: only rows within these bounds by column, both included; None leaves a side open.
        where: a further condition, in SQL, with ``%(name)s`` for values; then write ``%`` as
            ``%%``.
        params: the values of ``where``, by name.

    Raises:
        InvalidJob: a name is invalid, or a value has no form in SQL.

    >>> Rows("page", equal={"group_id": 7}, where="words > %(least)s", params={"least": 100})
    <rows of page>
    """

    __slots__ = ("_name", "_names", "_select")

    @door
    def __init__(
        self,
        table: str,
        columns: str | Iterable[str] | Mapping[str, str] = "id",
        *,
        ids: Iterable[Any] | None = None,
        id_column: str = "id",
        equal: Mapping[str, Any] | None = None,
        between: Mapping[str, tuple[Any, Any]] | None = None,
        where: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(columns, str):
            columns = (columns,)
        if not isinstance(columns, Mapping):
            columns = {column: column for column in columns}
        if not columns:
            raise InvalidJob("columns", "are empty: the jobs need arguments")
        writer = _Writer()
        conditions = []
        if ids is not None:
            conditions.append(f"{_quoted(id_column)} = any({writer.add(list(ids), 'ids')})")
        conditions += [writer.equal(column, value) for column, value in (equal or {}).items()]
        for column, bounds in (between or {}).items():
            conditions += writer.between(column, bounds)
        if where is not None:
            conditions.append(f"({writer.rendered(where, params)}\n)")
        elif params:
            raise InvalidJob("params", "are given without where")
        named = ", ".join(f"{_quoted(c)} as {_quoted(name)}" for name, c in columns.items())
        text = f"select {named} from {'.'.join(_quoted(part) for part in table.split('.'))}"
        if conditions:
            text += " where " + " and ".join(conditions)
        keys = [name for name, column in columns.items() if column == id_column]
        self._name = table
        # With a column args, the others are options.
        self._names = None if "args" in columns else frozenset(columns)
        self._select = Select(text, writer.values, keys[0] if keys else None)

    @classmethod
    @door
    def query(cls, sql: str, params: Mapping[str, Any] | None = None) -> Rows:
        """Return the rows of any SELECT.

        Its columns are the arguments of the handler. If it has a column ``args``, a JSON object,
        that column contains the arguments, and the other columns are options of each job, such as
        ``ordering_key`` and ``unique_as``.

        Args:
            sql: the query, with ``%(name)s`` for values if there are ``params``.
            params: the values, by name.
        """
        writer = _Writer()
        found = cls.__new__(cls)
        found._name = "a query"  # noqa: SLF001 - of this class
        found._names = None  # noqa: SLF001 - of this class
        found._select = Select(writer.rendered(sql, params), writer.values)  # noqa: SLF001
        return found

    @property
    def names(self) -> frozenset[str] | None:
        """The names of the arguments; None if the database has to say."""
        return self._names

    @property
    def select(self) -> Select:
        """The query."""
        return self._select

    def __repr__(self) -> str:
        return f"<rows of {self._name}>"


class _Writer:
    """Replaces values by placeholders."""

    def __init__(self) -> None:
        self.values: list[str | None] = []

    def add(self, value: Any, name: str) -> str:
        self.values.append(_text(value, name))
        return f"%{len(self.values)}$L"

    def equal(self, column: str, value: Any) -> str:
        """Return the condition that a column has a value, one of several, or none."""
        name = _quoted(column)
        if value is None:
            return f"{name} is null"
        if isinstance(value, list | tuple | set | frozenset):
            return f"{name} = any({self.add(list(value), column)})"
        return f"{name} = {self.add(value, column)}"

    def between(self, column: str, bounds: Any) -> list[str]:
        """Return the conditions that a column lies between two bounds; None is no bound."""
        if not isinstance(bounds, list | tuple) or len(bounds) != 2:
            raise InvalidJob("between", f"of {column} must be two bounds, not {shown(bounds)}")
        return [
            f"{_quoted(column)} {sign} {self.add(value, column)}"
            for value, sign in zip(bounds, (">=", "<="), strict=True)
            if value is not None
        ]

    def rendered(self, sql: Any, params: Mapping[str, Any] | None) -> str:
        """Return SQL as a template."""
        if not isinstance(sql, str) or not sql.strip() or "\0" in sql:
            raise InvalidJob("query", f"must be SQL, not {shown(sql)}")
        if params is None:
            return str(sql).replace("%", "%%")
        places: dict[str, str] = {}

        def place(found: re.Match[str]) -> str:
            name = found["name"]
            if name is None:
                if found["bad"] is not None:
                    raise InvalidJob(
                        "query",
                        f"has {found[0]!r}, which is not a placeholder",
                        hint="Write a value as %(name)s, and % as %%.",
                    )
                return "%%"
            if name not in params:
                raise InvalidJob("params", f"have no {shown(name)}")
            if name not in places:
                places[name] = self.add(params[name], name)
            return places[name]

        text = _PLACE.sub(place, sql)
        unused = sorted(set(params) - set(places))
        if unused:
            raise InvalidJob("params", f"have {shown(unused[0])}, which the query does not use")
        return text


def _quoted(name: object) -> str:
    """Return an identifier for a template."""
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidJob("name", f"of a table or column must be text, not {shown(name)}")
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def _text(value: Any, name: str) -> str | None:
    """Return the text of a value as PostgreSQL parses it for a column of the value's type."""
    if isinstance(value, Enum):
        value = value.value
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, _AS_WRITTEN):
        return str(value)
    if isinstance(value, _ISO):
        return value.isoformat()
    if isinstance(value, timedelta):
        return f"{value // timedelta(microseconds=1)} microseconds"
    if isinstance(value, bytes | bytearray | memoryview):
        return "\\x" + bytes(value).hex()
    if isinstance(value, Mapping):
        value = msgspec.json.encode(value).decode()
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidJob(name, f"has a NUL character: {shown(value)}")
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return "{" + ",".join(_element(item, name) for item in value) + "}"
    raise InvalidJob(name, f"has no form in SQL: {shown(value)}")


def _element(value: Any, name: str) -> str:
    text = _text(value, name)
    if text is None:
        return "NULL"
    if isinstance(value, list | tuple | set | frozenset):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPlan:
    """What a backfill would enqueue.

    Attributes:
        token: identifies exactly these jobs; a backfill with it enqueues them or none.
        jobs: number of jobs.
        bytes: size of their arguments as JSON.
        seconds: time to enqueue them at the rate measured now; None on a read-only connection and
            for a full queue.
        waiting: jobs that already wait in the queue, also scheduled ones, in its slowest group.
        waiting_alike: those with the same priority.
        queue: the queue of the jobs.
    """

    token: str
    jobs: int
    bytes: int
    seconds: float | None
    waiting: int
    waiting_alike: int
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillProgress:
    """Progress of a backfill in chunks.

    Attributes:
        backfill_id: its number, to resume it.
        enqueued: jobs of the chunk that was committed.
        jobs_done: how many of the jobs counted at the beginning are processed.
        jobs_all: number of jobs counted at the beginning.
        seconds: time since this call began.
    """

    backfill_id: int
    enqueued: int
    jobs_done: int
    jobs_all: int
    seconds: float = field(default=0.0)
