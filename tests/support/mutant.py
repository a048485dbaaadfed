"""Mutants: the schema with one guard taken out, by a text substitution in one function.

A test of a protocol shows something only if it fails without the guard. So each runs a second
time, in a database where the guard is missing, and there it has to fail.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from tests.support.engine import connect


class Removed(NamedTuple):
    """A guard that the running test has taken out."""

    function: str
    guard: str
    instead: str
    #: When it was taken out, by ``time.perf_counter``.
    at: float


#: What the running test has taken out; fix_guards.py empties and records it.
removed: list[Removed] = []


def break_function(dsn: str, name: str, *substitutions: tuple[str, str]) -> None:
    """Replace pieces of a function's source in the database at ``dsn``.

    Args:
        name: the function, without the schema; the only one of that name.
        substitutions: pairs of a piece of the source and what it becomes; a piece that is not
            there any more fails the test, since its mutant would prove nothing.
    """
    alter_function(dsn, name, *substitutions)
    at = time.perf_counter()
    removed.extend(Removed(name, old, new, at) for old, new in substitutions)


def alter_function(dsn: str, name: str, *substitutions: tuple[str, str]) -> None:
    """Do as ``break_function``, for a change that takes no guard out, such as a pause."""
    with connect(dsn) as conn:
        (source,) = conn.execute(
            "select pg_get_functiondef(p.oid) from pg_proc p"
            " where p.pronamespace = 'forebay'::regnamespace and p.proname = %s",
            [name],
        ).fetchone()
        for old, new in substitutions:
            assert old in source, f"{name} no longer has the guard {old!r}"
            source = source.replace(old, new)
        conn.execute(source)


def without_shortcut(dsn: str) -> None:
    """Let every claim go through ``forebay._take``, so that a guard taken out of it is missed."""
    alter_function(dsn, "claim_v1", ("if v_segment is not null then", "if false then"))


def break_shortcut(dsn: str, *substitutions: tuple[str, str]) -> None:
    """Replace pieces of the one-statement claim of every segment that exists."""
    with connect(dsn) as conn:
        segments = conn.execute("select segment_id from forebay.segment").fetchall()
    for (segment_id,) in segments:
        break_function(dsn, f"_take_{segment_id}", *substitutions)


@contextmanager
def violation(*also: type[Exception]) -> Iterator[None]:
    """Expect the promise to be seen broken: an assertion that fails, or another error, such as
    one of the database.
    """
    with pytest.raises((AssertionError, pytest.fail.Exception, *also)):
        yield
