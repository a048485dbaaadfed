"""A stream of a real NATS server."""

import asyncio
import base64
import contextlib
import json
import os

import nats
import nkeys
import pytest

from examples.six_sinks import servers
from forebay.errors import ConfigError, SinkUnavailable
from forebay.sending import Drain
from forebay.sinks import Accepted, Rejected, Secret, Sent, Sink, make_sink
from forebay.sinks.nats import JetStream, _Found, _is_lost
from forebay.testing import Received, SinkContract, make_message
from tests.support.drains import through_faults
from tests.support.fix_sinks import skipped_without_server
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_for_async


@contextlib.asynccontextmanager
async def jetstream(address):
    client = await nats.connect(f"nats://{address}")
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def stored(streams, name):
    """Return the messages of a stream, by their numbers."""
    found = {}
    state = (await streams.stream_info(name)).state
    for number in range(max(1, state.first_seq), state.last_seq + 1):
        with contextlib.suppress(nats.js.errors.NotFoundError):
            found[number] = await streams.get_msg(name, seq=number)
    return found


async def ended(sink, *calls):
    """Open a sink, send some calls, and close it; return the answers of the last one."""
    await sink.open()
    try:
        for call in calls:
            answers = await sink.send(call)
        return answers
    finally:
        await sink.close()


