"""Attacks on functions that run with the owner's rights, by roles that may call them."""

import psycopg
import psycopg.types.json
import pytest

from tests.sql.test_roles import ROLES, acting_as
from tests.support.engine import connect, enqueue, one, sqlstate

pytestmark = pytest.mark.direct


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        conn.execute("grant create on schema public to public")
        yield conn


# --- what an argument carries ---

INJECTIONS = [
    "x'; create table public.pwned (); --",
    'x"; create table public.pwned (); --',
    "x$forebay$; create table public.pwned (); --",
    "$1) union select pg_read_file('/etc/passwd') --",
    "%I %L %s %1$s",
    "\\'; create table public.pwned (); --",
    "log; create table public.pwned ()",
    "1 or true",
]

CALLABLE = """
    select format('forebay.%I', p.proname),
           array(select t::regtype::text from unnest(p.proargtypes) with ordinality u (t, n)
               order by n)
    from pg_proc p
    where p.pronamespace = 'forebay'::regnamespace and p.prosecdef and p.proname <> '_window'
      and exists (select from aclexplode(p.proacl) a where a.grantee <> p.proowner)
    order by 1"""


@pytest.mark.parametrize("injection", INJECTIONS)
def test_no_text_in_an_argument_becomes_sql(database, conn, injection):
    """
    Every text of every function that any role may call: it is a value, refused or stored, and never
    part of a statement.
    """
    enqueue(conn)
    functions = conn.execute(CALLABLE).fetchall()
    assert len(functions) > 30
    with acting_as(database, *ROLES) as attacker:
        for name, types in functions:
            values = [injection if kind == "text" else None for kind in types]
            casts = ", ".join(f"%s::{kind}" for kind in types)
            code = sqlstate(attacker, f"select {name}({casts})", *values)
            # Class 42 is what a parser says.
            assert code is None or not code.startswith("42"), (name, code)
            if "jsonb" in types:
                bad = [
                    psycopg.types.json.Jsonb([{"kind": injection, "queue": injection, "args": {}}])
                    if kind == "jsonb"
                    else value
                    for kind, value in zip(types, values, strict=True)
                ]
                code = sqlstate(attacker, f"select {name}({casts})", *bad)
                assert code is None or not code.startswith("42"), (name, code)
    assert one(conn, "select to_regclass('public.pwned') is null")


def test_expressions_in_arguments_run_with_the_callers_rights(database, conn):
    """
    A function, a cast or a default of the caller's own that an argument leads to finds the caller,
    not the owner.
    """
    with acting_as(database, "forebay_producer") as attacker:
        attacker.execute("""
            create function public.who() returns text language plpgsql as $$ begin
                begin
                    delete from forebay.log;
                    return 'deleted';
                exception when insufficient_privilege then
                    return current_user;
                end;
            end $$;
            create type public.evil as (n integer);
            create function public.evil_to_jsonb(public.evil) returns jsonb language sql
                as $$ select jsonb_build_object('who', public.who()) $$;
            create cast (public.evil as jsonb) with function public.evil_to_jsonb(public.evil)
                as implicit;
            create function public.evil_to_text(public.evil) returns text language sql
                as $$ select public.who() $$;
            create domain public.sly as text check (public.who() <> 'deleted'
                and value is not null);
            """)
        attacker.execute("select forebay.enqueue('work', jsonb_build_object('who', public.who()))")
        attacker.execute("select forebay.enqueue('work', row(1)::public.evil)")
        attacker.execute("select forebay.enqueue('work'::public.sly)")
        attacker.execute(
            "select forebay.enqueue_many('work', array(select jsonb_build_object('who', "
            "public.who())))"
        )
        (name,) = attacker.execute("select current_user").fetchone()
        attacker.execute("drop owned by current_user cascade")
    found = [row[0] for row in conn.execute("select args ->> 'who' from forebay.log order by seq")]
    assert found == [name, name, None, name]


# --- what stands in the way of a name ---

IN_THE_WAY = """
create schema evil;
create table evil.setting (name text, value bigint);
create table evil.log (like evil.setting);
create function evil.hijacked() returns boolean language plpgsql
    as 'begin raise exception ''hijacked as %'', current_user; end';
create function evil.two(text, text) returns boolean language sql as 'select evil.hijacked()';
create function evil.two(jsonb, text) returns jsonb language plpgsql
    as 'begin raise exception ''hijacked''; end';
create function evil.two(bigint, bigint) returns boolean language sql as 'select evil.hijacked()';
create function evil.two(timestamptz, interval) returns timestamptz language plpgsql
    as 'begin raise exception ''hijacked''; end';
create operator evil.~ (leftarg = text, rightarg = text, function = evil.two);
create operator evil.= (leftarg = text, rightarg = text, function = evil.two);
create operator evil.<> (leftarg = text, rightarg = text, function = evil.two);
create operator evil.-> (leftarg = jsonb, rightarg = text, function = evil.two);
create operator evil.= (leftarg = bigint, rightarg = bigint, function = evil.two);
create operator evil.<= (leftarg = bigint, rightarg = bigint, function = evil.two);
create operator evil.+ (leftarg = timestamptz, rightarg = interval, function = evil.two);
create function evil.length(text) returns integer language plpgsql
    as 'begin raise exception ''hijacked''; end';
create function evil.octet_length(text) returns integer language plpgsql
    as 'begin raise exception ''hijacked''; end';
create function evil.clock_timestamp() returns timestamptz language plpgsql
    as 'begin raise exception ''hijacked''; end';
create function evil.pg_notify(text, text) returns void language plpgsql
    as 'begin raise exception ''hijacked''; end';
create function evil.nextval(regclass) returns bigint language plpgsql
    as 'begin raise exception ''hijacked''; end';
create function evil.set_config(text, text, boolean) returns text language plpgsql
    as 'begin raise exception ''hijacked''; end';
create function evil.jsonb_typeof(jsonb) returns text language plpgsql
    as 'begin raise exception ''hijacked''; end';
"""


