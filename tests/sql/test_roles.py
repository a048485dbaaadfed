"""Who may do what: PUBLIC nothing, producers enqueue, and no caller bends a function to his
ends.
"""

from contextlib import contextmanager

import psycopg
import pytest

from tests.support.engine import Reader, claimed, connect, enqueue, one, sqlstate, state

#: They read the caller's tables with the caller's rights.
INVOKERS = {
    "backfill", "backfill_plan", "backfill_begin", "backfill_next", "backfill_run_v1",
    "backfill_count_v1",
}  # fmt: skip

ROLES = ["forebay_producer", "forebay_worker", "forebay_operator", "forebay_reader"]


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


@contextmanager
def acting_as(dsn: str, *roles: str):
    """Connect as a login role that is a member of these roles and nothing else."""
    name = "somebody_" + "_".join(roles or ("else",))
    with connect(dsn) as admin:
        admin.execute(f"drop role if exists {name}")
        admin.execute(f"create role {name} login")
        for role in roles:
            admin.execute(f"grant {role} to {name}")
        try:
            with connect(dsn) as conn:
                conn.execute(f"set session authorization {name}")
                yield conn
        finally:
            admin.execute(f"drop owned by {name}")
            admin.execute(f"drop role {name}")


def test_public_has_nothing(conn):
    """No privilege on anything in the schema is granted to everybody, nor given by default."""
    query = """
        select 'schema', nspname::text from pg_namespace, aclexplode(nspacl) a
        where nspname = 'forebay' and a.grantee = 0
        union all
        select 'relation', relname::text from pg_class, aclexplode(relacl) a
        where relnamespace = 'forebay'::regnamespace and a.grantee = 0
        union all
        select 'function', p.oid::regprocedure::text
        from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        where p.pronamespace = 'forebay'::regnamespace and a.grantee = 0
        """
    conn.execute("select forebay.configure('reserve_rows', 70000000)")
    assert one(conn, "select forebay.extend_v1()") > 0
    assert conn.execute(query).fetchall() == []


def test_types_of_the_schema_give_no_way_in(database, conn):
    """Everybody may name a type, as everywhere in PostgreSQL, but not without the schema."""
    with acting_as(database) as somebody:
        assert sqlstate(somebody, "select null::forebay._job_input") == "42501"


def test_every_definer_function_has_a_pinned_path(conn):
    """Functions with the owner's rights search the catalog first and temporary objects last."""
    rows = conn.execute(
        "select proname, proconfig from pg_proc"
        " where pronamespace = 'forebay'::regnamespace and prosecdef"
    ).fetchall()
    assert len(rows) > 20
    for name, settings in rows:
        assert "search_path=pg_catalog, pg_temp" in settings, name


def test_functions_for_callers_have_the_owners_rights_and_inner_ones_no_caller(conn):
    """
    Only functions without an underscore are granted to a role, and those are definer functions, but
    for those that run a query of the caller's.
    """
    rows = conn.execute(
        "select p.proname, p.prosecdef, a.grantee::regrole::text"
        " from pg_proc p, aclexplode(p.proacl) a where p.pronamespace = 'forebay'::regnamespace"
        " and a.grantee <> p.proowner"
    ).fetchall()
    assert {role for _, _, role in rows} == set(ROLES)
    for name, is_definer, role in rows:
        assert not name.startswith("_"), (name, role)
        assert is_definer is (name not in INVOKERS), (name, role)


def allowed_calls(conn) -> dict[str, set[str]]:
    """Return which functions each role may call."""
    return {
        role: {
            name
            for (name,) in conn.execute(
                "select proname from pg_proc where pronamespace = 'forebay'::regnamespace"
                " and has_function_privilege(%s, oid, 'execute')",
                [role],
            )
        }
        for role in ROLES
    }


