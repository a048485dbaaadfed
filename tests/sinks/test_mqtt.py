"""Topics of a real Mosquitto."""

import asyncio
import contextlib
import shutil
import subprocess
import threading
from datetime import UTC, datetime, timedelta

import paho.mqtt.client as mqtt
import pytest

from examples.six_sinks import servers
from forebay.errors import ConfigError, SinkUnavailable
from forebay.sending import Drain
from forebay.sinks import Accepted, Rejected, Secret, Sink, make_sink
from forebay.sinks.mqtt import Mqtt
from forebay.testing import Received, SinkContract, make_message
from tests.support.drains import through_faults
from tests.support.far_workers import BehindAProxy, sends
from tests.support.fix_sinks import skipped_without_server
from tests.support.http_endpoint import certificate
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_for

_END = "end-of-what-was-sent"


class Subscriber:
    """A client that keeps what it gets of the topics under a name."""

    def __init__(self, address, name, **login):
        self._name = name
        self._got = []
        self._ends = threading.Semaphore(0)
        subscribed = threading.Event()
        self.client = client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5, reconnect_on_failure=False
        )
        client.on_message = self._receive
        client.on_subscribe = lambda *_: subscribed.set()
        if login:
            client.username_pw_set(**login)
        host, _, port = address.rpartition(":")
        client.connect(host, int(port))
        client.loop_start()
        client.subscribe(f"{name}/#", qos=1)
        assert subscribed.wait(10)

    def _receive(self, _client, _data, message):
        if message.topic.endswith(_END):
            self._ends.release()
        else:
            self._got.append(message)

    def got(self):
        """Return what the broker took before this call."""
        self.client.publish(f"{self._name}/{_END}", b"", qos=1)
        assert self._ends.acquire(timeout=20)
        return list(self._got)

    def received(self):
        found = []
        for one in self.got():
            headers = dict(one.properties.UserProperty)
            found.append(
                Received(headers["forebay-id"], headers["forebay-kind"], one.payload, headers)
            )
        return found

    def close(self):
        self.client.disconnect()
        self.client.loop_stop()


@contextlib.contextmanager
def subscribed(address, name, **login):
    subscriber = Subscriber(address, name, **login)
    try:
        yield subscriber
    finally:
        subscriber.close()


class TestMqtt(BehindAProxy, SinkContract):
    @pytest.fixture(autouse=True)
    def _server(self, mqtt_server, far_name):
        self.server, self.name = mqtt_server, far_name
        with subscribed(mqtt_server, far_name) as self.subscriber:
            yield

    def make_sink(self, address=None, **settings) -> Sink:
        settings = {"topic": f"{self.name}/{{kind}}"} | settings
        return Mqtt(f"mqtt://{address or self.server}", **settings)

    def received(self):
        return self.subscriber.received()

    def test_the_properties_of_a_message(self):
        """A job that expires is a message that expires; the payload says what it is."""
        expires = datetime.now(UTC) + timedelta(seconds=100)
        never = make_message(2, ordering_key="k", correlation_id="c", headers={"a": "\u2192"})
        sends(self.make_sink(), [make_message(1, expires_at=expires), never])
        one, other = self.subscriber.got()
        assert (one.topic, one.qos) == (f"{self.name}/order.created", 1)
        assert one.properties.ContentType == "application/json"
        assert one.properties.PayloadFormatIndicator == 1
        assert 90 < one.properties.MessageExpiryInterval <= 100
        assert not hasattr(other.properties, "MessageExpiryInterval")
        headers = dict(other.properties.UserProperty)
        assert headers["forebay-ordering-key"] == "k"
        assert headers["forebay-correlation-id"] == "c"
        assert headers["a"] == "\u2192"

    def test_a_topic_without_a_subscriber_makes_its_messages_wait(self):
        """The broker would forget them. Others of the call arrive, and the connection stays."""
        sink = self.make_sink(topic=f"{{header:place}}{self.name}/x")
        here, nowhere = (
            make_message(number, headers={"place": place})
            for number, place in ((1, f"{self.name}/"), (2, "nowhere/"))
        )

        async def use():
            with TcpProxy(self.server) as proxy:
                behind = self.make_sink(proxy.address, topic=f"{{header:place}}{self.name}/x")
                await behind.open()
                try:
                    answers = [*await behind.send([nowhere, here]), *await behind.send([here])]
                finally:
                    await behind.close()
                return answers, proxy.accepted

        (lost, *arrived), connections = asyncio.run(use())
        assert isinstance(lost, SinkUnavailable)
        assert "has no subscriber" in str(lost)
        assert arrived == [Accepted(), Accepted()]
        assert connections == 1
        assert len(self.received()) == 2
        assert sink.place.endswith(self.server)

    def test_a_topic_without_a_subscriber_may_be_enough(self):
        """As for measurements that nobody watches."""
        sink = self.make_sink(topic=f"nowhere/{self.name}", needs_subscriber=False)
        assert sends(sink, [make_message(1)]) == [Accepted()]

    def test_a_retained_message_waits_for_its_subscriber(self):
        name = f"retained/{self.name}"
        sink = self.make_sink(topic=f"{name}/last", retain=True)
        assert sends(sink, [make_message(1), make_message(2)]) == [Accepted(), Accepted()]
        with subscribed(self.server, name) as later:
            wait_for(lambda: len(later.got()) == 1)
            (found,) = later.received()
        assert found.id == make_message(2).id

    @pytest.mark.parametrize(
        ("topic", "headers", "problem"),
        [
            ("{header:place}", {}, "needs header:place"),
            ("NAME/{header:place}", {"place": "+"}, "not a topic"),
            ("NAME/{header:place}", {"place": "b/#"}, "not a topic"),
            ("{header:place}", {"place": "$SYS/broker"}, "not a topic"),
            ("{header:place}", {"place": "a\nb"}, "cannot be"),
            ("{header:place}", {"place": "a\ufffe"}, "cannot be"),
            ("NAME/x", {"note": "two\nlines"}, "cannot be"),
            ("NAME/x", {"note": "x" * 65_536}, "cannot be"),
        ],
    )
    def test_a_message_that_does_not_fit_is_rejected_alone(self, topic, headers, problem):
        """The broker would end the connection instead, with the other messages of the call."""
        sink = self.make_sink(topic=topic.replace("NAME", self.name))
        whole = make_message(1, headers={"place": f"{self.name}/x"})
        bad, good = sends(sink, [make_message(2, headers=headers), whole])
        assert isinstance(bad, Rejected)
        assert problem in bad.reason
        assert isinstance(good, Accepted)
        assert [one.id for one in self.received()] == [whole.id]

    def test_an_idle_connection_that_was_lost_costs_nothing(self):
        """The next call connects again, instead of failing."""

        async def use():
            with TcpProxy(self.server) as proxy:
                sink = self.make_sink(proxy.address)
                await sink.open()
                (link,) = sink._idle
                proxy.cut()
                await asyncio.to_thread(wait_for, lambda: link.problem)
                try:
                    return await sink.send([make_message(1)])
                finally:
                    await sink.close()

        assert asyncio.run(use()) == [Accepted()]

    def test_acknowledgements_that_do_not_come_end_the_call(self):
        """Which messages the broker has is not known then."""

        async def use():
            with TcpProxy(self.server) as proxy:
                sink = self.make_sink(proxy.address, ack_timeout=0.3)
                await sink.open()
                proxy.swallow_answers()
                try:
                    return await sink.send([make_message(1), make_message(2)])
                finally:
                    await sink.close()

        answers = asyncio.run(use())
        assert all("no acknowledgement within 0.3 s" in str(one) for one in answers)
        assert all(isinstance(one, SinkUnavailable) for one in answers)