class TestJetStream(SinkContract):
    @pytest.fixture(autouse=True)
    def _server(self, nats_server, far_name):
        self.server, self.name = nats_server, far_name

        async def create(streams):
            await streams.add_stream(name=self.name, subjects=[f"{self.name}.>"])

        self.run(create)

    def make_sink(self, address=None) -> Sink:
        return self.sink(address)

    def sink(self, address=None, **settings):
        settings = {"subject": f"{self.name}.{{kind}}", "stream": self.name} | settings
        return JetStream(f"nats://{address or self.server}", **settings)

    def run(self, act):
        """Run ``act(streams)`` with a client that is not the sink."""

        async def use():
            async with jetstream(self.server) as streams:
                return await act(streams)

        return asyncio.run(use())

    def stored(self):
        return self.run(lambda streams: stored(streams, self.name))

    def received(self):
        return [
            Received(
                found.headers["forebay-id"],
                found.headers["forebay-kind"],
                found.data,
                found.headers,
            )
            for found in self.stored().values()
        ]

    def lose(self, sent):
        # As after a restore from a backup that did not have it: another message takes its number.
        async def restore(streams):
            before = await stored(streams, self.name)
            config = (await streams.stream_info(self.name)).config
            await streams.delete_stream(self.name)
            await streams.add_stream(config)
            for number, found in before.items():
                is_lost = f"{self.name}:{number}" == sent.proof
                headers = {"Nats-Msg-Id": "another"} if is_lost else found.headers
                await streams.publish(found.subject, found.data, headers=headers)

        self.run(restore)

    def seen(self, act, **config):
        """Send three messages, let ``act(streams)`` do something, and return what of them is
        seen.
        """

        async def use():
            async with jetstream(self.server) as streams:
                await streams.update_stream(name=self.name, subjects=[f"{self.name}.>"], **config)
                sink = self.sink()
                await sink.open()
                messages = [make_message(number) for number in (1, 2, 3)]
                sent = [
                    Sent(message, answer.proof)
                    for message, answer in zip(messages, await sink.send(messages), strict=True)
                ]
                try:
                    assert await sink.seen(sent) == [True, True, True]
                    await act(streams)
                    return await sink.seen(sent)
                finally:
                    await sink.close()

        return asyncio.run(use())

    # --- sending ---

    def test_the_stream_recognises_a_repetition(self):
        first, second = asyncio.run(ended(self.make_sink(), [make_message(1), make_message(1)]))
        assert first == Accepted(f"{self.name}:1")
        assert second == Accepted(f"{self.name}:1", is_duplicate=True)
        assert len(self.received()) == 1

    def test_more_messages_than_a_window(self):
        messages = [make_message(number) for number in range(2_500)]
        answers = asyncio.run(ended(self.make_sink(), messages))
        assert [answer.proof for answer in answers] == [f"{self.name}:{n}" for n in range(1, 2_501)]

    def test_a_subject_without_a_stream_makes_its_messages_wait(self):
        sink = self.sink(subject=f"{self.name}{{header:to}}", stream=None)
        answers = asyncio.run(
            ended(
                sink,
                [
                    make_message(1, headers={"to": ".a"}),
                    make_message(2, headers={"to": "nowhere"}),
                ],
            )
        )
        assert isinstance(answers[0], Accepted)
        assert isinstance(answers[1], SinkUnavailable)
        assert f"no stream has the subject {self.name}nowhere" in str(answers[1])

    def test_a_missing_stream_is_an_outage(self):
        with pytest.raises(SinkUnavailable, match="stream not found"):
            asyncio.run(ended(self.sink(stream="nowhere")))

    def test_another_stream_than_the_expected_one_takes_nothing(self):
        async def create(streams):
            await streams.add_stream(name=f"{self.name}-b", subjects=[f"{self.name}-b"])

        self.run(create)
        (answer,) = asyncio.run(ended(self.sink(subject=f"{self.name}-b"), [make_message(1)]))
        assert isinstance(answer, SinkUnavailable)
        assert "expected stream does not match" in str(answer)

    @pytest.mark.parametrize(
        ("headers", "problem"),
        [
            ({"to": "a b"}, "not a subject"),
            ({"to": "*"}, "not a subject"),
            ({"to": "a..b"}, "not a subject"),
            ({"to": ">"}, "not a subject"),
            ({}, "needs header:to"),
            ({"to": "a", "Nats-Rollup": "all"}, "has a meaning for the server"),
            ({"to": "a", "two words": "x"}, "name of a header"),
            ({"to": "a", "colon:": "x"}, "name of a header"),
        ],
    )
    def test_a_message_that_is_not_valid_is_rejected_alone(self, headers, problem):
        sink = self.sink(subject=f"{self.name}.{{header:to}}")
        bad, good = asyncio.run(
            ended(sink, [make_message(1, headers=headers), make_message(2, headers={"to": "a"})])
        )
        assert isinstance(bad, Rejected)
        assert problem in bad.reason
        assert isinstance(good, Accepted)

    def test_no_header_of_a_job_reaches_the_interface_of_the_server(self):
        sink = JetStream(f"nats://{self.server}", "{header:to}")
        message = make_message(1, body="{}", headers={"to": f"$JS.API.STREAM.DELETE.{self.name}"})
        (answer,) = asyncio.run(ended(sink, [message]))
        assert isinstance(answer, Rejected)
        self.stored()  # The stream still exists.

    def test_a_message_that_is_too_large_for_the_server_is_rejected_alone(self):
        # The server ends the connection otherwise. It counts the headers too, so this is about the
        # last byte.
        def large(size):
            return make_message(1, body="x" * size)

        sink = self.make_sink()
        (refused,) = asyncio.run(ended(sink, [large(1_048_576)]))
        assert isinstance(refused, Rejected)
        headers = int(refused.reason.partition(" ")[0]) - 1_048_576
        most = 1_048_576 - headers
        refused, small = asyncio.run(ended(sink, [large(most + 1), make_message(2)]))
        assert refused == Rejected("1048577 bytes, and the server takes 1048576")
        assert isinstance(small, Accepted)
        assert isinstance(asyncio.run(ended(sink, [large(most)]))[0], Accepted)

    def test_a_message_that_is_too_large_for_the_stream_is_rejected_alone(self):
        async def limit(streams):
            await streams.update_stream(
                name=self.name, subjects=[f"{self.name}.>"], max_msg_size=1000
            )

        self.run(limit)
        large, small = asyncio.run(
            ended(self.make_sink(), [make_message(1, body="x" * 2000), make_message(2)])
        )
        assert large == Rejected("message size exceeds maximum allowed")
        assert isinstance(small, Accepted)

    def test_a_full_stream_makes_its_messages_wait(self):
        async def limit(streams):
            await streams.update_stream(
                name=self.name, subjects=[f"{self.name}.>"], max_msgs=1, discard="new"
            )

        self.run(limit)
        first, second = asyncio.run(ended(self.make_sink(), [make_message(1), make_message(2)]))
        assert isinstance(first, Accepted)
        assert isinstance(second, SinkUnavailable)
        assert "maximum messages exceeded" in str(second)

    def test_an_answer_of_something_else_is_no_acknowledgement(self):
        async def use():
            client = await nats.connect(f"nats://{self.server}")

            async def answer(message):
                await message.respond(b"thanks")

            await client.subscribe(f"{self.name}x", cb=answer)
            try:
                return await ended(
                    self.sink(subject=f"{self.name}x", stream=None), [make_message(1)]
                )
            finally:
                await client.close()

        (answer,) = asyncio.run(use())
        assert isinstance(answer, SinkUnavailable)
        assert "the answer is not of a stream" in str(answer)

    # --- reading back ---

    def test_a_stream_that_was_made_again_lost_its_messages(self):
        async def again(streams):
            config = (await streams.stream_info(self.name)).config
            await streams.delete_stream(self.name)
            await streams.add_stream(config)
            await streams.publish(f"{self.name}.x", headers={"Nats-Msg-Id": make_message(1).id})

        # The first is there again, from another try; the other numbers do not exist any more.
        assert self.seen(again) == [True, False, False]

    def test_a_stream_that_is_missing_cannot_be_read(self):
        with pytest.raises(SinkUnavailable, match="stream not found"):
            self.seen(lambda streams: streams.delete_stream(self.name))

    @pytest.mark.parametrize("direct", [True, False])
    def test_a_message_that_was_deleted_is_no_loss(self, direct):
        assert self.seen(lambda streams: streams.delete_msg(self.name, 2), allow_direct=direct) == [
            True,
            None,
            True,
        ]

    def test_a_purged_stream_lost_nothing(self):
        assert self.seen(lambda streams: streams.purge_stream(self.name)) == [None, None, None]

    def test_what_the_limits_of_a_stream_removed_is_no_loss(self):
        async def limit(streams):
            await streams.update_stream(name=self.name, subjects=[f"{self.name}.>"], max_msgs=1)

        assert self.seen(limit) == [None, None, True]

    def test_what_was_consumed_is_no_loss(self):
        async def use():
            async with jetstream(self.server) as streams:
                await streams.add_stream(
                    name=f"{self.name}-w", subjects=[f"{self.name}-w"], retention="workqueue"
                )
                sink = self.sink(subject=f"{self.name}-w", stream=f"{self.name}-w")
                await sink.open()
                messages = [make_message(1), make_message(2)]
                sent = [
                    Sent(message, answer.proof)
                    for message, answer in zip(messages, await sink.send(messages), strict=True)
                ]
                consumer = await streams.pull_subscribe(f"{self.name}-w", durable="worker")
                (first,) = await consumer.fetch(1)
                await first.ack_sync()
                found = await sink.seen(sent)
                await sink.close()
                return found

        assert asyncio.run(use()) == [None, True]

    @pytest.mark.parametrize(
        ("state", "config", "expected"),
        [
            ({}, {"deny_delete": True, "deny_purge": True}, False),
            ({}, {"deny_delete": True}, None),
            ({}, {"deny_purge": True}, None),
            ({}, {"deny_delete": True, "deny_purge": True, "retention": "interest"}, None),
            ({}, {"deny_delete": True, "deny_purge": True, "max_msgs_per_subject": 1}, None),
            ({}, {"deny_delete": True, "deny_purge": True, "allow_msg_ttl": True}, None),
            ({}, {"deny_delete": True, "deny_purge": True, "allow_rollup_hdrs": True}, None),
            ({"lost": {"msgs": [4, 5]}}, {}, False),
            ({"lost": {"msgs": [4]}}, {}, None),
            ({"lost": None}, {}, None),
            ({"first_seq": 6}, {"deny_delete": True, "deny_purge": True}, None),
            ({"last_seq": 4}, {"retention": "workqueue"}, False),
        ],
    )
    def test_a_missing_message_is_lost_only_if_nothing_else_is_possible(
        self, state, config, expected
    ):
        info = {"state": {"first_seq": 1, "last_seq": 9} | state, "config": config}
        assert _is_lost(5, info) is expected

    def test_a_message_without_a_proof_is_unknown(self):
        async def use():
            sink = self.make_sink()
            await sink.open()
            found = await sink.seen([Sent(make_message(1), None)])
            await sink.close()
            return found

        assert asyncio.run(use()) == [None]

    # --- faults ---

    def test_a_cut_during_a_call_leaves_no_answer_open(self):
        async def use(proxy):
            sink = self.sink(proxy.address)
            await sink.open()
            proxy.swallow_answers()
            call = asyncio.create_task(sink.send([make_message(1), make_message(2)]))
            await self._arrived(2)
            proxy.cut()
            proxy.thaw()
            async with asyncio.timeout(5):
                during = await call
            await sink.open()
            after = await sink.send([make_message(1), make_message(3)])
            await sink.close()
            return during, after

        with TcpProxy(self.server) as proxy:
            during, after = asyncio.run(use(proxy))
        assert [type(answer) for answer in during] == [SinkUnavailable, SinkUnavailable]
        assert "the connection was lost" in str(during[0])
        assert after == [
            Accepted(f"{self.name}:1", is_duplicate=True), Accepted(f"{self.name}:3")
        ]  # fmt: skip

    def test_answers_that_do_not_come_end_the_call(self):
        async def use(proxy):
            sink = self.sink(proxy.address, ack_timeout=0.5)
            await sink.open()
            proxy.swallow_answers()
            during = await sink.send([make_message(1), make_message(2)])
            # The old answers come during the next call, and are not taken for its own.
            proxy.thaw()
            after = await sink.send([make_message(3)])
            await sink.close()
            return during, after

        with TcpProxy(self.server) as proxy:
            during, after = asyncio.run(use(proxy))
        assert [type(answer) for answer in during] == [SinkUnavailable, SinkUnavailable]
        assert "no answer within 0.5 s" in str(during[0])
        assert after == [Accepted(f"{self.name}:3")]

    def test_a_frozen_server_holds_nobody(self):
        # More than the buffers of the sockets and of the client take.
        async def use(proxy):
            sink = self.sink(proxy.address)
            await sink.open()
            proxy.freeze()
            messages = [make_message(number, body="x" * 900_000) for number in range(20)]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await sink.send(messages)
            async with asyncio.timeout(5):
                await sink.close()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await sink.open()
            async with asyncio.timeout(5):
                await sink.close()
            await wait_for_async(lambda: len(asyncio.all_tasks()) == 1, 5, "no task is left")
            proxy.thaw()
            await sink.open()
            after = await sink.send([make_message(1)])
            await sink.close()
            return after

        with TcpProxy(self.server) as proxy:
            after = asyncio.run(use(proxy))
        assert [type(answer) for answer in after] == [Accepted]

    def test_closing_ends_other_calls_without_cancelling_them(self):
        async def use(proxy):
            sink = self.sink(proxy.address)
            await sink.open()
            proxy.swallow_answers()
            call = asyncio.create_task(sink.send([make_message(1)]))
            await self._arrived(1)
            await sink.close()
            return await call

        with TcpProxy(self.server) as proxy:
            assert isinstance(asyncio.run(use(proxy))[0], SinkUnavailable)

    async def _arrived(self, count):
        async with jetstream(self.server) as streams:

            async def have() -> bool:
                return (await streams.stream_info(self.name)).state.messages >= count

            await wait_for_async(have, 10, "the stream has the messages")


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_drain_loses_nothing_while_its_connection_is_cut_and_answers_are_swallowed(
    app, database, conn, nats_server, far_name
):
    with TcpProxy(nats_server) as proxy:
        sink = JetStream(f"nats://{proxy.address}", far_name)
        drain = Drain(
            app, "orders", sink=sink, queue="orders", batch_size=50, timeout=1.0, verify=True
        )
        async with jetstream(nats_server) as streams:
            await streams.add_stream(name=far_name, subjects=[far_name])
            await through_faults(drain, database, conn, proxy)
            found = await stored(streams, far_name)
    # The stream recognises repetitions, so each is there once.
    assert len({one.headers["forebay-id"] for one in found.values()}) == len(found) == 300


