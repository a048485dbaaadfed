"""In which order endings are told to the database."""

import json
from typing import Any

import pytest

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


class Statements:
    """Stands for the connection: what was settled, one entry a statement."""

    def __init__(self) -> None:
        self.sent: list[list[Any]] = []

    async def run(self, operation):
        flushes = json.loads(operation.params["flushes"])
        self.sent.append([(f["claim_no"], f["done"], len(f["ended"])) for f in flushes])
        return ["settled"] * len(flushes)


@pytest.mark.anyio
async def test_no_transaction_writes_thousands_of_endings():
    """
    A thousand calls that time out at once would hold the locks of one transaction for seconds.
    """
    lease = Lease(1, 0.0)
    first, second, third = (Batch(lease, no, 451, set(range(1, 452))) for no in (1, 2, 3))
    statements = Statements()
    settler = Settler(session=statements, on_lease_lost=lambda _: None)
    job = held(first)
    job.row.offset = 451
    settler.done([job])
    for batch, count in ((first, 450), (second, 150), (third, 1)):
        for offset in range(1, count + 1):
            settler.end(held(batch), Ended(offset, "retried"))
    settler._under_way = settler._collect()
    await settler._write()
    assert statements.sent == [[(1, [451], 200)], [(1, [], 200)], [(1, [], 50), (2, [], 150)],
                               [(3, [], 1)]]  # fmt: skip
    assert first.open_offsets == set()
