"""forebay metrics: the metrics of the database in the text format of Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING, Annotated

from forebay.cli._commands import option
from forebay.cli._database import address_of
from forebay.cli._serving import set_up_log
from forebay.cli.exit import ExitCode
from forebay.cli.options import Dsn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def metrics(
    *,
    listen: Annotated[
        str | None,
        option(
            "--listen ADDR",
            "Answer GET /metrics at this address, such as 127.0.0.1:9187, until stopped.",
        ),
    ] = None,
    values: Annotated[
        int, option("--values N", "Most values of a label; the rest is 'other'.", min=2)
    ] = 200,
    dsn: Dsn = None,
) -> None:
    """Print the metrics of the database for Prometheus, or serve them.

    A worker serves them, too: forebay worker --health ADDR. If no worker runs, this command checks
    the alerts. If the database cannot be read, the text has forebay_up 0, and the exit code is 3.
    """
    from forebay.watch.metrics import Exporter

    exporter = Exporter(address_of(dsn), values_max=values)
    if listen is None:
        print(exporter.text(), end="")
        if not exporter.is_up:
            raise SystemExit(ExitCode.DATABASE)
        return
    set_up_log("info", "text")
    asyncio.run(_serve(listen, exporter.atext))


async def _serve(listen: str, text: Callable[[], Awaitable[str]]) -> None:
    from forebay.worker import serve_metrics

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stopped.set)
    async with serve_metrics(listen, text):
        await stopped.wait()
