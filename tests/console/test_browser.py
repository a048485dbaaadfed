"""The console in a real browser: with keys, live, at three widths, light and dark."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from forebay.console import asgi
from forebay.console._pages import PAGES
from tests.support.browser import Page, chromium
from tests.support.engine import enqueue, one
from tests.support.ports import free_port
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        if found is None:
            pytest.skip("there is no Chromium")
        yield found


@pytest.fixture
def address(database) -> Iterator[str]:
    """The address of a console that serves."""
    port = free_port()
    server = uvicorn.Server(
        uvicorn.Config(asgi(database), port=port, log_level="warning", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield f"http://127.0.0.1:{port}/main/"
    finally:
        server.should_exit = True
        thread.join(30)


@pytest.fixture
def page(address, browser, tmp_path) -> Iterator[Page]:
    """A tab; with FOREBAY_SCREENSHOTS=folder pictures stay there, to be looked at."""
    page = browser.page()
    folder = Path(os.environ.get("FOREBAY_SCREENSHOTS") or tmp_path)
    page.shoot = lambda name: page.screenshot(folder / f"{name}.png")
    yield page
    page.go("about:blank")
    page.wait("location.protocol === 'about:'")
    assert page.problems == []


#: True once the script of a page has run.
READY = "document.querySelector('#age-text').textContent.endsWith('s ago')"


def test_a_person_sees_changes_without_a_reload_and_moves_by_keys(page, address, conn):
    """
    A new job shows by itself; `/` searches, `g` and a letter opens a page, `j` and Enter a row.
    """
    enqueue(conn, queue="first")
    page.go(address)
    page.see("first", "#queues")
    enqueue(conn, queue="second", correlation_id="order-42")
    page.see("second", "#queues")
    page.wait("document.querySelector('#age').classList.contains('live')")
    page.shoot("overview")

    page.press("g")
    page.press("j", text="j")
    page.see("Jobs", "h1")
    page.wait(READY)
    page.press("j", text="j")
    page.wait("document.querySelectorAll('tr[aria-selected=true]').length === 1")
    page.press("Enter", code=13, text="\r")
    page.see("Job ", "h1")
    page.wait(READY)
    page.press("?", text="?")
    page.wait("document.querySelector('dialog').open")
    page.press("Escape", code=27)
    page.wait("!document.querySelector('dialog').open")
    page.press("/", text="/")
    page.wait("document.activeElement.id === 'q'")
    page.type("order-42")
    page.press("Enter", code=13, text="\r")
    page.see("Found as correlation id order-42.")


def test_what_a_person_has_selected_stays_while_the_numbers_change(page, address, conn):
    """
    A selected row keeps its table; when it is let go, the table is new.
    """
    enqueue(conn, queue="first")
    page.go(address)
    page.see("first", "#queues")
    page.wait(READY)
    page.press("j", text="j")
    page.wait("document.querySelector('#queues tr[aria-selected=true]') !== null")
    enqueue(conn, queue="second")
    # The curve beside it is read anew, twice, and the table is as it was.
    for _ in range(2):
        page.value("window.before = document.querySelector('#curves').firstElementChild; 0")
        page.wait("document.querySelector('#curves').firstElementChild !== window.before")
    assert not page.value("document.querySelector('#queues').innerText.includes('second')")
    page.press("Escape", code=27)
    page.see("second", "#queues")


#: How many hosts the page has asked.
HOSTS = (
    "new Set(performance.getEntries().filter(one => one.name.startsWith('http'))"
    ".map(one => new URL(one.name).host)).size"
)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 2560])
def test_no_page_is_wider_than_the_window(page, address, conn, width, dark):
    """
    Wide tables scroll by themselves; no request leaves the console.
    """
    job = enqueue(conn, queue="a" * 60, kind="kind" * 10, args={"text": "x" * 300})
    one(conn, "select forebay.push_subject('crawl', %s, '{}', queue => 'crawler')", "s" * 100)
    page.resize(width, 900, dark=dark)
    paths = [page.path for page in PAGES if page.title]
    for path in [*paths, f"/job?what={job}", "/subjects?queue=crawler", f"/queue?queue={'a' * 60}"]:
        page.go(address.rstrip("/") + path)
        page.wait("document.readyState === 'complete' && document.querySelector('h1') !== null")
        page.wait(f"location.pathname + location.search === {('/main' + path)!r}")
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.value(wide) <= 0, path
        assert page.value(HOSTS) == 1, path
    page.shoot(f"queue {width} {'dark' if dark else 'light'}")


def test_the_pages_say_what_they_say_without_javascript(page, address, conn):
    """
    The answers are whole: the script adds the reader's zone, keys, and what changes.
    """
    enqueue(conn, queue="first")
    page.send("Emulation.setScriptExecutionDisabled", value=True)
    page.go(address)
    wait_for(lambda: "first" in page.value("document.body ? document.body.innerText : ''"))
