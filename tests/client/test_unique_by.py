"""Unique keys made from arguments: ``@app.job(unique_by=...)``."""

from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import psycopg
import pytest

from forebay import App, Coalesce, Debounce, Idempotent, Job, JobId, Once
from forebay.errors import ConfigError, PayloadDiffers
from forebay.testing import enqueued

app = App()
ID = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


@app.job(unique_by=("document_id",))
def index(document_id: int, title: str = "") -> None: ...


@app.job(unique_by=("owner", "day", "locale"), unique=Coalesce)
def report(owner: UUID, day: date, locale: str = "en", factor: float = 1) -> None: ...


@app.job
def charge(at: datetime, factor: float = 1, currency: str = "EUR") -> None: ...


@app.job(unique_by=("at",))
def remind(at: datetime) -> None: ...


@app.job(unique_by=["factor"])
def scale(factor: float) -> None: ...


@app.job(unique_by=("text",), unique=lambda key: Debounce(key, wait=10))
def save(text: str) -> None: ...


@dataclass
class Page:
    number: int
    text: str = ""


@app.batch_job(unique_by=("number",))
def show(pages: list[Page]) -> None: ...


@app.batch_job(unique_by=("number",))
def show_any(jobs: list[Job]) -> None: ...


@pytest.fixture
def conn(database):
    with psycopg.connect(database) as conn:
        yield conn


def key(call: Any) -> str:
    return str(call.options.unique.key)


def test_equal_arguments_are_one_job(conn):
    """
    Whatever the other arguments are, and however they were passed.
    """
    first = index.enqueue(conn, 7, title="old")
    again = index.enqueue(conn, document_id=7, title="new")
    other = index.enqueue(conn, 8)
    assert (first, again.is_new, other.is_new) == (again, False, True)
    assert index.enqueue_many(conn, [7, 9, 9]) == 3
    assert len(enqueued(conn, index)) == 3


def test_the_key_has_the_kind_and_the_encoded_arguments():
    """
    In the form in which they are sent; a default counts as the value; whole numbers are alike; a
    long key is hashed.
    """
    assert key(index.call(7)) == "index:[7]"
    when = date(2030, 1, 2)
    text = f'report:["{ID}","2030-01-02","en"]'
    assert key(report.call(ID, when)) == key(report.call(ID, when, "en", factor=3)) == text
    assert key(report.call(ID, when, "it")) != text
    assert key(scale.call(1)) == key(scale.call(1.0)) == "scale:[1]"
    assert key(scale.call(1.5)) == "scale:[1.5]"
    long = key(save.call("x" * 500))
    assert long.startswith("sha256:")
    assert long != key(save.call("x" * 501))
    assert key(show.call(Page(3, "a"))) == "show:[3]"
    assert key(show_any.call(number=3)) == "show_any:[3]"
    assert key(show_any.call(other=3)) == "show_any:[null]"


def test_the_same_arguments_are_one_request_and_one_key(conn):
    """
    One form of the arguments for both: a default that is written, 1 and 1.0, an instant in a zone.
    """
    at = datetime(2030, 1, 1, tzinfo=UTC)
    there = at.astimezone(ZoneInfo("Asia/Tokyo"))
    pay = charge.using(unique=Idempotent("17"))

    first = pay.enqueue(conn, at)
    ids: list[JobId] = []
    pay.enqueue_many(conn, [pay.call(there), pay.call(at, 1, "EUR"), pay.call(at, 1.0)], ids=ids)
    assert ids == [first] * 3
    assert pay.enqueue(conn, there, 1).is_new is False
    unkeyed = '{"at": "2030-01-01T00:00:00Z"}'
    by_sql = "select is_new from forebay.enqueue_unique('charge', %s, '{\"idempotent\": \"17\"}')"
    assert conn.execute(by_sql, [unkeyed]).fetchone() == (False,)
    with pytest.raises(PayloadDiffers), conn.transaction():
        pay.enqueue(conn, at, 2)
    with pytest.raises(PayloadDiffers), conn.transaction():
        pay.enqueue_many(conn, [pay.call(at, currency="USD")], ids=[])
    assert first.is_new

    assert key(remind.call(at)) == key(remind.call(there))


def test_the_mode_is_the_declared_one():
    """
    ``Once`` unless another is named; a function adds the mode's options.
    """
    assert index.call(7).options.unique == Once("index:[7]")
    assert type(report.call(ID, date(2030, 1, 1)).options.unique) is Coalesce
    assert save.call("a").options.unique == Debounce('save:["a"]', wait=10)


def test_one_call_may_have_another_key_or_none(conn):
    """
    ``using(unique=...)`` replaces it; other options keep it.
    """
    assert index.using(unique=None).call(7).options.unique is None
    assert index.using(unique=Once("mine")).call(7).options.unique == Once("mine")
    assert key(index.using(tag="import").call(7)) == "index:[7]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unique_by": ("documentid",)}, "has 'documentid', which is not an argument"),
        ({"unique_by": "document_id"}, "must be names of arguments, not 'document_id'"),
        ({"unique_by": ("document_id",), "unique": Once("k")}, (
                "must be a uniqueness mode without its "
                "key"
                )),
        ({"unique_by": ("document_id",), "unique": Debounce}, (
                "makes no uniqueness mode from a "
                "key"
                )),
        ({"unique_by": ("document_id",), "unique": str}, "makes a str, not a uniqueness mode"),
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_refused_where_it_is_made(options, message):
    """
    Names of arguments that do not exist, and modes that are none.
    """

    def handler(document_id: int) -> None: ...

    with pytest.raises(ConfigError, match=message):
        App().job(**options)(handler)
