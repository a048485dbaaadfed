"""The pages of the console: what each answers, and what no page lets happen."""

import asyncio
import gc
import html
import json
import math
import re
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, quote, urlsplit

import anyio
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from forebay.client.reader import Reader, ReadTooSlow
from forebay.console import Console, User, asgi
from forebay.console._causes import shown_on
from forebay.console._pages import COLUMNS, PAGES
from forebay.console._source import Sample, Source
from forebay.errors import ConfigError, DatabaseUnavailable
from forebay.model.problems import Problem
from forebay.ops.operation import Operation, nothing
from tests.support.counting import count_each_minute
from tests.support.engine import enqueue, enqueue_many, one
from tests.support.waiting import wait_for, wait_for_async

#: What a producer can write into every field; as text it is harmless.
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{ 7 * 7 }}"

#: What an audit of a mirror says, which found eight differences.
AUDIT = {"compared": "hash"} | dict.fromkeys(
    ("seconds", "items", "copies", "rows", "ranges", "differed", "suspects", "missing", "stale",
     "orphaned", "ahead"), 2,
)  # fmt: skip


@pytest.fixture
def browse(database):
    """A client of a console of the test's database."""
    with TestClient(asgi(database), base_url="http://127.0.0.1:8040") as client:
        yield client


@pytest.fixture
def busy(conn, app):
    """A database with something on each page."""

    @app.job(queue="mail", max_attempts=1)
    def send(user: int) -> None:
        raise ConnectionError(f"no route to user {user} {HOSTILE}")

    for user in range(3):
        send.enqueue(conn, user=user)
    app.run_worker(until_idle=True)
    enqueue(
        conn, kind="waiting", args={"note": HOSTILE}, queue="slow", tag=HOSTILE[:60],
        correlation_id="order-42",
    )  # fmt: skip
    for statement in (
        "select forebay.push_subject('crawl', 'a.example', '{\"url\": 1}', queue => 'crawler')",
        "select forebay.create_endpoint('partner', 'http', '{\"url\": \"https://a.example\"}')",
        "select forebay.send('partner', '{\"order\": 1}', 'order.created')",
        "select forebay.create_schedule('nightly', 'tidy', cron => '0 3 * * *')",
        "select forebay.pause_queue('slow')",
        f"select forebay.record_audit('pages', '{json.dumps(AUDIT)}')",
    ):
        conn.execute(statement)
    return conn


def text_of(answer) -> str:
    """What a person reads of a page."""
    body = re.sub(r"(?s)<(script|style|head)\b.*?</\1>", " ", answer.text)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


#: Each page with what it must show of a busy database.
SHOWN = {
    "": ("problem", "mail", "slow", "not served"),
    "jobs": ("waiting", "order.created", "rows were looked at"),
    "jobs?queue=slow": ("waiting",),
    "jobs?state=dead": ("send",),
    "jobs?kind=nothing": ("No job matches",),
    "failures": ("ConnectionError", "3 dead letters"),
    "workers": ("Ended in the last day", "stopped"),
    "keys": ("No job waits for its key",),
    "schedules": ("nightly", "0 3 * * *", "crawler"),
    "endpoints": ("partner", "http"),
    "mirrors": ("pages", "8 differences that no job repairs"),
    "database": ("oldest transaction", "segments of the log", "Who holds back vacuum"),
    "doctor": ("server",),
    "events": ("queues.pause", "slow"),
    "queue?queue=slow": ("paused", "By kind"),
    "queue?queue=mail&span=month": ("dead", "send"),
    "job?what=order-42": ("Found as correlation id", "slow"),
    "schedule?name=nightly": ("0 3 * * *",),
    "subjects?queue=crawler": ("a.example",),
    "subject?queue=crawler&name=a.example": ("scheduled",),
    "endpoint?name=partner": ("order.created", "https://a.example"),
    "find?q=order-42": ("Found as correlation id",),
}


