"""The vectors for workers and libraries in other languages, run by plain SQL."""

import itertools
import json
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / "any_language.json").read_text(encoding="utf-8")
)
_PAUSE_SECONDS = 0.2

_numbers = itertools.count()


def filled(value: Any, names: dict[str, Any]) -> Any:
    """Return a value of a step with what was saved in the place of names."""
    if isinstance(value, str) and value.startswith("$"):
        name, dot, rest = value[1:].partition(".")
        return names[name] + dot + rest if dot else names[name]
    if isinstance(value, list):
        return [filled(each, names) for each in value]
    if isinstance(value, dict):
        return {key: filled(each, names) for key, each in value.items()}
    return value


def called(conn: psycopg.Connection[Any], step: dict[str, Any], names: dict[str, Any]) -> list:
    """Make the call of a step; return its rows."""
    types = VECTORS["types"][step["call"]]
    args = filled(step["args"], names)
    places = ", ".join(f"{name} => %({name})s::{types[name]}" for name in args)
    params = {
        name: json.dumps(value) if types[name] == "jsonb" and value is not None else value
        for name, value in args.items()
    }
    with conn.cursor(row_factory=dict_row) as cursor:
        query = f"select * from forebay.{step['call']}({places})"
        return cursor.execute(query, params).fetchall()


def differs(rows: list, step: dict[str, Any], names: dict[str, Any]) -> str | None:
    """Return how rows differ from those that a step expects."""
    expected = filled(step.get("rows"), names)
    if expected is None:
        return None
    found = [{key: row[key] for key in want} for row, want in zip(rows, expected, strict=False)]
    if len(rows) != len(expected) or found != expected:
        return f"{step}: expected {expected}, found {found} of {rows}"
    return None


def run_step(conn: psycopg.Connection[Any], step: dict[str, Any], names: dict[str, Any]) -> None:
    """Run one step, and save what it says."""
    if "statement" in step:
        conn.execute(step["statement"])
        return
    if "error" in step:
        with pytest.raises(psycopg.Error) as failed:
            called(conn, step, names)
        assert failed.value.sqlstate == step["error"], step
        return
    until = time.monotonic() + step.get("repeat_seconds", 0)
    while (problem := differs(rows := called(conn, step, names), step, names)) is not None:
        assert time.monotonic() < until, problem
        time.sleep(_PAUSE_SECONDS)
    for name, (row, column) in step.get("save", {}).items():
        names[name] = rows[row][column]


@pytest.fixture
def as_worker(conn, via_pooler):
    """The rights that the vectors ask for, where a session can have them for longer than a
    transaction.
    """
    if via_pooler is not None:
        yield conn
        return
    conn.execute("create role vectors in role forebay_producer, forebay_worker, forebay_operator")
    conn.execute("set role vectors")
    yield conn
    conn.execute("reset role")
    conn.execute("drop role vectors")


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_a_vector(as_worker, vector):
    """What any worker sees."""
    names = {"queue": f"vector_{next(_numbers)}"}
    try:
        for step in vector["steps"]:
            run_step(as_worker, step, names)
    finally:
        as_worker.execute("rollback")


def test_the_vectors_name_what_exists():
    """Each call has its types, and each promise is told once."""
    steps = [step for vector in VECTORS["vectors"] for step in vector["steps"]]
    assert {step["call"] for step in steps if "call" in step} == set(VECTORS["types"])
    names = [vector["name"] for vector in VECTORS["vectors"]]
    assert len(names) == len(set(names)) > 20
