"""endpoints: events from the commit of their publication to their arrival at HTTP endpoints.

One process of ``forebay deliver`` with its default settings, and a process that receives the requests. Each of 1,000 endpoints has a
subscription of each of three event types: without a filter (``all``), with a filter that one event of 1,000 contains (``one``), and with a
filter that no event contains (``nothing``). Each event is published in a separate transaction, at random moments. A request has one
delivery. The clock starts when the publisher learns that its commit is done, and stops when the receiver has read the request; both read the
monotonic clock of the same machine.

``dead``: an endpoint that refuses connections gets a backlog, and another one gets a hundred events a second: without the backlog, while the
claims pass it, and once all of it waits for the breaker.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay.errors import ForebayError
from forebay_bench import _servers
from forebay_bench._child import sleep_until
from forebay_bench._measure import (
    percentile,
    process_cpu_seconds,
    round_figure,
    server_cpu_seconds,
)
from forebay_bench._processes import scripts, wait_until
from forebay_bench._report import Bar, Report, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay_bench._place import Place
    from forebay_bench._processes import Script
    from forebay_bench._run import Options

_ENDPOINTS: Final = 1000
_SECONDS: Final = (5.0, 30.0)
_WAITING: Final = (20_000, 1_000_000)

#: Events a second of each case.
_RATES: Final = {"all": 10.0, "one": 1000.0, "nothing": 1000.0, "dead": 100.0}

#: The number of the endpoint beside the dead one.
_HEALTHY: Final = 0

_FILTERS: Final = {
    "all": "null",
    "one": "jsonb_build_object('customer', i)",
    "nothing": "jsonb_build_object('customer', 'none ' || i)",
}
_ENDPOINT: Final = """\
select forebay.create_endpoint('endpoint-' || i, 'http', %(config)s::jsonb || jsonb_build_object('url', %(url)s::text || i))
from generate_series(0, %(last)s::integer) i"""
_FILL: Final = """\
select forebay.enqueue_many(jsonb_agg(jsonb_build_object(
    'kind', 'message', 'queue', 'forebay.deliver', 'limit_key', 'dead',
    'args', jsonb_build_object('endpoint', %s::bigint, 'payload', jsonb_build_object('number', i)))))
from generate_series(1, %s::integer) i"""
_PARKED: Final = """\
select coalesce((select r.waiting from forebay.limit_run r join forebay.queue_group g using (group_id)
                 where g.queue = 'forebay.deliver' and r.limit_key = 'dead' order by r.no desc limit 1), 0)"""
_OPEN: Final = """\
select count(*) from forebay.endpoint_state s join forebay.endpoint e using (endpoint_id)
where e.name = 'dead' and s.opened_at is not null"""
_PUBLISH: Final = "select subscriptions from forebay.publish(%s, jsonb_build_object('number', %s::bigint, 'customer', %s::bigint))"

#: A receiver at an address that endpoints must not call by default.
_CONFIG: Final = {
    "destinations": {"allow": ["127.0.0.1"], "https_only": False, "ports": None},
    "concurrency": 50,
}

_PUBLISHERS: Final = 6
_FILL_JOBS: Final = 10_000
_WARM_SECONDS: Final = 1.0
_SILENCE_SECONDS: Final = 2.0
_ARRIVAL_SECONDS: Final = 120.0
_PARK_SECONDS: Final = 300.0
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 40.0


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured of one case."""

    published: int
    published_per_s: float
    expected: int
    arrived: int
    duplicates: int
    waits: list[float]
    deliver_cpu: float | None
    server_cpu: float | None
    seconds: float

    @property
    def lost(self) -> int:
        """How many deliveries did not arrive."""
        return self.expected - self.arrived

    def millis(self, share: int) -> float | None:
        """Return a percentile of the waits."""
        return percentile(self.waits, share / 100) * 1000 if self.waits else None

    def figures(self) -> dict[str, Any]:
        """Return them for the JSON line."""
        units = self.arrived or self.published
        return {
            "published": self.published,
            "published_per_s": round_figure(self.published_per_s),
            "deliveries": self.arrived,
            "deliveries_per_s": round_figure(self.arrived / self.seconds),
            "p50_ms": round_figure(self.millis(50)),
            "p99_ms": round_figure(self.millis(99)),
            "lost": self.lost,
            "duplicates": self.duplicates,
            "deliver_cpu_us": _micros(self.deliver_cpu, units),
            "server_cpu_us": _micros(self.server_cpu, units),
        }


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _micros(seconds: float | None, units: int) -> float | None:
    return None if seconds is None else round_figure(1e6 * seconds / units)


