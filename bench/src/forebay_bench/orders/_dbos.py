"""The order in DBOS. Its version is that of the code, as by default, or pinned (``PINNED``)."""

from __future__ import annotations

import os
import threading

from dbos import DBOS, DBOSClient, SQLAlchemyDatasource

from forebay_bench.orders import _shop
from forebay_bench.peers.dbos import create, url

__all__ = ["approve", "create", "start"]

_charge = DBOS.step(name="take payment" if _shop.CODE == "rename" else "charge")(_shop.charge)
_reserve, _label, _mail = map(DBOS.step(), (_shop.reserve, _shop.label, _shop.mail))


def _book(order_id: int, payment: str) -> None:
    session = source.sql_session()
    connection = session.connection().connection.driver_connection
    assert connection is not None
    _shop.book(connection, order_id, payment)
    _shop.die("book")


def _order(order_id: int) -> None:
    payment = _charge(order_id)
    if _shop.CODE == "insert" and (not os.environ.get("PATCH") or DBOS.patch("reserve")):
        _reserve(order_id)
    source.run_tx_step({"name": "book"}, _book, order_id, payment)
    DBOS.recv("approved", timeout_seconds=3 * 86400)
    _mail([_label(each) for each in _shop.articles()])


DBOS.workflow(name="order")(_order)


def start(dsn: str) -> None:
    """Start the order."""
    client = DBOSClient(system_database_url=url(dsn))
    client.enqueue({"queue_name": "orders", "workflow_name": "order", "workflow_id": "1"}, 1)
    client.destroy()


def approve(dsn: str) -> None:
    """Approve it."""
    client = DBOSClient(system_database_url=url(dsn))
    client.send("1", {}, "approved")
    client.destroy()


if __name__ == "__main__":
    version = "1" if os.environ.get("PINNED") else _shop.CODE
    address = url(_shop.DSN)
    DBOS(config={"name": "orders", "system_database_url": address, "application_version": version})
    source = SQLAlchemyDatasource.create(address)
    DBOS.launch()
    DBOS.register_queue("orders")
    threading.Event().wait()
