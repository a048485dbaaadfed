"""Is the cost of a claim flat? Two experiments, each with its control on the same server, measured in turns.

``held``: an idle producer, a dump that does not end, a paused group and a forgotten prepared transaction stay open while
some 200 segments are written and 200,000 jobs are churned. The control is a fresh log without any of that.

``waiting``: jobs are enqueued while no worker runs. The control has 1,000 waiting.

    python bench/flat_cost.py held [--jobs 200000]
    python bench/flat_cost.py waiting [--jobs 5000000]

Claims take 10 jobs. Printed are medians of both, their ratio, and the slowest enqueue.
"""

import argparse
import json
import platform
import statistics
import time
from contextlib import ExitStack, contextmanager

import psycopg

from forebay.db.migrate import migrate
from forebay.embedded import temporary_server

CLAIM = "select * from forebay.claim_v1(%s, %s, %s, %s, %s, 10)"
SETTLE = "select * from forebay.settle_v1(%s, %s)"


class Log:
    """A migrated database with one queue, a claimer, and measurements."""

    def __init__(self, server, name, *, segment_rows=None, reserve_rows=None):
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute(f"create database {name}")
        self.dsn = server.dsn(name)
        migrate(self.dsn)
        self.conn = psycopg.connect(self.dsn, autocommit=True)
        if segment_rows:
            # A log that has not been used yet may be cut anew, in small pieces.
            self.conn.execute("select forebay.configure('segment_rows', %s)", [segment_rows])
            self.conn.execute("select forebay.configure('reserve_rows', %s)", [reserve_rows])
            for (leaf,) in self.conn.execute("select segment_id from forebay.segment").fetchall():
                self.conn.execute(f"drop table forebay.log_{leaf}")
                self.conn.execute(f"drop function forebay._read_{leaf}, forebay._moved_{leaf}")
            self.conn.execute("delete from forebay.segment")
            self.extend()
        self.group = self._one("select forebay.open_group('bench')")
        self.lease = self._one("select forebay.open_lease_v1('bench')")
        self.lane = self._one("select forebay._lane_id('bench', 100, 0)")
        self.claim_no = 0
        self.claims, self.enqueues = [], []

    def _one(self, statement, *parameters):
        return self.conn.execute(statement, parameters).fetchone()[0]

    def extend(self):
        while self._one("select forebay.extend_v1()"):
            pass

    def enqueue(self, count):
        started = time.perf_counter()
        self.conn.execute(
            "select forebay.enqueue_many('noop', array(select jsonb_build_object('i', i)"
            " from generate_series(1, %s) i), 'bench')",
            [count],
        )
        self.enqueues.append(time.perf_counter() - started)

    def claim(self, *, measured=True):
        self.claim_no += 1
        started = time.perf_counter()
        rows = self.conn.execute(
            CLAIM, [self.lease, self.claim_no, self.claim_no, self.group, self.lane], prepare=True
        ).fetchall()
        if measured:
            self.claims.append(time.perf_counter() - started)
        if rows:
            flush = [{"claim_no": self.claim_no, "flush_no": 1, "done": None}]
            self.conn.execute(SETTLE, [self.lease, json.dumps(flush)], prepare=True)
        return len(rows)

    def upkeep(self):
        self.conn.execute("select forebay.seal_v1()")
        self.extend()


@contextmanager
def strangers(log):
    """An idle producer, a dump's snapshot and locks, a paused group, a prepared transaction."""
    with ExitStack() as stack:
        producer = stack.enter_context(psycopg.connect(log.dsn))
        producer.execute("select forebay.enqueue('noop', '{}', 'bench')")
        dump = stack.enter_context(psycopg.connect(log.dsn))
        dump.execute("set transaction isolation level repeatable read")
        tables = dump.execute(
            "select string_agg(c.oid::regclass::text, ', ') from pg_class c"
            " where c.relnamespace = 'forebay'::regnamespace and c.relkind in ('r', 'p')"
        ).fetchone()[0]
        dump.execute(f"lock table {tables} in access share mode")
        dump.execute("select count(*) from forebay.log")
        log.conn.execute("select forebay.open_group('bench', 'paused', 'beginning')")
        log.conn.execute("select forebay.pause_queue('bench', 'paused')")
        forgotten = psycopg.connect(log.dsn)
        forgotten.tpc_begin("forgotten")
        forgotten.execute("select forebay.enqueue('noop', '{}', 'bench')")
        forgotten.tpc_prepare()
        forgotten.close()
        yield
        producer.rollback()
        dump.rollback()


def held(server, jobs):
    control = Log(server, "control", segment_rows=100_000, reserve_rows=1_000_000)
    test = Log(server, "test", segment_rows=1000, reserve_rows=max(jobs + 50_000, 300_000))
    for log in (control, test):
        log.enqueue(2000)
        while log.claim(measured=False):
            pass
    with strangers(test):
        rounds = jobs // 1000
        for number in range(rounds):
            test.enqueue(1000)
            while test.claim(measured=number >= rounds * 9 // 10):
                pass
            if number >= rounds * 9 // 10:
                control.enqueue(1000)
                while control.claim():
                    pass
            if number % 2:  # about once a second, as a worker does it
                test.upkeep()
                control.upkeep()
        segments = test._one("select count(*) from forebay.seal")
        single = []
        for _ in range(500):
            started = time.perf_counter()
            test.conn.execute("select forebay.enqueue('noop', '{}', 'bench')")
            single.append(time.perf_counter() - started)
    return control, test, {"segments_sealed": segments, "single_enqueue_worst_ms": ms(max(single))}


def waiting(server, jobs):
    control = Log(server, "control")
    test = Log(server, "test")
    started = time.perf_counter()
    for _ in range(jobs // 10_000):
        test.enqueue(10_000)
    seconds = time.perf_counter() - started
    for _ in range(5):
        control.enqueue(1000)
        for _ in range(100):
            control.claim()
            test.claim()
    return control, test, {"enqueued_per_s": round(jobs / seconds), "errors": 0}


def ms(seconds):
    return round(seconds * 1000, 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", choices=["held", "waiting"])
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--pg-bin")
    arguments = parser.parse_args()
    settings = {
        "max_prepared_transactions": "10",
        "max_locks_per_transaction": "4096",
        "shared_buffers": "512MB",
        "max_wal_size": "8GB",
    }
    with temporary_server(arguments.pg_bin, extra_settings=settings) as server:
        if arguments.experiment == "held":
            control, test, more = held(server, arguments.jobs or 200_000)
        else:
            control, test, more = waiting(server, arguments.jobs or 5_000_000)
        version = test._one("show server_version")
        p50 = [statistics.median(log.claims) for log in (control, test)]
        result = {
            "experiment": arguments.experiment,
            "claim_p50_ms_control": ms(p50[0]),
            "claim_p50_ms": ms(p50[1]),
            "ratio": round(p50[1] / p50[0], 3),
            "enqueue_worst_ms": ms(max(test.enqueues)),
            **more,
            "postgresql": version,
            "machine": platform.machine(),
        }
        for log in (control, test):
            log.conn.close()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
