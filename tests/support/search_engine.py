"""A stand-in for Elasticsearch and OpenSearch: a web server that keeps documents, and refuses
what those refuse.

None of the real ones can be had where these tests run. Written from their references, and held
against both official clients (tests/mirror/test_elasticsearch_clients.py). It knows what the target
and its tests use: indexes with mappings, aliases with filters, bulk requests, external versions,
deletions that are forgotten, refreshes, searches by a few queries. Anything it does not know it
refuses.
"""

import contextlib
import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit

LONG_MAX = 2**63 - 1
WINDOW_MAX = 10_000
ID_BYTES_MAX = 512
COMMON = {"pretty", "human", "error_trace", "filter_path"}
SOURCE = {"_source", "_source_includes", "_source_excludes"}


class Refused(Exception):
    """An error as the server answers it."""

    def __init__(self, status, kind, reason):
        super().__init__(reason)
        self.status = status
        self.error = {"type": kind, "reason": reason}

    def body(self):
        return {"error": {"root_cause": [self.error], **self.error}, "status": self.status}


def illegal(reason):
    return Refused(400, "illegal_argument_exception", reason)


def not_found(index):
    return Refused(404, "index_not_found_exception", f"no such index [{index}]")


@dataclass
class Kept:
    """A document, or the memory of a deletion, with the time it came at."""

    version: int
    seq_no: int
    source: dict | None
    at: float


@dataclass
class Index:
    """An index: what it has, and what searches see of it."""

    name: str
    settings: dict
    mappings: dict
    live: dict = field(default_factory=dict)
    visible: dict = field(default_factory=dict)
    seq_no: int = 0
    refreshed_at: float = 0.0

    def refresh(self, now):
        self.visible = {name: kept for name, kept in self.live.items() if kept.source is not None}
        self.refreshed_at = now

    def property(self, path):
        """Return the mapping of a field; None if there is none."""
        found = self.mappings
        for part in path.split("."):
            found = found.get("properties", {}).get(part)
            if found is None:
                return None
        return found


