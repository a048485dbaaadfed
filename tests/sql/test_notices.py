"""Notices on the channel forebay_events: whatever ends a job or lets it run again sends one, in its
transaction; bounded, and with nothing in it that is not for everyone.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.support.consumer import Consumer
from tests.support.engine import (
    Reader,
    connect,
    enqueue,
    enqueue_many,
    one,
    shift_clock,
    small_segments,
    sqlstate,
    state,
)
from tests.support.mutant import break_function, violation
from tests.support.waiting import wait_for

Notice = dict[str, Any]

ERROR = {"type": "ValueError", "message": "a secret", "traceback": "", "max_attempts": 20}
YEARS = 20 * 366 * 86_400


class Listener:
    """A session that listens, and what it has heard."""

    def __init__(self, dsn: str) -> None:
        self.conn = connect(dsn)
        self.conn.add_notify_handler(lambda notify: self._payloads.append(notify.payload))
        self.conn.execute("listen forebay_events")
        self._payloads: list[str] = []
        self._ends = itertools.count()

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: object) -> None:
        self.conn.close()

    def payloads(self, conn: psycopg.Connection[Any]) -> list[str]:
        """Return what was heard of commits before this call, each once."""
        end = f"end {next(self._ends)}"
        conn.execute("select pg_notify('forebay_events', %s)", [end])

        def arrived() -> bool:
            self.conn.execute("select")
            return end in self._payloads

        wait_for(arrived)
        heard, self._payloads = self._payloads, []
        return [payload for payload in heard if payload != end]

    def read(self, conn: psycopg.Connection[Any], *, acts: bool = False) -> list[Notice]:
        """Return the notices of jobs and subjects, or those of acts."""
        found = [json.loads(payload) for payload in self.payloads(conn)]
        return [notice for notice in found if ("act" in notice) == acts]


def switch(conn: psycopg.Connection[Any], queue: str = "default", *, on: bool = True) -> bool:
    """Switch the notices of a queue; return whether it sent them before."""
    return one(conn, "select forebay.set_notices(%s, %s)", queue, on)


@pytest.fixture
def database(database: str) -> str:
    """The servers of the tests can prepare transactions; there notices need the parameter."""
    with connect(database) as conn:
        conn.execute(f"alter database {conn.info.dbname} set forebay.wakeup = 'on'")
    return database


@pytest.fixture
def conn(database: str) -> Iterator[psycopg.Connection[Any]]:
    with connect(database) as conn:
        yield conn


@pytest.fixture
def listener(database) -> Iterator[Listener]:
    with Listener(database) as listener:
        yield listener


def of(became: str, *jobs: int, queue: str = "default", group: str | None = "default") -> Notice:
    """Return the notice of these jobs."""
    found: Notice = {"queue": queue, "job": became, "count": len(jobs), "jobs": sorted(jobs)}
    return found if group is None else found | {"group": group}


# --- each path on which a job ends, or runs again ---


def settled_whole(conn, reader) -> list[Notice]:
    """All jobs of a batch are done."""
    ids = [enqueue(conn), enqueue(conn)]
    assert reader.settle(reader.claim().claim_no) == "settled"
    return [of("done", *ids)]


def settled_in_parts(conn, reader) -> list[Notice]:
    """Each outcome is a notice; a job that was delayed is named by its id, not its row's number."""
    later = enqueue(conn, delay="1 hour")
    shift_clock(conn, 4000)
    one(conn, "select forebay.promote_v1()")
    ids = [later] + [enqueue(conn) for _ in range(8)]
    batch = reader.claim()
    assert sorted(batch.job_ids) == sorted(ids)
    outcomes = ["dead", "cancelled", "retried", "lost", "snoozed", "unknown", "released"]
    ended = [{"offset": nr, "outcome": name, "error": ERROR} for nr, name in enumerate(outcomes, 3)]
    assert reader.settle(batch.claim_no, [1, 2], ended=ended) == "settled"
    found = [of("done", *batch.job_ids[:2])]
    found += [of(name, job) for name, job in zip(outcomes, batch.job_ids[2:], strict=True)]
    return sorted(found, key=lambda notice: notice["job"])


