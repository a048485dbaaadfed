"""Another Forebay database as a sink."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import anyio
import psycopg
import pytest

import forebay
from forebay.config import WorkerSettings
from forebay.errors import ConfigError, SinkUnavailable
from forebay.sending import Drain
from forebay.sinks import Accepted, Rejected, Sent, Sink, make_sink
from forebay.sinks.forebay import ForebayDatabase
from forebay.testing import Received, SinkContract, make_message
from tests.support.far_workers import sends
from tests.support.worker_process import FAST


class TestForebayDatabase(SinkContract):
    @pytest.fixture(autouse=True)
    def _server(self, database, conn):
        self.database, self.conn = database, conn

    def make_sink(self, address=None, **options) -> Sink:
        url = self.database if address is None else f"postgresql://u:secret@{address}/x"
        return ForebayDatabase(url, **options)

    def received(self):
        rows = self.conn.execute(
            "select unique_key, kind, args::text, headers from forebay.log order by seq"
        ).fetchall()
        return [
            Received(key.partition(":")[2], kind, _compact(args).encode(), headers)
            for key, kind, args, headers in rows
        ]

    def lose(self, sent):
        # As after a failover that lost the commit.
        self.conn.execute("delete from forebay.log where seq = %s", [int(sent.proof)])
        self.conn.execute("delete from forebay.unique_key where job_id = %s", [int(sent.proof)])

    def test_a_repetition_is_answered_with_the_job_that_is_there(self):
        one, two, three = map(make_message, (1, 2, 3))
        first, second, again, third = sends(self.make_sink(), [one, two], [two, three])
        assert [answer.is_duplicate for answer in (first, second, again, third)] == [
            False, False, True, False,
        ]  # fmt: skip
        assert again.proof == second.proof
        assert len(self.received()) == 3

    def test_order_is_kept_whatever_the_ids(self):
        """An enqueue takes its keys sorted, and numbers its jobs so."""
        messages = [make_message(number) for number in (9, 10, 100, 11, 99, 2)]
        sends(self.make_sink(), messages)
        assert [found.id for found in self.received()] == [message.id for message in messages]

    def test_everything_of_a_job_travels(self):
        expires = datetime(2100, 1, 2, tzinfo=UTC)
        message = make_message(
            1, headers={"tenant": "7"}, tag="t", correlation_id="c", ordering_key="o", priority=7,
            expires_at=expires,
        )  # fmt: skip
        (answer,) = sends(self.make_sink(queue="there", kinds={message.kind: "ship"}), [message])
        row = self.conn.execute(
            "select queue, kind, priority, tag, correlation_id, headers, expires_at"
            " from forebay.job(%s)", [answer.proof],
        ).fetchone()  # fmt: skip
        headers = {"tenant": "7", "forebay-id": message.id}
        assert row == ("there", "ship", 7, "t", "c", headers, expires)
        assert self.conn.execute("select ordering_key from forebay.log").fetchone() == ("o",)

    def test_a_message_that_is_refused_holds_up_no_other(self):
        late = datetime.now(UTC) - timedelta(seconds=1)
        messages = [make_message(1), make_message(2, expires_at=late), make_message(3)]
        answers = sends(self.make_sink(), messages)
        assert [type(answer) for answer in answers] == [Accepted, Rejected, Accepted]
        assert "is not after the job's start" in answers[1].reason
        assert len(self.received()) == 2

    def test_a_full_queue_takes_what_it_can(self):
        self.conn.execute("select forebay.limit_queue('orders', max_waiting => 3)")
        messages = [make_message(number) for number in range(1, 9)]
        answers = sends(self.make_sink(), messages)
        accepted = [isinstance(answer, Accepted) for answer in answers]
        assert accepted == [True] * sum(accepted) + [False] * (8 - sum(accepted))
        assert 0 < sum(accepted) < 8
        assert "is full" in str(answers[-1])
        assert isinstance(answers[-1], SinkUnavailable)
        assert len(self.received()) == sum(accepted)

    def test_headers_at_their_limit_travel_without_the_id(self):
        headers = {f"h{number}": "x" for number in range(64)}
        (answer,) = sends(self.make_sink(), [make_message(1, headers=headers)])
        assert isinstance(answer, Accepted)
        assert self.received()[0].headers == headers

    def test_a_key_outlives_its_job_and_maintenance(self):
        """Until a day after its period; the keys of a long period are not even read."""
        message = make_message(1)
        (answer,) = sends(self.make_sink(), [message])
        self.conn.execute("delete from forebay.log")
        self.conn.execute("update forebay.unique_key set taken_at = taken_at - interval '20 days'")
        trim = "select rows from forebay._trim_unique_keys(null, 100)"
        assert self.conn.execute(trim).fetchone() == (0,)
        assert sends(self.make_sink(), [message]) == [Accepted(answer.proof, is_duplicate=True)]
        assert not self.received()

    def test_a_call_that_is_given_up_leaves_no_answer_to_another(self):
        async def use():
            sink = self.make_sink()
            await sink.open()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await sink.send([make_message(1)])
            self.conn.rollback()
            answers = await sink.send([make_message(2)])
            found = await sink.seen([Sent(make_message(2), answers[0].proof)])
            await sink.close()
            return found

        with psycopg.connect(self.database) as other:
            other.execute("lock table forebay.unique_key in exclusive mode")
            task = asyncio.run(_with_release(use, other))
        assert task == [True]
        assert make_message(2).id in {found.id for found in self.received()}


async def _with_release(use, other):
    running = asyncio.create_task(use())
    await asyncio.sleep(0.5)
    other.rollback()
    return await running


def _compact(text):
    return json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))


def test_jobs_of_committed_transactions_become_jobs_there(database, conn):
    """Here another queue of the same database; verified."""
    app = forebay.App(database)
    sink = ForebayDatabase(database, queue="there")
    drain = Drain(app, "far", sink=sink, queue="orders", verify=True)
    enqueue = "select forebay.enqueue('ship', %s::jsonb, queue => 'orders', ordering_key => 'a')"
    with psycopg.connect(database) as mine:
        mine.execute(enqueue, ['{"n": 1}'])
        mine.commit()
        mine.execute(enqueue, ['{"n": 2}'])
        mine.rollback()
        mine.execute(enqueue, ['{"n": 3}'])

    async def run():
        with anyio.fail_after(30):
            await drain.worker(database, WorkerSettings(**FAST)).run(until_idle=True)

    asyncio.run(run())
    rows = conn.execute(
        "select args, ordering_key from forebay.log where unique_key is not null order by seq"
    ).fetchall()
    assert rows == [({"n": 1}, "a"), ({"n": 3}, "a")]
    assert conn.execute("select count(*) from forebay.jobs('there')").fetchone() == (2,)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, "needs the setting url"),
        ({"url": "mysql://h"}, "url is not an address"),
        ({"url": "postgresql://h", "queue": "a b"}, "queue is not a name"),
        ({"url": "postgresql://h", "kinds": {"a": 1}}, "must be text"),
        ({"url": "postgresql://h", "kinds": ["a"]}, "not a mapping"),
        ({"url": "postgresql://h", "remember_days": 0}, "remember_days is 0"),
    ],
)
def test_a_configuration_is_checked_without_a_server(config, problem):
    with pytest.raises(ConfigError, match=problem):
        make_sink("forebay", config)


def test_messages_show_no_password():
    sink = make_sink("forebay", {"url": "postgresql://u:secret@127.0.0.1:9/x"})
    with pytest.raises(SinkUnavailable) as caught:
        asyncio.run(sink.open())
    assert "secret" not in str(caught.value) + sink.place
