"""Attacks on the console: what a producer writes, a foreign page sends, and a path climbs to."""

import html
import json
import re
from html.parser import HTMLParser
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

import anyio
import pytest
from psycopg.types.json import Jsonb
from starlette.testclient import TestClient

from forebay.console import User, asgi
from forebay.console._acts import ACTS, FILTER
from forebay.console._pages import PAGES
from forebay.errors import ConfigError
from tests.support.engine import Reader, enqueue, one
from tests.support.mutant import break_function, violation
from tests.support.waiting import wait_for

SAME = {"sec-fetch-site": "same-origin"}


@pytest.fixture
def browse(database):
    """A client of a console in which all may act."""
    app = asgi(database, acts=True)
    with TestClient(app, base_url="http://localhost", follow_redirects=False) as client:
        yield client


def hostile(field: str) -> str:
    """What breaks out of text, of an attribute, a comment and a script if it is let."""
    return f"\"'--></script><xss-{field} xss-{field}=1 onload=alert(1)>{{{{7*7}}}}"


class Seen(HTMLParser):
    """A page as a browser reads it: its links, its text, and what must not be there."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fields: set[str] = set()
        self.wrong: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name.startswith(("xss-", "on")) or name in ("style", "srcdoc"):
                self.wrong.append(f"{tag} {name}={value}")
            if name in ("href", "src", "action", "formaction", "data-live", "data-base"):
                if not re.match(r"/(?![/\\])|#main$", value or ""):
                    self.wrong.append(f"{tag} {name}={value}")
                elif name == "href":
                    self.links.append(value)
            self.fields |= set(re.findall(r"<xss-(\w+)", value or ""))
        if tag.startswith("xss-") or (tag == "script" and "src" not in dict(attrs)):
            self.wrong.append(tag)

    def handle_data(self, data):
        self.fields |= set(re.findall(r"<xss-(\w+)", data))


#: What makes a header of a redirect.
HEADER = "\r\nx-query: 1\r\nset-cookie: a=1\r\n\r\n"

#: What a producer, a handler, a worker or an operator can write freely.
FIELDS = {
    "tag", "correlation", "ordering", "limit", "header", "value", "arg", "argvalue", "error",
    "result", "resultvalue",
    "message", "file", "subject", "subjectarg", "note", "why", "config", "description",
    "worker", "app", "version", "forebay", "actor", "payload",
}  # fmt: skip


@pytest.fixture
def poisoned(conn, app):
    """A database in which each free text is hostile. Names are letters, digits and ``_ . : -``."""
    failure = type(hostile("error"), (Exception,), {})

    @app.job(queue="mail", max_attempts=1)
    def send() -> None:
        source = f"raise failure({hostile('message')!r})"
        exec(compile(source, hostile("file"), "exec"), {"failure": failure})

    @app.job(queue="mail", keep_result=True)
    def give() -> dict[str, str]:
        return {hostile("result"): hostile("resultvalue")}

    send.enqueue(conn)
    give.enqueue(conn)
    app.run_worker(until_idle=True)
    more = {
        "args": {hostile("arg"): hostile("argvalue")},
        "headers": Jsonb({hostile("header"): hostile("value")}),
    }
    for _ in range(2):
        enqueue(conn, queue="keyed", tag=hostile("tag"), correlation_id=hostile("correlation"),
                ordering_key=hostile("ordering"), **more)  # fmt: skip
        enqueue(conn, queue="limited", limit_key=hostile("limit"))
    for queue in ("keyed", "limited"):
        with Reader(conn.info.dsn, queue) as reader:
            reader.claim(1)
    conn.execute("select forebay.limit_queue('limited', key_concurrency => 1)")
    config = {"url": "https://a.example", "headers": {"x": hostile("config")}}
    names = {"app": "app", "app_version": "version", "version": "forebay"}
    details = {name: hostile(field) for name, field in names.items()}
    for query, *values in (
        ("select forebay.push_subject('crawl', %s, jsonb_build_object('a', %s::text), null, '5 s')",
         hostile("subject"), hostile("subjectarg")),
        ("select forebay.create_endpoint('partner', 'http', %s)", json.dumps(config)),
        ("select forebay.create_event_type('order.created', %s)", hostile("description")),
        ("select forebay.send('partner', jsonb_build_object('a', %s::text))", hostile("payload")),
        ("select forebay.disable_endpoint('partner', %s)", hostile("why")),
        ("select forebay.create_schedule('nightly', 'tidy', cron => '0 3 * * *')",),
        ("select forebay.pause_schedule('nightly', %s)", hostile("note")),
        ("select set_config('forebay.actor', %s, false)", hostile("actor")),
        ("select forebay.pause_queue('mail')",),
        ("update forebay.lease set worker = %s, details = %s where closed_at is null",
         hostile("worker"), json.dumps(details)),
    ):  # fmt: skip
        conn.execute(query, values or None)
    return conn


@pytest.mark.slow
def test_what_others_wrote_is_text_on_every_page(poisoned, browse):
    """
    Every page that links lead to, with every button, is read as a browser reads it: each hostile
    field is seen as text, and none became an element, an attribute, a link elsewhere or a header.
    """
    dead = one(poisoned, "select cause from forebay.dead_letter limit 1")
    waiting = ["/main/", *(f"/main{page.path}" for page in PAGES), f"/main/cause?cause={dead}"]
    waiting += [f"/main/job?{urlencode({'what': job})}" for (job,) in poisoned.execute(
        "select job_id::text from forebay.jobs() union select job_id::text from forebay.dead_letter"
    )]  # fmt: skip
    shapes, seen, wrong = set(), set(), []
    while waiting:
        address = waiting.pop(0)
        parts = urlsplit(address)
        query = dict(parse_qsl(parts.query))
        # Addresses that differ in a name only show the same page.
        shape = (parts.path, *query, query.get("act"), query.get("what"), query.get("queue"))
        if shape in shapes or parts.path.startswith("/static/"):
            continue
        shapes.add(shape)
        answer = browse.get(address)
        assert answer.status_code < 500, (address, answer.text)
        found = Seen(answer.text)
        wrong += [f"{address}: {what}" for what in found.wrong]
        assert "set-cookie" not in answer.headers
        seen |= found.fields
        waiting += [link for link in found.links if link.startswith("/main/")]
    assert not wrong
    assert seen >= FIELDS, FIELDS - seen
    assert {shape[0] for shape in shapes} >= {f"/main{page.path}" for page in PAGES}
    assert {shape[-3] for shape in shapes} >= {"jobs.cancel", "jobs.cancel_matching", "dead.purge"}


@pytest.mark.slow
def test_what_an_address_says_is_text_on_every_page(poisoned, browse):
    """
    A link that a stranger sends: each value of each query.
    """
    free = (*(set(FILTER) - {"state"}), "q", "what", "cause", "name", "contains", "schedule",
            "worker", hostile("name"))  # fmt: skip
    strict = ("state", "span", "before", "after", "since", "enqueued_after", "number", "act", "job",
              "dead", "priority", "run_at")  # fmt: skip
    attack = HEADER + hostile("query")
    wrong = []
    for path in (*(page.path for page in PAGES), "/act", "/run", f"/{hostile('path')}"):
        queries = [dict.fromkeys(free, attack)]
        if path in ("/jobs", "/queue", "/cause", "/events", "/subjects", "/act", "/run"):
            queries += [{"act": "jobs.reschedule_matching", "queue": "mail", name: attack}
                        for name in strict]  # fmt: skip
        for query in queries:
            answer = browse.get(f"/main{path}", params=query)
            assert answer.status_code < 500, (path, query)
            wrong += [f"{path} {list(query)}: {what}" for what in Seen(answer.text).wrong]
            assert not {"x-query", "set-cookie"} & set(answer.headers)
            place = answer.headers.get("location", "/main/")
            assert place.startswith("/main/"), place
    assert not wrong


FOREIGN = [
    {}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "none"}, {"origin": "https://evil.example"}, {"origin": "null"},
    {"sec-fetch-site": "cross-site", "origin": "http://localhost"},
]  # fmt: skip


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "post", "ACT"]
)
def test_a_foreign_page_changes_nothing_by_any_method(conn, browse, method):
    """
    Whatever it sends, to the address of acts or to the one that stops a long act.
    """
    enqueue(conn, queue="mail")
    page = browse.get("/main/act", params={"act": "jobs.cancel_matching", "queue": "mail"})
    token = html.unescape(re.search(r'name="token" value="([^"]*)"', page.text)[1])
    forms = [
        {"act": "queues.pause", "queue": "mail"},
        {"act": "queues.limit", "queue": "mail", "concurrency": "1"},
        {"act": "jobs.cancel_matching", "queue": "mail", "token": token, "count": "1"},
    ]
    for headers in FOREIGN if method == "POST" else FOREIGN[:1]:
        for form in forms:
            override = {**headers, "x-http-method-override": "POST"}
            for path in ("/main/act", "/main/run?number=1"):
                answer = browse.request(method, path, data=form, headers=override)
                assert answer.status_code == 403 or method != "POST", path
                query = urlencode({**form, "_method": "POST"})
                browse.request(method, f"{path.partition('?')[0]}?{query}", headers=override)
    assert one(conn, "select count(*) from forebay.events() where act <> 'configure'") == 0
    assert one(conn, "select state from forebay.jobs()") == "ready"


def test_only_who_may_do_an_act_stops_it(database, conn):
    """
    Neither a foreign page nor a person without the permission does.
    """
    enqueue(conn, queue="mail")

    def authorize(request):
        return User("ada", frozenset(request.headers["x-may"].split(",")) - {""})

    app = asgi(database, acts=True, authorize=authorize)
    own = {**SAME, "x-may": "change jobs"}
    with TestClient(app, base_url="http://localhost", follow_redirects=False) as client:
        fields = {"act": "jobs.cancel_matching", "queue": "mail", "token": "x"}
        place = client.post("/main/act", data=fields, headers=own).headers["location"]
        wait_for(lambda: "progress" not in client.get(place, headers=own).text)
        form = {"anything": "1"}
        for headers in FOREIGN:
            foreign = {"x-may": "change jobs", **headers}
            assert client.post(place, data=form, headers=foreign).status_code == 403
        other = {**SAME, "x-may": "change queues,purge"}
        assert client.post(place, data=form, headers=other).status_code == 403
        assert client.post(place, data=form, headers=own).status_code == 303


@pytest.mark.parametrize(
    "number", ["9" * 5000, "\u00b2", "\u0663", "-1", "1.5", "", "x", str(2**63)]
)
def test_a_number_that_is_none_is_no_error_of_the_server(conn, browse, number):
    """
    Thousands of digits, and a superscript, are digits for Python, and no number.
    """
    enqueue(conn, queue="mail")
    query = urlencode({"number": number})
    assert browse.get(f"/main/run?{query}").status_code == 404
    assert browse.post(f"/main/run?{query}", data={"a": "1"}, headers=SAME).status_code == 404
    fields = {"act": "jobs.cancel_matching", "queue": "mail", "token": "x", "count": number}
    assert browse.post("/main/act", data=fields, headers=SAME).status_code == 303
    for path in (f"/main/act?act=jobs.cancel&job={number}", f"/main/search?what={number}"):
        assert browse.get(path).status_code < 500, path


@pytest.mark.parametrize("make", [set, list, tuple, frozenset])
def test_permissions_may_be_any_collection(database, make):
    """They are kept as a frozenset: pages are shared by person."""
    app = asgi(database, acts=True, authorize=lambda _: User("ada", make(["change jobs"])))
    with TestClient(app, base_url="http://localhost") as client:
        assert client.get("/main/").status_code == 200
    assert User("ada", make(["purge", "purge"])) == User("ada", frozenset({"purge"}))


@pytest.mark.parametrize(
    "given",
    [
        ("ada", "purge"), ("ada", {"purge": True}), ("ada", {"fly"}), ("ada", [7]), ("ada", [[]]),
        ("ada", None), ("ada", 7), ("ada", iter(["purge"])), (7,), ("",), ("a\x00",), ("\udce9",),
        ("a" * 201,), (None,),
    ],
    ids=lambda given: ascii(given)[:40].partition(" object")[0],
)  # fmt: skip
def test_a_person_that_is_none_is_refused_where_it_is_made(given):
    """Not when the first page is shown."""
    with pytest.raises(ConfigError):
        User(*given)


@pytest.mark.parametrize("answer", [True, "ada", {"name": "ada"}, ("ada", set()), 0, object()])
def test_what_authorize_returns_is_a_user_or_nobody_looks(database, caplog, answer):
    """The log says what it returned, and the browser does not."""
    app = asgi(database, authorize=lambda _: answer)
    with TestClient(app, base_url="http://localhost") as client:
        found = client.get("/main/")
    assert (found.status_code, found.text) == (500, "authorize has failed.\n")
    assert "which is no User" in caplog.text


@pytest.mark.parametrize(
    "headers",
    [
        [("host", "evil.example")],
        [("host", "evil.example"), ("x-forwarded-host", "localhost")],
        [("host", "evil.example"), ("forwarded", "host=localhost")],
        [("host", "localhost"), ("host", "evil.example")],
        [("host", "localhost@evil.example")],
        [("host", "localhost.evil.example:80")],
        [("host", "evil.example#localhost")],
        [("host", "localhost, evil.example")],
        [],
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_name_that_points_here_opens_nothing(database, conn, method, headers):
    """
    A page of a stranger whose name was pointed to this machine (rebinding) is its own origin.
    """
    enqueue(conn, queue="mail")
    own = [("sec-fetch-site", "same-origin"), ("content-type", "application/x-www-form-urlencoded")]
    for path in ("/main/act", "/main/jobs", "/static/console.css", "/"):
        answer = raw(database, method, path, [*headers, *own], b"act=queues.pause&queue=mail")
        assert answer[0] == 421, path
    assert one(conn, "select count(*) from forebay.events() where act = 'queues.pause'") == 0


@pytest.mark.parametrize(
    "path",
    [
        "../_web.py", "../../console/_web.py", "..", ".", "", "/etc/passwd", "//etc/passwd",
        "%2e%2e/_web.py", "..%2f_web.py", "..\\_web.py", "....//_web.py", "x/../../_web.py",
        "../static/../_web.py", "../templates/base.html", "console.css\x00.py", "../static_evil",
        "console.css/../../_web.py",
    ],
)  # fmt: skip
def test_a_path_climbs_out_of_no_folder(database, path):
    """
    As a server passes it on, decoded and not made shorter.
    """
    status, body = raw(database, "GET", f"/static/{path}", [("host", "localhost")])
    assert status in (404, 405), body
    for secret in (b"import ", b"root:", b"{% "):
        assert secret not in body


def raw(database, method: str, path: str, headers, body: bytes = b"") -> tuple[int, bytes]:
    """Send a request past the client, which would mend it; return the status and the body."""
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"",
        "root_path": "", "headers": [(name.encode(), value.encode()) for name, value in headers],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    sent = []

    waiting = [body]

    async def receive():
        if not waiting:
            await anyio.sleep_forever()
        body = waiting.pop()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    async def call():
        app = asgi(database, acts=True)
        try:
            await app(scope, receive, send)
        finally:
            await app.close()

    anyio.run(call)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


#: By name, what takes a guard out of the schema: a function, a piece of its source, and what it
#: becomes.
GUARDS = {
    "workers of the token": (
        "stop_workers", "if stop_workers.token <> v_plan.token then", "if false then",
    ),
    "letters of the token": (
        "purge_dead", "v_found.digest) is distinct from token then", "v_found.digest) is null then",
    ),
    "letters of that time": ("purge_dead", "v_seen[2]::bigint, v_seen[3]::bigint", "null, null"),
}  # fmt: skip


class Forged(NamedTuple):
    """A form that is not the one of its preview.

    Attributes:
        act: what it asks for.
        preview: of which preview it has the token; None: of none.
        change: what it has instead of the fields of that preview.
        before: a statement that runs between the preview and the form.
        guards: without these it has an effect.
        may_do: how many things it may still do: those of its preview.
    """

    act: str
    preview: dict[str, str] | None
    change: dict[str, str]
    before: str = "select"
    guards: tuple[str, ...] = ()
    may_do: int = 0


#: Another dead letter like the first one.
_MORE = """
insert into forebay.dead_letter overriding system value
select (jsonb_populate_record(d, jsonb_build_object(
    'dead_id', d.dead_id + 1000, 'job_id', d.job_id + 1000, 'seq', d.seq + 1000,
    'died_at', clock_timestamp()))).*
