import dataclasses
import enum
import json
import math
import typing
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import NamedTuple
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.arguments._value_check import value_check
from forebay.arguments.json_guard import ArgumentLimits, encode_args, encode_json
from forebay.errors import ConfigError, EnqueueError, InvalidJob, PayloadTooDeep, PayloadTooLarge


class Colour(enum.Enum):
    RED = "red"


class Odd(enum.Enum):
    NAN = math.nan


class Point(msgspec.Struct):
    x: float
    note: str | msgspec.UnsetType = msgspec.UNSET


@dataclasses.dataclass
class Pair:
    left: object
    right: object


class Place(NamedTuple):
    a: int
    b: int


class Text(str):
    __slots__ = ()


def nested(levels, inner=1):
    value = inner
    for _ in range(levels - 1):
        value = [value]
    return {"a": value}


def cyclic_list():
    value = []
    value.append(value)
    return value


def cyclic_pair():
    pair = Pair(1, None)
    pair.right = pair
    return pair


REFUSED = {
    "nan": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "nan in a struct": Point(math.nan),
    "nan in a dataclass": Pair([math.nan], 1),
    "nan in an enum": Odd.NAN,
    "decimal nan": Decimal("NaN"),
    "decimal infinity": Decimal("Infinity"),
    "nul": "a\x00b",
    "nul in a key": {"a\x00": 1},
    "nul in a struct": Point(1.0, "\x00"),
    "lone surrogate": "\ud800",
    "lone surrogate in a key": {"\udfff": 1},
    "key that is a number": {1: "a"},
    "key that is none": {None: "a"},
    "key that is an enum": {Colour.RED: 1},
    "bytes": b"x",
    "bytearray": bytearray(b"x"),
    "set": {1},
    "frozenset": frozenset({1}),
    "object": object(),
    "class": int,
    "function": len,
    "generator": (x for x in [1]),
    "range": range(3),
    "complex": 1j,
    "exception": ValueError("x"),
    "subclass of text": Text("x"),
    "huge integer": 10**300,
    "huger integer": 10**5000,
    "cyclic list": cyclic_list(),
    "cyclic dataclass": cyclic_pair(),
    "unset": msgspec.UNSET,
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("place", ["argument", "element", "inner"])
def test_what_would_not_come_back_the_same_is_refused(value, place):
    """
    Every value JSON or jsonb cannot hold is a typed error before anything is written.
    """
    args = {"argument": {"a": value}, "element": {"a": [1, value]}, "inner": {"a": {"b": [value]}}}

    with pytest.raises(InvalidJob) as caught:
        encode_args(args[place])

    assert "\n" not in caught.value.message


TAKEN = {
    "scalars": {"a": 1, "b": -1.5, "c": True, "d": None, "e": ""},
    "text": {"grüße": '🎉 \\u0000 "quoted" \x7f\u2028'},
    "containers": {"a": [1, [2, {"b": []}]], "c": {}},
    "large integer": {"a": 10**299, "b": -(2**64)},
    "nothing": {},
}


@pytest.mark.parametrize("args", TAKEN.values(), ids=TAKEN.keys())
def test_plain_values_come_back_the_same(args):
    """
    JSON's own types make the round trip unchanged.
    """
    assert json.loads(encode_args(args)) == args


def test_common_python_values_become_their_usual_text():
    """
    Times, UUIDs, decimals, enums, tuples, structs and dataclasses have a JSON form.
    """
    args = {
        "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "on": date(2026, 1, 31),
        "time": time(12, 30),
        "wait": timedelta(seconds=90),
        "id": UUID(int=1),
        "price": Decimal("1.10"),
        "colour": Colour.RED,
        "pair": Pair(1, (2, 3)),
        "point": Point(0.5),
        "tuple": Place(1, 2),
        "ordered": OrderedDict(z=1, a=2),
    }

    assert json.loads(encode_args(args)) == {
        "at": "2026-01-31T12:00:00Z",
        "on": "2026-01-31",
        "time": "12:30:00",
        "wait": "PT90S",
        "id": "00000000-0000-0000-0000-000000000001",
        "price": "1.10",
        "colour": "red",
        "pair": {"left": 1, "right": [2, 3]},
        "point": {"x": 0.5},
        "tuple": [1, 2],
        "ordered": {"z": 1, "a": 2},
    }


@pytest.mark.parametrize("args", [None, [], "x", 1, {"a"}, Point(1.0)])
def test_arguments_are_an_object(args):
    """
    A handler has named arguments, so anything but a dict is refused.
    """
    with pytest.raises(InvalidJob, match="must be a dict"):
        encode_args(args)


def test_the_path_of_a_refused_value_is_named():
    """
    In a large document the message leads to the place.
    """
    with pytest.raises(InvalidJob) as caught:
        encode_args({"items": [{"price": 1.0}, {"price": math.nan}]})

    assert caught.value.field == "items[1].price"


def test_depth_is_limited_exactly():
    """
    64 levels pass, 65 do not, and the error carries both numbers.
    """
    assert encode_args(nested(64))
    with pytest.raises(PayloadTooDeep) as caught:
        encode_args(nested(65))

    assert (caught.value.depth, caught.value.limit) == (65, 64)
    assert encode_args(nested(65), limits=ArgumentLimits(depth_max=65))
    assert encode_args({"a": 1}, limits=ArgumentLimits(depth_max=1))
    with pytest.raises(PayloadTooDeep):
        encode_args({"a": []}, limits=ArgumentLimits(depth_max=1))
    assert encode_args(nested(200), limits=ArgumentLimits(depth_max=200))
    with pytest.raises(PayloadTooDeep):
        encode_args(nested(100_000))


def test_size_is_limited_exactly_in_bytes():
    """
    Characters outside ASCII count by their bytes in UTF-8.
    """
    limits = ArgumentLimits(bytes_max=20)

    assert len(encode_args({"a": "x" * 12}, limits=limits)) == 20
    for text in ("x" * 13, "ü" * 7):
        with pytest.raises(PayloadTooLarge) as caught:
            encode_args({"a": text}, limits=limits)
        assert caught.value.limit == 20
        assert caught.value.bytes > 20


def test_a_huge_value_is_refused_without_being_encoded():
    """
    The walk stops counting at the limit, in a list as in a text.
    """
    for value in ("x" * 50_000_000, [0] * 5_000_000, {"a": ["y"] * 1_000_000}):
        with pytest.raises(PayloadTooLarge):
            encode_args({"a": value})


def test_declared_types_may_travel():
    """
    A handler that declares bytes or a set gets them back, so they are taken.
    """
    assert encode_json({"a": b"x"}, declared=frozenset({bytes})) == '{"a":"eA=="}'
    assert encode_json({"a": {1}}, declared=frozenset({set})) == '{"a":[1]}'
    with pytest.raises(InvalidJob):
        encode_json({"a": [{math.nan}]}, declared=frozenset({set}))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abü\\u0"), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text("abcü\\"), json_values, max_size=5))
def test_every_json_value_makes_the_round_trip(args):
    """
    No value that JSON and jsonb can hold is refused or changed.
    """
    assert json.loads(encode_args(args)) == args


wild_values = st.recursive(
    st.floats()
    | st.text(st.characters())
    | st.binary(max_size=3)
    | st.integers()
    | st.complex_numbers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.integers() | st.text(st.characters(), max_size=3), inner, max_size=3)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.text(st.characters(), max_size=3), wild_values, max_size=3))
