"""Run the order in each library: killed at two places, and with code that changes in between."""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay_bench._place import Place, open_place
from forebay_bench.orders import _shop

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Name, its module, and its environment.
_LIBRARIES: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "Forebay": ("_forebay", {}),
    "absurd": ("_absurd", {}),
    "DBOS": ("_dbos", {}),
    "DBOS, one version": ("_dbos", {"PINNED": "1"}),
    "DBOS, one version, patch()": ("_dbos", {"PINNED": "1", "PATCH": "1"}),
}

#: Where the first worker dies (nowhere: it is ended while the order waits), and the code after it.
_CASES: Final = {
    "killed in charge": ("charge", "first"),
    "killed in book": ("book", "first"),
    "a step inserted while it waits": ("", "insert"),
    "a step renamed while it waits": ("", "rename"),
    "articles in another order, after one label": ("label hat", "reorder"),
}

_LIMIT_SECONDS: Final = 180.0


@contextlib.contextmanager
def _worker(
    module: str, environment: dict[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], list[str]]]:
    said: list[str] = []
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", f"forebay_bench.orders.{module}"],
            env=os.environ | environment, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            yield process, said
        finally:
            process.kill()
            process.wait()
            log.seek(0)
            said += [line.strip()[:200] for line in log if "Error" in line or "version" in line]


def _case(place: Place, name: str, dies: str, code: str) -> str:
    module, environment = _LIBRARIES[name]
    library = importlib.import_module(f"forebay_bench.orders.{module}")
    with place.database("orders", migrated=False) as dsn, psycopg.connect(dsn) as conn:
        conn.autocommit = True
        conn.execute(_shop.TABLES)
        library.create(dsn)
        environment = environment | {"DSN": dsn}
        with _worker(module, environment | {"DIE": dies}) as (first, _):
            library.start(dsn)
            if dies:
                library.approve(dsn)
                first.wait(_LIMIT_SECONDS)
            else:
                assert _wait(conn, "select exists (select from booking)", 60)
                time.sleep(3)
        began = time.monotonic()
        with _worker(module, environment | {"CODE": code}) as (_, said):
            if not dies:
                time.sleep(3)
                library.approve(dsn)
            ended = _wait(
                conn, "select exists (select from effect where what ~ 'mail')", _LIMIT_SECONDS
            )
        seconds = time.monotonic() - began
        effects = Counter(what for (what,) in conn.execute("select what from effect order by at"))
        bookings = conn.execute("select count(*) from booking").fetchone()
    shown = ", ".join(f"{what} x{count}" if count > 1 else what for what, count in effects.items())
    end = f"after {seconds:.0f} s" if ended else f"NOT within {seconds:.0f} s: {said[-1:]}"
    return f"{end}; {bookings and bookings[0]} bookings; {shown}"


def _wait(conn: psycopg.Connection[Any], question: str, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if conn.execute(question).fetchone() == (True,):
            return True
        time.sleep(0.1)
    return False


def main() -> None:
    """Print a line for each case and library."""
    with open_place(None) as place:
        for case, (dies, code) in _CASES.items():
            sys.stdout.write(f"{case}\n")
            for name in _LIBRARIES:
                if "DBOS," not in name or code != "first":
                    sys.stdout.write(f"  {name}: {_case(place, name, dies, code)}\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
