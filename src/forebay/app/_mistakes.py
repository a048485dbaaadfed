"""Hints for the usual mistakes at an enqueue: a forgotten connection, and the verbs of other
libraries.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, TypeVar

from forebay.db.drivers import given, resembles_connection
from forebay.errors import InvalidJob, WrongConnection

M = TypeVar("M", bound=Callable[..., Any])

_IN_TRANSACTION: Final = "{0}.enqueue(conn, ...) in your transaction, or {0}.enqueue_now(...)"
_WITH_OPTIONS: Final = "{0}.using(delay=60, queue=...).enqueue(conn, ...)"

#: What to call instead of the verbs of other libraries.
_INSTEAD: Final = {
    "apply_async": _WITH_OPTIONS,
    "configure": _WITH_OPTIONS,
    "defer": _IN_TRANSACTION,
    "defer_async": (
        "await {0}.aenqueue(conn, ...) in your transaction, or await {0}.aenqueue_now(...)"
    ),
    "delay": _IN_TRANSACTION,
    "delay_on_commit": (
        "{0}.enqueue(conn, ...): the job exists if, and only if, the transaction commits"
    ),
    "kiq": "await {0}.aenqueue(conn, ...) in your transaction, or await {0}.aenqueue_now(...)",
    "perform_async": _IN_TRANSACTION,
    "s": "{0}.call(...) with {0}.enqueue_many(conn, ...)",
    "schedule": _WITH_OPTIONS,
    "send": _IN_TRANSACTION,
    "si": "{0}.call(...) with {0}.enqueue_many(conn, ...)",
}


def connection_first(method: M) -> M:
    """Return a method that refuses a call without a positional argument: its first one is a
    connection.
    """

    @functools.wraps(method)
    def checked(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not args:
            problem = "is missing: no argument was given by position"
            if "conn" in kwargs:
                problem = "is given by position, not as conn=..."
            raise WrongConnection(
                f"the connection {problem}",
                given=given(kwargs["conn"]) if "conn" in kwargs else None,
                hint=f"The connection comes first: {self.__name__}.{method.__name__}(conn, ...).",
            )
        return method(self, *args, **kwargs)

    return checked  # type: ignore[return-value]  # the same parameters and result


def likelier(
    error: InvalidJob | WrongConnection, conn: object, name: str
) -> InvalidJob | WrongConnection:
    """Return the error to report when an enqueue was refused: that of the connection, unless the
    first argument is one.
    """
    if resembles_connection(conn):
        return error
    hint = error.hint if isinstance(conn, str) and isinstance(error, WrongConnection) else None
    return WrongConnection(
        f"the first argument must be a connection, not {given(conn).removeprefix('builtins.')}",
        given=given(conn),
        hint=hint
        or (
            f"The connection comes first: {name}.enqueue(conn, ...). {name}.enqueue_now(...) "
            f"opens one and commits."
        ),
    )


def missing_attribute(name: str, attribute: str) -> AttributeError:
    """Return the error for an attribute that a handler does not have.

    It names the call that does the same.
    """
    instead = _INSTEAD.get(attribute)
    hint = f"; use {instead.format(name)}" if instead else ""
    return AttributeError(f"handler {name} has no attribute {attribute!r}{hint}")
