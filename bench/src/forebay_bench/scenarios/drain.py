"""drain: a queue filled beforehand, emptied by one worker process.

Handlers do nothing, so that only the queue is measured: a coroutine, a function in a thread, a
batch of up to 500, the same without decoding of arguments, and one that settles in its transaction.
A worker is what ``App.worker`` returns, in a separate process, run until no job is left; the time
includes its start and end, but not the start of Python. ``classic`` is a loop that claims 500 rows
of an ordinary table and deletes them, with nothing around it. Beside the coroutine, the same
coroutine with keys: jobs of 100, 5,000 and 50,000 ordering keys in turns, and of a single one; of
100,000 limit keys that run one job each at a time (in the quick form each job has its own key); and
of several keys at once, of which the unique key is the job's own.

Also from the coroutine's turns: the write-ahead log of a job from its bulk enqueue until it is
settled, including everything that the server wrote in that time. Of each engine: the CPU time of
the server and of the worker for each job of the drain.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay_bench import _ours
from forebay_bench._cpu import COLUMNS, CPU_NOTE, JobCosts
from forebay_bench._drains import Drains
from forebay_bench._engine import runner, started_engines
from forebay_bench._measure import Spread, in_turns, ratio_of_rounds, round_figure, wal_bytes
from forebay_bench._report import Bar, Report, Table
from forebay_bench.engines import classic
from forebay_bench.peers import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure

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
    "batch_raw": 120_000,
    "tx": 1_200,
    "classic": 60_000,
    "pgqueuer": 12_000,
    "procrastinate": 500,
    "graphile-worker": 20_000,
    "pg-boss": 12_000,
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
    "batch_raw": f"Forebay, batches of {_ours.BATCH}, undecoded",
    "tx": "Forebay, transaction",
    "classic": "classic, batches of 500",
}

_FULL_FACTOR: Final = 10


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    rounds = options.rounds or (3 if options.full else 2)
    factor = options.scale * (_FULL_FACTOR if options.full else 1)
    counts = {name: max(10, int(jobs * factor)) for name, jobs in _JOBS.items()}
    costs, wal = JobCosts(place), list[float]()
    with contextlib.ExitStack() as stack:
        runners = stack.enter_context(started_engines(place, options.compare))
        ours = runners.pop("forebay")
        conn = stack.enter_context(psycopg.connect(ours.dsn, autocommit=True))
        work = Drains(ours, costs, "")
        engines: dict[str, Callable[[], float]] = {
            "async": partial(_logged, work, conn, counts["async"], wal)
        }
        _set_limits(work, conn)
        for handler in (*_ours.KEYS, "thread", "batch", "batch_raw", "tx"):
            engines[handler] = partial(_ours_turn, work, conn, handler, counts[handler])
        if options.compare is None or "classic" in options.compare:
            rival = stack.enter_context(runner("classic", place, create=_create_classic))
            engines["classic"] = partial(_turn, Drains(rival, costs, "classic"), counts["classic"])
        for name, peer in runners.items():
            engines[name] = partial(_turn, Drains(peer, costs, name), counts[name])
        found = in_turns(engines, rounds, progress)
    return _report(found, list(runners), costs, wal, options, rounds)


def _set_limits(ours: Drains, conn: psycopg.Connection[Any]) -> None:
    """Set the limits of queues, and let a claim see them before it is measured."""
    for name, keys in _ours.KEYS.items():
        if keys.key_concurrency is not None:
            _ours.set_limits(conn, name)
            _ours.fill(conn, name, 10)
            ours.drain(name, 10, counted=False)


def _create_classic(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        classic.create(conn)


def _turn(engine: Drains, count: int) -> float:
    engine.engine.call("fill", count=count)
    return engine.drain("", count)


def _ours_turn(ours: Drains, conn: psycopg.Connection[Any], handler: str, count: int) -> float:
    _ours.fill(conn, handler, count)
    return ours.drain(handler, count)


def _logged(ours: Drains, conn: psycopg.Connection[Any], count: int, wal: list[float]) -> float:
    """Drain with the coroutine, and record the write-ahead log of a job."""
    written = wal_bytes(conn)
    rate = _ours_turn(ours, conn, "async", count)
    wal.append((wal_bytes(conn) - written) / count)
    return rate


def _report(  # noqa: PLR0917 - one run is described by all of them
    found: dict[str, list[float]],
    peers: Sequence[str],
    costs: JobCosts,
    wal_of_jobs: Sequence[float],
    options: Options,
    rounds: int,
) -> Report:
    spreads = {name: Spread.of(values) for name, values in found.items()}

    def ratio(ours: str, rival: str) -> float | None:
        return ratio_of_rounds(found[ours], found[rival]) if rival in found else None

    wal = round_figure(Spread.of(wal_of_jobs).median)
    server, client = costs.micros("async")
    figures: dict[str, Any] = {
        f"{name}_per_s": round_figure(spreads[name].median) if name in spreads else None
        for name in _LABELS
    }
    figures |= {
        "wal_bytes_per_job": wal,
        "server_cpu_us_per_job": round_figure(server),
        "client_cpu_us_per_job": round_figure(client),
        "peers": {name: round_figure(spreads[name].median) for name in peers},
        "cpu_us": costs.figures(),
    }
    order = [name for name in (*_LABELS, *peers) if name in spreads]
    rows = [
        (
            _LABELS.get(name, name),
            f"{spreads[name].median:,.0f}",
            f"{spreads[name].low:,.0f} to {spreads[name].high:,.0f}",
            *costs.cells(name),
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
        Bar(
            "batches without decoding, against batches of jobs",
            ratio("batch_raw", "batch"),
            at_least=1.39,
        ),
        Bar("write-ahead log of a job, in bytes", wal, at_most=330),
    ]
    columns = ["", "jobs/s", f"{rounds} rounds", *COLUMNS]
    return Report(
        figures,
        [
            Table(columns, rows, right=columns[1:]),
        ],
        bars,
        notes=[
            (
                f"ours runs {_ours.CONCURRENCY} jobs at a time on asyncio's own event loop, as "
                f"forebay worker does"
            ),
            (
                f"with limit keys ours has {_ours.LIMITED_CONCURRENCY} slots, since no such "
                f"job waits in the worker"
            ),
            "numbers of jobs differ, so that each engine works for about as long",
            (
                "a peer's handler counts, which costs it a few percent at most; ours is "
                "counted by the worker"
            ),
            (
                "classic has no handlers, retries, timeouts or leases around its loop; "
                "autovacuum is on"
            ),
            "ours keeps what it ended, pgqueuer writes a log row; classic and procrastinate delete",
            CPU_NOTE,
            *(peer.NOTE for peer in installed(options.compare)),
        ],
        draw=partial(_draw, spreads, order),
    )


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
