"""``Exporter``: the metrics of a database as text, and as an ASGI or WSGI application."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from forebay._error import is_database_error
from forebay.errors import ForebayError
from forebay.in_threads import in_thread
from forebay.model.doors import declaring_door
from forebay.model.text import logger
from forebay.watch import operations
from forebay.watch.backlogs import count_each_backlog
from forebay.watch.metrics._check import (
    CALL_SECONDS,
    check_session,
    new_session,
)
from forebay.watch.metrics._families import VALUES_MAX, families_of, folded_of, text_of
from forebay.watch.problems import problems

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, MutableMapping

    from forebay.db.session import Session
    from forebay.watch.metrics._families import Family

log = logger("forebay.metrics")

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

#: The alerts are checked by a scrape if the last check is this old; then the leader of maintenance
#: is away.
_CHECK_SECONDS: Final = 90.0
#: A check that is younger has written, so writes succeed; after an older one a scrape tries.
_WRITE_SECONDS: Final = 20.0


class Exporter:
    """Reads a database and returns its metrics as text.

    It guarantees that the database is read at most once in ``min_seconds``, by one caller at a
    time, however many scrape, and that an unreachable database is the metric ``forebay_up 0`` and
    no error. An object is an ASGI application; ``wsgi`` is a WSGI application. They answer every
    path. Leaves nothing behind.

    Args:
        dsn: the database.
        values_max: most values of a label whose values users choose, in each metric; the rest is
            added up under ``other``.
        min_seconds: a text is returned again for this time.
        process: returns metrics of this process, which are added.
    """

    @declaring_door
    def __init__(
        self,
        dsn: str | Callable[[], str],
        *,
        values_max: int = VALUES_MAX,
        min_seconds: float = 1.0,
        process: Callable[[], Iterable[Family]] = tuple,
    ) -> None:
        self._dsn = dsn
        self._values_max = max(values_max, 2)
        self._min_seconds = min_seconds
        self._process = process
        self._lock = threading.Lock()
        self._read_at = -min_seconds
        self._text = ""
        self._is_up = False
        self._counting: threading.Thread | None = None

    def text(self) -> str:
        """Return the metrics. In a thread that runs an event loop call ``atext``."""
        with self._lock:
            if time.monotonic() - self._read_at >= self._min_seconds:
                self._text = asyncio.run(self._database())
                self._read_at = time.monotonic()
            return self._text + text_of(self._process(), self._values_max).lstrip("\n")

    @property
    def is_up(self) -> bool:
        """Whether the database could be read when the last text was made."""
        return self._is_up

    async def atext(self) -> str:
        """Return the metrics; the database is read in a thread."""
        return await in_thread(self.text)

    def _count_backlogs(self) -> None:
        """Count, beside the scrapes, what may have made a read too long: the next one continues
        from the counts.
        """
        if self._counting is not None and self._counting.is_alive():
            return
        dsn = self._dsn if isinstance(self._dsn, str) else self._dsn()

        def count() -> None:
            try:
                asyncio.run(count_each_backlog(dsn))
            except ForebayError as error:
                log.warning("backlogs were not counted: %s", error)

        self._counting = threading.Thread(target=count, name="forebay-counts", daemon=True)
        self._counting.start()

    async def _database(self) -> str:
        began_at = time.monotonic()
        data: dict[str, Any] | None = None
        alerts: list[Any] = []
        session = new_session(
            self._dsn if isinstance(self._dsn, str) else self._dsn(), "forebay metrics"
        )
        try:
            async with asyncio.timeout(CALL_SECONDS):
                data, alerts = await _read(session)
        except Exception as error:
            if not (isinstance(error, (ForebayError, TimeoutError)) or is_database_error(error)):
                raise
            log.warning("no metrics of the database: %s", str(error) or "it did not answer in time")
            if not isinstance(error, ForebayError):
                self._count_backlogs()
        finally:
            await session.close()
        self._is_up = data is not None
        families = families_of(data, alerts, time.monotonic() - began_at)
        families.append(folded_of(families, self._values_max))
        return text_of(families, self._values_max)

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Answer a request: the ASGI application."""
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        body = (await self.atext()).encode()
        headers = [
            (b"content-type", CONTENT_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send(
            {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body}
        )

    def wsgi(self, _: Any, start_response: Callable[..., Any]) -> list[bytes]:
        """Answer a request: the WSGI application."""
        body = self.text().encode()
        start_response(
            "200 OK", [("Content-Type", CONTENT_TYPE), ("Content-Length", str(len(body)))]
        )
        return [body]


async def _read(session: Session) -> tuple[dict[str, Any], list[Any]]:
    data = await session.run(operations.measurements())
    age = data["at"] - (data["checked_at"] or 0.0)
    if age > _WRITE_SECONDS:
        data["write_failed"] = await session.run(operations.probe_write())
    if age > _CHECK_SECONDS or data.get("write_failed") is not None:
        return data, (await check_session(session, data)).alerts
    return data, [one for one in problems(data) if one.state != "pending"]
