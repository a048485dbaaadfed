"""What is kept of the answer of an HTTP endpoint: bounded, of any bytes, and without secrets."""

import base64
import html
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.sinks import Accepted, Rejected
from forebay.sinks._http_answer import answer_of, without
from forebay.sinks._http_client import Response

SECRET = 'ca/na"ry&é+ x'


def kept(body, *, status=200, is_cut=False, hidden=(), content_type="text/plain", shows=True):
    response = Response(status, None, body, content_type=content_type, is_cut=is_cut)
    return answer_of(response, 0.12345, shows_body=shows, hidden=hidden)


def test_without_consent_only_status_and_time_are_kept():
    """What a receiver writes, also as the type, is for those who may see answers."""
    answer = kept(b"internal", shows=False)
    assert answer == Accepted()
    assert answer.response == "HTTP status 200"
    assert answer.details == {"status": 200, "seconds": 0.123}
    assert kept(b"internal", status=400, shows=False) == Rejected("HTTP status 400")


@pytest.mark.parametrize(
    ("body", "is_cut", "text", "plain"),
    [
        (b"ok", False, "ok", None),
        (b"", False, "", None),
        ("Süd\n\x01".encode(), False, "Süd\n\x01", None),
        ("Süd".encode()[:2], True, "S", None),  # a character that the bound has cut
        ("Süd".encode()[:2], False, None, "Süd".encode()[:2]),
        (b"a\0b", False, None, b"a\0b"),
        (b"\xff\xfe\0", True, None, b"\xff\xfe\0"),
        (b"\xed\xa0\x80", False, None, b"\xed\xa0\x80"),  # a surrogate
        (b"x" * 9000, False, "x" * 8192, None),
    ],
)
def test_a_body_is_text_or_base64(body, is_cut, text, plain):
    details = kept(body, is_cut=is_cut).details
    assert details["body"] == text
    found = details["body_base64"]
    assert (found and base64.b64decode(found)) == plain
    assert details["is_cut"] is (is_cut or len(body) > 8192)
    assert "\0" not in json.dumps(details)
    assert len(json.dumps(details)) < 65_536


def test_control_characters_stay_within_what_results_may_have():
    """By default: as JSON each is six characters."""
    assert len(json.dumps(kept(b"\x01" * 1_000_000).details)) < 65_536
    assert len(json.dumps(kept(b"\xff" * 1_000_000).details)) < 65_536


@pytest.mark.parametrize("form", [
    SECRET, json.dumps(SECRET), json.dumps(SECRET, ensure_ascii=False), html.escape(SECRET),
    quote(SECRET), quote(SECRET, safe=""), quote_plus(SECRET),
    json.dumps(SECRET).replace("/", "\\/"),
])  # fmt: skip
def test_a_secret_that_the_receiver_echoes_is_in_nothing_that_is_kept(form):
    """Nor in errors, nor in the type."""
    form = form.strip('"')
    body = f"you sent {form}, and {form}".encode()
    for answer in (
        kept(body, hidden=[SECRET], content_type=form),
        kept(body, status=422, hidden=[SECRET]),
    ):
        assert "***" in str(answer.reason if isinstance(answer, Rejected) else answer.details)
        assert form not in f"{answer} {getattr(answer, 'details', '')}"


def test_a_secret_that_the_bound_cuts_leaves_no_beginning():
    for length in range(1, len(SECRET.encode())):
        body = b"sent: " + SECRET.encode()[:length]
        assert kept(body, is_cut=True, hidden=[SECRET]).details["body"] == "sent: "
    long = b"x" * 8190 + SECRET.encode()
    assert kept(long, hidden=[SECRET]).details["body"] == "x" * 8190


@given(st.binary(max_size=40), st.text(min_size=1, max_size=8), st.integers(0, 60))
def test_whatever_the_body_nothing_hidden_is_left(body, secret, end):
    """Wherever it stands and wherever the bound is."""
    secret = f"<{secret}>".encode(errors="replace").decode()
    whole = body + secret.encode() + body
    found = without(whole[:end], [secret], is_cut=end < len(whole))
    assert secret.encode() not in found
    assert not found.endswith(b"<") or end >= len(whole)


def test_an_encoded_secret_of_two_bytes_a_character():
    body = SECRET.encode("utf-16-le")
    assert base64.b64decode(kept(b"\xff\xfe" + body, hidden=[SECRET]).details["body_base64"]) == (
        b"\xff\xfe***"
    )
