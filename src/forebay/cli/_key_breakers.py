"""forebay keys reset: close the breaker of one limit key."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from forebay.cli import _paused_keys
from forebay.cli._commands import option
from forebay.cli._database import client_of
from forebay.cli.options import Dsn, Json
from forebay.cli.output import moment, print_json
from forebay.cli.text import console
from forebay.errors import shown
from forebay.model.keys import KeyBreaker
from forebay.model.text import counted
from forebay.policy.keys import next_probe


def reset(
    queue: _paused_keys.Queue,
    *,
    limit_key: Annotated[str, option("--limit-key KEY", "The limit key.")],
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Close the breaker of one limit key, and count its failures from 0.

    Its jobs that wait for a probe run at once. Those that are retrying keep their time: `forebay
    jobs retry --queue QUEUE --limit-key KEY` starts them now. `forebay keys pause` stops the jobs
    of a key by hand.
    """
    was_open = client_of(dsn).reset_key(queue, limit_key)
    if as_json:
        print_json({"queue": queue, "limit_key": limit_key, "was_open": was_open})
    else:
        state = "closed" if was_open else "was closed already"
        console().print(f"queue {queue}: limit key {shown(limit_key)}: breaker {state}")


def in_words(breaker: KeyBreaker, now: datetime) -> str:
    """Return a breaker: ``open since .., next probe in 12 s; 14 failures in a row, ..``."""
    failures = (
        f"{counted(breaker.failures, 'failure')} in a row, {breaker.threshold} open it"
        f"{'' if breaker.error is None else f'; the last: {breaker.error}'}"
    )
    if breaker.opened_at is None:
        return f"closed; {failures}"
    probes = ""
    if breaker.probes:
        probes = f" after {counted(breaker.probes, 'probe')} that failed"
    since = f"open since {moment(breaker.opened_at)}"
    return f"{since}, {next_probe(breaker.probe_at, now)}{probes}; {failures}"
