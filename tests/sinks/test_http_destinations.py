"""An HTTP sink connects to public addresses only, and to others only if the operator allows
them.
"""

import asyncio
import ipaddress

import pytest

from forebay.errors import ConfigError
from forebay.sinks import Accepted, Refused, TryLater
from forebay.sinks._destination import BlockedAddress, is_internal
from forebay.sinks.http import Destinations, Http
from forebay.testing import make_message


@pytest.fixture
def connected(monkeypatch):
    """The addresses to which the event loop connects; none of the connections succeeds."""
    found = []

    async def connect(self, sock, address):
        found.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr("asyncio.selector_events.BaseSelectorEventLoop.sock_connect", connect)
    return found


def is_blocked(answer) -> bool:
    """Whether a sink did not send, since the address is blocked."""
    return isinstance(answer, Refused) and "blocked address" in answer.problem


def send(sink):
    async def use():
        await sink.open()
        try:
            return (await sink.send([make_message(1)]))[0]
        finally:
            await sink.close()

    return asyncio.run(use())


def lookup(*answers):
    """Answer with each list of addresses in turn, and with the last one from then on."""
    left = list(answers)

    async def look_up(host):
        return left.pop(0) if len(left) > 1 else left[0]

    return look_up


def any_port(**more):
    return Destinations(https_only=False, ports=None, **more)


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://127.0.0.1/",
        "http://127.0.0.1./",
        "http://0.0.0.0/",
        "http://[::]/",
        "http://[::1]/",
        "http://[0:0:0:0:0:0:0:1]/",
        "http://[::ffff:169.254.169.254]/",
        "http://[::ffff:a9fe:a9fe]/",
        "http://[::127.0.0.1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[64:ff9b:1::7f00:1]/",
        "http://[2002:7f00:1::]/",
        "http://[2001:0:7f00:1::]/",
        "http://[fec0::1]/",
        "http://[fd00:ec2::254]/",
        "http://localhost/",
        "http://localhost./",
        "http://LOCALHOST/",
        "http://\uff11\uff12\uff17.0.0.1/",  # fullwidth digits
        "http://127\u30020\u30020\u30021/",  # ideographic full stops
        "http://\u24db\u24de\u24d2alhost/",  # circled letters
        "http://local\u00adhost/",  # a soft hyphen, which disappears
    ],
)
def test_an_internal_address_is_not_called_whatever_its_form(url, connected):
    assert is_blocked(send(Http(url, destinations=any_port())))
    assert connected == []


@pytest.mark.parametrize(
    "url",
    [
        "http://127.1/",
        "http://0x7f.1/",
        "http://0x7f000001/",
        "http://0X7F.0.0.1/",
        "http://2130706433/",
        "http://017700000001/",
        "http://0177.0.0.1/",
        "http://127.0.0.01/",
        "http://256.256.256.256/",
        "http://[fe80::1%25eth0]/",
        "http://[fe80::1%eth0]/",
        "http://[::1/",
        "http://[::1]x/",
        "http://example.com%00.internal/",
        "http://127.0.0.1%00/",
        "http://%31%32%37.0.0.1/",
        "http://example.com\\@127.0.0.1/",
        "http://example.com\\.internal/",
        "http://exam\tple.com/",
        "http://example.com/a b",
        " http://example.com/",
        "http://example.com/\n",
        "http://example.com#@127.0.0.1/",
        "http://example.com/#",
        "http://127.0.0.1#.example.com/",
        "http://user@example.com/",
        "http://user:secret@example.com/",
        "http://example.com..//",
        "http://.example.com/",
        "http://-example.com/",
        "http://xn--/",
        "http://xn--a/",
        "http://xn--127-/",
        "http://example.com:0/",
        "http://example.com:99999/",
        "http://example.com:\uff14\uff14\uff13/",
        "http://\u2100.example/",  # becomes a/c
        "http:///path",
        "http:example.com",
        "//example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "unix:///socket",
        "",
        None,
        b"http://example.com/",
    ],
)
def test_an_ambiguous_address_is_refused(url, connected):
    with pytest.raises(ConfigError, match="url") as caught:
        Http(url, destinations=any_port())
    assert "secret" not in str(caught.value)
    assert connected == []


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://EXAMPLE.com/a?b=1", "https://example.com"),
        ("https://example.com.:8443/", "https://example.com:8443"),
        ("https://b\u00fccher.example/", "https://xn--bcher-kva.example"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example"),
        ("https://my_host.example/", "https://my_host.example"),
        ("https://[2606:4700:0:0::1111]/", "https://[2606:4700::1111]"),
    ],
)
def test_usual_addresses_are_normalised(url, place):
    assert Http(url).place == place


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://example.com/", "does not begin with https://"),
        ("https://example.com:22/", "port 22"),
        ("https://example.com:80/", "port 80"),
    ],
)
def test_https_and_its_usual_ports_are_the_default(url, problem):
    with pytest.raises(ConfigError, match=problem):
        Http(url)


