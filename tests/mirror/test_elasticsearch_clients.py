"""Both official clients make the requests that the target makes, and read the answers that the
stand-in gives.

So neither is only held against the other: the target's requests are those of the clients, parameter
by parameter and line by line, and the stand-in's answers are taken by the clients' parsers. A real
server was not to be had.
"""

import json

import elasticsearch
import elasticsearch.helpers
import opensearchpy
import opensearchpy.helpers
import pytest

from forebay.mirror import Document, Drift, ElasticsearchTarget, Gone
from tests.support.search_engine import SearchEngine

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the clients' own
]


@pytest.fixture
def client(engine, url):
    """The official client of the server that the stand-in stands for."""
    if engine.vendor == "elasticsearch":
        found = elasticsearch.Elasticsearch(url, retry_on_timeout=False, max_retries=0)
    else:
        found = opensearchpy.OpenSearch(url, max_retries=0)
    with found:
        yield found


def said(request):
    """Return what a request says, whoever made it.

    In the body the order and the white space of JSON say nothing.
    """
    body = request.lines if request.path.endswith("_bulk") else json.loads(request.body or b"null")
    # POST and PUT are the same for bulk requests.
    method = "POST" if request.path.endswith("_bulk") else request.method
    return method, request.path, request.query, body


async def target_requests(engine, url):
    """Return what the target sends for each of its calls."""
    target = ElasticsearchTarget(url, "pages", tombstone_seconds=-1)
    target.create()
    await target.write([Document(1, 4, {"text": "a mill"}, "f00d"), Document(2, 1, {})])
    await target.delete([Gone(2, 7)])
    for index in engine.indexes.values():
        index.refresh(engine.now())
    await target.read([1, 2])
    await target.scan(1, 5, 100)
    target._purge_at = 0.0
    await target.delete([])
    new = target.successor()
    new.create()
    new.take_over(Drift())
    await target.close()
    made = [said(each) for each in engine.requests]
    for name in list(engine.indexes):
        engine._forget(name)
    engine.requests.clear()
    return made


class Calls:
    """The same calls as a client has them.

    OpenSearch's takes bodies whole, and parameters by the side.
    """

    def __init__(self, client):
        self.client = client
        self.is_open = isinstance(client, opensearchpy.OpenSearch)

    def bulk(self, index, lines, *, require_alias):
        if self.is_open:
            return self.client.bulk(body=lines, index=index, require_alias=require_alias)
        return self.client.bulk(index=index, operations=lines, require_alias=require_alias)

    def mget(self, index, body, *, realtime, source):
        if self.is_open:
            return self.client.mget(
                body=body, index=index, realtime=realtime, _source_includes=source
            )
        return self.client.mget(index=index, **body, realtime=realtime, source_includes=source)

    def search(self, index, body, **options):
        if self.is_open:
            return self.client.search(body=body, index=index, **options)
        source = body.pop("_source")
        return self.client.search(index=index, source=source, **body, **options)

    def make(self, index, body):
        if self.is_open:
            return self.client.indices.create(index=index, body=body)
        return self.client.indices.create(index=index, **body)

    def aliases(self, actions):
        if self.is_open:
            return self.client.indices.update_aliases(body={"actions": actions})
        return self.client.indices.update_aliases(actions=actions)

    def is_alias(self, alias):
        try:
            return self.client.indices.get_alias(name=alias)
        except (elasticsearch.NotFoundError, opensearchpy.NotFoundError):
            return None


async def test_the_requests_are_those_of_the_official_clients(engine, url, client):
    """
    Each request of the target is sent once more by the client's own methods, and is the same on the
    wire.
    """
    wanted = await target_requests(engine, url)
    calls = Calls(client)
    for method, path, query, body in wanted:
        parts = path.strip("/").split("/")
        if parts[0] == "_alias":
            calls.is_alias(parts[1])
        elif parts[0] == "_aliases":
            assert calls.aliases(body["actions"])["acknowledged"]
        elif parts[-1] == "_bulk":
            answer = calls.bulk(parts[0], body, require_alias=query["require_alias"] == "true")
            assert answer["errors"] is False
        elif parts[-1] == "_mget":
            source = query["_source_includes"]
            answer = calls.mget(parts[0], body, realtime=query["realtime"] == "true", source=source)
            assert [doc["_id"] for doc in answer["docs"]] == body["ids"]
        elif parts[-1] == "_search":
            answer = calls.search(parts[0], dict(body), allow_partial_search_results=False)
            assert answer["hits"]["hits"] is not None
        else:
            assert method == "PUT"
            assert calls.make(parts[0], body)["acknowledged"]
    client_requests = [r for r in engine.requests if r.path != "/"]
    assert [said(each) for each in client_requests] == wanted
    lines = [line for _, path, _, body in wanted if path.endswith("_bulk") for line in body]
    assert {kind for line in lines for kind in line} >= {"index", "delete", "text", "forebay"}
    sent = {parts.path.rpartition("/")[2] for parts in client_requests}
    assert sent == {
        "pages",
        "pages-1",
        "pages-2",
        "pages-next",
        "_aliases",
        "_bulk",
        "_mget",
        "_search",
    }