def settled_with_keys(conn, reader) -> list[Notice]:
    """A job that waits behind a retry of its key; a dead job that holds its key."""
    ids = [enqueue(conn, ordering_key=key) for key in ("a", "a", "b")]
    batch = reader.claim_ready()
    assert batch.job_ids == ids
    ended = [
        {"offset": 1, "outcome": "retried", "after": 60},
        {"offset": 2, "outcome": "released"},
        {"offset": 3, "outcome": "dead", "holds_key": True},
    ]
    assert reader.settle(batch.claim_no, ended=ended) == "settled"
    return [of("dead", ids[2]), of("requeued", ids[1]), of("retried", ids[0])]


def settled_by_its_handler(conn, reader) -> list[Notice]:
    """In the transaction of the handler."""
    ids = [enqueue(conn), enqueue(conn)]
    batch = reader.claim()
    one(conn, "select forebay.settle_job_v1(%s, %s, 2, 5)", reader.lease_id, batch.claim_no)
    return [of("done", ids[1])]


def settled_by_tokens(conn, reader) -> list[Notice]:
    """A worker in another language settles many jobs with one call: one notice."""
    with Consumer(reader.dsn) as consumer:
        ids = [enqueue(conn) for _ in range(5)]
        assert consumer.settle("done", consumer.take()) == ["settled"] * 5
    return [of("done", *ids)]


def settled_while_it_was_cancelled(conn, reader) -> list[Notice]:
    """A request to cancel a running job is no end: the settlement decides."""
    job_id = enqueue(conn)
    batch = reader.claim()
    assert one(conn, "select forebay.cancel(%s)", job_id) == "requested"
    retried = [{"offset": 1, "outcome": "retried"}]
    assert reader.settle(batch.claim_no, ended=retried) == "settled"
    return [of("cancelled", job_id)]


def revoked(conn, reader) -> list[Notice]:
    """A worker is lost."""
    ids = [enqueue(conn), enqueue(conn)]
    reader.claim()
    assert reader.revoked_by(conn) == 2
    return [of("lost", *ids)]


def closed(conn, reader) -> list[Notice]:
    """A worker stops and gives its jobs back."""
    job_id = enqueue(conn)
    reader.claim()
    assert reader.revoked_by(conn, suspects=False) == 1
    return [of("released", job_id)]


def died_with_its_worker(conn, reader) -> list[Notice]:
    """The job ran alone when its worker died, for the last time."""
    job_id = enqueue(conn, max_attempts=1)
    reader.claim()
    reader.revoked_by(conn)
    with Reader(reader.dsn) as other:
        batch = other.claim_ready()
        one(other.conn, "select forebay.start_suspect_v1(%s, %s)", other.lease_id, batch.claim_no)
        other.revoked_by(conn)
    return [of("lost", job_id), of("dead", job_id)]


def expired_at_a_claim(conn, reader, **options: Any) -> list[Notice]:
    """A claim meets jobs past their expiry."""
    ids = [enqueue(conn, expires_at="2035-01-01", **options) for _ in range(3)]
    shift_clock(conn, YEARS)
    reader.claim_ready()
    return [of("expired", *ids)]


def expired_with_keys(conn, reader) -> list[Notice]:
    """The same in a lane of ordering keys."""
    return expired_at_a_claim(conn, reader, ordering_key="k")


def expired_with_limits(conn, reader) -> list[Notice]:
    """The same in a lane of limit keys."""
    return expired_at_a_claim(conn, reader, limit_key="t")


def expired_in_a_sweep(conn, reader) -> list[Notice]:
    """Maintenance expires jobs of a paused queue."""
    ids = [enqueue(conn, expires_at="2035-01-01") for _ in range(3)]
    one(conn, "select forebay.pause_queue('default')")
    shift_clock(conn, YEARS)
    one(conn, "select count(*) from forebay.sweep_v1()")
    return [of("expired", *ids)]


def cancelled(conn, reader) -> list[Notice]:
    """A waiting job; a second request changes nothing."""
    job_id = enqueue(conn)
    for _ in range(2):
        assert one(conn, "select forebay.cancel(%s)", job_id) == "cancelled"
    return [of("cancelled", job_id, group=None)]


