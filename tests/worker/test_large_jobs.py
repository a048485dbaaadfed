"""Large jobs: the memory of a worker does not depend on how many wait."""

import json
import random
from pathlib import Path

import pytest

import forebay
from forebay.ops.claimed import claimed_jobs
from tests.support.engine import one, state
from tests.support.fix_worker import running
from tests.support.waiting import wait_for, wait_for_async

#: What a worker may take, besides the decoded arguments of the jobs that run.
IDLE_BYTES = 130_000_000


def document(form: str) -> str:
    """Return arguments of about 240 kB; decoded they take about ten times as much."""
    words = [f"{random.randrange(1000) if form == 'random' else 7:03}" for _ in range(40_000)]
    return json.dumps({"entry": 0, "words": words}, separators=(",", ":"))


def decoded_bytes() -> int:
    """Return what the decoded arguments of one job take: each word has 52 bytes, and 8 in the
    list of all.
    """
    return 40_000 * (52 + 8)


def put(conn, queue: str, kind: str, args: str, count: int) -> None:
    conn.execute(
        "select forebay.enqueue_many(%s, array_fill(%s::jsonb, array[%s]), queue => %s)",
        [kind, args, count, queue],
    )


def peak_bytes(pid: int) -> int:
    """Return the largest resident size of a process so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(pid)


@pytest.mark.parametrize("form", ["random", "compressible"])
@pytest.mark.slow
def test_a_worker_holds_the_arguments_of_the_jobs_that_run(conn, workers, effects, form):
    """Of 120 waiting ones with 240 kB each it holds a few as text, although they are short and
    many are claimed in advance.
    """
    put(conn, "default", "read_words", document(form), 120)
    worker = workers.start(concurrency=4)
    wait_for(lambda: effects.count("end")[0] >= 120, 120, lambda: workers.logs)
    # The arguments exist twice for a moment: as JSON, and as the values that the handler gets.
    assert peak_bytes(worker.pid) < IDLE_BYTES + 2 * 4 * decoded_bytes()


@pytest.mark.slow
@pytest.mark.anyio
async def test_short_large_jobs_are_not_claimed_far_ahead(app, conn, monkeypatch):
    """As many as fit into two claims wait for a slot, where hundreds of small ones would."""
    waiting = []
    put(conn, "default", "read", json.dumps({"text": random.randbytes(250_000).hex()}), 60)
    done = []

    @app.job
    async def read(text: str) -> None:
        done.append(len(text))

    take = forebay.worker.run.executor.Executor.take

    def spy(self, helds):
        helds = list(helds)
        take(self, helds)
        waiting.append(self.buffered_size)

    monkeypatch.setattr(forebay.worker.run.executor.Executor, "take", spy)
    async with running(app, concurrency=2, ahead_seconds=60.0):
        await wait_for_async(lambda: len(done) == 60, 60)
    assert max(waiting) < 10_000_000


@pytest.mark.anyio
async def test_what_does_not_fit_the_handler_is_dead_however_large(app, conn):
    """Its arguments are looked at when a slot is free; the jobs around it run."""
    done = []

    @app.job
    async def read(text: str) -> None:
        done.append(len(text))

    good = json.dumps({"text": "x" * 300_000})
    bad = json.dumps({"text": [1] * 30_000})
    ids = [
        one(conn, "select forebay.enqueue('read', %s::jsonb)", args)
        for args in (good, bad, good, bad)
    ]
    async with running(app, concurrency=2):
        await wait_for_async(
            lambda: [state(conn, job) for job in ids] == ["done", "dead", "done", "dead"]
        )
    assert done == [300_000] * 2


def test_a_large_answer_is_read_as_a_small_one():
    """All fields arrive, the arguments when they are asked for, also a number that no float can
    hold.
    """
    job = '[7,"work",1000,{"n":%s},7,"k",null,1,null,3,"t","c",{"h":"v"}]'
    small = claimed_jobs(job % "5")
    large = claimed_jobs(",".join([job % "5"] * 10_000))
    assert len(large) == 10_000
    assert large[0].is_text
    large[0].decode_args()
    large[0].size = small[0].size
    assert large[0] == small[0]
    assert large[9_999].offset == 10_000
    strange = claimed_jobs(",".join([job % ("1" + "0" * 400 + ".5")] * 1000))
    strange[0].decode_args()
    assert strange[0].args == {"n": float("inf")}
