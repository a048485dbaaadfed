"""The part of the asynchronous client for alerts."""

from __future__ import annotations

from forebay.client._async.base import AsyncClientBase
from forebay.db.drivers import AsyncConnection
from forebay.model.alerts import Alert, AlertChange
from forebay.watch import operations
from forebay.watch.rules import alerts_of_all


class AsyncAlerts(AsyncClientBase):
    """Read and check the alerts, and set their thresholds."""

    async def alerts(
        self, *, with_pending: bool = False, conn: AsyncConnection | None = None
    ) -> list[Alert]:
        """Return the alerts that fire now, as the last check recorded them.

        If the last check is more than three minutes old, the first one is the alert ``unchecked``.

        Args:
            with_pending: also conditions that have not lasted long enough; their ``fired_at`` is
                None.
            conn: the connection to use.
        """
        return await self._run(conn, operations.alerts(with_pending=with_pending))

    async def check_alerts(self, *, conn: AsyncConnection | None = None) -> list[AlertChange]:
        """Check the alerts now, record the result, and return what fired or cleared with it.

        The leader of maintenance does it every 15 to 60 seconds. An alert fires when its condition
        has lasted for its time.

        Args:
            conn: the connection to use.
        """
        data = await self._run(conn, operations.measurements())
        return await self._run(conn, operations.record_alerts(alerts_of_all(data)))

    async def drop_ballast(self, *, conn: AsyncConnection | None = None) -> int:
        """Give back the room that the checks of the alerts keep for a full disk.

        Return the number of bytes, about 16 MB; 0 if nothing is kept. It is enough to pause, to
        cancel and to purge. The checks fill it again from an hour later on.

        Args:
            conn: the connection to use; the room is free when its transaction has committed.

        Raises:
            DatabaseUnavailable: another session uses the room, such as a dump; with a connection
                of the caller, the driver's own error.
        """
        return await self._run(conn, operations.drop_ballast())

    async def set_threshold(
        self,
        name: str,
        value: float | None,
        *,
        queue: str | None = None,
        tag: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> float | None:
        """Set a threshold of the alerts.

        Return its value before, None for the next more general one.

        Args:
            name: of the threshold; docs/howto/monitoring.md lists them.
            value: from 0; None: the next more general one holds again.
            queue: only of this queue.
            tag: only of dead letters with this tag.
            conn: the connection to use.

        Raises:
            ConfigError: no rule has this threshold, or the value is refused.
        """
        return await self._run(conn, operations.set_threshold(name, value, queue=queue, tag=tag))
