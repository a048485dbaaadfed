"""forebay signal: let a flow continue that waits."""

from __future__ import annotations

from typing import Annotated

from forebay.cli._commands import argument, option
from forebay.cli._database import client_of
from forebay.cli.exit import ExitCode
from forebay.cli.options import Dsn, Json, json_value
from forebay.cli.output import print_json
from forebay.cli.text import console


def send_signal(
    name: Annotated[str, argument("NAME", "What the flow waits for, as in ctx.wait(NAME).")],
    key: Annotated[
        str, argument("KEY", "The key of the wait; without one there, the id of the job.")
    ],
    *,
    payload: Annotated[
        str | None,
        option("--payload JSON", "What the wait returns, a JSON value; `-` reads it from stdin."),
    ] = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Send a signal, and commit it: the flow that waits for it continues.

    A flow may begin to wait later: the signal is kept for 30 days. Exit code 1: a signal with this
    name and key waits to be taken already, and this one was not kept.
    """
    value = None if payload is None else json_value(payload, "payload")
    is_first = client_of(dsn).signal(None, name, key, value)
    if as_json:
        print_json({"name": name, "key": key, "sent": is_first})
    elif is_first:
        console().print(f"sent signal {name} with key {key}")
    else:
        console(stderr=True).print(
            f"signal {name} with key {key} waits to be taken already: this one was not kept",
            soft_wrap=True,
        )
    if not is_first:
        raise SystemExit(ExitCode.FAILED)
