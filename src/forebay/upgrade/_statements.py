"""The statements around a migration: one migrator at a time, timeouts, the record of applied
migrations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from forebay.sql import Migration

#: The lock of a migrator. Before the first migration it does not exist; then ``create schema``
#: admits one migrator.
MIGRATOR_LOCK: Final = "forebay.lock_migration"

#: How long a migrator waits for another migrator.
MIGRATOR_WAIT_SECONDS: Final = 120

SEARCH_PATH: Final = "pg_catalog, pg_temp"

OPENING: Final = f"""\
-- One migrator at a time. The settings are restored at the end.
select set_config('forebay.search_path_before', current_setting('search_path'), true),
       set_config('forebay.lock_timeout_before', current_setting('lock_timeout'), true),
       set_config('search_path', '{SEARCH_PATH}', true),
       set_config('lock_timeout', '{MIGRATOR_WAIT_SECONDS}s', true);
do $forebay$
begin
    if to_regclass('{MIGRATOR_LOCK}') is not null then
        lock table only {MIGRATOR_LOCK} in share update exclusive mode;
    end if;
end
$forebay$;"""

CLOSING: Final = """\
select set_config('search_path', current_setting('forebay.search_path_before'), true),
       set_config('lock_timeout', current_setting('forebay.lock_timeout_before'), true);"""

_CONCURRENTLY: Final = re.compile(r"\bconcurrently\s+", re.IGNORECASE)


def in_a_transaction(step: Migration) -> str:
    """Return a migration as text for a transaction with other migrations."""
    if not step.is_outside:
        text = step.text.strip()
    else:
        parts = [_CONCURRENTLY.sub("", statement) for statement in step.statements()]
        text = "\n".join(map(_for_each_segment if step.is_per_segment else _ended, parts))
    return f"{requiring_gone(step)};\n\n{text}" if step.is_post else text


def recording(steps: Sequence[Migration]) -> str:
    """Return the statements that record migrations as applied."""
    records = ",\n".join(
        f"    ({step.version}, '{step.name}', '{step.checksum}')" for step in steps
    )
    return (
        f"insert into forebay.schema_migration (version, name, checksum) values\n{records};\n\n"
        "-- Grant the new functions too.\nselect forebay._grant();"
    )


def requiring_gone(step: Migration) -> str:
    """Return the statement that refuses a post migration while older workers are alive."""
    return f"select forebay._require_gone({step.version})"


def table_list(names: Sequence[str]) -> str:
    """Return the names of our tables as SQL."""
    return ", ".join(f"forebay.{name}" for name in names)


def setting_timeout(name: str, seconds: float) -> str:
    """Return the statement that sets a timeout until the end of the transaction."""
    # 0 would mean no limit.
    return f"set local {name} = '{max(1, round(seconds * 1000))}ms'"


def _ended(statement: str) -> str:
    return f"{statement};"


def _for_each_segment(statement: str) -> str:
    return f"""\
do $forebay$
declare
    v_segment bigint;
begin
    for v_segment in select s.segment_id from forebay.segment s order by s.segment_id loop
        execute replace($text$
{statement}
$text$, '{{segment}}', v_segment::text);
    end loop;
end
$forebay$;"""
