"""Declared queues: compare them with the database, and apply them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from forebay.model import checks
from forebay.model.declared import Queue, QueueDifference
from forebay.ops.operation import Operation
from forebay.ops.records import rows_as

if TYPE_CHECKING:
    from collections.abc import Iterable

_DIFFERENCES: Final = """\
select to_jsonb(d)::text
from forebay.{function}(app => %(app)s, queues => %(queues)s::jsonb,
    overwrite => %(overwrite)s::boolean) d"""


def apply_queues(
    app: str, queues: Iterable[Queue], *, overwrite: bool = False, dry_run: bool = False
) -> Operation[list[QueueDifference]]:
    """Return the call that applies declared queues, or with ``dry_run`` only compares them.

    Raises:
        InvalidJob: one is not a declared queue, such as ``App.queue`` makes.
    """
    found = checks.checked_items(queues, Queue, "queues", "declared queue")
    return Operation(
        _DIFFERENCES.format(function="compare_queues" if dry_run else "apply_queues"),
        lambda rows: rows_as(QueueDifference, rows),
        {
            "app": app,
            "queues": json.dumps([{"queue": name} | name.settings.given() for name in found]),
            "overwrite": overwrite,
        },
    )
