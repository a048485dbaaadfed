"""What a login without the right role is told."""

import pytest
from psycopg.conninfo import make_conninfo

from forebay.client import Client
from forebay.errors import PermissionDenied
from forebay.sql import roles_by_object
from tests.support.engine import connect


def as_role(dsn, role):
    """The address with which a connection acts as a role."""
    return make_conninfo(dsn, options=f"-c role={role}")


@pytest.mark.parametrize(
    ("role", "arguments", "needed"),
    [
        ("forebay_producer", ["jobs", "list"], "forebay_operator or forebay_reader"),
        ("forebay_producer", ["workers", "list"], "forebay_operator or forebay_reader"),
        ("forebay_producer", ["events", "list"], "forebay_operator or forebay_reader"),
        ("forebay_producer", ["queues", "list"], "forebay_operator or forebay_reader"),
        ("forebay_producer", ["dead", "list"], "forebay_operator or forebay_reader"),
        ("forebay_reader", ["queues", "pause", "mail", "--new"], "forebay_operator"),
        ("forebay_reader", ["dead", "redrive", "1"], "forebay_operator"),
        ("forebay_reader", ["enqueue", "work"], "forebay_producer or forebay_worker"),
    ],
)
def test_a_refused_command_names_the_role(command, database, monkeypatch, role, arguments, needed):
    """
    The server says which function was refused; the hint says which role may call it.
    """
    monkeypatch.setenv("FOREBAY_DATABASE_URL", as_role(database, role))
    answer = command(*arguments)

    assert answer.code == 1, answer
    assert "error: permission denied for " in answer.err
    assert f"hint: The login needs the role {needed}, for example: grant forebay_" in answer.err


def test_a_login_without_any_role_is_told_all_four(database, command, monkeypatch):
    """
    It may not even use the schema, so the server does not say which function was called.
    """
    with connect(database) as admin:
        admin.execute("drop role if exists nobody_in_particular")
        admin.execute("create role nobody_in_particular")
    monkeypatch.setenv("FOREBAY_DATABASE_URL", as_role(database, "nobody_in_particular"))
    answer = command("jobs", "list")

    assert answer.code == 1
    assert "forebay_operator or forebay_producer or forebay_reader or forebay_worker" in answer.err


def test_what_only_the_owner_may_do_is_told(command, database, monkeypatch):
    """
    No role helps with these.
    """
    monkeypatch.setenv("FOREBAY_DATABASE_URL", as_role(database, "forebay_producer"))
    for arguments in (["adopt", "--resume"], ["migrate"]):
        answer = command(*arguments)
        assert "hint: Only the owner of the schema may do this" in answer.err, answer


def test_a_call_in_python_has_the_roles_as_facts(database):
    """
    The class and its field tell what a program needs, without reading the message.
    """
    with pytest.raises(PermissionDenied) as caught:
        Client(as_role(database, "forebay_reader")).pause_queue("mail")
    assert caught.value.roles == ("forebay_operator",)


def test_the_roles_are_those_that_were_granted(conn):
    """
    The library reads them from its migrations; the database must have the same.
    """
    rows = conn.execute(
        "select p.proname, array_agg(distinct a.grantee::regrole::text order by "
        "a.grantee::regrole::text)"
        " filter (where a.grantee::regrole::text like 'forebay\\_%')"
        " from pg_proc p, aclexplode(p.proacl) a where p.pronamespace = 'forebay'::regnamespace"
        " and p.proname !~ '^_' group by 1"
    ).fetchall()
    known = roles_by_object()
    assert {name: sorted(known[name]) for name, _ in rows} == {
        name: roles or [] for name, roles in rows
    }
