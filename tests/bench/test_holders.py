"""Other sessions that hold a database up: while they are there dead rows stay, and afterwards
they can go.
"""

import pytest

from forebay.embedded import temporary_server
from forebay.errors import ConfigError
from forebay_bench import Place
from forebay_bench._holders import HeldDatabase, check_holder, hold
from forebay_bench.engines.classic import ENQUEUE, create
from tests.support.engine import connect, one


def write_one(conn):
    conn.execute(ENQUEUE, ["bench", "noop", "{}"])


def dead_rows_left(dsn: str) -> int:
    """Delete some rows and vacuum; return how many row versions are still on the pages."""
    with connect(dsn) as conn:
        conn.execute("create table if not exists churned (n integer)")
        conn.execute("truncate churned")
        conn.execute("insert into churned select generate_series(1, 10)")
        conn.execute("delete from churned")
        conn.execute("vacuum churned")
        return one(conn, "select pg_relation_size('churned')")


def held(server, dsn):
    with connect(dsn) as conn:
        create(conn)
    return HeldDatabase(dsn, write_one)


@pytest.mark.parametrize("holder", ["snapshot", "writer", "prepared", "other_sessions"])
def test_dead_rows_stay_while_it_holds(server, empty_database, holder):
    """
    Vacuum removes nothing that died since the holder began, and all of it once the holder is gone.
    """
    place = Place(server.dsn(), is_own=False, bin_dir=server.binaries.bin_dir)
    check_holder(holder, place)
    with hold(holder, place, [held(server, empty_database)]) as notes:
        assert dead_rows_left(empty_database) > 0
        assert notes == []
    assert dead_rows_left(empty_database) == 0
    with connect(empty_database) as conn:
        assert one(conn, "select count(*) from classic_job") == 0, (
            "the other sessions' jobs never commit"
        )


def test_a_dump_that_cannot_run_is_replaced_and_told(server, empty_database, monkeypatch):
    """
    Without pg_dump a session with its snapshot and locks stands in, and a note says so.
    """
    monkeypatch.setenv("PATH", "/nowhere")
    place = Place(server.dsn(), is_own=False)
    with hold("other_sessions", place, [held(server, empty_database)]) as notes:
        assert dead_rows_left(empty_database) > 0
    (note,) = notes
    assert "pg_dump" in note


@pytest.mark.slow
def test_holders_that_the_server_cannot_have_are_refused(server, pg_bin):
    """
    An unknown one, and a prepared transaction where there may be none.
    """
    with pytest.raises(ConfigError, match="--holder"):
        check_holder("nobody", Place(server.dsn(), is_own=False))
    with temporary_server(pg_bin, extra_settings={"fsync": "off"}) as without:
        for name in ("prepared", "other_sessions"):
            with pytest.raises(ConfigError, match="max_prepared_transactions"):
                check_holder(name, Place(without.dsn(), is_own=True))
