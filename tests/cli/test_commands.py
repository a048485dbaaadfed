"""What the commands do, and the shape of what they print."""

import io
import json

import pytest

from forebay.client import Client
from forebay.config import GROUPS, declared_settings
from forebay.ops import protocol
from forebay.sql import latest_version
from tests.support.engine import Reader, enqueue, one, shift_clock, small_segments

JOB_KEYS = {
    "args", "attempt", "cancel_requested", "claimed_at", "correlation_id", "dead_id", "ended_at",
    "endpoint", "enqueued_at", "expires_at", "group", "headers", "job_id", "kind", "limit_key",
    "max_attempts", "ordering_key", "place", "priority", "queue", "redriven_as", "redriven_from",
    "redriven_from_dead_id", "run_at", "state", "tag", "unique_key", "worker",
}  # fmt: skip


def write_dead_letter(database, conn, *, kind="work", queue="default", error=None):
    """Let a job die; return its id."""
    job_id = enqueue(conn, kind=kind, queue=queue)
    with Reader(database, queue=queue) as reader:
        batch = reader.claim_ready(1)
        ended = {"offset": 1, "outcome": "dead", "reason": "permanent", "error": error}
        assert reader.settle(batch.claim_no, [], ended=[ended]) == "settled"
    return job_id


# --- enqueue and jobs ---


def test_an_enqueued_job_is_listed_shown_and_cancelled(forebay):
    """
    The four commands speak of the same job.
    """
    made = forebay("enqueue", "work", '{"id": 7}', "--queue", "mail", "--tag", "x", "--json").json
    assert made == {"job_id": made["job_id"], "is_new": True, "kind": "work", "queue": "mail"}

    (listed,) = forebay("jobs", "list", "--json").json
    (shown,) = forebay("jobs", "show", made["job_id"], "--json").json
    history = {name: shown.pop(name) for name in ("errors", "flow", "progress", "result")}
    assert history == {"errors": [], "flow": None, "progress": None, "result": None}
    assert shown.pop("family") == {"parent": None, "children": [], "is_complete": True}
    assert set(listed) == set(shown) == JOB_KEYS
    assert {**listed, "place": None} == {**shown, "place": None}
    assert (listed["state"], listed["args"], listed["tag"]) == ("ready", {"id": 7}, "x")

    answered = forebay("jobs", "cancel", made["job_id"], "--json").json
    assert answered == [{"job_id": made["job_id"], "answer": "cancelled"}]


def test_a_cancellation_tells_what_became_of_the_job(forebay, database, conn):
    """
    Waiting, in a worker, ended, unknown: each has its own answer; the last two are failures.
    """
    dead = write_dead_letter(database, conn)
    claimed = enqueue(conn, queue="other")
    waiting = enqueue(conn)
    with Reader(database, queue="other") as reader:
        reader.claim_ready(1)
        answer = forebay("jobs", "cancel", waiting, claimed)
        assert answer.code == 0
        assert answer.out.splitlines() == [
            f"job {waiting} is cancelled",
            f"job {claimed} is in a worker: cancellation requested",
        ]
        answer = forebay("jobs", "cancel", dead, waiting, 999_999)
        assert answer.code == 1
        assert answer.out.splitlines() == [f"job {waiting} is cancelled"]
        assert answer.err.splitlines() == [
            f"job {dead} is already dead",
            "job 999999 is unknown: never enqueued, not committed, or past retention",
        ]
        answer = forebay("jobs", "cancel", dead, "--group", "default", "--json")
        assert (answer.code, answer.json) == (1, [{"job_id": dead, "answer": "already ended"}])


def test_all_options_of_a_job_can_be_given(forebay, monkeypatch):
    """
    The command line offers what SQL and Python offer; arguments may come from a pipe.
    """
    monkeypatch.setattr("sys.stdin", io.StringIO('{"deep": {"list": [1, null]}}'))
    made = forebay(
        "enqueue", "work", "-", "--priority", "-5", "--delay", "1.5h", "--max-attempts", "3",
        "--correlation-id", "c", "--header", "a=b=c", "--header", "d=", "--expires-at",
        "2099-01-01", "--json",
    ).json  # fmt: skip
    (job,) = forebay("jobs", "show", made["job_id"], "--json").json

    assert job["state"] == "scheduled"
    assert job["args"] == {"deep": {"list": [1, None]}}
    assert (job["priority"], job["max_attempts"], job["correlation_id"]) == (-5, 3, "c")
    assert job["headers"] == {"a": "b=c", "d": ""}
    assert job["expires_at"].startswith(("2098-12-31", "2099-01-01"))


