-- Consumer groups: independent readers of one queue.
create table forebay.queue_group (
    group_id    bigint primary key,      -- random, so that no group has the id of a lost one; not 0
    queue       text not null,
    name        text not null,
    start_after pg_snapshot not null,    -- jobs visible in it are older than the group
    created_at  timestamptz not null,
    paused_at   timestamptz,             -- claims stop, see forebay._paused_since()
    resume_at   timestamptz,             -- when the pause ends by itself; null: it does not
    is_implied  boolean not null,        -- no worker or user has named it: the next group that is opened takes it over
    closing_at  timestamptz,             -- since when it is being closed: it gets no more jobs
    closing_snap pg_snapshot,            -- the jobs that the group has read or gives up; later ones are not its own
    fenced_lane bigint,                  -- no claim that began before closing_at runs in lanes up to this one
    has_all_lanes boolean not null default false,  -- lanes that became dormant before this group was seen are in use again
    unique (queue, name)
);

-- Groups that were closed. Their names stay, for dead letters.
create table forebay.closed_group (
    group_id  bigint primary key,
    queue     text not null,
    name      text not null,
    closed_at timestamptz not null,
    lanes     bigint[]                   -- the private lanes, while rows of the group are left; null: all are deleted
);
create index closed_group_to_clear on forebay.closed_group (group_id) where lanes is not null;

-- Lets a poll see, without reading a table, that no pause of a queue ever had an end.
create sequence forebay.timed_pause_seq as bigint cache 1;
