"""fleet: many worker processes on one queue: the worst way to claim, and how busy the slots are.

Two measurements:

**One job per claim.** 1 to 64 processes claim one job, end it, and claim the next, with plain
psycopg and prepared statements: ``claim_v1`` with a limit of one and ``settle_v1``, against a claim
of one row and its ``delete``. A real worker claims as many jobs as it has free slots. One job per
claim is the worst case for a lane, whose claims take turns. It is measured once with no snapshot
held, and once while a session keeps a REPEATABLE READ snapshot, after 20,000 jobs (80,000 with
``--full``) have been enqueued and ended under it.

``ours`` is a default queue, one lane in order of commit. ``sharded`` is a queue that has given up
that order, so that its claims need not take turns.

**Slow handlers.** Real worker processes, 10 slots each, and handlers that wait 100 ms: the share of
the slots' time that is spent in handlers, in the middle of the run. A handler counts as 100 ms,
even if a busy machine makes it wait longer; so the share never quite reaches 1.

On a small machine all processes share the cores with the server. With many processes the figures
then show how claims behave under contention, not how fast a server with dedicated cores is.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay.errors import ForebayError
from forebay_bench import jobs
from forebay_bench._journal import Journal
from forebay_bench._maintenance import maintenance
from forebay_bench._measure import Spread, in_turns, ratio_of_rounds, round_figure
from forebay_bench._processes import Script, connections_for_workers, scripts, wait_until, workers
from forebay_bench._report import Bar, Report, Table
from forebay_bench.engines import classic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from matplotlib.figure import Figure

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_QUICK: Final = (1, 4, 16)
_FULL: Final = (1, 2, 4, 8, 16, 32, 64)

#: The number of processes of the promised ratios.
_BAR_AT: Final = 16

_SLOTS: Final = 10

#: Shards of the sharded queue: as many as the processes of the promised ratios.
_SPREAD: Final = 16

#: More than all processes together end in a second.
_JOBS_PER_SECOND: Final = 6000

#: Jobs that ended under the snapshot before its turns begin: some minutes of a busy queue, or a
#: quarter of an hour.
_ENDED_WHILE_HELD: Final = (20_000, 80_000)

_FILL: Final = """
select forebay.enqueue_many(
    'noop', array(select jsonb_build_object('i', i) from generate_series(1, least(10000, %s)) i),
        'bench')