def cancelled_for_a_group(conn, reader) -> list[Notice]:
    """The other groups still have it."""
    one(conn, "select forebay.open_group('default', 'audit')")
    job_id = enqueue(conn)
    assert one(conn, "select forebay.cancel(%s, 'audit')", job_id) == "cancelled"
    return [of("cancelled", job_id, group="audit")]


def cancelled_together(conn, reader) -> list[Notice]:
    """By a filter: those that wait, in every queue that sends notices."""
    switch(conn, "mail")
    running = enqueue(conn)
    reader.claim()
    waiting = [enqueue(conn), enqueue(conn, delay="1 hour")]
    mail, quiet = enqueue(conn, queue="mail"), enqueue(conn, queue="quiet")
    found = one(
        conn, "select sum(jobs) from forebay.change_jobs('cancel', %s)",
        json.dumps({"ids": [running, *waiting, mail, quiet]}),
    )  # fmt: skip
    assert found == 5
    assert state(conn, running) == "claimed"
    return [of("cancelled", *waiting, group=None), of("cancelled", mail, queue="mail", group=None)]


def truncated(conn, reader) -> list[Notice]:
    """A job that a worker has for one group is cancelled for the other."""
    one(conn, "select forebay.open_group('default', 'audit')")
    held = enqueue(conn)
    reader.claim()
    waiting = enqueue(conn)
    one(conn, "select forebay.truncate_queue('default')")
    return [of("cancelled", held, group="audit"), of("cancelled", waiting, group=None)]


def left_by_its_group(conn, reader) -> list[Notice]:
    """A group is closed: its jobs are counted."""
    enqueue(conn), enqueue(conn)
    one(conn, "select cancelled from forebay.close_group('default', force => true)")
    return [{"queue": "default", "group": "default", "job": "cancelled", "count": 2}]


def replaced(conn, reader) -> list[Notice]:
    """A newer job of its unique key takes the place of one that waits."""
    job_id = enqueue(conn, unique_as='{"replace": "k"}')
    enqueue(conn, unique_as='{"replace": "k"}')
    return [of("cancelled", job_id, group=None)]


def replaced_together(conn, reader) -> list[Notice]:
    """The same in bulk."""
    keys = [{"kind": "work", "unique_as": {"replace": key}} for key in "ab"]
    ids = enqueue_many(conn, keys)
    assert not set(ids) & set(enqueue_many(conn, keys))
    return [of("cancelled", *ids, group=None)]


def letter(conn, reader, *, jobs: int = 1) -> list[int]:
    """Make dead letters; return their jobs."""
    ids = [enqueue(conn) for _ in range(jobs)]
    batch = reader.claim()
    ended = [{"offset": nr, "outcome": "dead"} for nr in range(1, jobs + 1)]
    assert reader.settle(batch.claim_no, ended=ended) == "settled"
    return ids


def redriven(conn, reader) -> list[Notice]:
    """One dead letter."""
    (job_id,) = letter(conn, reader)
    one(conn, "select forebay.redrive(max(dead_id)) from forebay.dead_letter")
    return [of("dead", job_id), of("redriven", job_id)]


def redriven_together(conn, reader) -> list[Notice]:
    """By a filter."""
    ids = letter(conn, reader, jobs=2)
    assert one(conn, "select forebay.redrive_matching('default')") == 2
    return [of("dead", *ids), *(of("redriven", job_id) for job_id in ids)]


# --- subjects ---


def push(conn, subject: str = "a", **options: Any) -> None:
    """Push a subject, or change it."""
    row = {"kind": "work", "queue": "default", "subject": subject} | options
    conn.execute("select * from forebay.upsert_subjects(%s)", [json.dumps([row])])


def about(what: str, *runs: int) -> Notice:
    """Return the notice of one subject."""
    found: Notice = {"queue": "default", "subject": what}
    return found | {"count": 1, "jobs": list(runs)} if runs else found


def end_run(reader, outcome: str = "done", **what: Any) -> int:
    """End the run of a subject; return its job."""
    batch = reader.claim_ready()
    end = {"offset": 1, "outcome": outcome} | ({"subject": what} if what else {})
    assert reader.settle(batch.claim_no, ended=[end]) == "settled"
    return batch.job_ids[0]


