"""Too early: the job is sent inside the transaction, and runs before the commit."""

import threading
from collections.abc import Iterator

import psycopg
import redis

from three_failures import app as ours


def broken(conn: psycopg.Connection, broker: redis.Redis) -> Iterator[str]:
    """The broker knows nothing of the transaction."""
    greeted: list[str] = []

    def work() -> None:
        found = broker.blpop(["welcome"])
        assert found is not None
        greeted.append(str(found[1]))

    worker = threading.Thread(target=work)
    worker.start()
    conn.execute("insert into failures_user (name) values ('ann')")
    broker.rpush("welcome", "ann")  # inside the transaction
    worker.join()  # a worker is fast, and a transaction may be slow
    conn.rollback()  # a constraint, a deadlock, a lost connection
    yield f"users {ours.users(conn)}, welcomed {greeted}"


def mended(conn: psycopg.Connection) -> Iterator[str]:
    """The transaction decides whether the job exists."""
    ours.register(conn, "ann")
    ours.app.run_worker(until_idle=True)
    conn.rollback()
    ours.app.run_worker(until_idle=True)
    yield f"users {ours.users(conn)}, welcomed {ours.welcomed}"
    ours.register(conn, "bob")
    conn.commit()
    ours.app.run_worker(until_idle=True)
    yield f"users {ours.users(conn)}, welcomed {ours.welcomed}"
