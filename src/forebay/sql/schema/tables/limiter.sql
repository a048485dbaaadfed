-- Limits of queues: how many jobs may wait, how many jobs of the queue and of each limit key run at once and start per second;
-- and even shares for the keys. See docs/design/limits.md; for what may wait, docs/design/backpressure.md.
--
-- Jobs of a limit key have lanes of their own. Whoever claims from a queue with limits on what starts, or from a *dispatch lane* of such lanes, passes
-- the group's *limiter*: under one lock it is counted what the group has in flight and which tokens are left, a key is chosen, and
-- one lane is claimed from like any other. What the limiter knows is one row, appended and read newest first.

-- The limits of a queue. null: no limit.
create table forebay.queue_limits (
    queue           text primary key,
    max_waiting     bigint check (max_waiting >= 1),
    rate            double precision check (rate > 0),       -- starts per second
    burst           integer check (burst >= 1),              -- tokens that a rested queue has saved up
    concurrency     integer check (concurrency >= 1),
    key_rate        double precision check (key_rate > 0),
    key_burst       integer check (key_burst >= 1),
    key_concurrency integer check (key_concurrency >= 1),
    starts_set_at   timestamptz                              -- when one of these six last changed; null: none of them is set
);

comment on table forebay.queue_limits is 'How many jobs of a queue may wait, start per second and run at once; set with forebay.limit_queue().';

-- Tells an enqueue, without reading a table, that max_waiting was never set for any queue.
create sequence forebay.limit_seq as bigint cache 1;

-- Tells a claim, without reading a table, that no limit on starts was ever set and no limit key ever used.
create sequence forebay.limiter_seq as bigint cache 1;


-- What a group's limiter knows after a claim. Arrays of one kind belong together.
create table forebay.limiter (
    group_id   bigint not null,
    no         bigint not null,
    decided_at timestamptz not null,
    snap       pg_snapshot not null,      -- a key's lane that is not in `lanes` had nothing to claim then
    limits_at  timestamptz,               -- starts_set_at of the limits that it knew
    seed_until timestamptz,               -- until then what is in flight is counted from the leases
    tat        timestamptz,               -- when the queue's bucket will be full, "theoretical arrival time"
    leases     bigint[] not null,         -- batches in flight, with how many jobs each took
    claims     bigint[] not null,
    claim_keys bigint[] not null,
    sizes      integer[] not null,
    lanes      bigint[] not null,         -- lanes of keys that may have something to claim
    lane_keys  bigint[] not null,
    dispatch_lanes      bigint[] not null,
    keys       bigint[] not null,         -- keys about which there is something to remember:
    key_runs      bigint[] not null,         --   the row in which each was served last
    tats       timestamptz[] not null,    --   when its bucket will be full
    primary key (group_id, no)
);


-- What a limiter sees now. opens: how many jobs of each batch in flight are not settled; came: lanes to which something came, null
-- when all have to be asked; is_changed: there is something to note, whatever is claimed; is_back: the clock was set back.
create type forebay._limiter_view as (
    no bigint, at timestamptz, snap pg_snapshot, seed_until timestamptz, tat timestamptz,
    leases bigint[], claims bigint[], claim_keys bigint[], sizes integer[], opens integer[],
    lanes bigint[], lane_keys bigint[], dispatch_lanes bigint[],
    keys bigint[], key_runs bigint[], tats timestamptz[],
    is_changed boolean, is_back boolean, has_new_limits boolean, came bigint[], room bigint, limits forebay.queue_limits);
