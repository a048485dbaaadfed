"""Write the next migration, which brings a database from the existing migrations to the state of
src/forebay/sql/schema.

    .venv/bin/python tools/write_migration.py add_source

The tool migrates one database and builds another one from ``schema/``. The differences become one
to three files:

- ``0002_add_source.sql`` creates and replaces functions, adds tables, columns at the end,
  sequences, settings;
- ``0003_add_source_indexes.sql`` builds indexes on existing tables, outside a transaction;
- ``0004_post_add_source.sql`` removes what is no longer called, once the last older worker has
  ended.

A difference that needs a decision, such as a column of another type, becomes a statement that
fails: ``write by hand``. Read and edit the files, then run the tests: the chain of migrations must
end in the same catalog as ``schema/``.
"""

from __future__ import annotations

import asyncio
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from forebay.doctor.examine import read_catalog
from forebay.embedded import temporary_server
from forebay.sql import latest_version, loader, split_statements
from forebay.sql.composer import BODIES_CHECKED, BODIES_UNCHECKED, SCHEMA, compose
from forebay.upgrade.migrate import migrate

MIGRATIONS: Final = SCHEMA.parent / "migrations"

#: In addition to the catalog that the doctor compares: results and grants of functions, the order
#: of columns, comments, settings, and the exact functions of segments.
_BESIDE: Final = """
select 'result of ' || p.oid::regprocedure,
       format('%s of %s', pg_get_function_result(p.oid), pg_get_function_identity_arguments(p.oid))
from pg_proc p where p.pronamespace = 'forebay'::regnamespace and p.proname !~ '_\\d+$'
union all
select format('grant %s to %s', p.oid::regprocedure, a.grantee::regrole), a.privilege_type
from pg_proc p, aclexplode(p.proacl) a
where p.pronamespace = 'forebay'::regnamespace and a.grantee <> p.proowner and p.proname !~ '_\\d+$'
union all
select format('grant %s to %s', c.relname, a.grantee::regrole), string_agg(a.privilege_type, ', '
    order by a.privilege_type)
from pg_class c, aclexplode(c.relacl) a
where c.relnamespace = 'forebay'::regnamespace and a.grantee <> c.relowner and c.relname !~ '_\\d+$'
group by c.relname, a.grantee
union all
select 'order of ' || c.relname, string_agg(a.attname, ', ' order by a.attnum)
from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relnamespace = 'forebay'::regnamespace and c.relkind in ('r', 'p', 'c', 'v')
    and c.relname !~ '^log_\\d+$'
group by c.relname
union all
select 'comment on ' || c.relname, d.description
from pg_class c join pg_description d on d.objoid = c.oid and d.classoid = 'pg_class'::regclass
    and d.objsubid = 0
where c.relnamespace = 'forebay'::regnamespace
union all
select 'view ' || c.relname, pg_get_viewdef(c.oid)
from pg_class c where c.relnamespace = 'forebay'::regnamespace and c.relkind = 'v'
union all
select 'segment function ' || p.oid::regprocedure, md5(p.prosrc)
from pg_proc p where p.pronamespace = 'forebay'::regnamespace and p.proname ~ '_\\d+$'
union all
select 'setting ' || s.name, s.value::text from forebay.setting s
"""

_SEGMENT: Final = "_#("
_REMAKE: Final = """\
-- The functions of each segment, as _make_segment_functions() now creates them.
do $$
declare
    v_segment record;
begin
    for v_segment in select s.segment_id, s.hi from forebay.segment s order by s.segment_id loop
        perform forebay._make_segment_functions(v_segment.segment_id, v_segment.hi);
    end loop;
end
$$;
"""
_SET_ASIDE_SEGMENTS: Final = """\
do $$
begin
    perform forebay._set_aside(p.oid) from pg_proc p
    where p.pronamespace = 'forebay'::regnamespace and p.proname ~ '^{name}_[0-9]+$';
end
$$;
"""
_DROP_SEGMENTS: Final = """\
do $$
declare
    v_function regprocedure;
begin
    for v_function in select p.oid from pg_proc p
                      where p.pronamespace = '{schema}'::regnamespace
                        and p.proname ~ '^{name}_[0-9]+$' loop
        execute format('drop function %s', v_function);
    end loop;
end
$$;
"""
_REVOKE: Final = """\
do $$
begin
    if exists (select from pg_roles where rolname = '{role}') then
        revoke {right} on {kind} {subject} from {role};
    end if;
end
$$;
"""


