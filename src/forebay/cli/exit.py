"""Error output and exit codes."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn

from forebay.cli.text import Console, Text
from forebay.errors import (
    ConfigError,
    DatabaseUnavailable,
    EnqueueError,
    ForebayError,
    ForeignCluster,
    SchemaError,
    ServerStartError,
)

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator


class ExitCode(IntEnum):
    """Exit codes of the program."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    DATABASE = 3
    INTERRUPTED = 130


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Unwind a command on SIGTERM or SIGHUP as on Ctrl-C, so that the processes it started end with
    it.
    """
    from forebay.forks import stop_signals

    def stop(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    numbers = [number for number in stop_signals() if number is not signal.SIGINT]
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def exit_code(error: BaseException) -> ExitCode:
    """Return the exit code of an error."""
    if isinstance(error, ConfigError | EnqueueError):
        return ExitCode.USAGE
    if isinstance(error, DatabaseUnavailable | SchemaError | ForeignCluster | ServerStartError):
        return ExitCode.DATABASE
    return ExitCode.FAILED


#: Where errors go as records, while the log of this command is JSON.
_records: list[logging.Logger] = []


def errors_go_to(records: logging.Logger | None) -> None:
    """Log the error that ends this command, instead of printing it; None: print it."""
    _records[:] = [] if records is None else [records]


def log_bug(error: BaseException) -> bool:
    """Log an exception that is not for the user, with its traceback.

    Return False if errors are not logged.
    """
    for records in _records:
        records.error("%s", type(error).__name__, exc_info=error)
    return bool(_records)


def print_error(error: ForebayError) -> None:
    """Print message, detail and hint to stderr."""
    _print(error.message, error.detail, error.hint)


def print_database_error(error: Any) -> None:
    """Print a database error that is not a Forebay error, such as a missing privilege."""
    diag = error.diag
    message = diag.message_primary or str(error).strip() or type(error).__name__
    _print(f"database: {message}", diag.message_detail, diag.message_hint)


def _print(message: str, detail: str | None, hint: str | None) -> None:
    for records in _records:
        records.error("%s", message, extra={"detail": detail, "hint": hint})
        return
    console = Console(sys.stderr)
    console.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    if detail:
        console.print(Text(detail.strip(), style="dim"), indent=2)
    if hint:
        console.print(Text.assemble(("hint: ", "bold cyan"), hint), soft_wrap=True)
