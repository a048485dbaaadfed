"""Jobs for rows that a person chooses in Django's admin: what is shown is what is enqueued."""

import re
from datetime import UTC, datetime

import pytest
from django.db import connection
from django.test import Client as Browser

import forebay
from forebay.django import app
from forebay.errors import ConfigError
from tests.django.test_admin import browser, page
from tests.support.mutant import violation

USERS = "/admin/auth/user/"
GROUPS = "/admin/auth/group/"


@pytest.fixture
def users(project):
    """Twelve users: the even ones are of the group ``even``, one of them is called by a script."""
    from django.contrib.auth.models import Group, User

    names = [f"u{n:02}" for n in range(11)] + ["<script>alert('x')</script> 100% \\' %(x)s"]
    found = [
        User.objects.create(username=name, date_joined=datetime(2026, 11, 1 + n, tzinfo=UTC))
        for n, name in enumerate(names)
    ]
    even = Group.objects.create(name="even")
    even.user_set.set(found[::2])
    return found


def acts():
    """Return what the log of the admin has."""
    from django.contrib.admin.models import LogEntry

    return [(one.user.username, one.change_message) for one in LogEntry.objects.all()]


def enqueued():
    """Return the jobs that wait, without their ids, in the order of their rows."""
    found = sorted(app.client().jobs(limit=1000), key=lambda job: job.job_id)
    return [(one.kind, one.queue, one.tag, one.priority, one.args) for one in found]


def ask(admin, where, *, action=0, across=False, ids=()):
    """Choose rows and an action; return the answer."""
    data = {
        "action": f"forebay_enqueue_{action}", "index": "0",
        "select_across": "1" if across else "0", "_selected_action": [str(i) for i in ids],
    }  # fmt: skip
    return admin.post(where, data, follow=True)


def hidden(answer):
    """Return what the button of a page sends."""
    form = answer.content.decode().split('<form method="post" class="forebay-acts">')[1]
    found = {}
    for name, value in re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', form):
        found.setdefault(name, []).append(value)
    found.pop("csrfmiddlewaretoken")
    return found


def test_the_page_shows_what_the_selected_rows_become_and_the_button_enqueues_it(users):
    """Nothing before the button; then these jobs, with the user's name in both logs."""
    admin = browser("root", is_superuser=True)
    chosen = [users[1].pk, users[3].pk]
    answer = ask(admin, USERS, ids=chosen)
    text = page(answer)
    assert "Jobs 2 Kind send_welcome Queue mail Tag backfill.admin Priority 1000" in text
    assert f"send_welcome(user_id={users[1].pk})" in text
    assert enqueued() == []
    answer = admin.post(USERS, hidden(answer), follow=True)
    assert "2 jobs send_welcome enqueued" in page(answer)
    assert b'<a href="/admin/forebay/job/?kind=send_welcome">see them</a>' in answer.content
    assert enqueued() == [
        ("send_welcome", "mail", "backfill.admin", 1000, {"user_id": pk}) for pk in chosen
    ]
    assert acts() == [("root", "2 jobs send_welcome enqueued")]
    (act,) = app.client().events(act="backfill")
    assert (act.actor, act.kind, act.count) == ("django root", "send_welcome", 2)


def test_all_rows_of_the_filtered_list_over_all_its_pages(users):
    """As Django's "select all": those that the filters and the search show, and no others."""
    from django.contrib.auth.models import Group

    admin = browser("root", is_superuser=True)
    where = f"{USERS}?groups__id__exact={Group.objects.get().pk}"
    answer = ask(admin, where, across=True, ids=[users[0].pk])
    assert "Jobs 6 " in page(answer)
    assert "Some of these jobs" not in page(answer)
    admin.post(where, hidden(answer))
    assert [args["user_id"] for *_, args in enqueued()] == [u.pk for u in users[::2]]
    # A search over a relation to many finds each user once.
    users[0].groups.create(name="evening")
    answer = ask(admin, f"{USERS}?q=even", across=True, ids=[users[0].pk])
    assert "Jobs 6 " in page(answer)
    answer = ask(admin, USERS, across=True, ids=[users[0].pk])
    assert "Jobs 13 " in page(answer)
    assert "Some of these jobs" in page(answer)
    assert len(re.findall(r"send_welcome\(user_id=", page(answer))) == 10


