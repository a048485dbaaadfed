"""Sessions that the schema's owner may not see: their age is unknown, and never zero."""

import pytest

from forebay.watch.metrics import Exporter
from tests.support.engine import connect, one
from tests.support.least_privilege import as_login, least_database
from tests.support.waiting import wait_for

pytestmark = pytest.mark.direct  # logs in as other roles


@pytest.fixture
def least(server):
    with least_database(server, "unseen") as dsn:
        yield dsn


@pytest.fixture
def admin(least):
    with connect(least) as conn:
        yield conn


@pytest.fixture
def owner(least):
    return as_login(least, "least_owner")


@pytest.fixture
def held(least):
    """A transaction of another role that holds a snapshot."""
    with connect(as_login(least, "least_worker")) as holder:
        holder.execute("begin isolation level repeatable read")
        holder.execute("select 1")
        yield holder


@pytest.fixture
def may_see(admin):
    """Whether the owner may see other sessions."""

    def grant(may: bool) -> None:
        word = "grant pg_read_all_stats to" if may else "revoke pg_read_all_stats from"
        admin.execute(f"{word} least_owner")

    yield grant
    grant(False)


def measured(conn, name):
    return one(conn, f"select forebay.measurements(60, false) -> 'database' -> '{name}'")


def test_the_age_of_a_transaction_that_the_owner_may_not_see_is_unknown(
    command, admin, owner, held, may_see
):
    """The metric is absent, and status and doctor say what to grant; then the age is known."""
    assert measured(admin, "snapshot_seconds") is None
    assert measured(admin, "snapshot_unseen_age") is not None
    assert "\nforebay_database_snapshot_seconds " not in Exporter(owner).text()
    told = "grant pg_read_all_stats to least_owner"
    status = command("status", "--dsn", owner)
    assert told in " ".join(status.out.split())
    assert "no alert tells of one that stays open" in " ".join(status.out.split())
    doctor = command("doctor", "--dsn", owner)
    assert told in " ".join(doctor.out.split())
    found = command("doctor", "--dsn", owner, "--json").json["findings"]
    assert {one["level"] for one in found if one["check"] == "snapshots"} == {"notice"}
    may_see(True)
    assert measured(admin, "snapshot_seconds") > 0
    assert "\nforebay_database_snapshot_seconds " in Exporter(owner).text()
    assert told not in command("status", "--dsn", owner).out
    assert told not in command("doctor", "--dsn", owner, "--verbose").out


def test_no_transaction_of_others_is_an_age_of_zero(least, owner):
    """Where the only sessions are the owner's, nothing is unknown."""
    with connect(owner) as conn:
        # A process of the server that looks at the tables is one more that is not seen.
        assert wait_for(lambda: measured(conn, "snapshot_seconds") == 0)


def test_an_alert_that_holds_stays_while_its_transaction_cannot_be_seen(
    command, admin, owner, held, may_see
):
    """A grant that is revoked ends no alert; the end of the transaction does."""
    may_see(True)
    admin.execute("select forebay.set_threshold('snapshot_for', 0.001)")
    assert "snapshot" in {one["code"] for one in problems(command, owner)}
    may_see(False)
    (kept,) = (one for one in problems(command, owner) if one["code"] == "snapshot")
    assert kept["state"] == "holds"
    assert "least_owner may not see" in kept["cause"]
    held.execute("rollback")
    (over,) = (one for one in problems(command, owner) if one["code"] == "snapshot")
    assert over["state"] == "ending"


def test_a_lock_whose_age_this_role_may_not_see_is_not_passed(command, least):
    """It may be held for a second or for an hour: the doctor says that it cannot know."""
    reader = as_login(least, "least_operator")
    with connect(least) as holder:
        # A table that the other checks do not read.
        holder.execute("begin; lock table forebay.lock_alert in access exclusive mode")
        found = command("doctor", "--dsn", reader, "--json").json["findings"]
    (lock,) = [one for one in found if one["check"] == "locks"]
    assert lock["level"] == "notice"
    assert "this role may not see for how long" in lock["what"]
    assert "grant pg_read_all_stats" in lock["remedy"]


def problems(command, dsn):
    found = command("status", "--dsn", dsn, "--json").json["problems"]
    return [one for one in found if one["state"] != "noted"]
