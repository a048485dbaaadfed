"""``forebay dev``: a server and a worker for trying things out, as a process at a terminal."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.support.waiting import wait_for

APP = """
import forebay
app = forebay.App()
@app.job
def greet(name: str) -> None:
    print("hello", name, flush=True)
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder for what outlives a command, which the account that runs the server may enter."""
    with tempfile.TemporaryDirectory(prefix="forebay-home-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.fixture
def environment(home, pg_bin) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FOREBAY_", "PG", "DATABASE"))}
    kept |= {"HOME": str(home), "XDG_CACHE_HOME": str(home), "COLUMNS": "120"}
    return kept | ({"FOREBAY_PG_BIN": pg_bin} if pg_bin else {})


def forebay(environment, *arguments, folder=None) -> str:
    answer = subprocess.run(
        [sys.executable, "-m", "forebay", *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout + answer.stderr


@contextmanager
def dev(environment, folder, *arguments, stops=True):
    """Run ``forebay dev`` until the end of the block, then type Ctrl-C.

    Lend what reads its output.
    """
    with (folder / "output").open("w+b") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "forebay", "dev", *arguments],
            env=environment,
            cwd=folder,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

        def said() -> str:
            return (folder / "output").read_text()

        try:
            yield process, said
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(30) == 0, said()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            if stops:
                forebay(environment, "dev", "--stop")


def address_in(output: str) -> str:
    return next(line.split()[1] for line in output.splitlines() if line.startswith("address"))


def is_up(dsn: str) -> bool:
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.slow
def test_dev_runs_a_server_and_a_worker_until_it_is_interrupted(environment, tmp_path):
    """
    Another terminal finds the same server under the address ``embedded``; Ctrl-C stops both.
    """
    (tmp_path / "shop.py").write_text(APP)
    with dev(environment, tmp_path, "shop:app") as (process, said):
        wait_for(lambda: "has lease" in said() or process.poll() is not None, 30, said)
        forebay(
            environment, "enqueue", "greet", '{"name": "Ann"}', "--dsn", "embedded", folder=tmp_path
        )
        wait_for(lambda: "hello Ann" in said(), 10, said)
        dsn = address_in(said())
        assert is_up(dsn)
    assert not is_up(dsn)


@pytest.mark.slow
def test_dev_starts_the_worker_again_when_a_file_changes(environment, tmp_path):
    """
    With the new code; a mistake in a file ends the worker and not the command. A job that runs is
    released at no attempt.
    """
    file = tmp_path / "shop.py"
    slow = """
@app.job
def slow() -> None:
    import os, time
    print("slow begins", flush=True)
    time.sleep(1000 if os.path.exists("block") else 0)
    print("slow ends", flush=True)
