"""Compose the first migration, the schema of a new database, from its sources in ``schema/``.

Wheels and source distributions have the composed file, made by ``tools/schema_hook.py``, and not
this module. A checkout has the sources; from its first release on it has the file as well, and
``tools/write_migration.py`` writes the migrations that bring a database to the state of
``schema/``. The order is fixed: the schema, its roles, its types and tables, its functions by file
path, then the first rows. PostgreSQL does not check the bodies of functions here, since some
functions call later ones.

This module imports the standard library only, because the build of a wheel runs it by its path.

A line of this form is replaced:

``-- build: grants``
    The functions of each role, from the headers of their files: ``-- grant: producer, worker``.
``-- build: segment functions``
    A statement for each file of ``functions/claim/segment``; it creates that function for one
    segment of the log.
``-- include: no_such_group``
    The text of ``fragments/no_such_group.sql``, without its header, which ends at the first empty
    line.
``-- planner: hot``
    The settings of that name in ``planner.sql``.

Within a line, ``{job}`` is the list of the fields of a job, and ``{options}`` that of those an
enqueue may leave out, as ``fragments/job_columns.sql`` declares them. Both have these forms, each
of which may end in ``but NAME, NAME``:

``{job}``                    ``kind, args, tag``
``{job of d}``               ``d.kind, d.args, d.tag``
``{options passed of d}``    ``tag => d.tag``
``{options keys}``           ``'tag'``
``{options marked}``         ``tag`` in backquotes, for comments
``{options parameters}``     ``tag text default null``
``{job types}``              ``kind text, args jsonb, tag text``

``{control}`` is the class of the control characters, for use in the brackets of a regular
expression: ``name !~ E'[{control}]'``.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA: Final = Path(__file__).parent / "schema"

#: Control characters, as Python's ``forebay.model.checks`` has them, with the escapes of regular
#: expressions: a text of SQL with the characters from 80 on depends on the encoding, and a class
#: with a name on the collation.
CONTROL: Final = r"\\x01-\\x1f\\x7f-\\x9f"

ROLES: Final = ("producer", "worker", "operator", "reader")

_GRANT: Final = re.compile(r"^-- grant: (.+)$", re.MULTILINE)
_FUNCTION: Final = re.compile(r"^create function forebay\.(\w+)", re.MULTILINE)
_BUILD: Final = re.compile(r"^( *)-- build: (.+)\n", re.MULTILINE)
_INCLUDE: Final = re.compile(r"^( *)-- include: (.+)\n", re.MULTILINE)
_FIELDS: Final = re.compile(
    r"\{(job|options)(?: (passed|keys|marked|parameters|types))?(?: of ([^{}]+?))?(?: but "
    r"([a-z_, ]+))?\}"
)
_COLUMN: Final = re.compile(r"^(\w+) +(\w+)([^,\n]*)", re.MULTILINE)
_PLANNER: Final = re.compile(r"^-- planner: (.+)\n", re.MULTILINE)
_PLANNER_SET: Final = re.compile(r"^-- ([a-z ]+): .*\n((?:set .*\n)+)", re.MULTILINE)
_SEGMENT_FUNCTIONS: Final = "functions/claim/segment"

#: Placeholders in a segment's function, and their numbers in format().
_PLACES: Final = {"{segment}": "%1$s", "{end}": "%2$s", "{sealed_before}": "%3$s"}
_PLACE_VALUES: Final = "p_segment_id, p_hi, v_sealed_before"

_TITLE: Final = """\
-- The schema of the first release, composed from src/forebay/sql/schema: edit that, not this file.
"""
BODIES_UNCHECKED: Final = """\
-- Functions are created in the order of their files, so some call functions that do not exist yet.
-- Quoted names in the settings of a function would look like drift.
select set_config('forebay.check_function_bodies_before',
                  current_setting('check_function_bodies'), true),
       set_config('forebay.quote_all_identifiers_before',
                  current_setting('quote_all_identifiers'), true),
       set_config('check_function_bodies', 'off', true),
       set_config('quote_all_identifiers', 'off', true);
"""
BODIES_CHECKED: Final = """\
select set_config('check_function_bodies',
                  current_setting('forebay.check_function_bodies_before'), true),
       set_config('quote_all_identifiers',
                  current_setting('forebay.quote_all_identifiers_before'), true);
