"""Many jobs at once: enqueued from a generator in constant memory, handled some hundred per call."""

from dataclasses import dataclass

import psycopg

import forebay

app = forebay.App()
calls: list[int] = []


@dataclass
class Reading:
    sensor: int
    value: float


@app.batch_job(queue="readings", size=500)
def store(readings: list[Reading]) -> list[forebay.Outcome | None]:
    calls.append(len(readings))
    # One entry for each job, in order: None means done.
    return [forebay.Dead("out of range") if r.value > 1e6 else None for r in readings]


with psycopg.connect(app.dsn) as conn:
    count = store.enqueue_many(conn, (Reading(n % 10, float(n)) for n in range(5_000)))
    store.enqueue(conn, Reading(1, 2e6))
    assert count == 5_000

app.run_worker(until_idle=True)

assert sum(calls) == 5_001
assert len(calls) < 500
(letter,) = app.client().dead_letters()
assert letter.args == {"sensor": 1, "value": 2e6}