def test_each_page_shows_what_there_is(busy, browse):
    """
    Each page answers its question, and what a producer wrote is text there.
    """
    cause = one(busy, "select cause from forebay.dead_letter limit 1")
    dead = one(busy, "select job_id from forebay.dead_letter limit 1")
    shown = SHOWN | {f"cause?cause={cause}": ("no route to user",)}
    shown |= {f"job?what={dead}": ("ConnectionError", "Failed attempts", "redrive")}
    for path, words in shown.items():
        answer = browse.get(f"/main/{path}")
        assert answer.status_code == 200, (path, text_of(answer))
        for word in words:
            assert word in text_of(answer), (path, word, text_of(answer))
        assert "<script>alert" not in answer.text, path
        assert "<img" not in answer.text.replace('<img src="/static/mark.svg', ""), path
        assert "49" not in re.findall(r"x=x onerror.{0,40}", text_of(answer)), path
    visited = {path.partition("?")[0] for path in shown}
    assert visited == {page.path.removeprefix("/") for page in PAGES}, "a page that is not tried"


def test_an_empty_database_says_what_to_type(browse):
    """
    Each page works before anything exists, and gives a first command.
    """
    for page in PAGES:
        path = page.path
        if not page.title:
            continue
        answer = browse.get(f"/main{path}")
        assert answer.status_code == 200, (path, text_of(answer))
    assert "forebay enqueue KIND" in text_of(browse.get("/main/jobs"))
    assert "Nothing to do" in text_of(browse.get("/main/"))


@pytest.mark.parametrize(
    ("code", "subject", "path"),
    [
        ("A3", "mail", "failures?queue=mail"),
        ("A1", "a b&c", "queue?queue=a+b%26c"),
        ("breaker", "partner", "endpoint?name=partner"),
        ("breaker", "pages", "mirrors"),
        ("breaker", "mail", "keys?queue=mail"),
        ("snapshot", "", "database"),
        ("locks", "", "doctor"),
    ],
)
def test_a_problem_leads_to_the_page_that_shows_its_cause(code, subject, path):
    """
    By its code and its subject; what only the doctor knows is on the page of the doctor.
    """
    problem = Problem(
        name="", severity="error", cause="", command="", hint="", code=code, subject=subject
    )
    data = {"endpoints": [{"endpoint": "partner"}], "mirrors": [{"mirror": "pages"}]}
    assert shown_on(problem, data) == path


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/main/job?what=999999", 404, "No job has"),
        ("/main/queue?queue=never", 404, "No job was ever"),
        ("/main/cause?cause=none", 404, "No dead letter"),
        ("/main/schedule?name=none", 404, "No schedule"),
        ("/main/subject?queue=a&name=b", 404, "has no such subject"),
        ("/main/endpoint?name=none", 404, "No endpoint"),
        ("/main/job", 400, "what is missing"),
        ("/main/jobs?state=broken", 400, "States are scheduled"),
        ("/main/jobs?before=abc", 400, "not a whole number"),
        ("/main/jobs?enqueued_after=soon", 400, "not a time"),
        ("/main/queue?queue=a&span=century", 400, "not one of hour, day, month"),
        ("/main/queue?queue=a&since=soon", 400, "not a time"),
        ("/main/queue?queue=a&since=9999-12-31", 400, "not before until"),
        ("/main/queue?queue=a&since=2026-01-02&until=2026-01-01", 400, "not before until"),
        ("/main/job?what=" + "x" * 1001, 400, "1001 characters"),
        ("/other/", 404, "No database is called other"),
        ("/main/nothing", 404, "Not here"),
        ("/static/../_web.py", 404, "Not here"),
        ("/static/%2e%2e/_web.py", 404, "Not here"),
    ],
)
def test_what_does_not_work_is_a_page_that_says_why(browse, path, status, words):
    """
    A wrong address is answered with a typed error and its hint, not with a traceback.
    """
    answer = browse.get(path)
    assert answer.status_code == status
    assert words in text_of(answer)