def subject_runs(conn, reader) -> list[Notice]:
    """Each way in which a run means something for its subject."""
    found = []
    ways = {"again": "scheduled", "complete": "completed", "drop": "dropped"}
    for then, state_of in ways.items():
        push(conn, then)
        job_id = end_run(reader, then=then, **({"after": 3600} if then == "again" else {}))
        found += [about(state_of, job_id), of("done", job_id)]
    for outcome, state_of in {"dead": "dead", "cancelled": "killed"}.items():
        push(conn, outcome)
        job_id = end_run(reader, outcome)
        found += [about(state_of, job_id), of(outcome, job_id)]
    return found


def subject_killed(conn, reader) -> list[Notice]:
    """While its run waits, and revived, and while it waits for its time."""
    push(conn)
    job_id = one(conn, "select job_id from forebay.subject('default', 'a')")
    assert one(conn, "select forebay.kill_subject('default', 'a')") == "killed"
    one(conn, "select forebay.revive_subject('default', 'a', now() + interval '1 hour')")
    one(conn, "select forebay.kill_subject('default', 'a')")
    return [
        of("cancelled", job_id, group=None), about("killed"), about("scheduled"), about("killed"),
    ]  # fmt: skip


def subject_killed_while_it_runs(conn, reader) -> list[Notice]:
    """What its run says then is no news of the subject, which stays killed."""
    push(conn)
    batch = reader.claim_ready()
    assert one(conn, "select forebay.kill_subject('default', 'a')") == "requested"
    end = {"offset": 1, "outcome": "done", "subject": {"then": "complete"}}
    assert reader.settle(batch.claim_no, ended=[end]) == "settled"
    return [about("killed"), of("done", *batch.job_ids)]


def subject_changed(conn, reader) -> list[Notice]:
    """Its waiting run is replaced."""
    push(conn)
    job_id = one(conn, "select job_id from forebay.subject('default', 'a')")
    push(conn, args={"n": 1}, delay=3600)
    return [of("cancelled", job_id, group=None), about("scheduled")]


def subjects_dropped(conn, reader) -> list[Notice]:
    """One, and all: a transaction sends equal notices once."""
    push(conn, "a", delay=3600), push(conn, "b", delay=3600), push(conn, "c", delay=3600)
    one(conn, "select forebay.drop_subject('default', 'a')")
    assert one(conn, "select dropped from forebay.drop_subjects('default')") == 2
    return [about("dropped"), about("dropped")]


def subject_expired(conn, reader) -> list[Notice]:
    """It is due again only after its end."""
    push(conn, expires_at="2035-01-01")
    job_id = end_run(reader, then="again", at="2040-01-01T00:00:00Z")
    shift_clock(conn, YEARS)
    one(conn, "select forebay.promote_v1()")
    return [about("scheduled", job_id), of("done", job_id), about("killed")]


def subject_redriven(conn, reader) -> list[Notice]:
    """The run of a dead subject: the notice is about the job."""
    push(conn)
    job_id = end_run(reader, "dead")
    one(conn, "select forebay.redrive(max(dead_id)) from forebay.dead_letter")
    return [about("dead", job_id), of("dead", job_id), of("redriven", job_id)]


#: Each function that writes how a job or subject ended or that it runs again, with the ways to it.
PATHS: dict[str, list[Callable[..., list[Notice]]]] = {
    "settle_v1": [
        settled_whole, settled_in_parts, settled_with_keys, settled_by_tokens,
        settled_while_it_was_cancelled,
    ],
    "settle_job_v1": [settled_by_its_handler],
    "_end": [settled_in_parts],
    "_revoke": [revoked, closed, died_with_its_worker],
    "_take": [expired_at_a_claim],
    "_choose_keyed": [expired_with_keys],
    "_take_limited": [expired_with_limits],
    "_expire_one": [expired_in_a_sweep],
    "cancel": [cancelled, cancelled_for_a_group],
    "change_jobs": [cancelled_together],
    "_cancel_waiting": [truncated],
    "close_group": [left_by_its_group],
    "_enqueue_unique": [replaced],
    "_take_keys": [replaced_together],
    "_redrive": [redriven, redriven_together],
    "_end_subject": [subject_runs, subject_killed_while_it_runs],
    "_count_subjects": [subject_killed],
    "kill_subject": [subject_killed],
    "_append_subject_state": [subject_killed],
    "_put_subjects": [subject_changed],
    "_drop_subject": [subjects_dropped],
    "_issue_subjects": [subject_expired],
    "_redrive_subject": [subject_redriven],
}  # fmt: skip

