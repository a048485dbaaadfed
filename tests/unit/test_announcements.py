"""Which notifications need a claim, and which are those of jobs that a claim has taken already."""

from types import SimpleNamespace

import pytest

from forebay.worker.claim._announcements import DELAY_SECONDS, Announcements


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=100.0)


@pytest.fixture
def notified(clock) -> Announcements:
    return Announcements(clock=lambda: clock.now)


def test_a_notification_that_comes_after_its_job_was_claimed_needs_no_claim(notified):
    notified.add("mail")
    notified.explain("mail", notified.take()["mail"], taken=2)
    assert not notified.add("mail")
    assert not notified
    assert notified.add("mail")


def test_one_that_came_during_the_claim_explains_none_that_comes_later(notified):
    """
    The claim takes two jobs, and the notification of the second is there before the answer: the
    next notification is that of a third.
    """
    notified.add("mail")
    taken = notified.take()
    notified.add("mail")
    notified.explain("mail", taken["mail"], taken=2)
    assert not notified
    assert notified.add("mail")
    assert dict(notified.take()) == {"mail": 1}


def test_of_two_that_came_during_the_claim_one_is_left(notified):
    notified.add("mail")
    taken = notified.take()
    notified.add("mail")
    notified.add("mail")
    notified.explain("mail", taken["mail"], taken=2)
    assert dict(notified.take()) == {"mail": 1}


def test_an_explained_notification_is_doubtful_until_the_next_claim(notified):
    """
    A transaction with many jobs notifies once, so the notification of another job may be taken for
    one of them.
    """
    notified.add("mail")
    notified.explain("mail", notified.take()["mail"], taken=100)
    assert not notified.add("mail")
    assert notified.recheck("mail")
    claimed = notified.take()
    assert claimed.keys() == {"mail"}
    assert notified.explain("mail", claimed["mail"], taken=0), "nothing is amiss if it finds none"
    assert not notified.recheck("mail")


def test_a_claim_in_between_ends_the_doubt(notified, clock):
    notified.add("mail")
    notified.explain("mail", notified.take()["mail"], taken=2)
    notified.add("mail")
    clock.now += DELAY_SECONDS / 2
    notified.add("mail")
    notified.take()
    assert not notified.recheck("mail")


def test_what_comes_too_late_is_explained_by_nothing(notified, clock):
    notified.add("mail")
    notified.explain("mail", notified.take()["mail"], taken=2)
    clock.now += 2 * DELAY_SECONDS
    assert notified.add("mail")
