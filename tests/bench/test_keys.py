"""The scenario of limit keys: its figures, and that a claim costs what it takes."""

from forebay_bench import Options, Place
from forebay_bench.scenarios import keys


def test_polls_and_claims_of_many_keys_are_measured(server):
    """
    The promised names for each queue, and each claim took as many jobs as it asked for.
    """
    place = Place(server.dsn(), is_own=False)
    report = keys.run(place, Options(scale=0.1, rounds=2), lambda _: None)
    found = report.figures["keys"]
    assert [each["queue"] for each in found] == ["plain", "few", "many"]
    assert all(
        each.keys() >= {"poll_ms", "claim_ms", "settlement_ms", "wal_bytes"} for each in found
    )
