"""Jobs and dead letters in Django's admin: who may read reads, who may change cancels and
retries.
"""

import html
import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test import Client as Browser
from django.utils import timezone

from forebay import Client
from forebay.django import app
from tests.support import django_project
from tests.support.engine import Reader


@pytest.fixture
def send_welcome(project):
    from tests.support.django_project.jobs import send_welcome

    return send_welcome


def browser(name="ann", **options):
    """A browser with somebody's session."""
    from django.contrib.auth.models import User

    found = Browser()
    found.force_login(User.objects.create_user(name, is_staff=True, **options))
    return found


def page(answer):
    """The text of a page, without its tags."""
    assert answer.status_code == 200, answer.content
    text = re.sub(r"(?s)<style>.*?</style>|<[^>]+>", " ", answer.content.decode())
    return " ".join(text.split())


@pytest.mark.slow
def test_jobs_are_listed_filtered_and_shown(send_welcome):
    """
    The newest first, in pages; each with its own page. Nothing in an argument is taken for markup.
    """
    ids = [send_welcome.enqueue(connection, user_id=n) for n in range(60)]
    scripted = send_welcome.using(tag="<script>").enqueue(connection, user_id=7)
    admin = browser(is_superuser=True)
    text = page(admin.get("/admin/forebay/job/"))
    assert f"{scripted}" in text
    assert "Older" in text
    first = admin.get("/admin/forebay/job/").content.decode()
    older = re.search(r'href="\?(before=\d+)"', first)[1]
    assert f">{ids[0]}<" in admin.get(f"/admin/forebay/job/?{older}").content.decode()
    assert "There are none like this" in page(admin.get("/admin/forebay/job/?queue=nobody"))
    assert "send_welcome" in page(admin.get("/admin/forebay/job/?state=ready&kind=send_welcome"))
    assert "Invalid filter" in page(admin.get("/admin/forebay/job/?state=nonsense"))
    assert "Invalid filter" in page(admin.get("/admin/forebay/job/?before=x"))
    answer = admin.get(f"/admin/forebay/job/{scripted}/change/")
    assert '"user_id": 7' in page(answer).replace("&quot;", '"')
    assert b"<script>" not in answer.content.replace(b"<script src", b"")
    for wrong in ("999999", "x", str(2**70)):
        assert admin.get(f"/admin/forebay/job/{wrong}/change/").status_code == 404


def test_filters_offer_the_names_of_the_project_and_of_the_database(send_welcome):
    """
    Nobody has to know how a queue is spelt; a name that is not known any more remains chosen.
    """
    send_welcome.enqueue(connection, user_id=1)
    app.client().enqueue_now("made_elsewhere", queue="old_queue")
    admin = browser(is_superuser=True)
    text = admin.get("/admin/forebay/job/?kind=gone").content.decode()
    for name in ("mail", "old_queue", "send_welcome"):
        assert f"<option>{name}</option>" in text
    assert "<option selected>gone</option>" in text
    assert "send_welcome(user_id=1)" in page(admin.get("/admin/forebay/job/?queue=mail"))


def test_the_page_of_a_job_shows_why_it_waits_and_what_failed(send_welcome):
    """
    The reason and the next step while it waits; then its errors, newest first, from the handler's
    line on.
    """
    job_id = send_welcome.using(max_attempts=2).enqueue(connection, user_id=-1)
    admin = browser(is_superuser=True)
    where = f"/admin/forebay/job/{job_id}/change/"
    text = page(admin.get(where))
    assert "no worker runs" in text
    assert "forebay worker MODULE:APP --queue mail" in text
    app.run_worker(queues={"mail": 1}, until_idle=True)
    text = page(admin.get(where))
    assert "retrying" in text
    assert "Attempt 1 of 2: ValueError" in text
    assert "no such user" in text
    assert "return function(" not in text  # no frame of the library


