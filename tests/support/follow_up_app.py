"""The application of the tests that kill workers between the end of a job and its follow-up."""

import time
from typing import Any

import forebay
from tests.support.effects import note

app = forebay.App()

#: The name of a kind for each sort of handler.
SORTS = ("in_async", "in_thread", "in_transaction", "in_process", "in_batch")


def _end(entry: int) -> Any:
    time.sleep(0.01)
    return forebay.Dead("no use") if entry % 3 == 0 else {"entry": entry}


@app.job(on_done="follow", on_dead="follow")
async def in_async(entry: int) -> Any:
    return _end(entry)


@app.job(on_done="follow", on_dead="follow")
def in_thread(entry: int) -> Any:
    return _end(entry)


@app.job(on_done="follow", on_dead="follow", transaction=True)
def in_transaction(entry: int) -> Any:
    return _end(entry)


@app.job(on_done="follow", on_dead="follow", executor="process")
def in_process(entry: int) -> Any:
    return _end(entry)


@app.batch_job(size=5, on_done="follow", on_dead="follow")
def in_batch(jobs: list[forebay.Job]) -> list[Any]:
    return [_end(job.args["entry"]) for job in jobs]


@app.job(queue="ends")
def follow(ctx: forebay.Context, job_id: int, outcome: str, result: Any) -> None:
    note(outcome, job_id, ctx.job.job_id, result["entry"] if result else 0)
