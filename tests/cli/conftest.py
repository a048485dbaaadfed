"""The command line as a person or a script meets it, in this process."""

import json
import os
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from forebay.cli import run


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its output, which must be one line of JSON and nothing else."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Run ``forebay`` with some arguments, in an empty folder and with no address to be found."""
    for name in os.environ:
        if name.startswith(("FOREBAY_", "PG", "DATABASE_URL")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: object) -> Answer:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Answer(code, printed.out, printed.err)

    return call


@pytest.fixture
def forebay(command, database, monkeypatch):
    """``command`` on a fresh database."""
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database)
    if (project := sys.modules.get("tests.support.celery_project")) is not None:
        # An app keeps the address that it has found: that of another test.
        monkeypatch.setattr(project.app._internals, "_address", None)
    return command


@pytest.fixture
def conn(database):
    """An autocommitting connection to that database."""
    from tests.support.engine import connect

    with connect(database) as conn:
        yield conn