def test_any_value_is_encoded_faithfully_or_refused_with_a_typed_error(args):
    """
    The only exceptions are ours, and what passes is strict JSON without NUL.
    """
    try:
        text = encode_args(args)
    except EnqueueError:
        return

    def refuse(constant):
        raise AssertionError(constant)

    def check(value):
        if isinstance(value, str):
            assert "\x00" not in value
        elif isinstance(value, dict):
            for key, inner in value.items():
                check(key)
                check(inner)
        elif isinstance(value, list):
            for inner in value:
                check(inner)

    check(json.loads(text, parse_constant=refuse))
    text.encode("utf-8")


class Level(enum.IntEnum):
    HIGH = 1


@pytest.mark.parametrize(
    "key", [int, float, bool, tuple[int, int], Level, typing.Literal[1, 2], int | None]
)
@pytest.mark.parametrize("place", [lambda one: one, lambda one: list[one], lambda one: one | None])
def test_a_dict_whose_keys_no_text_can_be_is_refused_where_it_is_declared(key, place):
    """Each call would be refused: JSON has text keys only."""
    with pytest.raises(ConfigError, match="keys cannot be text"):
        value_check(place(dict[key, str]), "kind k: parameter x")


@pytest.mark.parametrize(
    ("key", "text", "read"),
    [
        (str, "a", "a"),
        (date, "2026-01-02", date(2026, 1, 2)),
        (UUID, str(UUID(int=1)), UUID(int=1)),
        (Colour, "red", Colour.RED),
        (typing.Literal["a", 1], "a", "a"),
        (str | int, "1", "1"),
    ],
)
def test_keys_that_a_text_can_be_are_given_as_text_and_read_as_declared(key, text, read):
    """The check of a call and the handler's value agree."""
    check = value_check(dict[key, int], "kind k: parameter x")
    check.check({text: 1}, "x")
    assert check.loaded({text: 1}, "x") == {read: 1}