class SearchEngine:
    """The server's state, and what it shall do wrong.

    Attributes:
        vendor: "elasticsearch" or "opensearch".
        gc_deletes: so long a deletion is remembered, in seconds.
        requests: what came: method, path, query, content type and body.
        item_errors: by id, what to answer to its bulk items, first come first; None takes the item.
        answers: what to answer to the next requests as a whole: a status, or "hang", "reset",
            "html".
        drops: says of an id whether its item is accepted and forgotten.
    """

    def __init__(self, vendor="elasticsearch"):
        self.vendor = vendor
        self.gc_deletes = 60.0
        self.indexes = {}
        self.aliases = {}
        self.requests = []
        self.item_errors = {}
        self.answers = []
        self.failed_shards = 0
        self.drops = lambda name: False
        self.skipped_seconds = 0.0
        self.continues = threading.Event()
        self._lock = threading.RLock()
        self._server = None

    # --- the server ---

    @contextlib.contextmanager
    def running(self):
        """Serve on a port of 127.0.0.1; gives the address."""
        engine = self

        class Handler(_Handler):
            def answer(self, request):
                return engine.answer(request)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{self._server.server_address[1]}"
        finally:
            self.continues.set()
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def now(self):
        return time.monotonic() + self.skipped_seconds

    def skip(self, seconds):
        """Let time pass for deletions and refreshes."""
        self.skipped_seconds += seconds

    def restart(self):
        """Do what a node does when it starts anew: deletions are forgotten."""
        with self._lock:
            for index in self.indexes.values():
                index.live = {n: kept for n, kept in index.live.items() if kept.source is not None}

    def sources(self, alias):
        """Return what there is, tombstones as well, by id."""
        index = self.indexes[self._names(alias)[0]]
        return {n: kept.source for n, kept in index.live.items() if kept.source is not None}

    def answer(self, request):
        with self._lock:
            self.requests.append(request)
            fault = self.answers.pop(0) if self.answers else None
        if fault == "hang":
            self.continues.wait(20)
        if fault in ("hang", "reset"):
            return None
        if fault == "html":
            return 502, "<html>bad gateway</html>"
        if fault is not None:
            return fault, Refused(fault, "some_exception", "told to").body()
        try:
            with self._lock:
                return self._route(request)
        except Refused as error:
            return error.status, error.body()

    # --- routes ---

    def _route(self, request):
        self._check_content(request)
        parts = [unquote(part) for part in request.path.strip("/").split("/")]
        for methods, pattern, known, function in (
            ("GET", [""], set(), self._info),
            ("PUT", ["*"], {"timeout", "master_timeout", "wait_for_active_shards"}, self._make),
            ("DELETE", ["*"], {"timeout", "master_timeout"}, self._drop),
            ("GET", ["_alias", "*"], {"ignore_unavailable", "local"}, self._get_alias),
            ("POST", ["_aliases"], {"timeout", "master_timeout"}, self._change_aliases),
            ("POST PUT", ["_bulk"], _BULK, self._bulk),
            ("POST PUT", ["*", "_bulk"], _BULK, self._bulk),
            ("GET POST", ["*", "_mget"], _MGET, self._mget),
            ("GET POST", ["*", "_search"], _SEARCH, self._search),
            ("POST", ["*", "_refresh"], set(), self._refresh),
        ):
            if len(parts) == len(pattern) and all(
                expected == part or (expected == "*" and part[:1] not in ("_", ""))
                for expected, part in zip(pattern, parts, strict=True)
            ):
                if request.method not in methods.split():
                    continue
                unknown = sorted(set(request.query) - known - COMMON)
                if unknown:
                    raise illegal(
                        f"request [{request.path}] contains unrecognized parameter: [{unknown[0]}]"
                    )
                named = [part for part, how in zip(parts, pattern, strict=True) if how == "*"]
                return 200, function(request, *named)
        raise illegal(f"no handler found for uri [{request.path}] and method [{request.method}]")

    def _check_content(self, request):
        if not request.body:
            return
        kind = (request.content_type or "").partition(";")[0].strip()
        allowed = {"application/json", "application/x-ndjson"}
        if self.vendor == "elasticsearch":
            allowed |= {
                "application/vnd.elasticsearch+json",
                "application/vnd.elasticsearch+x-ndjson",
            }
        if kind not in allowed:
            raise Refused(
                406,
                "media_type_header_exception",
                f"Content-Type header [{request.content_type or ''}] is not supported",
            )
        if kind.endswith("ndjson") and not request.path.endswith("_bulk"):
            raise Refused(406, "media_type_header_exception", f"[{kind}] is not supported here")

    def _info(self, request):
        number = {"number": "9.2.0", "build_flavor": "default"}
        if self.vendor == "opensearch":
            number = {"number": "3.2.0", "distribution": "opensearch"}
        return {"name": "stand-in", "version": number, "tagline": "You Know, for Search"}

    # --- indexes and aliases ---

    def _make(self, request, name):
        body = _json(request)
        _known("create index", body, {"settings", "mappings", "aliases"})
        if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", name):
            raise Refused(400, "invalid_index_name_exception", f"Invalid index name [{name}]")
        if name in self.indexes:
            raise Refused(
                400, "resource_already_exists_exception", f"index [{name}/x] already exists"
            )
        if name in self.aliases:
            raise Refused(
                400,
                "invalid_index_name_exception",
                f"Invalid index name [{name}], already exists as alias",
            )
        for alias in body.get("aliases", {}):
            if alias in self.indexes:
                raise Refused(
                    400,
                    "invalid_alias_name_exception",
                    (
                        f"Invalid alias name [{alias}]: an index or data stream exists with "
                        f"the same name as the alias"
                    ),
                )
        settings = dict(body.get("settings", {}))
        for setting in settings:
            if setting.removeprefix("index.") not in _SETTINGS:
                raise illegal(
                    f"unknown setting [index.{setting}] please check that any required "
                    f"plugins are installed"
                )
        index = Index(name, settings, dict(body.get("mappings", {})))
        _check_mapping(index.mappings)
        self.indexes[name] = index
        index.refreshed_at = self.now()
        for alias, options in body.get("aliases", {}).items():
            _known("alias", options, {"filter", "is_write_index"})
            self.aliases.setdefault(alias, {})[name] = options.get("filter")
        return {"acknowledged": True, "shards_acknowledged": True, "index": name}

    def _drop(self, request, name):
        if name in self.aliases:
            raise illegal(
                f"The provided expression [{name}] matches an alias, specify the "
                f"corresponding concrete indices instead."
            )
        if name not in self.indexes:
            raise not_found(name)
        self._forget(name)
        return {"acknowledged": True}

    def _forget(self, name):
        del self.indexes[name]
        for alias in list(self.aliases):
            self.aliases[alias].pop(name, None)
            if not self.aliases[alias]:
                del self.aliases[alias]

    def _get_alias(self, request, alias):
        if alias not in self.aliases:
            raise Refused(404, "aliases_not_found_exception", f"alias [{alias}] missing")
        return {
            index: {"aliases": {alias: {} if how is None else {"filter": how}}}
            for index, how in self.aliases[alias].items()
        }

    def _change_aliases(self, request):
        body = _json(request)
        _known("aliases", body, {"actions"})
        before = {alias: dict(indexes) for alias, indexes in self.aliases.items()}
        to_drop = []
        try:
            for action in body["actions"]:
                ((verb, what),) = action.items()
                if verb not in ("add", "remove", "remove_index"):
                    raise illegal(f"[aliases] unknown field [{verb}]")
                _known(
                    verb,
                    what,
                    {"index", "alias", "filter"} if verb == "add" else {"index", "alias"},
                )
                if what["index"] not in self.indexes:
                    raise not_found(what["index"])
                if verb == "remove_index":
                    to_drop.append(what["index"])
                elif verb == "add":
                    if what["alias"] in self.indexes and what["alias"] not in to_drop:
                        raise Refused(
                            400,
                            "invalid_alias_name_exception",
                            f"an index exists with the name {what['alias']}",
                        )
                    self.aliases.setdefault(what["alias"], {})[what["index"]] = what.get("filter")
                elif self.aliases.get(what["alias"], {}).pop(what["index"], _MISSING) is _MISSING:
                    raise Refused(
                        404, "aliases_not_found_exception", f"aliases [{what['alias']}] missing"
                    )
        except Refused:
            self.aliases = before  # All of it or nothing.
            raise
        self.aliases = {alias: indexes for alias, indexes in self.aliases.items() if indexes}
        for name in to_drop:
            self._forget(name)
        return {"acknowledged": True, "errors": False}

    def _names(self, place):
        if place in self.indexes:
            return [place]
        if place in self.aliases:
            return list(self.aliases[place])
        raise not_found(place)

    def _one(self, place):
        names = self._names(place)
        if len(names) > 1:
            raise illegal(
                f"alias [{place}] has more than one index associated with it {names}, "
                f"can't execute a single index op"
            )
        return self.indexes[names[0]]

    # --- documents ---

    def _bulk(self, request, place=None):
        if not request.body:
            raise Refused(400, "parse_exception", "request body is required")
        if not request.body.endswith(b"\n"):
            raise illegal("The bulk request must be terminated by a newline [\\n]")
        lines = request.body[:-1].split(b"\n")
        items, number = [], 0
        while number < len(lines):
            kind, meta = _action(lines[number], number + 1)
            number += 1
            source = None
            if kind != "delete":
                if number >= len(lines):
                    raise illegal("The bulk request must be terminated by a newline [\\n]")
                source, number = lines[number], number + 1
            items.append((kind, {"_index": place, **meta}, source))
        if not items:
            raise Refused(
                400,
                "action_request_validation_exception",
                "Validation Failed: 1: no requests added;",
            )
        problems = [problem for kind, meta, _ in items if (problem := _validate(kind, meta))]
        if problems:
            text = "".join(f"{n}: {problem};" for n, problem in enumerate(problems, 1))
            raise Refused(400, "action_request_validation_exception", f"Validation Failed: {text}")
        needs_alias = request.query.get("require_alias") == "true"
        answers = [self._bulk_item(*item, needs_alias=needs_alias) for item in items]
        if request.query.get("refresh", "false") not in ("false", "wait_for"):
            for _, meta, _ in items:
                self._one(meta["_index"]).refresh(self.now())
        failed = any("error" in result for answer in answers for result in answer.values())
        return {"took": 1, "errors": failed, "items": answers}

    def _bulk_item(self, kind, meta, source, *, needs_alias):
        place, name = meta["_index"], str(meta.get("_id"))
        told = {"_index": place, "_id": name}
        try:
            faults = self.item_errors.get(name)
            if faults:
                fault = faults.pop(0)
                if fault is not None:
                    raise Refused(fault, _KINDS.get(fault, "some_exception"), "told to")
            if needs_alias and place not in self.aliases:
                raise Refused(
                    404,
                    "index_not_found_exception",
                    (
                        f"no such index [{place}] and [require_alias] request flag is [true] "
                        f"and [{place}] is not an alias"
                    ),
                )
            if place not in self.indexes and place not in self.aliases:
                # As the server does by itself: an index of that name, with whatever mapping.
                self.indexes[place] = Index(place, {}, {})
            index = self._one(place)
            told["_index"] = index.name
            parsed = None if source is None else _parsed(index, source)
            if self.drops(name):
                return {
                    kind: told
                    | {"_version": meta.get("version", 1), "result": "created", "status": 201}
                }
            return {kind: told | self._apply(index, kind, name, meta, parsed)}
        except Refused as error:
            return {kind: told | {"status": error.status, "error": error.error}}

    def _apply(self, index, kind, name, meta, source):
        kept = index.live.get(name)
        if kept is not None and kept.source is None and self.now() - kept.at > self.gc_deletes:
            kept = None
        current = -1 if kept is None else kept.version
        is_there = kept is not None and kept.source is not None
        how = meta.get("version_type", "internal")
        wanted = meta.get("if_seq_no")
        if wanted is not None and (not is_there or kept.seq_no != wanted):
            raise _conflict(name, f"required seqNo [{wanted}], primary term [1]")
        if how == "internal":
            version = 1 if kept is None else current + 1
            if kind == "create" and is_there:
                raise _conflict(name, f"document already exists (current version [{current}])")
        else:
            version = meta["version"]
            if current > version or (current == version and how == "external"):
                raise _conflict(
                    name,
                    (
                        f"current version [{current}] is higher or equal to the one provided "
                        f"[{version}]"
                    ),
                )
        index.seq_no += 1
        index.live[name] = Kept(version, index.seq_no, source, self.now())
        result = "deleted" if kind == "delete" else "updated" if is_there else "created"
        status = 201 if result == "created" else 200
        if kind == "delete" and not is_there:
            result, status = "not_found", 404
        return {
            "_version": version,
            "result": result,
            "_shards": {"total": 1, "successful": 1, "failed": 0},
            "_seq_no": index.seq_no,
            "_primary_term": 1,
            "status": status,
        }

    def _mget(self, request, place):
        body = _json(request)
        _known("mget", body, {"ids", "docs"})
        names = body.get("ids") or [doc["_id"] for doc in body.get("docs", [])]
        if not names:
            raise Refused(
                400,
                "action_request_validation_exception",
                "Validation Failed: 1: no documents to get;",
            )
        docs = []
        for name in names:
            try:
                index = self._one(place)
            except Refused as error:
                docs.append(
                    {
                        "_index": place,
                        "_id": str(name),
                        "error": {"root_cause": [error.error], **error.error},
                    }
                )
                continue
            self._maybe_refresh(index)
            realtime = request.query.get("realtime", "true") == "true"
            kept = (index.live if realtime else index.visible).get(str(name))
            told = {"_index": index.name, "_id": str(name)}
            if kept is None or kept.source is None:
                docs.append(told | {"found": False})
            else:
                docs.append(
                    told
                    | {
                        "_version": kept.version,
                        "_seq_no": kept.seq_no,
                        "_primary_term": 1,
                        "found": True,
                    }
                    | _part(
                        kept.source,
                        request.query.get("_source_includes", request.query.get("_source")),
                    )
                )
        return {"docs": docs}

    def _refresh(self, request, place):
        for name in self._names(place):
            self.indexes[name].refresh(self.now())
        return {"_shards": {"total": 1, "successful": 1, "failed": 0}}

    def _maybe_refresh(self, index):
        """Let searches see what came before the last tick of the index's refresh interval."""
        settings = index.settings
        interval = _seconds(
            settings.get("refresh_interval", settings.get("index.refresh_interval", "1s"))
        )
        if interval is not None and self.now() - index.refreshed_at >= interval:
            index.refresh(self.now())

    # --- searches ---

    def _search(self, request, place):
        body = _json(request)
        _known(
            "search",
            body,
            {
                "query",
                "size",
                "from",
                "sort",
                "search_after",
                "version",
                "seq_no_primary_term",
                "track_total_hits",
                "_source",
            },
        )
        names = self._names(place)
        size = body.get("size", 10)
        if size + body.get("from", 0) > WINDOW_MAX:
            raise illegal(
                f"Result window is too large, from + size must be less than or equal to: "
                f"[{WINDOW_MAX}]"
            )
        sort = body.get("sort", [])
        if len(sort) > 1:
            raise illegal("the stand-in sorts by one field")
        hits = []
        for name in names:
            index = self.indexes[name]
            self._maybe_refresh(index)
            filters = [body.get("query", {"match_all": {}})]
            if place in self.aliases and self.aliases[place][name] is not None:
                filters.append(self.aliases[place][name])
            paths = [_sort_path(index, each) for each in sort]
            for key, kept in index.visible.items():
                if all(_matches(index, each, kept.source) for each in filters):
                    hits.append((index, key, kept, [_value(kept.source, path) for path in paths]))
        if sort:
            hits.sort(key=lambda hit: (hit[3][0] is None, _order(hit[3][0])))
        if "search_after" in body:
            (after,) = body["search_after"]
            hits = [hit for hit in hits if _order(hit[3][0]) > _order(after)]
        total = len(hits)
        told = []
        for index, key, kept, values in hits[body.get("from", 0) :][:size]:
            hit = {"_index": index.name, "_id": key, "_score": None}
            if body.get("version"):
                hit["_version"] = kept.version
            if body.get("seq_no_primary_term"):
                hit |= {"_seq_no": kept.seq_no, "_primary_term": 1}
            hit |= _part(kept.source, body.get("_source"))
            if values:
                hit["sort"] = values
            told.append(hit)
        found = {"max_score": None, "hits": told}
        if body.get("track_total_hits", True):
            found["total"] = {"value": total, "relation": "eq"}
        shards = {
            "total": 1,
            "successful": 1 - self.failed_shards,
            "skipped": 0,
            "failed": self.failed_shards,
        }
        if self.failed_shards and request.query.get("allow_partial_search_results") == "false":
            raise Refused(503, "search_phase_execution_exception", "Partial shards failure")
        return {"took": 1, "timed_out": False, "_shards": shards, "hits": found}


