-- Every failed attempt, and every other end of an attempt that has an error.
create table forebay.failure (
    job_id       bigint not null,
    group_id     bigint not null,
    enqueued_at  timestamptz not null,   -- of the job: ids can be reused after a lost commit
    attempt      integer not null,       -- the attempt that ended, from 1
    failed_at    timestamptz not null,
    outcome      text not null,
    error_type   text,
    message      text,
    traceback    text,
    worker       text,
    max_attempts integer,               -- maximum attempts as known to the worker; null: unknown
    cause        text,                  -- as the worker computed it; null: unknown
    place        text                   -- the innermost function of the application that raised it; null: unknown
);
create index failure_by_job on forebay.failure (job_id, failed_at);
create index failure_by_time on forebay.failure (failed_at);
alter table forebay.failure replica identity full;
