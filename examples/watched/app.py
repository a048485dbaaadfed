"""A shop whose jobs do what jobs do: most end well, some fail, some wait for their turn."""

import random
import time
from collections.abc import Sequence

import forebay
from forebay.mirror import Document, Id

app = forebay.App()


@app.job(queue="mail", max_attempts=3, retry=forebay.RetryPolicy(base_seconds=2))
def send_mail(user_id: int, template: str) -> None:
    time.sleep(random.uniform(0.005, 0.03))
    if user_id % 40 == 0:
        raise ConnectionRefusedError("smtp.example.org refused the connection")
    if user_id % 90 == 1:
        raise ValueError(f"template {template} needs a name, and user {user_id} has none")


@app.job(queue="pictures", max_attempts=5)
def make_thumbnail(picture: str, width: int) -> None:
    time.sleep(random.uniform(0.02, 0.08) * width / 320)
    print(picture)


@app.job(queue="invoices", order_by=("customer",))
def write_invoice(customer: str, order: int) -> None:
    time.sleep(random.uniform(0.05, 0.2))
    print(customer, order)


@app.job(queue="reports", timeout=600)
def write_report(ctx: forebay.Context, year: int, pages: int) -> None:
    for page in range(pages):
        ctx.progress(page / pages, f"{year}: page {page} of {pages}")
        time.sleep(0.5)


@app.job(queue="pictures", executor="process", memory_bytes=64_000_000, max_attempts=1)
def cut_video(video: str) -> None:
    frames = [bytes(1_000_000) for _ in range(500)]
    print(video, len(frames))


@app.job(queue="exports")
def export_orders(year: int) -> None:
    time.sleep(600)
    print(year)


@app.subject(queue="feeds")
def read_feed(url: str) -> forebay.Outcome:
    print(url)
    return forebay.Again("+20 s")


@app.cron("* * * * *")
def tidy() -> None:
    time.sleep(0.1)


class Articles:
    """The articles of the shop, as a mirror reads them: number and version."""

    def read(self, ids: Sequence[Id]) -> list[Document]:
        return [Document(name, 1, {"title": f"Article {name}"}) for name in ids]

    def scan(self, after: Id | None, limit: int) -> list[tuple[Id, int]]:
        first = 0 if after is None else int(after) + 1
        return [(name, 1) for name in range(first, min(first + limit, 40))]
