"""Each way to fall behind sets off the alert that names it, and no other."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from forebay.errors import ConfigError
from forebay.model.mirrors import MirrorFacts, OpenBreaker, StuckJob, Thresholds
from forebay.watch.mirror_rules import above_since, alerts_of

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
THRESHOLDS = Thresholds(completed_least=5, waiting_most=100, waiting_for=600, unproved_for=3600)

#: Steady traffic, jobs done soon.
WELL = MirrorFacts(
    at=NOW,
    due=20,
    due_all=20,
    waiting=90,
    claimed=1,
    running=2,
    tried=0,
    oldest_due_at=NOW - timedelta(seconds=3),
    above_since=None,
    completed=600,
    completed_at=NOW - timedelta(seconds=1),
)


def minutes(count):
    return timedelta(minutes=count)


def stuck(attempts=9, age=90):
    return StuckJob(
        job_id=7, tag="a", attempts=attempts, due_at=NOW - minutes(age), error="too long"
    )


def sampled(*dues, every=1):
    """Return samples, the last of them now."""
    return [(NOW - minutes(every) * (len(dues) - 1 - place), due) for place, due in enumerate(dues)]


def codes(facts, thresholds=THRESHOLDS):
    return [alert.code for alert in alerts_of("pages", "mirror", facts, thresholds)]


SILENT = {"completed": 0, "completed_at": NOW - minutes(12)}

COVERAGE = [
    ("all is well", {}, []),
    ("nobody enqueues", {**SILENT, "due": 0, "due_all": 0, "waiting": 0}, ["A1"]),
    ("nobody completes", {**SILENT, "due": 90}, ["A1"]),
    ("both stop, and the queue keeps its length", SILENT, ["A1"]),
    ("more is enqueued than is completed", {"due": 900, "above_since": NOW - minutes(11)}, ["A2"]),
    ("the same, seen by samples", {"due": 900, "samples": sampled(*[300] * 12)}, ["A2"]),
    ("some expired", {"expired": 2}, ["A3"]),
    ("some died otherwise", {"dead": 1}, ["A3"]),
    ("one is not proved for long, though it was tried", {"stuck": [stuck()]}, ["A3"]),
    ("a few are completed, fewer than should be", {"completed": 4}, ["A1"]),
    ("many wait, for a moment", {"due": 900, "above_since": NOW - minutes(9)}, []),
    ("many waited, and do not any more", {"due": 90, "samples": sampled(*[300] * 12)}, []),
    ("one was not proved at its first try", {"stuck": [stuck(1, 5)]}, []),
    ("the thresholds themselves are no alert", {"completed": 5, "due": 100}, []),
]


@pytest.mark.parametrize(
    ("facts", "expected"), [row[1:] for row in COVERAGE], ids=[r[0] for r in COVERAGE]
)
def test_each_problem_has_its_alert(facts, expected):
    """
    The table of docs/howto/reconcile.md, row by row, and what is no problem.
    """
    assert codes(replace(WELL, **facts)) == expected


def test_a_queue_is_known_to_be_long_since_the_oldest_proof_of_it():
    """
    Samples count back to the first that was short, or to a gap in which nobody looked; jobs that
    wait count by themselves.
    """
    long = replace(WELL, due=900)
    for samples, age in [
        ([], 0),
        (sampled(300, 300, 300), 2),
        (sampled(300, 90, 300, 300), 1),
        (sampled(300, 100, 300), 0),
        (sampled(300, 300, 300, every=4), 0),
        ([*sampled(300), (NOW + minutes(1), 300)], 0),
    ]:
        assert above_since(replace(long, samples=samples), THRESHOLDS) == NOW - minutes(age)
    both = replace(long, samples=sampled(300, 300), above_since=NOW - minutes(5))
    assert above_since(both, THRESHOLDS) == NOW - minutes(5)
    assert above_since(replace(both, due=100), THRESHOLDS) is None


@pytest.mark.parametrize(
    ("facts", "said", "hint"),
    [
        ({"paused_at": NOW}, "for 12 min", "forebay queues resume mirror"),
        (
            {"breakers": [OpenBreaker(who="w", place="pass", open_until=NOW, why="refused")]},
            "for 12 min",
            "refused",
        ),
        (
            {"breakers": [OpenBreaker(who="w", place="direct", open_until=NOW, why="no")]},
            ("for 12 min"),
            "20 jobs are due",
        ),
        ({"due": 1}, "for 12 min", "1 job is due: does a worker"),
        ({"due": 0}, "for 12 min", "forebay mirror heartbeat MODULE:APP pages"),
        ({"completed": 3}, "3 jobs were completed within 10 min, fewer than 5", "20 jobs are due"),
        ({"completed_at": None}, "no job has been completed yet", "20 jobs are due"),
    ],
)
def test_an_alert_says_in_words_what_is_the_case_and_where_to_look(facts, said, hint):
    """
    The first thing that can be done about it.
    """
    (alert,) = alerts_of("pages", "mirror", replace(WELL, **SILENT | facts), THRESHOLDS)
    assert said in alert.problem
    assert hint in alert.hint


def test_a_job_that_may_never_succeed_is_named_with_its_last_error():
    """
    With the command that shows the others.
    """
    (alert,) = alerts_of("pages", "mirror", replace(WELL, stuck=[stuck()]), THRESHOLDS)
    assert "job 7 failed 9 times and is unproved 1.5 h after it was due: too long" in alert.problem
    assert "forebay jobs show 7" in alert.hint


def test_thresholds_that_cannot_be_meant_are_refused():
    """
    A time that is none, a number below 0.
    """
    for values in ({"completed_within": 0}, {"waiting_most": -1}, {"unproved_for": -0.5}):
        with pytest.raises(ConfigError, match=next(iter(values))):
            Thresholds(**values)