def test_integers_of_any_size_survive_the_trip(forebay):
    """
    JSON has no largest integer, and neither has the database.
    """
    made = forebay("enqueue", "work", json.dumps({"n": 10**40}), "--json").json
    (job,) = forebay("jobs", "show", made["job_id"], "--json").json
    assert job["args"] == {"n": 10**40}
    assert str(10**40) in forebay("jobs", "show", made["job_id"]).out


def test_jobs_are_listed_in_pages_and_by_what_they_have_in_common(forebay, conn):
    """
    Newest first; a page begins below the last place of the one before.
    """
    ids = [enqueue(conn, kind=f"kind_{n % 2}", queue=f"queue_{n % 3}") for n in range(6)]

    first = forebay("jobs", "list", "--limit", 4, "--json").json
    rest = forebay("jobs", "list", "--before", first[-1]["place"], "--json").json
    assert [job["job_id"] for job in first + rest] == ids[::-1]
    by_kind = forebay("jobs", "list", "--kind", "kind_1", "--json").json
    assert [job["job_id"] for job in by_kind] == ids[5::-2]
    by_queue = forebay("jobs", "list", "--queue", "queue_0", "--json").json
    assert [job["job_id"] for job in by_queue] == [ids[3], ids[0]]
    assert forebay("jobs", "list", "--state", "done", "--json").json == []
    assert "--before" in forebay("jobs", "list", "--limit", 4).out


def test_what_people_typed_is_never_taken_for_markup(forebay):
    """
    A tag with brackets is shown as it is.
    """
    forebay("enqueue", "work", '{"a": "[red]x[/red]"}', "--tag", "[bold]t")
    out = forebay("jobs", "list").out
    assert "[bold]t" in out
    assert "[red]x[/red]" in out


def test_limits_are_set_shown_and_removed(forebay, conn):
    """
    Each call changes only the limits it names; without any limit the command shows them.
    """

    def limit(*given):
        return forebay("queues", "limit", *given)

    assert limit().out.strip() == "No limits."
    assert limit("mail").out.strip() == "queue mail: no limits"
    set_ = limit("mail", "--concurrency", 5, "--key-rate", 0.5)
    assert set_.out.strip() == "queue mail: concurrency 5, key rate 0.5"
    one(conn, "select forebay.open_group('mail')")
    (shown,) = limit("--json").json
    assert (shown["queue"], shown["running"], shown["keys_waiting"]) == ("mail", 0, 0)
    assert shown["limits"]["key_rate"] == 0.5
    assert "concurrency 5" in limit("mail").out
    after = limit("mail", "--rate", 2, "--max-waiting", 10_000, "--json").json
    assert (after["before"]["concurrency"], after["before"]["rate"]) == (5, None)
    assert (after["limits"]["concurrency"], after["limits"]["rate"]) == (5, 2)
    removed = limit("mail", "--remove", "key-rate", "--remove", "concurrency")
    assert removed.out.strip() == "queue mail: max waiting 10,000, rate 2"
    assert limit("mail", "--remove", "all").out.strip() == "queue mail: no limits"
    assert limit().out.strip() == "No limits."
    forebay("enqueue", "work", "--queue", "mail", "--limit-key", "b")
    assert "take turns" in limit().out
    (shown,) = limit("mail", "--json").json
    assert shown["keys_waiting"] == 0


def test_a_limit_that_makes_no_sense_is_refused_and_changes_nothing(forebay):
    """
    No queue, an unknown limit, one both set and removed; and what the database refuses.
    """

    def limit(*given):
        return forebay("queues", "limit", *given)

    limit("mail", "--max-waiting", 7)
    for given in (
        ("--rate", 2),
        ("--remove", "all"),
        ("mail", "--remove", "speed"),
        ("mail", "--remove", "max-waiting", "--max-waiting", 5),
    ):
        assert limit(*given).code == 2
    assert limit("mail", "--max-waiting", 0).code != 0
    assert limit("mail", "--max-waiting", 5, "--burst", 3).code != 0
    assert limit("mail").out.split()[-3:] == ["max", "waiting", "7"]