"""

_FILL_SLOW: Final = """
select forebay.enqueue_many('wait_a_little', array_fill('{}'::jsonb, array[%s::integer]), 'slow')
"""

#: How long the slow jobs last beyond what is planned.
_SPARE_SECONDS: Final = 5.0

_READY: Final = "select coalesce(sum(ready), 0)::integer from forebay.depth('bench')"

LABELS: Final = {
    "ours": "Forebay",
    "sharded": "Forebay, sharded",
    "classic": "classic",
    "ours_held": "Forebay, held",
    "sharded_held": "Forebay, sharded, held",
    "classic_held": "classic, held",
}


@dataclass(frozen=True, slots=True)
class Engine:
    """A queue that the processes claim from."""

    name: str
    dsn: str
    fill: Callable[[psycopg.Connection[Any], int], None]
    """Enqueue this number of jobs."""
    lanes: Callable[[psycopg.Connection[Any]], list[list[int]]]
    """Group and lane of each lane that has work; empty where there are no lanes."""


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    rounds = options.rounds or (3 if options.full else 2)
    seconds = (6.0 if options.full else 0.8) * options.scale
    sizes: Sequence[int] = (2,) if options.scale < 0.2 else _FULL if options.full else _QUICK
    connections = connections_for_workers(place.dsn)
    sizes = [size for size in sizes if size <= connections] or sizes[:1]
    ended_while_held = max(100, round(_ENDED_WHILE_HELD[options.full] * min(1.0, options.scale)))
    rates = _claim_one_by_one(
        place, sizes, rounds, seconds, ended_while_held=ended_while_held, progress=progress
    )
    shares = _use_slots(place, sizes, 2 * seconds, progress)
    return _report(sizes, rates, shares, rounds, ended_while_held)


# --- one job per claim ---


def _claim_one_by_one(
    place: Place,
    sizes: Sequence[int],
    rounds: int,
    seconds: float,
    *,
    ended_while_held: int,
    progress: Callable[[str], None],
) -> dict[int, dict[str, list[float]]]:
    """Return the jobs a second of each engine in each round, by the number of processes."""
    rates: dict[int, dict[str, list[float]]] = {size: {} for size in sizes}
    with contextlib.ExitStack() as stack:
        engines = [
            stack.enter_context(_ours(place, "ours")),
            stack.enter_context(_ours(place, "sharded")),
            stack.enter_context(_classic(place)),
        ]
        addresses = [f"{engine.name}={engine.dsn}" for engine in engines]
        progress(f"{sizes[-1]} processes start")
        worker_processes = stack.enter_context(
            scripts(
                "forebay_bench._claimers",
                *([str(number), *addresses] for number in range(sizes[-1])),
            )
        )
        for held in (False, True):
            if held:
                for engine in engines:
                    stack.enter_context(_snapshot(engine.dsn))
                    progress(f"{engine.name}: {ended_while_held:,} jobs under a snapshot")
                    _end_many(engine, worker_processes[0], ended_while_held)
            for size in sizes:
                progress(f"{size} processes{', held' if held else ''}")
                turns = {
                    engine.name + "_held" * held: partial(
                        _turn, engine, worker_processes[:size], seconds
                    )
                    for engine in engines
                }
                rates[size] |= in_turns(turns, rounds, progress)
    return rates


def _turn(engine: Engine, worker_processes: Sequence[Script], seconds: float) -> float:
    """Let the processes work; return how many jobs a second they ended."""
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        engine.fill(conn, max(100, int(_JOBS_PER_SECOND * seconds)))
        lanes = engine.lanes(conn)
    begins = time.monotonic() + 0.05
    for script in worker_processes:
        script.send(
            {
                "name": engine.name,
                "lanes": lanes,
                "from": begins,
                "until": begins + seconds,
            }
        )
    ended = sum(int(script.read_message()) for script in worker_processes)
    return ended / (time.monotonic() - begins)


def _end_many(engine: Engine, script: Script, count: int) -> None:
    """Let one process end this number of jobs, in large claims."""
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        engine.fill(conn, count)
        lanes = engine.lanes(conn)
    script.send({"name": engine.name, "lanes": lanes, "count": count})
    script.read_message()


@contextlib.contextmanager
def _snapshot(dsn: str) -> Iterator[None]:
    """Keep a snapshot, as a long report does."""
    with psycopg.connect(dsn) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        conn.execute("select 1")
        yield


@contextlib.contextmanager
def _ours(place: Place, name: str) -> Iterator[Engine]:
    with place.database(f"fleet_{name}") as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("select forebay.open_group('bench')")
            if name == "sharded":
                conn.execute("select forebay.shard_queue('bench', %s)", [_SPREAD])
        with maintenance(dsn):
            yield Engine(name, dsn, _fill, _lanes)


@contextlib.contextmanager
def _classic(place: Place) -> Iterator[Engine]:
    with place.database("classic", migrated=False) as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            classic.create(conn)
        yield Engine("classic", dsn, _fill_classic, lambda _: [])


def _fill(conn: psycopg.Connection[Any], count: int) -> None:
    while (missing := count - _one(conn, _READY)) > 0:
        conn.execute(_FILL, [missing])


def _lanes(conn: psycopg.Connection[Any]) -> list[list[int]]:
    rows = conn.execute(
        "select r.group_id, r.lane from forebay.queue_group g, "
        "forebay.ready_v1(array[g.group_id]) r"
        " where g.queue = 'bench'"
    ).fetchall()
    return [list(row) for row in rows]


def _fill_classic(conn: psycopg.Connection[Any], count: int) -> None:
    missing = count - _one(conn, "select count(*) from classic_job where claimed_at is null")
    if missing > 0:
        classic.fill(conn, missing)
    conn.execute("vacuum analyze classic_job")


def _one(conn: psycopg.Connection[Any], query: str) -> int:
    row = conn.execute(query).fetchone()
    assert row is not None
    return int(row[0])


# --- slow handlers ---


def _use_slots(
    place: Place, sizes: Sequence[int], seconds: float, progress: Callable[[str], None]
) -> dict[int, float]:
    """Return the share of the slots' time that handlers used, by the number of worker processes."""
    shares = {}
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        notes = Journal(Path(folder) / "notes")
        settings = {"FOREBAY_QUEUE": "slow", **notes.environment}
        with (
            place.database("slots") as dsn,
            workers(dsn, concurrency=_SLOTS, settings=settings) as worker_processes,
            psycopg.connect(dsn, autocommit=True) as conn,
        ):
            for size in sizes:
                progress(f"{size} worker processes with slow handlers")
                worker_processes.start(size - len(worker_processes.members))
                settle_seconds = min(seconds, 0.5 + 0.1 * size)
                # There are enough jobs from before the measurement until after it.
                lasts = settle_seconds + seconds + _SPARE_SECONDS
                conn.execute(_FILL_SLOW, [int(size * _SLOTS * lasts / jobs.SLOW_SECONDS)])
                before = notes.count
                wait_until(partial(_has, notes, before + size * _SLOTS), 30, "slots are in use")
                # Processes that have just started first measure their handlers, and share the cores
                # meanwhile.
                began = time.monotonic() + settle_seconds
                time.sleep(began + seconds - time.monotonic())
                until = time.monotonic()
                ended = sum(began <= at < until for _, at in notes.read(before))
                shares[size] = ended * jobs.SLOW_SECONDS / (size * _SLOTS * (until - began))
                worker_processes.raise_when_one_ended()
                if _one(conn, "select coalesce(sum(ready), 0) from forebay.depth('slow')") == 0:
                    raise ForebayError("the slots ran out of jobs during the measurement")
            for worker in worker_processes.members:
                worker.kill()  # an orderly end is not needed, since the database is dropped
    return shares


