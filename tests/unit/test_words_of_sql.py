"""Words that SQL functions return and Python reads: each side knows those of the other.

A word that only SQL knows ends the command that shows it.
"""

import re
from typing import get_args

import pytest

from forebay.model.archive import FoundAs
from forebay.model.change import ChangeAnswer
from forebay.model.endpoints import Breaker
from forebay.model.keys import KeyReason, KeySort
from forebay.model.status import CancelAnswer
from forebay.model.subjects import SubjectState
from forebay.ops.protocol import FlushStatus, OutcomeName
from tests.support.source_texts import sql_functions

SOURCE = re.sub(r"--.*", "", sql_functions())

#: A word where it is returned, also in dynamic SQL.
RETURNED = re.compile(
    r"(?:\bthen|\belse|:=|\breturn|\bselect|\(values|\bj\),)\s+'{1,2}([a-z][a-z_ -]+)'"
)


def bodies(*names: str) -> str:
    """Return the sources of functions."""
    found = []
    for name in names:
        start = SOURCE.index(f"create function forebay.{name}(")
        found.append(SOURCE[start : SOURCE.index("\n$$;", start)])
    return "".join(found)


def returned(*functions: str, but: str = "") -> set[str]:
    """Return the words that functions return, but some that are for another purpose."""
    return set(RETURNED.findall(bodies(*functions))) - set(but.split(", "))


def found_as() -> set[str]:
    """Return the words of where_is(): names of columns become words."""
    source = bodies("where_is")
    (names,) = re.findall(r"v_names constant text\[\] := array\[(.*?)\]", source)
    columns = {name.replace("_", " ") for name in re.findall(r"'(\w+)'", names)}
    others = set(re.findall(r"then '(\w+)'", bodies("_found_as")))
    return columns | others | set(re.findall(r"select [\w.:]+, '(\w+)', true", source))


@pytest.mark.parametrize(
    ("python", "sql"),
    [
        (FoundAs, found_as()),
        (CancelAnswer, returned("cancel")),
        (ChangeAnswer, returned("change_jobs", "_matching", but="cancel, true, claimed")),
        (KeyReason, returned("_show_keys", but=", ".join(get_args(KeySort)))),
        (SubjectState, returned("_subject_view", but="dropped")),
        (Breaker, returned("endpoints")),
        (FlushStatus, returned("settle_v1")),
        (OutcomeName, set(re.findall(r"One of (.*?)\.", bodies("_outcome_code"))[0].split(", "))),
    ],
    ids=["found as", "cancel", "change", "key", "subject", "breaker", "flush", "outcome"],
)  # fmt: skip
def test_sql_and_python_know_the_same_words(python, sql):
    assert set(get_args(python)) == sql
