"""From the driver's exceptions to ours."""

import psycopg
import psycopg_pool
import pytest
from psycopg import errors as pg

from forebay.db.errors import translate, translate_ours
from forebay.errors import SQLSTATES, DatabaseUnavailable, ForebayError, LeaseLost, SchemaError


@pytest.fixture
def conn(empty_database):
    with psycopg.connect(empty_database, autocommit=True) as conn:
        yield conn


def raised(conn, sqlstate, message="it went wrong", column=""):
    """What the driver raises for an error of a function of ours."""
    column = f", column = '{column}'" if column else ""
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(
            f"do $$ begin raise exception using errcode = '{sqlstate}', message = '{message}',"
            f" detail = 'the detail', hint = 'the hint'{column}; end $$"
        )
    return caught.value


def test_each_sqlstate_of_ours_becomes_its_class(conn):
    """
    Message, detail and hint are the function's own words.
    """
    for sqlstate, cls in SQLSTATES.items():
        error = translate(raised(conn, sqlstate))
        assert type(error) is cls
        assert (error.message, error.detail, error.hint) == (
            "it went wrong",
            "the detail",
            "the hint",
        )


def test_a_refused_parameter_is_named(conn):
    """
    The COLUMN item of the server's message is the field.
    """
    assert translate(raised(conn, "JQ001", column="state")).field == "state"


def test_a_code_of_a_newer_schema_is_an_error_of_ours_all_the_same(conn):
    """
    The class is unknown to this version, its words are not.
    """
    error = translate(raised(conn, "JQ999"))
    assert type(error) is ForebayError


@pytest.mark.parametrize(
    "sqlstate", ["08006", "25006", "53300", "57P01", "57P02", "57P03", "57P05", "25P03"]
)
def test_a_server_that_cannot_serve_is_unavailable(conn, sqlstate):
    """
    On a connection of our own; on the caller's it is the caller's trouble.
    """
    error = raised(conn, sqlstate)
    assert isinstance(translate(error), DatabaseUnavailable)
    assert translate_ours(error) is None


@pytest.mark.parametrize(
    "error",
    [
        psycopg.OperationalError("connection to server failed: refused\n\tIs it running?"),
        pg.ConnectionTimeout("connection timeout expired"),
        psycopg_pool.PoolTimeout("no connection after 30 s"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_trouble_on_this_side_is_unavailable(error):
    """
    What has no SQLSTATE happened before the server could say anything. Its message is one line.
    """
    ours = translate(error)
    assert isinstance(ours, DatabaseUnavailable)
    assert "\n" not in ours.message


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "23505", "55P03", "57014", "42501"])
def test_errors_of_a_transaction_are_not_ours(conn, sqlstate):
    """
    A serialization failure, a deadlock, a lock not granted: None, so that they pass untouched.
    """
    assert translate(raised(conn, sqlstate)) is None


def test_what_is_a_programmers_mistake_is_not_ours():
    """
    A closed cursor or the echo of an earlier error in a pipeline is no lost connection.
    """
    assert translate(psycopg.InterfaceError("the cursor is closed")) is None
    assert translate(pg.PipelineAborted("pipeline aborted")) is None


def test_a_missing_schema_is_told_from_an_old_one(conn):
    """
    No schema: not installed. A schema without the function: too old, with the server's words.
    """
    with pytest.raises(psycopg.Error) as caught:
        conn.execute("select forebay.enqueue('k')")
    error = translate_ours(caught.value)
    assert isinstance(error, SchemaError)
    assert "not installed" in error.message

    conn.execute("create schema forebay")
    with pytest.raises(psycopg.Error) as caught:
        conn.execute("select forebay.enqueue('k')")
    error = translate_ours(caught.value)
    assert isinstance(error, SchemaError)
    assert "too old" in error.message
    assert "forebay.enqueue" in error.detail


def test_a_lost_lease_is_recognised_wherever_it_is_raised(conn):
    """
    Also on a connection that a handler was lent.
    """
    assert isinstance(translate_ours(raised(conn, "JQ010")), LeaseLost)
