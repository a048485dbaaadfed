"""Many groups of one queue: what their polls and claims read, and that a poll which reads little
misses nothing.

A session remembers its last poll that found no ready lane. Each guard of that memory has a mutant
without it, with which a ready lane is missed.
"""

import random
from contextlib import ExitStack
from itertools import combinations

import psycopg
import pytest

from tests.support.engine import (
    Reader,
    connect,
    enqueue,
    forget_polls,
    lane_of,
    one,
    open_group,
    shift_clock,
    small_segments,
)
from tests.support.mutant import break_function, violation
from tests.support.plans import pages

#: Let the session remember a poll of one group, up to a number of the log; and whether it does.
REMEMBER = (
    "select forebay._remember_poll(array[%s::bigint], null,"
    " row(1, 0, %s, '1000', '1000:1000:', 0, null, null)::forebay._idle_poll)"
)
REMEMBERS = "select coalesce(current_setting('forebay.idle_1', true), '') <> ''"

READY = "select * from forebay.ready_v1(%s::bigint[], 80)"


class Groups:
    """Groups of one queue that have had all jobs, a session that polls for all of them, and a
    reader of each.
    """

    def __init__(self, dsn: str, count: int, queue: str = "default") -> None:
        self.dsn, self.queue = dsn, queue
        self.conn = connect(dsn)
        self.poller = connect(dsn)
        self.names = [f"group_{number}" for number in range(count)]
        self.ids = [open_group(self.conn, queue, name, "beginning") for name in self.names]
        #: One lease claims for all groups.
        self.reader = Reader(dsn, queue, self.names[0])
        enqueue(self.conn, queue=queue)
        self.drain()

    def __enter__(self) -> "Groups":
        return self

    def __exit__(self, *_: object) -> None:
        for conn in (self.conn, self.poller, self.reader.conn):
            conn.close()

    def ready(self) -> set[tuple[int, int]]:
        """Return group and lane of each ready lane, by one poll for all groups."""
        return ready(self.poller, self.ids)

    def claim(self, group_id: int, lane: int, limit: int = 1000, retried: bool = False) -> int:
        """Claim for one group, and settle at once; return the number of jobs."""
        self.reader.group_id = group_id
        batch = self.reader.claim(limit, lane)
        if batch.jobs and retried:
            ended = [
                {"offset": offset + 1, "outcome": "retried"} for offset in range(len(batch.jobs))
            ]
            assert self.reader.settle(batch.claim_no, [], ended=ended) == "settled"
            self.reader.open_claims.discard(batch.claim_no)
        elif batch.jobs:
            self.reader.finish(batch)
        return len(batch.jobs)

    def drain(self) -> None:
        """Claim until no lane is ready for any group."""
        for _ in range(1000):
            if not (lanes := ready(self.reader.conn, self.ids)):
                return
            for group_id, lane in lanes:
                self.claim(group_id, lane)
        pytest.fail(f"lanes stay ready, and a claim finds nothing: {lanes}")


def ready(conn: psycopg.Connection, ids: list[int]) -> set[tuple[int, int]]:
    return {(row[0], row[1]) for row in conn.execute(READY, [ids]).fetchall()}


def one_by_one(conn: psycopg.Connection, ids: list[int]) -> set[tuple[int, int]]:
    """Return the same by a poll for each group, which looks at all of its lanes."""
    found = set()
    for group_id in ids:
        forget_polls(conn)
        found |= ready(conn, [group_id])
    return found


def poll_pages(groups: Groups, conn: psycopg.Connection, ids: list[int], before) -> int:
    """Return the pages of an idle poll, the least of three, in a session that has polled before."""
    least = []
    for _ in range(4):
        before()
        least.append(pages(conn, READY, [ids]))
    assert ready(conn, ids) == set()
    return min(least[1:])


def nothing() -> None:
    """Let nothing happen between two polls."""


