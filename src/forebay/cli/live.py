"""The console of screens that change while they are shown: top, the demo, the progress of
measurements.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.segment import Segment

from forebay.model.text import replaced_controls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import ConsoleOptions, RenderableType

#: Width where the output is not a terminal.
_WIDTH = 160


class SafeConsole(Console):
    """A console that shows a replacement character for control characters, as the other console
    does.

    Rich passes some of them on, and a terminal would obey them. Its styles are not affected,
    because it adds these sequences later.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the segments of a renderable."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(replaced_controls(segment.text), segment.style)


def live_console(*, stderr: bool = False) -> Console:
    """Return a console. Lines are cut only at the width of a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _WIDTH
    # No markup: a tag or a message may contain brackets.
    return SafeConsole(stderr=stderr, highlight=False, markup=False, width=width)