# --- dead letters ---


def test_dead_letters_are_listed_shown_redriven_and_purged(forebay, database, conn):
    """
    From the list to the new job and, in the end, to nothing.
    """
    error = {"type": "ValueError", "message": "no\nsuch user", "traceback": "Traceback: [x]"}
    job_id = write_dead_letter(database, conn, error=error)

    (letter,) = forebay("dead", "list", "--json").json
    assert (letter["job_id"], letter["reason"]) == (job_id, "permanent")
    shown = forebay("dead", "show", letter["dead_id"], "--json").json
    assert shown == letter
    assert shown["errors"][0]["message"] == "no\nsuch user"
    page = forebay("dead", "show", letter["dead_id"]).out
    assert "ValueError: no" in page
    assert "Traceback: [x]" in page
    assert "ValueError: no" in forebay("dead", "list").out

    (redriven,) = forebay("dead", "redrive", letter["dead_id"], "--json").json
    assert redriven["dead_id"] == letter["dead_id"]
    (new,) = forebay("jobs", "show", redriven["job_id"], "--json").json
    assert (new["state"], new["redriven_from"]) == ("ready", job_id)
    assert f"job {job_id}, dead letter {letter['dead_id']}" in (
        forebay("jobs", "show", redriven["job_id"]).out
    )
    (old,) = forebay("jobs", "show", job_id, "--json").json
    assert (old["dead_id"], old["redriven_as"]) == (letter["dead_id"], redriven["job_id"])
    again = forebay("dead", "redrive", letter["dead_id"])
    assert again.code == 1
    assert "redriven" in again.err

    assert forebay("dead", "purge", "--older-than", "1d", "--yes", "--json").json == {"purged": 0}
    assert forebay("dead", "purge", "--older-than", "0", "--yes", "--json").json == {"purged": 1}
    assert forebay("dead", "list", "--json").json == []


def test_an_empty_list_says_what_is_not_there(forebay):
    """
    A new database gives an empty list, not an error.
    """
    for listed, said in (
        ("jobs", "No jobs."),
        ("dead", "No dead letters."),
        ("queues", "No queues."),
    ):
        answer = forebay(listed, "list")
        assert (answer.code, answer.out.strip()) == (0, said)


def test_dead_letters_answer_to_the_id_of_the_job(forebay, database, conn):
    """
    What the log names can be shown, listed and redriven; what was redriven leaves the list.
    """
    enqueue(conn, kind="other")  # so that no dead letter has the number of its job
    first, second = (write_dead_letter(database, conn, queue="q") for _ in range(2))
    letters = {x["job_id"]: x["dead_id"] for x in forebay("dead", "list", "--json").json}

    wrong = forebay("dead", "show", second)
    assert (wrong.code, f"Job {second} is dead letter {letters[second]}." in wrong.err) == (1, True)
    (shown,) = forebay("dead", "show", "--job", second, "--json").json
    assert shown["dead_id"] == letters[second]
    assert f"{second}  work" in forebay("dead", "show", "--job", second).out
    missing = forebay("dead", "show", "--job", 1)
    assert (missing.code, "forebay jobs show 1" in missing.err) == (1, True)
    for neither_or_both in ((), (1, "--job", 1)):
        assert forebay("dead", "show", *neither_or_both).code == 2

    assert forebay("dead", "redrive", "--job", second, "--yes", "--json").json == {"redriven": 1}
    (letter,) = forebay("dead", "list", "--json").json
    assert letter["job_id"] == first
    assert "new job" not in forebay("dead", "list").out
    (letter,) = forebay("dead", "list", "--redriven", "--json").json
    assert letter["job_id"] == second
    listed = forebay("dead", "list", "--all").out
    assert "new job" in listed
    assert str(letter["redriven_as"]) in listed
    assert len(forebay("dead", "list", "--all", "--json").json) == 2
    assert len(forebay("dead", "list", "--job", second, "--json").json) == 1
    assert forebay("dead", "list", "--all", "--redriven").code == 2


