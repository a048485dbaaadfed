"""The demo from start to finish."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from forebay.db.own import run_own
from forebay.demo._documents import find_documents
from forebay.demo._ledger import SCHEMA, Progress, Result, counts, progress, record_kill
from forebay.demo._producers import Producers, plan, write_plan
from forebay.demo._view import View
from forebay.demo.workers import WorkerProcess, stop_workers
from forebay.embedded import start_or_find, temporary_server
from forebay.errors import ForebayError
from forebay.ops.operation import Operation, nothing
from forebay.upgrade.migrate import migrate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from forebay.demo._producers import Planned
    from forebay.embedded import EmbeddedServer

_DATABASE: Final = "forebay_demo"
_PRODUCERS: Final = 4
_WORKERS: Final = 3
_CONCURRENCY: Final = 4

#: This share of the documents must be done before a worker is killed.
_KILL_AT: Final = 0.4

#: Longer than any recovery takes; a job that is not done by then is lost.
_SECONDS_MAX: Final = 90.0

_PAUSE_SECONDS: Final = 0.1


def run_demo(console: Console, *, keep: bool = False, seed: int | None = None) -> Result:
    """Run the demo and return its result.

    Args:
        console: where the progress is shown.
        keep: leave the server running, so that you can inspect the tables.
        seed: decides which transactions are rolled back; None draws a random one.

    Raises:
        ForebayError: the server or a worker did not start.
    """
    view = View(console)
    with view, _server(keep=keep, view=view) as server:
        documents = find_documents()
        view.event(f"{len(documents):,} modules of the Python standard library found")
        dsn = _fresh_database(server)
        view.event("schema forebay migrated")
        transactions = plan(
            documents, producers=_PRODUCERS, seed=time.time_ns() if seed is None else seed
        )
        write_plan(dsn, transactions)
        with tempfile.TemporaryDirectory(prefix="forebay-demo-") as logs:
            seconds = _Run(dsn, transactions, view, Path(logs) / "workers.log").run()
        result = Result(**run_own(dsn, counts()), seconds=round(seconds, 2), dsn=dsn)
        how_to_look = _how_to_look(server, dsn) if keep else []
    view.result(result, how_to_look)
    return result


class _Run:
    """Run producers and workers, and kill one worker, until every job is done."""

    def __init__(self, dsn: str, transactions: list[list[Planned]], view: View, log: Path) -> None:
        self._dsn = dsn
        self._documents = sum(map(len, transactions))
        self._expected = sum(p.outcome == "commit" for batch in transactions for p in batch)
        self._view = view
        self._log = log
        self._producers = Producers(dsn, transactions, count=_PRODUCERS)
        self._workers: list[WorkerProcess] = []
        self._killed: WorkerProcess | None = None
        self._killed_at = 0.0
        self._returned = False

    def run(self) -> float:
        """Run it; return the seconds from the first enqueue to the last completed job."""
        try:
            for number in range(1, _WORKERS + 1):
                self._workers.append(
                    WorkerProcess.start(number, self._dsn, concurrency=_CONCURRENCY, log=self._log)
                )
            self._view.event(f"{_WORKERS} worker processes started")
            began = time.monotonic()
            self._producers.start()
            self._view.event(
                f"{_PRODUCERS} producers started; some of their transactions roll back"
            )
            return self._until_done(began) - began
        finally:
            stop_workers(self._workers)

    def _until_done(self, began: float) -> float:
        produced = False
        while time.monotonic() < began + _SECONDS_MAX:
            now = self._look()
            if not produced and self._producers.is_done:
                produced = True
                self._view.event(
                    f"all transactions ended: {now.committed:,} documents and jobs committed,"
                    f" {self._documents - self._expected:,} rolled back"
                )
            if self._killed is None and now.done >= self._expected * _KILL_AT:
                self._try_to_kill()
            if self._killed is not None and not self._returned and now.returned:
                self._returned = True
                waited = time.monotonic() - self._killed_at
                self._view.event(
                    f"silent for {waited:.1f} s: its {now.returned} unfinished jobs are recovered",
                    "bold yellow",
                )
            if produced and now.done >= self._expected and self._killed is not None:
                self._view.event("all jobs are done", "bold green")
                return time.monotonic()
            time.sleep(_PAUSE_SECONDS)
        self._view.event(f"not done after {_SECONDS_MAX:.0f} s", "bold red")
        return time.monotonic()

    def _look(self) -> Progress:
        now = run_own(self._dsn, progress())
        for worker in self._workers:
            if worker is self._killed:
                continue
            if not worker.is_alive:
                raise ForebayError(
                    f"worker {worker.number} of the demo ended unexpectedly",
                    detail=self._log.read_text(errors="replace")[-4000:],
                )
            if worker.pid in now.held:
                worker.state = "working"
                worker.held = now.held[worker.pid]
        self._view.draw(self._documents, self._expected, now, self._workers)
        return now

    def _try_to_kill(self) -> None:
        """Stop the worker that holds the most jobs; kill it if it still holds some."""
        victim = max(self._workers, key=lambda worker: worker.held)
        if not victim.held:
            return
        victim.freeze()
        # Settlements that it sent before may still arrive; then the later count is right.
        held = run_own(self._dsn, progress()).held.get(victim.pid, 0)
        if not held:
            victim.thaw()
            return
        victim.kill()
        victim.held = held
        self._killed = victim
        self._killed_at = time.monotonic()
        run_own(self._dsn, record_kill(f"worker {victim.number}, process {victim.pid}", held))
        self._view.event(
            f"worker {victim.number} killed (SIGKILL) while it held {held} jobs", "bold red"
        )


@contextlib.contextmanager
def _server(*, keep: bool, view: View) -> Iterator[EmbeddedServer]:
    view.event("starting a PostgreSQL server")
    # The server that is kept belongs to the user: `forebay dev --stop` stops it.
    with contextlib.nullcontext(start_or_find()) if keep else temporary_server() as server:
        view.event(f"PostgreSQL {server.binaries.version} is running, in {server.data_dir}")
        yield server


def _fresh_database(server: EmbeddedServer) -> str:
    for statement in (
        f"drop database if exists {_DATABASE} with (force)",
        f"create database {_DATABASE} template template0",
    ):
        run_own(server.dsn(), Operation(statement, nothing, outside_block=True))
    dsn = server.dsn(_DATABASE)
    migrate(dsn)
    run_own(dsn, Operation(SCHEMA, nothing))
    return dsn


def _how_to_look(server: EmbeddedServer, dsn: str) -> list[str]:
    psql = server.binaries.program("psql")
    return [
        "",
        "The server is still running, with the tables of schema demo:",
        f"  {psql if Path(psql).exists() else 'psql'} '{dsn}'",
        f"  forebay jobs list --dsn '{dsn}'",
        "Stop it with: forebay dev --stop",
    ]