# --- addresses ---


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.1",
        "10.0.0.1",
        "100.64.0.1",
        "100.127.255.255",
        "127.255.255.255",
        "169.254.1.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.1",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.0.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "168.63.129.16",
        "::",
        "::1",
        "::7f00:1",
        "::ffff:10.0.0.1",
        "64:ff9b::10.0.0.1",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:2::1",
        "2001:db8::1",
        "2002:808:808::",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd12::1",
        "fe80::1",
        "fec0::1",
        "ff02::1",
    ],
)
def test_internal_addresses(address):
    assert is_internal(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "172.15.0.1",
        "172.32.0.1",
        "198.17.0.1",
        "223.255.255.255",
        "2606:4700::1111",
        "2a00:1450::1",
        "::ffff:1.1.1.1",
        "64:ff9b::1.1.1.1",
    ],
)
def test_public_addresses(address):
    assert not is_internal(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    ("allow", "deny", "host", "address", "is_allowed"),
    [
        (["10.1.0.0/16"], [], "h.example", "10.1.2.3", True),
        (["10.1.0.0/16"], [], "h.example", "10.2.2.3", False),
        (["10.1.0.0/16"], [], "h.example", "::ffff:10.1.2.3", True),
        (["10.1.0.0/16"], ["10.1.2.3"], "h.example", "10.1.2.3", False),
        (["h.internal"], [], "h.internal", "10.1.2.3", True),
        (["H.Internal."], [], "h.internal", "10.1.2.3", True),
        (["h.internal"], [], "evil.h.internal", "10.1.2.3", False),
        (["*.internal"], [], "a.internal", "10.1.2.3", True),
        (["*.internal"], [], "notinternal", "10.1.2.3", False),
        (["*.internal"], ["a.internal"], "a.internal", "10.1.2.3", False),
        ([], ["h.example"], "h.example", "1.1.1.1", False),
        ([], ["1.1.1.0/24"], "h.example", "1.1.1.1", False),
        ([], ["1.1.1.0/24"], "h.example", "::ffff:1.1.1.1", False),
        (["169.254.0.0/16"], [], "h.example", "169.254.169.254", False),
        (["0.0.0.0/0"], [], "h.example", "168.63.129.16", False),
        (["169.254.169.254"], [], "h.example", "169.254.169.254", True),
        (["10.0.0.1:443"], [], "h.example", "10.0.0.1", True),
        (["10.0.0.1:9000"], [], "h.example", "10.0.0.1", False),
        (["fd00::/8"], [], "h.example", "fd00::1", True),
        (["[fd00::/8]:443"], [], "h.example", "fd00::1", True),
        ([], [], "h.example", "fe80::1%eth0", False),
        ([], [], "h.example", "nonsense", False),
    ],
)
def test_an_operator_allows_and_denies(allow, deny, host, address, is_allowed):
    destinations = Destinations(allow=allow, deny=deny)
    if is_allowed:
        destinations.check(host, address, 443)
    else:
        with pytest.raises(BlockedAddress):
            destinations.check(host, address, 443)


def test_an_entry_may_allow_a_port():
    destinations = Destinations(allow=["h.internal:9000", "10.0.0.0/8:9001"], lookup=lookup([]))
    destinations.parse("https://h.internal:9000/")
    destinations.parse("https://10.1.1.1:9001/")
    destinations.parse("https://x.example:9001/")  # it may lead to the network
    with pytest.raises(ConfigError):
        destinations.parse("https://h.internal:9002/")
    with pytest.raises(ConfigError):
        destinations.parse("https://11.1.1.1:9001/")
    with pytest.raises(BlockedAddress):
        destinations.check("x.example", "1.1.1.1", 9001)
    with pytest.raises(BlockedAddress):
        destinations.check("h.internal", "10.1.1.1", 9002)


@pytest.mark.parametrize(
    "options",
    [
        {"allow": "10.0.0.0/8"},
        {"allow": ["10.0.0.1/8"]},
        {"allow": ["10.0.0.1:0"]},
        {"allow": ["h.example:x"]},
        {"allow": [""]},
        {"allow": ["127.1"]},
        {"deny": ["h..example"]},
        {"deny": [7]},
        {"ports": [0]},
        {"ports": ["443"]},
        {"https_only": 1},
    ],
)
def test_the_lists_are_checked(options):
    with pytest.raises(ConfigError, match="destinations"):
        Http("https://example.com/", destinations=options)
    with pytest.raises(ConfigError, match="destinations"):
        Destinations(**options)


