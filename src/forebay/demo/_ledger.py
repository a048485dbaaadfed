"""The demo's tables, and the statements that count in them.

``demo.plan`` is committed before anything else happens: it has the intended outcome of each module.
The transactions of the demo write the other tables. So every claim at the end is a comparison of
tables, which you can repeat.
"""

from __future__ import annotations

from typing import Any, Final

from forebay._dataclass import dataclass
from forebay.ops.operation import Operation, nothing

SCHEMA: Final = """
create schema demo;

create table demo.plan (
    path text primary key,
    producer integer not null,
    outcome text not null check (outcome in ('commit', 'rollback', 'rollback to savepoint')));

create table demo.document (
    document_id bigint generated always as identity primary key,
    path text not null unique,
    source text not null,
    job_id bigint);

create table demo.docstring (
    document_id bigint not null,
    name text not null,
    line integer not null,
    text text not null);

-- One row for each time a job took effect. No unique key: a second effect would show.
create table demo.effect (
    document_id bigint not null,
    job_id bigint not null,
    attempt integer not null,
    backend_pid integer not null default pg_backend_pid(),
    at timestamptz not null default clock_timestamp());

create table demo.kill (
    worker text not null,
    jobs_held integer not null,
    at timestamptz not null default clock_timestamp());
"""

#: The query for each number of the result.
COUNTS: Final[dict[str, str]] = {
    "documents": "select count(*) from demo.plan",
    "committed": "select count(*) from demo.document",
    "rolled_back": (
        "select count(*) from demo.plan p where p.outcome <> 'commit'\n"
        "and not exists (select from demo.document d where d.path = p.path)"
    ),
    "done": (
        "select count(*) from demo.document d, forebay.job(d.job_id) j where j.state = 'done'"
    ),
    "lost": (
        "select count(*) from demo.plan p left join demo.document d using (path)\n"
        "where p.outcome = 'commit'\n"
        "and not exists (select from demo.effect e where e.document_id = d.document_id)"
    ),
    "phantom": (
        "select count(*) from demo.effect e\n"
        "where not exists (select from demo.document d where d.document_id = e.document_id)"
    ),
    "rerun": ("select count(distinct job_id) from forebay.log where job_id is not null"),
    "double_effects": (
        "select count(*) from (select from demo.effect group by document_id having count(*) > 1) x"
    ),
    "worker_kills": "select count(*) from demo.kill",
}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of the demo.

    Attributes:
        documents: modules found.
        committed: modules whose row and job were committed.
        rolled_back: modules whose transaction, or savepoint, was rolled back on purpose.
        done: committed documents whose job is done.
        lost: committed documents whose job took no effect.
        phantom: effects of jobs whose transaction was rolled back.
        rerun: jobs that ran again because their worker was killed.
        double_effects: documents whose job took effect more than once.
        worker_kills: workers killed while they held jobs.
        seconds: from the first enqueue to the last completed job.
        dsn: the database with the tables.
    """

    documents: int
    committed: int
    rolled_back: int
    done: int
    lost: int
    phantom: int
    rerun: int
    double_effects: int
    worker_kills: int
    seconds: float
    dsn: str

    @property
    def is_right(self) -> bool:
        """Whether the guarantees held, with a worker killed."""
        return (
            self.lost == self.phantom == self.double_effects == 0
            and self.done == self.committed
            and self.worker_kills > 0
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress at one moment."""

    committed: int
    done: int
    docstrings: int
    returned: int
    held: dict[int, int]


_PROGRESS: Final = """
select (select count(*) from demo.document), (select count(*) from demo.effect),
       (select count(*) from demo.docstring),
       (select count(*) from forebay.settlement where 'l' = any (outcomes)),
       array(select split_part(l.worker, ':', 2)::int from forebay.lease l
             where l.closed_at is null order by l.opened_at, l.lease_id),
       array(select (
           select coalesce(sum(cardinality(b.seqs) - (
               select case when bool_or(s.offsets is null) then cardinality(b.seqs)
                           else coalesce(sum(cardinality(s.offsets)), 0) end
               from forebay.settlement s
               where s.lease_id = b.lease_id and s.claim_no = b.claim_no)), 0)::int
           from forebay.batch b where b.lease_id = l.lease_id)
             from forebay.lease l where l.closed_at is null order by l.opened_at, l.lease_id)
"""


def progress() -> Operation[Progress]:
    """The progress, and the number of jobs each worker holds, by process id."""

    def decode(rows: Any) -> Progress:
        ((committed, done, docstrings, returned, pids, held),) = rows
        return Progress(committed, done, docstrings, returned, dict(zip(pids, held, strict=True)))

    return Operation(_PROGRESS, decode)


def counts() -> Operation[dict[str, int]]:
    """All numbers of the result, in one snapshot."""
    columns = ",\n".join(f"({text})" for text in COUNTS.values())
    return Operation(f"select {columns}", lambda rows: dict(zip(COUNTS, rows[0], strict=True)))


def record_kill(worker: str, jobs_held: int) -> Operation[None]:
    """Record that a worker was killed, and how many jobs it held."""
    return Operation(
        "insert into demo.kill (worker, jobs_held) values (%(worker)s, %(held)s)",
        nothing,
        {"worker": worker, "held": jobs_held},
    )
