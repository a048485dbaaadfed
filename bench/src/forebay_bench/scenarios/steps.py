"""steps: what a step of a flow costs, and its neighbours: ``once``, a gather, waits, a resumption.

- step: flows of ten steps and of none, drained by one worker process. Their difference, divided by
  the steps, is a step: rows, transactions, log, CPU time. Steps a second are those of the whole
  drain. Rows and transactions are those of the whole database, maintenance included.
- once: the same with ten effects, beside jobs that commit ten effects by hand, alone and with a
  row that says that it is done.
- flows of five steps: Forebay and its peers, each with everything that a flow costs.
- gather: a flow that gathers children that do nothing, their enqueue included, beside a drain of as
  many jobs; and the time from the end of the last child's handler to the first line of the parent.
- parked: polls and claims of a database where many flows wait for a signal, beside one where none
  does, in turns; an idle worker of each; and the time from the known commit of a signal to the
  first line of its flow. The flows are parked by the calls of a worker, without handlers.
- resumed: a flow that gives its slot back after each step: the time between two checkpoints at its
  end, where each attempt reads all of them, beside its beginning.
- held: flows of two steps and a wait, while a session holds a snapshot.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import msgspec
import psycopg

from forebay.ops import flows, maintenance, protocol
from forebay.ops.claimed import decoded_args
from forebay_bench import _flows, _ours
from forebay_bench._cpu import micros_text
from forebay_bench._engine import Runner, runner
from forebay_bench._holders import HeldDatabase, hold
from forebay_bench._idle_cost import idle_cost
from forebay_bench._journal import Journal
from forebay_bench._measure import (
    in_turns,
    per_second,
    percentile,
    ratio_of_rounds,
    round_figure,
    server_cpu_seconds,
    wal_bytes,
)
from forebay_bench._report import Bar, Report, Table
from forebay_bench.engines.forebay_log import Log, extend
from forebay_bench.peers import FLOW_PEERS, installed
from forebay_bench.scenarios.backlog import Size, fill, measure, ratio
from forebay_bench.scenarios.latency import set_wakeup
from forebay_bench.scenarios.queues import Measured, pick_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from forebay_bench._place import Place
    from forebay_bench._run import Options

    Turn = dict[str, float]
    Found = dict[str, Any]
    Part = tuple[Found, Table, list[Bar]]

#: Work of a round; of the parked flows and the seconds of a snapshot: in a quick and a full run.
_FLOWS: Final = 300
_PEER_FLOWS: Final = 60
_CHILDREN: Final = 10_000
_PARKED: Final = (50_000, 1_000_000)
_RESUMED: Final = 1_000
_HELD_SECONDS: Final = (10.0, 60.0)

_HELD_TURNS: Final = 10
_PARK_BATCH: Final = 10_000
_WAITING: Final = 1_000
_IDLE_SECONDS: Final = 20.0
_SIGNAL_SECONDS: Final = 10.0

_COSTS: Final = (
    *("inserts", "updates", "transactions", "log_bytes"),
    *("server_cpu_us", "worker_cpu_us"),
)

_COUNTS: Final = """
select (select sum(n_tup_ins) from pg_stat_user_tables),
    (select sum(n_tup_upd) from pg_stat_user_tables), xact_commit
from pg_stat_database where datname = current_database()
"""

_ENQUEUE: Final = """
select forebay.enqueue_many(%(kind)s, array(select jsonb_build_object('number', i)
    from generate_series(%(first)s::bigint, %(last)s::bigint) i), %(kind)s)