def test_an_idle_poll_for_a_hundred_groups_reads_few_pages(database):
    """At most three times those of one group: in a quiet database, beside jobs of another queue,
    and beside open transactions.
    """
    with Groups(database, 100) as groups, connect(database) as single:
        open_group(groups.conn, "busy")
        cases = {
            "quiet": nothing,
            "jobs of another queue": lambda: enqueue(groups.conn, queue="busy"),
            "limits of another queue": lambda: enqueue(
                groups.conn, queue="busy", limit_key="tenant"
            ),
            "transactions": lambda: one(groups.conn, "select pg_current_xact_id()"),
        }
        with ExitStack() as stack:
            for state in ("nothing open", "a writer open"):
                for name, before in cases.items():
                    few = poll_pages(groups, single, groups.ids[:1], before)
                    many = poll_pages(groups, groups.poller, groups.ids, before)
                    assert many <= 3 * few, (state, name, few, many)
                enqueue(stack.enter_context(psycopg.connect(database)), queue="busy")


@pytest.mark.slow
def test_an_idle_poll_for_a_hundred_groups_with_retries(database):
    """Each group has a lane of retries: they are read only when the log has new rows, and then
    no cursor is.
    """
    with Groups(database, 100) as groups, connect(database) as single:
        public = lane_of("default", groups.conn)
        enqueue(groups.conn)
        for group_id in groups.ids:
            assert groups.claim(group_id, public, retried=True) == 1
        groups.drain()
        few = poll_pages(groups, single, groups.ids[:1], nothing)
        assert poll_pages(groups, groups.poller, groups.ids, nothing) <= 3 * few
        many = poll_pages(
            groups, groups.poller, groups.ids, lambda: enqueue(groups.conn, queue="busy")
        )
        assert many <= 40 + 3 * 100


def test_a_claim_reads_the_same_beside_a_hundred_groups(database):
    """A claim does not look at other groups."""
    claim = "select forebay.claim_v1(%s, %s, %s, %s, %s, 10)"
    read = {}
    for queue, count in (("few", 1), ("many", 100)):
        with Groups(database, count, queue) as groups:
            reader = groups.reader
            counts = []
            for _ in range(5):
                for _ in range(10):
                    enqueue(groups.conn, queue=queue)
                reader.claim_no += 1
                names = [reader.lease_id, reader.claim_no, reader.claim_no]
                counts.append(
                    pages(reader.conn, claim, [*names, groups.ids[0], lane_of(queue, groups.conn)])
                )
            read[queue] = sorted(counts)[2]
    assert read["many"] <= read["few"] + 5, read


def test_one_group_with_a_retry_is_found_without_reading_the_others(database):
    """Of a hundred groups the cursors of those with new rows are read."""
    with Groups(database, 100) as groups:
        enqueue(groups.conn)
        public = lane_of("default", groups.conn)
        groups.drain()
        forget_polls(groups.poller)
        everything = pages(groups.poller, READY, [groups.ids])
        enqueue(groups.conn)
        for number, group_id in enumerate(groups.ids):
            assert groups.claim(group_id, public, retried=number == 40) == 1
        assert groups.ready() == {
            (groups.ids[40], lane_of("default", groups.conn, audience=groups.ids[40]))
        }
        groups.drain()
        assert groups.ready() == set()
        enqueue(groups.conn, queue="busy")
        assert pages(groups.poller, READY, [groups.ids]) < everything / 10


