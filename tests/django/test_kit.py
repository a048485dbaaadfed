"""What the tests of a Django project rely on: no job of another test, one rule for connections, a
clock.
"""

import unittest
from datetime import timedelta

import django.test
import pytest
from django.db import connection, connections, transaction

from forebay import Once
from forebay.django import app
from forebay.errors import ConfigError, WrongConnection
from forebay.testing import (
    Performer,
    assert_enqueued,
    assert_not_enqueued,
    enqueued,
    install_clock,
    run_until_idle,
    travel,
)

# --- one rule for connections ---

ALIKE = {
    "the proxy": lambda: connection,
    "the connection": lambda: connections["default"],
    "the alias": lambda: "default",
}


@pytest.mark.parametrize("given", ALIKE)
def test_a_performer_takes_what_an_enqueue_takes(project, given):
    """
    Whatever stands for a connection at an enqueue stands for it in the whole test kit, and a
    handler gets the connection that a worker would give it.
    """
    from django.contrib.auth.models import Group

    from tests.support.django_project.jobs import note

    conn = ALIKE[given]()
    with transaction.atomic():
        note.enqueue(conn, text="enqueued")
        assert_enqueued(conn, note, count=1)
        performed = Performer(conn=conn).perform(note, "performed")
        assert performed.outcome == "done"
        assert performed.context.conn is connections["default"]
        assert Group.objects.filter(name="performed").exists()
        transaction.set_rollback(True)
    install_clock(conn)
    assert travel(conn, timedelta(days=1)) > performed.context.job.enqueued_at


def test_a_performer_still_refuses_another_librarys_connection(project, conn):
    """
    A handler that declares Django's connection gets no other.
    """
    from tests.support.django_project.jobs import note

    for wrong in (conn, "nowhere", object()):
        with pytest.raises(WrongConnection, match="takes a django"):
            Performer(conn=wrong).perform(note, "refused")


def test_a_performed_handler_keeps_the_connection_of_its_test(project):
    """
    A worker closes old connections around a handler; in the transaction of a test they stay.
    """
    from django.contrib.auth.models import Group

    from tests.support.django_project.jobs import label

    with transaction.atomic():
        assert Performer().perform(label, "performed").outcome == "done"
        assert Group.objects.filter(name="performed").exists()
        transaction.set_rollback(True)
    assert not Group.objects.exists()


# --- no job of another test ---


def emptied(project, base, **attributes):
    """Run two tests of a class; return what each found, and what stopped it."""
    from tests.support.django_project.jobs import send_welcome

    found = []

    def test(self):
        found.append([job.args for job in enqueued(connection)])
        send_welcome.enqueue(connection, user_id=len(found))
        if not connection.in_atomic_block:
            run_until_idle(app, queues=["mail"], raise_on_failure=False)
            send_welcome.enqueue(connection, user_id=-1)
            send_welcome.using(delay=3600).enqueue(connection, user_id=7)
            with transaction.atomic():  # still enqueued when the test ends
                send_welcome.using(unique=Once("one a test")).enqueue(connection, user_id=8)

    case = type("Case", (base,), {"test_one": test, "test_two": test, **attributes})
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    assert result.wasSuccessful(), [*result.errors, *result.failures]
    assert result.testsRun == 2
    return found


@pytest.mark.parametrize(
    ("base", "attributes"),
    [
        ("TestCase", {}),
        ("TransactionTestCase", {}),
        pytest.param("TransactionTestCase", {"reset_sequences": True}, marks=pytest.mark.slow),
        pytest.param("TransactionTestCase", {"serialized_rollback": True}, marks=pytest.mark.slow),
        pytest.param(
            "TransactionTestCase",
            {"available_apps": ["forebay.django", "django.contrib.auth"]},
            marks=pytest.mark.slow,
        ),
        pytest.param("LiveServerTestCase", {}, marks=pytest.mark.slow),
    ],
)
def test_no_test_finds_the_jobs_of_another(project, base, attributes):
    """
    A rollback takes the jobs of a `TestCase`, and the flush of the others takes those that were
    committed: waiting, ended and dead ones, those due later, and their unique keys.
    """
    connections["default"]._test_serialized_contents = "[]"
    try:
        assert emptied(project, getattr(django.test, base), **attributes) == [[], []]
    finally:
        del connections["default"]._test_serialized_contents
    assert enqueued(connection) == []
    assert app.client().dead_letters() == []


def test_a_flush_leaves_a_database_that_works(project, capsys):
    """
    Settings of the database and the clock of tests stay, and the clock shows the real time again.
    A session that was open before the flush enqueues, and a worker runs what it enqueued.
    """
    from django.core.management import call_command

    from tests.support.django_project.jobs import send_welcome

    install_clock(connection)
    app.client().configure("retention_days", 7)
    ahead = travel(connection, timedelta(days=9))
    for user_id in (1, -1, 2):
        send_welcome.using(unique=Once(str(user_id))).enqueue(connection, user_id=user_id)
    run_until_idle(app, raise_on_failure=False)
    call_command("flush", interactive=False, verbosity=0)
    assert enqueued(connection) == []
    left = """
        select c.relname from pg_class c
        where c.relnamespace = 'forebay'::regnamespace and c.relkind = 'r'
        and pg_relation_size(c.oid) > 0 order by 1"""
    with connection.cursor() as cursor:
        cursor.execute(left)
        assert {name for (name,) in cursor.fetchall()} <= {
            "cluster", "event_type", "schema_migration", "segment", "setting", "sink_type",
        }  # fmt: skip
    assert ahead - travel(connection, 0) > timedelta(days=8)
    assert app.client().configure("retention_days", 30) == 7
    first = send_welcome.using(unique=Once("1")).enqueue(connection, user_id=1)
    assert first.is_new
    assert run_until_idle(app).done == 1
    assert_not_enqueued(connection, send_welcome, args={"user_id": -1})


