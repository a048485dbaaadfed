import dataclasses
import enum
import functools
import json
import threading
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.arguments.kinds import Kind
from forebay.errors import InvalidJob


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr


class Cached(pydantic.BaseModel):
    at: datetime | None = None
    size: int = pydantic.Field(default=1, exclude=True)
    _token: str = pydantic.PrivateAttr(default="")
    _lock: Any = pydantic.PrivateAttr(default_factory=threading.Lock)

    @functools.cached_property
    def label(self) -> str:
        return str(self.size)


class Truncating(pydantic.BaseModel):
    text: str

    @pydantic.field_serializer("text")
    def shorten(self, text: str) -> str:
        return text[:3]


class More(Cached):
    more: int = 1


class Outer(pydantic.BaseModel):
    logins: list[Login] = []
    cached: Cached = pydantic.Field(default_factory=Cached)


class Point(msgspec.Struct):
    x: float
    tags: list[str] = []
    anything: Any = None


class Point3(Point):
    z: float = 0.0


@dataclasses.dataclass
class Base:
    a: int
    seen: int = dataclasses.field(default=0, compare=False)


@dataclasses.dataclass
class Derived(Base):
    b: int = 2


class Address(TypedDict):
    street: str


class Pair(NamedTuple):
    left: int
    right: float


class Colour(enum.Enum):
    RED = "red"


def extended(value, **attributes):
    for name, attribute in attributes.items():
        setattr(value, name, attribute)
    return value


def labelled():
    model = Cached()
    assert model.label
    return model


def kind_of(hint):
    def handler(it): ...

    handler.__annotations__ = {"it": hint}
    return Kind.declare(handler)


CHANGED = {
    "secret": (Login, Login(user="ann", password="hunter2"), "it.password"),
    (
            "secret in a "
            "list"
            ): (Outer, Outer(logins=[Login(user="a", password="b")]), "it.logins[0].password"),
    "excluded field": (Cached, Cached(size=2), "it.size"),
    "private attribute": (Cached, extended(Cached(), _token="x"), "it._token"),
    "serializer": (Truncating, Truncating(text="abcdef"), "it.text"),
    "subclass of a model": (Cached, More(), "it"),
    "subclass within a model": (Outer, Outer(cached=More(more=3)), "it.cached"),
    "subclass of a struct": (Point, Point3(1.0, z=2.0), "it"),
    "subclass in a list": (list[Point], [Point(1.0), Point3(1.0)], "it[1]"),
    "subclass of a dataclass": (Base, Derived(1), "it"),
    "attribute that is no field": (Base, extended(Base(1), note="x"), "it.note"),
    "extra key": (Address, {"street": "x", "city": "y"}, "it.city"),
    "extra key in a dict of dicts": (dict[str, Address], {"a": {"street": "", "b": 1}}, "it.a.b"),
    "key that a struct has not": (Point, {"x": 1.0, "why": 2}, "it.why"),
    "key that a model has not": (Cached, {"size": 1, "why": 2}, "it.why"),
    "integer that a float cannot hold": (float, 2**60 + 1, "it"),
    "integer in a list of floats": (list[float], [1.5, 2**60 + 1], "it[1]"),
    "field of an object": (Pair, Pair(1, 2**60 + 1), "it[1]"),
    "bytes where anything goes": (Annotated[tuple[bytes, Any], 1], (b"x", b"y"), "it[1]"),
    (
            "offset with "
            "seconds"
            ): (datetime, datetime(2026, 1, 1, tzinfo=timezone(timedelta(seconds=37))), "it"),
    "local mean time": (datetime, datetime(1930, 1, 1, tzinfo=ZoneInfo("Europe/Amsterdam")), "it"),
    "undeclared offset": (Any, [time(1, tzinfo=timezone(timedelta(seconds=-1)))], "it[0]"),
    (
            "offset with seconds in a "
            "struct"
            ): (Point, Point(1.0, anything=datetime(1930, 1, 1,
                tzinfo=ZoneInfo("Europe/Amsterdam"))), "it.anything"),
}  # fmt: skip


@pytest.mark.parametrize(("hint", "value", "path"), CHANGED.values(), ids=CHANGED)
def test_an_argument_that_would_arrive_changed_is_refused_with_its_path(hint, value, path):
    """
    The stored form may be valid and read back as another value: the caller is told before anything
    is written.
    """
    with pytest.raises(InvalidJob) as caught:
        kind_of(hint).encode(value)

    assert caught.value.field == path
    assert "hunter2" not in str(caught.value)


