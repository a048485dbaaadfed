"""The console in a real browser: with keys, live, at three widths, light and dark."""

import importlib.resources
import itertools
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import uvicorn

from forebay.console import asgi
from forebay.console._pages import PAGES
from tests.support.browser import Page, chromium
from tests.support.engine import enqueue
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
        uvicorn.Config(
            asgi(database, acts=True), port=port, log_level="warning", timeout_graceful_shutdown=1
        )
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


def test_filters_take_no_room_on_a_phone_until_one_is_set(page, address):
    """
    On a wide page they are always there.
    """
    shown = "document.querySelector('[name=queue]').checkVisibility({contentVisibilityAuto: true})"
    for width, path, is_shown in (
        (390, "/jobs", False), (390, "/jobs?queue=mail", True), (1280, "/jobs", True),
    ):  # fmt: skip
        page.resize(width, 900)
        visit(page, address, path)
        assert page.value(shown) == is_shown, (width, path)
    page.resize(390, 900)
    visit(page, address, "/jobs")
    page.click("summary")
    page.wait(shown)


#: How many hosts the page has asked.
HOSTS = (
    "new Set(performance.getEntries().filter(one => one.name.startsWith('http'))"
    ".map(one => new URL(one.name).host)).size"
)


@pytest.fixture
def paths(conn, app) -> list[str]:
    """
    Every page, with something on it; long names and hostile words included.
    """

    @app.job(queue="mail", max_attempts=1)
    def send(user: int) -> None:
        raise ConnectionError(f"no route to user {user}")

    send.enqueue(conn, user=1)
    app.run_worker(until_idle=True)
    job = enqueue(conn, queue="a" * 60, kind="kind" * 10, args={"text": "x" * 300})
    for statement in (
        f"select forebay.push_subject('crawl', '{'s' * 100}', '{{}}', queue => 'crawler')",
        "select forebay.create_endpoint('partner', 'http', '{\"url\": \"https://a.example\"}')",
        "select forebay.send('partner', '{\"order\": 1}', 'order.created')",
        "select forebay.create_schedule('nightly', 'tidy', cron => '0 3 * * *')",
        "select forebay.pause_queue('mail')",
    ):
        conn.execute(statement)
    dead, cause = conn.execute("select job_id, cause from forebay.dead_letter").fetchone()
    return [
        *(page.path for page in PAGES if page.title),
        f"/job?what={job}", f"/job?what={dead}", "/job?what=nothing", f"/cause?cause={cause}",
        f"/queue?queue={'a' * 60}", "/queue?queue=mail", "/jobs?queue=mail&tag=a&contains=b",
        "/jobs?column=tag&column=worker",
        "/subjects?queue=crawler", f"/subject?queue=crawler&name={'s' * 100}",
        "/schedule?name=nightly", "/endpoint?name=partner", "/doctor", "/nothing",
        f"/act?act=dead.redrive_matching&cause={quote(cause)}", "/act?act=queues.resume&queue=mail",
    ]  # fmt: skip


def visit(page, address, path):
    """
    Open a page and wait until it is there, and whole.
    """
    page.go(address.rstrip("/") + path)
    page.wait(f"location.pathname + location.search === {('/main' + path)!r}")
    page.wait("document.readyState === 'complete' && document.querySelector('h1') !== null")


AXE = importlib.resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()

#: What axe finds, each with the first elements, as text.
FOUND = """\
axe.run(document, {resultTypes: ['violations'], rules: {'target-size': {enabled: true}}}).then(
    found => found.violations.map(one => [one.id, one.nodes[0].failureSummary,
        ...one.nodes.slice(0, 3).map(node => node.html.slice(0, 200))].join(' ')))"""


def test_axe_finds_nothing_on_any_page(page, address, paths):
    """
    No page has an accessibility violation that axe-core can find, wide or narrow, light or dark.
    """
    found = {}
    for path in paths:
        visit(page, address, path)
        # With what a person can open.
        page.value("for (const one of document.querySelectorAll('details')) one.open = true; 0")
        page.value(AXE + "; 0")
        for width, dark in itertools.product((390, 1280), (False, True)):
            page.resize(width, 900, dark=dark)
            if violations := page.value(FOUND):
                found[path, width, dark] = violations
    page.problems[:] = [one for one in page.problems if "status of 404" not in one]
    assert found == {}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 2560])
def test_no_page_is_wider_than_the_window(page, address, paths, width, dark):
    """
    Wide tables scroll by themselves; no request leaves the console.
    """
    page.resize(width, 900, dark=dark)
    for path in paths:
        visit(page, address, path)
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.value(wide) <= 0, path
        assert page.value(HOSTS) == 1, path
        page.shoot(f"{re.sub('[^a-z]+', '-', path[:40])} {width} {'dark' if dark else 'light'}")
    page.problems[:] = [one for one in page.problems if "status of 404" not in one]


def test_the_pages_say_what_they_say_without_javascript(page, address, conn):
    """
    The answers are whole: the script adds the reader's zone, keys, and what changes.
    """
    enqueue(conn, queue="first")
    page.send("Emulation.setScriptExecutionDisabled", value=True)
    page.go(address)
    wait_for(lambda: "first" in page.value("document.body ? document.body.innerText : ''"))
