"""Every role against every object: what ``role_matrix.txt`` says is tried, in both directions.

``tools/write_role_matrix.py`` writes that file. A line of it is an object, then a word for each
role that may do something with it. An object without a line, or a line without its object, fails
the test; so does each right too many or too few. Of numbered objects, such as segments, the first
one is tried, and has a line for all.
"""

import re
from pathlib import Path

import psycopg
import pytest

from tests.sql.test_roles import acting_as
from tests.support.engine import connect, enqueue, small_segments

MATRIX = Path(__file__).with_name("role_matrix.txt")
ROLES = ("producer", "worker", "operator", "reader", "nobody")

TRIALS = {
    "table": {
        "select": "select from {0} limit 0",
        "insert": "insert into {0} default values",
        "update": "update {0} set {1} = {1} where false",
        "delete": "delete from {0} where false",
        "truncate": "truncate {0} cascade",
    },
    "view": {"select": "select from {0} limit 0"},
    "sequence": {
        "select": "select last_value from {0}",
        "usage": "select nextval('{0}')",
        "update": "select setval('{0}', 1)",
    },
    "function": {"execute": "select {0}({1})"},
}

OBJECTS = """
    select case c.relkind when 'S' then 'sequence' when 'v' then 'view' else 'table' end,
        c.relname::text,
           format('forebay.%I', c.relname),
           (select format('%I', a.attname) from pg_attribute a
            where a.attrelid = c.oid order by a.attnum desc limit 1)
    from pg_class c where c.relnamespace = 'forebay'::regnamespace and c.relkind in ('r', 'p', 'v',
        'm', 'S')
    union all
    select 'function', format('%s(%s)', p.proname, oidvectortypes(p.proargtypes)),
        format('forebay.%I', p.proname),
           (select string_agg(format('null::%s', t::regtype), ', ') from unnest(p.proargtypes) t)
    from pg_proc p where p.pronamespace = 'forebay'::regnamespace
    order by 1, 2"""


def numberless(name: str) -> str:
    """Return a name with its number, of a segment, a wake-up or a leader, replaced."""
    return re.sub(r"(?<=_)\d+\b", "#", name)


def tried(conn: psycopg.Connection, statement: str) -> bool:
    """Whether the role may do it.

    Whatever else is wrong with the statement comes after the rights.
    """
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(statement)
    except psycopg.errors.InsufficientPrivilege:
        return False
    except psycopg.Error:
        return True
    return True


def rights(dsn: str) -> dict[str, dict[str, set[str]]]:
    """Try everything; return object -> role -> what it may do."""
    found: dict[str, dict[str, set[str]]] = {}
    with connect(dsn) as admin:
        objects = admin.execute(OBJECTS).fetchall()
    seen: set[str] = set()
    some = []
    for kind, name, *rest in objects:
        label = f"{kind} {numberless(name)}"
        if label in seen and "#" in label:
            continue
        seen.add(label)
        some.append((kind, label, *rest))
    for role in ROLES:
        roles = [] if role == "nobody" else [f"forebay_{role}"]
        with acting_as(dsn, *roles) as conn:
            conn.execute("set lock_timeout = '1s'")
            for kind, label, name, column in some:
                for right, statement in TRIALS[kind].items():
                    if tried(conn, statement.format(name, column or "")):
                        found.setdefault(label, {}).setdefault(role, set()).add(right)
                found.setdefault(label, {})
    return found


def written(found: dict[str, dict[str, set[str]]]) -> list[str]:
    """Return the lines of the matrix."""
    return [
        " | ".join(
            [
                label,
                *(f"{r}: {', '.join(sorted(found[label][r]))}" for r in ROLES if r in found[label]),
            ]
        )
        for label in sorted(found)
    ]


@pytest.mark.slow
@pytest.mark.direct
def test_every_role_may_do_with_every_object_what_the_matrix_says(database):
    """
    Tried as a login role with that membership and nothing else, nobody's included; a new object
    needs its line.
    """
    with connect(database) as conn:
        enqueue(conn)
        small_segments(conn)
    lines = written(rights(database))
    expected = MATRIX.read_text(encoding="utf-8").splitlines()
    assert lines == expected, "\n".join(sorted(set(lines) ^ set(expected)))


def test_no_role_holds_a_right_that_is_not_tried(database):
    """
    References, triggers, maintenance, grant options, columns, default privileges, rights on the
    schema: nobody but the owner.
    """
    with connect(database) as conn:
        odd = conn.execute(
            "select c.relname, a.grantee::regrole, a.privilege_type, a.is_grantable"
            " from pg_class c, aclexplode(c.relacl) a where c.relnamespace = "
            "'forebay'::regnamespace"
            " and a.grantee <> c.relowner and (a.privilege_type <> 'SELECT' or a.is_grantable)"
            " union all select p.proname, a.grantee::regrole, a.privilege_type, a.is_grantable"
            " from pg_proc p, aclexplode(p.proacl) a where p.pronamespace = 'forebay'::regnamespace"
            " and a.grantee <> p.proowner and (a.privilege_type <> 'EXECUTE' or a.is_grantable)"
            " union all select n.nspname, a.grantee::regrole, a.privilege_type, a.is_grantable"
            " from pg_namespace n, aclexplode(n.nspacl) a where n.nspname = 'forebay'"
            " and a.grantee <> n.nspowner and (a.privilege_type <> 'USAGE' or a.is_grantable)"
            " union all select a.attrelid::regclass::text, 0::oid::regrole, a.attacl::text, false"
            " from pg_attribute a join pg_class c on c.oid = a.attrelid"
            " where c.relnamespace = 'forebay'::regnamespace and a.attacl is not null"
        ).fetchall()
        assert odd == []
        defaults = (
            "select count(*) from pg_default_acl where defaclnamespace = 'forebay'::regnamespace"
        )
        assert conn.execute(defaults).fetchone() == (0,)