def test_the_page_of_a_job_shows_the_steps_of_a_flow(send_welcome):
    """
    Their names, what they are and when they ended, in order; not what they returned, and the last
    ones of many.
    """
    job_id = send_welcome.enqueue(connection, user_id=1)
    with Reader(app.dsn, "mail") as reader:
        reader.claim_ready(1)
        steps = [
            {
                "job_id": job_id, "group_id": reader.group_id, "no": no, "kind": "s",
                "name": "<charge>", "key": f"k{no}", "value": {"card": "4711"},
            }
            for no in range(1, 61)
        ]  # fmt: skip
        record = "select forebay.record_steps_v1(%s, %s::jsonb)"
        reader.conn.execute(record, [reader.lease_id, json.dumps(steps[:2])])
        where = f"/admin/forebay/job/{job_id}/change/"
        admin = browser(is_superuser=True)
        answer = admin.get(where)
        text = page(answer)
        assert "1. &lt;charge&gt;[k1] (step)" in text
        assert "2. &lt;charge&gt;[k2] (step)" in text
        assert "4711" not in text
        reader.conn.execute(record, [reader.lease_id, json.dumps(steps[2:])])
        text = page(admin.get(where))
        assert "The last 50 of 60 steps" in text
        assert "[k60]" in text
        assert "[k10]" not in text


def test_queues_are_counted_paused_and_resumed(send_welcome):
    """
    Who may change queues pauses one from the list; who may only view sees the numbers.
    """
    from django.contrib.auth.models import Permission, User

    for number in (1, 2):
        send_welcome.enqueue(connection, user_id=number)
    with Reader(app.dsn, "mail") as reader:
        reader.settle(reader.claim_ready(1).claim_no)
    admin = browser(is_superuser=True)
    text = page(admin.get("/admin/forebay/queue/"))
    assert "Scheduled Ready Cancelled, not passed Claimed Running Retrying Done Failed Dead" in text
    assert "mail active 0 1 0 0 0 0 1 0 0" in text
    answer = admin.post("/admin/forebay/queue/", {"chosen": ["mail"], "verb": "Pause"}, follow=True)
    assert "1 queue paused" in page(answer)
    assert "paused for" in page(answer)
    answer = admin.post(
        "/admin/forebay/queue/", {"chosen": ["mail"], "verb": "Resume"}, follow=True
    )
    assert "1 queue resumed" in page(answer)
    assert "paused for" not in page(answer)
    assert admin.post("/admin/forebay/queue/", {"chosen": ["mail"], "verb": "x"}).status_code == 403
    reader = browser("reader")
    user = User.objects.get(username="reader")
    user.user_permissions.set(Permission.objects.filter(codename="view_queue"))
    text = page(reader.get("/admin/forebay/queue/"))
    assert "mail" in text
    assert "Pause" not in text
    assert reader.post("/admin/forebay/queue/", {"chosen": ["mail"]}).status_code == 403


def test_subjects_are_listed_killed_revived_and_dropped(send_welcome):
    """
    Who may change subjects kills, revives and drops one from the list; who may only view sees them.
    """
    from django.contrib.auth.models import Permission, User

    client = Client()
    items = [
        {"kind": "crawl", "queue": "sites", "subject": name, "args": {"n": 1}, "delay": 3600}
        for name in ("a.org/x", "b.org")
    ]
    client.push_subjects(items, conn=connection)
    admin = browser(is_superuser=True)
    text = page(admin.get("/admin/forebay/subject/"))
    assert "a.org/x" in text
    assert "crawl(n=1)" in text
    assert "b.org" in page(admin.get("/admin/forebay/subject/?queue=sites&after=a.org/x"))
    chosen = {"chosen": ["sites/a.org/x"]}
    for verb, done in (("Kill", "killed"), ("Revive", "revived"), ("Drop", "dropped")):
        answer = admin.post("/admin/forebay/subject/", {**chosen, "verb": verb}, follow=True)
        assert f"1 subject {done}" in page(answer)
    assert "a.org/x not found" not in page(admin.get("/admin/forebay/subject/?state=scheduled"))
    answer = admin.post("/admin/forebay/subject/", {**chosen, "verb": "Kill"}, follow=True)
    assert "not found in queue" in page(answer)
    reader = browser("reader")
    user = User.objects.get(username="reader")
    user.user_permissions.set(Permission.objects.filter(codename="view_subject"))
    text = page(reader.get("/admin/forebay/subject/"))
    assert "b.org" in text
    assert "Kill" not in text
    assert reader.post("/admin/forebay/subject/", {"chosen": ["sites/b.org"]}).status_code == 403


