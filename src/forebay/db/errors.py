"""Translates the drivers' exceptions into those of Forebay.

``translate`` is for Forebay's connections: it also recognizes a lost connection. ``translate_ours``
is for a connection of the caller: there, only errors of Forebay's SQL functions are translated. A
serialization failure, a deadlock, a lost connection or a read-only transaction concerns the
caller's whole transaction. The caller's code that retries or gives up expects the driver's
exceptions, so these pass unchanged.

The caller's connection may belong to another driver, or to a library that wraps the driver's
exception. The server's message is found in all of them.
"""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg
import psycopg.errors

from forebay._dataclass import dataclass
from forebay.errors import (
    DatabaseUnavailable,
    ForebayError,
    InvalidJob,
    PermissionDenied,
    SchemaError,
    error_from_sqlstate,
)
from forebay.sql import required_version, roles_by_object

#: SQLSTATEs that mean: this connection or server is unusable; another may work.
#: PostgreSQL manual, appendix A. Class 08 is "connection exception".
_UNAVAILABLE: Final = frozenset(
    {
        "25006",  # read_only_sql_transaction: a former primary, or a standby
        "25P03",  # idle_in_transaction_session_timeout: the server ended the session
        "25P04",  # transaction_timeout, likewise
        "53300",  # too_many_connections
        "57P01",  # admin_shutdown
        "57P02",  # crash_shutdown
        "57P03",  # cannot_connect_now
        "57P04",  # database_dropped
        "57P05",  # idle_session_timeout
    }
)

_REFUSED_BY_POOLER: Final = "unsupported startup parameter"
_POOLER_HINT: Final = (
    "The pooler refuses settings in the address: use `alter role ... set`,"
    " or make the pooler ignore them (ignore_startup_parameters)."
)

_INSUFFICIENT_PRIVILEGE: Final = "42501"
_UNDEFINED_SCHEMA: Final = "3F000"
_UNDEFINED_FUNCTION: Final = "42883"
_UNDEFINED_TABLE: Final = "42P01"

#: SQLSTATE classes of errors in a query itself: names and rights, values, unsupported features.
_OF_A_QUERY: Final = ("0A", "22", "3F", "42")
_NAME: Final = re.compile(r"\w+")
#: The functions that run a query of the caller, as the server's context names them.
_RUNS_A_QUERY: Final = re.compile(r"backfill(?:_run_v1|_count_v1|_begin)\(")  # in any language


def translate(error: BaseException) -> ForebayError | None:
    """Return Forebay's error for an exception on one of its connections; None for any other error.

    The caller raises it ``from`` the original, or lets the original pass.
    """
    driver = next((found for found in _below(error) if isinstance(found, psycopg.Error)), None)
    if driver is not None and _is_connection_trouble(driver):
        # The context repeats the text of the function that ran: up to a page of SQL.
        text, _, _ = str(driver).partition("\nCONTEXT:")
        problem, _, rest = text.strip().partition("\n")
        return DatabaseUnavailable(
            problem or type(driver).__name__,
            detail=rest.strip() or None,
            hint=_POOLER_HINT if refuses_settings(driver) else None,
        )
    return translate_ours(error)


def translate_own(error: BaseException) -> ForebayError | None:
    """Do as ``translate``, also for a missing privilege: all statements of the connection are
    Forebay's.

    The server names no role, and its message is in any language: a name in it that is one of a
    function or table of the schema tells what was refused.
    """
    ours = translate(error)
    message = _server_message(error)
    if ours is not None or message is None or message.sqlstate != _INSUFFICIENT_PRIVILEGE:
        return ours
    names = _NAME.findall(message.message)
    granted = roles_by_object()
    for name in reversed(names):
        if name in granted:
            return PermissionDenied(message.message, roles=granted[name])
    if "forebay" in names:  # Without any of the roles, the login may not use the schema.
        return PermissionDenied(
            message.message, roles=tuple(sorted(set().union(*granted.values())))
        )
    return None


