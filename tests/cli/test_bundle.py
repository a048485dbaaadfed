"""`forebay bundle`: one file for a bug report, without what jobs carry."""

import json
import zipfile

from tests.support.engine import Reader, enqueue, one

SECRET = "s3cr3t-of-a-customer"


def read(path) -> dict[str, object]:
    """Return the files of a bundle; each JSON file decoded."""
    with zipfile.ZipFile(path) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    return {
        name: json.loads(text) if name.endswith(".json") else text for name, text in texts.items()
    }


def fill(database, conn) -> None:
    """Put a secret into everything that a job and an operator bring."""
    options = {"tag": SECRET, "correlation_id": SECRET, "limit_key": SECRET}
    one(conn, "select forebay.limit_key('mail', %s, concurrency => 1)::text", SECRET)
    for _ in range(2):
        enqueue(
            conn, queue="mail", args={"a": SECRET}, headers=json.dumps({"h": SECRET}), **options
        )
        enqueue(conn, queue="plain", args={"a": SECRET})
    with Reader(database, queue="plain") as reader:
        batch = reader.claim(2)
        error = {"type": "ValueError", "message": SECRET, "traceback": SECRET}
        kept = {"seconds": 3600, "value": SECRET}
        ended = [
            {"offset": 1, "outcome": "dead", "reason": "permanent", "error": error},
            {"offset": 2, "outcome": "done", "kept": kept},
        ]
        reader.settle(batch.claim_no, ended=ended)
    one(
        conn,
        "select count(*) from forebay.change_jobs('cancel', %s::jsonb)",
        json.dumps({"tag": SECRET}),
    )
    conn.execute(
        (
            "insert into forebay.duty (name, error, since, recorded_at, worker) values "
            "('sweep', %s, now() - interval '1 h', now(), 'w')"
        ),
        [f"failed on {SECRET}"],
    )


def test_it_has_no_data_of_jobs(forebay, database, conn, tmp_path):
    """A secret in arguments, headers, tags, keys, errors, results and filters is nowhere in the
    file.
    """
    fill(database, conn)
    answer = forebay("bundle", "--file", tmp_path / "b.zip", "--json")
    assert answer.json["unread"] == []
    found = read(tmp_path / "b.zip")
    assert SECRET not in json.dumps(found)
    assert found["versions.json"]["forebay"]
    assert {row["queue"] for row in found["groups.json"]} >= {"plain"}
    assert [row["name"] for row in found["duties.json"]] == ["sweep"]
    assert any(row["act"] == "jobs.cancel" for row in found["events.json"])
    assert found["dead_letters.json"][0]["error_type"] == "ValueError"
    assert found["tables.json"]


def test_texts_of_errors_are_in_it_when_asked_for(forebay, database, conn, tmp_path):
    """With --errors the texts of errors are there, and still nothing else."""
    fill(database, conn)
    forebay("bundle", "--file", tmp_path / "b.zip", "--errors")
    found = read(tmp_path / "b.zip")
    assert found["dead_letters.json"][0]["error"] == SECRET
    assert SECRET not in json.dumps(
        [found["events.json"], found["groups.json"], found["queues.json"]]
    )


def test_passwords_are_masked(forebay, database, conn, tmp_path):
    """The address of the database has no password in the file."""
    address = (
        f"{database}&password=hunter22" if "?" in database else f"{database}?password=hunter22"
    )
    answer = forebay("bundle", "--dsn", address, "--file", tmp_path / "b.zip")
    assert answer.code == 0, answer.err
    assert "hunter22" not in json.dumps(read(tmp_path / "b.zip"))


def test_a_file_is_not_overwritten(forebay, conn, tmp_path):
    """An existing file stays as it is."""
    (tmp_path / "b.zip").write_text("mine")
    answer = forebay("bundle", "--file", tmp_path / "b.zip")
    assert answer.code == 2
    assert "File exists" in answer.err
    assert (tmp_path / "b.zip").read_text() == "mine"