def test_no_more_messages_are_open_than_the_broker_takes(tmp_path, far_name):
    """Here it acknowledges nothing, so it gets that many and no more."""
    lines = ("allow_anonymous true", "max_inflight_messages 3")

    async def use(address):
        with TcpProxy(address) as proxy:
            sink = Mqtt(f"mqtt://{proxy.address}", f"{far_name}/x", ack_timeout=1.5)
            await sink.open()
            try:
                messages = [make_message(number) for number in range(50)]
                assert await sink.send(messages) == [Accepted()] * 50
                proxy.swallow_answers()
                return await sink.send(messages)
            finally:
                await sink.close()

    with (
        skipped_without_server(),
        servers.mosquitto_server(tmp_path, *lines) as (address, _),
        subscribed(address, far_name) as subscriber,
    ):
        answers = asyncio.run(use(address))
        assert len(subscriber.received()) == 53
    assert all("no acknowledgement within 1.5 s" in str(one) for one in answers)


def test_a_message_that_is_too_large_is_rejected_alone(tmp_path, far_name):
    """The broker tells its limit when it takes the connection, and ends one that exceeds it."""
    lines = ("allow_anonymous true", "max_packet_size 2000")
    with (
        skipped_without_server(),
        servers.mosquitto_server(tmp_path, *lines) as (address, _),
        subscribed(address, far_name) as subscriber,
    ):
        sink = Mqtt(f"mqtt://{address}", f"{far_name}/x")
        for size in range(1_500, 2_000, 7):
            large = make_message(size, body='{"x": "%s"}' % ("x" * size))
            found, small = sends(sink, [large, make_message(2)])
            assert isinstance(found, Accepted | Rejected), found
            assert isinstance(small, Accepted), size
        assert isinstance(found, Rejected)
        assert subscriber.received()[-1].id == make_message(2).id


@pytest.fixture
def guarded(tmp_path):
    """A Mosquitto with TLS where the user ``drain`` may write under ``open/``, and its address."""
    if shutil.which("mosquitto_passwd") is None:
        pytest.skip("mosquitto is not installed")
    passwords, rights = tmp_path / "passwords", tmp_path / "rights"
    passwords.touch(mode=0o600)
    subprocess.run(
        ["mosquitto_passwd", "-b", str(passwords), "drain", "s3:cret/"],
        check=True,
        capture_output=True,
    )
    rights.write_text("user drain\ntopic write open/#\ntopic read open/#\n")
    file = certificate(tmp_path)
    lines = (
        "allow_anonymous false", f"password_file {passwords}", f"acl_file {rights}",
        f"cafile {file}", f"certfile {file}", f"keyfile {file}",
    )  # fmt: skip
    with skipped_without_server(), servers.mosquitto_server(tmp_path, *lines) as (address, _):
        yield address.replace("127.0.0.1", "localhost"), str(file)


