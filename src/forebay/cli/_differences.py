"""What a worker says about queues that are not as its application declares them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.errors import DatabaseUnavailable, SchemaError
from forebay.model.text import logger

if TYPE_CHECKING:
    from forebay.app import App

log = logger("forebay.cli")


def report_differences(app: App, place: str) -> None:
    """Log one line if the queues in the database are not as the application declares them."""
    if not app.queues:
        return
    try:
        differences = app.apply(dry_run=True)
    except (DatabaseUnavailable, SchemaError):
        return  # The worker waits for both, and reports it.
    pending = [
        f"{one.queue} {one.setting.replace('_', ' ')}" for one in differences if one.is_pending
    ]
    kept = [
        (
                f"{one.queue} {one.setting.replace('_', ' ')} is {value_text(one.database)}, in "
                f"code {value_text(one.code)}"
                )
        for one in differences
        if one.action in ("kept", "conflict")
    ]  # fmt: skip
    if pending:
        log.warning(
            "declared and not applied: %s; run `forebay apply %s`", ", ".join(pending), place
        )
    if kept:
        log.info("not as declared, changed by hand: %s", "; ".join(kept))


def value_text(value: Any) -> str:
    """Return the value of a setting of a queue in words; ``-`` for None."""
    if value is None:
        return "-"
    if isinstance(value, dict) and "max_waiting" in value:
        return f"{value['max_waiting']:,} of group {value['max_waiting_group']}"
    if isinstance(value, dict):
        burst = f", burst {value['burst']:,}" if "burst" in value else ""
        return f"{value['rate']:,.10g}/s{burst}"
    return f"{value:,}" if isinstance(value, int) else str(value)
