"""A large log with known statistics, and the pages that each hot or maintenance function reads
in it.

Sessions are opened, and make each call once, while all tables are empty: plans that are made then
stay in these sessions.
"""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.support.engine import Reader, connect, enqueue, forget_polls, lane_of, one, open_group

SCHEMA = Path(__file__).parents[2] / "src" / "forebay" / "sql" / "schema"

_STATED = re.compile(
    r"^-- pages: (.+)$(?:(?!^create function)[\s\S])*?^create function forebay\.(\w+)", re.MULTILINE
)
_TERM = re.compile(r"^(\d+)(?: (?:a|an) ([a-z ]+))?$")


def stated_pages() -> dict[str, dict[str, int]]:
    """Return what the headers state: for each function the pages of a call, under "", and of
    each unit.
    """
    stated = {}
    for file in sorted((SCHEMA / "functions").rglob("*.sql")):
        for text, name in _STATED.findall(file.read_text(encoding="utf-8")):
            terms = [_TERM.match(term) for term in text.split(" + ")]
            assert all(terms), f"{file}: -- pages: {text}"
            stated[name] = {term[2] or "": int(term[1]) for term in terms if term}
    return stated


@dataclass
class Call:
    """One call of a function, and how many of the function's units it is about."""

    function: str
    query: str
    params: list[Any] = field(default_factory=list)
    units: dict[str, int] = field(default_factory=dict)
    once: bool = False  # It changes what the next such call reads.

    def allowed(self, stated: dict[str, dict[str, int]]) -> int:
        """Return the pages that the header of the function allows."""
        return sum(
            pages * (self.units.get(unit, 0) if unit else 1)
            for unit, pages in stated[self.function].items()
        )


def pages(conn: psycopg.Connection[Any], query: str, params: list[Any]) -> int:
    """Return how many pages a call reads, with those of all functions that it calls."""
    row = conn.execute(
        f"explain (analyze, buffers, timing off, format json) {query}", params
    ).fetchone()
    assert row is not None
    top = row[0][0]["Plan"]
    return top["Shared Hit Blocks"] + top["Shared Read Blocks"]


def without_autovacuum(dsn: str) -> None:
    """Let no table be vacuumed or analysed unless the test does it."""
    with connect(dsn) as conn:
        tables = conn.execute(
            "select oid::regclass::text from pg_class"
            " where relnamespace = 'forebay'::regnamespace and relkind = 'r'"
        ).fetchall()
        for (table,) in tables:
            conn.execute(f"alter table {table} set (autovacuum_enabled = off)")


