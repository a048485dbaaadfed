"""Signatures of AWS of the HTTP sink: against examples of AWS, and against botocore by itself."""

import asyncio
import datetime as dt
import hashlib
import importlib
import json

import botocore.auth
import pytest
from aiohttp import web
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials, ReadOnlyCredentials, RefreshableCredentials

import forebay.sinks.http
from forebay.config import DeliverySettings
from forebay.errors import ConfigError, SinkUnavailable
from forebay.sinks import Accepted, NotPermitted, Permissions, Rejected
from forebay.sinks._http_answer import without
from forebay.sinks._http_aws import AwsSignature
from forebay.sinks.http import Destinations, Http, Secret
from forebay.testing import make_message

LOCAL = Destinations(allow=["127.0.0.1", "localhost"], https_only=False, ports=None)
KEYS = {"aws_key_id": Secret("AKIDEXAMPLE"), "aws_secret_key": Secret("canary-key")}
NOTHING = dict.fromkeys(("aws_key_id", "aws_secret_key", "aws_session_token", "aws_profile"))


@pytest.fixture(autouse=True)
def no_login_of_this_machine(monkeypatch, tmp_path):
    """No keys of the environment, of files or of a service of the machine."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return tmp_path / "credentials"


@pytest.fixture
def make(http_endpoint, far_name):
    def made(*, path="", **options):
        return Http(
            f"http://127.0.0.1:{http_endpoint.port}/{far_name}{path}",
            **{"destinations": LOCAL, "aws_service": "execute-api", "aws_region": "eu-central-1"}
            | options,
        )

    return made


@pytest.fixture
def arrived(http_endpoint, far_name):
    return http_endpoint.requests[far_name]


def using(sink, use):
    async def run():
        await sink.open()
        try:
            return await use(sink)
        finally:
            await sink.close()

    return asyncio.run(run())


def send(sink, *messages):
    return using(sink, lambda each: each.send(messages or [make_message(1)]))


RANGE = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
LIFECYCLE = "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
LIST = "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"


@pytest.mark.parametrize(
    ("path", "headers", "signature"),
    [
        ("/test.txt", {"range": "bytes=0-9"}, RANGE),
        ("/?lifecycle", {}, LIFECYCLE),
        ("/?max-keys=2&prefix=J", {}, LIST),
    ],
)
def test_the_examples_in_the_documentation_of_aws(monkeypatch, path, headers, signature):
    """Amazon S3, "Signature calculations for the Authorization header": 24 May 2013."""
    at = dt.datetime(2013, 5, 24, tzinfo=dt.UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: at)
    login = AwsSignature(
        NOTHING | {
            "aws_service": "s3", "aws_region": "us-east-1",
            "aws_key_id": Secret("AKIAIOSFODNN7EXAMPLE"),
            "aws_secret_key": Secret("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
        },
        "GET", f"https://examplebucket.s3.amazonaws.com{path}",
    )  # fmt: skip

    async def signed():
        await login.read(lambda _, secret: secret.reveal())
        return await login.headers(headers, b"", 1)

    found = asyncio.run(signed())
    names = ";".join(sorted([*headers, "host", "x-amz-content-sha256", "x-amz-date"]))
    assert found["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        f"SignedHeaders={names}, Signature={signature}"
    )


def recomputed(request, url, service="execute-api", region="eu-central-1", token=None):
    """Return the signature of a request that arrived, as a server computes it from what it got."""
    given = request.headers["authorization"]
    names = given.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    headers = {name: request.headers[name] for name in names if name != "x-amz-date"}
    again = AWSRequest(request.method, url, headers=headers, data=request.body)
    at = dt.datetime.fromisoformat(request.headers["x-amz-date"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.auth, "get_current_datetime", lambda: at)
        keys = Credentials("AKIDEXAMPLE", "canary-key", token)
        botocore.auth.SigV4Auth(keys, service, region).add_auth(again)
    return again.headers["Authorization"], names


def test_the_signature_covers_method_address_headers_and_body(http_endpoint, make, arrived):
    """As the server recomputes it from what arrived. Changing any of them breaks it."""
    message = make_message(
        1, headers={"Tenant": "a  b", "Town": "K\u00f6ln", "X-Amz-Tagging": "evil"}
    )
    sink = make(
        path="/a%20b/c?y=1&x=%2F", **KEYS, aws_session_token=Secret("canary-token"),
        headers={"X-Amz-Target": "Orders.Put"}, secrets=[Secret("whsec_" + "a" * 32)],
    )  # fmt: skip
    assert send(sink, message) == [Accepted()]
    (request,) = arrived
    url = f"http://127.0.0.1:{http_endpoint.port}{request.path}"
    expected, names = recomputed(request, url, token="canary-token")
    assert request.headers["authorization"] == expected
    assert {
        "content-type", "forebay-id", "host", "tenant", "webhook-signature",
        "x-amz-content-sha256", "x-amz-date", "x-amz-security-token", "x-amz-target",
    } <= set(names)  # fmt: skip
    assert "town" not in names
    assert request.headers["town"] == "K\u00f6ln"
    assert request.headers["x-amz-target"] == "Orders.Put"
    assert "evil" not in request.headers.values()  # jobs choose nothing under the signature
    assert request.headers["x-amz-content-sha256"] == hashlib.sha256(request.body).hexdigest()
    request.body = b"{}"
    del request.headers["x-amz-content-sha256"]
    names_left = [name for name in names if name != "x-amz-content-sha256"]
    request.headers["authorization"] = expected.replace(";".join(names), ";".join(names_left))
    assert recomputed(request, url, token="canary-token")[0] != expected


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_request_without_a_body_is_signed_too(http_endpoint, make, arrived, method):
    assert send(make(method=method, **KEYS)) == [Accepted()]
    (request,) = arrived
    url = f"http://127.0.0.1:{http_endpoint.port}{request.path}"
    assert recomputed(request, url)[0] == request.headers["authorization"]


def test_each_try_is_signed_with_its_own_time(make, arrived, monkeypatch):
    """A message that is sent again after an hour does not carry the old signature."""
    times = [dt.datetime(2030, 1, 1, hour, tzinfo=dt.UTC) for hour in (1, 2)]
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: times.pop(0))

    async def use(sink):
        return [await sink.send([make_message(1)]) for _ in range(2)]

    assert using(make(**KEYS), use) == [[Accepted()]] * 2
    dates = [one.headers["x-amz-date"] for one in arrived]
    assert dates == ["20300101T010000Z", "20300101T020000Z"]
    assert len({one.headers["authorization"] for one in arrived}) == 2


def key_of(request):
    return request.headers["authorization"].partition("Credential=")[2].partition("/")[0]


def test_keys_are_found_as_botocore_finds_them(
    make, arrived, monkeypatch, no_login_of_this_machine
):
    """The environment, or a profile; a changed file is seen within a minute."""
    monkeypatch.setattr(forebay.sinks.http, "_REREAD_SECONDS", -1.0)
    with pytest.raises(SinkUnavailable, match="finds no credentials in environment, profile"):
        send(make())
    with pytest.raises(SinkUnavailable, match="no credentials: ProfileNotFound"):
        send(make(aws_profile="shop"))

    def write(number):
        no_login_of_this_machine.write_text(
            f"[shop]\naws_access_key_id = key{number}\naws_secret_access_key = canary\n"
        )

    async def use(sink):
        for number in (1, 2):
            write(number)
            assert await sink.send([make_message(number)]) == [Accepted()]

    write(0)
    using(make(aws_profile="shop"), use)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key3")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    assert send(make()) == [Accepted()]
    assert [key_of(one) for one in arrived] == ["key1", "key2", "key3"]


def test_keys_with_an_end_are_renewed_by_botocore(make, arrived, monkeypatch):
    """Those of a role: asked for once while they are good, and hidden in reasons."""
    monkeypatch.setattr(forebay.sinks.http, "_REREAD_SECONDS", -1.0)
    made = []

    def fresh():
        made.append(f"key{len(made) + 1}")
        life = dt.timedelta(hours=1) if len(made) > 1 else dt.timedelta(minutes=5)
        return {
            "access_key": made[-1], "secret_key": "canary-key", "token": "canary-token",
            "expiry_time": (dt.datetime.now(dt.UTC) + life).isoformat(),
        }  # fmt: skip

    class Session:
        def __init__(self, profile):
            assert profile is None

        def get_credentials(self):
            return RefreshableCredentials.create_from_metadata(fresh(), fresh, "role")

    monkeypatch.setattr("botocore.session.Session", Session)
    sink = make(show_response=True)

    async def use(sink):
        return [await sink.send([make_message(number)]) for number in (1, 2, 3)]

    assert using(sink, use) == [[Accepted()]] * 3
    assert [key_of(one) for one in arrived] == ["key2"] * 3
    assert without(b"canary-key canary-token", sink.hidden_texts) == b"*** ***"


@pytest.mark.parametrize("batch", ["one", "array"])
@pytest.mark.parametrize(
    ("status", "headers", "text", "code"),
    [
        (403, {"x-amzn-ErrorType": "InvalidSignatureException:x"}, "{}", "InvalidSignature"),
        (403, {}, "<Code>RequestTimeTooSkewed</Code>", "RequestTimeTooSkewed"),
        (400, {}, json.dumps({"__type": "com#ExpiredTokenException"}), "ExpiredToken"),
        (403, {}, json.dumps({"message": "forbidden"}), None),
        (400, {}, json.dumps({"__type": "ValidationException"}), None),
        (404, {}, "SignatureDoesNotMatch", None),
    ],
)  # fmt: skip
def test_refused_keys_make_messages_wait(
    http_endpoint, far_name, make, arrived, batch, status, headers, text, code
):
    """A clock that is wrong or a key that ended is no fault of a message; other refusals are."""

    async def refuse(_):
        return web.Response(status=status, headers=headers, text=text)

    http_endpoint.answers[far_name] = refuse
    answers = send(make(**KEYS, batch=batch), make_message(1), make_message(2))
    if code is None:
        assert answers == [Rejected(f"HTTP status {status}")] * 2
    else:
        assert all(isinstance(one, SinkUnavailable) for one in answers)
        assert f"the endpoint refuses the signature: HTTP status {status} ({code})" in str(answers)
        assert "canary" not in str(answers)
        assert len(arrived) == (2 if batch == "one" else 1)


def test_the_login_of_a_deliverer_goes_to_hosts_that_it_lists():
    """Otherwise a row would use it at any service of AWS. Keys that a row names are its own."""
    row = {
        "url": "https://iam.amazonaws.com/", "aws_service": "iam", "aws_region": "us-east-1",
        "method": "GET",
    }  # fmt: skip
    keys = {"aws_key_id": "env:ID", "aws_secret_key": "env:KEY"}
    with pytest.raises(NotPermitted, match=r"endpoint_hosts .*'iam\.amazonaws\.com' of http\.url"):
        Permissions().sink("http", row)
    listed = DeliverySettings(
        endpoint_hosts="*.execute-api.eu-central-1.amazonaws.com",
        endpoint_variables="ID,KEY",
        endpoint_settings='{"http": {"destinations": {}}}',
    )
    for settings in (listed, DeliverySettings(endpoint_hosts=listed.endpoint_hosts)):
        with pytest.raises(NotPermitted, match="to which a login of this process would go"):
            Permissions(settings).sink("http", row)
        api = "https://abc.execute-api.eu-central-1.amazonaws.com/prod"
        assert Permissions(settings).sink("http", row | {"url": api})
    assert Permissions(listed).sink("http", row | keys)
    with pytest.raises(NotPermitted, match="endpoint_variables"):
        Permissions().sink("http", row | keys)
    given = DeliverySettings(
        endpoint_settings='{"http": {"aws_service": "iam", "aws_region": "us-east-1"}}'
    )
    with pytest.raises(NotPermitted, match="to which a login of this process would go"):
        Permissions(given).sink("http", {"url": "https://iam.amazonaws.com/"})
    with pytest.raises(NotPermitted, match=r"http\.aws_profile"):
        Permissions(listed).sink("http", row | {"aws_profile": "admin"})


def test_the_missing_library_is_named_with_its_extra(make, monkeypatch):
    found = importlib.import_module

    def without(name):
        if name.startswith("botocore"):
            raise ModuleNotFoundError(f"No module named {name!r}", name="botocore")
        return found(name)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(ConfigError, match="http: aws_service needs the library botocore") as caught:
        make()
    assert "forebay[sqs]" in caught.value.hint
    assert Http("https://a.example/")


def test_read_only_keys_have_a_place_for_the_token():
    """What `AwsSignature` relies on."""
    assert ReadOnlyCredentials._fields[:3] == ("access_key", "secret_key", "token")
