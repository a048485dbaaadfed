"""The arguments of a handler, as its signature declares them.

The declaration is checked twice. At the enqueue the check is strict: a mistake is refused before
anything is written. At the run, unknown arguments are ignored: during a rolling deployment newer
producers enqueue jobs for older workers. Text is never converted to a number.

msgspec checks types. pydantic checks a parameter whose type contains a pydantic model; this module
never imports pydantic, it uses it if the application has imported it.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, Protocol

import msgspec

from forebay.arguments._arrival import EXACT, refuse_change
from forebay.arguments._value_check import ValueCheck, convert, plain, read_back, value_check
from forebay.arguments.json_guard import (
    DEFAULT_LIMITS,
    ArgumentLimits,
    encode_guarded,
    guard_values,
)
from forebay.errors import ConfigError, InvalidJob, shown
from forebay.model.job import Job

#: Attribute of context classes. A handler whose first parameter has such a type receives its
#: context.
CONTEXT_ATTRIBUTE: Final = "__forebay_context__"

_EMPTY: Final = inspect.Parameter.empty


class Arguments(Protocol):
    """How the arguments of a kind are encoded and decoded."""

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], limits: ArgumentLimits) -> str:
        """Return the JSON text of one call's arguments."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the arguments; None if any are allowed."""

    def defaults(self) -> dict[str, Any]:
        """Return the JSON values of arguments that an encoded call may lack."""

    def decode(self, wire: Mapping[str, Any]) -> Any:
        """Return what the handler receives, from decoded JSON."""


def _defaults_of(parameters: Sequence[tuple[inspect.Parameter, Any]]) -> dict[str, Any]:
    return {one.name: one.default for one, _ in parameters if one.default is not _EMPTY}


def _check_of(kind: str, parameter: inspect.Parameter, hint: Any) -> ValueCheck:
    """Return the check of the values of a parameter.

    Raises:
        ConfigError: it cannot be given by name.
    """
    where = f"kind {kind}: parameter {parameter.name}"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
        raise ConfigError(
            where,
            "cannot be given by name",
            hint="Arguments are stored by name: remove *args and / from the signature.",
        )
    return value_check(hint, where)


