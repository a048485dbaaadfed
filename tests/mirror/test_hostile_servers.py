"""A search engine that answers too much, or nonsense: the items of the request are not at fault,
and memory is bounded.
"""

import asyncio
import gzip
import json
import threading
from contextlib import contextmanager

import pytest

from forebay.errors import ConfigError, TargetUnavailable
from forebay.mirror import Document, ElasticsearchTarget, Gone, SQLiteTarget
from forebay.mirror.targets import _http
from forebay.mirror.targets._groonga import GroongaTarget
from forebay.policy.error_text import describe_exception

pytestmark = pytest.mark.anyio


@contextmanager
def answering(body: bytes, *headers: str, repeat: int = 1):
    """A server that gives one answer to every request; yields its address and what it was asked."""
    asked: list[bytes] = []
    loop = asyncio.new_event_loop()

    async def answer(reader, writer):
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        head = "\r\n".join(
            [
                "HTTP/1.1 200 OK",
                f"Content-Length: {len(body) * repeat}",
                *headers,
                "Connection: close",
            ]
        )
        try:
            writer.write(head.encode() + b"\r\n\r\n")
            for _ in range(repeat):
                writer.write(body)
                await writer.drain()
            writer.close()
        except ConnectionError:
            pass  # the client has read enough

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(
        asyncio.start_server(answer, "127.0.0.1", 0), loop
    ).result()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:

        async def end():
            server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def outcomes(target):
    """Return the errors of each kind of call."""
    errors = []
    for call in (
        lambda: target.read([1, 2]),
        lambda: target.write([Document(1, 4, {"text": "x"}), Document(2, 4, {"text": "y"})]),
        lambda: target.delete([Gone(1)]),
        lambda: target.scan(None, None, 10),
    ):
        try:
            result = await call()
        except Exception as error:
            errors.append(error)
        else:
            errors.append(result)
    await target.close()
    return errors


#: Well-formed JSON that is no answer to the request, and JSON that is none.
ODD = [
    b"[]", b"3", b'"x"', b"null", b"{}", b"{", b"\xff", b"[" * 100_000, b'{"docs": 3}',
    b'{"docs": [3]}',
    b'{"docs": [{}]}', b'{"docs": [{"found": true}]}',
    b'{"docs": [{"found": true, "_id": "9", "_version": 1}]}',
    b'{"docs": [{"found": true, "_id": "1", "_version": "x", "_source": {"forebay": {}}}]}',
    b'{"docs": [{"found": true, "_id": "1", "_version": 1, "_source": {"forebay": 5}}]}',
    b'{"docs": [{"found": true, "_id": "1", "_version": 1, "_source": []}]}',
    b'{"items": 3}', b'{"items": [1, 2]}', b'{"items": [{"index": 1}, {"index": 2}]}',
    b'{"items": [{"index": {"_id": "1", "status": []}}, {"index": {"_id": "2", "status": 200}}]}',
    b'{"hits": {"hits": 3}}', b'{"hits": {"hits": [3]}}', b'{"hits": {"hits": [{"sort": []}]}}',
    b'{"hits": {"hits": [{"sort": [[1]], "_version": 1, "_source": {"forebay": {}}}]}}',
    b'{"_shards": 3}',
    b'{"header": {"return_code": 0}}', b'{"header": {"return_code": 0}, "body": 3}',
    b'{"header": {"return_code": 0, "error": 3}, "body": {}}',
    b'{"header": {"return_code": 0}, "body": {"records": [[1]], "n_loaded_records": "x"}}',
    (b'{"header": {"return_code": 0}, "body": {"records": [["1:1", 1, "x", "", 0]],'
     b' "n_loaded_records": 0}}'),
    (b'{"header": {"return_code": 0}, "body": {"records": [["1:1", [1], 1, "", 0]],'
     b' "n_loaded_records": 0}}'),
]  # fmt: skip


