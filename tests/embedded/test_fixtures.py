"""What the other tests may rely upon."""

import psycopg

from forebay.upgrade.migrate import migrate


def test_each_test_has_a_database_of_its_own(server, template, database, empty_database):
    """
    What a test writes stays in its database: neither the template nor another copy changes.
    """
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("create table public.mine (id int)")
    for other in (server.dsn(template), empty_database):
        with psycopg.connect(other) as conn:
            assert conn.execute("select to_regclass('public.mine')").fetchone() == (None,)


def test_the_database_of_a_test_is_migrated(database, empty_database):
    """
    A test starts on the newest schema, or on none when it asks for none.
    """
    assert migrate(database, dry_run=True) == []
    assert migrate(empty_database, dry_run=True) != []
