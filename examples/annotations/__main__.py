"""Everything in one command: python -m annotations, in the folder examples.

It starts two PostgreSQL servers (unless FOREBAY_DATABASE_URL and ANNOTATIONS_INDEX_URL name
databases), the web service, and a worker.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Generator

import psycopg
import uvicorn

import forebay
from annotations.app import app, target
from annotations.corpus import modules
from annotations.store import SCHEMA, load
from forebay.embedded import temporary_server


def prepare(most: int) -> int:
    """Create the tables, and load the text if there is none.

    Return how many annotations were loaded.
    """
    forebay.migrate(app.dsn)
    target.create()
    with psycopg.connect(app.dsn) as conn:
        conn.execute(SCHEMA)
        if conn.execute("select from page limit 1").fetchone() is None:
            return load(conn, modules(most))
    return 0


class Server(uvicorn.Server):
    """Prints its address once it serves, and leaves signals to this program, because the worker
    has to stop in order, too.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or []:
            print("http://{}:{}".format(*each.getsockname()), flush=True)


async def serve(host: str, port: int) -> None:
    """Run the web service and a worker until they are interrupted."""
    from annotations.service import service  # noqa: PLC0415 - needs the addresses of the databases

    config = uvicorn.Config(service, host=host, port=port, log_level="warning")
    server = Server(config)
    worker = app.worker()

    def stop() -> None:
        server.should_exit = True
        worker.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        await server.serve([config.bind_socket()])
        worker.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m annotations", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--pages", type=int, default=1000, help="maximum number of modules to load")
    options = parser.parse_args()
    with contextlib.ExitStack() as servers:
        for variable in ("FOREBAY_DATABASE_URL", "ANNOTATIONS_INDEX_URL"):
            if not os.environ.get(variable):
                os.environ[variable] = servers.enter_context(temporary_server()).dsn()
        print(f"{prepare(options.pages):,} annotations loaded", flush=True)
        asyncio.run(serve(options.host, options.port))


if __name__ == "__main__":
    main()
