"""The record of an exception: bounded and valid UTF-8 for every exception.

Handlers raise anything: messages of megabytes, a ``__str__`` that raises, circular chains, text
that is not UTF-8. Recording the error must not fail, because that would turn one failed job into a
failed settlement of its whole batch.
"""

from __future__ import annotations

import traceback
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from forebay._dataclass import dataclass
from forebay.errors import ForebayError
from forebay.model.text import bounded_middle, bounded_text
from forebay.policy.cause import frames_of, is_own, package_of, place_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

FunctionT = TypeVar("FunctionT", bound="Callable[..., Any]")

TYPE_BYTES_MAX: Final = 256
MESSAGE_BYTES_MAX: Final = 4096
TRACEBACK_BYTES_MAX: Final = 16_384

_PACKAGE: Final = "forebay"
_CHAIN_MAX: Final = 8
_GROUP_MAX: Final = 4
_NOTES_MAX: Final = 8
_FRAMES_MAX: Final = 40
_CAUSE: Final = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT: Final = "\nDuring handling of the above exception, another exception occurred:\n\n"

#: The code of the functions that call handlers.
_CALL_SITES: set[CodeType] = set()


def calls_handlers(function: FunctionT) -> FunctionT:
    """Declare that a function calls handlers: a traceback is shown from the frame after it."""
    _CALL_SITES.add(function.__code__)
    return function


def is_call_site(code: CodeType) -> bool:
    """Whether this is the code of a function that calls handlers."""
    return code in _CALL_SITES


