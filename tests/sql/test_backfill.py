"""Backfills in SQL: as many jobs as rows, with the caller's rights, once each, whatever happens
in between.
"""

import threading

import psycopg
import pytest

from tests.sql.test_roles import acting_as
from tests.support.engine import connect, depth, one, shift_clock, sqlstate
from tests.support.mutant import break_function, violation
from tests.support.waiting import wait_for


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        conn.execute("""
            create table page (id bigint primary key, site int, title text, at timestamptz);
            insert into page select i, mod(i, 10), 'Page ' || i,
                '2026-01-01'::timestamptz + i * interval '1 hour'
            from generate_series(1, 100) i""")
        yield conn


def jobs(conn, columns="args"):
    """Return what was enqueued, in the order of the log."""
    rows = conn.execute(f"select {columns} from forebay.log order by seq").fetchall()
    return [row[0] for row in rows] if columns == "args" else rows


def finish(conn, backfill_id):
    """Do all chunks; return how many jobs each had."""
    done = []
    while row := conn.execute("select * from forebay.backfill_next(%s)", [backfill_id]).fetchone():
        done.append(row[0])
    return done


# --- one statement ---


def test_each_row_becomes_a_job_whose_arguments_are_its_columns(conn):
    """
    Kind, arguments, and the defaults: behind all others, with a tag of their own. Types arrive as
    JSON has them.
    """
    query = "select id, title, at from page where site = 3 order by id"
    assert one(conn, "select forebay.backfill('index', %s)", query) == 10
    assert jobs(conn)[0] == {"id": 3, "title": "Page 3", "at": "2026-01-01T03:00:00+00:00"}
    assert set(jobs(conn, "kind, tag, lane = forebay._lane_id('default', 1000, 0)")) == {
        ("index", "backfill", True)
    }
    assert [args["id"] for args in jobs(conn)] == list(range(3, 100, 10))


def test_options_and_common_arguments_go_to_all_jobs(conn):
    """
    Queue, priority, delay, expiry, tag, attempts, headers; arguments that all have give way to
    those of the row.
    """
    options = """{"queue": "index", "priority": 5, "delay": 60, "expires_in": 3600, "tag": "again",
                  "max_attempts": 3,
                  "headers": {"a": "b"}, "correlation_id": "c", "args": {"force": true, "id": 0}}"""
    assert one(conn, "select forebay.backfill('index', 'select id from page', %s)", options) == 100
    rows = conn.execute(
        "select distinct tag, max_attempts, headers, correlation_id, args - 'id', lane = "
        "forebay._lane_id('index', 5, 0),"
        " expires_at - run_at between '59 min' and '1 h' from forebay.deferred"
    ).fetchall()
    assert rows == [("again", 3, {"a": "b"}, "c", {"force": True}, True, True)]
    assert one(conn, "select count(distinct args -> 'id') from forebay.deferred") == 100


def test_with_a_column_args_the_others_are_options_of_each_job(conn):
    """
    Ordering keys and unique keys differ from row to row; a null leaves the option to what all have.
    """
    query = """select jsonb_build_object('id', id) as args, 'site:' || site as ordering_key,
    case id when 7 then 'odd' end as tag
               from page where id < 10"""
    assert (
        one(conn, "select forebay.backfill('index', %s, '{\"args\": {\"force\": true}}')", query)
        == 9
    )
    assert jobs(conn, "args ->> 'id', args -> 'force', ordering_key, tag")[6] == (
        "7",
        True,
        "site:7",
        "odd",
    )
    assert jobs(conn, "tag")[5] == ("backfill",)

    once = """select jsonb_build_object('site', site) as args,
    jsonb_build_object('once', 'site:' || site) as unique_as from page"""
    one(conn, "select forebay.backfill('tidy', %s)", once)
    assert one(conn, "select count(*) from forebay.log where kind = 'tidy'") == 10


def test_no_row_is_no_job_and_no_error(conn):
    """
    Also with a token.
    """
    query = "select id from page where false"
    assert one(conn, "select forebay.backfill('index', %s)", query) == 0
    plan = conn.execute(
        "select token, jobs, bytes, seconds from forebay.backfill_plan('index', %s)", [query]
    )
    token, *rest = plan.fetchone()
    assert rest == [0, 0, 0.0]
    assert one(conn, "select forebay.backfill('index', %s, token => %s)", query, token) == 0