def test_dead_letters_are_redriven_by_filter_and_all(forebay, database, conn):
    """
    A filter takes those it fits, --all the rest; none is taken twice.
    """
    for kind in ("a", "b", "b"):
        write_dead_letter(database, conn, kind=kind)

    assert forebay("dead", "redrive", "--kind", "b", "--yes", "--json").json == {"redriven": 2}
    assert forebay("dead", "redrive", "--died-before", "2020-01-01", "--yes", "--json").json == {
        "redriven": 0
    }
    assert forebay("dead", "redrive", "--all", "--yes", "--json").json == {"redriven": 1}
    assert forebay("dead", "redrive", "--all", "--yes", "--json").json == {"redriven": 0}


# --- queues ---


def test_every_screen_has_cancelled_jobs_apart(forebay, database, conn):
    """They are not ready; how many no worker has passed yet is a number of its own."""
    for _ in range(4):
        enqueue(conn, queue="mail")
    assert "cancelled" not in forebay("queues", "list").out
    assert forebay("queues", "truncate", "mail", "--yes", "--json").code == 0
    assert forebay("jobs", "list", "--state", "ready", "--json").json == []
    stays = enqueue(conn, queue="mail")
    (line,) = forebay("queues", "list", "--json").json
    assert (line["ready"], line["cancelled"]) == (1, 4)
    shown = " ".join(forebay("queues", "list").out.split())
    assert "ready cancelled claimed" in shown
    assert "cancelled: they were ready, never start, and no worker has passed them yet." in shown
    (queue,) = forebay("top", "--json", "--every", "0.1").json["queues"]
    assert (queue["ready"], queue["cancelled"]) == (1, 4)
    assert "4 cancelled, not passed yet" in forebay("top", "--once", "--every", "0.1").out
    metrics = forebay("metrics").out
    assert 'forebay_jobs{queue="mail",group="default",state="ready"} 1' in metrics
    assert 'forebay_cancelled_jobs{queue="mail",group="default"} 4' in metrics
    (job,) = forebay("jobs", "list", "--state", "ready", "--json").json
    assert job["job_id"] == stays
    client = Client(database)
    (depth,) = client.depth("mail")
    (stats,) = client.stats("mail")
    assert (depth.ready, depth.cancelled, stats.ready) == (1, 4, 1)
    with Reader(database, queue="mail") as reader:
        assert reader.claim_ready(9).job_ids == [stays]
    (line,) = forebay("queues", "list", "--json").json
    assert (line["ready"], line["cancelled"]) == (0, 0)


def test_queues_show_depth_and_pause(forebay, database, conn):
    """
    What waits, for a worker or for its time, what workers have, and what died, and whether the
    queue is paused.
    """
    write_dead_letter(database, conn, queue="mail")
    for _ in range(3):
        enqueue(conn, queue="mail")
    enqueue(conn, queue="mail", delay="1 hour")
    with Reader(database, queue="mail") as reader:
        reader.claim_ready(1)
        (line,) = forebay("queues", "list", "--json").json
    counts = {
        name: line[name]
        for name in ("scheduled", "ready", "claimed", "running", "retrying", "dead")
    }
    assert counts == {
        "scheduled": 1, "ready": 2, "claimed": 1, "running": 0, "retrying": 0, "dead": 1,
    }  # fmt: skip
    assert line["paused_at"] is None
    assert line["claimed_at"] is not None

    assert forebay("queues", "pause", "mail", "--json").json == {"queue": "mail", "paused": 1}
    assert "already" in forebay("queues", "pause", "mail").out
    (line,) = forebay("queues", "list", "--queue", "mail", "--json").json
    assert line["paused_at"] is not None
    assert "paused" in forebay("queues", "list").out
    assert forebay("queues", "resume", "mail", "--json").json == {"queue": "mail", "resumed": 1}