from forebay.dead_letter d where d.cause = 'first' limit 1
"""

#: By name.
FORGED = {
    "stop, without a token": Forged(
        "workers.stop", None, {"worker": "web-1:1:a"}, guards=("token", "workers of the token")
    ),
    "stop, with an invented token": Forged(
        "workers.stop", None, {"worker": "web-1:1:a", "token": "1-w-0"},
        guards=("workers of the token",),
    ),
    "stop, another worker": Forged(
        "workers.stop", {"worker": "web-1:1:a"}, {"worker": "web-1:2:b"},
        guards=("workers of the token",),
    ),
    "stop, a whole version": Forged(
        "workers.stop", {"worker": "web-1:1:a"}, {"worker": "", "app_version": "1.0"},
        guards=("workers of the token",),
    ),
    "stop, a worker ended meanwhile": Forged(
        "workers.stop", {"app_version": "1.0"}, {},
        before="update forebay.lease set worker = 'web-1:3:c' where worker = 'web-1:2:b'",
        guards=("workers of the token",),
    ),
    "purge, without a token": Forged(
        "dead.purge", None, {"cause": "first"}, guards=("token", "letters of the token")
    ),
    "purge, with an invented token": Forged(
        "dead.purge", None, {"cause": "first", "token": "2-9-9-00"},
        guards=("letters of the token", "letters of that time"),
    ),
    "purge, another cause": Forged(
        "dead.purge", {"cause": "first"}, {"cause": "second"}, guards=("letters of the token",)
    ),
    "purge, one is gone": Forged(
        "dead.purge", {"cause": "first"}, {},
        before="delete from forebay.dead_letter"
        " where dead_id = (select min(dead_id) from forebay.dead_letter where cause = 'first')",
        guards=("letters of the token",),
    ),
    "purge, one died meanwhile": Forged(
        "dead.purge", {"cause": "first"}, {},
        before=_MORE,
        guards=("letters of the token", "letters of that time"),
        may_do=2,
    ),
}  # fmt: skip


@pytest.fixture
def targets(database, conn, app):
    """Two workers of one version, and two dead letters of each of two causes."""
    for worker in ("web-1:1:a", "web-1:2:b"):
        conn.execute(
            "update forebay.lease set worker = %s, details = %s where lease_id = %s",
            [worker, '{"app_version": "1.0"}', Reader(database, conn=conn).lease_id],
        )

    @app.job(queue="mail", max_attempts=1)
    def send(user: int) -> None:
        raise ConnectionError(user)

    for user in range(4):
        send.enqueue(conn, user=user)
    app.run_worker(until_idle=True)
    conn.execute(
        "update forebay.dead_letter"
        " set cause = case when mod(dead_id, 2) = 0 then 'first' else 'second' end"
    )


def send_forged(conn, browse, name: str) -> None:
    """Send a form, and assert that it does nothing, or what its preview said."""
    forged = FORGED[name]
    form = {"act": forged.act}
    if forged.preview is not None:
        page = browse.get("/main/act", params={"act": forged.act, **forged.preview})
        assert page.status_code == 200
        found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.text)
        form = {each: html.unescape(value) for each, value in found}
    conn.execute(forged.before)
    alive = "select coalesce(array_agg(dead_id order by dead_id), '{}') from forebay.dead_letter"
    asked = "select count(*) from forebay.workers() where stop_at is not null"
    before = one(conn, alive)
    answer = browse.post("/main/act", data=form | forged.change, headers=SAME)
    if answer.status_code == 303:
        place = answer.headers["location"]
        wait_for(lambda: "<progress" not in browse.get(place).text)
    assert one(conn, asked) == 0
    assert len(before) - len(one(conn, alive)) in (0, forged.may_do)


@pytest.mark.parametrize("name", FORGED)
def test_only_the_form_of_a_preview_stops_or_deletes_and_only_what_it_showed(
    conn, browse, targets, name
):
    """
    No worker is asked to stop and no dead letter deleted by a form that is not that of a preview,
    or of one that is no longer true.
    """
    send_forged(conn, browse, name)


@pytest.mark.parametrize("name", FORGED)
def test_without_its_guard_a_forged_form_is_seen(
    database, conn, browse, targets, name, monkeypatch
):
    """
    Each form has an effect once what stops it is taken out.
    """
    for guard in FORGED[name].guards:
        if guard == "token":
            free = ACTS[FORGED[name].act]._replace(is_long=False, needs_token=False)
            monkeypatch.setitem(ACTS, free.name, free)
        else:
            function, piece, instead = GUARDS[guard]
            break_function(database, function, (piece, instead))
    with violation():
        send_forged(conn, browse, name)
