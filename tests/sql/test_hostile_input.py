"""What producers may throw at the functions: refused with a typed error, nothing written."""

import json

import psycopg
import pytest

from tests.support.engine import Reader, connect, enqueue, enqueue_many, one, sqlstate, state
from tests.support.waiting import wait_for


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def rows_written(conn: psycopg.Connection) -> int:
    return one(
        conn,
        "select (select count(*) from forebay.log) + (select count(*) from forebay.deferred)"
        " + (select count(*) from forebay.lane)",
    )


BAD_CALLS = [
    ("null", "JQ001"),
    ("''", "JQ001"),
    ("'a b'", "JQ001"),
    ("'1a'", "JQ001"),
    (r"E'work\n'", "JQ001"),
    ("'wörk'", "JQ001"),
    ("repeat('k', 129)", "JQ001"),
    ("'work; drop table x'", "JQ001"),
    ("'work', null", "JQ001"),
    ("'work', '[]'", "JQ001"),
    ("'work', '1'", "JQ001"),
    ("'work', 'null'", "JQ001"),
    (r"""'work', '{"a": "\u0000"}'""", "22P05"),
    (r"""'work', '{"a": "\ud800"}'""", "22P02"),
    ("""'work', '{"a": NaN}'""", "22P02"),
    ("""'work', '{"a": Infinity}'""", "22P02"),
    ("'work', queue => ''", "JQ001"),
    ("'work', queue => 'a/b'", "JQ001"),
    ("'work', queue => repeat('q', 129)", "JQ001"),
    ("'work', priority => 32768", "JQ001"),
    ("'work', priority => -32769", "JQ001"),
    ("'work', priority => null", "JQ001"),
    ("'work', priority => 2147483648", "42883"),
    ("'work', delay => '101 years'", "JQ001"),
    ("'work', delay => '170000000 years'", "JQ001"),
    ("'work', delay => '1 s', run_at => '2030-01-01'", "JQ001"),
    ("'work', run_at => 'infinity'", "JQ001"),
    ("'work', run_at => '-infinity'", "JQ001"),
    ("'work', run_at => '20000-01-01'", "JQ001"),
    ("'work', expires_at => '2000-01-01'", "JQ001"),
    ("'work', expires_at => '-infinity'", "JQ001"),
    ("'work', expires_at => 'infinity'", "JQ001"),
    ("'work', expires_at => '20000-01-01'", "JQ001"),
    ("'work', delay => '2 days', expires_at => now() + '1 day'", "JQ001"),
    ("'work', max_attempts => 0", "JQ001"),
    ("'work', max_attempts => 10001", "JQ001"),
    ("'work', max_attempts => -2147483648", "JQ001"),
    ("'work', tag => ''", "JQ001"),
    ("'work', tag => repeat('t', 201)", "JQ001"),
    (r"'work', tag => E'a\nb'", "JQ001"),
    (r"'work', tag => E'\x1b]8;;'", "JQ001"),
    (r"'work', correlation_id => E'a\tb'", "JQ001"),
    ("'work', headers => '[]'", "JQ001"),
    ("""'work', headers => '{"a": 1}'""", "JQ001"),
    ("""'work', headers => jsonb_build_object('a', repeat('h', 9000))""", "JQ001"),
    (
        "'work', headers => (select jsonb_object_agg(i::text, '') from generate_series(1, 65) i)",
        "JQ001",
    ),
    ("'work', jsonb_build_object('a', repeat('x', 1048577))", "JQ002"),
    ("'work', bogus => 1", "42883"),
]


def test_a_bad_job_is_refused_with_a_typed_error_and_nothing_written(conn):
    """One bad option of a single enqueue: its SQLSTATE, and no row anywhere."""
    found = [
        (arguments, sqlstate(conn, f"select forebay.enqueue({arguments})"), rows_written(conn))
        for arguments, _ in BAD_CALLS
    ]
    assert found == [(arguments, code, 0) for arguments, code in BAD_CALLS]


BAD_JOBS = [
    ("not an object", 5),
    ("null", None),
    ("an unknown option", {"kind": "work", "bogus": 1}),
    ("no kind", {}),
    ("a kind that is an object", {"kind": {"a": 1}}),
    ("priority of the wrong type", {"kind": "work", "priority": "high"}),
    ("priority with a fraction", {"kind": "work", "priority": 1.5}),
    ("priority beyond an integer", {"kind": "work", "priority": 2**31}),
    ("delay of the wrong type", {"kind": "work", "delay": "soon"}),
    ("delay that is not a number", {"kind": "work", "delay": "NaN"}),
    ("delay without end", {"kind": "work", "delay": "Infinity"}),
    ("delay beyond all times", {"kind": "work", "delay": 1e300}),
    ("a time that is none", {"kind": "work", "run_at": "yesterday-ish"}),
    ("endless expiry", {"kind": "work", "expires_at": "infinity"}),
    ("args that are a list", {"kind": "work", "args": [1]}),
    ("args that are text", {"kind": "work", "args": "{}"}),
    ("attempts of the wrong type", {"kind": "work", "max_attempts": True}),
    ("headers that are no strings", {"kind": "work", "headers": {"a": None}}),
]


