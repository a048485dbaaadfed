"""A Django project on the test's own database."""

import pytest

from tests.support import django_project


@pytest.fixture
def project(database):
    """The project with all of its migrations applied, pointed at the test's database."""
    django_project.connect_to(database)
    from django.core.management import call_command

    call_command("migrate", verbosity=0, interactive=False)
    yield database
    django_project.disconnect()
