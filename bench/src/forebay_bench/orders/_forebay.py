"""The order in Forebay."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg

import forebay
from forebay.upgrade.migrate import migrate
from forebay_bench.orders import _shop

app = forebay.App(_shop.DSN or "postgresql:///")


def _book(conn: psycopg.Connection[Any], order_id: int, payment: str) -> None:
    _shop.book(conn, order_id, payment)
    _shop.die("book")


@app.job(queue="orders")
def order(ctx: forebay.Context, order_id: int) -> None:
    """Fulfil an order."""
    if _shop.CODE == "rename":
        payment = ctx.step("take payment", _shop.charge, order_id, also=["charge"])
    else:
        payment = ctx.step("charge", _shop.charge, order_id)
    if _shop.CODE == "insert":
        ctx.step("reserve", _shop.reserve, order_id)
    ctx.once("book", _book, order_id, payment)
    ctx.wait("approved", key=order_id, timeout=timedelta(days=3))
    labels = [ctx.step("label", _shop.label, each, key=each) for each in _shop.articles()]
    ctx.step("mail", _shop.mail, labels)


def create(dsn: str) -> None:
    """Install the schema."""
    migrate(dsn)


def start(dsn: str) -> None:
    """Start the order."""
    with psycopg.connect(dsn) as conn:
        order.enqueue(conn, 1)


def approve(dsn: str) -> None:
    """Approve it."""
    with psycopg.connect(dsn) as conn:
        forebay.signal(conn, "approved", 1)


if __name__ == "__main__":
    app.run_worker()
