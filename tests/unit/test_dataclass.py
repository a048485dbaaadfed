"""Dataclasses whose methods are generated on first use behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay._dataclass import dataclass as ours

OPTIONS: list[dict[str, Any]] = [
    {},
    {"frozen": True},
    {"slots": True},
    {"frozen": True, "slots": True, "kw_only": True},
    {"slots": True, "eq": False},
    {"repr": False, "eq": True},
]


def _made(decorator: Any, options: dict[str, Any]) -> Any:
    class Base:
        name: str
        size: int = 3
        tags: list[str] = dataclasses.field(default_factory=list)
        _hidden: int = dataclasses.field(default=0, repr=False, compare=False)

    base = decorator(**options)(Base)

    class Item(base):
        extra: str | None = None

        def __post_init__(self) -> None:
            object.__setattr__(self, "size", self.size + 1)

    return decorator(**options)(Item)


def _answer(call: Any, item: Any) -> Any:
    try:
        return call(item)
    except Exception as error:
        return type(error), str(error)


CALLS = [
    lambda item: inspect.signature(item),
    lambda item: item("a"),
    lambda item: re.sub("0x[0-9a-f]+", "", repr(item(name="a", extra="b"))).split("Item")[-1],
    lambda item: item(name="a") == item(name="a"),
    lambda item: item(name="a") == item(name="b"),
    lambda item: item(name="a") == 1,
    lambda item: isinstance(hash(item(name="a", tags=())), int),
    lambda item: setattr(item(name="a"), "name", "b"),
    lambda item: delattr(item(name="a"), "name"),
    lambda item: dataclasses.replace(item(name="a"), size=7).size,
    lambda item: dataclasses.asdict(copy.copy(item(name="a"))),
    lambda item: copy.deepcopy(item(name="a")) == item(name="a"),
    lambda item: item(nonsense=1),
    lambda item: [field.name for field in dataclasses.fields(item)],
    lambda item: item.__match_args__,
    lambda item: item.__doc__ is None or "(" in item.__doc__,
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_dataclass_answers_as_one_of_the_standard_library(options):
    """Each behaviour is asked of a new class, as the first use of it and as the second."""
    for call, _ in itertools.product(CALLS, range(2)):
        ours_made, theirs = _made(ours, options), _made(dataclasses.dataclass, options)
        for _ in range(2):
            found, expected = _answer(call, ours_made), _answer(call, theirs)
            if isinstance(expected, theirs):
                found, expected = dataclasses.asdict(found), dataclasses.asdict(expected)
            assert found == expected, inspect.getsource(call)


@ours(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0


def test_a_frozen_dataclass_with_slots_can_be_pickled():
    assert pickle.loads(pickle.dumps(Point(1, 2))) == Point(1, 2)


def test_a_subclass_by_the_standard_library_inherits_the_fields():
    @dataclasses.dataclass(frozen=True)
    class Named(Point):
        name: str = ""

    assert repr(Named(1, name="a")).endswith("Named(x=1, y=0, name='a')")
    with pytest.raises(TypeError, match="non-frozen"):
        dataclasses.dataclass(type("Loose", (Point,), {}))


def test_the_own_methods_of_a_class_stay():
    @ours(frozen=True)
    class Own:
        x: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    assert repr(Own(1)) == "own"
    assert Own(1) == Own(2)
    assert hash(Own(1)) == 7


def test_an_import_generates_no_methods():
    """The methods of the public options, which no program has used yet, are not compiled by the
    import.
    """
    code = """
import dataclasses
generated = []
create = dataclasses._create_fn
def counted(name, *args, **named):
    generated.append(name)
    return create(name, *args, **named)
dataclasses._create_fn = counted
import forebay, forebay.model.status, forebay.worker
at_import = generated.count("__init__")  # of the standard library and of psycopg
if at_import > 40: raise SystemExit(f"generated: {generated}")
forebay.JobOptions()
if generated.count("__init__") != at_import + 1:
    raise SystemExit("the constructor was there before")
"""
    if not hasattr(dataclasses, "_create_fn"):
        code = "import forebay"  # a later standard library compiles all methods of a class at once
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_all_dataclasses_of_the_library_are_of_this_sort():
    """One of the standard library costs half a millisecond of every start."""
    root = Path(forebay.__file__).parent
    pattern = re.compile(r"from dataclasses import .*\bdataclass\b|@dataclasses\.dataclass")
    found = [
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if path.name != "_dataclass.py" and pattern.search(path.read_text(encoding="utf-8"))
    ]
    assert not found
