"""The application of a Django project: its handlers, its address, its command."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction

from forebay import Client
from forebay.db import pools
from forebay.django import DjangoApp, app
from forebay.errors import ConfigError
from forebay.testing import assert_enqueued
from tests.support import django_project
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_handlers_in_modules_named_jobs_are_found(project):
    """
    They are kinds of the project's application as soon as Django has started.
    """
    assert {"send_welcome", "note"} <= {kind.name for kind in app.kinds}


def test_the_address_is_djangos_own(project):
    """
    Whatever DATABASES says now, as in a test runner; one given to use() goes before.
    """
    assert [job.job_id for job in app.client().jobs()] == []
    assert f"dbname={connection.settings_dict['NAME']}" in app.dsn
    with pytest.raises(ConfigError, match="no entry"):
        DjangoApp("nowhere").dsn  # noqa: B018
    with pytest.raises(ConfigError, match="sqlite"):
        DjangoApp("other").dsn  # noqa: B018
    other = DjangoApp()
    other._internals.use(dsn="postgresql://elsewhere/shop")
    assert other.dsn == "postgresql://elsewhere/shop"


def test_a_models_row_and_a_job_are_one_transaction(project):
    """
    Committed together, rolled back together, and what a handler's models write commits with its
    job.
    """
    from django.contrib.auth.models import Group

    from tests.support.django_project.jobs import note, send_welcome

    with transaction.atomic():
        Group.objects.create(name="committed")
        note.enqueue(connection, text="written by a handler")
        assert_enqueued(connection, note, count=1)
    with pytest.raises(RuntimeError), transaction.atomic():
        Group.objects.create(name="rolled back")
        send_welcome.enqueue(connection, user_id=1)
        raise RuntimeError
    app.run_worker(queues={"mail": 1}, until_idle=True)
    assert set(Group.objects.values_list("name", flat=True)) == {
        "committed",
        "written by a handler",
    }
    (job,) = app.client().jobs()
    assert job.state == "done"


def test_connections_are_treated_as_around_a_request(project):
    """
    With CONN_MAX_AGE 0 a handler leaves no connection of Django's behind, be it a thread's or a
    coroutine's.
    """
    from django.contrib.auth.models import Group

    pids = []
    mine = DjangoApp()

    def note():
        with connection.cursor() as cursor:
            cursor.execute("select pg_backend_pid()")
            pids.append(cursor.fetchone()[0])

    @mine.job
    def plain() -> None:
        note()

    @mine.job
    async def coroutine() -> None:
        await Group.objects.acount()
        await sync_to_async(note)()

    plain.enqueue(connection)
    coroutine.enqueue(connection)
    assert mine.run_worker(until_idle=True).done == 2
    with psycopg.connect(project) as conn:
        wait_for(
            lambda: (
                conn.execute(
                    "select count(*) from pg_stat_activity where pid = any(%s)", [pids]
                ).fetchone()
                == (0,)
            )
        )
    assert len(set(pids)) == 2
    assert plain() is None  # the function itself, for whoever calls it


def test_a_connection_that_ended_while_idle_fails_no_job(project, monkeypatch):
    """
    With CONN_MAX_AGE None a thread keeps its connection; one that the server or a firewall ended is
    noticed before the handler uses it. One that was just used costs nothing.
    """
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)
    mine = DjangoApp()

    @mine.job
    def pid() -> int:
        with connection.cursor() as cursor:
            cursor.execute("select pg_backend_pid()")
            return cursor.fetchone()[0]

    run = mine.kinds.get("pid").function  # as the worker calls it
    first = run()
    assert run() == first
    with psycopg.connect(project) as conn:
        conn.execute("select pg_terminate_backend(%s, 30000)", [first])
    monkeypatch.setattr(pools, "_IDLE_SECONDS", 0.0)
    assert run() != first


def test_the_command_runs_forebay_on_the_project(project, capsys):
    """
    `manage.py forebay` has every command of the program; a failure is Django's CommandError.
    """
    from tests.support.django_project.jobs import send_welcome

    job_id = send_welcome.enqueue(connection, user_id=1)
    call_command("forebay", "jobs", "list", "--json")
    assert [job["job_id"] for job in json.loads(capsys.readouterr().out)] == [job_id]
    with pytest.raises(CommandError) as caught:
        call_command("forebay", "jobs", "show", "999999")
    assert caught.value.returncode == 1
    assert "FOREBAY_DATABASE_URL" not in os.environ
    capsys.readouterr()
    with pytest.raises(CommandError):
        call_command("forebay", "tick", "--look", "--log-level", "error")
    assert "work is left" in capsys.readouterr().out
    call_command("forebay", "mirror", "--help")
    assert "Usage: manage.py forebay mirror COMMAND" in capsys.readouterr().out
    with pytest.raises(CommandError):
        call_command("forebay", "jobs", "shwo")
    assert "`manage.py forebay jobs --help`" in capsys.readouterr().err


@pytest.mark.slow
def test_manage_py_runs_a_worker_and_its_children(project, tmp_path):
    """
    The worker finds handlers, tasks and database by itself; so does the child that runs a suspect.
    """
    (tmp_path / "settings.py").write_text(
        f"""
