"""What to do about one item: pure rules on the state of both stores.

The target is read before the source. Versions of the source only grow, so a copy that matches was
right at a time after its job began. A copy that is *newer* than the source means that the source
was set back, or that the read was stale.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from forebay.mirror._model import Document, Gone, Seen

if TYPE_CHECKING:
    from collections.abc import Callable


class Verdict(StrEnum):
    """The verdict on one item. The values are the names of its counters."""

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
    """Return the verdict of the first rule that applies.

    Args:
        entry: the item in the source.
        seen: its copy; None when there is none.
        is_right: the compare rule.
        force: write the copy regardless of its state.

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
    """Whether a read of the target after a write proves the write.

    A newer copy proves it too: another pass read the source later and wrote it, and that pass has a
    job to prove it.
    """
    if isinstance(entry, Gone) or seen is None:
        return isinstance(entry, Gone) and seen is None
    return is_right(entry, seen) or seen.version > entry.version