def test_a_user_logs_in_over_tls_with_a_reference(guarded, monkeypatch):
    """A topic without the right waits; a wrong password, a wrong certificate and a connection
    without TLS are outages. No message shows a password.
    """
    address, ca_file = guarded
    monkeypatch.setenv("MQTT_PASSWORD", "s3:cret/")

    def send(url, topic="open/x", **settings):
        settings = {"needs_subscriber": False, "ca_file": ca_file} | settings
        return sends(Mqtt(url, topic, **settings), [make_message(1)])

    user = f"mqtts://drain@{address}"
    assert send(user, password="env:MQTT_PASSWORD") == [Accepted()]
    assert send(user, password=Secret("s3:cret/")) == [Accepted()]
    assert send(f"mqtts://drain:s3%3Acret%2F@{address}") == [Accepted()]
    (answer,) = send(user, "shut/x", password="env:MQTT_PASSWORD")
    assert isinstance(answer, SinkUnavailable)
    assert "Not authorized" in str(answer)
    for call in (
        lambda: send(user, password=Secret("wr0ng")),
        lambda: send(user),
        lambda: send(user, password="env:NO_SUCH_PASSWORD"),
        lambda: send(user, password="env:MQTT_PASSWORD", ca_file=None),
        lambda: send(f"mqtt://drain@{address}", password="env:MQTT_PASSWORD", ca_file=None,
                     connect_timeout=1.0),
        lambda: send(user, password="env:MQTT_PASSWORD", ca_file="/nowhere"),
    ):  # fmt: skip
        with pytest.raises(SinkUnavailable) as caught:
            call()
        assert "wr0ng" not in str(caught.value)
        assert "s3" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_drain_loses_nothing_while_its_connection_is_cut_and_answers_are_swallowed(
    app, database, conn, mqtt_server, far_name
):
    with TcpProxy(mqtt_server) as proxy, subscribed(mqtt_server, far_name) as subscriber:
        sink = Mqtt(f"mqtt://{proxy.address}", f"{far_name}/x")
        drain = Drain(app, "orders", sink=sink, queue="orders", batch_size=50, timeout=1.0)
        await through_faults(drain, database, conn, proxy)
        ids = {one.id for one in await asyncio.to_thread(subscriber.received)}
    assert len(ids) == 300


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"topic": "t"}, "needs the setting url"),
        ({"url": "mqtt://h"}, "needs the setting topic"),
        ({"url": "tcp://h", "topic": "t"}, "url is not an address that begins with mqtt://"),
        ({"url": "mqtt://", "topic": "t"}, "not an address of a broker"),
        ({"url": "mqtt://h:99999", "topic": "t"}, "not an address of a broker"),
        ({"url": "mqtt://h/topic", "topic": "t"}, "not an address of a broker"),
        ({"url": "mqtt://:p@h", "topic": "t"}, "not an address of a broker"),
        ({"url": "mqtt://h", "topic": "a/#"}, "not a topic"),
        ({"url": "mqtt://h", "topic": "a/+/{kind}"}, "not a topic"),
        ({"url": "mqtt://h", "topic": "$SYS/{kind}"}, "not a topic"),
        ({"url": "mqtt://h", "topic": "{knd}"}, "unknown name {knd}"),
        ({"url": "mqtt://h", "topic": "t", "password": "env:P"}, "needs a user in url"),
        ({"url": "mqtt://u:p@h", "topic": "t", "password": "env:P"}, "needs a user in url"),
        ({"url": "mqtt://u@h", "topic": "t", "password": "plain"}, "is not a reference"),
        ({"url": "mqtt://h", "topic": "t", "retain": 1}, "retain is 1, not bool"),
        ({"url": "mqtt://h", "topic": "t", "ack_timeout": 0}, "ack_timeout is 0"),
        ({"url": "mqtt://h", "topic": "t", "ca_file": "/ca"}, "is for mqtts:// only"),
        ({"url": "mqtts://h", "topic": "t", "cert_file": "/c"}, "belong together"),
        ({"url": "mqtts://h", "topic": "t", "ca_file": 7}, "ca_file is 7"),
    ],
)
def test_a_configuration_is_checked_without_a_server(config, problem):
    with pytest.raises(ConfigError) as caught:
        make_sink("mqtt", config)
    assert problem in str(caught.value)


def test_messages_show_no_password():
    sink = make_sink("mqtt", {"url": "mqtt://u:secret@127.0.0.1:9", "topic": "orders/{kind}"})
    assert sink.place == "orders/{kind} at 127.0.0.1:9"
    with pytest.raises(SinkUnavailable) as caught:
        asyncio.run(sink.open())
    assert "secret" not in str(caught.value)
