"""Lost: the job is sent after the commit, and the process dies in between."""

# redis has types for a part of its functions.
# pyright: reportUnknownMemberType=false

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import redis

from three_failures import app as ours


def broken(conn: psycopg.Connection, broker: redis.Redis) -> Iterator[str]:
    """Nothing is left that could tell that a job is missing."""
    killed_while("commit_then_send")
    waiting = [str(name) for name in broker.lrange("welcome", 0, -1)]
    yield f"users {ours.users(conn)}, waiting in the broker {waiting}"


def mended(conn: psycopg.Connection) -> Iterator[str]:
    """The commit made both, or neither."""
    killed_while("commit_both")
    ours.app.run_worker(until_idle=True)
    yield f"users {ours.users(conn)}, welcomed {ours.welcomed}"


def commit_then_send(conn: psycopg.Connection) -> None:
    conn.execute("insert into failures_user (name) values ('carl')")
    conn.commit()
    die()
    redis.Redis.from_url(os.environ["REDIS_URL"]).rpush("welcome", "carl")  # never


def commit_both(conn: psycopg.Connection) -> None:
    ours.register(conn, "dora")
    conn.commit()
    die()


def die() -> None:
    """Out of memory, a deployment, a power failure."""
    os.kill(os.getpid(), signal.SIGKILL)


def killed_while(name: str) -> None:
    """Run a function in another process, which it does not survive."""
    code = f"from three_failures import lost; lost.run({name!r})"
    answer = subprocess.run([sys.executable, "-c", code], check=False)
    assert answer.returncode == -signal.SIGKILL, answer


def run(name: str) -> None:
    with psycopg.connect(ours.app.dsn) as conn:
        {"commit_then_send": commit_then_send, "commit_both": commit_both}[name](conn)
