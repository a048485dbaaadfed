"""Child processes, for suspects and for handlers that ask for one, as seen from the worker.

Invariant: only a death in a call of one job uses an attempt. A child that dies affects only the
jobs that it was running. If these were several jobs of one call, the worker then runs them one by
one. A child that cannot start uses no attempt.

Invariant "no child without a limit": a child whose messages ended is killed after a second; one
that stands still, so that not even its watching thread uses processor time, after half a minute.
One whose event loop no longer answers ends itself. One that works has the limits of its handler.

Invariant "one taker": a child has one call from the time it is taken until it has answered. Its
answers name jobs only by their place in a claim, so those of another call would end other jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from forebay.errors import HardTimeout
from forebay.forks import keep_from_copies
from forebay.model.text import logger, signal_name
from forebay.ops.protocol import Ended
from forebay.worker.ground.held import Raised
from forebay.worker.ground.log_format import log_choice
from forebay.worker.run import endings
from forebay.worker.run.messages import (
    ChildReport,
    Start,
    Stop,
    Work,
    framed,
    receive,
    settings_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forebay.arguments.kinds import Kind
    from forebay.config import WorkerSettings
    from forebay.model.job import Job
    from forebay.worker.ground.common import Common
    from forebay.worker.ground.held import HeldJob

log = logger("forebay.worker")

#: How long a child may take to import the application.
_START_SECONDS = 60.0
#: A child ends after this time without work.
_IDLE_SECONDS = 30.0
#: The child enforces the hard timeout itself. The parent kills the child this long after that
#: timeout.
_KILL_AFTER_SECONDS = 2.0
#: How often the number of children that are kept ready is checked, and how soon after one that
#: could not start.
_LOOK_SECONDS = 0.2
_AGAIN_SECONDS = 5.0
#: How long a suspect waits for a busy child before the worker starts another one.
_PATIENCE_SECONDS = 0.05
#: How long a child may live after its messages ended, and how long a killed one may take to end.
_DEATH_SECONDS = 1.0
_KILLED_SECONDS = 5.0
#: How often it is checked that a child has used processor time; after this number of checks without
#: any it is killed.
_STILL_CHECK_SECONDS = 10.0
_STILL_CHECKS = 3
#: How much of the stacks of a crash is read: that of the thread that crashed comes first or soon.
_CRASH_BYTES_MAX = 100_000


class ChildFailed(Exception):  # noqa: N818 - what happened
    """The child could not start. ``after``: seconds until the next try."""

    after = 0.0


class Child:
    """One child process."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        connection: socket.socket,
        crash: BinaryIO | None,
    ) -> None:
        self._connection = connection
        self._crash = crash
        self._stack = ""
        self.process = process
        self.reader = reader
        self.writer = writer

    def send(self, message: Any) -> None:
        self.writer.write(framed(msgspec.json.encode(message)))

    async def answer(self) -> ChildReport:
        return msgspec.json.decode(await receive(self.reader), type=ChildReport)

    async def death(self) -> str:
        """Wait a short time until the process has ended, then kill it; return how it died."""
        if not await self._ends_within(_DEATH_SECONDS):
            await self.kill()
            return "killed, because it had lost its connection to the worker"
        code = self.process.returncode
        assert code is not None
        return f"killed by {signal_name(-code)}" if code < 0 else f"exit code {code}"

    def crash_stack(self) -> str:
        """Return where the handler was when a fatal signal ended the process; empty for others.

        Call it when the process has ended.
        """
        if self._crash is not None:
            with self._crash as file:
                written = os.pread(file.fileno(), _CRASH_BYTES_MAX, 0).decode(errors="replace")
            self._crash = None
            # The stacks of all threads follow each other, each with an empty line after it.
            first, _, rest = written.partition("Current thread")
            if stack := rest.partition("\n\n")[0].partition("\n")[2]:
                self._stack = f"{first.partition(chr(10))[0]}\n{stack}"
        return self._stack

    async def hang_up(self) -> None:
        """Wait until the process has ended, end the programs that it started, then end the stream
        of its messages. A child that stands still is killed.

        Processes that the child forked may keep its end of the socket open while they live.
        """
        used: float | None = None
        checks = 0
        while not await self._ends_within(_STILL_CHECK_SECONDS):
            before, used = used, _processor_seconds(self.process.pid)
            checks = checks + 1 if used is not None and used == before else 0
            if checks == _STILL_CHECKS:
                log.error("child process %s stands still and is killed", self.process.pid)
                self._kill_group()
        self._kill_group()
        self.crash_stack()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RD)

    async def kill(self) -> None:
        if self.process.returncode is None:
            self._kill_group()
        self.writer.close()
        if not await self._ends_within(_KILLED_SECONDS):
            log.error("child process %s was killed and has not ended", self.process.pid)

    async def _ends_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.process.wait()
        return self.process.returncode is not None

    def _kill_group(self) -> None:
        # The child leads a process group. Programs that a handler started are in it, unless they
        # left it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


