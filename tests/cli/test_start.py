"""A command loads what it uses: the modules that a process has loaded are the cost of its start."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest

from forebay.cli._commands import Commands
from forebay.cli._help import summary
from forebay.cli._main import program
from forebay.sending import SLOTS_DEFAULT


def test_the_list_of_commands_says_what_each_says_itself():
    """The help of the program loads no command.

    The sentence that it prints is the first of the command's own.
    """
    for _, name, text in list(program.listed(None)):
        command = program.get_command(None, name)
        if not isinstance(command, Commands):
            assert summary(text) == summary(inspect.cleandoc(command.help)), name


def test_the_help_of_a_worker_has_the_options_that_people_use(capsys):
    """
    Those of the how-tos are not behind ``--help-settings``.
    """
    with pytest.raises(SystemExit):
        program.main(["worker", "--help"])
    shown = capsys.readouterr().out
    used = "queue concurrency processes health schedules grace-seconds"
    for name in f"{used} max-attempts without-schema app-version".split():
        assert f"--{name} VALUE" in shown, name
    assert "--lease-seconds" not in shown


#: What no command loads before it needs it: libraries that are slower to load than a short command,
#: and rooms of the library.
SLOW = (
    "aiohttp", "asyncio", "importlib.metadata", "msgspec", "psycopg", "pydantic", "rich", "typer",
    "forebay.app", "forebay.arguments", "forebay.client", "forebay.config", "forebay.db",
    "forebay.doctor", "forebay.embedded",
    "forebay.guard", "forebay.mirror", "forebay.ops", "forebay.sending", "forebay.sinks",
    "forebay.sql", "forebay.upgrade",
    "forebay.watch", "forebay.worker",
)  # fmt: skip
#: What a command that reads the database needs of them.
READS = (
    "asyncio", "importlib.metadata", "msgspec", "psycopg", "forebay.client", "forebay.config",
    "forebay.db", "forebay.ops", "forebay.sql",
)  # fmt: skip


def loaded_by(*arguments: str, **variables: str) -> set[str]:
    """Return the modules that a fresh process has loaded after a command."""
    code = (
        "import sys; from forebay.cli import run; run(sys.argv[1:]); print(*sys.modules, "
        "file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("called", "allowed"),
    [
        (["version", "--help"], ()),
        (["--help"], ("importlib.metadata",)),  # commands of other distributions
        (["jobs", "--help"], ("msgspec",)),
        (["jobs", "list", "--help"], ("msgspec",)),
        (["dead", "redrive", "--help"], ()),
        (["worker", "--help"], ("asyncio", "forebay.config", "msgspec")),
        (["migrate", "--help"], ("forebay.config", "msgspec")),
        (["nonsense"], ("importlib.metadata",)),
    ],
    ids=" ".join,
)
def test_help_loads_no_database_and_no_screens(called, allowed):
    loaded = loaded_by(*called)
    assert "forebay.cli" in loaded
    assert sorted(loaded.intersection(SLOW).difference(allowed)) == []


def test_a_list_loads_what_reads_the_database(database):
    """Not the client with all its subjects, and no rich, which costs a third of what psycopg
    does.
    """
    loaded = loaded_by("jobs", "list", FOREBAY_DATABASE_URL=database)
    assert sorted(loaded.intersection(SLOW).difference(READS)) == []
    assert "forebay.client._sync" not in loaded


def test_the_slots_of_deliver_are_those_of_a_deliverer():
    """The number is written twice, so that the help loads no deliverer."""
    (option,) = [
        one for one in program.get_command(None, "deliver").params if one.name == "concurrency"
    ]
    assert option.default == SLOTS_DEFAULT


def test_a_worker_starts_without_what_it_does_not_use():
    """The modules of clients, mirrors, drains, endpoints and pools are not loaded."""
    code = """
import sys, forebay
from forebay.cli._main import program
assert program.get_command(None, "worker")
import forebay.cli._serving, forebay.worker
app = forebay.App()
unused = ["rich", "forebay.client._sync", "forebay.client._async", "forebay.mirror",
          "forebay.sending", "forebay.sinks", "forebay.doctor", "forebay.embedded._server",
          "forebay_bench", "psycopg_pool", "tomllib"]
found = [name for name in unused if name in sys.modules]
if found: raise SystemExit(f"loaded: {found}")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_version_of_the_schema_is_known_without_its_text():
    """A worker compares it at its start; the first migration has a megabyte."""
    code = """
from forebay.ops.schema import require_version
from forebay.sql import latest_version, loader
require_version(latest_version())
assert not loader.migrations.cache_info().currsize
assert latest_version() == loader.migrations()[-1].version
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_app_of_the_benchmarks_loads_little_more_than_a_small_app():
    """A worker of a benchmark starts as one of a user does.

    The scenarios and their reports are not loaded.
    """
    code = """
import sys, forebay_bench.jobs
unused = ["rich", "statistics", "forebay_bench._report", "forebay_bench._place",
          "forebay_bench._run"]
found = [name for name in unused if name in sys.modules]
if found: raise SystemExit(f"loaded: {found}")
import forebay_bench
assert set(forebay_bench.__all__) <= set(dir(forebay_bench))
for name in forebay_bench.__all__: getattr(forebay_bench, name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_import_forebay_loads_no_part_before_it_is_used():
    code = """
import sys, forebay
found = [name for name in ("psycopg", "msgspec", "asyncio") if name in sys.modules]
if found: raise SystemExit(f"loaded: {found}")
assert set(forebay.__all__) <= set(dir(forebay))
for name in forebay.__all__: getattr(forebay, name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


FIRST = """
import ctypes, os, pathlib, signal, subprocess, sys, time
from forebay.cli._init import leave_first_place

number, os.getpid = os.getpid(), lambda: 1
ctypes.CDLL(None).prctl(36, 1)  # The kernel gives this process what loses its parent, as number 1.
leave_first_place()
started = subprocess.run(["sh", "-c", "sleep 0 & echo $!"], capture_output=True, text=True)
while pathlib.Path(f"/proc/{int(started.stdout)}").exists():
    time.sleep(0.01)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
os.kill(number, signal.SIGTERM)
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only containers have a first process of ours")
def test_the_first_process_of_a_container_waits_for_orphans():
    """
    Number 1 leaves no dead process, passes signals on, and ends with the code of the command.
    """
    answer = subprocess.run(
        [sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=60, check=False
    )
    assert (answer.returncode, answer.stderr) == (7, "")