def user_traceback(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback from the handler on; all of it if no handler was called.

    The frames before the handler are this library's, and the same for each error.
    """
    current = trace
    while current is not None and current.tb_frame.f_code not in _CALL_SITES:
        current = current.tb_next
    while current is not None and current.tb_frame.f_code in _CALL_SITES:
        current = current.tb_next
    return trace if current is None else current


def shown_traceback(exception: BaseException, *, is_detail: bool = False) -> TracebackType | None:
    """Return the part of an exception's traceback that people see.

    An error of this library stands for what the application has called: below the application's
    line there are no frames of this library, which are the same for each error.

    Args:
        exception: the exception.
        is_detail: it is a cause or a member of another one, which has the place: without a frame of
            the application none is shown.
    """
    trace = user_traceback(exception.__traceback__)
    is_ours = isinstance(exception, ForebayError)
    if trace is None or not (is_ours or is_detail):
        return trace
    package = package_of(trace.tb_frame)
    if trace is exception.__traceback__ and package == _PACKAGE:
        package = ""  # Not a handler.
    own = [is_own(frame, package) for frame in frames_of(trace)]
    if not any(own):
        return None if is_detail else trace
    return _without_library(trace, own) if is_ours and package != _PACKAGE else trace


def _without_library(trace: TracebackType, own: list[bool]) -> TracebackType | None:
    """Return a traceback without this library's frames, and without what these have called."""
    kept: list[TracebackType] = []
    current: TracebackType | None = trace
    last = len(own) - own[::-1].index(True)
    for number in range(len(own)):
        assert current is not None
        is_library = package_of(current.tb_frame) == _PACKAGE
        if is_library and number >= last:
            break
        if not is_library:
            kept.append(current)
        current = current.tb_next
    made: TracebackType | None = None
    for each in reversed(kept):
        made = TracebackType(made, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return made


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """One entry of a job's error history."""

    type: str
    message: str
    traceback: str
    place: str | None = None


def describe_exception(exception: BaseException) -> ErrorRecord:
    r"""Return the record of an exception. Never raises.

    Returns:
        The type with its module, at most 256 bytes; the message, at most 4 kB; the traceback from
        the handler on, with causes, notes and members of groups, at most 16 kB, cut in the middle;
        the place, see ``place_of``.

    >>> record = describe_exception(ValueError("no such user: 42"))
    >>> record.type, record.message, record.traceback
    ('ValueError', 'no such user: 42', 'ValueError: no such user: 42\n')
    """
    name, message = _type_name(exception), _message(exception)
    try:
        text = bounded_middle(_chain_text(exception), bytes_max=TRACEBACK_BYTES_MAX)
    except BaseException:
        text = f"{name}: {message}\n"
    try:
        place = place_of(user_traceback(exception.__traceback__))
    except BaseException:
        place = None
    return ErrorRecord(type=name, message=message, traceback=text, place=place)


def _type_name(exception: BaseException) -> str:
    cls = type(exception)
    try:
        module, name = cls.__module__, cls.__qualname__
        text = name if module == "builtins" else f"{module}.{name}"
        return bounded_text(text, bytes_max=TYPE_BYTES_MAX)
    except BaseException:
        return "Exception"


def _message(exception: BaseException) -> str:
    # Even a SystemExit from a __str__ only means that the message cannot be read.
    try:
        return bounded_text(str.__str__(str(exception)), bytes_max=MESSAGE_BYTES_MAX)
    except BaseException as error:
        return f"<message unreadable: {_type_name(error)}>"


def _chain_text(exception: BaseException) -> str:
    links: list[tuple[BaseException, str]] = []
    seen: set[int] = set()
    current: BaseException | None = exception
    joint = ""
    while current is not None and id(current) not in seen and len(links) < _CHAIN_MAX:
        seen.add(id(current))
        links.append((current, joint))
        if current.__cause__ is not None:
            current, joint = current.__cause__, _CAUSE
        elif not current.__suppress_context__:
            current, joint = current.__context__, _CONTEXT
        else:
            current = None
    is_ours = isinstance(exception, ForebayError)
    return "".join(
        _one_text(link, is_detail=is_ours and link is not exception) + joint
        for link, joint in reversed(links)
    )


def _one_text(exception: BaseException, *, is_detail: bool) -> str:
    lines = [_frames_text(exception, is_detail=is_detail)]
    message = _message(exception)
    name = _type_name(exception)
    lines.append(f"{name}: {message}\n" if message else f"{name}\n")
    lines.extend(f"{note}\n" for note in _notes(exception))
    if isinstance(exception, BaseExceptionGroup):
        lines.extend(_members_text(exception))
    return "".join(lines)


def _frames_text(exception: BaseException, *, is_detail: bool) -> str:
    try:
        trace = shown_traceback(exception, is_detail=is_detail)
        if trace is None:
            return ""
        # The last frames matter most; a recursion has a thousand frames.
        last: deque[TracebackType] = deque(maxlen=_FRAMES_MAX)
        while trace is not None:
            last.append(trace)
            trace = trace.tb_next
        text = "".join(traceback.format_tb(last[0]))
    except BaseException as error:
        return f"<traceback unreadable: {_type_name(error)}>\n"
    return f"Traceback (most recent call last):\n{text}"


def _notes(exception: BaseException) -> list[str]:
    try:
        notes = list(getattr(exception, "__notes__", ()))[:_NOTES_MAX]
        return [bounded_text(note, bytes_max=1024) for note in notes if isinstance(note, str)]
    except BaseException:
        return []


def _member_text(member: BaseException) -> str:
    is_ours = isinstance(member, ForebayError)
    text = f"{_type_name(member)}: {_message(member)}\n{_frames_text(member, is_detail=is_ours)}"
    cause = member.__cause__
    if not is_ours or cause is None:
        return text
    frames = _frames_text(cause, is_detail=True)
    return f"{text}  caused by {_type_name(cause)}: {_message(cause)}\n{frames}"


def _members_text(group: BaseExceptionGroup[BaseException]) -> list[str]:
    try:
        members = list(group.exceptions)
    except BaseException:
        return []
    texts = [
        f"  [{index}] {_member_text(member)}" for index, member in enumerate(members[:_GROUP_MAX])
    ]
    if len(members) > _GROUP_MAX:
        texts.append(f"  [... {len(members) - _GROUP_MAX} more]\n")
    return texts
