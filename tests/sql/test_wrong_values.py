"""Every SQL function for people and producers is given wrong values: it refuses them by an SQLSTATE
of its own, with a message and a hint. The functions are read from the catalog.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import psycopg
import pytest

from forebay import App, Client
from tests.support.engine import connect

#: Wrong values by type, as SQL.
WRONG = {
    "text": ["''", "' '", r"E'a\nb'", "repeat('x', 5000)", "'a b/c'", "'ä'", r"E'a\x01b'", "'5'"],
    "integer": ["'-1'", "'0'", "'2147483647'", "'-2147483648'"],
    "smallint": ["'-1'", "'0'", "'32767'", "'-32768'"],
    "bigint": ["'-1'", "'0'", "'9223372036854775807'", "'-9223372036854775808'"],
    "double precision": ["'-1'", "'0'", "'NaN'", "'Infinity'", "'-Infinity'", "'1e300'"],
    "interval": [
        "'-1 second'", "'0'", "'100 years 1 month'", "'170000000 years'", "'-170000000 years'",
    ],
    "timestamp with time zone": [
        "'infinity'", "'-infinity'", "'4713-01-01 BC'", "'294276-01-01'", "'2000-01-01'",
    ],
    "jsonb": [
        "'null'", "'5'", "'\"x\"'", "'true'", "'[]'", "'[5]'", "'[null]'", "'[[]]'", "'{}'",
        "'[{}]'", "'{\"a\": 1}'", "'[{\"a\": 1}]'", "'{\"queue\": 5}'", "'{\"queue\": null}'",
        "'{\"kind\": {}, \"queue\": []}'", "'{\"ids\": \"x\"}'", "'{\"ids\": [\"x\"]}'",
        "'{\"ids\": [1e30]}'", "'{\"enqueued_after\": \"x\"}'", "'{\"run_at\": \"x\"}'",
        "'{\"delay\": 1e300}'", "'{\"priority\": 1e30}'", "'{\"priority\": \"x\"}'",
        "'[{\"queue\": 5, \"kind\": 5, \"subject\": 5}]'",
    ],
    "text[]": ["'{}'", "'{null}'", "array['']", "array[repeat('x', 5000)]", "array['a', 'a']"],
    "bigint[]": ["'{}'", "'{null}'", "array[-1]", "'{9223372036854775807}'", "array[1, 1]"],
    "jsonb[]": ["'{}'", "'{null}'", "array['5'::jsonb]", "array['{}'::jsonb, null]"],
    "timestamp with time zone[]": ["'{}'", "'{null}'", "'{infinity}'", "'{-infinity}'"],
}  # fmt: skip

#: Good values by names of parameters. A new parameter that must be given needs one.
GOOD = {
    "act": "'cancel'", "age": "'1 day'", "app": "'shop'", "args": "'{}'", "at": "now()",
    "attempts": "5", "backfill_id": "1", "callback": "'{\"kind\": \"mail\"}'",
    "callback_id": "1", "cause": "'x'", "chunk": "100", "group_names": "array['default']",
    "job_ids": "array[1]",
    "messages": "'[{\"endpoint\": \"main\", \"payload\": 1}]'",
    "config": "'{\"url\": \"https://example.com/x\"}'", "data": "'{}'", "dead_id": "1",
    "endpoint": "'main'", "event_type": "'shop.paid'", "file": "'x'",
    "events": "'[{\"event_type\": \"shop.paid\", \"payload\": {}}]'",
    "filter": "'{\"queue\": \"none\"}'", "first": "1", "from_version": "0", "id": "1",
    "hosts": "array['a.internal']",
    "instants": "array[now()]", "job_id": "1", "jobs": "1", "key": "'id'", "keys": "array['k']",
    "kind": "'mail'", "lanes": "4", "last": "2", "limit_key": "'k'", "mirror": "'docs'",
    "name": "'main'", "of_queue": "'mail'", "options": "'{}'", "p_action": "'cancel'",
    "p_audit_id": "1", "p_bulk_priority": "1000", "p_bulk_tags": "'{}'", "p_counters": "'{}'",
    "p_event_id": "1", "p_expires_seconds": "60", "p_found": "'{}'", "p_group_name": "'default'",
    "p_holder": "'x'", "p_jobs": "1", "p_name": "'docs'", "p_outcome": "'x'", "p_queue": "'mail'",
    "p_reason": "'x'", "p_server": "'x'", "p_who": "'w'", "passed": "'x'", "payload": "'{}'",
    "priority": "5", "query": "'select 1 as id'", "queue": "'mail'", "queues": "'[]'",
    "replay_id": "1", "retry": "'[]'", "revision": "1", "schedule": "'main'", "schedules": "'[]'",
    "secret": "'env:X'", "segment_id": "1", "since": "now() - interval '1 day'", "sink": "'http'",
    "step": "'minute'", "subject": "'page'", "subject_id": "1",
    "subjects": "'[{\"queue\": \"mail\", \"kind\": \"crawl\", \"subject\": \"page\"}]'",
    "to_version": "1", "token": "null", "unique_as": "'{\"once\": \"k\"}'", "until": "now()",
    "upgraded": "1", "value": "5", "what": "'1'", "concurrency": "3",
    "payloads": "array['{}'::jsonb]", "tokens": "array['1-1-1']", "worker": "'w1'",
    "error": "'x'", "delay": "'1 s'", "reason": "'x'",
    "alerts": "'[]'", "p_alerts": "'[]'", "p_clear_seconds": "60", "start": "now()",
    "enabled": "true",
}  # fmt: skip

#: Errors of a query that the caller gave: its words are not ours.
OF_THE_QUERY = {("backfill", "query"), ("backfill_plan", "query"), ("backfill_begin", "query"),
                ("backfill_begin", "key")}  # fmt: skip

#: What a function may answer besides the SQLSTATEs of the schema.
DOCUMENTED = {"53400", "55P03"}


@dataclass(frozen=True)
class Call:
    """A call of a function with one wrong value."""

    function: str
    parameter: str
    wrong: str
    sql: str

    def __str__(self) -> str:
        return f"forebay.{self.function}({self.parameter} => {self.wrong})"


def calls(conn: psycopg.Connection) -> Iterator[Call]:
    """Yield the calls of each function: each parameter in turn with each wrong value.

    Functions of the protocol, ``_v1``, are for the library and for drivers.
    """
    found = conn.execute(
        r"""select p.proname, p.proargnames[1:p.pronargs], p.pronargdefaults,
                   array(select format_type(t, null)
                         from unnest(p.proargtypes) with ordinality u (t, nr) order by nr)
            from pg_proc p
            where p.pronamespace = 'forebay'::regnamespace and p.prokind = 'f' and p.pronargs > 0
              and p.prorettype <> 'trigger'::regtype
              and p.proname not like '\_%' and p.proname not like '%\_v_'
            order by p.oid::regprocedure::text"""
    ).fetchall()
    for function, names, defaults, types in found:
        types_by_name = dict(zip(names, types, strict=True))
        good = {name: f"{GOOD[name]}" for name in names[: len(names) - defaults]}
        if function == "enqueue_many" and "args" in good:
            good["args"] = "array['{}'::jsonb]"
        if function == "enter":
            good["queues"] = "array['mail']"
        if function in ("enqueue_many", "enqueue_gather") and "jobs" in good:
            good["jobs"] = '\'[{"kind": "mail"}]\''
        for parameter, type_ in types_by_name.items():
            for wrong in ["null", *WRONG.get(type_, [])]:
                given = ", ".join(
                    f"{name} => ({value})::{types_by_name[name]}"
                    for name, value in (good | {parameter: wrong}).items()
                )
                yield Call(function, parameter, wrong, f"select * from forebay.{function}({given})")


def problem(conn: psycopg.Connection, call: Call) -> str | None:
    """Make a call, undo it, and return what is wrong with the answer."""
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(call.sql)
    except psycopg.Error as error:
        code = error.sqlstate or "?"
        if code.startswith("JQ") or code in DOCUMENTED:
            return None if error.diag.message_primary else f"{call}: no message"
        if (call.function, call.parameter) in OF_THE_QUERY and code.startswith("42"):
            return None
        return f"{call}: {code} {error.diag.message_primary}"
    return None


@pytest.fixture
def shop(database):
    """A database with a dead letter, and one of each thing that has a name."""
    app = App(database)

    @app.job(queue="mail", max_attempts=1)
    def mail():
        raise ValueError("x")

    client = Client(database)
    mail.enqueue_now()
    app.run_worker(until_idle=True)
    client.create_endpoint("main", "http", {"url": "https://example.com/x"})
    client.create_event_type("shop.paid")
    client.push_subjects([{"queue": "mail", "kind": "crawl", "subject": "page"}])
    client.create_schedule("main", "mail", "* * * * *")
    client.create_export("main")
    return database


@pytest.mark.usual("it creates endpoints and exports, and asks all functions of all roles")
@pytest.mark.parametrize(
    "count", [80, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_wrong_values_are_refused_by_an_error_of_ours(shop, count, seed):
    """
    Each parameter of each function has each wrong value in turn, the others have good ones: some of
    these calls, at random. Never an error of a constraint, a cast or an overflow inside.
    """
    with connect(shop) as conn:
        every = list(calls(conn))
        assert len(every) > 3_000
        some = every if count is None else Random(seed).sample(every, count)
        found = [wrong for call in some if (wrong := problem(conn, call)) is not None]
    assert not found, "\n".join(found)