KEPT = {
    "model": (Cached, Cached(at=datetime(2026, 10, 25, 2, 30, fold=1,
        tzinfo=ZoneInfo("Europe/Rome")))),
    "cached property": (Cached, labelled()),
    "model of models": (Outer, Outer()),
    "dict for a model": (Login, {"user": "ann", "password": "x"}),
    "struct": (Point, Point(1, tags=["a"],
        anything={"at": date(2026, 1, 1), "colour": Colour.RED})),
    "dict for a struct": (Point, {"x": 1}),
    "dataclass where anything goes": (Point, Point(1.0, anything=Derived(1))),
    "dataclass": (Base, Base(1, seen=7)),
    "named tuple": (Pair, Pair(1, 2)),
    "tuple for a list": (list[float], (1.5, 2)),
    "text of a date": (Annotated[tuple[date, float], 1], ("2026-01-01", 1.5)),
    "float for a decimal": (Annotated[tuple[Decimal, float], 1], (0.1, 0.1)),
    (
            "end of the "
            "calendar"
            ): (Annotated[tuple[datetime, float], 1],
            (datetime.max.replace(tzinfo=timezone(-timedelta(hours=5))), 1)),
}  # fmt: skip


@pytest.mark.parametrize(("hint", "value"), KEPT.values(), ids=KEPT)
def test_an_argument_that_arrives_as_its_declaration_says_is_taken(hint, value):
    """
    What the declaration or JSON changes openly is no refusal: a tuple for a list, a dict for a
    struct, a zone.
    """
    kind = kind_of(hint)

    kind.decode(json.loads(kind.encode(value)))


def test_items_and_other_arguments_are_compared_too():
    """
    Each way to give arguments has the check: items of a batch, their fields by name, ``**others``.
    """

    def items(them: list[Point]): ...

    def others(**them: Base): ...

    def logins(them: list[Login]): ...

    for call in (
        lambda: Kind.declare(items, batch_size=2).encode(Point3(1.0)),
        lambda: Kind.declare(items, batch_size=2).encode(x=1.0, why=2),
        lambda: Kind.declare(others).encode(a=Derived(1)),
        lambda: Kind.declare(logins, batch_size=2).encode(Login(user="", password="x")),
    ):
        with pytest.raises(InvalidJob):
            call()


def test_bytes_that_one_parameter_declares_are_not_text_for_another():
    """
    A declaration holds for its own parameter.
    """

    def handler(data: bytes, anything): ...

    with pytest.raises(InvalidJob) as caught:
        Kind.declare(handler).encode(b"x", b"y")

    assert caught.value.field == "anything"


OFFSETS = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
VALUES = {
    int: st.integers(),
    float: st.floats() | st.integers(),
    bool: st.booleans(),
    str: st.text(),
    bytes: st.binary(),
    date: st.dates(),
    datetime: st.datetimes(timezones=st.none() | OFFSETS | st.timezones()),
    time: st.times(timezones=st.none() | OFFSETS),
    timedelta: st.timedeltas(),
    UUID: st.uuids(),
    Decimal: st.decimals(),
}
LEAVES = st.sampled_from(list(VALUES)).flatmap(lambda t: st.tuples(st.just(t), VALUES[t]))


def _wrapped(inner):
    return st.tuples(inner, st.integers(0, 3)).map(
        lambda pair: [
            (list[pair[0][0]], [pair[0][1]]),
            (dict[str, pair[0][0]], {"k": pair[0][1]}),
            (tuple[pair[0][0], ...], (pair[0][1],)),
            (pair[0][0] | None, pair[0][1]),
        ][pair[1]]
    )


@given(st.recursive(LEAVES, _wrapped, max_leaves=4))
@settings(max_examples=300, deadline=None)
def test_any_declared_value_arrives_equal_or_is_refused(typed):
    """
    Of types that are not compared by value each value reads back equal: such a type cannot lie.
    """
    hint, value = typed
    kind = kind_of(hint)
    try:
        text = kind.encode(value)
    except InvalidJob:
        return

    assert _clock(kind.decode(json.loads(text))["it"]) == _clock(value)


def _clock(value):
    """Return the value with each aware time in UTC: times of a repeated hour are never equal."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.replace(tzinfo=UTC, fold=0) - datetime(1, 1, 1, tzinfo=UTC) - value.utcoffset()
    if isinstance(value, list | tuple):
        return type(value)(map(_clock, value))
    return {key: _clock(item) for key, item in value.items()} if type(value) is dict else value
