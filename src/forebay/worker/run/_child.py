"""The child process that runs suspects, and handlers that ask for a process, one at a time.

A suspect may have killed its worker. It runs here alone, so that another death harms no other job
and has a known cause. The child and its parent exchange messages over a socket: jobs in, outcomes
out. The child exits when its parent is gone. A child is reused: before each call it restores the
working folder, the file mode mask and the locale.

Run as ``python -m forebay.worker.run._child FD PARENT`` by ``Children``.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import importlib
import locale
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

import msgspec

from forebay.config import WorkerSettings
from forebay.forks import keep_from_copies, worker_runs
from forebay.ops.sendable import sendable_json
from forebay.worker.ground.common import Common
from forebay.worker.ground.held import Batch, HeldJob, Lease
from forebay.worker.ground.log_format import log_to_stderr
from forebay.worker.run._resource_limits import limit_resources
from forebay.worker.run.executor import Executor
from forebay.worker.run.messages import (
    ChildReport,
    Start,
    Stop,
    decode_work,
    framed,
    receive,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.ops.protocol import Ended
    from forebay.worker.ground.application import Application

    class _Loaded(Application, Protocol):
        """The application that a child has imported."""

        def with_functions(self, dsn: str) -> str:
            """Return an address with the functions of the application that open connections."""


#: How often a child checks that its parent lives. Another process may hold the parent's end of the
#: socket open.
_PARENT_CHECK_MILLIS: Final = 1000
#: After this number of such checks without an answer of the event loop the child ends, unless a
#: coroutine may block the loop.
_SILENT_CHECKS: Final = 30


class _ProcessState:
    """The state that all calls of a process share, as it was before the first call."""

    def __init__(self) -> None:
        self._folder = os.open(".", os.O_RDONLY)
        self._mask = _mask()
        self._locale = locale.setlocale(locale.LC_ALL)

    def restore(self) -> None:
        """Undo the changes of a call."""
        os.fchdir(self._folder)
        os.umask(self._mask)
        if locale.setlocale(locale.LC_ALL) != self._locale:
            locale.setlocale(locale.LC_ALL, self._locale)


def _mask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


class _LoopCheck:
    """Whether the event loop of this process answers.

    A handler that closed descriptors may have closed those of the loop, which then never wakes.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._executor: Executor | None = None
        self._is_answered = True
        self._checks = 0

    def begin(self, executor: Executor) -> None:
        """From here on the loop must answer."""
        self._executor = executor
        self._loop = asyncio.get_running_loop()

    def is_well(self) -> bool:
        """Return whether it answered one of the last checks; call it in another thread."""
        if self._loop is None or self._executor is None:
            return True
        if self._is_answered or self._executor.coroutine_calls():
            self._checks = 0
        if self._is_answered:
            self._is_answered = False
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._answer)
        self._checks += 1
        return self._checks <= _SILENT_CHECKS

    def _answer(self) -> None:
        self._is_answered = True


class _PipeToParent:
    """Sends the outcomes of a child to its parent.

    Args:
        writer: to the parent.
    """

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        #: Offsets of the jobs that have no report yet.
        self.missing: set[int] = set()

    def send(self, answer: ChildReport) -> None:
        self._writer.write(framed(sendable_json(answer)))
        self.missing.discard(answer.offset)

    def answer_missing(self) -> None:
        """Report jobs that ended without a report: the database refused their transaction because
        the lease is lost.
        """
        for offset in list(self.missing):
            self.send(ChildReport(offset=offset, lease_lost=True))

    def progress(self, helds: Sequence[HeldJob], done: float, note: str) -> None:
        report = ChildReport(progress=(done, note), offset=helds[0].row.offset)
        message = framed(sendable_json(report))
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._writer.write, message)

    def done(self, jobs: Sequence[HeldJob]) -> None:
        for job in jobs:
            report = ChildReport(offset=job.row.offset, counters=_taken(job), child=job.child)
            self.send(report)

    def end(self, job: HeldJob, ended: Ended, *, solo: bool = False) -> None:
        job.raised = None  # The parent logs the failure.
        self.send(
            ChildReport(
                offset=job.row.offset,
                ended=ended,
                solo=solo,
                counters=_taken(job),
                child=job.child,
            )
        )

    def settled_by_handler(self, job: HeldJob, ended: Ended | None) -> None:
        self.send(ChildReport(offset=job.row.offset, settled=True, ended=ended))

    def holds_back(self, job: HeldJob) -> bool:
        """False: the parent has decided before it sent the job."""
        del job
        return False

    def lease_lost(self, lease: Lease) -> None:
        """Its jobs are reported when their call has ended."""


