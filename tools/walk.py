"""scripts/demo --seeds [PAGE...]: walk through the pages for users of five other systems.

Each page of docs/coming-from/ runs on a new database of a PostgreSQL of its own, from top to
bottom: the words of the other system, the statement or the command that replaces them, and what it
answers. The test of the documentation runs the same blocks.
"""

import argparse
import contextlib
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from rich.console import Console
from rich.table import Table
from rich.text import Text

from examples.six_sinks.servers import redis_server
from forebay.embedded import EmbeddedServer, temporary_server
from forebay.errors import ForebayError
from forebay.upgrade.migrate import migrate
from tools.code_blocks import Block, BlockError, Session, read_blocks, terminal

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "coming-from"
#: In the order in which the systems were written about.
PAGES = ["hypothesis-job-table", "ulak", "staged-drain", "postgres-queues-mvcc", "fetchq"]

#: Pages about other tools: their code runs with that of the other pages.
OTHER_PAGES = ["index", "celery", "procrastinate", "dbos", "outbox", "flows"]

_ROWS_MAX = 6
_CELL_MAX = 100


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo --seeds", description=__doc__)
    parser.add_argument(
        "pages",
        nargs="*",
        metavar="PAGE",
        help=f"which pages (default: all): {', '.join(PAGES)}",
    )
    pages = parser.parse_args().pages or PAGES
    if unknown := [page for page in pages if page not in PAGES]:
        parser.error(f"no page is called {unknown[0]!r}; the pages are {', '.join(PAGES)}")
    console = Console(
        highlight=False, markup=False, width=None if sys.stdout.isatty() else 80, soft_wrap=False
    )
    try:
        with temporary_server() as server, contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            redis = stack.enter_context(redis_server(folder))
            done = [_walk(page, server, folder, redis, console) for page in pages]
    except ForebayError as error:
        for line in (f"error: {error.message}", error.detail, error.hint):
            if line:
                print(line, file=sys.stderr)
        return 1
    except BlockError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    console.rule()
    for page, count in zip(pages, done, strict=True):
        console.print(f"{page}: {count} statements and commands did what the page says")
    return 0


def _walk(page: str, server: EmbeddedServer, parent: Path, redis: str, console: Console) -> int:
    """Run the blocks of a page, show them, and return how many statements and commands ran."""
    file = FOLDER / f"{page}.md"
    folder = parent / page
    folder.mkdir()
    dsn = _new_database(server, page)
    environment = terminal(dsn, folder, 80) | {"REDIS_URL": f"redis://{redis}"}
    shown = Shown(dsn, folder, environment, console=console)
    os.environ.update(environment)
    back = Path.cwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    headings = _headings(file)
    try:
        for block in read_blocks(file):
            while headings and headings[0][0] < block.line:
                shown.heading(*headings.pop(0)[1:])
            shown.run(block)
    finally:
        sys.path.remove(str(folder))
        os.chdir(back)
    return shown.count


def _new_database(server: EmbeddedServer, name: str) -> str:
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    dsn = server.dsn(name)
    migrate(dsn)
    return dsn


def _headings(file: Path) -> list[tuple[int, int, str]]:
    """Return line, level and text of each heading of a page."""
    found = []
    is_code = False
    for line, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        is_code ^= text.startswith("```")
        if not is_code and (match := re.match(r"(#+) (.*)", text)):
            found.append((line, len(match[1]), match[2]))
    return found


class Shown(Session):
    """A session that shows what it runs, and what came back; hidden blocks run unseen."""

    def __init__(self, *args: Any, console: Console) -> None:
        super().__init__(*args)
        self.console = console
        self.count = 0
        self._is_hidden = False

    def heading(self, level: int, text: str) -> None:
        """Show a heading of the page."""
        if level == 1:
            self.console.rule(text, style="bold")
        else:
            self.console.print(Text(f"\n{text}", style="bold"))

    def run(self, block: Block) -> None:
        """Run one block and show it."""
        self._is_hidden = block.is_hidden or block.language == "number"
        if block.directive == "file" and not self._is_hidden:
            self._show(f"# {block.argument}\n", block.code)
        super().run(block)

    def _run_python(self, block: Block) -> None:
        if block.directive != "file":
            self._show(">>>", block.code)
        super()._run_python(block)

    def _run_sql(self, block: Block) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            for statement in _statements(block.code):
                self._show("=>", statement)
                self._table(conn.execute(statement.encode()))

    def _command(self, block: Block, command: str) -> str:
        self._show("$", command)
        output = super()._command(block, command)
        if not self._is_hidden:
            self.console.print(Text(output.rstrip(), style="dim"))
        return output

    def _show(self, prompt: str, code: str) -> None:
        if self._is_hidden:
            return
        self.count += prompt in ("=>", "$")
        self.console.print()
        self.console.print(Text.assemble((f"{prompt} ", "green"), (code.strip(), "bold")))

    def _table(self, cursor: psycopg.Cursor[Any]) -> None:
        if self._is_hidden or cursor.description is None:
            return
        names = [column.name for column in cursor.description]
        rows = cursor.fetchmany(_ROWS_MAX)
        if len(rows) == 1 and len(names) > 1:
            rows, names = list(zip(names, rows[0], strict=True)), ["", ""]
        table = Table(*names, box=None, show_header=any(names), pad_edge=False)
        for row in rows:
            table.add_row(*(_cell(value) for value in row))
        self.console.print(table, style="dim")
        if (more := cursor.rowcount - _ROWS_MAX) > 0:
            self.console.print(f"... and {more} more")


def _statements(code: str) -> list[str]:
    """Cut SQL behind each semicolon that ends a line, as the pages are written."""
    return [part.strip() for part in re.split(r"(?<=;)[ ]*\n", code) if part.strip()]


def _cell(value: object) -> str:
    if value is None:
        return "null"
    text = str(value)
    return text if len(text) <= _CELL_MAX else f"{text[: _CELL_MAX - 3]}..."


if __name__ == "__main__":
    sys.exit(main())
