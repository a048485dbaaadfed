"""Acts: what a person may change, each with what it would do before it is done.

An act with an exact reverse is done at once, and its reverse is a button beside it. Every other
act shows first what it would do and to how many; its form carries the token of that plan.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from forebay.client import AsyncClient
from forebay.client.reader import refusal
from forebay.console._text import instant_of, number
from forebay.errors import ConfigError, ForebayError, shown
from forebay.model.change import JobFilter
from forebay.model.limits import Limits
from forebay.model.text import counted, whole_number

if TYPE_CHECKING:
    from forebay.model.change import ChangeAct

#: Conditions of a filter of jobs, as the page of jobs has them in its address.
FILTER: Final = (
    "queue", "kind", "tag", "state", "correlation_id", "ordering_key", "limit_key", "subject",
    "endpoint", "unique_key",
)  # fmt: skip

#: The limits of a queue, as fields of a form.
LIMITS: Final = tuple(field.name for field in dataclasses.fields(Limits))

#: Limits that go with another one if that is removed.
_WITH: Final = {"rate": "burst", "key_rate": "key_burst", "max_waiting": "max_waiting_group"}

#: Most names of a plan that are listed.
_NAMES_MAX: Final = 20

#: Acts whose end is remembered.
_RUNS_MAX: Final = 100


class Plan(NamedTuple):
    """What an act would do; nothing was done.

    Attributes:
        text: in a sentence.
        facts: names and values.
        jobs: how many jobs or dead letters; None: it concerns one thing.
        token: allows exactly what was counted; empty if there is none.
    """

    text: str
    facts: list[tuple[str, Any]]
    jobs: int | None = None
    token: str = ""


class Done(NamedTuple):
    """What became of an act whose reverse has other fields.

    Attributes:
        text: in a sentence.
        undo: the fields of the reverse: what was there before.
    """

    text: str
    undo: dict[str, str]


#: Does an act, with the token of the plan, and a function that takes the number of jobs so far.
Doing = Callable[
    [AsyncClient, Mapping[str, str], str, Callable[[int], None]], Awaitable[str | Done]
]
Planning = Callable[[AsyncClient, Mapping[str, str]], Awaitable[Plan]]


class Act(NamedTuple):
    """One act.

    Attributes:
        name: as the event log has it.
        permission: what a person must be allowed.
        label: of its button.
        fields: what it concerns, as names in its address.
        do: does it, and returns what became of it.
        plan: says what it would do; None: it has an exact reverse and needs no question.
        reverse: the act that undoes it exactly; None: it has a plan instead.
        is_long: it may take minutes, and continues while the person looks at something else.
        needs_token: it is done with the token of its plan only, as each long one.
    """

    name: str
    permission: str
    label: str
    fields: tuple[str, ...]
    do: Doing
    plan: Planning | None = None
    reverse: str | None = None
    is_long: bool = False
    needs_token: bool = False


class Run:
    """A long act that runs, or has ended."""

    def __init__(self, act: Act, total: int | None) -> None:
        self.act = act
        self.total = total
        self.done = 0
        #: What became of it; None while it runs.
        self.result: str | None = None
        self.error: ForebayError | None = None
        self.is_stopping = False

    def progress(self, done: int) -> None:
        """Take the number of jobs so far; stop between two steps if a person asked for it."""
        self.done = done
        if self.is_stopping:
            raise ForebayError(
                f"stopped after {counted(done, 'job')}",
                hint="What was done stays done. Begin again to finish it.",
            )


class Runs:
    """The long acts of one database."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._runs: dict[int, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, run: Run, doing: Awaitable[str | Done]) -> int:
        """Let an act run by itself; return its number."""
        number = next(self._numbers)
        self._runs[number] = run
        while len(self._runs) > _RUNS_MAX:
            del self._runs[next(iter(self._runs))]
        task = asyncio.create_task(self._keep(run, doing))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return number

    def get(self, number: int) -> Run | None:
        """Return an act by its number; None if it is unknown or forgotten."""
        return self._runs.get(number)

    @staticmethod
    async def _keep(run: Run, doing: Awaitable[str | Done]) -> None:
        try:
            result = await doing
            run.result = result.text if isinstance(result, Done) else result
        except Exception as error:
            run.error = error if isinstance(error, ForebayError) else refusal(error)
            if run.error is None:
                raise


def needed(form: Mapping[str, str], name: str) -> str:
    """Return a field; raise ``ConfigError`` if it is missing."""
    if not form.get(name):
        raise ConfigError(name, "is missing")
    return form[name]


