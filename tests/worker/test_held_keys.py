"""Jobs whose kind says holds_key=True: later jobs of the key wait for the dead one, in the
worker too.
"""

import pytest

import forebay
from forebay import Dead
from forebay.errors import ConfigError
from tests.support.engine import enqueue, one
from tests.support.fix_worker import run_until_idle

pytestmark = pytest.mark.anyio


def declare(app, sort: str, holds_key: bool, ran: list[int], dying: set[int]) -> None:
    """Declare the kind; jobs named in dying die, once each."""

    def outcome(job: forebay.Job) -> Dead | None:
        ran.append(job.job_id)
        return Dead("broken") if job.job_id in dying else None

    if sort == "batch":

        @app.batch_job(name="work", size=3, holds_key=holds_key)
        def work_many(jobs: list[forebay.Job]) -> list[Dead | None]:
            return [outcome(job) for job in jobs]

    else:

        @app.job(name="work", holds_key=holds_key, transaction=sort == "transaction")
        def work(ctx: forebay.Context) -> Dead | None:
            return outcome(ctx.job)


@pytest.mark.slow
@pytest.mark.parametrize("sort", ["thread", "transaction", "batch"])
async def test_jobs_behind_a_dead_one_wait_until_it_is_redriven(app, conn, sort):
    """One claim has many jobs of the key. Jobs of another key run."""
    ids = [enqueue(conn, ordering_key="k") for _ in range(12)]
    others = [enqueue(conn, ordering_key="other") for _ in range(5)]
    ran: list[int] = []
    dying = {ids[3]}
    declare(app, sort, True, ran, dying)
    await run_until_idle(app)
    assert [job for job in ran if job in ids] == ids[:4]
    assert [job for job in ran if job in others] == others
    later = [enqueue(conn, ordering_key="k") for _ in range(3)]
    await run_until_idle(app)
    assert not set(later) & set(ran)
    ran.clear()
    again = one(conn, "select forebay.redrive(dead_id) from forebay.dead_letter")
    await run_until_idle(app)
    assert ran == [again, *ids[4:], *later]


@pytest.mark.slow
async def test_jobs_behind_a_dead_one_run_without_the_option(app, conn):
    """The control."""
    ids = [enqueue(conn, ordering_key="k") for _ in range(6)]
    ran: list[int] = []
    declare(app, "thread", False, ran, {ids[3]})
    await run_until_idle(app)
    assert ran == ids


def test_another_word_is_refused():
    app = forebay.App()
    with pytest.raises(ConfigError, match="holds_key"):
        app.job(lambda: None, name="work", holds_key="wait")  # type: ignore[call-overload]
