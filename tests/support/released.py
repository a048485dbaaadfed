"""What was released: the migrations of each release, and the protocol that its workers speak.

``tests/migration/released.json`` is written by ``tools/record_release.py`` when a release is made,
and never edited.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

from forebay.sql import Migration

PATH = Path(__file__).parents[1] / "migration" / "released.json"

_PROTOCOL = """
select p.oid::regprocedure::text, pg_get_function_result(p.oid)
from pg_proc p
where p.pronamespace = 'forebay'::regnamespace and p.proname ~ '_v\\d+$'
order by 1
"""


def protocol(dsn: str) -> dict[str, str]:
    """Return the functions that workers call, with their parameters and results."""
    with psycopg.connect(dsn) as conn:
        return dict(conn.execute(_PROTOCOL).fetchall())


def released() -> dict[str, Any]:
    """Return what was recorded of each release."""
    found: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return found


def problems(
    record: Mapping[str, Any], steps: Sequence[Migration], spoken: Mapping[str, str]
) -> list[str]:
    """Return what the present library has changed of what was released; none is as it must be."""
    found = []
    checksums = {f"{step.version:04}_{step.name}": step.checksum for step in steps}
    for release, said in record.items():
        found += [
            f"{name} of {release} was changed"
            for name, checksum in said["migrations"].items()
            if checksums.get(name) != checksum
        ]
        if any(step.is_post for step in steps[len(said["migrations"]) :]):
            continue  # Something was meant to be taken away.
        found += [
            f"{function} of {release} is gone or returns something else"
            for function, result in said["protocol"].items()
            if spoken.get(function) != result
        ]
    return found