class Session:
    """A worker's and a producer's session in one, with a lease and the groups of all queues."""

    def __init__(self, dsn: str, queues: list[str], plan_cache_mode: str) -> None:
        self.reader = Reader(dsn, queues[0])
        self.conn = self.reader.conn
        self.conn.execute("select set_config('plan_cache_mode', %s, false)", [plan_cache_mode])
        self.mode = plan_cache_mode
        self.groups = [open_group(self.conn, queue) for queue in queues]
        self.idle = open_group(self.conn, "idle")
        self.empty = open_group(self.conn, "empty")
        self.queues = queues
        self.lane = lane_of(queues[0], self.conn)
        self.job = 0
        self.calls = 0

    def close(self) -> None:
        self.conn.close()

    def _leases(self) -> dict[str, int]:
        return {
            "open lease": one(
                self.conn, "select count(*) from forebay.lease where closed_at is null"
            )
        }

    def _segments(self) -> dict[str, int]:
        begun = (
            "select count(*) from forebay.segment where removed_at is null and lo <= (select "
            "last_value from forebay.log_seq)"
        )
        return {"segment": one(self.conn, begun)}

    def _claim(self, queue: str, lane: int, limit: int = 10, once: bool = False) -> Call:
        reader = self.reader
        reader.claim_no += 1
        return Call(
            "claim_v1",
            "select forebay.claim_v1(%s, %s, %s, %s, %s, %s)",
            [
                reader.lease_id,
                reader.claim_no,
                reader.claim_no,
                open_group(self.conn, queue),
                lane,
                limit,
            ],
            {"job": limit, "open transaction": 6, **self._segments()},
            once,
        )

    def _claim_lanes(self, lanes: list[int], groups: list[int], limit: int = 10) -> Call:
        reader = self.reader
        reader.claim_no += 1
        first = reader.claim_no
        reader.claim_no += len(lanes) - 1
        return Call(
            "claim_lanes_v1",
            "select * from forebay.claim_lanes_v1(%s, %s, %s, %s, %s, %s)",
            [reader.lease_id, first, first, groups, lanes, [limit] * len(lanes)],
            {"lane": len(lanes), "job": limit * len(lanes), "open transaction": 6},
        )

    def _settle(self, flush: dict[str, Any]) -> Call:
        return Call(
            "settle_v1",
            "select * from forebay.settle_v1(%s, %s::jsonb)",
            [self.reader.lease_id, json.dumps([{"claim_no": self.reader.claim_no, **flush}])],
            {"job": 10},
        )

    def hot(self) -> Iterator[Call]:
        """Yield the calls of producers and workers. Each is made before the next is asked for."""
        reader, queue = self.reader, self.queues[0]
        self.calls += 1
        key = f"{self.mode}-{self.calls}"
        job = "select forebay.enqueue('work', queue => %s"
        yield Call("enqueue", f"{job})", [queue])
        yield Call("enqueue", f"{job}, delay => '50 days')", [queue])
        yield Call("enqueue", f"{job}, ordering_key => %s)", ["keyed", key])
        yield Call("enqueue", f"{job}, limit_key => %s)", ["shared", key])
        yield Call("enqueue", f"{job})", ["full"])
        yield Call(
            "enqueue", f"{job}, unique_as => jsonb_build_object('once', %s::text))", [queue, key]
        )
        yield Call(
            "enqueue", f"{job}, unique_as => jsonb_build_object('once', %s::text))", [queue, key]
        )
        yield Call(
            "enqueue_unique",
            "select forebay.enqueue_unique('work', '{}', jsonb_build_object('once', %s::text), %s)",
            [key, queue],
        )
        yield Call(
            "enqueue_many",
            "select forebay.enqueue_many('work', array_fill('{}'::jsonb, array[10]), queue => %s)",
            [queue],
            {"job": 10},
        )
        yield Call(
            "enqueue_each",
            "select * from forebay.enqueue_each((select "
            "jsonb_agg(jsonb_build_object('kind', 'work', 'queue', %s::text))"
            " from generate_series(1, 10)))",
            [queue],
            {"job": 10},
        )
        ready = "select * from forebay.ready_v1(%s::bigint[])"
        lanes = {"lane": 3 * len(self.groups)}
        yield Call("ready_v1", ready, [self.groups], {**lanes, "open transaction": 6})
        forget_polls(self.conn)
        yield Call("ready_v1", ready, [self.groups], {**lanes, "open transaction": 6})
        yield Call("ready_v1", ready, [[self.empty]], {"open transaction": 6})
        yield Call("ready_v1", ready, [[self.idle]], {"lane": 3, "open transaction": 6}, once=True)
        poll = "select * from forebay.poll_v1(%s::bigint[], 1000, 1, 1.5)"
        units = {"group": len(self.groups), "open transaction": 6}
        yield Call("poll_v1", poll, [self.groups], {**lanes, **units})
        forget_polls(self.conn)
        yield Call("poll_v1", poll, [self.groups], {**lanes, **units})
        behind = open_group(self.conn, "behind")
        forget_polls(self.conn)
        of_one = {"lane": 3, "group": 1, "open transaction": 6}
        yield Call("poll_v1", poll, [[behind]], of_one)
        yield Call("poll_v1", poll, [[self.empty]], {"group": 1, "open transaction": 6})
        yield self._claim(queue, self.lane)
        yield self._settle({"flush_no": 1, "done": [1, 2, 3, 4, 5, 6, 7, 8]})
        ended = [{"offset": 9, "outcome": "retried"}]
        ended.append({"offset": 10, "outcome": "retried", "after": 4000000})
        yield self._settle({"flush_no": 2, "ended": ended})
        yield self._claim(queue, self.lane)
        yield self._settle({"flush_no": 1})
        yield self._claim(queue, self.lane)
        for offset in (1, 2):
            yield Call(
                "settle_job_v1",
                "select forebay.settle_job_v1(%s, %s, %s, 1)",
                [reader.lease_id, reader.claim_no, offset],
                once=True,
            )
        some = self.queues[:20]
        yield self._claim_lanes([lane_of(each, self.conn) for each in some], self.groups[:20])
        yield self._claim("behind", lane_of("behind", self.conn), once=True)
        yield self._settle({"flush_no": 1})
        yield Call(
            "missing_batches_v1",
            "select forebay.missing_batches_v1(%s, %s::bigint[])",
            [reader.lease_id, list(range(1, 11))],
            {"job": 10},
        )
        yield Call(
            "heartbeat_v1",
            "select * from forebay.heartbeat_v1(array[%s::bigint], %s::bigint[])",
            [reader.lease_id, list(range(1, 11))],
            {"job": 10},
        )
        yield Call(
            "record_progress_v1",
            "select forebay.record_progress_v1(%s, %s::jsonb)",
            [
                reader.lease_id,
                json.dumps([{"job_id": 1, "group_id": reader.group_id, "done": 0.5, "note": ""}]),
            ],
            {"job": 1},
        )
        yield Call(
            "start_suspect_v1",
            "select forebay.start_suspect_v1(%s, %s)",
            [reader.lease_id, reader.claim_no],
        )
        lease = one(self.conn, "select forebay.open_lease_v1('other@test', 30, 5)")
        yield Call("close_lease_v1", "select forebay.close_lease_v1(%s)", [lease])
        yield Call("open_lease_v1", "select forebay.open_lease_v1('other@test', 30, 5)")
        yield Call("revoke_lost_v1", "select * from forebay.revoke_lost_v1()", [], self._leases())
        yield Call("promote_v1", "select forebay.promote_v1()", [], {"open transaction": 6})
        enqueue(self.conn, queue=queue, delay="1 microsecond")
        yield Call(
            "promote_v1", "select forebay.promote_v1()", [], {"job": 1, "open transaction": 6}
        )

        maintain = "select * from forebay.maintain_v1(5000, 1, '{0,-1}', 1.6, 60, 800)"
        units = {**self._leases(), "open transaction": 6}
        yield Call("maintain_v1", maintain, [], units)
        enqueue(self.conn, queue=queue, delay="1 microsecond")
        yield Call("maintain_v1", maintain, [], {**units, "job": 1})

        yield from self._of_subjects()
        yield from self._of_endpoints()
        yield from self._of_breakers()
        yield from self._of_drains(queue)

    def _of_subjects(self) -> Iterator[Call]:
        """Yield the calls about subjects: ten that are due later, and one that is due now."""
        ten = [f"{self.mode}-{self.calls}-{number}" for number in range(10)]
        for delay, version in ((3600, 0), (7200, 1)):
            rows = [
                {"kind": "crawl", "queue": "subjects", "subject": name, "delay": delay,
                    "version": version}
                for name in ten
            ]  # fmt: skip
            for function in ("push_subjects", "upsert_subjects"):
                many = f"select * from forebay.{function}(%s::jsonb)"
                yield Call(function, many, [json.dumps(rows)], {"job": 10})
        now = f"{self.mode}-{self.calls}-now"
        one_of = "select forebay.{}_subject('crawl', %s, queue => 'subjects')"
        yield Call("push_subject", one_of.format("push"), [now])
        yield Call("upsert_subject", one_of.format("upsert"), [now])
        named = "select * from forebay.{}('subjects', %s)"
        for name in (now, ten[0]):
            for function in ("subject", "kill_subject", "revive_subject", "drop_subject"):
                yield Call(function, named.format(function), [name])
        soon = f"{self.mode}-{self.calls}-soon"
        self.conn.execute(
            (
                "select forebay.push_subject('crawl', %s, queue => 'subjects', delay => '1 "
                "microsecond')"
            ),
            [soon],
        )
        units = {"job": 1, "subject": 1, "open transaction": 6}
        yield Call("promote_v1", "select forebay.promote_v1()", [], units)

    def _of_endpoints(self) -> Iterator[Call]:
        """Yield the calls of publishers, routers and deliverers: 10 events for one subscription."""
        publish = "select * from forebay.publish('order.paid', '{\"c\": 1}')"
        yield Call("publish", publish, [], {"subscription": 1})
        many = json.dumps([{"event_type": "order.paid", "payload": {"c": n}} for n in range(9)])
        yield Call("publish_many", "select forebay.publish_many(%s::jsonb)", [many], {"event": 9})
        jobs = []
        with Reader(self.reader.dsn, "forebay.publish") as router:
            while (batch := router.claim_ready(10)).jobs:
                jobs += [job for job in batch.jobs if job["kind"] == "order.paid"]
                for job in batch.jobs:
                    if job["kind"] == "forebay.activate":
                        step = "select forebay.activate_v1(%s, 10)"
                        yield Call(
                            "activate_v1", step, [job["args"]["subscription"]], {"event": 10}
                        )
                events = [job["job_id"] for job in batch.jobs if job["kind"] == "order.paid"]
                if events:
                    units = {"job": len(events), "delivery": len(events)}
                    yield Call("route_v1", "select * from forebay.route_v1(%s)", [events], units)
                router.finish(batch)
            one(self.conn, "select forebay.close_lease_v1(%s)", router.lease_id)
        keys = [[job["job_id"] for job in jobs], [job["enqueued_at"] for job in jobs]]
        payloads = "select * from forebay.event_payloads_v1(%s, %s::timestamptz[])"
        yield Call("event_payloads_v1", payloads, keys, {"event": len(jobs)})
        yield Call(
            "endpoint_settings_v1",
            "select * from forebay.endpoint_settings_v1(0)",
            [],
            {"endpoint": 1},
        )
        counted = {"endpoint_id": 1, "accepted": 9, "failures": 0, "answered": True}
        failed = {"endpoint_id": 1, "failed": 10, "failures": 10, "answered": False, "error": "x"}
        # The last one closes the breaker that the one before opened.
        for facts in (counted, failed, counted):
            report = "select * from forebay.report_deliveries_v1('w', %s::jsonb)"
            yield Call("report_deliveries_v1", report, [json.dumps([facts])], {"endpoint": 1})
        one(self.conn, "select forebay.replay_endpoint('shop', now() - interval '1 hour')")
        replay = one(self.conn, "select max(replay_id) from forebay.replay")
        step = "select forebay.replay_step_v1(%s, 10)"
        yield Call("replay_step_v1", step, [replay], {"event": 10})

    def _of_breakers(self) -> Iterator[Call]:
        """Yield reports about limit keys: one opens a breaker, and the last one closes it."""
        with Reader(self.reader.dsn, "fragile") as reader:
            for _ in range(5):
                enqueue(self.conn, queue="fragile", limit_key="k")
            (batch,) = reader.claim_all()
            options = {"threshold": 1, "cooldown": 30, "cooldown_max": 60}
            report = "select * from forebay.report_breakers_v1('w', '{fragile}', %s::jsonb)"
            for failed in (True, True, False):
                ended = [
                    {"lease_id": reader.lease_id, "claim_no": batch.claim_no, "offset": nr}
                    | {"failed": failed, **options}
                    for nr in range(1, 6)
                ]
                units = {"attempt": 5, "breaker": 1}
                yield Call("report_breakers_v1", report, [json.dumps(ended)], units)
            reader.finish(batch)
            one(self.conn, "select forebay.close_lease_v1(%s)", reader.lease_id)

    def _of_drains(self, queue: str) -> Iterator[Call]:
        """Yield the calls of an audit of a drain that keeps proofs."""
        ids = [enqueue(self.conn, queue=queue) for _ in range(10)]
        times = one(
            self.conn,
            "select array_agg(enqueued_at order by seq) from forebay.log where seq = any (%s)",
            ids,
        )
        self.conn.execute(
            "insert into forebay.result (job_id, group_id, enqueued_at, kept_at, kept_until, value)"
            " select i, %s, t, now(), now() + interval '1 hour', '{\"proof\": 1}'"
            " from unnest(%s::bigint[], %s::timestamptz[]) u (i, t)",
            [self.groups[0], ids, times],
        )
        # The next result of the group ends the page.
        self.conn.execute(
            "insert into forebay.result (job_id, group_id, enqueued_at, kept_at, kept_until, value)"
            " values (-1, %s, now(), now(), now() + interval '2 hours', '{\"proof\": 1}')",
            [self.groups[0]],
        )
        proofs = "select * from forebay.proofs_v1(%s, 'default', p_most => 10)"
        yield Call("proofs_v1", proofs, [queue], {"proof": 10})
        resend = "select forebay.resend_v1('d', %s, 'default', %s::bigint[], %s::timestamptz[])"
        yield Call("resend_v1", resend, [queue, ids, times], {"job": 10, **self._segments()})

    def maintenance(self, waiting: int) -> Iterator[Call]:
        """Yield the calls of maintenance, operators and the doctor."""
        lanes = {"lane": 3 * len(self.groups) + 20}
        yield Call("extend_v1", "select forebay.extend_v1()")
        yield Call("seal_v1", "select forebay.seal_v1()")
        yield Call("retain_v1", "select forebay.retain_v1()")
        yield Call("summarize_v1", "select forebay.summarize_v1()")
        yield Call("archive_v1", "select forebay.archive_v1(2)", [], {"block": 2})
        yield Call("renew_counters_v1", "select forebay.renew_counters_v1(1)", [], lanes)
        yield Call(
            "sweep_v1",
            "select forebay.sweep_v1(now() - interval '1 minute', null, 10)",
            [],
            {**lanes, "job": 10 * min(len(self.groups) + 6, 50), **self._segments()},
        )
        for part in one(self.conn, "select forebay._trim_parts()"):
            step = f"select forebay.trim_v1('{part}', null, 100)"
            yield Call("trim_v1", step, [], {"job": 100})
        yield Call("record_duty_v1", "select forebay.record_duty_v1('trim batches', 60, 'x')")
        yield Call("job", "select * from forebay.job(%s)", [self.job], self._segments())
        attempts = "select * from forebay.job_attempts(%s)"
        yield Call("job_attempts", attempts, [self.job], self._segments())
        yield Call(
            "where_is", "select * from forebay.where_is(%s::text)", [self.job], self._segments()
        )
        yield Call("job_history", "select * from forebay.job_history(%s)", [self.job])
        yield Call("result", "select * from forebay.result(%s)", [self.job], self._segments())
        watched = "select * from forebay.watch_jobs(array[%s], array['default'])"
        yield Call("watch_jobs", watched, [self.job], {"job": 1, **self._segments()})
        yield Call("cancel", "select forebay.cancel(%s)", [self.job], self._segments())
        yield Call("jobs", "select * from forebay.jobs(most => 20)", [], {"job": 20})
        yield Call("limits", "select * from forebay.limits()", [], {**self._leases(), **lanes})
        of_key = {"waiting job": 0, **self._leases()}
        yield Call("key", "select * from forebay.key('keyed', ordering_key => 'k')", [], of_key)
        yield Call("key", "select * from forebay.key('shared', limit_key => 'k')", [], of_key)
        of_keys = {**lanes, "waiting key": 0, **of_key}
        yield Call("keys", "select * from forebay.keys()", [], of_keys)
        every = {**lanes, "waiting job": waiting + 1000, **self._leases()}
        yield Call("depth", "select * from forebay.depth()", [], every)
        yield Call("unfinished", "select * from forebay.unfinished('mirror', 'idle')", [], every)