def test_a_long_name_takes_the_place_of_columns_of_zeros(forebay, conn, monkeypatch):
    """In eighty columns the name of a queue stays in one line, and what is not zero is shown."""
    monkeypatch.setenv("COLUMNS", "80")
    name = "notifications_of_europe"
    conn.execute("select forebay.enqueue('work', '{}', queue => %s, delay => '1 hour')", [name])
    heading, line = forebay("queues", "list").out.splitlines()
    assert " ".join(heading.split()) == "queue prio scheduled ready dead last claim"
    assert line.split() == [name, "100", "1", "0", "0", "-"]
    monkeypatch.setenv("COLUMNS", "120")
    assert "retrying" in forebay("queues", "list").out


def test_a_pause_with_an_end(forebay, conn, monkeypatch):
    """
    The list names the end, in eighty columns below the numbers; the end is a time or a duration,
    not both, and not in the past.
    """
    conn.execute("select forebay.enqueue('work', '{}', queue => 'mail')")
    assert forebay("queues", "pause", "mail", "--for", "2h").out == "queue mail paused for 2h\n"
    assert "ends in 2 h" in " ".join(forebay("queues", "list").out.split())
    monkeypatch.setenv("COLUMNS", "80")
    heading, *_, last = forebay("queues", "list").out.splitlines()
    titles = "queue prio scheduled ready claimed running retrying dead last claim"
    assert " ".join(heading.split()) == titles
    assert last.startswith("mail paused ")
    assert last.endswith(", ends in 2 h")
    line = forebay("queues", "list", "--json").json[0]
    assert line["paused_at"] < line["resume_at"]
    assert forebay("groups", "list", "--json").json[0]["resume_at"] == line["resume_at"]
    until = forebay("queues", "pause", "mail", "--until", "2030-01-01T00:00Z", "--json")
    assert until.json == {"queue": "mail", "paused": 1}
    assert forebay("queues", "list", "--json").json[0]["resume_at"].startswith("2030-01-01")
    assert forebay("queues", "pause", "mail", "--until", "2020-01-01").code != 0
    both = ("--until", "2030-01-01", "--for", "1h")
    assert forebay("queues", "pause", "mail", *both).code == 2


@pytest.mark.slow
def test_truncate_and_drop_a_queue(forebay, database, conn):
    """A dry run changes nothing and gives a token; a question is refused without a terminal.

    A served queue is not dropped.
    """
    for _ in range(3):
        enqueue(conn, queue="mail")
    row = {"kind": "crawl", "queue": "mail", "subject": "later", "delay": 3600}
    conn.execute("select from forebay.push_subjects(%s)", [json.dumps([row])])
    stays = "1 subject of the queue will be due: `forebay subjects drop mail --all`"
    assert stays in forebay("queues", "truncate", "mail", "--dry-run").out
    plan = forebay("queues", "truncate", "mail", "--dry-run", "--json").json
    assert plan["jobs"] == 3
    assert forebay("queues", "truncate", "mail").code != 0
    done = forebay("queues", "truncate", "mail", "--token", plan["token"])
    assert "3 jobs cancelled" in done.out
    assert stays in done.out
    enqueue(conn, queue="mail")
    forebay("queues", "limit", "mail", "--rate", "5")
    dry = forebay("queues", "drop", "mail", "--dry-run", "--json").json
    assert (dry["cancelled"], dry["groups"], dry["settings"]) == (1, [], ["limits", "subjects"])
    assert dry["subjects"] == 1
    assert "limits" in forebay("queues", "drop", "mail", "--dry-run").out
    with Reader(database, queue="mail") as reader:
        batch = reader.claim_ready(10)
        assert forebay("queues", "drop", "mail", "--yes").code != 0
        forced = forebay("queues", "drop", "mail", "--yes", "--force", "--wait", "0")
        assert "when its running jobs have ended" in forced.out
        reader.finish(batch)
    again = forebay("queues", "drop", "mail", "--yes", "--json").json
    assert again["dropped"] is True
    assert forebay("queues", "limit", "mail", "--json").json == []
    assert "no queue" in forebay("queues", "drop", "nowhere", "--yes").err