@dataclass
class Files:
    """The contents of the files, statement by statement."""

    pre: list[str] = field(default_factory=list)
    indexes: list[str] = field(default_factory=list)
    post: list[str] = field(default_factory=list)
    locks: set[str] = field(default_factory=set)
    unchecked: bool = False

    def by_hand(self, what: str) -> None:
        """Add a statement that fails until a person replaces it."""
        quoted = what.replace("'", "''").replace("%", "%%")
        self.pre.append(
            f"-- write by hand: {what}\n"
            f"do $$ begin raise exception 'write by hand: {quoted}'; end $$;\n"
        )

    def texts(self, name: str, first: int) -> dict[str, str]:
        """Return the files by their names."""
        found: dict[str, str] = {}

        def add(title: str, head: str, parts: list[str]) -> None:
            if parts:
                body = "\n\n".join(part.strip() + "\n" for part in parts)
                found[f"{first + len(found):04}_{title}.sql"] = f"{head}\n\n{body}"

        head = f"-- Written by tools/write_migration.py: {name.replace('_', ' ')}."
        pre = [BODIES_UNCHECKED, *self.pre, BODIES_CHECKED] if self.unchecked else self.pre
        locks = f"\n-- locks: {', '.join(sorted(self.locks))}" if self.locks else ""
        add(name, head + locks, pre)
        add(f"{name}_indexes", f"{head}\n-- outside a transaction", self.indexes)
        add(f"post_{name}", head, self.post)
        return found


def contents(dsn: str) -> dict[str, str]:
    """Return the contents of a schema, object by object."""
    found = asyncio.run(read_catalog(dsn))
    with psycopg.connect(dsn) as conn:
        found |= dict(conn.execute(_BESIDE).fetchall())
    return found


def build_into(dsn: str, schema: Path = SCHEMA) -> None:
    """Create the schema of the sources in an empty database."""
    with psycopg.connect(dsn) as conn:
        conn.execute("set local search_path = pg_catalog, pg_temp")
        conn.execute(compose(schema).encode())


def differences(there: dict[str, str], wanted: dict[str, str]) -> list[str]:
    """Return the objects that only one of two schemas has, or that differ between them."""
    return sorted(
        name for name in there.keys() | wanted.keys() if there.get(name) != wanted.get(name)
    )


def plan(there: dict[str, str], wanted: dict[str, str], script: str) -> Files:
    """Return the files that change one schema into the wanted one.

    Script creates the wanted schema.
    """
    files = Files()
    different = differences(there, wanted)
    statements = _Statements(script)
    old_relations, new_relations = _relations(there), _relations(wanted)

    for name in different:
        if name.startswith("sequence ") and name not in there:
            files.pre += statements.of(name.removeprefix("sequence ")) or [_missing(files, name)]
    for relation in sorted(new_relations - old_relations):
        files.pre += statements.of(relation) or [_missing(files, f"relation {relation}")]
    for relation in sorted(old_relations - new_relations):
        files.post.append(f"drop table forebay.{relation};  -- Or type, or view.\n")
    for name in different:
        kind, _, subject = name.partition(" ")
        match kind:
            case "column" | "constraint" | "index":
                relation = subject.partition(".")[0]
                if relation in old_relations & new_relations | {"log_#"}:
                    _change(files, kind, subject, there.get(name), wanted.get(name))
            case "sequence" if name not in wanted:
                files.post.append(f"drop sequence forebay.{subject};\n")
            case "comment" | "view":
                relation = subject.removeprefix("on ")
                if relation in old_relations:
                    files.pre += statements.of(relation, only=kind)
            case "setting" if name not in there:
                files.pre.append(
                    f"insert into forebay.setting (name, value) values ('{subject}', "
                    f"'{wanted[name]}');\n"
                )
            case "order" if sorted(there.get(name, "").split(", ")) == sorted(
                wanted.get(name, "").split(", ")
            ):
                files.by_hand(f"{name}: add new columns at the end, so that the order is the same")
            case "function" | "result" | "segment" | "order" | "grant" | "owner":
                pass
            case "sequence" if name not in there:
                pass
            case _:
                files.by_hand(f"{name}: {there.get(name)} must become {wanted.get(name)}")
    _functions(files, there, wanted, statements)
    _grants(files, there, wanted)
    return files


def _missing(files: Files, what: str) -> str:
    files.by_hand(f"{what} is new, and no separate statement creates it")
    return files.pre.pop()


def _relations(found: dict[str, str]) -> set[str]:
    return {name.removeprefix("order of ") for name in found if name.startswith("order of ")}


def _change(files: Files, kind: str, subject: str, was: str | None, now: str | None) -> None:
    relation, _, name = subject.partition(".")
    if relation == "log_#":
        if kind != "column":  # Columns of segments are those of the log.
            files.by_hand(
                f"{kind} {subject}: {was} must become {now}, in a migration for each segment"
            )
    elif kind == "index" and was is None and now is not None and "UNIQUE" not in now:
        made = now.replace("CREATE INDEX", "create index concurrently").replace(" ON ", " on ")
        files.indexes += [f"drop index concurrently if exists forebay.{name};\n{made};\n"]
    elif kind == "index" and now is None:
        files.post.append(f"drop index forebay.{name};\n")
    elif kind == "column" and was is None and now is not None:
        if "not null" in now and "default" not in now:
            files.by_hand(f"column {subject} is new and {now}: choose a value for existing rows")
        elif relation.startswith("_"):
            files.pre.append(f"alter type forebay.{relation} add attribute {name} {now};\n")
        else:
            files.locks.add(relation)
            files.pre.append(f"alter table forebay.{relation} add column {name} {now};\n")
    else:
        files.by_hand(f"{kind} {subject}: {was} must become {now}")