"""

_SEND: Final = """
select forebay.signal(%(name)s, i::text)
from generate_series(%(first)s::bigint, %(last)s::bigint) i
"""

_CYCLES: Final = """
select extract(epoch from at - lag(at) over (order by no))::float * 1000
from forebay.step where job_id = %s order by no offset 1
"""

#: The flow of a database that began last, and its group.
_FLOW: Final = "select job_id, group_id from forebay.step order by at desc limit 1"


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    figures: Found = {}
    tables: list[Table] = []
    bars: list[Bar] = []
    for part in (_steps, _gathers, _parked, _resumed, _held):
        found, table, kept = part(place, options, progress)
        figures |= found
        tables.append(table)
        bars += kept
    notes = [
        "a step: the difference of flows of ten steps and of none; steps/s: of the whole drain",
        "a gather enqueues its children; the drain beside it does not",
        "resumed: a step with the claim, the read of all checkpoints and the end of its attempt",
        *(peer.NOTE for peer in installed(options.compare, FLOW_PEERS)),
    ]
    return Report(figures, tables, bars, notes)


class Flows:
    """The process of an engine, and what its drains cost."""

    def __init__(self, place: Place, process: Runner, conn: psycopg.Connection[Any]) -> None:
        self.conn, self.dsn = conn, process.dsn
        self._process = process
        self._pid = place.postmaster_pid

    def turn(self, handler: str, jobs: int) -> Turn:
        """Enqueue jobs, and drain them."""
        _ours.fill(self.conn, handler.partition("/")[0], jobs)
        return self.drain(handler, jobs)

    def peer_turn(self, jobs: int) -> Turn:
        """Do it for a peer."""
        self._process.call("fill", count=jobs)
        return self.drain("steps_5", jobs)

    def drain(self, handler: str, jobs: int) -> Turn:
        """Drain what waits, at least a number of jobs; return what that cost."""
        before = self._counts()
        found = self._process.call("drain", handler=handler)
        assert found["ended"] >= jobs, f"{found['ended']} flows ended, of {jobs}"
        cost = {name: value - before[name] for name, value in self._counts().items()}
        return cost | {"seconds": found["seconds"], "worker_cpu_us": found["cpu_seconds"] * 1e6}

    def row(self, query: str, *parameters: object) -> Any:
        """Return the first row."""
        row = self.conn.execute(query, parameters).fetchone()
        assert row is not None
        return row

    def _counts(self) -> Turn:
        self.row("select pg_stat_force_next_flush()")
        counts = [float(value) for value in self.row(_COUNTS)]
        cpu = None if self._pid is None else server_cpu_seconds(self._pid)
        cpu_micros = math.nan if cpu is None else cpu * 1e6
        return dict(zip(_COSTS, [*counts, wal_bytes(self.conn), cpu_micros], strict=False))


@contextlib.contextmanager
def _started(
    place: Place, name: str = "flows", create: Callable[[str], None] | None = None
) -> Iterator[Flows]:
    """Yield an engine with a database."""
    with contextlib.ExitStack() as stack:
        made = create or _flows.create
        process = stack.enter_context(runner(name, place, migrated=create is None, create=made))
        conn = stack.enter_context(psycopg.connect(process.dsn, autocommit=True))
        yield Flows(place, process, conn)


def _cost(turns: Sequence[Turn], count: int, base: Sequence[Turn] | None = None) -> Found:
    """Return the cost of one of ``count`` things in a turn: without that of another turn."""
    each = {"per_s": count / median(turn["seconds"] for turn in turns)}
    for name in _COSTS:
        bare = [0.0] * len(turns) if base is None else [turn[name] for turn in base]
        each[name] = median(turn[name] - b for turn, b in zip(turns, bare, strict=True)) / count
    return _rounded(each)


def _rounded(values: Mapping[str, float | None]) -> Found:
    known = {
        name: None if value is None or math.isnan(value) else value
        for name, value in values.items()
    }
    return {name: round_figure(value) for name, value in known.items()}


def _rates(turns: Mapping[str, Sequence[Turn]], ours: str, rival: str) -> float:
    return ratio_of_rounds(*([turn["per_s"] for turn in turns[name]] for name in (ours, rival)))


def _table(title: str, rows: Mapping[str, Found], names: Sequence[str]) -> Table:
    columns = [title, *(name.replace("_", " ") for name in names)]
    cells = [(label, *(micros_text(each[name]) for name in names)) for label, each in rows.items()]
    return Table(columns, cells, right=columns[1:])


def _steps(place: Place, options: Options, progress: Callable[[str], None]) -> Part:
    count = max(5, int(_FLOWS * options.scale))
    few = max(5, int(_PEER_FLOWS * options.scale))
    peers = {peer.NAME: peer for peer in installed(options.compare, FLOW_PEERS)}
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(_started(place))
        kinds = (
            "steps_0",
            "steps_10",
            "steps_0/1",
            "steps_10/1",
            "once_10",
            "by_hand_10",
            "row_by_hand_10",
            "steps_5",
        )
        engines: dict[str, Callable[..., Turn]] = {kind: partial(ours.turn, kind) for kind in kinds}
        for name, peer in peers.items():
            engines[name] = stack.enter_context(_started(place, name, peer.create)).peer_turn
        for warm in engines.values():
            warm(jobs=5)  # connections, threads and plans
        jobs = {name: few if name in peers else count for name in engines}
        turns = in_turns(
            {name: partial(turn, jobs=jobs[name]) for name, turn in engines.items()},
            options.rounds or (5 if options.full else 3),
            progress,
        )
    for name, each in turns.items():
        for turn in each:
            turn["per_s"] = jobs[name] / turn["seconds"]
    rows = {
        "a step, 10 slots": _cost(turns["steps_10"], count * 10, turns["steps_0"]),
        "a step, one slot": _cost(turns["steps_10/1"], count * 10, turns["steps_0/1"]),
        "once, with an update": _cost(turns["once_10"], count * 10, turns["steps_0"]),
        "a transaction by hand": _cost(turns["by_hand_10"], count * 10, turns["steps_0"]),
        "by hand, with its row": _cost(turns["row_by_hand_10"], count * 10, turns["steps_0"]),
        "a fifth of a flow of 5 steps": _cost(turns["steps_5"], count * 5),
        **{f"the same, {name}": _cost(turns[name], few * 5) for name in peers},
    }
    step, *_ = rows.values()
    once = _rates(turns, "once_10", "by_hand_10")
    bars = [
        Bar("a step: rows inserted", step["inserts"], at_most=1.05),
        Bar("a step: rows updated", step["updates"], at_most=0.05),
        Bar("a step: transactions", step["transactions"], at_most=1),
        Bar("a step: bytes of log", step["log_bytes"], at_most=250),
        Bar("steps/s in one worker of 10 slots", step["per_s"], at_least=1_500),
        Bar("once, to a transaction by hand", once, at_least=0.8),
    ]
    for name in FLOW_PEERS:
        rival = _rates(turns, "steps_5", name) if name in peers else None
        bars.append(Bar(f"flows of 5 steps, to {name}", rival, at_least=5))
    return {"steps": rows}, _table("", rows, list(step)), bars


def _gathers(place: Place, options: Options, progress: Callable[[str], None]) -> Part:
    count = max(20, int(_CHILDREN * options.scale))
    woken: list[float] = []
    with _started(place) as ours:

        def gather(count: int) -> Turn:
            ours.conn.execute(_ENQUEUE, {"kind": "gather", "first": count, "last": count})
            turn = ours.drain("gather", count + 1)
            query = "select value::float from forebay.result(%s)"
            woken.append(ours.row(query, ours.row(_FLOW)[0])[0] * 1000)
            return turn

        engines: dict[str, Callable[[int], Turn]] = {
            "gathered": gather,
            "only drained": partial(ours.turn, "async"),
        }
        for warm in engines.values():
            warm(20)
        woken.clear()
        turns = in_turns(
            {name: partial(turn, count) for name, turn in engines.items()},
            options.rounds or 3,
            progress,
        )
    for each in turns.values():
        for turn in each:
            turn["per_s"] = count / turn["seconds"]
    rows = {name: _cost(each, count) for name, each in turns.items()}
    bars = [
        Bar("a gather, to a drain", _rates(turns, "gathered", "only drained"), at_least=0.5),
        Bar("ms from the last child to its parent", median(woken), at_most=100),
    ]
    found = {"gather": {**rows, "woken_ms": round_figure(median(woken))}}
    return found, _table(f"{count:,} children", rows, ["per_s", *_COSTS]), bars


def _parked(place: Place, options: Options, progress: Callable[[str], None]) -> Part:
    count = max(50, int(_PARKED[options.full] * options.scale))
    share = min(1.0, options.scale)
    with contextlib.ExitStack() as stack:
        dsns, sizes = [], []
        for number in (0, count):
            process = stack.enter_context(
                runner("flows", place, migrated=True, create=partial(set_wakeup, on=True))
            )
            park(process.dsn, number, progress)
            fill(process.dsn, _WAITING)
            sizes.append(Size(number, Log(process.dsn)))
            stack.callback(sizes[-1].log.close)
            dsns.append(process.dsn)
        idle = [Log(dsn, "idle") for dsn in dsns]
        polls: list[list[float]] = [[], []]
        for _ in range(options.rounds or 5):
            measure(sizes, 1, max(2, int(100 * share)), progress)
            for log, times in zip(idle, polls, strict=True):
                times.append(median(1000 / per_second(1, log.ready) for _ in range(200)))
        rows = {}
        for log, dsn, size, times in zip(idle, dsns, sizes, polls, strict=True):
            progress(f"an idle worker, {size.size:,} flows parked")
            log.close()
            worker = Runner("flows", dsn)
            worker.call("idle", count=1)
            cost = idle_cost(place, dsn, wait=12 * share, seconds=_IDLE_SECONDS * share)
            worker.close()
            rows[f"{size.size:,}"] = _rounded({
                "poll_ms": median(times),
                "claim_ms": median(x for turn in size.claims for x in turn) * 1000,
                "claim_pages": median(size.pages),
                "idle_ms_per_s": cost.cpu_ms,
                "idle_transactions_per_s": cost.transactions,
            })  # fmt: skip
        progress("signals")
        waiting = Measured("flows", 1, "parked flows", process)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-bench-")))
        pick_up(waiting, Journal(folder / "starts"), _SIGNAL_SECONDS * share)
    starts = {f"p{part}": percentile(waiting.waits, part / 100) * 1000 for part in (50, 99)}
    none, parked = rows.values()
    known = parked["idle_ms_per_s"] is not None
    used = parked["idle_ms_per_s"] / max(1.0, none["idle_ms_per_s"]) if known else None
    bars = [
        Bar(f"{count:,} parked: idle poll, to none", ratio_of_rounds(*polls[::-1]), at_most=1.1),
        Bar("the same: claim", ratio(sizes[1].claims, sizes[0].claims), at_most=1.1),
        Bar("the same: server CPU of an idle worker", used, at_most=1.1),
        Bar("a signal to one of them, ms to its start, p50", starts["p50"], at_most=20),
    ]
    found = {"parked": {**rows, "signal_to_start_ms": _rounded(starts)}}
    return found, _table("parked flows", rows, list(none)), bars


def park(dsn: str, count: int, progress: Callable[[str], None]) -> None:
    """Enqueue flows, and let each wait for its signal, by the calls of a worker."""
    log = Log(dsn, "parked")
    for first in range(0, count, _PARK_BATCH):
        progress(f"{first:,} of {count:,} flows are parked")
        last = min(count, first + _PARK_BATCH) - 1
        log.conn.execute(_ENQUEUE, {"kind": "parked", "first": first, "last": last})
        extend(log.conn)
        while True:
            claim_no, jobs = log.claim_lane(_PARK_BATCH)
            if not jobs:
                break
            ended = []
            for job in jobs:
                key = str(decoded_args(job.args)["number"])
                value = msgspec.Raw(msgspec.json.encode({"key": key, "seconds": None}))
                job_id = job.job_id or job.seq
                step = flows.NewStep(job_id, log.group_ids[0], 1, "p", _flows.SIGNAL, None, value)
                end = flows.FlowEnd([step], wait=flows.Wait(_flows.SIGNAL, key, _flows.SIGNAL))
                ended.append(protocol.Ended(job.offset, "snoozed", flow=end))
            log.run(protocol.settle(log.lease_id, [protocol.Flush(claim_no, 1, [], ended=ended)]))
        while log.run(maintenance.promote()):
            pass
    log.conn.execute("vacuum analyze")
    log.close()


def _resumed(place: Place, options: Options, progress: Callable[[str], None]) -> Part:
    steps = max(20, int(_RESUMED * options.scale))
    progress(f"a flow is resumed {steps:,} times")
    with _started(place) as ours:
        ours.conn.execute(_ENQUEUE, {"kind": "resumed", "first": steps, "last": steps})
        ours.drain("resumed", 1)
        job = ours.row(_FLOW)
        cycles = [row[0] for row in ours.conn.execute(_CYCLES, job[:1])]
        read = flows.steps(*job)
        again = partial(ours.conn.execute, read.sql, read.params)
        read_ms = median(1000 / per_second(1, lambda: again().fetchall()) for _ in range(20))
    part = steps // 20
    rows = {
        f"its first {part}": _rounded({"ms": median(cycles[:part]), "read_ms": None}),
        f"its last {part}": _rounded({"ms": median(cycles[-part:]), "read_ms": read_ms}),
    }
    first, last = (each["ms"] for each in rows.values())
    bars = [Bar(f"step {steps:,} to step 1, resumed after each", last / first, at_most=1.2)]
    return {"resumed": rows}, _table("a flow that is resumed", rows, ["ms", "read_ms"]), bars


def _held(place: Place, options: Options, progress: Callable[[str], None]) -> Part:
    seconds = _HELD_SECONDS[options.full] * options.scale
    with contextlib.ExitStack() as stack:
        ours, number = stack.enter_context(_started(place)), 0

        def turn(count: int) -> Turn:
            nonlocal number
            span = {
                "kind": "waits",
                "first": number + 1,
                "last": number + count,
                "name": _flows.SIGNAL,
            }
            number += count
            for query in (_ENQUEUE, _SEND):
                ours.conn.execute(query, span)
            return ours.drain("waits", count)

        turn(20)
        count = max(20, int(100 / turn(100)["seconds"] * seconds / _HELD_TURNS))
        turn(count)
        database = HeldDatabase(ours.dsn, lambda _: None)
        stack.enter_context(hold("snapshot", place, [database]))
        began, turns = time.monotonic(), []
        for _ in range(_HELD_TURNS):
            progress(f"a snapshot is held: {time.monotonic() - began:.0f} s")
            turns.append(turn(count))
        held = round(time.monotonic() - began, 1)
    rows = {"first": _cost(turns[:3], count), "last": _cost(turns[-3:], count)}
    first, last = rows.values()
    known = first["server_cpu_us"] is not None
    used = last["server_cpu_us"] / first["server_cpu_us"] if known else None
    bars = [
        Bar("held: flows/s, last turns to first", last["per_s"] / first["per_s"], at_least=0.95),
        Bar("held: server CPU of a flow, last turns to first", used, at_most=1.2),
    ]
    shown = {f"{name} three of {_HELD_TURNS} turns": each for name, each in rows.items()}
    found = {"held": {**rows, "seconds": held, "flows": count * _HELD_TURNS}}
    return found, _table(f"flows, a snapshot held {held} s", shown, list(first)), bars
