"""Acts in the console: who may do which, what is shown before, and what a foreign site cannot."""

import asyncio
import html
import re
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient

import forebay
from forebay.console import User, asgi
from forebay.console._acts import ACTS, PERMISSIONS
from forebay.console._pages import PAGES
from forebay.errors import ConfigError
from tests.support.engine import Reader, enqueue, one
from tests.support.waiting import wait_for

SAME = {"sec-fetch-site": "same-origin"}


@pytest.fixture
def browse(database):
    """A client of a console in which all may act."""
    app = asgi(database, acts=True)
    with TestClient(app, base_url="http://127.0.0.1:8040", headers=SAME) as client:
        yield client


@pytest.fixture
def dead(conn, app):
    """Three dead letters of one cause; their cause."""

    @app.job(queue="mail", max_attempts=1)
    def send(user: int) -> None:
        raise ConnectionError(user)

    for user in range(3):
        send.enqueue(conn, user=user)
    app.run_worker(until_idle=True)
    return one(conn, "select cause from forebay.dead_letter limit 1")


def form_of(page) -> dict[str, str]:
    """The fields of the form of an act."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.text)
    return {name: html.unescape(value) for name, value in found}


def act(browse, **fields):
    """Ask for the preview, and send its form."""
    page = browse.get("/main/act", params=fields)
    assert page.status_code == 200, page.text
    return browse.post("/main/act", data=form_of(page))


def acted(conn) -> list[tuple[str, str]]:
    """The acts of people and their names, oldest first."""
    return conn.execute(
        "select act, actor from forebay.events() where act <> 'configure' order by event_id"
    ).fetchall()


def states(conn) -> list[str]:
    return [state for (state,) in conn.execute("select state from forebay.jobs() order by job_id")]


def test_each_act_has_a_preview_or_an_exact_reverse_that_is_offered():
    """
    Nothing is done that was neither shown before nor can be undone by one click.
    """
    for name, found in ACTS.items():
        assert (found.plan is None) is (found.reverse is not None), name
        assert found.reverse is None or ACTS[found.reverse].reverse == name
        assert not found.is_long or found.plan is not None


def test_a_queue_is_paused_and_the_pause_undone_by_one_click(conn, browse):
    """
    Both are in the event log with the name of the person.
    """
    enqueue(conn, queue="mail")
    done = browse.post("/main/act", data={"act": "queues.pause", "queue": "mail"})
    assert "Queue mail is paused." in done.text
    assert "Undo" in done.text
    assert one(conn, "select paused_at is not null from forebay.queue_group where queue = 'mail'")
    browse.post("/main/act", data=form_of(done))
    paused = "select paused_at is null from forebay.queue_group where queue = 'mail'"
    assert one(conn, paused)
    found = acted(conn)
    assert [name for name, _ in found] == ["queues.pause", "queues.resume"]
    assert all(actor.endswith("(console)") for _, actor in found)


def test_the_page_after_an_act_shows_what_it_did(conn, browse):
    """
    The numbers of a page may be some seconds old, but not older than an act of a person.
    """
    enqueue(conn, queue="slow")
    assert 'value="queues.pause"' in browse.get("/main/queue?queue=slow").text
    act(browse, act="queues.pause", queue="slow")
    assert 'value="queues.resume"' in browse.get("/main/queue?queue=slow").text


def test_all_that_match_are_cancelled_as_the_preview_said(conn, browse):
    """
    The count of the preview is what is done. A job that came later is not in its token.
    """
    for number in range(5):
        enqueue(conn, kind="old", queue="mail", args={"n": number})
    other = enqueue(conn, kind="new", queue="mail")
    page = browse.get("/main/act", params={"act": "jobs.cancel_matching", "kind": "old"})
    assert "Cancel 5 jobs." in page.text
    late = enqueue(conn, kind="old", queue="mail")
    done = browse.post("/main/act", data=form_of(page))
    assert urlsplit(str(done.url)).path == "/main/run"
    wait_for(lambda: "5 cancelled" in browse.get(str(done.url)).text)
    left = "select array_agg(job_id order by job_id) from forebay.jobs() where state = 'ready'"
    assert one(conn, left) == [other, late]


def test_a_long_act_without_the_token_of_its_preview_is_refused(conn, browse):
    """
    A form that was made by hand cancels nothing.
    """
    enqueue(conn, kind="old")
    fields = {"act": "jobs.cancel_matching", "kind": "old"}
    assert browse.post("/main/act", data=fields).status_code == 400
    forged = browse.post("/main/act", data=fields | {"token": "deadbeef"})
    wait_for(lambda: 'class="trouble"' in browse.get(str(forged.url)).text)
    assert states(conn) == ["ready"]


def test_dead_letters_of_a_cause_are_redriven_once(conn, browse, dead):
    """
    The same form sent twice redrives nothing again.
    """
    page = browse.get("/main/act", params={"act": "dead.redrive_matching", "cause": dead})
    assert "Redrive 3 dead letters" in page.text
    for _ in range(2):
        done = browse.post("/main/act", data=form_of(page))
        wait_for(lambda url=str(done.url): "redriven." in browse.get(url).text)
    assert sorted(states(conn)) == ["dead"] * 3 + ["ready"] * 3


#: Within the day: a job expires after thirty.
LATER = (datetime.now(UTC) + timedelta(hours=9)).replace(microsecond=0, tzinfo=None).isoformat()


@pytest.mark.parametrize(
    ("name", "value", "shown", "column"),
    [
        ("reprioritise", {"priority": "-7"}, "Give 2 jobs another priority.", "priority = -7"),
        ("reschedule", {"run_at": LATER}, "Let 2 jobs start at another time.",
         f"run_at = '{LATER}+00'"),
    ],
    ids=["priority", "time"],
)  # fmt: skip
def test_waiting_jobs_get_another_priority_or_time(conn, browse, name, value, shown, column):
    """
    All that match, or one: as the preview said, and no job that came later.
    """
    mine = [enqueue(conn, kind="mine", queue="mail") for _ in range(2)]
    enqueue(conn, kind="other", queue="mail")
    changed = f"select array_agg(job_id order by job_id) from forebay.jobs() where {column}"
    fields = {"act": f"jobs.{name}_matching", **value}
    page = browse.get("/main/act", params={**fields, "kind": "mine"})
    assert shown in page.text
    late = enqueue(conn, kind="mine", queue="mail")
    done = browse.post("/main/act", data=form_of(page))
    wait_for(lambda: "2 changed" in browse.get(str(done.url)).text)
    assert one(conn, changed) == mine
    done = act(browse, **fields, job=late)
    wait_for(lambda: "1 changed" in browse.get(str(done.url)).text)
    assert one(conn, changed) == [*mine, late]
    assert [each for each, _ in acted(conn)] == [f"jobs.{name}"] * 2
    assert all(f"{name}_matching" in browse.get(f"/main/{path}").text
               for path in (f"job?what={late}", "jobs?queue=mail"))  # fmt: skip


def test_limits_are_set_and_one_click_gives_the_former_ones_back(conn, browse):
    """
    Only what the person has changed is set: a limit that another one sets meanwhile stays. A burst
    that goes with its rate comes back with it.
    """
    enqueue(conn, queue="mail")
    conn.execute("select forebay.limit_queue('mail', rate => 5, burst => 9)")
    limits = (
        "select jsonb_strip_nulls(jsonb_build_object('rate', rate, 'burst', burst,"
        " 'concurrency', concurrency, 'key_rate', key_rate))"
        " from forebay.queue_limits where queue = 'mail'"
    )
    page = browse.get("/main/queue?queue=mail")
    given = dict(
        re.findall(r'<input name="(\w+)" type="number" step="any" value="([^"]*)"', page.text)
    )
    assert (float(given["rate"]), given["burst"], given["concurrency"]) == (5, "9", "")
    form = {"act": "queues.limit", "queue": "mail", **given}
    form |= {f"was_{name}": value for name, value in given.items()}
    conn.execute("select forebay.limit_queue('mail', key_rate => 2)")
    done = browse.post("/main/act", data=form | {"rate": "", "concurrency": "3"})
    assert "rate removed" in done.text
    assert one(conn, limits) == {"concurrency": 3, "key_rate": 2}
    browse.post("/main/act", data=form_of(done))
    assert one(conn, limits) == {"rate": 5, "burst": 9, "key_rate": 2}
    assert browse.post("/main/act", data=form).status_code == 400
    for wrong in ("nan", "-1", "many", "0", "1e999"):
        assert browse.post("/main/act", data=form | {"rate": wrong}).status_code == 400
    assert one(conn, limits) == {"rate": 5, "burst": 9, "key_rate": 2}
    assert [name for name, _ in acted(conn)].count("queues.limit") == 4


def test_a_worker_gets_more_slots_and_its_former_ones_back(database, conn, browse):
    """
    One click undoes it. A worker that has ended is refused.
    """
    lease = Reader(database, conn=conn).lease_id
    name = "web-1:7:<b>ab"
    details = '{"concurrency": 2, "queues": ["default"]}'
    renamed = "update forebay.lease set worker = %s, details = %s where lease_id = %s"
    conn.execute(renamed, [name, details, lease])
    slots = "select concurrency from forebay.workers()"
    assert f'name="worker" value="{html.escape(name)}"' in browse.get("/main/workers").text
    done = browse.post("/main/act", data={"act": "workers.set", "worker": name, "concurrency": "5"})
    assert one(conn, slots) == 5
    browse.post("/main/act", data=form_of(done))
    assert one(conn, slots) == 2
    for wrong in ({"worker": "gone"}, {"worker": name, "concurrency": "0"}):
        assert browse.post("/main/act", data={"act": "workers.set", **wrong}).status_code == 400
    assert [each for each, _ in acted(conn)] == ["workers.set"] * 2


def test_a_worker_is_asked_to_stop_as_the_preview_said(database, conn, browse):
    """
    Its page tells who asked. The token of an older preview asks nobody once another worker of that
    version runs, and without a token or a choice nobody is asked.
    """
    name = "web-1:7:<b>ab"
    made = "update forebay.lease set worker = %s, details = %s where lease_id = %s"
    for worker in (name, "web-1:8:cd"):
        lease = Reader(database, conn=conn).lease_id
        conn.execute(made, [worker, '{"app_version": "1.0", "host": "web-1"}', lease])
    one_of = browse.get("/main/act", params={"act": "workers.stop", "worker": name})
    assert "Stop (1)" in one_of.text
    assert html.escape(name) in one_of.text
    both = browse.get("/main/act", params={"act": "workers.stop", "app_version": "1.0"})
    assert "Stop (2)" in both.text
    assert browse.get("/main/act?act=workers.stop").status_code == 400
    asked = "select array_agg(stop_by) from forebay.workers() where stop_at is not null"
    for wrong in ({"token": ""}, {"token": "2-w-0"}, {"worker": "", "app_version": ""}):
        assert browse.post("/main/act", data=form_of(one_of) | wrong).status_code == 400
    assert one(conn, asked) is None
    assert "1 worker asked to stop" in browse.post("/main/act", data=form_of(one_of)).text
    refused = browse.post("/main/act", data=form_of(both))
    assert refused.status_code == 400
    assert "other workers match" in refused.text
    (actor,) = one(conn, asked)
    assert actor.endswith("(console)")
    assert f"by {actor}" in browse.get("/main/workers").text
    assert acted(conn) == [("workers.stop", actor)]
    nothing = browse.get("/main/act", params={"act": "workers.stop", "worker": name})
    assert "Nothing matches." in nothing.text


def test_dead_letters_of_a_cause_are_deleted_for_good(conn, browse, dead, app):
    """
    Also those that were redriven; not one that died after the preview, whose count is the effect.
    Once one of them is gone, or for another cause, the token of that preview deletes nothing.
    """
    browse.post(
        "/main/act",
        data={
            "act": "dead.redrive",
            "dead": one(conn, "select min(dead_id) from forebay.dead_letter"),
        },
    )
    page = browse.get("/main/act", params={"act": "dead.purge", "cause": dead})
    assert "Delete all (3)" in page.text
    app.run_worker(until_idle=True)  # the redriven one dies again
    assert one(conn, "select count(*) from forebay.dead_letter") == 4
    forged = browse.post("/main/act", data={**form_of(page), "token": "soon"})
    wait_for(lambda: "is not that of this act" in browse.get(str(forged.url)).text)
    assert browse.post("/main/act", data={**form_of(page), "token": ""}).status_code == 400
    done = browse.post("/main/act", data=form_of(page))
    wait_for(lambda: "3 dead letters deleted." in browse.get(str(done.url)).text)
    assert one(conn, "select count(*) from forebay.dead_letter") == 1
    assert acted(conn)[-1][0] == "dead.purge"
    again = browse.post("/main/act", data=form_of(page))
    wait_for(lambda: "other dead letters match by now" in browse.get(str(again.url)).text)
    assert one(conn, "select count(*) from forebay.dead_letter") == 1
    assert [name for name, _ in acted(conn)].count("dead.purge") == 1


def test_single_things_are_changed_after_a_preview(conn, browse, dead):
    """
    A job, a dead letter, a schedule, an endpoint.
    """
    job = enqueue(conn, queue="other")
    assert f"Job {job}: cancelled." in act(browse, act="jobs.cancel", job=job).text
    letter = one(conn, "select min(dead_id) from forebay.dead_letter")
    assert "is redriven as job" in act(browse, act="dead.redrive", dead=letter).text
    conn.execute("select forebay.create_schedule('nightly', 'tidy', cron => '0 3 * * *')")
    assert "is enqueued" in act(browse, act="schedules.run", schedule="nightly").text
    for name in ("schedules.pause", "schedules.resume"):
        assert "Schedule nightly is" in act(browse, act=name, schedule="nightly").text
    conn.execute(
        "select forebay.create_endpoint('partner', 'http', '{\"url\": \"https://a.example\"}')"
    )
    for name in ("endpoints.disable", "endpoints.enable"):
        assert "Endpoint partner is" in act(browse, act=name, endpoint="partner").text
    assert "is closed" in act(browse, act="endpoints.reset", endpoint="partner").text
    for name in ("dead.mute", "dead.unmute"):
        assert "muted" in act(browse, act=name, cause=dead).text


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": ""},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1"},
        {"origin": "https://127.0.0.1:8040"},
        {},
    ],
    ids=str,
)
def test_a_form_of_another_site_does_nothing(database, conn, headers):
    """
    Also one without a sign of where it comes from, and with the right fields.
    """
    enqueue(conn, queue="mail")
    app = asgi(database, acts=True)
    with TestClient(app, base_url="http://127.0.0.1:8040") as client:
        fields = {"act": "queues.pause", "queue": "mail"}
        assert client.post("/main/act", data=fields, headers=headers).status_code == 403
        own = {"origin": "http://127.0.0.1:8040"}
        json = client.post("/main/act", json=fields, headers=own)
        assert json.status_code == 415
        assert not acted(conn)
        assert client.post("/main/act", data=fields, headers=own).status_code == 200


def test_a_get_changes_nothing(conn, browse):
    """
    A link, a picture or a prefetch of a foreign page asks for a preview at most.
    """
    enqueue(conn, queue="mail")
    for name in ACTS:
        browse.get("/main/act", params={"act": name, "queue": "mail", "job": 1, "cause": "x"})
    assert not acted(conn)
    assert states(conn) == ["ready"]


def test_nobody_acts_unless_it_is_allowed(database, conn, dead):
    """
    Without ``acts`` each act is refused and no button is shown, on previews and forms.
    """
    enqueue(conn, queue="mail")
    with TestClient(asgi(database), base_url="http://localhost", headers=SAME) as client:
        for name in ACTS:
            assert client.get("/main/act", params={"act": name}).status_code == 403
            assert client.post("/main/act", data={"act": name}).status_code == 403
        for path in ("queue?queue=mail", "job?what=1", f"cause?cause={dead}", "jobs?queue=mail"):
            page = client.get(f"/main/{path}").text
            assert '<form method="post"' not in page
            assert "act?act=" not in page


def test_each_act_needs_its_permission(database, conn):
    """
    A person with one permission is refused every act of another.
    """

    def authorize(request):
        return User("ada", frozenset({request.headers["x-may"]} - {""}))

    app = asgi(database, acts=True, authorize=authorize)
    with TestClient(app, base_url="http://localhost", headers=SAME) as client:
        for permission in ("", *PERMISSIONS):
            for name, found in ACTS.items():
                answer = client.post("/main/act", data={"act": name}, headers={"x-may": permission})
                assert (answer.status_code == 403) is (found.permission != permission), name
    assert not acted(conn)
    with pytest.raises(ConfigError, match="fly"):
        User("ada", frozenset({"fly"}))


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"act": "nothing"}, 404),
        ({"act": "queues.pause"}, 400),
        ({"act": "jobs.cancel", "job": "1; drop"}, 400),
        ({"act": "dead.redrive", "dead": "999999"}, 400),
        ({"act": "schedules.run", "schedule": "none"}, 400),
        ({"act": "endpoints.enable", "endpoint": "none"}, 400),
        ({"act": "jobs.cancel_matching", "state": "done", "token": "x"}, 303),
    ],
    ids=str,
)
def test_a_wrong_form_is_a_page_that_says_why(browse, fields, status):
    """
    No traceback; nothing is changed.
    """
    answer = browse.post("/main/act", data=fields, follow_redirects=False)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    "back", ["//evil.example/", "https://evil.example", "/\\evil", "javascript:alert(1)"]
)
def test_the_way_back_stays_in_the_console(conn, browse, back):
    """
    A form cannot send a person to another site.
    """
    enqueue(conn, queue="mail")
    done = browse.post("/main/act", data={"act": "queues.pause", "queue": "mail", "back": back})
    assert "evil" not in done.text
    assert "javascript" not in done.text
    own = browse.post(
        "/main/act",
        data={"act": "queues.resume", "queue": "mail", "back": "/main/queue?queue=mail"},
    )
    assert 'href="/main/queue?queue=mail"' in own.text


def test_a_reader_sees_every_page_and_acts_on_nothing(login, conn):
    """
    The rights of the login role are the last word: the page says which role is needed.
    """
    job = enqueue(conn, queue="mail")
    app = asgi(login("forebay_reader"), acts=True)
    with TestClient(app, base_url="http://localhost", headers=SAME) as client:
        for page in PAGES:
            if page.title:
                assert client.get(f"/main{page.path}").status_code == 200, page.path
        assert client.get(f"/main/job?what={job}").status_code == 200
        values = {
            "queue": "mail", "job": str(job), "endpoint": "none", "schedule": "none", "cause": "x",
            "dead": "1", "worker": "x", "concurrency": "1", "rate": "1", "priority": "1",
            "run_at": "2199-01-01",
        }  # fmt: skip
        for name, found in ACTS.items():
            fields = {"act": name, **{one: values[one] for one in found.fields if one in values}}
            for answer in (
                client.get("/main/act", params=fields),
                *(() if found.is_long else (client.post("/main/act", data=fields),)),
            ):
                # What it may read is shown: a preview, or that there is no such thing.
                assert answer.status_code in (200, 400, 403), (name, answer.text)
                assert answer.status_code != 200 or answer.request.method == "GET", name
                assert answer.status_code != 403 or "forebay_operator" in answer.text, name
        assert not acted(conn)
        page = client.get("/main/act", params={"act": "jobs.cancel_matching", "queue": "mail"})
        assert page.status_code == 403
        long = {"act": "jobs.cancel_matching", "queue": "mail", "token": "x"}
        run = client.post("/main/act", data=long)
        wait_for(lambda: "forebay_operator" in client.get(str(run.url)).text)
    assert states(conn) == ["ready"]


def test_a_role_without_rights_is_told_which_it_needs(login):
    """
    Each page is an answer with the reason, and no internal error.
    """
    app = asgi(login(), acts=True)
    with TestClient(app, base_url="http://localhost", headers=SAME) as client:
        for page in PAGES:
            if page.title and page.path != "/database":
                answer = client.get(f"/main{page.path}")
                assert answer.status_code in (403, 503), (page.path, answer.text)
                assert "forebay_reader" in answer.text or answer.status_code == 503


def test_an_operator_acts(login, conn):
    """
    As a member of forebay_operator, who does not own the schema.
    """
    enqueue(conn, queue="mail")
    app = asgi(login("forebay_operator"), acts=True)
    with TestClient(app, base_url="http://localhost", headers=SAME) as client:
        done = client.post("/main/act", data={"act": "queues.pause", "queue": "mail"})
        assert "Queue mail is paused." in done.text
        found = act(client, act="jobs.cancel_matching", queue="mail")
        wait_for(lambda: "1 cancelled" in client.get(str(found.url)).text)


def test_a_preview_that_counts_too_long_says_so(conn, browse, monkeypatch):
    """The page says what to do, and nothing is left behind: the next preview works."""
    enqueue(conn, queue="mail")
    address = "/main/act?act=jobs.cancel_matching&queue=mail"
    assert browse.get(address).status_code == 200
    monkeypatch.setattr("forebay.console._web._PLAN_SECONDS", 0.1)
    monkeypatch.setattr("forebay.AsyncClient.plan_change", lambda *_, **__: asyncio.sleep(60))
    answer = browse.get(address)
    assert answer.status_code == 503
    assert "by more filters" in answer.text
    monkeypatch.undo()
    assert browse.get(address).status_code == 200


def test_a_parent_that_died_of_its_children_leads_to_their_cause(conn, app, browse):
    """
    Its own redrive would die again; the pages name the child, and the cause of the children.
    """

    @app.job(max_attempts=1)
    def part() -> None:
        raise ConnectionError

    @app.job
    def whole(results: list[None]) -> None:
        """Never called."""

    forebay.gather(conn, [part.call()], then=whole)
    app.run_worker(until_idle=True)
    child = one(conn, "select cause from forebay.dead_letter where kind = 'part'")
    parent = one(conn, "select cause from forebay.dead_letter where kind = 'whole'")
    assert f">{child}</a>" in browse.get("/main/failures").text
    page = browse.get(f"/main/cause?cause={parent}").text
    assert "forebay dead redrive --job" in page
    assert f"forebay dead redrive --cause {parent}" not in page
    assert f"forebay dead redrive --cause {child}" in browse.get(f"/main/cause?cause={child}").text
