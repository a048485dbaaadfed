"""The example application's page in a real browser: what a person does with it, and that nothing
goes wrong unseen.
"""

import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.support.browser import Page, chromium
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

TEXT = "A coroutine that nobody awaits is a zyzzyva."


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        if found is None:
            pytest.skip("there is no Chromium")
        yield found


@pytest.fixture
def page(request, browser, tmp_path) -> Iterator[Page]:
    """A tab; with FOREBAY_SCREENSHOTS=folder pictures stay there, to be looked at."""
    for name in ("served", "served_with_failures"):  # the tab is left before the application ends
        if name in request.fixturenames:
            request.getfixturevalue(name)
    page = browser.page()
    folder = Path(os.environ.get("FOREBAY_SCREENSHOTS") or tmp_path)
    number = iter(range(1, 100))
    page.shoot = lambda name: page.screenshot(folder / f"{next(number):02} {name}.png")
    yield page
    page.go("about:blank")
    page.wait("location.protocol === 'about:'")
    assert page.problems == []


def test_a_person_annotates_searches_edits_deletes_and_indexes_again(page, served, place):
    """
    All of it with mouse and keyboard, in order; at the end both stores are right and the browser's
    console is empty.
    """
    page.go(f"{served}/#/")
    page.see("Read and annotate")
    page.see("search is up to date", "#status")
    page.shoot("start")

    # Annotate a line, by its number.
    page.click("#filter")
    page.type("asyncio.run")
    page.press("Enter", code=13, text="\r")
    page.see("asyncio.runners", "h1")
    page.shoot("a page")
    page.click('button[data-line="9"]')
    page.type(TEXT)
    page.shoot("writing")
    page.click(".form button[type=submit]")
    page.see("Saved. Searches find it now.", ".toast")
    page.see(TEXT, ".note.now")
    page.shoot("written")

    # Search it; "/" is the way to the field.
    page.press("/", text="/")
    page.type("zyzzyva")
    page.press("Enter", code=13, text="\r")
    page.see("1 annotation", ".lead")
    page.see("zyzzyva", "mark")
    page.shoot("found")
    page.click(".results .note a")
    page.see(TEXT, ".note.now")

    # Change it.
    page.click('.note.now [data-act="edit"]')
    page.value("document.querySelector('.form textarea').select()")
    page.type("Awaiting it would have been a quokka.")
    page.shoot("changing")
    page.press("Enter", code=13, modifiers=2)
    page.see("Changed. Searches find it now.", ".toast")
    for word, count in (("zyzzyva", "Nothing found"), ("quokka", "1 annotation")):
        page.click("#words")
        page.value("document.querySelector('#words').select()")
        page.type(word)
        page.press("Enter", code=13, text="\r")
        page.see(count)
    page.click(".results .note a")

    # Delete it, think better of it, and delete it all the same.
    page.click('.note.now [data-act="delete"]')
    page.see("Deleted.", ".toast")
    page.wait("!document.querySelector('main').innerText.includes('quokka')")
    page.shoot("deleted")
    page.click(".toast button")
    page.see("Restored", ".toast")
    page.see("quokka", ".note.now")
    page.click('.note.now [data-act="delete"]')
    page.see("Deleted.", ".toast")
    page.go(f"{served}/#/search/quokka")
    page.see("Nothing found")
    page.shoot("nothing found")

    # Somebody empties a part of the index behind our back; index that page again.
    with psycopg.connect(place.index, autocommit=True) as index, psycopg.connect(place.dsn) as conn:
        ids = [
            name
            for (name,) in conn.execute(
                "select annotation_id from annotation join page using (page_id)"
                " where name = 'asyncio.runners' and not deleted"
            )
        ]
        index.execute("delete from documents where id = any(%s)", [ids])
        page.click("#status")
        page.see("Reindex", "h2")
        page.click("#reindex [name=page]")
        page.type("asyncio.runners")
        page.click("#count")
        page.see("Dry run: 6 annotations.")  # the deleted one too
        page.shoot("counted")
        page.click("#reindex button[type=submit]")
        page.see("6 jobs enqueued.")
        page.see("no jobs waiting", "#meter")
        page.shoot("indexed again")
        found = index.execute("select count(*) from documents where id = any(%s)", [ids])
        assert found.fetchone() == (len(ids),)


