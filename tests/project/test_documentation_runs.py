"""Every code block of the README and the documentation, and every example, runs: in reading
order, on one database.
"""

import ast
import re
import shlex
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.support.fix_db import migrated_database
from tests.support.ports import free_port
from tests.support.waiting import wait_for
from tools.code_blocks import BlockError, Session, read_blocks, terminal, variables_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: The order of the site's navigation is the order in which a newcomer reads.
READING_ORDER = [
    DOCS / name
    for name in re.findall(
        r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
    )
    if (DOCS / name).exists()
]
FIRST = [ROOT / "README.md", DOCS / "tutorial" / "first-job.md"]
#: producer.py first: it is the shortest.
EXAMPLES = sorted(
    (ROOT / "examples").glob("*.py"), key=lambda file: (file.stem != "producer", file)
)
FILES = [
    *dict.fromkeys(
        [
            *FIRST,
            *READING_ORDER,
            *sorted(DOCS.rglob("*.md")),
            *sorted((ROOT / "examples").rglob("*.md")),
        ]
    )
]
NOT_RUN = [block for file in FILES for block in read_blocks(file) if block.directive == "not run"]


@pytest.fixture(scope="module")
def database(server, template):
    """One database for all pages and examples: a reader has one, which knows no host of tests."""
    with migrated_database(server, template) as dsn:
        with psycopg.connect(dsn) as conn:
            conn.execute("delete from forebay.endpoint_host")
        yield dsn


@pytest.fixture(scope="module")
def redis_url(request) -> Callable[[], str]:
    """The address of a Redis, for the pages that have one."""
    return lambda: f"redis://{request.getfixturevalue('redis_server')}"


@pytest.fixture
def environment(database, tmp_path) -> dict[str, str]:
    """What a reader's terminal would have: the database, the programs, a folder of their own."""
    return terminal(database, tmp_path, 120)


def a_param(file: Path):
    return pytest.param(file, id=str(file.relative_to(ROOT)))


def with_examples() -> Iterator:
    """The pages, and after the tutorial the examples, as a newcomer takes them."""
    for file in FILES:
        if read_blocks(file):
            yield a_param(file)
        if file == FIRST[-1]:
            for example in EXAMPLES:
                yield a_param(example)


