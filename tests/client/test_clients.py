"""The client, asynchronous and synchronous: one suite on both faces, and the pair compared."""

import asyncio
import inspect
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from forebay import AsyncClient, Client, JobState, Once
from forebay.errors import (
    AlreadyRedriven,
    ConfigError,
    DatabaseUnavailable,
    DeadLetterNotFound,
    GroupInUse,
    GroupNotFound,
    InvalidJob,
    JobNotFound,
    PayloadTooDeep,
    SchemaError,
)
from forebay.model.limits import KeyLimits, Limits

ROOT = Path(__file__).resolve().parent.parent.parent


class Synchronous:
    """The synchronous face, as it is."""

    client_class = Client

    def client(self, dsn=None):
        return Client(dsn)

    def connect(self, dsn, **options):
        return psycopg.connect(dsn, **options)

    def close(self):
        pass


class Awaited:
    """The asynchronous face, each call awaited on a loop of its own."""

    def __init__(self):
        self.runner = asyncio.Runner()

    def client(self, dsn=None):
        return _Waiting(AsyncClient(dsn), self.runner)

    def connect(self, dsn, **options):
        return _Waiting(
            self.runner.run(psycopg.AsyncConnection.connect(dsn, **options)), self.runner
        )

    def close(self):
        self.runner.close()


class _Waiting:
    def __init__(self, it, runner):
        self._it, self._runner = it, runner

    def __getattr__(self, name):
        found = getattr(self._it, name)
        if not inspect.iscoroutinefunction(found):
            return found

        def call(*args, **kwargs):
            args, kwargs = map(_bare, args), {k: _bare(v) for k, v in kwargs.items()}
            return self._runner.run(found(*args, **kwargs))

        return call

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._runner.run(self._it.close())


def _bare(value):
    return value._it if isinstance(value, _Waiting) else value


@pytest.fixture(params=[Synchronous, Awaited], ids=["sync", "async"])
def face(request):
    face = request.param()
    yield face
    face.close()


@pytest.fixture
def client(face, database):
    return face.client(database)


def write_dead_letter(dsn, job_id, *, reason="exhausted", queue="mail", kind="send", tag=None):
    """Put a dead letter where a worker would have put it; return its id."""
    with psycopg.connect(dsn) as conn:
        group = conn.execute("select forebay.open_group(%s)", [queue]).fetchone()[0]
        return conn.execute(
            "insert into forebay.dead_letter (group_id, job_id, seq, reason, died_at, queue,"
            " priority, enqueued_at, attempt, kind, args, tag, errors)"
            " values (%s, %s, %s, %s, now(), %s, 100, now(), 3, %s, '{\"n\": 1}', %s, %s)"
            " returning dead_id",
            [group, job_id, job_id, reason, queue, kind, tag, ERRORS],
        ).fetchone()[0]


ERRORS = """[{"attempt": 1, "failed_at": "2026-11-20T10:00:00+00:00", "outcome": "retried",
"type": "ValueError", "message": "no", "traceback": "Traceback ...", "worker": "host:1"}]"""


def test_a_job_enqueued_by_name_has_what_was_given(client):
    """
    Kind, arguments and every option arrive; the state tells it back.
    """
    job_id = client.enqueue_now(
        "send",
        {"user_id": 2**70, "text": "\u00e9\u65e5"},
        queue="mail",
        priority=7,
        tag="signup",
        delay=timedelta(hours=1),
        max_attempts=3,
        correlation_id="r-1",
        headers={"trace": "abc"},
    )
    (job,) = client.job(job_id)
    assert job.args == {"user_id": 2**70, "text": "\u00e9\u65e5"}
    assert (job.kind, job.queue, job.priority, job.tag) == ("send", "mail", 7, "signup")
    assert (job.max_attempts, job.correlation_id) == (3, "r-1")
    assert job.headers == {"trace": "abc"}
    assert job.state is JobState.SCHEDULED
    assert 3500 < (job.run_at - job.enqueued_at).total_seconds() <= 3600