class Parameters:
    """The arguments of a handler of single jobs, decoded to keyword arguments."""

    def __init__(self, kind: str, parameters: Sequence[tuple[inspect.Parameter, Any]]) -> None:
        self._others: ValueCheck | None = None
        self._checks: dict[str, ValueCheck] = {}
        for parameter, hint in parameters:
            check = _check_of(kind, parameter, hint)
            if parameter.kind is parameter.VAR_KEYWORD:
                self._others = check
            else:
                self._checks[parameter.name] = check
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
        self._defaults = _defaults_of(parameters)
        checks = list(self._checks.values())
        if self._others is not None:
            checks.append(self._others)
        self._has_declared = any(check.declared for check in checks)
        self._has_objects = any(check.has_objects for check in checks)
        self._uses_pydantic = any(check.adapter is not None for check in checks)
        self._adapted = {name: c for name, c in self._checks.items() if c.adapter is not None}
        self._native = {name: c for name, c in self._checks.items() if c.adapter is None}
        self._may_change = tuple(name for name, check in self._native.items() if check.may_change)
        self._model = self._made_model(kind)

    def _made_model(self, kind: str) -> type[msgspec.Struct]:
        """Return one struct for all types of msgspec: one call, and its errors name the parameter.

        Its defaults only stand for absent values; the defaults of the handler apply at the run.
        """
        fields = [(name, check.hint, msgspec.UNSET) for name, check in self._native.items()]
        try:
            return msgspec.defstruct(f"Arguments of {kind}", fields, kw_only=True)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"kind {kind}",
                f"has a parameter whose name cannot be used: {error}",
                hint="Rename it; a name must not begin with two underscores.",
            ) from None

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], limits: ArgumentLimits) -> str:
        """Return the JSON text of the arguments of one call, checked."""
        values = self._bound(args, kwargs)
        if self._uses_pydantic:
            for name in values:
                check = self._checks.get(name, self._others)
                if check is not None and check.adapter is not None:
                    values[name] = check.dumped(values[name], name)
        self._guard(values, limits)
        convert(plain(values) if self._has_objects else values, self._model, None)
        if self._others is not None and self._others.adapter is None:
            for name in values.keys() - self._checks.keys():
                self._others.check(values[name], name)
        text = encode_guarded(values, bytes_max=limits.bytes_max)
        if self._may_change:
            self._refuse_change(values, text)
        return text

    def without(self, names: Sequence[str]) -> Parameters:
        """Return the same arguments for producers that leave some to the worker."""
        other = copy.copy(self)
        other._positional = tuple(name for name in self._positional if name not in names)  # noqa: SLF001
        other._required = self._required.difference(names)  # noqa: SLF001 - of a copy of this object
        return other

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the parameters; None with ``**kwargs``."""
        return None if self._others is not None else tuple(self._checks)

    def defaults(self) -> dict[str, Any]:
        """Return the JSON values of the defaults that have one."""
        found: dict[str, Any] = {}
        for name, value in self._defaults.items():
            with contextlib.suppress(InvalidJob, TypeError):
                check = self._checks[name]
                dumped = value if check.adapter is None else check.dumped(value, name)
                text = encode_guarded({name: dumped}, bytes_max=DEFAULT_LIMITS.bytes_max)
                found[name] = msgspec.json.decode(text)[name]
        return found

    def decode(self, wire: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of the handler, without unknown ones.

        Raises:
            InvalidJob: a required argument is missing, or one has the wrong type.
        """
        self._refuse_missing(wire.keys())
        model = convert(wire if type(wire) is dict else dict(wire), self._model, None)
        if wire.keys() == self._native.keys():
            return msgspec.structs.asdict(model)
        given = {name: getattr(model, name) for name in self._native if name in wire}
        for name, check in self._adapted.items():
            if name in wire:
                given[name] = check.loaded(wire[name], name)
        if self._others is not None:
            for name in wire.keys() - self._checks.keys():
                given[name] = self._others.loaded(wire[name], name)
        return given

    def _guard(self, values: dict[str, Any], limits: ArgumentLimits) -> None:
        if not self._has_declared:
            guard_values(values, bytes_max=limits.bytes_max, depth_max=limits.depth_max)
            return
        for name, value in values.items():
            # Each by its own type: bytes that one parameter declares would be text for another.
            check = self._checks.get(name, self._others)
            declared = check.declared if check is not None else frozenset[type]()
            guard_values(
                {name: value},
                bytes_max=limits.bytes_max,
                depth_max=limits.depth_max,
                declared=declared,
            )

    def _refuse_change(self, values: dict[str, Any], text: str) -> None:
        arrived = None
        for name in self._may_change:
            if name in values and type(values[name]) not in EXACT:
                arrived = arrived or read_back(text, self._model, None)
                refuse_change(values[name], getattr(arrived, name), name)

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if len(args) > len(self._positional):
            raise InvalidJob(
                "args",
                f"has {len(args)} positional values, at most {len(self._positional)} are allowed",
            )
        values = dict(zip(self._positional, args, strict=False))
        if not kwargs and self._required <= values.keys():
            return values
        for name in values.keys() & kwargs.keys():
            raise InvalidJob(name, "is given twice")
        values.update(kwargs)
        self.check_names(values.keys())
        return values

    def check_names(self, names: AbstractSet[str]) -> None:
        """Refuse the names of arguments that the handler does not take, or that lack one.

        Raises:
            InvalidJob: one is unknown, or missing.
        """
        if self._others is None and not names <= self._checks.keys():
            raise InvalidJob(
                shown(min(names - self._checks.keys())).strip("'"),
                "is not an argument",
                hint=f"Arguments: {', '.join(self._checks) or 'none'}.",
            )
        self._refuse_missing(names)

    def _refuse_missing(self, names: AbstractSet[str]) -> None:
        if not self._required <= names:
            missing = self._required.difference(names)
            raise InvalidJob(next(name for name in self._checks if name in missing), "is missing")


class BatchItem:
    """The arguments of a batch handler whose jobs are values of one type."""

    def __init__(self, kind: str, hint: Any) -> None:
        self._check = value_check(hint, f"kind {kind}: items")

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], limits: ArgumentLimits) -> str:
        """Return the JSON text of one item, given as a value or by the names of its fields."""
        if len(args) > 1 or (args and kwargs):
            raise InvalidJob("args", "takes one item, or its fields by name")
        value = args[0] if args else kwargs
        if self._check.adapter is not None:
            value = self._check.dumped(value, None)
        guard_values(
            value,
            bytes_max=limits.bytes_max,
            depth_max=limits.depth_max,
            declared=self._check.declared,
        )
        if self._check.adapter is None:
            self._check.check(value, None)
        text = encode_guarded(value, bytes_max=limits.bytes_max)
        if not text.startswith("{"):
            raise InvalidJob("args", "must become a JSON object")
        return text

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the fields; None if the type does not declare them."""
        fields = getattr(self._check.hint, "__annotations__", None)
        return None if fields is None else tuple(typing.get_type_hints(self._check.hint))

    def defaults(self) -> dict[str, Any]:
        """Return nothing: an encoded item has all its fields."""
        return {}

    def decode(self, wire: Mapping[str, Any]) -> Any:
        """Return the item."""
        return self._check.loaded(wire, None)


class Untyped:
    """The arguments of a batch handler of ``Job`` values: anything with a JSON form."""

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], limits: ArgumentLimits) -> str:
        """Return the JSON text of the keyword arguments."""
        if args:
            raise InvalidJob("args", "must be given by name")
        guard_values(kwargs, bytes_max=limits.bytes_max, depth_max=limits.depth_max)
        return encode_guarded(kwargs, bytes_max=limits.bytes_max)

    @property
    def names(self) -> tuple[str, ...] | None:
        """Return None: any names are allowed."""
        return None

    def defaults(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def decode(self, wire: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments unchanged."""
        return wire


