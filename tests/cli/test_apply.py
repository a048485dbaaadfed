"""forebay apply: queues that are declared in code are applied by the command, and what an
operator changed is kept.
"""

import sys

import pytest

from forebay.cli._differences import report_differences
from forebay.cli._load import load_app
from tests.support.engine import one

SHOP = """
import forebay

app = forebay.App()
imports = app.queue("imports", {settings})


@app.job(queue=imports)
def fetch() -> None: ...
"""


TIMED = """
import forebay

app = forebay.App()
imports = app.queue("imports", concurrency=2)


@app.cron("0 4 * * *")
@app.job(queue=imports)
def fetch() -> None: ...
"""


@pytest.fixture
def shop(forebay, tmp_path, monkeypatch):
    """Write a version of the application; it returns its place."""
    name = f"shop_{tmp_path.name}"

    def write(settings):
        (tmp_path / f"{name}.py").write_text(SHOP.format(settings=settings))
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        return f"{name}:app"

    return write


def cells(text):
    """The rows of a table, and the lines below it."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_difference_is_shown_applied_and_gone(forebay, conn, shop):
    place = shop("concurrency=20, rate=0.2, burst=3, shards=4, groups=['default']")
    preview = forebay("apply", place, "--dry-run")
    assert (preview.code, cells(preview.out)) == (0, [
        "queue setting database code",
        "imports rate - 0.2/s, burst 3 would set",
        "imports concurrency - 20 would set",
        "imports shards 1 4 would set",
        "imports group default - open would open",
        f"{place}: 4 to change",
    ])  # fmt: skip
    assert forebay("apply", place, "--check").code == 1
    assert one(conn, "select count(*) from forebay.queue_limits") == 0
    done = forebay("apply", place)
    assert (done.code, cells(done.out)[-1]) == (0, f"{place}: 4 changed")
    again = forebay("apply", place, "--check")
    assert (again.code, again.out) == (0, f"1 queue of {place}: as declared\n")


def test_the_group_whose_waiting_jobs_count_is_shown(forebay, conn, shop):
    shown = cells(forebay("apply", shop('max_waiting=1000, max_waiting_group="audit"')).out)
    assert "imports max waiting - 1,000 of group audit set" in shown
    limited = forebay("queues", "limit", "imports", "--max-waiting-group", "other")
    assert limited.out == "queue imports: max waiting 1,000, max waiting group other\n"


def test_what_an_operator_changed_is_kept_and_shown(forebay, conn, shop):
    forebay("apply", shop("concurrency=20, max_waiting=1000"))
    forebay("queues", "limit", "imports", "--concurrency", 1)
    kept = forebay("apply", shop("concurrency=20"))
    assert kept.code == 0
    assert "imports concurrency 1 20 kept: changed by hand (cli " in "\n".join(cells(kept.out))
    assert "imports max waiting 1,000 - removed" in cells(kept.out)
    assert cells(kept.out)[-1].endswith(
        "1 changed, 1 kept; --overwrite takes the values of the code"
    )
    both = forebay("apply", shop("concurrency=30"))
    (line,) = [line for line in cells(both.out) if line.startswith("imports")]
    assert line.startswith("imports concurrency 1 30 kept: changed by hand (cli ")
    assert line.endswith("), and in code (was 20)")
    found = forebay("apply", shop("concurrency=30"), "--check", "--json")
    assert found.code == 1
    assert [d["action"] for d in found.json["differences"]] == ["conflict"]
    forebay("apply", shop("concurrency=30"), "--overwrite")
    assert one(conn, "select concurrency from forebay.queue_limits") == 30
    assert forebay("apply", shop("concurrency=30"), "--check").code == 0


def test_a_group_that_is_no_longer_declared_stays_open(forebay, shop):
    forebay("apply", shop("groups=['default', 'audit']"))
    found = forebay("apply", shop("groups=['default']"))
    assert "forebay groups close audit --queue imports" in found.out


@pytest.mark.slow
def test_migrate_applies_too(forebay, empty_database, shop, monkeypatch):
    """Before the first migration the dry run shows the migrations only."""
    monkeypatch.setenv("FOREBAY_DATABASE_URL", empty_database)
    place = shop("concurrency=20")
    preview = forebay("migrate", "--app", place, "--dry-run")
    assert (preview.code, "concurrency" in preview.out) == (0, False)
    done = forebay("migrate", "--app", place)
    assert "imports concurrency - 20 set" in cells(done.out)
    assert forebay("migrate", "--app", place, "--json").json["queues"] == []


def test_a_worker_says_that_the_database_is_not_as_declared(forebay, shop, caplog):
    """One line for what was not applied, one for what an operator changed.

    None if all is as declared.
    """

    def declared_lines():
        caplog.clear()
        assert forebay("worker", place, "--until-idle").code == 0
        return [
            (record.levelname, record.getMessage())
            for record in caplog.records
            if "declared" in record.getMessage()
        ]

    place = shop("concurrency=20, rate=2")
    pending = (
        f"declared and not applied: imports rate, imports concurrency; run `forebay apply {place}`"
    )
    assert declared_lines() == [("WARNING", pending)]
    forebay("apply", place)
    assert declared_lines() == []
    forebay("queues", "limit", "imports", "--concurrency", 1)
    kept = "not as declared, changed by hand: imports concurrency is 1, in code 20"
    assert declared_lines() == [("INFO", kept)]


def test_a_worker_with_declared_queues_waits_for_its_schema(forebay, empty_database, shop, caplog):
    """The comparison at its start must not end it: a worker may start before the migration."""
    found, _ = load_app(shop("concurrency=20"))
    found._internals.use(dsn=empty_database)
    report_differences(found, "shop:app")
    found._internals.use(dsn="postgresql://127.0.0.1:1/none")
    report_differences(found, "shop:app")
    assert caplog.records == []


@pytest.mark.parametrize(
    ("role", "may_apply"),
    [("reader", False), ("worker", False), ("operator", True), ("producer", None)],
)
def test_a_check_needs_no_more_than_the_right_to_read(
    forebay, conn, tmp_path, monkeypatch, role, may_apply
):
    """
    A check in CI has a login that reads: of queues and of schedules. A producer may not even look.
    """
    name = f"timed_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(TIMED)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    login = f"apply_{role}"
    conn.execute(f"create role {login} login in role forebay_{role}")
    try:
        dsn = f"{conn.info.dsn} user={login}"
        for option in ("--check", "--dry-run"):
            answer = forebay("apply", f"{name}:app", option, "--dsn", dsn)
            refused = may_apply is None
            assert answer.code == (0 if option == "--dry-run" else 1) or refused, answer
            assert ("permission denied" in answer.err) == refused, answer
            assert ("would create" in answer.out) != refused, answer
        assert one(conn, "select count(*) from forebay.schedule") == 0
        answer = forebay("apply", f"{name}:app", "--dsn", dsn)
        assert (answer.code == 0) == bool(may_apply), answer
        assert one(conn, "select count(*) from forebay.schedule") == bool(may_apply)
    finally:
        conn.execute(f"drop role {login}")
