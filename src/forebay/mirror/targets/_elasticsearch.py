"""A target: an index of Elasticsearch or OpenSearch, over HTTP, behind an alias.

Invariant "older never over newer" (docs/design/reconcile.md) rests on external versions: the server
refuses a version lower than the current one. It forgets the versions of deleted documents after a
minute (``index.gc_deletes``), and all of them at a restart. So a deletion is a document here, a
*tombstone*, until it is old enough.

A deletion is newer than the document of its version, and older than the next one. So the deletion
of version v is written as v + 1 if the server has less than that (``external``), and a document if
the server has no more (``external_gte``).

The alias excludes tombstones from searches. Shown by: tests/mirror/test_elasticsearch.py.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from forebay.errors import ConfigError, TargetUnavailable, shown
from forebay.mirror._model import TOMBSTONE_SECONDS_DEFAULT, Document, Gone, Rejected, Seen
from forebay.mirror.targets import _bulk as bulk
from forebay.mirror.targets._http import Http, run_apart, understood
from forebay.mirror.targets._indexes import Indexes, error_in, unavailable
from forebay.model.doors import declaring_door

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Sequence

    from forebay.mirror._audit import Drift
    from forebay.mirror._model import Id
    from forebay.mirror.targets._http import ServerResponse

#: Fields of a document that belong to this library, beside the user's fields.
_OURS: Final = "forebay"

#: The longest id of a document, in bytes of UTF-8.
_ID_BYTES_MAX: Final = 512

#: Servers take versions "less than around 9.2e+18". A deletion of unknown version is above all
#: documents.
_GONE_VERSION: Final = 9_200_000_000_000_000_000 - 1

#: Attempts for items that the server has no capacity for, and the waits between them.
_AGAIN_SECONDS: Final = (0.1, 0.3, 0.9)

_PURGE_SECONDS: Final = 60.0
_PURGE_MAX: Final = 5_000

_ALIAS: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,199}")
_IS_GONE: Final = {"exists": {"field": f"{_OURS}.gone_at"}}


class ElasticsearchTarget:
    """An index of Elasticsearch (7.10 and later) or OpenSearch, behind an alias.

    Search the alias with your Elasticsearch client. A document has the fields of its body and one
    more, ``forebay``, with its id and the data for comparing.

    Args:
        url: of a server; it may contain a user and a password.
        alias: the name under which it is written and searched; ``create`` creates it, and an index
            behind it.
        id_type: of the ids, ``"long"`` or ``"keyword"``, as the server names the types.
        mappings: of your fields, in the form of the server.
        settings: of the index, in the form of the server.
        fields: makes the fields from the body of a document; None takes the body, a mapping.
        realtime: a job ends when the document can be read by its id; otherwise when searches find
            it, after a further refresh.
        refresh_seconds: how often the server makes new documents visible to searches.
        tombstone_seconds: how long a deletion is remembered.
        headers: sent with each request, such as ``{"Authorization": "ApiKey ..."}``.
        tls: for https; None for the usual checks.
        timeout: how long a request may take, in seconds.

    Raises:
        ConfigError: an argument is refused.
    """

    @declaring_door
    def __init__(
        self,
        url: str,
        alias: str,
        *,
        id_type: Literal["long", "keyword"] = "long",
        mappings: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        fields: Callable[[Any], Mapping[str, Any]] | None = None,
        realtime: bool = False,
        refresh_seconds: float = 1.0,
        tombstone_seconds: float = TOMBSTONE_SECONDS_DEFAULT,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float = 30.0,
    ) -> None:
        if not _ALIAS.fullmatch(alias):
            raise ConfigError("alias", f"is {shown(alias)}, not a plain name in lower case")
        if id_type not in ("long", "keyword"):
            raise ConfigError("id_type", f'is {shown(id_type)}, not "long" or "keyword"')
        if not 0 < refresh_seconds <= 86_400:
            raise ConfigError("refresh_seconds", f"is {refresh_seconds}, not within a day")
        self.alias = alias
        #: Searches see a document after a refresh, which a busy server runs late.
        self.lag_seconds = 0.0 if realtime else 2 * refresh_seconds
        self._fields = fields
        self._realtime = realtime
        self._tombstone_seconds = tombstone_seconds
        self._purge_at = 0.0
        self._url = url
        #: Kept for a successor.
        self._given: dict[str, Any] = {
            "id_type": id_type,
            "mappings": mappings or {},
            "settings": settings or {},
            "fields": fields,
            "realtime": realtime,
            "refresh_seconds": refresh_seconds,
            "tombstone_seconds": tombstone_seconds,
            "headers": headers,
            "tls": tls,
            "timeout": timeout,
        }
        self._http = Http(url, extra="elasticsearch", headers=headers, tls=tls, seconds=timeout)
        refresh = f"{round(refresh_seconds * 1000)}ms"
        self._indexes = Indexes(
            self._http,
            alias,
            mappings=_with_ours(mappings or {}, id_type),
            # Set even when it is the default: without it, an index that is not searched is not
            # refreshed.
            settings={**(settings or {}), "refresh_interval": refresh},
            alias_filter={"bool": {"must_not": [_IS_GONE]}},
        )

    def __repr__(self) -> str:
        return f"<elasticsearch {self.alias!r}>"

    # --- the target's methods ---

    async def read(self, ids: Sequence[Id]) -> dict[Id, Seen]:
        """Return the versions of the copies that exist."""
        given = {str(item): item for item in ids if _is_name(item)}
        if not given:
            return {}
        answer = await self._send(
            "POST",
            f"/{self.alias}/_mget",
            query={"realtime": _flag(self._realtime), "_source_includes": _OURS},
            body={"ids": list(given)},
        )
        seen: dict[Id, Seen] = {}
        with understood(self.alias):
            for found in _list(answer.body, "docs"):
                if "error" in found:
                    raise TargetUnavailable(bulk.reason_of(found["error"]))
                ours = found.get("_source", {}).get(_OURS, {})
                if found.get("found") and "gone_at" not in ours:
                    seen[given[found["_id"]]] = _seen(found, ours)
        return seen

    async def write(self, documents: Sequence[Document]) -> dict[Id, Exception]:
        """Store documents, but never over a newer one or a newer deletion.

        Return the errors of refused ones.
        """
        errors: dict[Id, Exception] = {}
        actions: list[bulk.Action] = []
        for document in documents:
            try:
                actions.append(self._action(document))
            except Exception as error:  # the user's function may make its fields
                errors[document.id] = error
        return errors | await self._bulk(actions)

    async def delete(self, gone: Sequence[Gone]) -> dict[Id, Exception]:
        """Leave tombstones, but never over a newer document; return the errors of refused ones."""
        now = int(time.time() * 1000)
        errors: dict[Id, Exception] = {}
        actions: list[bulk.Action] = []
        for each in gone:
            version = _GONE_VERSION if each.version is None else each.version + 1
            try:
                _check(each.id, version - 1)
            except Rejected as error:
                errors[each.id] = error
            else:
                tombstone = {_OURS: {"id": each.id, "gone_at": now}}
                actions.append(bulk.index(each.id, version, tombstone, repeats=False))
        errors |= await self._bulk(actions)
        if time.monotonic() >= self._purge_at:
            self._purge_at = time.monotonic() + _PURGE_SECONDS
            await self._purge(now)
        return errors

    async def scan(self, after: Id | None, until: Id | None, limit: int) -> list[tuple[Id, Seen]]:
        """Return what searches find after one id and up to another, in the order of the ids."""
        ends = {"gt": after, "lte": until}
        ends = {end: item for end, item in ends.items() if item is not None}
        place = {"range": {f"{_OURS}.id": ends}} if ends else {"exists": {"field": f"{_OURS}.id"}}
        query = {"bool": {"filter": [place], "must_not": [_IS_GONE]}}
        hits = await self._search(self.alias, query, limit)
        with understood(self.alias):
            return [(_id(hit["sort"][0]), _seen(hit, hit["_source"][_OURS])) for hit in hits]

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    # --- indexes and aliases ---

    def create(self) -> None:
        """Create the index and the alias if they do not exist.

        Raises:
            ConfigError: the server refuses them.
            TargetUnavailable: the server is unavailable.
        """
        self._apart(self._indexes.create)

    def successor(
        self,
        *,
        mappings: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        fields: Callable[[Any], Mapping[str, Any]] | None = None,
    ) -> ElasticsearchTarget:
        """Return a target for an index that will replace this one.

        It has a separate alias until then.

        ``DualTarget`` keeps both up to date while the new index is filled.

        Args:
            mappings: of its fields; None for the same.
            settings: of the index; None for the same.
            fields: makes the fields of a body; None for the same.
        """
        changed = {"mappings": mappings, "settings": settings, "fields": fields}
        given = self._given | {name: value for name, value in changed.items() if value is not None}
        new = ElasticsearchTarget(self._url, f"{self.alias}-next", **given)
        new._indexes.before = self.alias
        return new

    def take_over(self, drift: Drift, *, drop: bool = True) -> None:
        """Give the index of a successor the alias of its predecessor, in one step, and drop the
        old index.

        The successor's first alias stays until the next successor, so that processes that still
        write to both can continue.

        Args:
            drift: of an audit with both as the target; it must have no differences.
            drop: drop the old index; False keeps it, without its alias.

        Raises:
            ConfigError: it is not a successor, or the audit found differences.
            TargetUnavailable: the server is unavailable.
        """
        if self._indexes.before is None:
            raise ConfigError("take_over()", f"{self.alias} is not a successor")
        if drift.total:
            raise ConfigError(
                "take_over()",
                f"{drift.total} items are still wrong",
                hint="Repair, and audit again.",
            )
        self._apart(lambda: self._indexes.take_over(drop=drop))

    def _apart(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine function with separate connections, on another loop."""

        async def call() -> None:
            try:
                await function()
            finally:
                await self._http.close()

        run_apart(call)

    # --- requests ---

    def _action(self, document: Document) -> bulk.Action:
        _check(document.id, document.version)
        found = document.body if self._fields is None else self._fields(document.body)
        if not isinstance(found, Mapping):
            raise Rejected(f"fields must be a mapping, not {type(found).__name__}")
        if _OURS in found:
            raise Rejected(f"the field {_OURS} is reserved for comparing")
        ours: dict[str, Any] = {"id": document.id}
        if document.digest is not None:
            ours["digest"] = document.digest
        return bulk.index(document.id, document.version, {**found, _OURS: ours})

    async def _bulk(
        self, actions: Sequence[bulk.Action], index: str | None = None
    ) -> dict[Id, Exception]:
        """Send actions and return the errors of those that are at fault.

        Raises:
            TargetUnavailable: some of the others were not applied, or their state is unknown.
        """
        errors: dict[Id, Exception] = {}
        for wait in (*_AGAIN_SECONDS, None):
            again: list[bulk.Action] = []
            for part in bulk.requests(actions):
                for action, result in zip(part, await self._bulk_once(part, index), strict=True):
                    if isinstance(result, Exception):
                        errors[action.item] = result
                    elif result is bulk.Again.AGAIN:
                        again.append(action)
            if not again:
                return errors
            if wait is not None:
                await asyncio.sleep(wait)
            actions = again
        raise TargetUnavailable(f"too many requests; {len(actions)} items had no capacity")

    async def _bulk_once(
        self, part: Sequence[bulk.Action], index: str | None
    ) -> list[Exception | bulk.Again | None]:
        answer = await self._http.send(
            "POST",
            f"/{index or self.alias}/_bulk",
            # Otherwise a missing alias would become an index of that name, without mappings.
            query={"require_alias": _flag(index is None)},
            body=b"".join(action.lines for action in part),
            content_type="application/x-ndjson",
        )
        if answer.status in (400, 413):
            # The caller searches for the item at fault.
            raise Rejected(f"status {answer.status}: {bulk.reason_of(error_in(answer))}")
        if answer.status != 200:
            raise unavailable(answer)
        with understood(self.alias):
            return bulk.results(part, answer.body)

    async def _search(self, place: str, query: Mapping[str, Any], limit: int) -> list[Any]:
        answer = await self._send(
            "POST",
            f"/{place}/_search",
            query={"allow_partial_search_results": "false"},
            body={
                "query": query,
                "size": limit,
                "sort": [{f"{_OURS}.id": "asc"}],
                "version": True,
                "seq_no_primary_term": True,
                "track_total_hits": False,
                "_source": [_OURS],
            },
        )
        # A partial result would look like drift.
        with understood(self.alias):
            if answer.body.get("timed_out") or answer.body.get("_shards", {}).get("failed"):
                raise TargetUnavailable("a search covered only a part of the index")
            return _list(answer.body.get("hits"), "hits")

    async def _purge(self, now: int) -> None:
        """Remove old tombstones, some at a time, unless a newer document has replaced them."""
        index = await self._indexes.find(self.alias)
        if index is None:
            return
        old = now - int(self._tombstone_seconds * 1000)
        query = {"range": {f"{_OURS}.gone_at": {"lt": old}}}
        hits = await self._search(index, query, _PURGE_MAX)
        with understood(self.alias):
            deletes = [bulk.delete(h["_id"], h["_seq_no"], h["_primary_term"]) for h in hits]
        await self._bulk(deletes, index)

    async def _send(
        self, method: str, path: str, *, query: Mapping[str, str], body: Any
    ) -> ServerResponse:
        answer = await self._http.send(method, path, query=query, body=msgspec.json.encode(body))
        if answer.status == 404:
            raise unavailable(answer, hint=f"If {self.alias} does not exist, create() creates it.")
        if answer.status != 200 or not isinstance(answer.body, dict):
            raise unavailable(answer)
        return answer