@pytest.mark.slow
def test_a_producer_enqueues_and_nothing_else(database, conn):
    """Fifteen functions, those of backfills and of subjects, and not one table, sequence or
    column.
    """
    calls = {
        "enqueue",
        "enqueue_each",
        "enqueue_gather",
        "enqueue_many",
        "enqueue_unique",
        "cancel",
        "publish",
        "publish_many",
        "send_many",
        "queue_known",
        "queue_of",
        "record_direct",
        "send",
        "signal",
        "throttled",
    }
    allowed = allowed_calls(conn)["forebay_producer"]
    assert {n for n in allowed if not n.startswith("backfill") and "subject" not in n} == calls
    with acting_as(database, "forebay_producer") as producer:
        job = enqueue(producer, queue="q")
        assert one(producer, "select forebay.enqueue_many('work', array['{}'::jsonb])") == 1
        assert one(producer, "select forebay.cancel(%s)", job) == "cancelled"
        relations = conn.execute(
            "select format('forebay.%I', relname), relkind::text from pg_class"
            " where relnamespace = 'forebay'::regnamespace and relkind in ('r', 'p', 'S')"
        ).fetchall()
        assert len(relations) > 80
        for name, kind in relations:
            if kind == "S":
                statements = [f"select nextval('{name}')", f"select setval('{name}', 1)"]
                statements.append(f"select last_value from {name}")
            else:
                statements = [
                    f"select from {name}",
                    f"insert into {name} default values",
                    f"delete from {name}",
                    f"truncate {name}",
                ]
            for statement in statements:
                assert sqlstate(producer, statement) == "42501", statement
        for statement in (
            "select forebay._now()",
            "select forebay.open_lease_v1('w')",
            "select * from forebay.job(1)",
            "select forebay.configure('segment_rows', 1000)",
            "select forebay._revoke(1, 'revoked', true)",
            "create table forebay.mine ()",
            "create function forebay.mine() returns int language sql as 'select 1'",
            "drop function forebay.cancel(bigint, text, boolean)",
        ):
            assert sqlstate(producer, statement) == "42501", statement
    assert state(conn, job) == "cancelled"


def test_each_role_may_call_what_it_needs(database, conn):
    """Workers do not operate, operators do not claim, readers only read."""
    allowed = allowed_calls(conn)
    protocol = {n for names in allowed.values() for n in names if n.endswith("_v1")}
    assert allowed["forebay_worker"] >= protocol
    # Without a worker, an exporter of an operator checks the alerts, and status counts a backlog.
    assert {n for n in allowed["forebay_operator"] if n.endswith("_v1")} == {
        "record_alerts_v1",
        "renew_counters_v1",
    }
    assert not {"configure", "adopt_v1", "purge_dead", "redrive", "pause_queue"} & (
        allowed["forebay_worker"] | allowed["forebay_producer"] | allowed["forebay_reader"]
    )
    assert "adopt_v1" not in set().union(*allowed.values())
    with acting_as(database, "forebay_reader") as reader:
        enqueue(conn)
        assert one(reader, "select count(*) from forebay.log") == 1
        assert sqlstate(reader, "select forebay.enqueue('work')") == "42501"
        assert sqlstate(reader, "delete from forebay.log") == "42501"
        assert sqlstate(reader, "update forebay.setting set value = '1'") == "42501"


def test_an_operator_chooses_arguments_through_schedules_subjects_and_signals(database, conn):
    """It enqueues nothing directly; what it may create makes jobs. The page of security says so."""
    with acting_as(database, "forebay_operator") as operator:
        assert sqlstate(operator, "select forebay.enqueue('work')") == "42501"
        operator.execute(
            "select forebay.create_schedule('s', 'work', every => '1 h', args => '{\"n\": 1}')"
        )
        operator.execute("select forebay.run_schedule('s')")
        operator.execute("select forebay.push_subject('work', 'x', '{\"n\": 2}')")
        operator.execute("select forebay.signal('approval', 'y', '3')")
    assert one(conn, "select array_agg(args ->> 'n' order by seq) from forebay.log") == ["1", "2"]


def test_a_stranger_gets_nowhere(database):
    """A role without any grant cannot even name the schema's objects."""
    with acting_as(database) as somebody:
        for statement in ("select forebay.enqueue('work')", "select from forebay.log"):
            assert sqlstate(somebody, statement) == "42501"


HOSTILE_OBJECTS = """
create temp table setting (name text, value bigint);
insert into setting values ('args_bytes_max', 1);
create temp table lane (lane bigint, queue text);
create temp table log (like setting);
create function pg_temp.now() returns timestamptz language sql
    as 'select ''2000-01-01''::timestamptz';
create function pg_temp.clock_timestamp() returns timestamptz language sql
    as 'select ''2000-01-01''::timestamptz';
create function pg_temp.nextval(regclass) returns bigint language plpgsql
    as 'begin raise exception ''hijacked''; end';
create function pg_temp.pg_current_xact_id() returns xid8 language sql as 'select ''1''::xid8';
create function pg_temp.hashtextextended(text, bigint) returns bigint language sql
    as 'select 1::bigint';
create function pg_temp.jsonb_typeof(jsonb) returns text language plpgsql
    as 'begin raise exception ''hijacked''; end';
create function pg_temp.format(text, variadic text[]) returns text language plpgsql
    as 'begin raise exception ''hijacked''; end';
create function pg_temp.array_agg_more(a bigint, b bigint) returns boolean language plpgsql
    as 'begin raise exception ''hijacked''; end';
create operator pg_temp.= (leftarg = bigint, rightarg = bigint, function = pg_temp.array_agg_more);
create operator pg_temp.> (leftarg = bigint, rightarg = bigint, function = pg_temp.array_agg_more);
create domain pg_temp.text as pg_catalog.text check (value = 'hijacked');
create domain pg_temp.bigint as pg_catalog.int8 check (value = 0);
"""


