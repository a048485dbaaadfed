"""What is kept of the answers of an endpoint, and where it can be read."""

import base64

import pytest
from aiohttp import web

import forebay
from forebay.cli._main import run_program
from tests.support.delivering import LOCAL, create_endpoint, delivering, http_config, send
from tests.support.engine import connect, one
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio

#: The test's server is at a listed host, so the deliverer decides whether answers are shown.
SHOWN = LOCAL | {
    "endpoint_settings": '{"http": {"show_response": true}}',
    "endpoint_variables": "CANARY",
}


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


@pytest.fixture
def deliver(database, conn, http_endpoint, far_name, monkeypatch):
    """Send a message that is answered so; return the id of its delivery, which ended."""
    monkeypatch.setenv("CANARY", "canary")

    async def run(*answers, permissions=SHOWN, retry=(), **options):
        left = list(answers)

        async def answer(request):
            status, body, content_type = left.pop(0)
            if b"{echo}" in body:
                body = body.replace(b"{echo}", request.headers["authorization"].encode())
            return web.Response(status=status, body=body, headers={"Content-Type": content_type})

        http_endpoint.answers[far_name] = answer
        config = http_config(http_endpoint, far_name, auth="bearer env:CANARY")
        options = {"keeps_response": True, "retry": list(retry)} | options
        create_endpoint(conn, "shop", "http", config, **options)
        (job_id,) = send(conn, "shop")
        client = forebay.Client(database)
        async with delivering(database, permissions=permissions):
            await wait_for_async(lambda: client.job(job_id)[0].state in ("done", "dead"))
        return job_id

    return run


async def test_an_answer_is_read_in_sql_in_python_and_at_the_command_line(
    database, conn, deliver, capsys
):
    job_id = await deliver((201, '{"id": "Süd"}'.encode(), "application/json; charset=utf-8"))
    value = forebay.Client(database).result(job_id)
    assert 0 <= value.pop("seconds") < 60
    assert value == {
        "response": 'HTTP status 201: {"id": "Süd"}', "proof": None, "is_duplicate": False,
        "status": 201, "content_type": "application/json; charset=utf-8",
        "body": '{"id": "Süd"}', "body_base64": None, "is_cut": False,
    }  # fmt: skip
    query = "select (value ->> 'body')::jsonb ->> 'id' from forebay.result(%s)"
    assert one(conn, query, job_id) == "Süd"
    for command in (["jobs", "show"], ["where"]):
        run_program([*command, str(job_id), "--dsn", database])
        assert "HTTP status 201" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("body", "text", "encoded"),
    [(b"a\0b", None, b"a\0b"), (b"\xff\x00", None, b"\xff\x00"), (b"", "", None)],
)
async def test_an_answer_of_any_bytes_is_kept(database, deliver, body, text, encoded):
    """Where JSON and PostgreSQL cannot carry it as text, as base64."""
    value = forebay.Client(database).result(await deliver((200, body, "image/png")))
    assert value["body"] == text
    assert (value["body_base64"] and base64.b64decode(value["body_base64"])) == encoded


async def test_a_long_answer_is_cut(database, deliver):
    value = forebay.Client(database).result(await deliver((200, b"x" * 100_000, "text/plain")))
    assert (value["body"], value["is_cut"]) == ("x" * 4096, True)


async def test_a_secret_that_is_echoed_is_kept_nowhere(database, conn, deliver):
    """Of the answer that accepts, and of failed tries before it."""
    echo = b"you sent {echo}"
    job_id = await deliver(
        (500, echo, "text/plain"), (200, echo, "text/plain"), retry=[0.05]
    )  # fmt: skip
    (history,) = forebay.Client(database).job_history(job_id)
    assert history.errors[0].message == "HTTP status 500: you sent Bearer ***"
    assert history.result.value["body"] == "you sent Bearer ***"
    tables = ("failure", "result", "endpoint_state", "event")
    for table in tables:
        assert one(conn, f"select count(*) from forebay.{table} t where t::text ~ 'canary'") == 0


async def test_a_refusal_keeps_the_beginning_of_its_answer_in_the_dead_letter(database, deliver):
    """At most 200 characters, printable."""
    await deliver((422, b"no\0such\norder" + b"x" * 9000, "text/plain"))
    (letter,) = forebay.Client(database).dead_letters(queue="forebay.deliver")
    message = letter.errors[-1].message
    assert message.startswith("HTTP status 422: no such order")
    assert len(message) == len("HTTP status 422: ") + 200


async def test_a_row_cannot_have_answers_kept_that_the_deliverer_does_not_show(database, deliver):
    """Status and time only."""
    permissions = LOCAL | {"endpoint_variables": "CANARY"}
    job_id = await deliver((200, b"internal", "text/internal"), permissions=permissions)
    value = forebay.Client(database).result(job_id)
    assert value.keys() == {"response", "proof", "is_duplicate", "status", "seconds"}
    assert "internal" not in str(value)


async def test_an_answer_is_kept_as_long_as_its_delivery(database, conn, deliver):
    """As retention_days says, also if it is other than the time of results of handlers."""
    one(conn, "select forebay.configure('retention_days', 45)")
    job_id = await deliver((200, b"ok", "text/plain"))
    query = "select kept_until - kept_at from forebay.result where job_id = %s"
    assert one(conn, query, job_id).days == 45


async def test_nothing_is_kept_unless_it_is_wanted(database, conn, deliver):
    await deliver((200, b"ok", "text/plain"), keeps_response=False)
    assert one(conn, "select count(*) from forebay.result") == 0