_MISSING = object()
_BULK = {
    "require_alias",
    "refresh",
    "timeout",
    "routing",
    "pipeline",
    "wait_for_active_shards",
} | SOURCE
_MGET = {"realtime", "refresh", "preference", "routing", "stored_fields"} | SOURCE
_SEARCH = {
    "allow_partial_search_results",
    "preference",
    "routing",
    "timeout",
    "typed_keys",
    "rest_total_hits_as_int",
    "ignore_unavailable",
} | SOURCE
_SETTINGS = {
    "refresh_interval",
    "number_of_shards",
    "number_of_replicas",
    "gc_deletes",
    "analysis",
    "max_result_window",
}
_META = {
    "_index",
    "_id",
    "version",
    "version_type",
    "routing",
    "require_alias",
    "if_seq_no",
    "if_primary_term",
}
_KINDS = {
    400: "document_parsing_exception",
    403: "cluster_block_exception",
    429: "es_rejected_execution_exception",
    503: "unavailable_shards_exception",
}


def _known(what, body, keys):
    for key in body:
        if key not in keys:
            raise Refused(400, "parsing_exception", f"Unknown key for a value in [{key}] of {what}")


def _json(request):
    if not request.body:
        return {}
    try:
        return json.loads(request.body)
    except ValueError as error:
        raise Refused(400, "parse_exception", f"Failed to parse content: {error}") from None


