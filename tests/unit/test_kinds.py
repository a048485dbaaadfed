import dataclasses
import enum
import functools
import json
import math
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from forebay.arguments.json_guard import ArgumentLimits
from forebay.arguments.kinds import Kind, Kinds
from forebay.errors import ConfigError, InvalidJob, PayloadTooDeep, PayloadTooLarge, UnknownKind
from forebay.model import Job

if TYPE_CHECKING:
    from nowhere import Invisible


class Context:
    __forebay_context__ = True


class Colour(enum.Enum):
    RED = "red"


class Item(msgspec.Struct):
    sku: str
    count: int = 1


@dataclasses.dataclass
class Order:
    items: list[Item]
    paid_at: datetime | None = None


class Address(TypedDict):
    street: str


class Person(pydantic.BaseModel):
    name: str
    born: datetime | None = None
    score: float = 0.0
    nick: str = pydantic.Field(default="", alias="nickName")


class Opaque:
    pass


def plain(user_id: int, locale: str = "en", *, force: bool = False):
    return user_id, locale, force


def everything(
    order: Order,
    colour: Colour,
    price: Decimal,
    key: UUID,
    address: Address,
    data: bytes,
    tags: set[str],
    rate: Annotated[float, msgspec.Meta(ge=0)],
    maybe: int | str | None = None,
    anything: Any = None,
):
    return order


def people(person: Person, others: list[Person] | None = None):
    return person


def test_arguments_are_stored_by_name_and_defaults_are_not():
    """
    A default that changes in the code applies to jobs that wait.
    """
    kind = Kind.declare(plain)

    assert json.loads(kind.encode(42)) == {"user_id": 42}
    assert json.loads(kind.encode(42, "it", force=True)) == {
        "user_id": 42,
        "locale": "it",
        "force": True,
    }
    assert kind.decode({"user_id": 42}) == {"user_id": 42}


@pytest.mark.parametrize(
    ("args", "kwargs", "field"),
    [
        ((), {}, "user_id"),
        ((), {"locale": "it"}, "user_id"),
        ((), {"user_id": "42"}, "user_id"),
        ((), {"user_id": 42.0}, "user_id"),
        ((), {"user_id": True}, "user_id"),
        ((), {"user_id": None}, "user_id"),
        ((1,), {"locale": b"it"}, "locale"),
        ((1,), {"locale": 7}, "locale"),
        ((1,), {"force": 1}, "force"),
        ((1,), {"user": 1}, "user"),
        ((1,), {"user_id": 1}, "user_id"),
        ((1, "it", True), {}, "args"),
    ],
)
def test_a_wrong_call_is_refused_by_the_name_of_the_argument(args, kwargs, field):
    """
    Unknown, missing, doubled and mistyped arguments never reach the database.
    """
    with pytest.raises(InvalidJob) as caught:
        Kind.declare(plain, name="shop.plain").encode(*args, **kwargs)

    assert caught.value.field == field
    assert caught.value.kind == "shop.plain"
    assert caught.value.message.startswith("shop.plain: ")


def test_rich_types_make_the_round_trip():
    """
    What the signature declares comes back as declared.
    """
    kind = Kind.declare(everything)
    values = {
        "order": Order([Item("a", 2), Item("b")], datetime(2026, 1, 31, tzinfo=UTC)),
        "colour": Colour.RED,
        "price": Decimal("1.10"),
        "key": UUID(int=7),
        "address": {"street": "Via Roma"},
        "data": b"\x00\xff",
        "tags": {"a", "b"},
        "rate": 2,
        "maybe": "x",
        "anything": {"deep": [1, None]},
    }

    assert kind.decode(json.loads(kind.encode(**values))) == values


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"order": Order([Item("a", "2")])}, "order.items[0].count"),
        ({"order": {"items": [{"sku": 7}]}}, "order.items[0].sku"),
        ({"colour": "blue"}, "colour"),
        ({"address": {}}, "address"),
        ({"rate": -1}, "rate"),
        ({"rate": math.nan}, "rate"),
        ({"key": "no uuid"}, "key"),
        ({"maybe": 1.5}, "maybe"),
        ({"anything": Opaque()}, "anything"),
        ({"anything": {1: 2}}, "anything"),
        ({"price": Decimal("NaN")}, "price"),
    ],
)
def test_a_wrong_value_deep_inside_is_named(change, field):
    """
    Instances of declared classes are looked into: their fields are not checked by Python.
    """
    values = {
        "order": Order([]),
        "colour": Colour.RED,
        "price": Decimal(1),
        "key": UUID(int=7),
        "address": {"street": ""},
        "data": b"",
        "tags": set(),
        "rate": 1.0,
    }
    with pytest.raises(InvalidJob) as caught:
        Kind.declare(everything).encode(**(values | change))

    assert caught.value.field == field


