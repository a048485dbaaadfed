-- Results and progress of handlers: appended, read by job, deleted by age.
--
-- The settlement that ends a job writes its result in the same transaction: the result exists if and only if the job is done.
-- Jobs whose handler keeps no result cost nothing.

-- "A caller waits for the end of a job until", in milliseconds since 1970: a flag sequence like the wake-ups.
create sequence forebay.result_wakeup as bigint cache 1;

create table forebay.result (
    job_id      bigint not null,
    group_id    bigint not null,
    enqueued_at timestamptz not null,     -- of the job: ids can be reused after a lost commit
    kept_at     timestamptz not null,
    kept_until  timestamptz not null,
    value       jsonb,
    problem     text,                     -- why the value is missing
    check ((value is null) <> (problem is null))
);
create index result_by_job on forebay.result (job_id);
create index result_by_age on forebay.result (kept_until);
alter table forebay.result replica identity full;

create table forebay.progress (
    job_id   bigint not null,
    group_id bigint not null,
    recorded_at timestamptz not null,
    done     double precision not null,   -- 0 to 1
    note     text not null
);
create index progress_by_job on forebay.progress (job_id, recorded_at);
create index progress_by_age on forebay.progress (recorded_at);
alter table forebay.progress replica identity full;
