"""What takes an iterable reads it once: a generator gives what a list gives."""

from collections.abc import Callable
from typing import Any

import pytest

import forebay
from tests.support.engine import one

#: Each takes a connection, the handlers, and what makes an iterable of a list.
DOORS: dict[str, Callable[[Any, Any, Any, Callable[[list[Any]], Any]], Any]] = {
    "App.enqueue_many": lambda app, conn, own, form: app.enqueue_many(
        conn, form([own.work.call(n) for n in range(3)])
    ),
    "Handler.enqueue_many": lambda app, conn, own, form: own.work.enqueue_many(
        conn, form([{"n": n} for n in range(3)])
    ),
    "Handler.calls": lambda app, conn, own, form: app.enqueue_many(
        conn, own.work.calls(form([1, 2, 3]))
    ),
    "gather": lambda app, conn, own, form: forebay.gather(
        conn, form([own.work.call(n) for n in range(2)]), then=own.whole
    ),
    "push_many": lambda app, conn, own, form: own.crawl.push_many(
        conn, form([("a", {"url": "x"}), ("b", {"url": "y"}), ("c", {"url": "z"})])
    ),
    "upsert_many": lambda app, conn, own, form: own.crawl.upsert_many(
        conn, form([("a", {"url": "x"}), ("b", {"url": "y"}), ("c", {"url": "z"})])
    ),
}


class Own:
    """The handlers of the test."""

    def __init__(self, app: forebay.App) -> None:
        @app.job(queue="many")
        def work(n: int) -> int:
            return n

        @app.job(queue="many")
        def whole(results: list[int | None]) -> None: ...

        @app.subject(queue="many")
        def crawl(url: str) -> None: ...

        self.work, self.whole, self.crawl = work, whole, crawl


@pytest.mark.parametrize("form", [list, iter, lambda items: (each for each in items)])
@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_a_generator_gives_what_a_list_gives(app, conn, door, form):
    """Each of these makes three jobs."""
    with conn.transaction():
        door(app, conn, Own(app), lambda items: form(list(items)))
    assert one(conn, "select count(*) from forebay.jobs(only_queue => 'many')") == 3