def test_a_schema_before_the_catalog_replaces_nothing(database, conn):
    """
    Operators and functions of better or equal fit, in a schema of the caller's that is searched
    first: none of them runs, whichever function of the schema is called.
    """
    enqueue(conn)
    with acting_as(database, *ROLES) as attacker:
        conn.execute(
            f"grant create on database {conn.info.dbname}"
            f" to {attacker.execute('select current_user').fetchone()[0]}"
        )
        attacker.execute(IN_THE_WAY)
        attacker.execute("set search_path = evil, pg_temp, pg_catalog")
        with pytest.raises(psycopg.errors.RaiseException, match="hijacked"):
            attacker.execute("select 'a'::pg_catalog.text ~ 'a'::pg_catalog.text")
        attacker.execute(
            "select forebay.enqueue('work', '{\"a\": 1}', tag => 'a tag', delay => '1 minute')"
        )
        attacker.execute(
            "select forebay.enqueue('work', '{\"a\": 1}', headers => '{\"h\": \"v\"}')"
        )
        said: list[str] = []
        for name, types in conn.execute(CALLABLE).fetchall():
            nulls = ", ".join(f"null::pg_catalog.{t}" if "." not in t else "null" for t in types)
            try:
                attacker.execute(f"select {name}({nulls})")
            except psycopg.Error as error:
                said.append(f"{name}: {error}")
        assert [text for text in said if "hijacked" in text] == []
        attacker.execute("drop schema evil cascade")


# --- what a session may set ---

SETTINGS = {
    "standard_conforming_strings": "off",
    "transform_null_equals": "on",
    "array_nulls": "off",
    "datestyle": "German, DMY",
    "intervalstyle": "sql_standard",
    "timezone": "Asia/Kolkata",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "quote_all_identifiers": "on",
    "row_security": "off",
    "default_transaction_isolation": "serializable",
    "enable_indexscan": "off",
    "enable_indexonlyscan": "off",
    "enable_partition_pruning": "off",
    "plan_cache_mode": "force_custom_plan",
    "search_path": "",
    "forebay.wakeup": "'; drop table forebay.log; --",
    "forebay.search_path_before": "evil",
    "forebay.notices": "'; drop table forebay.log; --",
}

TO_STORE = """select forebay.enqueue('work', '{"a": [1.25, null, "x"]}', queue => 'q',
    priority => 7, run_at => '2100-03-04 05:06:07+00', expires_at => '2100-05-04 05:06:07+00',
    tag => E't\\\\n', headers => '{"h": "NULL"}')"""
REFUSED = [
    r"select forebay.enqueue(E'a\nb')",
    r"select forebay.enqueue('work', tag => E'a\x01b')",
    r"select forebay.enqueue('work', correlation_id => E'\x7f')",
    "select forebay.enqueue('work', queue => '')",
    "select forebay.enqueue('work', delay => '101 years')",
    """select forebay.enqueue_many('[{"kind": "a b"}]')""",
]


@pytest.mark.parametrize("name", SETTINGS)
def test_no_setting_of_the_callers_session_bends_a_check_or_a_value(database, conn, name):
    """
    Settings change how literals are read and values are written; the functions store the same and
    refuse the same.
    """
    stored = (
        "select kind, args::text, lane, extract(epoch from run_at), extract(epoch from expires_at),"
        " tag, headers::text from forebay.deferred order by deferred_id"
    )
    with acting_as(database, "forebay_producer") as plain:
        plain.execute(TO_STORE)
    with acting_as(database, "forebay_producer") as attacker:
        try:
            attacker.execute("select set_config(%s, %s, false)", [name, SETTINGS[name]])
        except psycopg.Error:
            pytest.skip(f"this server has no {name} to set")
        attacker.execute(TO_STORE)
        for statement in REFUSED:
            assert sqlstate(attacker, statement) == "JQ001", statement
    first, second = conn.execute(stored).fetchall()
    assert first == second


def test_a_forged_wakeup_only_notifies_or_does_not(database, conn):
    """
    The setting that says whether enqueues may notify is anybody's to set: it never decides whether
    a job is stored.
    """
    with acting_as(database, "forebay_producer") as attacker:
        for value in ("on", "off", "", "yes'", "x" * 10_000):
            attacker.execute("select set_config('forebay.wakeup', %s, false)", [value])
            enqueue(attacker)
    assert one(conn, "select count(*) from forebay.log") == 5