def test_running_workers_are_listed(send_welcome):
    """
    Who runs, where and what; nothing can be changed there.
    """
    with Reader(app.dsn, queue="mail"):
        admin = browser(is_superuser=True)
        text = page(admin.get("/admin/forebay/worker/"))
        assert "default@test" in text
        assert "selected" not in text
        assert admin.post("/admin/forebay/worker/", {"chosen": ["x"]}).status_code == 403


def test_alerts_are_measured_when_someone_looks(send_welcome):
    """
    Too many jobs wait: the page tells it, though nothing has checked the alerts.
    """
    Client().set_threshold("waiting_most", 1, queue="mail", conn=connection)
    with Reader(app.dsn, queue="mail") as reader:
        for number in range(3):
            send_welcome.enqueue(connection, user_id=number)
        reader.claim_ready(1)
    admin = browser(is_superuser=True)
    text = page(admin.get("/admin/forebay/alert/"))
    assert "A2 mail warning" in text
    assert "add workers for queue mail" in text
    assert admin.post("/admin/forebay/alert/", {"chosen": ["x"]}).status_code == 403


def test_endpoints_are_listed_disabled_enabled_and_tried_again(send_welcome):
    """
    With their health; who may only view changes nothing.
    """
    from django.contrib.auth.models import Permission, User

    Client().create_endpoint("crm", "http", {"url": "https://crm.example.org/in"}, conn=connection)
    admin = browser(is_superuser=True)
    where = "/admin/forebay/endpoint/"
    text = page(admin.get(where))
    assert "crm" in text
    assert "active" in text
    for verb, done in (("Disable", "disabled"), ("Enable", "enabled"), ("Close breaker", "tried")):
        answer = admin.post(where, {"chosen": ["crm"], "verb": verb}, follow=True)
        assert f"1 endpoint {done}" in page(answer)
    answer = admin.post(where, {"chosen": ["x"], "verb": "Enable"}, follow=True)
    assert "not found" in page(answer)
    reader = browser("reader")
    user = User.objects.get(username="reader")
    user.user_permissions.set(Permission.objects.filter(codename="view_endpoint"))
    assert "crm" in page(reader.get(where))
    assert reader.post(where, {"chosen": ["crm"], "verb": "Disable"}).status_code == 403


def test_keys_are_listed_paused_and_resumed(send_welcome):
    """
    A key may hold any characters; the event log names who paused it.
    """
    name = 'a/"b" <i>'
    with Reader(app.dsn, queue="mail") as reader:
        for number in range(2):
            send_welcome.using(limit_key=name).enqueue(connection, user_id=number)
        Client().limit_key("mail", name, concurrency=1, conn=connection)
        while reader.claim_ready(10).jobs:
            pass  # A claim that meets the second job finds that it waits for the first.
        admin = browser(is_superuser=True)
        where = "/admin/forebay/key/"
        assert "&lt;i&gt;" in admin.get(where).content.decode()
        chosen = re.search(r'name="chosen" value="([^"]*)"', admin.get(where).content.decode())[1]
        for verb, done in (("Pause", "paused"), ("Resume", "resumed")):
            posted = {"chosen": [html.unescape(chosen)], "verb": verb}
            assert f"1 key {done}" in page(admin.post(where, posted, follow=True))
    text = page(admin.get("/admin/forebay/event/"))
    assert "keys.resume" in text
    assert "django ann" in text
    assert "keys.pause" in page(admin.get("/admin/forebay/event/?act=keys.pause"))
    assert "Invalid filter" in page(admin.get("/admin/forebay/event/?until=x"))