def test_what_a_server_loses_with_its_power_is_lost(tmp_path):
    """The last messages are not on the disk yet when the server ends: a file that is cut shows
    it.
    """

    async def send(address):
        async with jetstream(address) as streams:
            await streams.add_stream(name="orders", subjects=["orders"])
        sink = JetStream(f"nats://{address}", "orders")
        messages = [make_message(number) for number in (1, 2, 3)]
        answers = await ended(sink, messages)
        return [Sent(message, one.proof) for message, one in zip(messages, answers, strict=True)]

    async def seen(address, sent):
        sink = JetStream(f"nats://{address}", "orders")
        await sink.open()
        found = await sink.seen(sent)
        again = await sink.send([sent[2].message.after_loss()])
        await sink.close()
        return found, again

    with servers.nats_server(tmp_path) as (address, process):
        sent = asyncio.run(send(address))
        process.kill()
    (block,) = (tmp_path / "store").rglob("*.blk")
    content = block.read_bytes()
    third = content.index(sent[2].message.id.encode())
    block.write_bytes(content[:third])
    for index in (tmp_path / "store").rglob("index.db"):
        index.unlink()
    with servers.nats_server(tmp_path, port=int(address.rpartition(":")[2])) as (address, _):
        found, again = asyncio.run(seen(address, sent))
    assert found == [True, True, False]
    assert again == [Accepted("orders:3")]


