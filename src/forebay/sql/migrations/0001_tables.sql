-- Tables of the job log. Everything a claim, a settlement or an enqueue touches is append-only:
-- rows are inserted, read newest first, and removed in bulk from behind. See docs/design/engine.md.

create schema forebay;
revoke all on schema forebay from public;

comment on schema forebay is 'Forebay, the transactional job log. Call its functions; never write its tables.';


-- Settings that concern the database rather than one process. Read by maintenance, and by an
-- enqueue only when its arguments are large enough to come near a limit.
create table forebay.setting (
    name  text primary key,
    value bigint not null
);

insert into forebay.setting (name, value) values
    ('segment_rows', 1000000),          -- numbers per segment of the log
    ('reserve_rows', 64000000),         -- numbers for which segments exist ahead of the sequence
    ('retention_days', 30),             -- settled segments older than this are emptied
    ('retention_bytes', 20000000000),   -- and the oldest settled ones beyond this total size
    ('args_bytes_max', 1048576),
    ('args_depth_max', 64);

comment on table forebay.setting is 'Database-wide settings; change them with forebay.configure().';


-- Which database this schema lives in. xids of one cluster mean nothing in another: a dump that is
-- restored elsewhere is recognised by this row and must be adopted before anything runs.
create table forebay.cluster (
    cluster_no        bigint generated always as identity,
    system_identifier bigint not null,
    database_oid      oid not null,
    noted_at          timestamptz not null default clock_timestamp(),
    constraint cluster_pk primary key (cluster_no)
);


-- Numbers of the log. CACHE 1 and never altered: a segment is sealed on the strength of
-- "whoever has a number below last_value has drawn its xid already".
create sequence forebay.log_seq as bigint cache 1;

-- The log. xid stands before seq on purpose: defaults are evaluated in column order, and a row
-- must draw its transaction id before its number.
create table forebay.log (
    xid            xid8 not null default pg_current_xact_id(),
    seq            bigint not null default nextval('forebay.log_seq'),
    lane           bigint not null,
    enqueued_at    timestamptz not null,
    job_id         bigint,               -- null: the first row of its job, whose id is seq
    expires_at     timestamptz,          -- null: 30 days after enqueued_at
    attempt        integer,              -- attempts used before this row; null: none
    max_attempts   integer,              -- null: what the handler's retry policy says
    pauses         integer,              -- snoozes and unknown-kind pauses so far; null: none
    kind           text not null,
    args           jsonb not null,
    tag            text,
    correlation_id text,
    headers        jsonb,
    ordering_key   text collate "C",
    unique_key     text
) partition by range (seq);

comment on table forebay.log is
    'Every job, append-only. seq numbers rows; job_id names the job across its retries.';


-- Segments: the partitions of the log, ranges of seq, each with a reader function.
create table forebay.segment (
    segment_id bigint primary key,
    lo         bigint not null unique,   -- first number
    hi         bigint not null,          -- first number of the next segment
    created_at timestamptz not null,
    removed_at timestamptz,              -- emptied by retention
    check (hi > lo)
);

-- A sealed segment gets no more rows, and all its rows have an xid below `xid`. Appended in order.
create table forebay.seal (
    segment_id bigint primary key,
    xid        xid8 not null,
    sealed_at  timestamptz not null
);
create index seal_by_xid on forebay.seal (xid);


-- Which lanes exist. No unique key on purpose: with one, the first user of a lane would make every
-- other producer of it wait for his commit. Concurrent first users leave a few equal rows.
create table forebay.lane (
    lane     bigint not null,
    queue    text not null,
    priority integer not null,
    audience bigint not null,            -- 0 everybody, g retries of group g, -g suspects of group g
    part     integer not null default 0, -- which of an unordered queue's public lanes; -1: the lane of jobs with ordering keys;
                                         -- 1000: the lane of a limit key, 1001: the desk of such lanes, which has no jobs itself
    noted_at timestamptz not null,
    limit_key text collate "C"
);
create index lane_by_id on forebay.lane (lane);
create index lane_by_queue on forebay.lane (queue, part);

-- Unordered queues: over how many public lanes of each priority their jobs are spread.
-- The sequence tells an enqueue, without a look at the table, that there never was one.
create table forebay.spread (
    queue text primary key,
    lanes integer not null check (lanes between 1 and 64)
);
create sequence forebay.spread_seq as bigint cache 1;


-- Groups: independent readers of one queue.
create table forebay.queue_group (
    group_id    bigint generated always as identity primary key,
    queue       text not null,
    name        text not null,
    start_after pg_snapshot not null,    -- jobs visible in it were there before the group
    created_at  timestamptz not null,
    paused_at   timestamptz,
    unique (queue, name)
);


-- Leases: one per worker process and database connection epoch. The row is written when it opens and when
-- it closes and never between; heartbeats live in a table of their own.
create table forebay.lease (
    lease_id        bigint generated always as identity primary key,
    worker          text not null,       -- a name for humans: host:pid:token
    version         integer,             -- of the schema that its code was made for; null: it did not say
    lease_seconds   double precision not null,
    suspect_seconds double precision not null,
    opened_at       timestamptz not null,
    closed_at       timestamptz,
    closed_as       text check (closed_as in ('closed', 'revoked', 'adopted')),
    check ((closed_at is null) = (closed_as is null))
);
create index lease_open on forebay.lease (lease_id) where closed_at is null;