def test_schedules_are_listed_paused_and_run(send_welcome):
    """
    With their next instants and, on the page of one, its occurrences; who may only view changes
    nothing.
    """
    from django.contrib.auth.models import Permission, User

    client = app.client()
    client.create_schedule("yearly", "send_welcome", "0 0 1 1 *", args={"user_id": 7}, queue="mail")
    with connection.cursor() as cursor:
        cursor.execute("select forebay.create_schedule('bad', 'work', '61 * * * *')")
        cursor.execute(
            "update forebay.schedule set problem = 'not an expression' where name = 'bad'"
        )
    admin = browser(is_superuser=True)
    where = "/admin/forebay/schedule/"
    text = page(admin.get(where))
    assert "0 0 1 1 * UTC" in text
    assert re.search(r"send_welcome 20\d\d-01-01 00:00:00 UTC never", text)
    assert "problem: not an expression" in text
    text = page(admin.post(where, {"chosen": ["yearly"], "verb": "Run"}, follow=True))
    assert "1 schedule run now" in text
    (job,) = client.jobs(kind="send_welcome")
    text = page(admin.get(f"{where}yearly/change/"))
    assert f"manual, job {job.job_id}" in text
    assert len(re.findall(r"20\d\d-01-01 00:00:00 UTC job starts", text)) == 10
    text = page(admin.post(f"{where}yearly/change/", {"verb": "Pause"}, follow=True))
    assert "1 schedule paused" in text
    assert "job starts" not in text
    assert client.schedule("yearly").paused_at is not None
    text = page(admin.post(where, {"chosen": ["yearly"], "verb": "Resume"}, follow=True))
    assert "1 schedule resumed" in text
    assert client.schedule("yearly").paused_at is None
    assert "manual" not in page(admin.get(f"{where}bad/change/"))
    assert admin.get(f"{where}nothing/change/").status_code == 404
    assert [(one.act, one.actor) for one in client.events(act="schedules.run")] == [
        ("schedules.run", "django ann")
    ]
    reader = browser("reader")
    user = User.objects.get(username="reader")
    assert reader.get(where).status_code == 403
    user.user_permissions.set(Permission.objects.filter(codename="view_schedule"))
    text = page(reader.get(where))
    assert "yearly" in text
    assert "Pause" not in text
    assert reader.post(where, {"chosen": ["yearly"], "verb": "Run"}).status_code == 403
    assert len(client.jobs(kind="send_welcome")) == 1


def test_jobs_are_cancelled(send_welcome):
    """
    One from its page, several from the list, each with an entry in the admin's log.
    """
    from django.contrib.admin.models import LogEntry

    ids = [send_welcome.enqueue(connection, user_id=n) for n in range(3)]
    admin = browser(is_superuser=True)
    text = page(admin.post(f"/admin/forebay/job/{ids[0]}/change/", follow=True))
    assert "1 job requested to cancel" in text
    text = page(admin.post("/admin/forebay/job/", {"chosen": ids[1:]}, follow=True))
    assert "2 jobs requested to cancel" in text
    assert "No rows selected" in page(admin.post("/admin/forebay/job/", {}, follow=True))
    assert "job 999999 not found" in page(
        admin.post("/admin/forebay/job/", {"chosen": [999999, "x"]}, follow=True)
    )
    app.run_worker(queues={"mail": 1}, until_idle=True)
    assert {job.state for job in Client(app.dsn).jobs()} == {"cancelled"}
    assert sorted(entry.object_id for entry in LogEntry.objects.all()) == sorted(map(str, ids))


