"""forebay demo: jobs on real input, with a worker killed half-way."""

from __future__ import annotations

from typing import Annotated

from forebay.cli._commands import option
from forebay.cli.exit import ExitCode, ended_in_order
from forebay.cli.options import Json
from forebay.cli.output import print_json


def demo(
    *,
    keep: Annotated[bool, option("--keep", "Leave the server running for inspection.")] = False,
    as_json: Json = False,
) -> None:
    """Run jobs, kill a worker half-way, and count what was lost.

    The jobs parse the Python standard library.

    The demo starts a temporary PostgreSQL server. It exits with 0 only if no job was lost, none ran
    without its commit, and none took effect twice.
    """
    from forebay.cli.live import live_console
    from forebay.demo import run_demo

    with ended_in_order():
        result = run_demo(live_console(stderr=as_json), keep=keep)
    if as_json:
        print_json(result)
    if not result.is_right:
        raise SystemExit(ExitCode.FAILED)
