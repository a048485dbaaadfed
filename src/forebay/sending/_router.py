"""``Router``: expands published events to deliveries.

Invariant "expanded once": the database writes an event and its deliveries in one transaction, and
skips an event that is there. So a crash, a lost answer and a second try are all harmless. See
docs/design/endpoints.md.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from forebay.arguments.kinds import Kind
from forebay.errors import DatabaseUnavailable, QueueFull
from forebay.model import Dead, Job, Retry
from forebay.model.outcome import Endings, Release
from forebay.model.text import logger
from forebay.ops import routing
from forebay.policy.retry import RetryPolicy
from forebay.sending._service import QueueService

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Mapping, Sequence

    from forebay.db.session import Session
    from forebay.model import Outcome
    from forebay.ops.operation import Operation

log = logger("forebay.endpoints")

#: The queue of published events.
QUEUE: Final = "forebay.publish"

#: The most events of one claim.
_BATCH_SIZE: Final = 1000

#: Calls at once in one process.
_CONCURRENCY: Final = 2

#: About how many deliveries one call may write, and the events of the first call.
_DELIVERIES: Final = 5000
_FIRST_EVENTS: Final = 20

#: How long a batch works on activations and replays; then their jobs run again, behind the others.
_STEPS_SECONDS: Final = 1.0
_STEP_PAUSE_SECONDS: Final = 0.01

#: How long events wait that cannot be expanded for a reason of the database.
_AGAIN_SECONDS: Final = 1.0

#: The jobs that are worked on in steps: the argument with the number of the row that has their
#: state, and the call.
_STEPS: Final[dict[str, tuple[str, Callable[[int], Operation[bool]]]]] = {
    "forebay.activate": ("subscription", routing.activate),
    "forebay.replay": ("replay", routing.replay_step),
}

#: Deadline of a call of the database.
_CALL_SECONDS: Final = 60.0


class Router(QueueService):
    """Expands published events: what a worker of the queue ``forebay.publish`` runs.

    Any number of processes may route. A job of the queue that is not an event becomes a dead
    letter.
    """

    def __init__(self) -> None:
        self._idle: list[Session] = []
        self._events = _FIRST_EVENTS

        async def route(jobs: list[Job]) -> Any:
            return await self._route(jobs)

        kind = Kind.declare(
            route,
            name=QUEUE,
            queue=QUEUE,
            batch_size=_BATCH_SIZE,
            retry=RetryPolicy(),
            hard_timeout_seconds=3600.0,
        )
        super().__init__(
            kind,
            title="routes published events",
            concurrency=_CONCURRENCY,
            call_seconds=_CALL_SECONDS,
        )

    async def open_resources(self, stack: contextlib.AsyncExitStack) -> Mapping[str, Any]:
        """Close the connections at the end; each is opened before its first call."""
        self._idle = [self._session() for _ in range(_CONCURRENCY)]
        for session in self._idle:
            stack.push_async_callback(session.close)
        return {}

    # --- the handler ---

    async def _route(self, jobs: Sequence[Job]) -> Endings:
        session = self._idle.pop() if self._idle else self._session()
        try:
            endings: dict[int, Outcome | Release | None] = {}
            steps = {job.job_id: job for job in jobs if _step_of(job) is not None}
            await self._expand(session, [job for job in jobs if job.job_id not in steps], endings)
            until = time.monotonic() + _STEPS_SECONDS
            for job in steps.values():
                endings[job.job_id] = await self._work_on(session, job, until)
            return Endings([endings[job.job_id] for job in jobs])
        finally:
            self._idle.append(session)

    async def _expand(
        self, session: Session, jobs: list[Job], endings: dict[int, Outcome | Release | None]
    ) -> None:
        """Expand events in calls that write a bounded number of deliveries.

        An event that fails is tried alone.
        """
        left, alone = jobs, 0
        while left:
            size = 1 if alone else self._events
            some, left = left[:size], left[size:]
            alone = max(alone - 1, 0)
            try:
                routed = await session.run(routing.route([job.job_id for job in some]))
            except (DatabaseUnavailable, QueueFull) as error:
                log.warning("router: %s", error)
                endings.update(dict.fromkeys((job.job_id for job in some + left), _again()))
                return
            except Exception as error:
                if len(some) > 1:
                    alone, left = len(some), some + left
                    continue
                log.error("router: event %s: %s", some[0].job_id, error)
                endings[some[0].job_id] = Retry(reason=str(error))
                continue
            self._adapt(len(some), routed.deliveries)
            for job in some:
                endings[job.job_id] = _ending(job, routed)

    def _adapt(self, events: int, deliveries: int) -> None:
        if deliveries > 2 * _DELIVERIES:
            self._events = max(1, events * _DELIVERIES // deliveries)
        elif events >= self._events and deliveries < _DELIVERIES // 2:
            self._events = min(_BATCH_SIZE, 2 * self._events)

    async def _work_on(self, session: Session, job: Job, until: float) -> Outcome | Release | None:
        """Do steps of an activation or a replay until it is over, or the time is."""
        step = _step_of(job)
        assert step is not None
        if isinstance(step, Dead):
            return step
        try:
            while not await session.run(step):
                if time.monotonic() > until:
                    return Release(_STEP_PAUSE_SECONDS)
                await asyncio.sleep(_STEP_PAUSE_SECONDS)
        except (DatabaseUnavailable, QueueFull) as error:
            log.warning("router: %s", error)
            return _again()
        except Exception as error:
            log.error("router: job %s: %s", job.job_id, error)
            return Retry(reason=str(error))
        return None


def _again() -> Release:
    return Release(_AGAIN_SECONDS)


def _ending(job: Job, routed: routing.Routed) -> Outcome | Release | None:
    if job.job_id in routed.unknown:
        return Dead(f"event type {job.kind!r} does not exist")
    # The lease was revoked: the settlement will be refused.
    return _again() if job.job_id in routed.missing else None


def _step_of(job: Job) -> Operation[bool] | Dead | None:
    """Return the call for an activation or a replay, or Dead if its arguments are wrong.

    The result is None for an event.
    """
    if job.kind not in _STEPS:
        return None
    member, step = _STEPS[job.kind]
    number = job.args.get(member)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 2**63:
        return Dead(f"a job {job.kind} needs a number {member}")
    return step(number)