@pytest.mark.nightly
@pytest.mark.parametrize("file", [a_param(file) for file in FILES if read_blocks(file)])
def test_a_reader_runs_a_page_alone(
    file, server, template, environment, redis_url, tmp_path, monkeypatch
):
    """
    A reader who comes from a search engine has read nothing before: the page works on a new
    database.
    """
    with migrated_database(server, template) as dsn:
        alone = environment | variables_of(dsn)
        run_page(file, dsn, alone, redis_url, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("file", list(with_examples()))
def test_a_reader_runs_everything_in_order_on_one_database(
    file, database, environment, redis_url, tmp_path, monkeypatch
):
    """
    A reader who types what the page says, from its top, gets what the page says, whatever was read
    before it and left in the same database. An example starts as its first lines say, and starts
    again.
    """
    if file.suffix == ".py":
        start_as_its_first_lines_say(file, commands_of(file), database, environment)
        start_as_its_first_lines_say(file, commands_of(file)[:1], database, environment)
        return
    run_page(file, database, environment, redis_url, tmp_path, monkeypatch)


def run_page(file, database, environment, redis_url, tmp_path, monkeypatch) -> None:
    """Run the blocks of a page, in a folder of their own."""
    if "REDIS_URL" in file.read_text(encoding="utf-8"):
        environment = environment | {"REDIS_URL": redis_url()}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    session = Session(database, tmp_path, environment)
    forget_modules_of(tmp_path.parent)
    try:
        for block in read_blocks(file):
            try:
                session.run(block)
            except BlockError:
                raise
            except Exception as error:
                raise BlockError(f"{block}: {type(error).__name__}: {error}") from error
    finally:
        forget_modules_of(tmp_path.parent)


def forget_modules_of(folder: Path) -> None:
    """Let the next page import its own modules of the same names."""
    for name, module in list(sys.modules.items()):
        # A folder without __init__.py is a module without a file.
        places = [getattr(module, "__file__", None), *(getattr(module, "__path__", None) or ())]
        if any(str(place).startswith(f"{folder}/") for place in places):
            del sys.modules[name]


def test_a_block_that_is_not_run_says_why():
    """
    Each exemption has its reason, which `pytest -rP` shows.
    """
    for block in NOT_RUN:
        print(f"{block}: {block.argument}")
    assert not [str(block) for block in NOT_RUN if not block.argument]


@pytest.mark.slow
def test_a_page_can_be_read_again(database, environment, tmp_path, monkeypatch):
    """
    The README's program and the tutorial's, once more on the same database.
    """
    for file in FIRST:
        for block in read_blocks(file):
            if block.directive == "file" or block.language == "python":
                (tmp_path / f"again_{file.stem}.py").write_text(block.code, encoding="utf-8")
                if block.directive == "file":
                    (tmp_path / block.argument).write_text(block.code, encoding="utf-8")
                answer = subprocess.run(
                    [sys.executable, f"again_{file.stem}.py"],
                    check=False,
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=120,
                )
                assert answer.returncode == 0, answer.stdout + answer.stderr


def commands_of(example: Path) -> list[str]:
    """The commands in an example's first lines."""
    text = ast.get_docstring(ast.parse(example.read_text(encoding="utf-8"))) or ""
    commands = re.findall(r"^    (\S.*)$", text, re.MULTILINE)
    assert commands, f"{example.name} does not say how to start it"
    return commands


def start_as_its_first_lines_say(
    example: Path, lines: list[str], database: str, environment: dict[str, str]
) -> None:
    """Type each command.

    Servers run until the others have ended, and workers until they are idle.
    """
    port = free_port()
    environment = {
        **environment,
        "UVICORN_PORT": str(port),
        "FLASK_RUN_PORT": str(port),
        "PYTHONWARNINGS": "error",
    }
    with psycopg.connect(database) as conn:
        conn.execute(
            "create table if not exists users (id serial primary key, email text not null)"
        )
        (before,) = conn.execute("select coalesce(max(job_id), 0) from forebay.jobs()").fetchone()
    with closing(Commands(example, environment, port)) as commands:
        for line in lines:
            commands.run(line)
    with psycopg.connect(database) as conn:
        wrong = conn.execute(
            """
            select job_id, state, args from forebay.jobs(most => 1000) job
            where job_id > %s and kind = 'send_welcome'
                and not exists (select from users where id = (args ->> 'user_id')::int)
            """,
            [before],
        ).fetchall()
        assert not wrong, f"jobs of users that were rolled back: {wrong}"
        if lines != commands_of(example):
            return
        unfinished = conn.execute(
            "select job_id, kind, state from forebay.jobs(most => 1000)"
            " where job_id > %s and state not in ('done', 'scheduled', 'cancelled', 'dead')",
            [before],
        ).fetchall()
        assert not unfinished


class Commands:
    """Runs what a person would type in one terminal after the other."""

    def __init__(self, example: Path, environment: dict[str, str], port: int) -> None:
        self.folder = example.parent
        self.environment = environment
        self.port = port
        self.servers: list[subprocess.Popen] = []

    def run(self, command: str) -> None:
        words = shlex.split(command)
        if words[0] in {"uvicorn", "flask"}:
            server = subprocess.Popen(words, cwd=self.folder, env=self.environment)
            self.servers.append(server)
            wait_for(lambda: self.answers() or server.poll() is not None, 60)
            assert server.poll() is None, command
            return
        if words[0] == "curl":
            address = re.sub(r":\d+/", f":{self.port}/", words[-1])
            data = words[words.index("-d") + 1].encode() if "-d" in words else None
            with urllib.request.urlopen(
                urllib.request.Request(address, data, method="POST")
            ) as answer:
                assert "user_id" in answer.read().decode()
            return
        if words[:2] == ["forebay", "worker"]:
            words.append("--until-idle")
        answer = subprocess.run(
            words,
            check=False,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr

    def answers(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def close(self) -> None:
        for server in self.servers:
            server.terminate()
        for server in self.servers:
            server.wait(30)