def test_one_bad_job_refuses_the_bulk_and_nothing_is_written(conn):
    """A bulk is all or none, whatever is wrong with one of it."""
    found = []
    for name, job in BAD_JOBS:
        jobs = json.dumps([{"kind": "work"}, {"kind": "work", "delay": 5}, job])
        code = sqlstate(conn, "select forebay.enqueue_many(%s::jsonb)", jobs)
        found.append((name, code, rows_written(conn)))
    assert found == [(name, "JQ001", 0) for name, _ in BAD_JOBS]


def test_a_bulk_names_the_index_of_its_bad_job(conn):
    """The message says which job was refused, counted from 0."""
    jobs = [{"kind": "work"} for _ in range(1000)]
    jobs[777]["priority"] = 40000
    with pytest.raises(psycopg.DatabaseError, match="job 777: priority 40000"):
        enqueue_many(conn, jobs)
    jobs[777] = {"kind": "work", "args": {"a": "x" * 1_048_577}}
    with pytest.raises(psycopg.DatabaseError, match="job 777: args take") as refused:
        enqueue_many(conn, jobs)
    assert refused.value.sqlstate == "JQ002"


def nested(levels: int) -> str:
    """Return a document of so many containers, the object itself included."""
    return '{"a": ' + "[" * (levels - 1) + "1" + "]" * (levels - 1) + "}"


@pytest.mark.parametrize(("levels", "code"), [(63, None), (64, None), (65, "JQ003"), (66, "JQ003")])
def test_depth_at_its_limit(conn, levels, code):
    """64 levels pass and 65 do not, through each of the three functions."""
    document = nested(levels)
    assert sqlstate(conn, "select forebay.enqueue('work', %s::jsonb)", document) == code
    assert sqlstate(conn, "select forebay.enqueue_many('work', array[%s::jsonb])", document) == code
    jobs = f'[{{"kind": "work", "args": {document}}}]'
    assert sqlstate(conn, "select forebay.enqueue_many(%s::jsonb)", jobs) == code


@pytest.mark.parametrize(("extra", "code"), [(-1, None), (0, None), (1, "JQ002")])
def test_size_at_its_limit(conn, extra, code):
    """Exactly the limit passes, one byte more does not."""
    document = json.dumps({"a": "x" * (1_048_576 - len('{"a": ""}') + extra)})
    assert len(document) == 1_048_576 + extra
    assert sqlstate(conn, "select forebay.enqueue('work', %s::jsonb)", document) == code
    jobs = f'[{{"kind": "work", "args": {document}}}]'
    assert sqlstate(conn, "select forebay.enqueue_many(%s::jsonb)", jobs) == code


@pytest.mark.parametrize("compression", ["pglz", "lz4"])
def test_limits_hold_for_arguments_that_come_compressed_from_a_table(conn, compression):
    """A document stored compressed is judged by what it is, not by the room it takes on disk."""
    if sqlstate(conn, f"create table doc (id int, body jsonb compression {compression})"):
        pytest.skip(f"this server was built without {compression}")
    deep = json.loads(nested(70)) | {"pad": "x" * 4000}
    conn.execute("insert into doc values (1, %s)", [json.dumps(deep)])
    assert one(conn, "select pg_column_size(body) from doc") < 500
    assert sqlstate(conn, "select forebay.enqueue('work', body) from doc") == "JQ003"
    assert (
        sqlstate(conn, "select forebay.enqueue_many('work', array_agg(body)) from doc") == "JQ003"
    )


@pytest.mark.parametrize(
    ("number", "code"),
    [
        ("1e4299", None),
        ("-1e4299", None),
        ("1e4300", "JQ001"),
        ("-1e4300", "JQ001"),
        ("1e100000", "JQ001"),
        ("1" * 5000, "JQ001"),
        ("1e-5000", None),
        ('"' + "1" * 5000 + '"', None),
    ],
)
def test_numbers_that_clients_do_not_read_are_refused(database, conn, number, code):
    """Python reads no integer of more than 4300 digits: one such job would fail each claim of
    it.
    """
    document = f'{{"a": [{number}]}}'
    assert sqlstate(conn, "select forebay.enqueue('work', %s::jsonb)", document) == code
    assert sqlstate(conn, "select forebay.enqueue_many('work', array[%s::jsonb])", document) == code
    with Reader(database) as reader:
        assert len(reader.claim().jobs) == (0 if code else 2)