def test_the_keys_of_a_job_are_shown(client):
    """
    A test can assert the tenant of a job, and a page can show it.
    """
    limited = client.enqueue_now("send", {}, limit_key="tenant-1")
    ordered = client.enqueue_now("send", {}, ordering_key="order-1", delay=60)
    found = {job.job_id: (job.ordering_key, job.limit_key) for job in client.jobs()}
    assert found == {limited: (None, "tenant-1"), ordered: ("order-1", None)}
    (job,) = client.job(limited)
    assert job.limit_key == "tenant-1"


def test_calls_on_the_callers_connection_belong_to_its_transaction(face, client, database):
    """
    Enqueuing, cancelling and pausing there are undone by its rollback, and seen before it.
    """
    with face.connect(database) as conn:
        job_id = client.enqueue(conn, "send", queue="mail")
        assert client.cancel(job_id, conn=conn) == "cancelled"
        assert client.pause_queue("mail", conn=conn) == 1
        assert client.shard_queue("mail", 4, conn=conn) == 1
        assert client.limit_queue("mail", max_waiting=4, conn=conn) is None
        assert client.limit_queue("mail", rate=0.5, conn=conn) == Limits(max_waiting=4)
        (found,) = client.limits(conn=conn)
        assert (found.queue, found.running) == ("mail", 0)
        assert found.limits == Limits(max_waiting=4, rate=0.5)
        assert [job.job_id for job in client.jobs(conn=conn)] == [job_id]
        conn.rollback()
    assert client.jobs() == []
    assert client.shard_queue("mail", 1) == 1
    assert client.limit_queue("mail", max_waiting=None) is None
    assert client.limit_queue("mail", key_rate=3) is None
    assert client.limit_queue("mail", key_rate=None) == Limits(key_rate=3)
    assert client.limits("mail") == []
    assert client.keep_dead("mail", days=30) is None
    assert client.keep_dead("mail", inherit=True) == 30
    assert client.dead_summary() == []
    client.open_group("mail")
    (group,) = client.groups()
    assert (group.queue, group.group, group.unread, group.is_served) == (
        "mail",
        "default",
        0,
        False,
    )
    with face.connect(database) as conn:
        assert client.close_group("mail", conn=conn).cancelled == 0
        conn.rollback()
    assert client.close_group("mail", dry_run=True).segments == 0
    assert client.groups("mail")[0].closing_at is None
    client.close_group("mail", force=True)
    with pytest.raises(GroupInUse) as caught:
        client.open_group("mail")
    assert caught.value.group == "default"
    with pytest.raises(GroupNotFound):
        client.close_group("mail", "other")
    with pytest.raises(GroupNotFound):
        client.resume_queue("nowhere")


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ([], {}),
        ("x", {}),
        ({1: 2}, {}),
        ({"at": {1, 2}}, {}),
        ({"n": float("nan")}, {}),
        ({"text": "a\x00"}, {}),
        ({}, {"queue": "no good"}),
        ({}, {"priority": "high"}),
        ({}, {"qeue": "mail"}),
        ({}, {"delay": "soon"}),
        ({}, {"headers": {"a": 1}}),
    ],
    ids=str,
)
def test_bad_input_is_refused_before_anything_is_sent(client, args, options):
    """
    Arguments without a JSON form and options that are wrong or unknown write nothing.
    """
    with pytest.raises(InvalidJob):
        client.enqueue_now("send", args, **options)
    assert client.jobs() == []


def test_a_kind_is_a_name_and_arguments_have_a_depth(client):
    """
    Also refused: a kind that is no name, and nesting beyond the limit.
    """
    with pytest.raises(InvalidJob, match="kind"):
        client.enqueue_now("no good")
    nested = {}
    for _ in range(70):
        nested = {"in": nested}
    with pytest.raises(PayloadTooDeep):
        client.enqueue_now("send", nested)


