"""Fixtures of the tests of the console."""

import pytest
from psycopg.conninfo import make_conninfo


@pytest.fixture
def login(database, conn):
    """Make a login role that is a member of some roles; return the address of its sessions."""
    made = []

    def login(*roles: str) -> str:
        name = "console_" + "_".join(roles or ("none",))
        conn.execute(f"create role {name} login")
        made.append(name)
        for role in roles:
            conn.execute(f"grant {role} to {name}")
        return make_conninfo(database, user=name)

    yield login
    for name in made:
        conn.execute(f"drop owned by {name}")
        conn.execute(f"drop role {name}")