#: Functions that write such a fact and send nothing, and why.
QUIET = {
    "_discard_lease": "a restored database is adopted as a whole: the act says so",
    "_move_ready": "it waits as before, in another row: the act says so",
    "_append_successors": "what it marks as replaced is being claimed, and ends by a settlement",
    "_write_runs": "a run is issued: nothing has ended",
    "_forget_carried": "it takes back a count; what the newer row says was announced with it",
    "_cancel_job": "a child of a flow, or a flow that ends at once: the act says so",
    "_trim_subject_counts": "it adds rows up",
}

_FACT = re.compile(
    r"insert into forebay\.(?:settlement|tombstone|subject_count)\b"
    r"|forebay\._(?:write_dead_letter|count_subjects)\(|closing_at = forebay|redriven_as = v_job"
)


def test_each_function_that_writes_such_a_fact_is_known_here(conn):
    """The list comes from the functions of the database: a new path fails until it is decided."""
    rows = conn.execute(
        "select proname, prosrc from pg_proc where pronamespace = 'forebay'::regnamespace"
    )
    found = {name for name, source in rows if _FACT.search(re.sub(r"--.*", "", source))}
    assert found == {*PATHS, *QUIET}


def test_each_outcome_of_a_settlement_has_a_way_here(conn):
    """The words of notices are those of the codes."""
    words = {
        "dead" if code == "y" else meaning
        for code, meaning in conn.execute(
            "select code, meaning from forebay.code where column_name = 'settlement.outcomes'"
        )
    }
    assert words == {
        "done", "cancelled", "dead", "retried", "lost", "snoozed", "unknown", "released",
        "requeued",
    }  # fmt: skip


def it_is_told(dsn: str, path: Callable[..., list[Notice]]) -> None:
    """Listen, go the way, and compare; a queue that sends none stays silent."""
    with connect(dsn) as conn, Reader(dsn) as reader, Listener(dsn) as listener:
        switch(conn)
        expected = path(conn, reader)
        assert listener.read(conn) == expected


@pytest.mark.parametrize(
    ("name", "path"), [(name, path) for name, paths in PATHS.items() for path in paths]
)
def test_what_becomes_of_a_job_is_told(database, name, path):
    """Every function that writes it sends the notice."""
    it_is_told(database, path)


def test_the_queue_of_another_job_is_silent(database, listener):
    """Neither jobs nor subjects nor acts of a queue that did not ask for it."""
    with connect(database) as conn, Reader(database) as reader:
        switch(conn, "mail")
        listener.payloads(conn)
        for path in (settled_in_parts, cancelled, replaced, redriven, subject_killed):
            path(conn, reader)
        one(conn, "select forebay.pause_queue('default')")
        assert listener.payloads(conn) == []


@pytest.mark.parametrize(
    ("name", "guard", "instead", "path"),
    [
        ("settle_v1", "if v_claims is not null then", "if false then", settled_whole),
        ("settle_job_v1", "elsif pg_sequence_last_value('forebay.notices_seq') is not null then",
         "elsif false then", settled_by_its_handler),
        ("_revoke", "if v_claims <> '{}' and", "if false and", revoked),
        ("_report_deaths", "where d.reason = 'expired'", "where false", expired_at_a_claim),
        ("_announce_settled", "coalesce(l.job_id, l.seq)", "l.seq", None),
        ("_end_subject", "s.subject_id = r.subject_id and s.no > r.no", "false",
         subject_killed_while_it_runs),
    ],
)  # fmt: skip
def test_without_the_call_nobody_hears_of_it(database, name, guard, instead, path):
    """The mutants tell nobody, name the wrong job, or say what is not so any more."""
    if path is None:
        name, path = "_job_ids_of", settled_in_parts
    break_function(database, name, (guard, instead))
    with violation():
        it_is_told(database, path)


# --- acts ---


