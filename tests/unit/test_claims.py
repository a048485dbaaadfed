from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.model.checks import PRIORITY_BULK, PRIORITY_DEFAULT
from forebay.ops.protocol import ReadyLane
from forebay.policy.claims import (
    CLAIM_ROWS_MAX,
    ClaimOrder,
    Fairness,
    LaneName,
    claim_size,
    mean_duration,
    needs_no_order,
    plan_claims,
)

lane_names = st.builds(LaneName, st.sampled_from("abc"), st.integers(-3, 3))
demands = st.dictionaries(lane_names, st.one_of(st.none(), st.integers(0, 50)), max_size=8)


def run_plans(lanes, *, slots, rounds, **settings):
    fairness, total = Fairness(), Counter()
    for _ in range(rounds):
        plan = plan_claims(lanes, slots=slots, fairness=fairness, **settings)
        fairness = plan.fairness
        total.update(dict(plan.shares))
    return total


def test_work_that_may_wait_comes_after_the_default():
    """
    Backfills and repairs have a priority of their kind; whatever its number, jobs of the default
    priority start first.
    """
    bulk, default = LaneName("a", PRIORITY_BULK), LaneName("a", PRIORITY_DEFAULT)
    plan = plan_claims({bulk: 9, default: 3}, slots=3, fairness=Fairness(), starving_share=0)
    assert dict(plan.shares) == {default: 3}


@given(demands, st.integers(0, 60), st.floats(0, 0.5))
def test_a_plan_uses_every_slot_that_has_work_and_none_twice(lanes, slots, share):
    """
    No lane is asked for more than it has, no slot idles while work waits.
    """
    plan = plan_claims(lanes, slots=slots, fairness=Fairness(), starving_share=share)
    given_out = dict(plan.shares)
    known = sum(slots if waiting is None else waiting for waiting in lanes.values())

    assert sum(given_out.values()) == min(slots, known)
    for lane, count in given_out.items():
        assert 0 < count <= (slots if lanes[lane] is None else lanes[lane])


def test_priority_is_strict_without_a_share():
    """
    With a share of 0 a lower priority gets nothing while a higher one has work.
    """
    high, low = LaneName("q", 0), LaneName("q", 9)

    assert run_plans({high: None, low: None}, slots=1, rounds=50, starving_share=0) == {high: 50}


def test_a_single_slot_serves_the_starving_by_turns():
    """
    The share is counted over time: with one slot and 0.1, every tenth job comes from below.
    """
    high, low = LaneName("q", 0), LaneName("q", 9)
    total = run_plans({high: None, low: None}, slots=1, rounds=100, starving_share=0.1)

    assert total == {high: 90, low: 10}


def test_the_starving_take_turns_among_themselves():
    """
    The lane that waits longest comes first, so the lowest is served too.
    """
    lanes = {LaneName("q", priority): None for priority in range(4)}
    total = run_plans(lanes, slots=1, rounds=300, starving_share=0.1)

    assert [total[LaneName("q", priority)] for priority in (1, 2, 3)] == [10, 10, 10]


def test_a_share_is_not_saved_up_while_nobody_starves():
    """
    After a quiet hour the lower lanes do not take over.
    """
    high, low = LaneName("q", 0), LaneName("q", 9)
    fairness = Fairness()
    for _ in range(1000):
        fairness = plan_claims({high: None}, slots=10, fairness=fairness).fairness

    assert dict(plan_claims({high: None, low: None}, slots=10, fairness=fairness).shares)[low] == 1


def test_queues_share_by_weight():
    """
    Weight 3 against 1 is three jobs against one, and interleaved rather than in blocks.
    """
    a, b = LaneName("a", 100), LaneName("b", 100)

    assert run_plans({a: None, b: None}, slots=1, rounds=400, weights={"a": 3}) == {a: 300, b: 100}
    assert run_plans({a: None, b: None}, slots=4, rounds=1, weights={"a": 3}) == {a: 3, b: 1}


def test_what_a_queue_cannot_use_goes_to_the_others():
    """
    A heavy queue with one job does not leave slots empty, nor claims them back later.
    """
    a, b = LaneName("a", 100), LaneName("b", 100)
    plan = plan_claims({a: 1, b: None}, slots=10, fairness=Fairness(), weights={"a": 9})

    assert dict(plan.shares) == {a: 1, b: 9}
    after = plan_claims({a: None, b: None}, slots=10, fairness=plan.fairness)
    assert abs(dict(after.shares)[a] - 5) <= 1


