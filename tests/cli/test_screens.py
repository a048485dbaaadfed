"""Screens in a terminal of 80 columns and 24 rows: no line is cut or wraps by itself, and the
key facts are visible.
"""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.cells import cell_len

from forebay.client import Client
from tests.support.engine import Reader, connect, enqueue, one

COLUMNS, ROWS = 80, 24

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def screen(database, tmp_path):
    """Run a command in such a terminal; return its lines."""

    def call(*arguments: object) -> list[str]:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        process = subprocess.Popen(
            [Path(sys.executable).with_name("forebay"), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            cwd=tmp_path,
            env={**kept, "FOREBAY_DATABASE_URL": database, "TERM": "xterm-256color"},
        )
        os.close(theirs)
        data = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other side was closed
                break
            if not part:
                break
            data += part
        process.wait(30)
        os.close(ours)
        text = _ESCAPE.sub("", data.decode()).replace("\r\n", "\n").rstrip("\n")
        lines = text.split("\n")
        wide = [line for line in lines if cell_len(line) > COLUMNS]
        assert not wide, "\n".join(wide)
        return lines

    return call


@pytest.fixture
def busy_queue(database):
    """Jobs in several states, with long names and arguments: their ids by state."""
    with connect(database) as conn, Reader(database, queue="notifications_europe") as reader:
        queue = "notifications_europe"
        args = {"user_id": 42, "locale": "en", "template": "a rather long name of a template"}
        ids = {
            name: enqueue(conn, kind="send_welcome_message", queue=queue, args=args)
            for name in ("done", "dead", "retrying")
        }
        batch = reader.claim_ready(3)
        error = {
            "type": "KeyError",
            "message": "'address'",
            "traceback": (
                'Traceback (most recent call last):\n  File "shop.py", line 7, in '
                "send\nKeyError: 'address'"
            ),
        }
        ended = [
            {"offset": 2, "outcome": "dead", "reason": "permanent", "error": error},
            {"offset": 3, "outcome": "retried", "after": 600, "error": error},
        ]
        assert reader.settle(batch.claim_no, [1], ended=ended) == "settled"
        ids["ready"] = enqueue(conn, kind="send_welcome_message", queue=queue, args=args)
        ids["scheduled"] = enqueue(conn, queue=queue, delay="1 hour", tag="import")
        one(conn, "select forebay.close_lease_v1(%s)", reader.lease_id)
    return ids


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    ["worker", "enqueue", "migrate", "doctor", "jobs", ("jobs list"), "dead list", "dead redrive"],
)
def test_help_has_a_row_for_each_option_and_no_types(screen, command):
    """
    Nothing that a reader has to skip: no boxes, no ``<bool>``, one row for the address of the
    database.
    """
    lines = screen(*command.split(), "--help")
    text = "\n".join(lines)
    assert lines[0].startswith(f"Usage: forebay {command}")
    assert "<bool>" not in text
    assert "<str>" not in text
    if command not in {"enqueue", "dead redrive", "migrate", "worker"}:
        assert len(lines) <= ROWS
    dsn = [line for line in lines if "--dsn" in line]
    assert all(line.rstrip().endswith("DATABASE_URL or PG*.") for line in dsn)


@pytest.mark.slow
def test_the_program_shows_all_its_commands_at_once(screen):
    """
    The last 24 rows have the commands to operate; each has one row.
    """
    lines = screen("--help")
    shown = "\n".join(lines[-ROWS:])
    for name in ("alerts", "stats", "jobs", "dead", "queues", "workers"):
        assert f"\n  {name} " in shown


@pytest.mark.slow
def test_settings_of_a_worker_are_shown_on_request(screen):
    """
    Two settings are in the help, and all with --help-settings.
    """
    lines = screen("worker", "--help")
    assert [line.split()[0] for line in lines if "--queue" in line or "--concurrency" in line] == [
        "--queue",
        "--concurrency",
    ]
    assert not any("--lease-seconds" in line for line in lines)
    assert any("--lease-seconds" in line for line in screen("worker", "--help-settings"))


@pytest.mark.slow
def test_a_list_of_jobs_shows_calls_and_no_empty_column(screen, busy_queue):
    """
    The arguments are readable, and a column without a value has no width.
    """
    lines = screen("jobs", "list")
    assert len(lines) <= ROWS
    assert lines[0].split() == ["job", "state", "queue", "attempt", "since", "call", "tag"]
    assert any("send_we" in line for line in lines)
    without_tags = screen("jobs", "list", "--kind", "send_welcome_message")
    assert without_tags[0].split()[-1] == "call"
    assert busy_queue