class Children:
    """A few children: started when needed, reused, ended when idle, except for a number that is
    kept ready.
    """

    def __init__(
        self,
        start: Start | None,
        settings: WorkerSettings,
        on_progress: Callable[[Sequence[HeldJob], float, str], None],
        *,
        kept: int = 0,
        followed: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._followed = followed
        self._on_progress = on_progress
        self._kept = kept
        self._folder = _working_folder()
        self._start = start
        self._settings = settings
        self._idle: list[tuple[Child, asyncio.TimerHandle]] = []
        #: Children that run a call, with the id of the job whose cancellation concerns them.
        self._running: dict[Child, int] = {}
        self._enders: set[asyncio.Task[None]] = set()
        self._failures = 0
        # One child starts at a time. A waiting call takes the first free child, new or old.
        self._starter: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._failed_starts = 0
        self._failure = ""

    @property
    def available(self) -> bool:
        """Whether children can be started."""
        return self._start is not None

    def running_job_ids(self) -> list[int]:
        """Ids of the jobs in children."""
        return list(self._running.values())

    def cancel(self, job_ids: set[int]) -> None:
        """Ask the handlers of some jobs to stop."""
        for child, job_id in self._running.items():
            if job_id in job_ids:
                child.send(Stop(job_id))

    async def kill_running(self) -> None:
        """Kill the children that run a call."""
        for child in list(self._running):
            await child.kill()

    async def keep_ready(self) -> None:
        """Keep a number of children alive, busy or idle, until cancelled: start them now, and
        others for those that died.
        """
        while True:
            failed_starts = self._failed_starts
            while self._alive() < self._kept and self._failed_starts == failed_starts:
                if self._starter is None:
                    self._starter = asyncio.create_task(self._start_one())
                await asyncio.wait({self._starter})
            pause = _LOOK_SECONDS if self._failed_starts == failed_starts else _AGAIN_SECONDS
            await asyncio.sleep(pause)

    def _alive(self) -> int:
        idle = sum(child.process.returncode is None for child, _ in self._idle)
        return idle + len(self._running)

    async def run(self, held: HeldJob, kind: Kind, job: Job) -> ChildReport:
        """Run one job; return how it ended, including the death of the child."""
        (answer,) = await self.run_call([held], kind, [job])
        return answer

    async def run_call(
        self,
        helds: Sequence[HeldJob],
        kind: Kind,
        jobs: Sequence[Job],
        *,
        on_start: Callable[[], None] = lambda: None,
    ) -> list[ChildReport]:
        """Run one call of a handler; return how each of its jobs ended.

        If the child dies in a call of one job, the job failed. If the call has several jobs, each
        unfinished one is reported as ``died``, because the job that killed the child is unknown.

        Args:
            helds: the jobs, all of one claim and one kind.
            kind: their handler.
            jobs: the jobs as the handler sees them.
            on_start: called when a child has the jobs.
        """
        key = jobs[0].job_id
        try:
            child = await self._child()
        except ChildFailed as error:
            self._failures += 1
            error.after = min(2.0**self._failures, 60.0)
            log.error(
                "cannot start a process for job %s, next try in %g s: %s", key, error.after, error
            )
            return [ChildReport(ended=Ended(0, "released", after=error.after)) for _ in helds]
        self._failures = 0
        self._running[child] = key
        hard = kind.hard_timeout_seconds or self._settings.hard_timeout_seconds
        answers: dict[int, ChildReport] = {}
        offsets = [held.row.offset for held in helds]
        try:
            child.send(_work(helds, self._followed()))
            on_start()
            async with asyncio.timeout(None if hard is None else hard + _KILL_AFTER_SECONDS):
                broken = await self._receive(child, helds, answers)
        except TimeoutError:
            await child.kill()
            late = HardTimeout(hard or 0.0)
            for held, job in zip(helds, jobs, strict=True):
                held.raised = held.raised or Raised(late)
                ended = endings.failure(kind, job, late)
                answers.setdefault(held.row.offset, ChildReport(ended=ended, solo=kind.transaction))
            return [answers[offset] for offset in offsets]
        except (asyncio.IncompleteReadError, ConnectionError):
            how = await child.death()
            if len(helds) == 1:
                lost = endings.lost_child(kind, jobs[0], how, child.crash_stack())
                return [ChildReport(ended=lost, solo=kind.transaction)]
            left = len(helds) - len(answers)
            log.warning("one of %s jobs killed the process that ran them: %s", left, how)
            return [answers.get(offset, ChildReport(died=True)) for offset in offsets]
        except BaseException:
            await child.kill()
            raise
        finally:
            del self._running[child]
        if broken is not None:
            await child.kill()
            log.error("a child process failed before it could run job %s: %s", key, broken)
            return [ChildReport(ended=Ended(0, "released", after=5.0)) for _ in helds]
        if any(answer.spoils for answer in answers.values()):
            await child.kill()
        else:
            self._keep(child)
        return [answers[offset] for offset in offsets]

    async def _receive(
        self, child: Child, helds: Sequence[HeldJob], answers: dict[int, ChildReport]
    ) -> str | None:
        """Receive the answer of each job, by its offset.

        Return the error of a child that failed before, else None.
        """
        while len(answers) < len(helds):
            answer = await child.answer()
            if answer.broken is not None:
                return answer.broken
            if answer.progress is not None:
                self._on_progress(helds, *answer.progress)
            else:
                answers[answer.offset] = answer
                helds[0].batch.counters += answer.counters
        return None

    async def close(self) -> None:
        """End all children."""
        if self._starter is not None:
            self._starter.cancel()
            await asyncio.gather(self._starter, return_exceptions=True)
        for child, timer in self._idle:
            timer.cancel()
            await child.kill()
        self._idle.clear()
        for child in list(self._running):
            await child.kill()
        if self._enders:
            _, left = await asyncio.wait(self._enders, timeout=_KILLED_SECONDS)
            for task in left:
                task.cancel()

    def _keep(self, child: Child) -> None:
        timer = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._end_idle, child)
        self._idle.append((child, timer))
        self._changed.set()

    def _end_idle(self, child: Child) -> None:
        if child.process.returncode is None and self._alive() <= self._kept:
            self._idle = [item for item in self._idle if item[0] is not child]
            self._keep(child)
            return
        self._idle = [item for item in self._idle if item[0] is not child]
        self._keep_until_done(asyncio.get_running_loop().create_task(child.kill()))

    def _keep_until_done(self, task: asyncio.Task[None]) -> None:
        self._enders.add(task)
        task.add_done_callback(self._enders.discard)

    async def _child(self) -> Child:
        began, failed_starts = time.monotonic(), self._failed_starts
        while True:
            while self._idle:
                child, timer = self._idle.pop()
                timer.cancel()
                if child.process.returncode is None:
                    return child
            if self._failed_starts != failed_starts:
                raise ChildFailed(self._failure)
            # Short suspects take turns in the existing children; long ones get additional children.
            waited = time.monotonic() - began
            if self._starter is None and (not self._running or waited > _PATIENCE_SECONDS):
                self._starter = asyncio.create_task(self._start_one())
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await self._changed.wait()

    async def _start_one(self) -> None:
        try:
            self._keep(await self._started())
        except (ChildFailed, OSError) as error:
            self._failure = str(error)
            self._failed_starts += 1
            self._changed.set()
        finally:
            self._starter = None

    async def _started(self) -> Child:
        if self._start is None:
            raise ChildFailed("the application's module is not known")
        ours, theirs = socket.socketpair()
        keep_from_copies(ours, socket.socket.fileno)
        crash = _crash_file()
        pass_fds = [theirs.fileno(), *([crash.fileno()] if crash is not None else [])]
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "forebay.worker.run._child",
                str(theirs.fileno()),
                str(os.getpid()),
                *map(str, pass_fds[1:]),
                pass_fds=pass_fds,
                # A handler of this process may have changed its folder, and the search path may be
                # relative.
                cwd=self._folder if self._folder is not None and self._folder.is_dir() else None,
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()  # A child that has started ends when it reads the end of its socket.
            if crash is not None:
                crash.close()
            raise
        finally:
            theirs.close()
        child = Child(process, reader, writer, ours, crash)
        self._keep_until_done(asyncio.create_task(child.hang_up()))
        child.send(self._start)
        try:
            async with asyncio.timeout(_START_SECONDS):
                answer = await child.answer()
            if not answer.ready:
                raise ChildFailed("it did not say that it is ready")
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            await child.kill()
            raise ChildFailed(f"it ended while importing {self._start.module}") from None
        except BaseException:
            await child.kill()
            raise
        return child


