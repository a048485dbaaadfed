-- Backpressure: how many jobs of a queue may wait. Enqueues check it, also while no worker runs.
--
-- The depth of a queue is counted for a group: jobs appended up to a snapshot, plus jobs that became visible since, minus jobs
-- that the newest batches handed out or skipped. Counts are appended and read newest first; no count is updated. Most enqueues
-- need not even count the new jobs: the numbers drawn since then are an upper bound.
-- See docs/design/backpressure.md.

-- Jobs appended to a queue's public lanes, as a group counts them: handed out, skipped or waiting when it was counted.
create sequence forebay.queue_count_seq as bigint cache 1;

create table forebay.queue_count (
    queue    text not null,
    group_id bigint not null,            -- 0: the queue has no group yet
    no       bigint not null default nextval('forebay.queue_count_seq'),
    seq      bigint not null,            -- the last number drawn before the snapshot
    snap     pg_snapshot not null,
    total    bigint not null
);
create unique index queue_count_newest on forebay.queue_count (queue, group_id, no desc);
-- Not the whole row: a subscriber cannot compare snapshots.
alter table forebay.queue_count replica identity using index queue_count_newest;
