"""Unique keys from Python: what the id tells, what the errors carry, and bulk calls."""

import asyncio
import pickle

import psycopg
import pytest

import forebay
from forebay.errors import KeyBusy, PayloadDiffers


@pytest.fixture
def app(database):
    return forebay.App(database)


@pytest.fixture
def index(app):
    @app.job(queue="search")
    def index(document_id: int) -> None: ...

    return index


def test_an_id_tells_whether_its_job_is_new(app, index, database):
    """
    Enqueuing answers a number that knows whether the job is new, and which one it replaced.
    """
    plain = index.enqueue_now(document_id=1)
    assert (plain.is_new, plain.replaced) == (True, None)
    once = index.using(unique=forebay.Once("d1"))
    first, second = once.enqueue_now(document_id=1), once.enqueue_now(document_id=1)
    assert (first.is_new, second.is_new) == (True, False)
    assert first == second
    replacing = index.using(unique=forebay.Replace("d1"), delay=60)
    third, fourth = replacing.enqueue_now(document_id=1), replacing.enqueue_now(document_id=2)
    assert fourth.replaced == third
    assert fourth.is_new
    copy = pickle.loads(pickle.dumps(fourth))
    assert (copy, copy.is_new, copy.replaced) == (fourth, True, third)
    with psycopg.connect(database) as conn:
        assert conn.execute("select %s", [fourth]).fetchone() == (fourth,)
    follow_up = index.enqueue_now(document_id=fourth)
    (status,) = app.client().job(follow_up)
    assert status.args == {"document_id": int(fourth)}
    nested = app.client().enqueue_now("index", {"document_id": 1, "after": [{"id": fourth}]})
    assert app.client().job(nested)[0].args["after"] == [{"id": int(fourth)}]

    async def elsewhere() -> forebay.JobId:
        return await app.async_client().enqueue_now(
            "index", {"document_id": 1}, queue="search", unique=forebay.Once("d1")
        )

    assert asyncio.run(elsewhere()) == first


def test_a_busy_key_and_another_request_are_errors_of_their_own(index, database):
    """
    KeyBusy may be tried again; PayloadDiffers names the job that has the key.
    """
    busy = index.using(unique=forebay.Idempotent("r1", on_busy="raise"))
    with psycopg.connect(database) as one, psycopg.connect(database) as two:
        first = busy.enqueue(one, document_id=1)
        with pytest.raises(KeyBusy) as caught:
            busy.enqueue(two, document_id=1)
        assert caught.value.retryable
        two.rollback()
        one.commit()
        with pytest.raises(PayloadDiffers) as differs:
            busy.enqueue(two, document_id=2)
        assert differs.value.job_id == first
        assert not differs.value.retryable
        two.rollback()
        with pytest.raises(PayloadDiffers, match="job 1:") as differs:
            index.enqueue_many(two, [index.call(1), busy.call(2)])
        assert (differs.value.index, differs.value.job_id) == (1, first)


def test_a_bulk_call_takes_keys_among_plain_jobs(app, index, database):
    """
    Calls with and without keys mix; a key that is held adds nothing.
    """
    with psycopg.connect(database) as conn:
        calls = [
            index.using(unique=forebay.Coalesce(f"d{n % 4}")).call(n) if n % 2 else index.call(n)
            for n in range(20)
        ]
        assert index.enqueue_many(conn, calls, chunk=7) == 20
        (depth,) = app.client().depth("search", conn=conn)
        assert depth.ready == 12
