"""The server is killed: what was confirmed is there, what was not is nowhere or whole."""

import json
import random
import threading
import time

import psycopg
import pytest

from tests.support.engine import Reader, connect, enqueue, enqueue_many, one, state, states
from tests.support.ledger import Ledger
from tests.support.waiting import wait_for

pytestmark = pytest.mark.crash

_CLIENTS = 8
_LOST = (psycopg.OperationalError, psycopg.InterfaceError)


class Client(threading.Thread):
    """A producer and reader in one, that writes down what the server confirmed."""

    def __init__(self, dsn: str, ledger: Ledger, seed: str) -> None:
        super().__init__(daemon=True)
        self.dsn = dsn
        self.ledger = ledger
        self.rng = random.Random(seed)
        self.settled: list[tuple[int, int, int, list[int]]] = []
        self.uncertain: list[int] = []

    def run(self) -> None:
        try:
            with Reader(self.dsn) as reader:
                while True:
                    self._enqueue(reader)
                    self._work(reader)
        except _LOST:
            return

    def _enqueue(self, reader: Reader) -> None:
        entries = self.ledger.draw(self.rng.randint(1, 8))
        self.uncertain = entries
        jobs = [{"kind": "work", "args": {"entry": e}} for e in entries]
        enqueue_many(reader.conn, jobs)
        self.uncertain = []
        self.ledger.record_committed(entries, 0)

    def _work(self, reader: Reader) -> None:
        batch = reader.claim(self.rng.randint(1, 12))
        if not batch.jobs:
            return
        entry = {n: job["args"]["entry"] for n, job in enumerate(batch.jobs, 1)}
        offsets = list(entry)
        for flush_no in range(1, 3):
            part, offsets = offsets[: len(offsets) // 2 + 1], offsets[len(offsets) // 2 + 1 :]
            if part and self.rng.random() < 0.9:
                assert reader.settle(batch.claim_no, part, flush_no=flush_no) == "settled"
                self.settled.append((reader.lease_id, batch.claim_no, flush_no, part))
                self.ledger.record_ended("default", [entry[o] for o in part])


@pytest.mark.slow
def test_server_killed_under_load(own_server, own_database, seed):
    """
    Eight clients enqueue, claim (asynchronously) and settle when every process of the server is
    killed, twice. After the recovery every confirmed enqueue and every confirmed settlement is
    there, no settlement is without its claim, and what was not settled runs again, once.
    """
    ledger = Ledger()
    confirmed: list[tuple[int, int, int, list[int]]] = []
    uncertain: set[int] = set()
    with connect(own_database) as conn:
        enqueue(conn, queue="other")
    for round_no in range(2):
        clients = [Client(own_database, ledger, f"{seed}/{round_no}/{n}") for n in range(_CLIENTS)]
        for client in clients:
            client.start()
        wait_for(lambda clients=clients: sum(len(c.settled) for c in clients) > 150, 30)
        own_server.kill()
        for client in clients:
            client.join(20)
            assert not client.is_alive()
            confirmed += client.settled
            uncertain.update(client.uncertain)
        own_server.start()

        with connect(own_database) as conn:
            for lease_id, claim_no, flush_no, offsets in confirmed:
                found = conn.execute(
                    "select offsets from forebay.settlement"
                    " where lease_id = %s and claim_no = %s and flush_no = %s",
                    [lease_id, claim_no, flush_no],
                ).fetchone()
                assert found == (offsets,), "a confirmed settlement is gone"
            orphans = one(
                conn,
                "select count(*) from forebay.settlement s where not exists (select from"
                " forebay.batch b where b.lease_id = s.lease_id and b.claim_no = s.claim_no)",
            )
            assert orphans == 0
            top = one(conn, "select greatest(max(seq), max(job_id)) from forebay.log")
            assert enqueue(conn, queue="other") > top

    with connect(own_database) as conn, Reader(own_database) as reader:
        leases = conn.execute(
            "select lease_id from forebay.lease where closed_at is null and lease_id <> %s",
            [reader.lease_id],
        ).fetchall()
        settled_late = conn.execute(
            "select (l.args ->> 'entry')::bigint from forebay.settlement s"
            " join forebay.batch b using (lease_id, claim_no)"
            " cross join lateral unnest(b.seqs) with ordinality u (seq, nr)"
            " join forebay.log l on l.seq = u.seq"
            " where s.offsets is null or u.nr = any (s.offsets)"
        ).fetchall()
        # Settlements that were committed and whose answer the kill cut off.
        cut_off = {e for (e,) in settled_late} - set(ledger.ended["default"])
        ledger.record_ended("default", list(cut_off))
        for (lease_id,) in leases:
            one(conn, "select forebay._revoke(%s, 'revoked', false)", lease_id)
        for batch in reader.claim_all():
            ledger.record_ended("default", [job["args"]["entry"] for job in batch.jobs])
            reader.finish(batch)
        found = ledger.problems()
        assert found.keys() <= {"phantom in default"}, found
        assert set(ledger.ended["default"]) - ledger.committed <= uncertain
        ids = dict(
            conn.execute(
                "select (args ->> 'entry')::bigint, coalesce(job_id, seq) from forebay.log"
                " where lane <> forebay._lane_id('other', 100, 0)"
            ).fetchall()
        )
        sample = random.Random(seed).sample(sorted(ledger.committed), 50)
        assert {state(conn, ids[e]) for e in sample} == {"done"}


def lose_a_claim(own_server, dsn: str) -> tuple[Reader, int, list[int]]:
    """Claim ten jobs asynchronously and lose the claim, for certain, in a crash."""
    own_server.stop()
    own_server.extra_settings |= {
        "wal_writer_delay": "10s",
        "wal_writer_flush_after": "1GB",
        "bgwriter_delay": "10s",
        "autovacuum": "off",
        "checkpoint_timeout": "1h",
    }
    own_server.start()
    for _ in range(20):
        with connect(dsn) as conn:
            ids = enqueue_many(conn, [{"kind": "work"} for _ in range(10)])
            reader = Reader(dsn)
            before = one(conn, "select pg_current_wal_flush_lsn()")
            batch = reader.claim(10)
            assert batch.job_ids == ids
            after = one(conn, "select pg_current_wal_flush_lsn()")
            if before == after:
                own_server.kill()
        reader.conn.close()
        if before == after:
            own_server.start()
            with connect(dsn) as conn:
                lost = one(conn, "select count(*) from forebay.batch where %s = any (seqs)", ids[0])
                if not lost:
                    return reader, batch.claim_no, ids
        with Reader(dsn) as sweeper:
            sweeper.claim_all()
    pytest.fail("the claim always reached the disk")


@pytest.mark.slow
def test_an_asynchronous_claim_is_lost_in_a_crash(own_server, own_database):
    """
    A claim that was never flushed is gone after a crash, and another worker is handed a part of its
    jobs under the lane's same number. The old worker's settlement names its own lease and claim: it
    is told that there is no such batch, nothing is settled by it, and each job ends once.
    """
    old, claim_no, ids = lose_a_claim(own_server, own_database)
    with connect(own_database) as conn, Reader(own_database) as new:
        assert [state(conn, i) for i in ids] == ["ready"] * 10
        smaller = new.claim(4)
        assert smaller.job_ids == ids[:4]
        flush = json.dumps([{"claim_no": claim_no, "flush_no": 1}])
        answers = conn.execute(
            "select status from forebay.settle_v1(%s, %s::jsonb)", [old.lease_id, flush]
        ).fetchall()
        assert answers == [("unknown_batch",)]
        retried = json.dumps(
            [{"claim_no": claim_no, "flush_no": 2, "ended": [{"offset": 2, "outcome": "retried"}]}]
        )
        answers = conn.execute(
            "select status from forebay.settle_v1(%s, %s::jsonb)", [old.lease_id, retried]
        ).fetchall()
        assert answers == [("unknown_batch",)]
        assert [state(conn, i) for i in ids] == ["claimed"] * 4 + ["ready"] * 6
        assert one(conn, "select forebay._revoke(%s, 'revoked', true)", old.lease_id) == 0

        new.finish(smaller)
        rest = new.claim_all()
        assert [i for b in rest for i in b.job_ids] == ids[4:]
        for batch in rest:
            new.finish(batch)
        assert [states(conn, i) for i in ids] == [{"default": "done"}] * 10


@pytest.mark.slow
def test_a_settlement_by_the_lanes_number_would_end_jobs_that_nobody_ran(own_server, own_database):
    """
    The mutant: a worker that goes on with its old lease and its old numbers after the crash
    settles, with the flush of the lost claim, a batch that somebody else is still running.
    """
    old, claim_no, ids = lose_a_claim(own_server, own_database)
    with connect(own_database) as conn:
        old.conn = conn
        old.claim_no = claim_no - 1  # The counter lives on in the worker; here it is reused.
        smaller = old.claim(4)
        assert smaller.claim_no == claim_no
        assert old.settle(claim_no) == "settled"
        assert [state(conn, i) for i in ids[:4]] == ["done"] * 4


@pytest.mark.slow
def test_numbers_and_transactions_after_a_crash(own_server, own_database):
    """
    What an uncommitted transaction drew may be given out again after a crash; no committed row's
    number or transaction id is, and cursors from before the crash lose and repeat nothing.
    """
    with connect(own_database) as conn, Reader(own_database) as reader:
        committed = [enqueue(conn) for _ in range(3)]
        with psycopg.connect(own_database) as lost:
            enqueue(lost)
            assert reader.claim(2).job_ids == committed[:2]
            conn.execute("checkpoint")
            enqueue(lost)
            own_server.kill()
            lost.close()
    own_server.start()
    with connect(own_database) as conn, Reader(own_database) as again:
        after = [enqueue(conn) for _ in range(3)]
        assert min(after) > max(committed)
        handed = [i for b in again.claim_all() for i in b.job_ids]
        assert handed in (committed[2:] + after, committed + after)
        top = one(conn, "select max(pg_snapshot_xmax(coalesce(snap_to, snap_from))::text::numeric)"
                        " from forebay.batch")  # fmt: skip
        assert one(conn, "select pg_current_xact_id()::text::numeric") >= top


@pytest.mark.slow
def test_leases_of_living_workers_survive_a_restart(own_server, own_database):
    """
    After an outage longer than the lease every worker looks dead. Nobody is revoked until the
    living have had time to report, and they keep their jobs.
    """
    with (
        connect(own_database) as conn,
        Reader(own_database, lease_seconds=3, suspect_seconds=3) as living,
        Reader(own_database, lease_seconds=3, suspect_seconds=3) as dead,
    ):
        ids = [enqueue(conn), enqueue(conn)]
        living.claim(1)
        dead.claim(1)
        conn.execute("select pg_switch_wal()")
        own_server.kill()
    time.sleep(3.1)  # The outage has to last longer than the lease.
    own_server.start()
    with connect(own_database) as maintenance, connect(own_database) as heartbeat:
        deadline = time.monotonic() + 60
        revoked = None
        while revoked is None and time.monotonic() < deadline:
            heartbeat.execute("select forebay.heartbeat_v1(array[%s::bigint])", [living.lease_id])
            revoked = maintenance.execute(
                "select lease_id from forebay.revoke_lost_v1()"
            ).fetchone()
        assert revoked == (dead.lease_id,)
        assert (
            maintenance.execute("select lease_id from forebay.revoke_lost_v1()").fetchone() is None
        )
        assert [state(maintenance, i) for i in ids] in (["claimed", "ready"], ["ready", "ready"])


@pytest.mark.slow
def test_without_synchronous_commit_rows_and_their_jobs_vanish_together(own_server, own_database):
    """
    A producer whose role does not wait for the disk loses its newest commits in a crash: each with
    its row and its job, or neither. What was committed in the usual way is there, and numbers that
    are given out again confuse nobody.
    """
    own_server.stop()
    own_server.extra_settings |= {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}
    own_server.start()

    def order(conn, n: int) -> None:
        with conn.transaction():
            conn.execute("insert into shop_order values (%s)", [n])
            enqueue(conn, args={"entry": n})

    with connect(own_database) as conn, Reader(own_database) as reader:
        conn.execute("create table shop_order (n int primary key)")
        order(conn, 0)
        assert len(reader.claim(1).jobs) == 1
        order(conn, 1)
        conn.execute("set synchronous_commit = off")
        for n in range(2, 30):
            order(conn, n)
        own_server.kill()
    own_server.start()
    with connect(own_database) as conn, Reader(own_database) as again:
        kept = [n for (n,) in conn.execute("select n from shop_order order by 1")]
        print(f"{30 - len(kept)} of 28 commits lost")
        assert kept[:2] == [0, 1]
        assert len(kept) < 30
        order(conn, 100)
        one(conn, "select forebay._revoke(%s, 'revoked', false)", reader.lease_id)
        handed = [job["args"]["entry"] for batch in again.claim_all() for job in batch.jobs]
        assert sorted(handed) == [*kept, 100]
