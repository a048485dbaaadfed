"""forebay queues show: all settings of a queue on one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from forebay.cli._commands import argument
from forebay.cli._database import client_of
from forebay.cli.options import Dsn, Json
from forebay.cli.output import ago, facts_table, one_line, print_json
from forebay.cli.text import Text, console
from forebay.policy.retry import RetryPolicy, human_duration

if TYPE_CHECKING:
    from forebay.cli.text import Table
    from forebay.model.settings import QueueSetting

#: How many groups, thresholds and kinds are named: the screen has 24 lines.
_NAMED_MOST: Final = 3


def show(
    queue: Annotated[str, argument("QUEUE", "The queue.")],
    *,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Show all settings that hold for a queue, and where each comes from.

    A value in brackets is not the queue's own, but the database's or the built-in one.
    """
    found = client_of(dsn).queue_settings(queue)
    if as_json:
        print_json(found)
        return
    console().print(_screen(queue, found))


def _screen(queue: str, found: list[QueueSetting]) -> Table:
    values = {each.setting: each for each in found if each.part not in _LISTED}
    rows = facts_table()
    rows.add_row("queue", Text(queue, style="bold"))
    for name, label, unit in _LINES:
        each = values[name]
        rows.add_row(label, _value(each, unit) + _origin(each))
    rows.add_row("retries", _retries(values))
    attempts = values["max_attempts"]
    rows.add_row("max attempts", _value(attempts, "") + (_origin(attempts) or ", before the kind"))
    for part in _LISTED:
        listed = [each for each in found if each.part == part]
        for place, each in enumerate(listed[:_NAMED_MOST]):
            rows.add_row(part if place == 0 else "", one_line(_listed(each)))
        if len(listed) > _NAMED_MOST:
            rows.add_row("", Text(f"and {len(listed) - _NAMED_MOST} more", "dim"))
        if not listed:
            rows.add_row(part, Text("-", "dim"))
    return rows


_LINES: Final = (
    ("max_waiting", "max waiting", "jobs"),
    ("rate", "rate", "starts per second"),
    ("concurrency", "concurrency", "jobs at once"),
    ("key_rate", "key rate", "starts per second"),
    ("key_concurrency", "key concurrency", "jobs at once"),
    ("shards", "shards", ""),
    ("dead_keep_days", "dead letters", "days"),
    ("retention_days", "ended jobs", "days"),
    ("notices", "notices", ""),
)

_LISTED: Final = ("groups", "keys", "alerts", "kinds")


def _value(each: QueueSetting, unit: str) -> str:
    value: Any = each.value
    if value is None:
        text = "forever" if each.setting == "dead_keep_days" else "no limit"
    elif isinstance(value, bool):
        text = "on" if value else "off"
    else:
        text = f"{value:,.10g}" if isinstance(value, int | float) else str(value)
        text += f" {unit}" if unit else ""
    return text if each.source == "queue" else f"[{text}]"


def _origin(each: QueueSetting) -> str:
    if each.source == "built in":
        return ""
    parts = [] if each.source == "queue" else [f"of {each.source}"]
    if each.applied_by is not None:
        parts.append(f"applied by {each.applied_by}")
    elif each.set_by is not None:
        parts.append(f"set {ago(each.set_at)} by {each.set_by}")
    return f", {', '.join(parts)}" if parts else ""


def _retries(values: dict[str, QueueSetting]) -> str:
    base = float(values["retry_base_seconds"].value)
    policy = RetryPolicy(
        strategy=values["retry_strategy"].value,
        base_seconds=base,
        cap_seconds=max(base, float(values["retry_cap_seconds"].value)),
        max_attempts=values["max_attempts"].value,
        jitter=values["retry_jitter"].value,
    )
    times = f"{human_duration(base)} to {human_duration(policy.cap_seconds)}"
    total = human_duration(policy.lifetime().seconds_expected)
    return f"[{policy.strategy}, {times}; about {total} in all]"


def _listed(each: QueueSetting) -> str:
    name = each.setting
    if each.part == "groups":
        if "closing_at" in each.value:
            return f"{name}, is being closed"
        if "paused_at" in each.value:
            end = each.value.get("resume_at")
            return f"{name}, paused" + (f" until {end}" if end else "") + _origin(each)
        return name + (", not opened by a worker" if each.value.get("is_implied") else "")
    if each.part == "kinds":
        return name if each.value is None else f"{name}, with declared keys"
    if each.part == "keys":
        return f"{each.value:,} {name.removesuffix('_keys')}; forebay keys list"
    return f"{name} {each.value:g}" + _origin(each)
