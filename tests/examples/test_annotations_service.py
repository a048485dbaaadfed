"""The example application without a browser: its requests, and what stays right when its index
does not answer.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from tests.examples.conftest import EXAMPLES
from tests.support.proxy import Proxy
from tests.support.waiting import wait_for


class Browser:
    """Asks a service; returns status and content."""

    def __init__(self, base: str) -> None:
        self._base = base

    def ask(self, method: str, path: str, body=None, *, kind: str = "application/json", **sent):
        data = (
            None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        )
        headers = {"content-type": kind} if data is not None else {}
        headers |= {name.replace("_", "-"): value for name, value in sent.items()}
        request = urllib.request.Request(self._base + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def note(self, text: str, **more) -> dict:
        """Write an annotation, and return it."""
        body = {"page": "asyncio.queues", "text": text, "user": "ann"} | more
        status, found = self.ask("POST", "/api/annotations", body)
        assert status == 201, found
        return found

    def found(self, words: str) -> list[int]:
        """Return the ids of what a search finds."""
        status, content = self.ask("GET", f"/api/search?q={quote(words)}")
        assert status == 200, content
        return [each["id"] for each in content["results"]]


@pytest.fixture
def service(served) -> Browser:
    return Browser(served)


@pytest.mark.slow
def test_an_annotation_is_saved_found_changed_deleted_and_brought_back(service):
    """
    Each answer says that the index has it by then, and a search says the same.
    """
    note = service.note("Aardvarks are patient.", line=3, tags=["zoo"], group="keepers")
    assert (note["page"], note["line"], note["user"], note["version"]) == (
        "asyncio.queues",
        3,
        "ann",
        1,
    )
    assert note["indexed"]
    for words in ("aardvark", "zoo", "keepers", "asyncio queues"):
        assert note["id"] in service.found(words), words
    status, changed = service.ask(
        "PUT", f"/api/annotations/{note['id']}", {"text": "Bison are not."}
    )
    assert (status, changed["version"], changed["tags"]) == (200, 2, [])
    assert service.found("aardvark") == []
    assert service.found("bison") == [note["id"]]
    assert service.ask("DELETE", f"/api/annotations/{note['id']}")[0] == 200
    assert service.found("bison") == []
    assert service.ask("POST", f"/api/annotations/{note['id']}/restore")[0] == 200
    assert service.found("bison") == [note["id"]]
    _, page = service.ask("GET", "/api/pages/asyncio.queues")
    assert note["id"] in [each["id"] for each in page["annotations"]]


@pytest.mark.slow
def test_what_is_deleted_is_never_shown_even_if_the_index_has_it(service, place):
    """
    An index that is behind can match wrongly; what is shown comes from the annotations.
    """
    note = service.note("A wrongly kept okapi.")
    with psycopg.connect(place.dsn) as conn:
        conn.execute("update annotation set deleted = true where annotation_id = %s", [note["id"]])
    with psycopg.connect(place.index) as index:
        ids = index.execute(
            "select id from documents where words @@ to_tsquery('okapi')"
        ).fetchall()
    assert ids == [(note["id"],)]
    assert service.found("okapi") == []


@pytest.mark.slow
def test_strange_requests_are_refused_and_nothing_is_written(service, place):
    """
    Wrong types, lengths, pages and ids; what no form of another site could send is asked for.
    """
    good = {"page": "asyncio.queues", "text": "x", "user": "ann"}
    refused = [
        ("POST", "/api/annotations", {"text": "x"}, 400),
        ("POST", "/api/annotations", good | {"text": ""}, 400),
        ("POST", "/api/annotations", good | {"text": "x" * 20_001}, 400),
        ("POST", "/api/annotations", good | {"text": "a\0b"}, 400),
        ("POST", "/api/annotations", good | {"line": 0}, 400),
        ("POST", "/api/annotations", good | {"colour": "red"}, 400),
        ("POST", "/api/annotations", b"{", 400),
        ("POST", "/api/annotations", good | {"page": "nowhere"}, 404),
        ("PUT", "/api/annotations/999999999", {"text": "x"}, 404),
        ("PUT", f"/api/annotations/{2**63}", {"text": "x"}, 404),
        ("DELETE", "/api/annotations/999999999", None, 404),
        ("GET", "/api/pages/nowhere", None, 404),
        ("GET", "/api/nothing", None, 404),
        ("POST", "/api/reindex", {}, 400),
        ("POST", "/api/reindex", {"user": "ann", "page": "x"}, 400),
        ("POST", "/api/reindex", {"ids": ["x"]}, 400),
    ]
    with psycopg.connect(place.dsn, autocommit=True) as conn:
        before = conn.execute("select count(*), max(version) from annotation").fetchone()
        for method, path, body, status in refused:
            assert service.ask(method, path, body)[0] == status, (method, path, body)
        form = b"page=asyncio.queues&text=x&user=ann"
        kind = "application/x-www-form-urlencoded"
        assert service.ask("POST", "/api/annotations", form, kind=kind)[0] == 415
        assert conn.execute("select count(*), max(version) from annotation").fetchone() == before


@pytest.mark.slow
def test_another_site_can_neither_act_nor_read_through_the_browser_of_a_person(service):
    """
    A form of another site, a name of another site with our address, a frame of another site.
    """
    note = service.note("okapi")
    path = f"/api/annotations/{note['id']}"
    assert service.ask("DELETE", path)[0] == 200
    form = {"kind": "application/x-www-form-urlencoded"}
    for sent in (
        {"origin": "https://evil.example"}, {"origin": "null"}, {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ):  # fmt: skip
        assert service.ask("POST", f"{path}/restore", b"", **form, **sent)[0] == 403, sent
    assert service.found("okapi") == []
    for host in (
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "",
        "127.0.0.1@evil.example",
    ):
        assert service.ask("GET", "/api/pages", host=host)[0] in (400, 421), host
    assert service.ask("GET", "/api/pages", host="localhost:8000")[0] == 200
    own = service._base
    assert (
        service.ask("POST", f"{path}/restore", origin=own, sec_fetch_site="same-origin")[0] == 200
    )
    with urllib.request.urlopen(own) as page:
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        assert page.headers["x-frame-options"] == "DENY"


@pytest.mark.slow
def test_long_bodies_and_deep_queries_are_refused(service):
    """
    With and without a length; a query that PostgreSQL cannot parse is the caller's error.
    """
    long = b'{"text": "' + b"x" * 2_000_000
    assert service.ask("POST", "/api/annotations", long)[0] == 413
    host, port = service._base.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as conn:
        conn.sendall(
            b"POST /api/annotations HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(20):
            conn.sendall(b"186a0\r\n" + b" " * 100_000 + b"\r\n")
        conn.sendall(b"0\r\n\r\n")
        assert conn.recv(100).startswith(b"HTTP/1.1 413 ")
    for words in ("-" * 3000, '"' * 3000, "a or " * 3000, "-" * 500, "a -" * 160):
        assert service.ask("GET", f"/api/search?q={quote(words)}")[0] in (200, 400), words[:10]
    assert service.ask("GET", f"/api/search?q={'-' * 3000}")[0] == 400


@pytest.mark.slow
def test_a_change_of_something_that_was_changed_meanwhile_is_refused(service):
    """
    Of two who change the same version one is told.
    """
    note = service.note("first")
    path = f"/api/annotations/{note['id']}"
    with ThreadPoolExecutor(4) as threads:
        changes = [{"text": f"by {n}", "version": 1} for n in range(4)]
        statuses = sorted(threads.map(lambda change: service.ask("PUT", path, change)[0], changes))
    assert statuses == [200, 409, 409, 409]


@pytest.mark.slow
def test_indexing_again_enqueues_for_exactly_what_was_chosen(service, place):
    """
    By page, user, group, ids and time, with both ends included; a dry run counts and enqueues
    nothing.
    """
    notes = [service.note("x", user="bob", group="herd", page="asyncio.locks") for _ in range(3)]
    times = sorted(note["updated_at"] for note in notes)
    wait_for(lambda: service.ask("GET", "/api/status")[1]["waiting"] == 0)
    with psycopg.connect(place.dsn, autocommit=True) as conn:
        for choice, count, priority in [
            ({"user": "bob"}, 3, 100),
            ({"group": "herd"}, 3, 100),
            ({"user": "nobody"}, 0, 100),
            ({"ids": [notes[0]["id"], notes[2]["id"], 999999999]}, 2, 1000),
            ({"since": times[0], "until": times[1]}, 2, 1000),
            ({"since": times[1], "until": times[1]}, 1, 1000),
            ({"page": "asyncio.locks", "force": True}, None, 100),
        ]:
            (last,) = conn.execute("select coalesce(max(seq), 0) from forebay.log").fetchone()
            status, found = service.ask("POST", "/api/reindex", choice | {"dry_run": True})
            assert status == 200
            if count is not None:
                assert found["count"] == count, choice
            expected = found["count"]
            status, found = service.ask("POST", "/api/reindex", choice)
            assert (status, found) == (202, {"jobs": expected}), choice
            jobs = conn.execute(
                (
                    "select distinct j.priority, forebay._is_bulk(j.tag, j.priority, "
                    "'{audit,backfill}', 1000) from forebay.log l, forebay.job(l.seq) j where "
                    "l.seq > %s"
                ),
                [last],
            ).fetchall()
            # Alerts ignore the jobs, whatever their priority.
            assert jobs == ([(priority, True)] if expected else []), choice
            wait_for(lambda: service.ask("GET", "/api/status")[1]["waiting"] == 0)


def is_listening(path: Path) -> bool:
    """Whether somebody answers at a unix socket: it is there a moment earlier."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@contextmanager
