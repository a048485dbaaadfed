"""Doors: public calls that compare their arguments with their own annotations.

A wrong value is refused where the caller gave it, by the name of its parameter, before anything is
sent or written. So no ``AttributeError`` from inside tells of it, nor an error of the server about
a type that the caller did not write. What Python itself says of a missing argument, or of too many,
stays.

The annotation says which types a value may have. Ranges, and texts of some form, are for the call
itself: ``forebay.model.checks``.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
import typing
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Any, Final, Literal, Protocol, TypeVar

from forebay.errors import InvalidJob, shown
from forebay.model import checks
from forebay.model.options import MessageOptions

F = TypeVar("F", bound=Callable[..., Any])

#: What a check does: whether a value is of the type. It raises if the value is of the type and no
#: value of it at all, as a text that PostgreSQL cannot hold.
Check = Callable[[Any, str], bool]

#: Beyond it PostgreSQL has no integer.
BIGINT_MAX: Final = 2**63 - 1

#: Names that annotations use and that a module may import for type checkers only.
_NAMES: Final[dict[str, Any]] = {
    "Any": Any, "AsyncIterable": AsyncIterable, "AsyncIterator": AsyncIterator,
    "Awaitable": Awaitable, "Callable": Callable, "Coroutine": Coroutine, "Iterable": Iterable,
    "Iterator": Iterator, "Literal": Literal, "Mapping": Mapping, "Sequence": Sequence,
    "datetime": datetime, "timedelta": timedelta,
}  # fmt: skip

#: Parameters whose values are in no message.
_SECRET: Final = frozenset({"secret", "config", "dsn", "key", "headers"})


class Refusal(Protocol):
    """A class of errors that names a parameter and what is wrong with its value."""

    def __call__(self, field: str, problem: str, /, *, hint: str | None = None) -> Exception: ...


class _Refused(Exception):  # noqa: N818 - it never leaves this module
    """What is wrong with a value, and what to do."""

    def __init__(self, field: str, problem: str, hint: str | None = None) -> None:
        super().__init__(field)
        self.field, self.problem, self.hint = field, problem, hint


class Doors:
    """Base class of classes whose public methods are doors."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, method in list(vars(cls).items()):
            if inspect.isfunction(method) and not name.startswith("_"):
                setattr(cls, name, door(method))


def door(function: F, *, refusal: Refusal = InvalidJob) -> F:
    """Return a function that refuses arguments which its annotations do not allow.

    Args:
        function: the function, or coroutine function.
        refusal: the class of the errors.
    """
    parameters: list[_Parameters] = []

    def checked(args: Sequence[object], named: Mapping[str, object]) -> None:
        if not parameters:
            parameters.append(_Parameters(function))
        try:
            parameters[0].check(args, named)
        except _Refused as refused:
            error = refusal(refused.field, refused.problem, hint=refused.hint)
        else:
            return
        raise error

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: Any, **named: Any) -> Any:
            checked(args, named)
            return await function(*args, **named)

        return awaited  # type: ignore[return-value]  # the same parameters and result

    @functools.wraps(function)
    def called(*args: Any, **named: Any) -> Any:
        checked(args, named)
        return function(*args, **named)

    return called  # type: ignore[return-value]  # as above


