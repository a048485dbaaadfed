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
    made = forebay("enqueue", "send_welcome", "--app", shop, "--queue", "slow", "--json")
    assert made.json["queue"] == "slow"
    assert "no worker has ever served queue slow" in made.err

    refused = forebay("enqueue", "send_welcom", "--app", shop)
    assert (refused.code, "Did you mean send_welcome?" in refused.err) == (2, True)
    assert forebay("enqueue", "foreign", "--app", shop, "--queue", "slow").code == 0


def test_an_enqueue_without_the_app_warns_of_a_queue_that_no_worker_has_served(forebay, conn):
    """
    The job is there: the worker may be deployed later. The warning does not disturb scripts.
    """
    warned = forebay("enqueue", "send_welcome", "--json")
    assert (warned.code, warned.json["queue"]) == (0, "default")
    assert "no worker has ever served queue default" in warned.err
    assert "--app" in warned.err
    one(conn, "select forebay.open_group('default')")
    assert forebay("enqueue", "send_welcome").err == ""