def test_a_job_that_never_was_is_not_found(client):
    """
    Looking at it is an error; cancelling it has an answer.
    """
    with pytest.raises(JobNotFound):
        client.job(123456)
    assert client.cancel(123456) == "unknown"
    with pytest.raises(InvalidJob):
        client.job("1")


def test_lists_are_newest_first_filtered_and_in_pages(client):
    """
    Queue, kind and state narrow a list; ``place`` leads to the next page.
    """
    ids = [
        client.enqueue_now("even" if n % 2 == 0 else "odd", {"n": n}, queue=f"q{n % 3}")
        for n in range(9)
    ]
    later = client.enqueue_now("even", queue="q0", delay=60)

    assert [job.job_id for job in client.jobs()] == [later, *reversed(ids)]
    assert [job.args["n"] for job in client.jobs(kind="odd")] == [7, 5, 3, 1]
    assert [job.args["n"] for job in client.jobs(queue="q0", state="ready")] == [6, 3, 0]
    assert [job.job_id for job in client.jobs(state=JobState.SCHEDULED)] == [later]
    first = client.jobs(limit=4)
    second = client.jobs(limit=4, before=first[-1].place)
    assert [job.job_id for job in first + second] == [later, *reversed(ids)][:8]
    assert client.jobs(queue="none") == []
    for wrong in ({"limit": 0}, {"limit": 1001}, {"state": "waiting"}):
        with pytest.raises(InvalidJob):
            client.jobs(**wrong)


def test_depth_counts_by_queue_and_priority(client):
    """
    Ready and scheduled jobs are counted apart.
    """
    for n in range(3):
        client.enqueue_now("send", queue="mail", priority=n % 2)
    client.enqueue_now("send", queue="mail", priority=0, delay=60)
    client.enqueue_now("send", queue="other")

    found = [
        (d.priority, d.ready, d.claimed + d.running, d.scheduled) for d in client.depth("mail")
    ]
    assert found == [(0, 2, 0, 1), (1, 1, 0, 0)]
    assert {d.queue for d in client.depth()} == {"mail", "other"}


def test_queues_pause_and_resume(client):
    """
    Each call tells how many groups changed; a second group is opened by name.
    """
    first = client.open_group("mail")
    second = client.open_group("mail", "audit", start="now")
    assert first == client.open_group("mail") != second
    assert client.pause_queue("mail") == 2
    assert client.pause_queue("mail", group="audit") == 0
    assert client.resume_queue("mail", group="audit") == 1
    assert client.resume_queue("mail") == 1
    with pytest.raises(GroupNotFound):
        client.pause_queue("mail", group="nobody")


def test_a_key_is_paused_and_resumed(client):
    """
    Each call tells whether something changed; exactly one key is named.
    """
    assert client.pause_key("mail", limit_key="acme") is True
    assert client.pause_key("mail", limit_key="acme") is False
    assert client.pause_key("mail", limit_key="acme", for_=timedelta(minutes=5)) is True
    assert client.resume_key("mail", ordering_key="acme") is False
    assert client.resume_key("mail", limit_key="acme") is True
    when = datetime.now(UTC) + timedelta(hours=1)
    assert client.pause_key("mail", limit_key="acme", at=when, for_=60) is True
    assert client.pause_key("mail", limit_key="acme", at=when, for_=60) is False
    assert client.resume_key("mail", limit_key="acme") is True
    for bad in (
        {},
        {"ordering_key": "a", "limit_key": "b"},
        {"limit_key": "a", "for_": -1},
        {"limit_key": "a", "at": datetime(2031, 1, 1)},  # noqa: DTZ001 - it has no zone
    ):
        with pytest.raises(InvalidJob):
            client.pause_key("mail", **bad)


def test_limits_of_a_key_are_set_and_removed(client):
    """
    Only the given limits change; each call returns the previous ones.
    """
    assert client.limit_key("mail", "acme", rate=0.5, burst=2) is None
    assert client.limit_key("mail", "acme", concurrency=3) == KeyLimits(rate=0.5, burst=2)
    before = client.limit_key("mail", "acme", remove=True)
    assert before == KeyLimits(rate=0.5, burst=2, concurrency=3)
    assert client.limit_key("mail", "acme", remove=True) is None
    for bad in ({}, {"burst": 2}, {"rate": 0}, {"concurrency": 0}):
        with pytest.raises(InvalidJob):
            client.limit_key("mail", "acme", **bad)


