"""Mend what the check `objects` finds: functions, grants and comments, from the migrations.

Invariant "no row is touched": a repair replaces functions, and repeats grants and comments. It
creates, alters and drops no table, column, constraint, index, type or sequence, and writes no row.
All of it is one transaction, which ends with that check: what that still finds is left. A
dry run is the same transaction, rolled back.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.rows import tuple_row

from forebay._dataclass import dataclass
from forebay.doctor._finding import Finding, Level
from forebay.doctor._schema import catalog, judge_objects
from forebay.errors import SchemaError
from forebay.sql import expected_catalog, migrations, required_version, split_statements
from forebay.upgrade.migrate import connection_to, pending_migrations, raising_ours

if TYPE_CHECKING:
    from collections.abc import Mapping

_BEGIN: Final = re.compile(r"(?:\s+|--[^\n]*\n)*")
_FUNCTION: Final = re.compile(r"create (?:or replace )?function forebay\.(\w+)")
_DAMAGED: Final = re.compile(r"function (\w+)(#?)\(")

#: As the owner of the schema, with whose rights its functions run.
_AS_OWNER: Final = """\
select set_config('role', n.nspowner::regrole::text, true), set_config('lock_timeout', '1s', true),
       set_config('check_function_bodies', 'off', true)
from pg_namespace n where n.nspname = 'forebay'"""

_FUNCTIONS: Final = """\
select p.oid::regprocedure::text from pg_proc p
where p.pronamespace = 'forebay'::regnamespace and p.proname = %s"""

_SEGMENTS: Final = """\
select forebay._make_segment_functions(s.segment_id, s.hi) from forebay.segment s
where s.removed_at is null and forebay._has_table(s.segment_id)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """What a repair mended, or would mend.

    Attributes:
        mended: the objects that were missing or changed.
        left: what still differs from the migrations.
    """

    mended: tuple[str, ...]
    left: tuple[Finding, ...]


def repair(target: str | psycopg.Connection[Any], *, dry_run: bool = False) -> Repaired:
    """Make functions, grants and comments of the schema as the migrations make them.

    Tables, and what is in them, stay as they are. It is one transaction.

    Args:
        target: the address of the database, or a synchronous connection.
        dry_run: do it and roll back; only return what would be mended.

    Raises:
        SchemaError: the schema is at another version than this library.
        DatabaseUnavailable: the database cannot be reached, or a lock was not granted in time.
    """
    with raising_ours(), connection_to(target) as conn:
        if pending := pending_migrations(conn):
            raise SchemaError(found=pending[0].version - 1 or None, needed=required_version())
        with conn.transaction(force_rollback=dry_run), conn.cursor(row_factory=tuple_row) as cursor:
            before = _read(cursor)
            cursor.execute(_AS_OWNER)
            _mend(cursor, before)
            after = _read(cursor)
    differing = _differing(before) - _differing(after)
    left = [each for each in judge_objects(after, expected_catalog()) if each.level != Level.OK]
    return Repaired(mended=tuple(sorted(differing)), left=tuple(left))


def _mend(cursor: psycopg.Cursor[Any], found: Mapping[str, str]) -> None:
    expected = expected_catalog()
    damaged = [
        match
        for name in _differing(found) & expected.keys()
        if (match := _DAMAGED.match(name)) is not None
    ]
    statements = _statements()
    for name in sorted({match[1] for match in damaged}):
        made = [text for text in statements if (m := _FUNCTION.match(text)) and m[1] == name]
        try:
            with cursor.connection.transaction():
                _execute(cursor, made)
        except psycopg.errors.InvalidFunctionDefinition:
            # It has another result, or other names of parameters: made anew.
            for (there,) in cursor.execute(_FUNCTIONS, (name,)).fetchall():
                cursor.execute(f"drop function {there}")
            _execute(cursor, made)
    if any(match[2] for match in damaged):
        cursor.execute(_SEGMENTS)
    _execute(cursor, [text for text in statements if text.startswith("comment on ")])
    cursor.execute("select forebay._grant()")


def _execute(cursor: psycopg.Cursor[Any], statements: list[str]) -> None:
    for text in statements:
        made = text.replace("create function", "create or replace function", 1)
        cursor.execute(made.encode())


@functools.cache
def _statements() -> tuple[str, ...]:
    """Return the statements of all migrations, without the comments before them."""
    texts = [text for step in migrations() for text in split_statements(step.text)]
    return tuple(_BEGIN.sub("", text, count=1) for text in texts)


def _read(cursor: psycopg.Cursor[Any]) -> dict[str, str]:
    operation = catalog()
    cursor.execute(operation.sql.encode(), dict(operation.params))
    return operation.decode(cursor.fetchall())


def _differing(found: Mapping[str, str]) -> set[str]:
    expected = expected_catalog()
    return {
        name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)
    }