def test_redact_a_queue(forebay, database, conn):
    """Ended jobs lose their arguments; the question is refused without a terminal.

    A second call finds nothing.
    """
    with Reader(database, queue="mail") as reader:
        for n in range(3):
            enqueue(conn, queue="mail", args={"n": n})
        reader.finish(reader.claim_ready(2))
        assert forebay("queues", "redact", "mail").code != 0
        old = forebay("queues", "redact", "mail", "--older-than", "1h", "--yes", "--json").json
        assert old == {"queue": "mail", "redacted": 0}
        assert "2 rows erased" in forebay("queues", "redact", "mail", "--yes", "--dead").out
    assert one(conn, "select array_agg(args ->> 'n') from forebay.log where args <> '{}'") == ["2"]
    assert forebay("queues", "redact", "mail", "--yes", "--json").json["redacted"] == 0
    assert forebay("queues", "redact", "forebay.deliver", "--yes").code != 0


def test_maximum_attempts_of_a_queue(forebay):
    """Set, shown, removed."""
    assert forebay("queues", "max-attempts", "mail", "3").out == "queue mail: 3 attempts\n"
    changed = forebay("queues", "max-attempts", "mail", "1", "--json").json
    assert changed == {"queue": "mail", "max_attempts": 1, "before": 3}
    assert forebay("queues", "max-attempts", "--json").json == {"mail": 1}
    assert forebay("queues", "max-attempts").out == "queue mail: 1 attempt\n"
    assert forebay("queues", "max-attempts", "mail", "--remove").out.endswith("the kinds decide\n")
    assert "No maximum" in forebay("queues", "max-attempts").out
    assert forebay("queues", "max-attempts", "mail", "3", "--remove").code == 2
    assert forebay("queues", "max-attempts", "--remove").code == 2


def test_notices_of_a_queue(forebay, conn):
    """Switched on and off; where the server sends none, the command says why."""
    answer = forebay("queues", "notices", "mail", "on").out
    assert answer.startswith("queue mail: notices on\n→ this session would send none: ")
    conn.execute(f"alter database {conn.info.dbname} set forebay.wakeup = 'on'")
    changed = forebay("queues", "notices", "mail", "on", "--json").json
    assert changed == {"queue": "mail", "notices": True, "before": True, "sends": True}
    assert "notices          on, set now" in forebay("queues", "show", "mail").out
    assert forebay("queues", "notices", "mail", "off").out == "queue mail: notices off\n"
    assert forebay("queues", "notices", "mail", "yes").code == 2
    assert forebay("queues", "notices", "a b", "on").code != 0


@pytest.mark.slow
def test_a_failure_is_shown_with_its_number_and_the_number_of_all(forebay, database, conn):
    """
    Retrying, and due for which attempt of how many; in the list, of one job, and among the dead.
    """
    job = enqueue(conn)
    assert forebay("jobs", "show", job, "--json").json[0]["attempt"] == 1
    error = {"type": "T", "message": "no", "traceback": "", "max_attempts": 7}
    with Reader(database) as reader:
        for outcome in ("retried", "dead"):
            batch = reader.claim_ready()
            ended = [{"offset": 1, "outcome": outcome, "after": 1, "error": error}]
            assert reader.settle(batch.claim_no, ended=ended) == "settled"
            if outcome == "retried":
                (line,) = forebay("queues", "list", "--json").json
                assert (line["retrying"], line["scheduled"]) == (1, 0)
                (shown,) = forebay("jobs", "list", "--state", "retrying", "--json").json
                assert (shown["job_id"], shown["attempt"], shown["max_attempts"]) == (job, 2, 7)
                assert "2 of 7" in forebay("jobs", "list").out
                assert "2 of 7" in forebay("jobs", "show", job).out
                assert "attempt 1 of 7" in forebay("jobs", "show", job).out
                shift_clock(conn, 10)
                conn.execute("select forebay.promote_v1()")
    assert "2 of 7" in forebay("dead", "list").out
    (letter,) = forebay("dead", "list", "--json").json
    assert (letter["attempt"], letter["max_attempts"]) == (2, 7)
    assert "attempt 2 of 7" in forebay("dead", "show", letter["dead_id"]).out


