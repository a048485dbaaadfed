"""Commands and functions refuse an address that libpq would misread, and hide its password."""

import asyncio

import pytest

import forebay
from forebay.errors import ConfigError

#: In the second, libpq would take a part of the password for the host, and print it.
ADDRESSES = ["host='", "postgresql://ann:s3cr3t/@127.0.0.1:1/shop"]

COMMANDS = [
    ["adopt", "--resume"], ["alerts"], ["bundle"], ["dead", "list"], ["doctor"], ["events", "list"],
    ["guard"], ["jobs", "list"], ["metrics"], ["migrate"], ["queues", "list"], ["drop-ballast"],
    ["stats"], ["status"], ["thresholds", "list"], ["top", "--once"], ["where", "1"],
    ["worker", "tests.support.worker_app:app"], ["workers", "list"],
]  # fmt: skip


def run_worker(dsn: str) -> None:
    """Run a worker of an application with one kind."""
    app = forebay.App(dsn)

    @app.job
    def work() -> None:
        pass

    app.run_worker(until_idle=True)


def migrate(dsn: str) -> None:
    forebay.migrate(dsn)


def ask(dsn: str) -> None:
    forebay.Client(dsn).depth()


def ask_async(dsn: str) -> None:
    asyncio.run(forebay.AsyncClient(dsn).depth())


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_each_command_refuses_it(command, words, address):
    """It says what is wrong with the value."""
    answer = command(*words, "--dsn", address)
    assert answer.code == 2, answer
    said = answer.out + answer.err
    assert "database address " in said
    assert "s3cr3t" not in said
    assert "Traceback" not in said


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("door", [run_worker, migrate, ask, ask_async])
def test_each_function_refuses_it(door, address):
    """It raises ConfigError, and connects to nothing."""
    with pytest.raises(ConfigError) as caught:
        door(address)
    assert "s3cr3t" not in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"
