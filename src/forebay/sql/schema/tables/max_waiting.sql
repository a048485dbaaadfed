-- Backpressure: how many jobs of a queue may wait, asked by enqueues, also while no worker runs.
--
-- A queue's depth is counted like a reader counts: what was appended up to a snapshot, plus what became visible since,
-- minus what the newest batches say was handed out or skipped. Counts are appended and read newest first; nobody updates
-- one. Most enqueues need not even count what came since: the numbers drawn since bound it from above.
-- See docs/design/backpressure.md.

-- What had been appended to a queue's public lanes, as a group counts: handed out, skipped or waiting when it was counted.
create sequence forebay.queue_count_seq as bigint cache 1;

create table forebay.queue_count (
    queue    text not null,
    group_id bigint not null,            -- 0: the queue has no group yet
    no       bigint not null default nextval('forebay.queue_count_seq'),
    seq      bigint not null,            -- the last number drawn before the snapshot
    snap     pg_snapshot not null,
    total    bigint not null
);
create index queue_count_newest on forebay.queue_count (queue, group_id, no desc);
