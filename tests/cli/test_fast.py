"""The short way into ``forebay worker`` takes what typer would take, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer

from forebay.cli import _worker
from forebay.cli._fast import parse_worker, worker_call
from forebay.cli._main import program

USUAL = [
    ["shop:app"],
    ["shop:app", "--queue", "mail", "--concurrency=5"],
    ["--group", "audit", "shop:app", "--json", "--until-idle", "--endpoints"],
    ["shop:app", "--dsn", "postgresql://h/d?a=b", "--app-dir", "src", "--max-attempts", "3"],
    ["shop:app", "--dsn=postgresql://h/d?a=b", "--log-level", "debug", "--log-format", "json"],
    ["shop:app", "--queue", "a", "--queue", "b"],
    ["shop:app", "--queue", ""],
]
UNUSUAL = [
    [],
    ["shop:app", "other:app"],
    ["shop:app", "--help"],
    ["shop:app", "-h"],
    ["shop:app", "--help-settings"],
    ["shop:app", "--nonsense", "1"],
    ["shop:app", "--queue"],
    ["shop:app", "--queue", "--json"],
    ["shop:app", "--json=1"],
    ["shop:app", "--app_dir", "src"],
    ["shop:app", "--", "--json"],
    ["shop:app", "-queue", "mail"],
]


@pytest.mark.parametrize("given", USUAL, ids=" ".join)
def test_a_usual_command_line_is_understood_as_typer_understands_it(given, monkeypatch):
    """Every option arrives with the value, the type and the default that typer would pass."""
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(
        _worker, "run_worker", lambda app, **rest: seen.append({"app": app, **rest})
    )
    with pytest.raises(SystemExit):
        typer.main.get_command(program)(["worker", *given])
    assert parse_worker(given) == seen[0]


@pytest.mark.parametrize("given", UNUSUAL, ids=" ".join)
def test_an_unusual_command_line_is_left_to_typer(given):
    """Help and mistakes are answered by the full command line."""
    assert worker_call(["worker", *given]) is None


def test_other_commands_are_left_to_typer():
    assert worker_call(["workers", "list"]) is None
    assert worker_call([]) is None


def test_a_worker_starts_without_what_it_does_not_use():
    """The modules of the full command line, of clients, mirrors, drains, endpoints and pools are not loaded."""
    code = """
import sys, forebay
from forebay.cli._fast import worker_call
import forebay.cli._serving, forebay.worker
app = forebay.App()
assert worker_call(["worker", "shop:app"])
unused = ["typer", "click", "rich", "forebay.client._sync", "forebay.client._async", "forebay.mirror", "forebay.drain",
          "forebay.endpoints", "forebay.sinks", "forebay.doctor", "forebay.embedded._server", "forebay_bench", "psycopg_pool", "tomllib"]
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
    """A worker of a benchmark starts as one of a user does; the scenarios and their reports are not loaded."""
    code = """
import sys, forebay_bench.jobs
unused = ["rich", "statistics", "forebay_bench._report", "forebay_bench._place", "forebay_bench._run"]
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
