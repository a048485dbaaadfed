"""trickle: what a job costs at few jobs a second, and what idle workers cost.

A producer commits 300 jobs a second one by one, at random moments, and a worker process with its
default settings, ``forebay worker``, runs them as they come. The figures are CPU time per job: of
the server, by connection, and of the worker's process; and the write-ahead log that the server
wrote. ``plain`` is the least that a queue can do, in turns on the same server: an ``INSERT`` with a
``NOTIFY``, and for each notification one ``DELETE ... RETURNING`` with ``SKIP LOCKED``, in a loop
around one connection. Peers take part if they are named, each with one process that enqueues and
one that works. The pickup is the time from the known commit to the handler's first line.

The idle workers serve one queue without jobs. Their cost is the CPU time of their sessions, and
their transactions, a second.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay_bench._child import sleep_until
from forebay_bench._counters import Counters
from forebay_bench._cpu import micros_text
from forebay_bench._engine import Runner, runner
from forebay_bench._idle_cost import IdleCost, idle_cost
from forebay_bench._journal import Journal
from forebay_bench._measure import (
    percentile,
    process_cpu_seconds,
    round_figure,
    server_cpu_seconds,
    wal_bytes,
)
from forebay_bench._processes import Script, scripts, wait_until, workers
from forebay_bench._report import Bar, Report, Table
from forebay_bench.peers import installed
from forebay_bench.scenarios.latency import arrivals, set_wakeup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_PER_SECOND: Final = 300
_QUICK_SECONDS: Final = 6.0
_FULL_SECONDS: Final = 30.0
_ROUNDS: Final = 3
_IDLE_WORKERS: Final = 20
_IDLE_SECONDS: Final = 10.0
_ARRIVAL_SECONDS: Final = 30.0

_ENQUEUE: Final = (
    "select forebay.enqueue('record_start', jsonb_build_object('number', %s::bigint), 'pickup')"
)
_PLAIN_TABLE: Final = (
    "create table plain_job (id bigint generated always as identity primary key, args jsonb)"
)
_PLAIN_ENQUEUE: Final = (
    "with written as (insert into plain_job (args) values (jsonb_build_object('number', "
    "%s::bigint)))"
    " select pg_notify('plain', '')"
)

#: The end of the application name of each connection of a worker.
_CONNECTIONS: Final = (
    "producer",
    "claims",
    "settlements",
    "heartbeat",
    "maintenance",
    "notifications",
)


@dataclass
class Costs:
    """The cost of a job in each round, in microseconds and bytes."""

    server: list[float] = field(default_factory=list)
    worker: list[float] = field(default_factory=list)
    wal: list[float] = field(default_factory=list)
    #: Seconds from the commit to the handler, of all jobs.
    waits: list[float] = field(default_factory=list)
    #: Server microseconds by connection.
    parts: list[Counter[str]] = field(default_factory=list)


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    seconds = (_FULL_SECONDS if options.full else _QUICK_SECONDS) * min(1.0, options.scale)
    rounds = options.rounds or _ROUNDS
    ours, plain = Costs(), Costs()
    peers = [] if options.compare is None else installed(options.compare)
    found = {peer.NAME: Costs() for peer in peers}
    idle: dict[str, IdleCost] = {}
    count = max(2, round(_IDLE_WORKERS * min(1.0, options.scale)))
    idle_seconds = _IDLE_SECONDS * min(1.0, max(0.2, options.scale))
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        notes = Journal(Path(folder) / "notes")
        settings = {"FOREBAY_QUEUE": "pickup", **notes.environment}
        with contextlib.ExitStack() as stack:
            dsn = stack.enter_context(place.database("trickle"))
            set_wakeup(dsn, on=True)
            conn = stack.enter_context(
                psycopg.connect(dsn, autocommit=True, application_name="producer")
            )
            conn.execute(_PLAIN_TABLE)

            def load(costs: Costs, seconds: float) -> None:
                with workers(dsn, settings=settings) as processes:
                    processes.start()
                    _load(place, conn, _ENQUEUE, 0.5, lambda: notes.count, processes.members[0].pid)
                    before = notes.count
                    committed = _load(
                        place,
                        conn,
                        _ENQUEUE,
                        seconds,
                        lambda: notes.count,
                        processes.members[0].pid,
                        costs,
                    )
                    processes.raise_when_one_ended()
                    costs.waits += [at - committed[number] for number, at in notes.read(before)]

            def load_plain(costs: Costs, seconds: float) -> None:
                with scripts("forebay_bench._plain_worker", [dsn]) as (script,):

                    def count() -> int:
                        return _ended(script)

                    _load(place, conn, _PLAIN_ENQUEUE, 0.5, count, script.pid)
                    _load(place, conn, _PLAIN_ENQUEUE, seconds, count, script.pid, costs)

            turns = [(load, ours, "a worker"), (load_plain, plain, "plain")]
            for peer in peers:
                address = stack.enter_context(place.database(peer.NAME, migrated=False))
                peer.create(address)
                journal = Journal(Path(folder) / peer.NAME)
                load_peer = partial(_load_peer, place, peer.NAME, address, journal)
                turns.append((load_peer, found[peer.NAME], peer.NAME))
            for number in range(rounds):
                for turn, costs, name in turns if number % 2 == 0 else turns[::-1]:
                    progress(f"round {number + 1} of {rounds}: {_PER_SECOND} jobs/s, {name}")
                    turn(costs, seconds)
        with place.database("idle") as dsn:
            set_wakeup(dsn, on=True)
            progress(f"{count} idle workers")
            with scripts("forebay_bench._idle", [dsn, str(count)]):
                idle["forebay"] = idle_cost(place, dsn, wait=idle_seconds, seconds=2 * idle_seconds)
        for peer in peers:
            progress(f"{count} idle workers of {peer.NAME}")
            with runner(peer.NAME, place, create=peer.create) as process:
                process.call("idle", count=count)
                idle[peer.NAME] = idle_cost(
                    place, process.dsn, wait=idle_seconds, seconds=2 * idle_seconds
                )
    all_costs = {"forebay": ours, "plain": plain, **found}
    return _report(all_costs, idle, count, rounds, [peer.NOTE for peer in peers])


def _has(journal: Journal, count: int) -> bool:
    return journal.count >= count


def _load_peer(  # noqa: PLR0917 - as below
    place: Place, name: str, dsn: str, journal: Journal, costs: Costs, seconds: float
) -> None:
    """Let a peer's process enqueue jobs at the rate for this long and another one run them, and
    record what each cost.
    """
    with contextlib.ExitStack() as stack:
        worker, producer = Runner(name, dsn), Runner(name, dsn)
        stack.callback(worker.close)
        stack.callback(producer.close)
        counters = stack.enter_context(Counters())
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        worker.send("serve", path=counters.path, journal=str(journal.path))
        for length in (0.5, seconds):  # connections and plans
            moments = arrivals(_PER_SECOND, length)
            before, server, wal = journal.count, _server_cpu(place), wal_bytes(conn)
            used = process_cpu_seconds(worker.pid) or 0.0
            committed = producer.call("trickle", first=0, moments=moments)
            expected = before + len(moments)
            wait_until(
                partial(_has, journal, expected), _ARRIVAL_SECONDS, f"all jobs of {name} ran"
            )
        jobs, after = len(moments) / 1e6, _server_cpu(place)
        costs.worker.append(((process_cpu_seconds(worker.pid) or 0.0) - used) / jobs)
        costs.wal.append((wal_bytes(conn) - wal) / len(moments))
        if server is not None and after is not None:
            costs.server.append((after - server) / jobs)
        costs.waits += [at - committed[number] for number, at in journal.read(before)]
        counters.stop = True
        worker.read_message()


def _load(  # noqa: PLR0917 - one load is described by all of them
    place: Place,
    conn: psycopg.Connection[Any],
    enqueue: str,
    seconds: float,
    count: Callable[[], int],
    worker_pid: int,
    costs: Costs | None = None,
) -> list[float]:
    """Commit jobs at the rate for this long, wait until all have run, and record what each cost.

    Return when each was committed.
    """
    moments = arrivals(_PER_SECOND, seconds)
    handled = count()
    server, parts = _server_cpu(place), _by_connection(conn)
    worker, wal = process_cpu_seconds(worker_pid) or 0.0, wal_bytes(conn)
    began, committed = time.monotonic(), list[float]()
    for number, moment in enumerate(moments):
        sleep_until(began + moment)
        conn.execute(enqueue, [number], prepare=True)
        committed.append(time.monotonic())
    wait_until(lambda: count() >= handled + len(moments), _ARRIVAL_SECONDS, "all jobs ran")
    if costs is None:
        return committed
    jobs = len(moments) / 1e6
    costs.worker.append(((process_cpu_seconds(worker_pid) or 0.0) - worker) / jobs)
    costs.wal.append((wal_bytes(conn) - wal) / len(moments))
    after = _server_cpu(place)
    if server is not None and after is not None:
        costs.server.append((after - server) / jobs)
        now = _by_connection(conn)
        now.subtract(parts)
        costs.parts.append(Counter({name: spent / jobs for name, spent in now.items()}))
    return committed


def _by_connection(conn: psycopg.Connection[Any]) -> Counter[str]:
    """Return the CPU seconds of the server's processes, by the sort of connection."""
    rows = conn.execute(
        "select pid, case when application_name not like 'forebay %' then application_name"
        " else coalesce(substring(query from 'forebay\\.([a-z]+)'), split_part(query, ' ', 1)) end,"
        " backend_type from pg_stat_activity where datname = current_database() or datname is null",
        prepare=True,
    ).fetchall()
    found: Counter[str] = Counter()
    for pid, name, kind in rows:
        part = name if kind == "client backend" else "of the server"
        found.update({part: process_cpu_seconds(pid) or 0.0})
    return found


