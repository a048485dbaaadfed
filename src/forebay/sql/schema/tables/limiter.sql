-- Limits of queues: how many jobs may wait; how many run at once and start per second, in the queue and for each limit key; and
-- turns for the keys. See docs/design/limits.md; for waiting jobs, docs/design/backpressure.md.
--
-- A claim from a queue with limits on starts passes the group's *limiter*: under one lock it counts the group's jobs in flight and
-- the permits left. The state of the limiter is one row, appended and read newest first.
--
-- Jobs with a limit key have separate lanes. Their claims decide about keys under the same lock. What a claim decided about a key
-- is one row of `limit_run`. Jobs whose key is at its limits, or has had its turn, are *parked*: the cursor has passed them, and a
-- small row records each run of them. A *recheck row*, a row of the log without a kind, gives the key its next turn.

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

-- Limits of one limit key, instead of the queue's key_rate with its key_burst, and its key_concurrency. See "Limits of one key" in
-- docs/design/limits.md. A queue with a row here passes the limiter: queue_limits.starts_set_at of the queue is set.
create table forebay.key_limits (
    queue       text not null,
    key         text collate "C" not null,
    rate        double precision check (rate > 0),           -- null: the queue's key_rate and key_burst
    burst       integer check (burst >= 1),                  -- null: the starts of one second, at least 1
    concurrency integer check (concurrency >= 1),            -- null: the queue's key_concurrency
    empty_until timestamptz,                                 -- the bucket has no token before, and one then; null: what the key has used counts
    set_at      timestamptz not null,
    no          bigint not null,                             -- new with each change of what holds: limit_run.limits_no
    probe_seconds double precision check (probe_seconds > 0), -- the breaker of the key is open: instead of the three limits one job at once, one in this time
    primary key (queue, key),
    check (rate is not null or burst is null),
    check (probe_seconds is not null or empty_until is null)
);

comment on table forebay.key_limits is 'Limits of single limit keys, instead of those that the queue has for each key; set with forebay.limit_key().';

-- Breakers of limit keys that failed lately: a row from the first failure in a row until the next success. See "Breakers" in docs/design/limits.md.
create table forebay.breaker (
    queue        text not null,
    key          text collate "C" not null,
    failures     integer not null,            -- in a row
    threshold    integer not null,            -- that number opens it; this and the next two as last reported
    cooldown     double precision not null,   -- seconds from the opening to the first probe
    cooldown_max double precision not null,   -- each probe that fails doubles them, up to these
    opened_at    timestamptz,                 -- null: closed
    probes       integer not null default 0,  -- that failed since then
    probe_at     timestamptz,                 -- the next one starts then, or later; null: closed
    failed_at    timestamptz,                 -- the last failure
    error        text,                        -- of it
    primary key (queue, key),
    check ((opened_at is null) = (probe_at is null))
) with (fillfactor = 50);

create index breaker_open on forebay.breaker (queue, key) where opened_at is not null;

comment on table forebay.breaker is 'Breakers of limit keys that failed lately; forebay.keys() shows them, forebay.reset_key() closes one.';

-- What a report says of one limit key: see _step_breaker().
create type forebay._breaker_report as (
    queue text, key text, threshold integer, cooldown double precision, cooldown_max double precision, failures bigint, answered boolean,
    answered_at timestamptz, claimed_at timestamptz, error text);

-- Numbers the changes of key_limits. Lets a claim see, without reading the table, that no key ever had limits.
create sequence forebay.key_limits_seq as bigint cache 1;


-- The state of a group's limiter after a claim. Arrays of one kind belong together.
create table forebay.limiter (
    group_id   bigint not null,
    no         bigint not null,
    decided_at timestamptz not null,
    limits_at  timestamptz,               -- starts_set_at of the limits at that time
    seed_until timestamptz,               -- until then jobs in flight are counted from the leases
    tat        timestamptz,               -- when the queue's bucket is full again: "theoretical arrival time"
    leases     bigint[] not null,         -- batches in flight, with the number of jobs each took
    claims     bigint[] not null,
    sizes      integer[] not null,
    bare_leases bigint[],                 -- batches in flight that wrote no row of limit_run for a key only because they have a job of it:
    bare_claims bigint[],                 --   the batch has its keys; null: none
    primary key (group_id, no)
);


