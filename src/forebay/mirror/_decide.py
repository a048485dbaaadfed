"""What is to be done about one item: pure rules on what both stores were seen to have.

The target is read before the source. Versions of the source only grow, so a copy that is right is right as of a time
after its job began; and a copy that is *newer* than the source says that the source went back, or was read stale.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from forebay.mirror._model import Document, Gone, Seen

if TYPE_CHECKING:
    from collections.abc import Callable


class Verdict(StrEnum):
    """What one look at an item says. The values are the names under which they are counted."""

    FORCED = "forced"
    DELETE = "deleted"
    GONE = "gone"
    MISSING = "missing"
    DIFFERENT = "different"
    AHEAD = "ahead"
    EQUAL = "up_to_date"


def decide(
    entry: Document | Gone,
    seen: Seen | None,
    is_right: Callable[[Document, Seen], bool],
    *,
    force: bool = False,
) -> Verdict:
    """Return what to do about an item; the first rule that fits.

    Args:
        entry: the item in the source.
        seen: its copy; None when there is none.
        is_right: the compare rule.
        force: the copy is to be written whatever it looks like.

    >>> same = lambda document, seen: document.version == seen.version
    >>> [str(decide(Document(1, 5, {}), seen, same)) for seen in (None, Seen(4), Seen(5), Seen(6))]
    ['missing', 'different', 'up_to_date', 'ahead']
    >>> [str(decide(Gone(1), seen, same)) for seen in (None, Seen(4))]
    ['gone', 'deleted']
    """
    if force:
        return Verdict.FORCED
    if isinstance(entry, Gone):
        return Verdict.GONE if seen is None else Verdict.DELETE
    if seen is None:
        return Verdict.MISSING
    if is_right(entry, seen):
        return Verdict.EQUAL
    return Verdict.AHEAD if seen.version > entry.version else Verdict.DIFFERENT


def is_proved(
    entry: Document | Gone, seen: Seen | None, is_right: Callable[[Document, Seen], bool]
) -> bool:
    """Whether a look at the target after a write shows that it holds.

    A newer copy does too: it was written by somebody who read the source after us, and its own job goes on.
    """
    if isinstance(entry, Gone) or seen is None:
        return isinstance(entry, Gone) and seen is None
    return is_right(entry, seen) or seen.version > entry.version
