"""Certificates of the HTTP sink, at a server that demands them, and pinned keys."""

import asyncio
import re
import shutil
import ssl

import pytest

import forebay.sinks.http
from forebay.config import DeliverySettings
from forebay.errors import SinkUnavailable
from forebay.sinks import Accepted, NotPermitted, Permissions, TryLater
from forebay.sinks._http_tls import pin_of
from forebay.sinks.http import Destinations, Http, Secret
from forebay.testing import make_message
from tests.support.demanding_server import demanding
from tests.support.http_endpoint import certificate

LOCAL = Destinations(allow=["127.0.0.1", "localhost"], https_only=False, ports=None)


@pytest.fixture
def files(tmp_path):
    """The server's certificate, and the client's; each file has the key too."""
    return certificate(tmp_path), certificate(tmp_path, "client")


@pytest.fixture
def server(files):
    with demanding(*files) as found:
        yield found


def sink_at(server, files, **options):
    return Http(
        f"https://localhost:{server.server_port}/hook",
        **{"destinations": LOCAL, "ca_file": str(files[0]), "cert_file": str(files[1])} | options,
    )


def send(sink, *messages):
    async def use():
        await sink.open()
        try:
            return await sink.send(messages or [make_message(1)])
        finally:
            await sink.close()

    return asyncio.run(use())


def parts_of(file):
    """Return certificate and key of a file, each as text."""
    text = file.read_text()
    key, cert = re.findall(r"-----BEGIN .*?-----END [A-Z ]+-----\n", text, re.DOTALL)
    return cert, key


def split(file):
    """Write certificate and key to files of their own, and return these."""
    cert, key = file.with_suffix(".crt"), file.with_suffix(".key")
    for part, text in zip((cert, key), parts_of(file), strict=True):
        part.write_text(text)
    return cert, key


def test_a_message_arrives_with_the_certificate(server, files):
    """From one file, and from two."""
    assert send(sink_at(server, files)) == [Accepted()]
    cert, key = split(files[1])
    assert send(sink_at(server, files, cert_file=str(cert), key_file=str(key))) == [Accepted()]
    assert server.names == ["client", "client"]


@pytest.mark.parametrize("tls_1_2", [False, True])
def test_without_a_certificate_the_reason_names_the_settings(files, tls_1_2):
    """Nothing arrives. TLS 1.2 has no alert that says what is missing."""
    with demanding(*files, tls_1_2=tls_1_2) as server:
        (answer,) = send(sink_at(server, files, cert_file=None))
        assert server.names == []
    if tls_1_2:
        assert answer == TryLater(
            "the TLS handshake failed: the endpoint may demand a client certificate"
        )
    else:
        assert isinstance(answer, SinkUnavailable)
        assert "demands a client certificate: give cert_file and key_file" in str(answer)


@pytest.mark.parametrize("tls_1_2", [False, True])
def test_a_certificate_that_the_endpoint_refuses_makes_messages_wait(files, tmp_path, tls_1_2):
    """It is no fault of the message; the reason is that of the alert."""
    other = certificate(tmp_path, "other")
    with demanding(*files, tls_1_2=tls_1_2) as server:
        (answer,) = send(sink_at(server, files, cert_file=str(other)))
        assert isinstance(answer, SinkUnavailable)
        assert "refuses the client certificate: its authority is unknown there" in str(answer)
        assert server.names == []


def test_an_encrypted_key_is_opened_by_a_secret(server, files, tmp_path, monkeypatch):
    """Nobody is asked at a terminal, and no reason shows the passphrase."""
    file = certificate(tmp_path, "locked", passphrase="canary")
    server.trust(file)
    monkeypatch.setenv("PHRASE", "canary")
    options = {"cert_file": str(file)}
    assert send(sink_at(server, files, **options, key_passphrase="env:PHRASE")) == [Accepted()]
    with pytest.raises(SinkUnavailable, match="encrypted, and key_passphrase is not given"):
        send(sink_at(server, files, **options))
    with pytest.raises(SinkUnavailable, match="key_passphrase: does not open the key") as caught:
        send(sink_at(server, files, **options, key_passphrase=Secret("canary-2")))
    assert "canary" not in str(caught.value)


def ruined(files, tmp_path):
    """Yield what is wrong with files, the settings, and the reason."""
    cert, key = split(files[1])
    other_cert, _ = split(certificate(tmp_path, "other"))
    text = tmp_path / "text"
    text.write_text("canary")
    folder = tmp_path / "folder"
    folder.mkdir()
    expired = certificate(tmp_path, "expired", days=-1)
    yield {"cert_file": str(other_cert), "key_file": str(key)}, "key_file: the key does not belong"
    yield {"cert_file": str(cert)}, "cert_file: has no private key"
    yield {"cert_file": str(cert), "key_file": str(text)}, "key_file: has no private key"
    yield {"cert_file": str(text)}, "cert_file: has no certificate"
    yield {"cert_file": str(tmp_path / "none")}, "cert_file: cannot be read: FileNotFoundError"
    yield (
        {"cert_file": str(cert), "key_file": str(tmp_path / "none")},
        "key_file: cannot be read: FileNotFoundError",
    )
    yield {"cert_file": str(folder)}, "cert_file: cannot be read: IsADirectoryError"
    yield {"cert_file": str(expired)}, "cert_file: the certificate expired at 20"


