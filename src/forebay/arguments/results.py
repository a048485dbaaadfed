"""The type of what a handler returns, and a kept result in a type."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any, Final

import msgspec

from forebay.arguments._signature import resolved_or_refused
from forebay.arguments._value_check import value_check
from forebay.model.outcome import Outcome

_OUTCOMES: Final = typing.get_args(Outcome)


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


def decode_result(text: str, as_type: Any) -> Any:
    """Return a result from its JSON text, in a type.

    Raises:
        ConfigError: the type has no JSON form.
        ValueError: the result is of another type.
    """
    check = value_check(as_type, "as_type")
    if check.adapter is not None:
        return check.adapter.validate_json(text, strict=True)
    return msgspec.json.decode(text, type=check.hint)
