"""A table that jobs are only staged in: one process carries them to Redis in bulk, workers take them from there.

Rows are deleted a thousand at a time, in the transaction that ends after Redis has them: a crash in between carries them
twice, none is lost. Redis is a private one on a unix socket that writes every command to its disk before it answers, as a
commit of PostgreSQL does. A job that a worker takes goes to a separate list until it is done, so that a crash leaves it
there; recovery from that list is not implemented.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay.errors import ForebayError
from forebay_bench.engines.queue import STEADY_PLANS, Taken, dead_rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SCHEMA: Final = """
create table if not exists staged_job (
    id     bigint generated always as identity primary key,
    run_at timestamptz not null default clock_timestamp(),
    kind   text not null,
    args   jsonb not null
);
create index if not exists staged_due on staged_job (run_at, id);
"""

#: How many jobs one move carries.
MOVE_ROWS: Final = 1000

_ENQUEUE_MANY: Final = """
insert into staged_job (kind, args, run_at)
select 'noop', jsonb_build_object('i', i), clock_timestamp() + %s * interval '1 second'
from generate_series(1, %s) i
"""

_WRITE_ONE: Final = "insert into staged_job (kind, args) values ('noop', '{}')"

_UNSTAGE: Final = """
delete from staged_job where id in (
    select id from staged_job where run_at <= now() order by run_at, id for update skip locked limit %s)
returning id, kind, args, extract(epoch from run_at)::double precision
"""

_READY: Final = "ready"
_IN_WORK: Final = "in-work"
_START_SECONDS: Final = 10.0


def missing() -> str | None:
    """Return the missing requirement, or None."""
    if importlib.util.find_spec("redis") is None:
        return "the Python package redis is not installed"
    if shutil.which("redis-server") is None:
        return "the program redis-server is not installed"
    return None


@contextlib.contextmanager
def redis_server() -> Iterator[Path]:
    """Run a private Redis, reachable through a unix socket only; yield the socket."""
    program = shutil.which("redis-server")
    if program is None:
        raise ForebayError("redis-server is not installed")
    with tempfile.TemporaryDirectory(prefix="forebay-redis-") as folder:
        path = Path(folder) / "redis.sock"
        process = subprocess.Popen(
            [program, "--port", "0", "--unixsocket", path, "--dir", folder, "--save", "",
             "--appendonly", "yes", "--appendfsync", "always"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            _wait_for(path, process)
            yield path
        finally:
            process.terminate()
            process.wait()


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise ForebayError("redis-server did not start")
        time.sleep(0.01)


class Staged:
    """The stager and a worker in one: the stager moves jobs when Redis has none left.

    Args:
        dsn: a separate database.
        socket: of a private Redis.
    """

    def __init__(self, dsn: str, socket: Path) -> None:
        import redis  # noqa: PLC0415 - an extra

        self.conn = psycopg.connect(dsn, autocommit=True, options=STEADY_PLANS)
        self.conn.execute(SCHEMA)
        self.redis = redis.Redis(unix_socket_path=str(socket))

    def enqueue(self, count: int, delay_seconds: float = 0) -> int:
        """Stage this number of jobs in one statement."""
        self.conn.execute(_ENQUEUE_MANY, [delay_seconds, count], prepare=True)
        return count

    def write_one(self, conn: psycopg.Connection[Any]) -> None:
        """Stage one job in another session's transaction."""
        conn.execute(_WRITE_ONE)

    def move(self) -> int:
        """Carry staged jobs that are due to Redis; how many."""
        with self.conn.transaction():
            rows = self.conn.execute(_UNSTAGE, [MOVE_ROWS], prepare=True).fetchall()
            if rows:
                rows.sort(key=lambda row: (row[3], row[0]))
                self.redis.rpush(_READY, *(json.dumps([*row, 0]) for row in rows))
        return len(rows)

    def claim(self, limit: int) -> list[Taken]:
        """Take jobs from Redis; when it has none, move some first."""
        found = self._take(limit)
        if not found and self.move():
            found = self._take(limit)
        return [Taken(text, job[0], job[4], job[3]) for text, job in found]

    def claim_counted(self, limit: int) -> tuple[list[Taken], int | None]:
        """Take jobs; Redis does not count pages."""
        return self.claim(limit), None

    def end(self, done: Sequence[Taken], failed: Sequence[Taken]) -> None:
        """Remove the taken jobs; failed ones go back behind the others."""
        del done
        with self.redis.pipeline(transaction=True) as pipe:
            if failed:
                again = [json.loads(job.key) for job in failed]
                pipe.rpush(_READY, *(json.dumps([*job[:4], job[4] + 1]) for job in again))
            pipe.delete(_IN_WORK)
            pipe.execute()

    def dead_rows(self) -> int:
        """Return how many dead rows the statistics count in the table that jobs are staged in."""
        return dead_rows_of(self.conn, "staged_job")

    def close(self) -> None:
        """Hang up."""
        self.redis.close()
        self.conn.close()

    def _take(self, limit: int) -> list[tuple[bytes, Any]]:
        with self.redis.pipeline(transaction=False) as pipe:
            for _ in range(limit):
                pipe.lmove(_READY, _IN_WORK, "LEFT", "RIGHT")
            return [(text, json.loads(text)) for text in pipe.execute() if text is not None]
