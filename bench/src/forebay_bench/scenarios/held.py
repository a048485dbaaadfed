"""held: how a queue performs while a session keeps a transaction open.

The experiment is Brandur Leach's of 2015 ("Postgres Job Queues & Failure By MVCC"): a queue in a
steady state, then a transaction in the same database stays open, and the time that a worker needs
to get its next job is measured. Vacuum must keep the rows that died since, so the index from which
a queue takes its jobs fills up with dead entries that each claim has to pass. His load was 50 jobs
a second, and the effect took a quarter of an hour to show. Here a minute must be enough, so each
engine gets about a hundred times as many: half of its speed at the start of the run, when it ran
without a limit. (More would leave no capacity for autovacuum on a small machine. An engine that
keeps its speed keeps its queue empty; in one that slows down by more than half, jobs wait.)

Every engine has a separate database with a holder, since vacuum looks at the snapshots of one
database at a time. The engines take turns on one server, ten each while the holders hold. Between
its turns an engine's clock stops, nothing is enqueued, and waiting for the turn is not counted. One
connection enqueues, claims and ends the jobs of an engine, one call after the other, so that a
figure is the cost of the SQL and not of contention.

Mixes: ``plain``; ``delayed``, every job due two seconds after it is enqueued (in short runs a third
of a turn); ``failing``, every fifth job fails once and is ready again at once; ``keyed``, a third
of the jobs each has an ordering key, a unique key and a limit key, of a thousand each, for Forebay
only. In the mix ``keyed`` a second Forebay takes turns with the first one, with the same load, on a
second server, where nothing holds a transaction: the claims of the first are compared with its
claims. (On the same server its snapshots would contain the transaction.) It is left out with
``--dsn``.

``hard`` and ``hard-queues`` take longer, about ten minutes each: plain jobs, 3,100,000 of them
while the holder holds, in one queue and in a hundred. A turn is a tenth of these jobs. The segments
of the log have their real size, a million numbers, and three of them are passed. Autovacuum has its
default settings, and nothing is analyzed otherwise. The report has the figures of each tenth. The
other engines get turns of the same length.

Holders are described in ``forebay_bench._holders``. With ``other_sessions`` Forebay's log is cut
into segments of 1,000 rows, so that hundreds are written, and the ratios compare with the time
before the other sessions began.

Where the comparison is unfair:

- Forebay does more: it polls for ready lanes, as its workers do; records every claim, so that a
  crash is found; keeps done jobs; and records each failure. Its maintenance runs beside it all the
  time and takes CPU from the engine that has the turn.
- The usual table and the advisory locks are used in their cheapest form, and keep nothing.
- Every rival's session is set to use its index, as Forebay's functions are: a plan made while the
  statistics showed an empty table would cost a second for each claim, with or without a held
  transaction.
- ``que`` takes jobs in batches like the others, which its version 0 did not do.

Time also depends on the machine: the speed of a small shared one changes by half from one second to
the next, separately for each core. So some claims are counted instead of timed: the pages that the
server reads, cached or not. Dead rows add to this work; if the time rises without it, the cause is
the machine.

Jobs a second are compared with those of the first turn, but at most with the offered number, since
the first turn may also have worked off jobs that a slow second before it had left.

A ratio of last to first of 1 is flat. ``first`` and ``last`` are the first and the last turn of the
ten.
"""

from __future__ import annotations

