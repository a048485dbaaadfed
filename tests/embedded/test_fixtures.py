"""What the other tests may rely upon."""

import psycopg


def test_each_test_has_a_database_of_its_own(server, template, database, empty_database):
    """
    What a test writes stays in its database: neither the template nor another copy changes.
    """
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("create table public.mine (id int)")
    for other in (server.dsn(template), empty_database):
        with psycopg.connect(other) as conn:
            assert conn.execute("select to_regclass('public.mine')").fetchone() == (None,)
