"""A function for RQ."""

import recorded
import rq


def ship(**kwargs):
    job = rq.get_current_job()
    recorded.record(job.id, kwargs, job.meta)
