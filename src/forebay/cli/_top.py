"""forebay top: a live view of queues, workers, keys and alerts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import time
import tty
from typing import TYPE_CHECKING, Annotated, Final, Literal

from rich.live import Live
from rich.text import Text

from forebay.cli._commands import option
from forebay.cli._input import is_terminal
from forebay.cli._top_screen import SORTS, View, screen
from forebay.cli.live import live_console
from forebay.cli.options import Dsn, Json
from forebay.cli.output import print_json
from forebay.client import address_of
from forebay.db.session import Session
from forebay.errors import DatabaseUnavailable
from forebay.watch import operations
from forebay.watch.top import Reads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from forebay.model.keys import KeyInfo
    from forebay.watch.screen import Overview

#: Most keys that are read.
_KEYS_MAX: Final = 100
#: A read of the keys visits every key. It is repeated after this many times its own duration.
_KEYS_PAUSE_FACTOR: Final = 20
#: Seconds between two writes that are tried and undone.
_WRITE_SECONDS: Final = 10.0
_SETTINGS: Final = {"statement_timeout": "8s", "jit": "off"}


def top(
    *,
    every: Annotated[
        float, option("--every SECONDS", "Pause between two reads.", min=0.1, max=3600)
    ] = 1.0,
    sort: Annotated[
        Literal["ready", "rate", "oldest", "dead", "name"],
        option("--sort BY", "ready, rate, oldest, dead or name."),
    ] = "ready",
    once: Annotated[bool, option("--once", "Print one screen, from two reads, and end.")] = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Watch queues, workers, keys that wait and alerts live.

    Keys: q quits, s changes the order of the queues, p pauses. Rates are those of the last 10
        seconds, latencies those of the last minute. If stdout is not a terminal, one screen is
        printed.
    """
    out = live_console()
    view = View(every=every, sort=sort)
    reading = _Reading(address_of(dsn))
    if once or as_json or not out.is_terminal:
        overview = asyncio.run(_twice(reading, every))
        if as_json:
            print_json(overview)
        else:
            out.print(screen(overview, view, out.width, 24), soft_wrap=True, end="")
        return
    with _single_characters():
        asyncio.run(_Watch(reading, view, out).run())


class _Reading:
    """Reads, one statement each."""

    def __init__(self, dsn: str) -> None:
        self.session = Session(
            dsn, name="forebay top", lock_timeout="1s", call_seconds=10.0, settings=_SETTINGS
        )
        self._reads = Reads()
        self._keys: list[KeyInfo] = []
        self._keys_at = 0.0
        self._write_failed: dict[str, str] | None = None
        self._write_at = 0.0

    async def read(self) -> Overview:
        """Read once."""
        began_at = time.monotonic()
        with_keys = began_at >= self._keys_at
        data, keys = await self.session.run(
            operations.measurements_with_keys(_KEYS_MAX if with_keys else 0)
        )
        if keys is not None:
            self._keys = keys
            ended_at = time.monotonic()
            # A short read is repeated each time.
            pause = ended_at - began_at
            self._keys_at = ended_at + (_KEYS_PAUSE_FACTOR * pause if pause > 0.05 else 0.0)
        if began_at >= self._write_at:
            self._write_failed = await self.session.run(operations.probe_write())
            self._write_at = began_at + _WRITE_SECONDS
        return self._reads.add({**data, "write_failed": self._write_failed}, self._keys)


async def _twice(reading: _Reading, every: float) -> Overview:
    try:
        await reading.read()
        await asyncio.sleep(every)
        return await reading.read()
    finally:
        await reading.session.close()


class _Watch:
    """The live view: reads, keys of the user, and changes of the terminal's size."""

    def __init__(self, reading: _Reading, view: View, out: Console) -> None:
        self._reading = reading
        self._view = view
        self._out = out
        self._overview: Overview | None = None
        self._changed = asyncio.Event()
        self._is_ended = False

    async def run(self) -> None:
        """Show screens until q or Ctrl-C."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGWINCH, self._changed.set)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end)
        if is_terminal():
            loop.add_reader(sys.stdin.fileno(), self._on_key)
        # The first read is before the screen changes: a wrong address is an ordinary error.
        try:
            self._overview = await self._reading.read()
            with Live(console=self._out, screen=True, auto_refresh=False) as live:
                reads = asyncio.create_task(self._read_always())
                try:
                    while not self._is_ended:
                        self._changed.clear()
                        self._show(live)
                        await self._changed.wait()
                finally:
                    reads.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await reads
        finally:
            if is_terminal():
                loop.remove_reader(sys.stdin.fileno())
            await self._reading.session.close()

    async def _read_always(self) -> None:
        while True:
            await asyncio.sleep(self._view.every)
            if self._view.is_paused:
                continue
            try:
                self._overview = await self._reading.read()
                self._view.problem = ""
            except DatabaseUnavailable as error:
                # The server may come back: the last screen stays.
                self._view.problem = error.message
            except Exception:
                self._end()
                raise
            self._changed.set()

    def _show(self, live: Live) -> None:
        size = self._out.size
        assert self._overview is not None
        text: Text = screen(self._overview, self._view, size.width, size.height, is_live=True)
        live.update(text, refresh=True)

    def _on_key(self) -> None:
        for key in os.read(sys.stdin.fileno(), 100).decode(errors="replace").lower() or "q":
            if key == "q":
                self._end()
            elif key == "s":
                self._view.sort = SORTS[(SORTS.index(self._view.sort) + 1) % len(SORTS)]
            elif key == "p":
                self._view.is_paused = not self._view.is_paused
        self._changed.set()

    def _end(self) -> None:
        self._is_ended = True
        self._changed.set()


@contextlib.contextmanager
def _single_characters() -> Iterator[None]:
    """Let the terminal pass each key at once, and show none."""
    if not is_terminal():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