def test_a_range_of_the_curves_is_in_the_address_and_moves_by_links(browse, conn):
    """
    What it shows lies in it, by the finest step that is kept and few enough; earlier, later, in and
    out lead to ranges of the right lengths, and the spans lead back. All this without a script.
    """
    now = datetime.now(UTC)
    count_each_minute(conn, "mail", 180)
    since, until = now - timedelta(hours=2), now - timedelta(hours=1)
    address = {"queue": "mail", "since": since.isoformat(), "until": until.isoformat()}
    page = browse.get("/main/queue", params=address)
    assert page.status_code == 200, page.text
    times = [float(x) for x in re.search(r'data-times="([^"]*)"', page.text)[1].split()]
    assert len(times) == 60
    assert since.timestamp() <= times[0] < times[-1] <= until.timestamp()
    assert "by the minute" in text_of(page)

    def linked(page, text: str) -> tuple[datetime, datetime]:
        found = re.search(f'<a class="move" href="([^"]*)">{text}</a>', page.text)
        query = parse_qs(urlsplit(html.unescape(found[1])).query)
        assert query["queue"] == ["mail"]
        return tuple(datetime.fromisoformat(query[name][0]) for name in ("since", "until"))

    for text, begin, end in (
        ("earlier", -0.5, 0.5), ("later", 0.5, 1.5), ("in", 0.25, 0.75), ("out", -0.5, 1.5),
    ):  # fmt: skip
        for found, place in zip(linked(page, text), (begin, end), strict=True):
            assert abs(found - since - place * timedelta(hours=1)) < timedelta(seconds=0.01)
    assert 'href="/main/queue?queue=mail&amp;span=hour"' in page.text
    usual = browse.get("/main/queue?queue=mail")
    assert "later" not in re.findall('<a class="move" href="[^"]*">(.*?)</a>', usual.text)
    shorter = linked(usual, "in")
    assert shorter[1] - shorter[0] == pytest.approx(timedelta(minutes=30), abs=timedelta(seconds=1))
    # Each end that is far away is cut to what is kept; nothing at all is no error.
    for ends in (
        {"since": "0001-01-01"},
        {"since": "0001-01-01", "until": "9999-12-31T23:59:59"},
        {"since": (now - timedelta(minutes=5)).isoformat()},
        {"since": (now - timedelta(days=9)).isoformat(), "until": until.isoformat()},
        {"until": (now - timedelta(days=9)).isoformat()},
    ):
        assert browse.get("/main/queue", params={"queue": "mail", **ends}).status_code == 200
    empty = browse.get("/main/queue", params={"queue": "mail", "until": "2026-01-01"})
    assert "Too little happened" in text_of(empty)


def test_a_database_that_is_away_is_said_on_the_page():
    """
    Every page is an answer with status 503 and the reason.
    """
    with TestClient(
        asgi("postgresql://nobody@127.0.0.1:1/none"), base_url="http://localhost"
    ) as client:
        for path in ("", "jobs", "workers", "doctor"):
            answer = client.get(f"/main/{path}")
            assert answer.status_code == 503, text_of(answer)
            assert "The database is away" in text_of(answer)


def test_a_database_without_the_schema_says_so(empty_database):
    """
    The page has the hint of the error.
    """
    with TestClient(asgi(empty_database), base_url="http://localhost") as client:
        answer = client.get("/main/")
    assert answer.status_code == 503
    assert "forebay migrate" in text_of(answer)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "[::1", "localhost."]
)
def test_a_host_that_is_not_known_is_refused(browse, host):
    """
    A page of a stranger cannot reach the console through a name that points to this machine.
    """
    answer = browse.get("/main/", headers={"host": host})
    assert answer.status_code == 421
    assert "text/plain" in answer.headers["content-type"]


@pytest.mark.parametrize("host", ["localhost:8040", "LOCALHOST", "127.0.0.1", "[::1]:8040"])
def test_the_hosts_of_this_machine_are_known(browse, host):
    """
    With any port, in any case.
    """
    assert browse.get("/main/workers", headers={"host": host}).status_code == 200


def test_every_answer_forbids_scripts_frames_and_other_origins(browse):
    """
    The headers are on pages, files, refusals and errors.
    """
    for path, host in [
        ("/main/workers", "localhost"), ("/static/console.css", "localhost"),
        ("/nothing", "localhost"), ("/main/jobs?before=x", "localhost"), ("/main/", "evil"),
    ]:  # fmt: skip
        headers = browse.get(path, headers={"host": host}).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
    page = browse.get("/main/workers")
    assert page.headers["cache-control"] == "no-store"
    inline = r"(?i)<[^>]+\s(style|on[a-z]+)=|<script(?! src=)|<style|javascript:"
    assert not re.search(inline, page.text)


