"""Deliverers for tests: run in the test's loop, and endpoints of the test's servers."""

import asyncio
import json
from contextlib import asynccontextmanager

from forebay.config import DeliverySettings, WorkerSettings
from forebay.sending import Deliverer
from tests.support.engine import Reader, one
from tests.support.worker_process import FAST

#: The test's servers are at an address that endpoints must not call by default.
LOCAL = {
    "endpoint_sinks": "http,redis-stream,other",
    "endpoint_hosts": "127.0.0.1,localhost",
    "endpoint_schemes": "https,http",
    "endpoint_ports": "any",
}

#: The same as environment of a process.
LOCAL_ENVIRON = {f"FOREBAY_{name.upper()}": value for name, value in LOCAL.items()}


@asynccontextmanager
async def delivering(dsn: str, *, slots: int = 500, permissions=None, **settings):
    """Run a deliverer in this loop that may call this machine, and stop it at the end."""
    allowed = DeliverySettings(**(LOCAL if permissions is None else permissions))
    deliverer = Deliverer(slots=slots, permissions=allowed)
    worker = deliverer.worker(dsn, WorkerSettings(**(FAST | {"grace_seconds": 0.0} | settings)))
    task = asyncio.create_task(worker.run())
    try:
        await worker.started.wait()
        yield worker
    finally:
        worker.stop()
        await task


def http_config(server, path: str, **config: object) -> dict[str, object]:
    """Return the configuration of an HTTP sink for an endpoint of the test's server."""
    return {
        "url": f"http://127.0.0.1:{server.port}/{path}",
        "timeout": 2,
        **config,
    }


def create_endpoint(
    conn, name: str, sink: str, config: dict[str, object], **options: object
) -> int:
    """Create an endpoint; return its id."""
    names = "".join(f", {option} => %s" for option in options)
    values = [
        json.dumps(value) if option == "retry" else value for option, value in options.items()
    ]
    query = f"select forebay.create_endpoint(%s, %s, %s{names})"
    return one(conn, query, name, sink, json.dumps(config), *values)


def alter_endpoint(conn, name: str, **options: object) -> None:
    """Change options of an endpoint."""
    names = "".join(f", {option} => %s" for option in options)
    values = [
        json.dumps(value) if option in ("retry", "config") else value
        for option, value in options.items()
    ]
    conn.execute(f"select forebay.alter_endpoint(%s{names})", [name, *values])


def send(conn, name: str, count: int = 1, **options: object) -> list[int]:
    """Send messages with the payloads n = 0, 1, ..., each in a transaction.

    Return the ids of the deliveries.
    """
    names = "".join(f", {option} => %s" for option in options)
    query = f"select forebay.send(%s, %s{names})"
    return [
        one(conn, query, name, json.dumps({"n": number}), *options.values())
        for number in range(count)
    ]


def bury(dsn: str, *, error: str = "Dead", message: str = "HTTP status 422") -> None:
    """Let every delivery that is ready become a dead letter, as a deliverer would after an answer
    that refuses it.
    """
    with Reader(dsn, "forebay.deliver") as reader:
        for batch in reader.claim_all():
            ended = [
                {
                    "offset": job["batch_offset"], "outcome": "dead", "attempt": 1,
                    "reason": "permanent", "error": {"type": error, "message": message},
                }
                for job in batch.jobs
            ]  # fmt: skip
            assert reader.settle(batch.claim_no, ended=ended) == "settled"


class PlainRouter(Reader):
    """Expands events as a router does, when the test says."""

    def route(self) -> None:
        """Work until nothing is ready."""
        while (batch := self.claim_ready(100)).jobs:
            for job in batch.jobs:
                if job["kind"] == "forebay.activate":
                    subscription = job["args"]["subscription"]
                    while not one(self.conn, "select forebay.activate_v1(%s, 100)", subscription):
                        pass
            events = [job["job_id"] for job in batch.jobs if job["kind"] != "forebay.activate"]
            if events:
                one(self.conn, "select deliveries from forebay.route_v1(%s)", events)
            self.finish(batch)
