"""Produce, drain to six sinks with faults, and count both sides."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg

import forebay
from forebay.db.own import run_own
from forebay.embedded import EmbeddedServer, temporary_server
from forebay.errors import ForebayError
from forebay.ops.operation import Operation, nothing
from forebay.upgrade.migrate import migrate
from six_sinks.places import Place, six_places
from six_sinks.view import View

MESSAGES = 3_000
PER_SECOND = 200
KEYS = 100

#: From when to when the server of NATS is away, in seconds.
_KILLED_AT, _BACK_AT = 3.0, 7.0

_SECONDS_MAX = 120.0


@dataclass
class Row:
    """The result of one sink: what was committed, what arrived, how much of it more than once,
    and what never did.
    """

    sink: str
    committed: int
    arrived: int
    repeated: int
    lost: int
    early: int
    found_lost: int
    remark: str


def run(view: View, *, messages: int = MESSAGES) -> list[Row]:
    """Run the demo and return a row for each sink.

    Raises:
        ForebayError: a server or the drains did not start, or not everything arrived in time.
    """
    with (
        tempfile.TemporaryDirectory(prefix="forebay-sinks-") as folder,
        contextlib.ExitStack() as stack,
    ):
        view.event("starting PostgreSQL, Valkey, NATS, a Kafka broker, an endpoint")
        server = stack.enter_context(temporary_server())
        dsn, other = (_database(server, name) for name in ("demo", "other"))
        places = stack.enter_context(six_places(Path(folder), other))
        for name in places:
            forebay.Client(dsn).open_group("orders", name)
        drains = stack.enter_context(_drains(dsn, places, Path(folder) / "drains.log"))
        view.event("six drains of one queue started")
        view.event("a transaction for each message; a tenth of them roll back")
        committed = _produce(dsn, messages, places, view)
        view.event(f"{len(committed):,} committed", "bold")
        _wait_until_drained(dsn, drains, view, Path(folder) / "drains.log")
        drains.send_signal(signal.SIGTERM)
        drains.wait(30)
        found_lost = _losses(dsn)
        return [
            _row(name, place, committed, found_lost.get(name, 0)) for name, place in places.items()
        ]


def _row(name: str, place: Place, committed: set[int], found_lost: int) -> Row:
    arrived = place.arrived()
    return Row(
        sink=name,
        committed=len(committed),
        arrived=len(arrived),
        repeated=arrived.total() - len(arrived),
        lost=len(committed - set(arrived)),
        early=len(set(arrived) - committed),
        found_lost=found_lost,
        remark=place.remark,
    )


def _database(server: EmbeddedServer, name: str) -> str:
    run_own(server.dsn(), Operation(f"create database {name}", nothing, outside_block=True))
    dsn = server.dsn(name)
    migrate(dsn)
    return dsn


@contextlib.contextmanager
def _drains(dsn: str, places: dict[str, Place], log: Path) -> Generator[subprocess.Popen[bytes]]:
    environment = os.environ | {
        "FOREBAY_DATABASE_URL": dsn,
        "SIX_SINKS": json.dumps({name: place.sink for name, place in places.items()}),
    }
    command = [sys.executable, "-m", "forebay", "drain", "six_sinks.app:app"]
    with (
        log.open("wb") as file,
        subprocess.Popen(
            command, env=environment, stdout=file, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _produce(dsn: str, messages: int, places: dict[str, Place], view: View) -> set[int]:
    """Commit and roll back transactions of one message each; kill a server meanwhile.

    Return what was committed.
    """
    rng = random.Random(1)
    committed: set[int] = set()
    nats = places["nats"]
    began = time.monotonic()
    drawn_at = 0.0
    steps = [
        (_KILLED_AT, nats.kill, "the server of NATS is killed (SIGKILL)", "bold red"),
        (_BACK_AT, nats.restart, "the server of NATS is back, with its files", "bold yellow"),
    ]
    nats.remark = f"killed, {_BACK_AT - _KILLED_AT:.0f} s"
    with psycopg.connect(dsn) as conn:
        for number in range(messages):
            while (now := time.monotonic() - began) < number / PER_SECOND:
                time.sleep(0.005)
            while steps and now >= steps[0][0]:
                _, act, text, style = steps.pop(0)
                act()
                view.event(text, style)
            conn.execute(
                (
                    "select forebay.enqueue('order.paid', %s::jsonb, queue => 'orders', "
                    "ordering_key => %s)"
                ),
                [json.dumps({"n": number}), f"customer {number % KEYS}"],
            )
            if rng.random() < 0.1:
                conn.rollback()
            else:
                conn.commit()
                committed.add(number)
            if now > drawn_at + 0.5:
                drawn_at = now
                view.draw(
                    len(committed),
                    _waiting(dsn),
                    {name: place.remark for name, place in places.items()},
                )
    for _, act, text, style in steps:
        act()
        view.event(text, style)
    return committed


def _waiting(dsn: str) -> dict[str, int]:
    query = (
        "select group_name, sum(ready + scheduled + retrying + claimed + running) from "
        "forebay.depth('orders') group by group_name"
    )
    with psycopg.connect(dsn) as conn:
        return {name: int(count) for name, count in conn.execute(query)}


def _wait_until_drained(dsn: str, drains: subprocess.Popen[bytes], view: View, log: Path) -> None:
    until = time.monotonic() + _SECONDS_MAX
    while True:
        if drains.poll() is not None:
            raise ForebayError("the drains ended", detail=log.read_text(errors="replace")[-3000:])
        waiting = _waiting(dsn)
        if not any(waiting.values()):
            return
        if time.monotonic() > until:
            raise ForebayError(
                f"messages still wait after {_SECONDS_MAX:.0f} s: {waiting}",
                detail=log.read_text(errors="replace")[-3000:],
            )
        view.draw(None, waiting, {})
        time.sleep(0.2)


def _losses(dsn: str) -> dict[str, int]:
    with psycopg.connect(dsn) as conn:
        rows = conn.execute(
            "select mirror, sum(count) from forebay.mirror_count where outcome = 'lost' "
            "group by mirror"
        )
        return Counter({name.removeprefix("drain."): int(count) for name, count in rows})


def as_dicts(rows: list[Row]) -> list[dict[str, object]]:
    """Return the rows for JSON."""
    return [asdict(row) for row in rows]
