"""Run the code blocks of a Markdown file, from top to bottom, as a reader would type them.

The blocks of one file share a fresh database with the schema in it, an empty working folder and
one Python namespace. The database is the one every tool finds by itself: ``FOREBAY_DATABASE_URL``
and the ``PG*`` variables name it. What happens to a block depends on its language:

python      runs in the shared namespace
sql         runs on a connection of its own, each statement committed
bash        runs under ``bash -eu`` and must succeed
console     each line after ``$ `` is a command, run like bash; the lines below it must appear in
            its output, in that order, where ``...`` stands for anything

Other languages are not run. A comment directly above a block changes what happens:

``<!-- not run: REASON -->``        left out, and listed as skipped with that reason
``<!-- file: NAME -->``             also written to that file (python: so that it can be imported)
``<!-- fails: TEXT -->``            must fail, saying TEXT
``<!-- runs until: TEXT -->``       a command that goes on: it is interrupted, as with Ctrl-C, once
                                    its output shows TEXT

What a reader does not need to see goes into a comment and runs all the same::

    <!-- hidden sql
    create table users (id bigint primary key);
    -->

A page shows numbers, such as the id of a job, that are others in the reader's database. What is
1041 in the blocks from here on is what the query returns::

    <!-- number 1041: select max(job_id) from forebay.jobs() -->
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

LANGUAGES = ("python", "sql", "bash", "console")
_COMMAND_SECONDS_MAX = 120
_PAUSE_SECONDS = 0.01

_BLOCK = re.compile(
    r"""
    ^<!--[ ]hidden[ ](?P<hidden>\w+)\n(?P<hidden_code>.*?)^-->
    |
    ^<!--[ ]number[ ](?P<number>\d+):[ ](?P<query>[^\n]*?)[ ]-->$
    |
    (?:^<!--[ ](?P<directive>not[ ]run|file|fails|runs[ ]until):[ ]*
        (?P<argument>[^\n]*?)[ ]*-->\n+)?
    ^(?P<indent>[ ]*)(?P<fence>```+)(?P<language>\w*)[^\n]*\n(?P<code>.*?)^[ ]*(?P=fence)[ ]*$
    """,
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)


class BlockError(AssertionError):
    """A block did not do what its file says."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code; ``line`` is that of its first line in the file."""

    file: Path
    line: int
    language: str
    code: str
    directive: str | None = None
    argument: str = ""
    is_hidden: bool = False

    def __str__(self) -> str:
        return f"{self.file.name}:{self.line}"


def read_blocks(file: Path) -> list[Block]:
    """Return the blocks of a file that have a language which can be run, in order."""
    text = file.read_text(encoding="utf-8")
    blocks = []
    for match in _BLOCK.finditer(text):
        if match["number"]:
            line = text.count("\n", 0, match.start()) + 1
            blocks.append(Block(file, line, "number", match["query"], argument=match["number"]))
            continue
        hidden = match["hidden"]
        group = "hidden_code" if hidden else "code"
        language = {"sh": "bash", "shell": "bash", "py": "python"}.get(
            hidden or match["language"], hidden or match["language"]
        )
        if language in LANGUAGES:
            code = match[group]
            if match["indent"]:
                code = re.sub(f"^{match['indent']}", "", code, flags=re.MULTILINE)
            line = text.count("\n", 0, match.start(group)) + 1
            blocks.append(
                Block(
                    file,
                    line,
                    language,
                    code,
                    match["directive"],
                    match["argument"] or "",
                    is_hidden=bool(hidden),
                )
            )
    return blocks


def blocks_of(file: Path, language: str) -> list[str]:
    """Return the blocks of a file in a language that is not run."""
    return [
        match["code"]
        for match in _BLOCK.finditer(file.read_text(encoding="utf-8"))
        if match["language"] == language
    ]


def variables_of(dsn: str) -> dict[str, str]:
    """Return the variables by which every tool finds a database."""
    parts = conninfo_to_dict(dsn)
    return {
        "FOREBAY_DATABASE_URL": dsn,
        "DATABASE_URL": dsn,
        "PGHOST": str(parts["host"]),
        "PGPORT": str(parts["port"]),
        "PGUSER": str(parts["user"]),
        "PGDATABASE": str(parts["dbname"]),
    }


def terminal(dsn: str, folder: Path, columns: int) -> dict[str, str]:
    """Return what a reader's terminal would have: the database, the programs, a folder, a width."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    return {
        **kept,
        **variables_of(dsn),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(folder),
        "COLUMNS": str(columns),
        "NO_COLOR": "1",
    }


@dataclass
class Session:
    """What the blocks of one file share."""

    dsn: str
    folder: Path
    environment: Mapping[str, str]
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    numbers: dict[str, str] = field(default_factory=dict)

    def run(self, block: Block) -> None:
        """Run one block.

        Raises:
            BlockError: it failed, or did not fail or print as its file says.
        """
        if block.directive == "not run":
            return
        for shown, real in self.numbers.items():
            block = replace(block, code=re.sub(rf"\b{shown}\b", real, block.code))
        if block.directive == "file":
            (self.folder / block.argument).write_text(block.code, encoding="utf-8")
        run: Callable[[Block], None] = getattr(self, f"_run_{block.language}")
        if block.directive != "fails":
            run(block)
            return
        try:
            run(block)
        except Exception as error:
            said = f"{error} {getattr(error, 'hint', '')}"
            if block.argument not in said:
                raise BlockError(f"{block} fails otherwise: {said}") from error
        else:
            raise BlockError(f"{block} was said to fail and did not")

    def _run_python(self, block: Block) -> None:
        # Empty lines in front make the line numbers of a traceback those of the file.
        code = "\n" * (block.line - 1) + block.code
        exec(compile(code, block.file, "exec"), self.namespace)

    def _run_number(self, block: Block) -> None:
        with psycopg.connect(self.dsn) as conn:
            row = conn.execute(block.code).fetchone()  # type: ignore[arg-type]  # the file's own words
        if row is None or row[0] is None:
            raise BlockError(f"{block}: there is no number {block.argument}")
        self.numbers[block.argument] = str(row[0])

    def _run_sql(self, block: Block) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(block.code)  # type: ignore[arg-type]  # the file's own words

    def _run_bash(self, block: Block) -> None:
        self._command(block, block.code)

    def _run_console(self, block: Block) -> None:
        for part in re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]:
            command, _, rest = part.partition("\n")
            while command.endswith("\\"):
                more, _, rest = rest.partition("\n")
                command = f"{command}\n{more}"
            output = self._command(block, command)
            _check_output(block, command, rest, output)

    def _command(self, block: Block, command: str) -> str:
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                ["bash", "-euc", command],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

            def said() -> str:
                output.seek(0)
                return output.read()

            try:
                if block.directive == "runs until":
                    deadline = time.monotonic() + _COMMAND_SECONDS_MAX
                    while block.argument not in said() and process.poll() is None:
                        if time.monotonic() > deadline:
                            raise BlockError(f"{block}: no {block.argument!r} in {said()}")
                        time.sleep(_PAUSE_SECONDS)
                    if process.poll() is not None:
                        raise BlockError(f"{block}: `{command}` ended by itself: {said()}")
                    os.killpg(process.pid, signal.SIGINT)
                    process.wait(_COMMAND_SECONDS_MAX)
                    if block.argument not in said():
                        raise BlockError(f"{block}: no {block.argument!r} in {said()}")
                elif process.wait(_COMMAND_SECONDS_MAX) != 0:
                    status = process.returncode
                    raise BlockError(f"{block}: `{command}` exits with {status}: {said()}")
                return said()
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def _check_output(block: Block, command: str, expected: str, output: str) -> None:
    at = 0
    for line in filter(None, map(str.strip, expected.splitlines())):
        words = [r"\s+".join(map(re.escape, piece.split())) for piece in line.split("...")]
        found = re.compile(".*".join(words)).search(output, at)
        if not found:
            raise BlockError(f"{block}: `{command}` does not print {line!r}; it prints:\n{output}")
        at = found.end()
