"""Runs a command again whenever the Python files of a folder change.

The files are polled: that works in containers and on network folders, and needs no package. The
command runs in a separate process, so that each start imports everything anew.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from forebay.model.text import signal_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Pause between two looks at the files.
_POLL_SECONDS: Final = 0.4
#: Time that running jobs have when a file has changed; then they are released.
_GRACE_SECONDS: Final = 2.0
#: Time that a process has after that; then it is killed.
_END_SECONDS: Final = 10.0
_FILES_MAX: Final = 20_000
_OTHER_FILES: Final = ("forebay.toml", "pyproject.toml", ".env")
_SKIPPED: Final = ("__pycache__", "node_modules", "site-packages")


class Watch:
    """The times of the files below a folder. Hidden folders and virtual environments are left out.

    Args:
        folder: the folder.
        files_max: files beyond this number are not watched.
    """

    def __init__(self, folder: Path, *, files_max: int = _FILES_MAX) -> None:
        self._folder = folder
        self._files_max = files_max
        self._seen = self._times()

    def changed(self) -> str | None:
        """Return the path of a file that was changed, made or deleted since the last call,
        relative to the folder.
        """
        before, self._seen = self._seen, self._times()
        if before == self._seen:
            return None
        path = min(path for path, _ in before.items() ^ self._seen.items())
        return os.path.relpath(path, self._folder)

    def _times(self) -> dict[Path, tuple[int, int]]:
        times: dict[Path, tuple[int, int]] = {}
        for path in self._files():
            with contextlib.suppress(OSError):
                found = path.stat()
                times[path] = found.st_mtime_ns, found.st_size
            if len(times) >= self._files_max:
                break
        return times

    def _files(self) -> Iterator[Path]:
        for place, folders, files in os.walk(self._folder):
            folder = Path(place)
            folders[:] = sorted(
                name
                for name in folders
                if not name.startswith(".")
                and name not in _SKIPPED
                and not (folder / name / "pyvenv.cfg").exists()
            )
            for name in sorted(files):
                if name.endswith(".py") or name in _OTHER_FILES:
                    yield folder / name


def run_reloading(
    command: Sequence[str],
    folder: Path,
    report: Callable[[str], None],
    on_crash: Callable[[int, int], None],
) -> None:
    """Run a command until SIGINT or SIGTERM, and start it again when a file changes.

    The process is stopped by SIGTERM. Signals of the terminal do not reach it, since it has a
    separate process group; they are passed on, each once. A process that ends by itself starts
    again after a change.

    Args:
        command: the command.
        folder: where to look for changes.
        report: prints a line.
        on_crash: called with the id of a process and the signal that ended it.
    """
    signals = _Signals()
    watch = Watch(folder)
    while True:
        process = subprocess.Popen(command, process_group=0)
        try:
            changed = _until_change(process, watch, signals, report, on_crash)
            if changed is not None:
                report(f"{changed} changed: the worker starts again")
        finally:
            _end(process)
        if changed is None:
            return


class _Signals:
    """Counts SIGINT and SIGTERM."""

    def __init__(self) -> None:
        self.received = 0
        self._event = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        self.received += 1
        self._event.set()

    def wait(self, seconds: float) -> None:
        """Wait for the next signal, at most this long."""
        self._event.wait(seconds)
        self._event.clear()


def _until_change(
    process: subprocess.Popen[bytes],
    watch: Watch,
    signals: _Signals,
    report: Callable[[str], None],
    on_crash: Callable[[int, int], None],
) -> str | None:
    """Wait until a file changes, and return it; None after a signal, when the process has ended."""
    passed_on = 0
    was_reported = False
    while True:
        if signals.received:
            if process.poll() is not None:
                return None
            while passed_on < signals.received:
                passed_on += 1
                process.send_signal(signal.SIGTERM)
        else:
            changed = watch.changed()
            if changed is not None:
                return changed
            if process.poll() is not None and not was_reported:
                was_reported = True
                code = process.returncode
                how = f"with code {code}" if code >= 0 else f"by {signal_name(-code)}"
                report(f"the worker ended {how}; it starts again when a file changes")
                if code < 0:
                    on_crash(process.pid, -code)
        signals.wait(_POLL_SECONDS)


def _end(process: subprocess.Popen[bytes]) -> None:
    for seconds in (_GRACE_SECONDS, _END_SECONDS):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # the second one releases the running jobs
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
    if process.poll() is None:
        process.kill()
        process.wait()


def end_with_parent(parent: int) -> None:
    """Send SIGTERM to this process when its parent is gone, however that ended.

    Args:
        parent: its process id. It may be gone already.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="forebay-parent", daemon=True).start()
