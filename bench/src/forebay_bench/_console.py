"""The console in a separate process, which counts the statements that it sends.

Its argument is the address of the database. It answers with its port, and then each command with
the statements and the seconds of processor time so far.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from typing import Any, Final

import psycopg
import uvicorn

from forebay.console import asgi
from forebay_bench._child import answer, commands

_sent: Counter[str] = Counter()
_execute: Final = psycopg.AsyncCursor.execute


async def _counted(cursor: Any, *arguments: Any, **options: Any) -> Any:
    _sent["statements"] += 1
    return await _execute(cursor, *arguments, **options)


class _Server(uvicorn.Server):
    """Says its port when it answers, and ends with the input of its process."""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        threading.Thread(target=self._obey, daemon=True).start()

    def _obey(self) -> None:
        asked = commands()
        first = next(asked, None)
        if first is not None:
            answer(self.servers[0].sockets[0].getsockname()[1])
        for _ in asked:
            answer({"statements": _sent["statements"], "cpu_seconds": time.process_time()})
        self.should_exit = True


def main() -> None:
    """Serve until the input ends."""
    psycopg.AsyncCursor.execute = _counted  # type: ignore[assignment,method-assign]
    config = uvicorn.Config(
        asgi(sys.argv[1]),
        port=0,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=1,
    )
    with contextlib.suppress(KeyboardInterrupt):
        _Server(config).run()


if __name__ == "__main__":
    main()