def _number(form: Mapping[str, str], name: str) -> int:
    return _whole(needed(form, name), name)


def _whole(text: str, name: str) -> int:
    if (found := whole_number(text)) is None:
        raise ConfigError(name, f"is {shown(text)}, not a whole number")
    return found


def _filter(form: Mapping[str, str]) -> JobFilter:
    given: dict[str, Any] = {name: form[name] for name in FILTER if form.get(name)}
    if form.get("job"):
        given["ids"] = [_number(form, "job")]
    return JobFilter(**given) if given else JobFilter(all=True)


def _to(
    field: str, act: Callable[[AsyncClient, str], Awaitable[object]], sentence: str
) -> Callable[..., Awaitable[str]]:
    """Return what does an act to the one thing that a field names, and says the sentence of it."""

    async def do(client: AsyncClient, form: Mapping[str, str], *_: Any) -> str:
        name = needed(form, field)
        await act(client, name)
        return sentence.format(name)

    return do


async def _plan_cancel(client: AsyncClient, form: Mapping[str, str]) -> Plan:
    job_id = _number(form, "job")
    found = await client.job(job_id)
    states = [(f"in group {one.group}", one.state) for one in found]
    return Plan(f"Cancel job {job_id}. A running handler is requested to stop.", states)


async def _cancel(client: AsyncClient, form: Mapping[str, str], *_: Any) -> str:
    job_id = _number(form, "job")
    return f"Job {job_id}: {await client.cancel(job_id)}."


def _wanted(act: ChangeAct, form: Mapping[str, str]) -> dict[str, Any]:
    """Return what an act on many jobs gives them."""
    if act == "reschedule":
        return {"run_at": instant_of(needed(form, "run_at"), "run_at")}
    if act == "reprioritise":
        text = needed(form, "priority")
        sign = -1 if text.startswith("-") else 1
        return {"priority": sign * _whole(text.removeprefix("-"), "priority")}
    return {}


def _matching(act: ChangeAct, sentence: str) -> tuple[Doing, Planning]:
    """Return what does an act on all jobs that match, and what says what it would do."""

    async def plan(client: AsyncClient, form: Mapping[str, str]) -> Plan:
        wanted = _wanted(act, form)
        plan = await client.plan_change(act, _filter(form), **wanted)
        facts: list[tuple[str, Any]] = [
            *((f"of these {state}", f"{count:,}") for state, count in plan.states.items()),
            *(
                (f"left as they are: {answer}", f"{count:,}")
                for answer, count in plan.answers.items()
                if answer not in ("cancelled", "requested", "changed")
            ),
            ("oldest enqueued", plan.oldest_at),
            ("newest enqueued", plan.newest_at),
            *((name.replace("_", " "), value) for name, value in wanted.items()),
        ]
        text = sentence.format(counted(plan.jobs, "job"))
        return Plan(text, facts, plan.jobs, plan.token)

    async def do(
        client: AsyncClient, form: Mapping[str, str], token: str, progress: Callable[[int], None]
    ) -> str:
        change = getattr(client, f"{act}_matching")
        found = await change(_filter(form), **_wanted(act, form), token=token, progress=progress)
        return ", ".join(f"{n:,} {answer}" for answer, n in found.answers.items()) or (
            "No job matched"
        )

    return do, plan


async def _plan_redrive(client: AsyncClient, form: Mapping[str, str]) -> Plan:
    letter = await client.dead_letter(_number(form, "dead"))
    facts = [("job", letter.job_id), ("kind", letter.kind), ("died", letter.died_at)]
    return Plan(f"Redrive dead letter {letter.dead_id} as a new job.", facts)


async def _redrive(client: AsyncClient, form: Mapping[str, str], *_: Any) -> str:
    dead_id = _number(form, "dead")
    return f"Dead letter {dead_id} is redriven as job {await client.redrive(dead_id)}."


async def _plan_redrive_cause(client: AsyncClient, form: Mapping[str, str]) -> Plan:
    plan = await client.plan_redrive(cause=needed(form, "cause"))
    facts = [("first death", plan.oldest_at), ("last death", plan.newest_at)]
    text = f"Redrive {counted(plan.jobs, 'dead letter')}, each as a new job."
    return Plan(text, facts, plan.jobs, plan.token)


