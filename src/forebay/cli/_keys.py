"""forebay keys: list and show ordering keys and limit keys."""

from __future__ import annotations

from datetime import UTC, datetime

from forebay.cli import _key_breakers, _key_limits, _paused_keys
from forebay.cli._commands import Commands
from forebay.cli._database import client_of
from forebay.cli._served import check_queue_in_use
from forebay.cli.options import Dsn, Json, Limit, Queue
from forebay.cli.output import facts_table, print_json, table
from forebay.cli.text import Table, Text, console
from forebay.model.keys import KeyInfo

commands = Commands()

commands.add("pause")(_paused_keys.pause)
commands.add("resume")(_paused_keys.resume)
commands.add("limit")(_key_limits.limit)
commands.add("reset")(_key_breakers.reset)


@commands.add("list")
def list_(
    *, queue: Queue = None, limit: Limit = 100, dsn: Dsn = None, as_json: Json = False
) -> None:
    """List the keys that jobs wait for, and why they do not run.

    The key with the most waiting jobs is first. Jobs that no claim has met yet are not counted.
    """
    from forebay.policy.keys import key_answer

    found = client_of(dsn).keys(queue, limit=limit)
    if as_json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print("No job waits for its key.", style="dim")
        return
    now = datetime.now(UTC)
    has_groups = any(one.group != "default" for one in found)
    rows = table(
        *("queue", *(["group"] if has_groups else []), "key", "sort", "waiting", "running", "why"),
        right=("waiting", "running"),
        loose=("queue", "group", "key", "why"),
    )
    for one in found:
        rows.add_row(
            one.queue,
            *([one.group] if has_groups else []),
            one.key,
            one.sort,
            f"{one.waiting:,}",
            f"{one.running:,}",
            key_answer(one, now),
        )
    out.print(rows)
    if len(found) >= limit:
        out.print(f"only the first {limit}: --limit shows more", style="dim")


@commands.add("show")
def show(
    queue: _paused_keys.Queue,
    *,
    ordering_key: _paused_keys.OrderingKey = None,
    limit_key: _paused_keys.LimitKey = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Show one key in each consumer group of its queue: what waits and runs, and why the next
    job does not run.
    """
    _paused_keys.one_key(ordering_key, limit_key)
    found = client_of(dsn).key(queue, ordering_key=ordering_key, limit_key=limit_key)
    if not found:
        check_queue_in_use(dsn, queue)
    if as_json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print(
            f"queue {queue}: no worker has served it, so no claim has met its jobs", style="dim"
        )
        return
    now = datetime.now(UTC)
    for number, one in enumerate(found):
        if number:
            out.print()
        out.print(_facts(one, now))


def _facts(one: KeyInfo, now: datetime) -> Table:
    from forebay.policy.keys import key_answer

    rows = facts_table()
    rows.add_row(f"{one.sort} key", Text(one.key, style="bold"))
    group = "" if one.group == "default" else f", group {one.group}"
    rows.add_row("queue", f"{one.queue}{group}")
    first = "" if one.first_job_id is None else f", first job {one.first_job_id}"
    rows.add_row("waiting", f"{one.waiting:,}{first}")
    rows.add_row("running", f"{one.running:,}")
    if one.limits is not None:
        rows.add_row("limits", _key_limits.in_words(one.limits))
    if one.breaker is not None:
        rows.add_row("breaker", _key_breakers.in_words(one.breaker, now))
    rows.add_row("why", key_answer(one, now))
    return rows