def test_size_counts_what_is_written_out(conn):
    """Twenty numbers of a few bytes each that fill two million characters are too large."""
    document = '{"a": [' + ",".join(["1e100000"] * 20) + "]}"
    assert one(conn, "select pg_column_size(%s::jsonb)", document) < 500
    assert sqlstate(conn, "select forebay.enqueue('work', %s::jsonb)", document) == "JQ002"


def test_a_document_too_deep_for_the_server_is_refused_by_it(conn):
    """Twenty thousand levels do not reach the function, and do not harm the session."""
    assert sqlstate(conn, "select forebay.enqueue('work', %s::jsonb)", nested(20_000)) == "54001"
    assert enqueue(conn) > 0


def test_settings_out_of_range_are_refused(conn):
    """What a setting may be is checked, and an unknown one is named."""
    for name, value in [
        ("segment_rows", 99),
        ("segment_rows", 100_000_001),
        ("args_depth_max", 63),
        ("args_bytes_max", 1023),
        ("retention_days", -1),
        ("reserve_rows", 2**63 - 1),
        ("bogus", 1),
        (None, 1),
    ]:
        assert sqlstate(conn, "select forebay.configure(%s, %s::bigint)", name, value) == "JQ001"


@pytest.mark.parametrize("job_id", [0, -1, 2**63 - 1, -(2**63), None])
def test_cancelling_what_never_was_changes_nothing(conn, job_id):
    """An id that was never given out is no job."""
    assert one(conn, "select forebay.cancel(%s::bigint)", job_id) == "unknown"
    enqueue(conn)
    assert one(conn, "select forebay.cancel(%s::bigint, 'nobody')", job_id) == "unknown"
    assert one(conn, "select count(*) from forebay.tombstone") == 0


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_callers_of_every_isolation_level_enqueue(database, conn, level):
    """Commit, rollback and savepoints decide over the job at each level.

    Nothing commits by itself.
    """
    with psycopg.connect(database) as caller, Reader(database) as reader:
        caller.execute(f"set transaction isolation level {level}")
        kept = enqueue(caller)
        caller.execute("savepoint s")
        dropped = enqueue(caller, delay="1 hour")
        caller.execute("rollback to s")
        bulk = enqueue_many(caller, [{"kind": "work"}, {"kind": "work", "delay": 3600}])
        assert caller.info.transaction_status.name == "INTRANS"
        assert reader.claim().jobs == []
        caller.commit()
        caller.execute(f"set transaction isolation level {level}")
        undone = enqueue(caller)
        caller.rollback()
        assert reader.claim().job_ids == [kept, bulk[0]]
        assert reader.claim().jobs == []
        assert [state(conn, i) for i in (dropped, undone, bulk[1])] == [None, None, "scheduled"]


def test_serializable_producers_of_a_known_lane_do_not_conflict(database, conn):
    """Two serializable transactions that enqueue into one lane both commit."""
    enqueue(conn)
    with psycopg.connect(database) as one_caller, psycopg.connect(database) as other:
        for caller in (one_caller, other):
            caller.execute("set transaction isolation level serializable")
            enqueue(caller)
        one_caller.commit()
        other.commit()


def test_a_read_only_transaction_is_told_so(database):
    """Enqueuing needs a transaction that may write."""
    with psycopg.connect(database) as caller:
        caller.execute("set transaction read only")
        assert sqlstate(caller, "select forebay.enqueue('work')") == "25006"


@pytest.mark.parametrize(
    "call",
    [
        "select forebay.claim_v1(1, 1, 1, 1, 1, 1)",
        "select forebay.promote_v1()",
        "select forebay.seal_v1()",
        "select expired from forebay.sweep_v1()",
        "select * from forebay.revoke_lost_v1()",
        "select * from forebay.change_jobs('retry', '{\"all\": true}', most => 10)",
    ],
)
def test_calls_that_must_stand_alone_refuse_a_transaction(database, call):
    """An old snapshot or a transaction that has written is refused before anything is done."""
    with psycopg.connect(database) as caller:
        caller.execute("set transaction isolation level repeatable read")
        assert sqlstate(caller, call) == "JQ012"
        caller.rollback()
        enqueue(caller)
        assert sqlstate(caller, call) == "JQ012"


