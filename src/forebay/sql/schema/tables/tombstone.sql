-- Requests to cancel, expiries decided by the sweep, and records of unique keys: that a newer job of its key replaced a job, and
-- that a claim must check a job's key before it starts the job. Claims and settlements read them.
-- The sequence lets a claim see, without reading the table, that no row was ever written.
create sequence forebay.tombstone_seq as bigint cache 1;

create table forebay.tombstone (
    tombstone_no bigint not null default nextval('forebay.tombstone_seq'),
    job_id     bigint not null,
    group_id   bigint,                   -- null: for every group
    reason     "char" not null check (reason in ('c', 'e', 'r', 'k')),  -- named in forebay.code
    recorded_at   timestamptz not null,
    enqueued_at timestamptz              -- of the expired job
);
create index tombstone_by_job on forebay.tombstone (job_id);
create index tombstone_by_time on forebay.tombstone (recorded_at, tombstone_no);
alter table forebay.tombstone replica identity full;
