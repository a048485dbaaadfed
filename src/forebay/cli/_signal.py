"""forebay signal: let a flow continue that waits."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

from forebay.cli._commands import argument, option
from forebay.cli._database import client_of, run
from forebay.cli.exit import ExitCode
from forebay.cli.options import Dsn, Json, json_value
from forebay.cli.output import print_json
from forebay.cli.text import console
from forebay.errors import ConfigError, PermissionDenied

if TYPE_CHECKING:
    from collections.abc import Sequence


def send_signal(
    name: Annotated[str, argument("NAME", "What the flow waits for, as in ctx.wait(NAME).")],
    key: Annotated[
        str, argument("KEY", "The key of the wait; without one there, the id of the job.")
    ],
    payload: Annotated[
        str | None,
        argument("[JSON]", "What the wait returns, a JSON value; `-` reads it from stdin."),
    ] = None,
    *,
    payload_option: Annotated[
        str | None, option("--payload JSON", "The same, as an option.")
    ] = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Send a signal, and commit it: the flow that waits for it continues.

    A flow may begin to wait later: the signal is kept for 30 days, and the command says that no
    flow waits for it now, and which ones wait for another name with this key. Exit code 1: a
    signal with this name and key waits to be taken already, and this one was not kept.
    """
    if payload is not None and payload_option is not None:
        raise ConfigError("payload", "is given twice", hint="Leave --payload out.")
    given = payload_option if payload is None else payload
    value = None if given is None else json_value(given, "payload")
    # Before it is sent: the flow that takes it waits no longer.
    waits = _waits(key, dsn)
    is_first = client_of(dsn).signal(None, name, key, value)
    if as_json:
        found = None if waits is None else [{"name": each, "job_id": job} for each, job in waits]
        print_json({"name": name, "key": key, "sent": is_first, "waits": found})
    elif is_first:
        console().print(f"sent signal {name} with key {key}")
        if waits is not None and name not in dict(waits):
            _print_unawaited(key, waits)
        elif waits is not None and given is None:
            _print_none(name, dict(waits)[name])
    else:
        console(stderr=True).print(
            f"signal {name} with key {key} waits to be taken already: this one was not kept",
            soft_wrap=True,
        )
    if not is_first:
        raise SystemExit(ExitCode.FAILED)


def _waits(key: str, dsn: str | None) -> Sequence[tuple[str, int]] | None:
    """Return names and jobs of the flows that wait with a key; None if this login may not look."""
    from forebay.ops.flows import signal_waits

    try:
        return run(dsn, signal_waits(key))
    except PermissionDenied:
        return None


def _print_none(name: str, job_id: int) -> None:
    """Say that the wait returns None: who forgot the payload can let the flow wait again."""
    out = console(stderr=True)
    what = f"no payload was given: the wait of job {job_id} returns None"
    out.print(what, style="yellow", soft_wrap=True)
    command = f"forebay jobs rewind {job_id} --from {shlex.quote(name)}"
    out.print(f"to let it wait for another signal: {command}", soft_wrap=True)


def _print_unawaited(key: str, waits: Sequence[tuple[str, int]]) -> None:
    out = console(stderr=True)
    out.print("no flow waits for it now: it is kept for 30 days", style="yellow", soft_wrap=True)
    for other, job_id in waits:
        command = f"forebay signal {shlex.quote(other)} {shlex.quote(key)} 'JSON'"
        out.print(f"job {job_id} waits for signal {other}: {command}", soft_wrap=True)
