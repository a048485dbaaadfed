"""The sources of the schema, and the migration that is composed of them."""

import re
import shutil
from pathlib import Path

import psycopg
import pytest

from forebay.model.options import KEPT_OPTION_NAMES
from forebay.ops.claimed import ClaimedJob
from forebay.sql import migrations
from forebay.sql.composer import (
    SCHEMA,
    compose,
    functions_of,
    grants,
    job_columns,
    segment_functions,
)
from tests.support.released import released
from tools.write_migration import build_into, contents, differences


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    """A copy of the sources, to be changed."""
    return Path(shutil.copytree(SCHEMA, tmp_path / "schema"))


def test_the_first_migration_is_a_file_once_it_is_released():
    """
    Until then it is composed of the sources, so an edited source is never tested in its former
    state.
    """
    file = SCHEMA.parent / "migrations" / "0001_initial.sql"
    assert file.exists() == bool(released())
    if not released():
        assert migrations()[0].text == compose()


@pytest.mark.slow
def test_the_migrations_and_the_sources_end_in_the_same_schema(server, template, empty_database):
    """
    A database that went through all migrations, and one built from src/forebay/sql/schema: the same
    objects, grants, comments and settings.
    """
    build_into(empty_database)
    assert differences(contents(server.dsn(template)), contents(empty_database)) == []


def test_every_body_is_one_that_postgresql_accepts(server, template):
    """
    The first migration makes functions without a look at their bodies; made once more with that
    look, none is refused.
    """
    with psycopg.connect(server.dsn(template)) as conn:
        definitions = conn.execute(
            "select pg_get_functiondef(p.oid) from pg_proc p"
            " where p.pronamespace = 'forebay'::regnamespace and p.prokind = 'f'"
            " and p.proname !~ '_[1-9]\\d*$'"
        ).fetchall()
        assert len(definitions) > 150
        conn.execute("set local check_function_bodies = on")
        for (definition,) in definitions:
            conn.execute(definition)
        conn.rollback()


def test_no_function_is_longer_than_a_reader_can_keep_in_mind():
    """
    200 lines, with what it includes. Functions of segments count one by one, not as the text of the
    function that makes them.
    """
    function = re.compile(r"^create function (\w+\.\w+).*?\$\$.*?\$\$;", re.MULTILINE | re.DOTALL)
    sources = [compose(), *segment_functions(SCHEMA).values()]
    lines = {
        made[1]: made[0].count("\n") + 1 for source in sources for made in function.finditer(source)
    }
    lines.pop("forebay._make_segment_functions")
    assert len(lines) > 500
    assert {name: count for name, count in lines.items() if count > 200} == {}


def test_each_segment_has_a_function_of_each_file(server, template):
    """
    The files of functions/claim/segment and the functions of the first segment have the same names.
    """
    with psycopg.connect(server.dsn(template)) as conn:
        made = conn.execute(
            "select p.proname from pg_proc p where p.pronamespace = "
            "'forebay'::regnamespace and p.proname ~ '_0$'"
        ).fetchall()
    assert {name for (name,) in made} == {f"_{name}_0" for name in segment_functions(SCHEMA)}


def test_grants_are_read_from_the_heads_of_files(schema: Path):
    """
    A role may call what names it, and nothing that does not.
    """
    (schema / "functions" / "extra.sql").write_text(
        "-- grant: reader\ncreate function forebay.extra() returns int language sql as "
        "'select 1';\n"
    )
    assert "extra" in grants(schema)["reader"]
    assert "extra" not in grants(schema)["operator"]


@pytest.mark.parametrize(
    "head", ["", "-- grant: everybody\n", "-- grant: worker\n-- grant: reader\n"]
)
def test_a_public_function_without_a_plain_grant_is_not_composed(schema: Path, head: str):
    """
    That nobody may call a function has to be written down, too; and only the four roles are known.
    """
    (schema / "functions" / "extra.sql").write_text(
        f"{head}create function forebay.extra() returns int language sql as 'select 1';\n"
    )
    with pytest.raises(ValueError, match=r"extra\.sql"):
        compose(schema)


