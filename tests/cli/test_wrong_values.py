"""Every argument and option of every command is given wrong values: the answer is an exit code and
plain English, never a traceback. The commands are those of the generated reference.
"""

import io
from collections.abc import Iterator
from random import Random

import pytest

from forebay.cli._main import program
from tools.write_cli_reference import commands

WRONG = [
    "", "x", "-1", "0", "1.5", "nan", "inf", "99999999999999999999", "a\nb", "{}", "[1]", '{"a":',
    "2030-01-01", "x=y", "1d", "é", "--", "x" * 3000,
]  # fmt: skip

#: Commands that run until they are stopped. Their values have tests of their own.
ENDLESS = {"console", "deliver", "demo", "dev", "drain", "guard", "top", "worker"}


def calls() -> Iterator[list[str]]:
    """Yield command lines: each argument and option in turn has each wrong value."""
    for name, command in commands(program):
        words = name.split()[1:]
        if words[0] in ENDLESS:
            continue
        needed = [
            each for each in command.params if each.param_type_name == "argument" and each.required
        ]
        good = ["1" for _ in needed]
        for place in range(len(needed)):
            for wrong in WRONG:
                given = [*good]
                given[place] = wrong
                yield [*words, "--", *given]
        for option in command.params:
            if option.param_type_name == "option" and not (option.hidden or option.is_flag):
                for wrong in WRONG:
                    yield [*words, *good, f"{option.opts[0]}={wrong}"]
        yield [*words, *good, "--bogus"]


def problem(call, arguments) -> str | None:
    """Run a command; return what is wrong with its answer."""
    shown = " ".join(each[:40] for each in arguments)
    try:
        answer = call(*arguments)
    except BaseException as error:
        return f"{shown!r}: {type(error).__name__}: {error}"[:300]
    if answer.code not in (0, 1, 2, 3):
        return f"{shown!r}: exit code {answer.code}"
    if "Traceback" in answer.err:
        return f"{shown!r}: {answer.err[-200:]}"
    # forebay status tells on stdout what is wrong, also with the connection.
    is_told = answer.err.startswith("error: ") or (arguments[0] == "status" and answer.out)
    if answer.code in (2, 3) and not is_told:
        return f"{shown!r}: exit code {answer.code}, and says {answer.err[:200]!r}"
    return None


@pytest.mark.parametrize(
    "count", [12, pytest.param(800, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_wrong_values_are_answered_in_plain_english(forebay, count, seed, monkeypatch):
    """
    Some of these command lines, at random, on a database: what cannot be wrong usage is tried.
    """
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    every = list(calls())
    assert len(every) > 8_000
    some = Random(seed).sample(every, count)
    found = [wrong for each in some if (wrong := problem(forebay, each)) is not None]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "arguments", [["jobs", "export", "--file", "x" * 3000], ["exports", "run", "1", "x" * 3000]]
)
def test_a_path_that_no_file_can_have_is_refused(forebay, arguments):
    """
    The operating system refuses even to look.
    """
    answer = forebay(*arguments)
    assert answer.code == 2
    assert answer.err.startswith("error: ")