def test_a_flush_does_not_touch_a_database_without_the_schema(project):
    """
    Databases of other kinds, and those that the routers exclude, are flushed as by Django alone.
    """
    from django.core.management import call_command

    call_command("migrate", database="other", verbosity=0)
    call_command("flush", database="other", interactive=False, verbosity=0)


# --- a clock ---


def test_djangos_connection_gets_a_clock(project):
    """
    Without one the error says what to call; with it, retries and delays run without waiting.
    """
    from tests.support.django_project.jobs import send_welcome

    with pytest.raises(ConfigError) as caught:
        run_until_idle(app, with_scheduled=True)
    assert "install_clock(connection)" in caught.value.hint
    with transaction.atomic():
        install_clock(connection)
        install_clock(connection)  # a second time changes nothing
    send_welcome.using(delay=timedelta(days=3)).enqueue(connection, user_id=1)
    found = run_until_idle(app, with_scheduled=True)
    assert found.done == 1
    assert found.moved_seconds > 2 * 86_400


# --- eager ---


@pytest.fixture
def eager(project):
    with django.test.override_settings(FOREBAY={"EAGER": True}):
        yield
    assert list(app._internals.middlewares.all) == []


@pytest.mark.slow
def test_an_eager_job_runs_when_its_transaction_commits(eager):
    """
    Not before, and not after a rollback; what a handler enqueues runs too, and what it raises
    reaches the code that commits. A job that is due later waits.
    """
    from django.contrib.auth.models import Group

    from tests.support.django_project.jobs import note, send_welcome

    with transaction.atomic():
        note.enqueue(connection, text="committed")
        note.enqueue_many(connection, [{"text": "many"}, {"text": "more"}])
        note.using(delay=3600).enqueue(connection, text="later")
        assert not Group.objects.exists()
    assert set(Group.objects.values_list("name", flat=True)) == {"committed", "many", "more"}
    with pytest.raises(RuntimeError), transaction.atomic():
        note.enqueue(connection, text="rolled back")
        raise RuntimeError
    with pytest.raises(ValueError, match="no such user"):
        send_welcome.enqueue(connection, user_id=-1)
    assert Group.objects.count() == 3
    states = sorted(str(job.state) for job in app.client().jobs())
    assert states == ["dead", "done", "done", "done", "scheduled"]


def test_an_eager_job_runs_in_a_test_case_with_its_callbacks(eager):
    """
    A `TestCase` never commits: with `captureOnCommitCallbacks(execute=True)` jobs run in its
    transaction, once each.
    """
    from django.contrib.auth.models import Group

    from tests.support.django_project.jobs import label, note

    class Case(django.test.TestCase):
        def test(self):
            note.enqueue(connection, text="before")
            assert not Group.objects.exists()
            for handler in (label, note):
                with self.captureOnCommitCallbacks(execute=True):
                    handler.enqueue(connection, text=handler.kind.name)
            names = Group.objects.order_by("pk").values_list("name", flat=True)
            assert list(names) == ["before", "label", "note"]

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
    assert result.wasSuccessful(), [*result.errors, *result.failures]
    assert not Group.objects.exists()


# --- the setting ---


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["EAGER"], "not a dict"),
        ({"EAGRE": True}, "has no entry 'EAGRE'"),
        ({"DATABASES": "default"}, "not a list of aliases"),
        ({"DATABASES": ["defualt"]}, "not a list of aliases"),
    ],
)
def test_a_wrong_setting_is_refused(project, given, problem):
    """
    An entry that nobody reads, and a database that is not there.
    """
    from django.conf import settings

    from forebay.django._settings import has_schema

    settings.FOREBAY = given
    try:
        with pytest.raises(ConfigError, match=problem):
            has_schema("default")
    finally:
        del settings.FOREBAY


def test_the_setting_says_which_databases_have_the_schema(project):
    """
    By default only `default`; a router may still exclude one, and one that is no PostgreSQL is
    never asked.
    """
    from forebay.django._settings import has_schema

    assert has_schema("default")
    assert not has_schema("other")
    with django.test.override_settings(FOREBAY={"DATABASES": ["other"]}):
        assert not has_schema("default")
        assert not has_schema("other")  # SQLite
    router = "tests.django.test_kit.NoForebay"
    with django.test.override_settings(DATABASE_ROUTERS=[router]):
        assert not has_schema("default")


class NoForebay:
    """A router that keeps the schema out of all databases."""

    def allow_migrate(self, db, app_label, **hints):
        return app_label != "forebay"
