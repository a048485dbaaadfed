"""forebay backfill: what a person at the terminal, or a script, gets."""

import io

import pytest

from tests.support.engine import one

PAGES = """
    create table page (id bigint primary key, site int, owner text, at timestamptz);
    insert into page select i, mod(i, 10), 'o''' || mod(i, 3),
        '2026-01-01 12:00+00'::timestamptz + i * interval '1 hour'
    from generate_series(1, 100) i"""


@pytest.fixture(autouse=True)
def pages(conn):
    conn.execute(PAGES)


def ids(conn):
    """Return the ids that were enqueued."""
    return [
        row[0] for row in conn.execute("select (args ->> 'id')::int from forebay.log order by 1")
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--table", "page", "--ids", "3,5, 7"], [3, 5, 7]),
        (["--table", "page", "--ids", "@some.txt"], [8, 9]),
        (["--table", "page", "--ids", "-"], [1, 2]),
        (["--table", "page", "--equal", "owner=o'1", "--equal", "site=4"], [4, 34, 64, 94]),
        (["--table", "page", "--between", "at=2026-01-01T15:00Z,2026-01-01T17:00Z"], [3, 4, 5]),
        (["--table", "page", "--between", "id=99,"], [99, 100]),
        (["--table", "page", "--where", "id % 50 = 0"], [50, 100]),
        (["--table", "page", "--where", "owner = %(o)s and id < 9", "--param", "o=o'1"], [1, 4, 7]),
        (["--query", "select id from page where id = %(id)s", "--param", "id=6"], [6]),
        (["--query", "select id from page where id < 3", "--chunk", "1", "--key", "id"], [1, 2]),
    ],
)
def test_the_rows_that_were_named_become_jobs(
    forebay, conn, monkeypatch, tmp_path, arguments, expected
):
    """
    By id, value, range or condition; one line of JSON says how many.
    """
    (tmp_path / "some.txt").write_text("8\n\n 9\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n2\n"))
    answer = forebay("backfill", "index", *arguments, "--yes", "--json")
    assert answer.json == {"enqueued": len(expected)}
    assert answer.code == 0
    assert answer.err.startswith(
        "warning: no worker has declared kind index, so it goes to queue default"
    )
    assert ids(conn) == expected


def test_a_dry_run_gives_the_token_that_does_it(forebay, conn):
    """
    Count, bytes, time, what waits; then exactly that, or a refusal when the rows changed.
    """
    rows = ["index", "--table", "page", "--equal", "site=3", "--queue", "q"]
    plan = forebay("backfill", *rows, "--dry-run", "--json").json
    assert set(plan) == {"token", "jobs", "bytes", "seconds", "waiting", "waiting_alike", "queue"}
    assert (plan["jobs"], plan["waiting"]) == (10, 0)
    shown = forebay("backfill", *rows, "--dry-run").out
    assert " 10-" in shown
    assert ids(conn) == []

    conn.execute("delete from page where id = 13")
    refused = forebay("backfill", *rows, "--token", plan["token"])
    assert refused.code == 1
    assert "no longer match token" in refused.err
    conn.execute("insert into page values (13, 3)")
    assert forebay("backfill", *rows, "--token", plan["token"]).out == "10 jobs enqueued\n"
    assert forebay("backfill", *rows, "--dry-run", "--json").json["waiting"] == 10


def test_chunks_tell_how_far_they_are_and_how_to_go_on(forebay, conn):
    """
    On stderr, after each; what stopped goes on from there.
    """
    one(conn, "select forebay.limit_queue('default', max_waiting => 50)")
    answer = forebay("backfill", "index", "--table", "page", "--chunk", "30", "--yes")
    assert answer.code == 2
    assert "30 of 100 (30 %)" in answer.err
    number = one(conn, "select backfill_id from forebay.backfill")
    assert f"--resume {number} continues it" in answer.err
    one(conn, "select forebay.limit_queue('default', remove => '{max_waiting}')")
    assert forebay("backfill", "--resume", number, "--json").json == {"enqueued": 70}
    assert ids(conn) == list(range(1, 101))
    assert forebay("backfill", "--resume", number + 1).code == 1


def test_all_options_of_the_jobs_can_be_given(forebay, conn):
    """
    The command line offers what belongs to many jobs.
    """
    forebay(
        "backfill",
        "index",
        "--yes",
        "--table",
        "page",
        "--column",
        "page=id",
        "--column",
        "site",
        "--ids",
        "7",
        "--args",
        ('{"force": true}'),
        "--queue",
        "q",
        "--priority",
        "5",
        "--tag",
        "t",
        "--delay",
        "1h",
        "--expires-in",
        "1d",
        "--max-attempts",
        "3",
    )
    row = conn.execute(
        "select args, tag, max_attempts, expires_at - run_at > '23 hours' from forebay.deferred"
    ).fetchone()
    assert row == ({"page": 7, "site": 7, "force": True}, "t", 3, True)


