"""The scenario of held transactions: its figures, its clock, and that the experiment shows what
it is about.
"""

import contextlib
import time
from pathlib import Path

import pytest

from forebay.errors import ConfigError
from forebay_bench import Options, Place
from forebay_bench.engines.classic_queue import ClassicQueue
from forebay_bench.engines.forebay_log import Log
from forebay_bench.engines.queue import Queue, Taken
from forebay_bench.plot import save
from forebay_bench.scenarios import _held_load, held
from tests.support.engine import connect

NAMES = {
    "jobs",
    "held_seconds",
    "throughput_first",
    "throughput_last",
    "claim_p50_first_ms",
    "claim_p50_last_ms",
    "claim_pages_first",
    "claim_pages_last",
    "pickup_p50_last_ms",
    "dead_rows",
    "samples",
}
SAMPLE = {
    "seconds",
    "claim_p50_ms",
    "claim_pages",
    "waiting",
    "pickup_p50_ms",
    "enqueue_p50_ms",
    "end_p50_ms",
    "dead_rows",
}


class Instant:
    """An engine that has done everything at once."""

    def __init__(self):
        self.jobs: list[Taken] = []
        self.ended: list[tuple[int, int]] = []

    def enqueue(self, count, delay_seconds=0):
        first = len(self.ended) + len(self.jobs)
        self.jobs += [Taken(first + i, first + i, 0, time.time()) for i in range(count)]
        return count

    def claim(self, limit):
        taken, self.jobs = self.jobs[:limit], self.jobs[limit:]
        return taken

    def claim_counted(self, limit):
        return self.claim(limit), 1

    def end(self, done, failed):
        self.ended += [(job.number, job.attempts) for job in done]
        self.jobs += [after_an_attempt(job) for job in failed]

    def dead_rows(self):
        return 0


def after_an_attempt(job: Taken) -> Taken:
    return job._replace(attempts=job.attempts + 1)


@pytest.fixture
def place(server):
    return Place(server.dsn(), is_own=False)


