"""Time that a test moves on: the database's clock, ahead of the real one.

All of Forebay's SQL reads one clock, ``forebay._now()``. The fixtures replace this function in
their databases, so that it adds what stands in the table ``forebay.test_clock``. A migration makes
neither, and nothing else in the library does: without ``install_clock`` there is no clock to move.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from forebay.db.drivers import run, run_async
from forebay.errors import ConfigError, shown
from forebay.model import checks
from forebay.model.doors import declaring_door
from forebay.ops.operation import Operation, nothing, scalar

if TYPE_CHECKING:
    from forebay.db.drivers import AsyncConnection, SyncConnection

_TEST_DATABASE: Final = re.compile(r"(^|[^a-z])tests?([^a-z]|$)")

_INSTALL: Final = Operation(
    """\
do $do$ begin
create table forebay.test_clock (ahead interval not null);
grant select on forebay.test_clock to public;
create or replace function forebay._now() returns timestamptz language sql volatile as $$
    select clock_timestamp() + coalesce((select sum(c.ahead) from forebay.test_clock c),
        interval '0')
$$;
end $do$""",
    nothing,
)


def install_clock(conn: SyncConnection) -> None:
    """Make the clock of a test database one that ``travel`` can move.

    Use it for databases that no fixture made.

    Args:
        conn: a connection of the schema's owner, of any library that an enqueue takes; commit it,
            or roll it back to undo this.

    Raises:
        ConfigError: ``test`` is not a word of the database's name: it may be one that workers use.
    """
    name = str(run(conn, _NAME))
    if _TEST_DATABASE.search(name.lower()) is None:
        raise ConfigError(
            "test clock",
            f"is refused: database {shown(name)} has no word `test` in its name",
            hint="Only the time of a test database may be moved, such as shop_test.",
        )
    if not run(conn, IS_INSTALLED):
        run(conn, _INSTALL)


@declaring_door
def travel(conn: SyncConnection, by: float | timedelta) -> datetime:
    """Move the time of the test database on; return its new time.

    Delays, retries, expiries, rates and retention follow. The move is part of the connection's
    transaction: others see it after the commit, and a rollback undoes it. ``datetime.now()`` is not
    changed.

    Args:
        conn: a connection to a database of the fixtures, or one with ``install_clock``.
        by: how far, in seconds or as a timedelta; below 0 moves back.

    Raises:
        ConfigError: the database has no test clock.
    """
    if not run(conn, IS_INSTALLED):
        raise no_clock()
    run(conn, moved(by))
    return run(conn, NOW)


@declaring_door
async def travel_async(conn: AsyncConnection, by: float | timedelta) -> datetime:
    """Do as ``travel``, on an asynchronous connection."""
    if not await run_async(conn, IS_INSTALLED):
        raise no_clock()
    await run_async(conn, moved(by))
    return await run_async(conn, NOW)


_NAME: Final = Operation("select current_database()::text", scalar)
#: Whether the database has a test clock.
IS_INSTALLED: Final = Operation("select to_regclass('forebay.test_clock') is not null", scalar)
#: The time of the database.
NOW: Final = Operation(
    "select extract(epoch from forebay._now())::double precision",
    lambda rows: datetime.fromtimestamp(float(scalar(rows)), tz=UTC),
)


def moved(by: float | timedelta) -> Operation[None]:
    """Return the call that moves the clock on."""
    seconds = by.total_seconds() if isinstance(by, timedelta) else by
    if seconds < 0:
        seconds = -checks.checked_seconds(-seconds, "by")
    else:
        seconds = checks.checked_seconds(seconds, "by")
    return Operation(
        "insert into forebay.test_clock (ahead)"
        " values (make_interval(secs => %(seconds)s::double precision)) returning 1",
        lambda _: None,
        {"seconds": seconds},
    )


def no_clock() -> ConfigError:
    """Return the error for a database whose clock cannot be moved."""
    return ConfigError(
        "test clock",
        "is missing in this database",
        hint="Call forebay.testing.install_clock(conn), in Django install_clock(connection) in"
        " setUp; databases of the fixtures of forebay.testing.plugin have one.",
    )
