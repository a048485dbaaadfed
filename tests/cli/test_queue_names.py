"""A misspelt or forgotten queue is answered at once."""

import pytest

from tests.support.engine import enqueue, one

SHOP = """
import forebay

app = forebay.App()


@app.job(queue="mail", priority=7, tag="shop", expires_in=60)
def send_welcome(user_id: int) -> None: ...
"""


@pytest.fixture
def shop(forebay, tmp_path):
    """The name of an application whose only kind is in queue mail."""
    name = f"shop_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(SHOP)
    return f"{name}:app"


@pytest.mark.slow
def test_a_worker_refuses_a_queue_that_nothing_knows(forebay, conn, shop):
    """
    Not a queue that has no kind here but is in use: jobs may be sent there.
    """
    refused = forebay("worker", shop, "--queue", "mial", "--until-idle")
    assert refused.code == 2
    assert "names mial, and no kind of this app is in that queue" in refused.err
    assert "Did you mean mail?" in refused.err
    assert one(conn, "select count(*) from forebay.queue_group") == 0

    assert forebay("worker", shop, "--queue", "mail", "--until-idle").code == 0
    enqueue(conn, queue="other")
    one(conn, "select forebay.open_group('opened')")
    for queue in ("other", "opened"):
        assert forebay("worker", shop, "--queue", queue, "--until-idle").code == 0


@pytest.mark.slow
def test_a_queue_that_nothing_knows_is_paused_only_when_it_is_said_to_be_new(forebay, conn):
    """
    A misspelt name would pause nothing, and look as if it did.
    """
    refused = forebay("queues", "pause", "nope")
    assert (refused.code, "--new" in refused.err) == (2, True)
    assert one(conn, "select count(*) from forebay.queue_group") == 0
    assert forebay("queues", "pause", "nope", "--new").code == 0
    assert forebay("queues", "resume", "nope").code == 0
    enqueue(conn, queue="other")
    assert forebay("queues", "pause", "other").code == 0


@pytest.mark.slow
def test_an_enqueue_with_the_app_takes_the_options_of_the_kind(forebay, conn, shop):
    """
    What is given takes precedence; a kind that the app does not have needs its queue.
    """
    made = forebay("enqueue", "send_welcome", '{"user_id": 1}', "--app", shop, "--json")
    assert made.json["queue"] == "mail"
    assert made.err == ""
    (job,) = forebay("jobs", "show", made.json["job_id"], "--json").json
    assert (job["queue"], job["priority"], job["tag"]) == ("mail", 7, "shop")
    seconds = "select extract(epoch from expires_at - enqueued_at)::integer from forebay.job(%s)"
    assert 30 < one(conn, seconds, made.json["job_id"]) <= 61
    given = ("send_welcome", '{"user_id": 1}', "--app", shop)
    made = forebay("enqueue", *given, "--queue", "slow", "--json")
    assert made.json["queue"] == "slow"
    assert "no worker has ever served queue slow" in made.err

    assert "the workers of kind" not in made.err

    refused = forebay("enqueue", "send_welcom", "--app", shop)
    assert (refused.code, "Did you mean send_welcome?" in refused.err) == (2, True)
    assert forebay("enqueue", "foreign", "--app", shop, "--queue", "slow").code == 0


def test_an_enqueue_of_a_kind_that_no_worker_has_declared_warns(forebay, conn):
    """
    The job is there: the worker may be deployed later. The warning does not disturb scripts.
    """
    warned = forebay("enqueue", "send_welcome", "--json")
    assert (warned.code, warned.json["queue"]) == (0, "default")
    assert "no worker has declared kind send_welcome, so it goes to queue default" in warned.err
    assert "none has ever served that one" in warned.err
    assert "--app" in warned.err
    one(conn, "select forebay.open_group('default')")
    warned = forebay("enqueue", "send_welcome")
    assert "no worker has declared kind send_welcome" in warned.err
    assert "none has ever served" not in warned.err
    assert forebay("enqueue", "send_welcome", "--queue", "default").err == ""


