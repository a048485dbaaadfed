"""Hints for the usual mistakes at an enqueue: a forgotten connection, and the verbs of other
libraries.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from forebay.db.drivers import given, resembles_connection
from forebay.errors import ConfigError, InvalidJob, WrongConnection
from forebay.model.checks import hint_for

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


#: The options of ``@app.job``.
_JOB_OPTIONS: Final = (
    "breaker", "cpu_seconds", "executor", "expires_in", "holds_key", "keep_result", "limit_by",
    "max_attempts", "memory_bytes", "name", "on_dead", "on_done", "order_by", "priority", "queue",
    "retry", "soft_timeout", "tag", "timeout", "transaction", "unique", "unique_by",
)  # fmt: skip


def refuse_unknown_options(options: Mapping[str, Any]) -> None:
    """Refuse options of a declaration that do not exist; name what does the same.

    Raises:
        ConfigError: an option is unknown.
    """
    for option in options:
        if option not in _JOB_OPTIONS:
            raise ConfigError(
                f"@app.job: {option}",
                "is not an option",
                hint=hint_for(option, _JOB_OPTIONS),
            )


def missing_attribute(name: str, attribute: str) -> AttributeError:
    """Return the error for an attribute that a handler does not have.

    It names the call that does the same.
    """
    instead = _INSTEAD.get(attribute)
    hint = f"; use {instead.format(name)}" if instead else ""
    return AttributeError(f"handler {name} has no attribute {attribute!r}{hint}")
