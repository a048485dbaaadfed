"""The start of the program: which command line is wanted, and how errors are reported."""

from __future__ import annotations

import contextlib
import errno
import getpass
import io
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from forebay._actor import acting_as
from forebay._error import is_database_error
from forebay.cli._init import leave_first_place
from forebay.cli._main import run_program
from forebay.cli.exit import (
    ExitCode,
    errors_go_to,
    exit_code,
    log_bug,
    print_database_error,
    print_error,
)
from forebay.errors import ForebayError, PermissionDenied

#: How long threads that handlers left behind may delay the exit of the process.
_LEFT_OVER_SECONDS: Final = 1.0

#: What a write of the output may raise. Commands report their own files themselves.
_OUTPUT_ERRORS: Final = (errno.ENOSPC, errno.EPIPE, errno.EIO, errno.EDQUOT, errno.EFBIG)


def _actor() -> str:
    """Return what the event log records for acts of this program: the user of the operating
    system, if there is one.
    """
    try:
        return f"cli {getpass.getuser()}"
    except (KeyError, OSError, ImportError):  # no entry for the user id, as in many containers
        return "cli"


def main(arguments: Sequence[str] | None = None, *, name: str = "forebay") -> NoReturn:
    """Run the program and exit."""
    code = _run_at_a_terminal(list(sys.argv[1:] if arguments is None else arguments), name)
    # A thread that a handler blocks indefinitely must not keep the process: a supervisor waits for
    # its exit.
    until = time.monotonic() + _LEFT_OVER_SECONDS
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
    sys.exit(code)


def _run_at_a_terminal(arguments: list[str], name: str) -> int:
    """Run the program with arguments and output that may have any encoding, and may have no room.

    Invariant "written or told": exit code 0 means that all output was taken. A reader that has had
    enough is not told anything.
    """
    leave_first_place()
    _fill_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            print_error(ForebayError(f"the argument {argument!a} is not UTF-8"))
            return ExitCode.USAGE
    try:
        code = run(arguments, name=name)
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS or error.filename is not None:
            raise
        # The interpreter would write the rest at its end, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if not isinstance(error, BrokenPipeError):
            with contextlib.suppress(OSError):
                print_error(ForebayError(f"the output cannot be written: {error.strerror}"))
        return ExitCode.FAILED
    return code


def _fill_closed_streams() -> None:
    """Open what a parent has closed, as with ``>&-``: a connection would get the number of the
    stream, and what is written there. A stdin that was closed stays unknown to Python.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def run(arguments: Sequence[str] | None = None, *, name: str = "forebay") -> int:
    """Run the program and return its exit code.

    Args:
        arguments: of the command line; None means those of the process.
        name: what a person types before them, for help and hints.

    Errors of this library and of the database are printed without a traceback. Any other exception
    is a bug in this library or in a handler's module, and is raised.
    """
    errors_go_to(None)
    try:
        with acting_as(_actor()):
            return run_program(arguments, name)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else ExitCode.DONE
    except ForebayError as error:
        print_error(error)
        return exit_code(error)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:
        if not is_database_error(error):
            if log_bug(error):
                return ExitCode.FAILED
            raise
        from forebay.db.errors import translate_own

        ours = translate_own(error)
        if isinstance(ours, PermissionDenied):
            print_error(ours)
        else:
            print_database_error(error)
        return ExitCode.FAILED