@pytest.mark.parametrize("answer", [True, False])
def test_it_counts_and_asks(forebay, conn, monkeypatch, answer):
    """
    Without --yes and --token: on a terminal the jobs are those of the question, else it is refused.
    """
    refused = forebay("backfill", "index", "--table", "page")
    assert (refused.code, ids(conn)) == (2, [])
    assert "Enqueue 100 jobs in queue default? Pass --yes." in refused.err
    monkeypatch.setattr("forebay.cli._acts.confirmed", lambda question: answer)
    done = forebay("backfill", "index", "--table", "page")
    assert (done.code, len(ids(conn))) == ((0, 100) if answer else (1, 0))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["index"],
        ["index", "--table", "page", "--query", "select 1"],
        ["index", "--query", "select 1", "--ids", "3"],
        ["index", "--table", "page", "--between", "at=5"],
        ["index", "--table", "page", "--equal", "site"],
        ["index", "--table", "page", "--ids", "@nothing.txt"],
        ["index", "--table", "page", "--where", "id = %(x)s", "--param", "y=1"],
        ["index", "--table", "nowhere"],
        ["index", "--query", "delete from page"],
        ["index", "--query", "select id from page", "--chunk", "5"],
        ["index", "--resume", "1"],
    ],
)
def test_wrong_usage_ends_with_2(forebay, conn, arguments):
    """
    With one line that says what is wrong, and nothing enqueued.
    """
    answer = forebay("backfill", *arguments, "--yes")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert ids(conn) == []
    assert one(conn, "select count(*) from page") == 100


def test_subjects_have_the_same_act(forebay, conn):
    """
    A dry run with a token, the act, and what stopped goes on by its number.
    """
    rows = ["crawl", "--query", "select 'site ' || id as subject, id from page"]
    plan = forebay("subjects", "backfill", *rows, "--dry-run", "--json").json
    assert plan["jobs"] == 100
    assert "subjects" in forebay("subjects", "backfill", *rows, "--dry-run").out
    assert one(conn, "select count(*) from forebay.subject") == 0
    answer = forebay(
        "subjects", "backfill", *rows, "--token", plan["token"], "--chunk", "40", "--key", "id"
    )
    assert answer.code == 0
    assert answer.out == "100 rows: each has its subject\n"
    number = one(conn, "select backfill_id from forebay.backfill")
    assert forebay("subjects", "backfill", "--resume", number, "--json").json == {"rows": 0}
    assert forebay("subjects", "backfill", *rows, "--yes", "--json").json == {"rows": 100}
    assert one(conn, "select count(*) from forebay.subject") == 100
    assert one(conn, "select count(*) from forebay.subject_state") == 200
    assert forebay("subjects", "backfill", "crawl", "--yes").code == 2
    assert forebay("subjects", "backfill", "--yes").code == 2


def _interrupted(_backfill_id):
    raise KeyboardInterrupt


@pytest.mark.parametrize("words", [("backfill",), ("subjects", "backfill")])
def test_an_interrupted_first_chunk_names_what_continues_it(forebay, conn, monkeypatch, words):
    """
    The backfill is recorded before its first chunk, so it has a number; the same command again
    would begin a second one. So does one that is resumed and interrupted again.
    """
    rows = ["index", "--query", "select id::text as subject, id from page", "--yes"]
    with monkeypatch.context() as patched:
        patched.setattr("forebay.ops.backfill.next_chunk", _interrupted)
        answer = forebay(*words, *rows, "--chunk", "10", "--key", "id")
        number = one(conn, "select backfill_id from forebay.backfill")
        again = f"→ forebay {' '.join(words)} --resume {number} continues it"
        assert answer.code == 130
        assert again in answer.err.splitlines()
        answer = forebay(*words, "--resume", str(number))
        assert again in answer.err.splitlines()
        assert "nothing is enqueued" not in answer.err
    assert forebay(*words, "--resume", str(number)).code == 0


def test_an_interrupted_backfill_in_one_transaction_is_run_again(forebay, conn, monkeypatch):
    """Nothing is enqueued, and nothing is recorded that could be resumed."""
    monkeypatch.setattr("forebay.ops.backfill.backfill", lambda *_: _interrupted(0))
    answer = forebay("backfill", "index", "--table", "page", "--ids", "3", "--yes")
    assert "→ nothing is enqueued: run the same command again" in answer.err.splitlines()
    assert ids(conn) == []
