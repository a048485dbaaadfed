-- Consumer groups: independent readers of one queue.
create table forebay.queue_group (
    group_id    bigint primary key,      -- random, so that no group has the id of a lost one; not 0
    queue       text not null,
    name        text not null,
    start_after pg_snapshot not null,    -- jobs visible in it are older than the group
    created_at  timestamptz not null,
    paused_at   timestamptz,
    unique (queue, name)
);