def test_a_job_is_retried_now_rescheduled_and_given_a_priority(send_welcome):
    """
    From its page and from the list, each with an entry in the admin's log and in the event log.
    What cannot be done is told: a wrong value, a job that has ended.
    """
    from django.contrib.admin.models import LogEntry

    job_id = send_welcome.using(delay=3600).enqueue(connection, user_id=1)
    other = send_welcome.enqueue(connection, user_id=2)
    admin = browser(is_superuser=True)
    where, everything = f"/admin/forebay/job/{job_id}/change/", "/admin/forebay/job/"

    def act(address, verb, value="", **chosen):
        given = {"verb": verb, f"value {verb}": value, **chosen}
        return page(admin.post(address, given, follow=True))

    buttons = admin.get(where).content.decode()
    assert buttons.index("Retry now this job") < buttons.index("Arguments")  # above the tracebacks
    assert "1 job made ready" in act(where, "Retry now")
    assert app.client().job(job_id)[0].state == "ready"
    later = (timezone.localtime() + timedelta(days=3)).replace(second=0, microsecond=0)
    typed = f"{later:%Y-%m-%dT%H:%M}"  # in the time zone in which the page shows times
    assert "1 job rescheduled" in act(where, "Reschedule", typed)
    assert app.client().job(job_id)[0].run_at == later
    assert "it was not changed: expires before" in act(where, "Reschedule", "2100-02-03T04:05")
    both = {"chosen": [job_id, other]}
    assert "2 jobs given another priority" in act(everything, "Set priority", "7", **both)
    assert {job.priority for job in app.client().jobs()} == {7}
    assert "not a time such as" in act(where, "Reschedule", "tomorrow")
    assert "invalid literal" in act(where, "Set priority")
    app.client().cancel(other)
    assert "already ended" in act(f"/admin/forebay/job/{other}/change/", "Retry now")
    assert "job 999999 not found" in act(everything, "Retry now", chosen=[999999])
    assert LogEntry.objects.count() == 4
    assert {one.actor for one in app.client().events()} >= {"django ann"}


def test_jobs_are_searched_by_number_tag_key_and_time(send_welcome):
    """
    One box finds a job by its number or by what names it; tag and times are filters of their own.
    """
    plain = send_welcome.enqueue(connection, user_id=1)
    tagged = send_welcome.using(tag="signup").enqueue(connection, user_id=2)
    send_welcome.using(correlation_id="signup").enqueue(connection, user_id=3)
    admin = browser(is_superuser=True)

    def found(query):
        text = page(admin.get(f"/admin/forebay/job/?{query}"))
        return sorted(int(number) for number in re.findall(r"user_id=(\d+)", text))

    assert found(f"search={plain}") == [1]
    assert found("search=signup") == [2, 3]
    assert found("search=nobody") == []
    assert found("search=999999") == []
    assert found(f"search=signup&state=running&queue=mail&kind=x{tagged}") == []
    assert found("tag=signup") == [2]
    assert found("since=2100-01-01T00:00") == []
    assert found("until=2100-01-01T00:00") == [1, 2, 3]
    assert "Invalid filter" in page(admin.get("/admin/forebay/job/?since=x"))
    assert "a retry counts as new" in page(admin.get("/admin/forebay/job/"))


def test_arguments_are_in_the_order_of_the_signature(project):
    """
    The database orders names by their length; a kind that the project does not have stays so.
    """
    from tests.support.django_project.jobs import pay

    pay.enqueue(connection, order_id=3, total=-1)
    app.client().enqueue_now("elsewhere", {"order_id": 3, "total": -1})
    text = page(browser(is_superuser=True).get("/admin/forebay/job/"))
    assert "pay(order_id=3, total=-1)" in text
    assert "elsewhere(total=-1, order_id=3)" in text


def test_counts_of_queues_lead_to_their_jobs(send_welcome):
    """
    Each number of jobs is a link to the list of them, and a zero is none.
    """
    send_welcome.enqueue(connection, user_id=1)
    html = browser(is_superuser=True).get("/admin/forebay/queue/").content.decode()
    assert 'href="/admin/forebay/job/?queue=mail&amp;state=ready">1</a>' in html
    assert "state=running" not in html


def test_a_duration_below_a_minute_is_in_seconds():
    """
    A heartbeat of ten seconds ago is no "0 minutes ago".
    """
    django_project.set_up()
    from forebay.django._admin_base import lasting

    now = datetime.now(UTC)
    assert lasting(now - timedelta(seconds=10)) in ("10 s", "11 s")
    assert lasting(now + timedelta(hours=2)) == "2 h"


