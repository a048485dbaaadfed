"""Random flows, with everything that may happen to them, compared with a small model.

The handler does what a program says: a list of verbs, which deploys change while flows run. The
worker is a process that is killed, and whose connections are cut; signals, cancellations, rewinds
and redrives come at random. The model knows what was sent and what operators made a flow forget;
so it says how often each effect must be there.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import hypothesis.strategies as st
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import forebay
from tests.support.effects import Effects
from tests.support.engine import one
from tests.support.mutant import alter_function, violation
from tests.support.random_flow_app import PROGRAM_VARIABLE
from tests.support.waiting import wait_for
from tests.support.worker_process import Crew

VERBS = ("step", "once", "sleep", "wait", "gather", "each")


@dataclass
class Order:
    """What the model knows of a flow.

    Attributes:
        jobs: its job; a redriven one is appended.
        stable: the steps that each program since its start has.
        sent: the signals that were kept for it.
        forgotten: the checkpoints that operators made it forget, by kind and title.
        is_cancelled: it was cancelled, and may end so.
    """

    nr: int
    jobs: list[int]
    stable: set[str]
    sent: Counter[str] = field(default_factory=Counter)
    forgotten: Counter[tuple[str, str]] = field(default_factory=Counter)
    is_cancelled: bool = False


def title(name: str, key: str | None) -> str:
    """What a checkpoint's effect is called: items of ``each`` have their key."""
    return name if key is None else f"{name.removesuffix(' item')} {key}"