def _functions(
    files: Files, there: dict[str, str], wanted: dict[str, str], statements: _Statements
) -> None:
    """Replace functions.

    Those with other parameters or another result are set aside, and dropped later.
    """
    changed: list[str] = []
    different = differences(there, wanted)
    for name in different:
        if not name.startswith(("function ", "result of ")):
            continue
        signature = name.removeprefix("function ").removeprefix("result of forebay.")
        short = signature.partition("(")[0]
        if _SEGMENT in name:
            prefix = short.removesuffix("_#")
            if name not in wanted and any(n.startswith(f"function {short}(") for n in wanted):
                files.pre.append(_SET_ASIDE_SEGMENTS.format(name=prefix))
                files.post.append(_DROP_SEGMENTS.format(schema="forebay_set_aside", name=prefix))
            elif name not in wanted:
                files.post.append(_DROP_SEGMENTS.format(schema="forebay", name=prefix))
        elif name.startswith("result of "):
            if name not in there:
                continue
            if any(n.startswith(f"result of forebay.{short}(") for n in wanted):
                files.pre.append(
                    f"select forebay._set_aside('forebay.{signature}'::regprocedure);\n"
                )
                files.post.append(f"drop function forebay_set_aside.{signature};\n")
            else:
                files.post.append(f"drop function forebay.{signature};\n")
        elif name in wanted and short not in changed:
            changed.append(short)
    for short in changed:
        files.unchecked = True
        files.pre += statements.of(short, only="function")
    if any(name.startswith("segment function ") for name in different):
        files.pre.append(_REMAKE)


def _grants(files: Files, there: dict[str, str], wanted: dict[str, str]) -> None:
    """Revoke rights that a role loses.

    Every migration runs forebay._grant(), which adds new ones.
    """
    for name in sorted(there.keys() - wanted.keys()):
        if name.startswith("grant ") and not name.startswith("grant to public"):
            subject, _, role = name.removeprefix("grant ").rpartition(" to ")
            is_function = "(" in subject
            if is_function and f"result of {subject}" not in wanted:
                continue  # The function itself is dropped.
            kind = "function" if is_function else "table"
            files.post.append(
                _REVOKE.format(role=role, right=there[name], kind=kind, subject=subject)
            )


class _Statements:
    """The statements of the script that creates the schema, by the object they create."""

    _MADE: Final = re.compile(
        r"^(?:create (?P<kind>function|table|sequence|type|view|(?:unique )?index \w+ on) "
        r"forebay\.(?P<name>\w+)"
        r"|(?P<comment>comment) on (?:table|view) forebay\.(?P<on>\w+))",
        re.MULTILINE,
    )

    def __init__(self, script: str) -> None:
        self._all: list[tuple[str, str, str]] = []
        for statement in split_statements(script):
            made = self._MADE.search(statement)
            if made:
                text = re.sub(r"\A-- [\w/]+\.sql\n\n", "", statement)
                text = re.sub(r"^-- grant: .*\n\n?", "", text, flags=re.MULTILINE)
                self._all.append(
                    (made["kind"] or "comment", made["name"] or made["on"], f"{text};\n")
                )

    def of(self, name: str, only: str | None = None) -> list[str]:
        """Return the statements that create an object, optionally of one kind only."""
        return [
            text.replace("create function", "create or replace function", 1)
            if kind == "function"
            else text.replace("create view", "create or replace view", 1)
            for kind, made, text in self._all
            if made == name and (kind == only if only else kind != "function")
        ]


def main() -> None:
    """Write the files, apply them, and report what still differs."""
    if not MIGRATIONS.exists():
        sys.exit("nothing is released: the first migration is composed from schema/ as it is")
    if len(sys.argv) != 2 or not re.fullmatch(r"[a-z][a-z0-9_]*", sys.argv[1]):
        sys.exit("usage: write_migration.py NAME (lower-case letters, digits and underscores)")
    with temporary_server(extra_settings={"fsync": "off"}) as server:
        chain, baseline, again = (_database(server, name) for name in ("chain", "base", "again"))
        migrate(chain)
        build_into(baseline)
        wanted = contents(baseline)
        files = plan(contents(chain), wanted, compose()).texts(sys.argv[1], latest_version() + 1)
        if not files:
            sys.exit("schema/ and the migrations match: nothing to write")
        for name, text in files.items():
            (MIGRATIONS / name).write_text(text, encoding="utf-8")
            print(MIGRATIONS / name)
        loader.migrations.cache_clear()
        try:
            migrate(again)
        except Exception as error:  # Any error: the files exist and can be edited.
            sys.exit(f"edit the files: {error}")
        left = differences(contents(again), wanted)
    if left:
        sys.exit("edit the files; these objects still differ: " + ", ".join(left))
    print("the migrations match schema/")


def _database(server: Any, name: str) -> str:
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(f"create database {name}")
    dsn: str = server.dsn(name)
    return dsn


if __name__ == "__main__":
    main()
