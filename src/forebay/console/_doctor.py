"""The checks of the doctor for all viewers: bounded, one run at a time, and with their age."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from forebay.doctor import Finding, Level
from forebay.doctor.examine import compare, examine
from forebay.errors import DatabaseUnavailable, ForebayError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.console._source import Source

#: The checks run again after this time, in seconds, while a person looks.
_SECONDS: Final = 10.0

#: What is this old, in seconds, is not shown: the page waits for a new run.
_OLD_SECONDS: Final = 60.0

#: Runs take at most this part of the time.
_SHARE: Final = 0.1

#: The schema is compared again after this time, in seconds: it reads the whole catalog.
_COMPARED_SECONDS: Final = 600.0

#: Until the schema was compared for the first time.
_COMPARING: Final = Finding("objects", Level.OK, "is being compared with the migrations")


class Examined(NamedTuple):
    """What the doctor found.

    Attributes:
        found: the findings, the worst first.
        began_at: when the run began, by the monotonic clock of this process.
        compared_at: when the comparison of the schema that it shows began; None: there was none.
    """

    found: Sequence[Finding]
    began_at: float
    compared_at: float | None

    @property
    def age_seconds(self) -> float:
        """The age of the run."""
        return time.monotonic() - self.began_at

    @property
    def compared_seconds(self) -> float | None:
        """The age of the comparison of the schema; None: there is none."""
        return None if self.compared_at is None else time.monotonic() - self.compared_at


class Doctor:
    """Runs the checks of a database for all who look.

    What ``forebay doctor`` counts job by job is judged from the sample of the overview here, and
    the comparison of the schema is made beside the page and kept. Nothing runs without a viewer.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = asyncio.Lock()
        self._last: Examined | None = None
        self._took_seconds = 0.0
        #: The findings of the last comparison, and when it began.
        self._objects: tuple[Sequence[Finding], float] | None = None

    async def examined(self) -> Examined:
        """Return the findings, at most a minute old; older than ten seconds, they are renewed.

        Raises:
            DatabaseUnavailable: there are none so young, and the database cannot be reached.
        """
        if self._objects is None or time.monotonic() - self._objects[1] >= _COMPARED_SECONDS:
            self._source.renew("objects", self._compare)
        last = self._last
        age = self._age
        if last is None or age >= _OLD_SECONDS:
            return await self._examine()
        if age >= max(_SECONDS, self._took_seconds / _SHARE) or self._is_compared_since(last):
            self._source.renew("doctor", self._examine)
        return last

    @property
    def _age(self) -> float:
        """The age of the last run; infinite if a person has acted since."""
        return self._source.age_of(-1e9 if self._last is None else self._last.began_at)

    def _is_compared_since(self, last: Examined) -> bool:
        return self._objects is not None and self._objects[1] != last.compared_at

    async def _examine(self) -> Examined:
        async with self._lock:
            last = self._last
            if last is not None and self._age < _SECONDS and not self._is_compared_since(last):
                return last
            try:
                await self._source.overview()
            except DatabaseUnavailable:
                raise
            except ForebayError:
                pass  # no schema, for example: the checks say it
            began = time.monotonic()
            objects, compared_at = self._objects or ([_COMPARING], None)
            found = await examine(
                self._source.address, data=self._source.data or None, kept={"objects": objects}
            )
            found.sort(key=lambda one: one.level.rank)
            self._took_seconds = time.monotonic() - began
            self._last = Examined(found, began, compared_at)
            return self._last

    async def _compare(self) -> None:
        began = time.monotonic()
        self._objects = (await compare(self._source.address), began)