def polls_agree(dsn: str, seed: int, steps: int) -> None:
    """Do what can happen to groups at random.

    After each step one poll for all groups reports what polls for each of them do.
    """
    rng = random.Random(seed)
    with Groups(dsn, 12) as groups, connect(dsn) as plain, ExitStack() as stack:
        conn = groups.conn
        small_segments(conn, rows=100, reserve=1000)
        groups.drain()
        writers = [stack.enter_context(psycopg.connect(dsn)) for _ in range(3)]

        def claim(retried: bool = False, limit: int = 1000) -> None:
            lanes = sorted(one_by_one(plain, groups.ids))
            for group_id, lane in rng.sample(lanes, min(len(lanes), rng.choice([1, 4, 1000]))):
                groups.claim(group_id, lane, limit, retried)

        def end() -> None:
            writer = rng.choice(writers)
            writer.commit() if rng.random() < 0.7 else writer.rollback()

        def operate(on: psycopg.Connection) -> None:
            act = rng.choice(["pause", "resume", "resume"])
            one(on, f"select forebay.{act}_queue('default', %s)", rng.choice([*groups.names, None]))

        def operate_slowly() -> None:
            # A writer that waits for the lock of another one would never end.
            for writer in writers:
                writer.commit()
            operate(rng.choice(writers))

        def write() -> None:
            enqueue(
                rng.choice(writers),
                queue=rng.choice(["default", "other"]),
                priority=rng.choice([1, 100]),
            )

        def maintain() -> None:
            one(conn, "select forebay.extend_v1()")
            one(conn, "select forebay.seal_v1()")

        acts = [
            (4, nothing),
            (2, lambda: enqueue(conn, priority=rng.choice([1, 100]))),
            (3, lambda: [enqueue(conn, queue="other") for _ in range(rng.choice([1, 60]))]),
            (1, lambda: enqueue(conn, queue="other", limit_key="tenant")),
            (2, lambda: one(conn, "select pg_current_xact_id()")),
            (3, write),
            (3, end),
            (1, operate_slowly),
            (2, claim),
            (2, groups.drain),
            (1, lambda: claim(retried=True)),
            (1, lambda: claim(limit=1)),
            (1, maintain),
        ]
        weights = [weight for weight, _ in acts]
        for step in range(steps):
            idle = psycopg.pq.TransactionStatus.IDLE
            # Locks of a writer would make this one wait for ever.
            if rng.random() < 0.2 and all(w.info.transaction_status == idle for w in writers):
                operate(conn)
            _, act = rng.choices(acts, weights)[0]
            act()
            many, single = groups.ready(), one_by_one(plain, groups.ids)
            assert many == single, (seed, step, act)


@pytest.mark.slow
def test_one_poll_for_all_groups_agrees_with_a_poll_for_each(database, seed):
    """Random jobs, claims, retries, pauses, late commits and seals."""
    polls_agree(database, seed, 150)


# Each guard in turn. A function here shows one; the mutant beside it shows that it is needed.


def a_late_commit_is_found(dsn: str) -> None:
    """A transaction that the idle poll saw as open."""
    for count in (1, 12):
        with Groups(dsn, count, f"late_{count}") as groups, psycopg.connect(dsn) as writer:
            enqueue(writer, queue=groups.queue)
            # A later one has ended: so the snapshot lists the writer.
            one(groups.conn, "select pg_current_xact_id()")
            assert groups.ready() == set()
            assert groups.ready() == set()
            writer.commit()
            assert len(groups.ready()) == count


def a_commit_that_no_snapshot_listed_is_found(dsn: str) -> None:
    """A transaction that was open, and is the newest: a snapshot does not list it."""
    for count in (1, 12):
        with Groups(dsn, count, f"newest_{count}") as groups, psycopg.connect(dsn) as writer:
            enqueue(writer, queue=groups.queue)
            assert groups.ready() == set()
            assert groups.ready() == set()
            writer.commit()
            assert len(groups.ready()) == count


def a_late_commit_in_an_old_segment_is_found(dsn: str) -> None:
    """Its row is in a segment that idle polls read no longer."""
    with Groups(dsn, 12) as groups, psycopg.connect(dsn) as writer:
        small_segments(groups.conn, rows=100, reserve=1000)
        enqueue(writer)
        for _ in range(4):
            for _ in range(100):
                enqueue(groups.conn, queue="other")
            one(groups.conn, "select forebay.seal_v1()")
        groups.drain()
        assert groups.ready() == set()
        writer.commit()
        assert len(groups.ready()) == 12


def a_resumed_group_is_found(dsn: str) -> None:
    """Its jobs are older than the idle poll."""
    for count in (1, 12):
        with Groups(dsn, count, f"resumed_{count}") as groups:
            one(groups.conn, "select forebay.pause_queue(%s)", groups.queue)
            enqueue(groups.conn, queue=groups.queue)
            assert groups.ready() == set()
            one(groups.conn, "select forebay.resume_queue(%s)", groups.queue)
            assert len(groups.ready()) == count


def a_group_whose_resumption_commits_late_is_found(dsn: str) -> None:
    """It is paused for polls until the commit."""
    for count in (1, 12):
        with Groups(dsn, count, f"slowly_{count}") as groups, psycopg.connect(dsn) as operator:
            one(groups.conn, "select forebay.pause_queue(%s)", groups.queue)
            enqueue(groups.conn, queue=groups.queue)
            assert groups.ready() == set()
            one(operator, "select forebay.resume_queue(%s)", groups.queue)
            assert groups.ready() == set()
            assert groups.ready() == set()
            operator.commit()
            assert len(groups.ready()) == count