class _Parameters:
    """The parameters of a function, and what each may be."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = function.__name__
        self._positional: list[str] = []
        self._checks: dict[str, _Wanted | None] = {}
        self._takes_any = False
        for name, parameter in inspect.signature(function).parameters.items():
            hint = _resolved(parameter.annotation, function)
            if parameter.kind is parameter.VAR_KEYWORD:
                self._add_options(hint)
            elif parameter.kind is not parameter.VAR_POSITIONAL:
                self._checks[name] = _wanted(hint)
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                self._positional.append(name)

    def _add_options(self, hint: Any) -> None:
        options = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Unpack else None
        if options is None:
            self._takes_any = True
            return
        for name, each in typing.get_type_hints(options, localns=_NAMES).items():
            self._checks[name] = _wanted(each)
        # What takes the options of a message or a job says itself why it does not take others.
        self._takes_any = MessageOptions.__annotations__.keys() <= self._checks.keys()

    def check(self, args: Sequence[object], named: Mapping[str, object]) -> None:
        """Compare the arguments of a call.

        Raises:
            _Refused: a name is unknown, or a value is of no type that it may have.
        """
        for name, value in zip(self._positional, args, strict=False):
            wanted = self._checks[name]
            if wanted is not None:
                wanted.check(value, name)
        for name, value in named.items():
            if name not in self._checks:
                if self._takes_any:
                    continue
                raise self._unknown(name)
            wanted = self._checks[name]
            if wanted is not None:
                wanted.check(value, name)

    def _unknown(self, name: str) -> _Refused:
        options = [each for each in self._checks if each not in ("self", "conn")]
        return _Refused(name, f"is not an option of {self._name}", checks.hint_for(name, options))


class _Wanted:
    """The types that a value may have."""

    def __init__(self, kinds: Sequence[tuple[str, Check]]) -> None:
        self._kinds = kinds

    @property
    def words(self) -> str:
        """The types in words."""
        words = list(dict.fromkeys(each for each, _ in self._kinds))
        if "None" in words:  # it is said last
            words = [*(each for each in words if each != "None"), "None"]
        return " or ".join(words)

    def accepts(self, value: object, field: str) -> bool:
        """Whether a value is of one of the types."""
        return any(is_one(value, field) for _, is_one in self._kinds)

    def check(self, value: object, field: str) -> None:
        """Refuse a value of another type."""
        if not self.accepts(value, field):
            given = "None" if value is None else type(value).__name__
            if value is not None and field not in _SECRET:
                given += f": {shown(value)}"
            raise _Refused(field, f"must be {self.words}, not {given}", self._hint(value))

    def _hint(self, value: object) -> str | None:
        words = self.words
        if isinstance(value, bytes | bytearray) and "text" in words:
            return "Decode the bytes: value.decode()."
        if isinstance(value, str) and "list" in words:
            return f"Write [{shown(value)}]."
        if isinstance(value, str) and ("number" in words or "True" in words):
            return "Write the value without quotes."
        if inspect.iscoroutinefunction(value):
            return "An asynchronous function is not awaited here: use one declared with def."
        if inspect.isawaitable(value):
            return "It is awaited nowhere: write await before it."
        return None


def _wanted(hint: Any) -> _Wanted | None:
    """Return what an annotation allows; None if that is everything, or is for the call to say."""
    kinds = _kinds(hint)
    return None if kinds is None else _Wanted(kinds)


def _kinds(hint: Any) -> list[tuple[str, Check]] | None:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        found = [_kinds(each) for each in typing.get_args(hint)]
        if any(each is None for each in found):
            return None
        return [each for kinds in found if kinds is not None for each in kinds]
    if origin is Literal:
        allowed = typing.get_args(hint)
        return [(" or ".join(map(repr, allowed)), functools.partial(_is_one_of, allowed))]
    plain = _PLAIN.get(hint) if origin is None and _is_hashable(hint) else None
    if plain is not None:
        return [plain]
    if origin is not None:
        return _container(origin, typing.get_args(hint))
    if typing.is_typeddict(hint):
        return [("a mapping", _is_mapping)]
    if hint in (Any, object) or not inspect.isclass(hint) or getattr(hint, "_is_protocol", False):
        return None
    return [(_called(hint), functools.partial(_is_instance, hint))]


def _container(origin: Any, inside: tuple[Any, ...]) -> list[tuple[str, Check]] | None:
    if origin is Callable or origin is typing.get_origin(typing.Callable[..., Any]):
        result = inside[-1] if inside else Any
        awaits = typing.get_origin(result) in (Awaitable, Coroutine)
        count = len(inside[0]) if inside and isinstance(inside[0], list) else None
        many = {None: "", 0: " without parameters", 1: " of one argument"}
        words = f"a function{many.get(count, f' of {count} arguments')}"
        return [(words, functools.partial(_is_function, awaits, count))]
    if not inspect.isclass(origin):
        return None
    if issubclass(origin, Mapping):
        is_text = bool(inside) and inside[0] is str
        return [("a mapping", _is_text_mapping if is_text else _is_mapping)]
    if issubclass(origin, AsyncIterable):
        return [("an asynchronous iterable", functools.partial(_is_instance, AsyncIterable))]
    if issubclass(origin, Sequence | AbstractSet) or origin is Iterable:
        element = _wanted(inside[0]) if inside else None
        kind = Iterable if origin is Iterable else origin
        kind = Sequence if kind is tuple else kind
        return [("a list", functools.partial(_is_list, kind, element))]
    return [(_called(origin), functools.partial(_is_instance, origin))]


def _called(cls: type) -> str:
    article = "an" if cls.__name__[:1] in "AEIOU" else "a"
    return f"{article} {cls.__name__}"


def _is_hashable(hint: Any) -> bool:
    return getattr(type(hint), "__hash__", None) is not None


def _resolved(annotation: Any, function: Callable[..., Any]) -> Any:
    """Return what an annotation says; Any if its module does not know the name at run time."""
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    found: Any = inspect.unwrap(function)
    try:
        return eval(annotation, _NAMES | found.__globals__)  # noqa: S307 - text of our source
    except NameError:
        return Any


def _is_none(value: object, _field: str) -> bool:
    return value is None


def _is_text(value: object, field: str) -> bool:
    if not isinstance(value, str):
        return False
    if not value.isascii() or "\x00" in value:
        try:
            bad = "\x00" in value or not value.encode()
        except UnicodeEncodeError:
            bad = True
        if bad:
            text = "" if field in _SECRET else f": {shown(value)}"
            raise _Refused(field, f"has a NUL character or a lone surrogate{text}")
    return True


def _is_integer(value: object, field: str) -> bool:
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    if not -BIGINT_MAX <= value <= BIGINT_MAX:
        raise _Refused(field, f"is out of range: {shown(value)}")
    return True


def _is_number(value: object, field: str) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        is_number = not math.isnan(value)
    except OverflowError:
        is_number = False
    if not is_number:
        raise _Refused(field, f"is not a number in range: {shown(value)}")
    return True


def _is_bool(value: object, _field: str) -> bool:
    return isinstance(value, bool)


def _is_instant(value: object, field: str) -> bool:
    if not isinstance(value, datetime):
        return False
    try:
        checks.checked_instant(value, field)
    except InvalidJob as error:
        raise _Refused(field, str(error.problem), error.hint) from None
    return True


def _is_instance(cls: type, value: object, _field: str) -> bool:
    return isinstance(value, cls)


def _is_one_of(allowed: tuple[object, ...], value: object, _field: str) -> bool:
    return any(type(value) is type(each) and value == each for each in allowed)


def _is_function(may_await: bool, count: int | None, value: object, _field: str) -> bool:
    if not callable(value) or (inspect.iscoroutinefunction(value) and not may_await):
        return False
    if count is None:
        return True
    try:
        inspect.signature(value).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # a function written in C may have no signature
        return True
    return True


def _is_mapping(value: object, _field: str) -> bool:
    return isinstance(value, Mapping)


def _is_text_mapping(value: object, field: str) -> bool:
    if not isinstance(value, Mapping):
        return False
    for name in value:
        if not _is_text(name, f"{field} name"):
            raise _Refused(field, f"has a name that is not text: {shown(name)}")
    return True


def _is_list(kind: type, element: _Wanted | None, value: object, field: str) -> bool:
    if not isinstance(value, kind) or isinstance(value, str | bytes | bytearray | Mapping):
        return False
    if element is not None and isinstance(value, Sequence | AbstractSet):
        for number, each in enumerate(value):
            element.check(each, f"{field}[{number}]")
    return True


#: The types with a separate word or check.
_PLAIN: Final[dict[Any, tuple[str, Check]]] = {
    str: ("text", _is_text),
    int: ("an integer", _is_integer),
    float: ("a number", _is_number),
    bool: ("True or False", _is_bool),
    datetime: ("a datetime", _is_instant),
    type(None): ("None", _is_none),
    None: ("None", _is_none),
}