def _action(line, number):
    where = f"Malformed action/metadata line [{number}]"
    try:
        found = json.loads(line)
    except ValueError:
        raise illegal(f"{where}, expected START_OBJECT or END_OBJECT") from None
    if not isinstance(found, dict) or len(found) != 1:
        raise illegal(f"{where}, expected FIELD_NAME but found [END_OBJECT]")
    ((kind, meta),) = found.items()
    if kind not in ("index", "create", "delete"):
        raise illegal(
            f"{where}, expected field [create], [delete], [index] or [update] but found [{kind}]"
        )
    for key in meta:
        if key not in _META:
            raise illegal(f"Action/metadata line [{number}] contains an unknown parameter [{key}]")
    return kind, meta


def _validate(kind, meta):
    name = meta.get("_id")
    if kind == "delete" and name is None:
        return "id is missing"
    if meta.get("_index") is None:
        return "index is missing"
    if name is not None and len(str(name).encode()) > ID_BYTES_MAX:
        return (
            f"id [{name}] is too long, must be no longer than {ID_BYTES_MAX} bytes but was: "
            f"{len(str(name).encode())}"
        )
    how, version = meta.get("version_type", "internal"), meta.get("version")
    if how not in ("internal", "external", "external_gte"):
        return f"No version type match [{how}]"
    if ("if_seq_no" in meta) != ("if_primary_term" in meta):
        return "ifSeqNo and ifPrimaryTerm must be set together"
    if "if_seq_no" in meta and (version is not None or how != "internal"):
        return "compare and write operations can not use versioning"
    if how == "internal" and version is not None:
        return "internal versioning can not be used for optimistic concurrency control"
    if how != "internal" and (type(version) is not int or not 0 <= version <= LONG_MAX):
        return f"illegal version value [{version}] for version type [{how.upper()}]"
    return None