@pytest.mark.slow
def test_dead_letters_are_read_and_retried(send_welcome):
    """
    With reason, error and traceback; a retry is a new job, and happens once.
    """
    send_welcome.enqueue(connection, user_id=-1)
    app.run_worker(queues={"mail": 1}, until_idle=True)
    admin = browser(is_superuser=True)
    text = page(admin.get("/admin/forebay/deadletter/"))
    assert "ValueError: no such user" in text
    assert "exhausted" in text
    assert "There are none" in page(admin.get("/admin/forebay/deadletter/?reason=expired"))
    (letter,) = app.client().dead_letters()
    where = f"/admin/forebay/deadletter/{letter.dead_id}/change/"
    assert "Traceback" in page(admin.get(where))
    text = page(admin.post(where, follow=True))
    assert "1 dead letter enqueued again" in text
    assert "Retried as job" in text
    again = page(admin.post(where, follow=True))
    assert "redriven" in again
    assert [(one.act, one.actor) for one in app.client().events(act="dead")] == [
        ("dead.redrive", "django ann")
    ]
    (new,) = app.client().jobs(state="ready")
    assert "ValueError" not in page(admin.get("/admin/forebay/deadletter/"))
    for given in ("retried=yes", "retried=all", f"job={letter.job_id}"):
        text = page(admin.get(f"/admin/forebay/deadletter/?{given}"))
        assert f"job {new.job_id}" in text
    assert "There are none" in page(admin.get("/admin/forebay/deadletter/?job=999999"))
    for wrong in ("job=x", "retried=x"):
        text = page(admin.get(f"/admin/forebay/deadletter/?{wrong}"))
        assert "Invalid filter" in text
    text = page(admin.get(f"/admin/forebay/job/{new.job_id}/change/"))
    assert f"Redriven from dead letter {letter.dead_id}" in text
    text = page(admin.get(f"/admin/forebay/job/{letter.job_id}/change/"))
    assert f"Dead letter {letter.dead_id}" in text


def test_who_may_only_view_changes_nothing(send_welcome):
    """
    No button, and a forged request is refused; without any permission not even the list.
    """
    from django.contrib.auth.models import Permission, User

    job_id = send_welcome.enqueue(connection, user_id=1)
    reader = browser("reader")
    user = User.objects.get(username="reader")
    user.user_permissions.set(Permission.objects.filter(codename="view_job"))
    text = page(reader.get("/admin/forebay/job/"))
    assert str(job_id) in text
    assert "Cancel" not in text
    assert "Cancel" not in page(reader.get(f"/admin/forebay/job/{job_id}/change/"))
    assert reader.post("/admin/forebay/job/", {"chosen": [job_id]}).status_code == 403
    assert reader.post(f"/admin/forebay/job/{job_id}/change/").status_code == 403
    assert reader.get("/admin/forebay/deadletter/").status_code == 403
    for nothing in ("add/", f"{job_id}/delete/", f"{job_id}/history/"):
        assert reader.get(f"/admin/forebay/job/{nothing}").status_code == 404
    assert Browser().get("/admin/forebay/job/").status_code == 302
    assert app.client().job(job_id)[0].cancel_requested is False


def test_a_request_without_its_token_is_refused(send_welcome):
    """
    Cancelling needs a form of the page's own.
    """
    from django.contrib.auth.models import User

    job_id = send_welcome.enqueue(connection, user_id=1)
    strict = Browser(enforce_csrf_checks=True)
    strict.force_login(User.objects.create_user("eve", is_staff=True, is_superuser=True))
    assert strict.post(f"/admin/forebay/job/{job_id}/change/").status_code == 403
    assert app.client().job(job_id)[0].cancel_requested is False


def test_a_database_without_the_schema_is_told(send_welcome):
    """
    The page says what to do instead of failing.
    """
    admin = browser(is_superuser=True)
    with connection.cursor() as cursor:
        cursor.execute("drop schema forebay cascade")
    assert "migrate" in page(admin.get("/admin/forebay/job/"))