def test_a_backfill_belongs_to_the_callers_transaction(conn):
    """
    With a rollback nothing was enqueued; what the transaction wrote itself is seen.
    """
    with conn.transaction(force_rollback=True):
        conn.execute("insert into page values (101, 1, 'new', now())")
        assert one(conn, "select forebay.backfill('index', 'select id from page')") == 101
    assert jobs(conn) == []


@pytest.mark.slow
def test_more_rows_than_a_batch_and_large_ones_all_arrive(conn):
    """
    What is written at a time is bounded in number and in bytes, and nothing is lost between two of
    them.
    """
    query = (
        "select i, case when i <= 30 then repeat('x', 900000) end as text from "
        "generate_series(1, 45000) i"
    )
    with conn.transaction():
        assert one(conn, "select forebay.backfill('index', %s)", query) == 45000
        # More than 64 subtransactions in one transaction make snapshots dearer for everybody.
        assert one(conn, "select count(distinct xmin::text) from forebay.log") == 1
    assert one(conn, "select count(distinct args -> 'i') from forebay.log") == 45000


@pytest.mark.parametrize(
    ("kind", "query", "options", "code"),
    [
        ("in dex", "select id from page", "{}", "JQ001"),
        ("index", "select id from page", "[]", "JQ001"),
        ("index", "select id from page", '{"colour": 1}', "JQ001"),
        ("index", "select id from page", '{"unique_as": {"once": "k"}}', "JQ001"),
        ("index", "select id from page", '{"args": 1}', "JQ001"),
        ("index", "select id from page", '{"delay": "soon"}', "JQ001"),
        ("index", "select id from page", '{"priority": 40000}', "JQ001"),
        ("index", "select id as args from page", "{}", "JQ001"),
        ("index", "select '{}'::jsonb as args, 1 as colour from page", "{}", "JQ001"),
        ("index", "select repeat('x', 2000000) as text", "{}", "JQ002"),
        ("index", "select id from nowhere", "{}", "42P01"),
        ("index", "delete from page returning id", "{}", "42601"),
        ("index", "select id from page; delete from page", "{}", "42601"),
        ("index", "select id from page) q; delete from page; --", "{}", "42601"),
        (
            "index",
            "with gone as (delete from page returning id) select id from gone",
            "{}",
            "0A000",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_nothing_written(conn, kind, query, options, code):
    """
    Options with our own codes, queries with PostgreSQL's; only a SELECT is one. A dry run refuses
    the same.
    """
    for function in ("backfill", "backfill_plan"):
        found = sqlstate(conn, f"select forebay.{function}(%s, %s, %s)", kind, query, options)
        assert found == code, function
    assert jobs(conn) == []
    assert one(conn, "select count(*) from page") == 100


def test_a_query_may_end_with_a_comment_and_have_any_names(conn):
    """
    Nothing of the text around it is in its way.
    """
    assert one(conn, "select forebay.backfill('index', 'select id as q from page q -- all')") == 100
    assert jobs(conn)[0] == {"q": 1}
    number = one(
        conn,
        (
            'select forebay.backfill_begin(\'index\', \'select id as chunk, 1 as "a""b" from '
            "page chunk -- all', 'chunk', 60)"
        ),
    )
    assert finish(conn, number) == [60, 40]


# --- whose rights ---


@pytest.mark.usual("every role may read the tables that tests make")
def test_the_query_is_read_with_the_rights_and_the_path_of_the_caller(database, conn):
    """
    A producer backfills from tables of its own, and reads nobody else's through the owner's
    functions.
    """
    conn.execute("create schema shop; create table shop.page as select * from page where site = 1")
    with acting_as(database, "forebay_producer") as producer:
        (name,) = producer.execute("select current_user").fetchone()
        conn.execute(f"grant usage on schema shop to {name}; grant select on shop.page to {name}")
        producer.execute("set search_path = shop")
        assert one(producer, "select forebay.backfill('index', 'select id from page')") == 10
        assert one(producer, "select current_setting('search_path')") == "shop"
        for query in ("select id from public.page", "select seq as id from forebay.log"):
            for function in (
                "backfill('index', %s)",
                "backfill_plan('index', %s)",
                "backfill_begin('index', %s, 'id')",
            ):
                assert sqlstate(producer, f"select forebay.{function}", query) == "42501"
        who = "select current_user as who"
        assert one(producer, "select forebay.backfill('index', %s)", who) == 1
        assert jobs(conn)[-1] == {"who": name}
        number = one(
            producer, "select forebay.backfill_begin('index', 'select id from page', 'id', 4)"
        )
        assert finish(producer, number) == [4, 4, 2]
        assert (
            one(producer, "select jobs from forebay.backfill_plan('index', 'select id from page')")
            == 10
        )


IN_THE_WAY = """
create schema evil;
create function evil.hijacked() returns boolean language plpgsql
    as 'begin raise exception ''hijacked''; end';
"""

SIGNATURES = [
    ("to_jsonb", "anyelement", "jsonb"),
    ("array_append", "jsonb[], jsonb", "jsonb[]"),
    ("cardinality", "jsonb[]", "integer"),
    ("pg_column_size", "jsonb", "integer"),
    ("octet_length", "text", "integer"),
    ("hashtextextended", "text, bigint", "bigint"),
    ("format", "text, text", "text"),
    ("format", "text, text, text", "text"),
    ("format", "text, text, text, text", "text"),
    ("concat", "text, text, text", "text"),
    ("clock_timestamp", "", "timestamptz"),
    ("date_part", "text, interval", "double precision"),
    ("quote_literal", "text", "text"),
]

OPERATORS = [
    ("+", "bigint", "bigint", "bigint"),
    ("+", "numeric", "numeric", "numeric"),
    ("*", "double precision", "double precision", "double precision"),
    ("/", "double precision", "double precision", "double precision"),
    ("-", "timestamptz", "timestamptz", "interval"),
    (">=", "integer", "integer", "boolean"),
    (">=", "bigint", "bigint", "boolean"),
    ("<", "integer", "integer", "boolean"),
    (">", "integer", "integer", "boolean"),
    ("=", "bigint", "bigint", "boolean"),
    ("<>", "text", "text", "boolean"),
    ("->", "jsonb", "text", "jsonb"),
    ("#>>", "jsonb", "text[]", "text"),
]


def test_nothing_of_the_callers_path_replaces_what_stands_beside_the_query(conn):
    """
    An operator stumbles over no function or operator that somebody put in front of PostgreSQL's
    own, in any of the functions.
    """
    conn.execute(IN_THE_WAY)
    body = "language plpgsql as 'begin perform evil.hijacked(); return null; end'"
    for name, types, result in SIGNATURES:
        conn.execute(f"create function evil.{name}({types}) returns {result} {body}")
    for number, (name, left, right, result) in enumerate(OPERATORS):
        conn.execute(f"create function evil.op_{number}({left}, {right}) returns {result} {body}")
        conn.execute(
            f"create operator evil.{name} (leftarg = {left}, rightarg = {right}, function "
            f"= evil.op_{number})"
        )
    conn.execute("set search_path = evil, pg_catalog, public")
    assert sqlstate(conn, "select to_jsonb(1)") == "P0001"
    query = "select id, title from page"
    token = one(conn, "select token from forebay.backfill_plan('index', %s)", query)
    assert one(conn, "select forebay.backfill('index', %s, token => %s)", query, token) == 100
    token = one(conn, "select token from forebay.backfill_plan('index', %s)", query)
    number = one(
        conn, "select forebay.backfill_begin('index', %s, 'id', 40, token => %s)", query, token
    )
    assert finish(conn, number) == [40, 40, 20]


def test_nobody_goes_on_with_anothers_query(database, conn):
    """
    A backfill in chunks keeps its query, which must not run with the rights of who is talked into
    resuming it.
    """
    with acting_as(database, "forebay_producer") as producer:
        number = one(producer, "select forebay.backfill_begin('index', 'select 1 as id', 'id')")
        assert sqlstate(conn, "select * from forebay.backfill_next(%s)", number) == "JQ041"
        assert sqlstate(conn, "select forebay.backfill_done_v1(%s, 1, 1)", number) == "JQ041"
        assert finish(producer, number) == [1]
    assert sqlstate(conn, "select * from forebay.backfill_next(4711)") == "JQ041"


def test_one_role_of_a_login_does_not_run_the_query_of_another(database, conn):
    """
    Two tenants of one login differ by SET ROLE: neither runs the other's query, and the login runs
    neither's.
    """
    with connect(database) as login:
        login.execute("create role tenant_a; create role tenant_b; create role pooled login")
        login.execute("grant forebay_producer to tenant_a, tenant_b")
        login.execute("grant tenant_a, tenant_b to pooled")
        try:
            login.execute("set session authorization pooled")
            login.execute("set role tenant_a")
            number = one(
                login,
                (
                    "select forebay.backfill_begin('index', 'select current_user as ran_as, 1 "
                    "as id', 'id')"
                ),
            )
            for other in ("set role tenant_b", "reset role"):
                login.execute(other)
                error = "select * from forebay.backfill_next(%s)"
                assert sqlstate(login, error, number) == "JQ041"
                assert (
                    sqlstate(login, "select forebay.backfill_done_v1(%s, 1, 1)", number) == "JQ041"
                )
            login.execute("set role tenant_a")
            assert finish(login, number) == [1]
            assert one(conn, "select args ->> 'ran_as' from forebay.log") == "tenant_a"
        finally:
            login.execute("reset session authorization")
            login.execute("drop owned by tenant_a, tenant_b, pooled")
            login.execute("drop role tenant_a, tenant_b, pooled")


# --- dry run and token ---


def test_a_dry_run_says_what_would_be_and_writes_nothing(conn):
    """
    As many jobs and bytes as the backfill then has, what waits already, and nothing changed, in a
    read-only transaction too.
    """
    one(conn, "select forebay.backfill('index', 'select id from page')")
    one(conn, "select forebay.enqueue('index', priority => 5)")
    one(conn, "select forebay.enqueue('index', priority => 5, delay => '1 hour')")
    plan = (
        "select jobs, bytes, waiting, waiting_alike, seconds > 0, token from "
        "forebay.backfill_plan('again', %s)"
    )
    query = "select id, title from page where site < 5"
    *found, token = conn.execute(plan, [query]).fetchone()
    assert found == [50, 1494, 102, 100, True]
    assert len(jobs(conn)) == 101

    with conn.transaction():
        conn.execute("set transaction read only")
        assert conn.execute(plan, [query]).fetchone()[:5] == (50, 1494, 102, 100, None)

    assert one(conn, "select forebay.backfill('again', %s, token => %s)", query, token) == 50
    assert (
        one(conn, "select sum(octet_length(args::text)) from forebay.log where kind = 'again'")
        == 1494
    )


CHANGES = {
    "a row less": "delete from page where id = 13",
    "a row more": "insert into page values (101, 3, 'new', now())",
    "another row": "update page set id = 203 where id = 13",
    "another sign": "update page set id = -13 where id = 13",
    "another value": "update page set title = 'other' where id = 13",
    ("two swapped"): (
        "update page set title = case id when 13 then 'Page 3' else 'Page 13' end "
        "where id in (3, 13)"
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_token_stands_for_exactly_these_jobs(conn, change):
    """
    After any change that would give other jobs it is refused, and when the change is taken back it
    holds again.
    """
    query = "select id, title from page where site = 3"
    token = one(conn, "select token from forebay.backfill_plan('index', %s)", query)
    backfill = "select forebay.backfill('index', %s, token => %s)"
    with conn.transaction(force_rollback=True):
        conn.execute(change)
        assert (
            sqlstate(
                conn,
                f"savepoint s; {backfill.replace('%s', '{}')}".format(
                    psycopg.sql.quote(query), psycopg.sql.quote(token)
                ),
            )
            == "JQ040"
        )
    conn.execute("update page set at = now(), title = 'x' where site <> 3")
    assert one(conn, backfill, query, token) == 10


def test_a_token_holds_for_its_kind_and_options_only(conn):
    """
    The same rows for another handler, queue or time are other jobs.
    """
    query = "select id from page"
    token = one(
        conn, "select token from forebay.backfill_plan('index', %s, '{\"queue\": \"a\"}')", query
    )
    backfill = "select forebay.backfill(%s, %s, %s, %s)"
    assert sqlstate(conn, backfill, "other", query, '{"queue": "a"}', token) == "JQ040"
    assert sqlstate(conn, backfill, "index", query, '{"queue": "b"}', token) == "JQ040"
    assert sqlstate(conn, backfill, "index", query, '{"queue": "a", "delay": 1}', token) == "JQ040"
    assert one(conn, backfill, "index", query, '{"tag": "backfill", "queue": "a"}', token) == 100


def test_a_token_begins_one_backfill(conn):
    """
    A call whose answer was lost is repeated: it enqueues nothing again, whatever has become of the
    rows. A new dry run begins another one.
    """
    query = "select id from page"
    plan = "select token from forebay.backfill_plan('index', %s)"
    backfill = "select forebay.backfill('index', %s, token => %s)"
    token = one(conn, plan, query)
    assert [one(conn, backfill, query, token) for _ in range(2)] == [100, 100]
    in_chunks = "select forebay.backfill_begin('index', %s, 'id', 40, token => %s)"
    chunked = one(conn, plan, query)
    number = one(conn, in_chunks, query, chunked)
    conn.execute("delete from page where id > 50")
    assert one(conn, backfill, query, token) == 100
    assert one(conn, in_chunks, query, chunked) == number
    assert len(jobs(conn)) == 100
    assert sqlstate(conn, backfill.replace("'index'", "'other'"), query, token) == "JQ040"
    assert one(conn, backfill, query, one(conn, plan, query)) == 50
    unused = one(conn, plan, query)
    shift_clock(conn, 30 * 86_400)
    assert sqlstate(conn, backfill, query, unused) == "JQ040"
    assert one(conn, backfill, query, token) == 100


def _begin_twice(database, conn) -> int:
    """Let two sessions begin with one token before either has committed.

    Return the number of jobs.
    """
    query = "select id from page"
    token = one(conn, "select token from forebay.backfill_plan('index', %s)", query)
    backfill = "select forebay.backfill('index', %s, token => %s)"
    with connect(database) as first, connect(database) as second:
        first.execute("begin")
        one(first, backfill, query, token)
        answers = []
        waiting = threading.Thread(
            target=lambda: answers.append(one(second, backfill, query, token))
        )
        waiting.start()
        blocked = "select cardinality(pg_blocking_pids(%s)) > 0 or not %s"
        wait_for(lambda: one(conn, blocked, second.info.backend_pid, waiting.is_alive()))
        first.execute("commit")
        waiting.join()
        assert answers == [100]
    return len(jobs(conn))


def test_two_sessions_begin_one_backfill(database, conn):
    """
    The second waits for the first, and returns its number.
    """
    assert _begin_twice(database, conn) == 100


def test_without_the_unique_token_they_begin_two_backfills(database, conn):
    """
    The guard of the test above.
    """
    conn.execute("alter table forebay.backfill drop constraint backfill_token_key")
    on_conflict = "on conflict on constraint backfill_token_key do nothing"
    break_function(database, "backfill_record_v1", (on_conflict, ""))
    assert _begin_twice(database, conn) == 200


def test_an_event_counts_what_was_enqueued(conn):
    """
    Nobody can write the event of a backfill without its jobs, and 30,000 jobs of one backfill are
    one event.
    """
    write = "select forebay.backfill_write_v1('index', '{}', null, '{}', false, 'select 1')"
    conn.execute(write)
    number = one(conn, "select forebay.backfill_begin('index', 'select id from page', 'id')")
    conn.execute("select forebay.backfill_done_v1(%s, 1, 5)", [number])
    one(conn, "select forebay.backfill('index', 'select generate_series(1, 30000) as n')")
    events = (
        "select act, count from forebay.event where act in ('backfill', 'backfill.end') order "
        "by event_id"
    )
    assert conn.execute(events).fetchall() == [("backfill.end", 0), ("backfill", 30_000)]


def test_what_a_producer_states_is_no_fact_of_the_event_log(database, conn):
    """
    A producer can record a backfill by itself. What the event says as a fact, who, the number of
    the backfill and its chunks, is true; a count and a query stand there as statements only.
    """
    with acting_as(database, "forebay_producer") as producer:
        number = one(
            producer,
            "select (forebay.backfill_record_v1('index', 'select 1', 'id', '{\"queue\": \"mail\"}',"
            " null, '{5}', '{1000000}', '{1}')).backfill_id",
        )
        one(producer, "select forebay.backfill('index', 'select 2 as id')")
        who = one(producer, "select session_user")
    stated = {"stated_jobs": 1_000_000, "stated_query": "select 1"}
    assert conn.execute(
        "select act, role, subject_id, count, new from forebay.events(only_act => 'backfill')"
        " order by event_id"
    ).fetchall() == [
        (
            "backfill.begin",
            who,
            number,
            None,
            {"chunks": 1, "options": {"queue": "mail"}, **stated},
        ),
        ("backfill", who, None, 1, {"stated_query": "select 2 as id"}),
    ]


def change_meanwhile(conn):
    """Let a row change between the first look of a backfill with a token and its second.

    Return the SQLSTATE.
    """
    conn.execute("create sequence looks")
    query = "select case nextval('looks') when 1 then 1 else 2 end as n"
    token = one(conn, "select token from forebay.backfill_plan('index', %s)", query)
    conn.execute("alter sequence looks restart")
    return sqlstate(conn, "select forebay.backfill('index', %s, token => %s)", query, token)


def test_a_change_behind_the_first_look_is_refused_too(conn):
    """
    What was enqueued is compared, not only what was counted before; then all of it is rolled back.
    """
    assert change_meanwhile(conn) == "JQ040"
    assert jobs(conn) == []


def test_with_the_first_look_alone_it_would_pass(database, conn):
    """
    The mutant of the test above, which compares nothing after it wrote.
    """
    break_function(
        database,
        "backfill",
        (
            "v_found.digest, token);\n    end if;\n    return",
            "v_found.digest, null);\n    end if;\n    return",
        ),
    )
    with violation():
        assert change_meanwhile(conn) == "JQ040"


# --- chunks ---


def test_chunks_have_all_rows_and_each_is_a_transaction(conn):
    """
    The first ones are there when a later one is not; how far it is, is told.
    """
    number = one(conn, "select forebay.backfill_begin('index', 'select id from page', 'id', 30)")
    assert jobs(conn) == []
    done = [
        conn.execute("select * from forebay.backfill_next(%s)", [number]).fetchone()
        for _ in range(5)
    ]
    assert done == [(30, 30, 100), (30, 60, 100), (30, 90, 100), (10, 100, 100), None]
    assert [args["id"] for args in jobs(conn)] == list(range(1, 101))


@pytest.mark.parametrize(
    "key",
    [
        "id",
        "title",
        "at",
        "site",
        "id::numeric / 7",
        "md5(title)::uuid",
        "at::date",
        'title collate "C"',
    ],
)
def test_chunks_go_by_any_key_that_has_an_order(conn, key):
    """
    Numbers, texts, times, uuids; rows that share a key are in one chunk, so that none falls between
    two.
    """
    conn.execute("set datestyle = 'German'")
    query = f"select {key} as key, id from page"
    number = one(conn, "select forebay.backfill_begin('index', %s, 'key', 7)", query)
    conn.execute("set datestyle = 'SQL, DMY'; set timezone = 'Asia/Tokyo'")
    done = finish(conn, number)
    assert len(done) > 4
    assert sorted(args["id"] for args in jobs(conn)) == list(range(1, 101))


def test_a_key_beside_args_is_no_option(conn):
    """
    With a column args the key of the chunks may be any further column.
    """
    query = "select id, jsonb_build_object('page', id) as args from page"
    number = one(conn, "select forebay.backfill_begin('index', %s, 'id', 60)", query)
    assert finish(conn, number) == [60, 40]
    assert jobs(conn)[0] == {"page": 1}


@pytest.mark.parametrize(
    ("key", "chunk", "query"),
    [
        ("id", 0, "select id from page"),
        (None, 5, "select id from page"),
        ("k", 5, "select nullif(id, 50) as k from page"),
    ],
)
def test_a_chunk_needs_a_size_and_a_key_without_nulls(conn, key, chunk, query):
    """
    A null is before or behind nothing: its row would be left out.
    """
    begin = "select forebay.backfill_begin('index', %s, %s, %s)"
    assert sqlstate(conn, begin, query, key, chunk) == "JQ001"
    assert one(conn, "select count(*) from forebay.backfill") == 0


def crash_and_resume(database, conn):
    """Kill the connection at each point of a chunk, and go on.

    Return the ids enqueued, in order.
    """
    number = one(conn, "select forebay.backfill_begin('index', 'select id from page', 'id', 30)")
    for commits in (False, True, False):
        other = connect(database)
        other.execute("begin")
        other.execute("select * from forebay.backfill_next(%s)", [number])
        if commits:
            other.execute("commit")
        assert one(conn, "select pg_terminate_backend(%s, 5000)", other.info.backend_pid)
        other.close()
    finish(conn, number)
    return [args["id"] for args in jobs(conn)]


def test_after_a_crash_it_goes_on_with_nothing_lost_and_nothing_twice(database, conn):
    """
    A chunk and its mark are one: who dies before the commit leaves neither, after it both.
    """
    assert crash_and_resume(database, conn) == list(range(1, 101))


def test_without_the_mark_a_chunk_would_be_enqueued_again(database, conn):
    """
    The mutant of the test above, in which a chunk leaves no mark.
    """
    break_function(
        database,
        "backfill_done_v1",
        ("done_at = forebay._now()", "done_at = case when c.no > 1 then forebay._now() end"),
    )
    break_function(
        database,
        "backfill_take_v1",
        (
            "order by c.no limit 1",
            "and (c.no > 1 or (select count(*) from forebay.log) < 60) order by c.no limit 1",
        ),
    )
    with violation():
        assert crash_and_resume(database, conn) == list(range(1, 101))


def test_two_who_go_on_with_it_do_each_chunk_once(database, conn):
    """
    The second waits for the chunk of the first, and then takes the next one.
    """
    number = one(conn, "select forebay.backfill_begin('index', 'select id from page', 'id', 3)")
    done = []

    def run():
        with connect(database) as other:
            done.extend(finish(other, number))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(done) == 100
    assert sorted(args["id"] for args in jobs(conn)) == list(range(1, 101))


def test_without_a_token_a_chunk_has_what_is_there_when_it_comes(conn):
    """
    Rows that came, went or changed within the range are taken as they are; those beyond its end are
    not part of it.
    """
    number = one(
        conn,
        "select forebay.backfill_begin('index', 'select id from page where site < 9', 'id', 30)",
    )
    conn.execute("select * from forebay.backfill_next(%s)", [number])
    conn.execute(
        "delete from page where id = 50; update page set site = 1 where id = 59; insert "
        "into page values (200, 1, '', now())"
    )
    finish(conn, number)
    expected = {i for i in range(1, 101) if i % 10 != 9} - {50} | {59}
    assert {args["id"] for args in jobs(conn)} == expected


def test_with_a_token_chunks_are_those_that_were_counted(conn):
    """
    A change before the beginning refuses all of it; a change of a chunk to come refuses that one
    and what follows, and nothing of it is written.
    """
    query = "select id from page where site < 9"
    token = one(conn, "select token from forebay.backfill_plan('index', %s)", query)
    begin = "select forebay.backfill_begin('index', %s, 'id', 30, token => %s)"
    with conn.transaction(force_rollback=True):
        conn.execute("delete from page where id = 50")
        with pytest.raises(psycopg.Error) as caught, conn.transaction():
            one(conn, begin, query, token)
        assert caught.value.sqlstate == "JQ040"

    number = one(conn, begin, query, token)
    assert conn.execute("select * from forebay.backfill_next(%s)", [number]).fetchone() == (
        30,
        30,
        90,
    )
    conn.execute("update page set site = 9 where id = 50; update page set site = 8 where id = 49")
    assert sqlstate(conn, "select * from forebay.backfill_next(%s)", number) == "JQ040"
    assert len(jobs(conn)) == 30
    conn.execute("update page set site = 0 where id = 50; update page set site = 9 where id = 49")
    assert sum(finish(conn, number)) == 60


def test_a_full_queue_stops_a_backfill_between_two_chunks(conn):
    """
    What does not fit is not enqueued; when there is room it goes on.
    """
    one(conn, "select forebay.limit_queue('default', max_waiting => 70)")
    number = one(conn, "select forebay.backfill_begin('index', 'select id from page', 'id', 30)")
    with pytest.raises(psycopg.Error) as caught:
        finish(conn, number)
    assert caught.value.sqlstate == "53400"
    assert depth(conn)["default"][0] == 60
    one(conn, "select forebay.limit_queue('default', remove => '{max_waiting}')")
    assert finish(conn, number) == [30, 10]


SITES = "select 'site ' || id as subject, title from page where id <= 60"


def subjects(conn):
    """Return name, kind, state, priority, arguments and number of states of each subject."""
    return conn.execute(
        "select s.subject, n.kind, n.priority, n.args, n.options, n.version,"
        " (select count(*)::int from forebay.subject_state t where t.subject_id = s.subject_id)"
        " from forebay.subject s cross join lateral forebay._newest_state(s.subject_id) n"
        " order by s.subject_id"
    ).fetchall()


def test_each_row_becomes_a_subject(conn):
    """Its name is the column subject; the other columns are the arguments. What exists stays as it
    is, so the same call makes nothing twice; a token stands for the rows.
    """
    one(
        conn, "select forebay.push_subject('crawl', 'site 7', '{\"title\": \"old\"}', queue => 'q')"
    )
    before = subjects(conn)
    options = (
        '{"subjects": true, "queue": "q", "version": 2, "tag": "x", "delay": 60, "args": {"a": 1}}'
    )
    (token, rows) = conn.execute(
        "select token, jobs from forebay.backfill_plan('crawl', %s, %s)", [SITES, options]
    ).fetchone()
    assert rows == 60
    assert subjects(conn) == before
    backfill = "select forebay.backfill('crawl', %s, %s, %s)"
    assert one(conn, backfill, SITES, options, token) == 60
    found = subjects(conn)
    assert found[:1] == before
    assert found[1] == ("site 1", "crawl", 100, {"a": 1, "title": "Page 1"}, {"tag": "x"}, 2, 1)
    assert len(found) == 60
    assert one(conn, backfill, SITES, options, None) == 60
    assert subjects(conn) == found
    count = one(
        conn, "select count from forebay.event where act = 'backfill' order by event_id limit 1"
    )
    assert count == 60


def test_with_a_column_args_the_others_are_options_of_each_subject(conn):
    query = (
        "select 's' || id as subject, jsonb_build_object('id', id) as args, 90 as delay,"
        " 5 as priority, 'k' as limit_key from page where id < 3"
    )
    assert one(conn, "select forebay.backfill('crawl', %s, '{\"subjects\": true}')", query) == 2
    assert subjects(conn) == [
        (f"s{n}", "crawl", 5, {"id": n}, {"limit_key": "k"}, 0, 1) for n in (1, 2)
    ]


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("select title from page", "{}"),
        ("select null::text as subject", "{}"),
        ("select 'a' as subject union all select null", "{}"),
        ("select 'a' as subject union all select 'a'", "{}"),
        ("select '' as subject", "{}"),
        (SITES, '{"expires_in": 5}'),
        (SITES, '{"unique_as": {"once": "k"}}'),
        (SITES, '{"version": 10000}'),
        (SITES, '{"subjects": "yes"}'),
        ("select 'a' as subject, '[]'::jsonb as args", "{}"),
    ],
)
def test_what_is_wrong_of_subjects_is_refused_with_nothing_written(conn, query, options):
    call = "select forebay.backfill('crawl', %s, '{\"subjects\": true}'::jsonb || %s::jsonb)"
    assert sqlstate(conn, call, query, options) == "JQ001"
    assert subjects(conn) == []


def test_without_the_look_at_names_a_repeated_backfill_would_make_all_twice(database, conn):
    """The control: each row would get a random name."""
    break_function(database, "_push_rows", ("if v_bad is not null then", "if false then"))
    for rows in (100, 200):
        one(conn, "select forebay.backfill('crawl', 'table page', '{\"subjects\": true}')")
        assert len(subjects(conn)) == rows


def test_subjects_in_chunks_go_on_after_a_crash_with_none_missing_and_none_twice(database, conn):
    """The subjects of a chunk and its mark are one commit. A chunk that is repeated finds the names
    of those that another has pushed meanwhile.
    """
    backfill_id = one(
        conn,
        "select forebay.backfill_begin('crawl', %s, 'id', 20, '{\"subjects\": true}')",
        "select 'site ' || id as subject, id from page",
    )
    step = "select enqueued from forebay.backfill_next(%s)"
    assert one(conn, step, backfill_id) == 20
    with psycopg.connect(database) as dying:
        assert one(dying, step, backfill_id) == 20
        dying.rollback()
    assert len(subjects(conn)) == 20
    one(conn, "select forebay.push_subject('crawl', 'site 33')")
    assert finish(conn, backfill_id) == [20] * 4
    found = subjects(conn)
    assert [row[6] for row in found] == [2] * 100  # scheduled, and issued once
    assert {row[0] for row in found} == {f"site {n}" for n in range(1, 101)}
    assert one(conn, "select count(*) from forebay.log where kind = 'crawl'") == 100