def test_acts_on_a_queue_are_told(conn, listener):
    """Settings, pauses, groups, keys, what holds for all queues, and the option itself."""
    assert switch(conn) is False
    assert switch(conn) is True
    for call in (
        "pause_queue('default')",
        "resume_queue('default')",
        "limit_queue('default', rate => 5)",
        "set_max_attempts('default', 3)",
        "shard_queue('default', 2)",
        "keep_dead('default', 7)",
        "keep_dead(null, 7)",
        "configure('max_waiting', 100)",
        "pause_key('default', ordering_key => 'a secret')",
        "open_group('default', 'audit')",
        "create_endpoint('partner', 'http', '{\"url\": \"https://partner.example/\"}')",
        "pause_queue('mail')",
    ):
        conn.execute(f"select forebay.{call}")
    switch(conn, on=False)
    one(conn, "select forebay.pause_queue('default')")
    found = listener.read(conn, acts=True)
    assert [(notice["act"], notice.get("queue")) for notice in found] == [
        ("queues.notices", "default"),
        ("queues.pause", "default"),
        ("queues.resume", "default"),
        ("queues.limit", "default"),
        ("queues.max_attempts", "default"),
        ("queues.shard", "default"),
        ("dead.keep", "default"),
        ("dead.keep", None),
        ("configure", None),
        ("keys.pause", "default"),
        ("groups.open", "default"),
        ("queues.notices", "default"),
    ]
    assert found[1] == {"act": "queues.pause", "queue": "default"}
    assert found[10] == {"act": "groups.open", "queue": "default", "group": "audit"}


def test_acts_on_endpoints_are_told_by_the_queue_of_deliveries(conn, listener):
    """An endpoint is no queue: its deliveries are jobs of one."""
    switch(conn, "forebay.deliver")
    settings = json.dumps({"url": "https://partner.example/"})
    conn.execute("select forebay.create_endpoint('partner', 'http', %s)", [settings])
    conn.execute("select forebay.disable_endpoint('partner', 'moving')")
    found = [notice["act"] for notice in listener.read(conn, acts=True)]
    assert found == ["queues.notices", "endpoints.create", "keys.pause", "endpoints.disable"]


def test_a_queue_that_is_dropped_says_so_last(conn, database, listener):
    """And its notices are off."""
    with Reader(database):
        switch(conn)
        enqueue(conn)
        listener.payloads(conn)
        dropped = one(conn, "select settings from forebay.drop_queue('default', force => true)")
        assert "notices" in dropped
        found = [json.loads(payload) for payload in listener.payloads(conn)]
        assert found[-1] == {"act": "queues.drop", "queue": "default"}
        assert {"cancelled"} == {notice["job"] for notice in found if "job" in notice}
        assert switch(conn, on=False) is False


# --- bounds ---


def test_a_batch_of_a_thousand_is_one_notice(conn, database, listener):
    """Up to a hundred jobs are named; beyond that they are counted, and the listener asks."""
    switch(conn)
    with Reader(database) as reader:
        for jobs in (100, 101, 1000):
            ids = enqueue_many(conn, [{"kind": "work"}] * jobs)
            reader.finish(reader.claim(1000))
            (notice,) = listener.read(conn)
            assert notice["count"] == jobs
            assert notice.get("jobs") == (sorted(ids) if jobs == 100 else None)


def bounded(dsn: str) -> None:
    """A statement that changes a thousand jobs one by one sends a few notices."""
    with connect(dsn) as conn, Listener(dsn) as listener:
        switch(conn)
        enqueue_many(conn, [{"kind": "work"}] * 1000)
        listener.payloads(conn)
        query = "select count(forebay.cancel(seq)) from (select seq from forebay.log) l"
        assert one(conn, query) == 1000
        found = listener.payloads(conn)
        assert len(found) <= 22
        notices = [json.loads(payload) for payload in found]
        assert {"queue": "default", "job": "cancelled"} in notices
        assert {"queue": "default", "act": "jobs.cancel"} in notices
        assert sum("count" in notice for notice in notices) == 20


def test_a_transaction_sends_a_bounded_number(database):
    """What follows the twentieth has no numbers: equal notices are sent once."""
    bounded(database)


def test_without_the_count_a_statement_sends_a_thousand(database):
    """The mutant never stops counting."""
    break_function(database, "_send_notice", ("v_sent < 20", "true"))
    with violation():
        bounded(database)


