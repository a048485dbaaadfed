"""simulated: how much of their slots' time many workers use on one queue, whose claims take turns.

Thin clients on real leases claim and settle by a worker's statements and sizes, see
``_thin_clients``; their jobs only take time: a second each for 50, 100, 200 and 500 workers of 10
slots, and a tenth of a second for 16 workers. In turns they ask for as many jobs as a worker does,
and for as many as one that does not look at how long its claims wait (``unsized``).

The clients share the cores with the server, so the numbers of a small machine are limited by its
cores: the table has the CPU time of a job of both. The claims a second at which the share drops are
those that this machine can do.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay.embedded import temporary_server
from forebay.upgrade.migrate import migrate
from forebay_bench._cpu import COLUMNS, JobCosts
from forebay_bench._maintenance import maintenance
from forebay_bench._measure import process_cpu_seconds, round_figure
from forebay_bench._place import SERVER_SETTINGS, Place
from forebay_bench._processes import scripts
from forebay_bench._report import Bar, Report, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure

    from forebay_bench._processes import Script
    from forebay_bench._run import Options

_SLOTS: Final = 10

#: Workers, seconds of a job, and the share of the slots' time that is promised.
_CASES: Final = ((16, 0.1, 0.95), (50, 1.0, 0.9), (100, 1.0, 0.9), (200, 1.0, 0.9), (500, 1.0, 0.9))

_QUICK_SECONDS: Final = 6.0
_FULL_SECONDS: Final = 20.0

#: Before the measurement: the first claims, and the first jobs of all slots.
_WARM_FACTOR: Final = 4.0
_WARM_SECONDS_MIN: Final = 2.0

#: How long the jobs last beyond what is planned.
_SPARE_SECONDS: Final = 3.0

_FILL: Final = """
select forebay.enqueue_many('noop', array_fill('{}'::jsonb, array[least(10000, %s)::integer]),
    'bench')
