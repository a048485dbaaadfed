"""What the end of a run means for its subject."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from forebay.arguments.json_guard import encode_args
from forebay.errors import EnqueueError, OutcomeRefused
from forebay.model.again import Again, Complete, Drop
from forebay.model.subjects import SubjectRun
from forebay.ops.protocol import Ended, SubjectEnd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.arguments.kinds import Kind
    from forebay.worker.run.call import Call


def with_subject(call: Call, ended: Ended | None, result: Any) -> Ended | None:
    """Return how a run ended after its handler returned, with what that means for its subject.

    Raises:
        OutcomeRefused: state or arguments cannot be saved, or no time is given. The attempt fails.
    """
    if ended is not None and ended.outcome not in ("done", "cancelled"):
        return ended  # It runs again, or is dead: the state stays as it was.
    end = SubjectEnd()
    kind = call.kind
    if ended is None or ended.outcome == "done":
        _decide(kind, result, end)
    given = result if isinstance(result, Again | Complete) else None
    data = _changed_state(call, None if given is None else given.state)
    if data is not None:
        end.data = data
    if given is not None and given.args is not None:
        try:
            end.args = msgspec.Raw(kind.encode(**given.args).encode())
        except (EnqueueError, TypeError) as error:
            raise OutcomeRefused("args", f"cannot be saved: {error}") from error
    ended = ended or Ended(0, "done")
    ended.subject = end
    return ended


def refuse_without_subject(kind: Kind, result: Any) -> None:
    """Refuse an outcome for subjects from the handler of a job.

    Raises:
        OutcomeRefused: the handler is not one of subjects.
    """
    if kind.subject is None and isinstance(result, Again | Complete | Drop):
        raise OutcomeRefused(
            type(result).__name__,
            f"is for handlers of subjects, and kind {kind.name} is one of jobs",
            hint="Declare it with @app.subject, or return Snooze.",
        )


def _decide(kind: Kind, result: Any, end: SubjectEnd) -> None:
    every = None if kind.subject is None else kind.subject.every
    if isinstance(result, Complete):
        end.then = "complete"
    elif isinstance(result, Drop):
        end.then = "drop"
    elif not isinstance(result, Again):
        end.then = "complete" if every is None else "again"
        end.every = msgspec.UNSET if every is None else every
    else:
        end.then = "again"
        if result.seconds is not None:
            end.after = result.seconds
        elif result.interval is not None:
            end.interval = result.interval
        elif result.at is not None:
            end.at = result.at.isoformat()
        elif every is not None:
            end.every = every
        else:
            raise OutcomeRefused(
                "Again",
                f"has no time, and kind {kind.name} no interval",
                hint="Return Again(60), or declare @app.subject(every=60).",
            )


def _changed_state(call: Call, given: Mapping[str, Any] | None) -> msgspec.Raw | None:
    """Return the state as JSON if the handler has changed it."""
    if given is not None:
        return msgspec.Raw(_encoded(call, dict(given)).encode())
    run = None if call.context is None else call.context.used_subject
    if run is None:
        return None
    text = _encoded(call, run.state)
    before = SubjectRun.of(call.jobs[0].headers)
    if before is not None and text == _encoded(call, before.state):
        return None
    return msgspec.Raw(text.encode())


def _encoded(call: Call, state: object) -> str:
    try:
        return encode_args(state, limits=call.kind.limits)
    except EnqueueError as error:
        text = str(error.problem) if hasattr(error, "problem") else str(error)
        raise OutcomeRefused("state", f"cannot be saved: {text}") from error
