"""The far sides: six servers on this machine, and what arrived there."""

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import nats
import psycopg
import redis

from six_sinks import servers

#: How long the slow endpoint takes for each message.
SLOW_SECONDS = 0.02


@dataclass
class Place:
    """A far side.

    Attributes:
        sink: the type of its sink, and the configuration.
        arrived: counts how often each message arrived there.
        remark: what is wrong with it.
        kill: stops its server without warning.
        restart: starts it again with its files.
    """

    sink: tuple[str, Mapping[str, object]]
    arrived: Callable[[], Counter[int]]
    remark: str = ""
    kill: Callable[[], None] = field(default=lambda: None)
    restart: Callable[[], None] = field(default=lambda: None)


@contextlib.contextmanager
def six_places(folder: Path, dsn: str) -> Generator[dict[str, Place]]:
    """Start five servers and an HTTP endpoint; ``dsn`` is the other database with Forebay."""
    with contextlib.ExitStack() as stack:

        def new(name: str) -> Path:
            (folder / name).mkdir()
            return folder / name

        valkey = stack.enter_context(servers.redis_server(new("redis")))
        yield {
            "redis": Place(
                ("redis-stream", {"url": f"redis://{valkey}", "stream": "orders"}),
                lambda: _in_stream(valkey),
                "lies: drops 1 %",
            ),
            "list": Place(
                ("redis-list", {"url": f"redis://{valkey}", "key": "orders-list"}),
                lambda: _in_list(valkey),
            ),
            "nats": _nats(stack, new("nats")),
            "kafka": _kafka(stack, new("kafka")),
            "http": _http(stack),
            "forebay": Place(("forebay", {"url": dsn}), lambda: _in_database(dsn)),
        }


def _number(body: bytes | str) -> int:
    return int(json.loads(body)["n"])


def _in_stream(server: str) -> Counter[int]:
    with redis.Redis.from_url(f"redis://{server}") as client:
        return Counter(_number(fields[b"body"]) for _, fields in client.xrange("orders"))


def _in_list(server: str) -> Counter[int]:
    with redis.Redis.from_url(f"redis://{server}") as client:
        return Counter(
            int(json.loads(each)["body"]["n"]) for each in client.lrange("orders-list", 0, -1)
        )


def _in_database(dsn: str) -> Counter[int]:
    with psycopg.connect(dsn) as conn:
        rows = conn.execute("select args ->> 'n' from forebay.log where kind = 'order.paid'")
        return Counter(int(number) for (number,) in rows)


def _nats(stack: contextlib.ExitStack, folder: Path) -> Place:
    port = servers.free_port()
    address, process = stack.enter_context(servers.nats_server(folder, port=port))
    running = [process]

    async def with_stream(read: bool) -> Counter[int]:
        client = await nats.connect(f"nats://{address}")
        try:
            streams = client.jetstream()
            if not read:
                await streams.add_stream(name="orders", subjects=["orders"])
                return Counter()
            found: Counter[int] = Counter()
            state = (await streams.stream_info("orders")).state
            pull = await streams.subscribe("orders", ordered_consumer=True)
            for _ in range(state.messages):
                found[_number((await pull.next_msg(10)).data)] += 1
            return found
        finally:
            await client.close()

    def kill() -> None:
        running[-1].kill()
        running[-1].wait()

    def restart() -> None:
        running.append(stack.enter_context(servers.nats_server(folder, port=port))[1])

    asyncio.run(with_stream(read=False))
    return Place(
        ("nats", {"url": f"nats://{address}", "subject": "orders"}),
        lambda: asyncio.run(with_stream(read=True)),
        "",
        kill,
        restart,
    )


def _kafka(stack: contextlib.ExitStack, folder: Path) -> Place:
    server = stack.enter_context(servers.kafka_server(folder))
    options: dict[str, str | int | float | bool] = {"bootstrap.servers": server, "log_level": 0}
    with confluent_kafka.admin.AdminClient(options) as admin:
        topic = confluent_kafka.admin.NewTopic("orders", 1, 1)  # type: ignore[attr-defined]
        admin.create_topics([topic])["orders"].result(10)

    def arrived() -> Counter[int]:
        consumer = confluent_kafka.Consumer(
            {**options, "group.id": "count", "enable.auto.commit": False}
        )
        partition = confluent_kafka.TopicPartition("orders", 0, 0)
        found: Counter[int] = Counter()
        try:
            consumer.assign([partition])
            last = consumer.get_watermark_offsets(partition, 10)[1]
            until = time.monotonic() + 30
            while found.total() < last and time.monotonic() < until:
                for record in consumer.consume(1000, 0.2):
                    if record.error() is None:
                        found[_number(record.value() or b"")] += 1
        finally:
            consumer.close()
        return found

    return Place(("kafka", {"url": f"kafka://{server}", "topic": "orders"}), arrived)


def _http(stack: contextlib.ExitStack) -> Place:
    found: Counter[int] = Counter()
    lock = threading.Lock()

    def take(request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["content-length"]))
        time.sleep(SLOW_SECONDS)
        with lock:
            found[_number(body)] += 1
        request.send_response(204)
        request.end_headers()

    methods = {
        "protocol_version": "HTTP/1.1",
        "do_POST": take,
        "log_message": lambda *_: None,
    }
    endpoint = type("Endpoint", (BaseHTTPRequestHandler,), methods)
    server = ThreadingHTTPServer(("127.0.0.1", 0), endpoint)
    stack.callback(server.server_close)
    stack.callback(server.shutdown)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "url": f"http://127.0.0.1:{server.server_port}/orders",
        "destinations": {"allow": ["127.0.0.1"], "https_only": False, "ports": None},
    }
    return Place(
        ("http", config), lambda: Counter(found), f"slow: {SLOW_SECONDS * 1000:.0f} ms each"
    )
