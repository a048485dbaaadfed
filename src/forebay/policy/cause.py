"""The cause of a failure, by which dead letters are grouped.

Two failures have one cause if kind, class of the exception and place are the same. The place is the
innermost function of the application in the traceback: not its line, which moves with each edit,
and not the functions of libraries below it, which are the same for many causes. An error without a
place, such as ``Dead`` with a reason, has its message instead, without what differs from job to
job. So do trackers of errors by default: Sentry groups by the frames of the application, else by
class and message, with numbers and identifiers replaced.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

from forebay.model.text import bounded_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType

PLACE_BYTES_MAX: Final = 200
_MESSAGE_CHARACTERS_MAX: Final = 300

#: Where modules are that no application wrote.
_LIBRARIES: Final = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {str(Path(__file__).parents[1]), "<"}
)
_INSTALLED: Final = re.compile(r"[/\\](?:site|dist)-packages[/\\]")

_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_NUMBER: Final = re.compile(r"\b(?=\w*\d)[\w.:+-]+")


def cause_of(kind: str, *parts: str) -> str:
    """Return the id of a cause: 10 hexadecimal digits. ``forebay._cause`` in SQL returns the same.

    >>> cause_of("send_welcome", "ValueError", "shop.mail.render")
    '64ece060b7'
    """
    text = "\n".join((kind, *parts))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:10]


def place_of(handler: TracebackType | None) -> str | None:
    """Return the innermost function of the application in a traceback that begins with the handler.

    The result is None without a traceback.

    The package of the handler belongs to the application, wherever it is installed.
    """
    if handler is None:
        return None
    own = handler.tb_frame
    for frame in frames_of(handler):
        if is_own(frame, package_of(handler.tb_frame)):
            own = frame
    return bounded_text(f"{_module_of(own)}.{own.f_code.co_qualname}", bytes_max=PLACE_BYTES_MAX)


def frames_of(trace: TracebackType | None) -> Iterator[FrameType]:
    """Return the frames of a traceback, the outermost first."""
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def package_of(frame: FrameType) -> str:
    """Return the package of a frame's module."""
    return _module_of(frame).partition(".")[0]


def is_own(frame: FrameType, package: str) -> bool:
    """Whether a frame is of the application, with the package of its handler."""
    return package_of(frame) == package or not _is_library(frame)


def without_values(message: str) -> str:
    """Return the first line of a message without what differs from job to job.

    >>> without_values("user 42 has no address 'a@example.com' in 0x7f00aa")
    "user … has no address '…' in …"
    """
    line = message.partition("\n")[0][:_MESSAGE_CHARACTERS_MAX]
    return _NUMBER.sub("…", _QUOTED.sub("'…'", line))


def _module_of(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__")
    if (
        not isinstance(name, str) or name == "__main__"
    ):  # The same module may be imported elsewhere.
        return Path(frame.f_code.co_filename).stem
    return name


def _is_library(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(_LIBRARIES) or bool(_INSTALLED.search(file))