def test_a_user_without_rights_is_refused_at_once(tmp_path):
    config = tmp_path / "conf"
    config.write_text(
        "accounts { A { jetstream: enabled, users: [{user: u, password: s3cret, permissions: "
        '{publish: ["$JS.API.>"]}}] } }'
    )

    async def use(address, password):
        async with asyncio.timeout(5):
            return await ended(
                JetStream(f"nats://u:{password}@{address}", "Orders.x"), [make_message(1)]
            )

    with servers.nats_server(tmp_path, "--config", str(config)) as (address, _):
        (answer,) = asyncio.run(use(address, "s3cret"))
        # The server closes after it said why; the client may see the end of the connection first.
        with pytest.raises(SinkUnavailable) as caught:
            asyncio.run(use(address, "wrong-one"))
    assert isinstance(answer, SinkUnavailable)
    assert "permissions violation" in str(answer)
    assert "wrong-one" not in str(caught.value)


def test_a_server_without_jetstream_is_an_outage(tmp_path):
    async def use(address):
        return await ended(JetStream(f"nats://{address}", "orders", stream="o"), [make_message(1)])

    with servers.nats_server(tmp_path, jetstream=False) as (address, _):
        with pytest.raises(SinkUnavailable, match="JetStream does not answer"):
            asyncio.run(use(address))