-- What a limiter sees now. opens: unsettled jobs of each batch in flight; is_changed: there is something to record whatever is
-- claimed; is_back: the clock was set back; is_bare: a claim need not write a row for each key, as few batches without are open.
create type forebay._limiter_view as (
    no bigint, at timestamptz, seed_until timestamptz, tat timestamptz,
    leases bigint[], claims bigint[], sizes integer[], opens integer[],
    is_changed boolean, is_back boolean, has_new_limits boolean, bare_leases bigint[], bare_claims bigint[], is_bare boolean, free_slots bigint,
    limits forebay.queue_limits);


-- What a claim decided about a limit key. The newest row of a (group, key) has the state of the key, except for the jobs in flight of
-- limiter.bare_leases. A key of which no job is parked needs no row without limits for each key, or in such a batch.
create table forebay.limit_run (
    group_id     bigint not null,
    limit_key    text collate "C" not null,
    no           bigint not null,
    lease_id     bigint,                 -- the batch with the jobs that were taken; null: none was
    claim_no     bigint,
    place        smallint,               -- the first of them,
    jobs         smallint,               --   and their number: they follow one another
    high_seq     bigint not null,        -- highest number among them
    low_seq      bigint,                 -- lowest number among them, if jobs of the key were parked
    turn         bigint,                 -- counts the key's turns: a recheck row of an earlier turn is ignored; null: 0
    waiting      bigint,                 -- parked jobs that are not taken; null: none
    parked_up_to bigint,                 -- the key's last row of limit_parked; null: none
    taken_up_to  bigint,                 -- its rows up to this one were taken,
    taken_seq    bigint,                 --   and of the next one the jobs up to this number,
    taken_jobs   bigint,                 --   and their number
    is_full      boolean not null,       -- has as many in flight as it may have: the next settlement gives it a turn
    tat          timestamptz,            -- when its bucket is full again,
    decided_at   timestamptz,            --   as of this time
    leases       bigint[],               -- jobs in flight of earlier batches, if their number is limited; null: none
    claims       bigint[],
    offsets      smallint[],
    limits_no    bigint,                 -- key_limits.no of the key's own limits at that time; null: it had none
    primary key (group_id, limit_key, no)
);

-- Parked jobs: some with consecutive numbers in one lane, of one key and one transaction.
create sequence forebay.limit_parked_seq as bigint cache 1;

create table forebay.limit_parked (
    group_id  bigint not null,
    limit_key text collate "C" not null,
    parked_no bigint not null default nextval('forebay.limit_parked_seq'),
    lane      bigint not null,
    xid       xid8 not null,
    seq       bigint not null,           -- the first job
    seq_to    bigint not null,           -- the last one
    jobs      bigint not null,
    ordering_key text,                   -- of a job with an ordering key too: it waits there, and its key gets the turn; null: none
    primary key (group_id, limit_key, parked_no)
);


-- Jobs of one key that a claim met, with consecutive numbers in one lane and transaction; or a recheck row (jobs is 0).
create type forebay._limit_item as (
    lane bigint, segment_id bigint, xid xid8, seq bigint, seq_to bigint, jobs bigint, limit_key text, turn integer);

-- The state of a limit key. permits: jobs that may start now, for all limits of the key. rate, burst, concurrency: these limits, of the key
-- or else of the queue. limits_no: of the key's own ones; has_new_limits: the newest row of limit_run has been decided under others.
create type forebay._limit_state as (
    limit_key text, no bigint, turn bigint, waiting bigint, parked_up_to bigint, taken_up_to bigint, taken_seq bigint,
    taken_jobs bigint, is_full boolean, tat timestamptz, leases bigint[], claims bigint[], offsets smallint[], permits bigint,
    tokens bigint, rate double precision, burst integer, concurrency integer, limits_no bigint, has_new_limits boolean);

-- A group's cursor in a lane of jobs with limit keys, and the number of items that a claim read there: the first `old` of them in the
-- cursor's current window, the others in the next one, which ends at `now`.
create type forebay._limit_cursor as (
    lane bigint, no bigint, start pg_snapshot, stop pg_snapshot, has_window boolean, pos_segment bigint, pos_xid xid8, pos_seq bigint,
    high_seq bigint, handed_total bigint, skipped_total bigint, claimed_at timestamptz, now pg_snapshot,
    old integer, items integer, is_more boolean, looked integer);
