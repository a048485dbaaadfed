"""The doctor sees all there is with the rights of an operator or a reader."""

import asyncio
import re

import pytest

from forebay.doctor.examine import examine
from tests.support.engine import Reader, connect, enqueue, one, small_segments


def timeless(text: str) -> str:
    return re.sub(r"[\d.]+ (ms|s)\b", "moments", text)


@pytest.mark.slow
@pytest.mark.direct
@pytest.mark.parametrize("role", ["forebay_operator", "forebay_reader"])
def test_a_reading_role_sees_every_check(database, role):
    """
    With a worker, waiting and deferred jobs and a segment that cannot be emptied: no check is
    hidden from it, and each says the same as to the owner.
    """
    with connect(database) as conn, Reader(database) as worker:
        small_segments(conn)
        one(conn, "select forebay.configure('retention_days', 0)")
        enqueue(conn)
        enqueue(conn, delay="1 hour")
        worker.claim_ready()
        one(
            conn,
            "select setval('forebay.log_seq', (select min(s.lo) + 1 from forebay.segment s"
            " where s.lo > (select last_value from forebay.log_seq)))",
        )
        enqueue(conn)
        one(conn, "select forebay.seal_v1()")
        found = asyncio.run(examine(f"{database}&options=-c%20role%3D{role}"))
        alike = asyncio.run(examine(database))
    assert [item.what for item in found if "could not be checked" in item.what] == []
    assert [item.what for item in found if item.check == "retention"] != []
    dull = {"driver", "connection", "server", "workers", "snapshots", "timeouts"}
    assert [(item.check, timeless(item.what)) for item in found if item.check not in dull] == [
        (item.check, timeless(item.what)) for item in alike if item.check not in dull
    ]
    assert [item.level for item in found if item.check not in dull] == [
        item.level for item in alike if item.check not in dull
    ]
    assert {item.check for item in found} == {item.check for item in alike}