def test_tls_is_not_given_up_in_silence(nats_server):
    sink = JetStream(f"tls://{nats_server}", "orders")
    with pytest.raises(SinkUnavailable, match="does not use TLS"):
        asyncio.run(ended(sink))


def test_only_the_leader_of_a_stream_says_that_a_message_is_missing():
    """Any replica answers direct reads, also one that does not have the message yet."""

    class Replicas:
        async def call(self, requests, seconds):
            del seconds
            headers = base64.b64encode(
                b"NATS/1.0\r\nNats-Msg-Id: " + message.id.encode() + b"\r\n\r\n"
            )
            stored = b'{"message":{"seq":7,"hdrs":"%s"}}' % headers
            return [
                _Found(subject, b"", {"Status": "404"})
                if "DIRECT" in subject
                else _Found(subject, stored, None)
                for subject, _, _ in requests
            ]

    message = make_message(1)
    sink = JetStream("nats://h", "orders")
    sink._link = Replicas()
    assert asyncio.run(sink.seen([Sent(message, "orders:7")])) == [True]


def test_a_cluster_is_used_while_one_of_its_servers_answers(nats_server):
    sink = JetStream(f"nats://127.0.0.1:9,nats://{nats_server}", "nowhere.x")
    (answer,) = asyncio.run(ended(sink, [make_message(1)]))
    assert "no stream has the subject" in str(answer)


