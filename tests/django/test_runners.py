"""The tests of a project under the programs that run them: Django's, also in parallel, and
pytest-django.
"""

import json
import os
import subprocess
import sys

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.nested import ROOT, environment_for_pytest

SETTINGS = """
import json, os
from tests.support.django_project import SETTINGS
globals().update(SETTINGS)
DATABASES = {"default": json.loads(os.environ["PROJECT_DATABASE"])}
"""

#: Each class leaves jobs of every state, and finds none of the other.
CASES = """
from datetime import timedelta

from django.db import connection
from django.test import TransactionTestCase

from forebay.django import app
from forebay.testing import enqueued, install_clock, run_until_idle
from tests.support.django_project.jobs import label, send_welcome

from django.contrib.auth.models import Group


class Base:
    def test_a_job_runs(self):
        assert enqueued(connection) == []
        label.enqueue(connection, text="ran")
        assert run_until_idle(app, queues=["mail"]).done == 1
        assert Group.objects.filter(name="ran").exists()
        send_welcome.enqueue(connection, user_id=7)

    def test_a_job_dies(self):
        assert enqueued(connection) == []
        send_welcome.enqueue(connection, user_id=-1)
        assert run_until_idle(app, queues=["mail"], raise_on_failure=False).dead == 1
        assert len(app.client().dead_letters()) == 1

    def test_a_job_is_due_later(self):
        assert app.client().dead_letters() == []
        install_clock(connection)
        label.using(delay=timedelta(days=3)).enqueue(connection, text="later")
        assert run_until_idle(app, queues=["mail"], with_scheduled=True).done == 1


class TestOne(Base, TransactionTestCase):
    pass


class TestTwo(Base, TransactionTestCase):
    pass
"""

FIXTURES = """
import pytest
from django.contrib.auth.models import Group
from django.db import connection

from forebay.django import app
from forebay.testing import Performer, assert_enqueued, enqueued, run_until_idle
from tests.support.django_project.jobs import label


@pytest.mark.parametrize("turn", [1, 2])
def test_db(db, turn):
    assert enqueued(connection) == []
    label.enqueue(connection, text="rolled back")
    assert_enqueued(connection, label, count=1)
    assert Performer(conn=connection).perform(label, "performed").outcome == "done"
    assert Group.objects.filter(name="performed").exists()


def jobs_run():
    assert enqueued(connection) == []
    label.enqueue(connection, text="committed")
    assert run_until_idle(app, queues=["mail"]).done == 1
    label.enqueue(connection, text="left")


@pytest.mark.parametrize("turn", [1, 2])
def test_transactional_db(transactional_db, turn):
    jobs_run()


@pytest.mark.parametrize("turn", [1, 2])
def test_reset_sequences(django_db_reset_sequences, turn):
    jobs_run()


@pytest.mark.parametrize("turn", [1, 2])
def test_live_server(live_server, turn):
    jobs_run()


def test_settings(settings, transactional_db):
    settings.FOREBAY = {"EAGER": True}
    label.enqueue(connection, text="eager")
    assert Group.objects.filter(name="eager").exists()


def test_callbacks(settings, db, django_capture_on_commit_callbacks):
    settings.FOREBAY = {"EAGER": True}
    with django_capture_on_commit_callbacks(execute=True):
        label.enqueue(connection, text="eager")
    assert Group.objects.filter(name="eager").exists()


def test_settings_are_back(db):
    label.enqueue(connection, text="not eager")
    assert not Group.objects.filter(name="not eager").exists()
"""


@pytest.fixture
def run(empty_database, tmp_path):
    """Run a program in the folder of a project; its test databases go at the end."""
    parts = conninfo_to_dict(empty_database)
    names = {"NAME": parts["dbname"], "HOST": parts["host"], "PORT": str(parts["port"])}
    where = {"ENGINE": "django.db.backends.postgresql", "USER": parts["user"], **names}
    (tmp_path / "settings.py").write_text(SETTINGS)
    (tmp_path / "test_jobs.py").write_text(CASES)
    environ = environment_for_pytest() | {
        "PROJECT_DATABASE": json.dumps(where),
        "DJANGO_SETTINGS_MODULE": "settings",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT), *sys.path[1:]]),
    }

    def run(*command):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.slow
def test_djangos_runner_in_parallel(run):
    """
    It copies the migrated test database for each of its processes: jobs run in the copies too.
    """
    code, said = run("django", "test", "--parallel", "2", "--noinput", "test_jobs")
    assert code == 0, said
    assert "Ran 6 tests" in said
    assert "Cloning test database" in said


@pytest.mark.slow
def test_pytest_django(run, tmp_path):
    """
    Every way to get a database from its fixtures; the jobs of one test are gone in the next.
    """
    (tmp_path / "test_fixtures.py").write_text(FIXTURES)
    code, said = run("pytest", "-q", "--create-db", "-p", "xdist", "-n", "2", "-W", "error")
    assert code == 0, said
    assert "17 passed" in said
