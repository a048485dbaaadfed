"""What idle workers cost the server: the CPU time of their sessions, and their transactions."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from forebay_bench._measure import process_cpu_seconds

if TYPE_CHECKING:
    from forebay_bench._place import Place


@dataclass(frozen=True, slots=True)
class IdleCost:
    """The cost of idle workers a second.

    Attributes:
        cpu_ms: milliseconds of CPU of the sessions of the database; None where the server is on
            another machine.
        transactions: transactions in the database.
    """

    cpu_ms: float | None
    transactions: float


def idle_cost(place: Place, dsn: str, *, wait: float, seconds: float) -> IdleCost:
    """Measure the sessions of a database for some seconds, after a wait.

    Other processes of the server are left out: autovacuum visits what earlier scenarios wrote, at a
    time that differs between runs.

    Args:
        place: the server.
        dsn: the database of the workers.
        wait: seconds until the start is over. An idle session reports its transactions within ten
            seconds.
        seconds: how long to measure.
    """
    with psycopg.connect(dsn, autocommit=True) as conn:
        time.sleep(wait)
        before, transactions, began = _session_cpu(conn), _transactions(conn), time.monotonic()
        time.sleep(seconds)
        spent = time.monotonic() - began
        after = _session_cpu(conn)
        per_second = (_transactions(conn) - transactions) / spent
    if place.postmaster_pid is None:
        return IdleCost(None, per_second)
    used = sum(cpu - before.get(pid, 0.0) for pid, cpu in after.items())
    return IdleCost(used / spent * 1000, per_second)


def _session_cpu(conn: psycopg.Connection[Any]) -> dict[int, float]:
    """Return the CPU seconds of each other session of this database, by process."""
    rows = conn.execute(
        "select pid from pg_stat_activity where datname = current_database() and pid <> "
        "pg_backend_pid()"
        " and backend_type = 'client backend'"
    ).fetchall()
    return {pid: process_cpu_seconds(pid) or 0.0 for (pid,) in rows}


def _transactions(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute(
        "select xact_commit + xact_rollback from pg_stat_database where datname = "
        "current_database()"
    ).fetchone()
    assert row is not None
    return int(row[0])