def test_rows_between_two_times(users):
    """Both ends are included, in the time zone of Django; a wrong time is no time."""
    admin = browser("root", is_superuser=True)
    span = "date_joined__gte=2026-11-02T00:00&date_joined__lte=2026-11-04T00:00"
    with_settings = f"{USERS}?is_active__exact=1&{span}"
    text = admin.get(with_settings).content.decode()
    assert 'name="date_joined__gte" value="2026-11-02T00:00"' in text
    assert '<input type="hidden" name="is_active__exact" value="1">' in text
    answer = ask(admin, with_settings, across=True, ids=[1])
    zone = {u.date_joined: u.pk for u in users}
    start, end = (datetime.fromisoformat(part.split("=")[1]) for part in span.split("&"))
    from django.utils import timezone

    expected = [
        pk for at, pk in zone.items()
        if timezone.make_aware(start) <= at <= timezone.make_aware(end)
    ]  # fmt: skip
    assert f"Jobs {len(expected)} " in page(answer)
    admin.post(with_settings, hidden(answer))
    assert [args["user_id"] for *_, args in enqueued()] == expected
    answer = admin.get(f"{USERS}?date_joined__gte=yesterday")
    assert answer.status_code == 302
    assert answer["location"].endswith("?e=1")
    assert admin.get(f"{USERS}?date_joined__gte=&date_joined__lte=").status_code == 200


def changes(users):
    """Add a row between the page and the button."""
    from django.contrib.auth.models import Group

    admin = browser("root", is_superuser=True)
    where = f"{USERS}?groups__id__exact={Group.objects.get().pk}"
    first = ask(admin, where, across=True, ids=[users[0].pk])
    Group.objects.get().user_set.add(users[1])
    answer = admin.post(where, hidden(first))
    assert enqueued() == []
    assert "the rows have changed" in page(answer)
    assert "Jobs 7 " in page(answer)
    return admin, where, answer


def test_rows_that_changed_since_the_page_are_not_enqueued(users):
    """The page is shown again, with what is there now; a second click enqueues nothing more."""
    admin, where, answer = changes(users)
    for _ in range(2):
        admin.post(where, hidden(answer))
        assert len(enqueued()) == 7
    forged = hidden(answer) | {"forebay_token": ["9f3"]}
    assert "Nothing was enqueued" in page(admin.post(where, forged, follow=True))
    assert len(enqueued()) == 7


def test_without_the_token_they_would_be(users, monkeypatch):
    from forebay.django.admin import Enqueue

    enqueue = Enqueue.enqueue
    monkeypatch.setattr(
        Enqueue, "enqueue", lambda one, sql, connection, _: enqueue(one, sql, connection, None)
    )
    with violation():
        changes(users)


def test_a_token_of_one_act_is_not_one_of_another(users):
    """It covers the kind and its options."""
    admin = browser("root", is_superuser=True)
    sent = hidden(ask(admin, USERS, ids=[users[0].pk]))
    answer = admin.post(USERS, sent | {"action": ["forebay_enqueue_1"]})
    assert "the rows have changed" in page(answer)
    assert "Kind elsewhere" in page(answer)
    assert enqueued() == []


def test_rows_that_lead_to_other_rows_and_values_that_look_like_sql(users):
    """Users of groups; shared arguments; nothing in a value is SQL, a placeholder or markup."""
    admin = browser("root", is_superuser=True)
    even = users[0].groups.get()
    answer = ask(admin, GROUPS, ids=[even.pk])
    assert "Jobs 6 " in page(answer)
    admin.post(GROUPS, hidden(answer))
    assert sorted(args["user_id"] for *_, args in enqueued()) == [u.pk for u in users[::2]]
    answer = ask(admin, USERS, action=1, ids=[users[11].pk])
    assert b"<script>alert" not in answer.content
    admin.post(USERS, hidden(answer))
    assert enqueued()[-1] == (
        "elsewhere", "far", "backfill", 1000, {"name": users[11].username, "force": True}
    )  # fmt: skip
    where = f"{USERS}?q=100%25"
    answer = ask(admin, where, action=1, across=True, ids=[users[11].pk])
    assert "Jobs 1 " in page(answer)