def test_arguments_of_newer_producers_are_left_out():
    """
    During a rolling deploy an older worker runs the jobs of a newer producer.
    """
    kind = Kind.declare(everything)
    wire = json.loads(
        kind.encode(Order([]), Colour.RED, Decimal(1), UUID(int=1), {"street": ""}, b"", set(), 1.0)
    )
    wire["added_later"] = True
    wire["order"]["added_later"] = [1]

    assert "added_later" not in kind.decode(wire)


@pytest.mark.parametrize(
    "wire", [{}, {"user_id": "42"}, {"user_id": None}, {"user_id": 1.5}, [], None]
)
def test_stored_arguments_that_do_not_fit_are_a_typed_error(wire):
    """
    A row written by SQL can hold anything; the worker gets one typed error for it.
    """
    with pytest.raises(InvalidJob):
        Kind.declare(plain).decode(wire)


def test_pydantic_models_are_checked_by_pydantic():
    """
    Strictly when enqueued; by alias on the way, as the model reads its own output.
    """
    kind = Kind.declare(people)
    person = Person(name="Ann", born=datetime(2000, 1, 1, tzinfo=UTC), nickName="A")
    wire = json.loads(kind.encode(person, others=[person]))

    assert wire["person"]["nickName"] == "A"
    assert kind.decode(wire) == {"person": person, "others": [person]}
    assert kind.decode({"person": {"name": "Bo", "unknown": 1}}) == {"person": Person(name="Bo")}


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("Ann", "person"),
        (Person.model_construct(name=7), "person.name"),
        (Person(name="Ann", score=math.nan), "person.score"),
        (Person(name="a\x00"), "person.name"),
    ],
)
def test_a_pydantic_model_that_would_not_come_back_is_refused(value, field):
    """
    Models built without validation, NaN and NUL are found before anything is written.
    """
    with pytest.raises(InvalidJob) as caught:
        Kind.declare(people).encode(value)

    assert caught.value.field == field


def test_pydantic_is_never_imported_from_here():
    """
    An application without pydantic does not pay for it.
    """
    import subprocess

    code = (
        "import sys, forebay.arguments.kinds as k; k.Kind.declare(lambda x: x, "
        "name='a').encode(1); "
    )
    code += "assert 'pydantic' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_limits_of_the_kind_apply():
    """
    Size and depth are limited for typed arguments too.
    """
    limits = ArgumentLimits(bytes_max=10, depth_max=2)
    small = Kind.declare(lambda a: a, name="a", limits=limits)

    with pytest.raises(PayloadTooLarge):
        small.encode("x" * 10)
    with pytest.raises(PayloadTooDeep):
        small.encode([[1]])


def test_other_arguments_are_collected_where_the_handler_says_so():
    """
    A handler with ``**others`` gets what it does not name, checked against its type.
    """

    def handler(user_id: int, **others: int): ...

    kind = Kind.declare(handler)

    assert kind.decode(json.loads(kind.encode(1, a=2))) == {"user_id": 1, "a": 2}
    with pytest.raises(InvalidJob) as caught:
        kind.encode(1, a="2")
    assert "a" in caught.value.field


def test_a_context_comes_first_and_is_no_argument():
    """
    By annotation, or by the name ``ctx`` without one.
    """

    def annotated(ctx: Context, user_id: int): ...
    def named(ctx, user_id: int): ...
    def quoted(c: "Context", user_id: int): ...
    def without(context: int, user_id: int): ...

    for handler in (annotated, named, quoted):
        kind = Kind.declare(handler)
        assert kind.takes_context
        assert kind.encode(1) == '{"user_id":1}'
    assert not Kind.declare(without).takes_context


def test_what_a_handler_is_shows_in_its_kind():
    """
    Coroutine functions run on the loop, all others in threads, whatever they are wrapped in.
    """

    async def coroutine(a: int): ...

    class Callable:
        async def __call__(self, a: int): ...

    @functools.wraps(coroutine)
    def wrapped(*args, **kwargs):
        return coroutine(*args, **kwargs)

    assert Kind.declare(coroutine).is_async
    assert Kind.declare(functools.partial(coroutine), name="p").flavour == "async"
    assert Kind.declare(Callable(), name="c").is_async
    assert Kind.declare(wrapped).is_async
    assert Kind.declare(plain).flavour == "thread"


def positional_only(a, /): ...
def star(*a): ...
def opaque(a: Opaque): ...
def deep_opaque(a: dict[str, list[Opaque]]): ...
def late_context(a: int, ctx: Context): ...
def unresolved(a: "Invisible"): ...
def ambiguous(a: Item | Order): ...
def generator(a: int):
    yield a


async def async_generator(a: int):
    yield a


