"""What notifications carry, for everybody who listens in the database can read it."""

import asyncio

import pytest

from forebay.errors import ForebayError
from tests.support.engine import connect, one
from tests.support.fix_worker import running
from tests.support.waiting import wait_for_async

pytestmark = [pytest.mark.anyio, pytest.mark.direct]

#: PostgreSQL takes less than so many bytes.
PAYLOAD_BYTES = 8000

QUEUE = "q" * 128


async def test_a_notification_carries_a_name_or_a_number_and_nothing_of_the_job(
    app, conn, database
):
    """
    The wake-up, the resignation of a leader and the end of a job: a queue's name, which is short,
    or an id. However large and odd the arguments, the error and the result are.
    """
    secret = "secret ' \" \\ " * 2000
    heard: set[tuple[str, str]] = set()

    @app.job(queue=QUEUE, keep_result=True, max_attempts=1)
    async def work(text: str, fails: bool) -> str:
        await asyncio.sleep(0.5)  # so that somebody waits for the result
        if fails:
            raise ValueError(text)
        return text

    channels = ("forebay_wakeup", "forebay_result")
    # By default it is silent on servers that allow prepared transactions, which cannot notify.
    conn.execute(f"alter database {conn.info.dbname} set forebay.wakeup = 'on'")
    with connect(database) as ear, connect(database) as producer:
        for channel in (*channels, f'"{QUEUE}"'):
            ear.execute(f"listen {channel}")
        async with running(app, poll_seconds=1, concurrency=1) as worker:

            def hear() -> bool:
                for notification in ear.notifies(timeout=0):
                    heard.add((notification.channel, notification.payload))
                return {channel for channel, _ in heard} == set(channels)

            await wait_for_async(
                lambda: one(
                    conn,
                    "select bool_or(last_value > extract(epoch from clock_timestamp()) * 1000)"
                    " from pg_sequences where sequencename like 'wakeup%'",
                )
            )
            jobs = [work.enqueue(producer, secret, fails) for fails in (False, True)]
            handle = app.handle(jobs[0])
            assert (await handle.aresult(20)) == secret
            with pytest.raises(ForebayError):
                await app.handle(jobs[1]).aresult(20)
            await wait_for_async(lambda: worker.stats.done + worker.stats.ended == 2)
            await wait_for_async(hear, 10)
    print(heard)
    numbers = {str(job) for job in jobs}
    for channel, payload in heard:
        assert len(payload.encode()) < PAYLOAD_BYTES / 10
        if channel == "forebay_result":
            assert payload in numbers
        else:
            assert payload == QUEUE or payload.isdecimal()