@pytest.mark.nightly
@pytest.mark.slow
def test_each_engine_is_measured(place, tmp_path):
    """
    The promised names for ours and for each that it is compared with, and a plot of them.
    """
    report = held.run(place, Options(scale=0.02, compare=("classic", "que")), lambda _: None)
    assert list(report.figures)[:2] == ["holder", "mix"]
    for name in ("ours", "classic", "que"):
        found = report.figures[name]
        assert found.keys() >= NAMES
        assert found["samples"][0].keys() == SAMPLE
        assert found["held_seconds"] > 0
    assert report.draw is not None
    path = Path(tmp_path) / "held.svg"
    save(report.draw, path)
    text = path.read_text(encoding="utf-8")
    assert all(word in text for word in ("jobs waiting", "Forebay", "usual jobs table"))


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("mix", ["delayed", "failing"])
def test_every_mix_ends_what_it_began(place, mix):
    """
    In each mix jobs are done while the holder holds, and as many as were enqueued at most.
    """
    options = Options(scale=0.03, compare=("classic",), mix=mix)
    report = held.run(place, options, lambda _: None)
    assert report.figures["mix"] == mix
    for name in ("ours", "classic"):
        assert report.figures[name]["jobs"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("mix", ["hard", "hard-queues"])
def test_a_hard_run_has_its_number_of_jobs(place, mix):
    """
    A tenth of them in each turn, whose figures are all in the report; in every queue of them.
    """
    report = held.run(place, Options(scale=0.005, compare=(), mix=mix), lambda _: None)
    ours = report.figures["ours"]
    assert ours["jobs"] >= 15_000
    assert len(ours["turns"]) == 10
    assert all(
        turn.keys() == {"throughput", "claim_p50_ms", "pickup_p50_ms"} for turn in ours["turns"]
    )
    assert [len(table.rows) for table in report.tables] == [1, 10]


@pytest.mark.parametrize("waiting", [0, 1, 8, 2000])
def test_the_plot_has_no_parts_of_a_job_and_begins_at_zero(waiting):
    """
    Whatever the numbers, also where no job ever waits. A transaction that is not open has no age.
    """
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    found = {
        "ours": drawn(waiting=[0] * 12, dead_rows=[0] * 12),
        "classic": drawn(waiting=[0] * 11 + [waiting], dead_rows=[100 * i for i in range(12)]),
    }
    figure = Figure(figsize=(9, 6))
    held._draw(found, "a session opens a transaction", figure)
    figure.canvas.draw()
    top, middle, bottom = figure.axes
    for axes in figure.axes:
        assert axes.get_ylim()[0] == 0
    for axes in (middle, bottom):
        assert all(float(tick).is_integer() for tick in axes.get_yticks())
    ages = [label.get_text() for label in bottom.get_xticklabels()]
    assert "0" in ages
    assert not [age for age in ages if age.startswith(("-", "\N{MINUS SIGN}"))]
    assert f"the next {held.CLAIM_ROWS} jobs" in top.get_title(loc="left")


def drawn(**series: list[int]) -> _held_load.Engine:
    """An engine with samples, a second before the transaction and ten in it."""
    engine = _held_load.Engine(Instant(), "plain", delay_seconds=0, due_is_kept=True)
    engine.turns = [_held_load.Turn(seconds=0.2) for _ in range(12)]
    engine.samples = [
        {"seconds": 0.2 * number, "claim_p50_ms": 1.0}
        | {name: values[number] for name, values in series.items()}
        for number in range(12)
    ]
    return engine


def test_a_mix_that_does_not_exist_is_refused(place):
    """
    The error names the mixes there are.
    """
    with pytest.raises(ConfigError, match="--mix"):
        held.run(place, Options(mix="unheard-of"), lambda _: None)


def test_time_stands_still_between_turns():
    """
    A job that waits while its engine has no turn is as old afterwards as before.
    """
    engine = _held_load.Engine(Instant(), "plain", delay_seconds=0, due_is_kept=True)
    engine._starts = [1000.0, 1060.0]  # two turns of five seconds, a minute apart
    engine._before = [0.0, 5.0]
    own_times = {wall: engine._own_time(wall) for wall in (999, 1003, 1005, 1030, 1060, 1062)}
    assert own_times == {999: 0, 1003: 3, 1005: 5, 1030: 5, 1060: 5, 1062: 7}


def test_each_turn_goes_on_from_the_end_of_the_one_before():
    """
    The clock of an engine counts its turns only, and every turn has its place on it.
    """
    engine = _held_load.Engine(Instant(), "plain", delay_seconds=0, due_is_kept=True)
    engine.rate = 100_000
    engine.take_turn(0.05)
    engine.take_turn(0.05)
    first, second = engine.turns
    assert engine._before == [0.0, first.seconds]
    assert engine._active == first.seconds + second.seconds
    assert first.finished > 0
    assert second.finished > 0


def test_a_failing_job_is_done_in_its_second_attempt():
    """
    Every fifth job fails once, and each is done once.
    """
    queue = Instant()
    engine = _held_load.Engine(queue, "failing", delay_seconds=0, due_is_kept=True)
    engine.measure_speed(0.03)
    assert len(queue.ended) > 500
    numbers = [number for number, _ in queue.ended]
    assert len(numbers) == len(set(numbers))
    assert all(attempts == (number % 5 == 0) for number, attempts in queue.ended)


def test_a_sample_tells_how_many_wait():
    """
    Waiting are those due and not done; what is not due yet does not wait.
    """
    engine = _held_load.Engine(Instant(), "delayed", delay_seconds=60, due_is_kept=True)
    engine._enqueue(500)
    engine._sample(_held_load.Turn(), _held_load.Turn())
    assert engine.samples[-1]["waiting"] == 0
    engine._dues[0] = (time.time() - 1, 500)
    engine._sample(_held_load.Turn(), _held_load.Turn())
    assert engine.samples[-1]["waiting"] == 500


@pytest.mark.slow
def test_pages_tell_who_suffers_from_a_held_snapshot(database, empty_database):
    """
    While one is held, the ordinary table reads more pages for each claim, the log as many as
    before.
    """
    rises = {}
    for queue, dsn in ((Log(database), database), (ClassicQueue(empty_database), empty_database)):
        with contextlib.closing(queue), connect(dsn) as holder, holder.transaction():
            holder.execute("set transaction isolation level repeatable read")
            holder.execute("select 1")
            pages_of_a_claim(queue)
            pages = [pages_of_a_claim(queue) for _ in range(20)]
            rises[type(queue)] = pages[-1] - pages[0]
    assert rises[ClassicQueue] > 100
    assert abs(rises[Log]) <= 10


def pages_of_a_claim(queue: Queue) -> int:
    queue.enqueue(500)
    taken, pages = queue.claim_counted(100)
    while taken:
        queue.end(taken, [])
        taken = queue.claim(100)
    assert pages is not None
    return pages


@pytest.mark.nightly
@pytest.mark.slow
def test_the_mix_with_keys_has_unique_and_ordering_keys(place):
    """
    Ours alone takes part; jobs that a unique key keeps from being made are not waited for.
    """
    report = held.run(place, Options(scale=0.03, mix="keyed"), lambda _: None)
    assert report.figures["mix"] == "keyed"
    assert "classic" not in report.figures
    assert report.figures["ours"]["jobs"] > 0
    assert [bar.what for bar in report.bars] == [
        "keyed: jobs/s, last turn to first",
        "keyed: time to get a job, last turn to first",
        "keyed: pickup, last turn to first",
    ]


@pytest.mark.nightly
@pytest.mark.slow
def test_jobs_with_keys_are_compared_with_a_server_where_nothing_is_held(server):
    """
    The second engine takes the same turns, with the same load.
    """
    place = Place(server.dsn(), is_own=True)
    report = held.run(place, Options(scale=0.1, mix="keyed", holder="writer"), lambda _: None)
    assert report.figures["free"]["offered_per_s"] == report.figures["ours"]["offered_per_s"]
    bars = {bar.what: bar.value for bar in report.bars}
    assert bars["keyed: time to get a job, held to not held"] > 0
    assert bars["keyed: pages read to get a job, second half to first"] > 0
