"""Batch handlers that take undecoded arguments: ``list[msgspec.Raw]``."""

import json

import msgspec
import pytest

import forebay
from forebay.errors import ConfigError, InvalidJob
from forebay.ops import protocol
from forebay.ops.claimed import ClaimedJob, RawJob, RawKinds, claimed_jobs
from forebay.testing import Performer
from forebay.worker.run.messages import Work, decode_work
from tests.support.engine import enqueue, one, state
from tests.support.waiting import wait_for

pytestmark = pytest.mark.anyio


def put(conn, kind: str, args: str, queue: str = "default") -> int:
    """Enqueue one job with arguments as they are written."""
    return one(conn, "select forebay.enqueue(%s, %s::jsonb, queue => %s)", kind, args, queue)


async def drained(app: forebay.App) -> None:
    await app.worker(concurrency=2).run(until_idle=True)


async def test_each_item_is_the_json_text_of_a_job(database, conn):
    """
    Of the whole object, in the order of the jobs, with what JSON can express and Python's numbers
    cannot.
    """
    app = forebay.App(database)
    calls = []

    @app.batch_job(size=3)
    async def count(items: list[msgspec.Raw]) -> None:
        calls.append(items)

    with conn.transaction():
        for number in range(4):
            count.enqueue(conn, number=number, name="ä\n")
        enqueue(conn, kind="count", args={"exact": 10**400})
    await drained(app)
    assert [len(items) for items in calls] == [3, 2]
    items = [item for items in calls for item in items]
    assert {type(item) for item in items} == {msgspec.Raw}
    found = [json.loads(bytes(item)) for item in items]
    assert found[:4] == [{"number": number, "name": "ä\n"} for number in range(4)]
    assert bytes(items[4]) == b'{"exact": 1' + b"0" * 400 + b"}"
    whole = msgspec.json.decode(b"[" + b",".join(items[:4]) + b"]")
    assert whole == found[:4]


async def test_large_arguments_are_not_decoded_either(database, conn):
    """
    Beyond what is decoded at once, and beside a job of another kind in the same queue.
    """
    app = forebay.App(database)
    sizes, names = [], []

    @app.batch_job(size=100)
    async def measure(items: list[msgspec.Raw]) -> None:
        sizes.extend(len(bytes(item)) for item in items)

    @app.job
    async def greet(name: str) -> None:
        names.append(name)

    with conn.transaction():
        for _ in range(30):
            measure.enqueue(conn, text="x" * 20_000)
        greet.enqueue(conn, "Ann")
    await drained(app)
    assert sizes == [20_000 + len('{"text": ""}')] * 30
    assert names == ["Ann"]


async def test_outcomes_and_the_context_are_those_of_any_batch(database, conn):
    """
    An entry for each job, and decoded arguments in the jobs of the context; also in the caller's
    transaction.
    """
    app = forebay.App(database)
    seen = []

    @app.batch_job(size=10, transaction=True, max_attempts=1)
    async def judge(ctx: forebay.Context, items: list[msgspec.Raw]) -> list[object]:
        seen.extend(job.args for job in ctx.jobs)
        return [None if b"good" in bytes(item) else ValueError("bad") for item in items]

    with conn.transaction():
        good, bad = (judge.enqueue(conn, word=word) for word in ("good", "bad"))
    await drained(app)
    assert seen == [{"word": "good"}, {"word": "bad"}]
    assert [state(conn, job) for job in (good, bad)] == ["done", "dead"]


async def test_a_job_in_a_queue_of_other_handlers_is_text_as_written(database, conn):
    """
    No number is changed, although the handlers of the queue take decoded arguments.
    """
    app = forebay.App(database)
    texts, numbers = [], []

    @app.batch_job(size=5, queue="texts")
    async def keep(items: list[msgspec.Raw]) -> None:
        texts.extend(bytes(item) for item in items)

    @app.job(queue="others")
    async def add(number: float) -> None:
        numbers.append(number)

    add.enqueue(conn, 1.5)
    put(conn, "keep", '{"n": 1.50}', queue="others")
    put(conn, "keep", '{"n": 1%s.5}' % ("0" * 400), queue="others")
    conn.commit()
    await drained(app)
    assert texts == [b'{"n": 1.50}', b'{"n": 1' + b"0" * 400 + b".5}"]
    assert numbers == [1.5]


@pytest.mark.parametrize("args", ["{}", '{"text": "%s"}' % ("x" * 20_000)], ids=["small", "large"])
def test_only_arguments_of_raw_kinds_stay_text_for_their_handlers(args):
    """
    Of one claim, in any queue. Others are decoded at once, or if the claim is large, when their
    jobs start.
    """
    row = '[7,"%s",1000,%s,9,"k",null,1,null,3,"t","c",{"h":"v"}]'
    text = ",".join([row % ("raw", args), row % ("plain", args)] * 20)
    for queue in ("of raw", "of others"):
        raw, plain, *rest = claimed_jobs(text, RawKinds({"raw"}, {"of raw"}), queue=queue)
        (expected, *_) = claimed_jobs(row % ("plain", args))
        assert (type(raw), bytes(raw.args), raw.is_text) == (RawJob, args.encode(), False)
        assert plain.is_text == (args != "{}")
        plain.decode_args()
        assert [plain.offset, plain.size] == [2, raw.size]
        expected.offset, expected.size = plain.offset, plain.size
        assert plain == expected
        assert [job.offset for job in rest] == list(range(3, 41))