async def test_what_the_target_wrote_is_read_by_the_official_clients(engine, url, client):
    """
    Searches of the alias find documents and no tombstones; the versions are there, and an older one
    is refused with 409.
    """
    target = ElasticsearchTarget(
        url, "pages", mappings={"properties": {"text": {"type": "text"}}}, refresh_seconds=60
    )
    target.create()
    await target.write([Document(n, 3, {"text": "a mill"}) for n in (1, 2, 3)])
    await target.delete([Gone(2)])
    client.indices.refresh(index="pages")
    calls = Calls(client)
    body = {"query": {"match_all": {}}, "version": True, "_source": ["text"]}
    hits = calls.search("pages", body)["hits"]["hits"]
    assert {hit["_id"]: hit["_version"] for hit in hits} == {"1": 3, "3": 3}
    actions = [
        {"_op_type": "index", "_index": "pages", "_id": str(n), "version": 2, "version_type": how}
        | {"_source": {"text": "old"}}
        for n, how in ((1, "external_gte"), (4, "external"))
    ]
    helpers = opensearchpy.helpers if calls.is_open else elasticsearch.helpers
    count, errors = helpers.bulk(client, actions, raise_on_error=False)
    assert (count, [error["index"]["status"] for error in errors]) == (1, [409])
    assert errors[0]["index"]["error"]["type"] == "version_conflict_engine_exception"
    await target.close()


def post(url, path, body, content_type):
    """Send what no client would; return the status and the error."""
    import urllib.error
    import urllib.request

    headers = {"Content-Type": content_type}
    request = urllib.request.Request(url + path, body, headers, method="POST")
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())["error"]


NDJSON = "application/x-ndjson"
GOOD = b'{"index":{"_id":"1"}}\n{}\n'


@pytest.mark.parametrize(
    ("path", "body", "content_type", "status", "problem"),
    [
        ("/pages/_bulk", GOOD, NDJSON, 200, None),
        ("/pages/_bulk", GOOD[:-1], NDJSON, 400, "must be terminated by a newline"),
        ("/pages/_bulk", GOOD, None, 406, "not supported"),
        ("/pages/_bulk", GOOD, "text/plain", 406, "not supported"),
        ("/pages/_bulk?replace=true", GOOD, NDJSON, 400, "unrecognized parameter: [replace]"),
        ("/pages/_bulk", b'{"index":{"id":"1"}}\n{}\n', NDJSON, 400, "unknown parameter [id]"),
        ("/pages/_bulk", b'{"put":{}}\n{}\n', NDJSON, 400, "but found [put]"),
        (
            "/pages/_bulk",
            b'{"index":{"_id":"1","version":3}}\n{}\n',
            NDJSON,
            400,
            "internal versioning",
        ),
        ("/_bulk", GOOD, NDJSON, 400, "index is missing"),
        ("/pages/_bulk", b'{"index":{"_id":"%b"}}\n{}\n' % (b"x" * 513), NDJSON, 400, "too long"),
        ("/pages/_search", GOOD, NDJSON, 406, "not supported"),
        ("/pages/_search", b'{"size":10001}', "application/json", 400, "too large"),
        ("/pages/_search", b'{"limit":1}', "application/json", 400, "[limit]"),
        ("/pages/_search", b'{"sort":["_id"]}', "application/json", 400, "Fielddata"),
        ("/pages/_search", b'{"sort":["age"]}', "application/json", 400, "No mapping found"),
        ("/nowhere/_search", b"{}", "application/json", 404, "no such index"),
        ("/pages/_mget", b'{"ids":[]}', "application/json", 400, "no documents to get"),
    ],
)
def test_the_stand_in_refuses_what_the_servers_refuse(path, body, content_type, status, problem):
    """
    Otherwise the target's tests would pass with requests that no real server takes.
    """
    engine = SearchEngine()
    with engine.running() as url:
        target = ElasticsearchTarget(url, "pages")
        target.create()
        # urllib would say of itself that a body is a form.
        found, error = post(url, path, body, content_type or "")
        assert found == status
        assert problem is None or problem in error["reason"]