"""
    file.write_text(APP + slow)
    (tmp_path / "block").touch()
    with dev(environment, tmp_path, "shop:app") as (process, said):
        wait_for(lambda: "has lease" in said() or process.poll() is not None, 90, said)
        forebay(environment, "enqueue", "slow", "--dsn", "embedded", folder=tmp_path)
        wait_for(lambda: "slow begins" in said(), 90, said)
        (tmp_path / "block").unlink()
        file.write_text((APP + slow).replace("hello", "good morning"))
        wait_for(lambda: "shop.py changed: the worker starts again" in said(), 90, said)
        wait_for(lambda: "slow ends" in said(), 90, said)
        forebay(
            environment, "enqueue", "greet", '{"name": "Ann"}', "--dsn", "embedded", folder=tmp_path
        )
        wait_for(lambda: "good morning Ann" in said(), 90, said)
        with psycopg.connect(address_in(said())) as conn:
            assert conn.execute(
                "select max(attempt) from forebay.jobs() where kind = 'slow'"
            ).fetchone() == (1,)

        file.write_text("import")
        wait_for(lambda: "it starts again when a file changes" in said(), 90, said)
        assert "SyntaxError" in said()
        assert process.poll() is None
        file.write_text(APP.replace("hello", "good evening"))
        forebay(
            environment, "enqueue", "greet", '{"name": "Bob"}', "--dsn", "embedded", folder=tmp_path
        )
        wait_for(lambda: "good evening Bob" in said(), 90, said)


@pytest.mark.slow
def test_a_change_replaces_the_handler_processes_too(environment, tmp_path):
    """
    With ``processes`` the handlers of the new code run in new processes, and the old ones are gone.
    """
    file = tmp_path / "shop.py"
    text = APP.replace('print("hello"', 'import os\n    print(os.getpid(), "hello"')
    file.write_text(text)
    environment = environment | {"FOREBAY_PROCESSES": "2"}

    def greet(name: str, word: str) -> int:
        """Run a job; return the process id of its handler."""
        arguments = json.dumps({"name": name})
        forebay(environment, "enqueue", "greet", arguments, "--dsn", "embedded", folder=tmp_path)
        pattern = re.compile(rf"(\d+) {word} {name}")
        wait_for(lambda: pattern.search(said()), 90, said)
        return int(pattern.search(said())[1])

    with dev(environment, tmp_path, "shop:app") as (process, said):
        wait_for(lambda: "has lease" in said() or process.poll() is not None, 90, said)
        before = greet("Ann", "hello")
        file.write_text(text.replace("hello", "good morning"))
        wait_for(lambda: "shop.py changed: the worker starts again" in said(), 90, said)
        after = greet("Bob", "good morning")
        assert after != before
        wait_for(lambda: not Path(f"/proc/{before}").exists(), 30, said)
    wait_for(lambda: not Path(f"/proc/{after}").exists(), 30, said)


@pytest.mark.slow
def test_a_worker_ends_with_the_command_that_was_killed(environment, tmp_path):
    """
    It is a separate process, and no other would end it.
    """
    (tmp_path / "shop.py").write_text(APP)
    forebay(environment, "dev", "--keep", folder=tmp_path)
    with (tmp_path / "output").open("w+b") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "forebay", "dev", "shop:app"],
            env=environment,
            cwd=tmp_path,
            stdout=output,
            stderr=output,
        )

    def said() -> str:
        return (tmp_path / "output").read_text()

    try:
        wait_for(lambda: "has lease" in said() or process.poll() is not None, 90, said)
        process.kill()
        process.wait()
        found = re.search(r"worker [^:\s]+:(\d+):", said())
        assert found
        wait_for(lambda: not Path(f"/proc/{found[1]}").exists(), 60, said)
    finally:
        forebay(environment, "dev", "--stop")


@pytest.mark.slow
def test_a_module_that_does_not_exist_is_refused_before_a_server_starts(environment, tmp_path):
    """
    A typo is not something to wait for.
    """
    answer = subprocess.run(
        [sys.executable, "-m", "forebay", "dev", "shopp:app"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert answer.returncode == 2
    assert "names module shopp, which does not exist" in answer.stderr
    assert "address" not in answer.stderr


@pytest.mark.slow
def test_two_projects_share_a_server_and_no_queue(environment, tmp_path):
    """
    A worker of one does not see the jobs of the other; a script finds the database of the project
    that it runs in, also from a folder below. The first to end leaves the server to the other.
    """
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        (folder / "src").mkdir(parents=True)
        (folder / "pyproject.toml").write_text("")
        (folder / "shop.py").write_text(APP)
    one, two = folders
    with dev(environment, one, "shop:app") as (_, said_one):
        wait_for(lambda: "has lease" in said_one(), 30, said_one)
        with dev(environment, two, "shop:app", stops=False) as (_, said_two):
            wait_for(lambda: "has lease" in said_two(), 30, said_two)
            forebay(
                environment,
                "enqueue",
                "greet",
                '{"name": "Ann"}',
                "--dsn",
                "embedded",
                folder=two / "src",
            )
            wait_for(lambda: "hello Ann" in said_two(), 10, said_two)
            assert address_in(said_one()) != address_in(said_two())
        assert is_up(address_in(said_one()))
        assert "hello" not in said_one()


@pytest.mark.slow
def test_reset_deletes_the_database_of_this_project_only(environment, tmp_path):
    """
    Whatever is connected to it.
    """
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        (folder / "pyproject.toml").write_text("")
    one, two = (address_in(forebay(environment, "dev", "--keep", folder=f)) for f in folders)
    try:
        for dsn in (one, two):
            with psycopg.connect(dsn) as conn:
                conn.execute("create table users (id bigint)")
        with psycopg.connect(one) as conn:
            said = forebay(environment, "dev", "--reset", "--keep", folder=folders[0])
            with pytest.raises(psycopg.OperationalError):
                conn.execute("select 1")
        assert address_in(said) == one
        with psycopg.connect(one) as conn:
            assert conn.execute("select to_regclass('users')").fetchone() == (None,)
            assert conn.execute("select forebay.schema_version()").fetchone() is not None
        with psycopg.connect(two) as conn:
            assert conn.execute("select to_regclass('users')").fetchone() == ("users",)
    finally:
        forebay(environment, "dev", "--stop")


@pytest.mark.slow
def test_dev_without_an_application_is_a_server_only(environment, tmp_path):
    """
    It says how to connect and waits.
    """
    with dev(environment, tmp_path) as (process, said):
        wait_for(lambda: "Ctrl-C" in said() or process.poll() is not None, 30, said)
        assert "forebay dev --reset" in said()
        assert is_up(address_in(said()))


@pytest.mark.slow
def test_a_kept_server_is_found_and_stopped(environment):
    """
    --keep returns with the server running, --stop ends it, and neither minds being repeated.
    """
    dsn = address_in(forebay(environment, "dev", "--keep"))
    try:
        assert is_up(dsn)
        assert address_in(forebay(environment, "dev", "--keep")) == dsn
        found = json.loads(forebay(environment, "dev", "--keep", "--json"))
        assert found["address"] == dsn
        assert dsn.partition("?")[0].endswith(found["database"])
        forebay(environment, "doctor", "--dsn", "embedded")
    finally:
        assert "stopped" in forebay(environment, "dev", "--stop")
    assert not is_up(dsn)
    assert "no server is running" in forebay(environment, "dev", "--stop")
