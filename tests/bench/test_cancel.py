"""The scenario of a cancellation by filter: its figures, and that only the jobs of the filter are cancelled."""

import pytest

from forebay_bench import Options, Place
from forebay_bench.scenarios import cancel


@pytest.mark.nightly
@pytest.mark.slow
def test_only_the_jobs_of_the_filter_are_cancelled(server):
    """The dry run counts what the act cancels, a tenth, and nothing else is touched."""
    place = Place(server.dsn(), is_own=False)
    report = cancel.run(place, Options(scale=0.01), lambda _: None)
    found = report.figures["cancel"]
    assert found["jobs"] == 10 * found["counted"] == 10 * found["cancelled"]
    assert found["others_touched"] == 0
    assert found["claims"].keys() == {"without", "beside"}
