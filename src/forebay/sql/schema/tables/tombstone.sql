-- Requests to cancel, expiries decided by the sweep, and records of unique keys: that a newer job of its key replaced a job, and
-- that a claim must check a job's key before it starts the job, and that an operator moved a job to another row. Claims and settlements read them.
-- The sequence lets a claim see, without reading the table, that no row was ever written.
create sequence forebay.tombstone_seq as bigint cache 1;

create table forebay.tombstone (
    tombstone_no bigint not null default nextval('forebay.tombstone_seq'),
    job_id     bigint not null,
    group_id   bigint,                   -- null: for every group
    reason     "char" not null check (reason in ('c', 'e', 'r', 'k', 'm')),  -- named in forebay.code
    recorded_at   timestamptz not null,
    enqueued_at timestamptz,             -- of the expired job
    up_to      bigint,                   -- moved: rows of the job up to this number in the log were replaced by a newer one
    check ((reason = 'm') = (up_to is not null))
);
create index tombstone_by_job on forebay.tombstone (job_id);
create index tombstone_by_time on forebay.tombstone (recorded_at, tombstone_no);
alter table forebay.tombstone replica identity full;


-- A job that an operator's act concerns, for one group: see forebay._matching().
create type forebay._match as (
    job_id bigint, group_id bigint, place "char", lane bigint, xid xid8, seq bigint, state text, enqueued_at timestamptz, answer text);
