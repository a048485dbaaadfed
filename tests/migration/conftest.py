"""Migrations lock each segment, so these tests have all of them."""

import pytest

from forebay.embedded import EmbeddedServer
from tests.support.fix_db import for_copies, make_migrated


@pytest.fixture(scope="session")
def template(server: EmbeddedServer) -> str:
    """A database as the migrator leaves it, with all its segments: a migration locks each of
    them.
    """
    return for_copies(server, make_migrated(server, "forebay_template_as_migrated"))