class _Run:
    """One database with endpoints, its receiver, and the process that delivers.

    Args:
        place: the server.
        dsn: the database.
        receiver: the process that receives.
        count: number of endpoints.
    """

    def __init__(self, place: Place, dsn: str, receiver: Script, count: int) -> None:
        self._place = place
        self.dsn = dsn
        self._receiver = receiver
        self.count = count
        self._numbers = 0
        self.process: subprocess.Popen[bytes]

    def receive(self, what: str) -> Any:
        """Send a command to the receiver; return its answer."""
        self._receiver.send({"do": what})
        return self._receiver.read_message()

    def load(self, event_type: str, per_s: float, seconds: float) -> Found:
        """Publish events at a rate; return what became of them."""
        self.receive("take")
        cpu, began = self._cpu(), time.monotonic()
        committed, published_seconds = self._publish(event_type, per_s, seconds)
        each = {"all": self.count, "nothing": 0}.get(event_type, 1)
        expected = each * len(committed)
        self._wait_for(expected)
        arrivals = self.receive("take")
        after = self._cpu()
        times: dict[tuple[int, int], float] = {}
        seen: Counter[tuple[int, int]] = Counter()
        for number, endpoint, at in arrivals:
            if number in committed:
                seen[number, endpoint] += 1
                times.setdefault((number, endpoint), at)
        ended = max(times.values(), default=time.monotonic())
        return Found(
            len(committed),
            len(committed) / published_seconds,
            expected,
            len(times),
            sum(seen.values()) - len(times),
            [at - committed[number] for (number, _), at in times.items()],
            _difference(cpu[0], after[0]),
            _difference(cpu[1], after[1]),
            ended - began,
        )

    def _wait_for(self, expected: int) -> None:
        """Wait until all deliveries arrived; give up when none arrives any more."""
        deadline = time.monotonic() + _ARRIVAL_SECONDS
        last, changed = -1, time.monotonic()
        while time.monotonic() < deadline:
            count = self.receive("count")
            if count >= expected > 0:
                return
            if count != last:
                last, changed = count, time.monotonic()
            elif time.monotonic() - changed > _SILENCE_SECONDS * (5 if expected else 1):
                return
            if self.process.poll() is not None:
                raise ForebayError("forebay deliver ended by itself")
            time.sleep(0.2)

    def _cpu(self) -> tuple[float | None, float | None]:
        pid = self._place.postmaster_pid
        return process_cpu_seconds(self.process.pid), None if pid is None else server_cpu_seconds(
            pid
        )

    def _publish(
        self, event_type: str, per_s: float, seconds: float
    ) -> tuple[dict[int, float], float]:
        """Return when the commit of each event was known, and how long it took."""
        moments = iter(_moments(per_s, seconds))
        committed: dict[int, float] = {}
        failures: list[BaseException] = []
        lock = threading.Lock()
        ready = threading.Barrier(_PUBLISHERS + 1)
        began = 0.0

        def publish() -> None:
            try:
                with psycopg.connect(self.dsn, autocommit=True) as conn:
                    with conn.transaction(force_rollback=True):
                        for _ in range(7):  # nothing is cold then
                            conn.execute(_PUBLISH, [event_type, -1, -1], prepare=True)
                    ready.wait()
                    ready.wait()
                    while True:
                        with lock:
                            due = next(moments, None)
                            self._numbers += 1
                            number = self._numbers
                        if due is None:
                            return
                        sleep_until(began + due)
                        conn.execute(
                            _PUBLISH, [event_type, number, number % self.count], prepare=True
                        )
                        committed[number] = time.monotonic()
            except BaseException as error:
                failures.append(error)
                ready.abort()

        threads = [threading.Thread(target=publish, daemon=True) for _ in range(_PUBLISHERS)]
        for thread in threads:
            thread.start()
        with contextlib.suppress(threading.BrokenBarrierError):
            ready.wait()
            began = time.monotonic()
            ready.wait()
        for thread in threads:
            thread.join()
        if failures:
            raise ForebayError(f"a publisher failed: {failures[0]}") from failures[0]
        return committed, time.monotonic() - began


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    part = min(1.0, options.scale)
    count = max(5, round(_ENDPOINTS * part))
    waiting = max(200, round((options.waiting or _WAITING[options.full]) * part))
    seconds = max(0.5, _SECONDS[options.full] * part)
    rates = {name: max(5.0, rate * part) for name, rate in _RATES.items()}
    found: dict[str, Found] = {}
    with _started(place, count, progress) as bench:
        for name in _FILTERS:
            progress(f"{rates[name]:g} events a second, {name}")
            bench.load(name, rates[name] / 2, min(_WARM_SECONDS, seconds))
            found[name] = bench.load(name, rates[name], seconds)
        progress("an endpoint beside one that is dead")
        bench.load("dead", rates["dead"], min(_WARM_SECONDS, seconds))
        found["dead_without"] = bench.load("dead", rates["dead"], seconds)
        progress(f"{waiting:,} deliveries wait for the dead endpoint")
        _fill(bench.dsn, waiting)
        filled = time.monotonic()
        found["dead_parking"] = bench.load("dead", rates["dead"], seconds)
        with psycopg.connect(bench.dsn, autocommit=True) as conn:
            # The messages that were sent before the breaker opened wait for their next try.
            wait_until(
                lambda: _one(conn, _OPEN) and _one(conn, _PARKED) >= waiting - 100,
                _PARK_SECONDS, "all deliveries of the dead endpoint wait for its breaker",
            )  # fmt: skip
        parked_seconds = time.monotonic() - filled
        found["dead_with"] = bench.load("dead", rates["dead"], seconds)
    return _report(found, count, waiting, parked_seconds, part)