def test_an_unknown_option_is_refused():
    with pytest.raises(ConfigError, match="alow"):
        Http("https://example.com/", destinations={"alow": []})


# --- names ---


@pytest.mark.parametrize(
    "answer", [["127.0.0.1"], ["1.1.1.1", "10.0.0.1"], ["::1", "1.1.1.1"], ["::ffff:127.0.0.1"]]
)
def test_a_name_with_one_internal_address_is_not_called(answer, connected):
    sink = Http("https://h.example/", destinations=Destinations(lookup=lookup(answer)))
    assert is_blocked(send(sink))
    assert connected == []


def test_a_name_is_resolved_once_and_that_address_is_called(connected):
    """
    A DNS that says a public address first and an internal one afterwards gets no connection to the
    internal one.
    """
    sink = Http(
        "https://h.example/", destinations=Destinations(lookup=lookup(["1.1.1.1"], ["127.0.0.1"]))
    )
    assert send(sink) == TryLater("no connection: ConnectionRefusedError")
    assert connected == [("1.1.1.1", 443)]
    assert is_blocked(send(sink))
    assert connected == [("1.1.1.1", 443)]


def test_a_connection_that_leads_to_another_peer_is_closed_before_the_request(
    http_endpoint, far_name, monkeypatch
):
    """
    Whatever the way to a connection: the address of the peer is checked again.
    """
    port = http_endpoint.raw_port
    real = asyncio.selector_events.BaseSelectorEventLoop.sock_connect

    async def connect(self, sock, address):
        await real(self, sock, ("127.0.0.1", port))

    monkeypatch.setattr("asyncio.selector_events.BaseSelectorEventLoop.sock_connect", connect)
    sink = Http(
        f"http://h.example:{port}/{far_name}", destinations=any_port(lookup=lookup(["1.1.1.1"]))
    )
    assert is_blocked(send(sink))
    assert http_endpoint.requests[far_name] == []


def test_an_allowed_name_is_called_and_is_in_the_header_host(http_endpoint, far_name):
    sink = Http(
        f"http://hooks.internal:{http_endpoint.port}/{far_name}",
        destinations=any_port(allow=["hooks.internal"], lookup=lookup(["127.0.0.1"])),
    )
    assert send(sink) == Accepted()
    (request,) = http_endpoint.requests[far_name]
    assert request.headers["host"] == f"hooks.internal:{http_endpoint.port}"


def test_the_name_of_the_certificate_is_that_of_the_url(http_endpoint, far_name):
    for host, expected in [
        ("localhost", Accepted()),
        ("hooks.internal", TryLater("the TLS certificate is not valid")),
    ]:
        sink = Http(
            f"https://{host}:{http_endpoint.tls_port}/{far_name}",
            ca_file=str(http_endpoint.ca_file),
            destinations=Destinations(
                allow=["127.0.0.1"], ports=None, lookup=lookup(["127.0.0.1"])
            ),
        )
        assert send(sink) == expected


def test_a_proxy_of_the_environment_is_not_used(http_endpoint, far_name, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    sink = Http(
        f"http://127.0.0.1:{http_endpoint.port}/{far_name}",
        destinations=any_port(allow=["127.0.0.0/8"]),
    )
    assert send(sink) == Accepted()


def test_a_proxy_of_the_configuration_is_used_and_literals_are_checked(
    http_endpoint, far_name, monkeypatch
):
    async def answer(writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    http_endpoint.raw[far_name] = answer
    monkeypatch.setenv("PROXY", f"http://user:pass@127.0.0.1:{http_endpoint.raw_port}")

    def sink(host):
        # No name is looked up here: the proxy does that.
        destinations = any_port(deny=["*.internal"], lookup=lookup([]))
        return Http(f"http://{host}/{far_name}", proxy="env:PROXY", destinations=destinations)

    before = http_endpoint.connections
    assert is_blocked(send(sink("127.0.0.1")))
    assert is_blocked(send(sink("h.internal")))
    assert http_endpoint.connections == before
    assert send(sink("h.example")) == Accepted()
    (request,) = http_endpoint.requests[far_name]
    assert request.path == f"http://h.example/{far_name}"
    assert request.headers["proxy-authorization"] == "basic dxnlcjpwyxnz"