import contextlib
import statistics
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import ConfigError, shown
from forebay_bench._holders import HOLDERS, HeldDatabase, check_holder, hold
from forebay_bench._maintenance import maintenance
from forebay_bench._measure import round_figure
from forebay_bench._place import open_place
from forebay_bench._report import Bar, Report, Table
from forebay_bench.engines import forebay_log, que
from forebay_bench.engines.classic_queue import ClassicQueue
from forebay_bench.plot import from_zero, label_ends
from forebay_bench.scenarios._held_load import (
    CLAIM_ROWS,
    ENQUEUE_ROWS,
    LOAD,
    Engine,
    Turn,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.figure import Figure

    from forebay_bench._place import Place
    from forebay_bench._run import Options
    from forebay_bench.engines.queue import Queue

MIXES: Final = ("plain", "delayed", "failing", "keyed", "hard", "hard-queues")

#: The mixes that run for a number of jobs: more than three segments of the log at their real size.
_HARD: Final = ("hard", "hard-queues")
_HARD_JOBS: Final = 3_100_000
_HARD_SEGMENTS: Final = 3
_QUEUES: Final = 100

#: Labels and colours of the engines in a plot.
LABELS: Final = {
    "ours": "Forebay",
    "free": "Forebay, nothing held",
    "classic": "usual jobs table",
    "que": "advisory locks (Que)",
}
COLOURS: Final = {
    "ours": "#0072B2",
    "free": "#56B4E9",
    "classic": "#D55E00",
    "que": "#CC79A7",
}
_OURS: Final = ("ours", "free")
_RIVALS: Final = ("classic", "que")

_TURNS: Final = 10
#: Turns before the holders begin: in the first one caches fill.
_TURNS_BEFORE: Final = 2
_FULL_TURN_SECONDS: Final = 6.0
#: All turns of a quick run together; with the start of the server and the measuring of speeds it
#: stays below 60 s.
_QUICK_SECONDS: Final = 38.0
_QUICK_TURN_SECONDS_MAX: Final = 2.2

_DELAY_SECONDS: Final = 2.0
_KEYS: Final = 1000


_OTHER_SESSIONS_SEGMENT_ROWS: Final = 1000
_OTHER_SESSIONS_RESERVE_ROWS: Final = 300_000


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    holder = options.holder or "snapshot"
    check_holder(holder, place)
    mixes = _mixes(options)
    chosen = _RIVALS if options.compare is None else options.compare
    names = ["ours", *(name for name in _RIVALS if name in chosen)]
    notes: list[str] = []
    if "keyed" in mixes:
        notes.append(
            "keyed: a unique key, an ordering key or a limit key for each job, of a "
            "thousand each; the other engines have none"
        )
    keyed = list(_OURS) if place.is_own else ["ours"]
    runs = {mix: keyed if mix == "keyed" else names for mix in mixes}
    seconds = _turn_seconds(options, sum(map(len, runs.values())))
    found: dict[str, dict[str, Engine]] = {}
    segments: dict[str, int] = {}
    for mix in mixes:
        more, found[mix], segments[mix] = _hold_up(
            place,
            holder,
            mix,
            runs[mix],
            seconds,
            jobs=int(_HARD_JOBS * options.scale) // _TURNS if mix in _HARD else None,
            progress=progress,
        )
        notes += [note for note in more if note not in notes]
    figures: dict[str, Any] = {"holder": holder, "mix": mixes[0]}
    for mix in mixes:
        of_mix = {name: _figures(each) for name, each in found[mix].items()}
        of_mix["ours"]["segments"] = segments[mix]
        if mix == mixes[0]:
            figures.update(of_mix)
        else:
            figures.setdefault("mixes", {})[mix] = of_mix
    bars: list[Bar] = []
    for mix in mixes:
        bars += _bars(mix, holder, found[mix], segments[mix], options)
    notes += [
        (
                f"each engine gets {LOAD:.0%} of the speed it showed at the start, in a separate "
                f"database; a claim takes up to {CLAIM_ROWS} jobs"
                ),
        (
                f"{_TURNS} turns of {_longest(found):.1f} s each under the holder {holder}, in "
                f"alternating order; in between a clock stands still"
                ),
        (
                "Forebay also polls for ready lanes, records claims, keeps done jobs; its "
                "maintenance runs during all turns"
                ),
        *([(
                f"{', '.join(set(mixes) & set(_HARD))}: a turn of Forebay is a tenth of the jobs; "
                f"the others get the same time"
                )]
          if set(mixes) & set(_HARD) else []),
    ]  # fmt: skip
    first = found[mixes[0]]
    return Report(
        figures,
        [table for mix in mixes for table in _tables(mix, found[mix])],
        bars,
        notes,
        draw=partial(_draw, first, HOLDERS[holder]),
    )


def _mixes(options: Options) -> list[str]:
    if options.mix is None:
        return ["plain", "delayed", "failing", "keyed"] if options.full else ["plain"]
    if options.mix not in MIXES:
        raise ConfigError("--mix", f"is {shown(options.mix)}", hint=f"One of: {', '.join(MIXES)}.")
    return [options.mix]


def _turn_seconds(options: Options, runs: int) -> float:
    """Return how long a turn is, so that a quick run ends in time."""
    if options.full:
        return _FULL_TURN_SECONDS * options.scale
    # Besides the ten: those before them, and the measuring of the speed.
    turns = _TURNS + _TURNS_BEFORE + 1
    return min(_QUICK_TURN_SECONDS_MAX, _QUICK_SECONDS / (runs * turns)) * options.scale


def _own_place(place: Place) -> contextlib.AbstractContextManager[Place]:
    """Return another server of the same version."""
    return open_place(None, None if place.bin_dir is None else str(place.bin_dir))


def _maintained(dsn: str, holder: str) -> contextlib.AbstractContextManager[None]:
    """Return maintenance of our database, with small segments where other sessions hold it up."""
    if holder == "other_sessions":
        forebay_log.cut(
            dsn,
            segment_rows=_OTHER_SESSIONS_SEGMENT_ROWS,
            reserve_rows=_OTHER_SESSIONS_RESERVE_ROWS,
        )
    return maintenance(dsn)


def _hold_up(
    place: Place,
    holder: str,
    mix: str,
    names: Sequence[str],
    seconds: float,
    *,
    jobs: int | None,
    progress: Callable[[str], None],
) -> tuple[list[str], dict[str, Engine], int]:
    """Let the engines take their turns.

    Return notes, the figures of each, and how many segments were filled.
    """
    delay = min(_DELAY_SECONDS, seconds / 3) if mix == "delayed" else 0.0
    with contextlib.ExitStack() as stack:
        engines: dict[str, Engine] = {}
        held: list[HeldDatabase] = []
        for name in names:
            progress(f"{mix}: making a database for {name}")
            server = stack.enter_context(_own_place(place)) if name == "free" else place
            dsn = stack.enter_context(
                server.database(name.replace("-", "_"), migrated=name in _OURS)
            )
            if name in _OURS:
                stack.enter_context(_maintained(dsn, holder))
            queue = _make(name, mix, dsn)
            stack.callback(queue.close)
            is_kept = name not in _OURS
            engines[name] = Engine(queue, mix, delay_seconds=delay, due_is_kept=is_kept)
            if name != "free":
                held.append(HeldDatabase(dsn, queue.write_one))
        for name, engine in engines.items():
            progress(f"{mix}: how fast {name} is")
            engine.measure_speed(seconds)
        if "free" in engines:
            engines["free"].rate = engines["ours"].rate = min(
                each.rate for each in engines.values()
            )
        log = engines["ours"].queue
        assert isinstance(log, forebay_log.Log)
        notes: list[str] = []
        for number in range(1 - _TURNS_BEFORE, _TURNS + 1):
            if number == 1:
                progress(f"{mix}: {HOLDERS[holder]}")
                sealed = log.sealed_segments()
                for engine in engines.values():
                    engine.enqueue_worst = 0.0
                notes += stack.enter_context(hold(holder, place, held))
            order = list(engines) if number % 2 or jobs else list(reversed(engines))
            length = seconds
            for name in order:
                progress(f"{mix}, turn {number} of {_TURNS}: {name}")
                if name == "ours" and holder == "other_sessions":
                    # Ten segments a second are more than maintenance makes, which is designed for a
                    # million rows in each.
                    forebay_log.extend(log.conn)
                if jobs is not None and name == "ours" and number > 0:
                    length = engines[name].take_turn(seconds, jobs=jobs)
                else:
                    engines[name].take_turn(length)
        return notes, engines, log.sealed_segments() - sealed


def _make(name: str, mix: str, dsn: str) -> Queue:
    if name in _OURS:
        return forebay_log.Log(
            dsn,
            keys=_KEYS if mix == "keyed" else None,
            queues=_QUEUES if mix == "hard-queues" else 1,
        )
    if name == "classic":
        return ClassicQueue(dsn)
    return que.Que(dsn)


def _figures(engine: Engine) -> dict[str, Any]:
    _, before, *turns = engine.turns
    first, last = turns[0], turns[-1]
    return {
        "jobs": sum(turn.finished for turn in turns),
        "held_seconds": round(sum(turn.seconds for turn in turns), 1),
        "offered_per_s": round_figure(engine.rate),
        "throughput_before": round_figure(before.throughput),
        "throughput_first": round_figure(first.throughput),
        "throughput_last": round_figure(last.throughput),
        "claim_p50_before_ms": round_figure(before.claim_ms),
        "claim_p50_first_ms": round_figure(first.claim_ms),
        "claim_p50_last_ms": round_figure(last.claim_ms),
        "claim_pages_first": first.claim_pages,
        "claim_pages_last": last.claim_pages,
        "pickup_p50_before_ms": round_figure(before.pickup_ms),
        "pickup_p50_first_ms": round_figure(first.pickup_ms),
        "pickup_p50_last_ms": round_figure(last.pickup_ms),
        "enqueue_worst_ms": round_figure(engine.enqueue_worst * 1000),
        "waiting_last": engine.samples[-1]["waiting"],
        "dead_rows": engine.samples[-1]["dead_rows"],
        "turns": [
            {
                "throughput": round_figure(turn.throughput),
                "claim_p50_ms": round_figure(turn.claim_ms),
                "pickup_p50_ms": round_figure(turn.pickup_ms),
            }
            for turn in turns
        ],
        "samples": engine.samples,
    }


def _bars(
    mix: str, holder: str, found: Mapping[str, Engine], segments: int, options: Options
) -> list[Bar]:
    _, before, *turns = found["ours"].turns
    first, last = turns[0], turns[-1]
    bars = [
        Bar(
            (f"{mix}: jobs/s, last turn to first"),
            _ratio(last.throughput, min(first.throughput, found["ours"].rate)),
            at_least=0.95,
        ),
        Bar(
            (f"{mix}: time to get a job, last turn to first"),
            _ratio(last.claim_ms, first.claim_ms),
            at_most=1.2,
        ),
        Bar(
            (f"{mix}: pickup, last turn to first"),
            _ratio(last.pickup_ms, first.pickup_ms),
            at_most=1.5,
        ),
    ]
    if "free" in found:
        bars += _bars_beside_free(mix, turns, found["free"].turns[_TURNS_BEFORE:])
    if mix != "keyed":
        # A claim of jobs with keys reads more or less by the lane, and looks them up in an index
        # that may grow by a level. In a hard mix a claim reads more once the first segment is full,
        # and no more from then on: compare what follows.
        since, name = (turns[4], "fifth") if mix in _HARD else (first, "first")
        bars.append(
            Bar(
                f"{mix}: pages read to get a job, last turn to {name}",
                _ratio(last.claim_pages, since.claim_pages),
                at_most=1.2,
            )
        )
    if mix in _HARD:
        # What makes the run hard: without it the ratios say nothing.
        bars += [
            Bar(
                (f"{mix}: jobs done while held"),
                sum(turn.finished for turn in turns),
                at_least=int(0.96 * _HARD_JOBS * options.scale),
            ),
            Bar(
                (f"{mix}: segments filled while held"),
                segments,
                at_least=int(_HARD_SEGMENTS * options.scale),
            ),
        ]
    elif options.full:
        jobs = sum(turn.finished for turn in turns)
        # Small segments are written at half the speed.
        enough = 200_000 if holder == "other_sessions" else 500_000
        bars.append(Bar(f"{mix}: jobs done while held", jobs, at_least=enough))
    if holder == "other_sessions":
        bars += [
            Bar(
                (f"{mix}: time to get a job, last turn to before"),
                _ratio(last.claim_ms, before.claim_ms),
                at_most=1.2,
            ),
            Bar(
                (f"{mix}: slowest enqueue of {ENQUEUE_ROWS} jobs, ms"),
                found["ours"].enqueue_worst * 1000,
                at_most=100,
            ),
        ]
        if options.full:
            bars.append(Bar(f"{mix}: segments filled while held", segments, at_least=200))
    # The experiment is valid only if the holder has an effect: the other engines must get slower.
    for name in ("classic", "que"):
        if name in found and mix == "plain":
            theirs = found[name].turns[_TURNS_BEFORE:]
            ratio = _ratio(theirs[-1].claim_ms, theirs[0].claim_ms)
            bars.append(
                Bar(f"{name} rises: time to get a job, last turn to first", ratio, at_least=1.5)
            )
    return bars


def _bars_beside_free(mix: str, held: Sequence[Turn], free: Sequence[Turn]) -> list[Bar]:
    """Compare turns under the holder with the turns beside them of the engine that nothing holds
    up, and the pages of both halves of the run.
    """
    pages = [turn.claim_pages for turn in held if turn.claim_pages is not None]
    half = len(pages) // 2
    growth = statistics.median(pages[half:]) / statistics.median(pages[:half]) if half else None
    return [
        Bar(
            (f"{mix}: time to get a job, held to not held"),
            _beside(held, free, lambda turn: turn.claim_ms),
            at_most=1.2,
        ),
        Bar(f"{mix}: pages read to get a job, second half to first", growth, at_most=1.2),
    ]


def _beside(
    held: Sequence[Turn], free: Sequence[Turn], figure: Callable[[Turn], float | None]
) -> float | None:
    """Return the median of the ratios of the turns beside each other."""
    ratios = [_ratio(figure(ours), figure(other)) for ours, other in zip(held, free, strict=True)]
    known = [each for each in ratios if each is not None]
    return statistics.median(known) if known else None


def _ratio(last: float | None, first: float | None) -> float | None:
    return last / first if last is not None and first else None


def _longest(found: Mapping[str, Mapping[str, Engine]]) -> float:
    return max(
        turn.seconds
        for of_mix in found.values()
        for engine in of_mix.values()
        for turn in engine.turns[_TURNS_BEFORE:]
    )


def _tables(mix: str, found: Mapping[str, Engine]) -> list[Table]:
    """Return the table of a mix; of a hard one also the figures of each tenth."""
    tables = [_table(mix, found)]
    if mix in _HARD:
        columns = ["tenth", "jobs", "jobs/s", "get a job, ms", "pickup ms"]
        rows = [
            (
                f"{number}",
                f"{turn.finished:,}",
                *(_cell(value) for value in (turn.throughput, turn.claim_ms, turn.pickup_ms)),
            )
            for number, turn in enumerate(found["ours"].turns[_TURNS_BEFORE:], 1)
        ]
        tables.append(Table(columns, rows, title=f"mix: {mix}, {LABELS['ours']}", right=columns))
    return tables


def _table(mix: str, found: Mapping[str, Engine]) -> Table:
    columns = [
        "",
        "jobs",
        ("jobs/s first"),
        "last",
        "get a job, ms: before",
        "first",
        "last ",
        "pages read: first",
        "last  ",
        "pickup ms: first",
        "last   ",
        "waiting",
    ]
    rows = []
    for name, engine in found.items():
        f = _figures(engine)
        rows.append(
            (
                LABELS[name],
                f"{f['jobs']:,}",
                *(_cell(f[f"throughput_{when}"]) for when in ("first", "last")),
                *(_cell(f[f"claim_p50_{when}_ms"]) for when in ("before", "first", "last")),
                *(_cell(f[f"claim_pages_{when}"]) for when in ("first", "last")),
                *(_cell(f[f"pickup_p50_{when}_ms"]) for when in ("first", "last")),
                f"{f['waiting_last']:,}",
            )
        )
    return Table(columns, rows, title=f"mix: {mix}", right=columns[1:])


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _draw(found: Mapping[str, Engine], what: str, figure: Figure) -> None:
    """Draw three panels over the age of the transaction: the time to get a job, jobs waiting,
    and dead rows.
    """
    figure.set_size_inches(9, 8)
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[3, 2, 2])
    figure.suptitle(
        "What happens to a job queue while a transaction stays open", fontsize=15, x=0.02, ha="left"
    )  # fmt: skip
    for axes, key, title, label_height in (
        (
            top,
            "claim_p50_ms",
            f"time to get the next {CLAIM_ROWS} jobs, milliseconds",
            0.08,
        ),
        (
            middle,
            "waiting",
            f"jobs waiting (each queue gets {LOAD:.0%} of its speed at the start)",
            0.12,
        ),
        (
            bottom,
            "dead_rows",
            "dead rows in the tables of the queue, by PostgreSQL's statistics",
            0.12,
        ),
    ):
        axes.set_title(title, loc="left", fontsize=11)
        ends = []
        for name, engine in found.items():
            opened = sum(turn.seconds for turn in engine.turns[:_TURNS_BEFORE])
            points = [
                (sample["seconds"] - opened, sample[key])
                for sample in engine.samples
                if sample[key] is not None
            ]
            if not points:
                continue  # Too short a run: no turn of it had a claim.
            width = 3.0 if name == "ours" else 1.8
            axes.plot(
                *zip(*points, strict=True),
                color=COLOURS[name],
                linewidth=width,
                zorder=3 if name == "ours" else 2,
            )
            ends.append((*points[-1], LABELS[name], COLOURS[name]))
        from_zero(axes, whole=key != "claim_p50_ms")
        axes.axvline(0, color="#333333", linewidth=1, linestyle=(0, (4, 3)))
        label_ends(axes, ends, label_height)
    bottom.set_xlabel(
        "age of the open transaction, seconds (each queue's own time: they take turns)"
    )
    # Left of the line it is not open, so it has no age.
    bottom.xaxis.set_major_formatter(lambda value, _: f"{value:g}" if value >= 0 else "")
    high = top.get_ylim()[1]
    top.annotate(
        what,
        (0, high),
        xytext=(6, -4),
        textcoords=("offset points"),
        va="top",
        fontsize=10,
        color="#333333",
    )
