"""Warns when a job blocks the event loop, with the place in its handler.

While the loop is blocked, no other coroutine handler, claim, settlement or timeout runs in this
process. Heartbeats continue.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forebay.model.text import logger
from forebay.policy.error_text import is_call_site
from forebay.worker.ground.job_log import fields_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from forebay.worker.run.call import Call

log = logger("forebay.worker")

#: A loop that does not respond for this long is blocked.
_BLOCKED_SECONDS: Final = 1.0
#: Pause between two checks.
_CHECK_SECONDS: Final = 0.5
#: Pause between two warnings about one kind.
_QUIET_SECONDS: Final = 60.0


class LoopWatch:
    """A thread that checks whether the loop of the worker responds, while coroutine handlers run.

    It changes nothing but the log. Create it in the loop.

    Args:
        calls: returns the running calls of coroutine handlers; called in the thread.
        blocked_seconds: a loop that does not respond for this long is blocked.
    """

    def __init__(
        self, calls: Callable[[], Sequence[Call]], *, blocked_seconds: float = _BLOCKED_SECONDS
    ) -> None:
        self._calls = calls
        self._blocked_seconds = blocked_seconds
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._stopping = threading.Event()
        self._quiet_until: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, name="forebay-loop-watch", daemon=True)

    def start(self) -> None:
        """Start to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop to watch, without waiting for the thread."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(_CHECK_SECONDS):
            try:
                if self._calls() and not self._check():
                    return
            except Exception:  # a log that fails, or calls that changed while they were listed
                log.debug("the loop was not checked", exc_info=True)

    def _check(self) -> bool:
        """Wait until the loop responds; return False if it is closed or the worker stops."""
        answered = threading.Event()
        sent_at = time.monotonic()
        try:
            self._loop.call_soon_threadsafe(answered.set)
        except RuntimeError:
            return False
        # The second wait is for a process that was frozen as a whole.
        if answered.wait(self._blocked_seconds) or answered.wait(self._blocked_seconds / 20):
            return True
        call, place = self._blocker()
        warned = place is not None and self._may_warn(call)
        fields = _fields(call)
        if warned:
            log.warning(
                "%s blocks the event loop, for %.1f s until now, at %s; no other job can "
                "start or end:"
                " use a plain function, or await asyncio.to_thread(...)",
                _name(fields),
                time.monotonic() - sent_at,
                place,
                extra=fields,
            )
        while not answered.wait(_CHECK_SECONDS):
            if self._stopping.is_set():
                return False
        if warned:
            seconds = time.monotonic() - sent_at
            log.warning(
                "the event loop was blocked %.1f s by %s",
                seconds,
                _name(fields),
                extra=fields | {"blocked_seconds": round(seconds, 3)},
            )
        return True

    def _blocker(self) -> tuple[Call | None, str | None]:
        """Return the call that blocks the loop and where.

        There is no call if another task blocks it, and no place if it is a task of this library.
        """
        task = asyncio.current_task(self._loop)
        call = next((call for call in self._calls() if call.task is task), None)
        frame: FrameType | None = sys._current_frames().get(self._loop_thread)  # noqa: SLF001
        # The outermost frame of the handler, or of another task.
        while frame is not None and (before := frame.f_back) is not None:
            if is_call_site(before.f_code) or before.f_code.co_filename.endswith(
                "asyncio/events.py"
            ):
                break
            frame = before
        if task is None or frame is None:
            return None, None
        if str(frame.f_globals.get("__name__", "")).startswith("forebay.") and call is None:
            return None, None
        code = frame.f_code
        return call, f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"

    def _may_warn(self, call: Call | None) -> bool:
        name = "" if call is None else call.kind.name
        now = time.monotonic()
        if now < self._quiet_until.get(name, 0.0):
            return False
        self._quiet_until[name] = now + _QUIET_SECONDS
        return True


def _fields(call: Call | None) -> dict[str, Any]:
    return {} if call is None else fields_of(call.helds[0], call.kind)


def _name(fields: dict[str, Any]) -> str:
    return f"job {fields['job_id']} ({fields['kind']})" if fields else "a task that a job started"
