"""The route that streams the changes of a job to browsers."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import HTMLResponse
from starlette.routing import Mount
from starlette.routing import Route as Page

import forebay
from forebay import App
from forebay.errors import ConfigError
from forebay.progress import _asgi, asgi
from tests.support import django_project
from tests.support.browser import chromium
from tests.support.engine import enqueue
from tests.support.fix_worker import run_until_idle, running
from tests.support.ports import free_port
from tests.support.proxy import Proxy
from tests.support.waiting import wait_for, wait_for_async

pytestmark = pytest.mark.anyio

NOWHERE = "host=/nonexistent dbname=x"


def anybody(_scope, _job_id):
    return True


class Client:
    """A client of a route: asks once, and keeps what comes."""

    def __init__(self, route, job_id, *, method="GET", last=None, prefix="", blocks=False):
        self.status = None
        self.headers = {}
        self.text = ""
        self.is_over = False
        self._gone = asyncio.Event()
        self._blocks = blocks
        headers = [] if last is None else [(b"last-event-id", last)]
        path = f"{prefix}/{job_id}"
        self.scope = {
            "type": "http", "method": method, "path": path, "root_path": prefix,
            "headers": headers, "query_string": b"",
        }  # fmt: skip
        self.task = asyncio.create_task(route(self.scope, self._receive, self._send))

    async def _receive(self):
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        if self._blocks:
            await asyncio.Event().wait()
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.text += message["body"].decode("ascii")
            self.is_over = not message.get("more_body", False)

    async def leave(self):
        self._gone.set()
        await self.task

    @property
    def events(self):
        """What a browser makes of it: name, data and id of each event."""
        found = []
        for block in self.text.split("\n\n"):
            fields = [line.partition(": ")[::2] for line in block.split("\n") if line]
            names = [name for name, _ in fields]
            if "event" in names:
                assert names == ["id", "event", "data"], block
                by = dict(fields)
                found.append((by["event"], json.loads(by["data"]), by["id"]))
        return found


@pytest.fixture(autouse=True)
def nobody_watches():
    yield
    wait_for(
        lambda: not [each for each in threading.enumerate() if each.name == "forebay watch"], 10
    )


async def test_a_stream_has_states_progress_and_the_end(app, conn):
    """
    As JSON, in order, with ids; then it ends. Nothing of what was enqueued or returned is in it.
    """
    goes_on = asyncio.Event()

    @app.job(keep_result=True)
    async def work(ctx: forebay.Context, secret: str) -> str:
        ctx.progress(0.5, "half")
        await goes_on.wait()
        ctx.progress(1, "all")
        return secret

    route = asgi(app, authorize=anybody, every=0.1)
    client = Client(route, work.enqueue(conn, "a secret"))
    async with running(app):
        await wait_for_async(lambda: any(data.get("done") == 0.5 for _, data, _ in client.events))
        assert route.streams == 1
        goes_on.set()
        await client.task
    assert (client.status, client.is_over, route.streams) == (200, True, 0)
    assert client.headers[b"content-type"].startswith(b"text/event-stream")
    assert client.headers[b"cache-control"] == b"no-store"
    assert client.text.startswith("retry: ")
    names = [name for name, _, _ in client.events]
    assert names[0] == "state"
    assert names[-1] == "end"
    assert set(names) == {"state", "progress", "end"}
    assert [data for name, data, _ in client.events if name == "end"] == [
        {"state": "done", "attempt": 1, "has_result": True}
    ]
    assert "secret" not in client.text
    assert len({place for _, _, place in client.events}) == len(names)


async def test_the_result_is_sent_if_the_app_says_so(app, conn):
    """
    As JSON in the last event; of a dead job nothing, and none of its error.
    """

    @app.job(keep_result=True, retry=forebay.RetryPolicy(max_attempts=1))
    def work(n: int) -> dict[str, str]:
        if n == 0:
            raise ValueError("a secret")
        return {"text": "line\r\ndata: line\u2028é"}

    kept, dead = work.enqueue(conn, 1), work.enqueue(conn, 0)
    await run_until_idle(app)
    route = asgi(app, authorize=anybody, every=0.1, with_result=True)
    client, of_dead = Client(route, kept), Client(route, dead)
    await client.task
    await of_dead.task
    assert client.events[-1][1]["result"] == {"text": "line\r\ndata: line\u2028é"}
    assert of_dead.events[-1][1] == {"state": "dead", "attempt": 1, "has_result": False}
    assert "secret" not in of_dead.text


@pytest.mark.parametrize(
    "note",
    [
        "line\nline",
        "a\r\n\r\nevent: end\r\ndata: {}\r\n\r\n",
        "\r",
        "data: x\n\n",
        "\u2028é\x85\x7f",
    ],
)
async def test_a_hostile_note_arrives_as_text(app, conn, note):
    """
    It makes no event and no line: what a browser reads is what the handler reported.
    """

    @app.job
    def work(ctx: forebay.Context) -> None:
        ctx.progress(0.5, note)

    job_id = work.enqueue(conn)
    await run_until_idle(app)
    client = Client(asgi(app, authorize=anybody, every=0.1), job_id)
    await client.task
    assert [name for name, _, _ in client.events] == ["state", "progress", "end"]
    assert client.events[1][1]["note"] == note
    assert "\r" not in client.text


# --- who may ---


async def refuses(_scope, _job_id):
    return False


def fails(_scope, _job_id):
    raise LookupError("who is this")


@pytest.mark.parametrize(
    "authorize",
    [
        refuses,
        fails,
        lambda _scope, _job_id: False,
        lambda _scope, _job_id: None,
        lambda _scope, _job_id: (False, "no"),
        lambda _scope, _job_id: 1,
    ],
)
async def test_who_is_not_let_in_learns_nothing(authorize):
    """
    403, with the same words for each reason and each job, before the database is asked.
    """
    client = Client(asgi(App(NOWHERE), authorize=authorize), 17, last=b"17.done.1..end")
    await client.task
    assert (client.status, client.text) == (403, '{"error": "forbidden"}')


async def test_who_asks_is_told_to_the_application(app, conn):
    """
    The scope of the request, and the id as a number; it may be a coroutine function.
    """
    asked = []

    async def authorize(scope, job_id):
        asked.append((scope["path"], job_id))
        return True

    client = Client(asgi(app, authorize=authorize, every=0.1), enqueue(conn), prefix="/a/b")
    await wait_for_async(lambda: client.events)
    await client.leave()
    assert asked == [("/a/b/1", 1)]


@pytest.mark.parametrize(
    ("path", "options", "status"),
    [
        ("1", {"method": "POST"}, 405),
        ("1", {"method": "HEAD"}, 405),
        ("", {}, 404),
        ("x", {}, 404),
        ("1/", {}, 404),
        ("-1", {}, 404),
        ("1.5", {}, 404),
        ("٣", {}, 404),
        (str(2**63), {}, 404),
        ("1" * 30, {}, 404),
    ],
)
async def test_other_requests_are_refused_without_asking_anybody(path, options, status):
    """
    Another method, and a path without an id.
    """

    def authorize(_scope, _job_id):
        pytest.fail("it is asked")

    client = Client(asgi(App(NOWHERE), authorize=authorize), path, **options)
    await client.task
    assert client.status == status


async def test_a_job_that_does_not_exist_is_not_found(app):
    """
    404, so that a browser gives up; of a group that the queue does not have, too.
    """
    client = Client(asgi(app, authorize=anybody, visible_within=0, every=0.1), 12345)
    await client.task
    assert client.status == 404


async def test_a_job_of_another_group_is_not_found(app, conn):
    """
    The queue does not have the group of the route.
    """
    client = Client(asgi(app, authorize=anybody, group="audit", every=0.1), enqueue(conn))
    await client.task
    assert client.status == 404


async def test_a_job_that_disappears_is_gone(app, conn):
    """
    An event says so, and the stream ends.
    """
    job_id = enqueue(conn)
    client = Client(asgi(app, authorize=anybody, every=0.1), job_id)
    await wait_for_async(lambda: client.events)
    conn.execute("delete from forebay.log where seq = %s", [job_id])
    await client.task
    assert (client.events[-1][0], client.is_over) == ("gone", True)


# --- again ---


async def test_a_browser_that_comes_back_is_told_only_what_is_new(app, conn):
    """
    By the id of the last event that it had, in any process; after the end it is told to stop.
    """

    @app.job
    def work(ctx: forebay.Context) -> None:
        ctx.progress(0.5, "half")

    job_id = work.enqueue(conn)
    before = Client(asgi(app, authorize=anybody, every=0.1), job_id)
    await wait_for_async(lambda: before.events)
    await before.leave()
    await run_until_idle(app)
    at = before.events[-1][2].encode()
    after = Client(asgi(app, authorize=anybody, every=0.1), job_id, last=at)
    await after.task
    assert [name for name, _, _ in after.events] == ["state", "progress", "end"]
    for place, names in zip(
        [place.encode() for _, _, place in after.events],
        (["progress", "end"], ["end"]),
        strict=False,
    ):
        again = Client(asgi(app, authorize=anybody, every=0.1), job_id, last=place)
        await again.task
        assert [name for name, _, _ in again.events] == names
    ended = Client(asgi(app, authorize=anybody), job_id, last=after.events[-1][2].encode())
    await ended.task
    assert (ended.status, ended.text) == (204, "")


@pytest.mark.parametrize(
    "last", [b"", b"x", b"999.done.1..end", b"\xff\xfe", b"1.done", b"1" * 5000, b"1.a.b.c.d"]
)
async def test_an_id_of_another_job_or_of_nothing_begins_anew(app, conn, last):
    """
    Whatever a client sends, it gets the present state.
    """
    client = Client(asgi(app, authorize=anybody, every=0.1), enqueue(conn), last=last)
    await wait_for_async(lambda: client.events)
    assert client.events[0][:2] == ("state", {"state": "ready", "attempt": 1})
    await client.leave()


# --- places ---


async def test_a_client_that_goes_away_leaves_its_place(app, conn):
    """
    More than the bound are told to come later; a place is free when one has gone.
    """
    job_id = enqueue(conn)
    route = asgi(app, authorize=anybody, every=0.1, streams_max=1)
    first = Client(route, job_id)
    await wait_for_async(lambda: first.events)
    second = Client(route, job_id)
    await second.task
    assert (second.status, second.headers[b"retry-after"]) == (503, b"10")
    await first.leave()
    assert route.streams == 0
    third = Client(route, job_id)
    await wait_for_async(lambda: third.events)
    third.task.cancel()  # as a server does that stops
    with contextlib.suppress(asyncio.CancelledError):
        await third.task
    assert route.streams == 0


async def test_a_client_that_takes_nothing_loses_its_place(app, conn, monkeypatch):
    """
    It holds up nobody else meanwhile.
    """
    monkeypatch.setattr(_asgi, "SEND_SECONDS", 0.3)
    job_id = enqueue(conn)
    route = asgi(app, authorize=anybody, every=0.1)
    slow, other = Client(route, job_id, blocks=True), Client(route, job_id)
    await wait_for_async(lambda: other.events)
    await slow.task
    assert route.streams == 1
    await other.leave()


async def test_a_quiet_stream_is_kept_alive_and_ends_after_a_while(app, conn, monkeypatch):
    """
    By comments, which a browser ignores; who comes back is authorized again.
    """
    monkeypatch.setattr(_asgi, "COMMENT_SECONDS", 0.05)
    client = Client(asgi(app, authorize=anybody, every=0.1), enqueue(conn))
    await wait_for_async(lambda: client.text.count("\n:\n\n") >= 2)
    await wait_for_async(lambda: len(client.events) == 1)
    monkeypatch.setattr(_asgi, "STREAM_SECONDS", 0.0)
    await client.leave()
    short = Client(asgi(app, authorize=anybody, every=0.1), enqueue(conn))
    await short.task
    assert (short.status, short.is_over) == (200, True)


async def test_a_login_without_the_right_is_told_to_nobody(database, conn, caplog):
    """
    The browser reads that it does not work; the log says why.
    """
    conn.execute("create role progress_web login")
    try:
        app = App(f"{database} user=progress_web")
        client = Client(asgi(app, authorize=anybody), enqueue(conn))
        await client.task
        assert (client.status, client.text) == (503, '{"error": "try again later"}')
        assert "cannot be watched" in caplog.text
    finally:
        conn.execute("drop role progress_web")


@pytest.mark.parametrize(
    "wrong",
    [
        {"authorize": None},
        {"authorize": True},
        {"authorize": lambda: True},
        {"every": 0},
        {"group": "a b"},
        {"visible_within": -1},
        {"streams_max": 0},
        {"with_result": "yes"},
    ],
    ids=lambda wrong: "-".join(f"{name} {type(value).__name__}" for name, value in wrong.items()),
)
async def test_wrong_options_are_refused_when_the_route_is_made(wrong):
    """
    By name.
    """
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        asgi(App(NOWHERE), **{"authorize": anybody, **wrong})


async def test_a_route_without_authorize_cannot_be_made():
    """
    Ids can be guessed.
    """
    with pytest.raises(TypeError, match="authorize"):
        asgi(App(NOWHERE))


# --- in a browser ---

PAGE = """<!doctype html><title>Job</title><ol></ol><script>
const list = document.querySelector("ol");
window.seen = [];
const source = new EventSource("SOURCE");
for (const name of ["state", "progress", "end", "gone"])
  source.addEventListener(name, event => {
    const item = document.createElement("li");
    item.textContent = name + " " + event.data;
    list.append(item);
    seen.push([name, JSON.parse(event.data)]);
    if (name === "end") source.close();
  });
