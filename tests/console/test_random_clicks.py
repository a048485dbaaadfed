"""Somebody clicks through the console at random while workers and the database die.

The walk follows links, sends forms with values that no form offers, and acts, with previews and
without. ``--seed N`` repeats its choices, ``--click-seconds N`` says how long it lasts, and
``--click-jobs N`` how many jobs wait meanwhile.
"""

import html.parser
import http.client
import itertools
import logging
import random
import threading
import time
from collections import Counter
from contextlib import contextmanager, nullcontext, suppress
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

import psycopg
import pytest
import uvicorn

from forebay.console import asgi
from forebay.console._acts import ACTS
from forebay.console._pages import PAGES
from tests.support.browser import chromium
from tests.support.engine import connect, enqueue, enqueue_many
from tests.support.fix_worker import make_effect_table
from tests.support.ports import free_port
from tests.support.waiting import wait_for
from tests.support.worker_process import crew

pytestmark = [pytest.mark.slow, pytest.mark.crash]

#: Values that a person, a script or an enemy puts into an address or a form.
VALUES = (
    "", " ", "'", '"><script>alert(1)</script>', "{{ 7 * 7 }}", "%00", "\x00", "a\nb", "\u202e",
    "\u0661\u0662", "-1", "0", "1", "9" * 18, "9" * 30, "1e309", "NaN", "-", "a" * 1500, "%", "*",
    "0001-01-01", "9999-12-31T23:59:59-14:00", "2026-11-30T12:00", "2026-02-30", "none", "dead",
    "mail", "still", "default", "partner", "nightly", "../../etc/passwd", "1; drop table log",
    "🐘",
)  # fmt: skip

#: What only an act of an operator may change: no worker works on any of this.
SETTLED = """
select jsonb_build_object(
    'paused', (select jsonb_agg(g.queue order by g.queue)
               from forebay.queue_group g where g.paused_at is not null),
    'limits', (select jsonb_agg(l order by l.queue) from forebay.queue_limits l
               where l.max_waiting is not null or l.rate is not null or l.concurrency is not null
                  or l.key_rate is not null or l.key_concurrency is not null),
    'endpoints', (select jsonb_agg(e order by e.name) from forebay.endpoint e),
    'schedules', (select jsonb_agg(jsonb_build_array(s.name, s.paused_at) order by s.name)
                  from forebay.schedule s),
    'muted', (select jsonb_agg(m.cause order by m.cause) from forebay.muted_cause m),
    'letters', (select jsonb_agg(jsonb_build_array(d.dead_id, d.redriven_as) order by d.dead_id)
                from forebay.dead_letter d where d.queue = 'still'),
    'jobs', (select jsonb_agg(jsonb_build_array(j.job_id, j.state, j.priority) order by j.job_id)
             from forebay.jobs(only_queue => 'still') j where j.state in ('ready', 'cancelled')))
    ::text,
    (select coalesce(max(e.event_id), 0) from forebay.event e where e.actor like '%(console)')
"""


class Form(NamedTuple):
    """A form of a page: where it goes, how, and the fields as the page offers them."""

    method: str
    action: str
    fields: dict[str, str]


class Answer(NamedTuple):
    """The answer to a request, after its redirects."""

    status: int
    path: str
    text: str


class Read(html.parser.HTMLParser):
    """What a person can click on in a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.forms: list[Form] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = {name: value or "" for name, value in attrs}
        if tag == "a" and given.get("href", "").startswith("/"):
            self.links.append(given["href"])
        elif tag == "form" and given.get("action"):
            self.forms.append(Form(given.get("method", "get"), given["action"], {}))
        elif tag in ("input", "select") and self.forms and given.get("name"):
            self.forms[-1].fields[given["name"]] = given.get("value", "")


class Log(logging.Handler):
    """Keeps what a console must never log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] in ("uvicorn", "starlette", "asyncio", "forebay"):
            self.found.append(logging.Formatter().format(record))


