"""Unique keys made from the arguments of a job: ``@app.job(unique_by=("document_id",))``."""

from __future__ import annotations

import hashlib
import json
from dataclasses import field
from typing import TYPE_CHECKING, Any

from forebay._dataclass import dataclass
from forebay.errors import ConfigError, InvalidJob, shown
from forebay.model import Unique
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
        given = json.loads(args)
        values = [_normal(given.get(name, self.defaults.get(name))) for name in self.names]
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


def _normal(value: Any) -> Any:
    """Return a value with whole numbers as integers: 1 and 1.0 are the same argument."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_normal(each) for each in value]
    if isinstance(value, dict):
        return {name: _normal(each) for name, each in value.items()}
    return value