@contextlib.contextmanager
def _started(place: Place, count: int, progress: Callable[[str], None]) -> Iterator[_Run]:
    """Make the endpoints, and run their receiver and ``forebay deliver``."""
    with (
        place.database("endpoints") as dsn,
        scripts("forebay_bench._receiving", []) as (receiver,),
        tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder,
    ):
        bench = _Run(place, dsn, receiver, count)
        progress(f"{count:,} endpoints are created")
        _create(dsn, bench.receive("port"), count)
        log = Path(folder) / "deliver.log"
        with _delivering(dsn, log) as bench.process, psycopg.connect(dsn, autocommit=True) as conn:
            wait_until(
                lambda: not _one(conn, "select count(*) from forebay.subscription where active_at is null"),
                _START_SECONDS, "the subscriptions are active",
            )  # fmt: skip
            yield bench


@contextlib.contextmanager
def _delivering(dsn: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")
    }
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [sys.executable, "-m", "forebay", "deliver", "--log-level", "error"],
            env={**environment, "FOREBAY_DATABASE_URL": dsn},
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        ) as process,
    ):  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _create(dsn: str, port: int, count: int) -> None:
    """Create the endpoints, 0 the healthy one, and their subscriptions; and the dead one."""
    config = json.dumps(_CONFIG)
    with psycopg.connect(dsn) as conn:
        values = {
            "config": config,
            "url": f"http://127.0.0.1:{port}/",
            "last": count - 1,
        }
        conn.execute(_ENDPOINT, values)
        for name, found in _FILTERS.items():
            conn.execute("select forebay.create_event_type(%s)", [name])
            conn.execute(
                f"select forebay.subscribe('endpoint-' || i, %s, {found}) from generate_series(0, %s::integer) i".encode(),
                [name, count - 1],
            )
        conn.execute("select forebay.create_event_type('dead')")
        conn.execute("select forebay.subscribe(%s, 'dead')", [f"endpoint-{_HEALTHY}"])
        url = json.dumps({"url": f"http://127.0.0.1:{_servers.free_port()}/", **_CONFIG})
        conn.execute("select forebay.create_endpoint('dead', 'http', %s)", [url])


def _fill(dsn: str, waiting: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        dead = _one(conn, "select endpoint_id from forebay.endpoint where name = 'dead'")
        for first in range(0, waiting, _FILL_JOBS):
            conn.execute(_FILL, [dead, min(_FILL_JOBS, waiting - first)])


def _one(conn: psycopg.Connection[Any], query: str) -> Any:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def _moments(per_s: float, seconds: float) -> list[float]:
    """Return random moments, at least four of them."""
    rng = random.Random(f"{per_s} {seconds}")
    moments: list[float] = []
    at = 0.0
    while at < seconds or len(moments) < 4:
        at += rng.expovariate(per_s)
        moments.append(at)
    return moments


def _report(
    found: dict[str, Found], count: int, waiting: int, parked_seconds: float, part: float
) -> Report:
    cases = {name: one.figures() for name, one in found.items()}
    shown = ("published_per_s", "deliveries_per_s", "p50_ms", "p99_ms", "lost", "duplicates", "deliver_cpu_us", "server_cpu_us")  # fmt: skip
    columns = ["", "events/s", "deliveries/s", "p50 ms", "p99 ms", "lost", "twice", "deliver, us", "server, us"]  # fmt: skip
    rows = [
        (name, *("-" if case[key] is None else f"{case[key]:,}" for key in shown))
        for name, case in cases.items()
    ]
    before, after = found["dead_without"].millis(99), found["dead_with"].millis(99)
    ratio = after / before if before and after else None
    is_whole = part >= 1.0
    return Report(
        {
            "cases": cases,
            "dead_p99_ratio": round_figure(ratio),
            "endpoints": count,
            "waiting": waiting,
            "parked_seconds": round_figure(parked_seconds),
        },
        [Table(columns, rows, right=columns[1:])],
        [
            Bar("all: 99 % ms", found["all"].millis(99) if is_whole else None, at_most=2000),
            Bar("one: 99 % ms", found["one"].millis(99) if is_whole else None, at_most=1000),
            Bar("nothing: deliveries", found["nothing"].arrived, at_most=0),
            Bar("beside a dead endpoint, 99 %, against without", ratio if is_whole else None, at_most=1.2),
            Bar("lost", sum(one.lost for one in found.values()), at_most=0),
            Bar("twice", sum(one.duplicates for one in found.values()), at_most=0),
        ],
        notes=[
            f"{count:,} endpoints, each with one request for each delivery; one process of forebay deliver",
            "from the known commit of the publish to the arrival of the request at the receiver",
            "publishers, forebay deliver, receiver and PostgreSQL share the cores",
            "CPU is that of a delivery, or of an event if nothing is delivered",
            f"the dead endpoint refuses connections; all of its {waiting:,} deliveries waited for the breaker after {parked_seconds:.3g} s",
        ],
    )  # fmt: skip
