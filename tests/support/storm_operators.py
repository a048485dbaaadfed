"""Operators at work in the storm: they enqueue, replay, redrive, cancel, erase, pause and apply.

Their jobs are of a queue of their own, ``acted``, and have numbers of their own. A call without an
answer is repeated, with the token of its plan, until an answer comes, and then sometimes once more.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
from psycopg.types.json import Jsonb

from forebay.client import Client
from forebay.errors import DatabaseUnavailable, ForebayError, JobsChanged
from forebay.model.change import JobFilter
from forebay.model.declared import Queue, QueueSettings
from tests.support.effects import Effects

QUEUE = "acted"
#: The limits of each key that the operators apply; never more than the largest run at once.
_CONCURRENCY = (2, 3)
_KINDS = (
    "acted", "acted_in_thread", "acted_in_transaction", "forks", "forks_in_thread", "mortal",
)  # fmt: skip
#: What is noted of their jobs: rows, and claims and ends with numbers in the order in which they
#: happened.
TABLES = """
    create table acted_witness (acted bigint, tag text);
    create table acted_effect (id bigserial, job_id bigint, acted bigint);
    create table acted_row (seq bigint, job_id bigint, acted bigint, tag text, kind text);
    create sequence tick;
    create table acted_claim (lease_id bigint, claim_no bigint, nr integer, seq bigint,
        limit_key text, tick bigint);
    create table acted_end (lease_id bigint, claim_no bigint, nr integer, outcome "char",
        tick bigint);
    create table lease_end (lease_id bigint, tick bigint);
    create function note_acted_row() returns trigger language plpgsql security definer as $$
    begin
        insert into public.acted_row values (
            new.seq, coalesce(new.job_id, new.seq), (new.args ->> 'acted')::bigint,
            new.tag, new.kind);
        return null;
    end $$;
    create trigger note_acted_row after insert on forebay.log for each row
        when (new.args ? 'acted') execute function note_acted_row();
    create function note_acted_claim() returns trigger language plpgsql security definer as $$
    begin
        insert into public.acted_claim
        select new.lease_id, new.claim_no, u.nr, u.seq, u.limit_key, nextval('public.tick')
        from unnest(new.seqs, new.limit_keys) with ordinality u (seq, limit_key, nr);
        return null;
    end $$;
    create trigger note_acted_claim after insert on forebay.batch for each row
        when (new.limit_keys is not null) execute function note_acted_claim();
    create function note_acted_end() returns trigger language plpgsql security definer as $$
    begin
        insert into public.acted_end
        select new.lease_id, new.claim_no, c.nr,
               case when new.outcomes is null then 'd'
                    else new.outcomes[case when new.offsets is null then c.nr
                                      else array_position(new.offsets, c.nr::smallint) end] end,
               nextval('public.tick')
        from public.acted_claim c
        where c.lease_id = new.lease_id and c.claim_no = new.claim_no
          and (new.offsets is null or c.nr = any (new.offsets));
        return null;
    end $$;
    create trigger note_acted_end after insert on forebay.settlement for each row
        execute function note_acted_end();
    create index on acted_claim (lease_id, claim_no);
    create index on acted_end (lease_id, claim_no, nr);
    create function note_lease_end() returns trigger language plpgsql security definer as $$
    begin
        insert into public.lease_end values (new.lease_id, nextval('public.tick'));
        return null;
    end $$;
    create trigger note_lease_end after update of closed_at on forebay.lease for each row
        when (old.closed_at is null and new.closed_at is not null)
        execute function note_lease_end();
