"""The answer of an HTTP endpoint: what it means for a message, and what is kept of it.

The receiver wrote the body: any bytes, and perhaps an echo of our secrets. What is shown or kept is
bounded, and has none of them.
"""

from __future__ import annotations

import base64
import codecs
import html
import json
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, quote_plus

from forebay.sinks._contract import Accepted, Answer, EndpointGone, Rejected, TryLater
from forebay.sinks._retry_after import retry_after_seconds

if TYPE_CHECKING:
    from forebay.sinks._http_client import Response

#: Statuses below 500 after which a message is sent again.
_LATER: Final = (408, 425, 429)

#: Statuses with which Retry-After is about the endpoint, not about one message.
_THROTTLES: Final = (429, 503)

#: How much of an answer appears in a reason, and of its type in what is kept.
_SHOWN_CHARACTERS: Final = 200

#: How much of a body is kept: as JSON it is at most six times as long, which is less than results
#: may have by default.
_KEPT_BYTES: Final = 8192


def answer_of(
    response: Response, seconds: float, *, shows_body: bool, hidden: Collection[str]
) -> Answer:
    """Return the answer about a message.

    Args:
        response: of the endpoint.
        seconds: how long the request took, with redirects.
        shows_body: whether its body may be seen.
        hidden: texts that nothing may contain.
    """
    body, is_cut = b"", False
    if shows_body:
        is_cut = response.is_cut or len(response.body) > _KEPT_BYTES
        body = without(response.body[:_KEPT_BYTES], hidden, is_cut=is_cut)
    status = response.status
    reason = f"HTTP status {status}"
    if body:
        reason += f": {_shown(body)}"
    if 200 <= status <= 299:
        details: dict[str, Any] = {"status": status, "seconds": round(seconds, 3)}
        if shows_body:
            content_type = (response.content_type or "").encode(errors="replace")
            text = _text(body, is_cut=is_cut)
            details |= {
                "content_type": _shown(without(content_type, hidden)) or None,
                "body": text,
                "body_base64": base64.b64encode(body).decode() if text is None else None,
                "is_cut": is_cut,
            }
        return Accepted(response=reason, details=details)
    if status == 410:
        return EndpointGone(reason)
    if 400 <= status <= 499 and status not in _LATER:
        return Rejected(reason)
    after = retry_after_seconds(response.retry_after, datetime.now(UTC))
    return TryLater(reason, after, throttles=status in _THROTTLES and after is not None)


def without(body: bytes, hidden: Collection[str], *, is_cut: bool = False) -> bytes:
    """Return a body without some texts, in the forms in which receivers echo what they got.

    Of a body that was cut, the end is left out if a text may begin there.

    >>> without(b"key=a%2Fb", ["a/b"]), without(b"key=canar", ["canary"], is_cut=True)
    (b'key=***', b'key=')
    """
    forms = sorted({form for each in hidden if each for form in _forms(each)}, key=len)
    for form in reversed(forms):
        body = body.replace(form, b"***")
    if is_cut:
        for form in forms:
            for length in range(min(len(form) - 1, len(body)), 0, -1):
                if body.endswith(form[:length]):
                    body = body[:-length]
                    break
    return body


def _forms(text: str) -> Iterator[bytes]:
    as_json = json.dumps(text)[1:-1]
    for form in (
        text,
        as_json,
        json.dumps(text, ensure_ascii=False)[1:-1],
        as_json.replace("/", "\\/"),
        quote(text, safe="", errors="replace"),
        quote(text, errors="replace"),
        quote_plus(text, errors="replace"),
        html.escape(text),
    ):
        yield form.encode(errors="replace")
    for encoding in ("utf-16-le", "utf-16-be"):
        yield text.encode(encoding, errors="replace")


def _text(body: bytes, *, is_cut: bool) -> str | None:
    """Return a body as text; None: JSON cannot carry it as text."""
    try:
        # A character that the bound has cut is left out.
        text = codecs.getincrementaldecoder("utf-8")().decode(body, final=not is_cut)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _shown(body: bytes) -> str:
    text = body.decode(errors="replace")
    text = "".join(one if one.isprintable() else " " for one in text)
    return text[:_SHOWN_CHARACTERS]
