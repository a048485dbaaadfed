"""A few counters that processes share: a file in memory, each counter written by one process
only.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_NUMBER: Final = struct.Struct("=q")
_SIZE: Final = 3 * _NUMBER.size
_STOP_PAUSE_SECONDS: Final = 0.02


class Counters:
    """How many jobs were enqueued and how many were handled, and whether to stop.

    Args:
        path: the file; None makes one, which is deleted when the counters are closed.
    """

    def __init__(self, path: str | None = None) -> None:
        self._is_ours = path is None
        if path is None:
            file, path = tempfile.mkstemp(prefix="forebay-bench-")
            os.write(file, bytes(_SIZE))
        else:
            file = os.open(path, os.O_RDWR)
        self.path = path
        self._map = mmap.mmap(file, _SIZE)
        os.close(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._map.close()
        if self._is_ours:
            Path(self.path).unlink(missing_ok=True)

    @property
    def enqueued(self) -> int:
        """Jobs whose enqueue was committed; written by the producer."""
        return self._read(0)

    @enqueued.setter
    def enqueued(self, value: int) -> None:
        _NUMBER.pack_into(self._map, 0, value)

    @property
    def handled(self) -> int:
        """Jobs whose handler ran; written by the worker."""
        return self._read(1)

    @handled.setter
    def handled(self, value: int) -> None:
        _NUMBER.pack_into(self._map, _NUMBER.size, value)

    @property
    def stop(self) -> bool:
        """Whether the worker is to end; written by the process that started it."""
        return self._read(2) != 0

    @stop.setter
    def stop(self, value: bool) -> None:
        _NUMBER.pack_into(self._map, 2 * _NUMBER.size, int(value))

    def _read(self, place: int) -> int:
        value: int = _NUMBER.unpack_from(self._map, place * _NUMBER.size)[0]
        return value


async def wait_for_stop(counters: Counters, stop: Callable[[], object]) -> None:
    """Call a function once the counters say stop."""
    while not counters.stop:  # noqa: ASYNC110 - the event is in another process
        await asyncio.sleep(_STOP_PAUSE_SECONDS)
    stop()
