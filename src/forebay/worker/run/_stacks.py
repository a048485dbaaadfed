"""Where the handler of a call is now, as a traceback: for the error of a hard timeout."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from forebay.policy.error_text import is_call_site

if TYPE_CHECKING:
    from types import FrameType

    from forebay.worker.run.call import Call

_FRAMES_MAX: Final = 1000


def stack_of(call: Call) -> TracebackType | None:
    """Return the frames of the handler, the innermost one last.

    The result is None if it does not run here or has not begun.

    The frames of a coroutine are the functions that wait, from the handler on. A thread may have
    run meanwhile.
    """
    if call.in_child:
        return None
    if call.thread_call is not None:
        frames = _of_thread(call.thread_call.thread_id)
    else:
        frames = _of_coroutine(call.task.get_coro())
    if not any(is_call_site(frame.f_code) for frame in frames):
        return None
    trace: TracebackType | None = None
    for frame in reversed(frames):
        line = frame.f_lineno or frame.f_code.co_firstlineno
        trace = TracebackType(trace, frame, frame.f_lasti, line)
    return trace


def _of_thread(thread_id: int | None) -> list[FrameType]:
    frame = None if thread_id is None else sys._current_frames().get(thread_id)  # noqa: SLF001
    frames: list[FrameType] = []
    while frame is not None and len(frames) < _FRAMES_MAX:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _of_coroutine(waiting: Any) -> list[FrameType]:
    # A coroutine, or a generator that is one; ``Task.get_stack`` shows the outermost frame only.
    frames: list[FrameType] = []
    while waiting is not None and len(frames) < _FRAMES_MAX:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is None:
            break
        frames.append(frame)
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
    return frames
