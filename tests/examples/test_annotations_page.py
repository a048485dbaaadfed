"""The example application's page in a real browser: what a person does with it, and that nothing goes wrong unseen."""

import json
import os
import urllib.request
from collections.abc import Iterator
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
def page(browser, served, tmp_path) -> Iterator[Page]:
    """A tab; with FOREBAY_SCREENSHOTS=folder pictures stay there, to be looked at."""
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
    All of it with mouse and keyboard, in order; at the end both stores are right and the browser's console is empty.
    """
    page.go(f"{served}/#/")
    page.see("Read, and write in the margin")
    page.see("index in step", "#status")
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
    page.see("Saved, and found by searches.", ".toast")
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
    page.see("Changed, and found by searches.", ".toast")
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
    page.see("Back again", ".toast")
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
        page.see("Index again", "h2")
        page.click("#reindex [name=page]")
        page.type("asyncio.runners")
        page.click("#count")
        page.see("6 annotations would be done.")  # the deleted one too
        page.shoot("counted")
        page.click("#reindex button[type=submit]")
        page.see("6 annotations on the way.")
        page.see("index in step", "#meter")
        page.shoot("indexed again")
        found = index.execute("select count(*) from documents where id = any(%s)", [ids])
        assert found.fetchone() == (len(ids),)


def test_every_choice_of_what_to_index_again(page, served, place):
    """
    By user, group, page, time and ids, the deleted among them too: as many jobs as annotations match.
    """
    page.go(f"{served}/#/index")
    page.see("Index again", "h2")
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
            page.see(f"{expected:,} annotation{'' if expected == 1 else 's'} on the way.")
    page.see("index in step", "#meter")


def test_the_keyboard_is_enough(page, served):
    """
    From the list of pages to a line, along the annotations, and out of a form again, without a mouse.
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