def test_a_malformed_row_is_a_job_without_arguments_beside_text():
    """
    It ends as a dead letter; the others are read as written.
    """
    text = '[1,"raw",1000,{"n":1e999}],[2,"raw",1000,{},"no id"]'
    good, bad = claimed_jobs(text, RawKinds({"raw"}, {"default"}), queue="default")
    assert (type(good), bytes(good.args)) == (RawJob, b'{"n":1e999}')
    assert bad.args is None


@pytest.mark.slow
def test_child_processes_get_the_text(conn, workers):
    """
    As written, and each job has its outcome; a job of a malformed row would have none of them.
    """
    workers.start(concurrency=1)
    written = ['{"n": 1.50}', '{"n": 1%s.5}' % ("0" * 400)]
    with conn.transaction():
        ids = [put(conn, "quote", args) for args in written]
    wait_for(lambda: [state(conn, job) for job in ids] == ["dead"] * 2, 30, lambda: workers.logs)
    letters = forebay.App(conn.info.dsn).client().dead_letters()
    assert sorted(str(letter.errors[-1].message) for letter in letters) == sorted(written)


def test_a_message_with_a_malformed_row_is_read_as_any():
    """
    Its row has no arguments, which is no text for the handler.
    """
    lane = protocol.ReadyLane(1, 1, "default", 100, is_private=False, is_suspect=False)
    row = RawJob(1, "raw", 1000, msgspec.Raw(b'{"n": 1.50}'))
    bad = ClaimedJob(2, "raw", 1000, None)
    message = msgspec.json.encode(Work(1, 1, [row], [1], lane))
    assert bytes(decode_work(message, {"raw"}).rows[0].args) == b'{"n": 1.50}'
    assert decode_work(message, {"other"}).rows[0].args == {"n": 1.5}
    message = msgspec.json.encode(Work(1, 1, [row, bad], [1, 2], lane))
    assert [job.args for job in decode_work(message, {"raw"}).rows] == [{"n": 1.5}, None]


async def test_jobs_of_one_ordering_key_come_one_at_a_time(database, conn):
    """
    In order, in calls of their own.
    """
    app = forebay.App(database)
    calls = []

    @app.batch_job(size=5)
    async def keep(items: list[msgspec.Raw]) -> None:
        calls.append([msgspec.json.decode(item)["n"] for item in items])

    with conn.transaction():
        for n in range(3):
            keep.using(ordering_key="a").enqueue(conn, n=n)
    await drained(app)
    assert calls == [[0], [1], [2]]


async def test_middleware_and_listeners_see_decoded_arguments(database, conn):
    """
    Middleware around the call, and the event of a dead job.
    """
    seen = []

    class Watch(forebay.Middleware):
        async def aattempt(self, attempt):
            seen.append([job.args for job in attempt.jobs])
            yield

    app = forebay.App(database, middleware=[Watch()])

    @app.batch_job(max_attempts=1)
    async def fail(items: list[msgspec.Raw]) -> None:
        raise ValueError(str(len(items)))

    @app.on_dead
    async def dead(ended: forebay.AttemptEnded) -> None:
        seen.append(ended.job.args)

    with conn.transaction():
        job = fail.enqueue(conn, word="a")
    await drained(app)
    assert state(conn, job) == "dead"
    assert seen == [[{"word": "a"}], {"word": "a"}]
    (letter,) = app.client().dead_letters()
    assert letter.args == {"word": "a"}


def test_a_batch_is_performed_with_text():
    """
    The testing helpers give it what a worker gives it; an item is a dict of arguments.
    """
    app = forebay.App()
    seen = []

    @app.batch_job()
    def keep(items: list[msgspec.Raw]) -> list[object]:
        seen.extend(bytes(item) for item in items)
        return [None, forebay.Dead("no")]

    found = Performer(raise_on_failure=False).perform_batch(keep, [{"n": 1}, {"n": 2}])
    assert seen == [b'{"n":1}', b'{"n":2}']
    assert [each.outcome for each in found] == ["done", "dead"]


def test_raw_is_refused_where_it_means_nothing():
    """
    As an argument of a handler of single jobs, or beside other types.
    """
    app = forebay.App()

    def single(value: msgspec.Raw) -> None: ...
    def union(items: list[msgspec.Raw | None]) -> None: ...
    def inside(items: list[dict[str, msgspec.Raw]]) -> None: ...
    def other(items: tuple[msgspec.Raw]) -> None: ...

    with pytest.raises(ConfigError, match="only the items of a batch handler") as caught:
        app.job(single)
    assert "list[msgspec.Raw]" in str(caught.value.hint)
    with pytest.raises(ConfigError, match="only the items of a batch handler"):
        app.batch_job()(union)
    with pytest.raises(ConfigError, match="only the items of a batch handler"):
        app.batch_job()(inside)
    with pytest.raises(ConfigError, match="not a list or sequence"):
        app.batch_job()(other)


def test_arguments_are_given_by_name(conn):
    """
    There is no type that a positional value could have; nothing is written.
    """
    app = forebay.App()

    @app.batch_job()
    def count(items: list[msgspec.Raw]) -> None: ...

    with pytest.raises(InvalidJob, match="by name"):
        count.enqueue(conn, {"number": 1})
    assert conn.execute("select count(*) from forebay.jobs()").fetchone() == (0,)
