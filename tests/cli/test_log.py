"""The log of ``forebay worker``: its lines for people and for programs."""

import io
import json
import logging
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from forebay import Context
from forebay.model.job import Job
from forebay.worker.ground.log_format import JsonFormatter, TextFormatter

ROOT = Path(__file__).parents[2]
ESCAPES = set("\x1b\x07\r\x9b\u202e\u2066\u2028\x7f")
HOSTILE = "a\x1b[2Jb\r\nERROR forged\u2028x\u202e\x7f"

SHOP = """
import forebay

app = forebay.App()


@app.job(queue="mail", max_attempts=1)
def send(ctx: forebay.Context, n: int) -> None:
    ctx.logger.info("sending %s", n, extra={"customer": 7})
    if n == 2:
        raise LookupError("no address\\n2026-01-01 ERROR forged")


@app.job(queue="mail", max_attempts=1, executor="process")
def render(ctx: forebay.Context, n: int) -> None:
    ctx.logger.warning("rendering")


@app.job(queue="reports")
def report() -> None: ...
"""


@pytest.fixture
def shop(tmp_path):
    """A folder with an application."""
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def worker_log(shop: Path, database: str, *arguments: str) -> list[str]:
    """Return the lines that a worker printed until it was idle."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FOREBAY_")}
    answer = subprocess.run(
        [
            sys.executable,
            "-m",
            "forebay",
            "worker",
            "shop:app",
            "--until-idle",
            "--dsn",
            database,
            *arguments,
        ],
        cwd=shop,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return answer.stderr.splitlines()


def put(conn, kind: str, **args) -> int:
    query = "select forebay.enqueue(%s, %s::jsonb, queue => 'mail')"
    return conn.execute(query, [kind, json.dumps(args)]).fetchone()[0]


@pytest.mark.slow
def test_the_log_of_a_worker_begins_with_one_line_and_ends_with_its_counts(shop, database, conn):
    """
    Not a line for each kind; what failed is above it with its traceback.
    """
    done, dead = put(conn, "send", n=1), put(conn, "send", n=2)
    lines = worker_log(shop, database, "--concurrency", "4")
    assert "serving 3 kinds in queues mail, reports, 4 jobs at a time" in lines[0]
    assert not [line for line in lines if "20 attempts" in line]
    assert lines[-1].endswith("stopped: 1 done, 0 retried, 1 dead, 0 released, 0 cancelled")
    assert [line for line in lines if line.endswith(f"forebay.job.send: job {done}: sending 1")]
    (at,) = [i for i, line in enumerate(lines) if f"job {dead} (send), attempt 1 of 1" in line]
    assert " ERROR " in lines[at]
    assert lines[at + 1] == "  Traceback (most recent call last):"
    assert lines[at + 2].endswith(", in send")
    assert all(line.startswith(("20", "  ")) for line in lines)
    assert not [line for line in lines if line.startswith("2026-01-01")]


@pytest.mark.slow
def test_details_are_logged_at_debug(shop, database, conn):
    """
    How long each kind is retried, and the start and the end of each job with its duration.
    """
    done = put(conn, "send", n=1)
    log = "\n".join(worker_log(shop, database, "--log-level", "debug", "--queue", "mail"))
    assert "serving 2 kinds in queue mail, " in log
    assert "send (queue mail): 1 attempt, no retries" in log
    assert f"job {done} (send), attempt 1 of 1, started" in log
    assert f"job {done} (send), attempt 1 of 1, done after " in log


@pytest.mark.slow
def test_with_json_each_line_is_an_object(shop, database, conn):
    """
    Of the worker, of a handler and of a child process: time in UTC, level, logger, message, fields,
    exception as text.
    """
    dead, drawn = put(conn, "send", n=2), put(conn, "render", n=3)
    entries = [json.loads(line) for line in worker_log(shop, database, "--log-format", "json")]
    for entry in entries:
        assert datetime.fromisoformat(entry["time"]).tzinfo == UTC
        assert {"time", "level", "logger", "message"} <= entry.keys()
    (failed,) = [entry for entry in entries if entry.get("outcome") == "dead"]
    assert (failed["level"], failed["job_id"], failed["kind"]) == ("ERROR", dead, "send")
    assert (failed["queue"], failed["attempt"], failed["max_attempts"]) == ("mail", 1, 1)
    assert failed["duration_seconds"] > 0
    assert failed["exception"].startswith("Traceback (most recent call last):\n  File ")
    (own,) = [entry for entry in entries if entry["logger"] == "forebay.job.send"]
    assert (own["message"], own["customer"], own["job_id"]) == ("sending 2", 7, dead)
    (child,) = [entry for entry in entries if entry["logger"] == "forebay.job.render"]
    assert (child["message"], child["job_id"]) == ("rendering", drawn)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import forebay\napp = 1", "shop:app"),
        ("import nowhere_to_be_found", "nowhere_to_be_found"),
        ("raise LookupError('of the application')", "LookupError"),
        ("import forebay\napp = forebay.App()", "has no handler"),
    ],
)
def test_with_json_the_error_that_prevents_the_start_is_an_object(shop, code, message):
    """
    With detail and hint as fields, so that a collector of logs sees why no worker runs.
    """
    (shop / "shop.py").write_text(code)
    answer = subprocess.run(
        [
            sys.executable,
            "-m",
            "forebay",
            "worker",
            "shop:app",
            "--until-idle",
            "--log-format",
            "json",
            "--dsn",
            "postgresql://localhost/x",
        ],
        cwd=shop,
        env={k: v for k, v in os.environ.items() if not k.startswith("FOREBAY_")}
        | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    entries = [json.loads(line) for line in answer.stderr.splitlines()]
    assert answer.returncode != 0
    assert (entries[-1]["level"], entries[-1]["logger"]) == ("ERROR", "forebay.cli")
    assert message in entries[-1]["message"] + entries[-1].get("exception", "")


def test_an_unknown_format_is_refused(forebay):
    """
    With the formats that exist.
    """
    answer = forebay("worker", "shop:app", "--log-format", "xml")
    assert answer.code == 2
    assert "--log-format is 'xml', not text or json" in answer.err


class Unshowable:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def written(formatter: logging.Formatter, *arguments, **options) -> str:
    """Return what a handler with this formatter writes for one error."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    log = logging.Logger("library\x1b")  # noqa: LOG001 - not one that others share
    log.addHandler(handler)
    log.error(*arguments, **options)
    return stream.getvalue()


