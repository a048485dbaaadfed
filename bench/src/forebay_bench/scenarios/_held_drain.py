"""The mix ``drain`` of ``held``: a drain empties a full queue again and again while a session keeps a transaction open."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay.errors import ConfigError, ForebayError
from forebay_bench import _servers
from forebay_bench._holders import HOLDERS, HeldDatabase, check_holder, hold
from forebay_bench._measure import round_figure
from forebay_bench._processes import scripts
from forebay_bench._report import Bar, Report, Table
from forebay_bench._sending import KIND, QUEUE
from forebay_bench.scenarios.sinks import SINKS, fill, require_libraries, sent, sink_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_TURNS: Final = 10
#: Turns before the holder begins: in the first one caches fill.
_TURNS_BEFORE: Final = 2
_FULL_FACTOR: Final = 5
_LEAST_RATIO: Final = 0.8
_SINK: Final = "redis"


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the mix.

    Raises:
        ConfigError: the holder is unknown, or the server or a library of the sink is missing.
    """
    holder = options.holder or "snapshot"
    check_holder(holder, place)
    count = max(
        10, int(SINKS[_SINK].messages * options.scale * (_FULL_FACTOR if options.full else 1))
    )
    try:
        require_libraries(_SINK)
        rates, seconds = _rates(place, holder, count, progress)
    except _servers.MissingServerError as error:
        raise ConfigError(
            "--mix drain", f"cannot be measured: {error}", hint="Install it."
        ) from None
    held = rates[_TURNS_BEFORE:]
    ratio = held[-1] / held[0]
    figures: dict[str, Any] = {
        "holder": holder,
        "mix": "drain",
        "sink": _SINK,
        "messages": count * _TURNS,
        "held_seconds": round(seconds, 1),
        "before_per_s": round_figure(rates[_TURNS_BEFORE - 1]),
        "first_per_s": round_figure(held[0]),
        "last_per_s": round_figure(held[-1]),
        "ratio": round_figure(ratio),
        "turns_per_s": [round_figure(rate) for rate in held],
    }
    columns = ["turn", "messages/s"]
    rows = [("before", f"{rates[_TURNS_BEFORE - 1]:,.0f}")]
    rows += [(f"{number}", f"{rate:,.0f}") for number, rate in enumerate(held, 1)]
    return Report(
        figures,
        [Table(columns, rows, title=f"mix: drain, to {_SINK}", right=columns[1:])],
        [Bar("drain: messages/s, last turn to first", ratio, at_least=_LEAST_RATIO)],
        notes=[
            f"in each turn a drain empties a queue of {count:,} jobs, filled before; the filling is not counted",
            f"held for {seconds:.0f} s: {HOLDERS[holder]}",
            f"{_SINK}: {SINKS[_SINK].note}",
            "the worker of the drain does its maintenance meanwhile",
        ],
    )


def _rates(
    place: Place, holder: str, count: int, progress: Callable[[str], None]
) -> tuple[list[float], float]:
    """Return the messages a second of each turn, and for how long the holder held."""
    target, name = SINKS[_SINK], f"forebay-bench-{secrets.token_hex(3)}"
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(sink_server(place, _SINK))
        dsn = stack.enter_context(place.database("held_drain"))
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        config = json.dumps(target.config(address, name))
        (bare,) = stack.enter_context(
            scripts("forebay_bench._sending", ["plain", _SINK, address, name])
        )
        (ours,) = stack.enter_context(
            scripts("forebay_bench._sending", ["drain", dsn, target.sink, config])
        )
        rates: list[float] = []
        began = time.perf_counter()
        for number in range(1 - _TURNS_BEFORE, _TURNS + 1):
            if number == 1:
                progress(f"drain: {HOLDERS[holder]}")
                began = time.perf_counter()
                stack.enter_context(hold(holder, place, [HeldDatabase(dsn, _write_one)]))
            progress(f"drain, turn {number} of {_TURNS}")
            fill(conn, count)
            seconds, _ = sent(ours, {}, count)
            rates.append(count / seconds)
            bare.send({"do": "take"})
            arrived = bare.read_message()
            if arrived != count:
                raise ForebayError(f"{arrived} messages arrived, of {count}")
        return rates, time.perf_counter() - began


def _write_one(conn: psycopg.Connection[Any]) -> None:
    conn.execute("select forebay.enqueue(%s, queue => %s)", [KIND, QUEUE])