def test_nothing_can_be_changed(browse):
    """
    The console has no address that takes anything but a read.
    """
    for page in PAGES:
        for method in ("post", "put", "delete", "patch"):
            assert getattr(browse, method)(f"/main{page.path}").status_code == 405


def test_a_statement_that_writes_is_refused_by_the_session(database, conn):
    """
    Even the owner of the schema reads only, and a statement ends after its time.
    """

    async def read(query: str, seconds: float = 2.0) -> None:
        reader = Reader(database, name="test", seconds=seconds)
        try:
            await reader.run(Operation(query, nothing))
        finally:
            await reader.close()

    with pytest.raises(DatabaseUnavailable, match="read-only transaction"):
        anyio.run(read, "select forebay.enqueue('work', '{}')")
    with pytest.raises(ReadTooSlow, match="did not answer within"):
        anyio.run(read, "select pg_sleep(60)", 0.2)
    assert one(conn, "select count(*) from forebay.jobs()") == 0


def test_who_may_look_is_decided_by_the_application(database):
    """
    A request without a user is refused on every address, also that of the changes.
    """
    seen = []

    async def authorize(request):
        seen.append(request.url.path)
        return User("ada") if request.headers.get("x-user") == "ada" else None

    app = asgi(database, authorize=authorize)
    with TestClient(app, base_url="http://localhost") as client:
        for path in [*(page.path for page in PAGES), "/live"]:
            assert client.get(f"/main{path}").status_code == 403, path
        assert client.get("/main/workers", headers={"x-user": "ada"}).status_code == 200
    assert "/main/live" in seen


def test_it_is_mounted_under_a_prefix_and_serves_several_databases(database):
    """
    Each address that a page names begins with the prefix and the database.
    """
    console = asgi({"shop": database, "mail": database})

    @asynccontextmanager
    async def lifespan(_app):
        yield
        await console.close()

    app = Starlette(routes=[Mount("/ops/queue", console)], lifespan=lifespan)
    with TestClient(app, base_url="http://localhost") as client:
        assert client.get("/ops/queue/").url.path == "/ops/queue/shop/"
        page = client.get("/ops/queue/mail/workers")
        assert page.status_code == 200
        found = re.findall(r'(?:href|src|action|data-live)="([^"]*)"', page.text)
        assert found
        assert {one.startswith("/ops/queue/") or one == "#main" for one in found} == {True}
        assert client.get("/ops/queue/static/console.css").status_code == 200


@pytest.mark.parametrize(
    "databases", [{}, {"": "x"}, {"a b": "x"}, {"a/b": "x"}, {"static": "x"}, {"ä": "x"}], ids=str
)
def test_a_name_that_would_be_no_address_is_refused(databases):
    """
    At the start, by name.
    """
    with pytest.raises(ConfigError):
        asgi(databases)
    with pytest.raises(ConfigError, match="hosts"):
        asgi("x", hosts=())
    for host in ("", "a\nb", "x:80", "é", "http://x", "[x]"):
        with pytest.raises(ConfigError, match="not a name or address"):
            asgi("x", hosts=(host,))


@pytest.mark.anyio
async def test_sessions_close_after_the_last_read(database, conn, monkeypatch):
    """
    A console that is mounted, and whose host never calls it at its end, leaves no session open.
    """
    monkeypatch.setattr("forebay.client.reader._IDLE_SECONDS", 0.05)
    reader = Reader(database, name="a reader that rests")
    sessions = (
        "select count(*) from pg_stat_activity where application_name = 'a reader that rests'"
    )
    await reader.run(Operation("select 1", nothing))
    assert one(conn, sessions) == 1
    await wait_for_async(lambda: one(conn, sessions) == 0)
    await reader.run(Operation("select 1", nothing))
    await reader.close()


MANY = """
select forebay.enqueue_many(jsonb_agg(jsonb_build_object('kind', 'work', 'queue', 'q' || i)))
from generate_series(1, 120) i
"""


