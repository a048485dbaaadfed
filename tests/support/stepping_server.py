"""A server whose clock can be set, by libfaketime. Clocks of other processes are not affected."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forebay.embedded import EmbeddedServer, temporary_server
from forebay.embedded.owner import Owner

_LIBRARIES = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib")


def faketime_library() -> Path | None:
    """Return libfaketime, or None where it is not installed."""
    if shutil.which("faketime") is None:
        return None
    for folder in _LIBRARIES:
        for found in sorted(Path(folder).glob("**/faketime/libfaketime.so.1")):
            return found
    return None


class SteppingClock:
    """The clock of the servers that were started with it."""

    def __init__(self, offset: Path) -> None:
        self._offset = offset

    def set(self, seconds: int) -> None:
        """Let it be so many seconds ahead of the real time, or behind it, from now on."""
        # In one step: the server reads the file at every look at the clock.
        new = self._offset.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.chmod(0o644)
        new.rename(self._offset)


class SteppingServer:
    """A running server and its clock."""

    def __init__(self, server: EmbeddedServer, clock: SteppingClock) -> None:
        self.server = server
        self.set_clock = clock.set


@contextmanager
def stepping_clock(
    monkeypatch: pytest.MonkeyPatch, *, at_once: bool = True
) -> Iterator[SteppingClock | None]:
    """Let every server that is started meanwhile have a clock that can be set.

    None without libfaketime.

    The library allocates memory to read the file of the offset. PostgreSQL looks at the clock also
    in the signal handler of its timers: if that interrupts an allocation, the server crashes. That
    happens within minutes where many sessions have timers.

    Args:
        monkeypatch: undoes it.
        at_once: each process reads the file at every look at the clock. Otherwise once a second,
            which is hardly ever in a signal handler.
    """
    library = faketime_library()
    if library is None:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="clock-"))
    folder.chmod(0o755)
    offset = folder / "offset"
    offset.write_text("+0\n")
    offset.chmod(0o644)
    plain = Owner.environment
    variables = {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        **({"FAKETIME_NO_CACHE": "1"} if at_once else {"FAKETIME_CACHE_DURATION": "1"}),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
    }
    monkeypatch.setattr(Owner, "environment", lambda self: plain(self) | variables)
    try:
        yield SteppingClock(offset)
    finally:
        monkeypatch.setattr(Owner, "environment", plain)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def stepping_server(
    pg_bin: str | None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SteppingServer]:
    """Lend a running server with the real time."""
    with stepping_clock(monkeypatch) as clock:
        if clock is None:
            pytest.skip("libfaketime is not installed (Debian: faketime)")
        with temporary_server(pg_bin) as server:
            yield SteppingServer(server, clock)
