"""Indexes of Elasticsearch and OpenSearch, and their aliases.

An alias has one index, ``pages-1``, ``pages-2`` and so on. An index that will replace another one
has a separate alias until then. Two processes that act at the same time reach the same result:
names follow from the existing ones, an existing index is not an error, and aliases change in one
request, all or none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from forebay.errors import ConfigError, TargetUnavailable
from forebay.mirror.targets._bulk import kind_of, reason_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay.mirror.targets._http import Http, ServerResponse


class Indexes:
    """The index behind an alias, and the index that will replace it.

    Args:
        http: the server.
        alias: of the index.
        mappings: of a new index.
        settings: of a new index.
        alias_filter: what the alias excludes from searches.

    Attributes:
        before: the alias that this index will take over; None if it is not a successor.
    """

    def __init__(
        self,
        http: Http,
        alias: str,
        *,
        mappings: Mapping[str, Any],
        settings: Mapping[str, Any],
        alias_filter: Mapping[str, Any],
    ) -> None:
        self._http = http
        self._alias = alias
        self._mappings = mappings
        self._settings = settings
        self._filter = alias_filter
        self.before: str | None = None

    async def find(self, alias: str) -> str | None:
        """Return the index behind an alias; None if the alias does not exist.

        Raises:
            ConfigError: the alias has several indexes.
            TargetUnavailable: the server is unavailable.
        """
        answer = await self._http.send("GET", f"/_alias/{alias}")
        if answer.status == 404:
            return None
        if answer.status != 200 or not isinstance(answer.body, dict):
            raise unavailable(answer)
        if len(answer.body) != 1:
            raise ConfigError("alias", f"{alias} has {len(answer.body)} indexes instead of one")
        return str(next(iter(answer.body)))

    async def create(self) -> None:
        """Create the index and the alias if they do not exist."""
        if self.before is not None:
            await self._create_next(self.before)
        elif await self.find(self._alias) is None:
            name = f"{self._alias}-1"
            await self._make(name, {self._alias: {"filter": self._filter}})
            if await self.find(self._alias) is None:  # The index existed without the alias.
                await self._change([self._added(name, self._alias)])

    async def _create_next(self, before: str) -> None:
        old = await self.find(before)
        if old is None:
            raise ConfigError("alias", f"{before} does not exist", hint="create() it first.")
        name = _next_name(before, old)
        now = await self.find(self._alias)
        if now == name:
            return
        await self._make(name, {})
        left = [] if now is None else [_removed(now, self._alias)]  # of the previous successor
        await self._change([*left, self._added(name, self._alias)])

    async def take_over(self, *, drop: bool) -> None:
        """Give the index the alias of its predecessor.

        The old index is dropped, or loses its alias.
        """
        assert self.before is not None
        old, new = await self.find(self.before), await self.find(self._alias)
        if new is None:
            raise ConfigError("alias", f"{self._alias} does not exist", hint="create() it first.")
        if old == new:
            return
        actions = [self._added(new, self.before)]
        if old is not None:
            gone = {"remove_index": {"index": old}}
            actions.insert(0, gone if drop else _removed(old, self.before))
        await self._change(actions)

    def _added(self, index: str, alias: str) -> dict[str, Any]:
        return {"add": {"index": index, "alias": alias, "filter": self._filter}}

    async def _make(self, name: str, aliases: Mapping[str, Any]) -> None:
        body = {"settings": self._settings, "mappings": self._mappings, "aliases": aliases}
        answer = await self._http.send("PUT", f"/{name}", body=msgspec.json.encode(body))
        error = error_in(answer)
        if answer.status == 200 or kind_of(error) == "resource_already_exists_exception":
            return
        if answer.status == 400:
            raise ConfigError("create()", f"was refused: {reason_of(error)}")
        raise unavailable(answer)

    async def _change(self, actions: Sequence[Any]) -> None:
        answer = await self._http.send(
            "POST", "/_aliases", body=msgspec.json.encode({"actions": actions})
        )
        if answer.status != 200:
            raise unavailable(answer)


def _removed(index: str, alias: str) -> dict[str, Any]:
    return {"remove": {"index": index, "alias": alias}}


def _next_name(alias: str, index: str) -> str:
    """Return the name of the index after an index.

    >>> _next_name("pages", "pages-9"), _next_name("pages", "made-by-hand")
    ('pages-10', 'pages-1')
    """
    number = index.removeprefix(f"{alias}-")
    return f"{alias}-{int(number) + 1 if number.isdecimal() else 1}"


def error_in(answer: ServerResponse) -> Any:
    """Return the error in an answer."""
    return answer.body.get("error") if isinstance(answer.body, dict) else answer.body


def unavailable(answer: ServerResponse, *, hint: str | None = None) -> TargetUnavailable:
    """Return the error for an answer that does not concern any item."""
    return TargetUnavailable(f"status {answer.status}: {reason_of(error_in(answer))}", hint=hint)
