"""Everything fails at once: workers, sessions, servers, the network, the disk and the clock,
under hostile producers, while operators replay, redrive, cancel, erase, pause and apply.

An account outside the database says what was committed, what ran, and in which order.
"""

import faulthandler
import random
from collections.abc import Iterator

import pytest

from tests.support.effects import Effects
from tests.support.engine import connect, one
from tests.support.fix_db import make_migrated
from tests.support.mutant import break_function
from tests.support.stepping_server import SteppingClock, stepping_clock
from tests.support.storm import FAULTS, Storm, prepare, problems, wait_until_calm
from tests.support.storm_cluster import Cluster, storm_cluster
from tests.support.storm_operators import Operators, problems_of_acts
from tests.support.storm_producers import Producers
from tests.support.worker_process import crew

pytestmark = [pytest.mark.crash, pytest.mark.slow]

_APP = "tests.support.storm_app:app"

#: What dies of every second attempt has long survived one of so many.
_REDRIVES_MOST = 30


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SteppingClock | None]:
    """The clock of all servers that this test starts; None without libfaketime."""
    with stepping_clock(monkeypatch, at_once=False) as found:
        yield found


@pytest.fixture
def cluster(pg_bin, clock) -> Iterator[Cluster]:
    """A primary and its standby with the tables of the storm."""
    with storm_cluster(pg_bin, make_migrated) as found:
        prepare(found.direct)
        yield found


def weather(
    cluster: Cluster,
    clock: SteppingClock | None,
    effects: Effects,
    seed: int,
    *,
    seconds: float,
    every_seconds: float,
    faults: tuple[str, ...] = FAULTS,
    environment: dict[str, str] | None = None,
    slow_share: float = 0,
) -> tuple[Storm, dict[str, object]]:
    """Run a storm, wait for calm, and return what is wrong."""
    with crew(cluster.dsn, effects.path) as workers:
        workers.options = {"app": _APP, "environment": environment}
        storm = Storm(
            cluster,
            workers,
            random.Random(seed),
            set_clock=None if clock is None else clock.set,
            held_seconds=min(20, every_seconds * 2),
            faults=faults,
        )
        try:
            with Operators(cluster.dsn, seed) as operators:
                with Producers(cluster.dsn, seed, slow_share=slow_share) as producers:
                    storm.rage(seconds, every_seconds)
                storm.calm()
            wait_until_calm(cluster, storm, 300)
            for _ in range(_REDRIVES_MOST):
                if not operators.redrive_all():
                    break
                wait_until_calm(cluster, storm, 300)
            else:
                with connect(cluster.direct) as conn:
                    last = "select kind, reason, errors -> -1 from forebay.dead_letter"
                    last += " order by dead_id desc limit 20"
                    pytest.fail(f"some die each time: {conn.execute(last).fetchall()}")
        except BaseException:
            print(cluster.primary.log_path.read_text(errors="replace")[-3000:])
            raise
        finally:
            storm.stop()
        with connect(cluster.direct) as conn:
            found = problems(conn, producers.account, effects)
            found |= problems_of_acts(conn, operators.acts, effects)
            segments = one(conn, "select min(segment_id) from forebay.segment")
        print(f"faults: {dict(storm.done)}; not possible here: {sorted(storm.skipped)}")
        print(f"transactions: {dict(producers.account.transactions)}")
        print(f"errors of producers: {dict(producers.account.errors)}")
        print(f"maintenance: {dict(storm.maintenance)}, oldest segment {segments}")
        print(f"errors of maintenance: {dict(storm.errors)}")
        print(f"workers that ended alone: {len(storm.ended_alone)}")
        for log in storm.ended_alone[:3]:
            print(log)
        return storm, found


def test_nothing_is_lost_or_doubled_in_a_short_storm(cluster, clock, effects, seed):
    """
    Each kind of fault once, four seconds apart: no job is lost, none runs that was not committed,
    no settlement counts twice, each effect is there once, keys are in order.
    """
    _, found = weather(cluster, clock, effects, seed, seconds=62, every_seconds=4)
    assert not found, found


@pytest.mark.nightly
def test_nothing_is_lost_or_doubled_in_a_long_storm(cluster, clock, effects, seed, stress_seconds):
    """
    The same for twenty minutes, or for --stress-seconds, with a fault every fifteen seconds.
    """
    faulthandler.cancel_dump_traceback_later()  # It is meant to last.
    seconds = stress_seconds if stress_seconds >= 60 else 1200
    storm, found = weather(cluster, clock, effects, seed, seconds=seconds, every_seconds=15)
    assert not found, found
    assert not storm.ended_alone
    assert all(storm.maintenance[name] for name in ("seal", "retain", "drop_segments", "forget"))


def test_the_account_sees_settlements_of_lost_leases(cluster, clock, effects, seed):
    """
    The control: with a settlement that asks neither for the lease nor for what is settled, a frozen
    worker settles what others have run meanwhile, and writes its effects once more.
    """
    break_function(
        cluster.direct,
        "settle_v1",
        ("and l.closed_at is null for key share", "for key share"),
        ("and (s.offsets is null or v_offsets is null or s.offsets && v_offsets)", "and false"),
    )
    _, found = weather(
        cluster,
        clock,
        effects,
        seed,
        seconds=40,
        every_seconds=2,
        faults=("freeze_worker",),
        environment={"TEST_WITHOUT_OWN_FENCE": "1"},
        slow_share=0.3,
    )
    assert found.keys() & {"ended twice in default", "effect twice"}, found
