"""Doors: public calls that compare their arguments with their own annotations.

A wrong value is refused where the caller gave it, by the name of its parameter, before anything is
sent or written. So no ``AttributeError`` from inside tells of it, nor an error of the server about
a type that the caller did not write. What Python itself says of a missing argument, or of too many,
stays.

The annotation says which types a value may have. Ranges, and texts of some form, are for the call
itself: ``forebay.model.checks``.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import inspect
import math
import sys
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
from typing import Any, ClassVar, Final, Literal, Protocol, TypeVar

from forebay.errors import ConfigError, InvalidJob, OutcomeRefused, shown
from forebay.model import checks
from forebay.model.options import MessageOptions

F = TypeVar("F", bound=Callable[..., Any])

#: What a check does: whether a value is of the type. It raises if the value is of the type and no
#: value of it at all, as a text that PostgreSQL cannot hold.
Check = Callable[[Any, str], bool]

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
    """Base class of classes of this library whose public methods are doors.

    A subclass passes ``declares=True`` if its methods declare something: they raise
    ``ConfigError``, the others ``InvalidJob``.
    """

    _refusal: ClassVar[Refusal] = InvalidJob

    def __init_subclass__(cls, *, declares: bool = False) -> None:
        super().__init_subclass__()
        if declares:
            cls._refusal = ConfigError
        if cls.__module__.partition(".")[0] != __name__.partition(".")[0]:
            return  # A subclass of an application: its methods are its business.
        for name, method in list(vars(cls).items()):
            if inspect.isfunction(method) and not name.startswith("_"):
                setattr(cls, name, door(method, refusal=cls._refusal))


def declaring_door(function: F) -> F:
    """Return a function that refuses wrong arguments with ``ConfigError``."""
    return door(function, refusal=ConfigError)


def of_a_handler(function: F) -> F:
    """Return a function for handlers that refuses wrong arguments with ``OutcomeRefused``, which
    fails the attempt: ``InvalidJob`` would make its job a dead letter.
    """
    return door(function, refusal=OutcomeRefused)


def check_fields(value: Any, *, refusal: Refusal = InvalidJob) -> None:
    """Refuse a field of a dataclass whose annotation does not allow its value."""
    cls = type(value)
    wanted = _FIELDS.get(cls)
    if wanted is None:
        module = vars(sys.modules[cls.__module__])
        wanted = _FIELDS[cls] = {
            item.name: _wanted(eval(item.type, {}, _Names(module)))  # noqa: S307 - our source
            for item in dataclasses.fields(cls)
            if isinstance(item.type, str)
        }
    try:
        for name, each in wanted.items():
            if each is not None:
                each.check(getattr(value, name), name)
    except _Refused as refused:
        error = refusal(refused.field, refused.problem, hint=refused.hint)
    else:
        return
    raise error


#: What the fields of the classes may be, of which there was an object.
_FIELDS: Final[dict[type, dict[str, _Wanted | None]]] = {}


def names_door(function: F) -> F:
    """Return a function that refuses unknown options with ``ConfigError``, and checks the values
    itself: it can say more of them.
    """
    return door(function, refusal=ConfigError, checks_values=False)


def door(function: F, *, refusal: Refusal = InvalidJob, checks_values: bool = True) -> F:
    """Return a function that refuses arguments which its annotations do not allow.

    A door stays as it is.

    Args:
        function: the function, or coroutine function.
        refusal: the class of the errors.
        checks_values: False: only the names of the arguments are compared.
    """
    if getattr(function, "_is_door", False):
        return function
    parameters: list[_Parameters] = []

    def checked(args: Sequence[object], named: Mapping[str, object]) -> None:
        if not parameters:
            parameters.append(_Parameters(function))
        try:
            parameters[0].check(args if checks_values else (), named, checks_values)
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

        awaited._is_door = True  # type: ignore[attr-defined]  # noqa: SLF001 - read above
        return awaited  # type: ignore[return-value]  # the same parameters and result

    @functools.wraps(function)
    def called(*args: Any, **named: Any) -> Any:
        checked(args, named)
        return function(*args, **named)

    called._is_door = True  # type: ignore[attr-defined]  # noqa: SLF001 - read above
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

    def check(self, args: Sequence[object], named: Mapping[str, object], values: bool) -> None:
        """Compare the arguments of a call; without ``values`` their names only.

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
            wanted = self._checks[name] if values else None
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
        if isinstance(value, str) and value.isascii() and value.isdigit() and "text" not in words:
            return f"Write {value[:40]} without quotes."
        if "a timedelta" in words:
            return "Write seconds, or a timedelta."
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
        if not inside or inside[0] is not str:
            return [("a mapping", _is_mapping)]
        return [("a mapping", functools.partial(_is_text_mapping, _wanted(inside[1])))]
    if issubclass(origin, AsyncIterable):
        return [("an asynchronous iterable", functools.partial(_is_instance, AsyncIterable))]
    if origin is tuple and inside[1:] != (...,):
        return [("a tuple", functools.partial(_is_instance, tuple))]
    if issubclass(origin, Sequence | AbstractSet) or origin is Iterable:
        # Of other elements a bulk call says which one is wrong, and why.
        element = _wanted(inside[0]) if inside and inside[0] in (str, int, float) else None
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
        return eval(annotation, {}, _Names(found.__globals__))  # noqa: S307 - text of our source
    except (AttributeError, TypeError):  # an unknown name with brackets or a full stop
        return Any


class _Names(dict[str, Any]):
    """The names of a module; Any for one that it imports for type checkers only."""

    def __missing__(self, name: str) -> Any:
        return _NAMES.get(name, vars(builtins).get(name, Any))


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
    if not -checks.BIGINT_MAX <= value <= checks.BIGINT_MAX:
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


def _is_text_mapping(wanted: _Wanted | None, value: object, field: str) -> bool:
    if not isinstance(value, Mapping):
        return False
    for name, each in value.items():
        if not _is_text(name, f"{field} name"):
            raise _Refused(field, f"has a name that is not text: {shown(name)}")
        if wanted is not None and not wanted.accepts(each, field):
            given = type(each).__name__
            raise _Refused(field, f"has {shown(name)}, which must be {wanted.words}, not {given}")
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
