"""sinks: a full queue sent to a far side by one drain, beside the plain client library of that far side.

Both send the same number of small messages with the same headers and bodies to the same server, in calls of the same size, one call at a
time, and wait until the server has confirmed each message. Each runs in a separate process. *Ours* is a ``forebay.Drain`` as ``forebay drain``
runs it, on a queue filled beforehand; its time is from its first message until it has settled all jobs and ended. The *bare client* has its
messages in memory before its time begins.
"""

from __future__ import annotations

import importlib.util
import json
import secrets
import statistics
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import psycopg
import psycopg.conninfo

from forebay.errors import ConfigError, ForebayError
from forebay_bench import _servers
from forebay_bench._measure import Spread, in_turns, ratio_of_rounds, round_figure
from forebay_bench._processes import scripts
from forebay_bench._report import Bar, Report, Table
from forebay_bench._sending import BATCH_SIZE, HEADERS, KIND, QUEUE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay_bench._place import Place
    from forebay_bench._processes import Script
    from forebay_bench._run import Options

_ROUNDS: Final = 3
_FULL_ROUNDS: Final = 5
_FULL_FACTOR: Final = 10
_LEAST_RATIO: Final = 0.6
_WARM_CALLS: Final = 2

_FILL: Final = """
select forebay.enqueue_many(jsonb_agg(jsonb_build_object(
    'kind', %(kind)s::text, 'queue', %(queue)s::text, 'headers', %(headers)s::jsonb,
    'args', jsonb_build_object('number', i)) order by i))
from generate_series(1, %(count)s) i
"""


@dataclass(frozen=True, slots=True)
class Target:
    """A far side: what a drain and a plain client need to send there."""

    sink: str
    """The type of the sink."""
    client: str
    """What the bare client is, for people."""
    modules: tuple[str, ...]
    """The libraries that both need."""
    messages: int
    """Messages of a turn in the quick form: about a second of work."""
    config: Callable[[str, str], dict[str, Any]]
    """Return the settings of the sink for an address and the name of a place there."""
    note: str


#: By the names of ``--sink``.
SINKS: Final = {
    "redis": Target(
        "redis-stream", "redis-py, a pipeline", ("redis",), 20_000,
        lambda address, name: {"url": f"redis://{address}", "stream": name},
        "a server that is started writes nothing to the disk; ours uses the asyncio client of redis-py, the bare client does not",
    ),
    "rabbitmq": Target(
        "rabbitmq", "aio-pika", ("aiormq", "aio_pika"), 10_000,
        lambda address, name: {"url": f"amqp://guest:guest@{address}/", "routing_key": name},
        "persistent messages to a durable queue, mandatory, with publisher confirms",
    ),
    "nats": Target(
        "nats", "nats-py, asynchronous publishes", ("nats",), 10_000,
        lambda address, name: {"url": f"nats://{address}", "subject": name, "stream": name},
        "a stream in files, which the server syncs every two minutes; with message ids",
    ),
    "kafka": Target(
        "kafka", "confluent-kafka", ("confluent_kafka",), 30_000,
        lambda address, name: {"url": f"kafka://{address}", "topic": name},
        "a server that is started is the broker Tansu, which keeps everything in memory, and not Apache Kafka; one partition, idempotent",
    ),
    "forebay": Target(
        "forebay", "psycopg, enqueue_many", (), 20_000,
        lambda address, name: {"url": address, "queue": name},
        "both databases are on one server; ours also writes a key for each message, by which a repetition is recognised",
    ),
}  # fmt: skip