def test_every_choice_of_what_to_index_again(page, served, place):
    """
    By user, group, page, time and ids, the deleted among them too: as many jobs as annotations
    match.
    """
    page.go(f"{served}/#/index")
    page.see("Reindex", "h2")
    with psycopg.connect(place.dsn) as conn:

        def count(condition: str) -> int:
            return conn.execute(f"select count(*) from annotation where {condition}").fetchone()[0]

        for choice, fields, expected in [
            ("user", {"user": "stdlib"}, count("true")),
            ("group", {"group": "asyncio"}, count("group_name = 'asyncio'")),
            ("ids", {"ids": "1\n2\n\n3"}, 3),
            ("time", {"since": "2000-01-01T00:00"}, count("true")),
            ("time", {"until": "2000-01-01T00:00"}, 0),
        ]:
            page.value(f"document.querySelector('[value={choice}]').click()")
            for name, value in fields.items():
                field = f"document.querySelector('#reindex [name={name}]')"
                page.wait(f"{field} !== null")
                page.value(f"{field}.value = {json.dumps(value)}")
            page.value("document.querySelector('.said-of').textContent = ''")
            page.click("#reindex button[type=submit]")
            page.see(f"{expected:,} job{'' if expected == 1 else 's'} enqueued.")
    page.see("no jobs waiting", "#meter")


@contextmanager
def refused_by_the_index(place, name: int) -> Iterator[psycopg.Connection]:
    """The index lacks an annotation and refuses it; its server is fine otherwise."""
    with psycopg.connect(place.index, autocommit=True) as index:
        index.execute("delete from documents where id = %s", [name])
        index.execute(
            "create function refuse() returns trigger language plpgsql as"
            " $$ begin if new.id = tg_argv[0]::bigint then raise exception 'too long for "
            "the index'; end if; return new; end $$"
        )
        index.execute(
            f"create trigger refuse before insert or update on documents for each row "
            f"execute function refuse({int(name)})"
        )
        yield index
        index.execute("drop trigger if exists refuse on documents")


def test_an_operator_sees_what_fails_and_retries_it(page, served_with_failures, place):
    """
    The failed job with its error and a link to its annotation; after the cause is gone a button
    proves it at once. A comparison names differences, and repairs them.
    """
    page.go(f"{served_with_failures}/#/index")
    page.see("no jobs waiting", "#meter")
    page.see("No failures.", "#failures")
    page.see("Never compared.", "#comparison")
    assert "Alert" not in page.value("document.querySelector('#meter').innerText")
    with (
        psycopg.connect(place.dsn, autocommit=True) as conn,
        refused_by_the_index(place, 3) as index,
    ):
        on, line, text = conn.execute(
            "select name, line, a.text from annotation a join page using (page_id) where "
            "annotation_id = 3"
        ).fetchone()
        page.value("document.querySelector('[value=ids]').click()")
        page.value("document.querySelector('#reindex [name=ids]').value = '3'")
        page.click("#reindex button[type=submit]")
        page.see("1 failing job will be retried", "#failures")
        page.see("too long for the index", ".failure .why")
        page.see("1 job waiting", "#meter")
        page.see("1 job waiting", "#status")
        page.shoot("a failure")
        page.click("#compare")
        page.see("1 missing", "#comparison")
        page.click(".failure a")
        page.see(text.split()[0], ".note.now")
        assert page.value("location.hash") == f"#/page/{on}/3"
        assert page.value("document.querySelector('.note.now .where').innerText") == f"line {line}"
        page.go(f"{served_with_failures}/#/index")
        page.see("too long for the index", ".failure .why")
        index.execute("drop trigger refuse on documents")
        page.click(".failure button")
        page.see("Retried.", ".toast")
        page.see("No failures.", "#failures")
        assert index.execute("select version from documents where id = 3").fetchone() is not None
        index.execute("delete from documents where id in (4, 5)")
        page.click("#repair")
        page.see("2 missing. 2 jobs enqueued to repair them.", "#comparison")
        page.see("no jobs waiting", "#meter")
        page.click("#compare")
        page.see("no differences in", "#comparison")
        page.shoot("compared")