def _has(notes: Journal, count: int) -> bool:
    return notes.count >= count


# --- the report ---


def _report(
    sizes: Sequence[int],
    rates: dict[int, dict[str, list[float]]],
    shares: dict[int, float],
    rounds: int,
    ended_while_held: int,
) -> Report:
    def median(size: int, name: str) -> float | None:
        values = rates[size].get(name)
        return None if values is None else Spread.of(values).median

    def ratio(ours: str, rival: str) -> float | None:
        found = rates.get(_BAR_AT, {})
        if ours not in found or rival not in found:
            return None
        return ratio_of_rounds(found[ours], found[rival])

    entries = [
        {
            "processes": size,
            **{f"{name}_per_s": round_figure(median(size, name)) for name in LABELS},
            "slots_used_share": round_figure(shares[size]),
        }
        for size in sizes
    ]
    shown = [name for name in LABELS if name in rates[sizes[0]]]
    columns = ["processes", *(LABELS[name] for name in shown), "slots used"]
    rows = [
        (
            str(size),
            *(f"{Spread.of(rates[size][name]).median:,.0f}" for name in shown),
            f"{shares[size]:.1%}",
        )
        for size in sizes
    ]
    at = f"at {_BAR_AT} processes, "
    bars = [
        Bar(at + "ordered, against classic", ratio("ours", "classic"), at_least=0.4),
        Bar(
            at + "ordered, both held, against classic",
            ratio("ours_held", "classic_held"),
            at_least=2.0,
        ),
        Bar(at + "sharded, against classic", ratio("sharded", "classic"), at_least=1.0),
        Bar(
            at + "sharded, both held, against classic",
            ratio("sharded_held", "classic_held"),
            at_least=4.0,
        ),
        Bar(at + "share of the slots' time used", shares.get(_BAR_AT), at_least=0.95),
    ]
    notes = [
        (
            f"one job per claim, medians of {rounds} rounds; a process ends a job before it "
            f"claims the next"
        ),
        (
            "our claim does not wait for the disk, the settlement does; the classic claim and "
            "delete both wait"
        ),
        (
            f"held: a REPEATABLE READ snapshot under which {ended_while_held:,} jobs ended "
            f"before anything is measured"
        ),
        (
            "the classic table gets slower as more jobs end under the snapshot; the scenario "
            "held shows how"
        ),
        "before each turn both are filled up; the classic table is also vacuumed and analyzed",
        "the maintenance of a worker runs beside ours, autovacuum beside the classic table",
        "slots: a handler counts as 100 ms, even if a busy machine makes it wait longer",
    ]
    if sizes[-1] < _FULL[-1]:
        notes.append(
            f"no more than {sizes[-1]} processes: --full has up to {_FULL[-1]}, where the "
            f"server allows enough connections"
        )
    return Report(
        {"fleet": entries, "rounds": rounds},
        [Table(columns, rows, right=columns)],
        bars,
        notes,
        draw=partial(_draw, sizes, rates, shown),
    )


def _draw(
    sizes: Sequence[int],
    rates: dict[int, dict[str, list[float]]],
    shown: Sequence[str],
    figure: Figure,
) -> None:
    from forebay_bench.plot import COLOURS, label_line  # noqa: PLC0415 - imports matplotlib

    axes = figure.subplots()
    for name in shown:
        spreads = [Spread.of(rates[size][name]) for size in sizes]
        colour = COLOURS["classic" if name.startswith("classic") else "forebay"]
        style = ("--" if name.endswith("held") else "-") if "sharded" not in name else ":"
        medians = [spread.median for spread in spreads]
        axes.plot(list(sizes), medians, style, color=colour, marker="o", markersize=4)
        axes.fill_between(
            list(sizes),
            [spread.low for spread in spreads],
            [spread.high for spread in spreads],
            color=colour,
            alpha=0.12,
        )
        label_line(axes, sizes[-1], medians[-1], LABELS[name], colour)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(sizes), [str(size) for size in sizes])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("processes")
    axes.set_ylabel("jobs a second, one per claim")
    axes.set_title("One claim, one job, one settlement at a time")
