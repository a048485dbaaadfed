"""Unique keys made from the arguments of a job: ``@app.job(unique_by=("document_id",))``."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from dataclasses import field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from forebay._dataclass import dataclass
from forebay.errors import ConfigError, InvalidJob, shown
from forebay.model import Idempotent, Unique
from forebay.model.unique import KEY_CHARACTERS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forebay.arguments.kinds import Kind


@dataclass(frozen=True, slots=True)
class UniqueBy:
    """Makes the uniqueness mode of each job of a kind.

    The key has the kind and the JSON of the named arguments, so that equal arguments give equal
    keys however they were passed; an argument that was left out counts as its default. A long key
    is replaced by its hash.

    Attributes:
        kind: the name of the kind.
        names: the arguments.
        mode: returns the uniqueness mode for a key.
        defaults: the JSON values of arguments that may be left out.
    """

    kind: str
    names: tuple[str, ...]
    mode: Callable[[str], Unique]
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def of(self, args: str) -> Unique:
        """Return the uniqueness mode of a job with these arguments, which are JSON text.

        >>> from forebay.model import Once
        >>> by = UniqueBy("index", ("id", "locale"), Once, {"locale": "en"})
        >>> by.of('{"title":"A","id":7}').key
        'index:[7,"en"]'
        """
        given = canonical(args, self.defaults)
        values = [given.get(name) for name in self.names]
        text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        key = f"{self.kind}:{text}"
        if len(key) > KEY_CHARACTERS_MAX:
            key = f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"
        return self.mode(key)


def unique_by(kind: Kind, names: Sequence[str], mode: object) -> UniqueBy | None:
    """Return how the keys of a kind are made; None without names.

    Raises:
        ConfigError: a name is not an argument of the handler, or the mode is not one.
    """
    where = f"kind {kind.name}: unique_by"
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            where,
            f"must be names of arguments, not {shown(names)}",
            hint='unique_by=("document_id",)',
        )
    if not names:
        return None
    known = kind.arguments.names
    for name in names:
        if known is not None and name not in known:
            raise ConfigError(
                where,
                f"has {shown(name)}, which is not an argument",
                hint=f"Arguments: {', '.join(known) or 'none'}.",
            )
    if not callable(mode):
        raise ConfigError(
            f"kind {kind.name}: unique",
            f"must be a uniqueness mode without its key, not {shown(mode)}",
            hint="unique=Coalesce, or unique=lambda key: Debounce(key, wait=10)",
        )
    found = UniqueBy(kind.name, tuple(names), mode, kind.arguments.defaults())
    try:
        example = mode("key")
    except (TypeError, InvalidJob) as error:
        raise ConfigError(
            f"kind {kind.name}: unique",
            f"makes no uniqueness mode from a key: {error}",
            hint="unique=lambda key: Debounce(key, wait=10)",
        ) from None
    if not isinstance(example, Unique):
        raise ConfigError(
            f"kind {kind.name}: unique", f"makes a {type(example).__name__}, not a uniqueness mode"
        )
    return found


def canonical(args: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a job in a form in which the same ones are equal.

    An argument that was left out is its default, a whole number is an integer, and a time with an
    offset is its instant. ``unique_by`` and ``Idempotent`` compare this form.

    Args:
        args: as JSON text.
        defaults: the JSON values of arguments that may be left out.

    >>> canonical('{"at":"2026-07-01T09:00:00+02:00","n":1.0}', {"b": 2})
    {'b': 2, 'at': '2026-07-01T07:00:00Z', 'n': 1}
    """
    return {name: _normal(value) for name, value in {**defaults, **json.loads(args)}.items()}


def as_request(unique: Idempotent, args: str, defaults: Mapping[str, Any]) -> Idempotent:
    """Return the mode with the canonical arguments; without those that are their defaults.

    So a producer in SQL that leaves them out enqueues the same request.
    """
    usual = canonical("{}", defaults)
    given = canonical(args, {})
    missing = object()
    request = {name: value for name, value in given.items() if usual.get(name, missing) != value}
    return replace(unique, request=request)


_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


def _normal(value: Any) -> Any:
    if isinstance(value, str) and _INSTANT.fullmatch(value):
        with contextlib.suppress(ValueError, OverflowError):
            return datetime.fromisoformat(value).astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_normal(each) for each in value]
    if isinstance(value, dict):
        return {name: _normal(each) for name, each in value.items()}
    return value
