"""Callbacks of gathers: jobs that get the results of others as arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from forebay.errors import (
    ChildrenDied,
    InvalidJob,
    JobNotFound,
    StepRefused,
)
from forebay.ops.claimed import decoded_args, raw_args
from forebay.ops.flows import CALLBACK_HEADER, GIVEN_TO_CALLBACKS
from forebay.ops.protocol import Ended
from forebay.worker.ground.held import job_of
from forebay.worker.run._flow import Unwound
from forebay.worker.run._step_values import unkept

if TYPE_CHECKING:
    from forebay.arguments.kinds import Kind
    from forebay.ops.flows import Gathered
    from forebay.worker.ground.held import HeldJob
    from forebay.worker.run._step_store import StepStore

#: What errors call the step.
_STEP: Final = "gather"

#: An operator has made it due before the others have ended; it looks again after this time.
_AGAIN_SECONDS: Final = 60.0


def is_incomplete(items: list[Any]) -> bool:
    """Whether a callback is among jobs that start: its arguments are not known yet."""
    if len(items) == 1:  # Most calls; this runs for each.
        return items[0] is None
    return any(item is None for item in items)


async def callback_item(kind: Kind, held: HeldJob, group: str, store: StepStore) -> Any:
    """Return what the handler gets for a callback: its arguments, and the results.

    Raises:
        Unwound: the other jobs have not all ended.
        ChildrenDied: some died, and the callback was not to collect.
        StepRefused: the results are past retention, do not fit the handler, or one was not kept.
    """
    names = kind.arguments.names
    wanted = [name for name in GIVEN_TO_CALLBACKS if names is None or name in names]
    try:
        ends = await store.results_of(held, values="results" in wanted)
    except JobNotFound as error:
        raise StepRefused(_STEP, f"has no results: {error.message}") from None
    if any(end.outcome is None for end in ends):
        raise Unwound(_STEP, Ended(0, "snoozed", after=_AGAIN_SECONDS))
    bad = [end for end in ends if end.outcome != "done"]
    if bad and (held.row.headers or {})[CALLBACK_HEADER] != "collect":
        raise ChildrenDied(
            _STEP, len(bad), len(ends), bad[0].job_id, job_ids=tuple(end.job_id for end in bad[:20])
        )
    given: dict[str, Any] = {}
    if "results" in wanted:
        given["results"] = [_result(end) for end in ends]
    if "died" in wanted:
        given["died"] = [_death(end) for end in bad]
    return _item(kind, held, group, {**decoded_args(held.row.args), **given})


def _result(end: Gathered) -> Any:
    if end.outcome != "done":
        return None
    if end.problem is not None:
        raise unkept(_STEP, end)
    return None if end.value is None else msgspec.json.decode(end.value)


def _death(end: Gathered) -> dict[str, Any]:
    return {
        "index": end.nr - 1,
        "job_id": end.job_id,
        "outcome": end.outcome,
        "problem": end.problem,
    }


def _item(kind: Kind, held: HeldJob, group: str, args: dict[str, Any]) -> Any:
    if kind.takes_raw:
        return raw_args(args)
    try:
        item = kind.decode(args)
    except InvalidJob as error:
        raise StepRefused(_STEP, f"gives arguments that the handler refuses: {error}") from None
    if kind.is_batch and item is args:
        return msgspec.structs.replace(job_of(held, kind, group), args=args)
    return item