def _conflict(name, why):
    return Refused(409, "version_conflict_engine_exception", f"[{name}]: version conflict, {why}")


def _check_mapping(mappings):
    _known(
        "mapping",
        mappings,
        {
            "properties",
            "dynamic",
            "type",
            "format",
            "index",
            "doc_values",
            "analyzer",
            "ignore_above",
        },
    )
    if "type" in mappings and mappings["type"] not in (
        "long",
        "keyword",
        "text",
        "date",
        "object",
        "boolean",
    ):
        raise Refused(400, "mapper_parsing_exception", f"No handler for type [{mappings['type']}]")
    for each in mappings.get("properties", {}).values():
        _check_mapping(each)


def _parsed(index, line):
    try:
        source = json.loads(line)
    except ValueError:
        source = None
    if not isinstance(source, dict):
        raise Refused(400, "document_parsing_exception", "[1:1] failed to parse")
    _check_fields(index.mappings, source, "")
    return source


def _check_fields(mapping, source, path):
    for name, value in source.items():
        if name.startswith("_") and not path and name in ("_id", "_index", "_version", "_source"):
            raise Refused(
                400,
                "document_parsing_exception",
                f"Field [{name}] is a metadata field and cannot be added inside a document",
            )
        how = mapping.get("properties", {}).get(name)
        if how is None:
            if mapping.get("dynamic") == "strict":
                raise Refused(
                    400,
                    "strict_dynamic_mapping_exception",
                    (
                        f"mapping set to strict, dynamic introduction of [{name}] within "
                        f"[_doc] is not allowed"
                    ),
                )
            continue
        kind = how.get("type", "object")
        if isinstance(value, dict) != (kind == "object"):
            raise Refused(
                400,
                "document_parsing_exception",
                (
                    f"object mapping for [{path}{name}] tried to parse field as object, but "
                    f"found a concrete value"
                ),
            )
        if isinstance(value, dict):
            _check_fields(how, value, f"{path}{name}.")
        elif kind == "long" and not re.fullmatch(r"-?\d+", str(value)):
            raise Refused(
                400,
                "document_parsing_exception",
                f"failed to parse field [{path}{name}] of type [long] in document",
            )


