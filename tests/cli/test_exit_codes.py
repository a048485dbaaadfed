"""What a script can tell from the exit code, and what a person reads with it."""

import pytest

from forebay import errors
from forebay.cli.exit import exit_code


def test_a_missing_address_names_the_four_places(command):
    """
    Without an address nothing is tried; the message says where one could have been given.
    """
    answer = command("jobs", "list")

    assert answer.code == 2
    for place in ("--dsn", "FOREBAY_DATABASE_URL", "DATABASE_URL", "PG*"):
        assert place in answer.err
    assert answer.err.startswith("error: database address is missing")
    assert "\nhint: " in answer.err
    assert not answer.out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["no-such-command"], 2),
        (["jobs", "show", "many"], 2),
        (["enqueue", "work", "{bad"], 2),
        (["enqueue", "work", "[1]"], 2),
        (["enqueue", "no good name"], 2),
        (["enqueue", "work", "--delay", "soon"], 2),
        (["enqueue", "work", "--run-at", "noon"], 2),
        (["enqueue", "work", "--header", "novalue"], 2),
        (["enqueue", "work", "--priority", "99999"], 2),
        (["worker", "no_such_module:app"], 2),
        (["worker", "json:dumps"], 2),
        (["worker", "shop.py"], 2),
        (["worker", "json:app", "--log-level", "loud"], 2),
        (["config", "--concurrency", "many"], 2),
        (["dead", "redrive"], 2),
        (["dead", "redrive", "1", "--all"], 2),
        (["adopt"], 2),
        (["adopt", "--resume", "--discard"], 2),
        (["adopt", "--discard"], 2),
        (["sql", "--from-version", "999"], 2),
        (["jobs", "list", "--state", "lost"], 2),
        (["jobs", "show", "99"], 1),
        (["jobs", "cancel", "99"], 1),
        (["dead", "show", "99"], 1),
        (["dead", "redrive", "99"], 1),
        (["queues", "resume", "nothing"], 1),
        (["adopt", "--resume"], 1),
    ],
)
def test_what_cannot_be_done_is_told_from_wrong_usage(forebay, arguments, code):
    """
    1: it was understood and not done; 2: it has to be typed otherwise. Never a traceback.
    """
    answer = forebay(*arguments)

    assert answer.code == code, answer
    assert answer.err
    assert "Traceback" not in answer.err
    assert not answer.out


def test_an_unreachable_database_is_told_from_the_rest(command):
    """
    3: it may work later, or on another database; nothing in the command is wrong.
    """
    answer = command("jobs", "list", "--dsn", "host=/nowhere dbname=x")

    assert answer.code == 3
    assert "error: database unavailable" in answer.err
    assert "/nowhere" in answer.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["jobs", "list"],
        ["enqueue", "work"],
        ["queues", "list"],
        ["worker", "forebay.demo.app:app", "--without-schema", "fail"],
    ],
)
def test_a_database_without_the_schema_says_what_to_run(command, empty_database, arguments):
    """
    Whatever is asked of it, the answer is the command that helps.
    """
    answer = command(*arguments, "--dsn", empty_database)

    assert answer.code == 3
    assert "hint: Run `forebay migrate`." in answer.err


def test_what_the_database_refuses_is_printed_without_a_traceback(forebay, conn):
    """
    A missing privilege is the database's own error; its words are printed as ours are.
    """
    conn.execute("alter table forebay.dead_letter rename column tag to label")

    answer = forebay("dead", "list")

    assert answer.code == 1
    assert "error: database: column d.tag does not exist" in answer.err
    assert "Traceback" not in answer.err


def test_a_password_is_not_printed(command):
    """
    What is wrong with an address is said without its password.
    """
    answer = command("jobs", "list", "--dsn", "mysql://me:hunter2@db/x")

    assert answer.code == 2
    assert "hunter2" not in answer.err


def test_every_error_has_an_exit_code_that_is_not_success():
    """
    Also those that no command raises today.
    """
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type)]
    ours = [cls for cls in classes if issubclass(cls, errors.ForebayError)]
    assert len(ours) > 20
    for cls in ours:
        assert exit_code(cls.from_sql("went wrong")) in {1, 2, 3}


def test_help_is_printed_for_every_command(command):
    """
    Each command describes itself.
    """
    answer = command("--help")
    assert answer.code == 0
    for name in ("demo", "dev", "migrate", "sql", "worker", "enqueue", "jobs", "dead", "doctor"):
        assert name in answer.out
    assert command("version").out == command("--version").out
