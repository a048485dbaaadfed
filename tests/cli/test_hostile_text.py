"""Text of jobs, errors and sessions is shown and not obeyed: by no terminal, and by no reader of
a log.
"""

import io
import json
import logging

import psycopg
import pytest

from forebay.cli.output import table
from forebay.cli.text import Console
from forebay.model.text import logger
from tests.support.engine import Reader

#: Clear the screen, set the title, ring, return, C1's CSI, right-to-left override, a separator of
#: lines, delete.
HOSTILE = "a\x1b[2Jb\x1b]0;title\x07c\rd\x9b31me\u202ef\u2066g\u2028h\x7fi"
#: What a tag may contain.
ALLOWED = "e\u202ef\u2066g\u2028h"
ESCAPES = set("\x1b\x07\r\x9b\u202e\u2066\u2028\x7f")


@pytest.fixture
def hostile_job(database, conn):
    """A job with hostile text in all its fields, and its dead letter."""
    job_id = conn.execute(
        (
            "select forebay.enqueue('work', %s::jsonb, tag => %s, correlation_id => %s, "
            "headers => %s::jsonb)"
        ),
        [json.dumps({"x": HOSTILE}), ALLOWED, ALLOWED, json.dumps({"h": ALLOWED})],
    ).fetchone()[0]
    error = {"type": HOSTILE, "message": f"{HOSTILE}\n2026-01-01 INFO forged", "traceback": HOSTILE}
    with Reader(database) as reader:
        batch = reader.claim_ready(1)
        ended = {"offset": 1, "outcome": "dead", "reason": "permanent", "error": error}
        assert reader.settle(batch.claim_no, [], ended=[ended]) == "settled"
    return job_id


@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs", "list"), ("jobs", "show", "ID"), ("dead", "list"), ("dead", "show", "1"),
        ("dead", "redrive", HOSTILE), ("jobs", "list", "--queue", HOSTILE), ("queues", "list"),
        ("enqueue", HOSTILE),
        ("worker", HOSTILE), ("doctor",),
    ],
    ids=lambda arguments: " ".join(arguments[:2]).replace(HOSTILE, "HOSTILE"),
)  # fmt: skip
@pytest.mark.parametrize("form", ["text", "json"])
def test_no_control_character_of_a_job_is_printed(forebay, hostile_job, arguments, form):
    """
    Neither as text nor as JSON; the JSON has the same values.
    """
    given = [str(hostile_job) if one == "ID" else one for one in arguments]
    if form == "json":
        given.append("--json")
    answer = forebay(*given)
    assert not ESCAPES & set(answer.out + answer.err), answer
    if form == "json" and arguments == ("jobs", "list"):
        assert answer.json[0]["args"] == {"x": HOSTILE}
        assert answer.json[0]["tag"] == ALLOWED


def test_a_statement_of_another_session_is_printed_without_its_controls(forebay, database, conn):
    """
    The guard shows the application's name and the last statement of a session that holds a
    transaction.
    """
    with psycopg.connect(database, application_name="evil") as other:
        other.execute(f"/* {HOSTILE} */ select pg_current_xact_id()")
        answer = forebay("guard", "--dry-run", "--older-than", "0s")
    assert "last statement: /* a\ufffd[2Jb" in answer.out
    assert not ESCAPES & set(answer.out + answer.err)


def test_a_value_with_a_line_break_is_not_another_row_of_a_table():
    """
    One row has one line.
    """
    shown = table("tag")
    shown.add_row("x\n  999  forged")
    written = io.StringIO()
    Console(written, width=80).print(shown)
    assert [line.strip() for line in written.getvalue().splitlines()] == ["tag", "x␊  999  forged"]


def test_text_of_a_job_does_not_forge_a_line_of_the_log():
    """
    Line breaks and control characters in the arguments of a record are escaped; numbers stay
    numbers.
    """
    stream = io.StringIO()
    log = logger("forebay.test_hostile_text")
    handler = logging.StreamHandler(stream)
    log.addHandler(handler)
    try:
        log.error("job %s failed: %s, %s, %.1f", 7, HOSTILE, ValueError("x\nERROR forged"), 1.25)
    finally:
        log.removeHandler(handler)
    (line,) = stream.getvalue().splitlines()
    assert not ESCAPES & set(line)
    assert line.startswith(r"job 7 failed: a\x1b[2Jb")
    assert line.endswith(r"x\nERROR forged, 1.2")


def test_colours_of_ours_still_reach_a_terminal(monkeypatch):
    """
    Only what is shown is cleaned; a style is added later.
    """
    monkeypatch.setenv("TERM", "xterm")  # A run of tests may have a terminal without colours.
    written = io.StringIO()
    Console(written, is_terminal=True, width=80).print(HOSTILE, style="red")
    printed = written.getvalue()
    assert printed.startswith("\x1b[31m")
    assert "\x1b[2J" not in printed
