"""Dataclasses whose methods are generated on first use.

``dataclasses.dataclass`` compiles up to seven methods for each class, about half a millisecond.
This library has more than a hundred such classes and a program uses a few of them, so that this was
half of the time of ``import forebay``. This ``dataclass`` processes the fields at once, by the
standard library, and generates ``__init__``, ``__repr__``, ``__eq__`` and ``__hash__`` each when it
is first called. From then on the class has exactly the method that the standard library makes.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - type checkers know this one
else:

    def dataclass(cls: Any = None, /, **options: Any) -> Any:
        """Return the class as a dataclass; the options are those of ``dataclasses.dataclass``."""
        return _decorated(cls, **options) if cls else partial(_decorated, **options)


#: Where a class has no docstring the standard library puts its signature there, which is slow.
_SOME_DOC = "-"


def _decorated(
    cls: Any,
    *,
    repr: bool = True,  # noqa: A002 - as in the standard library
    eq: bool = True,
    frozen: bool = False,
    slots: bool = False,
    kw_only: bool = False,
) -> Any:
    own = dict(vars(cls))
    if cls.__doc__ is None:
        cls.__doc__ = _SOME_DOC
    bases = [vars(base).get("__dataclass_params__") for base in cls.__mro__[1:]]
    # The standard library insists that subclasses of frozen classes are frozen.
    is_below_frozen = any(base.frozen for base in bases if base is not None)
    made: Any = dataclasses.dataclass(
        init=False, repr=False, eq=False, frozen=is_below_frozen and frozen, slots=slots,
        kw_only=kw_only
    )(cls)  # fmt: skip
    if own.get("__doc__") is None:
        made.__doc__ = None
    _postpone(made, own, repr=repr, eq=eq, frozen=frozen)
    if frozen:
        _freeze(made, slots=slots)
    return made


def _postpone(made: Any, own: Mapping[str, Any], *, repr: bool, eq: bool, frozen: bool) -> None:  # noqa: A002 - as above
    """Give a class methods that replace themselves by the generated ones when one of them is
    first called.
    """
    wanted = {"__init__": True, "__repr__": repr, "__eq__": eq}
    names = [name for name, is_wanted in wanted.items() if is_wanted and name not in own]
    # Python sets __hash__ to None in a class that defines __eq__.
    if eq and (own.get("__hash__", None) is None and ("__hash__" not in own or "__eq__" in own)):
        if frozen:
            names.append("__hash__")
        else:
            made.__hash__ = None
    parameters = made.__dataclass_params__
    # The standard library reads them when a subclass is made.
    parameters.init, parameters.repr, parameters.eq, parameters.frozen = True, repr, eq, frozen

    def generate(name: str) -> None:
        inherited = {
            "__dataclass_fields__": made.__dataclass_fields__,
            "__dataclass_params__": parameters,
        }
        contents = {
            "__module__": made.__module__,
            "__qualname__": made.__qualname__,
            "__doc__": _SOME_DOC,
        }
        if hasattr(made, "__post_init__"):
            contents["__post_init__"] = made.__post_init__
        # Not a subclass of the class, which would see it.
        donor: Any = type(made.__name__, (type("Fields", (), inherited),), contents)
        dataclasses.dataclass(
            init=name == "__init__",
            repr=name == "__repr__",
            eq=name in {"__eq__", "__hash__"},
            frozen=frozen,
        )(donor)
        setattr(made, name, vars(donor)[name])

    for name in names:
        setattr(made, name, _first_call(made, name, generate))
    if "__init__" in names:
        made.__signature__ = _Signature(partial(generate, "__init__"))


def _first_call(made: Any, name: str, generate: Callable[[str], None]) -> Any:
    def method(self: Any, *args: Any, **named: Any) -> Any:
        if vars(made)[name] is method:
            generate(name)
        return vars(made)[name](self, *args, **named)

    method.__name__ = name
    method.__qualname__ = f"{made.__qualname__}.{name}"
    return method


class _Signature:
    """Makes ``inspect.signature`` see the generated constructor: it is generated, and the
    attribute does not exist.
    """

    def __init__(self, generate: Callable[[], None]) -> None:
        self._generate = generate

    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            self._generate()
        raise AttributeError("__signature__")


def _freeze(made: Any, *, slots: bool) -> None:
    fields = made.__dataclass_fields__

    def refuse_set(self: Any, name: str, value: Any) -> None:
        if type(self) is made or name in fields:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(made, self).__setattr__(name, value)

    def refuse_delete(self: Any, name: str) -> None:
        if type(self) is made or name in fields:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(made, self).__delattr__(name)

    made.__setattr__ = refuse_set
    made.__delattr__ = refuse_delete
    if slots:
        # Without them copy and pickle would assign to the fields.
        made.__getstate__ = _state
        made.__setstate__ = _set_state


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
