"""What a handler returns: whether it has run at all, its type, and a kept result in a type."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import types
import typing
import weakref
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial, reduce
from operator import or_
from typing import Any, Final

import msgspec

from forebay.arguments._signature import innermost, resolved_or_refused
from forebay.arguments._value_check import value_check
from forebay.errors import ConfigError
from forebay.model.outcome import Outcome
from forebay.model.text import lasting_logger

_logger = lasting_logger("forebay.worker")

#: Values of these types do their work later, or never.
_NOT_RUN: Final = (
    Awaitable,
    asyncio.Future,
    concurrent.futures.Future,
    types.GeneratorType,
    types.AsyncGeneratorType,
    map,
    filter,
)

_OUTCOMES: Final = typing.get_args(Outcome)

#: The types of steps, which each attempt of a flow asks for again; of functions that live.
_step_types: Final[weakref.WeakKeyDictionary[Any, Any]] = weakref.WeakKeyDictionary()

#: The functions of steps that a warning has named.
_warned: Final[set[tuple[str | None, str]]] = set()
_WARNED_MOST: Final = 1_000


def ran(result: Any, kind: str, *, step: str | None = None) -> Any:
    """Return what a handler returned, if its work is done; also look at elements of a list.

    Args:
        result: what it returned.
        kind: of the job.
        step: None: it is the handler's; else that of the function of this step.

    Raises:
        TypeError: it returned a coroutine, generator, task or future, or a list of them. The job
            must not be done: nothing of it has run.
    """
    if result is None:
        return None
    for cls in {type(result), *(map(type, result) if type(result) in (list, tuple) else ())}:
        if _is_not_run(cls):
            for each in (result, *(result if isinstance(result, list | tuple) else ())):
                if isinstance(each, types.CoroutineType | types.GeneratorType):
                    each.close()  # Python would warn that it was never awaited.
            who = "handler" if step is None else "function"
            what = f"handler of kind {kind}" if step is None else f"function of step {step!r}"
            message = (
                f"the {what} returned {_named(cls)}, of which nothing need have run."
                f" Declare the {who} with async def and await it, or wait for it inside it."
            )
            raise TypeError(message)
    return result


@lru_cache(maxsize=1024)
def _is_not_run(cls: Any) -> bool:
    return issubclass(cls, _NOT_RUN)


def _named(cls: type) -> str:
    return f"{'an' if cls.__name__[0].lower() in 'aeiou' else 'a'} {cls.__name__}"


def gives_coroutine(function: Callable[..., Any]) -> bool:
    """Return whether a call of this, or of what it wraps, gives a coroutine.

    A plain wrapper around a coroutine function usually returns its coroutine: run as a plain
    function, it would be done without running.
    """
    call = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(innermost(function))


def result_type(function: Callable[..., Any], kind: str) -> Any:
    """Return the declared type of what a handler returns, without outcomes.

    Any if none is declared.

    Raises:
        ConfigError: the annotation cannot be resolved.
    """
    annotation = inspect.signature(function).return_annotation
    if annotation is inspect.Signature.empty:
        return Any
    hint = resolved_or_refused(
        annotation,
        function,
        f"kind {kind}: its return type",
        "cannot be resolved",
        hint="Import the type at run time, at module level; or pass as_type to result().",
    )
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    others = [part for part in typing.get_args(hint) if part not in _OUTCOMES]
    return reduce(or_, others) if others else None


def step_type(function: Callable[..., Any], name: str) -> Any:
    """Return the declared type of what a step returns; Any if none is declared.

    Any also if JSON cannot be decoded to the declared type: a warning says so, once for a function.
    """
    key = getattr(function, "__func__", function)
    try:
        return _step_types[key]
    except (KeyError, TypeError):
        pass
    try:
        found = result_type(function, name)
        check_decodable(found, f"step {name}: the return type of its function")
    except ConfigError as error:
        found = Any
        # A function within a handler is a new one each time.
        who = (getattr(key, "__module__", None), getattr(key, "__qualname__", name))
        if who not in _warned and len(_warned) < _WARNED_MOST:
            _warned.add(who)
            _logger.warning("%s. Its results are decoded without a type", error)
    except (TypeError, ValueError):  # It tells no signature, as many built-in functions.
        found = Any
    with contextlib.suppress(TypeError):  # It has no hash, or no weak reference.
        _step_types[key] = found
    return found


def decode_result(text: str, as_type: Any) -> Any:
    """Return a result from its JSON text, in a type.

    Raises:
        ConfigError: the type has no JSON form.
        ValueError: the result is of another type.
    """
    return check_decodable(as_type, "as_type")(text)


def check_decodable(as_type: Any, where: str) -> Callable[[str], Any]:
    """Return what decodes JSON to a type.

    Args:
        as_type: the type.
        where: what has the type, for the error.

    Raises:
        ConfigError: it has no JSON form.
    """
    try:
        return _known_decoder(as_type, where)
    except TypeError:  # It cannot be a key, such as an Annotated with a list.
        return _decoder(as_type, where)


def _decoder(as_type: Any, where: str) -> Callable[[str], Any]:
    check = value_check(as_type, where)
    if check.adapter is not None:
        return partial(check.adapter.validate_json, strict=True)
    return msgspec.json.Decoder(check.hint).decode


#: Each attempt of a flow decodes the results of all its steps.
_known_decoder: Final = lru_cache(maxsize=512)(_decoder)