def test_a_queue_gives_up_its_order_and_keeps_it_again(forebay, conn):
    """
    The number of lanes is answered; one that is none is refused by the command line itself.
    """
    assert forebay("queues", "shard", "mail", "4", "--json").json == {
        "queue": "mail",
        "lanes": 4,
        "before": 1,
    }
    assert "8 shards" in forebay("queues", "shard", "mail").out
    assert one(conn, "select lanes from forebay.queue_shards where queue = 'mail'") == 8
    assert "1 shard," in forebay("queues", "shard", "mail", "1").out
    assert forebay("queues", "shard", "mail", "65").code == 2


# --- schema ---


@pytest.mark.slow
def test_migrate_says_what_it_would_do_does_it_and_does_nothing_more(command, empty_database):
    """
    A dry run changes nothing; a second run finds nothing to do; settings that are given are stored.
    """
    given = ("--dsn", empty_database, "--retention-days", "7", "--json")
    planned = command("migrate", "--dry-run", *given).json
    assert planned["dry_run"] is True
    assert [step["version"] for step in planned["applied"]] == list(range(1, latest_version() + 1))
    assert planned["settings"] == {"retention_days": 7}
    assert command("jobs", "list", "--dsn", empty_database).code == 3

    done = command("migrate", *given).json
    assert done == {**planned, "dry_run": False}
    again = command("migrate", *given).json
    assert (again["applied"], again["settings"], again["version"]) == ([], {}, latest_version())


def test_defaults_do_not_undo_what_another_process_stored(forebay, conn):
    """
    A migration without an opinion leaves the settings of the database alone.
    """
    conn.execute("select forebay.configure('retention_days', 3)")
    assert forebay("migrate", "--json").json["settings"] == {}
    assert one(conn, "select value from forebay.setting where name = 'retention_days'") == 3


@pytest.mark.slow
def test_the_printed_script_makes_the_same_schema(command, empty_database):
    """
    A DBA may run what `forebay sql` prints; afterwards nothing is left to migrate.
    """
    import psycopg

    script = command("sql").out
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute(script)
    assert command("migrate", "--dsn", empty_database, "--json").json["applied"] == []
    assert "begin;" not in command("sql", "--no-transaction").out.splitlines()


def test_adopt_is_refused_in_the_same_cluster_and_decides_in_another(forebay, conn):
    """
    In a copy nothing is claimed until the operator has decided.
    """
    job_id = enqueue(conn)
    conn.execute("update forebay.cluster set system_identifier = system_identifier - 1")

    assert forebay("doctor").code == 1
    assert forebay("adopt", "--discard", "--yes", "--json").json.keys() == {"resumed", "discarded"}
    assert forebay("doctor").code == 0
    assert job_id
    refused = forebay("adopt", "--resume")
    assert refused.code == 1
    assert "nothing to adopt" in refused.err


# --- config ---


def test_config_shows_every_setting_with_its_source(forebay, monkeypatch, tmp_path):
    """
    Default, file, environment and flag are told apart, and the password is not shown.
    """
    (tmp_path / "forebay.toml").write_text("concurrency = 3\n")
    monkeypatch.setenv("FOREBAY_LEASE_SECONDS", "40")
    monkeypatch.setenv("FOREBAY_COLOUR", "red")
    monkeypatch.setenv("FOREBAY_DATABASE_URL", "postgresql://ann:hunter2@db/shop")

    answer = forebay("config", "--max-attempts", "5", "--json")
    found = answer.json
    rows = {name: (row["value"], row["source"]) for name, row in found["settings"].items()}
    assert set(rows) == {item.name for cls in GROUPS.values() for item in declared_settings(cls)}
    assert rows["concurrency"] == (3, str(tmp_path / "forebay.toml"))
    assert rows["lease_seconds"] == (40.0, "FOREBAY_LEASE_SECONDS")
    assert rows["max_attempts"] == (5, "--max-attempts")
    assert rows["poll_seconds"] == (0.05, "default")
    assert found["database"] == {
        "address": "postgresql://ann:****@db/shop",
        "source": "FOREBAY_DATABASE_URL",
    }
    assert found["ignored"] == ["FOREBAY_COLOUR"]
    text = forebay("config").out
    assert "hunter2" not in text
    assert "FOREBAY_COLOUR" in text