"""


def compose(schema: Path = SCHEMA) -> str:
    """Return the script that creates the schema.

    Raises:
        ValueError: a file names no grants for its functions, or has an unknown directive.
    """
    settings = planner_sets(schema)
    files = [
        schema / "schema.sql",
        schema / "roles.sql",
        *sorted((schema / "tables").glob("*.sql")),
        *functions_of(schema),
        schema / "first_rows.sql",
    ]
    parts = [
        f"-- {file.relative_to(schema).as_posix()}\n\n{_composed(file, schema, settings)}"
        for file in files
    ]
    return "\n\n".join([f"{_TITLE}\n{BODIES_UNCHECKED}", *parts, BODIES_CHECKED])


def functions_of(schema: Path) -> list[Path]:
    """Return the files that define functions, in the order of their creation."""
    segment = schema / _SEGMENT_FUNCTIONS
    return sorted(
        file for file in (schema / "functions").rglob("*.sql") if segment not in file.parents
    )


def grants(schema: Path) -> dict[str, list[str]]:
    """Return the functions that each role may call, from the headers of the files.

    Raises:
        ValueError: a file with public functions does not name their roles, or names an unknown
            role.
    """
    found: dict[str, list[str]] = {role: [] for role in ROLES}
    for file in functions_of(schema):
        text = file.read_text(encoding="utf-8")
        public = {name for name in _FUNCTION.findall(text) if not name.startswith("_")}
        named = _GRANT.findall(text)
        if len(named) != bool(public):
            raise ValueError(
                f"{file}: needs one line `-- grant: ...` if, and only if, it has public functions"
            )
        for role in named[0].split(", ") if named and named[0] != "none" else ():
            if role not in found:
                raise ValueError(f"{file}: unknown role {role}; use {', '.join(ROLES)} or none")
            found[role] += public
    return {role: sorted(names) for role, names in found.items()}


def planner_sets(schema: Path) -> dict[str, str]:
    """Return the named sets of planner settings."""
    return dict(_PLANNER_SET.findall((schema / "planner.sql").read_text(encoding="utf-8")))


def segment_functions(schema: Path) -> dict[str, str]:
    """Return the functions of each segment: name and text."""
    settings = planner_sets(schema)
    return {
        file.stem: _composed(file, schema, settings)
        for file in sorted((schema / _SEGMENT_FUNCTIONS).glob("*.sql"))
    }


def _composed(file: Path, schema: Path, settings: Mapping[str, str]) -> str:
    """Return the text of a file with its directives replaced."""

    def included(place: re.Match[str]) -> str:
        fragment = schema / "fragments" / f"{place[2]}.sql"
        if not fragment.exists():
            raise ValueError(f"{file}: include: {fragment} not found")
        _head, _, text = fragment.read_text(encoding="utf-8").partition("\n\n")
        return textwrap.indent(text, place[1])

    def settings_of(place: re.Match[str]) -> str:
        if place[1] not in settings:
            raise ValueError(f"{file}: planner: {place[1]} is not in planner.sql")
        return settings[place[1]]

    def made(place: re.Match[str]) -> str:
        match place[2]:
            case "grants":
                return textwrap.indent(_grants(schema), place[1])
            case "segment functions":
                return _segment_functions(schema)
            case other:
                raise ValueError(f"{file}: build: unknown part {other}")

    text = _INCLUDE.sub(included, file.read_text(encoding="utf-8"))
    text = with_fields(text, schema)
    return _BUILD.sub(made, _PLANNER.sub(settings_of, text))


def with_fields(text: str, schema: Path = SCHEMA) -> str:
    """Return a source with its lists of the fields of a job, and the class of the control
    characters, written out.
    """
    text = text.replace("{control}", CONTROL)
    return _FIELDS.sub(lambda place: _field_list(place, schema), text)


def job_columns(schema: Path = SCHEMA) -> dict[str, tuple[str, bool]]:
    """Return the fields of a job: the type of each, and whether it may be left out."""
    _head, _, text = (schema / "fragments" / "job_columns.sql").read_text("utf-8").partition("\n\n")
    return {name: (kind, "not null" not in rest) for name, kind, rest in _COLUMN.findall(text)}


def _field_list(place: re.Match[str], schema: Path) -> str:
    group, form, of, but = place.groups()
    left_out = but.split(", ") if but else []
    columns = job_columns(schema)
    if unknown := set(left_out) - set(columns):
        raise ValueError(f"{place[0]}: a job has no field {', '.join(sorted(unknown))}")

    def one(name: str, kind: str) -> str:
        value = f"{of}.{name}" if of else name
        match form:
            case "passed":
                return f"{name} => {value}"
            case "keys":
                return f"'{name}'"
            case "marked":
                return f"`{name}`"
            case "parameters":
                return f"{name} {kind} default null"
            case "types":
                return f"{name} {kind}"
            case _:
                return value

    return ", ".join(
        one(name, kind)
        for name, (kind, is_option) in columns.items()
        if name not in left_out and (is_option or group == "job")
    )


def _grants(schema: Path) -> str:
    lines = []
    for role, names in grants(schema).items():
        listed = textwrap.wrap(", ".join(f"'{name}'" for name in names), 100)
        lines.append(f"when 'forebay_{role}' then array[")
        lines += [f"    {line}" for line in listed]
        lines[-1] += "]"
    return "\n".join(lines) + "\n"


def _segment_functions(schema: Path) -> str:
    parts = []
    for name, text in segment_functions(schema).items():
        made = text.replace("create function", "create or replace function", 1)
        made = made.replace("$$", "$body$").replace("%", "%%")
        for place, number in _PLACES.items():
            made = made.replace(place, number)
        parts.append(
            f"    execute format($segment$\n{made}    $segment$, {_PLACE_VALUES});\n"
            f"    execute format('revoke all on function forebay._{name}_%s from public', "
            f"p_segment_id);\n"
        )
    return "\n".join(parts)
