"""Forebay as the backend of Django's tasks."""

import sys
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from forebay.django import app
from forebay.testing import install_clock, run_until_idle

try:
    from django.tasks import TaskResultStatus, default_task_backend
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import task_enqueued, task_finished, task_started
except ModuleNotFoundError:
    pytest.importorskip("django_tasks", reason="Django before 6.0 needs the package django-tasks")
    from django_tasks import TaskResultStatus, default_task_backend
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import task_enqueued, task_finished, task_started


@pytest.fixture
def tasks(project):
    from tests.support.django_project import tasks

    tasks.ran.clear()
    return tasks


def work():
    return app.run_worker(queues={"default": 1, "mail": 1}, until_idle=True)


@pytest.mark.slow
def test_a_task_runs(tasks):
    """
    Plain and coroutine functions, with positional and keyword arguments and with a context.
    """
    results = [
        tasks.add.enqueue(1, right=2),
        tasks.add_later.enqueue(4),
        tasks.with_context.enqueue("hello"),
    ]
    assert [result.status for result in results] == [TaskResultStatus.READY] * 3
    stats = work()
    assert stats.done == 3
    assert set(tasks.ran) == {3, 4, (1, results[2].id, "hello")}
    for result in results:
        result.refresh()
        assert result.status == TaskResultStatus.SUCCESSFUL
        assert result.attempts == 1
        assert result.started_at <= result.finished_at
    assert tasks.add.get_result(results[0].id).kwargs == {"right": 2}
    assert [result.return_value for result in results] == [3, None, None]


def test_a_task_is_part_of_the_transaction(tasks):
    """
    A rollback takes it back, and so does that of a savepoint.
    """
    with pytest.raises(RuntimeError), transaction.atomic():
        tasks.add.enqueue(1)
        raise RuntimeError
    with transaction.atomic():
        kept = tasks.add.enqueue(2)
        with pytest.raises(RuntimeError), transaction.atomic():
            tasks.add.enqueue(3)
            raise RuntimeError
    assert [str(job.job_id) for job in app.client().jobs()] == [kept.id]


def test_options_of_a_task_arrive(tasks):
    """
    Queue, priority (Django's is the other way round) and the time it may start.
    """
    later = timezone.now() + timedelta(hours=1)
    result = tasks.add_later.using(run_after=later).enqueue(1)
    (job,) = app.client().job(int(result.id))
    assert (job.queue, job.priority, job.state, job.run_at) == ("mail", 50, "scheduled", later)
    assert job.kind == "tests.support.django_project.tasks.add_later"
    with pytest.raises(InvalidTask):
        tasks.add.using(queue_name="nobody").enqueue(1)
    with pytest.raises(InvalidTask):
        tasks.add.using(priority=1000)


def test_a_failed_task_is_a_dead_letter(tasks):
    """
    With its exception's class and traceback.
    """
    result = tasks.failing.enqueue()
    work()
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    (error,) = result.errors
    assert error.exception_class is ValueError
    assert "no such user" in error.traceback
    (letter,) = app.client().dead_letters()
    assert letter.kind.endswith("tasks.failing")


def test_a_task_that_returns_what_has_not_run_has_failed(tasks):
    """
    The coroutine was never awaited, so nothing ran and the task has not succeeded.
    """
    result = tasks.not_run.enqueue()
    work()
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert result.errors[0].exception_class is TypeError
    assert "nothing need have run" in result.errors[0].traceback
    assert tasks.ran == []


def test_what_is_no_task_has_no_result(tasks):
    """
    An unknown number, no number, another task's, a job that is none.
    """
    from tests.support.django_project.jobs import send_welcome

    mine = tasks.add.enqueue(1)
    other = send_welcome.enqueue("default", user_id=1)
    for wrong in ("999999", "x", str(other)):
        with pytest.raises(TaskResultDoesNotExist):
            default_task_backend.get_result(wrong)
    with pytest.raises(TaskResultMismatch):
        tasks.failing.get_result(mine.id)


@pytest.mark.parametrize(
    "kind", ["os.system", "tests.support.django_project.jobs.send_welcome", "antigravity.fly"]
)
def test_a_kind_that_is_no_task_is_not_imported(tasks, kind):
    """
    A kind is text of a producer: no function of that name is returned as a task, and no module is
    imported for it.
    """
    with connection.cursor() as cursor:
        cursor.execute('select forebay.enqueue(%s, \'{"args": [], "kwargs": {}}\')', [kind])
        (job_id,) = cursor.fetchone()
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(str(job_id))
    assert "antigravity" not in sys.modules


@pytest.fixture
def signals():
    """The signals that were sent, with the id and the status of their task."""
    seen = []

    def on(name):
        def receive(sender, task_result, **_):
            seen.append((name, task_result.id, task_result.status))

        return receive

    receivers = [
        (signal, on(name))
        for name, signal in (
            ("enqueued", task_enqueued),
            ("started", task_started),
            ("finished", task_finished),
        )
    ]
    for signal, receiver in receivers:
        signal.connect(receiver)
    yield seen
    for signal, receiver in receivers:
        signal.disconnect(receiver)


def test_signals_are_sent(tasks, signals):
    """
    When a task was enqueued, started and finished.
    """
    result = tasks.add.enqueue(1)
    work()
    assert signals == [
        ("enqueued", result.id, TaskResultStatus.READY),
        ("started", result.id, TaskResultStatus.RUNNING),
        ("finished", result.id, TaskResultStatus.SUCCESSFUL),
    ]


def test_a_task_is_finished_when_no_attempt_follows(tasks, signals, caplog):
    """
    Attempts that are retried send no `task_finished`: its receivers log an error and alert. The
    last one does.
    """
    install_clock(connection)
    handler = app.tasks["default", tasks.failing.enqueue().task.module_path][1]
    caplog.clear()
    signals.clear()
    handler.using(max_attempts=3).enqueue(connection, args=[], kwargs={})
    # The first task has one attempt, as the backend of the project says.
    found = run_until_idle(app, with_scheduled=True, raise_on_failure=False)
    assert (found.retried, found.dead) == (2, 2)
    names = [name for name, _, status in signals if status == TaskResultStatus.FAILED]
    assert names == ["finished"] * 2
    logged = [each for each in caplog.records if each.name in ("django.tasks", "django_tasks")]
    assert len([each for each in logged if each.levelname == "ERROR"]) == 2
