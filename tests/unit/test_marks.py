"""Marks on curves: which, where, and what is merged."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

from forebay.watch.marks import MARKS_MAX, Happening, happenings, marks

START = datetime(2026, 11, 30, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


TIMES = [at(minute) for minute in range(61)]


def event(minutes, act, **fields):
    given = {"queue": None, "kind": None, "subject_id": None, "detail": None, "actor": None}
    return SimpleNamespace(at=at(minutes), act=act, role="ops", **given | fields)


def worker(minutes, version, *, app="shop:app", queues=("mail",)):
    return SimpleNamespace(app=app, app_version=version, started_at=at(minutes), queues=queues)


def gone(minutes, version, *, ended, how="stopped", signal=None):
    more = {"worker": "host:1", "ended_at": at(ended), "how": how, "signal": signal}
    return SimpleNamespace(**vars(worker(minutes, version)), **more)


def test_a_deploy_is_a_start_with_another_version_and_a_rollback_is_one_too():
    """
    Workers of one version that start again are no deploy; another application has its own versions.
    """
    live = [worker(3, "2"), worker(4, "2"), worker(9, "1"), worker(5, "7", app="other:app")]
    ended = [gone(0, "1", ended=4), gone(1, "1", ended=4), gone(2, None, ended=3)]
    found = happenings([], live, ended)
    assert [(one.at, one.text) for one in found] == [
        (at(3), "shop:app 2, after 1"),
        (at(9), "shop:app 1, after 2"),
    ]


def test_lost_workers_and_alerts_and_acts_are_told_apart():
    """
    A lost worker is one happening, though the event log has it too; one that stopped is none.
    """
    found = happenings(
        [
            event(1, "alerts.fired", kind="A3", queue="mail", detail="1 dead letter"),
            event(2, "workers.lost", detail="host:1"),
            event(3, "queues.pause", queue="mail", actor="alice"),
        ],
        [],
        [gone(0, "1", ended=2, how="crashed", signal=9), gone(0, "1", ended=4)],
    )
    assert [(one.sort, one.text) for one in found] == [
        ("alert", "A3 mail fired: 1 dead letter"),
        ("lost", "host:1 crashed by signal 9"),
        ("act", "queues.pause mail by alice"),
    ]


def test_of_a_queue_only_its_workers_count():
    """
    A worker that serves other queues marks no curve of this one.
    """
    ended = [gone(0, "1", ended=2, how="lost")]
    assert happenings([], [worker(3, "2")], ended, "mail")
    assert not happenings([], [worker(3, "2")], ended, "pictures")


def test_what_is_near_is_one_mark_and_marks_are_few():
    """
    Whatever happened, a curve has at most one mark more than ``MARKS_MAX``, and none is left out.
    """
    three = [Happening(at(30 + n / 10), "act", f"act {n}") for n in range(3)]
    (mark,) = marks(three, TIMES)
    assert (mark.title, mark.place, mark.sort) == ("3 acts", 0.5, "act")
    assert mark.texts == ["act 0", "act 1", "act 2"]
    second = timedelta(seconds=1)
    assert (mark.since, mark.until) == (at(30) - second, three[-1].at + second)

    many = [Happening(at(n / 100), "act" if n % 7 else "lost", "x" * 90) for n in range(6001)]
    found = marks(many, TIMES)
    assert len(found) <= MARKS_MAX + 1
    assert all(one.sort == "lost" and len(one.texts) == 6 for one in found)
    assert found[0].title.startswith("29 lost workers, 171 acts")


def test_what_is_older_is_left_out_and_what_is_newer_is_at_the_end():
    """
    A place follows the points of the curve, which can be at unequal times.
    """
    times = [at(0), at(1), at(10)]
    found = marks([Happening(at(m), "act", str(m)) for m in (-1, 0.5, 5.5, 11)], times)
    assert [one.place for one in found] == [0.25, 0.75, 1.0]
    assert marks([Happening(at(0), "act", "")], times[:1]) == []