def test_the_next_transaction_has_its_own_count(conn, listener):
    """Also one after a rollback, and what a savepoint takes back is given back."""
    switch(conn)
    ids = enqueue_many(conn, [{"kind": "work"}] * 60)
    listener.payloads(conn)
    for begin in (0, 20):
        with conn.transaction():
            for job_id in ids[begin : begin + 20]:
                one(conn, "select forebay.cancel(%s)", job_id)
        assert sum("jobs" in notice for notice in listener.read(conn)) == 20
    with conn.transaction():
        with conn.transaction() as inner:
            for job_id in ids[40:]:
                one(conn, "select forebay.cancel(%s)", job_id)
            raise psycopg.Rollback(inner)
        one(conn, "select forebay.cancel(%s)", ids[40])
    assert listener.read(conn) == [of("cancelled", ids[40], group=None)]


@pytest.mark.parametrize("value", ["", "x", "-5", "19", "99999999999", "5; drop"])
def test_a_session_that_sets_the_count_harms_nobody(conn, listener, value):
    """Producers may set any parameter of their session."""
    switch(conn)
    job_id = enqueue(conn)
    conn.execute("select set_config('forebay.notices', %s, false)", [value])
    assert one(conn, "select forebay.cancel(%s)", job_id) == "cancelled"
    assert [notice["job"] for notice in listener.read(conn)] == ["cancelled"]


def test_the_longest_notice_is_short(conn, database, listener):
    """Names of 128 characters, a hundred ids of 19 digits: the bound of PostgreSQL is 8,000."""
    queue, group = "q" * 128, "g" * 128
    switch(conn, queue)
    top = 9_000_000_000_000_000_000
    conn.execute(
        "select forebay._announce_jobs(%s, %s, 'requeued', "
        "array(select %s + generate_series(1, 100)))",
        [queue, group, top],
    )
    (payload,) = [text for text in listener.payloads(conn) if "requeued" in text]
    assert 2000 < len(payload) < 3000


# --- what a notice may say ---


def test_a_notice_has_no_name_of_a_single_thing(conn, database, listener):
    """Every role that may connect can listen: no kinds, keys, tags, subjects, arguments, errors."""
    switch(conn)
    with Reader(database) as reader:
        enqueue(
            conn, kind="secret", args={"a": "secret"}, tag="secret", correlation_id="secret",
            ordering_key="secret", headers='{"h": "secret"}', unique_as='{"replace": "secret"}',
        )  # fmt: skip
        ended = [{"offset": 1, "outcome": "dead", "error": ERROR, "reason": "permanent"}]
        assert reader.settle(reader.claim_ready().claim_no, ended=ended) == "settled"
        push(conn, "secret", delay=3600)
        one(conn, "select forebay.kill_subject('default', 'secret', 'secret')")
        one(conn, "select forebay.pause_key('default', ordering_key => 'secret')")
        found = listener.payloads(conn)
    assert len(found) == 5
    for payload in found:
        assert "secret" not in payload
        assert set(json.loads(payload)) <= {
            "queue", "group", "job", "subject", "act", "count", "jobs",
        }  # fmt: skip


# --- transactions ---


@pytest.mark.parametrize("how", ["rolled back", "killed"])
def test_a_transaction_that_does_not_commit_tells_nothing(conn, database, listener, how):
    """The notice is part of the transaction of the change."""
    switch(conn)
    with Reader(database) as reader:
        enqueue(conn)
        batch = reader.claim()
        listener.payloads(conn)
        own = psycopg.connect(database)
        one(own, "select forebay.settle_job_v1(%s, %s, 1, 5)", reader.lease_id, batch.claim_no)
        if how == "killed":
            one(conn, "select pg_terminate_backend(%s)", own.info.backend_pid)
        own.close()
        assert listener.payloads(conn) == []


def test_a_settlement_that_clears_its_session_tells_it(conn, database, listener):
    """A handler's session is cleared in the same transaction."""
    switch(conn)
    with Reader(database) as reader:
        job_id = enqueue(conn)
        batch = reader.claim()
        query = "select forebay.settle_job_v1(%s, %s, 1, 5, true)"
        one(conn, query, reader.lease_id, batch.claim_no)
        assert listener.read(conn) == [of("done", job_id)]


