"""A Django project on the test's own database."""

import psycopg
import pytest

from forebay.testing.copies import OWN_COPY
from tests.support import django_project
from tests.support.fix_db import fresh_database, make_migrated


@pytest.fixture(scope="session")
def project_template(server):
    """The name of a database with all migrations of the project, made once."""
    name = make_migrated(server, "forebay_django_template")
    django_project.connect_to(server.dsn(name))
    from django.core.management import call_command

    call_command("migrate", verbosity=0, interactive=False)
    django_project.disconnect()
    return name


@pytest.fixture
def project(server, project_template):
    """The address of a database of the test's own with all migrations, where the project points."""
    with fresh_database(server, project_template) as dsn:
        with psycopg.connect(dsn) as conn:
            conn.execute(OWN_COPY)
        django_project.connect_to(dsn)
        yield dsn
        django_project.disconnect()