def test_files_that_cannot_be_used_make_messages_wait(server, files, tmp_path):
    """Each reason names the setting to mend, and no content. Nothing is sent."""
    for options, problem in ruined(files, tmp_path):
        with pytest.raises(SinkUnavailable, match=problem) as caught:
            send(sink_at(server, files, **options))
        assert "canary" not in str(caught.value)
    assert server.names == []


def test_replaced_files_are_used_while_the_sink_is_open(server, files, tmp_path, monkeypatch):
    """A new pair is for new requests; half of one makes messages wait until the other half is
    there.
    """
    monkeypatch.setattr(forebay.sinks.http, "_REREAD_SECONDS", -1.0)
    new = certificate(tmp_path, "renewed")
    server.trust(new)
    cert, key = split(files[1])
    new_cert, new_key = split(new)

    async def use():
        sink = sink_at(server, files, cert_file=str(cert), key_file=str(key))
        await sink.open()
        assert await sink.send([make_message(1)]) == [Accepted()]
        before = sink._context
        assert await sink.send([make_message(2)]) == [Accepted()]
        assert sink._context is before  # unchanged files are not loaded again
        shutil.copy(new_cert, cert)
        with pytest.raises(SinkUnavailable, match="does not belong"):
            await sink.send([make_message(3)])
        with pytest.raises(SinkUnavailable, match="does not belong"):
            await sink.open()
        new_key.replace(key)
        assert await sink.send([make_message(3)]) == [Accepted()]
        await sink.close()

    asyncio.run(use())
    assert server.names == ["client", "client", "renewed"]


def test_a_row_names_files_in_the_folders_of_the_deliverer(tmp_path):
    """The same folders as for secrets; a link out of them is outside."""
    (tmp_path / "in").mkdir()
    inside = certificate(tmp_path / "in", "inside")
    outside = certificate(tmp_path, "outside")
    (tmp_path / "in" / "link").symlink_to(outside)
    allowed = Permissions(
        DeliverySettings(endpoint_folders=str(tmp_path / "in"), endpoint_variables="PHRASE")
    )
    row = {"url": "https://example.com/", "key_passphrase": "env:PHRASE"}
    assert allowed.sink("http", row | {"cert_file": str(inside), "key_file": str(inside)})
    for bad in (outside, tmp_path / "in" / "link", tmp_path / "in" / ".." / "outside.pem"):
        for field in ("cert_file", "key_file"):
            with pytest.raises(NotPermitted, match=rf"endpoint_folders .*http\.{field}"):
                allowed.sink("http", row | {"cert_file": str(inside), field: str(bad)})
    with pytest.raises(NotPermitted, match="endpoint_folders"):
        Permissions().sink("http", {"url": "https://a.example/", "cert_file": str(inside)})


def test_a_pinned_key_is_demanded_besides_a_valid_certificate(http_endpoint, far_name):
    """Another key gets no request, whoever signed it."""
    url = f"https://localhost:{http_endpoint.tls_port}/{far_name}"
    pin = pin_of(ssl.PEM_cert_to_DER_cert(parts_of(http_endpoint.ca_file)[0]))
    other = "sha256//" + "A" * 43 + "="

    def sink(*pins, ca_file=str(http_endpoint.ca_file)):
        return Http(url, destinations=LOCAL, ca_file=ca_file, pinned=list(pins))

    assert send(sink(other)) == [TryLater("the public key of the endpoint is none of pinned")]
    assert send(sink(pin, ca_file=None)) == [TryLater("the TLS certificate is not valid")]
    assert http_endpoint.requests[far_name] == []
    assert send(sink(other, pin), make_message(1), make_message(2)) == [Accepted(), Accepted()]


def test_a_pin_is_the_hash_that_other_programs_have(tmp_path):
    """SHA-256 of the SubjectPublicKeyInfo, as in RFC 7469 and curl: a key and its pin, computed by
    the openssl command.
    """
    import base64
    import hashlib

    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_private_key,
    )

    file = certificate(tmp_path)
    key = load_pem_private_key(file.read_bytes(), None).public_key()
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    expected = base64.b64encode(hashlib.sha256(der).digest()).decode()
    assert pin_of(ssl.PEM_cert_to_DER_cert(parts_of(file)[0])) == f"sha256//{expected}"
