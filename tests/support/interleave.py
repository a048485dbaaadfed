"""All orders of a race: sessions with named steps, each order run, the outcome checked after each.

A session is a connection with a thread of its own. The harness starts the steps one by one in the
order asked for and goes on when a step is done or when ``pg_blocking_pids`` says that it waits for
another session; nothing sleeps for luck. A step that is due while its session still waits runs as
soon as the session can go on, as in PostgreSQL's own isolation tester.

    race = Race(dsn, setup=prepare, check=verify, sessions={
        "settler": [("begin", ...), ("settle", ...), ("commit", ...)],
        "revoker": [("revoke", ...)],
    })
    race.run_all()

A failure names the order; ``race.run(["settler", "revoker", ...])`` repeats it.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Self

import psycopg

from tests.support.engine import connect
from tests.support.waiting import describe_sessions

Step = tuple[str, Callable[[psycopg.Connection[Any], SimpleNamespace], Any]]

_DEADLINE_SECONDS = 15
_PAUSE_SECONDS = 0.001


@dataclass
class Outcome:
    """What the steps of one order returned or raised, by "session.step"."""

    order: tuple[str, ...]
    returned: dict[str, Any] = field(default_factory=dict)
    raised: dict[str, psycopg.Error] = field(default_factory=dict)
    blocked: set[str] = field(default_factory=set)
    finished: list[str] = field(default_factory=list)

    def sqlstate(self, step: str) -> str | None:
        """Return the SQLSTATE of a step, or None when it went well."""
        return self.raised[step].sqlstate if step in self.raised else None


class _Session:
    """A connection whose steps run in a thread."""

    def __init__(self, dsn: str, name: str, steps: Sequence[Step]) -> None:
        self.name = name
        self.steps = steps
        self.conn = connect(dsn)
        self.pid = self.conn.info.backend_pid
        self.rewind()

    def rewind(self) -> None:
        self.next = 0
        self.due = 0
        self.thread: threading.Thread | None = None
        self.conn.rollback()

    @property
    def is_running(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def start_step(self, context: SimpleNamespace, outcome: Outcome) -> None:
        name, action = self.steps[self.next]
        self.next += 1
        self.due -= 1
        label = f"{self.name}.{name}"
        self.label = label

        def work() -> None:
            try:
                outcome.returned[label] = action(self.conn, context)
            except psycopg.Error as error:
                outcome.raised[label] = error
            outcome.finished.append(label)

        self.thread = threading.Thread(target=work, name=label, daemon=True)
        self.thread.start()


class Race:
    """A race of sessions; see the module's description.

    Args:
        dsn: the database.
        setup: prepares each order anew and returns what the steps share.
        sessions: the steps of each session by its name.
        check: asserts what must hold after an order, given the shared state and the outcome.
    """

    def __init__(
        self,
        dsn: str,
        *,
        setup: Callable[[], SimpleNamespace],
        sessions: dict[str, Sequence[Step]],
        check: Callable[[SimpleNamespace, Outcome], None],
    ) -> None:
        self._dsn = dsn
        self._setup = setup
        self._check = check
        self._sessions = {name: _Session(dsn, name, steps) for name, steps in sessions.items()}
        self._watcher = connect(dsn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for session in self._sessions.values():
            session.conn.close()
        self._watcher.close()

    def run_all(self) -> list[Outcome]:
        """Run every order and check each; return the outcomes."""
        return [self.run(order) for order in self.orders()]

    def orders(self) -> Iterator[tuple[str, ...]]:
        """Yield every order of the sessions' steps."""
        yield from _merges({name: len(s.steps) for name, s in self._sessions.items()})

    def run(self, order: Sequence[str]) -> Outcome:
        """Run one order, a session's name for each step, and check its outcome."""
        for session in self._sessions.values():
            session.rewind()
        context = self._setup()
        outcome = Outcome(tuple(order))
        deadline = time.monotonic() + _DEADLINE_SECONDS
        for name in order:
            self._sessions[name].due += 1
            self._advance(context, outcome)
        while any(s.due or s.is_running for s in self._sessions.values()):
            self._advance(context, outcome)
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"the order {list(order)} stands still:\n{describe_sessions(self._dsn)}"
                )
        try:
            self._check(context, outcome)
        except AssertionError as error:
            raise AssertionError(
                f"{error}\nin the order {list(order)}\nfinished: {outcome.finished}\n"
                f"blocked: {sorted(outcome.blocked)}\nreturned: {outcome.returned}\n"
                f"raised: { {k: str(v) for k, v in outcome.raised.items()} }"
            ) from error
        return outcome

    def _advance(self, context: SimpleNamespace, outcome: Outcome) -> None:
        """Start what is due, until every session is done with its step or waits for another."""
        while True:
            for session in self._sessions.values():
                if session.due and not session.is_running:
                    session.start_step(context, outcome)
            self._settle_down(outcome)
            if not any(s.due and not s.is_running for s in self._sessions.values()):
                return

    def _settle_down(self, outcome: Outcome) -> None:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while True:
            running = [s for s in self._sessions.values() if s.is_running]
            if not running:
                return
            waiting = dict(
                self._watcher.execute(
                    "select pid, cardinality(pg_blocking_pids(pid)) > 0 from unnest(%s::int[]) pid",
                    [[s.pid for s in running]],
                ).fetchall()
            )
            for session in running:
                if waiting[session.pid] and session.is_running:
                    outcome.blocked.add(session.label)
            if all(waiting[s.pid] for s in running if s.is_running):
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"a step takes too long:\n{describe_sessions(self._dsn)}")
            time.sleep(_PAUSE_SECONDS)


def _merges(left: dict[str, int]) -> Iterator[tuple[str, ...]]:
    """Yield every way to merge sessions of so many steps."""
    if not any(left.values()):
        yield ()
        return
    for name, count in left.items():
        if count:
            for rest in _merges(left | {name: count - 1}):
                yield (name, *rest)