def _taken(job: HeldJob) -> list[dict[str, Any]]:
    """Return the counters of the call; the first report carries them."""
    counters, job.batch.counters = job.batch.counters, []
    return counters


def load_app(start: Start) -> _Loaded:
    """Import the application as its worker did; return the part that workers use."""
    sys.path[:] = start.path
    if start.is_script:
        # Not "__main__": the script must not repeat what it does when it is run.
        found: Any = runpy.run_path(start.module, run_name="__mp_main__")[start.attribute]
    else:
        found = importlib.import_module(start.module)
        for part in start.attribute.split("."):
            found = getattr(found, part)
    internals: _Loaded = found._internals
    return internals


async def _main(descriptor: int, check: _LoopCheck) -> None:
    connection = socket.socket(fileno=descriptor)
    keep_from_copies(connection, socket.socket.fileno)
    reader, writer = await asyncio.open_connection(sock=connection)
    start = msgspec.json.decode(await receive(reader), type=Start)
    if start.log is not None:
        log_to_stderr(*start.log)
    app = load_app(start)
    settings = WorkerSettings(**{**start.settings, "given": frozenset()})
    raw_kinds = {kind.name for kind in app.kinds if kind.takes_raw}
    pipe = _PipeToParent(writer)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(worker_runs())
        common = Common(
            app, app.with_functions(start.dsn), settings, start.group, start.name, weights={}
        )
        executor = Executor(
            common, pipe, await app.open_resources(stack), on_free=pipe.answer_missing
        )
        executor.transactions.is_pooled = start.is_pooled
        process_state = _ProcessState()
        check.begin(executor)
        pipe.send(ChildReport(ready=True))
        while True:
            message = await receive(reader)
            with contextlib.suppress(msgspec.ValidationError):
                stop = msgspec.json.decode(message, type=Stop)
                executor.cancel([stop.job_id])
                continue
            try:
                work = decode_work(message, raw_kinds)
                app.follow(work.settings)
                batch = Batch(Lease(work.lease_id, 0.0), work.claim_no, 1, set(work.offsets))
                helds = []
                for row, offset in zip(work.rows, work.offsets, strict=True):
                    row.offset = offset
                    helds.append(HeldJob(row, batch, work.lane))
                process_state.restore()
                limit_resources(app.kinds.get(work.rows[0].kind))
            except Exception as error:
                # An error of this library: the job must not pay for it.
                pipe.send(ChildReport(broken=f"{type(error).__name__}: {error}"))
                continue
            pipe.missing = set(work.offsets)
            executor.take(helds)


def _watch_and_run(descriptor: int, parent: int, crash: int | None = None) -> None:
    if crash is not None:
        # The parent reads there where a fatal signal ended this process. Not for copies of it.
        file = os.fdopen(crash, "wb", buffering=0)
        keep_from_copies(file, lambda file: int(file.fileno()))
        faulthandler.enable(file)
    check = _LoopCheck()
    threading.Thread(
        target=_end_with_parent, args=(os.dup(descriptor), parent, check), daemon=True
    ).start()
    try:
        asyncio.run(_main(descriptor, check))
    except (asyncio.IncompleteReadError, ConnectionError):
        # The parent is gone or no longer needs this child. A handler that still runs ends with the
        # process.
        _end()
    except BaseException:
        # Threads that a handler left must not keep a process without an event loop.
        traceback.print_exc()
        os._exit(1)


def _end_with_parent(descriptor: int, parent: int, check: _LoopCheck) -> None:
    # A thread watches the worker: a handler that blocks the loop must not outlive it. The check of
    # the parent's id is needed because a process forked in the worker may hold a copy of the other
    # end, so the socket may stay open.
    poll = select.poll()
    poll.register(descriptor, select.POLLHUP | getattr(select, "POLLRDHUP", 0))
    while os.getppid() == parent and not poll.poll(_PARENT_CHECK_MILLIS) and check.is_well():
        pass
    _end()


def _end() -> NoReturn:
    """End this process and the programs that its handlers started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    _watch_and_run(*(int(argument) for argument in sys.argv[1:4]))
