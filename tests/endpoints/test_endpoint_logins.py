"""Endpoints as rows that are logged in to: from the row through the settings of the deliverer."""

import pytest
from aiohttp import web

import forebay
from tests.support.delivering import LOCAL, create_endpoint, delivering, http_config, send
from tests.support.demanding_server import demanding
from tests.support.engine import connect, one
from tests.support.http_endpoint import certificate
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


async def test_a_token_endpoint_that_is_away_costs_tries_and_no_message(
    database, conn, http_endpoint, far_name, monkeypatch
):
    """Deliveries are tried again until there is a token; then all arrive with it."""
    monkeypatch.setenv("HOOK_SECRET", "canary")
    statuses = [503, 401, 503]

    async def give(_):
        if statuses:
            return web.json_response({"error": "invalid_client"}, status=statuses.pop())
        return web.json_response({"access_token": "t1", "token_type": "bearer"})

    http_endpoint.answers[f"{far_name}-token"] = give
    config = http_config(
        http_endpoint, far_name, token_url=f"http://127.0.0.1:{http_endpoint.port}/{far_name}-token",
        client_id="shop", client_secret="env:HOOK_SECRET",
    )  # fmt: skip
    one(conn, "select forebay.allow_hosts('{127.0.0.1}')")
    create_endpoint(conn, "shop", "http", config, retry=[0.05] * 9)
    send(conn, "shop", 3)
    allowed = LOCAL | {"endpoint_variables": "HOOK_*"}
    async with delivering(database, permissions=allowed) as worker:
        await wait_for_async(lambda: worker.stats.done == 3)
    found = {one.headers["authorization"] for one in http_endpoint.requests[far_name]}
    assert found == {"Bearer t1"}
    assert forebay.Client(database).dead_letters(queue="forebay.deliver") == []
    errors = one(conn, "select string_agg(last_error, ' ') from forebay.endpoint_state")
    assert "canary" not in (errors or "")


async def test_a_row_names_its_certificate_in_a_folder_of_the_deliverer(database, conn, tmp_path):
    """With `ca_file` from the deliverer; a file elsewhere is refused without an attempt."""
    server_file = certificate(tmp_path)
    (tmp_path / "hooks").mkdir()
    inside = certificate(tmp_path / "hooks", "shop")
    outside = certificate(tmp_path, "other")
    allowed = LOCAL | {
        "endpoint_folders": str(tmp_path / "hooks"),
        "endpoint_settings": f'{{"http": {{"ca_file": "{server_file}"}}}}',
    }
    one(conn, "select forebay.allow_hosts('{localhost}')")
    with demanding(server_file, inside, outside) as server:
        url = f"https://localhost:{server.server_port}/hook"
        create_endpoint(conn, "shop", "http", {"url": url, "cert_file": str(inside)})
        create_endpoint(conn, "other", "http", {"url": url, "cert_file": str(outside)})
        send(conn, "shop")
        send(conn, "other")
        query = "select last_error from forebay.endpoints('other')"
        async with delivering(database, permissions=allowed) as worker:
            await wait_for_async(lambda: worker.stats.done == 1)
            await wait_for_async(lambda: "endpoint_folders" in (one(conn, query) or ""))
        assert server.names == ["shop"]