@contextmanager
def served(dsn: str):
    """Serve a console in which all may act; yield its address, and what it logs as an error."""
    log = Log()
    logging.getLogger().addHandler(log)
    config = uvicorn.Config(
        asgi(dsn, acts=True), port=free_port(), log_config=None, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield f"http://127.0.0.1:{config.port}", log.found
    finally:
        server.should_exit = True
        thread.join(30)
        logging.getLogger().removeHandler(log)


def prepare(conn) -> None:
    """Make things to click on: waiting jobs, dead letters, a schedule, an endpoint."""
    make_effect_table(conn)
    enqueue_many(
        conn,
        [
            {"kind": f"kind_{n % 3}", "queue": "still", "tag": f"tag_{n % 4}", "args": {"n": n}}
            for n in range(30)
        ],
    )
    for entry in range(20):
        enqueue(conn, kind="step", max_attempts=1, args={"entry": entry, "failures": 9})
    for statement in (
        "select forebay.create_endpoint('partner', 'http', '{\"url\": \"https://a.example\"}')",
        "select forebay.send('partner', '{\"order\": 1}', 'order.created')",
        "select forebay.create_schedule('nightly', 'tidy', cron => '0 3 * * *', queue => 'later')",
        "select forebay.push_subject('crawl', 'page 1', '{}', queue => 'crawler')",
    ):
        conn.execute(statement)


#: Jobs of one call: 200 kinds in 1,000 queues, which no worker serves.
MANY = """
select cardinality(forebay.enqueue_many(jsonb_agg(jsonb_build_object(
    'kind', 'bulk_' || i %% 200, 'queue', 'bulk_' || i %% 1000,
    'args', jsonb_build_object('i', i)))))
from generate_series(%s::bigint, %s::bigint) i
"""

#: Seconds after which no more of them are enqueued: a part of the night has its time.
MANY_SECONDS = 600.0


def enqueue_very_many(conn, jobs: int) -> int:
    """Enqueue jobs that wait during the clicks, for a while; return how many there are."""
    until = time.monotonic() + MANY_SECONDS
    made = 0
    while made < jobs and time.monotonic() < until:
        batch = min(10_000, jobs - made)
        made += conn.execute(MANY, [made, made + batch - 1]).fetchone()[0]
    return made


@contextmanager
def faults(server, workers, conn_of, rng: random.Random):
    """Kill workers, and now and then the database; jobs keep coming. Yield what was done."""
    ended = threading.Event()
    done: Counter[str] = Counter()

    def run() -> None:
        for turn in itertools.count():
            if ended.wait(rng.uniform(1.0, 4.0)):
                return
            with suppress(psycopg.Error), conn_of() as conn:
                for _ in range(5):
                    enqueue(conn, kind="step", args={"entry": turn, "failures": rng.randint(0, 2)})
            if turn % 4 == 1:
                rng.choice([one for one in workers.members if one.is_running]).kill()
                workers.start(wait=False)
                done["workers killed"] += 1
            elif turn % 8 == 6:
                server.kill()
                ended.wait(rng.uniform(0.0, 3.0))
                server.start()
                done["restarts"] += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield done
    finally:
        ended.set()
        thread.join(120)


class Walk:
    """Somebody who clicks at random.

    Args:
        address: of the console.
        dsn: the database, to see what changes.
        rng: chooses.
    """

    def __init__(self, address: str, dsn: str, rng: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self.last: list[str] = []
        self._rng = rng
        self._dsn = dsn
        self._address = address
        self._page = Read("")
        self._settled = self._look()
        self._posted_at = 0.0

    def step(self) -> str | None:
        """Do one thing; return the address of the page that it led to, None after a form."""
        sort, method, address, fields = self._choice()
        self.last.append(f"{method} {address} {fields if method == 'POST' else ''}")
        del self.last[:-10]
        if method == "POST":
            self._posted_at = time.monotonic()
        try:
            answer = self._ask(method, address, urlencode(fields) if method == "POST" else None)
        except TimeoutError:
            raise AssertionError("\n".join(["no answer within a minute", *self.last])) from None
        self.counts[f"{sort} {answer.status}"] += 1
        self._check(answer, method)
        self._page = Read(answer.text)
        return answer.path if method == "GET" and answer.status < 400 else None

    def _ask(self, method: str, address: str, body: str | None) -> Answer:
        """Send a request as a browser does, and follow where it leads."""
        conn = http.client.HTTPConnection(urlsplit(self._address).netloc, timeout=60)
        headers = {"Sec-Fetch-Site": "same-origin"}
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            conn.request(method, address, body, headers)
            found = conn.getresponse()
            text = found.read().decode()
        finally:
            conn.close()
        if found.status in (303, 307):
            return self._ask("GET", found.getheader("location", ""), None)
        return Answer(found.status, address, text)

    def _choice(self) -> tuple[str, str, str, dict[str, str]]:
        rng, page = self._rng, self._page
        sort = rng.choices(
            ("link", "form", "act", "address", "start"), weights=(45, 25, 12, 15, 3)
        )[0]
        if sort == "link" and page.links:
            return sort, "GET", rng.choice(page.links), {}
        if sort == "form" and page.forms:
            form = rng.choice(page.forms)
            fields = dict(form.fields)
            if rng.random() < 0.6:
                self._spoil(fields)
            if form.method == "post":
                return sort, "POST", form.action, fields
            return sort, "GET", f"{form.action}?{urlencode(fields)}", {}
        if sort == "act":
            name = rng.choice(list(ACTS))
            fields = {"act": name} | {
                field: rng.choice(VALUES) for field in ACTS[name].fields if rng.random() < 0.4
            }
            if rng.random() < 0.5:
                return "preview", "GET", f"/main/act?{urlencode(fields)}", {}
            return sort, "POST", "/main/act", fields | rng.choice(({}, {"token": "x"}))
        if sort == "address":
            path, _, query = rng.choice(
                [*page.links, *(f"/main{one.path}" for one in PAGES)]
            ).partition("?")
            fields = dict(parse_qsl(query, keep_blank_values=True))
            for name in rng.sample(NAMES, 2):
                fields[name] = rng.choice(VALUES)
            return sort, "GET", f"{path}?{urlencode(fields)}", {}
        return "start", "GET", "/main/", {}

    def _spoil(self, fields: dict[str, str]) -> None:
        for name in list(fields):
            if self._rng.random() < 0.3 and name != "act":
                fields[name] = self._rng.choice(VALUES)
            elif self._rng.random() < 0.05:
                del fields[name]

    def _check(self, answer: Answer, method: str) -> None:
        text = answer.text
        assert "Traceback" not in text or "/job" in answer.path or "/cause" in answer.path
        if answer.status >= 500:
            # A database that is away, or too slow after its start, is said on a page.
            said = ("The database is away", "This took too long")
            assert answer.status == 503, self._told(answer)
            assert any(one in text for one in said), self._told(answer)
            if self._rng.random() < 0.3:
                wait_for(lambda: self._look() is not None, 120)
        seen = self._look()
        if seen is None or self._settled is None:
            self._settled = self._settled or seen
            return
        (before, event), (now, later) = self._settled, seen
        assert now == before or later > event, (
            f"changed without an event:\n{before}\n{now}\n{self._told(answer)}"
        )
        # A long act goes on after its form.
        if method == "GET" and time.monotonic() - self._posted_at > 20:
            assert later == event, f"a GET acted\n{self._told(answer)}"
        self._settled = seen

    def _told(self, answer: Answer) -> str:
        steps = "\n".join(self.last)
        return f"{answer.status} {answer.path}\nlast steps:\n{steps}\n{answer.text[:3000]}"

    def _look(self) -> tuple[str, int] | None:
        """Return what is settled and the last event of the console; None: the database is away."""
        with suppress(psycopg.Error), connect(self._dsn) as conn:
            return conn.execute(SETTLED).fetchone()
        return None


#: Parts of addresses that some page reads.
NAMES = (
    "queue", "kind", "tag", "state", "what", "cause", "name", "before", "after", "since", "until",
    "span", "column", "from", "problem", "contains", "enqueued_after", "enqueued_before", "q",
    "number", "endpoint", "ordering_key", "limit_key", "subject", "unique_key", "correlation_id",
)  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "jobs", "is_faulty"),
    [
        pytest.param(20.0, 20_000, True, id="short"),
        pytest.param(1800.0, 10_000_000, False, id="long", marks=pytest.mark.nightly),
        pytest.param(1800.0, 10_000_000, True, id="long-faults", marks=pytest.mark.nightly),
    ],
)
def test_no_click_breaks_the_console_or_changes_anything_without_an_event(
    own_server, own_database, effects, seconds, jobs, is_faulty, seed, pytestconfig
):
    """
    Every answer is a page: no status above 499 but that the database is away or too slow, and no
    exception in the console's log or in a browser. What only an operator changes does not change
    without an act in the event log, and no GET acts.
    """
    seconds = pytestconfig.getoption("--click-seconds") or seconds
    rng = random.Random(seed)
    jobs = jobs if (given := pytestconfig.getoption("--click-jobs")) is None else given
    with connect(own_database) as conn:
        prepare(conn)
        print(f"{enqueue_very_many(conn, jobs):,} jobs wait")
    with (
        crew(own_database, effects.path) as workers,
        served(own_database) as (address, logged),
        chromium() as browser,
    ):
        workers.start()
        workers.start()
        tab = None if browser is None else browser.page()
        walk = Walk(address, own_database, rng)
        until = time.monotonic() + seconds
        with (
            faults(own_server, workers, lambda: connect(own_database), random.Random(seed + 1))
            if is_faulty
            else nullcontext(Counter())
        ) as done:
            for number in itertools.count():
                if time.monotonic() > until:
                    break
                path = walk.step()
                assert logged == [], "\n".join([*logged, *walk.last])
                if tab is not None and path is not None and number % 20 == 0:
                    tab.go(urljoin(address, path))
                    tab.wait(f"location.pathname === {urlsplit(path).path!r}", 60)
                    done["pages in a browser"] += 1
        if tab is not None:
            # What the server answers with an error is seen above.
            known = ("status of 4", "status of 503", "ERR_INCOMPLETE", "ERR_CONNECTION")
            problems = [one for one in tab.problems if not any(each in one for each in known)]
            assert problems == []
            tab.go("about:blank")
        print(number, "steps", dict(done), dict(walk.counts))
        assert number > seconds / 2
    assert logged == []