def fill(dsn: str, rows: int, sessions: list[Session]) -> None:
    """Write half of the rows as jobs that all groups have taken, and the other half as waiting
    ones; and histories.
    """
    with connect(dsn) as conn:
        lanes = [lane_of(queue, conn) for queue in sessions[0].queues]
        _append(conn, lanes, rows // 2)
        _append(conn, [lane_of("idle", conn)], rows // 2)
        _append(conn, [lane_of("behind", conn)], 1000)
        conn.execute("set enable_seqscan = off")
        # The cursors pass what was written up to now.
        conn.execute(
            "insert into forebay.batch (group_id, lane, no, snap_from, pos_segment, "
            "pos_xid, pos_seq, high_seq, handed_total,"
            " skipped_total, claimed_at)"
            " select g.group_id, l.lane, coalesce(b.no, 0) + 1, pg_current_snapshot(), 0, "
            "'0', 0, s.last_value,"
            " coalesce(b.handed_total, 0), coalesce(b.skipped_total, 0), forebay._now() - "
            "interval '1 hour'"
            " from forebay.queue_group g"
            " join lateral (select distinct i.lane, i.queue, i.audience from forebay.lane i) l"
            "   on l.queue = g.queue and l.audience in (0, g.group_id, -g.group_id)"
            " left join lateral (select * from forebay.batch i where i.group_id = "
            "g.group_id and i.lane = l.lane"
            "   order by i.no desc limit 1) b on true, forebay.log_seq s"
        )
        _append(conn, lanes, rows - rows // 2)
        aux = max(1000, rows // 20)
        first, last = 1_000_000_000, 1_000_000_000 + aux
        for statement in _HISTORIES:
            conn.execute(statement, {"first": first, "last": last})
        for session in sessions:
            session.job = one(conn, "select max(seq) from forebay.log_0 where lane = %s", lanes[0])
        keep_up(conn)


def keep_up(conn: psycopg.Connection[Any]) -> None:
    """Do what maintenance does every few seconds: seal full segments, and summarize all."""
    one(conn, "select forebay.seal_v1()")
    after = None
    while True:
        _, after = conn.execute("select * from forebay.summarize_v1(%s)", [after]).fetchone()
        if after is None:
            return


def _append(conn: psycopg.Connection[Any], lanes: list[int], rows: int) -> None:
    conn.execute(
        "insert into forebay.log (lane, enqueued_at, kind, args)"
        " select l.lane, now(), 'work', '{}' from generate_series(1, %s) i, "
        "unnest(%s::bigint[]) l (lane)",
        [max(1, rows // len(lanes)), lanes],
    )


#: Rows of jobs and leases that ended, in the tables that calls read by job or lease.
_HISTORIES = [
    (
        "insert into forebay.lease (lease_id, worker, lease_seconds, suspect_seconds, "
        "opened_at, closed_at, closed_as)"
        " select i, 'old', 30, 5, now(), now(), 'closed' from generate_series(%(first)s, "
        "%(last)s) i"
    ),
    (
        "insert into forebay.heartbeat select i, now() - interval '5 minutes', 1 from "
        "generate_series(%(first)s, %(last)s) i"
    ),
    (
        "insert into forebay.batch (group_id, lane, no, lease_id, claim_no, floor, "
        "snap_from, pos_segment, pos_xid, pos_seq, high_seq,"
        " handed_total, skipped_total, claimed_at, seqs, xids) select -1, -1, i, i, 1, 1, "
        "'1:1:', 0, '0', 0, i, i, 0, now(), array[i],"
        " array['3'::xid8] from generate_series(%(first)s, %(last)s) i"
    ),
    (
        "insert into forebay.settlement (lease_id, claim_no, flush_no, settled_at)"
        " select i, 1, 1, now() from generate_series(%(first)s, %(last)s) i"
    ),
    (
        "insert into forebay.deferred (run_at, lane, enqueued_at, job_id, kind, args)"
        " select now() + interval '1 day', -1, now(), i, 'work', '{}' from "
        "generate_series(%(first)s, %(last)s) i"
    ),
    (
        "insert into forebay.failure (job_id, group_id, enqueued_at, attempt, failed_at, outcome)"
        " select i, -1, now(), 1, now(), 'retried' from generate_series(%(first)s, %(last)s) i"
    ),
    (
        "insert into forebay.tombstone (job_id, reason, recorded_at) select i, 'c', now() from "
        "generate_series(%(first)s, %(last)s) i"
    ),
    (
        "insert into forebay.result (job_id, group_id, enqueued_at, kept_at, kept_until, value)"
        " select i, -1, now(), now(), now() + interval '1 day', '1' from "
        "generate_series(%(first)s, %(last)s) i"
    ),
    (
        "insert into forebay.result (job_id, group_id, enqueued_at, kept_at, kept_until, value)"
        " select i, -1, now(), now(), now() + interval '1 day', '{\"proof\": 1}' from "
        "generate_series(-%(last)s, -%(first)s) i"
    ),
    (
        "insert into forebay.subject (queue, subject, created_at) select 'subjects', "
        "'old-' || i, now() from generate_series(%(first)s, %(last)s) i"
    ),
    (
        "insert into forebay.subject_state (subject_id, no, part, state, at, due_at, "
        "wake_at, kind, version, priority, args, options, iterations)"
        " select s.subject_id, n, 0, 's', now(), now() + interval '1 day', now() + "
        "interval '1 day', 'crawl', 0, 100, '{}', '{}', n"
        " from forebay.subject s, generate_series(1, 3) n where s.subject like 'old-%%'"
    ),
    (
        "insert into forebay.published (event_id, published_at, xid, event_type, payload, "
        "priority, expires_at, keep_until, routed_at, deliveries)"
        " select i, now() - interval '2 hours', '3', 'order.paid', '{}', 100, now() + "
        "interval '1 day', now() + interval '1 day', now(), 0"
        " from generate_series(%(first)s, %(last)s) i"
    ),
    (
        "insert into forebay.endpoint_activity (endpoint_id, at, accepted, failed, "
        "rejected, dropped, latencies)"
        " select 1, now(), 1, 0, 0, 0, '{1}' from generate_series(%(first)s, %(last)s) i"
    ),
    (
        "insert into forebay.dead_letter (group_id, job_id, seq, reason, died_at, queue, "
        "priority, enqueued_at, attempt, kind, args, errors)"
        " select -1, i, i, 'expired', now(), 'old', 100, now(), 0, 'work', '{}', '[]' from "
        "generate_series(%(first)s, %(last)s) i"
    ),
]


@contextmanager
def open_transactions(dsn: str, rows: int) -> Iterator[None]:
    """Hold a snapshot, a transaction id, a bulk of uncommitted jobs in two lanes, and jobs of
    subtransactions.
    """
    with ExitStack() as stack:
        writers = [stack.enter_context(psycopg.connect(dsn)) for _ in range(4)]
        lanes = [lane_of("idle", writers[0]), lane_of("behind", writers[0])]
        for writer in writers:
            writer.execute("savepoint before")
            _append(writer, lanes, 4)
            writer.execute("release savepoint before")
        _append(writers[1], lanes, 2 * rows)
        with connect(dsn) as conn:
            _append(conn, [lanes[1]], 60)
            keep_up(conn)
        yield


@contextmanager
def held(dsn: str) -> Iterator[None]:
    """Hold a snapshot in one session, and a transaction id in another."""
    with psycopg.connect(dsn) as report, psycopg.connect(dsn) as holder:
        report.execute("set transaction isolation level repeatable read")
        report.execute("select count(*) from forebay.lane")
        holder.execute("select pg_current_xact_id()")
        yield