def _ended(script: Script) -> int:
    script.send({"do": "count"})
    return int(script.read_message())


def _server_cpu(place: Place) -> float | None:
    return None if place.postmaster_pid is None else server_cpu_seconds(place.postmaster_pid)


def _report(
    costs: dict[str, Costs],
    idle: dict[str, IdleCost],
    idle_count: int,
    rounds: int,
    notes: Sequence[str],
) -> Report:
    ours, plain = costs["forebay"], costs["plain"]
    peers = [name for name in costs if name not in {"forebay", "plain"}]
    figures: dict[str, Any] = {
        "per_s": _PER_SECOND,
        **_figures(ours, ""),
        **_figures(plain, "plain_"),
        "idle_workers": idle_count,
        "idle_server_ms_per_s": round_figure(idle["forebay"].cpu_ms),
        "idle_transactions_per_s": round_figure(idle["forebay"].transactions),
        "peers": {
            name: {
                **_figures(costs[name], ""),
                "idle_server_ms_per_s": round_figure(idle[name].cpu_ms),
                "idle_transactions_per_s": round_figure(idle[name].transactions),
            }
            for name in peers
        },
    }
    names = sorted({name for each in ours.parts for name in each})
    figures["server_us_by_connection"] = {
        name: round_figure(statistics.median(each[name] for each in ours.parts)) for name in names
    }
    rows = [
        (
            "Forebay" if name == "forebay" else name,
            *(micros_text(_median(values)) for values in (each.server, each.worker, each.wal)),
            *(micros_text(_wait(each, share)) for share in (0.5, 0.99)),
            micros_text(idle[name].cpu_ms if name in idle else None),
            micros_text(idle[name].transactions if name in idle else None),
        )
        for name, each in costs.items()
    ]
    bars = [
        Bar(name, value, at_most=at_most)
        for name, value, at_most in (
            ("server CPU of a job, us", _median(ours.server), 600),
            ("worker CPU of a job, us", _median(ours.worker), 550),
            ("write-ahead log of a job, bytes", _median(ours.wal), 900),
            (
                f"{idle_count} idle workers: server CPU of their sessions, ms a second",
                idle["forebay"].cpu_ms,
                7,
            ),
            (
                f"{idle_count} idle workers: transactions a second",
                idle["forebay"].transactions,
                10,
            ),
        )
    ]
    columns = [
        ("a job"),
        ("server us"),
        ("worker us"),
        ("WAL bytes"),
        ("pickup p50 ms"),
        ("p99 ms"),
        (f"{idle_count} idle: ms/s"),
        "transactions/s",
    ]
    return Report(
        figures,
        [
            Table(columns, rows, right=columns[1:]),
            Table(
                ["connection", "server, us a job"],
                [
                    (name, micros_text(value))
                    for name, value in figures["server_us_by_connection"].items()
                ],
                right=["server, us a job"],
            ),
        ],
        bars,
        notes=[
            (
                f"{_PER_SECOND} jobs a second, one commit each, at random moments; medians of "
                f"{rounds} rounds, all waits together"
            ),
            (
                "plain: an INSERT with NOTIFY, and a loop with one DELETE for each "
                "notification; it can neither retry nor recover"
            ),
            "idle: workers of one queue; of peers in one process, each with its own connections",
            *notes,
        ],
        draw=partial(_draw, costs),
    )


def _figures(costs: Costs, prefix: str) -> dict[str, Any]:
    return {
        f"{prefix}server_us": round_figure(_median(costs.server)),
        f"{prefix}worker_us": round_figure(_median(costs.worker)),
        f"{prefix}wal_bytes": round_figure(_median(costs.wal)),
        f"{prefix}pickup_p50_ms": round_figure(_wait(costs, 0.5)),
        f"{prefix}pickup_p99_ms": round_figure(_wait(costs, 0.99)),
    }


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _wait(costs: Costs, share: float) -> float | None:
    return percentile(costs.waits, share) * 1000 if costs.waits else None


def _draw(costs: dict[str, Costs], figure: Figure) -> None:
    from forebay_bench.plot import stacked  # noqa: PLC0415 - imports matplotlib

    stacked(
        figure,
        f"CPU time of a job at {_PER_SECOND} jobs a second",
        "microseconds a job: the server, and lighter the worker",
        {
            "Forebay" if name == "forebay" else name: (
                _median(each.server) or 0.0,
                _median(each.worker) or 0.0,
                name,
            )
            for name, each in costs.items()
        },
    )