def test_objects_of_the_caller_do_not_replace_those_of_the_functions(database, conn):
    """
    Temporary tables, functions, operators and types of the right names, first on the search path,
    change nothing: jobs come out as they went in and the hostile code never runs.
    """
    enqueue(conn)
    with acting_as(database, "forebay_producer", "forebay_worker") as attacker:
        attacker.execute(HOSTILE_OBJECTS)
        attacker.execute("set search_path = pg_temp, pg_catalog, public")
        attacker.execute("select forebay.enqueue('work', '{\"a\": 1}'::pg_catalog.jsonb)")
        attacker.execute(
            'select forebay.enqueue_many(\'[{"kind": "work", "delay": 60}]\'::pg_catalog.jsonb)'
        )
        attacker.execute("select forebay.cancel(1::pg_catalog.int8)")
        group_id = one(attacker, "select forebay.open_group('default')")
        lease_id = one(attacker, "select forebay.open_lease_v1('w')")
        for call in ("extend_v1()", "seal_v1()", "promote_v1()", "sweep_v1()",
            "trim_v1('deferred')",
                     "retain_v1()", "job(1)", "heartbeat_v1('{1}')"):  # fmt: skip
            attacker.execute(f"select forebay.{call}")
        lane = one(conn, "select forebay._lane_id('default', 100, 0)")
        # Twice: the first claim of a lane and any later one take different ways.
        for claim_no in (1, 2):
            (text,) = attacker.execute(
                f"select forebay.claim_v1({lease_id}::pg_catalog.int8, {claim_no}, 1,"
                f" {group_id}::pg_catalog.int8, '{lane}'::pg_catalog.int8, 10)"
            ).fetchone()
            assert [job["args"] for job in claimed(text)] == [{"a": 1}]
            attacker.execute("select forebay.enqueue('work', '{\"a\": 1}'::pg_catalog.jsonb)")
        attacker.execute(
            f"select forebay.settle_v1({lease_id}::pg_catalog.int8,"
            """ '[{"claim_no": 1, "flush_no": 1}]'::pg_catalog.jsonb)"""
        )
    assert one(conn, "select count(*) from forebay.log") == 4
    assert one(conn, "select count(*) from forebay.deferred") == 1
    assert [state(conn, i) for i in (1, 2, 3)] == ["cancelled", "done", "scheduled"]


def test_row_triggers_and_rules_of_others_cannot_be_added(database):
    """No role but the owner attaches code to the tables, not even all roles together."""
    with acting_as(database, *ROLES) as member:
        member.execute(
            "create function pg_temp.f() returns trigger language plpgsql as 'begin return "
            "new; end'"
        )
        for statement in (
            "create rule r as on insert to forebay.log do nothing",
            "create trigger t before insert on forebay.log execute function pg_temp.f()",
            "alter table forebay.log enable row level security",
            "create policy p on forebay.log using (false)",
        ):
            assert sqlstate(member, statement) == "42501", statement


def test_no_role_passes_its_rights_on(database):
    """PostgreSQL only warns of a grant that grants nothing, so the privilege itself is judged."""
    with acting_as(database, *ROLES) as member:
        for privilege in ("select", "insert", "update", "delete"):
            sqlstate(member, f"grant {privilege} on forebay.log to public")
        granted = one(
            member,
            "select array_agg(p) from unnest(array['select', 'insert', 'update', 'delete']) p"
            " where has_table_privilege('public', 'forebay.log', p)",
        )
    assert granted is None


def test_a_worker_role_runs_the_whole_protocol(database, conn):
    """With nothing but its role a worker opens, claims, settles, keeps up and closes."""
    job = enqueue(conn)
    with acting_as(database, "forebay_worker") as worker:
        reader = Reader(database, conn=worker)
        batch = reader.claim_ready()
        assert batch.job_ids == [job]
        retry = [{"offset": 1, "outcome": "retried", "after": 0.001}]
        assert reader.settle(batch.claim_no, ended=retry) == "settled"
        worker.execute("select forebay.heartbeat_v1(array[%s::bigint], array[%s::bigint])",
                       [reader.lease_id, job])  # fmt: skip
        for part in one(conn, "select forebay._trim_parts()"):
            one(worker, "select rows from forebay.trim_v1(%s)", part)
        for call in ("extend", "seal", "promote", "sweep", "retain", "summarize", "revoke_lost"):
            worker.execute(f"select forebay.{call}_v1()")
        assert one(worker, "select forebay.close_lease_v1(%s)", reader.lease_id) == 0
        with pytest.raises(psycopg.Error):
            reader.claim()
