-- Consumer groups: independent readers of one queue.
create table forebay.queue_group (
    group_id    bigint generated always as identity primary key,
    queue       text not null,
    name        text not null,
    start_after pg_snapshot not null,    -- jobs visible in it are older than the group
    created_at  timestamptz not null,
    paused_at   timestamptz,
    has_all_lanes boolean not null default false,  -- lanes that became dormant before this group was seen are in use again
    unique (queue, name)
);
