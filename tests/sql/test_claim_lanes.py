"""A claim of several lanes in one call: a batch for each, and nothing for a lane that needs the
other claim.

Each promise has a mutant in which its guard is missing.
"""

from collections.abc import Callable

import psycopg
import pytest

from tests.support.engine import (
    claimed,
    connect,
    enqueue,
    lane_of,
    one,
    open_groups_apart,
    sqlstate,
)
from tests.support.mutant import break_function, violation

QUERY = "select nr, jobs from forebay.claim_lanes_v1(%s, %s, %s, %s, %s, %s)"


class Several:
    """A lease, and the groups and lanes of some queues."""

    def __init__(self, dsn: str, *queues: str) -> None:
        self.conn = connect(dsn)
        self.conn.execute("set lock_timeout = '300ms'")
        self.lanes = [lane_of(queue, self.conn) for queue in queues]
        groups = open_groups_apart(
            self.conn, {queue: [lane] for queue, lane in zip(queues, self.lanes, strict=True)}
        )
        self.groups = [groups[queue] for queue in queues]
        self.lease_id = one(self.conn, "select forebay.open_lease_v1('several')")
        self.claim_no = 1

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.conn.close()

    def claim(self, limit: int = 10) -> dict[int, list[int] | None]:
        """Claim from all lanes.

        Return the ids of the jobs of each lane that was claimed, None of one that is locked.
        """
        rows = self.conn.execute(
            QUERY,
            [
                *(self.lease_id, self.claim_no, self.claim_no),
                *(self.groups, self.lanes, [limit] * len(self.lanes)),
            ],
        ).fetchall()
        self.claim_no += len(self.lanes)
        return {
            nr: None if text is None else [job["job_id"] for job in claimed(text)]
            for nr, text in rows
        }

    def claim_one(self, place: int) -> list[int]:
        """Claim from one lane by the other function."""
        self.claim_no += 1
        text = one(
            self.conn,
            "select forebay.claim_v1(%s, %s, %s, %s, %s, 100)",
            *(self.lease_id, self.claim_no - 1, self.claim_no - 1),
            *(self.groups[place], self.lanes[place]),
        )
        return [job["job_id"] for job in claimed(text)]


def test_each_lane_gets_a_batch_under_a_number_of_its_own(database, conn):
    """
    Number N of the lanes has claim number p_claim_no + N - 1, also where a lane before it has no
    jobs; each batch is settled by it.
    """
    with Several(database, "a", "b", "c") as several:
        ids = {queue: [enqueue(conn, queue=queue) for _ in range(3)] for queue in ("a", "c")}
        assert several.claim() == {1: ids["a"], 3: ids["c"]}
        batches = conn.execute(
            (
                "select claim_no, lane, cardinality(seqs) from forebay.batch where lease_id = "
                "%s order by 1"
            ),
            [several.lease_id],
        ).fetchall()
        assert batches == [(1, several.lanes[0], 3), (3, several.lanes[2], 3)]
        flushes = '[{"claim_no": 1, "flush_no": 1}, {"claim_no": 3, "flush_no": 1}]'
        found = conn.execute(
            "select status from forebay.settle_v1(%s, %s)", [several.lease_id, flushes]
        ).fetchall()
        assert found == [("settled",)] * 2


def test_claims_of_several_lanes_go_on_where_the_last_one_ended(database, conn):
    """
    No job is handed out twice or left out, whichever function claims, with limits that end in the
    middle of a window.
    """
    with Several(database, "a", "b") as several:
        ids = [[enqueue(conn, queue=queue) for _ in range(11)] for queue in ("a", "b")]
        taken: list[list[int]] = [[], []]
        for _ in range(2):
            for nr, jobs in several.claim(limit=3).items():
                taken[nr - 1] += jobs
        taken[0] += several.claim_one(0)
        ids[0].append(enqueue(conn, queue="a"))
        for nr, jobs in several.claim(limit=100).items():
            taken[nr - 1] += jobs
        assert taken == ids


def a_late_committer_is_served(dsn: str) -> None:
    with Several(dsn, "a", "b") as several, connect(dsn) as conn, psycopg.connect(dsn) as slow:
        late = enqueue(slow, queue="b")
        first = enqueue(conn, queue="b")
        assert several.claim() == {2: [first]}
        slow.commit()
        second = enqueue(conn, queue="b")
        # The lane is left to the other function.
        found = several.claim().get(2, [])
        assert sorted(found + several.claim_one(1)) == [late, second]


def a_lane_that_is_listed_twice_is_refused(dsn: str) -> None:
    with Several(dsn, "a") as several, connect(dsn) as conn:
        ids = [enqueue(conn, queue="a") for _ in range(3)]
        several.groups, several.lanes = several.groups * 2, several.lanes * 2
        with pytest.raises(psycopg.Error) as error:
            several.claim()
        assert error.value.sqlstate == "JQ001"
        assert several.claim_one(0) == ids


def a_locked_lane_is_not_waited_for(dsn: str) -> None:
    with (
        Several(dsn, "a", "b", "c") as several,
        connect(dsn) as conn,
        psycopg.connect(dsn) as other,
    ):
        ids = [enqueue(conn, queue=queue) for queue in ("a", "b", "c")]
        # A lock that is waited for ends the call, and not only the wait.
        several.conn.execute("set lock_timeout = 0")
        several.conn.execute("set statement_timeout = '1s'")
        one(other, "select forebay._lock_lane(%s, %s)", several.groups[1], several.lanes[1])
        assert several.claim() == {1: [ids[0]], 2: None, 3: [ids[2]]}
        other.rollback()
        assert several.claim() == {2: [ids[1]]}