class FlowMachine(RuleBasedStateMachine):
    """Flows of one worker that dies."""

    conn: psycopg.Connection
    client: forebay.Client
    crew: Crew
    effects: Effects
    path: Path
    numbers = count()
    names = count()
    #: Cut connections: each may let a step run once more, as each lease does.
    cuts = 0

    def __init__(self) -> None:
        super().__init__()
        self.orders: list[Order] = []
        self.waits: list[str] = []
        self.program: list[list[str]] = []

    # --- what happens ---

    @initialize(verbs=st.lists(st.sampled_from(VERBS), min_size=3, max_size=7))
    def begin(self, verbs):
        for verb in verbs:
            self.insert(verb, len(self.program))
        self.deploy()

    def insert(self, verb: str, place: int) -> None:
        name = f"{verb} {next(self.names)}"
        self.program.insert(place, [verb, name])
        if verb == "wait":
            self.waits.append(name)

    def deploy(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.program))
        new.rename(self.path)
        for order in self.orders:
            order.stable &= {name for _, name in self.program}

    @rule(kind=st.sampled_from(["in_async", "in_thread"]))
    def enqueue(self, kind):
        nr = next(self.numbers)
        query = "select forebay.enqueue(%s, %s::jsonb)"
        job = one(self.conn, query, kind, json.dumps({"order": nr}))
        self.orders.append(Order(nr, [job], {name for _, name in self.program}))

    @rule(verb=st.sampled_from((*VERBS, "bad")), place=st.integers(0, 9))
    def deploy_one_more(self, verb, place):
        self.insert(verb, place % (len(self.program) + 1))
        self.deploy()

    @rule(place=st.integers(0, 9))
    def deploy_one_less(self, place):
        if len(self.program) > 2:
            self.program.pop(place % len(self.program))
            self.deploy()

    @rule(place=st.integers(0, 9), other=st.integers(0, 9))
    def deploy_in_another_order(self, place, other):
        moved = self.program.pop(place % len(self.program))
        self.program.insert(other % (len(self.program) + 1), moved)
        self.deploy()

    @rule()
    def deploy_a_repair(self):
        self.program = [["step" if verb == "bad" else verb, name] for verb, name in self.program]
        self.deploy()

    @rule(which=st.integers(0, 9), wait=st.integers(0, 9), every=st.booleans())
    def signal(self, which, wait, every):
        if self.orders and self.waits:
            order = self.orders[which % len(self.orders)]
            for name in self.waits if every else [self.waits[wait % len(self.waits)]]:
                self.send(order, name)

    def send(self, order: Order, name: str) -> None:
        order.sent[name] += forebay.signal(self.conn, name, order.nr, [name, order.nr])

    @rule(which=st.integers(0, 9), now=st.booleans())
    def cancel(self, which, now):
        if self.orders:
            order = self.orders[which % len(self.orders)]
            query = "select forebay.cancel(%s, now => %s)"
            answer = one(self.conn, query, order.jobs[-1], now)
            order.is_cancelled |= answer in ("requested", "cancelled")

    @rule(which=st.integers(0, 9), place=st.integers(0, 99))
    def rewind(self, which, place):
        """Of a flow that waits for a signal which nobody sends, or that is dead."""
        if self.orders:
            order = self.orders[which % len(self.orders)]
            rows = self.rows(order)
            if rows and not order.is_cancelled and (self.is_stuck(order) or self.letter(order)):
                no, _, name, key = rows[place % len(rows)]
                first = min(row[0] for row in rows if row[2:] == (name, key))
                letter = self.letter(order)
                new = self.client.rewind(order.jobs[-1], name, key=key)
                if letter is not None:
                    order.jobs.append(new)
                for no, kind, name, key in rows:
                    if no >= first:
                        order.forgotten[kind, title(name, key)] += 1

    @rule(which=st.integers(0, 9))
    def redrive(self, which):
        if self.orders:
            self.redrive_one(self.orders[which % len(self.orders)])

    def redrive_one(self, order: Order) -> None:
        letter = self.letter(order)
        if letter is not None:
            order.jobs.append(self.client.redrive(letter))

    @rule()
    def kill(self):
        self.crew.members[-1].kill()
        self.crew.start(wait=False)

    @rule()
    def cut(self):
        type(self).cuts += 1
        self.conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and application_name like 'forebay%'"
            " and pid <> pg_backend_pid()"
        )

    @rule()
    def look(self):
        self.wait_until_idle()
        self.check()

    # --- what is there ---

    def rows(self, order: Order) -> list[tuple[int, str, str, str | None]]:
        query = "select no, kind::text, name, key from forebay.step where job_id = %s order by no"
        return self.conn.execute(query, [order.jobs[-1]]).fetchall()

    def letter(self, order: Order) -> int | None:
        query = "select max(dead_id) from forebay.dead_letter where job_id = %s"
        return one(self.conn, query + " and redriven_at is null", order.jobs[-1])

    def state(self, order: Order) -> str:
        return one(self.conn, "select state from forebay.job(%s)", order.jobs[-1])

    def waits_for(self, order: Order) -> str | None:
        query = "select max(signal_name) from forebay.flow(%s) where waits_for = 'signal'"
        return one(self.conn, query, order.jobs[-1])

    def is_stuck(self, order: Order) -> bool:
        name = self.waits_for(order)
        return name is not None and name not in self.pending(order)

    def pending(self, order: Order) -> set[str]:
        query = "select name from forebay.signal where key = %s"
        return {name for (name,) in self.conn.execute(query, [str(order.nr)])}

    def wait_until_idle(self) -> None:
        """Wait until each flow is over, or waits for a signal that nobody has sent."""

        def busy() -> list[Order]:
            return [
                order
                for order in self.orders
                if self.state(order) not in ("done", "cancelled", "dead")
                and not self.is_stuck(order)
            ]

        wait_for(lambda: not busy(), 120, lambda: f"{busy()} {self.program} {self.crew.logs}")

    # --- what must hold ---

    def check(self) -> None:
        for order in self.orders:
            self.check_one(order)

    def check_one(self, order: Order) -> None:
        rows = self.rows(order)
        known = Counter((kind, title(name, key)) for _, kind, name, key in rows) + order.forgotten
        query = "select what, count(*) from booking where entry = %s group by 1"
        booked = Counter(dict(self.conn.execute(query, [order.nr]).fetchall()))
        assert booked == Counter({n: times for (kind, n), times in known.items() if kind == "o"}), (
            order,
            rows,
        )
        leases = one(self.conn, "select count(*) from forebay.lease")
        for (kind, name), times in known.items():
            if kind == "s" and name.startswith(("step", "bad")):
                done = self.effects.count(name)[order.nr]
                assert times <= done <= times + leases + self.cuts, (order, name, done)
        taken = Counter({n: times for (kind, n), times in known.items() if kind == "w"})
        assert order.sent == taken + Counter(self.pending(order)), (order, rows)

    def teardown(self) -> None:
        if not self.program:
            return
        self.deploy_a_repair()
        for _ in range(200):
            self.wait_until_idle()
            open_orders = [o for o in self.orders if self.state(o) not in ("done", "cancelled")]
            if not open_orders:
                break
            for order in open_orders:
                self.redrive_one(order)
                name = self.waits_for(order)
                if name is not None:
                    self.send(order, name)
        self.check()
        for order in self.orders:
            if self.state(order) == "done":
                missing = order.stable - {name for _, _, name, _ in self.rows(order)}
                assert not missing, order
                assert one(
                    self.conn,
                    "select count(*) from booking where what = 'end' and entry = %s",
                    order.nr,
                )
            else:
                assert order.is_cancelled, order
        self.nothing_is_left_behind()

    def nothing_is_left_behind(self) -> None:
        left = """
            select (select count(*) from forebay.waiter),
                   (select count(*) from forebay.deferred d where d.kind <> ''
                    and d.run_at > forebay._now()),
                   (select count(*) from forebay.jobs(only_queue => 'children') j
                    where j.state not in ('done', 'cancelled')),
                   (select count(*) from forebay.gather g where g.children <>
                    (select count(distinct e.nr) from forebay.gather_end e
                     where e.gather_id = g.gather_id))"""

        def found() -> tuple[int, ...]:
            return self.conn.execute(left).fetchone()

        wait_for(lambda: found() == (0, 0, 0, 0), 60, lambda: f"{found()} {self.crew.logs}")