@pytest.mark.slow
def test_a_job_shows_its_facts_and_titles(screen, busy_queue):
    """
    State, reason of the wait, errors and arguments, each with its name.
    """
    lines = screen("jobs", "show", busy_queue["retrying"])
    assert len(lines) <= ROWS
    text = "\n".join(lines)
    for fact in ("state     retrying", "waits     attempt 2 starts in", "KeyError: 'address'"):
        assert fact in text
    assert "\narguments\n{" in text


@pytest.mark.slow
def test_the_other_lists_fit(screen, busy_queue):
    """
    Queues, groups, dead letters, the doctor, and the reason why a job does not run.
    """
    for command in ("queues", "groups"):  # the name of the queue is folded, no number is
        assert len(screen(command, "list")) <= 3
    assert any("KeyError" in line for line in screen("dead", "list"))
    letter = screen("dead", "show", "--job", busy_queue["dead"])
    assert len(letter) <= ROWS
    assert "KeyError: 'address'" in letter[-1]
    assert len(screen("doctor")) <= ROWS
    answer = screen("doctor", "--job", busy_queue["ready"])
    assert len(answer) <= ROWS
    assert any(line.startswith("No worker runs, so none serves queue") for line in answer)
    assert answer[-1].endswith("--queue notifications_europe")


@pytest.mark.slow
def test_keys_fit(screen, database):
    """
    The list and one key, with a long name of the worker.
    """
    worker = "worker-7.europe.example.net:31337:a8f3c2"
    queue = "notifications_europe"
    with (
        connect(database) as conn,
        Reader(database, queue) as reader,
        Reader(database, queue) as other,
    ):
        for name in ("customer 1", "customer 2"):
            for _ in range(3):
                enqueue(conn, queue=queue, ordering_key=name)
        conn.execute("update forebay.lease set worker = %s", [worker])
        reader.claim_ready(1)
        other.claim_ready(10)
        lines = screen("keys", "list")
        assert lines[0].split() == ["queue", "key", "sort", "waiting", "running", "why"]
        assert len(lines) <= ROWS
        lines = screen("keys", "show", queue, "--ordering-key", "customer 1")
        assert lines[-1].split() == ["why", "behind", "job", "1", "of", worker]
        assert "waiting       2, first job 2" in [line.rstrip() for line in lines]


@pytest.mark.slow
def test_an_endpoint_fits(database, screen):
    """
    The list, and one endpoint with all its facts.
    """
    client = Client(database)
    for name in ("shop", "a-rather-long-name-of-an-endpoint.example"):
        config = {
            "url": f"https://{name}.example/hooks/of/a/shop",
            "secrets": ["env:WEBHOOK_SECRET"],
        }
        client.create_endpoint(name, "http", config, rate=5, burst=10, max_waiting=100_000)
    report = [
        {
            "endpoint_id": 1,
            "accepted": 5000,
            "latencies": [0, 0, 5000],
            "failures": 0,
            "answered": True,
        },
        {
            "endpoint_id": 2,
            "failed": 10,
            "failures": 10,
            "answered": False,
            "error": "HTTP status 500: " + "x" * 200,
        },
    ]
    with connect(database) as conn:
        conn.execute("select forebay.report_deliveries_v1('w', %s::jsonb)", [json.dumps(report)])
    lines = screen("endpoints", "list")
    assert lines[0].split() == [
        "endpoint",
        "state",
        "waiting",
        "oldest",
        "per",
        "s",
        "p99",
        "last",
        "error",
    ]
    assert len(lines) <= 6
    assert len(screen("endpoints", "show", "a-rather-long-name-of-an-endpoint.example")) <= ROWS


@pytest.mark.slow
def test_empty_lists_say_what_there_is_none_of(screen):
    """
    An empty table would look like an error.
    """
    assert screen("jobs", "list") == ["No jobs."]
    assert screen("dead", "list") == ["No dead letters."]
    assert screen("queues", "list") == ["No queues."]
    assert screen("keys", "list") == ["No job waits for its key."]
    assert screen("endpoints", "list") == ["No endpoints."]