async def _redrive_cause(
    client: AsyncClient, form: Mapping[str, str], token: str, progress: Callable[[int], None]
) -> str:
    number = await client.redrive_matching(
        cause=needed(form, "cause"), token=token, progress=progress
    )
    return f"{counted(number, 'dead letter')} redriven."


async def _plan_purge(client: AsyncClient, form: Mapping[str, str]) -> Plan:
    plan = await client.plan_purge_dead(0, cause=needed(form, "cause"))
    facts = [
        ("of these redriven", number(plan.redriven)),
        ("first death", plan.oldest_at),
        ("last death", plan.newest_at),
    ]
    text = f"Delete {counted(plan.jobs, 'dead letter')} of this cause for good."
    return Plan(text, facts, plan.jobs, plan.token)


async def _purge(client: AsyncClient, form: Mapping[str, str], token: str, _: Any) -> str:
    deleted = await client.purge_dead(0, cause=needed(form, "cause"), token=token)
    return f"{counted(deleted, 'dead letter')} deleted."


async def _limit(client: AsyncClient, form: Mapping[str, str], *_: Any) -> Done:
    """Set the limits that a person has changed; another one may have changed the others."""
    queue = needed(form, "queue")
    wanted = {
        name: form[name].strip()
        for name in LIMITS
        if name in form and form[name] != form.get(f"was_{name}")
    }
    if not wanted:
        raise ConfigError("limits", "are as they were")
    changes = {name: _limit_value(name, text) for name, text in wanted.items()}
    before = await client.limit_queue(queue, **changes) or Limits()
    names = dict.fromkeys([*wanted, *(_WITH[name] for name in wanted if name in _WITH)])
    undo = {name: "" if (was := getattr(before, name)) is None else str(was) for name in names}
    said = ", ".join(f"{n.replace('_', ' ')} {text or 'removed'}" for n, text in wanted.items())
    return Done(f"Queue {queue}: {said}.", {"queue": queue, **undo})


def _limit_value(name: str, text: str) -> Any:
    if not text or name == "max_waiting_group":
        return text or None
    if name not in ("rate", "key_rate"):
        return _whole(text, name)
    try:
        return float(text)
    except ValueError:
        raise ConfigError(name, f"is {shown(text)}, not a number") from None


async def _concurrency(client: AsyncClient, form: Mapping[str, str], *_: Any) -> Done:
    worker = needed(form, "worker")
    wanted = _number(form, "concurrency") if form.get("concurrency") else None
    found = [one for one in await client.workers(jobs=0) if one.worker == worker]
    if not found:
        raise ConfigError("worker", f"{shown(worker)} does not run")
    await client.set_concurrency(wanted, worker=worker)
    before = found[0].concurrency
    return Done(
        f"Worker {worker}: concurrency {'as it was started' if wanted is None else wanted}.",
        {"worker": worker, "concurrency": "" if before is None else str(before)},
    )


def _chosen(form: Mapping[str, str]) -> dict[str, Any]:
    """Return which workers a form chooses; it does not choose all by leaving out both."""
    found: dict[str, Any] = {
        name: form[name] for name in ("worker", "app_version") if form.get(name)
    }
    if not found:
        raise ConfigError("worker", "is missing, and so is app_version")
    return found


async def _plan_stop(client: AsyncClient, form: Mapping[str, str]) -> Plan:
    plan = await client.plan_stop(**_chosen(form))
    more = len(plan.workers) - _NAMES_MAX
    facts: list[tuple[str, Any]] = [
        *(("worker", name) for name in plan.workers[:_NAMES_MAX]),
        *([("and", f"{more:,} more")] if more > 0 else []),
        ("running jobs", f"{plan.jobs:,}"),
    ]
    text = (
        f"Ask {counted(len(plan.workers), 'worker')} to stop. Running jobs have the grace time, the"
        " rest goes back without using an attempt. systemd or Kubernetes may start the process"
        " again."
    )
    return Plan(text, facts, len(plan.workers), plan.token)


async def _stop(client: AsyncClient, form: Mapping[str, str], token: str, _: Any) -> str:
    count = await client.stop_workers(**_chosen(form), token=token)
    return f"{counted(count, 'worker')} asked to stop: with the next heartbeat."


async def _plan_run(client: AsyncClient, form: Mapping[str, str]) -> Plan:
    found = await client.schedule(needed(form, "schedule"))
    facts = [("kind", found.kind), ("last", found.last_for)]
    return Plan(f"Enqueue a job of schedule {found.name} now.", facts)


