"""Brokers that are stopped or never answer: producers do not notice, nothing is lost, and the
backlog drains fast.

A sink that cannot start, hangs or is slow holds its own messages only.
"""

import contextlib
import json
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pika
import pytest
import redis

from examples.six_sinks import servers
from tests.support.engine import connect
from tests.support.steady_producer import Commit, SteadyProducer
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

PER_SECOND = 500
#: In the short run: other tests share the machine, and a drain has to catch up with the producer.
PER_SECOND_BESIDE_OTHERS = 100
#: What is left of a backlog that counts as drained.
REST = 250


@dataclass
class Broker:
    """A far side that can be taken away and given back.

    Attributes:
        sink: the type of the sink.
        config: its settings.
        away: take it away.
        back: give it back.
        count: return how many messages it has, repetitions included.
        numbers: return the numbers of its messages.
    """

    sink: str
    config: dict[str, object]
    away: Callable[[], None]
    back: Callable[[], None]
    count: Callable[[], int]
    numbers: Callable[[], list[int]]


@contextmanager
def redis_broker(tmp_path, far_name, *, hangs: bool) -> Iterator[Broker]:
    """A Redis that syncs each write. Stopped as a supervisor does, or frozen: then the kernel
    accepts connections and nothing answers.
    """
    port = servers.free_port()
    command = servers.redis_command(port, "--appendonly", "yes", "--appendfsync", "always")
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(servers.served(command, port, tmp_path))]

        def away() -> None:
            if hangs:
                processes[-1].send_signal(signal.SIGSTOP)
            else:
                processes[-1].terminate()
                processes[-1].wait(30)

        def back() -> None:
            if hangs:
                processes[-1].send_signal(signal.SIGCONT)
            else:
                processes.append(stack.enter_context(servers.served(command, port, tmp_path)))

        def use(act):
            with redis.Redis(port=port) as far:
                return act(far)

        yield Broker(
            "redis-stream",
            {"url": f"redis://127.0.0.1:{port}", "stream": far_name},
            away,
            back,
            lambda: use(lambda far: far.xlen(far_name)),
            lambda: use(
                lambda far: [json.loads(one[b"body"])["n"] for _, one in far.xrange(far_name)]
            ),
        )


@contextmanager
def rabbitmq_broker(server, far_name, *, hangs: bool) -> Iterator[Broker]:
    """A durable queue of RabbitMQ. Its listener is stopped.

    Or a proxy in front of it accepts connections and lets nothing pass.
    """
    parameters = pika.URLParameters(f"amqp://guest:guest@{server.address}/%2F")

    def use(act):
        with pika.BlockingConnection(parameters) as connection:
            return act(connection.channel())

    def numbers(channel) -> list[int]:
        found = []
        for method, _, body in channel.consume(far_name, auto_ack=True, inactivity_timeout=1):
            if method is None:
                break
            found.append(json.loads(body)["n"])
        channel.cancel()
        return found

    use(lambda channel: channel.queue_declare(far_name, durable=True))
    with TcpProxy(server.address) as proxy:
        yield Broker(
            "rabbitmq",
            {
                "url": f"amqp://guest:guest@{proxy.address}/%2F",
                "routing_key": far_name,
                "confirm_timeout": 2.0,
            },
            proxy.freeze if hangs else lambda: server.ctl("stop_app"),
            proxy.thaw if hangs else lambda: server.ctl("start_app"),
            lambda: (
                use(
                    lambda channel: channel.queue_declare(far_name, passive=True)
                ).method.message_count
            ),
            lambda: use(numbers),
        )


def p99(commits: list[Commit]) -> float:
    """Return how long an enqueue with its commit took, in seconds."""
    return statistics.quantiles([commit.took for commit in commits], n=100)[98]