create table forebay.heartbeat (
    lease_id    bigint not null,
    beat_at     timestamptz not null,
    backend_pid integer not null
);
create index heartbeat_newest on forebay.heartbeat (lease_id, beat_at desc);


-- Batches: what each claim took. The newest row of a (group, lane) is its cursor.
create table forebay.batch (
    group_id      bigint not null,
    lane          bigint not null,
    no            bigint not null,       -- dense per (group, lane); not a name, see lease_id, claim_no
    lease_id      bigint,                -- null: only moves the cursor
    claim_no      bigint,                -- counted by the worker, never reused
    floor         bigint,                -- oldest claim_no of the lease still open
    snap_from     pg_snapshot not null,
    snap_to       pg_snapshot,           -- null: same as snap_from, the window is used up
    pos_segment   bigint not null,
    pos_xid       xid8 not null,
    pos_seq       bigint not null,
    high_seq      bigint not null,       -- highest number in this and all earlier batches
    handed_total  bigint not null,       -- running totals; of keyed lanes: of jobs of public lanes, at their first time
    skipped_total bigint not null,
    claimed_at    timestamptz not null,
    seqs          bigint[],              -- what was handed out, in order: offset 1 is the first
    xids          xid8[],                -- one per seq, or a single one when all are equal
    skipped       bigint[],
    skipped_as    "char"[],              -- c cancelled, e expired
    -- Of lanes of jobs with ordering keys only:
    lanes         bigint[],              -- where each job's row is; null: all in the batch's own lane
    keys          text[] collate "C",    -- one per seq
    tails         smallint[],            -- one per seq: the offset of the last job of its key
    edge_from     xid8,                  -- what began after this transaction has a number above low_from,
    low_from      bigint,                --   and what was visible in snap_from began before it
    edge_to       xid8,                  -- the same of snap_to
    low_to        bigint,
    parked_no     bigint,                -- the last number of forebay.parked when nothing waited for any of the keys; null: something did
    primary key (group_id, lane, no)
);
create unique index batch_by_name on forebay.batch (lease_id, claim_no) where lease_id is not null;


-- Settlements: how jobs of a batch ended. (lease, claim_no, flush_no) is a flush's name, so that a
-- flush whose answer was lost can be repeated. A negative flush_no settles the single job -flush_no.
create table forebay.settlement (
    lease_id   bigint not null,
    claim_no   bigint not null,
    flush_no   integer not null,
    settled_at timestamptz not null,
    offsets    smallint[],               -- null: the whole batch
    outcomes   "char"[],                 -- null: all done. d done, c cancelled, x dead, and for jobs
                                         -- that go on in a new row: r retried, s snoozed, h handed back, u unknown kind, l lost;
                                         -- k kept back behind an earlier job of its ordering key
    millis     integer[],                -- durations, null: not measured
    primary key (lease_id, claim_no, flush_no)
);

-- A suspect is claimed alone and its start is recorded, so that a death can be put down to it.
create table forebay.suspect_start (
    lease_id   bigint not null,
    claim_no   bigint not null,
    started_at timestamptz not null,
    primary key (lease_id, claim_no)
);


-- Jobs that wait for a time. Appended to the log when due, deleted in bulk behind the cursor.
create sequence forebay.deferred_seq as bigint cache 1;

create table forebay.deferred (
    xid            xid8 not null default pg_current_xact_id(),
    deferred_id    bigint not null default nextval('forebay.deferred_seq'),
    run_at         timestamptz not null,
    lane           bigint not null,
    enqueued_at    timestamptz not null,
    job_id         bigint not null,
    expires_at     timestamptz,
    attempt        integer,
    max_attempts   integer,
    pauses         integer,
    kind           text not null,
    args           jsonb not null,
    tag            text,
    correlation_id text,
    headers        jsonb,
    ordering_key   text collate "C",
    unique_key     text
);
create index deferred_due on forebay.deferred (run_at, deferred_id);
create index deferred_by_xid on forebay.deferred (xid);
create index deferred_by_job on forebay.deferred (job_id);

-- The promoter's cursor, newest row first: promoted are the rows visible in snap at or below the mark.
create table forebay.promotion (
    no          bigint primary key,
    snap        pg_snapshot not null,
    run_at      timestamptz not null,
    deferred_id bigint not null,
    promoted    integer not null,
    promoted_at timestamptz not null
);


-- Requests to cancel, expiries decided by the sweep, and what unique keys have to say: that a job was replaced by a newer
-- one of its key, and that a claim must look closely before it starts this one. Read by claims and settlements.
-- The sequence tells a claim, without a look at the table, that nothing was ever requested.
create sequence forebay.tombstone_seq as bigint cache 1;