def resumptions_that_overlap_are_found(dsn: str) -> None:
    """Whichever began first, drew its transaction id first, or ends first."""
    for count in (1, 12):
        for ends in (0, 1):
            names = [f"both_{count}_{ends}_{n}" for n in range(2)]
            with ExitStack() as stack:
                both = [stack.enter_context(Groups(dsn, count, name)) for name in names]
                operators = [stack.enter_context(psycopg.connect(dsn)) for _ in names]
                for operator, groups in zip(operators, both, strict=True):
                    one(groups.conn, "select forebay.pause_queue(%s)", groups.queue)
                    enqueue(groups.conn, queue=groups.queue)
                    one(operator, "select pg_current_xact_id()")
                for operator, groups in zip(operators, both, strict=True):
                    one(operator, "select forebay.resume_queue(%s)", groups.queue)
                for place in (ends, 1 - ends):
                    assert both[place].ready() == set()
                    operators[place].commit()
                    assert len(both[place].ready()) == count


def a_resumption_of_an_old_transaction_is_found(dsn: str) -> None:
    """Its transaction id is below that of a resumption that polls have seen."""
    for count in (1, 12):
        with Groups(dsn, count, f"old_{count}") as groups, psycopg.connect(dsn) as operator:
            one(operator, "select pg_current_xact_id()")
            one(groups.conn, "select forebay.pause_queue(%s)", groups.queue)
            enqueue(groups.conn, queue=groups.queue)
            assert groups.ready() == set()
            one(operator, "select forebay.resume_queue(%s)", groups.queue)
            operator.commit()
            assert len(groups.ready()) == count


def a_limit_key_is_found(dsn: str) -> None:
    """The first one of the queue."""
    for count in (1, 12):
        with Groups(dsn, count, f"limited_{count}") as groups:
            assert groups.ready() == set()
            enqueue(groups.conn, queue=groups.queue, limit_key="tenant")
            assert len(groups.ready()) == count


def a_limit_that_is_free_again_is_found(dsn: str) -> None:
    """A settlement without a row of the log frees it."""
    with Groups(dsn, 1) as groups:
        one(groups.conn, "select forebay.limit_queue('default', concurrency => 1)::text")
        enqueue(groups.conn)
        enqueue(groups.conn)
        batch = groups.reader.claim()
        assert len(batch.jobs) == 1
        assert groups.ready() == set()
        groups.reader.finish(batch)
        assert len(groups.ready()) == 1


def a_cursor_far_behind_is_found(dsn: str) -> None:
    """It has to move so that segments can be emptied."""
    with Groups(dsn, 12) as groups:
        small_segments(groups.conn, rows=100, reserve=1000)
        for _ in range(300):
            enqueue(groups.conn, queue="other")
        assert groups.ready() == set()
        assert one(groups.conn, "select forebay.seal_v1()") > 2
        assert len(groups.ready()) == 12


def a_cursor_that_time_makes_ready_is_found(dsn: str) -> None:
    """It has to move because a writer stays open, five minutes after it moved last."""
    with Groups(dsn, 12) as groups, psycopg.connect(dsn) as writer:
        enqueue(writer, queue="other")
        one(groups.conn, "select pg_current_xact_id()")
        assert groups.ready() == set()
        shift_clock(groups.conn, 301)
        assert len(groups.ready()) == 12


def what_a_transaction_saw_is_not_remembered(dsn: str) -> None:
    """The transaction itself is missing in its own list of open ones."""
    with Groups(dsn, 12) as groups:
        with groups.poller.transaction():
            one(groups.poller, "select pg_current_xact_id()")
            one(groups.conn, "select pg_current_xact_id()")
            assert groups.ready() == set()
            enqueue(groups.poller)
        assert len(groups.ready()) == 12


