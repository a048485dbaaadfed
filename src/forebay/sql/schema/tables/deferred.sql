-- Jobs with a later start time, and recheck rows of limit keys, which have no kind and the job 0. They are appended to the log when due, and deleted in bulk behind the cursor.
create sequence forebay.deferred_seq as bigint cache 1;

create table forebay.deferred (
    xid            xid8 not null default pg_current_xact_id(),
    deferred_id    bigint not null default nextval('forebay.deferred_seq'),
    run_at         timestamptz not null,
    lane           bigint not null,
    enqueued_at    timestamptz not null,
    job_id         bigint not null,
    expires_at     timestamptz,
    attempt        integer,
    pauses         integer,
    unique_key     text,
    -- include: job_columns
);
create unique index deferred_due on forebay.deferred (run_at, deferred_id);
create index deferred_by_xid on forebay.deferred (xid);
create index deferred_by_job on forebay.deferred (job_id);
alter table forebay.deferred replica identity using index deferred_due;
create index deferred_by_lane on forebay.deferred (lane, xid);

-- The promoter's cursor, newest row first. Rows visible in snap at or below the position have been promoted.
create table forebay.promotion (
    no          bigint primary key,
    snap        pg_snapshot not null,
    run_at      timestamptz not null,
    deferred_id bigint not null,
    promoted    integer not null,
    promoted_at timestamptz not null
);