def two_programs(place, index: str, folder: Path):
    """Run the service and a worker as in production, with the index at another address."""
    environment = place.environment | {
        "ANNOTATIONS_INDEX_URL": index,
        "ANNOTATIONS_DEADLINE_SECONDS": "0.3",
        "ANNOTATIONS_TIMEOUT_SECONDS": "0.5",
    }
    commands = [
        [
            "uvicorn",
            "annotations.service:service",
            "--uds",
            str(folder / "s"),
            "--log-level",
            "warning",
        ],
        ["forebay", "worker", "annotations.app:app", "--log-level", "error"],
    ]
    processes = [
        subprocess.Popen([sys.executable, "-m", *each], env=environment) for each in commands
    ]
    try:
        wait_for(lambda: is_listening(folder / "s"))
        yield str(folder / "s")
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


@pytest.mark.slow
def test_with_a_black_hole_for_an_index_people_go_on_and_searches_say_so(place, tmp_path):
    """
    Writes succeed within the deadline, pages are read, searches are refused soon; afterwards
    everything is found.
    """
    import asyncio

    environment = place.environment
    subprocess.run(
        [sys.executable, "-c", "from annotations.__main__ import prepare; prepare(5)"],
        env=environment,
        check=True,
    )
    sys.path.insert(0, str(EXAMPLES))
    try:
        from annotations.outage.load import Http
    finally:
        sys.path.remove(str(EXAMPLES))
    note = {"page": "asyncio.base_events", "text": "An ocelot in the dark.", "user": "ann"}

    async def go(socket: str, proxy: Proxy) -> None:
        http = Http(socket)
        status, found = await http.request("POST", "/api/annotations", note)
        assert (status, found["indexed"]) == (201, True)
        with proxy.black_hole():
            took = []
            for _ in range(30):
                begun = time.monotonic()
                status, found = await http.request("POST", "/api/annotations", note)
                took.append(time.monotonic() - begun)
                assert (status, found["indexed"]) == (201, False)
            assert max(took) < 5
            assert sorted(took)[15] < 0.3  # most do not even try
            begun = time.monotonic()
            status, found = await http.request("GET", "/api/search?q=ocelot")
            assert status == 503
            assert "does not answer" in found["error"]
            assert time.monotonic() - begun < 5
            assert (await http.request("GET", "/api/pages"))[0] == 200
            status, found = await http.request("GET", "/api/status")
            assert found["index"] == "down"
            assert found["waiting"] >= 30
        until = time.monotonic() + 60
        while (await http.request("GET", "/api/status"))[1] != {"waiting": 0, "index": "up"}:
            assert time.monotonic() < until
            await asyncio.sleep(0.05)
        _, found = await http.request("GET", "/api/search?q=ocelot")
        assert len(found["results"]) == 31
        http.close()

    with Proxy(place.index) as proxy, two_programs(place, proxy.dsn, tmp_path) as socket:
        asyncio.run(go(socket, proxy))