def shorten_context(error: BaseException) -> None:
    """Cut the text of a driver's exception after the first line of the server's context, which
    repeats the text of Forebay's function that ran: up to a page of SQL.
    """
    places = [found for found in _below(error) if isinstance(found, BaseException)]
    for place in places:
        context = getattr(getattr(place, "diag", None), "context", None) or ""
        if "\n" not in context:
            continue
        for found in places:
            text = found.args[0] if found.args else None
            if isinstance(text, str) and context in text:
                first = context.partition("\n")[0]
                found.args = (text.partition(context)[0] + first, *found.args[1:])


def refuses_settings(error: BaseException) -> bool:
    """Whether a pooler refused a connection because its address contains session settings."""
    return _REFUSED_BY_POOLER in str(error)


def translate_ours(error: BaseException) -> ForebayError | None:
    """Return Forebay's error if its schema, or the absence of the schema, refused one of its
    statements.
    """
    message = _server_message(error)
    if message is None:
        return None
    if message.sqlstate.startswith(_OF_A_QUERY) and _RUNS_A_QUERY.search(message.context or ""):
        return InvalidJob.from_sql(
            f"the query failed: {message.message}",
            detail=message.detail,
            hint=message.hint,
            column="query",
        )
    # Only Forebay's statements come here, and they name no other schema.
    if message.sqlstate == _UNDEFINED_SCHEMA:
        return SchemaError(found=None, needed=required_version())
    if message.sqlstate in (_UNDEFINED_FUNCTION, _UNDEFINED_TABLE):
        return SchemaError.from_sql(
            (
                "schema forebay lacks a function or table that this library uses: one of the "
                "two is too old"
            ),
            detail=message.message,
            hint=(
                "Run `forebay migrate`. If it has nothing to do, `forebay migrate --repair` "
                "restores functions; if the schema is too new, upgrade the library."
            ),
        )
    return error_from_sqlstate(
        message.sqlstate,
        message.message,
        detail=message.detail,
        hint=message.hint,
        column=message.column,
    )


@dataclass(frozen=True, slots=True)
class _ServerMessage:
    """The fields of an error message of the server."""

    sqlstate: str
    message: str
    detail: str | None
    hint: str | None
    column: str | None
    context: str | None


def _below(error: BaseException) -> tuple[Any, ...]:
    """Return the places where a library may keep the driver's exception, nearest first."""
    # SQLAlchemy keeps it in "orig". Django keeps it as the cause, and so does SQLAlchemy's adapter
    # of asyncpg, below its exception.
    original: Any = getattr(error, "orig", None)
    return error, original, error.__cause__, getattr(original, "__cause__", None)


def _server_message(error: BaseException) -> _ServerMessage | None:
    for found in _below(error):
        diag = getattr(found, "diag", None)
        if diag is not None:  # psycopg; psycopg2 calls its code pgcode
            sqlstate = getattr(found, "sqlstate", None) or getattr(found, "pgcode", None)
            if sqlstate is None:
                return None
            return _ServerMessage(
                sqlstate,
                diag.message_primary or str(found),
                diag.message_detail,
                diag.message_hint,
                diag.column_name,
                getattr(diag, "context", None),
            )
        if type(found).__module__.partition(".")[0] == "asyncpg":
            sqlstate = getattr(found, "sqlstate", None)
            if sqlstate is None:
                return None
            texts = (
                getattr(found, name, None) for name in ("detail", "hint", "column_name", "context")
            )
            return _ServerMessage(sqlstate, str(getattr(found, "message", None) or found), *texts)
    return None


def _is_connection_trouble(error: psycopg.Error) -> bool:
    sqlstate = error.sqlstate
    if sqlstate is not None:
        return sqlstate.startswith("08") or sqlstate in _UNAVAILABLE
    # An error without a SQLSTATE comes from the client: the socket closed, no host answered, no
    # connection became free in time. An aborted pipeline only repeats an error that has been
    # reported already.
    return isinstance(error, psycopg.OperationalError) and not isinstance(
        error, psycopg.errors.PipelineAborted
    )