create table forebay.tombstone (
    tombstone_no bigint not null default nextval('forebay.tombstone_seq'),
    job_id     bigint not null,
    group_id   bigint,                   -- null: for every group
    reason     "char" not null check (reason in ('c', 'e', 'r', 'k')),  -- cancel, expired, replaced, key: look closely
    noted_at   timestamptz not null,
    enqueued_at timestamptz              -- of the job an expiry was decided for
);
create index tombstone_by_job on forebay.tombstone (job_id);


-- Every failed attempt.
create table forebay.failure (
    job_id      bigint not null,
    group_id    bigint not null,
    enqueued_at timestamptz not null,    -- of the job: ids can be given out again after a lost commit
    attempt     integer not null,
    failed_at   timestamptz not null,
    outcome     text not null,
    error_type  text,
    message     text,
    traceback   text,
    worker      text
);
create index failure_by_job on forebay.failure (job_id, failed_at);


create table forebay.dead_letter (
    dead_id        bigint generated always as identity primary key,
    group_id       bigint not null,
    job_id         bigint not null,
    seq            bigint not null,      -- number of the row that died: original order
    reason         text not null check (reason in ('exhausted', 'permanent', 'expired', 'worker lost')),
    died_at        timestamptz not null,
    queue          text not null,
    priority       integer not null,
    enqueued_at    timestamptz not null,
    expires_at     timestamptz,
    attempt        integer not null,     -- attempts used
    max_attempts   integer,
    kind           text not null,
    args           jsonb not null,
    tag            text,
    correlation_id text,
    headers        jsonb,
    ordering_key   text collate "C",
    unique_key     text,
    limit_key      text collate "C",
    errors         jsonb not null,       -- oldest first
    redriven_at    timestamptz,
    redriven_as    bigint,               -- job_id of the new job
    check ((redriven_at is null) = (redriven_as is null))
);
create index dead_letter_by_job on forebay.dead_letter (job_id);
create index dead_letter_by_new_job on forebay.dead_letter (redriven_as) where redriven_as is not null;
create index dead_letter_by_queue on forebay.dead_letter (queue, died_at);


-- Ordering keys, see docs/design/ordering.md. A turn is what one claim took of a key's jobs; the newest row of a
-- (group, key) says where the key stands.
create table forebay.key_turn (
    group_id     bigint not null,
    ordering_key text collate "C" not null,
    no           bigint not null,
    since        bigint not null,        -- the first turn that this one goes on with: one lease has all jobs of theirs
    lease_id     bigint,                 -- null: nothing was taken, jobs were only skipped
    claim_no     bigint,
    offsets      smallint[],             -- the key's jobs within that batch, in order
    jobs         bigint[],               -- their ids
    mark         bigint not null,        -- parked jobs up to this number have been taken
    rest_lanes   bigint[],               -- kept back by an earlier turn and not taken by this one, in order
    rest_seqs    bigint[],
    low_seq      bigint not null,        -- lowest and highest number among the turn's jobs and its rest
    high_seq     bigint not null,
    is_suspect   boolean not null,       -- runs alone: its holder gets no more of the key
    taken_at     timestamptz not null,
    primary key (group_id, ordering_key, no)
);

-- Parked: a group's cursor has passed these jobs while their key was taken. They keep the order they came in.
create sequence forebay.parked_seq as bigint cache 1;

-- Tells a claim, without a look at any table, that nobody ever used an ordering key.
create sequence forebay.key_seq as bigint cache 1;

create table forebay.parked (
    group_id     bigint not null,
    ordering_key text collate "C" not null,
    parked_no    bigint not null default nextval('forebay.parked_seq'),
    lane         bigint not null,
    seq          bigint not null,
    primary key (group_id, ordering_key, parked_no)
);
create index parked_by_seq on forebay.parked (seq);


-- Bells: "somebody sleeps until", in milliseconds since 1970, one register per hash of a queue name.
-- Sequences because their value is read and set outside transactions and leaves no dead rows.
do $$
begin
    for i in 0..15 loop
        execute format('create sequence forebay.bell_%s as bigint cache 1', i);
    end loop;
end
$$;


-- Registers of known lanes: each may name one whose row in the registry is committed, so that an enqueue need not look.
-- What stands in them is made by forebay._token() and means nothing after a restart or in a restored database.
do $$
begin
    for i in 0..15 loop
        execute format('create sequence forebay.known_%s as bigint minvalue -9223372036854775808 cache 1', i);
    end loop;
end
$$;


-- What trimming remembers: when its last pass began, in seconds since 1970, and up to which run_at, in microseconds since
-- 1970, deferred rows were removed. While somebody holds a snapshot whatever was removed lies in front of what is to be.
create sequence forebay.trim_pass_seq as bigint cache 1;
create sequence forebay.trim_mark_seq as bigint cache 1;


-- Posts: "held until" in milliseconds since 1970, and by whom in the lowest 20 bits. What one worker at a time does for all:
-- post 0 is the upkeep, post N looks out for what is ready for group N. Registers like the bells.
create sequence forebay.post_0 as bigint cache 1;