#: Answers of the service that name a number of failing jobs, while none is listed.
WITH_COUNTS = """
(() => {
    const real = window.fetch;
    window.counted = 1;
    window.fetch = async (...asked) => {
        const answer = await real(...asked);
        const found = await answer.clone().json().catch(() => null);
        if (found === null || !("failing" in found)) return answer;
        return new Response(JSON.stringify({ ...found, failing: window.counted }), answer);
    };
})()
"""


def test_numbers_that_change_alone_are_shown(page, served):
    """A job may leave the list of failures before it leaves their number."""
    page.go(f"{served}/#/index")
    page.see("No failures.", "#failures")
    page.value(WITH_COUNTS)
    page.see("1 failing job will be retried", "#failures")
    page.value("window.counted = 0")
    page.see("No failures.", "#failures")


def test_a_dead_job_is_retried_from_its_dead_letter(page, served_with_failures, place):
    """
    A job that no attempt can save is shown as dead, and the button redrives it.
    """
    with psycopg.connect(place.dsn, autocommit=True) as conn:
        conn.execute(
            "select forebay.enqueue('mirror.annotations', '{\"id\": {}}', queue => 'mirror')"
        )
        page.go(f"{served_with_failures}/#/index")
        page.see("0 failing jobs will be retried, 1 dead.", "#failures")
        page.see("dead after 1 attempt", ".failure")
        page.click(".failure button")
        page.see("Retried.", ".toast")
        page.see("1 dead.", "#failures")
        redriven = "select count(*) from forebay.dead_letter where redriven_at is not null"
        assert conn.execute(redriven).fetchone() == (1,)


def test_results_come_while_a_person_types(page, served):
    """
    From the beginning of a word on, without Enter; the field keeps what is typed, and Back leaves
    the search at once.
    """
    page.go(f"{served}/#/page/asyncio.queues")
    page.see("asyncio.queues", "h1")
    page.click("#words")
    for part in ("corou", "tin", "e"):
        page.type(part)
        page.wait("document.querySelector('.results mark') !== null")
    page.wait("location.hash === '#/search/coroutine'")
    assert page.value("document.querySelector('#words').value") == "coroutine"
    page.value("history.back()")
    page.see("asyncio.queues", "h1")
    # The button does the same as Enter.
    page.click("#words")
    page.value("document.querySelector('#words').value = 'queue'")
    page.click("#search button")
    page.see("queue", ".results mark")


def test_no_line_of_a_page_is_cut(page, served):
    """
    80 characters have room beside the margin; longer lines are wrapped, on a telephone too.
    """
    for width in (1280, 1600, 390):
        page.resize(width, 800)
        page.go(f"{served}/#/page/asyncio.queues")
        page.see("asyncio.queues", "h1")
        cut = (
            "[...document.querySelectorAll('.line pre')].filter(e => e.scrollWidth > "
            "e.clientWidth + 1).length"
        )
        assert page.value(cut) == 0, width
        box = "document.querySelector('.text')"
        assert page.value(f"{box}.scrollWidth <= {box}.clientWidth")
        if width >= 1280:
            probe = "document.querySelector('.line pre')"
            page.value(f"{probe}.textContent = 'x'.repeat(80)")
            assert page.value(f"{probe}.getClientRects()[0].height < 30"), width


