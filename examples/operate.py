"""Operations from Python; the command line and SQL have the same verbs."""

import forebay

app = forebay.App()
client = app.client()
supplier_is_up = False


@app.job(queue="orders", max_attempts=1)
def place_order(article: str) -> None:
    if not supplier_is_up:
        raise ConnectionError(f"supplier does not answer about {article}")


# Pausing: workers stop claiming; enqueuing continues.
client.pause_queue("orders")
job_ids = [place_order.enqueue_now(article) for article in ("tea", "milk", "sugar")]
app.run_worker(until_idle=True)
assert [line.ready for line in client.depth("orders")] == [3]

# A waiting job is cancelled; of a running one the cancellation is requested.
assert client.cancel(job_ids[2]) == "cancelled"
client.resume_queue("orders")
app.run_worker(until_idle=True)
states = {job.job_id: str(job.state) for job in client.jobs(queue="orders")}
assert client.cancel(job_ids[0]) == "already ended"
assert states == {job_ids[0]: "dead", job_ids[1]: "dead", job_ids[2]: "cancelled"}

# Dead letters keep the arguments and every error; after the repair, redrive them.
for letter in client.dead_letters(kind="place_order"):
    print(letter.args, letter.errors[-1].message)
supplier_is_up = True
assert client.redrive_matching(kind="place_order") == 2
app.run_worker(until_idle=True)
assert {str(job.state) for job in client.jobs(state="done")} == {"done"}
