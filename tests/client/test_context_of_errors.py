"""The text of errors of the caller's transaction, which pass as the driver raised them."""

import psycopg
import pytest

from forebay.db.drivers import run
from forebay.ops.operation import Operation


def test_the_text_of_an_error_has_no_pages_of_sql(conn):
    """
    The server's context repeats the SQL of the function that ran. Its first line stays; the
    exception is the driver's, with all its fields.
    """
    fails = "do $$ begin execute 'select 1 / 0' || repeat(E'\\n -- more', 200); end $$"
    with pytest.raises(psycopg.errors.DivisionByZero) as caught:
        run(conn, Operation(fails, list))
    lines = str(caught.value).splitlines()
    assert lines[0] == "division by zero"
    assert len(lines) < 5
    assert "select 1 / 0" in lines[-1]
    assert len(caught.value.diag.context.splitlines()) > 200
