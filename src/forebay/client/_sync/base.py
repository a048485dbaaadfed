# Generated from src/forebay/client/_async/base.py by tools/async_to_sync.py. Do not edit.
"""What every part of the synchronous client needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from forebay.arguments.json_guard import encode_args
from forebay.arguments.keys import KindOptions
from forebay.client._address import address_of
from forebay.db.drivers import SyncConnection, run
from forebay.db.kept import run_kept
from forebay.model import JobOptionChanges, checks
from forebay.model.doors import Doors, declaring_door
from forebay.ops.enqueue import Call
from forebay.ops.events import actor
from forebay.ops.operation import Operation

T = TypeVar("T")


class ClientBase(Doors):
    """Runs operations on a connection of the application, or on a new one.

    The public methods of its subclasses are doors: each refuses arguments of a wrong type.
    """

    @declaring_door
    def __init__(
        self,
        dsn: str | Callable[[], str] | None = None,
        *,
        declared: Callable[[str], KindOptions | None] | None = None,
    ) -> None:
        self._dsn = dsn
        self._declared = declared or (lambda _kind: None)

    def _run(self, conn: SyncConnection | None, operation: Operation[T]) -> T:
        if conn is not None:
            named = actor()
            if named is not None:
                run(conn, named)
            return run(conn, operation)
        self._dsn = address_of(self._dsn)
        return run_kept(self._dsn, operation)

    def _call(self, kind: str, args: Mapping[str, Any] | None, options: JobOptionChanges) -> Call:
        declared = self._declared(checks.checked_name(kind, "kind")) or KindOptions()
        encoded = encode_args({} if args is None else args)
        chosen = declared.options.merged(**options)
        if declared.keys is not None:
            chosen = declared.keys.options(encoded, chosen, with_unique="unique" not in options)
        return Call(
            kind=kind,
            args=encoded,
            options=chosen,
            expires_in_seconds=(
                None if options.get("expires_at") is not None else declared.expires_in_seconds
            ),
            not_unique="unique" in options and chosen.unique is None,
        )

    def _in_queue(self, kind: str, options: JobOptionChanges) -> JobOptionChanges:
        """Return the options, with the queue of the kind if none is given."""
        declared = self._declared(kind)
        return options if declared is None else {"queue": declared.options.queue, **options}