@settings(max_examples=30)
@given(st.lists(st.tuples(demands, st.integers(0, 20)), max_size=20))
def test_turns_stay_bounded_whatever_comes(rounds):
    """
    Credit never grows without end, so no queue can take over later.
    """
    fairness = Fairness()
    for lanes, slots in rounds:
        fairness = plan_claims(
            lanes, slots=slots, fairness=fairness, weights={"a": 5, "b": 2}
        ).fairness

    assert all(abs(credit) <= 16 for credit in fairness.credit.values())
    assert all(0 <= saved <= 1 for saved in fairness.saved.values())


def test_a_worker_of_many_lanes_forgets_the_oldest():
    """
    What is remembered is bounded.
    """
    seen = {LaneName(f"q{n}", 0): n for n in range(10_000)}
    newest = LaneName("q9999", 0)
    after = plan_claims(
        {LaneName("new", 0): 1}, slots=1, fairness=Fairness(served=seen, plans=9999)
    ).fairness

    assert len(after.served) <= 10_000
    assert {newest, LaneName("new", 0)} <= after.served.keys()


@given(
    st.integers(0, 1000),
    st.integers(1, 1000),
    st.integers(0, 2000),
    st.one_of(st.none(), st.floats(0, 1e6)),
)
def test_a_claim_takes_about_a_tenth_of_a_second_ahead_at_most(free, concurrency, buffered, mean):
    """
    Free slots are always asked for; beyond them only what will be done at once.
    """
    size = claim_size(free, concurrency=concurrency, buffered=buffered, mean_seconds=mean)

    assert 0 <= size <= CLAIM_ROWS_MAX
    assert size >= min(free, CLAIM_ROWS_MAX) - buffered
    if mean:
        assert (size + buffered - free) * mean <= concurrency * 0.1 + 1e-6 or size == 0 or buffered


def test_a_mean_follows_what_is_measured():
    """
    A change of duration is believed within about a hundred jobs.
    """
    mean = mean_duration(None, 1.0)
    for _ in range(200):
        mean = mean_duration(mean, 0.01)

    assert mean < 0.05


def lane(number, *, queue="q", priority=0, private=False, suspect=False, limited=False):
    return ReadyLane(1, number, queue, priority, private, suspect, limited)


@given(st.permutations(range(4)), st.booleans())
def test_among_the_lanes_of_a_priority_retries_come_first(numbers, limited):
    """
    Then jobs that run alone, then new jobs, in random order of their shards; limits change nothing
    of it.
    """
    lanes = [
        lane(0, private=True, limited=limited),
        lane(1, private=True, suspect=True),
        lane(2, limited=limited),
        lane(3, limited=limited),
    ]
    order = ClaimOrder({}, 0.1, iter([0.4, 0.3, 0.2, 0.1]).__next__)
    ((found, count),) = order.shares([lanes[number] for number in numbers], 7)
    shards = [number for number in reversed(numbers) if number > 1]
    assert ([one.lane for one in found], count) == ([0, 1, *shards], 7)


def test_the_starving_share_is_counted_over_all_ways_of_claiming():
    """
    With one slot, each tenth claim goes to the lane of the lower priority, with limits or without.
    """
    order = ClaimOrder({}, 0.1, lambda: 0.0)
    urgent, other = lane(1, limited=True), lane(2, priority=9)
    firsts = [order.shares([other, urgent], 1)[0][0][0].lane for _ in range(20)]
    assert Counter(firsts) == {1: 18, 2: 2}


def test_only_a_lane_without_others_of_its_name_is_claimed_together_with_other_names():
    """
    The later lanes of a name get what the earlier ones leave, and limits may admit less than was
    asked for.
    """
    assert needs_no_order([lane(1)])
    assert needs_no_order([lane(1, private=True)])
    assert not needs_no_order([lane(1, private=True), lane(2)])
    assert not needs_no_order([lane(1, limited=True)])
    assert not needs_no_order([lane(1, private=True, suspect=True)])