def _sort_path(index, each):
    ((path, how),) = each.items() if isinstance(each, dict) else ((each, "asc"),)
    if (how["order"] if isinstance(how, dict) else how) != "asc":
        raise illegal("the stand-in sorts upwards")
    if path == "_id":
        raise illegal("Fielddata access on the _id field is disallowed")
    mapped = index.property(path)
    if mapped is None:
        raise Refused(
            400, "query_shard_exception", f"No mapping found for [{path}] in order to sort on"
        )
    if mapped["type"] == "text" or mapped.get("doc_values") is False:
        raise illegal(f"Can't load fielddata on [{path}]")
    return path


def _order(value):
    return value.encode() if isinstance(value, str) else value


def _value(source, path):
    found = source
    for part in path.split("."):
        if not isinstance(found, dict) or part not in found:
            return None
        found = found[part]
    return found


def _matches(index, query, source):
    ((kind, what),) = query.items()
    if kind == "match_all":
        return True
    if kind == "bool":
        _known("bool", what, {"must", "must_not", "filter", "should"})
        clauses = {name: each if isinstance(each, list) else [each] for name, each in what.items()}
        return (
            all(
                _matches(index, q, source)
                for q in clauses.get("must", []) + clauses.get("filter", [])
            )
            and not any(_matches(index, q, source) for q in clauses.get("must_not", []))
            and (
                "should" not in clauses
                or any(_matches(index, q, source) for q in clauses["should"])
            )
        )
    if kind == "exists":
        return _value(source, what["field"]) is not None
    ((path, how),) = what.items()
    value = _value(source, path)
    if kind == "range":
        _known("range", how, {"gt", "gte", "lt", "lte"})
        return value is not None and all(
            {
                "gt": _order(value) > _order(end),
                "gte": _order(value) >= _order(end),
                "lt": _order(value) < _order(end),
                "lte": _order(value) <= _order(end),
            }[name]
            for name, end in how.items()
        )
    if kind == "match":
        words = re.findall(r"\w+", str(how).lower())
        return any(word in re.findall(r"\w+", str(value or "").lower()) for word in words)
    raise Refused(400, "parsing_exception", f"unknown query [{kind}]")


