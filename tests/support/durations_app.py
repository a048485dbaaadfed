"""A handler for each way in which the end of an attempt is written; its argument decides how."""

import os
import signal
from datetime import timedelta

import forebay

app = forebay.App()

TWICE = forebay.RetryPolicy(strategy="fixed", base_seconds=0.001, cap_seconds=0.001, max_attempts=2)
KEPT = timedelta(hours=1)

_snoozed: set[int] = set()


def fate_of(ctx: forebay.Context, fate: str) -> object:
    """End as told: returns, fails, dies, snoozes."""
    if fate == "fails":
        raise ValueError(fate)
    if fate == "dies":
        return forebay.Dead(fate)
    if fate == "snoozes" and ctx.job.job_id not in _snoozed:
        _snoozed.add(ctx.job.job_id)
        return forebay.Snooze(0)
    if fate == "kills":
        os.kill(os.getpid(), signal.SIGKILL)
    return None


def declare(name: str, **options: object) -> None:
    @app.job(name=f"{name}-plain", retry=TWICE, **options)
    def plain(ctx: forebay.Context, fate: str) -> object:
        return fate_of(ctx, fate)

    @app.job(name=f"{name}-coroutine", retry=TWICE, **options)
    async def coroutine(ctx: forebay.Context, fate: str) -> object:
        return fate_of(ctx, fate)


declare("simple")
declare("kept", keep_result=KEPT)
declare("transaction", transaction=True)
declare("kept-transaction", transaction=True, keep_result=KEPT)


@app.batch_job(name="batch", size=10, retry=TWICE)
def batch(ctx: forebay.Context, items: list[dict[str, str]]) -> list[object]:
    return [forebay.Dead("dies") if item["fate"] == "dies" else None for item in items]


@app.subject(name="subject", queue="subjects", retry=TWICE)
def subject(ctx: forebay.Context, fate: str) -> object:
    return fate_of(ctx, fate) or forebay.Complete()


SORTS = [
    f"{sort}-{flavour}"
    for sort in ("simple", "kept", "transaction", "kept-transaction")
    for flavour in ("plain", "coroutine")
]
