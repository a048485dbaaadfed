"""Counters are exact: stats() is the sum over job(), and over a full count, whatever happened and whatever was folded."""

import json
from collections import Counter

import pytest

from tests.sql.test_counters import Life
from tests.support.engine import connect, one, small_segments

_STATES = ("scheduled", "ready", "claimed", "running", "retrying")


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def by_stats(conn) -> Counter:
    """Return the waiting and running jobs that stats() shows, by queue, priority, group, kind, tag and state."""
    found = Counter()
    for (
        queue,
        priority,
        group,
        kind,
        tag,
        scheduled,
        ready,
        claimed,
        running,
        retrying,
    ) in conn.execute(
        f"select queue, priority, group_name, kind, tag, {', '.join(_STATES)} from forebay.stats()"
    ):
        numbers = (scheduled, ready, claimed - running, running, retrying)
        for name, n in zip(_STATES, numbers, strict=True):
            if n:
                found[queue, priority, group, kind, tag, name] += n
    return found


def by_job(conn, jobs) -> Counter:
    """Return the same by asking for the state of each job."""
    query = (
        "select j.queue, j.priority, j.group_name, j.kind, j.tag, j.state, count(*)"
        " from unnest(%s::bigint[]) i cross join lateral forebay.job(i) j where j.state = any (%s) group by 1, 2, 3, 4, 5, 6"
    )
    return Counter({tuple(key): n for *key, n in conn.execute(query, [list(jobs), list(_STATES)])})


def agree(conn, jobs) -> None:
    """Compare stats() with the states of all jobs and with a full count, in one snapshot."""
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read")
        assert by_stats(conn) == by_job(conn, jobs)
        equal, _, differences = conn.execute("select * from forebay.audit_stats()").fetchone()
        assert equal, json.dumps(differences, indent=1)


class Watched(Life):
    """The same with kinds and tags, folds at any moment, and segments that are emptied."""

    def options(self, **more):
        return super().options(
            kind=self.draw.choice(["work", "mail"]), tag=self.draw.choice([None, "x"]), **more
        )

    def do_fold(self):
        one(self.conn, "select forebay.fold_v1(%s)", self.draw.choice([1, 2, 2000]))

    do_fold_again = do_fold


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 12))]
)
def test_stats_are_the_sum_over_the_states_of_all_jobs(database, conn, seed, keyed):
    """After every random act, for two groups, kinds, tags, priorities and keys: stats() agrees with job() and with a full count."""
    small_segments(conn)
    life = Watched(database, conn, seed, keyed=keyed)
    acts = life.acts()
    done = []
    try:
        for _ in range(120):
            act = life.draw.choice(acts)
            done.append(act.__name__)
            act()
            agree(conn, life.jobs)
    except AssertionError as error:
        raise AssertionError(f"after {done[-8:]}") from error
    finally:
        life.close()
