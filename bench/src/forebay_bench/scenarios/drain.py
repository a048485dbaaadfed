"""drain: a queue filled beforehand, emptied by one worker process.

Handlers do nothing, so that only the queue is measured: a coroutine, a function in a thread, a batch of up to
500, and one that settles in its transaction. A worker is what ``App.worker`` returns, in a separate process, run
until no job is left; the time includes its start and end, but not the start of Python. ``classic`` is a loop that
claims 500 rows of an ordinary table and deletes them, with nothing around it. Beside the coroutine, the same coroutine with
keys: jobs of 100, 5,000 and 50,000 ordering keys in turns, and of a single one; of 100,000 limit keys that run one job each at a time (in the
quick form each job has its own key); and of several keys at once, of which the unique key is the job's own.

Also from the coroutine's turns: the write-ahead log of a job from its bulk enqueue until it is settled, including
everything that the server wrote in that time, and the CPU time of the server and of the worker for each job of the drain.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay.errors import ForebayError
from forebay_bench import _ours
from forebay_bench._engine import runner, started_engines
from forebay_bench._measure import (
    Spread,
    in_turns,
    ratio_of_rounds,
    round_figure,
    server_cpu_seconds,
    wal_bytes,
)
from forebay_bench._report import Bar, Report, Table
from forebay_bench.engines import classic
from forebay_bench.peers import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure

    from forebay_bench._engine import Runner
    from forebay_bench._place import Place
    from forebay_bench._run import Options

#: Jobs of a turn in the quick form: a second or two of work for each engine.
_JOBS: Final = {
    "async": 70_000,
    "keyed": 50_000,
    "one_key": 50_000,
    "keys_5k": 50_000,
    "keys_50k": 50_000,
    "limit_keys": 30_000,
    "ordering_unique": 30_000,
    "limit_unique": 30_000,
    "all_keys": 30_000,
    "thread": 12_000,
    "batch": 120_000,
    "tx": 1_200,
    "classic": 60_000,
    "pgqueuer": 12_000,
    "procrastinate": 500,
}

_LABELS: Final = {
    "async": "Forebay, coroutine",
    "keyed": "Forebay, 100 ordering keys",
    "one_key": "Forebay, one ordering key",
    "keys_5k": "Forebay, 5,000 ordering keys",
    "keys_50k": "Forebay, 50,000 ordering keys",
    "limit_keys": "Forebay, 100,000 limit keys",
    "ordering_unique": "Forebay, ordering and unique keys",
    "limit_unique": "Forebay, limit and unique keys",
    "all_keys": "Forebay, ordering, limit and unique keys",
    "thread": "Forebay, thread",
    "batch": f"Forebay, batches of {_ours.BATCH}",
    "tx": "Forebay, transaction",
    "classic": "classic, batches of 500",
}

_FULL_FACTOR: Final = 10


@dataclass(slots=True)
class Costs:
    """The cost per job in each turn."""

    wal_bytes: list[float] = field(default_factory=list)
    server_seconds: list[float] = field(default_factory=list)
    client_seconds: list[float] = field(default_factory=list)


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    rounds = options.rounds or (3 if options.full else 2)
    factor = options.scale * (_FULL_FACTOR if options.full else 1)
    counts = {name: max(10, int(jobs * factor)) for name, jobs in _JOBS.items()}
    costs = Costs()
    with contextlib.ExitStack() as stack:
        runners = stack.enter_context(started_engines(place, options.compare))
        ours = runners.pop("forebay")
        conn = stack.enter_context(psycopg.connect(ours.dsn, autocommit=True))
        engines: dict[str, Callable[[], float]] = {
            "async": partial(_costed, place, ours, conn, counts["async"], costs)
        }
        _set_limits(ours, conn)
        for handler in (*_ours.KEYS, "thread", "batch", "tx"):
            engines[handler] = partial(_ours_turn, ours, conn, handler, counts[handler])
        if options.compare is None or "classic" in options.compare:
            rival = stack.enter_context(runner("classic", place, create=_create_classic))
            engines["classic"] = partial(_turn, rival, counts["classic"])
        for name, peer in runners.items():
            engines[name] = partial(_turn, peer, counts[name])
        found = in_turns(engines, rounds, progress)
    return _report(found, list(runners), costs, options, rounds)


def _set_limits(ours: Runner, conn: psycopg.Connection[Any]) -> None:
    """Set the limits of queues, and let a claim see them before it is measured."""
    for name, keys in _ours.KEYS.items():
        if keys.key_concurrency is not None:
            _ours.set_limits(conn, name)
            _ours_turn(ours, conn, name, 10)


def _create_classic(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        classic.create(conn)


def _turn(engine: Runner, count: int) -> float:
    engine.call("fill", count=count)
    return _drained(engine, "", count)


def _ours_turn(ours: Runner, conn: psycopg.Connection[Any], handler: str, count: int) -> float:
    _ours.fill(conn, handler, count)
    return _drained(ours, handler, count)


def _costed(
    place: Place,
    ours: Runner,
    conn: psycopg.Connection[Any],
    count: int,
    costs: Costs,
) -> float:
    """Drain with the coroutine, and record the cost."""
    written = wal_bytes(conn)
    _ours.fill(conn, "async", count)
    before = _server_cpu(place)
    found = ours.call("drain", handler="async")
    after = _server_cpu(place)
    _check(found, count)
    costs.wal_bytes.append((wal_bytes(conn) - written) / count)
    costs.client_seconds.append(found["cpu_seconds"] / count)
    if before is not None and after is not None:
        costs.server_seconds.append((after - before) / count)
    return count / float(found["seconds"])


def _server_cpu(place: Place) -> float | None:
    return None if place.postmaster_pid is None else server_cpu_seconds(place.postmaster_pid)


def _drained(engine: Runner, handler: str, count: int) -> float:
    found = engine.call("drain", handler=handler)
    _check(found, count)
    return count / float(found["seconds"])


def _check(found: dict[str, Any], count: int) -> None:
    """Raise an error if a worker left a job, or ran one twice."""
    if found["ended"] != count:
        raise ForebayError(f"{found['ended']} jobs ended, of {count} that waited")


def _report(
    found: dict[str, list[float]],
    peers: Sequence[str],
    costs: Costs,
    options: Options,
    rounds: int,
) -> Report:
    spreads = {name: Spread.of(values) for name, values in found.items()}

    def per_job(values: Sequence[float], factor: float) -> float | None:
        return round_figure(Spread.of(values).median * factor) if values else None

    def ratio(ours: str, rival: str) -> float | None:
        return ratio_of_rounds(found[ours], found[rival]) if rival in found else None

    wal = per_job(costs.wal_bytes, 1)
    figures: dict[str, Any] = {
        f"{name}_per_s": round_figure(spreads[name].median) if name in spreads else None
        for name in _LABELS
    }
    figures |= {
        "wal_bytes_per_job": wal,
        "server_cpu_us_per_job": per_job(costs.server_seconds, 1e6),
        "client_cpu_us_per_job": per_job(costs.client_seconds, 1e6),
        "peers": {name: round_figure(spreads[name].median) for name in peers},
    }
    order = [name for name in (*_LABELS, *peers) if name in spreads]
    rows = [
        (
            _LABELS.get(name, name),
            f"{spreads[name].median:,.0f}",
            f"{spreads[name].low:,.0f} to {spreads[name].high:,.0f}",
        )
        for name in order
    ]
    bars = [
        Bar("coroutine, against pgqueuer", ratio("async", "pgqueuer"), at_least=2.5),
        Bar("coroutine, against procrastinate", ratio("async", "procrastinate"), at_least=40),
        Bar("100 ordering keys, against none", ratio("keyed", "async"), at_least=0.8),
        Bar("one ordering key, against none", ratio("one_key", "async"), at_least=0.7),
        Bar("one ordering key, against 100", ratio("one_key", "keyed"), at_least=0.95),
        Bar("5,000 ordering keys, against none", ratio("keys_5k", "async"), at_least=0.7),
        Bar("50,000 ordering keys, against none", ratio("keys_50k", "async"), at_least=0.6),
        Bar("100,000 limit keys, jobs/s", figures["limit_keys_per_s"], at_least=8_000),
        Bar(
            "ordering and unique keys, against none",
            ratio("ordering_unique", "async"),
            at_least=0.5,
        ),
        Bar("limit and unique keys, against none", ratio("limit_unique", "async"), at_least=0.5),
        Bar(
            "ordering, limit and unique keys, against none",
            ratio("all_keys", "async"),
            at_least=0.5,
        ),
        Bar(
            "batch handler, against classic in batches of 500",
            ratio("batch", "classic"),
            at_least=1.7,
        ),
        Bar("write-ahead log of a job, in bytes", wal, at_most=330),
    ]
    columns = ["", "jobs/s", f"{rounds} rounds"]
    costs_rows = [
        ("write-ahead log of a job, bytes", _text(wal)),
        ("server CPU of a job, us", _text(figures["server_cpu_us_per_job"])),
        ("worker CPU of a job, us", _text(figures["client_cpu_us_per_job"])),
    ]
    return Report(
        figures,
        [
            Table(columns, rows, right=columns[1:]),
            Table(["coroutine", ""], costs_rows, right=[""]),
        ],
        bars,
        notes=[
            f"ours runs {_ours.CONCURRENCY} jobs at a time on asyncio's own event loop, as forebay worker does",
            f"with limit keys ours has {_ours.LIMITED_CONCURRENCY} slots, since no such job waits in the worker",
            "numbers of jobs differ, so that each engine works for about as long",
            "a peer's handler counts, which costs it a few percent at most; ours is counted by the worker",
            "classic has no handlers, retries, timeouts or leases around its loop; autovacuum is on",
            "ours keeps what it ended, pgqueuer writes a log row; classic and procrastinate delete",
            "server CPU is that of all its processes; unknown for a server that the benchmark did not start",
            *(peer.NOTE for peer in installed(options.compare)),
        ],
        draw=partial(_draw, spreads, order),
    )


def _text(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.3g}"


def _draw(spreads: dict[str, Spread], order: Sequence[str], figure: Figure) -> None:
    from forebay_bench.plot import COLOURS, rates  # noqa: PLC0415 - imports matplotlib

    rates(
        figure,
        "A full queue emptied by one worker process",
        {
            _LABELS.get(name, name): (spreads[name], name if name in COLOURS else "forebay")
            for name in order
        },
    )
