"""A holder: a session or other object that blocks clean-up of old rows and segments."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

from forebay._dataclass import dataclass
from forebay.policy.retry import human_duration

Sort = Literal[
    "session",
    "idle in transaction",
    "handler",
    "background process",
    "prepared transaction",
    "replication slot",
    "inactive replication slot",
    "standby",
]

#: Sorts of sessions that a person, or the guard, may end.
SESSIONS: Final = frozenset({"session", "idle in transaction", "handler"})

#: The prefix of ``application_name`` in a worker's session.
_OWN: Final = "forebay "


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A holder of a snapshot, an open transaction, or a lock on a segment.

    Attributes:
        sort: the sort of holder. ``handler`` is a transaction handler that is running in a worker.
        name: pid, global transaction id, name of a slot or standby.
        user: its role.
        application: its ``application_name``.
        address: where it connects from; None for a local socket.
        database: its database; None where that does not matter.
        here: its database is the current database.
        state: as the server reports it: active, idle in transaction, prepared, logical, physical.
        since: when its transaction began; None if unknown.
        seconds: the age of its transaction.
        age: transactions begun in the cluster since.
        xid: its transaction id, 64 bits; None when it has written nothing.
        catalog_only: it blocks clean-up of system catalogs only.
        segments: segments of the log that it has locked.
        locks: tables whose lock stops claims, enqueues or maintenance.
        may_end: this role has the right to end it.
        pid: the process id of a session.
        backend_start: when the session began.
        query: its last statement, shortened.
    """

    sort: Sort
    name: str
    user: str | None = None
    application: str | None = None
    address: str | None = None
    database: str | None = None
    here: bool = True
    state: str | None = None
    since: datetime | None = None
    seconds: float | None = None
    age: int = 0
    xid: int | None = None
    catalog_only: bool = False
    segments: tuple[int, ...] = ()
    locks: tuple[str, ...] = ()
    may_end: bool = False
    pid: int | None = None
    backend_start: datetime | None = None
    query: str | None = None

    @property
    def is_session(self) -> bool:
        """Whether it is a client session, which a signal can end."""
        return self.sort in SESSIONS

    @property
    def worker(self) -> str | None:
        """The worker whose session it is; None for other sessions."""
        if self.sort != "handler" or self.application is None:
            return None
        return self.application.removeprefix(_OWN)

    @property
    def who(self) -> str:
        """User, application, address, and the database if it is another one, as far as known."""
        parts = [self.user, None if self.worker else self.application, self.address]
        if self.is_replication:
            parts.append(self.state)
        if self.database and (not self.here or self.sort == "prepared transaction"):
            parts.append(f"database {self.database}")
        return ", ".join(part for part in parts if part)

    @property
    def is_replication(self) -> bool:
        """Whether it holds rows for another server."""
        return self.sort in {"replication slot", "inactive replication slot", "standby"}

    @property
    def remedy(self) -> str:
        """How to release what it holds."""
        match self.sort:
            case "prepared transaction":
                gid = self.name.replace("'", "''")
                return f"In its database: rollback prepared '{gid}'; or commit it."
            case "inactive replication slot":
                return (
                    "If its consumer will not return:"
                    f" select pg_drop_replication_slot('{self.name}');"
                )
            case "replication slot":
                return "Look for a long query on its standby, or a consumer that lags."
            case "standby":
                return "Look for a long query on the standby: `forebay guard --replica` names it."
            case "background process":
                return "It ends by itself. Find out what keeps it busy."
            case "handler":
                return f"Give the handler a timeout; now: select pg_terminate_backend({self.name});"
            case _:
                return f"Ask its owner; then: select pg_terminate_backend({self.name});"

    def __str__(self) -> str:
        """Return a description for people.

        >>> str(Holder(sort="session", name="4711", user="app", application="psql", seconds=10800))
        'session 4711 (app, psql) for 3 h'
        >>> str(Holder(sort="handler", name="7", user="app", application="forebay host:1:a0"))
        'handler of worker host:1:a0, session 7 (app)'
        """
        who = f" ({self.who})" if self.who else ""
        match self.sort:
            case "idle in transaction":
                label = f"session {self.name}{who}, idle in transaction"
            case "handler":
                label = f"handler of worker {self.worker}, session {self.name}{who}"
            case _:
                label = f"{self.sort} {self.name}{who}"
        if self.seconds is None:
            return label
        comma = "," if self.sort == "idle in transaction" else ""
        return f"{label}{comma} for {human_duration(max(0.0, self.seconds))}"


def described_ranges(numbers: tuple[int, ...]) -> str:
    """Return numbers as ranges.

    >>> described_ranges((3, 4, 5, 7))
    '3 to 5, 7'
    """
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]} to {p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)
