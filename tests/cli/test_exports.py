"""`forebay exports` and `forebay jobs export --format parquet`: complete files, whatever is
killed when.
"""

import json
import signal
import subprocess
import sys

import pytest

from tests.support.engine import Reader, enqueue_many, one, small_segments

ROWS = 100

#: A process that is killed when it comes to a step for the nth time.
KILLED = """
import os, pathlib, signal, sys
from forebay.cli import _export_files, _exports, run
from forebay.client import Client

step, count, arguments = sys.argv[1], int(sys.argv[2]), sys.argv[3:]

def killing(place, name, after=False):
    old, seen = getattr(place, name), [0]
    def call(*args, **options):
        seen[0] += 1
        dies = seen[0] == count
        if dies and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = old(*args, **options)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(place, name, call)

{
    "page": lambda: killing(Client, "jobs_to_export", after=True),
    "sync": lambda: killing(os, "fsync"),
    "name": lambda: killing(pathlib.Path, "replace"),
    "directory": lambda: killing(_export_files, "flush_directory"),
    "mark": lambda: killing(Client, "mark_exported"),
    "marked": lambda: killing(Client, "mark_exported", after=True),
}[step]()
sys.exit(run(arguments))
"""


@pytest.fixture
def segments(conn, database):
    """Fill three segments with ended jobs that retention would empty at once; return the jobs."""
    small_segments(conn, rows=ROWS, reserve=1000)
    conn.execute("update forebay.segment set removed_at = now() where hi - lo > %s", [ROWS])
    one(conn, "select forebay.configure('retention_days', 0)")
    jobs = []
    with Reader(database) as reader:
        for numbers in (1, 1, 2):
            jobs += enqueue_many(
                conn, [{"kind": "send", "args": {"to": "ä"}, "tag": "t"}] * (ROWS - 1)
            )
            for _ in range(numbers):  # The third segment is sealed before its jobs are claimed.
                one(conn, "select nextval('forebay.log_seq')")
            one(conn, "select forebay.extend_v1()")
            one(conn, "select forebay.seal_v1()")
            for batch in reader.claim_all():
                reader.finish(batch)
            reader.claim()
    return jobs


def emptied(conn):
    """Empty what may be emptied; return the number of segments."""
    count, after = 0, None
    while True:
        segment, after = conn.execute("select * from forebay.retain_v1(%s)", [after]).fetchone()
        count += segment is not None
        if after is None:
            return count


