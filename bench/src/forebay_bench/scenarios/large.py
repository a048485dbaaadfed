"""large: jobs of a megabyte; what they take of the worker's memory, and how long small jobs of another queue wait.

One worker process with default settings serves two queues. Its handlers of large jobs wait for 30 ms, so that it could run 330 a
second. For each form of the arguments a new process first runs small jobs alone. Then large jobs are committed at once, and small jobs
come until the last large one has ended. Small jobs come at random moments, each in a separate transaction. The wait counts from the
moment at which the producer learns of the commit, to the first line of the handler.

- ``text``: a string of one megabyte, as of an encoded file.
- ``nested``: 800 kB of small objects and lists. Decoded they take more than ten times as much, and decoding is a single step.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import psycopg

from forebay_bench._child import sleep_until
from forebay_bench._journal import Journal
from forebay_bench._measure import peak_bytes, percentile, round_figure
from forebay_bench._processes import wait_until, workers
from forebay_bench._report import Bar, Report, Table
from forebay_bench.jobs import LARGE_NUMBER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay_bench._place import Place
    from forebay_bench._processes import Workers
    from forebay_bench._run import Options

_FORMS: Final = ("text", "nested")
_TEXT_BYTES: Final = 1_000_000
_NESTED_BYTES: Final = 800_000

_LARGE_JOBS: Final = 100
_LARGE_JOBS_FULL: Final = 300

#: Small jobs a second.
_SMALL_PER_SECOND: Final = 50.0

_ALONE_SECONDS: Final = 5.0
_ALONE_SECONDS_FULL: Final = 15.0

#: Slots of the worker: the default.
_SLOTS: Final = 10

_BASE_BYTES: Final = 150_000_000
_WAIT_MORE_MS_MAX: Final = 100.0
_END_SECONDS: Final = 300.0

_ENQUEUE_SMALL: Final = (
    "select forebay.enqueue('record_start', jsonb_build_object('number', %s::bigint), 'pickup')"
)
_ENQUEUE_LARGE: Final = (
    "select forebay.enqueue('read_document', jsonb_build_object('document', %s::jsonb), 'large')"
)


@dataclass(frozen=True, slots=True)
class Waits:
    """The waits of small jobs, in milliseconds."""

    p50: float
    p99: float
    max: float
    jobs: int

    @classmethod
    def of(cls, seconds: list[float]) -> Waits:
        """Return them of at least one wait."""
        millis = [each * 1000 for each in seconds]
        return cls(percentile(millis, 0.5), percentile(millis, 0.99), max(millis), len(millis))

    def facts(self) -> dict[str, Any]:
        """Return them for the report."""
        return {
            "p50_ms": round_figure(self.p50),
            "p99_ms": round_figure(self.p99),
            "max_ms": round_figure(self.max),
            "jobs": self.jobs,
        }


@dataclass(frozen=True, slots=True)
class Case:
    """The figures of one form of arguments."""

    form: str
    text_bytes: int
    decoded_bytes: int
    jobs: int
    seconds: float
    peak: int | None
    alone: Waits
    beside: Waits

    @property
    def peak_max(self) -> int:
        """What the worker may take: a base, and twice what the running jobs hold, as text or decoded."""
        return _BASE_BYTES + 2 * _SLOTS * max(self.text_bytes, self.decoded_bytes)

    def facts(self) -> dict[str, Any]:
        """Return it for the report."""
        return {
            "form": self.form,
            "text_bytes": self.text_bytes,
            "decoded_bytes": self.decoded_bytes,
            "large_jobs": self.jobs,
            "large_per_s": round_figure(self.jobs / self.seconds),
            "peak_mb": None if self.peak is None else round_figure(self.peak / 1e6),
            "peak_mb_max": round_figure(self.peak_max / 1e6),
            "alone": self.alone.facts(),
            "beside": self.beside.facts(),
        }


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    jobs = max(_SLOTS, round((_LARGE_JOBS_FULL if options.full else _LARGE_JOBS) * options.scale))
    seconds = (_ALONE_SECONDS_FULL if options.full else _ALONE_SECONDS) * options.scale
    cases = []
    for form in _FORMS:
        with (
            tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder,
            place.database("large") as dsn,
        ):
            journal = Journal(Path(folder) / "notes")
            environment = {"FOREBAY_QUEUE": "pickup,large", **journal.environment}
            with workers(dsn, concurrency=_SLOTS, settings=environment) as processes:
                processes.start()
                progress(f"{form}: small jobs alone, then beside {jobs} large ones")
                case = _case(
                    dsn,
                    form,
                    jobs=jobs,
                    alone_seconds=seconds,
                    journal=journal,
                    processes=processes,
                )
                cases.append(case)
    return _report(cases)


def _case(
    dsn: str, form: str, *, jobs: int, alone_seconds: float, journal: Journal, processes: Workers
) -> Case:
    numbers = itertools.count()
    with SmallJobs(dsn, numbers, journal):  # nothing is cold then
        time.sleep(0.5)
    with SmallJobs(dsn, numbers, journal) as alone:
        time.sleep(alone_seconds)
    rng = random.Random(form)
    document = _document(form, rng)
    with psycopg.connect(dsn) as conn:
        for _ in range(jobs):
            conn.execute(_ENQUEUE_LARGE, [_document(form, rng)])
        with SmallJobs(dsn, numbers, journal) as beside:
            conn.commit()
            began = time.monotonic()
            wait_until(lambda: _ended(journal) >= jobs, _END_SECONDS, "all large jobs end")
            seconds = time.monotonic() - began
    processes.raise_when_one_ended()
    return Case(
        form=form,
        text_bytes=len(document),
        decoded_bytes=_decoded_bytes(json.loads(document)),
        jobs=jobs,
        seconds=seconds,
        peak=peak_bytes(processes.members[0].pid),
        alone=Waits.of(alone.waits),
        beside=Waits.of(beside.waits),
    )


class SmallJobs:
    """Small jobs that a thread commits at random moments until the block ends; it then waits until all have started.

    Args:
        dsn: the database.
        numbers: a number for each job.
        journal: what the handlers write to.
    """

    def __init__(self, dsn: str, numbers: Iterator[int], journal: Journal) -> None:
        self._dsn = dsn
        self._numbers = numbers
        self._journal = journal
        self._committed: dict[int, float] = {}
        self._ended = threading.Event()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._produce, daemon=True)
        self._error: BaseException | None = None
        #: From the commit to the start, in seconds, of each job; known once the block has ended.
        self.waits: list[float] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_ready.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        if kind is None:
            wait_until(self._have_all_started, _END_SECONDS, "all small jobs start")

    def _have_all_started(self) -> bool:
        started = {number: at for number, at in self._journal.read() if number in self._committed}
        self.waits = [at - self._committed[number] for number, at in started.items()]
        return len(started) == len(self._committed)

    def _produce(self) -> None:
        rng = random.Random(0)
        try:
            with psycopg.connect(self._dsn, autocommit=True) as conn:
                due = time.monotonic()
                self._is_ready.set()
                while not (self._ended.is_set() and self._committed):
                    number = next(self._numbers)
                    conn.execute(_ENQUEUE_SMALL, [number], prepare=True)
                    self._committed[number] = time.monotonic()
                    due += rng.expovariate(_SMALL_PER_SECOND)
                    sleep_until(due)
        except BaseException as error:
            self._error = error
            self._is_ready.set()


def _document(form: str, rng: random.Random) -> str:
    """Return a document of a form as JSON; its text is not much smaller when compressed."""
    if form == "text":
        return json.dumps(rng.randbytes(_TEXT_BYTES // 2).hex())
    size, items = 0, []
    while size < _NESTED_BYTES:
        items.append({"n": [rng.randrange(1_000_000)], "l": [[], {}]})
        size += 30
    return json.dumps(items)


def _decoded_bytes(value: Any) -> int:
    """Return what a decoded document takes in memory."""
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(map(_decoded_bytes, value.values()))  # the keys are shared
    if isinstance(value, list):
        return size + sum(map(_decoded_bytes, value))
    return size


def _ended(journal: Journal) -> int:
    return sum(number == LARGE_NUMBER for number, _ in journal.read())


def _report(cases: list[Case]) -> Report:
    table = Table(
        ["arguments", "jobs/s", "peak MB", "", "median ms", "99 % ms", "max ms"],
        [
            row
            for case in cases
            for row in (
                (case.form, "", "", "alone", *_cells(case.alone)),
                (
                    "",
                    f"{case.jobs / case.seconds:,.0f}",
                    "unknown" if case.peak is None else f"{case.peak / 1e6:,.0f}",
                    "beside large jobs",
                    *_cells(case.beside),
                ),
            )
        ],
        right=["jobs/s", "peak MB", "median ms", "99 % ms", "max ms"],
    )
    bars = []
    for case in cases:
        peak = None if case.peak is None else case.peak / 1e6
        bars.append(Bar(f"{case.form}: peak of the worker, MB", peak, at_most=case.peak_max / 1e6))
        for what, beside, alone in (
            ("99 %", case.beside.p99, case.alone.p99),
            ("longest", case.beside.max, case.alone.max),
        ):
            more = max(0.0, beside - alone)
            bars.append(
                Bar(
                    f"{case.form}: wait of small jobs, {what}, ms more",
                    more,
                    at_most=_WAIT_MORE_MS_MAX,
                )
            )
    notes = [
        f"the peak may be 150 MB, and twice what {_SLOTS} running jobs hold: as text, or decoded if that is more",
        "waits of small jobs from the commit to the handler's start, alone and beside large jobs",
    ]
    return Report({"forms": [case.facts() for case in cases]}, [table], bars, notes)


def _cells(waits: Waits) -> tuple[str, str, str]:
    return f"{waits.p50:.1f}", f"{waits.p99:.1f}", f"{waits.max:.1f}"