def _with_ours(mappings: Mapping[str, Any], id_type: str) -> dict[str, Any]:
    ours = {
        "properties": {
            "id": {"type": id_type},
            "digest": {"type": "keyword", "index": False, "doc_values": False},
            "gone_at": {"type": "date", "format": "epoch_millis"},
        }
    }
    return {**mappings, "properties": {**mappings.get("properties", {}), _OURS: ours}}


def _is_name(item: Id) -> bool:
    return len(str(item).encode()) <= _ID_BYTES_MAX


def _check(item: Id, version: int) -> None:
    if not _is_name(item):
        # Otherwise the server would refuse the whole request.
        raise Rejected(f"an id may have at most {_ID_BYTES_MAX} bytes: {shown(item)}")
    if version >= _GONE_VERSION:
        raise Rejected(f"a version must be below {_GONE_VERSION}: {version}")


def _seen(found: Mapping[str, Any], ours: Mapping[str, Any]) -> Seen:
    version, digest = found["_version"], ours.get("digest")
    if not isinstance(version, int) or not isinstance(digest, str | None):
        raise TypeError(f"version {version!r}, digest {digest!r}")
    return Seen(version, digest)


def _id(found: Any) -> Id:
    if not isinstance(found, int | str):
        raise TypeError(f"id {found!r}")
    return found


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _list(body: Any, name: str) -> list[Any]:
    found = body.get(name) if isinstance(body, dict) else None
    if not isinstance(found, list):
        raise TargetUnavailable(f"an answer without {name}")
    return found