@pytest.mark.parametrize("body", ODD, ids=lambda body: body[:60].decode(errors="replace"))
async def test_an_odd_answer_blames_no_item(body):
    """
    Every call fails as a whole and can be repeated; no error belongs to an item.
    """
    with answering(body) as (url, _):
        for target in (
            ElasticsearchTarget(url, "pages", timeout=20),
            GroongaTarget(url, timeout=20),
        ):
            for error in await outcomes(target):
                assert isinstance(error, TargetUnavailable) or error in ({}, []), (target, error)


async def test_a_long_answer_is_not_read_to_its_end():
    """
    A gigabyte that the server announces is refused after a part of it.
    """
    with answering(b" " * 1_000_000, repeat=1000) as (url, _):
        target = ElasticsearchTarget(url, "pages", timeout=20)
        for error in await outcomes(target):
            assert isinstance(error, TargetUnavailable)
            assert "more than 32000000 bytes" in str(error)


async def test_a_packed_answer_is_refused_unpacked():
    """
    The request asks for none; a megabyte of gzip would be a gigabyte.
    """
    packed = gzip.compress(b" " * 10_000_000)
    with answering(packed, "Content-Encoding: gzip") as (url, asked):
        target = ElasticsearchTarget(url, "pages", timeout=20)
        for error in await outcomes(target):
            assert isinstance(error, TargetUnavailable)
            assert "packs its answers" in str(error)
    assert b"accept-encoding: identity" in asked[0].lower()
    assert len(_http._decoded(b"x" * 10**6)) < 1000


@pytest.mark.parametrize(
    "url",
    [
        "http://ann:s3cr3t/x@127.0.0.1:9", "http://ann:s3cr3t?x@127.0.0.1:9", "http://ann:s3cr3t#x@127.0.0.1:9",
        "http://127.0.0.1:s3cr3t", "http://127.0.0.1/?key=s3cr3t", "http://ann:s3cr3t@[::1", "http://ann:s3cr3t\n@h",
    ],
)  # fmt: skip
def test_a_malformed_address_is_refused_without_its_password(url):
    """
    When the target is made, not with each item.
    """
    with pytest.raises(ConfigError) as caught:
        ElasticsearchTarget(url, "pages")
    assert "s3cr3t" not in str(caught.value)


def test_a_header_that_would_be_two_is_refused_without_its_value():
    """
    An API key that was read from a file with its line break.
    """
    with pytest.raises(ConfigError) as caught:
        ElasticsearchTarget("http://127.0.0.1:9", "pages", headers={"Authorization": "s3cr3t\n"})
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://ann:s3cr3t@127.0.0.1:9", "http://ann:s3cr3t@nowhere.invalid"]
)
async def test_an_unreachable_server_is_named_without_its_password(url):
    """
    Not in the message, nor in its cause, which a traceback shows and the error history keeps.
    """
    target = ElasticsearchTarget(url, "pages", timeout=5)
    for error in await outcomes(target):
        assert "s3cr3t" not in describe_exception(error).traceback


async def test_a_redirect_to_a_hostile_address_shows_nothing():
    """
    An answer whose location repeats the password is not followed.
    """
    body = json.dumps({"error": "x"}).encode()
    with answering(body, "Location: http://ann:s3cr3t@[") as (url, _):
        for error in await outcomes(ElasticsearchTarget(url, "pages", timeout=5)):
            assert "s3cr3t" not in str(error)


@pytest.mark.parametrize(
    "words", ['"mill', "mill AND", "(", "nosuch: mill", "*", "a NEAR/x b", "^"]
)
def test_a_malformed_query_of_fts5_is_the_callers_error(tmp_path, words):
    """
    The target is not unavailable; the file that cannot be read is.
    """
    target = SQLiteTarget(tmp_path / "words.db")
    target.write([Document(1, 4, {"text": "a mill"})])
    with pytest.raises(ValueError, match="malformed query"):
        target.search(words)
    assert target.search("mill") == [1]
    with pytest.raises(TargetUnavailable):
        SQLiteTarget(tmp_path / "no folder" / "words.db").search(words)
