"""Operations from Python; the command line and SQL have the same verbs.

Start it: it pauses a queue, cancels a job, and redrives dead letters.

    python operate.py
"""

import forebay

app = forebay.App()
supplier_is_up = False


@app.job(queue="purchases", max_attempts=1)
def place_order(article: str) -> None:
    if not supplier_is_up:
        raise ConnectionError(f"supplier does not answer about {article}")
    print(f"ordered {article}")


if __name__ == "__main__":
    client = app.client()

    # Pausing: workers stop claiming; enqueuing continues.
    client.pause_queue("purchases")
    tea, milk, sugar = (place_order.enqueue_now(article) for article in ("tea", "milk", "sugar"))
    app.run_worker(until_idle=True)
    print("paused:", *(f"{line.ready} jobs wait" for line in client.depth("purchases")))

    # A waiting job is cancelled; of a running one the cancellation is requested.
    print("sugar:", client.cancel(sugar))
    client.resume_queue("purchases")
    app.run_worker(until_idle=True)
    print("tea:", client.cancel(tea))

    # Dead letters keep the arguments and every error; after the repair, redrive them.
    for letter in client.dead_letters(kind="place_order"):
        print(f"dead: {letter.args['article']}: {letter.errors[-1].message}")
    supplier_is_up = True
    print("redriven:", client.redrive_matching(kind="place_order"))
    app.run_worker(until_idle=True)