# --- logging in without a user in the address ---


def key_pair(prefix):
    seed = nkeys.encode_seed(os.urandom(32), prefix)
    return nkeys.from_seed(bytearray(seed)), seed.decode()


def jwt(signer, subject, name, claims):
    """Return a claim of NATS: what the tool nsc would write."""
    body = {
        "jti": name, "iat": 1_700_000_000, "iss": signer.public_key.decode(), "name": name,
        "sub": subject, "nats": {"version": 2} | claims,
    }  # fmt: skip
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, body)
    ]
    signature = base64.urlsafe_b64encode(signer.sign(b".".join(parts))).rstrip(b"=")
    return b".".join([*parts, signature]).decode()


@pytest.fixture(scope="module")
def guarded_server(tmp_path_factory):
    """A server whose users have JWTs; its address and the text of a credentials file."""
    operator, _ = key_pair(nkeys.PREFIX_BYTE_OPERATOR)
    account, _ = key_pair(nkeys.PREFIX_BYTE_ACCOUNT)
    system, _ = key_pair(nkeys.PREFIX_BYTE_ACCOUNT)
    user, seed = key_pair(nkeys.PREFIX_BYTE_USER)
    subjects = [one.public_key.decode() for one in (operator, account, system, user)]
    names = ["subs", "data", "payload", "imports", "exports", "conn", "leaf"]
    limits = dict.fromkeys(names, -1) | {"wildcards": True}
    streams = dict.fromkeys(["mem_storage", "disk_storage", "streams", "consumer"], -1)
    tokens = [
        jwt(operator, subjects[1], "shop", {"type": "account", "limits": limits | streams}),
        jwt(operator, subjects[2], "SYS", {"type": "account", "limits": limits}),
    ]
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "conf").write_text(
        f"operator: {jwt(operator, subjects[0], 'op', {'type': 'operator'})}\n"
        f"system_account: {subjects[2]}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {subjects[1]}: {tokens[0]}, {subjects[2]}: {tokens[1]} }}\n"
    )
    claims = {"type": "user", "subs": -1, "data": -1, "payload": -1}
    credentials = (
        "-----BEGIN NATS USER JWT-----\n"
        f"{jwt(account, subjects[3], 'u', claims)}\n------END NATS USER JWT------\n\n"
        "************* IMPORTANT *************\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    with (
        skipped_without_server(),
        servers.nats_server(folder, "--config", str(folder / "conf")) as (address, _),
    ):
        yield address, credentials


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_credentials_file_logs_in(guarded_server, tmp_path, newline):
    """Whatever its line ends. Without it the server refuses the connection."""
    address, credentials = guarded_server
    path = tmp_path / "shop.creds"
    path.write_text(credentials, newline=newline)
    sink = JetStream(f"nats://{address}", "orders", credentials=f"file:{path}")
    (answer,) = asyncio.run(ended(sink, [make_message(1)]))
    assert "no stream has the subject" in str(answer)
    with pytest.raises(SinkUnavailable):
        asyncio.run(ended(JetStream(f"nats://{address}", "orders"), [make_message(1)]))


