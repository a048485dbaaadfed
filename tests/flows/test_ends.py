"""Whatever way a child ends, the flow that waits for it continues, and so does a callback."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import forebay
from tests.support.consumer import Consumer
from tests.support.engine import (
    STEPS,
    Batch,
    Reader,
    connect,
    enqueue,
    forget_polls,
    one,
    open_group,
    shift_clock,
    state,
    states,
)
from tests.support.fix_worker import run_until_idle
from tests.support.mutant import alter_function, break_function, violation

pytestmark = pytest.mark.anyio

MONTH = 31 * 86400
CLOSE = "select forebay.close_groups()"
KEYED = {"ordering_key": "k"}


@dataclass
class Family:
    """A flow and a callback, each of which waits for two children in another queue."""

    app: forebay.App
    conn: psycopg.Connection[Any]
    options: dict[str, Any] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    parent: int = 0
    callback: int = 0
    children: list[int] = field(default_factory=list)

    async def begin(self) -> None:
        """Let both wait."""

        @self.app.job(queue="children")
        def child(n: int) -> int | None:
            return n

        @self.app.job()
        def parent(ctx: forebay.Context) -> None:
            calls = [child.using(**self.options).call(n) for n in (1, 2)]
            ctx.gather("children", calls, on_dead="collect")
            self.seen.append("parent")

        @self.app.job()
        def callback(results: list[int | None], died: list[dict[str, Any]]) -> None:
            self.seen.append("callback")

        self.parent = parent.enqueue(self.conn)
        calls = [child.using(**self.options).call(n) for n in (3, 4)]
        made = forebay.gather(self.conn, calls, then=callback.callback(), on_dead="collect")
        self.callback = int(made)
        await run_until_idle(self.app, queue="default")
        parts = self.conn.execute("select job_ids from forebay.gather_part").fetchall()
        self.children = sorted(job for (jobs,) in parts for job in jobs)
        assert len(self.children) == 4

    def maintain(self, seconds: float = 0) -> None:
        """Let time pass, and each duty be done."""
        shift_clock(self.conn, seconds)
        for _ in range(4):
            for query in (CLOSE, *STEPS.values()):
                one(self.conn, query)

    async def must_wake(self, seconds: float = 0) -> None:
        """Both have continued, after so many seconds."""
        for _ in range(3):
            self.maintain(seconds)
            await run_until_idle(self.app, queue="default")
        assert sorted(self.seen) == ["callback", "parent"], [
            (job, states(self.conn, job)) for job in self.children
        ]
        assert state(self.conn, self.parent) == state(self.conn, self.callback) == "done"
        missing = "select count(*) from forebay.gather g where g.children > forebay._ended_children"
        assert one(self.conn, missing + "(g.gather_id)") == 0


@pytest.fixture
def family(app, conn) -> Family:
    return Family(app, conn)


def claim(family: Family) -> tuple[Reader, Batch]:
    reader = Reader(family.app.dsn, queue="children", conn=family.conn)
    batches = reader.claim_all()
    assert sum(len(batch.jobs) for batch in batches) == 4
    return reader, batches[0]


def cancel(family: Family) -> None:
    for job in family.children:
        one(family.conn, "select forebay.cancel(%s)", job)


def promote(family: Family) -> None:
    """The wake rows of what was done so far are visited, and look too early."""
    one(family.conn, "select forebay.promote_v1()")


def settled(outcome: str, *, asked: bool, **more: Any) -> Callable[[Family], None]:
    def act(family: Family) -> None:
        reader, batch = claim(family)
        if asked:
            cancel(family)
            promote(family)
        ended = [{"offset": i, "outcome": outcome, **more} for i in (1, 2, 3, 4)]
        assert reader.settle(batch.claim_no, ended=ended) == "settled"

    return act


def consumed(how: str, *more: object) -> Callable[[Family], None]:
    def act(family: Family) -> None:
        with Consumer(family.app.dsn, ["children"]) as consumer:
            jobs = consumer.take()
            if how in ("failed", "release", "snooze"):
                cancel(family)
                promote(family)
            consumer.settle(how, jobs, *more)

    return act


def lost(*, suspects: bool, asked_before: bool = True) -> Callable[[Family], None]:
    def act(family: Family) -> None:
        reader, _ = claim(family)
        if asked_before:
            cancel(family)
            promote(family)
        assert reader.revoked_by(family.conn, suspects=suspects) == 4
        if not asked_before:
            promote(family)
            cancel(family)

    return act


def given_back(family: Family) -> None:
    reader, _ = claim(family)
    cancel(family)
    promote(family)
    assert one(family.conn, "select forebay.close_lease_v1(%s)", reader.lease_id) == 4


def used_up(family: Family) -> None:
    """A suspect dies with its worker until its attempts are used."""
    one(family.conn, "select forebay.set_max_attempts('children', 1)")
    reader, _ = claim(family)
    reader.revoked_by(family.conn)
    for _ in range(4):
        with Reader(family.app.dsn, queue="children") as next_one:
            batch = next_one.claim_ready(1)
            query = "select forebay.start_suspect_v1(%s, %s)"
            one(family.conn, query, next_one.lease_id, batch.claim_no)
            assert next_one.revoked_by(family.conn) == 1


def changed(act: str) -> Callable[[Family], None]:
    def do(family: Family) -> None:
        query = 'select sum(jobs) from forebay.change_jobs(%s, \'{"queue": "children"}\')'
        assert one(family.conn, query, act) == 4

    return do


def dropped(family: Family) -> None:
    one(family.conn, "select cancelled from forebay.drop_queue('children', force => true)")


def dropped_under_them(family: Family) -> None:
    reader, batch = claim(family)
    dropped(family)
    family.maintain()
    assert reader.settle(batch.claim_no, ended=[
        {"offset": i, "outcome": "retried", "after": 60 * (i % 2)} for i in (1, 2, 3, 4)
    ]) == "settled"  # fmt: skip


def close(family: Family, name: str = "default") -> None:
    open_group(family.conn, "children", name, "beginning")
    query = "select cancelled from forebay.close_group('children', %s, force => true)"
    one(family.conn, query, name)


def closed_behind_retries(family: Family) -> None:
    settled("retried", asked=False, after=3600)(family)
    close(family)


def closed_with_parked_keys(family: Family) -> None:
    reader = Reader(family.app.dsn, queue="children", conn=family.conn)
    reader.claim_ready(1)
    with Reader(family.app.dsn, queue="children") as other:
        other.claim_all()
    reader.revoked_by(family.conn)
    close(family)


def closed_for_the_last_group(family: Family) -> None:
    """Cancelled for one group, and closed for the other."""
    for name in ("default", "other"):
        open_group(family.conn, "children", name, "beginning")
    for job in family.children:
        one(family.conn, "select forebay.cancel(%s, 'default')", job)
    promote(family)
    close(family, "other")


def opened_behind(family: Family) -> None:
    """The first group of the queue begins behind the children."""
    open_group(family.conn, "children", start="now")


def redacted(family: Family) -> None:
    """What has ended is erased before the promotion that looks at it."""
    cancel(family)
    query = "update forebay.log set headers = forebay._redacted() where kind = 'child'"
    family.conn.execute(query)


def adopted_claimed(family: Family) -> None:
    claim(family)
    adopted(family)


def adopted(family: Family) -> None:
    cancel(family)
    family.conn.execute("update forebay.cluster set system_identifier = system_identifier + 1")
    family.conn.execute(  # What is older than this constraint was restored.
        "alter table forebay.cluster drop constraint cluster_pk,"
        " add constraint cluster_pk primary key (cluster_no)"
    )
    family.conn.execute("select forebay.adopt_v1(true)")


def moved(act: str, options: dict[str, Any]) -> Callable[[Family], None]:
    def do(family: Family) -> None:
        queue = json.dumps({"queue": "children"})
        query = "select sum(jobs) from forebay.change_jobs(%s, %s, %s, most => 100)"
        assert one(family.conn, query, act, queue, json.dumps(options)) == 4
        cancel(family)

    return do


LATER = {"run_at": (datetime.now(UTC) + timedelta(days=1)).isoformat()}
EXPIRED = {"expires_in": 60}

#: By name: what is done, the options of the children, and when.
WAYS: dict[str, tuple[Callable[[Family], object], dict[str, Any], float]] = {
    "done": (consumed("done"), {}, 0),
    "dead": (consumed("dead", "it is bad"), {}, 0),
    "failed": (consumed("failed", "it is bad"), {}, 0),
    "dead of its attempts": (settled("dead", asked=False, reason="exhausted"), {}, 0),
    "worker lost with it": (used_up, {}, 60),
    "cancelled while ready": (cancel, {}, 0),
    "cancelled while scheduled": (cancel, {"delay": 3600}, 0),
    "cancelled while parked for its key": (cancel, KEYED, 0),
    "cancelled while parked for its limit": (cancel, {"limit_key": "k"}, 0),
    "cancelled in a worker": (settled("cancelled", asked=True), {}, 0),
    "cancelled, then released": (settled("released", asked=True), {}, 0),
    "cancelled, then retried": (settled("retried", asked=True, after=5), {}, 0),
    "cancelled, then snoozed": (settled("snoozed", asked=True, after=5), {}, 0),
    "cancelled, then unknown": (settled("unknown", asked=True, after=5), {}, 0),
    "cancelled, then lost": (lost(suspects=True), {}, 0),
    "cancelled, then lost with a key": (lost(suspects=True), KEYED, 0),
    "cancelled, then lost with a limit": (lost(suspects=True), {"limit_key": "k"}, 0),
    "cancelled, then given back": (lost(suspects=False), {}, 0),
    "cancelled, then its lease was closed": (given_back, {}, 0),
    "cancelled, then released by a consumer": (consumed("release"), {}, 0),
    "cancelled, then snoozed by a consumer": (consumed("snooze", "1 hour"), {}, 0),
    "lost, then cancelled": (lost(suspects=True, asked_before=False), {}, 0),
    "moved, then cancelled": (moved("reschedule", LATER), {}, 0),
    "reprioritised, then cancelled": (moved("reprioritise", {"priority": 1}), {}, 0),
    "cancelled with others": (changed("cancel"), {}, 0),
    "purged": (changed("purge"), {}, 0),
    "truncated": (changed("truncate"), {}, 0),
    "truncated while scheduled": (changed("truncate"), {"delay": 3600}, 0),
    "dropped with its queue": (dropped, {}, 0),
    "dropped while it ran": (dropped_under_them, {}, 0),
    "expired": (lambda family: None, EXPIRED, 3600),
    "expired with a key": (lambda family: None, EXPIRED | KEYED, 3600),
    "expired while scheduled": (lambda family: None, {"delay": 86400}, 2 * MONTH),
    "its group was closed": (close, {}, 0),
    "its group was closed with its key": (closed_with_parked_keys, KEYED, 0),
    "its group was closed, and cancelled for another": (closed_for_the_last_group, {}, 0),
    "its group was closed behind its retry": (closed_behind_retries, {}, 0),
    "no group reads it": (opened_behind, {}, 0),
    "redacted": (redacted, {}, 0),
    "adopted": (adopted, {}, 0),
    "adopted while claimed": (adopted_claimed, {}, 0),
    "adopted while scheduled": (adopted, {"delay": 3600}, 0),
}


@pytest.mark.parametrize("way", WAYS)
async def test_each_end_of_a_child_wakes_who_waits_for_it(family, way):
    """Settled, cancelled at any place, expired, dropped, or left without a group."""
    act, family.options, seconds = WAYS[way]
    await family.begin()
    act(family)
    await family.must_wake(seconds)


LOOKS_AGAIN = ("if v_again is not null then", "if false then")
LOOKS_AT_ALL = (
    "if pg_sequence_last_value('forebay.flow_seq') is null then",
    "if true then",
)


@pytest.mark.parametrize(
    ("way", "guards"),
    [
        (
            "cancelled, then lost",
            {
                "_look_if_cancelled": ("if v_child is not null", "if false"),
                "_look_at_children": LOOKS_AGAIN,
            },
        ),
        ("its group was closed", {"_look_at_all_children": LOOKS_AT_ALL}),
        ("no group reads it", {"_look_at_all_children": LOOKS_AT_ALL}),
        ("adopted while scheduled", {"_look_at_all_children": LOOKS_AT_ALL}),
    ],
)
async def test_an_end_that_is_not_looked_for_would_be_missed(database, family, way, guards):
    """What tells the ends that no settlement and no dead letter tells."""
    for name, guard in guards.items():
        break_function(database, name, guard)
    act, family.options, seconds = WAYS[way]
    await family.begin()
    act(family)
    with violation():
        await family.must_wake(seconds)


async def let_a_settlement_overlap(family: Family) -> None:
    """It began before the cancellation, and commits when its wake row was visited."""
    await family.begin()
    reader, batch = claim(family)
    with connect(family.app.dsn) as other, other.transaction():
        ended = [{"offset": i, "outcome": "retried", "after": 5} for i in (1, 2, 3, 4)]
        assert reader.settle(batch.claim_no, ended=ended, conn=other) == "settled"
        cancel(family)
        promote(family)
    one(family.conn, "select forebay.close_lease_v1(%s)", reader.lease_id)
    await family.must_wake(60)


async def test_a_cancellation_during_a_settlement_is_told(family):
    """Neither side saw the other."""
    await let_a_settlement_overlap(family)


async def test_a_cancellation_during_a_settlement_would_be_missed(database, family):
    """A look at each child once is too early."""
    break_function(database, "_look_at_children", LOOKS_AGAIN)
    with violation():
        await let_a_settlement_overlap(family)


async def test_all_children_are_looked_at_in_steps(database, family):
    """Each promotion looks at some of them, and the next one continues after those."""
    alter_function(database, "_look_at_all_children", ("limit 500", "limit 1"), ("= 500", "= 1"))
    await family.begin()
    close(family)
    for _ in range(4):
        one(family.conn, CLOSE)
    ended = []
    for _ in range(3):
        promote(family)
        ended.append(one(family.conn, "select count(*) from forebay.gather_end"))
    assert ended == [2, 4, 4]
    await family.must_wake()


async def close_the_parents_group(family: Family) -> None:
    await family.begin()
    held = enqueue(family.conn, kind="child", queue="children")
    query = "select cancelled from forebay.close_group('default', force => true)"
    assert one(family.conn, query) == 1
    family.maintain()
    own = {"callback": [], "parent": []}
    for job, jobs in family.conn.execute(
        "select g.job_id, p.job_ids from forebay.gather g join forebay.gather_part p"
        " using (gather_id)"
    ).fetchall():
        own["parent" if job == family.parent else "callback"] += jobs
    assert {state(family.conn, job) for job in own["parent"]} == {"cancelled"}
    # The callback has not begun: it waits for its time, and for the next group.
    waits = "scheduled" if family.options else "ready"
    assert {state(family.conn, job) for job in own["callback"]} == {waits}
    assert state(family.conn, held) == "ready"
    assert state(family.conn, family.callback) == "scheduled"


@pytest.mark.parametrize("options", [{}, {"delay": 3600}], ids=["ready", "scheduled"])
async def test_the_children_of_a_flow_end_with_its_group(family, options):
    """Those that have not started, as with a truncation."""
    family.options = options
    await close_the_parents_group(family)


async def test_the_children_would_run_for_a_group_that_is_gone(database, family):
    """Nothing else would take them back."""
    break_function(
        database,
        "_drop_waits",
        ("if pg_sequence_last_value('forebay.flow_seq') is not null", "if false"),
    )
    with violation():
        await close_the_parents_group(family)


def random_acts(family: Family, chance: random.Random) -> None:
    """Let workers and operators do things to the children, and end what is left in the end."""
    readers: list[tuple[Reader, Batch]] = []
    outcomes = ("done", "retried", "released", "snoozed", "unknown", "lost", "cancelled", "dead")
    for _ in range(chance.randrange(3, 12)):
        act = chance.choice(("claim", "settle", "settle", "lose", "cancel", "promote", "time"))
        if act == "claim":
            reader = Reader(family.app.dsn, queue="children", conn=family.conn)
            batch = reader.claim_ready(chance.randrange(1, 5))
            if batch.jobs:
                readers.append((reader, batch))
        elif act == "settle" and readers:
            reader, batch = readers.pop(chance.randrange(len(readers)))
            given = [
                {"offset": job["batch_offset"], "outcome": chance.choice(outcomes), "after": after}
                for job, after in zip(batch.jobs, chance.choices((0, 0, 60), k=9), strict=False)
            ]
            reader.settle(batch.claim_no, ended=[end for end in given if end["outcome"] != "done"])
        elif act == "lose" and readers:
            reader, _ = readers.pop(chance.randrange(len(readers)))
            reader.revoked_by(family.conn, suspects=chance.random() < 0.5)
        elif act == "cancel":
            query = "select forebay.cancel(%s, null, %s)"
            one(family.conn, query, chance.choice(family.children), chance.random() < 0.5)
        elif act == "promote":
            promote(family)
        elif act == "time":
            shift_clock(family.conn, chance.choice((0, 100, 200)))
    last = chance.choice(("cancel", "truncate", "drop", "close", "expire"))
    if last == "cancel":
        cancel(family)
    elif last == "truncate":
        one(family.conn, "select forebay.truncate_queue('children')")
    elif last == "drop":
        dropped(family)
    elif last == "close":
        close(family)
    if chance.random() < 0.5:
        promote(family)
    query = "select forebay._revoke(l.lease_id, 'revoked', true) from forebay.lease l"
    family.conn.execute(query + " where l.closed_at is null order by l.lease_id")
    if last not in ("drop", "close"):  # A claim expires them, where the sweep does not look.
        shift_clock(family.conn, 2 * MONTH)
        with Reader(family.app.dsn, queue="children") as reader:
            for _ in range(9):
                promote(family)
                forget_polls(reader.conn)
                reader.claim_all()


SEEDS = [*range(8), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(8, 80))]


@pytest.mark.parametrize("seed", SEEDS)
async def test_random_ends_wake_who_waits(family, seed):
    """Claims, settlements, lost workers, cancellations, closings and time, in any order."""
    chance = random.Random(seed)
    family.options = dict(chance.choice(({}, KEYED, {"limit_key": "k"}, {"delay": 100}, EXPIRED)))
    await family.begin()
    random_acts(family, chance)
    await family.must_wake(2 * MONTH)
