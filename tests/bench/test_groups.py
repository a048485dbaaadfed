"""The scenario of many groups: its figures, and that its polls are idle."""

from forebay_bench import Options, Place
from forebay_bench.scenarios import groups

NAMES = {"what", "cpu_ratio", "one_pages", "many_pages"}


def test_polls_and_claims_of_many_groups_are_measured(server):
    """
    The promised names for each state; the scenario fails if a poll that has to be idle finds a lane.
    """
    place = Place(server.dsn(), is_own=False)
    report = groups.run(place, Options(scale=0.1, rounds=2), lambda _: None)
    found = report.figures["groups"]
    assert [each["what"] for each in found] == ["quiet", "busy", "first", "claim"]
    assert all(each.keys() >= NAMES for each in found)
    # More groups than are looked at one by one: their idle polls read as little as those of one.
    assert all(
        each["many_pages"] <= 3 * each["one_pages"] for each in found if each["what"] != "first"
    )
