"""A handler's arguments, as its signature declares them.

The same declaration checks twice: when a job is enqueued, strictly, so that a mistake is refused
before anything is written; and when it runs, tolerating arguments it does not know, since during a
rolling deploy newer producers feed older workers. Text never becomes a number on the way.

Types are checked by msgspec. A parameter whose type contains a pydantic model is checked by
pydantic, which is used when the application has imported it and never imported from here.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec

from forebay.errors import ConfigError, InvalidJob, shown
from forebay.model.job import Job
from forebay.ops.arguments import (
    ArgumentLimits,
    encode_guarded,
    guard_values,
)

#: A class with this attribute, set to True, is what a handler names to be given its context.
CONTEXT_MARK: Final = "__forebay_context__"

_NATIVE: Final = (bytes, bytearray, datetime, date, time, timedelta, UUID, Decimal)
_PATH: Final = re.compile(r"^(?P<problem>.*) - at `(?P<path>[^`]*)`$", re.DOTALL)
_EMPTY: Final = inspect.Parameter.empty


class Arguments(Protocol):
    """How the arguments of a kind are encoded and decoded."""

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], limits: ArgumentLimits) -> str:
        """Return the JSON text of one call's arguments."""

    def decode(self, wire: Mapping[str, Any]) -> Any:
        """Return what the handler is given, from decoded JSON."""


class Parameters:
    """The arguments of a handler of single jobs: decoded to its keyword arguments."""

    def __init__(self, kind: str, parameters: Sequence[tuple[inspect.Parameter, Any]]) -> None:
        self._kind = kind
        self._others: _Check | None = None
        self._checks: dict[str, _Check] = {}
        for parameter, hint in parameters:
            where = f"kind {kind}: parameter {parameter.name}"
            if parameter.kind is parameter.VAR_KEYWORD:
                self._others = _check_for(dict.__class_getitem__((str, hint)), where)
            elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                raise ConfigError(
                    where,
                    "cannot be given by name",
                    hint="Arguments are stored by name: no *args and no / in the signature.",
                )
            else:
                self._checks[parameter.name] = _check_for(hint, where)
        self._positional = tuple(
            parameter.name
            for parameter, _ in parameters
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        )
        self._required = frozenset(
            parameter.name
            for parameter, _ in parameters
            if parameter.default is _EMPTY and parameter.kind is not parameter.VAR_KEYWORD
        )
        checks = [*self._checks.values(), *([self._others] if self._others else [])]
        self._declared = frozenset[type]().union(*(check.declared for check in checks))
        self._adapted = {name: c for name, c in self._checks.items() if c.adapter is not None}
        self._native = {name: c for name, c in self._checks.items() if c.adapter is None}
        # One struct for all that msgspec checks: a single call, and its errors name the parameter.
        # Its defaults only mark what is absent; the handler's own apply when it runs.
        self._model = msgspec.defstruct(
            f"Arguments of {kind}",
            [(name, check.hint, msgspec.UNSET) for name, check in self._native.items()],
            kw_only=True,
        )

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], limits: ArgumentLimits) -> str:
        """Return the JSON text of the arguments of one call, checked."""
        values = self._bound(args, kwargs)
        for name, check in self._adapted.items():
            if name in values:
                values[name] = check.dumped(values[name], name, self._kind)
        guard_values(
            values,
            bytes_max=limits.bytes_max,
            depth_max=limits.depth_max,
            declared=self._declared,
        )
        _convert(_plain(values, self._native.values()), self._model, None, self._kind)
        return encode_guarded(values, bytes_max=limits.bytes_max)

    def decode(self, wire: Mapping[str, Any]) -> dict[str, Any]:
        """Return the handler's keyword arguments; those it does not know are left out.

        Raises:
            InvalidJob: a required argument is missing, or one has the wrong type.
        """
        self._refuse_missing(wire.keys())
        model = _convert(dict(wire), self._model, None, self._kind)
        given = {name: getattr(model, name) for name in self._native if name in wire}
        for name, check in self._adapted.items():
            if name in wire:
                given[name] = check.loaded(wire[name], name, self._kind)
        if self._others is not None:
            others = {name: value for name, value in wire.items() if name not in self._checks}
            given.update(self._others.loaded(others, "args", self._kind))
        return given

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if len(args) > len(self._positional):
            raise InvalidJob(
                "args",
                f"has {len(args)} positional values, at most {len(self._positional)} are taken",
                kind=self._kind,
            )
        values = dict(zip(self._positional, args, strict=False))
        for name in values.keys() & kwargs.keys():
            raise InvalidJob(name, "is given twice", kind=self._kind)
        values.update(kwargs)
        unknown = values.keys() - self._checks.keys()
        if unknown and self._others is None:
            raise InvalidJob(
                shown(min(unknown, key=str)).strip("'"),
                "is not an argument",
                kind=self._kind,
                hint=f"Arguments: {', '.join(self._checks) or 'none'}.",
            )
        if unknown and self._others is not None:
            self._others.loaded({name: values[name] for name in unknown}, "args", self._kind)
        self._refuse_missing(values.keys())
        return values

    def _refuse_missing(self, names: Collection[str]) -> None:
        for name in self._checks:
            if name in self._required and name not in names:
                raise InvalidJob(name, "is missing", kind=self._kind)