def _work(helds: Sequence[HeldJob], followed: Mapping[str, Any]) -> Work:
    batch = helds[0].batch
    offsets = [held.row.offset for held in helds]
    rows = [held.row for held in helds]
    return Work(batch.lease.lease_id, batch.claim_no, rows, offsets, helds[0].lane, dict(followed))


def _processor_seconds(pid: int) -> float | None:
    """Return the processor time that a process has used; None where the system does not tell."""
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError):
        # The number that clock_getcpuclockid(3) returns.
        return time.clock_gettime(~pid << 3 | 2)
    return None


def _crash_file() -> BinaryIO | None:
    """Return a new file without a name for the stack of a crash; None where there is no space."""
    with contextlib.suppress(OSError):
        return tempfile.TemporaryFile(buffering=0)
    return None


def _working_folder() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:  # It was removed.
        return None


def start_of(common: Common, location: tuple[str, str, bool]) -> Start:
    """Return what a child needs to start: it imports the app from the location, as
    ``Application.location`` has it.
    """
    module, attribute, is_script = location
    return Start(
        module,
        attribute,
        is_script,
        list(sys.path),
        str(common.dsn),  # Functions of the app stay here: the child has its own.
        common.name,
        common.group,
        settings_of(common.settings),
        log=log_choice(),
    )
