"""Task queues of other libraries as sinks: what the tests of each have in common."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import anyio
import psycopg
import pytest
import redis

import forebay
from forebay.config import WorkerSettings
from forebay.errors import SinkUnavailable
from forebay.sending import Drain
from forebay.sinks import Accepted, Sink
from forebay.testing import make_message
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_for, wait_for_async
from tests.support.worker_process import FAST, ROOT

_TASKS = Path(__file__).parent / "far_tasks"

#: A kind whose name is that of a task, and one that has to be mapped.
SHIP, ORDER = "shop.ship", "order.created"


def sends(sink: Sink, *calls):
    """Send some calls through a new connection, and return all answers."""

    async def use():
        await sink.open()
        try:
            return [answer for call in calls for answer in await sink.send(call)]
        finally:
            await sink.close()

    return asyncio.run(use())


def ends_in_a_worker(
    command, sink: Sink, *, database, records, environment, program=sys.executable
):
    """Jobs of transactions that commit are executed by a worker of the other library, and no
    others; return the executions.

    Args:
        command: arguments that start the worker.
        sink: to its broker, with ``ORDER`` mapped to the task.
        database: of Forebay.
        records: host:port of a Redis in which the tasks write down their executions.
        environment: of the worker, besides.
        program: what takes the arguments: Python.
    """
    app = forebay.App(database)
    drain = Drain(app, "far", sink=sink, queue="orders")
    with psycopg.connect(database) as conn:
        first = _enqueue(conn, SHIP, {"n": 1, "text": "Wehr \u2192 \U0001f30a"})
        conn.commit()
        _enqueue(conn, SHIP, {"n": 2})
        conn.rollback()
        second = _enqueue(conn, ORDER, {"n": 3, "inner": {"list": [1, None, 0.5]}})
        conn.commit()
    asyncio.run(_drained(drain, database))

    name = f"executions-{os.getpid()}"
    environment = environment | {"FAR_REDIS": f"redis://{records}/4", "FAR_LIST": name}
    with redis.Redis.from_url(environment["FAR_REDIS"]) as client:
        client.delete(name)
        with _running([program, *command], environment) as log:
            wait_for(lambda: client.llen(name) >= 2, 60, log)
        found = [json.loads(one) for one in client.lrange(name, 0, -1)]
    found.sort(key=lambda one: one["kwargs"]["n"])
    assert [one["kwargs"] for one in found] == [
        {"n": 1, "text": "Wehr \u2192 \U0001f30a"},
        {"n": 3, "inner": {"list": [1, None, 0.5]}},
    ]
    for one, job in zip(found, (first, second), strict=True):
        assert one["headers"]["forebay-id"].startswith(f"{job}-")
        assert one["headers"]["forebay-id"].endswith("-default")
        assert one["headers"]["tenant"] == "7"
    return found


def _enqueue(conn: psycopg.Connection, kind, args):
    row = conn.execute(
        """select forebay.enqueue(
            %s, %s::jsonb, queue => 'orders', headers => '{"tenant": "7"}')""",
        [kind, json.dumps(args)],
    ).fetchone()
    return row[0]


async def _drained(drain, database):
    with anyio.fail_after(60):
        await drain.worker(database, WorkerSettings(**FAST)).run(until_idle=True)


class _running:  # noqa: N801  # a context manager
    """A process in the folder of the tasks, which Python finds; yields what it has written."""

    def __init__(self, command, environment):
        path = os.pathsep.join([str(_TASKS), str(ROOT / "src")])
        self._command = command
        self._environment = os.environ | environment | {"PYTHONPATH": path}

    def __enter__(self):
        self._lines: list[str] = []
        self._process = subprocess.Popen(
            self._command, env=self._environment, cwd=_TASKS, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._reader = threading.Thread(target=lambda: self._lines.extend(self._process.stdout))
        self._reader.start()
        return lambda: "".join(self._lines[-40:])

    def __exit__(self, *_):
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()


def _threads():
    """Return where the threads of sinks are."""
    frames = sys._current_frames()
    return [
        "".join(traceback.format_stack(frames[one.ident]))
        for one in threading.enumerate()
        if one.name.startswith("forebay-sink") and one.ident in frames
    ]


class BehindAProxy:
    """Tests of a threaded sink whose connection is cut or frozen: mix it into a subclass of
    SinkContract.
    """

    def test_a_connection_that_was_cut_is_replaced(self):
        async def use():
            with TcpProxy(self.server) as proxy:
                sink = self.make_sink(proxy.address)
                await sink.open()
                try:
                    answers = [*await sink.send([make_message(1)])]
                    proxy.cut()
                    # The call that meets the cut may fail; a drain opens again then.
                    try:
                        await sink.send([make_message(2)])
                    except SinkUnavailable:
                        pass
                    await sink.open()
                    return [*answers, *await sink.send([make_message(3)])]
                finally:
                    await sink.close()

        assert all(isinstance(answer, Accepted) for answer in asyncio.run(use()))
        ids = {found.id for found in self.received()}
        assert {make_message(1).id, make_message(3).id} <= ids

    def test_a_server_that_hangs_holds_up_nothing_else(self):
        """A call that hangs can be given up at once. Then the sink closes, opens and sends."""

        async def use():
            with TcpProxy(self.server) as proxy:
                sink = self.make_sink(proxy.address)
                await sink.open()
                proxy.freeze()
                async with asyncio.timeout(20):
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.3):
                            await sink.send([make_message(1)])
                    await sink.close()
                    # The thread of the call ends, although the server never answers.
                    await wait_for_async(lambda: not _threads(), 10, lambda: "\n".join(_threads()))
                    with pytest.raises((TimeoutError, SinkUnavailable)):
                        async with asyncio.timeout(0.3):
                            await sink.open()
                    await sink.close()
                    proxy.thaw()
                    await sink.open()
                    answers = await sink.send([make_message(2)])
                    await sink.close()
                    return answers

        (answer,) = asyncio.run(use())
        assert isinstance(answer, Accepted)
        wait_for(lambda: not _threads(), 20, lambda: "\n".join(_threads()))
        assert make_message(2).id in {found.id for found in self.received()}

    def test_calls_at_once_use_a_connection_each(self):
        async def use():
            sink = self.make_sink()
            await sink.open()
            try:
                calls = [[make_message(10 * call + n) for n in range(10)] for call in range(1, 6)]
                return await asyncio.gather(*(sink.send(call) for call in calls))
            finally:
                await sink.close()

        answers = asyncio.run(use())
        assert all(isinstance(answer, Accepted) for call in answers for answer in call)
        ids = [found.id for found in self.received()]
        assert len(ids) == len(set(ids)) == 50
        for call in range(1, 6):
            mine = [make_message(10 * call + n).id for n in range(10)]
            assert [each for each in ids if each in mine] == mine
