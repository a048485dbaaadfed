-- Sharded queues: the number of public lanes of each priority over which their jobs are distributed.
-- The sequence lets an enqueue see, without reading the table, that no queue was ever sharded.
create table forebay.queue_shards (
    queue text primary key,
    lanes integer not null check (lanes between 1 and 64)
);
create sequence forebay.shard_seq as bigint cache 1;