class Item:
    """The arguments of a batch handler whose jobs are values of one type."""

    def __init__(self, kind: str, hint: Any) -> None:
        self._kind = kind
        self._check = _check_for(hint, f"kind {kind}: items")

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], limits: ArgumentLimits) -> str:
        """Return the JSON text of one item, given as such or by the names of its fields."""
        if len(args) > 1 or (args and kwargs):
            raise InvalidJob("args", "takes one item, or its fields by name", kind=self._kind)
        value = self._check.dumped(args[0] if args else kwargs, None, self._kind)
        guard_values(
            value,
            bytes_max=limits.bytes_max,
            depth_max=limits.depth_max,
            declared=self._check.declared,
        )
        text = encode_guarded(value, bytes_max=limits.bytes_max)
        if not text.startswith("{"):
            raise InvalidJob("args", "must become a JSON object", kind=self._kind)
        return text

    def decode(self, wire: Mapping[str, Any]) -> Any:
        """Return the item."""
        return self._check.loaded(wire, None, self._kind)


class Untyped:
    """The arguments of a batch handler that takes ``Job`` values: anything that JSON can express."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], limits: ArgumentLimits) -> str:
        """Return the JSON text of the keyword arguments."""
        if args:
            raise InvalidJob("args", "must be given by name", kind=self._kind)
        guard_values(kwargs, bytes_max=limits.bytes_max, depth_max=limits.depth_max)
        return encode_guarded(kwargs, bytes_max=limits.bytes_max)

    def decode(self, wire: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments as they are."""
        return wire


def arguments_of(
    function: Callable[..., Any], kind: str, *, batch: bool = False
) -> tuple[Arguments, bool]:
    """Return how a handler's arguments are encoded, and whether it takes a context.

    Args:
        function: the handler.
        kind: its name, for messages.
        batch: whether it takes a list of jobs. Then its parameter is declared as a list or
            sequence of ``Job``, or of a struct, dataclass, typed dict or pydantic model.

    Raises:
        ConfigError: the signature cannot be served, with the parameter and the reason.
    """
    parameters = list(inspect.signature(function).parameters.values())
    takes_context = bool(parameters) and _is_context(parameters[0], function)
    hinted = [
        (parameter, _hint(parameter, function, kind)) for parameter in parameters[takes_context:]
    ]
    if not batch:
        return Parameters(kind, hinted), takes_context
    if len(hinted) != 1 or hinted[0][0].kind is hinted[0][0].KEYWORD_ONLY:
        raise ConfigError(
            f"kind {kind}", "must take one list of jobs", hint="def handler(jobs: list[Job])"
        )
    hint = hinted[0][1]
    if hint is Any:
        return Untyped(kind), takes_context
    if typing.get_origin(hint) not in (list, Sequence) or len(typing.get_args(hint)) != 1:
        raise ConfigError(
            f"kind {kind}: parameter {hinted[0][0].name}",
            f"is declared {shown(hint)}, not a list or sequence",
            hint="def handler(jobs: list[Job])",
        )
    (item,) = typing.get_args(hint)
    if item is Job or item is Any:
        return Untyped(kind), takes_context
    return Item(kind, item), takes_context


class _Check:
    """The type of one parameter: msgspec's, or pydantic's with an adapter."""

    __slots__ = ("adapter", "declared", "has_objects", "hint")

    def __init__(
        self, hint: Any, *, declared: frozenset[type], has_objects: bool, adapter: Any = None
    ) -> None:
        self.hint = hint
        self.declared = declared
        self.has_objects = has_objects
        self.adapter = adapter

    def dumped(self, value: Any, name: str | None, kind: str) -> Any:
        """Return a value for the encoder, checked; only pydantic's become another one."""
        if self.adapter is None:
            guard_values(value, declared=self.declared)
            _convert(_plain(value, [self]), self.hint, name, kind)
            return value
        try:
            self.adapter.validate_python(value, strict=True)
            # By alias, since that is how the model reads its own output again.
            wire = self.adapter.dump_python(value, mode="json", by_alias=True)
        except ValueError as error:
            raise _pydantic_problem(error, name, kind) from None
        self.loaded(wire, name, kind)
        return wire

    def loaded(self, wire: Any, name: str | None, kind: str) -> Any:
        """Return a value for the handler from decoded JSON."""
        if self.adapter is None:
            return _convert(wire, self.hint, name, kind)
        try:
            # As JSON text, since only then strict means: no text for a number, but for a date.
            return self.adapter.validate_json(msgspec.json.encode(wire), strict=True)
        except ValueError as error:
            raise _pydantic_problem(error, name, kind) from None