def test_text_of_another_library_forges_no_line_either():
    """
    Line breaks in a message begin indented lines; so do those of an exception; control characters
    are replaced.
    """
    try:
        raise ValueError(HOSTILE)
    except ValueError as error:
        text = written(TextFormatter(), "message %s", HOSTILE, exc_info=error)
    first, *others = text.splitlines()
    assert "ERROR" in first
    assert others
    assert all(line.startswith("  ") for line in others)
    assert not ESCAPES & set(text)


@pytest.mark.parametrize(
    "value", [HOSTILE, float("nan"), {(1, 2): 3}, Unshowable(), "\ud800", datetime.now(UTC), b"x"]
)
def test_any_field_has_a_json_form(value):
    """
    One line of valid JSON without control characters, whatever the field is.
    """
    text = written(JsonFormatter(), "message", extra={"odd": value, "level": "mine"})
    (line,) = text.splitlines()
    entry = json.loads(line, parse_constant=lambda name: pytest.fail(name))
    assert (entry["level"], entry["level_"]) == ("ERROR", "mine")
    assert not ESCAPES & set(line)
    assert "odd" in entry


def test_a_field_of_a_call_is_added_to_those_of_the_job(caplog):
    """
    ``ctx.logger`` keeps both; the call's own value counts.
    """
    job = Job(
        job_id=34, kind="blocky", queue="q", priority=100, args={}, attempt=2, max_attempts=3,
        enqueued_at=datetime.now(UTC), expires_at=datetime.now(UTC), tag="t", correlation_id="c",
        headers={}, ordering_key=None, group="default",
    )  # fmt: skip
    Context(job=job).logger.warning("hello", extra={"tag": "mine", "customer": 7})
    (record,) = caplog.records
    assert record.name == "forebay.job.blocky"
    assert (record.job_id, record.kind, record.queue, record.attempt) == (34, "blocky", "q", 2)
    assert (record.max_attempts, record.tag, record.customer) == (3, "mine", 7)


@pytest.mark.slow
def test_what_a_handler_prints_stands_where_it_was_printed(database, conn, tmp_path):
    """Also in a pipe, where Python would keep it until the worker ends."""
    (tmp_path / "prints.py").write_text(
        "import forebay\napp = forebay.App()\n\n@app.job\ndef show():\n    print('shown')\n"
    )
    conn.execute("select forebay.enqueue('show', '{}')")
    done = subprocess.run(
        [sys.executable, "-m", "forebay", "worker", "prints:app", "--until-idle"],
        cwd=tmp_path,
        env={**os.environ, "FOREBAY_DATABASE_URL": database, "PYTHONUNBUFFERED": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines.index("shown") < len(lines) - 1, done.stdout
