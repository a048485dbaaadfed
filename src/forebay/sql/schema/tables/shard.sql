-- Sharded queues: over how many public lanes of each priority their jobs are queue_shards.
-- The sequence tells an enqueue, without a look at the table, that there never was one.
create table forebay.queue_shards (
    queue text primary key,
    lanes integer not null check (lanes between 1 and 64)
);
create sequence forebay.shard_seq as bigint cache 1;
