"""The order in absurd."""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg
from absurd_sdk import Absurd
from absurdctl import BUNDLED_SCHEMA_SQL

from forebay_bench.orders import _shop


def _order(params: Any, ctx: Any) -> None:
    order_id = params["order_id"]
    name = "take payment" if _shop.CODE == "rename" else "charge"
    payment = ctx.step(name, lambda: _shop.charge(order_id))
    if _shop.CODE == "insert":
        ctx.step("reserve", lambda: _shop.reserve(order_id))
    ctx.step("book", lambda: _shop.book_and_commit(order_id, payment))
    ctx.await_event(f"approved:{order_id}", timeout=3 * 86400)
    labels = [ctx.step("label", lambda each=each: _shop.label(each)) for each in _shop.articles()]
    ctx.step("mail", lambda: _shop.mail(labels))


def create(dsn: str) -> None:
    """Install the schema."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(BUNDLED_SCHEMA_SQL)
    with contextlib.closing(Absurd(dsn)) as app:
        app.create_queue()


def start(dsn: str) -> None:
    """Start the order."""
    with contextlib.closing(Absurd(dsn)) as app:
        app.spawn("order", {"order_id": 1}, queue="default")


def approve(dsn: str) -> None:
    """Approve it."""
    with contextlib.closing(Absurd(dsn)) as app:
        app.emit_event("approved:1", {})


if __name__ == "__main__":
    worker = Absurd(_shop.DSN)
    worker.register_task("order")(_order)
    worker.start_worker()
