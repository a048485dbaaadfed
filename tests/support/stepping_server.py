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


class SteppingServer:
    """A running server and its clock."""

    def __init__(self, server: EmbeddedServer, offset: Path) -> None:
        self.server = server
        self._offset = offset

    def set_clock(self, seconds: int) -> None:
        """Let the server's clock be so many seconds ahead of the real time, or behind it, from now on."""
        # In one step: the server reads the file at every look at the clock.
        new = self._offset.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.chmod(0o644)
        new.rename(self._offset)


@contextmanager
def stepping_server(
    pg_bin: str | None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SteppingServer]:
    """Lend a running server with the real time."""
    library = faketime_library()
    if library is None:
        pytest.skip("libfaketime is not installed (Debian: faketime)")
    folder = Path(tempfile.mkdtemp(prefix="clock-"))
    folder.chmod(0o755)
    clock = folder / "offset"
    clock.write_text("+0\n")
    clock.chmod(0o644)
    plain = Owner.environment
    variables = {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
    }
    monkeypatch.setattr(Owner, "environment", lambda self: plain(self) | variables)
    try:
        with temporary_server(pg_bin) as server:
            monkeypatch.setattr(Owner, "environment", plain)
            yield SteppingServer(server, clock)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