@pytest.mark.parametrize(
    "function",
    [
        positional_only,
        star,
        opaque,
        deep_opaque,
        late_context,
        unresolved,
        ambiguous,
        generator,
        async_generator,
        lambda a: a,
    ],
)
def test_a_handler_that_cannot_be_served_is_refused_when_declared(function):
    """
    The mistake shows at import, not with the first job.
    """
    with pytest.raises(ConfigError, match="kind"):
        Kind.declare(function)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("name", {"name": "two words"}),
        ("queue", {"queue": ""}),
        ("priority", {"priority": 40_000}),
        ("soft_timeout_seconds", {"soft_timeout_seconds": 0}),
        ("soft_timeout_seconds", {"soft_timeout_seconds": "30"}),
        ("hard_timeout_seconds", {"hard_timeout_seconds": math.inf}),
        ("soft_timeout_seconds", {"soft_timeout_seconds": 9, "hard_timeout_seconds": 5}),
        ("batch size", {"batch_size": 0}),
        ("batch size", {"batch_size": 10_001}),
        ("retry", {"retry": 5}),
        ("one list", {"batch_size": 5}),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(field, options):
    """
    Each option of a kind is checked, and named.
    """
    with pytest.raises(ConfigError) as caught:
        Kind.declare(plain, **options)

    assert field in caught.value.message


def test_a_batch_handler_of_jobs_takes_any_arguments():
    """
    ``list[Job]`` means: untyped arguments, with the jobs' ids and headers at hand.
    """

    def handler(ctx: Context, jobs: list[Job]): ...

    kind = Kind.declare(handler, batch_size=500)

    assert kind.is_batch
    assert kind.takes_context
    assert json.loads(kind.encode(a=1, b=[2])) == {"a": 1, "b": [2]}
    assert kind.decode({"a": 1}) == {"a": 1}
    with pytest.raises(InvalidJob):
        kind.encode(1)
    with pytest.raises(InvalidJob):
        kind.encode(a=math.nan)


@pytest.mark.parametrize(
    ("item", "value", "fields"),
    [
        (Item, Item("a", 2), {"sku": "a", "count": 2}),
        (Order, Order([Item("a")]), {"items": [{"sku": "a", "count": 1}], "paid_at": None}),
        (Address, {"street": "x"}, {"street": "x"}),
        (Person, Person(name="Ann"), None),
    ],
)
def test_a_batch_handler_of_values_gets_values(item, value, fields):
    """
    A job's arguments are the fields of one item; enqueue takes the item or its fields.
    """

    def handler(items): ...

    handler.__annotations__ = {"items": Sequence[item]}
    kind = Kind.declare(handler, batch_size=10)

    assert kind.decode(json.loads(kind.encode(value))) == value
    if fields is not None:
        assert kind.decode(json.loads(kind.encode(**fields))) == value


def test_a_batch_item_is_checked_like_an_argument():
    """
    Wrong fields, and items that are no objects, are refused by name.
    """

    def handler(items: list[Item]): ...
    def numbers(items: list[int]): ...
    def single(items: Item): ...

    kind = Kind.declare(handler, batch_size=10)
    for args, kwargs in [((), {"sku": 1}), ((Item("a", "2"),), {}), ((), {}), ((1, 2), {})]:
        with pytest.raises(InvalidJob):
            kind.encode(*args, **kwargs)
    with pytest.raises(InvalidJob, match="object"):
        Kind.declare(numbers, batch_size=10).encode(5)
    with pytest.raises(ConfigError):
        Kind.declare(single, batch_size=10)


def test_two_handlers_cannot_have_one_name():
    """
    Which of the two would run is not left to the order of imports; a reload is no conflict.
    """

    def make():
        def send(a: int): ...

        return send

    kinds = Kinds()
    first = kinds.add(Kind.declare(make(), queue="mail"))
    again = kinds.add(Kind.declare(make(), queue="mail"))

    assert kinds.get("send") is again is not first
    with pytest.raises(ConfigError, match="declared twice"):
        kinds.add(Kind.declare(plain, name="send"))
    assert (len(kinds), "send" in kinds, kinds.queues()) == (1, True, ("mail",))


def test_an_unknown_kind_names_the_known_ones():
    """
    The operator sees what this worker has.
    """
    kinds = Kinds()
    kinds.add(Kind.declare(plain))

    with pytest.raises(UnknownKind) as caught:
        kinds.get("plan")

    assert "plain" in caught.value.detail


@pytest.mark.parametrize("hint", [datetime | str, UUID | str], ids=str)
def test_a_union_that_json_cannot_tell_apart_is_refused_with_advice(hint):
    """
    The text of a date is a text: the handler could not know which of the two was enqueued.
    """

    def handler(it): ...

    handler.__annotations__ = {"it": hint}
    with pytest.raises(ConfigError) as caught:
        Kind.declare(handler)

    assert "convert it in the handler" in str(caught.value.hint)


def test_a_parameter_whose_name_cannot_be_used_is_refused():
    """
    A declaration fails with an error of this library, also for names that Python itself mangles.
    """

    def handler(__x: int): ...  # noqa: PYI063

    with pytest.raises(ConfigError) as caught:
        Kind.declare(handler)

    assert "__x" in str(caught.value)


def test_a_lambda_is_refused_by_its_place():
    """
    It has no name; the message has its line instead of an address in memory.
    """
    with pytest.raises(ConfigError, match=r"kind at .*test_kinds.py:\d+ has no name") as caught:
        Kind.declare(lambda: None)
    assert "def" in (caught.value.hint or "")
