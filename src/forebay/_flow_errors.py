"""Errors of flows: jobs whose handlers have steps."""

# ruff: noqa: N818 - as in forebay.errors
from __future__ import annotations

from dataclasses import KW_ONLY

from forebay._error import ForebayError


class FlowError(ForebayError):
    """A step of a flow cannot be done, or its result cannot be had.

    A handler may catch it. Otherwise the job becomes a dead letter at once: the same attempt again
    would end the same way.

    Attributes:
        step: name of the step, with its key if it has one.
    """

    template = "step {step!r}"
    step: str


class StepFailed(FlowError):
    """A step has failed in all its attempts; its error is in the history of the job."""

    template = "step {step!r} failed: {error_type}: {error_message}"
    default_hint = "Catch it to compensate with further steps. A redriven job tries the step again."
    error_type: str
    error_message: str


class StepRefused(FlowError):
    """A step is declared or called in a way that does not fit the flow."""

    template = "step {step!r} {problem}"
    problem: str
    _: KW_ONLY
    hint: str | None = None


class StepChanged(FlowError):
    """The recorded result of a step does not fit the type that its function declares now."""

    template = "the recorded result of step {step!r} is no {expected}: {problem}"
    default_hint = (
        "Give the step another name, so that it runs again; or declare a type that takes both."
    )
    expected: str
    problem: str
    _: KW_ONLY
    hint: str | None = None


class StepTooLarge(FlowError):
    """The result of a step, or what a flow has recorded in all, is too large."""

    template = "step {step!r}: {problem}"
    default_hint = "Store the data in a table and return its key; or divide the flow into children."
    problem: str


class WaitTimeout(FlowError):
    """No signal came in time."""

    template = "step {step!r} waited {seconds:g} s, and no signal came"
    seconds: float


class WaitTaken(FlowError):
    """Another job waits for the same signal."""

    template = "step {step!r}: job {job_id} waits for signal {name!r} with key {key!r}"
    default_hint = "Give each flow a separate key, such as the id of what it is about."
    job_id: int
    name: str
    key: str


class ChildrenDied(FlowError):
    """Jobs that a flow gathers have died or were cancelled.

    Attributes:
        job_ids: their ids, at most 20.
    """

    template = "step {step!r}: {died} of {children} jobs did not end well, first job {job_id}"
    default_hint = 'Redrive them, and this job follows; or gather with on_dead="collect".'
    died: int
    children: int
    job_id: int
    _: KW_ONLY
    job_ids: tuple[int, ...] = ()


class ParkingSwallowed(FlowError):
    """The handler continued, returned, or replaced what it caught, where a step gave its slot back.

    An error of a clean-up there, in ``finally`` or ``with``, is one of the handler, and retried.
    """

    template = "the handler swallowed what step {step!r} raises to give the slot back"
    default_hint = "Catch Exception in handlers, not BaseException; let `finally` return nothing."
