"""Many claims that wait for one lane: PostgreSQL's search for deadlocks takes the cube of those
that wait for the same lock.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.support.engine import Reader, claimed, connect, enqueue, lane_of, one
from tests.support.waiting import wait_for

pytestmark = pytest.mark.direct

#: Ungranted locks of the tables with a name like this.
WAITING = """
select count(*)::integer from pg_locks l join pg_class c on c.oid = l.relation
where not l.granted and c.relname ~ %s and c.relnamespace = 'forebay'::regnamespace
  and l.database = (select d.oid from pg_database d where d.datname = current_database())
"""


def claim_of_lanes(reader: Reader) -> list[int]:
    """Claim a job by the function for several lanes."""
    (text,) = reader.conn.execute(
        (
            "select jobs from forebay.claim_lanes_v1(%s, 1, 1, array[%s::bigint], "
            "array[%s::bigint], '{1}')"
        ),
        [reader.lease_id, reader.group_id, lane_of("default", reader.conn)],
    ).fetchone()
    return [job["job_id"] for job in claimed(text)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "claim", [lambda reader: reader.claim(1).job_ids, claim_of_lanes], ids=["one", "lanes"]
)
def test_of_many_claims_few_wait_for_the_lane_itself(database, conn, claim):
    """
    At most one of each of the sixteen gates waits for the lane, and each claim gets its job when
    its turn comes.
    """
    ids = [enqueue(conn) for _ in range(40)]
    with ExitStack() as stack:
        readers = [stack.enter_context(Reader(database)) for _ in range(40)]
        pool = stack.enter_context(ThreadPoolExecutor(40))
        holder = stack.enter_context(connect(database))
        lane, group = lane_of("default", conn), readers[0].group_id
        name = one(
            conn, "select 'lock_lane_' || (hashint8(%s::bigint # %s::bigint) & 127)", group, lane
        )
        holder.execute(f"begin; lock table only forebay.{name} in share update exclusive mode")
        claims = [pool.submit(claim, reader) for reader in readers]
        wait_for(lambda: one(conn, WAITING, "^lock_(lane|gate)_") == 40)
        assert 1 <= one(conn, WAITING, "^lock_lane_") <= 16
        holder.rollback()
        assert sorted(i for each in claims for i in each.result(30)) == sorted(ids)


def test_a_claim_of_a_free_lane_does_not_wait_behind_those_of_a_busy_one(database, conn):
    """
    All gates of a busy lane are taken. A claim of a lane whose lock is free passes none.
    """
    enqueue(conn)
    with Reader(database) as reader, connect(database) as holder:
        holder.execute("begin")
        for number in range(64):
            holder.execute(
                f"lock table only forebay.lock_gate_{number} in share update exclusive mode"
            )
        reader.conn.execute("set lock_timeout = '10s'")
        assert len(reader.claim(1).job_ids) == 1
