"""Signatures of Standard Webhooks, held against the library standardwebhooks and against ed25519
of cryptography.
"""

import asyncio
import base64
import os
import time
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from standardwebhooks import Webhook, WebhookVerificationError

from forebay.errors import ConfigError, SinkUnavailable
from forebay.sinks import Accepted
from forebay.sinks._signing import Signer, public_key
from forebay.sinks.http import Destinations, Http, Secret
from forebay.testing import make_message


def secret(size=32, prefix="whsec_"):
    return prefix + base64.b64encode(os.urandom(size)).decode()


def send(sink, *messages):
    async def use():
        await sink.open()
        try:
            return await sink.send(messages)
        finally:
            await sink.close()

    return asyncio.run(use())


@pytest.fixture
def make(http_endpoint, far_name):
    def made(**options):
        return Http(
            f"http://127.0.0.1:{http_endpoint.port}/{far_name}",
            destinations=Destinations(allow=["127.0.0.1"], https_only=False, ports=None),
            **options,
        )

    return made


@pytest.fixture
def arrived(http_endpoint, far_name):
    return http_endpoint.requests[far_name]


def test_the_example_of_the_specification():
    """
    The example that libraries of Standard Webhooks are tested with.
    """
    signer = Signer(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])
    headers = signer.headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_the_receiver_verifies_what_arrives(make, arrived, monkeypatch):
    key = secret()
    monkeypatch.setenv("WEBHOOK_SECRET", key)
    message = make_message(1, body='{"title":"S\u00fcd \U0001f30a"}')
    assert send(make(secrets=["env:WEBHOOK_SECRET"]), message) == [Accepted()]
    (request,) = arrived
    assert Webhook(key).verify(request.body, request.headers) == {"title": "S\u00fcd \U0001f30a"}
    assert request.headers["webhook-id"] == message.id
    assert abs(int(request.headers["webhook-timestamp"]) - datetime.now(UTC).timestamp()) < 60


def test_what_was_changed_on_the_way_is_refused(make, arrived):
    key = secret()
    send(make(secrets=[Secret(key)]), make_message(1))
    (request,) = arrived
    webhook = Webhook(key)
    webhook.verify(request.body, request.headers)
    for place in range(len(request.body)):
        body = bytearray(request.body)
        body[place] ^= 1
        with pytest.raises(WebhookVerificationError):
            webhook.verify(bytes(body), request.headers)
    stamp = int(request.headers["webhook-timestamp"])
    for change in (
        {"webhook-id": request.headers["webhook-id"] + "1"},
        {"webhook-timestamp": str(stamp + 1)},
        {"webhook-timestamp": str(stamp - 3600)},
        {"webhook-signature": "v1," + base64.b64encode(bytes(32)).decode()},
    ):
        with pytest.raises(WebhookVerificationError):
            webhook.verify(request.body, request.headers | change)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret()).verify(request.body, request.headers)


def test_a_repetition_has_the_same_id_and_a_new_time(make, arrived, monkeypatch):
    now = iter([1_700_000_000.2, 1_700_000_600.9])
    clock = SimpleNamespace(time=lambda: next(now), monotonic=time.monotonic)
    monkeypatch.setattr("forebay.sinks._http_calls.time", clock)
    sink = make(secrets=[Secret(secret())])
    send(sink, make_message(1))
    send(sink, make_message(1))
    first, second = (request.headers for request in arrived)
    assert first["webhook-id"] == second["webhook-id"]
    assert first["webhook-timestamp"] == "1700000000"
    assert second["webhook-timestamp"] == "1700000600"
    assert first["webhook-signature"] != second["webhook-signature"]


def test_all_secrets_sign_so_that_receivers_change_at_different_times(make, arrived):
    old, new = secret(24), secret(64)
    send(make(secrets=[Secret(old), Secret(new)]), make_message(1))
    (request,) = arrived
    assert len(request.headers["webhook-signature"].split(" ")) == 2
    for key in (old, new):
        Webhook(key).verify(request.body, request.headers)


