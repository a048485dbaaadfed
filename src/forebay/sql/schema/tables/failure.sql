-- Every failed attempt, and every other end of an attempt that has an error.
create table forebay.failure (
    job_id       bigint not null,
    group_id     bigint not null,
    enqueued_at  timestamptz not null,   -- of the job: ids can be given out again after a lost commit
    attempt      integer not null,       -- the one that ended so, from 1
    failed_at    timestamptz not null,
    outcome      text not null,
    error_type   text,
    message      text,
    traceback    text,
    worker       text,
    max_attempts integer                -- attempts in all, as far as the worker knew; null: unknown
);
create index failure_by_job on forebay.failure (job_id, failed_at);
