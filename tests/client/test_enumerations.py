"""A member of an enumeration of texts is its value at every door, as in the database."""

import enum

import pytest

import forebay
from tests.support.engine import one
from tests.support.fix_worker import run_retries


class Mixed(str, enum.Enum):  # noqa: UP042 - str() of a member is another text than its value
    RED = "red"


class Text(enum.StrEnum):
    RED = "red"


class Odd(str):
    """A text that is another one for people."""

    __slots__ = ()

    def __str__(self):
        return "odd"


class Number(int, enum.Enum):
    ONE = 1


MEMBERS = pytest.mark.parametrize("red", [Mixed.RED, Text.RED, Odd("red")], ids=type)
OPTIONS = ["queue", "tag", "correlation_id", "ordering_key", "limit_key"]


def work_of(app):
    @app.job
    def work(number: int) -> None:
        del number

    return work


@MEMBERS
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_an_option_of_a_job(app, conn, red, option, many):
    handler = work_of(app).using(**{option: red})
    if many:
        handler.enqueue_many(conn, [1])
    else:
        handler.enqueue(conn, 1)
    column = {"queue": "(select queue from forebay.lane l where l.lane = r.lane limit 1)"}
    assert one(conn, f"select {column.get(option, option)} from forebay.log r") == "red"


@MEMBERS
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_a_unique_key(app, conn, red, many):
    handler = work_of(app)
    first = handler.using(unique=forebay.Once("red")).enqueue(conn, 1)
    again = handler.using(unique=forebay.Once(red))
    if many:
        assert again.enqueue_many(conn, [1]) == 1
    else:
        assert again.enqueue(conn, 1) == first
    assert one(conn, "select count(*) from forebay.log") == 1


@MEMBERS
def test_headers(app, conn, red):
    work_of(app).using(headers={red: red}).enqueue(conn, 1)
    assert one(conn, "select headers from forebay.log") == {"red": "red"}


@MEMBERS
def test_a_declared_kind_and_its_queue(app, conn, red):
    ran = []

    @app.job(name=red, queue=red)
    def work() -> None:
        ran.append(1)

    work.enqueue(conn)
    assert one(conn, "select kind from forebay.log") == "red"
    assert one(conn, "select min(queue) from forebay.lane") == "red"
    app.run_worker(until_idle=True, queues=[red])
    assert ran == [1]
    app.client().pause_queue(red)
    assert one(conn, "select queue from forebay.queue_group where paused_at is not null") == "red"


@MEMBERS
def test_a_declared_queue(app, red):
    assert str.__str__(app.queue(red, concurrency=1)) == "red"


@pytest.mark.anyio
@pytest.mark.parametrize("key", [Mixed.RED, Text.RED, Odd("red"), Number.ONE], ids=type)
async def test_a_signal_reaches_the_wait_whatever_the_form_of_its_key(app, conn, key):
    answers = []
    plain = key.value if isinstance(key, enum.Enum) else "red"

    @app.job
    def work(ctx: forebay.Context) -> None:
        ctx.step("before", int, key=key)
        assert ctx.done("before", key=plain)
        answers.append(ctx.wait("answer", key=key))

    work.enqueue(conn)
    await run_retries(app, conn)
    forebay.signal(conn, "answer", plain, "yes")
    await run_retries(app, conn)
    work.enqueue(conn)
    forebay.signal(conn, "answer", key, "again")
    await run_retries(app, conn)
    assert answers == ["yes", "again"]