def test_dead_letters_are_listed_shown_redriven_and_purged(client, database):
    """
    The whole life of a dead letter: each keeps its history, is redriven once, and names its heir.
    """
    dead = [
        write_dead_letter(database, 1, tag="a"),
        write_dead_letter(database, 2, reason="permanent"),
    ]
    dead.append(write_dead_letter(database, 3, queue="other", kind="else"))

    assert [letter.dead_id for letter in client.dead_letters()] == list(reversed(dead))
    assert [x.dead_id for x in client.dead_letters(queue="mail", reason="permanent")] == [dead[1]]
    assert [x.dead_id for x in client.dead_letters(limit=1, before=dead[1])] == [dead[0]]
    assert [x.dead_id for x in client.dead_letters(tag="a", job_id=1, kind="send")] == [dead[0]]

    shown = client.dead_letter(dead[0])
    assert (shown.reason, shown.attempt, shown.args, shown.group) == (
        "exhausted",
        3,
        {"n": 1},
        "default",
    )
    assert [(e.type, e.message, e.attempt) for e in shown.errors] == [("ValueError", "no", 1)]

    new_id = client.redrive(dead[0])
    assert client.dead_letter(dead[0]).redriven_as == new_id
    (new,) = client.job(new_id)
    assert (new.redriven_from, new.redriven_from_dead_id) == (1, dead[0])
    assert dead[0] not in [letter.dead_id for letter in client.dead_letters()]
    assert [x.redriven_as for x in client.dead_letters(redriven=True)] == [new_id]
    assert [x.dead_id for x in client.dead_letters(redriven="any")] == list(reversed(dead))
    assert [x.dead_id for x in client.dead_letters(job_id=1)] == [dead[0]]
    assert client.dead_letters(job_id=1, redriven=False) == []
    with pytest.raises(AlreadyRedriven):
        client.redrive(dead[0])
    assert client.redrive_matching(job_id=1) == 0
    assert client.redrive_matching(queue="mail", limit=10, job_id=2) == 1
    assert [x.dead_id for x in client.dead_letters(redriven=False)] == [dead[2]]

    assert client.purge_dead(timedelta(days=1)) == 0
    assert client.purge_dead(0, queue="mail") == 2
    with pytest.raises(DeadLetterNotFound):
        client.dead_letter(dead[0])
    with pytest.raises(DeadLetterNotFound):
        client.redrive(dead[0])
    for wrong in ({"reason": "tired"}, {"limit": 0}, {"redriven": "no"}):
        with pytest.raises(InvalidJob):
            client.dead_letters(**wrong)
    with pytest.raises(InvalidJob):
        client.purge_dead(-1)


def test_the_id_of_a_job_given_as_a_dead_letter_is_explained(client, database):
    """
    The log and the list of jobs name jobs: the error names the dead letter, in Python and in SQL.
    """
    dead_id = write_dead_letter(database, 70_001)
    for call in (client.dead_letter, client.redrive):
        with pytest.raises(DeadLetterNotFound) as caught:
            call(70_001)
        assert caught.value.hint == f"Job 70001 is dead letter {dead_id}."
        with pytest.raises(DeadLetterNotFound) as caught:
            call(70_002)
        assert "70002" not in caught.value.hint


def test_settings_of_the_database_are_changed_by_name(client):
    """
    The value before comes back; unknown names and values out of range are refused.
    """
    assert client.configure("retention_days", 7) == 30
    assert client.configure("retention_days", 30) == 7
    for name, value in (("retention_daze", 7), ("retention_days", -1)):
        with pytest.raises(InvalidJob):
            client.configure(name, value)