@pytest.mark.slow
def test_a_claim_in_a_transaction_that_has_been_open_for_a_while_is_refused(database):
    """A claim that would keep its turn until somebody commits is recognised by the transaction's
    age.
    """
    with psycopg.connect(database) as caller:
        caller.execute("select 1")
        wait_for(lambda: one(caller, "select clock_timestamp() - now() > interval '3.1 s'"))
        assert sqlstate(caller, "select forebay.claim_v1(1, 1, 1, 1, 1, 1)") == "JQ012"


def make_segment(conn, segment_id: int, lo: int, hi: int) -> None:
    """Make a segment as maintenance does, so that it belongs to the owner of the schema."""
    with conn.transaction():
        one(
            conn,
            (
                "select set_config('role', pg_get_userbyid(nspowner), true) from pg_namespace "
                "where nspname = 'forebay'"
            ),
        )
        conn.execute("select forebay._make_segment(%s, %s, %s)", [segment_id, lo, hi])


@pytest.mark.parametrize("border", [2**31, 2**32, 2**53])
def test_numbers_beyond_every_smaller_type(database, conn, border):
    """Ids, batches and settlements work across the borders of 32 and 53 bits."""
    last = one(conn, "select max(segment_id) from forebay.segment")
    make_segment(conn, last + 1, border - 50, border + 50)
    conn.execute("select setval('forebay.log_seq', %s)", [border - 5])
    with Reader(database) as reader:
        ids = [enqueue(conn) for _ in range(10)]
        assert ids == list(range(border - 4, border + 6))
        batch = reader.claim()
        assert batch.job_ids == ids
        retry = [{"offset": 10, "outcome": "retried"}]
        assert reader.settle(batch.claim_no, list(range(1, 10)), ended=retry) == "settled"
        assert [state(conn, i) for i in ids] == ["done"] * 9 + ["ready"]
        conn.execute("select forebay.cancel(%s)", [ids[9]])
        assert reader.claim_all() == []
        assert state(conn, ids[9]) == "cancelled"


def test_the_last_number_of_all(database, conn):
    """At the end of 63 bits enqueues fail cleanly.

    What is there is served, and nothing is wedged.
    """
    top = 2**63 - 1
    last = one(conn, "select max(segment_id) from forebay.segment")
    make_segment(conn, last + 1, top - 100, top)
    conn.execute("select setval('forebay.log_seq', %s)", [top - 3])
    with Reader(database) as reader:
        ids = [enqueue(conn), enqueue(conn)]
        for _ in range(3):
            assert sqlstate(conn, "select forebay.enqueue('work')") in ("23514", "2200H")
        assert sqlstate(conn, "select forebay.extend_v1()") is None
        assert reader.claim().job_ids == ids
        assert reader.settle(1) == "settled"
        assert [state(conn, i) for i in ids] == ["done"] * 2
        one(conn, "select forebay.seal_v1()")
        one(conn, "select expired from forebay.sweep_v1()")


def test_counters_of_attempts_and_claims_at_their_end(database, conn):
    """A claim number of 63 bits is a name like any other."""
    enqueue(conn)
    with Reader(database) as reader:
        reader.claim_no = 2**63 - 2
        batch = reader.claim()
        assert batch.claim_no == 2**63 - 1
        assert reader.settle(batch.claim_no, flush_no=2**31 - 1) == "settled"


@pytest.mark.parametrize(
    "settings",
    [
        {"DateStyle": "German, DMY", "TimeZone": "Asia/Kathmandu", "IntervalStyle": "iso_8601"},
        {"standard_conforming_strings": "off", "escape_string_warning": "off"},
        {"search_path": "pg_temp, public", "plan_cache_mode": "force_custom_plan"},
        {"extra_float_digits": "0", "bytea_output": "escape", "xmloption": "document"},
        {"enable_indexscan": "off", "enable_bitmapscan": "off", "jit": "on", "jit_above_cost": "0"},
        {"default_transaction_isolation": "serializable"},
        {"statement_timeout": "5s", "lock_timeout": "1s"},
    ],
)
def test_odd_session_settings_change_nothing(database, settings):
    """Whatever a session or role has set, a job comes out as it went in."""
    with connect(database) as odd, Reader(database) as reader:
        for name, value in settings.items():
            odd.execute(f"select set_config('{name}', %s, false)", [value])
        args = {"when": "2026-02-03T04:05:06.789Z", "text": "a\\b'c\"d", "pi": 3.14159265358979}
        many = [{"kind": "work", "args": args, "run_at": "2026-02-03T04:05:06Z"}]
        ids = [enqueue(odd, args=args), *enqueue_many(odd, many)]
        jobs = [job for batch in reader.claim_all() for job in batch.jobs]
        assert [job["job_id"] for job in jobs] == ids
        assert [job["args"] for job in jobs] == [args, args]