@pytest.mark.parametrize("has_public_part", [True, False])
def test_a_private_key_signs_and_the_public_key_verifies(make, arrived, has_public_part):
    private = Ed25519PrivateKey.generate()
    raw = private.private_bytes_raw()
    public = private.public_key().public_bytes_raw()
    key = "whsk_" + base64.b64encode(raw + public if has_public_part else raw).decode()
    symmetric = secret()
    send(make(secrets=[Secret(symmetric), Secret(key)]), make_message(1))
    (request,) = arrived
    Webhook(symmetric).verify(request.body, request.headers)  # it skips v1a
    version, _, signature = request.headers["webhook-signature"].split(" ")[1].partition(",")
    assert version == "v1a"
    assert public_key(key) == "whpk_" + base64.b64encode(public).decode()
    receiver = Ed25519PublicKey.from_public_bytes(public)
    headers = request.headers
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + request.body
    receiver.verify(base64.b64decode(signature), content)
    with pytest.raises(InvalidSignature):
        receiver.verify(base64.b64decode(signature), content + b" ")


def test_an_id_with_a_full_stop_does_not_reach_into_the_time():
    """
    What is signed is id.time.body: a full stop in the id would let two contents look alike.
    """
    key = secret()
    signer = Signer([key])
    headers = signer.headers("7-5f-eu.west~1", int(datetime.now(UTC).timestamp()), b"{}")
    assert headers["webhook-id"] == "7-5f-eu%2Ewest~1"
    Webhook(key).verify(b"{}", headers)


def test_a_request_without_a_body_is_signed_too(make, arrived):
    key = secret()
    send(make(secrets=[Secret(key)], method="DELETE"), make_message(1))
    (request,) = arrived
    assert request.body == b""
    Webhook(key).verify(request.body, request.headers, json_parse=False)


def test_an_array_is_signed_as_a_whole(make, arrived):
    key = secret()
    sink = make(secrets=[Secret(key)], batch="array")
    send(sink, make_message(1), make_message(2))
    send(sink, make_message(1), make_message(2))
    assert len(Webhook(key).verify(arrived[0].body, arrived[0].headers)) == 2
    assert arrived[0].headers["webhook-id"] == arrived[1].headers["webhook-id"]


# --- secrets ---


@pytest.mark.parametrize(
    "bad",
    [
        "whsec_" + base64.b64encode(bytes(23)).decode(),
        "whsec_" + base64.b64encode(bytes(65)).decode(),
        "whsec_!!!not-base64!!!",
        "whsk_" + base64.b64encode(bytes(31)).decode(),
        "whsk_" + base64.b64encode(bytes(64)).decode(),  # the public part of another key
        "canary-secret",
        "",
    ],
)
def test_a_bad_secret_makes_messages_wait_and_is_shown_nowhere(make, bad, monkeypatch):
    monkeypatch.setenv("WEBHOOK_SECRET", bad)
    with pytest.raises(SinkUnavailable) as caught:
        send(make(secrets=["env:WEBHOOK_SECRET"]), make_message(1))
    assert "secret" in str(caught.value)
    assert not bad or bad not in str(caught.value)


@pytest.mark.parametrize(
    "secrets",
    [["whsec_canary"], "env:ONE", ["env:"], [7], ["env:ONE"] * 11, 7],
)
def test_a_literal_secret_in_a_configuration_is_refused(make, secrets):
    with pytest.raises(ConfigError, match="secrets") as caught:
        make(secrets=secrets)
    assert "canary" not in str(caught.value)


def test_a_secret_in_a_file_is_read_again(make, arrived, tmp_path, monkeypatch):
    monkeypatch.setattr("forebay.sinks.http._REREAD_SECONDS", 0.0)
    old, new = secret(), secret()
    file = tmp_path / "secret"
    file.write_text(f"{old}\n")

    async def use():
        sink = make(secrets=[f"file:{file}"])
        await sink.open()
        await sink.send([make_message(1)])
        file.write_text(f"{new}\n")
        await sink.send([make_message(2)])
        await sink.close()

    asyncio.run(use())
    for key, request in zip((old, new), arrived, strict=True):
        Webhook(key).verify(request.body, request.headers)


def test_a_missing_file_makes_messages_wait(make):
    with pytest.raises(SinkUnavailable, match="FileNotFoundError"):
        send(make(secrets=["file:/nonexistent/secret"]), make_message(1))