def test_a_repeated_or_refused_settlement_tells_nothing(conn, database, listener):
    """Only the one that was settled."""
    switch(conn)
    with Reader(database) as reader:
        job_id = enqueue(conn)
        batch = reader.claim()
        assert reader.settle(batch.claim_no) == "settled"
        assert reader.settle(batch.claim_no) == "repeated"
        assert reader.settle(batch.claim_no, flush_no=2) == "refused"
        assert reader.settle(99) == "unknown_batch"
        assert listener.read(conn) == [of("done", job_id)]


def test_where_notices_must_not_be_sent_nothing_fails(conn, database, listener):
    """A transaction that has notified cannot be prepared: the parameter of wake-ups decides."""
    switch(conn)
    conn.execute("set forebay.wakeup = off")
    job_id = enqueue(conn)
    assert one(conn, "select forebay.cancel(%s)", job_id) == "cancelled"
    assert listener.read(conn) == []


def test_rows_in_several_segments_are_named(conn, database, listener):
    """One claim may have jobs of two segments of the log."""
    switch(conn)
    with Reader(database) as reader:
        small_segments(conn)
        last = "pg_sequence_last_value('forebay.log_seq')"
        end = one(conn, f"select min(hi) from forebay.segment where hi - 2 > {last}")
        one(conn, "select setval('forebay.log_seq', %s)", end - 2)
        first = enqueue(conn)
        second = enqueue(conn)
        batch = reader.claim()
        assert batch.job_ids == [first, second] == [end - 1, end]
        reader.finish(batch)
        assert listener.read(conn) == [of("done", first, second)]


# --- the option ---


@pytest.mark.parametrize(
    ("queue", "enabled"),
    [(None, True), ("a b", True), ("q" * 129, True), ("", True), ("mail", None)],
)
def test_a_bad_name_is_refused_and_nothing_is_written(conn, queue, enabled):
    """With the code of a wrong value."""
    query = "select forebay.set_notices(%s::text, %s::boolean)"
    assert sqlstate(conn, query, queue, enabled) == "JQ001"
    assert one(conn, "select count(*) from forebay.queue_notices") == 0
    assert one(conn, "select count(*) from forebay.event where act = 'queues.notices'") == 0


def test_the_option_is_shown_and_can_be_declared(conn):
    """In the settings of the queue, with who set it; and by an application."""
    query = "select value, source, set_by, applied_by from forebay.queue_settings('mail')"
    shown = f"{query} where setting = 'notices'"
    assert conn.execute(shown).fetchone() == (False, "built in", None, None)
    conn.execute("select set_config('forebay.actor', 'ada', false)")
    switch(conn, "mail")
    assert conn.execute(shown).fetchone() == (True, "queue", "ada", None)
    switch(conn, "mail", on=False)

    def apply(value: str) -> list[tuple[str, str]]:
        declared = f'[{{"queue": "mail", "notices": {value}}}]'
        query = "select setting, action from forebay.apply_queues('shop', %s::jsonb)"
        return conn.execute(query, [declared]).fetchall()

    assert apply("true") == [("notices", "set")]
    assert conn.execute(shown).fetchone() == (True, "queue", "apply shop by ada", "shop")
    assert apply("true") == []
    switch(conn, "mail", on=False)
    assert apply("true") == [("notices", "kept")]
    switch(conn, "mail")
    assert apply("false") == [("notices", "change")]
    assert apply("null") == []
    assert conn.execute(shown).fetchone()[0] is False
    refused = 'select * from forebay.apply_queues(\'shop\', \'[{"queue": "q", "notices": 1}]\')'
    assert sqlstate(conn, refused) == "JQ001"


def test_without_the_option_a_settlement_runs_no_statement_for_it(database):
    """A schema in which each of these functions fails."""
    with connect(database) as conn:
        for name, arguments in conn.execute(
            "select proname, pg_get_function_identity_arguments(oid) from pg_proc"
            " where pronamespace = 'forebay'::regnamespace and proname like '\\_announce\\_settled'"
        ).fetchall():
            conn.execute(f"drop function forebay.{name}({arguments})")
        with Reader(database) as reader:
            for path in (settled_whole, settled_in_parts, settled_by_its_handler, revoked):
                path(conn, reader)
                reader.open_lease()