class RawItems(Untyped):
    """The arguments of a batch handler that takes them as undecoded JSON: anything with a JSON
    form.
    """


def arguments_of(
    function: Callable[..., Any], kind: str, *, batch: bool = False
) -> tuple[Arguments, bool, Any]:
    """Return the encoding of a handler's arguments, whether it takes a context, and the type of
    its connection.

    The last is ``Session`` for ``TransactionContext[Session]``, and None if the handler does not
    declare a type.

    Args:
        function: the handler.
        kind: its name, for messages.
        batch: whether it takes a list of jobs. Then its parameter is declared as a list or sequence
            of ``Job``, of ``msgspec.Raw``, or of a struct, dataclass, typed dict or pydantic model.

    Raises:
        ConfigError: the signature is not supported; the error names the parameter and the reason.
    """
    parameters = list(inspect.signature(function).parameters.values())
    takes_context = bool(parameters) and _is_context(parameters[0], function)
    carries = _carried(parameters[0], function, kind) if takes_context else None
    hinted = [
        (parameter, _hint(parameter, function, kind)) for parameter in parameters[takes_context:]
    ]
    if not batch:
        return Parameters(kind, hinted), takes_context, carries
    if len(hinted) != 1 or hinted[0][0].kind is hinted[0][0].KEYWORD_ONLY:
        raise ConfigError(
            f"kind {kind}", "must take one list of jobs", hint="def handler(jobs: list[Job])"
        )
    hint = hinted[0][1]
    if hint is Any:
        return Untyped(), takes_context, carries
    if typing.get_origin(hint) not in (list, Sequence) or len(typing.get_args(hint)) != 1:
        raise ConfigError(
            f"kind {kind}: parameter {hinted[0][0].name}",
            f"is declared {shown(hint)}, not a list or sequence",
            hint="def handler(jobs: list[Job])",
        )
    (item,) = typing.get_args(hint)
    if item is Job or item is Any:
        return Untyped(), takes_context, carries
    if item is msgspec.Raw:
        return RawItems(), takes_context, carries
    return BatchItem(kind, item), takes_context, carries


#: The names of contexts that a module may import for type checkers only.
_CONTEXTS: Final = {"AsyncContext", "Context", "PlainContext", "TransactionContext"}


def _is_context(parameter: inspect.Parameter, function: Callable[..., Any]) -> bool:
    annotation = parameter.annotation
    if annotation is _EMPTY:
        return parameter.name == "ctx"
    try:
        hint = _resolved(annotation, function)
    except (NameError, AttributeError, TypeError, SyntaxError):
        # Imported only for type checkers: decide by the name.
        bare = annotation.partition("[")[0] if isinstance(annotation, str) else ""
        return bare.split(".")[-1] in _CONTEXTS
    return getattr(typing.get_origin(hint) or hint, CONTEXT_ATTRIBUTE, False) is True


def _carried(parameter: inspect.Parameter, function: Callable[..., Any], kind: str) -> Any:
    annotation = parameter.annotation
    if isinstance(annotation, str) and "[" not in annotation:
        return None
    arguments = typing.get_args(_hint(parameter, function, kind))
    return None if not arguments or arguments[0] is Any else arguments[0]


def _hint(parameter: inspect.Parameter, function: Callable[..., Any], kind: str) -> Any:
    if parameter.annotation is _EMPTY:
        return Any
    return resolved_or_refused(
        parameter.annotation,
        function,
        f"kind {kind}: parameter {parameter.name}",
        "has an annotation that cannot be resolved",
        hint="Import its type at run time, at module level, not under TYPE_CHECKING.",
    )


def resolved_or_refused(
    annotation: Any, function: Callable[..., Any], what: str, problem: str, *, hint: str
) -> Any:
    """Return the type that an annotation of a function means.

    Raises:
        ConfigError: it cannot be resolved; ``what`` and ``problem`` say so.
    """
    try:
        return _resolved(annotation, function)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ConfigError(what, f"{problem}: {error}", hint=hint) from None


def _resolved(annotation: Any, function: Callable[..., Any]) -> Any:
    def carrier() -> None: ...

    carrier.__annotations__ = {"it": annotation}
    namespace = getattr(innermost(function), "__globals__", {})
    return typing.get_type_hints(carrier, globalns=namespace, include_extras=True)["it"]


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside wrappers, partials, bound methods and callable objects."""
    inner = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    if not inspect.isroutine(inner) and not isinstance(inner, type):
        inner = type(inner).__call__
    unbound: Callable[..., Any] = getattr(inner, "__func__", inner)
    return unbound