SECRET_KEY = "x"
DATABASES = {{"default": {django_project.settings_of("default")!r}}}
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "forebay.django", "shop"]
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
"""
    )
    (tmp_path / "manage.py").write_text(
        "import os, sys\n"
        "from django.core.management import execute_from_command_line\n"
        "os.environ['DJANGO_SETTINGS_MODULE'] = 'settings'\n"
        "execute_from_command_line(sys.argv)\n"
    )
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "jobs.py").write_text(
        "from django.contrib.auth.models import Group\n"
        "from forebay.django import app\n"
        "@app.job\n"
        "def create(name: str) -> None:\n"
        "    Group.objects.create(name=name)\n"
    )
    environ = {
        name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ
    }
    connection.cursor().execute("select forebay.enqueue('create', '{\"name\": \"harmless\"}')")

    def manage(*arguments):
        return subprocess.run(
            [sys.executable, "manage.py", "forebay", *arguments],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    done = manage("worker", "--until-idle")
    assert done.returncode == 0, done.stderr
    assert "serving 1 kind in queue default, " in done.stderr
    (job,) = Client(project).jobs()
    assert job.state == "done"
    # The child's way in, by itself.
    code = (
        "from forebay.worker.run._child import load_app; from forebay.worker.run.messages "
        "import Start;"
        "import sys;"
        "start = Start(path=sys.path, module='forebay.django.entry', attribute='app', "
        "is_script=False,"
        " dsn='', name='', group='', settings={});"
        "print(sorted(kind.name for kind in load_app(start).kinds))"
    )
    child = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environ | {"DJANGO_SETTINGS_MODULE": "settings"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert "create" in child.stdout


@pytest.mark.slow
def test_django_starts_without_tasks(project, tmp_path):
    """
    Before Django 6.0 tasks are a package of their own, which a project may not have: each command
    of manage.py runs, and the handlers are found, until TASKS names the backend.
    """
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").touch()
    (tmp_path / "shop/jobs.py").write_text(
        "from forebay.django import app\n@app.job\ndef create() -> None: ...\n"
    )
    (tmp_path / "manage.py").write_text(
        "import sys\n"
        "sys.modules |= {'django_tasks': None, 'django.tasks': None}\n"
        "from django.conf import settings\n"
        "from django.core.management import execute_from_command_line\n"
        f"settings.configure(DATABASES={{'default': {django_project.settings_of('default')!r}}},\n"
        "    INSTALLED_APPS=['forebay.django', 'shop'], USE_TZ=True)\n"
        "execute_from_command_line(sys.argv)\n"
    )

    def manage(*arguments):
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    for arguments in (("check",), ("migrate", "--verbosity", "0")):
        done = manage(*arguments)
        assert done.returncode == 0, done.stderr
    done = manage("shell", "-c", "from forebay.django import app; print(app.kinds.queues())")
    assert (done.returncode, "default" in done.stdout) == (0, True), done.stderr
    done = manage("shell", "-c", "import forebay.django.tasks")
    assert "pip install django-tasks" in done.stderr


def test_declared_queues_are_applied_by_manage_py(project, capsys, monkeypatch):
    """Under the name of the project, so that projects that share a database do not remove each
    other's settings.
    """
    from forebay.django import app

    monkeypatch.setattr(app._internals, "queues", {})
    app.queue("mail", concurrency=3)
    call_command("forebay", "apply")
    with psycopg.connect(project) as conn:
        rows = conn.execute("select queue, setting, value, app from forebay.applied_setting")
        assert rows.fetchall() == [("mail", "concurrency", 3, "tests")]
    capsys.readouterr()
    call_command("forebay", "apply", "--check")
    assert "as declared" in capsys.readouterr().out


@pytest.mark.slow
def test_databases_may_be_the_bundled_server(tmp_path, pg_bin):
    """
    A project without a server of its own: the settings start the bundled one, and the address
    `embedded` is the same database.
    """
    with tempfile.TemporaryDirectory(prefix="forebay-home-") as home:
        Path(home).chmod(0o711)  # for the account that runs the server
        (tmp_path / "settings.py").write_text(
            "from forebay.django import embedded\n"
            "SECRET_KEY = 'x'\n"
            "DATABASES = {'default': embedded()}\n"
            "INSTALLED_APPS = ['django.contrib.contenttypes', 'forebay.django']\n"
        )
        environ = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        environ |= {"HOME": home, "XDG_CACHE_HOME": home, "DJANGO_SETTINGS_MODULE": "settings"}
        environ |= {"FOREBAY_PG_BIN": pg_bin} if pg_bin else {}

        def run(*arguments):
            answer = subprocess.run(
                [sys.executable, "-m", *arguments],
                cwd=tmp_path,
                env=environ,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert answer.returncode == 0, answer.stderr
            return answer.stdout

        try:
            run("django", "migrate", "--verbosity", "0")
            run("django", "forebay", "enqueue", "nothing", "{}", "--queue", "mail")
            found = json.loads(run("forebay", "jobs", "list", "--json", "--dsn", "embedded"))
            assert [job["kind"] for job in found] == ["nothing"]
        finally:
            run("forebay", "dev", "--stop")