def test_the_keyboard_is_enough(page, served):
    """
    From the list of pages to a line, along the annotations, and out of a form again, without a
    mouse.
    """
    page.go(f"{served}/#/page/asyncio.queues")
    page.see("asyncio.queues", "h1")
    page.press("j", text="j")
    page.press("j", text="j")
    first = page.value("document.querySelector('.note.now').dataset.id")
    page.press("k", text="k")
    assert page.value("document.querySelector('.note.now').dataset.id") != first
    page.value("document.querySelector('.line.now button').focus()")
    line = page.value("Number(document.activeElement.dataset.line)")
    page.press("ArrowDown", code=40)
    assert page.value("Number(document.activeElement.dataset.line)") == line + 1
    page.press("Enter", code=13, text="\r")
    page.wait("document.activeElement.matches('.form textarea')")
    page.press("Escape", code=27)
    page.wait("document.querySelector('.form') === null")
    page.press("a", text="a")
    page.type("Written without a mouse.")
    page.press("Enter", code=13, modifiers=2)
    page.see("Saved", ".toast")
    page.shoot("keyboard")


def test_small_and_dark_it_is_readable_too(page, served):
    """
    On a telephone nothing is wider than the screen; in the dark, text and background still differ.
    """
    for width, dark in ((400, False), (1000, True), (400, True)):
        page.resize(width, 800, dark=dark)
        for place in ("#/", "#/page/asyncio.queues", "#/search/loop", "#/index"):
            page.go(f"{served}/{place}")
            page.wait("document.querySelector('main h1') !== null")
            assert page.value("document.documentElement.scrollWidth") <= width, place
            if place == "#/":  # a telephone has no keyboard to explain
                keys = "getComputedStyle(document.querySelector('.keys')).display"
                assert (page.value(keys) == "none") is (width == 400)
            page.shoot(
                f"{width} {'dark' if dark else 'light'} {place.strip('#/').replace('/', ' ')}"
            )
        light = "getComputedStyle(document.body)"
        ink, paper = page.value(f"[{light}.color, {light}.backgroundColor]")
        assert ink != paper


def test_what_people_write_is_never_taken_for_html(page, served):
    """
    Nor is a search, nor a tag.
    """
    page.go(f"{served}/#/page/asyncio.queues")
    page.see("asyncio.queues", "h1")
    nasty = "<img src=x onerror=\"document.title='taken'\"><b>wombat</b>"
    body = {"page": "asyncio.queues", "line": 1, "text": nasty, "user": nasty, "tags": [nasty]}
    request = urllib.request.Request(
        f"{served}/api/annotations",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        assert json.load(answer)["indexed"]
    page.go(f"{served}/#/search/wombat")
    page.see("wombat", "mark")
    page.see(nasty, ".tags")
    page.click(".results .note a")
    page.see(nasty, ".note.now .what")
    assert page.value("document.querySelectorAll('main img, main .what b').length") == 0
    assert "taken" not in page.value("document.title")


def test_two_people_who_change_the_same_are_told(page, served):
    """
    The second one does not overwrite what the first one wrote.
    """
    page.go(f"{served}/#/page/asyncio.queues")
    page.see("asyncio.queues", "h1")
    page.press("j", text="j")
    page.wait("document.querySelector('.note.now') !== null")
    name = page.value("document.querySelector('.note.now').dataset.id")
    page.click('.note.now [data-act="edit"]')
    page.value("document.querySelector('.form textarea').select()")
    page.type("Mine.")
    change = {"text": "Theirs.", "version": 1}
    request = urllib.request.Request(
        f"{served}/api/annotations/{name}",
        json.dumps(change).encode(),
        {"content-type": "application/json"},
        method="PUT",
    )
    with urllib.request.urlopen(request):
        pass
    page.click(".form button[type=submit]")
    page.see("has version 2 by now", ".toast.bad")
    assert page.value("document.querySelector('.form textarea').value") == "Mine."
    wait_for(lambda: page.problems)
    assert all("409" in problem for problem in page.problems)  # the browser notes it on its own
    page.problems.clear()
