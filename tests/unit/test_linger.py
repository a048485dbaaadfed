"""When a queue of batch handlers with linger is claimed next, and how many jobs."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from forebay.arguments.kinds import Kind
from forebay.errors import ConfigError
from forebay.ops.protocol import ReadyLane
from forebay.policy.claims import CLAIM_SIZE
from forebay.worker.claim._linger import Linger


def handler(items: list[int]) -> None: ...


def plain(item: int) -> None: ...


def kind(name="index", size=50, linger=0.05, queue="search"):
    return Kind.declare(handler, name=name, queue=queue, batch_size=size, linger=linger)


def lane(number=1, queue="search", **changes):
    given = {"is_private": False, "is_suspect": False, "is_limited": False} | changes
    return ReadyLane(group_id=1, lane=number, queue=queue, priority=100, **given)


def jobs(count, size=0):
    return [SimpleNamespace(size=size / count)] * count


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_a_lane_is_delayed_only_after_a_claim_that_was_not_full():
    clock = Clock()
    linger = Linger([kind()], clock)
    assert linger.rows(lane(), 7) == 50
    linger.record(lane(), asked=50, rows=jobs(50))
    assert linger.open([lane()]) == [lane()]
    linger.record(lane(), asked=50, rows=jobs(49, size=CLAIM_SIZE))  # ended by its size
    assert linger.rows(lane(), 1) == 50
    linger.record(lane(), asked=50, rows=jobs(49, size=1000))
    assert linger.rows(lane(), 50) == 0
    assert linger.open([lane(), lane(2)]) == [lane(2)]
    clock.now += 0.04
    assert linger.rows(lane(), 50) == 0
    clock.now += 0.02
    assert linger.rows(lane(), 60) == 100
    assert linger.open([lane()]) == [lane()]


def test_the_pause_ends_with_the_linger_and_polls_other_queues_meanwhile():
    clock = Clock()
    linger = Linger([kind(linger=1)], clock)
    linger.record(lane(), asked=50, rows=jobs(1))
    assert linger.pause_seconds([lane()], 0.002) == 0.02
    assert linger.pause_seconds([lane(), lane(2)], 0.002) == 0.002
    clock.now += 0.99
    assert linger.pause_seconds([lane()], 0.002) == pytest.approx(0.01)
    clock.now += 1
    assert linger.pause_seconds([lane()], 0.002) == 0.002
    assert linger.pause_seconds([], 0.002) == 0.002


def test_the_handlers_of_a_queue_share_the_smallest_call_and_the_shortest_wait():
    clock = Clock()
    linger = Linger([kind(size=50, linger=0.05), kind(name="other", size=20, linger=0.5)], clock)
    assert linger.rows(lane(), 7) == 20
    linger.record(lane(), asked=20, rows=jobs(1))
    clock.now += 0.04
    assert linger.open([lane()]) == []
    clock.now += 0.02
    assert linger.open([lane()]) == [lane()]


@pytest.mark.parametrize("changed", ["is_private", "is_suspect", "is_limited"])
def test_retries_suspects_and_limited_lanes_never_wait(changed):
    linger = Linger([kind()], Clock())
    special = lane(**{changed: True})
    linger.record(special, asked=50, rows=jobs(1))
    assert linger.open([special]) == [special]
    assert linger.rows(special, 7) == 7


@pytest.mark.parametrize(
    "other",
    [
        kind(name="other", linger=None),
        Kind.declare(plain, queue="search"),
    ],
)
def test_a_queue_with_a_handler_that_does_not_wait_is_not_delayed(other, caplog):
    linger = Linger([kind(), other], Clock())
    linger.record(lane(), asked=50, rows=jobs(1))
    assert linger.rows(lane(), 7) == 7
    assert "linger has no effect in queue search" in caplog.text


def test_without_linger_every_claim_is_as_planned():
    linger = Linger([kind(linger=None)], Clock())
    linger.record(lane(), asked=50, rows=jobs(1))
    assert linger.rows(lane(), 7) == 7
    assert linger.open([lane()]) == [lane()]


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1", float("nan"), timedelta(seconds=2)])
def test_a_linger_out_of_its_bounds_is_refused(value):
    with pytest.raises(ConfigError, match="kind index: linger"):
        kind(linger=value)


def test_a_linger_may_be_a_timedelta():
    assert kind(linger=timedelta(milliseconds=50)).linger_seconds == 0.05