def _part(source, wanted):
    if wanted in (None, True, "true"):
        return {"_source": source}
    if wanted in (False, "false"):
        return {}
    wanted = wanted.split(",") if isinstance(wanted, str) else wanted
    return {"_source": {name: value for name, value in source.items() if name in wanted}}


def _seconds(text):
    if text in (-1, "-1"):
        return None
    number, unit = re.fullmatch(r"(\d+)(ms|s|m)", text).groups()
    return int(number) * {"ms": 0.001, "s": 1.0, "m": 60.0}[unit]


@dataclass
class Request:
    """What came."""

    method: str
    path: str
    query: dict
    content_type: str | None
    body: bytes

    @property
    def lines(self):
        """The body's JSON, line by line."""
        return [json.loads(line) for line in self.body.splitlines()]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle_any(self):
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        request = Request(
            self.command,
            parts.path,
            dict(parse_qsl(parts.query, keep_blank_values=True)),
            self.headers.get("Content-Type"),
            body,
        )
        found = self.answer(request)
        if found is None:
            self.close_connection = True
            return
        status, content = found
        accept = self.headers.get("Accept", "")
        kind = accept if accept.startswith("application/vnd.") else "application/json"
        text = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if isinstance(content, str) else kind)
        self.send_header("X-Elastic-Product", "Elasticsearch")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any  # noqa: N815 - names of the library

    def log_message(self, *args):
        pass
