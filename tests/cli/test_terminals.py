"""The terminal and the files of a user are not those of the author."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from forebay.cli.exit import print_error
from forebay.errors import ForebayError

PROGRAM = [sys.executable, "-m", "forebay"]


@pytest.fixture
def job(database):
    """The address of a database with one job whose text is not ASCII."""
    with psycopg.connect(database) as conn:
        conn.execute("select forebay.enqueue('greet', '{\"name\": \"Žofie\"}', tag => 'größe')")
    return database


def forebay(dsn, *arguments, stdout=subprocess.PIPE, **environment):
    return subprocess.run(
        [*PROGRAM, *arguments],
        env={**os.environ, "FOREBAY_DATABASE_URL": dsn, **environment},
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_output_in_a_narrow_encoding_is_escaped(job, encoding):
    """
    What the encoding lacks is written as an escape, in JSON as an escape of JSON.
    """
    for command in (("jobs", "list"), ("top", "--once"), ("doctor",)):
        answer = forebay(job, *command, PYTHONIOENCODING=encoding)
        assert b"Traceback" not in answer.stderr, answer.stderr.decode()
        assert answer.returncode in (0, 1)
        assert answer.stdout
    (found,) = json.loads(
        forebay(job, "jobs", "list", "--json", PYTHONIOENCODING=encoding).stdout.decode("ascii")
    )
    assert found["args"] == {"name": "Žofie"}
    assert found["tag"] == "größe"


@pytest.mark.slow
def test_an_argument_that_is_not_utf_8_is_wrong_usage(job):
    """
    Whatever it is for; nothing is sent.
    """
    for arguments in (
        ("jobs", "list", "--queue", b"\xff"),
        ("enqueue", "greet", b'{"name": "\xff"}'),
        (b"\xff",),
    ):
        answer = forebay(job, *arguments)
        assert answer.returncode == 2
        assert b"is not UTF-8" in answer.stderr
        assert b"Traceback" not in answer.stderr


@pytest.mark.parametrize("columns", ["40", "80", None])
def test_no_detail_of_an_error_is_cut(capsys, monkeypatch, columns):
    """
    However narrow the terminal is, and where there is none: each word of a detail of many lines.
    """
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    words = [f"word{number}" for number in range(400)]
    lines = "\n".join(" ".join(words[at : at + 50]) for at in range(0, 400, 50))
    print_error(ForebayError("bad", detail=f"{lines}\n{'x' * 300}", hint=" ".join(words)))
    printed = capsys.readouterr().err
    said, _, hint = printed.partition("hint: ")
    assert said.split()[2:402] == words
    assert hint.split() == words
    assert "".join(said.split()).endswith("x" * 300)


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_nobody_takes_is_a_failure(job, unbuffered):
    """
    A full disk is told; a reader that has had enough, as `head`, is not. Neither has a traceback.
    """
    for command in (("jobs", "list"), ("jobs", "list", "--json"), ("--help",)):
        with Path("/dev/full").open("wb") as full:
            answer = forebay(job, *command, stdout=full, PYTHONUNBUFFERED=unbuffered)
        assert answer.returncode == 1
        assert b"error: the output cannot be written: No space left on device" in answer.stderr
        assert b"Traceback" not in answer.stderr
        assert b"Exception ignored" not in answer.stderr
    reading, writing = os.pipe()
    os.close(reading)
    answer = forebay(job, "jobs", "list", stdout=writing, PYTHONUNBUFFERED=unbuffered)
    os.close(writing)
    assert (answer.returncode, answer.stderr) == (1, b"")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("forebay.toml", "concurrency = 7\n"),
        ("pyproject.toml", "[tool.forebay]\nconcurrency = 7\n"),
    ],
)
def test_a_file_may_begin_with_a_mark(tmp_path, name, text):
    """
    Editors of Windows write a byte order mark before the first line.
    """
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    answer = subprocess.run(
        [*PROGRAM, "config", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert '"concurrency"' in answer.stdout
    assert name in answer.stdout