@pytest.mark.slow
def test_a_kind_without_a_queue_goes_where_its_workers_serve_it(forebay, conn, shop):
    """
    Commands without the app, and of another app, ask the database; what is given takes precedence,
    and a queue that no worker has served is named with the one that they serve.
    """
    assert forebay("worker", shop, "--until-idle").code == 0
    made = forebay("enqueue", "send_welcome", '{"user_id": 1}', "--json")
    assert (made.json["queue"], made.err) == ("mail", "")
    conn.execute("create table page as select generate_series(1, 3) as id")
    planned = forebay("backfill", "send_welcome", "--table", "page", "--dry-run", "--json")
    assert (planned.json["queue"], planned.json["waiting"], planned.err) == ("mail", 1, "")
    token = planned.json["token"]
    assert forebay("backfill", "send_welcome", "--table", "page", "--token", token).err == ""
    assert one(conn, "select ready from forebay.depth('mail') where priority = 1000") == 3
    rows = ("--table", "page", "--column", "user_id=id")
    assert forebay("backfill", "send_welcome", *rows, "--app", shop, "--yes").code == 0
    assert one(conn, "select ready from forebay.depth('mail') where priority = 1000") == 6

    warned = forebay("enqueue", "send_welcome", "--queue", "mial", "--json")
    assert warned.json["queue"] == "mial"
    assert "no worker has ever served queue mial; the workers of kind send_welcome" in warned.err
    conn.execute("select forebay.record_kinds_v1('w', array['foreign'], array['slow'])")
    made = forebay("enqueue", "foreign", "--app", shop, "--json")
    assert made.json["queue"] == "slow"
    assert "no worker has ever served queue slow" in made.err


@pytest.mark.slow
def test_the_doctor_names_a_kind_that_two_versions_have_in_different_queues(
    forebay, conn, shop, tmp_path
):
    """
    Not a kind that was moved: only one of which workers of both queues start by turns, or run
    together.
    """

    def kinds():
        found = forebay("doctor", "--json").json["findings"]
        return [(each["level"], each["what"]) for each in found if each["check"] == "kinds"]

    moved = f"{shop[:-4]}_moved"
    (tmp_path / f"{moved}.py").write_text(SHOP.replace('"mail"', '"letters"'))
    for app, queue in ((shop, "mail"), (f"{moved}:app", "letters")):
        assert forebay("worker", app, "--until-idle").code == 0
        assert one(conn, "select forebay.queue_of('send_welcome')") == queue
        assert kinds() == [("ok", "1 kind with a queue, none in dispute")]
    assert forebay("worker", shop, "--until-idle").code == 0
    ((level, what),) = kinds()
    assert level == "warning"
    assert what.startswith("kind send_welcome is in queue mail for worker ")
    assert "in queue letters for worker " in what
    conn.execute("update forebay.kind_queue set alternated_at = now() - interval '2 days'")
    assert kinds()[0][0] == "ok"
    conn.execute("select forebay.open_lease_v1(previous_by) from forebay.kind_queue")
    assert kinds()[0][0] == "warning"


@pytest.mark.slow
def test_arguments_that_the_handler_does_not_take_are_refused(forebay, conn, shop):
    """With its app, a command knows them: each would become a dead letter."""
    for args, problem in {
        '{"user_id": 1, "usr": 2}': "usr is not an argument",
        "{}": "user_id is missing",
        '{"user_id": "one"}': "user_id",
    }.items():
        refused = forebay("enqueue", "send_welcome", args, "--app", shop)
        assert (refused.code, problem in refused.err) == (2, True), refused
    conn.execute("create table page (id integer)")
    conn.execute("insert into page values (1)")
    rows = ("send_welcome", "--table", "page", "--app", shop, "--yes")
    refused = forebay("backfill", *rows)
    assert (refused.code, "id is not an argument" in refused.err) == (2, True), refused
    assert one(conn, "select count(*) from forebay.log") == 0
    assert forebay("backfill", *rows, "--column", "user_id=id").code == 0


def test_an_empty_queue_is_refused(forebay, conn):
    """A variable of the shell that is not set sends no job to another queue."""
    answer = forebay("enqueue", "work", "--queue", "")
    assert answer.code == 2
    assert "queue is not a name: ''" in answer.err
    assert one(conn, "select count(*) from forebay.log") == 0
