"""A Redis that is read: an address without secrets for labels, and pages of a list."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import redis

from forebay.errors import ConfigError

_PAGE: Final = 500


def opened(address: str, flag: str) -> Any:
    """Return a client that has reached its server.

    Raises:
        ConfigError: the address has another form, or no Redis answers there.
    """
    try:
        client = redis.Redis.from_url(address)
        client.ping()
    except ValueError as error:
        raise ConfigError(flag, f"is not the address of a Redis: {error}") from None
    except redis.RedisError as error:
        # Without the address, which may have a password.
        raise ConfigError(flag, f"leads to no Redis: {error}") from None
    return client


@contextmanager
def reading(flag: str) -> Iterator[None]:
    """Turn an error of Redis into ours.

    Raises:
        ConfigError: the Redis has gone, or a key is of another type.
    """
    try:
        yield
    except redis.RedisError as error:
        raise ConfigError(flag, f"leads to a Redis that refuses: {error}") from None


def place_of(client: Any) -> str:
    """Return host, port and number of the database, without secrets."""
    known = client.connection_pool.connection_kwargs
    host = known.get("host") or known.get("path") or "localhost"
    return f"{host}:{known.get('port', '')}/{known.get('db') or 0}"


def list_from_tail(client: Any, key: str) -> Iterator[bytes]:
    """Yield a list from its end, which a push at its head does not move."""
    done = 0
    while page := client.lrange(key, -(done + _PAGE), -(done + 1)):
        yield from reversed(page)
        done += len(page)


def list_from_head(client: Any, key: str) -> Iterator[bytes]:
    """Yield a list from its head, which a push at its end does not move."""
    done = 0
    while page := client.lrange(key, done, done + _PAGE - 1):
        yield from page
        done += len(page)