def _check_for(hint: Any, where: str) -> _Check:
    if _has_pydantic_model(hint):
        try:
            adapter = sys.modules["pydantic"].TypeAdapter(hint)
        except Exception as error:
            raise ConfigError(where, f"has a type that pydantic refuses: {error}") from error
        return _Check(hint, declared=frozenset(), has_objects=False, adapter=adapter)
    if hint is object:
        hint = Any
    try:
        found = _types_within(msgspec.inspect.type_info(hint))
    except TypeError as error:
        raise ConfigError(where, f"has a type that cannot be checked: {error}") from None
    for info in found:
        if isinstance(info, msgspec.inspect.CustomType | msgspec.inspect.ExtType):
            name = getattr(info, "cls", type(info)).__name__
            raise ConfigError(
                where,
                f"is declared {name}, which has no JSON form",
                hint="Pass its key instead. A context comes first; a connection is not an argument.",
            )
    kinds = {type(info) for info in found}
    binary = {msgspec.inspect.BytesType, msgspec.inspect.ByteArrayType}
    unordered = {msgspec.inspect.SetType, msgspec.inspect.FrozenSetType}
    objects = {
        msgspec.inspect.StructType,
        msgspec.inspect.DataclassType,
        msgspec.inspect.TypedDictType,
        msgspec.inspect.NamedTupleType,
    }
    declared = frozenset[type]([bytes] if kinds & binary else [])
    declared |= frozenset[type]([set] if kinds & unordered else [])
    return _Check(hint, declared=declared, has_objects=bool(kinds & objects))


def _types_within(info: Any) -> list[Any]:
    found, waiting, seen = [], [info], set[Any]()
    while waiting:
        current = waiting.pop()
        if isinstance(current, tuple):
            waiting.extend(current)
        elif isinstance(current, msgspec.inspect.Field):
            waiting.append(current.type)
        elif isinstance(current, msgspec.inspect.Type):
            cls = getattr(current, "cls", None)
            if cls is not None and cls in seen:
                continue
            seen.add(cls)
            found.append(current)
            waiting.extend(getattr(current, name) for name in current.__struct_fields__)
    return found


def _has_pydantic_model(hint: Any) -> bool:
    if "pydantic" not in sys.modules:
        return False
    if isinstance(hint, type) and hasattr(hint, "__pydantic_core_schema__"):
        return True
    return any(_has_pydantic_model(part) for part in typing.get_args(hint))


def _plain(value: Any, checks: Collection[_Check]) -> Any:
    # msgspec takes an instance of a declared class as it is; only its fields show what is in it.
    if not any(check.has_objects for check in checks):
        return value
    return msgspec.to_builtins(value, builtin_types=_NATIVE, str_keys=False)


def _convert(value: Any, hint: Any, name: str | None, kind: str) -> Any:
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise _msgspec_problem(str(error), name, kind) from None


def _msgspec_problem(text: str, name: str | None, kind: str) -> InvalidJob:
    matched = _PATH.match(text)
    problem, path = (matched["problem"], matched["path"]) if matched else (text, "$")
    field = (name or "") + path.removeprefix("$")
    problem = problem.replace("`", "")
    return InvalidJob(
        field.removeprefix(".") or "args",
        "is wrong: " + problem[:1].lower() + problem[1:],
        kind=kind,
    )


def _pydantic_problem(error: ValueError, name: str | None, kind: str) -> InvalidJob:
    field, problem = name or "args", str(error)
    if hasattr(error, "errors"):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]]
        field = ((name or "") + "".join(steps)).removeprefix(".") or "args"
        problem = first["msg"]
    return InvalidJob(field, "is wrong: " + problem[:1].lower() + problem[1:], kind=kind)


def _is_context(parameter: inspect.Parameter, function: Callable[..., Any]) -> bool:
    annotation = parameter.annotation
    if annotation is _EMPTY:
        return parameter.name == "ctx"
    try:
        hint = _resolved(annotation, function)
    except (NameError, AttributeError, TypeError, SyntaxError):
        # Imported for type checkers only: its name has to do.
        return isinstance(annotation, str) and annotation.split(".")[-1] == "Context"
    return getattr(typing.get_origin(hint) or hint, CONTEXT_MARK, False) is True


def _hint(parameter: inspect.Parameter, function: Callable[..., Any], kind: str) -> Any:
    if parameter.annotation is _EMPTY:
        return Any
    try:
        return _resolved(parameter.annotation, function)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ConfigError(
            f"kind {kind}: parameter {parameter.name}",
            f"has an annotation that cannot be resolved: {error}",
            hint="Import its type at run time, at module level, not under TYPE_CHECKING.",
        ) from None


def _resolved(annotation: Any, function: Callable[..., Any]) -> Any:
    def carrier() -> None: ...

    carrier.__annotations__ = {"it": annotation}
    namespace = getattr(innermost(function), "__globals__", {})
    return typing.get_type_hints(carrier, globalns=namespace, include_extras=True)["it"]


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function behind wrappers, partials, bound methods and callable objects."""
    inner = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    if not inspect.isroutine(inner) and not isinstance(inner, type):
        inner = type(inner).__call__
    unbound: Callable[..., Any] = getattr(inner, "__func__", inner)
    return unbound
