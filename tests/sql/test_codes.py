"""The one-letter codes in columns, and the view that names them."""

import re

import psycopg
import pytest

from tests.support.engine import connect


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def codes(conn: psycopg.Connection, column: str) -> dict[str, str]:
    """Return the codes of a column with their meanings."""
    return dict(
        conn.execute(
            "select code::text, meaning from forebay.code where column_name = %s", [column]
        ).fetchall()
    )


@pytest.mark.parametrize("column", ["tombstone.reason", "unique_key.mode"])
def test_a_column_takes_the_codes_that_are_named_and_no_other(conn, column):
    """
    The check of the column lists what the view lists.
    """
    table, _, name = column.partition(".")
    (check,) = conn.execute(
        (
            "select pg_get_constraintdef(oid) from pg_constraint where conrelid = %s::regclass "
            "and conname = %s"
        ),
        [f"forebay.{table}", f"{table}_{name}_check"],
    ).fetchone()
    assert set(re.findall(r"'(\w)'", check)) == codes(conn, column).keys()


def test_what_a_worker_says_of_a_job_has_the_code_of_that_name(conn):
    """
    Each outcome of the protocol is written as the code that the view gives it; that a job is
    requeued, no worker says.
    """
    for code, meaning in codes(conn, "settlement.outcomes").items():
        outcome, holds = ("dead", True) if code == "y" else (meaning, False)
        call = "select forebay._outcome_code(%s, %s, 1, 1, '{1}', 1, 1)::text"
        if outcome == "requeued":
            with pytest.raises(psycopg.Error, match="unknown outcome"):
                conn.execute(call, [outcome, holds])
            continue
        (found,) = conn.execute(call, [outcome, holds]).fetchone()
        assert found == code, meaning


def test_a_uniqueness_mode_has_the_code_of_its_name(conn):
    """
    The first letter of the mode, which the functions take, is its code.
    """
    assert all(code == meaning[0] for code, meaning in codes(conn, "unique_key.mode").items())


def test_every_column_of_codes_is_in_the_view(conn):
    """
    A column of type "char", or an array of it, that a new table brings is named too.
    """
    columns = conn.execute(
        "select c.relname || '.' || a.attname from pg_class c join pg_attribute a on "
        "a.attrelid = c.oid"
        " where c.relnamespace = 'forebay'::regnamespace and c.relkind = 'r' and a.attnum > 0"
        " and a.atttypid in ('\"char\"'::regtype, '\"char\"[]'::regtype)"
    ).fetchall()
    named = conn.execute("select distinct column_name from forebay.code").fetchall()
    assert sorted(columns) == sorted(named)
