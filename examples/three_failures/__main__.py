"""Run one of the three, broken and mended."""

# redis has types for a part of its functions.
# pyright: reportUnknownMemberType=false

import contextlib
import os
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import psycopg
import redis
from six_sinks.servers import redis_server

from three_failures import app as ours
from three_failures import early, lost, thrashing


def main(name: str) -> None:
    with psycopg.connect(ours.app.dsn) as conn:
        ours.tables(conn)
        if name == "thrashing":
            show("with a jobs table", thrashing.broken(conn))
            show("with Forebay", thrashing.mended(conn))
        else:
            part = {"early": early, "lost": lost}[name]
            with a_broker() as broker:
                show("with a broker", part.broken(conn, broker))
            show("with Forebay", part.mended(conn))
        conn.execute("drop table if exists failures_user, failures_job")


def show(title: str, lines: Iterator[str]) -> None:
    print(title)
    for line in lines:
        print(f"  {line}", flush=True)


@contextlib.contextmanager
def a_broker() -> Generator[redis.Redis, None, None]:
    """The one at REDIS_URL, or one for this run."""
    with contextlib.ExitStack() as stack:
        if "REDIS_URL" not in os.environ:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            os.environ["REDIS_URL"] = f"redis://{stack.enter_context(redis_server(Path(folder)))}"
        broker = redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)
        stack.enter_context(broker)
        broker.delete("welcome")
        yield broker


if __name__ == "__main__":
    main(sys.argv[1])