def test_who_may_not_change_the_model_may_not_enqueue(users):
    """Neither by the list of actions nor by sending what the button sends; and nobody by reading
    a page, or from another site.
    """
    from django.contrib.auth.models import Permission

    admin = browser("root", is_superuser=True)
    sent = hidden(ask(admin, USERS, ids=[users[0].pk]))
    reader = browser("reader")
    assert reader.post(USERS, sent).status_code == 403
    user = users[0].__class__.objects.get(username="reader")
    user.user_permissions.set(Permission.objects.filter(codename="view_user"))
    assert "forebay_enqueue" not in reader.get(USERS).content.decode()
    reader.post(USERS, sent)
    assert enqueued() == []
    admin.get(USERS, sent)
    assert enqueued() == []
    strict = Browser(enforce_csrf_checks=True)
    strict.force_login(user.__class__.objects.get(username="root"))
    assert strict.post(USERS, sent).status_code == 403
    assert enqueued() == []
    user.user_permissions.set(Permission.objects.filter(codename__in=("view_user", "change_user")))
    assert "see them" not in page(reader.post(USERS, sent, follow=True))
    assert len(enqueued()) == 1


def test_none_too_many_and_a_full_queue_are_told(users, monkeypatch):
    """With nothing enqueued, and the list as it was."""
    admin = browser("root", is_superuser=True)
    empty = users[0].groups.create(name="empty")
    empty.user_set.clear()
    assert "become no job" in page(ask(admin, GROUPS, ids=[empty.pk]))
    from django.contrib import admin as site

    monkeypatch.setattr(site.site._registry[users[0].__class__], "enqueue_jobs_max", 3)
    answer = ask(admin, USERS, across=True, ids=[users[0].pk])
    assert "13 jobs are more than 3" in page(answer)
    monkeypatch.undo()
    answer = ask(admin, USERS, across=True, ids=[users[0].pk])
    with connection.cursor() as cursor:
        cursor.execute("select forebay.limit_queue('mail', max_waiting => 5)")
    text = page(admin.post(USERS, hidden(answer), follow=True))
    assert "Nothing was enqueued" in text
    assert enqueued() == []
    assert acts() == []


def test_a_mirror_is_one_of_what_can_be_enqueued(users, tmp_path):
    """Its jobs have the id of each row; alerts leave them out by their tag."""
    from django.contrib.auth.models import User

    from forebay.django.admin import Enqueue
    from forebay.mirror import Mirror, QuerySource, SQLiteTarget

    source = QuerySource(
        lambda: app.dsn,
        read="select id, 1 as version, username as name from auth_user where id = any(%(ids)s)",
        scan="select id, 1 as version from auth_user where id > coalesce(%(after)s, 0)"
        " order by id limit %(limit)s",
    )
    target = SQLiteTarget(tmp_path / "copy.db")
    mirror = Mirror(forebay.App(app.dsn), "users_mirror", source=source, target=target)
    one = Enqueue(mirror, tag="backfill.admin", force=True)
    sql = one.query(User.objects.filter(pk__in=[users[0].pk, users[1].pk]))
    plan = one.plan(sql, connection)
    assert plan.jobs == 2
    from django.db import transaction

    with transaction.atomic():
        assert one.enqueue(sql, connection, plan.token) == 2
    assert [(tag, args) for *_, tag, _, args in enqueued()] == [
        ("backfill.admin", {"id": users[n].pk, "force": True}) for n in (0, 1)
    ]
    with pytest.raises(ConfigError, match="users_mirror"):
        Enqueue(mirror, {"key": "pk"})


def test_a_wrong_entry_is_found_by_the_checks_of_django(users):
    """A lookup that is not there, an argument that the handler does not take, no arguments."""
    from django.contrib.auth.models import User

    from forebay.django.admin import Enqueue
    from tests.support.django_project import jobs

    assert Enqueue(jobs.send_welcome, {"user_id": "pk"}).problem(User) is None
    assert "colour" in Enqueue(jobs.send_welcome, {"user_id": "colour"}).problem(User)
    assert "has no argument user" in Enqueue(jobs.send_welcome, {"user": "pk"}).problem(User)
    with pytest.raises(ConfigError, match="has no args"):
        Enqueue(jobs.send_welcome)
    with pytest.raises(ConfigError, match="no handler, kind or mirror"):
        Enqueue(len, {"user_id": "pk"})
    from django.contrib import admin as site

    found = site.site._registry[User]
    assert [error for error in found.check() if error.id == "forebay.E001"] == []
    wrong = (Enqueue(jobs.send_welcome, {"user": "pk"}),)
    try:
        found.enqueue_kinds = wrong
        assert [error.id for error in found.check()] == ["forebay.E001"]
    finally:
        del found.enqueue_kinds
