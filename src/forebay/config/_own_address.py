"""The address of an app that gives connections, or their password, itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

#: What ``App(connect=...)`` may return: a new psycopg connection, or the parameters of one.
Connect = Callable[[], Any] | Callable[[], Awaitable[Any]]
Password = Callable[[], str] | Callable[[], Awaitable[str]]


class OwnAddress(str):
    """The address of a database, with the functions that an app calls for each new connection.

    It is a text, so it goes wherever an address does: to sessions, pools and clients. Only what
    opens connections asks for the functions. A text that is made of it has them no more.

    Attributes:
        connect: returns a new connection, or its parameters; None: the text has them.
        password: returns the password; None: the text has it, or none is needed.
    """

    __slots__ = ("connect", "password")
    connect: Connect | None
    password: Password | None

    def __new__(
        cls, text: str, *, connect: Connect | None = None, password: Password | None = None
    ) -> Self:
        """Return an address of this text."""
        made = super().__new__(cls, text)
        made.connect, made.password = connect, password
        return made


class UnkeptAddress(str):
    """An address of a database to which no idle connection is kept: it may be dropped soon."""

    __slots__ = ()


def with_functions(text: str, functions: Mapping[str, Callable[[], Any] | None]) -> str:
    """Return an address with the functions of an app.

    Args:
        text: the address; empty: ``connect`` has all that is needed. Any other text replaces it.
        functions: ``connect`` and ``password`` of the app.
    """
    connect = None if text else functions.get("connect")
    password = functions.get("password")
    if connect is None and password is None:
        return text
    return OwnAddress(text, connect=connect, password=password)
