# ruff: noqa: PLE0307, PT017 - exceptions as they should not be.
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.model.text import bounded_middle, bounded_text
from forebay.policy.error_text import (
    MESSAGE_BYTES_MAX,
    TRACEBACK_BYTES_MAX,
    TYPE_BYTES_MAX,
    describe_exception,
)


class Unreadable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Exiting(Exception):
    def __str__(self):
        raise SystemExit(1)


class NotText(Exception):
    def __str__(self):
        return 7


class HostileText(str):
    __slots__ = ()

    def replace(self, *_):
        raise RuntimeError

    encode = __getitem__ = __str__ = replace


class Evasive(Exception):
    @property
    def __cause__(self):
        raise RuntimeError

    @property
    def __notes__(self):
        raise RuntimeError


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


def chain_of(length):
    error = ValueError("first")
    for number in range(length):
        later = ValueError(f"link {number}")
        later.__cause__ = error
        error = later
    return error


def endless_chain():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def deep_recursion():
    def recurse():
        recurse()

    try:
        recurse()
    except RecursionError as error:
        return error


def noted(*notes):
    error = ValueError("noted")
    error.__notes__ = list(notes)
    return error


HOSTILE = {
    "ten megabytes": lambda: ValueError("x" * 10_000_000),
    "str raises": Unreadable,
    "str exits": Exiting,
    "str is no text": NotText,
    "text is hostile": lambda: ValueError(HostileText("x")),
    "attributes raise": Evasive,
    "endless chain": endless_chain,
    "long chain": lambda: chain_of(100_000),
    "deep recursion": deep_recursion,
    "lone surrogates": lambda: ValueError("\ud800" * 10_000),
    "nul": lambda: ValueError("a\x00b"),
    "system exit": lambda: SystemExit(3),
    "keyboard interrupt": KeyboardInterrupt,
    "generator exit": GeneratorExit,
    "odd notes": lambda: noted(1, "x" * 10**6, "\ud800", "\x00"),
    "large group": lambda: ExceptionGroup("many", [chain_of(5) for _ in range(1000)]),
    "long name": type("N" * 10_000, (Exception,), {}),
    "no unicode": lambda: UnicodeDecodeError("utf-8", b"\xff" * 10**6, 0, 1, "bad"),
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_exception_leaves_a_bounded_storable_record(make):
    """
    Whatever a handler raises, its error can be kept: bounded, valid UTF-8, without NUL.
    """
    record = describe_exception(raised(make()))

    for text, limit in (
        (record.type, TYPE_BYTES_MAX),
        (record.message, MESSAGE_BYTES_MAX),
        (record.traceback, TRACEBACK_BYTES_MAX),
    ):
        assert len(text.encode("utf-8")) <= limit
        assert "\x00" not in text


def test_the_record_of_an_ordinary_error_tells_where_and_why():
    """
    The innermost frame, the cause, the notes and the message are all there.
    """
    try:
        try:
            raise KeyError("user 42")
        except KeyError as error:
            error.add_note("while loading")
            raise RuntimeError("cannot send") from error
    except RuntimeError as error:
        record = describe_exception(error)

    assert (record.type, record.message) == ("RuntimeError", "cannot send")
    for part in (
        "KeyError: 'user 42'",
        "while loading",
        "direct cause",
        "RuntimeError: cannot send",
        'raise RuntimeError("cannot send")',
        __file__,
    ):
        assert part in record.traceback
    assert record.traceback.index("KeyError") < record.traceback.index("RuntimeError: cannot")


def test_a_traceback_has_no_values_of_variables():
    """
    What a handler had in its hands is not stored with its error: lines of code are, values are not.
    """

    def handler(card: str) -> None:
        copies = [card, {"card": card}]
        raise RuntimeError(f"{len(copies)} charges failed")

    try:
        handler("4929" + "1234")
    except RuntimeError as error:
        record = describe_exception(error)
    assert "charges failed" in record.traceback
    assert "49291234" not in f"{record}"


def test_a_suppressed_context_stays_suppressed():
    """
    ``raise ... from None`` hides what the author hid.
    """
    try:
        try:
            raise KeyError("secret")
        except KeyError:
            raise RuntimeError("public") from None
    except RuntimeError as error:
        assert "secret" not in describe_exception(error).traceback


def test_the_members_of_a_group_are_named():
    """
    A group without its members would say nothing.
    """
    record = describe_exception(ExceptionGroup("tasks", [ValueError("one"), OSError("two")]))

    assert "ValueError: one" in record.traceback
    assert "OSError: two" in record.traceback


@given(st.text(st.characters()), st.integers(20, 200))
def test_bounded_text_is_valid_and_not_longer_than_allowed(text, limit):
    """
    Any text, also with NUL and surrogates, fits and keeps its beginning.
    """
    kept = bounded_text(text, bytes_max=limit)

    assert len(kept.encode()) <= limit
    assert "\x00" not in kept
    assert text.startswith(kept.removesuffix(" [...]")) or "\\" in kept
    middle = bounded_middle(text * 10, bytes_max=limit)
    assert len(middle.encode()) <= limit


def test_short_clean_text_is_unchanged():
    """
    Nothing happens to ordinary text.
    """
    assert bounded_text("grüße 🎉", bytes_max=100) == "grüße 🎉"
    assert bounded_middle("grüße 🎉", bytes_max=100) == "grüße 🎉"


def test_describing_does_not_disturb_the_exception():
    """
    The handler's exception is as it was, and is not being handled any more.
    """
    error = raised(ValueError("x"))
    trace = error.__traceback__
    describe_exception(error)

    assert error.__traceback__ is trace
    assert error.__context__ is None
    assert sys.exc_info() == (None, None, None)