def written(folder):
    """Return the jobs in the complete files, which must be readable."""
    found = []
    for path in sorted(folder.glob("nightly-*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert {row["state"] for row in rows} == {"done"}
        found += [row["job_id"] for row in rows]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("step", ["page", "sync", "name", "directory", "mark", "marked"])
def test_a_run_that_is_killed_between_two_steps_is_run_again(
    forebay, conn, database, tmp_path, segments, step, count
):
    """
    What is marked is complete; what is not marked is not emptied. After the next run the files have
    each job once.
    """
    assert forebay("exports", "create", "nightly", "--hold", "3d").code == 0
    arguments = ["exports", "run", "nightly", str(tmp_path), "--dsn", database]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, step, str(count), *arguments],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert killed.returncode == -9, killed.stderr
    marked = one(conn, "select coalesce(sum(jobs), 0) from forebay.exported_segment")
    complete = written(tmp_path)
    assert set(complete) <= set(segments)
    assert len(complete) >= marked
    before = one(conn, "select count(*) from forebay.exported_segment")
    assert emptied(conn) == before
    assert forebay(*arguments).code == 0
    assert written(tmp_path) == segments
    assert not list(tmp_path.glob("*.part"))
    assert emptied(conn) == 3 - before


@pytest.mark.slow
def test_list_and_drop(forebay, conn, tmp_path, segments):
    """What waits and since when; a dropped export holds nothing."""
    assert forebay("exports", "list").out == "No exports.\n"
    assert forebay("exports", "create", "nightly").code == 0
    assert forebay("exports", "create", "nightly").code == 2
    assert forebay("exports", "create", "other", "--hold", "90m").code == 2
    assert forebay("exports", "run", "nobody", tmp_path).code == 2
    assert forebay("exports", "run", "nightly", tmp_path / "none").code == 2
    assert emptied(conn) == 0
    (found,) = forebay("exports", "list", "--json").json
    assert (found["waiting"], found["due"], found["missed"]) == (3, 3, 0)
    assert "3 d at most" in forebay("exports", "list").out
    done = forebay("exports", "run", "nightly", tmp_path, "--json").json
    assert [one["jobs"] for one in done] == [ROWS - 1] * 3
    assert "No segment" in forebay("exports", "run", "nightly", tmp_path).out
    assert forebay("exports", "drop", "nightly").code == 0
    assert forebay("exports", "drop", "nightly").code == 2
    assert emptied(conn) == 3


@pytest.mark.slow
def test_two_runs_do_not_write_the_same_file(forebay, tmp_path, segments):
    """The second is refused while the first runs."""
    import fcntl

    forebay("exports", "create", "nightly")
    with (tmp_path / ".nightly.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        answer = forebay("exports", "run", "nightly", tmp_path)
        assert answer.code == 2
        assert "another process" in answer.err
    assert forebay("exports", "run", "nightly", tmp_path).code == 0


@pytest.mark.slow
def test_parquet_has_what_json_lines_have(forebay, tmp_path, segments):
    """The same rows by both commands; times are times, arguments are JSON."""
    parquet = pytest.importorskip("pyarrow.parquet")
    assert forebay("jobs", "export", "--format", "parquet").code == 2
    assert forebay("jobs", "export", "--file", "j.parquet", "--format", "parquet").code == 0
    assert forebay("jobs", "export", "--file", "j.jsonl").code == 0
    table = parquet.read_table("j.parquet")
    lines = [json.loads(line) for line in (tmp_path / "j.jsonl").read_text().splitlines()]
    rows = table.to_pylist()
    assert [row["job_id"] for row in rows] == [line["job_id"] for line in lines] == segments[::-1]
    assert set(rows[0]) == set(lines[0]) - {"place"}
    assert rows[0]["enqueued_at"].isoformat() == lines[0]["enqueued_at"].replace("Z", "+00:00")
    assert json.loads(rows[0]["args"]) == {"to": "ä"}
    assert rows[0]["headers"] is None or json.loads(rows[0]["headers"])
    forebay("exports", "create", "nightly")
    assert forebay("exports", "run", "nightly", tmp_path, "--format", "parquet").code == 0
    files = sorted(tmp_path.glob("nightly-*.parquet"))
    assert sum(parquet.read_table(path).num_rows for path in files) == len(segments)


def test_without_the_library_parquet_is_refused(forebay, monkeypatch, tmp_path):
    """With the extra to install; nothing is written."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    answer = forebay("jobs", "export", "--file", "j.parquet", "--format", "parquet")
    assert answer.code == 2
    assert "forebay[parquet]" in answer.err
    assert not list(tmp_path.iterdir())
    assert forebay("jobs", "export", "--file", "j.csv", "--format", "csv").code == 2


@pytest.mark.slow
def test_an_error_leaves_no_file(forebay, monkeypatch, tmp_path, segments):
    """Neither the file nor the temporary one."""

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("forebay.cli._export_files.os.fsync", fails)
    answer = forebay("jobs", "export", "--file", "j.jsonl")
    assert answer.code == 2
    assert "No space" in answer.err
    assert not list(tmp_path.iterdir())


#: A process that gets a signal when it has read its first page.
INTERRUPTED = """
import os, sys
from forebay.cli import run
from forebay.client import Client

number, name, arguments = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
old = getattr(Client, name)

def call(*args, **options):
    found = old(*args, **options)
    os.kill(os.getpid(), number)
    return found

setattr(Client, name, call)
sys.exit(run(arguments))
"""


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["parquet", "jsonl"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("act", ["exports run", "jobs export"])
def test_an_interrupted_export_ends_quietly_and_leaves_no_file(
    forebay, database, tmp_path, segments, act, number, file_format
):
    """On Ctrl-C, SIGTERM and SIGHUP; the library of Parquet writes nothing to the closed file."""
    if file_format == "parquet":
        pytest.importorskip("pyarrow.parquet")
    assert forebay("exports", "create", "nightly").code == 0
    folder = tmp_path / "files"
    folder.mkdir()
    name, where = {
        "exports run": ("jobs_to_export", ["nightly", str(folder)]),
        "jobs export": ("find_to_export", ["--file", str(folder / "x")]),
    }[act]
    words = [*act.split(), *where, "--format", file_format, "--dsn", database]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(int(number)), name, *words],
        capture_output=True, text=True, timeout=60, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )  # fmt: skip
    assert done.returncode == 128 + number, done
    assert "Exception ignored" not in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in folder.iterdir() if not path.name.endswith(".lock")] == []
