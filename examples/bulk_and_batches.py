"""Many jobs at once: enqueued from a generator in constant memory, handled some hundred per call.

Start it, and in another terminal its worker:

    python bulk_and_batches.py
    forebay worker bulk_and_batches:app
"""

from dataclasses import dataclass

import psycopg

import forebay

app = forebay.App()


@dataclass
class Reading:
    sensor: int
    value: float


@app.batch_job(queue="readings", size=500)
def store(readings: list[Reading]) -> list[forebay.Outcome | None]:
    print(f"{len(readings)} readings in one call")
    # One entry for each job, in order: None means done.
    return [forebay.Dead("out of range") if r.value > 1e6 else None for r in readings]


if __name__ == "__main__":
    with psycopg.connect(app.dsn) as conn:
        count = store.enqueue_many(conn, (Reading(n % 10, float(n)) for n in range(5_000)))
        store.enqueue(conn, Reading(1, 2e6))  # out of range: it becomes a dead letter
    print(f"enqueued {count + 1} readings")