"""


def check_of(acted: int) -> str:
    """Return what a handler must find beside this number."""
    return f"é {acted * 7919 % 10_007} \\ \N{GRINNING FACE}"


@dataclass
class Acts:
    """What the operators know, kept outside the database."""

    confirmed: dict[str, list[int]] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    doubled: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    failures: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def draw(self, count: int) -> list[int]:
        with self._lock:
            self._last += count
            return list(range(self._last - count + 1, self._last + 1))


class Operators:
    """Threads that act until they are stopped; then they finish what no answer came to."""

    def __init__(self, dsn: str, seed: int, count: int = 2, pause_seconds: float = 0.5) -> None:
        self.acts = Acts()
        self._dsn = dsn
        self._pause_seconds = pause_seconds
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._run, args=(n, random.Random(f"{seed} acts {n}")), daemon=True
            )
            for n in range(count)
        ]

    def __enter__(self) -> "Operators":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(180)
        assert not any(thread.is_alive() for thread in self._threads), "an operator hangs"

    def redrive_all(self) -> int:
        """Redrive what has died, when nothing fails any more; return the number."""
        return Client(self._dsn).redrive_matching(queue=QUEUE)

    def _run(self, number: int, rng: random.Random) -> None:
        operator = _Operator(Client(self._dsn), self._dsn, self.acts, number, rng)
        while not self._stop.is_set():
            try:
                operator.act()
            except BaseException as error:
                self.acts.failures.append(error)
                return
            self._stop.wait(rng.expovariate(1 / self._pause_seconds))


class _Operator:
    def __init__(
        self, client: Client, dsn: str, acts: Acts, number: int, rng: random.Random
    ) -> None:
        self.client = client
        self.dsn = dsn
        self.acts = acts
        self.number = number
        self.rng = rng
        self.tags: list[str] = []

    def act(self) -> None:
        """Do one of the things that operators do."""
        names = ("enqueue", "replay", "redrive", "cancel", "redact", "apply", "pause")
        name = self.rng.choices(names, (8, 5, 3, 1, 2, 2, 1))[0]
        getattr(self, f"_{name}")()
        self.acts.done[name] += 1

    def _until_answered(self, name: str, call: Callable[[], object]) -> object:
        while True:
            try:
                return call()
            except DatabaseUnavailable as error:
                self.acts.errors[f"{name}: {type(error).__name__}"] += 1
            except ForebayError as error:
                # What the database refuses, such as a lock that was not free in time.
                cause = error.__cause__
                if not isinstance(cause, psycopg.OperationalError | psycopg.InternalError):
                    raise
                self.acts.errors[f"{name}: {type(error).__name__}, {cause.sqlstate}"] += 1
            except psycopg.Error as error:
                self.acts.errors[f"{name}: {error.sqlstate or type(error).__name__}"] += 1
            threading.Event().wait(0.2)

    def _enqueue(self) -> None:
        numbers = self.acts.draw(self.rng.randint(1, 20))
        tag = f"acts-{self.number}-{numbers[0]}"
        try:
            with psycopg.connect(self.dsn, connect_timeout=5) as conn:
                for acted in numbers:
                    args = Jsonb({"acted": acted, "check": check_of(acted)})
                    key = self.rng.choice([None, "a", "b", "c"])
                    conn.execute(
                        "select forebay.enqueue(%s, %s, %s, tag => %s, limit_key => %s)",
                        [self.rng.choice(_KINDS), args, QUEUE, tag, key],
                    )
                    conn.execute("insert into acted_witness values (%s, %s)", [acted, tag])
        except psycopg.Error as error:
            # Whether it has committed, the witness knows.
            self.acts.errors[f"enqueue: {error.sqlstate or type(error).__name__}"] += 1
            return
        self.acts.confirmed[tag] = numbers
        self.tags.append(tag)

    def _replay(self) -> None:
        """Replay what had one tag, and call again with the same token."""
        if not self.tags:
            return
        tag = self.tags.pop(self.rng.randrange(len(self.tags)))
        which = JobFilter(queue=QUEUE, tag=tag)
        plan = self._until_answered("plan", lambda: self.client.plan_replay(which))

        def replay() -> int:
            try:
                return self.client.replay_jobs(which, token=plan.token).jobs
            except JobsChanged:
                self.acts.done["replay of what is gone"] += 1
                return 0

        jobs = self._until_answered("replay", replay)
        if self.rng.random() < 0.5 and jobs:
            again = self._until_answered("replay", replay)
            if again != jobs:
                self.acts.doubled.append(f"{tag}: {jobs}, then {again}")
        self.acts.copies[tag] = jobs

    def _redrive(self) -> None:
        plan = self._until_answered("plan", lambda: self.client.plan_redrive(queue=QUEUE))

        def redrive() -> None:
            try:
                self.client.redrive_matching(queue=QUEUE, token=plan.token)
            except JobsChanged:
                self.acts.done["redrive of others"] += 1

        self._until_answered("redrive", redrive)

    def _cancel(self) -> None:
        if not self.tags:
            return
        tag = self.rng.choice(self.tags)
        self.acts.cancelled.add(tag)
        self._until_answered(
            "cancel", lambda: self.client.cancel_matching(JobFilter(queue=QUEUE, tag=tag))
        )

    def _redact(self) -> None:
        self._until_answered("redact", lambda: self.client.redact_queue(QUEUE))

    def _apply(self) -> None:
        settings = QueueSettings(
            key_concurrency=self.rng.choice(_CONCURRENCY), dead_keep_days=self.rng.choice([7, 8])
        )
        self._until_answered(
            "apply",
            lambda: self.client.apply_queues("storm", [Queue(QUEUE, settings)], overwrite=True),
        )

    def _pause(self) -> None:
        seconds = self.rng.choice([0.5, 3.0])
        self._until_answered("pause", lambda: self.client.pause_queue(QUEUE, for_=seconds))


def apply_first(dsn: str) -> None:
    """Make the queue, before its first job."""
    settings = QueueSettings(key_concurrency=min(_CONCURRENCY))
    Client(dsn).apply_queues("storm", [Queue(QUEUE, settings)])


def problems_of_acts(conn: psycopg.Connection, acts: Acts, effects: Effects) -> dict[str, object]:
    """Compare what operators know, what handlers noted and what the database holds."""
    witness = dict(conn.execute("select acted, tag from acted_witness").fetchall())
    rows = conn.execute(
        "select job_id, min(acted), min(tag), min(kind) from acted_row group by 1"
    ).fetchall()
    jobs = {job_id: acted for job_id, acted, _, _ in rows}
    # A redrive makes a job of one that died: only others count as copies.
    redriven = {
        job
        for (job,) in conn.execute(
            "select redriven_as from forebay.dead_letter where redriven_at is not null"
        ).fetchall()
    }
    dead = dict(conn.execute("select job_id, redriven_as from forebay.dead_letter").fetchall())
    of_tag = Counter(tag for job_id, _, tag, _ in rows if job_id not in redriven)
    expected = Counter(witness.values())
    expected.update({tag: copies for tag, copies in acts.copies.items() if tag in expected})
    ran = effects.count("acted")
    written = Counter(job for (job,) in conn.execute("select job_id from acted_effect").fetchall())
    confirmed = {acted for numbers in acts.confirmed.values() for acted in numbers}
    not_run = {
        acted
        for job_id, acted, tag, _ in rows
        if tag not in acts.cancelled and job_id not in dead and acted not in ran
    }
    in_transaction = {
        job_id: tag for job_id, _, tag, kind in rows if kind == "acted_in_transaction"
    }
    found = {
        "acts failed": acts.failures,
        "replayed twice": acts.doubled,
        "wrong arguments": effects.entries("wrong"),
        "a copy hangs": effects.entries("copy hangs"),
        "acted: confirmed and gone": sorted(confirmed - witness.keys()),
        "acted: other number of jobs": {
            tag: (of_tag[tag], expected[tag])
            for tag in of_tag.keys() | expected.keys()
            if of_tag[tag] != expected[tag]
        },
        "acted: of nothing": sorted(ran.keys() - witness.keys()),
        "acted: never ran": sorted(not_run),
        "acted: effect twice": sorted(job for job, n in written.items() if n > 1),
        "acted: effect of nothing": sorted(written.keys() - jobs.keys()),
        "acted: effect missing": sorted(
            job
            for job, tag in in_transaction.items()
            if job not in written and tag not in acts.cancelled
        ),
        "over the limit": _over_the_limit(conn),
    }
    print(
        f"acts: {dict(acts.done)}; {len(jobs)} jobs, {sum(acts.copies.values())} of them by replay,"
        f" {len(redriven)} by redrive; {len(acts.cancelled)} tags cancelled; {len(dead)} died"
    )
    print(f"errors of acts: {dict(acts.errors)}")
    return {name: what for name, what in found.items() if what}


def _over_the_limit(conn: psycopg.Connection) -> dict[str, int]:
    """Return the keys of which more jobs were held at once than any limit that was applied."""
    most = conn.execute("""
        with span as (
            select c.limit_key, c.tick as begins,
                   least((select min(e.tick) from acted_end e
                          where (e.lease_id, e.claim_no, e.nr) = (c.lease_id, c.claim_no, c.nr)),
                         (select min(l.tick) from lease_end l where l.lease_id = c.lease_id))
                       as ends
            from acted_claim c where c.limit_key is not null
        ), change as (
            select limit_key, begins as tick, 1 as by from span
            union all select limit_key, ends, -1 from span where ends is not null
        ), held as (
            select limit_key, sum(by) over (partition by limit_key order by tick, by) as jobs
            from change
        )
        select limit_key, max(jobs)::integer from held group by 1""").fetchall()
    return {key: jobs for key, jobs in most if jobs > max(_CONCURRENCY)}