</script>"""


def page(address):
    async def show(_request):
        return HTMLResponse(PAGE.replace("SOURCE", address))

    return show


def in_starlette(route):
    return Starlette(
        routes=[Page("/page/{n}", page("/jobs/1")), Mount("/jobs", route)],
        middleware=[Middleware(GZipMiddleware)],
    )


def in_fastapi(route):
    web = FastAPI()
    web.add_route("/page/{n}", page("/v1/jobs/1"))
    inner = FastAPI()
    inner.mount("/jobs", route)
    web.mount("/v1", inner)
    return web


def in_django(route):
    """As the how-to says: the application of the project, with a part of the paths given away."""
    django_project.set_up()
    from django.core.handlers.asgi import ASGIHandler
    from django.http import HttpResponse
    from django.urls import path

    def show(_request, n):
        return HttpResponse(PAGE.replace("SOURCE", "/jobs/1"))

    class Handler(ASGIHandler):
        """Has the page beside those of the project, which other tests of this process need."""

        def resolve_request(self, request):
            request.urlconf = type("urls", (), {"urlpatterns": [path("page/<n>", show)]})
            return super().resolve_request(request)

    django = Handler()

    async def application(scope, receive, send):
        mine = scope["type"] == "http" and scope["path"].startswith("/jobs/")
        await (route if mine else django)(scope, receive, send)

    return application


@contextlib.contextmanager
def served(web) -> Iterator[str]:
    """Serve an application; yield its address."""
    port = free_port()
    server = uvicorn.Server(
        uvicorn.Config(web, port=port, log_level="warning", timeout_graceful_shutdown=1,
                       lifespan="off")
    )  # fmt: skip
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        if found is None:
            pytest.skip("there is no Chromium")
        yield found


@pytest.mark.slow
@pytest.mark.direct
@pytest.mark.parametrize("mounted", [in_starlette, in_fastapi, in_django])
def test_a_page_shows_progress_and_goes_on_after_a_reload_and_a_cut(
    database, conn, browser, mounted
):
    """
    A real browser, a real server: progress appears while the job runs; a reload shows the present
    state and what follows; connections to the database are cut, and the page goes on by itself. A
    hostile note is text. After the end nothing more is asked.
    """
    app = App(database)
    steps = threading.Semaphore(0)
    note = '<img src=x onerror="seen.push(1)">\n\nevent: end\ndata: {}\n\n'

    @app.job(keep_result=True)
    def work(ctx: forebay.Context) -> str:
        for n, text in enumerate(["one", note, "three"]):
            ctx.progress(n / 4, text)
            steps.acquire()
        return "a result"

    job_id = work.enqueue(conn)
    assert job_id == 1
    worker = threading.Thread(target=lambda: app.run_worker(until_idle=True))
    with Proxy(database) as proxy:
        watching = App(proxy.dsn)
        route = asgi(watching, authorize=anybody, every=0.1, with_result=True)
        with served(mounted(route)) as address:
            tab = browser.page()
            try:
                tab.go(f"{address}/page/1")
                tab.see('state {"state": "ready"')
                worker.start()
                tab.see('"note": "one"')
                before = tab.value("seen.length")
                steps.release()
                tab.see("onerror")
                assert tab.value("document.querySelector('img') === null")
                assert tab.value("seen.every(each => each.length === 2)")
                assert tab.value("seen.at(-1)[1].note") == note
                assert tab.value("seen.length") > before

                tab.value("window.isOld = true")
                tab.send("Page.reload")
                tab.wait("window.isOld === undefined && document.readyState === 'complete'")
                tab.see("onerror")
                assert tab.value("seen.map(each => each[0]).join()") == "state,progress"
                wait_for(lambda: route.streams == 1, 30, lambda: f"{route.streams} streams")

                with proxy.refuse():
                    proxy.cut_all()
                    steps.release()
                    wait_for(lambda: app.handle(job_id).progress().note == "three")
                steps.release()
                tab.see("end {")
                assert tab.value("seen.filter(each => each[0] === 'end').length") == 1
                assert tab.value("seen.at(-1)[1].result") == "a result"
                assert tab.value("source.readyState") == 2
            finally:
                for _ in range(5):
                    steps.release()
                tab.go("about:blank")
                if worker.ident:
                    worker.join(30)
        assert not route.streams


@pytest.mark.slow
def test_a_browser_comes_back_after_the_server_was_restarted(database, conn, browser):
    """
    The stream is cut between browser and server: EventSource comes back with the id of its last
    event, and is told only what is new, also by another process.
    """
    app = App(database)
    job_id = enqueue(conn)
    routes = [asgi(app, authorize=anybody, every=0.1) for _ in range(2)]
    tab = browser.page()
    port = free_port()

    def server_of(route):
        config = uvicorn.Config(
            in_starlette(route), port=port, log_level="error", timeout_graceful_shutdown=0,
            lifespan="off",
        )  # fmt: skip
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        wait_for(lambda: server.started)
        return server, thread

    first, thread = server_of(routes[0])
    try:
        tab.go(f"http://127.0.0.1:{port}/page/1")
        tab.see('state {"state": "ready"')
        first.should_exit = True
        thread.join(30)
        first, thread = server_of(routes[1])
        wait_for(lambda: routes[1].streams == 1, 30, "it comes back")
        conn.execute("select forebay.cancel(%s)", [job_id])
        tab.see("end {")
        shown = tab.value("seen.map(each => each[0] + ' ' + each[1].state).join()")
        assert shown == "state ready,state cancelled,end cancelled"
    finally:
        tab.go("about:blank")
        first.should_exit = True
        thread.join(30)
