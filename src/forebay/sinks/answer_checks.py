"""Checks of what a sink returned: a defect of a sink must use no attempt of a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from forebay.errors import SinkUnavailable, shown
from forebay.model import Retry
from forebay.sinks._contract import Accepted, EndpointGone, Rejected, TryLater

if TYPE_CHECKING:
    from collections.abc import Sequence

_ANSWERS: Final = (Accepted, TryLater, Rejected, EndpointGone, SinkUnavailable)


def check_answers(answers: Sequence[Any]) -> None:
    """Refuse values that are not answers.

    Raises:
        TypeError: an answer is of another type.
        ValueError: a time to wait is refused.
    """
    for answer in answers:
        if not isinstance(answer, _ANSWERS):
            message = f"send() of a sink returned {shown(answer)}, which is not an answer"
            raise TypeError(message)
        if isinstance(answer, TryLater) and answer.after is not None:
            Retry(answer.after)


def check_count(call: str, answers: Any, messages: Sequence[Any]) -> None:
    """Refuse what is not a list with one entry for each message.

    Raises:
        TypeError: it is another value, or has another number of entries.
    """
    if not isinstance(answers, list | tuple) or len(answers) != len(messages):
        message = (
            f"{call}() of a sink must return a list with one entry for each of {len(messages)} "
            f"messages"
        )
        raise TypeError(message)