def wait_for_count(
    broker: Broker, least: Callable[[], int], seconds: float, logs: Callable[[], str]
) -> None:
    """Wait until a broker has this many messages. Ask four times a second: to ask needs a
    connection, whose cost would slow the drain.
    """
    due = 0.0

    def has_them() -> bool:
        nonlocal due
        if time.monotonic() < due:
            return False
        found = broker.count() >= least()
        due = time.monotonic() + 0.25
        return found

    wait_for(has_them, seconds, logs)


def wait_until(at: float) -> None:
    """Wait until a time of the monotonic clock."""
    wait_for(lambda: time.monotonic() >= at, at - time.monotonic() + 5)


@pytest.mark.parametrize(
    ("kind", "hangs"),
    [
        pytest.param("redis", False, id="redis, stopped"),
        pytest.param("redis", True, id="redis, never answers", marks=pytest.mark.nightly),
        pytest.param("rabbitmq", False, id="rabbitmq, stopped", marks=pytest.mark.nightly),
        pytest.param("rabbitmq", True, id="rabbitmq, never answers"),
    ],
)
@pytest.mark.parametrize(
    ("before", "outage", "is_measured"),
    [
        pytest.param(3, 6, False, id="short"),
        pytest.param(30, 90, True, id="long", marks=pytest.mark.nightly),
    ],
)
def test_producers_do_not_notice_an_outage_and_the_backlog_drains(
    database, workers, tmp_path, far_name, request, kind, hangs, before, outage, is_measured
):
    """
    Every committed message arrives. The short run does not compare times: other tests share the
    machine with it.
    """
    if kind == "redis":
        opened = redis_broker(tmp_path, far_name, hangs=hangs)
    else:
        server = request.getfixturevalue("rabbitmq_server")
        opened = rabbitmq_broker(server, far_name, hangs=hangs)
    per_second = PER_SECOND if is_measured else PER_SECOND_BESIDE_OTHERS
    with (
        opened as broker,
        SteadyProducer(database, tmp_path / "commits", per_second, "orders") as producer,
    ):
        drains = {"orders": {"sink": broker.sink, "config": broker.config}}
        workers.start(
            app="tests.support.drain_outage_app:app",
            environment={"OUTAGE_DRAINS": json.dumps(drains)},
        )
        wait_for_count(broker, lambda: REST, 30, lambda: workers.logs)
        started = time.time()
        wait_until(time.monotonic() + before)
        away = time.time()
        broker.away()
        wait_until(time.monotonic() + outage)
        back = time.time()
        waiting = producer.count
        broker.back()
        had = broker.count()
        waiting -= had
        wait_for_count(broker, lambda: had + REST, 60, lambda: workers.logs)
        begun, at_begin = time.monotonic(), broker.count()
        wait_for_count(broker, lambda: producer.count - REST, 300, lambda: workers.logs)
        rate = (broker.count() - at_begin) / (time.monotonic() - begun)
        producer.stop()
        commits = producer.commits()
        wait_for_count(broker, lambda: len(commits), 60, lambda: workers.logs)
        with connect(database) as conn:
            left = (
                "select coalesce(sum(ready + claimed + running + scheduled + retrying), 0) = 0 "
                "from forebay.depth()"
            )
            wait_for(lambda: conn.execute(left).fetchone()[0], 60, lambda: workers.logs)
        arrived = broker.numbers()
        of_before = [commit for commit in commits if started <= commit.at < away]
        during = [commit for commit in commits if away <= commit.at < back]
        ratio = p99(during) / p99(of_before)
        print(
            f"\n{kind} hangs={hangs}: {len(commits)} committed, {waiting} waited after "
            f"{back - away:.0f} s,"
            f" drained at {rate:.0f}/s; repeated {len(arrived) - len(set(arrived))};"
            f" enqueue p99 {1e3 * p99(of_before):.2f} ms before, {1e3 * p99(during):.2f} "
            f"ms during: {ratio:.2f};"
            f" {len(during) / (back - away):.0f} enqueues/s"
        )
        assert set(arrived) == {commit.number for commit in commits}
        assert waiting >= 0.8 * len(during)
        assert len(during) >= 0.8 * per_second * outage
        if is_measured:
            assert ratio <= 1.5
            # Beside what still comes: the backlog is gone in half the time in which it arose.
            assert rate >= 2 * per_second


