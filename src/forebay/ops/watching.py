"""How far jobs are, for those who watch many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from forebay.model.status import JobUpdate
from forebay.ops.operation import Operation, ResultRows
from forebay.ops.records import rows_as

#: Most jobs of one statement: the bound of ``forebay.watch_jobs()``.
WATCHED_MAX: Final = 1000

#: A job, and a consumer group of its queue.
Key = tuple[int, str]

_WATCH: Final = """\
select (to_jsonb(w) operator(pg_catalog.||) jsonb_build_object('state', coalesce(w.state, 'ready'),
    'attempt', coalesce(w.attempt, 0), 'progress', case when w.recorded_at is not null then
        jsonb_build_object('done', w.done, 'note', w.note, 'recorded_at', w.recorded_at)
            end))::text,
    w.state is not null
from forebay.watch_jobs(%(ids)s::bigint[], %(groups)s::text[]) w"""


def watch_jobs(keys: Sequence[Key]) -> Operation[dict[Key, JobUpdate | None]]:
    """Return the call that reads how far jobs are.

    Its result has no entry for a job that is not visible, and None if the queue of the job does not
    have the group.

    Args:
        keys: at most ``WATCHED_MAX``.
    """

    def decode(rows: ResultRows) -> dict[Key, JobUpdate | None]:
        found = rows_as(JobUpdate, [(text,) for text, _ in rows])
        return {
            (update.job_id, update.group): update if has_group else None
            for update, (_, has_group) in zip(found, rows, strict=True)
        }

    ids, groups = [job_id for job_id, _ in keys], [group for _, group in keys]
    return Operation(_WATCH, decode, {"ids": ids, "groups": groups})
