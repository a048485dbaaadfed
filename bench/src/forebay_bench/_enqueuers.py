"""A process that commits one enqueue after the other on one connection for each engine.

Started by the scenario ``one``: the address of our database and of the plain table's. A command
names the engine, the start and the end; the answer is how many it committed. There are eight
processes, not threads, because the threads of one interpreter would take turns, and the server is
to be measured.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

import psycopg

from forebay.app import App
from forebay_bench._child import answer, commands, sleep_until
from forebay_bench.engines import plain

if TYPE_CHECKING:
    from collections.abc import Callable

_ENQUEUE: Final = "select forebay.enqueue(%s, %s, %s)"
_ARGS: Final = '{"number": 42}'


def steps(ours: str, other: str) -> dict[str, Callable[[], object]]:
    """Connect; return what commits one, by engine."""
    conn = psycopg.connect(ours, autocommit=True)
    other_conn = psycopg.connect(other, autocommit=True)
    app = App(ours)

    @app.job(queue="bench")
    def noop(number: int) -> None:
        del number

    return {
        "ours": lambda: conn.execute(_ENQUEUE, ["noop", _ARGS, "bench"], prepare=True),
        "python": lambda: noop.enqueue(conn, 42),
        "plain": lambda: other_conn.execute(plain.INSERT, [1, "noop", _ARGS], prepare=True),
    }


def main() -> None:
    """Run as the scenario commands."""
    found = steps(sys.argv[1], sys.argv[2])
    for command in commands():
        step = found[command["name"]]
        step()  # prepares the statement
        sleep_until(command["from"])
        count = 0
        while time.monotonic() < command["until"]:
            step()
            count += 1
        answer(count)


if __name__ == "__main__":
    main()