def test_config_works_without_an_address(command):
    """
    Settings can be looked at before there is a database.
    """
    answer = command("config", "--json")
    assert answer.code == 0
    assert answer.json["database"]["address"] is None


# --- worker ---


def test_a_worker_runs_what_is_there_and_ends(forebay, conn, tmp_path, monkeypatch):
    """
    With --until-idle it ends by itself; the application is found in the current folder.
    """
    (tmp_path / "shop_of_this_test.py").write_text(
        "import forebay\n"
        "app = forebay.App()\n"
        "@app.job(queue='mail')\n"
        "def greet(name: str) -> None:\n"
        "    if name == 'nobody': raise LookupError(name)\n"
    )
    for name in ("ann", "bob", "nobody"):
        enqueue(conn, kind="greet", queue="mail", args={"name": name}, max_attempts=1)

    stats = forebay("worker", "shop_of_this_test:app", "--until-idle", "--json").json
    assert (stats["claimed"], stats["done"], stats["ended"]) == (3, 2, 1)
    assert stats["retried"] + stats["dead"] == 1
    assert stats["released"] == 0
    (letter,) = forebay("dead", "list", "--json").json
    assert letter["args"] == {"name": "nobody"}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("app = 1", "is 1 and not a forebay.App"),
        ("", "which module"),
        ("import forebay\napp = forebay.App()", "has no handler"),
    ],
)
def test_an_application_that_is_none_is_named(forebay, tmp_path, source, said):
    """
    What the module has instead is part of the message.
    """
    name = f"broken_{abs(hash(source))}"
    (tmp_path / f"{name}.py").write_text(source)
    answer = forebay("worker", f"{name}:app")
    assert answer.code == 2
    assert said in answer.err


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def fails():\n    1 / 0\n\nfails()\n", "ZeroDivisionError: division by zero"),
        ("import no_such_module_anywhere\n", "No module named 'no_such_module_anywhere'"),
        ("x = (\n", "SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_shows_the_frames_of_its_own_files(
    forebay, tmp_path, source, said
):
    """One line says what is wrong; no frame of the import system or of this library follows."""
    name = f"fails_{abs(hash(source))}"
    (tmp_path / f"{name}.py").write_text(source)
    answer = forebay("worker", f"{name}:app")
    assert answer.code == 2
    assert said in answer.err.splitlines()[0]
    assert f"{name}.py" in answer.err
    assert "importlib" not in answer.err
    assert len(answer.err.splitlines()) <= 10, answer.err


def test_small_segments_are_no_obstacle(forebay, conn):
    """
    Lists read over the borders of segments.
    """
    small_segments(conn)
    for _ in range(5):
        enqueue(conn)
    assert len(forebay("jobs", "list", "--json").json) == 5
    assert protocol.CHANNEL == "forebay_wakeup"


def test_a_job_is_shown_with_its_attempts_progress_and_result(forebay, conn):
    """
    What failed, how far it is, what it returned: for people and for programs.
    """

    job = one(conn, "select forebay.enqueue('work')")
    reader = Reader(conn.info.dsn, conn=conn)
    batch = reader.claim_ready()
    note = f'[{{"job_id": {job}, "group_id": {reader.group_id}, "done": 0.4, "note": "halfway"}}]'
    conn.execute("select forebay.record_progress_v1(%s, %s::jsonb)", [reader.lease_id, note])
    assert "40% halfway" in forebay("jobs", "show", job).out
    error = {"type": "ValueError", "message": "no luck", "traceback": "t"}
    retried = {"offset": 1, "outcome": "retried", "after": 0, "error": error}
    assert reader.settle(batch.claim_no, ended=[retried]) == "settled"
    batch = reader.claim_ready()
    kept = {"value": {"cents": 300}, "seconds": 3600}
    done = {"offset": 1, "outcome": "done", "kept": kept}
    assert reader.settle(batch.claim_no, ended=[done]) == "settled"
    shown = forebay("jobs", "show", job).out
    assert "no luck" in shown
    assert '"cents": 300' in shown
    (told,) = forebay("jobs", "show", job, "--json").json
    assert told["errors"][0]["message"] == "no luck"
    assert told["progress"]["note"] == "halfway"
    assert told["result"]["value"] == {"cents": 300}
