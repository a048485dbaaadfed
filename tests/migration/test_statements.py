"""A script of SQL, statement by statement."""

import pytest

from forebay.sql import Migration, migrations, split_statements


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("select 1; select 2;", ["select 1", "select 2"]),
        ("select 1; -- done; really\n", ["select 1"]),
        ("-- why;\nselect 1", ["-- why;\nselect 1"]),
        ("/* a; /* b; */ ; */ select 1;;", ["/* a; /* b; */ ; */ select 1"]),
        ("select ';', E'\\';', \"a;b\"; select 2", ["select ';', E'\\';', \"a;b\"", "select 2"]),
        ("do $$ begin; end $$; select $a$ $$; $a$;", ["do $$ begin; end $$", "select $a$ $$; $a$"]),
        ("select $1, a$b$c; select 2", ["select $1, a$b$c", "select 2"]),
        (" \n-- nothing\n", []),
    ],
)
def test_semicolons_end_statements_where_the_server_thinks_so(text, statements):
    """
    Not within strings, names, comments and dollar quotes.
    """
    assert split_statements(text) == statements


@pytest.mark.slow
def test_every_migration_is_split_into_statements_that_begin_as_statements_do():
    """
    Of the migrations that there are none is cut in the middle.
    """
    for step in migrations():
        for statement in step.statements():
            code = [line for line in statement.splitlines() if line and not line.startswith("--")]
            assert code[0].split()[0] in {
                "create",
                "insert",
                "comment",
                "revoke",
                "do",
                "select",
                "update",
                "alter",
                "grant",
            }, statement


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("-- locks: log; drop\nselect 1", "name tables without"),
        ("-- locks: log\n-- outside a transaction\nselect 1", "locks tables at its beginning"),
        ("-- for each segment\nselect 1", "must contain {segment}"),
        ("select '{segment}'", "must contain {segment}"),
        ("-- locks: lane, log\nselect 1;\n-- locks: no\n", None),
    ],
)
def test_a_head_that_contradicts_itself_is_refused(text, problem):
    """
    What a file says about itself is checked when it is read; only its first comments count.
    """
    found = Migration(1, "x", text, "0").problem()
    assert found is None if problem is None else problem in str(found)