@pytest.fixture
def machine(conn, database, workers, effects, tmp_path, monkeypatch):
    """The class of the machine, with a worker that runs what its program says."""
    path = tmp_path / "program"
    path.write_text("[]")
    monkeypatch.setenv(PROGRAM_VARIABLE, str(path))
    conn.execute("create table booking (what text, entry integer)")
    workers.options = {"app": "tests.support.random_flow_app:app", "concurrency": 6}
    workers.start(wait=False)
    FlowMachine.conn = conn
    FlowMachine.client = forebay.Client(database)
    FlowMachine.crew, FlowMachine.effects, FlowMachine.path = workers, effects, path
    return FlowMachine


def machine_settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),  # What happens when is not repeated.
        print_blob=True,
    )


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize(
    "examples", [2, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.nightly])]
)
def test_flows_agree_with_a_small_model(machine, examples):
    """
    Whatever verbs a flow has, and whatever kills, deploys, signals, cancellations, rewinds and
    redrives do to it: each effect of once() is there exactly once for each checkpoint, a step is
    done at most once more for each lost lease or connection, no signal is lost, each step that the
    code always had is done, and no wait and no child is left.
    """
    run_state_machine_as_test(machine, settings=machine_settings(examples))


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["a checkpoint", "a signal"])
def test_the_model_notices_what_is_lost(machine, database, missing):
    """Such as a redrive that copies one checkpoint too few, or a promotion that drops signals."""
    life = machine()
    life.begin(verbs=["once", "once", "wait"])
    if missing == "a checkpoint":
        alter_function(
            database, "_copy_steps", ("s.no <> all (v_again)", "s.no <> all (v_again || 1)")
        )
        life.deploy_one_more(verb="bad", place=2)
        life.enqueue(kind="in_async")
        (order,) = life.orders
        wait_for(lambda: life.letter(order) is not None, 60, lambda: machine.crew.logs)
        life.check()
        life.deploy_a_repair()
        life.redrive_one(order)
    else:
        taken = ("d.group_id), 'w'", "d.group_id), 't'")
        alter_function(database, "_wake_flows", taken)
        life.enqueue(kind="in_thread")
        (order,) = life.orders
        life.wait_until_idle()
        life.check()
        life.send(order, life.waits[0])
        wait_for(lambda: not life.is_stuck(order) and not life.pending(order), 60)
    life.wait_until_idle()
    with violation():
        life.check()
