-- Every failed attempt.
create table forebay.failure (
    job_id      bigint not null,
    group_id    bigint not null,
    enqueued_at timestamptz not null,    -- of the job: ids can be reused after a lost commit
    attempt     integer not null,
    failed_at   timestamptz not null,
    outcome     text not null,
    error_type  text,
    message     text,
    traceback   text,
    worker      text
);
create index failure_by_job on forebay.failure (job_id, failed_at);
