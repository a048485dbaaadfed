"""What a parent that died of its children needs: a redrive of the child, not of the parent."""

import asyncio

import pytest

import forebay as library
from tests.support.fix_worker import run_until_idle

pytestmark = pytest.mark.anyio

NEVER = library.RetryPolicy(max_attempts=1)
DIES = ValueError("no picture")


@pytest.fixture
def thumb(app):
    """A kind whose jobs die."""

    @app.job(name="thumb", retry=NEVER)
    async def thumb(n: int) -> int:
        raise DIES

    return thumb


def gathered_in_a_flow(app, conn, thumb):
    @app.job(name="album")
    async def album(ctx: library.Context) -> None:
        await ctx.gather("thumbs", thumb.calls([1]))

    return album.enqueue(conn)


def gathered_with_a_callback(app, conn, thumb):
    @app.job(name="album")
    async def album(results: list) -> None:
        """Never called."""

    return library.gather(conn, thumb.calls([1]), then=album)


async def words(forebay, *arguments):
    answer = await asyncio.to_thread(forebay, *arguments)  # Some commands run a loop.
    return " ".join(answer.out.split())


@pytest.mark.parametrize("gather", [gathered_in_a_flow, gathered_with_a_callback])
async def test_each_screen_of_a_dead_parent_names_the_child_to_redrive(
    forebay, app, conn, database, thumb, gather
):
    """Before and after the child is redriven; no screen says to redrive the parent."""
    job = gather(app, conn, thumb)
    await run_until_idle(app)
    client = library.Client(database)
    (letter,) = client.dead_letters(kind="thumb")
    (parent,) = client.dead_letters(kind="album")
    screens = [("where", job), ("jobs", "show", job), ("dead", "show", parent.dead_id),
               ("doctor", "--job", job)]  # fmt: skip
    advice = f"child {letter.job_id} (thumb) is dead: after a fix, forebay dead redrive --job"
    for screen in screens:
        shown = await words(forebay, *screen)
        assert f"{advice} {letter.job_id}; this job follows by itself" in shown, screen
        assert f"redrive --job {job}" not in shown
    assert f"{letter.job_id} thumb dead" in await words(forebay, "where", job)
    new = client.redrive(letter.dead_id)
    for screen in screens:
        shown = await words(forebay, *screen)
        assert f"was redriven: this job follows by itself when job {new} is done" in shown, screen
        assert f"redrive --job {job}" not in shown
        assert f"redrive --job {letter.job_id}" not in shown


@pytest.mark.parametrize("gather", [gathered_in_a_flow, gathered_with_a_callback])
async def test_the_cause_of_a_dead_parent_is_a_consequence(
    forebay, app, conn, database, thumb, gather
):
    """`dead groups` marks it, and hints the cause of the child; so does the doctor."""
    gather(app, conn, thumb)
    await run_until_idle(app)
    groups = {each["kind"]: each for each in forebay("dead", "groups", "--json").json}
    cause = groups["thumb"]["cause"]
    assert groups["thumb"]["died_of"] is None
    assert groups["album"]["died_of"]["cause"] == cause
    shown = await words(forebay, "dead", "groups")
    assert f"{groups['album']['cause']} a consequence of {cause}: " in shown
    assert "forebay.worker" not in shown
    assert shown.endswith(f"forebay dead redrive --cause {cause}")
    shown = await words(forebay, "dead", "groups", "--kind", "album")
    assert shown.endswith(f"→ forebay dead groups --cause {cause}")
    assert "dead redrive --kind album" not in await words(forebay, "doctor")


async def test_a_parent_that_can_not_follow_has_no_such_advice(forebay, app, conn, database, thumb):
    """One whose child was cancelled is enqueued anew; one that went on behind is redriven."""

    @app.job(name="later")
    async def later() -> None:
        """Cancelled before it starts."""

    @app.job(name="album")
    async def album(ctx: library.Context) -> None:
        await ctx.gather("thumbs", [later.using(delay=3600).call()])

    @app.job(name="tidy")
    async def tidy(ctx: library.Context) -> None:
        try:
            await ctx.gather("thumbs", thumb.calls([1]))
        except library.errors.ChildrenDied:
            await ctx.step("tidy", int)
            raise

    job, tidied = album.enqueue(conn), tidy.enqueue(conn)
    await run_until_idle(app)
    client = library.Client(database)
    (child,) = client.jobs(kind="later")
    client.cancel(child.job_id)
    await run_until_idle(app)
    shown = await words(forebay, "where", job)
    assert f"child {child.job_id} was cancelled" in shown
    assert f"redrive --job {job}" not in shown
    assert f"forebay dead redrive --job {tidied}" in await words(forebay, "where", tidied)


async def test_a_gather_that_waits_and_has_a_dead_child_says_what_follows(
    forebay, app, conn, thumb
):
    """It raises ChildrenDied, unless it collects; and one job `has` ended."""

    @app.job(name="album")
    async def album(ctx: library.Context) -> None:
        await ctx.gather("thumbs", [thumb.call(1), thumb.using(delay=3600).call(2)])

    job = album.enqueue(conn)
    await run_until_idle(app)
    shown = await words(forebay, "where", job)
    assert "of which 1 has ended" in shown
    assert "its gather raises ChildrenDied when that is over, unless it collects" in shown
    assert "its handler continues" not in shown
