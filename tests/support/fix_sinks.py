"""Servers for the tests of sinks; the tests are left out where a program is missing."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from examples.six_sinks import servers
from tests.support.http_endpoint import HttpEndpoint

if TYPE_CHECKING:
    from examples.six_sinks.servers import RabbitServer

_NAMES = itertools.count(1)


@pytest.fixture
def far_name() -> str:
    """A name for a stream, topic or queue that no other test uses."""
    return f"t{os.getpid()}-{next(_NAMES)}"


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The host:port of a Valkey for the session, or of a Redis where its wheel is missing."""
    with skipped_without_server(), servers.redis_server(tmp_path_factory.mktemp("redis")) as found:
        yield found


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The host:port of the broker Tansu, for the protocol of Kafka."""
    with skipped_without_server(), servers.kafka_server(tmp_path_factory.mktemp("kafka")) as found:
        yield found


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The host:port of a NATS server with JetStream."""
    with (
        skipped_without_server(),
        servers.nats_server(tmp_path_factory.mktemp("nats")) as (address, _),
    ):
        yield address


@pytest.fixture(scope="session")
def mqtt_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The host:port of a Mosquitto."""
    with (
        skipped_without_server(),
        servers.mosquitto_server(tmp_path_factory.mktemp("mosquitto")) as (address, _),
    ):
        yield address


@pytest.fixture(scope="session")
def rabbitmq_server(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[RabbitServer]":
    """A RabbitMQ; it needs about ten seconds to start."""
    with (
        skipped_without_server(),
        servers.rabbitmq_server(tmp_path_factory.mktemp("rabbitmq")) as found,
    ):
        yield found


@pytest.fixture(scope="session")
def sqs_server() -> Iterator[str]:
    """The host:port of the server of moto, in this process, which answers as SQS does."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def http_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpEndpoint]:
    """HTTP servers that answer as a test wants."""
    with HttpEndpoint(tmp_path_factory.mktemp("http")) as endpoint:
        yield endpoint


@contextmanager
def skipped_without_server() -> Iterator[None]:
    """Skip a test whose server is not installed."""
    try:
        yield
    except servers.MissingServerError as error:
        pytest.skip(str(error))
