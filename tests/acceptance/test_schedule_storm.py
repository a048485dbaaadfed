"""Ten schedulers, killed, frozen, cut off and with wrong clocks: each instant of each schedule
has one job, with the right time.
"""

import random
import signal
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.cron_oracle import Oracle
from tests.support.engine import connect, one, shift_clock
from tests.support.mutant import break_function, violation
from tests.support.scheduler_process import SchedulerProcess
from tests.support.stepping_server import faketime_library
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        faketime_library() is None, reason="libfaketime is not installed (Debian: faketime)"
    ),
]

_SCHEDULERS = 10

#: First instants. Within the hour the clock of Rome goes back; within a day that of New York.
_ROME = datetime(2027, 10, 31, 0, 40, tzinfo=UTC)
_NEW_YORK = datetime(2027, 11, 6, 12, tzinfo=UTC)

_ZONES = ("UTC", "Europe/Rome", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")

#: Per zone; with those of intervals there are 50 schedules.
_CRONS = (
    "* * * * *",
    "*/2 * * * *",
    "1-59/2 * * * *",
    "* */2 * * *",
    "*/30 * * * * *",
    "15,45 */3 * * * *",
    "30 2 * * *",
    "15 0-23 * * *",
)
_INTERVALS = (30, 45, 60, 61, 90, 120, 150, 300, 600, 3600)

#: After a step of so many seconds there is something to decide, even if the steps before took a
#: minute.
_LONG_STEP = 200

_HOSTILE_SECONDS = (3600, -3600, 86_400 * 3653, -86_400 * 3653, 7, -7, 0)


class Storm:
    """The schedules, the schedulers, and what happens to both."""

    def __init__(self, dsn: str, folder: Path, seed: int, first: datetime) -> None:
        self.dsn = dsn
        self.conn = connect(dsn)
        self.rng = random.Random(seed)
        self.folder = folder
        self.acts: Counter[str] = Counter()
        self.members: list[SchedulerProcess] = []
        self.frozen: dict[int, float] = {}
        self.wanted: dict[str, Oracle | int] = {}
        #: The first possible instant, by the clock of the database.
        self.first = first

    def __enter__(self) -> "Storm":
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.discard()
        self.conn.close()

    def set_clock(self, moment: datetime) -> None:
        """Let the clock of the database show a time; it goes on from there."""
        shift_clock(self.conn, (moment - datetime.now(UTC)).total_seconds())

    def create(self) -> None:
        """Create 50 schedules, before the first instant."""
        self.set_clock(self.first - timedelta(minutes=10))
        options = (
            "overlap => 'allow', missed => 'all', missed_max => 10000, catch_up => '300 days', "
            "starts_at => %s"
        )
        for zone in _ZONES:
            for number, cron in enumerate(_CRONS):
                name = f"{zone.partition('/')[2] or zone}.{number}"
                one(
                    self.conn,
                    (
                        f"select forebay.create_schedule(%s, 'work', %s, tz => %s, jitter => "
                        f"%s, {options})"
                    ),
                    name,
                    cron,
                    zone,
                    f"{number % 3} seconds",
                    self.first,
                )
                self.wanted[name] = Oracle(cron, zone)
        for seconds in _INTERVALS:
            name = f"every.{seconds}"
            one(
                self.conn,
                (
                    f"select forebay.create_schedule(%s, 'work', every => make_interval(secs "
                    f"=> %s), {options})"
                ),
                name,
                seconds,
                self.first,
            )
            self.wanted[name] = seconds

    def start(self) -> None:
        """Start a scheduler; the clocks of every third one run at another speed."""
        speed = self.rng.choice((0.5, 2.0, 10.0)) if len(self.members) % 3 == 0 else 1.0
        self.members.append(SchedulerProcess(self.dsn, self.folder, speed=speed))

    def hurt(self) -> None:
        """Do something bad to a scheduler."""
        place = self.rng.randrange(len(self.members))
        member = self.members[place]
        act = self.rng.choice(("kill", "freeze", "freeze", "clock", "clock", "clock", "cut"))
        if act == "kill":
            member.discard()
            self.frozen.pop(member.process.pid, None)
            speed = 1.0 if member.is_stepping else 2.0
            self.members[place] = SchedulerProcess(self.dsn, self.folder, speed=speed)
        elif act == "freeze":
            if len(self.frozen) > _SCHEDULERS // 2:
                return
            member.process.send_signal(signal.SIGSTOP)
            self.frozen[member.process.pid] = time.monotonic() + self.rng.uniform(0.1, 3.0)
        elif act == "clock":
            if not member.is_stepping:
                return
            member.set_clock(self.rng.choice(_HOSTILE_SECONDS))
        else:
            self.conn.execute(
                (
                    "select pg_terminate_backend(pid) from pg_stat_activity where "
                    "application_name = %s"
                ),
                [f"scheduler {member.process.pid}"],
            )
        self.acts[act] += 1

    def thaw(self, *, everyone: bool = False) -> None:
        """Let those go on that were frozen long enough."""
        for member in self.members:
            until = self.frozen.get(member.process.pid)
            if until is not None and (everyone or until < time.monotonic()):
                member.process.send_signal(signal.SIGCONT)
                del self.frozen[member.process.pid]

    def run(self, end: datetime, steps: tuple[int, ...]) -> None:
        """Let the time of the database pass to an end, now and then backwards, while schedulers
        are hurt.

        Args:
            end: when it is over.
            steps: seconds, of which one is drawn for each step.
        """
        moment = self.first
        while moment < end:
            before = self.decisions()
            step = self.rng.choice(steps)
            moment = min(end, moment + timedelta(seconds=step))
            self.set_clock(moment)
            is_back = self.rng.random() < 0.1
            if is_back:
                self.set_clock(moment - timedelta(minutes=self.rng.randint(1, 90)))
                self.acts["back"] += 1
            for _ in range(self.rng.randint(1, 4)):
                self.hurt()
            self.thaw()
            # Somebody decides something before the next step, so that not all is decided at the
            # end.
            if step >= _LONG_STEP and not is_back and moment < end:
                wait_for(
                    lambda before=before: self.thaw() or self.decisions() > before,
                    60,
                    self.describe,
                )
        self.set_clock(end)
        self.thaw(everyone=True)

    def decisions(self) -> int:
        """Return how many instants are decided."""
        return one(self.conn, "select sum(decisions) from forebay.schedule")

    def instants(self, name: str, end: datetime) -> list[datetime]:
        """Return the instants that a schedule has, by the oracle."""
        wanted = self.wanted[name]
        if isinstance(wanted, Oracle):
            return wanted.between(self.first, end)
        return [
            self.first + timedelta(seconds=n)
            for n in range(0, int((end - self.first).total_seconds()), wanted)
        ]

    def jobs(self) -> dict[str, Counter[datetime]]:
        """Return how many jobs each instant of each schedule has, from what the jobs carry."""
        found: dict[str, Counter[datetime]] = {name: Counter() for name in self.wanted}
        for name, at in self.conn.execute(
            "select headers ->> 'forebay-schedule', (headers ->> "
            "'forebay-scheduled-for')::timestamptz from"
            " (select headers from forebay.log union all select headers from forebay.deferred) j"
        ):
            found[name][at] += 1
        return found

    def describe(self) -> str:
        """Say how far the schedules are, and what was done."""
        rows = self.conn.execute(
            "select name, decided_to, problem from forebay.schedule order by 2 limit 5"
        ).fetchall()
        return f"{rows} {dict(self.acts)} {self.members[-1].log[-2000:]}"


def each_instant_has_one_job(
    dsn: str,
    folder: Path,
    seed: int,
    hours: float,
    first: datetime = _ROME,
    steps: tuple[int, ...] = (20, 200, 600),
) -> tuple[int, Counter[str]]:
    """Run a storm; return the number of instants, and what happened."""
    end = first + timedelta(hours=hours)
    with Storm(dsn, folder, seed, first) as storm:
        storm.create()
        for _ in range(_SCHEDULERS):
            storm.start()
        storm.run(end, steps)
        wanted = {name: storm.instants(name, end) for name in storm.wanted}
        count = sum(map(len, wanted.values()))

        def is_over() -> bool:
            decided = dict(
                storm.conn.execute("select name, decided_to from forebay.schedule").fetchall()
            )
            return all(decided[name] >= at[-1] for name, at in wanted.items() if at)

        wait_for(is_over, 120, storm.describe)
        for member in storm.members:
            member.discard()
        jobs = storm.jobs()
        for name, instants in wanted.items():
            got = jobs[name]
            missing = [at for at in instants if got[at] == 0]
            doubled = [at for at, number in got.items() if number > 1]
            # Meanwhile the clock went on.
            odd = sorted({at for at in got if at < end} - set(instants))
            assert (missing, doubled, odd) == ([], [], []), name
        wrong = storm.conn.execute(
            "select s.name, o.scheduled_for from forebay.occurrence o join "
            "forebay.schedule s using (schedule_id)"
            " where o.status <> 'enqueued' or o.job_id is null"
        ).fetchall()
        assert wrong == []
        gaps = storm.conn.execute(
            "select s.name from forebay.schedule s join forebay.occurrence o using (schedule_id)"
            " group by s.name, s.decisions having count(distinct o.occurrence) <> "
            "s.decisions or max(o.occurrence) <> s.decisions"
        ).fetchall()
        assert gaps == []
        return count, storm.acts


def test_ten_schedulers_under_faults_decide_each_instant_once(database, tmp_path, seed):
    """
    More than an hour of 50 schedules, in which a clock goes back; killed, frozen, cut off, with
    clocks that lie.
    """
    count, acts = each_instant_has_one_job(database, tmp_path, seed, 1.5)
    print(f"{count:,} instants, {dict(acts)}")
    assert count > 2_500


@pytest.mark.nightly
def test_a_hundred_thousand_instants(database, tmp_path, seed):
    """
    The same for 60 hours.
    """
    began = time.monotonic()
    count, acts = each_instant_has_one_job(
        database, tmp_path, seed, 60, _NEW_YORK, (20, 200, 600, 1800, 7200)
    )
    print(f"{count:,} instants in {time.monotonic() - began:.0f} s, {dict(acts)}")
    assert count > 100_000


def test_without_position_and_key_doubles_are_seen(database, tmp_path, seed):
    break_function(
        database,
        "fire_v1",
        ("(s.revision, s.decided_to) is distinct from (p_revision, p_decided_to)", "false"),
        ("coalesce(p_older, p_instants[1]) > s.decided_to", "true"),
    )
    with connect(database) as conn:
        conn.execute("alter table forebay.occurrence drop constraint occurrence_pkey")
    with violation():
        each_instant_has_one_job(database, tmp_path, seed, 1)


def test_another_time_in_a_job_is_seen(database, tmp_path, seed):
    break_function(database, "_enqueue_occurrence", ("to_char(p_at at", "to_char(p_run_at at"))
    with violation():
        each_instant_has_one_job(database, tmp_path, seed, 0.5)
