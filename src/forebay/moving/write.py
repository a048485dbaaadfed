"""The only part that writes: first it looks, then it does what was seen."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from forebay._dataclass import dataclass
from forebay.db.own import own_calls, own_transaction
from forebay.errors import EnqueueError, JobsChanged
from forebay.model.schedules import ScheduleDifference
from forebay.moving.found import FoundJob, FoundSchedule, Refused, UnkeptError
from forebay.ops.enqueue import Chunks, database_clock, throttled
from forebay.ops.overview import known_names
from forebay.ops.queues import queue_of
from forebay.ops.schedules import apply_schedules, schedule_facts

if TYPE_CHECKING:
    from forebay.model import JobId
    from forebay.model.schedules import Schedule
    from forebay.moving.fit import Fit
    from forebay.moving.found import Source
    from forebay.ops.enqueue import Call
    from forebay.ops.operation import Operation

    Run = Callable[[Operation[Any]], Any]

#: Digits of each part of a token.
_TOKEN: Final = 16
#: Jobs of one transaction.
_CHUNK: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleStep:
    """What becomes of a schedule.

    Attributes:
        source_name: in the source; None: it is not there any more.
        name: here.
        action: as in ``ScheduleDifference``, or ``same``.
        kind: of its jobs; None: it is not in the source any more.
        when: its expression and zone, or its interval; None as for ``kind``.
        detail: more about a conflict.
    """

    source_name: str | None
    name: str
    action: str
    kind: str | None = None
    when: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Jobs of a kind that wait in the source.

    Attributes:
        kind: the kind.
        queue: where they are written.
        new: how many are written.
        known: how many an earlier import has written.
    """

    kind: str
    queue: str
    new: int
    known: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What an import does, or has done.

    Attributes:
        source: the command and the place.
        is_done: False: it was only looked at.
        schedules: what becomes of each.
        waiting: jobs, by kind and queue.
        refused: what is not written, and why.
        doubts: what may go wrong later.
        token: stands for what was seen.
    """

    source: str
    is_done: bool = False
    schedules: list[ScheduleStep] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    token: str = ""

    @property
    def pending(self) -> int:
        """How many schedules are written."""
        return sum(step.action in ("create", "change") for step in self.schedules)

    @property
    def new(self) -> int:
        """How many jobs are written."""
        return sum(each.new for each in self.waiting)

    @property
    def jobs(self) -> int:
        """How many schedules and jobs are written."""
        return self.pending + self.new


class Mover:
    """Copies what a source has into a database.

    Args:
        dsn: the database.
        source: what is read. Nothing is removed from it.
        fit: what becomes of the work.
    """

    def __init__(self, dsn: str, source: Source, fit: Fit) -> None:
        self._dsn = dsn
        self._source = source
        self._fit = fit
        #: What was seen last: schedules by their names here, and the digests of the jobs.
        self._schedules: dict[str, tuple[str, Schedule]] = {}
        self._seen: set[bytes] = set()

    def look(self) -> Move:
        """Return what ``write`` would do; nothing is written.

        Raises:
            ConfigError: the source cannot be read.
        """
        refused: list[Refused] = []
        self._schedules, self._seen = {}, set()
        calls = self._calls(refused, self._schedules)
        counts: dict[tuple[str, str], Counter[bool]] = {}
        digest = hashlib.sha256(self._source.label.encode())
        with own_calls(self._dsn) as run:
            for chunk, known in self._chunks(calls, run):
                for call in chunk:
                    text = _digest(call)
                    self._seen.add(text)
                    digest.update(text)
                    counts.setdefault((call.kind, _queue(call)), Counter())[
                        _key(call) in known
                    ] += 1
            differences = self._differences(run, refused)
            steps = self._steps(differences)
            kinds = {kind for kind, _ in counts} | {step.kind for step in steps if step.kind}
            doubts = [] if self._fit.kinds is not None else list(_doubts(run, sorted(kinds)))
        return Move(
            source=self._source.label,
            schedules=steps,
            waiting=[
                Waiting(kind=kind, queue=queue, new=count[False], known=count[True])
                for (kind, queue), count in sorted(counts.items())
            ],
            refused=refused,
            doubts=doubts,
            token=f"{self._digest_of(steps)}-{digest.hexdigest()[:_TOKEN]}",
        )

    def write(
        self, token: str | None = None, progress: Callable[[int], object] | None = None
    ) -> Move:
        """Write the schedules in one transaction, then the jobs in chunks; return what was done.

        After an interruption the same call writes the rest.

        Args:
            token: of ``look``; if the source or the schedules differ by now, nothing is written.
            progress: called with the number of jobs so far.

        Raises:
            JobsChanged: the token is that of something else.
        """
        plan = self.look()
        if token is not None:
            of_schedules, _, of_jobs = token.partition("-")
            now_schedules, _, now_jobs = plan.token.partition("-")
            if (plan.pending and of_schedules != now_schedules) or (
                plan.new and of_jobs != now_jobs
            ):
                raise JobsChanged(token=token)
        if plan.pending or any(step.action == "vanished" for step in plan.schedules):
            self._write_schedules(plan)
        waiting = self._write_jobs(progress) if plan.new else plan.waiting
        return replace(plan, is_done=True, waiting=waiting)

    def _write_schedules(self, plan: Move) -> None:
        wanted = [schedule for _, schedule in self._schedules.values()]
        with own_transaction(self._dsn) as run:
            # It holds the lock to the end of the transaction: nothing changes between the two.
            now = run(apply_schedules(self._source.label, wanted, dry_run=True))
            if self._steps(now) != plan.schedules:
                raise JobsChanged(token=plan.token)
            run(apply_schedules(self._source.label, wanted))

    def _write_jobs(self, progress: Callable[[int], object] | None) -> list[Waiting]:
        counts: dict[tuple[str, str], Counter[bool]] = {}
        done = 0
        with own_calls(self._dsn) as run:
            calls = (call for call in self._calls([], {}) if _digest(call) in self._seen)
            for chunk, known in self._chunks(calls, run):
                fresh = [call for call in chunk if _key(call) not in known]
                is_new = dict(zip(map(_key, fresh), _enqueued(run, fresh), strict=True))
                for call in chunk:
                    found = counts.setdefault((call.kind, _queue(call)), Counter())
                    found[not is_new.get(_key(call), False)] += 1
                done += len(chunk)
                if progress is not None:
                    progress(done)
        return [
            Waiting(kind=kind, queue=queue, new=count[False], known=count[True])
            for (kind, queue), count in sorted(counts.items())
        ]

    def _calls(
        self, refused: list[Refused], schedules: dict[str, tuple[str, Schedule]]
    ) -> Iterator[Call]:
        """Yield the jobs of the source, each once, and collect the rest, doubles too."""
        keys: set[str] = set()
        for found in self._source.read():
            try:
                match found:
                    case Refused():
                        refused.append(found)
                    case FoundSchedule():
                        made = self._fit.schedule(found)
                        if made.name in schedules:
                            other = schedules[made.name][0]
                            raise UnkeptError(f"its name here, {made.name}, is that of {other}")
                        schedules[made.name] = (found.name, made)
                    case FoundJob():
                        call = self._fit.job(found)
                        if _key(call) in keys:
                            raise UnkeptError(
                                "it is there twice, the same message: one job is made of both"
                            )
                        keys.add(_key(call))
                        yield call
            except UnkeptError as error:
                refused.append(Refused(name=found.name, reason=str(error)))

    def _chunks(self, calls: Iterable[Call], run: Run) -> Iterator[tuple[list[Call], set[str]]]:
        """Yield jobs, and the keys that an earlier import has used, in whatever queue."""
        rest = iter(calls)
        names: set[str] | None = None
        while chunk := list(islice(rest, _CHUNK)):
            if names is None:
                names = set(run(known_names())[0])
            keys = [_key(call) for call in chunk]
            known: set[str] = set()
            for queue in sorted(names | {_queue(call) for call in chunk}):
                known.update(run(throttled(queue, keys)))
            yield chunk, known

    def _differences(self, run: Run, refused: list[Refused]) -> list[ScheduleDifference]:
        """Compare with the database, which may refuse a schedule that Python takes."""
        label = self._source.label
        while True:
            wanted = [schedule for _, schedule in self._schedules.values()]
            try:
                return run(apply_schedules(label, wanted, dry_run=True))  # type: ignore[no-any-return]
            except EnqueueError:
                before = len(self._schedules)
                for name, (source_name, schedule) in list(self._schedules.items()):
                    try:
                        run(apply_schedules(label, [schedule], dry_run=True))
                    except EnqueueError as error:
                        refused.append(Refused(name=source_name, reason=str(error)))
                        del self._schedules[name]
                if len(self._schedules) == before:
                    raise

    def _steps(self, differences: list[ScheduleDifference]) -> list[ScheduleStep]:
        by_name = {each.name: each for each in differences}
        steps = []
        for name, (source_name, schedule) in self._schedules.items():
            other = by_name.pop(name, None)
            steps.append(
                ScheduleStep(
                    source_name=source_name,
                    name=name,
                    action="same" if other is None else other.action,
                    kind=schedule.kind,
                    when=(
                        f"{schedule.cron} {schedule.tz}"
                        if schedule.every is None
                        else f"every {schedule.every:g} s"
                    ),
                    detail=None if other is None else other.detail,
                )
            )
        return steps + [
            ScheduleStep(source_name=None, name=each.name, action=each.action)
            for each in by_name.values()
        ]

    def _digest_of(self, steps: list[ScheduleStep]) -> str:
        facts = [
            [step.name, step.action, schedule_facts(self._schedules[step.name][1]),
             dict(self._schedules[step.name][1].args)]
            for step in steps
            if step.source_name is not None
        ]  # fmt: skip
        text = json.dumps([self._source.label, facts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:_TOKEN]


def _enqueued(run: Run, calls: list[Call]) -> list[bool]:
    """Enqueue jobs, and return of each whether it is new."""
    ids: list[JobId] = []
    chunks = Chunks(ids=ids)
    for call in calls:
        if chunks.needs_clock(call):
            chunks.now = run(database_clock())
        statement = chunks.add(call)
        if statement is not None:
            run(statement)
    rest = chunks.rest()
    if rest is not None:
        run(rest)
    return [each.is_new for each in ids]


def _doubts(run: Run, kinds: list[str]) -> Iterator[str]:
    for kind in kinds:
        if run(queue_of(kind)) is None:
            yield f"no worker has declared kind {kind}"


def _key(call: Call) -> str:
    assert call.options.unique is not None
    return call.options.unique.key


def _queue(call: Call) -> str:
    assert call.options.queue is not None
    return call.options.queue


def _digest(call: Call) -> bytes:
    text = json.dumps(call.options.given(), default=str, sort_keys=True)
    return hashlib.blake2b(f"{call.kind} {text} {call.args}".encode(), digest_size=8).digest()