def rows_of(answer, part: str) -> int:
    """How many rows a part of a page has."""
    (found,) = re.findall(rf'(?s)id="{part}".*?</table>', answer.text)
    return found.count("<tr>") - 1


def test_a_list_of_very_many_is_shown_in_parts(conn, browse):
    """
    A page of 1,000 queues is no larger than one of 50, says how many there are, and leads to the
    rest; each is shown once, and an address behind the last one shows the last.
    """
    conn.execute(MANY)
    page = browse.get("/main/")
    assert rows_of(page, "queues") == 50
    assert "1 to 50 of 120" in text_of(page)
    seen = set(re.findall(r"queue=(q\d+)", page.text))
    while "Continue" in text_of(page).partition("of 120")[2]:
        link = re.findall(r'href="([^"]*)" rel="next"', page.text)[-1]
        page = browse.get(html.unescape(link))
        seen |= set(re.findall(r"queue=(q\d+)", page.text))
    assert seen == {f"q{number}" for number in range(1, 121)}
    assert "120 to 120 of 120" in text_of(browse.get("/main/?queue=9999"))
    assert browse.get("/main/?queue=-1").status_code == 400
    assert text_of(browse.get("/main/doctor")).count(" not served") < 120


def test_very_many_problems_are_counted_and_shown_in_parts(browse, monkeypatch):
    """
    A thousand queues without a worker are a thousand problems: ten are shown, the worst first.
    """

    async def found(*_, **__):
        return [
            Problem(name=f"p{n}", severity="warning", cause="x", command="", hint="x", code="x")
            for n in range(25)
        ]

    monkeypatch.setattr("forebay.console._source.current_problems", found)
    page = browse.get("/main/")
    assert "25 problems" in text_of(page)
    assert page.text.count('<li class="problem ') == 10
    assert "p9" in text_of(page)
    last = browse.get("/main/?problem=20")
    assert "21 to 25 of 25" in text_of(last)
    assert "p24" in text_of(last)


def test_a_search_by_state_says_how_far_it_looked_and_goes_on(conn, browse):
    """
    The states of 100 jobs are asked for on a page: a page may find nothing and lead to a match.
    """
    conn.execute("select forebay.enqueue('first', '{}', 'other', delay => '1 hour')")
    enqueue(conn, kind="first", queue="mail")
    job = one(conn, "select max(job_id) from forebay.jobs('mail')")
    conn.execute("select forebay.cancel(%s)", [job])
    for _ in range(3):
        conn.execute(MANY)
    found, path, pages = "", "/main/jobs?state=cancelled&queue=", 0
    while f">{job}</a>" not in found:
        page = browse.get(path)
        found, pages = page.text, pages + 1
        assert "the states of at most 100 jobs" in text_of(page) or pages == 4
        path = html.unescape((re.findall(r'href="([^"]*)" rel="next"', found) or [path])[0])
    assert pages == 4


@pytest.mark.anyio
async def test_a_page_does_not_wait_for_numbers_that_are_only_due(database, monkeypatch):
    """
    With very many queues a sample takes a second. A page shows the last one, and the next page a
    newer one. After an act of a person, and when it is too old, the page waits.
    """
    source = Source("main", database)
    first = await source.overview()
    problems = await source.problems()
    whole, release = source._read_measurements, asyncio.Event()

    async def slow():
        await release.wait()
        return await whole()

    monkeypatch.setattr(source, "_read_measurements", slow)
    monkeypatch.setattr("forebay.console._source._SHARE", math.inf)
    monkeypatch.setattr("forebay.console._source.SAMPLE_SECONDS", 0.0)
    monkeypatch.setattr("forebay.console._source.PROBLEMS_SECONDS", 0.0)
    assert await source.overview() is first
    assert await source.problems() is problems
    release.set()
    await wait_for_async(lambda: source._overview is not first)
    second = await source.overview()
    source.forget()
    assert await source.overview() not in (first, second)
    monkeypatch.setattr("forebay.console._source.OLD_SECONDS", 0.0)
    last = source._overview
    assert await source.overview() is not last
    await source.close()