# --- six sinks in one process ---


@pytest.mark.parametrize(
    ("rounds", "seconds", "is_measured"),
    [
        pytest.param(1, 3, False, id="short"),
        pytest.param(3, 15, True, id="three rounds", marks=pytest.mark.nightly),
    ],
)
def test_three_bad_sinks_do_not_slow_three_others_of_the_process(
    database, workers, tmp_path, redis_server, far_name, rounds, seconds, is_measured
):
    """
    The time from the commit to the arrival, in turns with and without the bad ones beside them.
    """
    url = f"redis://{redis_server}"
    good = {
        name: {"sink": "redis-stream", "config": {"url": url, "stream": f"{far_name}-{name}"}}
        for name in ("one", "two", "three")
    }
    with redis.Redis.from_url(url) as far, TcpProxy(redis_server) as proxy:
        proxy.freeze()
        frozen = f"redis://{proxy.address}"
        bad = {
            "cannot-start": {"sink": "redis-stream",
                "config": {"url": "redis://127.0.0.1:9", "stream": "none"}},
            "hangs": {"sink": "redis-stream", "config": {"url": frozen, "stream": "none"},
                "timeout": 2},
            "slow": {"sink": "slow", "config": {"url": url, "stream": f"{far_name}-slow"}},
        }  # fmt: skip

        def arrivals(name: str) -> dict[int, float]:
            """When the stream got each message: its ids are times in milliseconds."""
            found: dict[int, float] = {}
            for entry, fields in far.xrange(f"{far_name}-{name}"):
                at = int(entry.partition(b"-")[0]) / 1e3
                found.setdefault(json.loads(fields[b"body"])["n"], at)
            return found

        def turn(drains: dict, path) -> dict[str, float]:
            """Run a process of these drains under load.

            Return the p99 of each good one, in seconds.
            """
            for name in good:
                far.delete(f"{far_name}-{name}")
            worker = workers.start(
                app="tests.support.drain_outage_app:app",
                environment={"OUTAGE_DRAINS": json.dumps(drains)},
            )
            with SteadyProducer(database, path, 100, "orders") as producer:
                wait_for(
                    lambda: all(far.xlen(f"{far_name}-{name}") > 50 for name in good),
                    30,
                    lambda: worker.log,
                )
                if "hangs" in drains:
                    worker.wait_for_log("drain hangs: ")
                    worker.wait_for_log("drain cannot-start: ")
                first = producer.count
                wait_until(time.monotonic() + seconds)
                producer.stop()
                commits = producer.commits()[first:]
            found = {}
            for name in good:
                wait_for(lambda at=name: commits[-1].number in arrivals(at), 30, lambda: worker.log)
                at = arrivals(name)
                waits = [at[commit.number] - commit.at for commit in commits]
                found[name] = statistics.quantiles(waits, n=100)[98]
            worker.terminate()
            worker.wait(30)
            return found

        ratios = []
        for number in range(rounds):
            alone = turn(good, tmp_path / f"alone {number}")
            beside = turn(good | bad, tmp_path / f"beside {number}")
            ratios += [beside[name] / alone[name] for name in good]
            print(
                "\n" + "; ".join((
                        f"{name} p99 {1e3 * alone[name]:.1f} ms alone, {1e3 * beside[name]:.1f} ms "
                        f"beside"
                        ) for name in good)
            )  # fmt: skip
        print(
            f"median ratio {statistics.median(ratios):.2f} of {[round(one, 2) for one in ratios]}"
        )
        if is_measured:
            assert statistics.median(ratios) <= 1.2
