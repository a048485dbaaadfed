"""A claim ends at about two megabytes, whatever its jobs are made of, and nothing is lost at the
cut.

The bound holds for the text of the jobs. How large that is does not show in what is stored: a value
can be compressed, and a number of a few bytes can have thousands of digits.
"""

import json
import random

import psycopg
import pytest

from tests.support.engine import Reader, depth, lane_of, one, small_segments
from tests.support.mutant import break_shortcut, violation, without_shortcut

#: Where a claim ends.
BYTES = 2 * 1024 * 1024
#: And its last job, which may be one megabyte.
BYTES_MAX = BYTES + 1024 * 1024 + 1024 * 100

LARGE = 700_000


def incompressible(size: int) -> str:
    return json.dumps({"text": random.randbytes(size // 2).hex()})


def compressible(size: int) -> str:
    return json.dumps({"text": "x" * size})


def digits(size: int) -> str:
    """Return arguments of few stored bytes: numbers that are written with thousands of digits."""
    return '{"numbers": [' + ",".join(["1e4000"] * (size // 4003)) + "]}"


FORMS = [incompressible, compressible, digits]


def put(conn, texts, **options) -> list[int]:
    """Enqueue jobs with these arguments, as JSON texts, in one transaction."""
    extra = json.dumps(options)
    return [
        job_id
        for (job_id,) in conn.execute(
            "select unnest(forebay.enqueue_many(jsonb_agg(%s::jsonb || jsonb_build_object("
            "'kind', 'work', 'queue', 'q', 'args', t::jsonb) order by nr)))"
            " from unnest(%s::text[]) with ordinality u (t, nr)",
            [extra, list(texts)],
        ).fetchall()
    ]


def claim(reader: Reader, lane: int, limit: int = 1000) -> list[int]:
    """Claim from a lane, check the size of what came, settle it, and return its job ids."""
    reader.claim_no += 1
    text = one(
        reader.conn,
        "select forebay.claim_v1(%s, %s, %s, %s, %s, %s)",
        *[reader.lease_id, reader.claim_no, reader.claim_no, reader.group_id, lane, limit],
    )
    if text is None:
        return []
    assert len(text) <= BYTES_MAX
    assert reader.settle(reader.claim_no) == "settled"
    jobs = json.loads(f"[{text}]")
    return [(more[0] if more else 0) or seq for seq, _, _, _, *more in jobs]


def drained(reader: Reader, lane: int, limit: int = 1000) -> list[list[int]]:
    """Claim from a lane until it is empty; return the job ids of each claim."""
    batches = []
    while batch := claim(reader, lane, limit):
        batches.append(batch)
    return batches


def flat(batches: list[list[int]]) -> list[int]:
    return [job_id for batch in batches for job_id in batch]


def plain_jobs(database, conn, form) -> None:
    """Large jobs among small ones, of one transaction and of many, in the order in which they
    were enqueued.
    """
    with Reader(database, "q") as reader:
        lane = lane_of("q", conn)
        first = put(conn, ["{}"])
        assert flat(drained(reader, lane)) == first
        large = put(conn, [form(LARGE)] * 12)
        mixed = put(conn, [form(LARGE) if n % 50 == 0 else form(20) for n in range(200)])
        single = [put(conn, [form(LARGE)])[0] for _ in range(5)]
        batches = drained(reader, lane)
        assert flat(batches) == large + mixed + single
        # A claim is not cut where it need not be.
        assert min(len(batch) for batch in batches[:3]) >= 2
        assert max(len(batch) for batch in batches) >= 100
        assert depth(conn, "q") == {"default": (0, 0, 0)}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_claim_ends_at_two_megabytes_and_nothing_is_lost_at_the_cut(database, conn, form):
    plain_jobs(database, conn, form)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_the_same_where_the_shortcut_does_not_apply(database, conn, form):
    without_shortcut(database)
    plain_jobs(database, conn, form)


@pytest.mark.slow
def test_without_the_bound_of_the_shortcut_a_claim_is_larger(database, conn):
    break_shortcut(database, ("forebay._claim_bytes() / p_limit + 1024", "100000000"))
    with violation():
        plain_jobs(database, conn, incompressible)


@pytest.mark.slow
def test_a_cut_that_counts_as_the_end_of_the_window_loses_jobs(database, conn):
    """The mutant shows that the tests above see jobs that are lost at the cut."""
    source = one(conn, "select pg_get_functiondef('forebay._take'::regproc)")
    guard = "v_used_up := v_count < v_limit and v_bytes < forebay._claim_bytes();"
    assert guard in source
    conn.execute(source.replace(guard, "v_used_up := v_count < v_limit;"))
    with violation():
        plain_jobs(database, conn, incompressible)


@pytest.mark.slow
def test_a_claim_of_one_job_always_gives_it(database, conn):
    """Even if it is larger than a claim may be."""
    one(conn, "select forebay.configure('args_bytes_max', 8000000)")
    with Reader(database, "q") as reader:
        jobs = put(conn, [compressible(5_000_000)] * 2)
        lane = lane_of("q", conn)
        for limit in (1, 1000):
            reader.claim_no += 1
            batch = reader.claim(limit, lane)
            assert batch.job_ids == [jobs.pop(0)]


@pytest.mark.slow
def test_the_cut_may_lie_at_any_border(database, conn):
    """Between segments, between the current window and the next, and beside a transaction that
    commits late.
    """
    small_segments(conn, rows=300)
    with Reader(database, "q") as reader, psycopg.connect(database) as late:
        lane = lane_of("q", conn)
        expected = put(conn, [incompressible(LARGE)] * 3)
        late_jobs = put(late, [incompressible(LARGE)] * 5)
        seen = claim(reader, lane)
        expected += put(conn, [incompressible(10)] * 310)
        expected += put(conn, [incompressible(LARGE)] * 4)
        seen += claim(reader, lane)
        late.commit()
        seen += flat(drained(reader, lane))
        assert sorted(seen) == sorted(expected + late_jobs)
        assert [job for job in seen if job in set(expected)] == expected
        assert [job for job in seen if job in set(late_jobs)] == late_jobs


@pytest.mark.slow
def test_jobs_of_a_private_lane_are_bounded_as_well(database, conn):
    with Reader(database, "q") as reader:
        lane = lane_of("q", conn)
        jobs = put(conn, [incompressible(LARGE)] * 9)
        taken = []
        while batch := reader.claim(1000, lane).jobs:
            ended = [
                {"offset": offset, "outcome": "released"} for offset in range(1, len(batch) + 1)
            ]
            reader.settle(reader.claim_no, ended=ended)
            taken += [job["job_id"] for job in batch]
        assert taken == jobs
        assert flat(drained(reader, lane_of("q", conn, audience=reader.group_id))) == jobs


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_jobs_of_limit_keys_are_bounded_as_well(database, conn, form):
    with Reader(database, "q") as reader:
        jobs = put(conn, [form(LARGE)] * 9, limit_key="tenant")
        seen = []
        while ready := reader.ready():
            seen += claim(reader, ready[0]["lane"])
        assert seen == jobs


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("keys", [1, 3, 20])
def test_jobs_with_ordering_keys_are_bounded_and_stay_in_order(database, conn, form, keys):
    by_key: dict[int, list[int]] = {}
    for n in range(20):
        by_key.setdefault(n % keys, []).extend(
            put(conn, [form(LARGE)], ordering_key=f"k{n % keys}")
        )
    with Reader(database, "q") as reader:
        seen = []
        while ready := reader.ready():
            seen += claim(reader, ready[0]["lane"])
    assert sorted(seen) == sorted(job for jobs in by_key.values() for job in jobs)
    for jobs in by_key.values():
        assert [job for job in seen if job in set(jobs)] == jobs


@pytest.mark.slow
@pytest.mark.parametrize("keys", [3, 12])
def test_large_jobs_that_wait_behind_their_key_are_bounded_as_well(database, conn, keys):
    """Another lease has the keys, so the jobs are parked.

    Once it is done they come in parts and in order.
    """
    with Reader(database, "q") as holder, Reader(database, "q") as reader:
        first = [put(conn, ["{}"], ordering_key=f"k{key}")[0] for key in range(keys)]
        batch = holder.claim_ready(20)
        assert sorted(batch.job_ids) == sorted(first)
        by_key = {
            key: put(conn, [incompressible(LARGE)] * 3, ordering_key=f"k{key}")
            for key in range(keys)
        }
        for _ in range(20):
            assert all(claim(reader, ready["lane"]) == [] for ready in reader.ready())
        holder.finish(batch)
        seen = []
        while ready := reader.ready():
            seen += claim(reader, ready[0]["lane"])
    for jobs in by_key.values():
        assert [job for job in seen if job in set(jobs)] == jobs
    assert len(seen) == 3 * keys


@pytest.mark.slow
def test_returned_large_jobs_come_before_others_of_their_keys(database, conn):
    """The first jobs of many keys return while more wait behind them: what does not fit comes
    later, in order.
    """
    keys = range(12)
    by_key = {key: put(conn, [incompressible(LARGE)] * 2, ordering_key=f"k{key}") for key in keys}
    with Reader(database, "q") as holder, Reader(database, "q") as reader:
        held = []
        while batch := holder.claim(1000, lane_of("q", conn)).jobs:
            held.append((holder.claim_no, len(batch)))
        for claim_no, size in held:
            ended = [{"offset": offset, "outcome": "released"} for offset in range(1, size + 1)]
            holder.settle(claim_no, ended=ended)
        put(conn, ["{}"] * 20, ordering_key="other")
        seen = []
        while ready := reader.ready():
            for lane in ready:
                seen += claim(reader, lane["lane"])
    for jobs in by_key.values():
        assert [job for job in seen if job in set(jobs)] == jobs
    assert len(seen) == 24 + 20