"""


@dataclass(frozen=True, slots=True)
class Share:
    """The result of one turn."""

    used: float
    """Of the slots' time."""
    claims_per_s: float
    jobs_per_claim: float
    claim_ms: float
    """Mean time of a poll and its claim, the wait for the turn included."""


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    seconds = (_FULL_SECONDS if options.full else _QUICK_SECONDS) * options.scale
    cases: Sequence[tuple[int, float, float]] = _CASES
    if options.scale < 0.2:
        cases = ((2, 0.1, 0.95), (4, 0.2, 0.9))
    costs = JobCosts(place)
    found: dict[tuple[int, float, bool], Share] = {}
    with contextlib.ExitStack() as stack:
        most = max(workers for workers, _, _ in cases)
        progress(f"a server for {most} workers")
        if place.is_own:
            connections = {"max_connections": str(2 * most + 50)}
            server = stack.enter_context(
                temporary_server(place.bin_dir, extra_settings=SERVER_SETTINGS | connections)
            )
            place = Place(server.dsn(), is_own=True, postmaster_pid=server.pid)
            dsn = place.dsn
            migrate(dsn)
            costs = JobCosts(place)
        else:
            dsn = stack.enter_context(place.database("simulated"))
        stack.enter_context(maintenance(dsn))
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        row = conn.execute("select forebay.open_group('bench')").fetchone()
        assert row is not None
        processes = min(os.cpu_count() or 1, 4)
        shares = [most // processes + (number < most % processes) for number in range(processes)]
        clients = stack.enter_context(
            scripts(
                "forebay_bench._thin_clients",
                *([dsn, str(number * 10_000), str(share)] for number, share in enumerate(shares)),
            )
        )
        for workers, length, _ in cases:
            for is_sized in (False, True):
                progress(f"{workers} workers{'' if is_sized else ', unsized'}")
                found[workers, length, is_sized] = _turn(
                    conn, clients, row[0], workers, length, seconds, is_sized, costs
                )
    return _report(cases, found, costs)


def _turn(  # noqa: PLR0917 - one turn is described by all of them
    conn: psycopg.Connection[Any],
    clients: Sequence[Script],
    group: int,
    workers: int,
    length: float,
    seconds: float,
    is_sized: bool,
    costs: JobCosts,
) -> Share:
    warm = max(_WARM_SECONDS_MIN, _WARM_FACTOR * length)
    _fill(conn, int(workers * _SLOTS / length * (warm + seconds + _SPARE_SECONDS)))
    since = time.monotonic() + warm
    until = since + seconds
    for number, script in enumerate(clients):
        script.send(
            {
                "group": group,
                "workers": workers // len(clients) + (number < workers % len(clients)),
                "slots": _SLOTS,
                "seconds": length,
                "is_sized": is_sized,
                "since": since,
                "until": until,
            }
        )
    time.sleep(max(0.0, since - time.monotonic()))
    server, used = costs.server_seconds(), _client_seconds(clients)
    time.sleep(max(0.0, until - time.monotonic()))
    after, used = costs.server_seconds(), _client_seconds(clients) - used
    answers = [script.read_message() for script in clients]
    total = {name: sum(each[name] for each in answers) for name in answers[0]}
    jobs = total["busy"] / length
    costs.add(
        _name(workers, length, is_sized=is_sized),
        jobs,
        server=None if server is None or after is None else after - server,
        client=used,
    )
    return Share(
        total["busy"] / (workers * _SLOTS * seconds),
        total["claims"] / seconds,
        total["claimed"] / max(1, total["claims"]),
        1000 * total["claim_seconds"] / max(1, total["claims"]),
    )


def _fill(conn: psycopg.Connection[Any], count: int) -> None:
    row = conn.execute(
            "select coalesce(sum(ready), 0)::integer from "
            "forebay.depth('bench')"
            ).fetchone()  # fmt: skip
    assert row is not None
    missing = count - row[0]
    while missing > 0:
        conn.execute(_FILL, [missing])
        missing -= 10_000


def _client_seconds(clients: Sequence[Script]) -> float:
    return sum(process_cpu_seconds(script.pid) or 0.0 for script in clients)


def _name(workers: int, length: float, *, is_sized: bool) -> str:
    return f"{workers}_of_{length:g}s{'' if is_sized else '_unsized'}"


def _report(
    cases: Sequence[tuple[int, float, float]],
    found: dict[tuple[int, float, bool], Share],
    costs: JobCosts,
) -> Report:
    figures: dict[str, Any] = {}
    rows = []
    for (workers, length, is_sized), share in found.items():
        name = _name(workers, length, is_sized=is_sized)
        figures[name] = {
            "slots_used_share": round_figure(share.used),
            "claims_per_s": round_figure(share.claims_per_s),
            "jobs_per_claim": round_figure(share.jobs_per_claim),
            "claim_ms": round_figure(share.claim_ms),
        }
        rows.append(
            (
                f"{workers}, jobs of {length:g} s{'' if is_sized else ', unsized'}",
                f"{share.used:.1%}",
                f"{share.used * workers * _SLOTS / length:,.0f}",
                f"{share.claims_per_s:,.0f}",
                f"{share.jobs_per_claim:.2f}",
                f"{share.claim_ms:.3g}",
                *costs.cells(name),
            )
        )
    figures["cpu_us"] = costs.figures()
    columns = ["workers", "slots used", "jobs/s", "claims/s", "jobs a claim", "claim ms", *COLUMNS]
    bars = [
        Bar(
            f"{workers} workers, jobs of {length:g} s: share of the slots' time",
            found[workers, length, True].used,
            at_least=wanted,
        )
        for workers, length, wanted in cases
    ]
    return Report(
        figures,
        [Table(columns, rows, right=columns[1:])],
        bars,
        notes=[
            (
                f"{_SLOTS} slots each, one queue; claims of its lane take turns; jobs last 20 "
                f"% more or less at random"
            ),
            "claim ms: a poll and its claim, the wait for the turn and for a core included",
            "unsized: jobs claimed in advance do not depend on how long claims take",
            (
                "thin clients without handlers and heartbeats share the cores with the server; "
                "CPU time is that of one job"
            ),
        ],
        draw=lambda figure: _draw(figure, found),
    )


def _draw(figure: Figure, found: dict[tuple[int, float, bool], Share]) -> None:
    from forebay_bench.plot import COLOURS, label_line  # noqa: PLC0415 - imports matplotlib

    axes = figure.subplots()
    for is_sized, label, style in ((True, "Forebay", "-"), (False, "unsized", "--")):
        points = [
            (workers, share.used)
            for (workers, length, sized), share in found.items()
            if sized is is_sized and length == 1.0
        ]
        if not points:
            continue
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, style, color=COLOURS["forebay"], marker="o", markersize=4)
        label_line(axes, xs[-1], ys[-1], label, COLOURS["forebay"])
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("simulated workers of ten slots, jobs of one second")
    axes.set_ylabel("share of the slots' time in use")
    axes.set_title("One queue, many workers")