def test_without_address_and_connection_there_is_an_error_that_names_the_places(face, monkeypatch):
    """
    No database is guessed.
    """
    for name in list(os.environ):
        if name.startswith("PG") or name in ("DATABASE_URL", "FOREBAY_DATABASE_URL"):
            monkeypatch.delenv(name)
    with pytest.raises(ConfigError, match="FOREBAY_DATABASE_URL"):
        face.client().depth()


def test_the_address_may_come_from_the_environment(face, database, monkeypatch):
    """
    It is looked up when first needed, and given by a function as well.
    """
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database)
    assert face.client().depth() == []
    assert face.client(lambda: database).depth() == []


def test_a_server_that_is_not_there_is_unavailable(face):
    """
    The driver's exception is translated, and says that trying again may help.
    """
    with pytest.raises(DatabaseUnavailable) as caught:
        face.client("host=/nonexistent dbname=none").depth()
    assert caught.value.retryable
    with pytest.raises(ConfigError, match="malformed"):
        face.client("host='").depth()


def test_a_database_without_the_schema_says_so(face, empty_database):
    """
    On a connection of its own as on the caller's.
    """
    with pytest.raises(SchemaError, match="not installed"):
        face.client(empty_database).depth()


# --- the pair ---


def public(cls):
    return {
        name: member
        for base in cls.__mro__
        for name, member in vars(base).items()
        if not name.startswith("_")
    }


def test_both_faces_have_the_same_methods():
    """
    Names, parameters with their defaults, and docstrings agree; only awaiting differs.
    """
    assert list(public(AsyncClient)) == list(public(Client))
    for name, twin in public(Client).items():
        original = public(AsyncClient)[name]
        iterates = "AsyncIterator" in str(inspect.signature(original).return_annotation)
        assert inspect.iscoroutinefunction(original) or iterates
        assert not inspect.iscoroutinefunction(twin)
        assert inspect.getdoc(original) == inspect.getdoc(twin)
        as_synchronous = str(inspect.signature(original)).replace(
            "AsyncConnection", "SyncConnection"
        )
        as_synchronous = as_synchronous.replace("AsyncIterator", "Iterator")
        assert as_synchronous == str(inspect.signature(twin))


@pytest.mark.slow
def test_the_generated_files_are_up_to_date():
    """
    The synchronous client is what the tool makes of the asynchronous one, to the last character.
    """
    pytest.importorskip("ruff")
    done = subprocess.run(
        [sys.executable, "tools/async_to_sync.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_name_of_the_synchronous_client_begins_with_async():
    """
    What an editor and a traceback show of a synchronous client does not say that it is
    asynchronous.
    """
    names = {
        name[0]: path.name
        for path in (ROOT / "src/forebay/client/_sync").glob("*.py")
        for name in re.finditer(r"\bAsync\w+", path.read_text(encoding="utf-8"))
    }
    assert names == {}


def test_every_generated_file_is_known_to_the_tool():
    """
    A file that carries the banner is in the tool's list: no orphan stays behind.
    """
    banner = "# Generated from src/"
    marked = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "src").rglob("*.py")
        if path.read_text(encoding="utf-8").startswith(banner)
    }
    listed = subprocess.run(
        [sys.executable, "-c", "import async_to_sync as t; print(*t.FILES.values())"],
        cwd=ROOT / "tools",
        capture_output=True,
        text=True,
        check=True,
    )
    assert marked == set(listed.stdout.split())


def test_a_status_has_the_unique_key(database):
    """
    While the job waits, is delayed or has ended, and in lists: a page can say what it stands for.
    """
    client = Client(database)
    with psycopg.connect(database) as conn:
        now = client.enqueue(conn, "index", {}, unique=Once("document 1"))
        later = client.enqueue(conn, "index", {}, unique=Once("document 2"), delay=60)
        none = client.enqueue(conn, "index", {})
    keys = {each.job_id: each.unique_key for each in client.jobs()}
    assert keys == {now: "document 1", later: "document 2", none: None}
    (one,) = client.job(now)
    assert one.unique_key == "document 1"