@pytest.mark.parametrize("change", [
    lambda text: "",
    lambda text: "nothing of this kind",
    lambda text: text.partition("-----BEGIN USER")[0],
    lambda text: text[text.index("-----BEGIN USER"):],
    lambda text: text.replace("\nSU", "\nSX"),
    lambda text: text.replace("BEGIN NATS USER JWT-----\n", "BEGIN NATS USER JWT-----"),
])  # fmt: skip
def test_a_file_that_has_no_credentials_is_an_outage(guarded_server, monkeypatch, change):
    """The library would read such a file for ever. No message shows what is in it."""
    address, credentials = guarded_server
    text = change(credentials)
    monkeypatch.setenv("SHOP_CREDS", text)
    sink = JetStream(f"nats://{address}", "orders", credentials="env:SHOP_CREDS")

    async def use():
        async with asyncio.timeout(10):
            await sink.open()

    with pytest.raises(SinkUnavailable, match="env:SHOP_CREDS") as caught:
        asyncio.run(use())
    assert credentials.splitlines()[1][-20:] not in str(caught.value)


def test_a_seed_and_a_token_log_in(tmp_path, monkeypatch):
    """A file that was replaced is read when the sink connects again."""
    user, seed = key_pair(nkeys.PREFIX_BYTE_USER)
    _, other = key_pair(nkeys.PREFIX_BYTE_USER)
    path = tmp_path / "seed"
    monkeypatch.setenv("NATS_TOKEN", "s3cret")
    for authorization, login in [
        (f"users: [{{nkey: {user.public_key.decode()}}}]", {"nkey": f"file:{path}"}),
        ("token: s3cret", {"token": "env:NATS_TOKEN"}),
        ("token: s3cret", {"token": Secret("s3cret")}),
    ]:
        (tmp_path / "conf").write_text(f"authorization {{ {authorization} }}")
        with servers.nats_server(tmp_path, "--config", str(tmp_path / "conf")) as (address, _):
            path.write_text(other)
            sink = JetStream(f"nats://{address}", "orders", **login)
            if "nkey" in login:
                with pytest.raises(SinkUnavailable) as caught:
                    asyncio.run(ended(sink))
                assert other not in str(caught.value)
                path.write_text(f"{seed}\n")
            (answer,) = asyncio.run(ended(sink, [make_message(1)]))
            assert "no stream has the subject" in str(answer)
            assert "s3cret" not in repr(vars(sink))


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"url": "nats://h", "subject": "s", "token": "t0ken"}, "token is not a reference"),
        ({"url": "nats://h", "subject": "s", "nkey": 7}, "nkey is not a reference"),
        ({"url": "nats://u:p@h", "subject": "s", "token": "env:T"}, "exclude each other"),
        ({"url": "nats://h,nats://u@i", "subject": "s", "nkey": "env:T"}, "exclude each other"),
        (
            {"url": "nats://h", "subject": "s", "nkey": "env:T", "credentials": "env:C"},
            "credentials and nkey exclude each other",
        ),
        ({"subject": "s"}, "needs the setting url"),
        ({"url": "nats://h"}, "needs the setting subject"),
        ({"url": "http://h", "subject": "s"}, "url is not an address that begins with nats://"),
        ({"url": "nats://h,http://i", "subject": "s"}, "url is not an address"),
        ({"url": "nats://h", "subject": ""}, "subject is ''"),
        ({"url": "nats://h", "subject": "a b"}, "not a subject"),
        ({"url": "nats://h", "subject": "orders.>"}, "not a subject"),
        ({"url": "nats://h", "subject": "$JS.API.{kind}"}, "not a subject"),
        ({"url": "nats://h", "subject": "orders.{knd}"}, "unknown name {knd}"),
        ({"url": "nats://h", "subject": "s", "stream": "a.b"}, "stream is 'a.b'"),
        ({"url": "nats://h", "subject": "s", "ack_timeout": 0}, "ack_timeout is 0"),
    ],
)
def test_a_configuration_is_checked_without_a_server(config, problem):
    with pytest.raises(ConfigError) as caught:
        make_sink("nats", config)
    assert problem in str(caught.value)


def test_messages_show_no_password():
    sink = JetStream("nats://u:secret@h:1,nats://u:secret@i:2", "orders.{kind}")
    assert sink.place == "orders.{kind} at h:1,i:2"