@dataclass(slots=True)
class Found:
    """What was measured of one sink: messages a second, and CPU seconds of a message, of each turn."""

    messages: int
    rates: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=lambda: {"ours": [], "bare": []})

    @property
    def ratio(self) -> float:
        """The median of the ratios of the rounds."""
        return ratio_of_rounds(self.rates["ours"], self.rates["bare"])

    def figures(self) -> dict[str, Any]:
        """Return them for the JSON line."""
        return {
            "ours_per_s": round_figure(statistics.median(self.rates["ours"])),
            "bare_client_per_s": round_figure(statistics.median(self.rates["bare"])),
            "ratio": round_figure(self.ratio),
            "ours_cpu_us_per_message": round_figure(1e6 * statistics.median(self.cpu["ours"])),
            "bare_client_cpu_us_per_message": round_figure(
                1e6 * statistics.median(self.cpu["bare"])
            ),
            "messages": self.messages,
        }


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario.

    Raises:
        ConfigError: the server or a library of the sink that was asked for is missing.
    """
    rounds = options.rounds or (_FULL_ROUNDS if options.full else _ROUNDS)
    factor = options.scale * (_FULL_FACTOR if options.full else 1)
    found: dict[str, Found] = {}
    missing: dict[str, str] = {}
    for name in SINKS if options.sink is None else [options.sink]:
        count = max(10, int(SINKS[name].messages * factor))
        progress(f"{name}: its server starts")
        try:
            require_libraries(name)
            found[name] = _measured(
                place, name, options.server, progress, count=count, rounds=rounds
            )
        except _servers.MissingServerError as error:
            if options.sink is not None:
                raise ConfigError(
                    f"--sink {name}",
                    f"cannot be measured: {error}",
                    hint="Install it, or name a running server with --server.",
                ) from None
            missing[name] = str(error)
    return _report(found, missing, rounds, options)


def require_libraries(name: str) -> None:
    """Raise a ``MissingServerError`` if a library of a sink is missing."""
    for module in SINKS[name].modules:
        if importlib.util.find_spec(module) is None:
            raise _servers.MissingServerError(f"the Python package {module} is not installed")


def _measured(
    place: Place,
    name: str,
    server: str | None,
    progress: Callable[[str], None],
    *,
    count: int,
    rounds: int,
) -> Found:
    target = SINKS[name]
    place_name = f"forebay-bench-{secrets.token_hex(3)}"
    with ExitStack() as stack:
        address = server or stack.enter_context(sink_server(place, name))
        dsn = stack.enter_context(place.database("sinks"))
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        config = json.dumps(target.config(address, place_name))
        # The plain client makes the place to which both send.
        (bare,) = stack.enter_context(
            scripts("forebay_bench._sending", ["plain", name, address, place_name])
        )
        (ours,) = stack.enter_context(
            scripts("forebay_bench._sending", ["drain", dsn, target.sink, config])
        )
        found = Found(count)

        def take_turn(who: str, messages: int) -> float:
            if who == "ours":
                fill(conn, messages)
                seconds, cpu = sent(ours, {}, messages)
            else:
                command = {"do": "send", "count": messages, "batch": BATCH_SIZE}
                seconds, cpu = sent(bare, command, messages)
            bare.send({"do": "take"})
            arrived = bare.read_message()
            if arrived != messages:
                raise ForebayError(f"{name}: {arrived} messages arrived, of {messages}")
            found.cpu[who].append(cpu / messages)
            return messages / seconds

        progress(f"{name}: a round that is not measured")
        for who in ("bare", "ours"):
            take_turn(who, min(count, _WARM_CALLS * BATCH_SIZE))
            found.cpu[who].clear()
        found.rates = in_turns(
            {who: lambda who=who: take_turn(who, count) for who in ("ours", "bare")},  # type: ignore[misc]
            rounds,
            lambda text: progress(f"{name}, {text}"),
        )
    return found


def fill(conn: psycopg.Connection[Any], count: int) -> None:
    """Enqueue this number of jobs in one statement."""
    values = {"kind": KIND, "queue": QUEUE, "headers": json.dumps(HEADERS), "count": count}
    conn.execute(_FILL, values)


def sent(process: Script, command: dict[str, Any], count: int) -> tuple[float, float]:
    """Let a process send; return its seconds and CPU seconds.

    Raises:
        ForebayError: it sent another number of messages.
    """
    process.send(command)
    found = process.read_message()
    if found["sent"] != count:
        raise ForebayError(f"{found['sent']} messages were sent, of {count}")
    return float(found["seconds"]), float(found["cpu_seconds"])


@contextmanager
def sink_server(place: Place, name: str) -> Iterator[str]:
    """Start the server of a sink; yield its address."""
    with ExitStack() as stack:
        if name == "forebay":
            yield _url(stack.enter_context(place.database("sinks_far")))
            return
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-bench-")))
        if name == "redis":
            yield stack.enter_context(_servers.redis_server(folder))
        elif name == "kafka":
            yield stack.enter_context(_servers.kafka_server(folder))
        elif name == "nats":
            yield stack.enter_context(_servers.nats_server(folder))[0]
        else:
            yield stack.enter_context(_servers.rabbitmq_server(folder)).address


def _url(dsn: str) -> str:
    """Return the address of a database as a URL, which the sink wants."""
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    name = str(parts.pop("dbname"))
    return f"postgresql:///{quote(name)}?{urlencode(parts)}"


def _report(
    found: dict[str, Found], missing: dict[str, str], rounds: int, options: Options
) -> Report:
    figures: dict[str, Any] = {name: one.figures() for name, one in found.items()}
    rows = []
    for name, one in found.items():
        for who, label in (("ours", f"{name}: drain"), ("bare", f"{name}: {SINKS[name].client}")):
            spread = Spread.of(one.rates[who])
            cpu = 1e6 * statistics.median(one.cpu[who])
            rows.append(
                (label, f"{spread.median:,.0f}", f"{spread.low:,.0f} to {spread.high:,.0f}", f"{cpu:.3g}")
            )  # fmt: skip
    columns = ["", "messages/s", f"{rounds} rounds", "CPU of a message, us"]
    wanted = [name for name in SINKS if options.sink in (None, name)]
    bars = [
        Bar(f"{name}, against the bare client", found[name].ratio if name in found else None, at_least=_LEAST_RATIO)
        for name in wanted
    ]  # fmt: skip
    if options.sink is not None:
        figures = {"sink": options.sink, **figures[options.sink]}
    return Report(
        figures | ({"missing": missing} if missing else {}),
        [Table(columns, rows, right=columns[1:])],
        bars,
        notes=[
            f"both send {BATCH_SIZE} messages a call, one call at a time, and wait for all confirmations",
            "ours also claims and settles the jobs, as forebay drain does; its time includes the end of its worker",
            "the bare client has its messages in memory; both processes, the server and PostgreSQL share the cores",
            "CPU is that of the sending process",
            *(f"{name}: {SINKS[name].note}" for name in found),
            *(f"{name} is left out: {why}" for name, why in missing.items()),
        ],
    )
