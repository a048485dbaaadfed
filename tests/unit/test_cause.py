"""The cause of a failure: kind, class of the exception, and the innermost function of the
application.
"""

import json

import pytest

from forebay.policy.cause import cause_of, place_of, without_values
from forebay.policy.error_text import describe_exception


def parse(text):
    return json.loads(text)


def handler(text):
    return parse(text)


def other_handler(text):
    return json.loads(text)


def nested(text):
    def inner():
        raise ValueError(text)

    inner()


def place(function, *args):
    """Return the place of what a handler raises.

    The caller's frame is cut as the worker cuts its own.
    """
    try:
        function(*args)
    except Exception as error:
        return place_of(error.__traceback__.tb_next)
    raise AssertionError


def test_the_place_is_the_innermost_function_of_the_application():
    """
    Not that of the library that raised, nor a line: the same mistake has the same place after an
    edit.
    """
    assert place(handler, "{") == "tests.unit.test_cause.parse"
    assert place(handler, "[1, ") == "tests.unit.test_cause.parse"
    assert place(other_handler, "{") == "tests.unit.test_cause.other_handler"
    assert place(nested, "x") == "tests.unit.test_cause.nested.<locals>.inner"


def test_an_installed_application_has_places_too():
    """
    The package of the handler is the application's, wherever it is; a record of an exception
    without traceback has no place.
    """
    assert place(json.loads, "{").startswith("json.decoder.")
    assert describe_exception(ValueError("never raised")).place is None


class Hostile(dict):
    def get(self, *_):
        raise SystemExit


def test_a_record_is_made_whatever_the_frames_hold():
    """
    A module may have replaced its name.
    """
    names = {"__name__": 7}
    exec(compile("def f(): raise ValueError('x')", "odd.py", "exec"), names)
    assert place(names["f"]) == "odd.f"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("no user 42", "no user …"),
        ("no user 'ann'", "no user '…'"),
        ("id 8c2a1f7e-aa00-4b1e-9a3e-0123456789ab is gone", "id … is gone"),
        ("at 2026-11-22T10:00:00+00:00 in 0x7f00", "at … in …"),
        ("plain text\nsecond line 7", "plain text"),
        ("", ""),
    ],
)
def test_messages_lose_what_differs_from_job_to_job(message, expected):
    """
    Errors without a place are grouped by what is left.
    """
    assert without_values(message) == expected


def test_a_long_message_is_normalised_in_bounded_time():
    """
    Messages may have four thousand characters, of which the first count.
    """
    for text in ("'" * 4000, "a" * 4000, "1" * 4000, "a1." * 2000):
        assert len(without_values(text)) <= 600


def test_a_cause_is_ten_digits_of_its_parts():
    """
    Any text, also what UTF-8 cannot encode.
    """
    assert cause_of("k", "ValueError", "m.f") != cause_of("k", "ValueError", "m.g")
    assert len(cause_of("k", "\ud800")) == 10
