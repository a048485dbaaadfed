-- Limits of queues: how many jobs may wait; how many run at once and start per second, in the queue and for each limit key; and
-- even shares for the keys. See docs/design/limits.md; for waiting jobs, docs/design/backpressure.md.
--
-- Jobs with a limit key have separate lanes. A claim from a queue with limits on starts, or from a *dispatch lane* of such lanes,
-- passes the group's *limiter*: under one lock it counts the group's jobs in flight and the permits left, chooses a key, and
-- claims from one lane like any other claim. The state of the limiter is one row, appended and read newest first.

-- The limits of a queue. null: no limit.
create table forebay.queue_limits (
    queue           text primary key,
    max_waiting     bigint check (max_waiting >= 1),
    rate            double precision check (rate > 0),       -- starts per second
    burst           integer check (burst >= 1),              -- permits that an idle queue has saved up
    concurrency     integer check (concurrency >= 1),
    key_rate        double precision check (key_rate > 0),
    key_burst       integer check (key_burst >= 1),
    key_concurrency integer check (key_concurrency >= 1),
    starts_set_at   timestamptz,                             -- when one of these six last changed; null: none of them is set
    max_waiting_group text   -- the group that max_waiting counts for; null: default
);

comment on table forebay.queue_limits is 'Limits of queues: waiting jobs, starts per second and concurrent jobs; set with forebay.limit_queue().';

-- Lets an enqueue see, without reading a table, that max_waiting was never set for any queue.
create sequence forebay.limit_seq as bigint cache 1;

-- Lets a claim see, without reading a table, that no limit on starts was ever set and no limit key ever used.
create sequence forebay.limiter_seq as bigint cache 1;


-- The state of a group's limiter after a claim. Arrays of one kind belong together.
create table forebay.limiter (
    group_id   bigint not null,
    no         bigint not null,
    decided_at timestamptz not null,
    snap       pg_snapshot not null,      -- a key's lane missing from `lanes` had nothing to claim then
    limits_at  timestamptz,               -- starts_set_at of the limits at that time
    seed_until timestamptz,               -- until then jobs in flight are counted from the leases
    tat        timestamptz,               -- when the queue's bucket is full again: "theoretical arrival time"
    leases     bigint[] not null,         -- batches in flight, with the number of jobs each took
    claims     bigint[] not null,
    claim_keys bigint[] not null,
    sizes      integer[] not null,
    lanes      bigint[] not null,         -- lanes of keys that may have something to claim
    lane_keys  bigint[] not null,
    dispatch_lanes      bigint[] not null,
    keys       bigint[] not null,         -- keys with a state to keep:
    served     bigint[] not null,         --   the number of the row in which each was last served
    tats       timestamptz[] not null,    --   when its bucket is full again
    primary key (group_id, no)
);


-- What a limiter sees now. opens: unsettled jobs of each batch in flight; came: lanes with new jobs, null when all lanes must be
-- examined; is_changed: there is something to record whatever is claimed; is_back: the clock was set back.
create type forebay._limiter_view as (
    no bigint, at timestamptz, snap pg_snapshot, seed_until timestamptz, tat timestamptz,
    leases bigint[], claims bigint[], claim_keys bigint[], sizes integer[], opens integer[],
    lanes bigint[], lane_keys bigint[], dispatch_lanes bigint[],
    keys bigint[], served bigint[], tats timestamptz[],
    is_changed boolean, is_back boolean, has_new_limits boolean, came bigint[], free_slots bigint, limits forebay.queue_limits);
