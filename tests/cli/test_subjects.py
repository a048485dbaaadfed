"""forebay subjects."""

import json

import pytest

from forebay.model.subjects import SUBJECT_STATES
from tests.support.engine import one

UPGRADE = """
def split(args, state):
    host, _, path = args["url"].partition("/")
    return {"host": host, "path": path}, {"from": 0}
"""


@pytest.fixture
def crawl(forebay, conn):
    forebay(
        "subjects",
        "push",
        "crawl",
        "a.org",
        ('{"url": "a.org/x"}'),
        "--queue",
        "q",
        "--delay",
        "1h",
    )


def test_the_history_of_a_subject_fits_eighty_columns(forebay, monkeypatch):
    """No cell ends in the middle of a time."""
    push = ("subjects", "push", "crawl", "a.org", '{"url": "x"}', "--queue", "q", "--delay", "1h")
    assert forebay(*push).code == 0
    assert forebay("subjects", "kill", "q", "a.org", "--reason", "no such site").code == 0
    monkeypatch.setenv("COLUMNS", "80")
    for arguments in (("trace", "a.org"), ("history", "q", "a.org")):
        lines = forebay("subjects", *arguments).out.splitlines()
        assert max(map(len, lines)) <= 80
        assert all(line.startswith("now ") or " ago " in line for line in lines[1:])
        assert any("killed" in line for line in lines)


@pytest.mark.slow
def test_the_life_of_a_subject(forebay, conn):
    assert forebay("subjects", "list", "q").out == "No subjects.\n"
    push = ("subjects", "push", "crawl", "a.org", '{"url": "x"}', "--queue", "q", "--delay", "1h")
    assert forebay(*push).out == "subject a.org: created\n"
    assert forebay(*push, "--json").json == {
        "subject": "a.org",
        "result": "skipped",
        "reason": "exists",
    }
    upsert = ("subjects", "upsert", "crawl", "a.org", "--queue", "q")
    assert forebay(*upsert, '{"url": "y"}', "--tag", "t").out == "subject a.org: updated\n"
    assert forebay(*upsert, '{"url": "y"}').out == "subject a.org: unchanged\n"
    shown = forebay("subjects", "show", "q", "a.org")
    assert "scheduled" in shown.out
    assert '"y"' in shown.out
    assert forebay("subjects", "show", "q", "a.org", "--json").json["options"] == {"tag": "t"}
    listed = forebay("subjects", "list", "q", "--state", "scheduled").out
    assert "a.org" in listed
    assert forebay("subjects", "list", "q", "--state", "dead").out == "No subjects.\n"
    assert forebay("subjects", "list", "q", "--limit", "1").out.endswith("More: --after 'a.org'\n")
    act = ("q", "a.org")
    assert forebay("subjects", "kill", *act, "--reason", "why").out.endswith(": killed\n")
    assert forebay("subjects", "kill", *act).out.endswith(": nothing to change\n")
    assert "why" in forebay("subjects", "show", *act).out
    assert forebay(*upsert).out == "subject a.org: skipped: killed\n"
    revived = forebay("subjects", "revive", *act, "--run-at", "2040-01-01T00:00:00Z", "--json")
    assert revived.json == {"queue": "q", "subject": "a.org", "result": "revived"}
    assert forebay("subjects", "counts", "--json").json == [
        {"queue": "q", "state": "scheduled", "subjects": 1}
    ]
    lines = forebay("subjects", "counts", "--queue", "q").out.splitlines()
    assert lines[0].split()[1:] == [*SUBJECT_STATES, "all"]
    assert lines[-1].split() == ["q", "1", "0", "0", "0", "0", "0", "1"]
    what = [each["what"] for each in forebay("subjects", "history", *act, "--json").json]
    assert what == ["scheduled", "killed", "scheduled", "scheduled"]
    assert "killed" in forebay("subjects", "history", *act).out
    assert len(forebay("subjects", "trace", "a.org", "--json").json) == 4
    assert "killed" in forebay("subjects", "trace", "a.org").out
    assert forebay("subjects", "trace", "none").out == "Nothing.\n"
    assert forebay("subjects", "drop", *act).out == "subject a.org in queue q: dropped\n"
    assert one(conn, "select count(*) from forebay.subject") == 0
    assert forebay("subjects", "counts").out == "No subjects.\n"
    for name in "ab":
        forebay("subjects", "push", "crawl", name, "--queue", "q", "--delay", "1h")
    for wrong in (("q",), ("q", "a", "--all")):
        assert forebay("subjects", "drop", *wrong).code == 2
    assert forebay("subjects", "drop", "q", "--all").out == "2 subjects dropped from queue q\n"
    assert forebay("subjects", "drop", "q", "--all", "--json").json == {"queue": "q", "dropped": 0}


