"""Batch handlers that take undecoded arguments: ``list[msgspec.Raw]``."""

import json

import msgspec
import pytest

import forebay
from forebay.errors import ConfigError, InvalidJob
from tests.support.engine import enqueue, state

pytestmark = pytest.mark.anyio


async def drained(app: forebay.App) -> None:
    await app.worker(concurrency=2).run(until_idle=True)


async def test_each_item_is_the_json_text_of_a_job(database, conn):
    """
    Of the whole object, in the order of the jobs, with what JSON can express and Python's numbers cannot.
    """
    app = forebay.App(database)
    calls = []

    @app.batch_job(size=3)
    async def count(items: list[msgspec.Raw]) -> None:
        calls.append(items)

    with conn.transaction():
        for number in range(4):
            count.enqueue(conn, number=number, name="ä\n")
        enqueue(conn, kind="count", args={"exact": 10**400})
    await drained(app)
    assert [len(items) for items in calls] == [3, 2]
    items = [item for items in calls for item in items]
    assert {type(item) for item in items} == {msgspec.Raw}
    found = [json.loads(bytes(item)) for item in items]
    assert found[:4] == [{"number": number, "name": "ä\n"} for number in range(4)]
    assert bytes(items[4]) == b'{"exact": 1' + b"0" * 400 + b"}"
    whole = msgspec.json.decode(b"[" + b",".join(items[:4]) + b"]")
    assert whole == found[:4]


async def test_large_arguments_are_not_decoded_either(database, conn):
    """
    Beyond what is decoded at once, and beside a job of another kind in the same queue.
    """
    app = forebay.App(database)
    sizes, names = [], []

    @app.batch_job(size=100)
    async def measure(items: list[msgspec.Raw]) -> None:
        sizes.extend(len(bytes(item)) for item in items)

    @app.job
    async def greet(name: str) -> None:
        names.append(name)

    with conn.transaction():
        for _ in range(30):
            measure.enqueue(conn, text="x" * 20_000)
        greet.enqueue(conn, "Ann")
    await drained(app)
    assert sizes == [20_000 + len('{"text": ""}')] * 30
    assert names == ["Ann"]


async def test_outcomes_and_the_context_are_those_of_any_batch(database, conn):
    """
    An entry for each job, and decoded arguments in the jobs of the context; also in the caller's transaction.
    """
    app = forebay.App(database)
    seen = []

    @app.batch_job(size=10, transaction=True, max_attempts=1)
    async def judge(ctx: forebay.Context, items: list[msgspec.Raw]) -> list[object]:
        seen.extend(job.args for job in ctx.jobs)
        return [None if b"good" in bytes(item) else ValueError("bad") for item in items]

    with conn.transaction():
        good, bad = (judge.enqueue(conn, word=word) for word in ("good", "bad"))
    await drained(app)
    assert seen == [{"word": "good"}, {"word": "bad"}]
    assert [state(conn, job) for job in (good, bad)] == ["done", "dead"]


def test_raw_is_refused_where_it_means_nothing():
    """
    As an argument of a handler of single jobs, or beside other types.
    """
    app = forebay.App()

    def single(value: msgspec.Raw) -> None: ...
    def union(items: list[msgspec.Raw | None]) -> None: ...

    with pytest.raises(ConfigError, match="only the items of a batch handler") as caught:
        app.job(single)
    assert "list[msgspec.Raw]" in str(caught.value.hint)
    with pytest.raises(ConfigError, match="only the items of a batch handler"):
        app.batch_job()(union)


def test_arguments_are_given_by_name(conn):
    """
    There is no type that a positional value could have; nothing is written.
    """
    app = forebay.App()

    @app.batch_job()
    def count(items: list[msgspec.Raw]) -> None: ...

    with pytest.raises(InvalidJob, match="by name"):
        count.enqueue(conn, {"number": 1})
    assert conn.execute("select count(*) from forebay.jobs()").fetchone() == (0,)
