"""The reference of SQL functions and the functions themselves say the same."""

import re
import shutil
from pathlib import Path

import psycopg
import pytest

from forebay.errors import SQLSTATES
from tools import write_sql_reference

ROOT = Path(__file__).parents[2]
PAGE = write_sql_reference.TARGET.read_text(encoding="utf-8")
ENTRY = re.compile(
    r"^```text\n(forebay\..*?)^```\n(.*?)(?=^```text|^## |\Z)", re.MULTILINE | re.DOTALL
)
#: They run a query of the caller's, with the caller's rights and search_path.
INVOKERS = {
    "backfill", "backfill_plan", "backfill_begin", "backfill_next", "backfill_run_v1",
    "backfill_count_v1",
}  # fmt: skip
ROLES = ("producer", "worker", "operator", "reader")


def plain(signature: str) -> str:
    """Return a signature as a person writes it, on one line."""
    text = re.sub(r"\s+", " ", signature.strip())
    text = text.replace("timestamp with time zone", "timestamptz").lower()
    text = re.sub(r"default '(-?\d+)'::[a-z]+", r"default \1", text.lower())
    text = re.sub(r"default ('[^']*'|null)::[a-z \[\]]+?(?=[,)])", r"default \1", text)
    text = re.sub(  # PostgreSQL prints '1 hour' as '01:00:00'
        r"interval default '(\d+)(?: hours?)?'",
        lambda found: f"interval default '{int(found[1]):02}:00:00'",
        text,
    )
    return text.replace("( ", "(").replace(" )", ")")


@pytest.fixture
def functions(database):
    """Every function for drivers: its signature and the roles that may call it."""
    query = """
        select format('forebay.%%s(%%s) returns %%s', p.proname,
                      pg_get_function_arguments(p.oid), pg_get_function_result(p.oid)),
               array(select r from unnest(%s::text[]) r
                     where has_function_privilege('forebay_' || r, p.oid, 'execute')),
               case when p.proname = any (%s) then not p.prosecdef else p.prosecdef
                   and p.proconfig is not null end,
               has_function_privilege('public', p.oid, 'execute')
        from pg_proc p
        where p.pronamespace = 'forebay'::regnamespace and p.proname !~ '^_'"""
    with psycopg.connect(database) as conn:
        rows = conn.execute(query, [list(ROLES), list(INVOKERS)]).fetchall()
    return {plain(signature): rest for signature, *rest in rows}


def test_the_entries_are_those_that_the_source_makes():
    """
    The comment of a function, its signature and its grant are written once. If this fails, run
    tools/write_sql_reference.py.
    """
    assert write_sql_reference.page(PAGE) == PAGE


def test_every_function_has_its_entry_and_every_entry_its_function(functions):
    """
    Names, parameters, defaults and results in the reference are those of the database.
    """
    assert {plain(signature) for signature, _ in ENTRY.findall(PAGE)} == set(functions)


def test_every_entry_names_the_roles_that_may_call_it(functions):
    """
    Grants and reference agree; each entry also speaks of errors and transactions.
    """
    for signature, text in ENTRY.findall(PAGE):
        roles = re.search(r"^- Roles: (.*)$", text, re.MULTILINE)
        assert roles, signature
        named = [] if roles[1] == "the owner only" else roles[1].split(", ")
        assert named == functions[plain(signature)][0], signature
        assert re.search(r"^- Errors: ", text, re.MULTILINE), signature
        assert re.search(r"^- Transaction: ", text, re.MULTILINE), signature


def test_every_function_runs_as_the_owner_with_a_pinned_path_and_is_nobodys_by_default(functions):
    """
    What the reference says of all functions is true of each, but for those that run a query of the
    caller's.
    """
    assert {signature for signature, rest in functions.items() if not rest[1] or rest[2]} == set()


def test_every_sqlstate_that_sql_raises_has_its_error():
    """
    The codes raised anywhere in SQL are those known to Python, and so those in the reference.
    """
    sources = [
        *(ROOT / "src" / "forebay" / "sql").rglob("*.sql"),
        *(ROOT / "src").rglob("migrate.py"),
    ]
    raised = {
        code
        for source in sources
        for code in re.findall(r"errcode = '(JQ\d{3})'", source.read_text(encoding="utf-8"))
    }
    assert {code for code in SQLSTATES if code.startswith("JQ")} == raised


@pytest.mark.parametrize(
    ("comment", "folder", "problem"),
    [
        ("", "enqueue", "extra has no comment"),
        ("-- Errors: none.\n-- other\n", "enqueue", "'other' is not a part of Errors"),
        ("-- Do it.\n", "nowhere", "no part of sql.md has extra"),
    ],
)
def test_a_function_that_the_page_would_not_have_is_refused(
    comment, folder, problem, tmp_path, monkeypatch
):
    """
    Nobody forgets the comment of a function, or the place of a new folder.
    """
    copy = Path(shutil.copytree(write_sql_reference.FUNCTIONS, tmp_path / "functions"))
    (copy / folder).mkdir(exist_ok=True)
    (copy / folder / "extra.sql").write_text(
        f"-- grant: reader\n\n{comment}create function forebay.extra()\nreturns "
        f"int\nlanguage sql stable\n"
    )
    monkeypatch.setattr(write_sql_reference, "FUNCTIONS", copy)
    with pytest.raises(ValueError, match=problem):
        write_sql_reference.page(PAGE)
