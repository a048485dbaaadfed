"""The console in a real browser: with keys, live, at three widths, light and dark."""

import importlib.resources
import itertools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
import uvicorn

import forebay
from forebay.console import asgi
from forebay.console._pages import PAGES
from forebay.testing import LyingTarget
from tests.support.browser import Page, chromium
from tests.support.counting import count_each_minute
from tests.support.delivering import LOCAL_ENVIRON, create_endpoint, send
from tests.support.engine import enqueue, one, state
from tests.support.ports import free_port
from tests.support.source import Items
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


def let_a_mirror_drift(app):
    """
    Its audit finds two items without a copy.
    """
    mirror = forebay.Mirror(app, "pages", source=Items({1: 1, 2: 1}), target=LyingTarget())
    mirror.audit(settle=0)
    mirror.close()


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
    let_a_mirror_drift(app)
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


def drag(page, selector: str, begin: float, end: float) -> None:
    """
    Draw along an element with the mouse, from one part of its width to another.
    """
    page.value(f"document.querySelector('{selector}').scrollIntoView({{block: 'center'}}); 0")
    box = f"document.querySelector('{selector}').getBoundingClientRect().toJSON()"
    at = page.value(box)
    y = at["y"] + at["height"] / 2
    for kind, place in (
        ("mouseMoved", begin), ("mousePressed", begin), ("mouseMoved", (begin + end) / 2),
        ("mouseMoved", end), ("mouseReleased", end),
    ):  # fmt: skip
        button = {} if kind == "mouseMoved" else {"clickCount": 1}
        x = at["x"] + place * at["width"]
        page.send(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left",
            buttons=int(kind != "mouseReleased"), **button,
        )  # fmt: skip


def test_a_range_is_drawn_on_a_curve_and_is_then_the_address(page, address, conn):
    """
    Every curve of the queue shows it; a person can send it, and a double click or a link ends it. A
    range that is too short, or is given up with Escape, changes nothing.
    """
    count_each_minute(conn, "mail", 50)
    visit(page, address, "/queue?queue=mail")
    page.wait(READY)
    plot = ".zoomable .plot"
    times = [
        float(at)
        for at in page.value("document.querySelector('[data-times]').dataset.times").split()
    ]
    drag(page, plot, 0.5, 0.505)
    assert page.value("location.search") == "?queue=mail"
    assert page.value("document.querySelector('.zoom') === null")
    drag(page, plot, 0.75, 0.25)
    page.wait("new URL(location.href).searchParams.has('until')")
    page.see("by the minute")
    page.wait(READY)
    ends = page.value(
        "['since', 'until'].map(name =>"
        " Date.parse(new URL(location.href).searchParams.get(name)) / 1000)"
    )
    for found, place in zip(ends, (0.25, 0.75), strict=True):
        assert abs(found - times[round(place * (len(times) - 1))]) < 90
    shown = [
        float(at)
        for at in page.value("document.querySelector('[data-times]').dataset.times").split()
    ]
    assert ends[0] <= shown[0] < shown[-1] <= ends[1]
    page.shoot("zoomed")
    sent = page.value("location.href")
    page.click(".tabs a[href$='span=hour']")
    page.wait("location.search === '?queue=mail&span=hour'")
    page.go(sent)
    page.see("by the minute")
    page.wait(READY)
    twice = "new MouseEvent('dblclick', {bubbles: true})"
    page.value(f"document.querySelector('{plot}').dispatchEvent({twice}); 0")
    page.wait("location.search === '?queue=mail'")


def test_axe_finds_nothing_on_any_page(page, address, conn, paths):
    """
    No page has an accessibility violation that axe-core can find, wide or narrow, light or dark.
    """
    visit(page, address, "/")
    conn.execute("select forebay.resume_queue('mail')")
    page.wait("document.querySelector('.marks') !== null", 60)
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
    page.problems[:] = [each for each in page.problems if "status of 404" not in each]
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
    page.problems[:] = [each for each in page.problems if "status of 404" not in each]


@contextmanager
def deliverer(database):
    """
    A process that delivers, to this machine too.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "forebay", "deliver", "--dsn", database, "--log-level", "error"],
        env=os.environ | LOCAL_ENVIRON,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def test_on_call_each_cause_is_found_in_two_clicks(page, address, database, conn, app, workers):
    """
    A poison job, a kind that fails, a frozen worker, an open breaker, a transaction that stays open
    and a mirror out of step, all at once: the overview leads to the cause of each.
    """
    for name in ("breaker_for", "snapshot_for"):
        conn.execute("select forebay.set_threshold(%s, 0)", [name])
    frozen = workers.start()
    held_job = enqueue(conn, args={"entry": 1, "seconds": 300})
    wait_for(lambda: state(conn, held_job) == "running")
    frozen.freeze()
    workers.start()
    enqueue(conn, kind="exceed", args={"entry": 2, "what": "memory"}, max_attempts=1)
    enqueue(conn, kind="step", args={"entry": 3, "failures": 9}, max_attempts=3)
    create_endpoint(
        conn, "partner", "http", {"url": f"http://127.0.0.1:{free_port()}/"}, breaker_threshold=1
    )
    send(conn, "partner")
    let_a_mirror_drift(app)
    with psycopg.connect(database, application_name="analytics") as holder, deliverer(database):
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from pg_class")
        dead = "select max(cause) from forebay.dead_letter where kind = %s"
        causes = {
            kind: wait_for(lambda kind=kind: one(conn, dead, kind)) for kind in ("exceed", "step")
        }
        to_failures = ".problem a[href*='/failures?queue=default']"
        story = {
            "poison job": ([to_failures, f"#causes a[href*='{causes['exceed']}']"], "MemoryError"),
            "failing kind": ([to_failures, f"#causes a[href*='{causes['step']}']"], "step"),
            "frozen worker": ([".problem a[href$='/workers']"], f"work 1 {held_job}"),
            "open breaker": ([".problem a[href*='/endpoint?name=partner']"], "The breaker is open"),
            "held transaction": ([".problem a[href$='/database']"], "analytics"),
            "drifted mirror": ([".problem a[href$='/mirrors']"], "found 2 differences"),
        }
        page.go(address)
        for clicks, _ in story.values():
            page.wait(f"document.querySelector({json.dumps(clicks[0])}) !== null", 60)
        page.resize(1180, 820)
        page.shoot("on call")
        for name, (clicks, cause) in story.items():
            page.go(address)
            page.wait("location.pathname === '/main/'")
            assert len(clicks) <= 2
            for selector in clicks:
                page.wait(f"document.querySelector({json.dumps(selector)}) !== null")
                before = page.value("location.href")
                page.click(selector)
                page.wait(f"location.href !== {json.dumps(before)}")
            page.see(cause, "main")
            page.shoot(name)


def test_the_pages_say_what_they_say_without_javascript(page, address, conn):
    """
    The answers are whole: the script adds the reader's zone, keys, and what changes.
    """
    enqueue(conn, queue="first")
    page.send("Emulation.setScriptExecutionDisabled", value=True)
    page.go(address)
    wait_for(lambda: "first" in page.value("document.body ? document.body.innerText : ''"))