def test_samples_that_take_long_are_rarer(database):
    """
    The sampler takes at most a fifth of the time, however many queues there are.
    """
    source = Source("main", database)
    assert source._period == 2
    source._took_seconds = 3.0
    assert source._period == 15


def test_all_viewers_get_one_page_of_a_sample(browse, monkeypatch):
    """
    The overview is made once for each sample, and not once for each viewer.
    """
    monkeypatch.setattr("forebay.console._source.SAMPLE_SECONDS", 60.0)
    monkeypatch.setattr("forebay.console._source.PROBLEMS_SECONDS", 60.0)
    monkeypatch.setattr("forebay.console._source.OLD_SECONDS", 60.0)
    made = []
    whole = Console._page
    monkeypatch.setattr(
        Console, "_page", lambda self, *given: (made.append(given[1]), whole(self, *given))[1]
    )
    pages = {browse.get("/main/").text for _ in range(5)}
    assert (len(pages), made) == (1, ["overview.html"])
    assert browse.get("/main/?queue=1").status_code == 200
    assert made == ["overview.html"] * 2


@pytest.mark.anyio
async def test_nobody_looks_and_nothing_runs(database, conn, monkeypatch):
    """
    The sampler begins with the first viewer, is one for all, and ends with the last.
    """
    source = Source("main", database)
    samples = []
    whole = source._sample

    async def counted() -> None:
        samples.append(1)
        await whole()

    monkeypatch.setattr(source, "_sample", counted)
    monkeypatch.setattr("forebay.console._source.SAMPLE_SECONDS", 0.05)
    assert source._sampling is None
    first, second = source.changes(), source.changes()
    await first.__anext__()
    await second.__anext__()
    assert source._sampling is not None
    await first.aclose()
    assert source._sampling is not None
    source._counting = asyncio.create_task(asyncio.sleep(600))
    await second.aclose()
    assert source._sampling is None
    await wait_for_async(source._counting.done)
    await source.close()
    sessions = "select count(*) from pg_stat_activity where application_name = 'forebay console'"
    wait_for(lambda: one(conn, sessions) == 0)


def test_what_happened_is_marked_on_the_curves_with_a_link_to_its_events(busy, browse):
    """
    The pause of a queue is a mark on the overview and on the page of its queue; what happened at
    the same time is one mark with it. Its list is text, and its link shows the event.
    """
    source = browse.app._sources["main"]
    now = one(busy, "select extract(epoch from now())::float8")
    for ago in (600, 300):
        source.samples.append(Sample(now - ago, 1, 1.0, 0, 0.0))
    busy.execute("select forebay.fold_v1(10000, p_is_forced => true)")
    for minutes in (-5, 30):
        busy.execute(
            "insert into forebay.counter_sample select 'minute', c.cell_id, now() - %s * interval"
            " '1 minute', (select totals from forebay.counter n where n.cell_id = c.cell_id"
            " order by no desc limit 1) from forebay.counter_cell c", [minutes],
        )  # fmt: skip
    for path, kind in (("", "acts"), ("queue?queue=slow", "act")):
        answer = browse.get(f"/main/{path}")
        assert re.search(r'<svg class="marks"[^>]*aria-hidden="true"><a class="a', answer.text)
        assert "queues.pause slow by" in text_of(answer)
        (address,) = re.findall(
            rf'<li><a class="mark a\w+" href="([^"]*)">[^<]*{kind}<', answer.text
        )
        shown = browse.get(html.unescape(address))
        assert shown.status_code == 200
        assert "queues.pause" in text_of(shown)


