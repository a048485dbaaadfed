"""Keys made from the arguments of a job: ``unique_by``, ``limit_by`` and ``order_by``.

SQL makes the same keys from the same declaration: ``forebay._declared_keys()``.
"""

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
from forebay.model import Idempotent, JobOptions, Once, Unique
from forebay.model.unique import KEY_CHARACTERS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forebay.arguments._signature import Arguments

#: The option that each declaration makes.
_OPTION: Final = {"limit_by": "limit_key", "order_by": "ordering_key", "unique_by": "unique"}


@dataclass(frozen=True, slots=True)
class DeclaredKeys:
    """Which arguments make the keys of each job of a kind.

    The JSON of the arguments makes the key, so that equal arguments give equal keys however they
    were passed; an argument that was left out counts as its default. A long key is replaced by its
    hash. A unique key begins with the kind. Jobs of all kinds of a queue share the other keys, so
    these are the argument itself where one argument is declared, and the JSON of a list else.

    Attributes:
        kind: the name of the kind.
        by: the names of arguments, by ``limit_by``, ``order_by`` and ``unique_by``.
        mode: returns the uniqueness mode for a key.
        defaults: the JSON values of arguments that may be left out.
    """

    kind: str
    by: Mapping[str, tuple[str, ...]]
    mode: Callable[[str], Unique] = Once
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def options(self, args: str, chosen: JobOptions, *, with_unique: bool = True) -> JobOptions:
        """Return options with the keys of a job; those that are chosen stay.

        Args:
            args: the arguments as JSON text.
            chosen: the options of the job.
            with_unique: False: no unique key is made.

        >>> keys = DeclaredKeys("crawl", {"limit_by": ("host",), "unique_by": ("host", "page")},
        ...                     defaults={"page": 1})
        >>> options = keys.options('{"host":"a.org"}', JobOptions())
        >>> options.limit_key, options.unique.key
        ('a.org', 'crawl:["a.org",1]')
        """
        given = canonical(args, self.defaults)
        changes: dict[str, Any] = {}
        for by, names in self.by.items():
            option = _OPTION[by]
            if option == "unique":
                if with_unique:
                    changes[option] = self.mode(self._unique_key(given, names))
            elif getattr(chosen, option) is None:
                changes[option] = _plain_key([given.get(name) for name in names])
        return chosen.merged(**changes)

    def as_json(self) -> dict[str, Any]:
        """Return the form that the database keeps for producers in SQL."""
        used = {name for names in self.by.values() for name in names}
        form: dict[str, Any] = {by: list(names) for by, names in self.by.items()}
        form["defaults"] = {name: self.defaults[name] for name in used if name in self.defaults}
        if "unique_by" in self.by:
            example = self.mode("key")
            form["mode"] = example.mode
            form["more"] = {k: v for k, v in example.as_json().items() if k != example.mode}
        return form

    def _unique_key(self, given: Mapping[str, Any], names: Sequence[str]) -> str:
        key = f"{self.kind}:{_text([given.get(name) for name in names])}"
        return key if _USABLE.fullmatch(key) else _hashed(key)


@dataclass(frozen=True, slots=True)
class KindOptions:
    """What an app declares for the jobs of a kind that are enqueued by name.

    Attributes:
        options: their options.
        expires_in_seconds: they expire this time after they were due; None: not declared.
        keys: which arguments make their keys; None: none.
    """

    options: JobOptions = field(default_factory=JobOptions)
    expires_in_seconds: float | None = None
    keys: DeclaredKeys | None = None


def declared_keys(
    kind: str,
    arguments: Arguments,
    by: Mapping[str, object],
    mode: object = None,
) -> DeclaredKeys | None:
    """Return how the keys of a kind are made; None if none is declared.

    Args:
        kind: the name of the kind.
        arguments: its arguments.
        by: the names of arguments, by the name of the declaration.
        mode: ``unique`` of the declaration; None for ``Once``.

    Raises:
        ConfigError: a name is not an argument of the handler, or the mode is not one.
    """
    names = {each: _checked_names(kind, arguments, each, by[each]) for each in by}
    given = {each: found for each, found in names.items() if found}
    if mode is not None and "unique_by" not in given:
        raise ConfigError(
            f"kind {kind}: unique",
            "has no effect without unique_by",
            hint='unique_by=("document_id",) names the arguments that make the key.',
        )
    if not given:
        return None
    chosen = _checked_mode(kind, Once if mode is None else mode)
    return DeclaredKeys(kind, given, chosen, arguments.defaults())


def _checked_names(kind: str, arguments: Arguments, by: str, names: object) -> tuple[str, ...]:
    where = f"kind {kind}: {by}"
    if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            where, f"must be names of arguments, not {shown(names)}", hint=f'{by}=("document_id",)'
        )
    known = arguments.names
    for name in names:
        if known is not None and name not in known:
            raise ConfigError(
                where,
                f"has {shown(name)}, which is not an argument",
                hint=f"Arguments: {', '.join(known) or 'none'}.",
            )
    if len(set(names)) < len(names):
        raise ConfigError(where, f"names an argument twice: {', '.join(names)}")
    return tuple(names)


def _checked_mode(kind: str, mode: object) -> Callable[[str], Unique]:
    where = f"kind {kind}: unique"
    if not callable(mode):
        raise ConfigError(
            where,
            f"must be a uniqueness mode without its key, not {shown(mode)}",
            hint="unique=Coalesce, or unique=lambda key: Debounce(key, wait=10)",
        )
    try:
        example = mode("key")
    except (TypeError, InvalidJob) as error:
        raise ConfigError(
            where,
            f"makes no uniqueness mode from a key: {error}",
            hint="unique=lambda key: Debounce(key, wait=10)",
        ) from None
    if not isinstance(example, Unique):
        raise ConfigError(where, f"makes a {type(example).__name__}, not a uniqueness mode")
    return mode


def canonical(args: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a job in a form in which the same ones are equal.

    An argument that was left out is its default, a whole number is an integer, and a time with an
    offset is its instant. Keys from arguments and ``Idempotent`` compare this form.

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


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _hashed(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


_USABLE: Final = re.compile(rf"[^\x00-\x1f\x7f-\x9f]{{1,{KEY_CHARACTERS_MAX}}}")


def _plain_key(values: list[Any]) -> str | None:
    """Return a limit key or an ordering key; None if all arguments are null."""
    if all(value is None for value in values):
        return None
    only = values[0] if len(values) == 1 else values
    text = _text(only)
    key = only if isinstance(only, str) else text
    return key if _USABLE.fullmatch(key) else _hashed(text)
