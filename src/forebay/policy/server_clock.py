"""Whether the clock of the server runs evenly, as a worker sees it.

Times in the database are read from the server's clock, and that clock can be set. Who concludes
from them that another worker is silent must have seen the clock run evenly for that long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from datetime import datetime

#: The server's clock may run apart from the own one by this much while it is observed; more is a
#: step.
STEP_SECONDS: Final = 1.0

#: An answer that took longer than this does not tell the time of the server well enough.
_ANSWER_SECONDS_MAX: Final = 1.0


class ServerClock:
    """Compares readings of the server's clock with the monotonic clock of this process."""

    def __init__(self) -> None:
        self._offset: float | None = None
        self._even_since = 0.0

    def observe(self, reading: datetime, sent_at: float, answered_at: float) -> float | None:
        """Record a reading; return for how many seconds the clock has run evenly.

        Args:
            reading: the time of the server.
            sent_at: when the question was sent, in monotonic seconds.
            answered_at: when the answer was there.

        Returns:
            The seconds; 0 after a step or at the first reading; None if the answer took too long to
            tell.

        >>> from datetime import datetime, timedelta, timezone
        >>> noon = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
        >>> clock = ServerClock()
        >>> clock.observe(noon, 100.0, 100.2)
        0.0
        >>> clock.observe(noon + timedelta(seconds=9), 109.0, 109.2)
        9.0
        >>> clock.observe(noon + timedelta(hours=1), 110.0, 110.2)
        0.0
        """
        if answered_at - sent_at > _ANSWER_SECONDS_MAX:
            return None
        middle = (sent_at + answered_at) / 2
        offset = reading.timestamp() - middle
        if self._offset is None or abs(offset - self._offset) > STEP_SECONDS:
            self._offset = offset
            self._even_since = middle
        return round(middle - self._even_since, 6)
