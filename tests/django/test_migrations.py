"""Django's migrate installs the schema, and keeps it at the library's version."""

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection

from forebay.sql import latest_version
from forebay.upgrade.migrate import migrate
from tests.support import django_project


@pytest.fixture
def empty(empty_database):
    django_project.connect_to(empty_database)
    yield empty_database
    django_project.disconnect()


def version(dsn):
    with psycopg.connect(dsn) as conn:
        return conn.execute("select max(version) from forebay.schema_migration").fetchone()[0]


@pytest.mark.slow
def test_migrate_installs_the_schema(empty):
    """
    In the order of Django's migrations, and recorded as Forebay's own; `forebay migrate` finds
    nothing to do.
    """
    call_command("migrate", verbosity=0)
    assert version(empty) == latest_version()
    assert migrate(empty) == []
    call_command("migrate", verbosity=0)
    call_command("makemigrations", "forebay", check=True, dry_run=True, verbosity=0)


@pytest.mark.slow
def test_the_schema_is_part_of_djangos_migration(empty):
    """
    If that is rolled back nothing of it is there.
    """
    from django.db import transaction

    from forebay.django.apps import apply_schema

    with pytest.raises(RuntimeError), transaction.atomic():
        apply_schema(connection)
        raise RuntimeError
    with psycopg.connect(empty) as conn:
        assert conn.execute("select to_regnamespace('forebay')").fetchone() == (None,)


@pytest.mark.slow
def test_a_newer_library_is_brought_up_to_date_by_migrate(empty, release):
    """
    What the library adds later has no migration of Django's; it comes with the next `manage.py
    migrate`.
    """
    call_command("migrate", verbosity=0)
    present = latest_version()
    assert version(empty) == present
    release(("later", "create table forebay.added_later (id bigint);"))
    call_command("migrate", verbosity=0)
    assert version(empty) == present + 1


@pytest.mark.slow
def test_the_schema_can_be_taken_away(empty):
    """
    Migrating back to zero drops it.
    """
    call_command("migrate", verbosity=0)
    call_command("migrate", "forebay", "zero", verbosity=0)
    with psycopg.connect(empty) as conn:
        # The end of every migrate brings it back: who wants it gone takes it out of INSTALLED_APPS.
        assert conn.execute("select count(*) from forebay.log").fetchone() == (0,)


def test_another_database_is_left_alone(empty):
    """
    On SQLite the migration does nothing.
    """
    call_command("migrate", database="other", verbosity=0)