def test_the_columns_that_a_person_chooses_are_in_the_address(busy, browse):
    """
    They stay when older jobs are shown, in the order of the page; an unknown one is refused.
    """
    heads = r"<th[^>]*>([^<]+)</th>"
    assert re.findall(heads, browse.get("/main/jobs").text)[:3] == ["job", "state", "queue"]
    every = "&".join(f"column={quote(one)}" for one in COLUMNS)
    assert re.findall(heads, browse.get(f"/main/jobs?{every}").text) == ["job", *COLUMNS]
    answer = browse.get("/main/jobs?queue=slow&column=correlation+id&column=tag")
    assert re.findall(heads, answer.text) == ["job", "tag", "correlation id"]
    assert "order-42" in text_of(answer)
    assert 'href="/main/jobs?column=tag&amp;column=correlation+id">All<' in answer.text
    assert 'href="/main/jobs?queue=slow">Usual columns<' in answer.text
    enqueue_many(busy, [{"kind": "work", "queue": "many"}] * 60)
    answer = browse.get("/main/jobs?column=state&column=kind")
    (older,) = re.findall(r'href="([^"]*)" rel="next"', answer.text)
    assert re.findall(heads, browse.get(html.unescape(older)).text) == ["job", "state", "kind"]
    refused = browse.get("/main/jobs?column=password")
    assert refused.status_code == 400
    assert "Columns are state" in text_of(refused)


def test_failed_attempts_are_shown_by_minute(busy, browse):
    """
    Each queue and kind has its failures of the last hour as a curve; a filter leaves the others
    out, and of too many to read the page says so.
    """
    busy.execute("select forebay.fold_v1(10000, p_is_forced => true)")
    answer = browse.get("/main/failures")
    assert "send mail failed attempts by minute, at most 3 3 3" in text_of(answer)
    assert "No failed attempt was counted" in text_of(browse.get("/main/failures?kind=other"))
    assert "No failed attempt was counted" in text_of(browse.get("/main/failures?queue=slow"))
    source = browse.app._sources["main"]
    read = source.read

    async def impatient(operation):
        if "stats_series" in operation.sql:
            raise ReadTooSlow("it took too long")
        return await read(operation)

    source.read = impatient
    assert "Choose a queue" in text_of(browse.get("/main/failures?queue=mail"))
    source._minutes._until = 0.0
    answer = browse.get("/main/failures")
    assert answer.status_code == 200
    assert "Choose a queue" in text_of(answer)
    source.read = read  # what took too long is not asked at once again
    assert "Choose a queue" in text_of(browse.get("/main/failures"))


def test_what_happened_is_read_once_for_all_viewers(busy, browse):
    """
    Within some seconds the marks of the overview cost no statement.
    """
    source = browse.app._sources["main"]
    now = one(busy, "select extract(epoch from now())::float8")
    source.samples.extend(Sample(now - ago, 1, 1.0, 0, 0.0) for ago in (600, 300))
    browse.get("/main/")
    first = source._happened._found
    browse.get("/main/")
    assert first is not None
    assert source._happened._found is first


def test_the_page_of_a_queue_says_why_it_does_not_move(conn, browse):
    """
    A queue that no worker ever served is no alert, and a pause is none; the page says both.
    """
    for queue in ("nobody", "resting"):
        enqueue(conn, queue=queue)
    conn.execute("select forebay.pause_queue('resting')")
    unserved = text_of(browse.get("/main/queue?queue=nobody"))
    assert "No worker serves it, so 1 job waits" in unserved
    assert "forebay worker MODULE:APP --queue nobody" in unserved
    paused = text_of(browse.get("/main/queue?queue=resting"))
    assert "Paused: no worker takes its jobs until it is resumed" in paused
    for page in (unserved, paused):
        assert "no problem is known" not in page


@pytest.mark.anyio
async def test_a_count_beside_the_sample_that_fails_is_no_error_of_the_log(
    database, monkeypatch, caplog
):
    """
    The database went away while a backlog was counted: the next sample asks for the count again.
    """
    asked = []

    async def fail(dsn):
        asked.append(dsn)
        raise DatabaseUnavailable("it is away")

    monkeypatch.setattr("forebay.console._source.count_each_backlog", fail)
    source = Source("main", database)
    run = source._sampler.run

    async def slow_once(operation):
        source._sampler.run = run
        raise ReadTooSlow("it took too long")

    try:
        for _ in range(2):
            source._sampler.run = slow_once
            await source._read_measurements()
            await wait_for_async(lambda: source._counting.done())
            source._counting = None
            gc.collect()
    finally:
        await source.close()
    assert asked == [source.address] * 2
    assert "never retrieved" not in caplog.text
