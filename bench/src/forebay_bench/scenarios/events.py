"""events: from a publish to the arrival of its deliveries at HTTP endpoints, with one ``forebay deliver``.

A thousand endpoints, each with a subscription of three event types: of ``one`` each event matches one filter, of ``all`` each event goes to
all endpoints, of ``none`` no filter matches. A process that stands for all endpoints answers every request at once. The clock starts
before the transaction of the publish and stops when the endpoint has read the message; each endpoint has its own connection.

- ``one``: 1,000 events a second, ten in a transaction, for one endpoint each.
- ``none``: the same events, for no endpoint. Beside it, the CPU of the delivering process without events.
- ``all``: events for all endpoints, at a rate that the process can deliver, and at 10 a second.
- ``dead``: as ``one``, while deliveries wait for another endpoint that refuses everything.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay.errors import ForebayError
from forebay_bench._child import sleep_until
from forebay_bench._measure import round_figure
from forebay_bench._processes import scripts, wait_until
from forebay_bench._report import Bar, Report, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay_bench._place import Place
    from forebay_bench._processes import Script
    from forebay_bench._run import Options

_ENDPOINTS: Final = 1000
_PER_S: Final = 1000.0
_IN_TRANSACTION: Final = 10
#: Events a second for all endpoints: what one process can deliver, and what the bar asks for.
_MODEST_PER_S: Final = 1.5
_ALL_PER_S: Final = 10.0
_WAITING: Final = 50_000
_FULL_WAITING: Final = 1_000_000
_AT_MOST_ONE: Final = 1.0
_AT_MOST_ALL: Final = 2.0
_AT_MOST_DEAD: Final = 1.2
#: The endpoints are on this machine, which endpoints must not call by default.
_LOCAL: Final = {"allow": ["127.0.0.1"], "https_only": False, "ports": None}
_CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Case:
    """The figures of one case. Times in seconds; None: nothing arrived."""

    name: str
    published: int
    published_per_s: float
    expected: int
    arrived: int
    repeated: int
    requests: int
    p50: float | None
    p99: float | None
    cpu_seconds: float

    def figures(self) -> dict[str, Any]:
        """Return them for the JSON line."""
        return {
            "published": self.published,
            "published_per_s": round_figure(self.published_per_s),
            "deliveries": self.expected,
            "missing": self.expected - self.arrived,
            "repeated": self.repeated,
            "requests": self.requests,
            "p50_ms": None if self.p50 is None else round_figure(self.p50 * 1000),
            "p99_ms": None if self.p99 is None else round_figure(self.p99 * 1000),
            "cpu_us_per_event": round_figure(1e6 * self.cpu_seconds / self.published),
        }


@dataclass(slots=True)
class _Setting:
    """What the cases use."""

    conn: psycopg.Connection[Any]
    receiver: Script
    process: subprocess.Popen[bytes]
    endpoints: int
    number: int = 0

    def query(self, command: str) -> Any:
        self.receiver.send(command)
        return self.receiver.read_message()

    def cpu(self) -> float:
        """Return the CPU seconds of the delivering process."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS

    def measure(
        self,
        name: str,
        event_type: str,
        per_s: float,
        seconds: float,
        *,
        deliveries: int,
        size: int,
    ) -> Case:
        """Publish at a rate, and wait until everything arrived.

        Args:
            name: of the case.
            event_type: of the events.
            per_s: events a second.
            seconds: for how long.
            deliveries: of each event.
            size: events of a transaction.
        """
        count = max(size, round(per_s * seconds))
        before, started = self.cpu(), time.monotonic()
        for first in range(0, count, size):
            sleep_until(started + first / per_s)
            self._publish(event_type, size)
        took = time.monotonic() - started
        count = -(-count // size) * size
        expected = count * deliveries
        with contextlib.suppress(ForebayError):  # the figures say what is missing
            wait_until(lambda: self.query("count") >= expected, 60 + expected / 500, "all arrive")
        if not expected:
            wait_until(self._are_routed, 60, "all events are routed")
        cpu = self.cpu() - before
        found = self.query("take")
        return Case(
            name, count, count / took, expected, found["arrived"], found["repeated"], found["requests"],
            found["p50"], found["p99"], cpu,
        )  # fmt: skip

    def _publish(self, event_type: str, size: int) -> None:
        now = time.time()
        events = []
        for _ in range(size):
            self.number += 1
            payload = {"n": self.number, "k": self.number % self.endpoints, "t": now}
            events.append({"event_type": event_type, "payload": payload})
        self.conn.execute("select forebay.publish_many(%s)", [json.dumps(events)])

    def _are_routed(self) -> bool:
        row = self.conn.execute(
            "select coalesce(sum(ready + running + claimed), 0) = 0 from forebay.depth('forebay.publish')"
        ).fetchone()
        return row is not None and bool(row[0])


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    endpoints = max(2, round(_ENDPOINTS * min(1.0, options.scale)))
    seconds = (20.0 if options.full else 5.0) * min(1.0, max(0.1, options.scale))
    waiting = max(10, round((_FULL_WAITING if options.full else _WAITING) * options.scale))
    per_s = _PER_S * endpoints / _ENDPOINTS
    with _setting(place, endpoints, progress) as setting:
        setting.measure("warm", "one", per_s, 1.0, deliveries=1, size=_IN_TRANSACTION)
        cases = []
        for name, event_type, rate, each, size in (
            ("one", "one", per_s, 1, _IN_TRANSACTION),
            ("none", "none", per_s, 0, _IN_TRANSACTION),
            ("all, modest", "all", _MODEST_PER_S, endpoints, 1),
            ("all", "all", _ALL_PER_S, endpoints, 1),
        ):
            progress(f"{name}: {rate:g} events a second for {seconds:g} s")
            cases.append(
                setting.measure(name, event_type, rate, seconds, deliveries=each, size=size)
            )
        progress("idle")
        before = setting.cpu()
        time.sleep(seconds)
        idle = setting.cpu() - before
        progress("one, again")
        cases.append(
            setting.measure("one, again", "one", per_s, seconds, deliveries=1, size=_IN_TRANSACTION)
        )
        progress(f"{waiting:,} deliveries for an endpoint that refuses them")
        _fill_dead(setting.conn, waiting)
        setting.query("take")
        cases.append(
            setting.measure("dead", "one", per_s, seconds, deliveries=1, size=_IN_TRANSACTION)
        )
    return _report({case.name: case for case in cases}, idle, waiting)


@contextlib.contextmanager
def _setting(place: Place, endpoints: int, progress: Callable[[str], None]) -> Iterator[_Setting]:
    with contextlib.ExitStack() as stack:
        dsn = stack.enter_context(place.database("events"))
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        (receiver,) = stack.enter_context(scripts("forebay_bench._receiver", []))
        receiver.send("port")
        port = receiver.read_message()
        progress(f"{endpoints:,} endpoints are created")
        _create(conn, port, endpoints)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-bench-"))
        log = stack.enter_context((Path(folder) / "deliver.log").open("wb"))
        process = subprocess.Popen(
            [sys.executable, "-m", "forebay", "deliver", "--dsn", dsn],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        stack.callback(_end, process)
        progress("the subscriptions begin")
        wait_until(
            lambda: (
                conn.execute(
                    "select count(*) = 0 from forebay.subscription where active_at is null"
                ).fetchone()
                == (True,)
            ),
            60 + endpoints / 10,
            "all subscriptions are active",
        )
        yield _Setting(conn, receiver, process, endpoints)


def _create(conn: psycopg.Connection[Any], port: int, endpoints: int) -> None:
    for event_type in ("one", "all", "none", "refused"):
        conn.execute("select forebay.create_event_type(%s)", [event_type])
    for number in range(endpoints):
        name = f"e{number}"
        _create_endpoint(conn, name, port)
        for event_type, chosen in (
            ("one", {"k": number}),
            ("all", None),
            ("none", {"k": -1 - number}),
        ):
            conn.execute(
                "select forebay.subscribe(%s, %s, %s)",
                [name, event_type, None if chosen is None else json.dumps(chosen)],
            )  # fmt: skip
    _create_endpoint(conn, "refused", port)
    conn.execute("select forebay.subscribe('refused', 'refused')")


def _create_endpoint(conn: psycopg.Connection[Any], name: str, port: int) -> None:
    config = {"url": f"http://127.0.0.1:{port}/{name}", "destinations": _LOCAL, "batch": "array"}
    conn.execute("select forebay.create_endpoint(%s, 'http', %s)", [name, json.dumps(config)])


def _fill_dead(conn: psycopg.Connection[Any], waiting: int) -> None:
    for first in range(0, waiting, 1000):
        conn.execute(
            "select forebay.publish_many((select jsonb_agg(jsonb_build_object('event_type', 'refused', 'payload', jsonb_build_object('n', i)))"
            " from generate_series(1, %s) i))",
            [min(1000, waiting - first)],
        )
    wait_until(
        lambda: (
            conn.execute(
                "select coalesce(sum(deliveries), 0) >= %s from forebay.published where event_type = 'refused'",
                [waiting],
            ).fetchone()
            == (True,)
        ),
        60 + waiting / 1000,
        "the events are routed",
    )
    wait_until(
        lambda: (
            conn.execute(
                "select count(*) = 1 from forebay.endpoint_state s join forebay.endpoint e using (endpoint_id)"
                " where e.name = 'refused' and s.opened_at is not null"
            ).fetchone()
            == (True,)
        ),
        60,
        "the breaker opens",
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _report(cases: dict[str, Case], idle: float, waiting: int) -> Report:
    rows = [
        (
            case.name,
            f"{case.published_per_s:,.4g}",
            f"{case.expected:,}",
            f"{case.expected - case.arrived:,}",
            "-" if case.p50 is None else f"{case.p50 * 1000:,.0f}",
            "-" if case.p99 is None else f"{case.p99 * 1000:,.0f}",
            f"{1e6 * case.cpu_seconds / case.published:,.0f}",
        )
        for case in cases.values()
    ]
    columns = ["", "events/s", "deliveries", "missing", "p50 ms", "p99 ms", "CPU of an event, us"]
    before, dead = cases["one, again"].p99, cases["dead"].p99
    return Report(
        {name.replace(", ", "_"): case.figures() for name, case in cases.items()}
        | {"idle_cpu_seconds": round_figure(idle), "waiting": waiting},
        [Table(columns, rows, right=columns[1:])],
        [
            Bar("one endpoint for each event, p99 in seconds", cases["one"].p99, at_most=_AT_MOST_ONE),
            Bar("all endpoints for each event, p99 in seconds", cases["all"].p99, at_most=_AT_MOST_ALL),
            Bar(f"p99 beside {waiting:,} deliveries that wait, against before", dead / before if dead and before else None, at_most=_AT_MOST_DEAD),
        ],
        notes=[
            "times are from before the transaction of the publish until the endpoint has read the message",
            "PostgreSQL, the publisher, one forebay deliver and the process that stands for the endpoints share the cores",
            "CPU is that of forebay deliver, for an event with all its deliveries",
            "an endpoint gets one request for all messages that wait for it in the process",
        ],
    )  # fmt: skip
