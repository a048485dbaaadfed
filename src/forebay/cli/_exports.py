"""forebay exports: write each segment of the log to a file before retention empties it."""

from __future__ import annotations

import contextlib
import fcntl
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from forebay.cli._commands import Commands, argument, option
from forebay.cli._database import client_of
from forebay.cli._export_files import Format, check_format, complete_file
from forebay.cli._load import is_folder
from forebay.cli.exit import ExitCode
from forebay.cli.options import Dsn, Json, duration
from forebay.cli.output import ago, print_json, table
from forebay.cli.text import Text, console
from forebay.errors import ConfigError
from forebay.model.text import counted
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.client import Client
    from forebay.model.exports import Export, SegmentToExport

commands = Commands()

#: Row numbers of one page: about half a second.
_PAGE: Final = 1000

Name = Annotated[str, argument("NAME", "The export.")]


@commands.add("create")
def create(
    name: Name,
    *,
    hold: Annotated[
        str, option("--hold TIME", "How long a segment waits for the export at most.")
    ] = "72h",
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Let retention wait until an export has written a segment.

    The time begins when retention would have emptied the segment. When it is over, the segment is
    emptied, and the alert 'export' says so.
    """
    length = duration(hold, "--hold")
    assert length is not None
    hours = length.total_seconds() / 3600
    if hours != int(hours):
        raise ConfigError("--hold", f"is not a number of hours: {hold}", value=hold)
    client_of(dsn).create_export(name, hold_hours=int(hours))
    if as_json:
        print_json({"name": name, "hold_hours": int(hours)})
    else:
        console().print(
                f"export {name}: segments wait for it, {human_duration(hours * 3600)} at "
                f"most"
                )  # fmt: skip


@commands.add("drop")
def drop(name: Name, *, dsn: Dsn = None, as_json: Json = False) -> None:
    """Let no segment wait for an export any more. Its files stay."""
    if not client_of(dsn).drop_export(name):
        raise ConfigError("NAME", f"is no export: {name}", value=name)
    if as_json:
        print_json({"name": name})
    else:
        console().print(f"export {name} dropped")


@commands.add("list")
def list_(*, dsn: Dsn = None, as_json: Json = False) -> None:
    """List exports: what each has written, and which segments wait for it."""
    found = client_of(dsn).exports()
    if as_json:
        print_json(found)
        return
    if not found:
        console().print("No exports.", style="dim")
        return
    rows = table("export", "written", "last", "waiting", "due", "held", "missed",
                 right=("written", "waiting", "due", "missed"), loose=("export",))  # fmt: skip
    for export in found:
        rows.add_row(
            export.name,
            f"{export.exported:,}",
            ago(export.exported_at),
            f"{export.waiting:,}",
            f"{export.due:,}",
            _held(export),
            Text(f"{export.missed:,}", style="bold red" if export.missed else "default"),
        )
    console().print(rows)


def _held(export: Export) -> str:
    limit = human_duration(export.hold_hours * 3600.0)
    return (
            f"0 of "
            f"{limit}"
            ) if export.due_at is None else (
                    f"since {ago(export.due_at)}, {limit} at "
                    f"most"
                    )  # fmt: skip


@commands.add("run")
def run(
    name: Name,
    directory: Annotated[Path, argument("DIRECTORY", "Where the files go; it must exist.")],
    *,
    file_format: Annotated[Format, option("--format FORMAT", "jsonl or parquet.")] = "jsonl",
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Write each full segment that the export has not written to a file NAME-SEGMENT, and mark it.

    A file has the ended jobs of its segment, a line for each group. Run it regularly, for example
    each hour. After an interruption the segment is written again.
    """
    check_format(file_format)
    if not is_folder(directory):
        raise ConfigError("DIRECTORY", f"is no directory: {directory}", value=str(directory))
    client, written = client_of(dsn), []
    with _alone(directory / f".{name}.lock"):
        while (segment := client.next_to_export(name)) is not None:
            path = directory / f"{name}-{segment.segment_id:08}.{file_format}"
            jobs = _write(client, segment, path, file_format)
            if not client.mark_exported(name, segment.segment_id, jobs, str(path.absolute())):
                path.unlink()
                console(stderr=True).print((
                        f"segment {segment.segment_id} was emptied "
                        f"meanwhile"
                        ), style="bold red")  # fmt: skip
                raise SystemExit(ExitCode.FAILED)
            written.append({"segment": segment.segment_id, "file": str(path), "jobs": jobs})
            if not as_json:
                console().print(f"{path}: {counted(jobs, 'line')}", soft_wrap=True)
    if as_json:
        print_json(written)
    elif not written:
        console().print("No segment to write.", style="dim")


def _write(client: Client, segment: SegmentToExport, path: Path, file_format: Format) -> int:
    """Write the jobs of a segment; return their number."""
    count = 0
    try:
        with complete_file(path, file_format) as lines:
            for first in range(segment.first, segment.last + 1, _PAGE):
                last = min(first + _PAGE - 1, segment.last)
                page = client.jobs_to_export(segment.segment_id, first, last)
                lines.add(page)
                count += len(page)
    except OSError as error:
        raise ConfigError("DIRECTORY", f"cannot be written: {error.strerror}: {path}") from None
    return count


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock that ends with the process: two runs would write the same file."""
    try:
        lock = path.open("w")
    except OSError as error:
        raise ConfigError("DIRECTORY", f"cannot be written: {error.strerror}: {path}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError("NAME", "is run by another process in this directory") from None
        yield
