"""What the steps of an order do, in all libraries; where a worker dies; and which code it has.

``CODE`` is the version of the code: ``first``; ``insert``, a step before the booking; ``reorder``,
the articles the other way around; ``rename``, the step of the charge.
"""

from __future__ import annotations

import os
import signal
from typing import Any, Final

import psycopg

DSN: Final = os.environ.get("DSN", "")
CODE: Final = os.environ.get("CODE", "first")

ARTICLES: Final = ["coat", "hat", "shoe"]

TABLES: Final = """
create table effect (what text, at timestamptz default clock_timestamp());
create table booking (order_id bigint, payment text);
"""


def _act(what: str) -> None:
    """Do something that another service would see, and die there if that is wanted."""
    with psycopg.connect(DSN, autocommit=True) as conn:
        conn.execute("insert into effect (what) values (%s)", [what])
    die(what)


def die(what: str) -> None:
    """Be killed, if this is the place."""
    if os.environ.get("DIE") == what:
        os.kill(os.getpid(), signal.SIGKILL)


def charge(order_id: int) -> str:
    """Charge the order."""
    _act("charge")
    return f"payment {order_id}"


def reserve(order_id: int) -> str:
    """Reserve the articles."""
    _act("reserve")
    return f"reservation {order_id}"


def book(conn: psycopg.Connection[Any], order_id: int, payment: str) -> None:
    """Book the payment, in a transaction of the caller."""
    conn.execute("insert into booking values (%s, %s)", [order_id, payment])


def book_and_commit(order_id: int, payment: str) -> None:
    """Book the payment, for a library without such a transaction."""
    with psycopg.connect(DSN) as conn:
        book(conn, order_id, payment)
    die("book")


def label(article: str) -> str:
    """Make a label."""
    _act(f"label {article}")
    return f"label of {article}"


def mail(labels: list[str]) -> None:
    """Mail what was made."""
    _act(f"mail: {', '.join(labels)}")


def articles() -> list[str]:
    """Return the articles of the order, in the order that the code has."""
    return ARTICLES[::-1] if CODE == "reorder" else ARTICLES