def test_planner_settings_are_those_of_a_named_set(schema: Path):
    """
    Planner settings stand in planner.sql only; a name that is not there is refused.
    """
    for file in functions_of(schema):
        assert not re.search(r"^set (jit|enable_|plan_)", file.read_text(), re.MULTILINE), file
    made = compose(schema)
    claim = made[made.index("create function forebay.claim_v1(") :]
    assert claim.index("set plan_cache_mode = force_generic_plan") < claim.index("as $$")

    file = schema / "functions" / "claim" / "claim.sql"
    file.write_text(file.read_text().replace("-- planner: hot", "-- planner: warm"))
    with pytest.raises(ValueError, match="warm"):
        compose(schema)


def test_a_fragment_stands_where_it_is_included(schema: Path):
    """
    It is indented like the line that names it, comes without its head, and has to exist. One that
    stands in one place only belongs there.
    """
    files = [*functions_of(schema), *(schema / "tables").glob("*.sql")]
    sources = "".join(file.read_text() for file in files)
    for fragment in (schema / "fragments").glob("*.sql"):
        assert sources.count(f"-- include: {fragment.stem}\n") > 1, fragment
    (schema / "fragments" / "extra.sql").write_text("-- About it.\n\nselect 1;\nselect 2;\n")
    file = schema / "first_rows.sql"
    file.write_text("do $$ begin\n    -- include: extra\nend $$;\n")
    assert "do $$ begin\n    select 1;\n    select 2;\nend $$;\n" in compose(schema)

    file.write_text("-- include: missing\n")
    with pytest.raises(ValueError, match=r"missing\.sql"):
        compose(schema)


def test_lists_of_the_fields_of_a_job_are_made_of_their_declaration(schema: Path):
    """
    A new line of job_columns.sql is in every list that does not leave it out; a name that is no
    field is refused.
    """
    columns = schema / "fragments" / "job_columns.sql"
    fields = list(job_columns(schema))
    columns.write_text(columns.read_text().rstrip() + ",\nregion         text\n")
    file = schema / "first_rows.sql"
    left_out = [name for name in fields if name not in ("ordering_key", "limit_key")]
    but = f"but {', '.join(left_out)}"
    file.write_text(
        f"{{job {but}}}; {{job of (r.job) {but}}}; {{options passed of o {but}}}; "
        f"{{options keys {but}}};\n"
        f"{{job types {but}}}; {{options parameters {but}, limit_key, region}}; {{options "
        f"of o but region}};\n"
    )
    made = compose(schema)
    assert (
        "ordering_key, limit_key, region; (r.job).ordering_key, (r.job).limit_key, (r.job).region;"
        " ordering_key => o.ordering_key, limit_key => o.limit_key, region => o.region;"
        " 'ordering_key', 'limit_key', 'region';\n"
        "ordering_key text, limit_key text, region text; ordering_key text default null;"
        f" {', '.join(f'o.{name}' for name in fields if name not in ('kind', 'args'))};\n"
    ) in made
    written = re.findall(r"insert into forebay\.(?:log|deferred) \(([^)]+)\)", made)
    jobs = [names for names in written if "correlation_id" in names]
    assert len(jobs) > 15
    assert all("region" in names for names in jobs)

    file.write_text("{job but region, colour}\n")
    with pytest.raises(ValueError, match="a job has no field colour"):
        compose(schema)


def test_python_has_the_fields_of_a_job_as_they_are_declared():
    """
    A claimed job is an array, so its fields are read in the order of the declaration; every option
    is a field.
    """
    columns = job_columns()
    inside = ("kind", "args", "ordering_key", "limit_key")  # At a place of their own, or not told.
    told = [name for name in columns if name not in inside]
    fields = ClaimedJob.__struct_fields__
    after = fields.index("pauses") + 1
    assert list(fields[after : after + len(told)]) == told
    assert set(KEPT_OPTION_NAMES) == {name for name, (_, is_option) in columns.items() if is_option}


def test_no_function_needs_the_right_to_make_temporary_tables():
    """
    Where TEMP is revoked, an adoption in a restored database would fail.
    """
    texts = [file.read_text() for file in (SCHEMA / "functions").rglob("*.sql")]
    assert texts
    assert not [text for text in texts if re.search(r"create (?:temp|temporary)\b", text)]
