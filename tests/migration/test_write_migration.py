"""The next migration, written from what differs between the migrations and the sources of the
schema.
"""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from forebay.sql import checksum, migrations

ROOT = Path(__file__).parents[2]


class Checkout:
    """A copy of the library and its tools, as of the day after a release."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.sql = folder / "src" / "forebay" / "sql"
        for part in ("src/forebay", "tools"):
            shutil.copytree(
                ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        self.first = self.sql / "migrations" / "0001_initial.sql"
        self.first.parent.mkdir(exist_ok=True)
        self.first.write_text(migrations()[0].text)
        self.before = set(self.migrations())

    def migrations(self) -> list[Path]:
        return sorted((self.sql / "migrations").glob("*.sql"))

    def written(self) -> dict[str, str]:
        """Return the migrations that were not there, by name."""
        return {
            path.name: path.read_text() for path in self.migrations() if path not in self.before
        }

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.sql / "schema" / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    def run(self, tool: str, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, f"tools/{tool}.py", *args],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder / "src")},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.slow
def test_a_release_writes_down_the_first_migration(checkout: Checkout):
    """
    From then on it is frozen, whatever the sources say; before, there is nothing to bring an older
    database to.
    """
    shutil.rmtree(checkout.first.parent)
    refused = checkout.run("write_migration", "nothing")
    assert refused.returncode != 0
    assert "nothing is released" in refused.stderr

    for part in ("tests/__init__.py", "tests/support/released.py", "tests/migration/released.json"):
        if (ROOT / part).exists():
            (checkout.folder / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / part, checkout.folder / part)
    composed = migrations()[0].text
    done = checkout.run("record_release")
    assert done.returncode == 0, done.stderr
    assert checkout.first.read_text() == composed
    record = json.loads((checkout.folder / "tests/migration/released.json").read_text())
    assert list(record[version("forebay")]["migrations"].values()) == [checksum(composed)]

    checkout.edit("functions/operate/purge_dead.sql", "begin\n", "begin\n    -- As of now.\n")
    again = checkout.run("record_release")
    assert again.returncode != 0
    assert "already recorded" in again.stderr
    assert checkout.first.read_text() == composed


@pytest.mark.slow
def test_without_an_edit_there_is_nothing_to_migrate(checkout: Checkout):
    """
    The migrations that were released end in what the sources say.
    """
    nothing = checkout.run("write_migration", "nothing")
    assert nothing.returncode != 0
    assert "nothing to write" in nothing.stderr
    assert checkout.written() == {}


@pytest.mark.slow
def test_a_line_of_the_hot_claim_is_one_line_to_review(checkout: Checkout):
    """
    The template of what each segment has, edited in one line, makes a migration with the function
    that makes it, run for each segment there is.
    """
    checkout.edit("functions/claim/segment/take.sql", "interval '30 days'", "interval '31 days'")
    done = checkout.run("write_migration", "longer_expiry")
    assert done.returncode == 0, done.stderr

    (text,) = checkout.written().values()
    assert list(checkout.written()) == ["0002_longer_expiry.sql"]
    assert "create or replace function forebay._make_segment_functions(" in text
    assert "perform forebay._make_segment_functions(v_segment.segment_id, v_segment.hi)" in text
    assert text.count("create or replace function forebay.") == 9  # With the eight inside of it.


@pytest.mark.slow
def test_a_function_of_segments_gets_a_parameter(checkout: Checkout):
    """
    The old one of each segment is set aside for calls that have begun, and dropped by the post
    migration.
    """
    checkout.edit(
        "functions/claim/segment/fetch.sql", "p_seqs bigint[])", "p_seqs bigint[], p_most integer)"
    )
    done = checkout.run("write_migration", "fetch_less")
    assert done.returncode == 0, done.stderr

    pre, post = checkout.written().values()
    assert "p.proname ~ '^_fetch_[0-9]+$'" in pre
    assert pre.index("_set_aside(p.oid)") < pre.index("perform forebay._make_segment_functions(")
    assert "'forebay_set_aside'::regnamespace and p.proname ~ '^_fetch_[0-9]+$'" in " ".join(
        post.split()
    )


@pytest.mark.slow
def test_functions_columns_tables_indexes_and_grants_are_migrated(checkout: Checkout):
    """
    An edit of each kind: the chain ends in what the sources make, what is taken away comes after
    older workers ended.
    """
    checkout.edit("functions/operate/depth.sql", "-- grant: operator, reader", "-- grant: operator")
    checkout.edit("functions/operate/purge_dead.sql", "begin\n", "begin\n    -- As of now.\n")
    checkout.edit(
        "functions/enqueue/enqueue.sql",
        "unique_as jsonb default null)\nreturns bigint",
        "unique_as jsonb default null, source text default null)\nreturns bigint",
    )
    checkout.edit(
        "tables/failure.sql",
        "    place        text ",
        "    place        text,\n    node         text default 'a' ",
    )
    checkout.edit(
        "tables/failure.sql",
        "create index failure_by_job",
        "create index failure_by_node on forebay.failure (node);\ncreate index failure_by_job",
    )
    checkout.edit(
        "functions/shared/settings.sql",
        "(20, 'reserve_rows',",
        "(21, 'nodes_max', 'integer', '8', 1, 100, null, 'nodes', false, false, 'nodes'),\n"
        "        (20, 'reserve_rows',",
    )
    (checkout.sql / "schema" / "tables" / "node.sql").write_text(
        "create sequence forebay.node_seq as bigint cache 1;\n\n"
        "create table forebay.node (node_id bigint primary key default "
        "nextval('forebay.node_seq'), name text);\n"
        "create index node_by_name on forebay.node (name);\n\n"
        "comment on table forebay.node is 'Nodes.';\n"
    )
    (checkout.sql / "schema" / "functions" / "operate" / "node.sql").write_text(
        "-- grant: reader\n\n-- Nodes.\ncreate function forebay.nodes() returns bigint "
        "language sql stable\n"
        "set search_path = pg_catalog, pg_temp\n-- planner: short\nas $$ select count(*) "
        "from forebay.node $$;\n"
    )
    done = checkout.run("write_migration", "nodes")
    assert done.returncode == 0, done.stderr

    files = checkout.written()
    assert list(files) == ["0002_nodes.sql", "0003_nodes_indexes.sql", "0004_post_nodes.sql"]
    pre, indexes, post = files.values()
    assert "-- locks: failure\n" in pre
    assert "alter table forebay.failure add column node text default 'a'::text;" in pre
    assert "create or replace function forebay.purge_dead(" in pre
    assert "_set_aside('forebay.enqueue(" in pre
    assert pre.index("create sequence forebay.node_seq") < pre.index("create table forebay.node (")
    assert "create or replace function forebay.nodes()" in pre
    assert "('nodes_max', '8')" in pre
    assert "-- outside a transaction" in indexes
    assert "create index concurrently failure_by_node" in indexes
    assert "drop function forebay_set_aside.enqueue(" in post
    assert "revoke EXECUTE on function forebay.depth(text) from forebay_reader" in post


@pytest.mark.slow
def test_what_has_to_be_thought_about_fails_until_it_is_written(checkout: Checkout):
    """
    A column of another type, and a new one that existing rows can not have: each is named, and
    nothing migrates.
    """
    checkout.edit(
        "tables/failure.sql",
        "    attempt      integer not null",
        "    attempt      bigint not null",
    )
    checkout.edit(
        "tables/failure.sql",
        "    place        text ",
        "    place        text,\n    node         text not null ",
    )
    done = checkout.run("write_migration", "node")
    assert done.returncode != 0
    assert "edit the files: write by hand" in done.stderr

    (text,) = checkout.written().values()
    assert (
        "-- write by hand: column failure.attempt: integer not null must become bigint not null"
        in text
    )
    assert "-- write by hand: column failure.node" in text
