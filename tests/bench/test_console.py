"""The scenario of the console: what it fills, and that each page has its figures."""

import pytest

from forebay.console._pages import PAGES
from forebay_bench import Options, Place
from forebay_bench._console_jobs import fill
from forebay_bench.scenarios import console
from tests.support.engine import depth


def test_as_many_wait_as_have_ended(database, conn):
    """
    A quarter is in one queue, with all kinds; some have died, of several causes.
    """
    found = fill(database, 10_000, 20, lambda _: None)
    waiting = sum(sum(counts) for counts in depth(conn).values())
    (dead,) = conn.execute("select count(*) from forebay.dead_letter").fetchone()
    (retrying,) = conn.execute("select count(*) from forebay.deferred").fetchone()
    assert dead == 10_000 // 499
    assert retrying > 0
    assert waiting == 10_000 + retrying
    kinds = "select count(distinct kind) from forebay.stats() where queue = 'busy'"
    assert conn.execute(kinds).fetchone() == (200,)
    assert set(found) == {"waiting", "dead", "cause"}


def test_each_page_in_the_navigation_is_measured():
    """
    A new page needs a line in the scenario.
    """
    measured = {path.partition("?")[0] for path in console._PAGES.values()}
    assert {page.path[1:] for page in PAGES if page.title} <= measured


@pytest.mark.slow
def test_the_figures_have_their_names(server):
    """
    By page, and those of the viewers; nothing runs while nobody looks.
    """
    place = Place(server.dsn(), is_own=False)
    report = console.run(place, Options(scale=0.01, rounds=1), lambda _: None)
    for name in ("p95_ms", "cpu_ms", "statements", "bytes", "refused"):
        assert report.figures[name].keys() == console._PAGES.keys()
    assert report.figures["idle_statements"] == 0
    assert (report.figures["viewers_core_share"] or 0) >= 0
    assert report.figures["statements"]["jobs"] == 1
