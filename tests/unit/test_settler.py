"""In which order endings are told to the database."""

from forebay.ops.claimed import ClaimedJob
from forebay.ops.protocol import Ended
from forebay.worker.ground.held import Batch, HeldJob, Lease
from forebay.worker.settle.settler import Settler


def held(batch: Batch) -> HeldJob:
    return HeldJob(ClaimedJob(1, "work", 0, {}, offset=1, ordering_key="k"), batch, lane=None)


def test_endings_are_told_in_the_order_of_their_claims():
    """
    Whatever else of the later batch ended before: the database would else keep a job back behind
    one of its ordering key that is done, and its failed attempt would not count.
    """
    lease = Lease(1, 0.0)
    first, second, third = (Batch(lease, no, 1, {1}) for no in (1, 2, 3))
    settler = Settler(session=None, on_lease_lost=lambda _: None)
    settler.end(held(third), Ended(1, "retried"), solo=True)
    settler.end(held(second), Ended(1, "retried"))
    settler.done([held(first)])
    assert [flush.claim_no for _, flush in settler._collect()] == [1, 2, 3]
