"""Input of any sort is refused with our error, exit code 2 and a hint; nothing is written."""

import subprocess
import sys

import pytest

from tests.support.engine import enqueue, one

DEEP = "[" * 3000
TABLES = ("log", "deferred", "schedule", "subject")
JSON_OPTIONS = [
    ("enqueue", "send", "VALUE"),
    ("signal", "name", "key", "--payload", "VALUE"),
    ("publish", "order.paid", "VALUE"),
    ("backfill", "send", "--query", "select 1 as n", "--args", "VALUE", "--yes"),
    ("subjects", "backfill", "send", "--query", "select 'a' as subject", "--args", "VALUE"),
    ("subjects", "push", "send", "a", "VALUE"),
    ("subscriptions", "add", "e", "order.paid", "--filter", "VALUE"),
    ("schedules", "create", "nightly", "send", "0 2 * * *", "--args", "VALUE"),
]


def is_unwritten(conn):
    return [one(conn, f"select count(*) from forebay.{table}") for table in TABLES] == [0] * 4


@pytest.mark.parametrize("words", JSON_OPTIONS, ids=lambda words: " ".join(words[:2]))
def test_json_that_is_nested_deeply_is_refused(forebay, conn, words):
    """Whether it ends or not, and where reading it leaves no room for writing it."""
    for depth in (850, 900, 950, 990, 3000, 100_000):
        for text in ("[" * depth, '{"a":' * depth + "1" + "}" * depth):
            answer = forebay(*(text if word == "VALUE" else word for word in words))
            assert (answer.code, "error: " in answer.err) == (2, True), (depth, answer.err[-300:])
    assert is_unwritten(conn)


@pytest.mark.parametrize("words", JSON_OPTIONS[:6], ids=lambda words: " ".join(words[:2]))
def test_a_stdin_that_is_closed_is_told(forebay, conn, words, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    answer = forebay(*("-" if word == "VALUE" else word for word in words))
    assert (answer.code, "stdin is closed" in answer.err) == (2, True), answer.err
    assert "hint: " in answer.err
    assert is_unwritten(conn)


@pytest.mark.parametrize(
    "words",
    [
        ("queues", "purge", "mail"),
        ("jobs", "cancel", "--all"),
        ("queues", "redact", "mail"),
        ("queues", "drop", "mail"),
        ("dead", "purge", "--older-than", "1d"),
    ],
    ids=" ".join,
)
def test_no_question_is_asked_without_a_stdin(forebay, conn, words, monkeypatch):
    enqueue(conn, queue="mail")
    monkeypatch.setattr(sys, "stdin", None)
    answer = forebay(*words)
    if words[0] == "dead":  # There is none: it asks nothing.
        assert (answer.code, answer.out) == (0, "deleted dead letters: 0\n")
    else:
        assert (answer.code, "Pass --yes" in answer.err) == (2, True), answer.err


@pytest.mark.parametrize("content", [b"\xff\xfe1\n2\n", b"1\n\xc3("])
def test_a_file_that_is_not_utf8_is_told(forebay, conn, content, tmp_path):
    file = tmp_path / "ids"
    file.write_bytes(content)
    rows = ("--table", "forebay.log", "--column", "n=job_id")
    for words in (
        ("backfill", "send", *rows, "--ids", f"@{file}", "--yes"),
        ("subjects", "push", "send", "--file", file),
    ):
        answer = forebay(*words)
        assert (answer.code, "is not UTF-8" in answer.err) == (2, True), answer.err
    assert is_unwritten(conn)


def test_a_file_that_cannot_be_read_is_told(forebay, conn, tmp_path):
    for name in (tmp_path, tmp_path / "missing", "a" * 300):
        answer = forebay("subjects", "push", "send", "--file", name)
        assert (answer.code, "cannot be read" in answer.err) == (2, True), answer.err


def test_a_line_of_a_file_that_is_nested_deeply_is_told(forebay, conn, tmp_path):
    file = tmp_path / "lines"
    file.write_text(f'{{"subject": "a"}}\n{DEEP}\n', encoding="utf-8")
    answer = forebay("subjects", "push", "send", "--file", file)
    assert (answer.code, "line 2" in answer.err) == (2, True), answer.err
    assert is_unwritten(conn)


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_process_whose_streams_are_closed_works(database, conn, closed):
    """Its connection does not get the number of a stream; an error is not one of Python."""
    words = f"{sys.executable} -m forebay"
    done = subprocess.run(
        f"{words} queues list {closed} && {words} enqueue send - {closed}",
        shell=True,
        capture_output=True,
        text=True,
        env={"FOREBAY_DATABASE_URL": database, "PYTHONPATH": ":".join(sys.path)},
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_a_stdin_that_is_not_utf8_is_told(database, conn):
    done = subprocess.run(
        [sys.executable, "-m", "forebay", "enqueue", "send", "-"],
        input=b'{"a": "\xff"}',
        capture_output=True,
        env={"FOREBAY_DATABASE_URL": database, "PYTHONPATH": ":".join(sys.path),
             "PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8:strict"},
        timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.returncode, b"byte 7" in done.stderr) == (2, True), done.stderr


def test_the_completion_is_added_to_a_file_of_any_encoding(command, monkeypatch, tmp_path):
    """Its bytes stay; one that cannot be changed is told."""
    monkeypatch.setenv("SHELL", "/bin/bash")
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / ".bashrc"
    file.write_bytes(b"# caf\xe9")
    assert command("--install-completion").code == 0
    assert file.read_bytes().startswith(b"# caf\xe9\neval ")
    file.unlink()
    file.mkdir()
    assert command("--install-completion").code == 2


@pytest.mark.parametrize("content", [b"a = " + b"[" * 3000, b"a = '\xff'", b"a"])
def test_a_settings_file_that_cannot_be_read_is_told(command, tmp_path, content):
    (tmp_path / "forebay.toml").write_bytes(content)
    answer = command("config")
    assert (answer.code, "forebay.toml" in answer.err) == (2, True), answer.err
