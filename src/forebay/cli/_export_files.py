"""Files of jobs: JSON lines or Parquet. A file has its name when it is complete and on the disk."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from dataclasses import fields
from typing import IO, TYPE_CHECKING, Any, Final, Literal, Protocol

import msgspec

from forebay.cli.exit import ended_in_order
from forebay.errors import ConfigError
from forebay.model.exports import ExportedJob
from forebay.model.text import escaped_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

Format = Literal["jsonl", "parquet"]

#: Jobs of one row group of a Parquet file, at least.
_ROWS: Final = 20_000

_TYPES: Final = {
    "int": "int64",
    "str": "text",
    "JobState": "text",
    "datetime": "time",
    "bool": "bool",
    "float": "real",
}

#: The columns of a Parquet file: the attributes of ``ExportedJob``, with types. Objects are JSON
#: texts.
_COLUMNS: Final = {
    field.name: _TYPES.get(str(field.type).removesuffix(" | None"), "json")
    for field in fields(ExportedJob)
    if field.name != "place"
}


class Writer(Protocol):
    """Writes jobs to an open file."""

    def add(self, jobs: Sequence[ExportedJob]) -> None:
        """Write some jobs."""

    def finish(self) -> None:
        """Write what is buffered, and the end of the file."""

    def abandon(self) -> None:
        """Give the file up, which is still open and is removed."""


class JsonLines:
    """One object a line.

    Args:
        out: a text file, or a binary one.
    """

    def __init__(self, out: IO[Any]) -> None:
        self._out = out
        self._is_binary = "b" in getattr(out, "mode", "")

    def add(self, jobs: Sequence[ExportedJob]) -> None:
        """Write some jobs."""
        for job in jobs:
            line = json.dumps(msgspec.to_builtins(job), ensure_ascii=False)
            text = escaped_json(line) + "\n"
            self._out.write(text.encode() if self._is_binary else text)

    def finish(self) -> None:
        """Do nothing: each line is complete."""

    def abandon(self) -> None:
        """Do nothing."""


class Parquet:
    """A table with a column for each attribute of a job.

    Raises:
        ConfigError: the library is not installed.
    """

    def __init__(self, out: IO[Any]) -> None:
        self._arrow, parquet = _library("pyarrow"), _library("pyarrow.parquet")
        types = {
            "int64": self._arrow.int64(),
            "text": self._arrow.string(),
            "json": self._arrow.string(),
            "bool": self._arrow.bool_(),
            "real": self._arrow.float64(),
            "time": self._arrow.timestamp("us", tz="UTC"),
        }
        self._schema = self._arrow.schema([(name, types[kind]) for name, kind in _COLUMNS.items()])
        self._writer = parquet.ParquetWriter(out, self._schema, compression="zstd")
        self._jobs: list[ExportedJob] = []

    def add(self, jobs: Sequence[ExportedJob]) -> None:
        """Buffer jobs, and write a row group when there are enough."""
        self._jobs += jobs
        if len(self._jobs) >= _ROWS:
            self._flush()

    def finish(self) -> None:
        """Write the rest and the footer; the file stays open."""
        if self._jobs:
            self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """Close the writer of the library, which would else write when the file is closed."""
        with contextlib.suppress(Exception):
            self._writer.close()
        self._writer.is_open = False

    def _flush(self) -> None:
        columns = {
            name: [_cell(kind, getattr(job, name)) for job in self._jobs]
            for name, kind in _COLUMNS.items()
        }
        self._writer.write_table(self._arrow.Table.from_pydict(columns, schema=self._schema))
        self._jobs = []


def _cell(kind: str, value: Any) -> Any:
    if kind == "json":
        return None if value is None else json.dumps(value, ensure_ascii=False)
    return str(value) if kind == "text" and value is not None else value


def _library(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != module.partition(".")[0]:
            raise
        raise ConfigError(
            "--format",
            "parquet needs the library pyarrow, which is not installed",
            hint="pip install 'forebay[parquet]'",
        ) from None


def writer(out: IO[Any], file_format: Format) -> Writer:
    """Return the writer of a format.

    Raises:
        ConfigError: its library is not installed.
    """
    return Parquet(out) if file_format == "parquet" else JsonLines(out)


def check_format(file_format: Format) -> None:
    """Raise ``ConfigError`` if the library of a format is not installed."""
    if file_format == "parquet":
        _library("pyarrow.parquet")


@contextlib.contextmanager
def complete_file(path: Path, file_format: Format) -> Iterator[Writer]:
    """Write jobs to a file that gets its name when the block is left without an error.

    Until then it is named ``NAME.part``; after an error, Ctrl-C or SIGTERM this file is removed.
    The data are on the disk before the name is, so a crash leaves the complete file or none of this
    name. A file of this name is replaced.
    """
    part = path.with_name(path.name + ".part")
    with ended_in_order():
        try:
            with part.open("wb") as out:
                lines = writer(out, file_format)
                try:
                    yield lines
                    lines.finish()
                except BaseException:
                    lines.abandon()
                    raise
                out.flush()
                os.fsync(out.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    flush_directory(path.parent)


def flush_directory(path: Path) -> None:
    """Make the names of a directory safe from a crash of the machine."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