def other_groups_are_not_taken_for_these(dsn: str) -> None:
    """Two lists of groups may have the same place in the memory."""
    place = "select hash_array_extended(%s::bigint[], 0) & 15"
    with Groups(dsn, 13) as groups:
        behind, *done = groups.ids
        enqueue(groups.conn)
        for group_id in done:
            groups.claim(group_id, lane_of("default", groups.conn))
        lists = [list(ids) for count in (1, 2, 3) for ids in combinations(done, count)]
        wanted = one(groups.conn, place, [behind])
        others = next(ids for ids in lists if one(groups.conn, place, ids) == wanted)
        assert ready(groups.poller, others) == set()
        assert len(ready(groups.poller, [behind])) == 1


GUARDS = [
    pytest.param(
        a_late_commit_is_found,
        "_is_still_idle",
        ("pg_visible_in_snapshot(x, pg_current_snapshot())", "false"),
        id="transactions that were open",
    ),
    pytest.param(
        a_commit_that_no_snapshot_listed_is_found,
        "_is_still_idle",
        ("or p_idle.next_xid > pg_snapshot_xmax(p_idle.snap)", "or false"),
        id="transactions that were the newest",
    ),
    pytest.param(
        a_late_commit_in_an_old_segment_is_found,
        "_changed_lanes",
        ("x < p_before and pg_visible_in_snapshot(x, snap)", "false"),
        id="old segments",
    ),
    pytest.param(
        a_limit_that_is_free_again_is_found,
        "ready_v1",
        ("v_poll.hash := null;", ""),
        id="limits",
    ),
    pytest.param(
        a_resumed_group_is_found,
        "resume_queue",
        ("perform forebay._forget_polls();", ""),
        id="resumed groups",
    ),
    pytest.param(
        a_group_whose_resumption_commits_late_is_found,
        "ready_v1",
        ("if not forebay._may_remember() then", "if false then"),
        id="resumptions that commit late",
    ),
    pytest.param(
        resumptions_that_overlap_are_found,
        "_forget_polls",
        ("lock table only forebay.lock_polls in row exclusive mode;", "null;"),
        id="resumptions that overlap",
    ),
    pytest.param(
        a_resumption_of_an_old_transaction_is_found,
        "_forget_polls",
        (
            "perform nextval('forebay.poll_horizon');",
            (
                "perform setval('forebay.poll_horizon', greatest("
                "pg_current_xact_id()::text::bigint,"
                " pg_sequence_last_value('forebay.poll_horizon')));"
            ),
        ),
        id="resumptions of old transactions",
    ),
    pytest.param(
        a_cursor_far_behind_is_found,
        "seal_v1",
        ("perform forebay._forget_polls();", ""),
        id="seals",
    ),
    pytest.param(
        a_cursor_that_time_makes_ready_is_found,
        "ready_v1",
        ("v_poll.checked_at between v_idle.checked_at and v_idle.checked_at + 5000", "true"),
        id="time",
    ),
    pytest.param(
        what_a_transaction_saw_is_not_remembered,
        "ready_v1",
        ("if forebay._is_alone() then", "if true then"),
        id="transactions of the caller",
    ),
    pytest.param(
        other_groups_are_not_taken_for_these,
        "_recall_poll",
        ("case when v.hash = p_hash then v end", "v"),
        id="other groups",
    ),
]


@pytest.mark.parametrize(("shown", "function", "guard"), GUARDS)
def test_an_idle_poll_misses_nothing(database, shown, function, guard):
    """What makes a lane ready is found by the next poll, although that reads little."""
    shown(database)


@pytest.mark.parametrize(("shown", "function", "guard"), GUARDS)
def test_an_idle_poll_misses_something_without(database, shown, function, guard):
    """The mutants: without each guard a ready lane is missed."""
    break_function(database, function, guard)
    with violation():
        shown(database)


def test_a_poll_during_which_a_segment_was_begun_is_not_remembered(conn):
    """Its snapshot may show rows of that segment, which it has not looked for."""
    group_id = open_group(conn, "default")
    hi = one(conn, "select hi from forebay.segment order by lo limit 1")
    one(conn, "select setval('forebay.log_seq', %s)", hi)
    one(conn, REMEMBER, group_id, hi - 1)
    assert not one(conn, REMEMBERS)
    one(conn, REMEMBER, group_id, hi)
    assert one(conn, REMEMBERS)
