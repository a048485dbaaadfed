"""The documentation site in a browser: it needs no other server, search finds, and pages fit a
phone.
"""

import re
import subprocess
import sys
import threading
import tomllib
import urllib.request
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.browser import chromium

pytest.importorskip("mkdocs", reason="building needs the extra docs")
pytestmark = [pytest.mark.slow, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]
PAGES = [
    "index",
    "tutorial/first-job",
    "choosing",
    "benchmarks",
    "coming-from/index",
    "coming-from/ulak",
    "howto/on-call",
    "howto/troubleshooting",
    "howto/unique-jobs",
    "reference/job-states",
    "reference/api",
    "reference/sql",
    "database-load",
    "decisions/README",
]


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and prints nothing."""

    def log_message(self, *_args) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the site, built with warnings as errors."""
    folder = tmp_path_factory.mktemp("site")
    answer = subprocess.run(
        [sys.executable, "-m", "mkdocs", "--quiet", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def page():
    """A tab of a browser."""
    with chromium() as browser:
        if browser is None:
            pytest.skip("no Chromium")
        yield browser.page()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_nothing_from_elsewhere_and_fits_a_phone(site, page, name):
    """
    Without the internet a page is complete; at 390 pixels only tables and code scroll sideways,
    inside themselves.
    """
    page.resize(390, 844)
    page.go(f"{site}/{name.replace('README', 'index')}.html")
    page.wait("document.readyState === 'complete' && document.querySelector('h1') !== null")
    loaded = page.value("performance.getEntriesByType('resource').map(each => each.name)")
    assert loaded
    assert [address for address in loaded if not address.startswith((site, "data:"))] == []
    assert page.value("document.documentElement.scrollWidth") <= 390
    assert page.problems == []


def test_the_home_page_follows_the_palette(site, page):
    """
    The plots have the colours of the page, and of each picture only the form for its palette is
    shown. The head names the version.
    """
    page.resize(1280, 900)
    page.go(f"{site}/index.html")
    page.wait("document.querySelectorAll('svg.plot').length === 2")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    page.see(version, ".site-version")
    shown = []
    for palette in ("default", "slate"):
        page.value(f"document.body.setAttribute('data-md-color-scheme', '{palette}')")
        pictures = page.value(
            "[...document.querySelectorAll('.home .shot img')]"
            ".filter(each => getComputedStyle(each).display !== 'none').length"
        )
        assert pictures == 1, palette
        shown.append(page.value("getComputedStyle(document.querySelector('svg.plot rect')).fill"))
    assert shown[0] != shown[1]


def test_the_address_of_a_moved_page_leads_to_the_page(site, page):
    """
    Links of other sites to the old address still work.
    """
    page.resize(1280, 900)
    page.go(f"{site}/coming-from.html")
    page.wait("location.pathname === '/coming-from/index.html'")
    page.see("Enqueue in my transaction", "h2")


#: What people look for, and the guide that answers.
QUESTIONS = {
    "acks_late": "guarantees",
    "beat": "howto/schedules",
    "canvas": "howto/fan-in",
    "chord": "howto/fan-in",
    "countdown": "howto/scheduling",
    "cron": "howto/schedules",
    "dead letter": "howto/dead-letters",
    "disk full": "howto/troubleshooting",
    "eager": "howto/testing",
    "eta": "howto/scheduling",
    "flower": "howto/console",
    "frozen worker": "howto/troubleshooting",
    "inspect": "howto/run-workers",
    "kubernetes": "howto/deployment",
    "link_error": "howto/follow-ups",
    "on call": "howto/on-call",
    "pgbouncer": "howto/poolers",
    "rate_limit": "howto/limits",
    "revoke": "howto/cancellation",
    "too many connections": "howto/troubleshooting",
}


def test_the_first_hit_is_the_guide(site, page):
    """
    Guides come before decisions and design pages, also for words of Celery.
    """
    page.resize(1280, 900)
    found = {}
    for question in QUESTIONS:
        page.go(f"{site}/index.html?q={question.replace(' ', '+')}")
        page.wait("document.querySelector('.md-search-result__link') !== null")
        first = page.value("document.querySelector('.md-search-result__link').href")
        found[question] = first.removeprefix(f"{site}/").partition(".html")[0]
    assert found == QUESTIONS


def test_search_finds_a_page_by_a_word_of_its_text(site, page):
    """
    The search runs in the browser.
    """
    page.resize(1280, 900)
    page.go(f"{site}/index.html?q=debounce")
    page.wait("document.querySelector('.md-search-result__link') !== null")
    page.see("Enqueue a job only once", ".md-search-result__list")
    assert page.problems == []


def test_each_page_that_llms_txt_lists_is_there(site):
    """
    The list is beside the pages, and its links lead to them.
    """
    with urllib.request.urlopen(f"{site}/llms.txt") as answer:
        listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", answer.read().decode(), re.MULTILINE)
    assert len(listed) > 100
    for address in listed:
        with urllib.request.urlopen(f"{site}/{address}") as answer:
            assert answer.status == 200