def a_locked_lane_is_not_read(dsn: str) -> None:
    """The holder of the lock has claimed from the lane and not committed: its jobs must not be
    handed out again.
    """
    with (
        Several(dsn, "a", "b") as several,
        Several(dsn, "b") as other,
        connect(dsn) as conn,
    ):
        job = enqueue(conn, queue="b")
        other.conn.autocommit = False
        other.conn.execute("begin")
        assert other.claim_one(0) == [job]
        assert several.claim() == {2: None}
        other.conn.commit()
        assert several.claim() == {}


def a_closed_lease_gets_nothing(dsn: str) -> None:
    with Several(dsn, "a", "b") as several, connect(dsn) as conn:
        ids = [enqueue(conn, queue=queue) for queue in ("a", "b")]
        one(conn, "select forebay.close_lease_v1(%s)", several.lease_id)
        assert several.claim() == {}
        several.lease_id = one(conn, "select forebay.open_lease_v1('next')")
        assert several.claim() == {1: [ids[0]], 2: [ids[1]]}


def a_paused_queue_gives_nothing(dsn: str) -> None:
    with Several(dsn, "a", "b") as several, connect(dsn) as conn:
        ids = [enqueue(conn, queue=queue) for queue in ("a", "b")]
        conn.execute("select forebay.pause_queue('b')")
        assert several.claim() == {1: [ids[0]]}


def lanes_of_keys_are_left_out(dsn: str) -> None:
    with Several(dsn, "a", "b") as several, connect(dsn) as conn:
        plain = enqueue(conn, queue="a")
        enqueue(conn, queue="b", ordering_key="k")
        several.lanes[1] = one(
            conn, "select lane from forebay.lane where sort = 'keyed' and queue = 'b'"
        )
        assert several.claim() == {1: [plain]}


def cancelled_jobs_are_left_to_the_other_claim(dsn: str) -> None:
    with Several(dsn, "a", "b") as several, connect(dsn) as conn:
        ids = [enqueue(conn, queue=queue) for queue in ("a", "b")]
        conn.execute("select forebay.cancel(%s)", [ids[1]])
        assert several.claim() == {1: [ids[0]]}
        assert several.claim_one(1) == []


def _in_segments(*pair: str) -> Callable[[str], None]:
    def break_it(dsn: str) -> None:
        with connect(dsn) as conn:
            segments = conn.execute("select segment_id from forebay.segment").fetchall()
        for (segment,) in segments:
            old, new = (text.replace("#", str(segment)) for text in pair)
            break_function(dsn, f"_take_lanes_{segment}", (old, new))

    return break_it


def _in_the_call(*pairs: tuple[str, str]) -> Callable[[str], None]:
    return lambda dsn: break_function(dsn, "claim_lanes_v1", *pairs)


PROMISES = [
    (
        a_late_committer_is_served,
        _in_segments(
            ("select true from forebay.log_# l where"),
            "select true from forebay.log_# l where false and",
        ),
    ),
    (
        a_lane_that_is_listed_twice_is_refused,
        _in_the_call((("count(distinct (u.g, u.l))"), "count((u.g, u.l))")),
    ),
    (a_locked_lane_is_not_waited_for, _in_the_call((" mode nowait'", " mode'"))),
    (
        a_locked_lane_is_not_read,
        _in_the_call(
            (("v_locks[i] <> all (v_busy) or i = 1"), "true"),
            ("v_locks[i] = any (v_busy) and i > 1", "false"),
        ),
    ),
    (a_closed_lease_gets_nothing, _in_segments("and i.closed_at is null", "")),
    (
        a_paused_queue_gives_nothing,
        _in_segments(("(g.paused_at is null or g.resume_at <= forebay._now())"), "true"),
    ),
    (lanes_of_keys_are_left_out, _in_the_call(("l.sort <> 'plain' or ", ""))),
    (
        cancelled_jobs_are_left_to_the_other_claim,
        _in_segments(
            ("not exists (select from forebay.tombstone"),
            "true or exists (select from forebay.tombstone",
        ),
    ),
]


@pytest.mark.parametrize("promise", [p for p, _ in PROMISES], ids=lambda p: p.__name__)
def test_it_takes_only_what_it_may(database, promise):
    """
    It never hands out a job that another claim has, that is cancelled, or of a queue that is
    paused; and it waits for one lock only.
    """
    promise(database)


@pytest.mark.parametrize(("promise", "break_it"), PROMISES, ids=lambda p: p.__name__)
def test_it_takes_only_what_it_may_breaks_without(database, promise, break_it):
    """
    Each guard taken out is seen.
    """
    break_it(database)
    with violation(psycopg.Error):
        promise(database)


def test_bad_lists_are_refused(database, conn):
    """
    Lists of different lengths, none, too many, and numbers out of range raise JQ001, and nothing is
    claimed.
    """
    with Several(database, "a") as several:
        job = enqueue(conn, queue="a")
        group, lane = several.groups, several.lanes
        for groups, lanes, limits, claim_no, floor in (
            ([], [], [], 1, 1),
            (group, lane * 2, [1], 1, 1),
            (group, lane, [1, 2], 1, 1),
            (group, lane, [0], 1, 1),
            (group, lane, [None], 1, 1),
            (group, lane, [10_001], 1, 1),
            (group, lane, [1], 0, 0),
            (group, lane, [1], 1, 2),
            (group * 101, list(range(101)), [1] * 101, 1, 1),
        ):
            params = [several.lease_id, claim_no, floor, groups, lanes, limits]
            assert sqlstate(conn, QUERY, *params) == "JQ001", params
        assert several.claim() == {1: [job]}