async def _run(client: AsyncClient, form: Mapping[str, str], *_: Any) -> str:
    name = needed(form, "schedule")
    return f"Schedule {name}: job {await client.run_schedule(name)} is enqueued."


async def _plan_reset(client: AsyncClient, form: Mapping[str, str]) -> Plan:
    found = await client.endpoint(needed(form, "endpoint"))
    facts = [("breaker", found.breaker), ("waiting", f"{found.waiting:,}")]
    return Plan(f"Close the breaker of endpoint {found.name}: its deliveries are sent now.", facts)


_Q, _J, _S, _E = "change queues", "change jobs", "change schedules", "change endpoints"
_MATCHING: Final = ("job", *FILTER)

#: Every act, by its name.
ACTS: Final = {
    act.name: act
    for act in (
        Act("queues.pause", _Q, "Pause", ("queue",),
            _to("queue", lambda c, n: c.pause_queue(n), "Queue {} is paused."),
            reverse="queues.resume"),
        Act("queues.resume", _Q, "Resume", ("queue",),
            _to("queue", lambda c, n: c.resume_queue(n), "Queue {} is resumed."),
            reverse="queues.pause"),
        Act("queues.limit", _Q, "Set limits", ("queue", *LIMITS), _limit, reverse="queues.limit"),
        Act("workers.set", "change workers", "Set concurrency", ("worker", "concurrency"),
            _concurrency, reverse="workers.set"),
        Act("workers.stop", "change workers", "Stop", ("worker", "app_version"), _stop, _plan_stop,
            needs_token=True),
        Act("jobs.cancel", _J, "Cancel", ("job",), _cancel, _plan_cancel),
        Act("jobs.cancel_matching", _J, "Cancel all that match", _MATCHING,
            *_matching("cancel", "Cancel {}."), is_long=True),
        Act("jobs.retry_matching", _J, "Make ready now", _MATCHING,
            *_matching("retry", "Make {} ready now."), is_long=True),
        Act("jobs.reschedule_matching", _J, "Reschedule", (*_MATCHING, "run_at"),
            *_matching("reschedule", "Let {} start at another time."), is_long=True),
        Act("jobs.reprioritise_matching", _J, "Change priority", (*_MATCHING, "priority"),
            *_matching("reprioritise", "Give {} another priority."), is_long=True),
        Act("dead.redrive", _J, "Redrive", ("dead",), _redrive, _plan_redrive),
        Act("dead.redrive_matching", _J, "Redrive all", ("cause",),
            _redrive_cause, _plan_redrive_cause, is_long=True),
        Act("dead.purge", "purge", "Delete all", ("cause",), _purge, _plan_purge, is_long=True),
        Act("dead.mute", _J, "Mute", ("cause",),
            _to("cause", lambda c, n: c.mute_cause(n), "Cause {} is muted."),
            reverse="dead.unmute"),
        Act("dead.unmute", _J, "Unmute", ("cause",),
            _to("cause", lambda c, n: c.unmute_cause(n), "Cause {} is not muted."),
            reverse="dead.mute"),
        Act("schedules.pause", _S, "Pause", ("schedule",),
            _to("schedule", lambda c, n: c.pause_schedule(n), "Schedule {} is paused."),
            reverse="schedules.resume"),
        Act("schedules.resume", _S, "Resume", ("schedule",),
            _to("schedule", lambda c, n: c.resume_schedule(n), "Schedule {} is resumed."),
            reverse="schedules.pause"),
        Act("schedules.run", _S, "Run now", ("schedule",), _run, _plan_run),
        Act("endpoints.disable", _E, "Disable", ("endpoint",),
            _to("endpoint", lambda c, n: c.disable_endpoint(n, "in the console"),
                "Endpoint {} is disabled. Its deliveries wait."),
            reverse="endpoints.enable"),
        Act("endpoints.enable", _E, "Enable", ("endpoint",),
            _to("endpoint", lambda c, n: c.enable_endpoint(n), "Endpoint {} is enabled."),
            reverse="endpoints.disable"),
        Act("endpoints.reset", _E, "Close the breaker", ("endpoint",),
            _to("endpoint", lambda c, n: c.reset_endpoint(n),
                "The breaker of endpoint {} is closed."),
            _plan_reset),
    )
}  # fmt: skip

#: Acts whose button warns.
DESTRUCTIVE: Final = ("dead.purge", "jobs.cancel", "jobs.cancel_matching")

#: What a person can be allowed.
PERMISSIONS: Final = tuple(dict.fromkeys(act.permission for act in ACTS.values()))
