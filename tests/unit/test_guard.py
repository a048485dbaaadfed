"""What the guard decides about a holder: a rule, and nothing else."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.guard.holders import Holder
from forebay.guard.rules import Place, Rule, Segment, held_segments, judge
from forebay.model.alerts import UNSEEN_AGE_MOST

SORTS = [
    "session",
    "idle in transaction",
    "handler",
    "background process",
    "prepared transaction",
    "replication slot",
    "inactive replication slot",
    "standby",
]
NAMES = st.sampled_from([None, "app", "web", "report-1"])
LISTS = st.lists(st.sampled_from(["app", "web", "report-*"]), max_size=2).map(tuple)
RULES = st.builds(
    Rule,
    older_than=st.sampled_from([0.0, 60.0]),
    act=st.sampled_from([None, "cancel", "terminate"]),
    users=LISTS,
    not_users=LISTS,
    applications=LISTS,
    not_applications=LISTS,
    rollback_prepared=st.booleans(),
)
HOLDERS = st.builds(
    Holder,
    sort=st.sampled_from(SORTS),
    name=st.just("7"),
    user=NAMES,
    application=NAMES,
    here=st.booleans(),
    state=st.sampled_from([None, "active", "idle in transaction"]),
    seconds=st.sampled_from([None, 10.0, 100.0]),
    age=st.sampled_from([0, UNSEEN_AGE_MOST]),
    may_end=st.booleans(),
)
PLACES = st.builds(Place, standby=st.booleans(), feedback=st.booleans())


def holder(sort="session", **facts):
    known = {"name": "7", "user": "app", "application": "web", "seconds": 100.0, "may_end": True}
    return Holder(sort=sort, **(known | facts))


@given(RULES, HOLDERS, PLACES)
def test_an_act_needs_a_rule_that_asks_for_it_and_nothing_against_it(rule, holder, place):
    """
    Whatever the rule and whoever holds: only sessions and prepared transactions, older than the
    limit, meant by every list, of whom this role may end.
    """
    verdict = judge(rule, holder, place)
    assert (verdict.action is not None) == (verdict.kind == "act")
    assert verdict.reason
    if verdict.action is None:
        return
    assert rule.acts
    assert holder.may_end
    assert holder.seconds is not None
    assert holder.seconds > rule.older_than
    assert holder.user not in rule.not_users
    assert not rule.users or holder.user in rule.users
    if verdict.action == "rollback prepared":
        assert holder.sort == "prepared transaction"
        assert rule.rollback_prepared
        assert holder.here
    else:
        assert holder.is_session
        assert verdict.action == rule.act
    if place.standby:
        assert place.feedback


@pytest.mark.parametrize(
    ("lists", "kind"),
    [
        ({}, "act"),
        ({"users": ("app", "other")}, "act"),
        ({"users": ("other",)}, "spared"),
        ({"not_users": ("app",)}, "spared"),
        ({"users": ("app",), "not_users": ("app",)}, "spared"),
        ({"applications": ("w*",)}, "act"),
        ({"applications": ("W*",)}, "spared"),
        ({"applications": ("report-?",)}, "spared"),
        ({"not_applications": ("w*",)}, "spared"),
        ({"applications": ("*",), "not_applications": ("web",)}, "spared"),
    ],
)
def test_lists_say_who_is_meant_and_what_they_except_wins(lists, kind):
    """
    Roles by their name, applications by patterns; a holder that is excepted is no reason to alarm.
    """
    verdict = judge(Rule(older_than=60, act="terminate", **lists), holder())
    assert verdict.kind == kind
    assert verdict.is_over == (kind == "act")


@pytest.mark.parametrize(
    ("found", "kind", "said"),
    [
        (holder(seconds=59), "young", "not older than 1 min"),
        (holder(seconds=60), "young", "not older"),
        (holder(seconds=None), "unknown", "grant pg_monitor"),
        (holder(may_end=False), "refused", "may not end sessions of user app"),
        (holder("idle in transaction", state="idle in transaction"), "act", "older than 1 min"),
        (holder("handler", application="forebay h:1:a"), "act", "older"),
        (holder("prepared transaction"), "reported", "only --rollback-prepared"),
        (holder("background process"), "reported", "process of the server"),
        (holder("standby", seconds=None, age=10), "young", "not older"),
        (holder("standby", seconds=None, age=UNSEEN_AGE_MOST), "reported", "another server"),
        (
            holder("replication slot", seconds=None, age=UNSEEN_AGE_MOST),
            "reported",
            "another server",
        ),
        (holder("inactive replication slot", seconds=None), "reported", "another server"),
    ],
)
def test_each_verdict_gives_its_reason(found, kind, said):
    """
    What cannot be judged, or not be ended by a signal, is reported and left alone.
    """
    verdict = judge(Rule(older_than=60, act="terminate"), found)
    assert verdict.kind == kind
    assert said in verdict.reason


def test_a_cancel_is_for_a_statement_that_runs():
    """
    A session that is idle in a transaction would not notice it.
    """
    rule = Rule(older_than=60, act="cancel")
    idle = holder("idle in transaction", state="idle in transaction")
    assert judge(rule, idle).kind == "reported"
    assert judge(rule, holder(state="active")).action == "cancel"
    assert judge(rule, holder("handler", state="active")).action == "cancel"
    assert judge(rule, holder("handler", state="idle in transaction")).action is None


def test_a_prepared_transaction_is_rolled_back_in_its_database_only():
    """
    And only if that was asked for by its own option.
    """
    rule = Rule(older_than=60, rollback_prepared=True)
    assert judge(rule, holder("prepared transaction")).action == "rollback prepared"
    elsewhere = judge(rule, holder("prepared transaction", here=False, database="shop"))
    assert (elsewhere.kind, elsewhere.action) == ("refused", None)
    assert "shop" in elsewhere.reason
    assert judge(rule, holder("session")).action is None


def test_a_standby_without_feedback_holds_nothing_back():
    """
    Its sessions are nobody's culprits.
    """
    rule = Rule(older_than=60, act="terminate")
    assert judge(rule, holder(), Place(standby=True)).kind == "young"
    assert judge(rule, holder(), Place(standby=True, feedback=True)).kind == "act"


def test_a_segment_is_kept_by_writers_from_before_its_seal_and_by_locks():
    """
    A mere snapshot keeps dead rows, and no segment.
    """
    now = datetime(2026, 1, 1, tzinfo=UTC)
    sealed = [
        Segment(n, xid=100 * n, due=now + timedelta(days=n), is_due=n < 4) for n in (1, 2, 3, 4)
    ]
    writer = held_segments(holder(xid=200), sealed)
    assert (writer.segments, writer.due) == ((3, 4), (3,))
    assert "segments 3 to 4; 3 is due, and leaves" in writer.described()
    assert held_segments(holder(age=1000), sealed).segments == ()
    locked = held_segments(holder(segments=(4, 9)), sealed)
    assert (locked.segments, locked.due) == ((4,), ())
    assert locked.described() == "segment 4, not due before 2026-01-05"
    both = held_segments(holder(segments=(1,), xid=250), sealed)
    assert both.segments == (1, 3, 4)
