"""Styled text, tables, and how they are written: what commands print, without the time that a
larger library takes to load.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import sys
import unicodedata
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

from forebay.model.text import replaced_controls

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Width where the output is not a terminal.
_WIDTH: Final = 160

#: A column that may wrap is not narrower, unless all are cut.
_NARROW: Final = 8

_COLORS: Final = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_MODES: Final = {"bold": 1, "dim": 2}
_WORD: Final = re.compile(r"\s*\S+\s*")


def cell_len(text: str) -> int:
    """Return how many columns a text takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(map(_cells, text))


@functools.cache
def _cells(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _prefix(text: str, width: int) -> int:
    """Return how many characters of a text fit a width."""
    if text.isascii():
        return min(len(text), width)
    taken = 0
    for number, character in enumerate(text):
        taken += _cells(character)
        if taken > width:
            return number
    return len(text)


class Text:
    """Characters with styles such as ``bold red`` or ``not bold``.

    A style of a part is added to that of the whole.

    Args:
        no_wrap: show the beginning of each line only.
        overflow: ``ellipsis`` marks what is cut; ``keep`` neither cuts nor breaks a line, so that
            it can be copied: the terminal breaks it.
    """

    __slots__ = ("no_wrap", "overflow", "parts", "style")

    def __init__(
        self, text: str = "", style: str = "", *, no_wrap: bool = False, overflow: str = "fold"
    ) -> None:
        self.parts: list[tuple[str, str]] = [(text.expandtabs(), "")] if text else []
        self.style = style
        self.no_wrap = no_wrap
        self.overflow = overflow

    @classmethod
    def assemble(cls, *parts: str | tuple[str, str] | Text) -> Self:
        """Return a text of several parts."""
        made = cls()
        for part in parts:
            if isinstance(part, tuple):
                made.append(*part)
            else:
                made.append(part)
        return made

    def append(self, text: str | Text, style: str = "") -> Self:
        """Add a part, and return this text."""
        if isinstance(text, Text):
            self.parts += [(part, f"{text.style} {own}") for part, own in text.parts]
        elif text:
            self.parts.append((text.expandtabs(), style))
        return self

    def join(self, texts: Iterable[Text]) -> Text:
        """Return texts with this one between them."""
        made = Text()
        for number, one in enumerate(texts):
            if number:
                made.append(self)
            made.append(one)
        return made

    @property
    def plain(self) -> str:
        """The characters."""
        return "".join(text for text, _ in self.parts)

    def __len__(self) -> int:
        return sum(len(text) for text, _ in self.parts)

    def __getitem__(self, span: slice) -> Text:
        start, stop, _ = span.indices(len(self))
        made = Text("", self.style, no_wrap=self.no_wrap, overflow=self.overflow)
        for text, style in self.parts:
            made.append(text[max(start, 0) : max(stop, 0)], style)
            start, stop = start - len(text), stop - len(text)
        return made

    def lines(self, width: int) -> list[Text]:
        """Return the lines of a width: wrapped between words, or cut."""
        found: list[Text] = []
        start = 0
        for line in self.plain.split("\n"):
            end = start + len(line)
            one = self[start:end]
            if self.overflow == "keep":
                found.append(one)
            elif not self.no_wrap:
                places = [0, *_breaks(line, width), len(line)]
                found += [_trimmed(one[a:b]) for a, b in itertools.pairwise(places)]
            elif cell_len(line) <= width:
                found.append(one)
            elif self.overflow == "ellipsis":
                cut = one[: _prefix(line, width - 1)]
                found.append(cut.append("…", cut.parts[-1][1] if cut.parts else ""))
            else:
                found.append(one[: _prefix(line, width)])
            start = end + 1
        return found

    def written(self, *, styled: bool, style: str = "") -> str:
        """Return the characters with the sequences of a terminal, or without."""
        if not styled:
            return replaced_controls(self.plain)
        made = []
        for text, own in self.parts:
            before = _sequence(f"{style} {self.style} {own}")
            shown = replaced_controls(text)
            made.append(f"{before}{shown}\x1b[0m" if before and shown else shown)
        return "".join(made)


def _trimmed(line: Text) -> Text:
    return line[: len(line.plain.rstrip())]


def _breaks(line: str, width: int) -> list[int]:
    """Return where a line is broken: before words, and within those that are wider."""
    found: list[int] = []
    taken = 0
    for matched in _WORD.finditer(line):
        start, word = matched.start(), matched[0]
        needed = cell_len(word.rstrip())
        if needed <= width - taken:
            taken += cell_len(word)
        elif needed <= width:
            found.append(start)
            taken = cell_len(word)
        else:
            if taken:
                found.append(start)
            while cell_len(word) > width and (count := max(1, _prefix(word, width))) < len(word):
                start, word = start + count, word[count:]
                found.append(start)
            taken = cell_len(word)
    return found


@functools.cache
def _sequence(style: str) -> str:
    """Return the sequence that begins a style; a later word overrides an earlier one."""
    color, modes = "", set[str]()
    words = iter(style.split())
    for word in words:
        if word == "not":
            modes.discard(next(words))
        elif word in _MODES:
            modes.add(word)
        else:
            color = word
    codes = [str(_MODES[mode]) for mode in sorted(modes)]
    if color in _COLORS and not os.environ.get("NO_COLOR"):
        codes.append(str(30 + _COLORS.index(color)))
    return f"\x1b[{';'.join(codes)}m" if codes else ""


class _Column:
    def __init__(self, header: str, *, right: bool, no_wrap: bool, style: str) -> None:
        self.header, self.right, self.no_wrap, self.style = header, right, no_wrap, style


class Table:
    """Rows of cells. The columns that may wrap become narrower if the terminal is.

    Args:
        gap: how many columns of the terminal are between two of the table.
        one_line: a cell given as ``str`` is one line: a value cannot look like another row.
    """

    def __init__(self, *, gap: int = 2, one_line: bool = False) -> None:
        self.rows: list[list[Text]] = []
        self._columns: list[_Column] = []
        self._gap = gap
        self._one_line = one_line

    def add_column(
        self, header: str = "", *, right: bool = False, no_wrap: bool = False, style: str = ""
    ) -> None:
        """Add a column; one that must not wrap keeps its width."""
        self._columns.append(_Column(header, right=right, no_wrap=no_wrap, style=style))

    def add_row(self, *cells: object) -> None:
        """Add a row."""
        made = []
        for cell in cells:
            if isinstance(cell, Text):
                made.append(cell)
            else:
                made.append(Text(str(cell).replace("\n", "␊") if self._one_line else str(cell)))
        made += [Text() for _ in self._columns[len(made) :]]
        self.rows.append(made)

    def lines(self, width: int) -> list[Text]:
        """Return the lines."""
        columns = self._columns
        rows = self.rows
        if any(column.header for column in columns):
            rows = [[Text(column.header, "bold dim") for column in columns], *rows]
        most = [
            max(
                (
                    cell_len(line)
                    for row in rows
                    if row[at].overflow != "keep"
                    for line in row[at].plain.split("\n")
                ),
                default=0,
            )
            for at in range(len(columns))
        ]
        widths = _fitting(
            most, [not column.no_wrap for column in columns], width - self._gap * (len(columns) - 1)
        )
        found = []
        for row in rows:
            cells = []
            for cell, column, limit in zip(row, columns, widths, strict=True):
                shown = cell[:]
                shown.style = f"{column.style} {cell.style}"
                shown.no_wrap = cell.no_wrap or column.no_wrap
                cells.append(shown.lines(limit))
            for at in range(max(map(len, cells))):
                line = Text()
                for number, (parts, column, limit) in enumerate(
                    zip(cells, columns, widths, strict=True)
                ):
                    part = parts[at] if at < len(parts) else Text()
                    space = " " * (limit - cell_len(part.plain))
                    line.append(" " * self._gap if number else "")
                    line.append(space if column.right else "").append(part)
                    line.append("" if column.right else space)
                found.append(_trimmed(line))
        return found


def _fitting(widths: Sequence[int], may_shrink: Sequence[bool], most: int) -> list[int]:
    """Return widths that fit together: the widest of those that may shrink become equal first.

    After that all are cut.
    """
    fitting = list(widths)
    for chosen, least in ((may_shrink, _NARROW), ([True] * len(fitting), 1)):
        while (excess := sum(fitting) - most) > 0:
            among = [at for at, may in enumerate(chosen) if may and fitting[at] > least]
            if not among:
                break
            widest = max(fitting[at] for at in among)
            alike = [at for at in among if fitting[at] == widest]
            second = max((fitting[at] for at in among if at not in alike), default=least)
            for number, at in enumerate(alike):
                share = -(-excess // (len(alike) - number))
                fitting[at] -= min(share, widest - second)
                excess = sum(fitting) - most
    return fitting


class Console:
    """Where texts and tables are written. Lines are cut or wrapped only at the width of a terminal.

    Control characters of jobs, errors and sessions are shown as a replacement character: a terminal
    would obey them.
    """

    def __init__(
        self, file: TextIO, *, width: int | None = None, is_terminal: bool | None = None
    ) -> None:
        self._file = file
        self.is_terminal = file.isatty() if is_terminal is None else is_terminal
        self._styled = self.is_terminal and os.environ.get("TERM") not in ("dumb", "unknown")
        self.width = width or _width_of(file, is_terminal=self.is_terminal)

    def print(
        self,
        what: str | Text | Table = "",
        *,
        style: str = "",
        soft_wrap: bool = False,
        cut: bool = False,
        indent: int = 0,
        end: str = "\n",
    ) -> None:
        """Write a text or a table.

        Args:
            what: the text or table.
            style: that of all of it.
            soft_wrap: let the terminal break lines, so that they can be copied.
            cut: show what fits of each line.
            indent: how many columns are left free at the left.
            end: what follows.
        """
        if isinstance(what, str):
            what = Text(what)
        if cut and isinstance(what, Text):
            what = what[:]
            what.no_wrap, what.overflow = True, "ellipsis"
        lines = [what] if soft_wrap and isinstance(what, Text) else what.lines(self.width - indent)
        written = (line.written(styled=self._styled, style=style) for line in lines)
        self._file.write("\n".join(" " * indent + line for line in written) + end)
        self._file.flush()


def _width_of(file: TextIO, *, is_terminal: bool) -> int:
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and len(given) < 6 and int(given):
        return int(given)
    try:
        return os.get_terminal_size(file.fileno()).columns if is_terminal else _WIDTH
    except (OSError, ValueError):
        return _WIDTH


def console(*, stderr: bool = False) -> Console:
    """Return where a command writes."""
    return Console(sys.stderr if stderr else sys.stdout)


def json_highlighted(text: str) -> Text:
    """Return JSON in colours."""
    made, end = Text(), 0
    for matched in _JSON.finditer(text):
        made.append(text[end : matched.start()])
        made.append(matched[0], _JSON_STYLES[str(matched.lastgroup)])
        end = matched.end()
    return made.append(text[end:])


_JSON: Final = re.compile(
    r'(?P<key>"(?:\\.|[^"\\])*")(?=:)|(?P<text>"(?:\\.|[^"\\])*")|(?P<number>-?\d[\d.eE+-]*)|(?P<word>true|false|null)'
)
_JSON_STYLES: Final[dict[str, Any]] = {
    "key": "bold blue", "text": "green", "number": "bold cyan", "word": "magenta",
}  # fmt: skip