@pytest.mark.slow
def test_every_module_of_the_application_can_be_loaded_by_itself(place):
    """
    Without warnings, and without starting anything.
    """
    modules = [
        ".".join(path.relative_to(EXAMPLES).with_suffix("").parts)
        for path in sorted((EXAMPLES / "annotations").rglob("*.py"))
    ]
    assert len(modules) > 10
    code = f"import importlib\nfor name in {modules}: importlib.import_module(name)"
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=place.environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (answer.returncode, answer.stdout + answer.stderr) == (0, "")


@pytest.mark.slow
def test_a_token_indexes_exactly_what_was_counted_or_nothing(service):
    """
    Between counting and doing somebody writes one more: nothing is enqueued, and that is said.
    """
    service.note("x", user="eve")
    choice = {"user": "eve"}
    _, plan = service.ask("POST", "/api/reindex", choice | {"dry_run": True})
    assert service.ask("POST", "/api/reindex", choice | {"token": plan["token"]}) == (
        202,
        {"jobs": 1},
    )
    _, plan = service.ask("POST", "/api/reindex", choice | {"dry_run": True})
    service.note("y", user="eve")
    assert service.ask("POST", "/api/reindex", choice | {"token": plan["token"]})[0] == 409
    assert service.ask("POST", "/api/reindex", choice | {"token": "what"})[0] == 409


def test_a_missing_address_is_said(place):
    """
    A service without its index's address does not start, and says what is missing.
    """
    environment = {k: v for k, v in place.environment.items() if k != "ANNOTATIONS_INDEX_URL"}
    answer = subprocess.run(
        [sys.executable, "-c", "from annotations.app import index_dsn; index_dsn()"],
        env=environment | {"PATH": os.environ["PATH"]},
        check=False,
        capture_output=True,
        text=True,
    )
    assert "ANNOTATIONS_INDEX_URL" in answer.stderr