def test_append_makes_a_random_name(forebay, conn):
    name = forebay("subjects", "append", "crawl", ('{"n": 1}'), "--queue", "q", "--json").json[
        "subject"
    ]
    assert len(name) == 36
    assert forebay("subjects", "show", "q", name, "--json").json["args"] == {"n": 1}


def test_a_file_reports_each_row(forebay, crawl, conn, tmp_path):
    """
    Each line has its result, in order; options of the command hold for lines that do not set them.
    """
    lines = [
        {"subject": "a.org", "args": {"url": "new"}},
        {"subject": "b.org", "args": {"url": "b"}, "delay": 60},
        {"subject": "c.org", "run_at": "2040-01-01T00:00:00+00:00", "version": 2},
    ]
    file = tmp_path / "subjects.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    push = ("subjects", "push", "crawl", "--queue", "q", "--file", str(file))
    assert forebay(*push).out.splitlines() == [
        "subject a.org: skipped: exists",
        "subject b.org: created",
        "subject c.org: created",
        "2 created, 1 skipped: exists",
    ]
    upsert = ("subjects", "upsert", "crawl", "--queue", "q", "--file", str(file), "--json")
    assert [row["result"] for row in forebay(*upsert).json] == ["updated", "updated", "unchanged"]
    assert forebay("subjects", "show", "q", "c.org", "--json").json["version"] == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"subject": "x"}\nnot json\n', "line 2 is not JSON"),
        ('{"subject": "x"}\n[1]\n', "line 2 must be a JSON object"),
        ('{"subject": "x"}\n{"subject": "x"}\n', "is given twice"),
        ('{"subject": "x"}\n{"subject": "y", "nosuch": 1}\n', "is unknown"),
        ('{"subject": "x"}\n{"subject": "y", "args": 3}\n', "must be a dict"),
    ],
)
def test_a_bad_line_refuses_the_file(forebay, conn, tmp_path, text, problem):
    """
    Nothing of a file with a bad line is written.
    """
    file = tmp_path / "subjects.jsonl"
    file.write_text(text)
    answer = forebay("subjects", "push", "crawl", "--queue", "q", "--file", str(file))
    assert (answer.code, problem in answer.err) == (2, True), answer.err
    assert one(conn, "select count(*) from forebay.subject") == 0


def test_usage(forebay, conn, tmp_path):
    for arguments in (
        ("push", "crawl"),
        ("push", "crawl", "a", "--file", "-"),
        ("push", "crawl", "--file", str(tmp_path / "none")),
        ("list", "q", "--state", "nosuch"),
        ("upgrade", "q", "crawl", "--from", "0", "--to", "1", "--with", "json"),
        ("upgrade", "q", "crawl", "--from", "0", "--to", "1", "--with", "json:nosuch"),
    ):
        assert forebay("subjects", *arguments).code == 2, arguments
    for act in ("show", "history", "drop", "kill", "revive"):
        answer = forebay("subjects", act, "q", "none")
        assert (answer.code, "subject 'none' not found in queue 'q'" in answer.err) == (1, True)


def test_an_upgrade(forebay, crawl, conn, tmp_path, monkeypatch):
    (tmp_path / "upgrade_of_subjects.py").write_text(UPGRADE)
    monkeypatch.syspath_prepend(str(tmp_path))
    upgrade = (
        "subjects",
        "upgrade",
        "q",
        "crawl",
        "--from",
        "0",
        "--to",
        "1",
        "--with",
        "upgrade_of_subjects:split",
    )
    answer = forebay(*upgrade)
    assert answer.out.endswith("1 subject upgraded; none of version 0 left\n"), answer
    told = [line for line in answer.err.splitlines() if line.startswith("pass ")]
    assert told
    assert len(told) == len(set(told)), "each pass once"
    found = forebay("subjects", "show", "q", "a.org", "--json").json
    assert (found["version"], found["args"], found["data"]) == (
        1,
        {"host": "a.org", "path": "x"},
        {"from": 0},
    )
    assert forebay(*upgrade, "--json").json["upgraded"] == 0


def test_an_upgrade_that_waits_in_vain_fails(forebay, conn, tmp_path, monkeypatch):
    """
    A subject whose run waits keeps its version: exit code 1 tells that the upgrade is not done.
    """
    (tmp_path / "upgrade_of_subjects.py").write_text(UPGRADE)
    monkeypatch.syspath_prepend(str(tmp_path))
    forebay("subjects", "push", "crawl", "due", '{"url": "x"}', "--queue", "q")
    answer = forebay(
        "subjects", "upgrade", "q", "crawl", "--from", "0", "--to", "1", "--with",
        "upgrade_of_subjects:split", "--wait", "0",
    )  # fmt: skip
    assert answer.code == 1
    assert "1 still run" in answer.out
