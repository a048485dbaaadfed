"""Flat cost: how many pages a call touches, beside a large backlog, dead rows and old snapshots.

Pages are counted, not seconds: ``EXPLAIN (ANALYZE, BUFFERS)`` of a call sums up whatever the
function and everything below it touched.
"""

from contextlib import contextmanager

import psycopg
import pytest

from tests.support.engine import (
    Reader,
    connect,
    enqueue,
    forget_polls,
    lane_of,
    one,
    shift_clock,
    small_segments,
    trim,
)

_WAITING = 100_000


def pages(conn: psycopg.Connection, call: str, *params: object) -> int:
    """Return how many pages a call touched."""
    (plan,) = conn.execute(
        f"explain (analyze, buffers, timing off, format json) {call}", params
    ).fetchone()
    top = plan[0]["Plan"]
    return top["Shared Hit Blocks"] + top["Shared Read Blocks"]


def medians(once) -> dict[str, int]:
    """Return the median of nine counts of each name that a function yields."""
    seen: dict[str, list[int]] = {}
    for _ in range(9):
        for name, count in once():
            seen.setdefault(name, []).append(count)
    return {name: sorted(counts)[len(counts) // 2] for name, counts in seen.items()}


class Meter:
    """Measures each hot call in sessions that have made it before."""

    def __init__(self, dsn: str, queue: str = "default") -> None:
        self.conn = connect(dsn)
        self.reader = Reader(dsn, queue)
        self.queue = queue
        self.lane = lane_of(queue, self.conn)

    def close(self) -> None:
        self.conn.close()
        self.reader.conn.close()

    def measure(self) -> dict[str, int]:
        """Return the pages of each call, the median of nine."""
        return medians(self._once)

    def _once(self):
        reader, conn = self.reader, self.conn
        yield "enqueue", pages(conn, "select forebay.enqueue('work', queue => %s)", self.queue)
        yield (
            "enqueue deferred",
            pages(
                conn, "select forebay.enqueue('work', queue => %s, delay => '50 days')", self.queue
            ),
        )
        forget_polls(reader.conn)
        yield (
            "ready",
            pages(reader.conn, "select * from forebay.ready_v1(%s::bigint[])", [reader.group_id]),
        )
        reader.claim_no += 1
        number = reader.claim_no
        yield (
            "claim",
            pages(
                reader.conn,
                "select forebay.claim_v1(%s, %s, %s, %s, %s, 10)",
                reader.lease_id,
                number,
                number,
                reader.group_id,
                self.lane,
            ),
        )
        yield (
            "settle",
            pages(
                reader.conn,
                "select * from forebay.settle_v1(%s, %s::jsonb)",
                reader.lease_id,
                f'[{{"claim_no": {number}, "flush_no": 1, "done": [1, 2, 3, 4, 5, 6, 7, 8]}}]',
            ),
        )
        yield (
            "retry",
            pages(
                reader.conn,
                "select * from forebay.settle_v1(%s, %s::jsonb)",
                reader.lease_id,
                f'[{{"claim_no": {number}, "flush_no": 2, "ended":'
                ' [{"offset": 9, "outcome": "retried"},'
                ' {"offset": 10, "outcome": "retried", "after": 4000000}]}]',
            ),
        )
        yield "promote nothing", pages(conn, "select forebay.promote_v1()")
        yield "beat", pages(conn, "select * from forebay.heartbeat_v1(array[%s::bigint])",
                            reader.lease_id)  # fmt: skip


def load(conn: psycopg.Connection, rows: int, queue: str = "default") -> None:
    """Let so many jobs wait, in transactions of a thousand."""
    for _ in range(rows // 1000):
        conn.execute(
            "insert into forebay.log (lane, enqueued_at, kind, args)"
            " select %s, now(), 'work', '{}' from generate_series(1, 1000)",
            [lane_of(queue, conn)],
        )


def churn(dsn: str, queue: str = "default", batches: int = 200) -> None:
    """Run many jobs, so that batches, settlements, leases and heartbeats pile up."""
    with Reader(dsn, queue) as reader:
        for _ in range(batches):
            reader.finish(reader.claim(100))
            one(reader.conn, "select (forebay.heartbeat_v1(array[%s::bigint])).open_leases",
                reader.lease_id)  # fmt: skip


def make_dead_rows(conn: psycopg.Connection) -> None:
    """Leave twenty thousand dead rows in the tables that maintenance deletes from."""
    conn.execute(
        "insert into forebay.deferred (run_at, lane, enqueued_at, job_id, kind, args)"
        " select now() - interval '1 hour', 1, now(), i, 'work', '{}' from "
        "generate_series(1, 20000) i"
    )
    conn.execute("delete from forebay.deferred where lane = 1")
    conn.execute(
        "insert into forebay.heartbeat select 999999, now(), 1 from generate_series(1, 20000)"
    )
    conn.execute("delete from forebay.heartbeat where lease_id = 999999")


@contextmanager
def held_snapshot(dsn: str):
    """A report holds its snapshot, so that nothing dead is removed."""
    with psycopg.connect(dsn) as conn:
        conn.execute("set transaction isolation level repeatable read")
        conn.execute("select count(*) from forebay.lane").fetchone()
        yield


def compare(small: dict[str, int], large: dict[str, int]) -> None:
    """Assert that no call touches many more pages than it did in the small."""
    grown = {
        name: (small[name], large[name]) for name in small if large[name] > small[name] * 1.5 + 12
    }
    assert grown == {}, f"pages before and after: {grown}; all: {small} {large}"


@pytest.mark.slow
@pytest.mark.parametrize("statistics", ["none", "of empty tables", "of full tables"])
def test_flat_cost(database, statistics):
    """
    With a hundred thousand jobs waiting, hundreds of batches done, twenty thousand dead rows that a
    held snapshot keeps, and whatever statistics the planner has, each hot call touches about as
    many pages as it did at a thousand waiting jobs.
    """
    with connect(database) as conn:
        for table in ("log", "deferred", "batch", "settlement", "lease", "heartbeat", "lane"):
            conn.execute(f"alter table forebay.{table}_x set (autovacuum_enabled = off)"
                         .replace("_x", "_0" if table == "log" else ""))  # fmt: skip
        if statistics == "of empty tables":
            conn.execute("analyze")
        enqueue(conn)
        load(conn, 1000)
        meter = Meter(database)
        meter.measure()
        small = meter.measure()
        with held_snapshot(database):
            load(conn, _WAITING + 20_000)
            churn(database)
            make_dead_rows(conn)
            if statistics == "of full tables":
                conn.execute("analyze")
            fresh = Meter(database)
            fresh.measure()
            compare(small, fresh.measure())
            compare(small, meter.measure())
            meter.close()
            fresh.close()


class KeyedMeter:
    """Measures what jobs with ordering keys cost: two readers, so that keys are held, free and
    parked for.
    """

    def __init__(self, dsn: str, keys: int) -> None:
        self.conn = connect(dsn)
        self.readers = [Reader(dsn, "keyed"), Reader(dsn, "keyed")]
        self.keys = keys
        self.number = 0
        self.lane = one(self.conn, "select forebay._keyed_lane_id('keyed', 100, 0)")

    def close(self) -> None:
        for conn in [self.conn, *(reader.conn for reader in self.readers)]:
            conn.close()

    def put(self, count: int) -> None:
        for _ in range(count):
            self.number += 1
            enqueue(self.conn, queue="keyed", ordering_key=f"k{self.number % self.keys}")

    def claim(self, reader: Reader, limit: int) -> tuple[int, int]:
        """Claim from the first ready lane that gives anything.

        Return the claim's number, and all pages.
        """
        touched = 0
        for lane in reader.ready():
            reader.claim_no += 1
            touched += pages(
                reader.conn,
                "select forebay.claim_v1(%s, %s, %s, %s, %s, %s)",
                *[
                    reader.lease_id,
                    reader.claim_no,
                    min(reader.open_claims, default=reader.claim_no),
                ],
                *[reader.group_id, lane["lane"], limit],
            )
            if one(self.conn, (
                    "select exists (select from forebay.batch where lease_id = %s and claim_no = "
                    "%s)"
                    ),
                   reader.lease_id, reader.claim_no):  # fmt: skip
                reader.open_claims.add(reader.claim_no)
                return reader.claim_no, touched
        return 0, touched

    def settle(self, reader: Reader, claim_no: int, ended: str = "[]") -> int:
        size = one(self.conn, (
                "select cardinality(seqs) from forebay.batch where lease_id = %s and claim_no = "
                "%s"
                ),
                   reader.lease_id, claim_no)  # fmt: skip
        first = 2 if ended != "[]" else 1
        touched = pages(
            reader.conn,
            "select * from forebay.settle_v1(%s, %s::jsonb)",
            reader.lease_id,
            (
                f'[{{"claim_no": {claim_no}, "flush_no": 1, "done": '
                f'{[*range(first, size + 1)]}, "ended": {ended}}}]'
            ),
        )
        reader.open_claims.discard(claim_no)
        return touched

    def measure(self) -> dict[str, int]:
        """Return the pages of each call, the median of nine."""
        return medians(self._once)

    def _once(self):
        first, second = self.readers
        yield (
            "enqueue",
            pages(
                self.conn, "select forebay.enqueue('work', queue => 'keyed', ordering_key => 'k0')"
            ),
        )
        self.put(19)
        held, count = self.claim(first, 10)
        yield "claim", count
        # Its keys are taken: what the second reader meets of them is parked.
        self.put(10)
        parking, count = self.claim(second, 20)
        yield "claim that parks", count
        yield "settle", self.settle(first, held)
        taking, count = self.claim(first, 20)
        yield "claim of what was parked", count
        for reader, claim_no in ((second, parking), (first, taking)):
            if claim_no:
                self.settle(reader, claim_no)
        self.drain()

    def drain(self) -> None:
        for reader in self.readers:
            while (batch := reader.claim_ready(1000)).jobs:
                reader.finish(batch)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [1, 20])
def test_flat_cost_of_jobs_with_ordering_keys(database, keys):
    """
    After thousands of jobs of the same few keys, parked, taken and ended while a report holds its
    snapshot, the calls touch about as many pages as in the beginning.
    """
    with connect(database) as conn:
        meter = KeyedMeter(database, keys)
        meter.measure()
        small = meter.measure()
        with held_snapshot(database):
            for _ in range(25):
                meter.put(50)
                meter._once()
                for _ in meter._once():
                    pass
            trim(conn)
            one(conn, "select forebay.seal_v1()")
            compare(small, meter.measure())
        meter.close()


@pytest.mark.slow
def test_flat_cost_of_a_backlog_with_ordering_keys(database):
    """
    With fifty thousand jobs waiting, all of one key that somebody holds or of others behind them, a
    claim touches about as many pages as with a few.
    """
    with connect(database) as conn:
        meter = KeyedMeter(database, 20)
        meter.measure()
        small = meter.measure()
        for _ in range(25):
            conn.execute(
                "insert into forebay.log (lane, enqueued_at, kind, args, ordering_key)"
                " select %s, now(), 'work', '{}', 'k' || i %% 20 from generate_series(1, 2000) i",
                [meter.lane],
            )
        first, second = meter.readers
        taken, parked = [], []
        for _ in range(3):
            held, count = meter.claim(first, 10)
            taken.append(count)
            parking, count = meter.claim(second, 20)
            parked.append(count)
            for reader, claim_no in ((first, held), (second, parking)):
                if claim_no:
                    meter.settle(reader, claim_no)
        # The least: when autovacuum has analyzed what was written, a session reads the catalogs
        # once more.
        assert min(taken) <= small["claim that parks"] * 1.5 + 12
        assert min(parked) <= small["claim that parks"] * 1.5 + 12
        meter.close()


@pytest.mark.slow
def test_flat_cost_of_jobs_with_unique_keys(database):
    """After thousands of jobs of the same twenty keys, while a report holds its snapshot,
    enqueue, claim and settlement stay as they were.
    """

    def once(conn, reader, numbers) -> dict[str, int]:
        touched: dict[str, list[int]] = {}
        for number in numbers:
            key = f"k{number % 20}"
            calls = [
                (
                    "enqueue",
                    conn,
                    (
                        "select forebay.enqueue('work', unique_as => "
                        "jsonb_build_object('once', %s::text))"
                    ),
                    [key],
                ),
                (
                    "enqueue what waits",
                    conn,
                    (
                        "select forebay.enqueue('work', unique_as => "
                        "jsonb_build_object('once', %s::text))"
                    ),
                    [key],
                ),
            ]
            for name, session, query, params in calls:
                touched.setdefault(name, []).append(pages(session, query, *params))
            reader.claim_no += 1
            claim = [reader.lease_id, reader.claim_no, reader.claim_no, reader.group_id]
            count = pages(
                reader.conn,
                "select forebay.claim_v1(%s, %s, %s, %s, %s, 10)",
                *claim,
                lane_of("default", conn),
            )
            touched.setdefault("claim", []).append(count)
            count = pages(
                reader.conn,
                "select * from forebay.settle_v1(%s, %s::jsonb)",
                *[reader.lease_id, f'[{{"claim_no": {reader.claim_no}, "flush_no": 1}}]'],
            )
            touched.setdefault("settle", []).append(count)
        return {name: sorted(counts)[len(counts) // 2] for name, counts in touched.items()}

    with connect(database) as conn, Reader(database) as reader:
        once(conn, reader, range(40))
        small = once(conn, reader, range(40, 60))
        with held_snapshot(database):
            for number in range(60, 1200):
                key = f"k{number % 20}"
                one(
                    conn,
                    (
                        "select forebay.enqueue('work', unique_as => "
                        "jsonb_build_object('once', %s::text))"
                    ),
                    key,
                )
                if number % 20 == 19:
                    reader.finish(reader.claim(20))
            compare(small, once(conn, reader, range(1200, 1220)))


def test_a_bulk_that_is_still_uncommitted_is_not_walked_over(database):
    """
    Thirty thousand uncommitted rows in the middle of a lane: once the cursor has moved behind them,
    as it does within a second, neither the look for ready lanes nor a claim reads them again.
    """
    with connect(database) as conn, psycopg.connect(database) as bulk:
        enqueue(conn)
        load(conn, 1000)
        meter = Meter(database)
        meter.measure()
        small = meter.measure()
        meter.reader.claim(2000)
        load(bulk, 30_000)
        shift_clock(conn, 5)
        meter.reader.claim_all()
        shift_clock(conn, 10)
        meter.reader.claim_all()
        load(conn, 1000)
        compare(small, meter.measure())
        bulk.commit()
        assert len(meter.reader.claim(10_000).jobs) == 10_000
        meter.close()


@pytest.mark.slow
def test_trimming_does_not_read_the_history_that_stays(database):
    """With a thousand batches that have to stay, a trim touches about as many pages as with ten."""
    with connect(database) as conn:
        enqueue(conn)
        load(conn, 12_000)
        churn(database, batches=10)
        trim = "select forebay.trim_v1('batches')"
        pages(conn, trim)
        few = pages(conn, trim)
        with Reader(database) as reader:
            for _ in range(1000):
                reader.finish(reader.claim(10))
        # The least of three: one of them may find something to remove.
        assert min(pages(conn, trim) for _ in range(3)) <= few * 1.5 + 12


@pytest.mark.slow
def test_flat_cost_over_many_segments_with_an_idle_writer(database):
    """
    Two hundred segments and a writer idle since the first change little; a report of what each call
    touches is in the failure.
    """
    with connect(database) as conn, psycopg.connect(database) as idle:
        small_segments(conn, rows=500, reserve=2000)
        enqueue(conn)
        load(conn, 1000)
        enqueue(idle)
        meter = Meter(database)
        meter.measure()
        small = meter.measure()
        for _ in range(50):
            one(conn, "select forebay.extend_v1()")
            load(conn, 1000)
            one(conn, "select forebay.seal_v1()")
            meter.reader.finish(meter.reader.claim(1000))
        load(conn, 1000)
        assert one(conn, "select count(*) from forebay.segment where hi - lo = 500") > 100
        meter.measure()
        compare(small, meter.measure())
        meter.close()


def test_flat_cost_breaks_when_the_planner_is_left_alone_with_a_tiny_table(database):
    """
    The mutant: without its settings a settlement whose plan was made while the tables were
    tiny and analysed reads them from end to end.
    """
    with connect(database) as conn:
        for table in ("settlement", "batch"):
            conn.execute(f"alter table forebay.{table} set (autovacuum_enabled = off)")
        conn.execute("alter function forebay.settle_v1 reset all")
        conn.execute("alter function forebay.settle_v1 set plan_cache_mode = force_generic_plan")
        enqueue(conn)
        load(conn, 1000)
        with Reader(database) as reader:
            reader.finish(reader.claim(10))
        conn.execute("analyze")
        meter = Meter(database)
        small = meter.measure()
        load(conn, 1000)
        conn.execute(
            "insert into forebay.settlement (lease_id, claim_no, flush_no, settled_at)"
            " select 999999, i, 1, now() from generate_series(1, 30000) i"
        )
        with pytest.raises(AssertionError):
            compare(small, meter.measure())
        meter.close()


def test_trimming_does_not_walk_over_what_it_has_deleted(database):
    """
    Promoted rows are deleted, and a held snapshot keeps them in the index: the next trim starts
    behind them, and still finds what a late commit left before its mark when it makes a pass.
    """
    step = "select forebay.trim_v1('deferred', null, 20000)"
    with connect(database) as conn, psycopg.connect(database) as late, held_snapshot(database):
        trim(conn)
        enqueue(late, delay="1 millisecond")
        touched = []
        due = (
            "select forebay.enqueue_many('work', array_fill('{}'::jsonb, array[%s::int]), "
            "delay => '1 ms')"
        )
        for rows in (100, 20_000, 100):
            one(conn, due, rows)
            promoted = 0
            while promoted < rows:
                promoted += one(conn, "select forebay.promote_v1(5000)")
            touched.append(pages(conn, step))
        few, many, again = touched
        # It removes as many rows as the first one, and would read twenty thousand more.
        assert again <= few * 2 + 100 < many, touched
        late.commit()
        while not one(conn, "select forebay.promote_v1(5000)"):
            pass
        left = "select count(*) from forebay.deferred"
        one(conn, step)
        assert one(conn, left) == 1
        trim(conn)
        assert one(conn, left) == 0


#: Acts on one job that waits for its time.
ACTS = {
    "retry": "{}",
    "reschedule": '{"run_at": "2100-01-01T00:00:00Z"}',
    "reprioritise": '{"priority": 50}',
}


@pytest.mark.parametrize("is_analyzed", [False, True], ids=["new", "analyzed"])
def test_one_of_many_scheduled_jobs_is_found_by_its_job(database, is_analyzed):
    """
    To wake a flow, or to start, reschedule or reorder a scheduled job, costs the same beside many:
    its row is not looked for by its own number, which is the second column of an index.
    """
    with connect(database) as conn, Reader(database) as reader:
        few = medians(lambda: of_signals(conn, reader)) | medians(lambda: of_acts(conn))
        many = (
            "select count(forebay.enqueue('work', delay => '1 day')) from generate_series(1, 30000)"
        )
        one(conn, many)
        one(conn, "select forebay.promote_v1()")  # As the leader does all the time.
        if is_analyzed:
            conn.execute("vacuum analyze forebay.deferred")
        found = medians(lambda: of_acts(conn)) | medians(lambda: of_signals(conn, reader))
        assert found == {name: pytest.approx(count, abs=40) for name, count in few.items()}


def of_acts(conn):
    """Yield the pages of each act on one scheduled job."""
    for act, options in ACTS.items():
        job = one(conn, "select forebay.enqueue('work', delay => '1 hour')")
        change = (
            "select forebay.change_jobs(%s, jsonb_build_object('ids', %s::bigint[]), %s, most => 1)"
        )
        yield act, pages(conn, change, act, [job], options)


def of_signals(conn, reader):
    """Yield the pages of the promotion that wakes a flow."""
    enqueue(conn)
    batch = reader.claim()
    ended = [{"offset": n, "outcome": "done"} for n in range(1, len(batch.seqs))]
    wait = {"name": "go", "key": str(batch.job_ids[-1]), "step": "go"}
    ended.append({"offset": len(batch.seqs), "outcome": "snoozed", "flow": {"wait": wait}})
    assert reader.settle(batch.claim_no, ended=ended) == "settled"
    one(conn, "select forebay.promote_v1()")
    one(conn, "select forebay.signal('go', %s)", wait["key"])
    yield "signal", pages(conn, "select forebay.promote_v1()")
