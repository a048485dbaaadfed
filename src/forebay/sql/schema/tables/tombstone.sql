-- Requests to cancel, expiries decided by the sweep, and what unique keys have to say: that a job was replaced by a newer
-- one of its key, and that a claim must look closely before it starts this one. Read by claims and settlements.
-- The sequence tells a claim, without a look at the table, that nothing was ever requested.
create sequence forebay.tombstone_seq as bigint cache 1;

create table forebay.tombstone (
    tombstone_no bigint not null default nextval('forebay.tombstone_seq'),
    job_id     bigint not null,
    group_id   bigint,                   -- null: for every group
    reason     "char" not null check (reason in ('c', 'e', 'r', 'k')),  -- named in forebay.code
    recorded_at   timestamptz not null,
    enqueued_at timestamptz              -- of the job an expiry was decided for
);
create index tombstone_by_job on forebay.tombstone (job_id);
