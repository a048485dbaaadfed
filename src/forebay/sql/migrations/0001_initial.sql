-- The schema of the first release. Built by tools/build_schema.py from src/forebay/sql/schema: edit that, not this file.

-- Functions are created in the order of their files, so some call functions that do not exist yet. Quoted names in the settings
-- of a function would look like drift.
select set_config('forebay.check_function_bodies_before', current_setting('check_function_bodies'), true),
       set_config('forebay.quote_all_identifiers_before', current_setting('quote_all_identifiers'), true),
       set_config('check_function_bodies', 'off', true),
       set_config('quote_all_identifiers', 'off', true);


-- schema.sql

-- In another encoding a job could hold text that workers cannot read, and the claim of its lane would fail each time.
do $$
begin
    if current_setting('server_encoding') <> 'UTF8' then
        raise exception using errcode = 'JQ020',
            message = format('database %s has the encoding %s; Forebay needs UTF8', current_database(), current_setting('server_encoding')),
            hint = 'Use a database that was created with encoding UTF8.';
    end if;
end
$$;

create schema forebay;
revoke all on schema forebay from public;

comment on schema forebay is 'Forebay, a transactional job queue and outbox. Call its functions; never write to its tables.';


-- roles.sql

-- The four roles that functions are granted to; see functions/roles/grant.sql. PUBLIC gets nothing.
do $$
declare
    v_role text;
begin
    foreach v_role in array array['forebay_producer', 'forebay_worker', 'forebay_operator', 'forebay_reader'] loop
        if not exists (select from pg_roles where rolname = v_role) then
            begin
                execute format('create role %I nologin', v_role);
            exception
                when insufficient_privilege then
                    raise notice 'role % was not created: no privilege to do so; forebay doctor will say so', v_role;
                when duplicate_object or unique_violation then
                    null;  -- Another database of this cluster created it at the same time.
            end;
        end if;
    end loop;
end
$$;


-- tables/applied.sql

-- Settings of queues that an application declares: what forebay.apply_queues() applied last. See docs/design/declared-queues.md.

create table forebay.applied_setting (
    queue      text not null,
    setting    text not null,            -- max_waiting, rate with its burst, concurrency, key_rate with its burst, key_concurrency,
                                         -- shards, dead_keep_days, or 'group ' and a name
    value      jsonb not null,
    app        text not null,            -- the application that declares it
    applied_at timestamptz not null,
    primary key (queue, setting)
);

comment on table forebay.applied_setting is 'Settings of queues as an application last applied them; written by forebay.apply_queues().';

-- One difference between code, database and what was applied last. database: null for the default; code: null if it is not declared;
-- changed_by, changed_at: the last change of the setting, of one that apply does not write.
create type forebay._queue_difference as (
    queue text, setting text, database jsonb, code jsonb, applied jsonb, applied_by text, applied_at timestamptz, action text,
    changed_by text, changed_at timestamptz);


-- tables/backfill.sql

-- Backfills in chunks. A chunk is a range of the key, fixed when the backfill begins. The transaction that enqueues the jobs of
-- a chunk also marks the chunk done.
create table forebay.backfill (
    backfill_id bigint primary key,      -- random
    made_at     timestamptz not null,
    made_by     name not null,           -- only this login may continue it,
    made_as     name not null,           -- and only in this role: the query runs with its rights
    kind        text not null,
    query       text not null,
    options     jsonb not null,
    key         text not null,           -- a column of the query
    is_fixed    boolean not null,        -- begun with a token: a chunk whose jobs differ from those counted is refused
    jobs        bigint not null          -- counted at the beginning
);

create table forebay.backfill_chunk (
    backfill_id bigint not null references forebay.backfill on delete cascade,
    no          integer not null,        -- from 1
    upto        text not null,           -- last key of the chunk; the chunk begins after the last key of the previous one
    jobs        bigint not null,         -- counted at the beginning
    digest      numeric not null,
    enqueued    bigint,
    done_at     timestamptz,
    primary key (backfill_id, no),
    check ((enqueued is null) = (done_at is null))
);

comment on table forebay.backfill is 'Backfills in chunks; forebay.backfill_chunk has their progress.';


-- tables/batch.sql

-- Batches: what each claim took. The newest row of a (group, lane) is the cursor of that group in that lane.
create table forebay.batch (
    group_id      bigint not null,
    lane          bigint not null,
    no            bigint not null,       -- dense per (group, lane); lease_id and claim_no name the batch
    lease_id      bigint,                -- null: only moves the cursor
    claim_no      bigint,                -- counted by the worker, never reused
    floor         bigint,                -- oldest claim_no of the lease still open
    snap_from     pg_snapshot not null,
    snap_to       pg_snapshot,           -- null: same as snap_from, the window is used up
    pos_segment   bigint not null,
    pos_xid       xid8 not null,
    pos_seq       bigint not null,
    high_seq      bigint not null,       -- highest number in this and all earlier batches
    handed_total  bigint not null,       -- running totals; with limit keys, of jobs of that priority
    skipped_total bigint not null,
    claimed_at    timestamptz not null,
    seqs          bigint[],              -- jobs handed out, in order: offset 1 is the first
    xids          xid8[],                -- one per seq, or a single one when all are equal
    skipped       bigint[],
    skipped_as    "char"[],              -- named in forebay.code
    lanes         bigint[],              -- lane of each job's row; null: all in the batch's lane
    limit_keys    text[] collate "C",    -- one per seq, in lanes of jobs with limit keys
    -- Only in lanes of jobs with ordering keys:
    keys          text[] collate "C",    -- one per seq
    tails         smallint[],            -- one per seq: the offset of the last job of its key; null: each is the last one of its key
    edge_from     xid8,                  -- transactions that began after this one have numbers above low_from,
    low_from      bigint,                --   and transactions visible in snap_from began before it
    edge_to       xid8,                  -- the same for snap_to
    low_to        bigint,
    parked_no     bigint,                -- last number of forebay.parked when nothing waited for any of the keys; null: something did
    primary key (group_id, lane, no)
);
create unique index batch_by_name on forebay.batch (lease_id, claim_no) where lease_id is not null;


-- tables/cluster.sql

-- The database this schema belongs to. xids of one cluster have no meaning in another: this row identifies a dump that was
-- restored elsewhere, which must be adopted before anything runs.
create table forebay.cluster (
    cluster_no        bigint generated always as identity,
    system_identifier bigint not null,
    database_oid      oid not null,
    recorded_at          timestamptz not null default clock_timestamp(),
    constraint cluster_pk primary key (cluster_no)
);


-- Whether the schema belongs to this cluster is checked once for each start of the server, because reading the server's control
-- file takes longer than most polls. The value of the flag sequence differs after a restart, in a copy of the database and for a
-- restored table.
create sequence forebay.same_cluster_seq as bigint minvalue -9223372036854775808 cache 1;


-- tables/code.sql

-- The one-letter codes, by the column that holds them. A letter may mean something else in another column: `c` is an outcome,
-- a reason to skip a job, a request to cancel a job, and a uniqueness mode.
--
-- The outcomes d, c and x are final. With r, l, s, u and h, for jobs that were started or could have been, the job continues in a
-- new row. With k it has no new row: it was requeued behind one of these, or behind y, because of its ordering key. y is final for
-- the job, not for its key.
create view forebay.code (column_name, code, meaning) as values
    ('settlement.outcomes', 'd'::"char", 'done'),
    ('settlement.outcomes', 'c', 'cancelled'),
    ('settlement.outcomes', 'x', 'dead'),
    ('settlement.outcomes', 'y', 'dead, and holds its ordering key'),
    ('settlement.outcomes', 'r', 'retried'),
    ('settlement.outcomes', 'l', 'lost'),
    ('settlement.outcomes', 's', 'snoozed'),
    ('settlement.outcomes', 'u', 'unknown'),
    ('settlement.outcomes', 'h', 'released'),
    ('settlement.outcomes', 'k', 'requeued'),
    ('batch.skipped_as', 'c', 'cancelled'),
    ('batch.skipped_as', 'e', 'expired'),
    ('batch.skipped_as', 'm', 'moved'),
    ('tombstone.reason', 'c', 'cancel'),
    ('tombstone.reason', 'e', 'expired'),
    ('tombstone.reason', 'r', 'replaced'),
    ('tombstone.reason', 'm', 'moved to a newer row'),
    ('tombstone.reason', 'k', 'unique key: check it before the start'),
    ('unique_key.mode', 'o', 'once'),
    ('unique_key.mode', 'i', 'idempotent'),
    ('unique_key.mode', 'c', 'coalesce'),
    ('unique_key.mode', 'r', 'replace'),
    ('unique_key.mode', 'd', 'debounce'),
    ('unique_key.mode', 't', 'throttle'),
    ('count_change.states', 's', 'scheduled: promoted or moved'),
    ('count_change.states', 'r', 'retrying: promoted or moved'),
    ('count_change.states', 'w', 'ready: moved, or ended before a claim');

comment on view forebay.code is 'Meanings of the one-letter codes in the columns of other tables.';


-- tables/dead_letter.sql

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
    attempt        integer not null,     -- the last attempt, from 1; 0: the job never ran
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
    cause          text collate "C" not null default '',  -- see forebay._cause()
    place          text,                 -- the innermost function of the application that raised the last error; null: unknown
    holds_key      boolean not null default false,  -- later jobs of its ordering key wait for it, or for the job it was redriven as
    check ((redriven_at is null) = (redriven_as is null))
);
create index dead_letter_by_job on forebay.dead_letter (job_id);
create index dead_letter_by_new_job on forebay.dead_letter (redriven_as) where redriven_as is not null;
create index dead_letter_by_queue on forebay.dead_letter (queue, died_at);
create index dead_letter_holding on forebay.dead_letter (group_id, ordering_key) where holds_key;
create index dead_letter_by_cause on forebay.dead_letter (cause, died_at);

-- Lets a claim see, without reading a table, that no dead letter ever held an ordering key.
create sequence forebay.hold_seq as bigint cache 1;

-- Causes whose deaths are expected for a time: recorded and counted, but no error in the log, and no finding of the doctor.
create table forebay.muted_cause (
    cause    text collate "C" primary key,
    muted_at timestamptz not null,
    until    timestamptz                 -- null: until it is unmuted
);

-- How long dead letters are kept, by queue; set with forebay.keep_dead(). Without a row they are kept forever.
create table forebay.dead_retention (
    queue text primary key,              -- empty: all queues without their own row
    days  integer check (days between 1 and 36500)  -- null: forever
);

-- What became of deleted dead letters: how many of each sort, by the day on which the jobs died, in UTC.
create table forebay.dead_deletion (
    died_on    date not null,
    queue      text not null,
    kind       text not null,
    reason     text not null,
    error_type text not null,            -- class of the last error; empty: none
    deleted    bigint not null,
    primary key (died_on, queue, kind, reason, error_type)
);


-- tables/deferred.sql

-- Jobs with a later start time, and recheck rows of limit keys, which have no kind and the job 0. They are appended to the log when due, and deleted in bulk behind the cursor.
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
    unique_key     text,
    limit_key      text collate "C"
);
create unique index deferred_due on forebay.deferred (run_at, deferred_id);
create index deferred_by_xid on forebay.deferred (xid);
create index deferred_by_job on forebay.deferred (job_id);
alter table forebay.deferred replica identity using index deferred_due;
create index deferred_by_lane on forebay.deferred (lane, xid);

-- The promoter's cursor, newest row first. Rows visible in snap at or below the position have been promoted.
create table forebay.promotion (
    no          bigint primary key,
    snap        pg_snapshot not null,
    run_at      timestamptz not null,
    deferred_id bigint not null,
    promoted    integer not null,
    promoted_at timestamptz not null
);


-- tables/endpoint.sql

-- Endpoints, event types, subscriptions and published events. See docs/design/endpoints.md.

-- Advanced by each change of an endpoint. null: there never was one.
create sequence forebay.endpoint_seq as bigint cache 1;

-- The types of sinks that SQL accepts, with the names of their settings. Those of other packages are recorded by processes that have them.
create table forebay.sink_type (
    name     text collate "C" primary key,
    settings text[] not null,
    required text[] not null,
    is_ours  boolean not null              -- of Forebay: only migrations change it
);

create table forebay.endpoint (
    endpoint_id       bigint generated always as identity primary key,
    name              text collate "C" not null unique,
    sink              text not null,             -- type of the sink, such as http
    config            jsonb not null,            -- of the sink; secrets by reference
    retired_secrets   jsonb not null default '[]',  -- [{"secret", "until"}]: signed with until then
    retry             jsonb not null,            -- name of a preset, or delays in seconds
    rate              double precision check (rate > 0),     -- deliveries per second
    burst             integer check (burst >= 1),
    concurrency       integer not null default 50 check (concurrency >= 1),
    breaker_threshold integer not null default 10 check (breaker_threshold between 1 and 1000),
    breaker_cooldown  integer not null default 30 check (breaker_cooldown between 5 and 3600),  -- seconds
    disable_after     interval,                  -- null: failures never disable it
    max_waiting       bigint check (max_waiting >= 1),
    max_age           interval,                  -- of a delivery; null: as the event
    keeps_response    boolean not null default false,  -- the answer is kept as the result of the delivery
    disabled_at       timestamptz,               -- null: enabled
    disabled_why      text,
    created_at        timestamptz not null,
    changed_at        timestamptz not null,
    version           bigint not null            -- the transaction of the last change, also of the breaker: see endpoint_settings_v1()
);
create index endpoint_by_version on forebay.endpoint (version);

comment on table forebay.endpoint is 'Destinations of published events; change them with forebay.alter_endpoint() and its relatives.';

-- What the calls of an endpoint found. One row, updated when the state changes and otherwise at most once in some seconds.
create table forebay.endpoint_state (
    endpoint_id      bigint primary key references forebay.endpoint on delete cascade,
    failures         integer not null default 0,  -- in a row
    opened_at        timestamptz,                 -- null: the breaker is closed
    failing_since    timestamptz,                 -- first failure since the last success; null: none
    failing_percent  integer not null default 0,  -- of disable_after, as last published
    is_overfull      boolean not null default false,  -- deliveries are dropped: max_waiting
    last_success_at  timestamptz,
    last_failure_at  timestamptz,
    last_error       text
) with (fillfactor = 50);

-- Counts of calls, appended by each process, every few seconds in which there was something to count.
create table forebay.endpoint_activity (
    endpoint_id bigint not null,
    at          timestamptz not null,
    accepted    integer not null,
    failed      integer not null,                -- and retried, or dead after the last try
    rejected    integer not null,                -- permanent errors
    dropped     integer not null,                -- by the router: max_waiting
    latencies   integer[] not null               -- of accepted ones, from publication: element n, from 0, counts those below 2^n milliseconds, and not below 2^(n-1)
);
create index endpoint_activity_by_endpoint on forebay.endpoint_activity (endpoint_id, at);
create index endpoint_activity_by_age on forebay.endpoint_activity (at);
alter table forebay.endpoint_activity replica identity full;

-- What a process reports about one endpoint: see report_deliveries_v1().
create type forebay._delivery_report as (
    endpoint_id bigint, accepted integer, failed integer, rejected integer, latencies integer[], failures integer, answered boolean, error text,
    pause_seconds double precision, gone boolean);

create table forebay.event_type (
    name        text collate "C" primary key,
    description text,
    created_at  timestamptz not null
);

create table forebay.subscription (
    subscription_id bigint generated always as identity primary key,
    event_type      text collate "C" not null references forebay.event_type on delete cascade,
    endpoint_id     bigint not null references forebay.endpoint on delete cascade,
    filter          jsonb,                       -- the payload must contain it; null: all
    filter_member   text collate "C",            -- a scalar member of the filter, by which it is looked up; null: none
    filter_value    jsonb,
    start_at        timestamptz,                 -- events published since then; null: start_after decides
    start_after     pg_snapshot,                 -- events that it does not show; null with start_at null: from the beginning
    active_at       timestamptz,                 -- since then the router expands events for it; null: not yet
    routed_to       bigint not null,             -- until then: events up to this route_no were looked at,
    routed_bound    bigint not null,             --   and those up to this one can be: no router writes a lower one
    created_at      timestamptz not null,
    unique (event_type, endpoint_id)
);
create index subscription_by_member on forebay.subscription (event_type, filter_member, filter_value);
create index subscription_by_endpoint on forebay.subscription (endpoint_id);

-- Expanded events. Append-only, except for keep_until; maintenance deletes them after it.
create table forebay.published (
    route_no       bigint generated always as identity,  -- in the order of the expansions; events of one ordering key in their order
    event_id       bigint not null,              -- id of the job that published it
    published_at   timestamptz not null,         -- with it a key: ids may be given out again after a server lost commits
    xid            xid8 not null,                -- of the transaction that published it, or in which it became due
    event_type     text collate "C" not null,
    payload        jsonb not null,
    headers        jsonb,
    tag            text,
    priority       integer not null,
    ordering_key   text collate "C",
    correlation_id text,
    expires_at     timestamptz not null,
    keep_until     timestamptz not null,
    routed_at      timestamptz not null,
    deliveries     integer not null,             -- live ones
    primary key (event_id, published_at)
);
create index published_by_type on forebay.published (event_type, route_no);
create index published_by_end on forebay.published (keep_until);

-- Replays of endpoints, worked on by routers in steps.
create table forebay.replay (
    replay_id    bigint generated always as identity primary key,
    endpoint_id  bigint not null references forebay.endpoint on delete cascade,
    since        timestamptz not null,           -- events published from then on,
    until        timestamptz not null,           --   and before this
    routed_to    bigint not null,                -- events up to this route_no were looked at,
    routed_bound bigint not null,                --   those up to this one will be
    deliveries   bigint not null default 0,
    created_at   timestamptz not null,
    ended_at     timestamptz                     -- null: not yet
);
create index replay_by_endpoint on forebay.replay (endpoint_id);
create index replay_by_end on forebay.replay (ended_at) where ended_at is not null;

-- A delivery that is to be written: an event and an endpoint. nr orders them.
create type forebay._new_delivery as (
    nr bigint, endpoint_id bigint, event_id bigint, published_at timestamptz, event_type text, priority integer, ordering_key text,
    correlation_id text, tag text, expires_at timestamptz);


-- tables/enqueue.sql

-- One job of a bulk enqueue, decoded.
create type forebay._job_input as (
    kind text, args jsonb, queue text, priority integer, delay double precision, run_at timestamptz,
    expires_at timestamptz, max_attempts integer, tag text, correlation_id text, headers jsonb, ordering_key text, limit_key text);


-- tables/event.sql

-- The event log: what operators did. A row for each act, written in the transaction of the act; nothing on the path of a job.

create table forebay.event (
    event_id   bigint generated always as identity primary key,
    at         timestamptz not null,
    role       text not null,            -- login role of the session
    actor      text,                     -- who acted, as the client says: the setting forebay.actor
    act        text not null,            -- the command: queues.pause, jobs.cancel
    queue      text,
    group_name text,
    kind       text,
    subject_id bigint,                   -- the job, dead letter or backfill, if it was one
    old        jsonb,                    -- what was before
    new        jsonb,                    -- what is now, or which jobs were chosen
    count      bigint,                   -- of jobs, dead letters or groups
    detail     text
);
create index event_by_time on forebay.event (at);

comment on table forebay.event is 'What operators did; kept as long as errors of jobs. Read it with forebay.events().';


-- tables/failure.sql

-- Every failed attempt, and every other end of an attempt that has an error.
create table forebay.failure (
    job_id       bigint not null,
    group_id     bigint not null,
    enqueued_at  timestamptz not null,   -- of the job: ids can be reused after a lost commit
    attempt      integer not null,       -- the attempt that ended, from 1
    failed_at    timestamptz not null,
    outcome      text not null,
    error_type   text,
    message      text,
    traceback    text,
    worker       text,
    max_attempts integer,               -- maximum attempts as known to the worker; null: unknown
    cause        text,                  -- as the worker computed it; null: unknown
    place        text                   -- the innermost function of the application that raised it; null: unknown
);
create index failure_by_job on forebay.failure (job_id, failed_at);
create index failure_by_time on forebay.failure (failed_at);
alter table forebay.failure replica identity full;


-- tables/forgotten.sql

-- The jobs that groups had from plain lanes that were forgotten since: the running totals of their last batches.
create table forebay.forgotten (
    queue    text not null,
    group_id bigint not null,
    priority integer not null,
    total    bigint not null,
    constraint forgotten_pkey primary key (queue, group_id, priority)
);


-- tables/group.sql

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


-- tables/guard.sql

-- Acts of the guard: which transaction it ended, when, and with which outcome.

-- Each act has one row, committed before the act. outcome is filled in afterwards. In a row without an outcome the guard was
-- stopped in between: the act may have happened or not.
create table forebay.guard_event (
    event_id      bigint primary key,    -- random
    at            timestamptz not null,
    acted_as      text not null,         -- login role of the guard
    server        text not null,         -- primary, or the name of the standby
    action        text not null check (action in ('cancel', 'terminate', 'rollback prepared')),
    holder        text not null,         -- session, idle in transaction, handler, prepared transaction
    name          text not null,         -- pid, or global transaction id
    user_name     text,
    application   text,
    database_name text,
    state         text,
    xact_start    timestamptz,
    seconds       double precision,      -- age of the transaction
    age           bigint,                -- number of transactions begun since
    reason        text not null,
    query         text,                  -- first 200 characters of its last statement
    outcome       text,                  -- ended, still there, gone before, or the server's message
    outcome_at    timestamptz,
    check ((outcome is null) = (outcome_at is null))
);
create index guard_event_by_time on forebay.guard_event (at);

comment on table forebay.guard_event is 'Transactions that forebay guard ended, or tried to end; kept as long as errors of jobs.';


-- tables/key_pause.sql

-- Paused keys: no claim takes jobs of them, of any group. A row whose time has not come, or is over, pauses nothing. See "Paused keys" in
-- docs/design/limits.md and docs/design/ordering.md.
create table forebay.key_pause (
    queue     text not null,
    sort      text not null check (sort in ('ordering', 'limit')),
    key       text collate "C" not null,
    paused_at timestamptz not null,      -- when it was paused, or the pause was planned
    begins_at timestamptz,               -- of a planned pause; null: it began with the call
    resume_at timestamptz,               -- null: until it is resumed
    primary key (queue, sort, key)
);
create index key_pause_by_end on forebay.key_pause (resume_at);

comment on table forebay.key_pause is 'Paused ordering keys and limit keys of queues; set with forebay.pause_key().';

-- Lets a claim see, without reading a table, that no key was ever paused.
create sequence forebay.key_pause_seq as bigint cache 1;


-- tables/keys.sql

-- Ordering keys: jobs of one key run one at a time, in order. See docs/design/ordering.md.
--
-- Jobs with keys have separate lanes. A claim of such a lane takes a *key run* of each free key: some of the key's jobs, in
-- order, for one lease. A lease that has a key run of a key gets further runs that continue it. Jobs whose key another lease has
-- are *parked*: the cursor has passed them, and a small row records each. When a key run ends and jobs wait, a *recheck row*, a
-- row of the log without a kind, makes the group's claims look at the key again.

-- A key run is what one claim took of a key's jobs. The newest row of a (group, key) has the state of the key.
create table forebay.key_run (
    -- Many keys have one job in a claim: then a key run should be small. So nulls stand for what is usual.
    group_id     bigint not null,
    no           bigint not null,
    since        bigint,                 -- first key run that this one continues: one lease has the jobs of all of them; null: no
    lease_id     bigint,                 -- null: nothing was taken, jobs were only skipped
    claim_no     bigint,
    low_seq      bigint not null,        -- lowest and highest number among the run's jobs and its rest; high_seq null: low_seq
    high_seq     bigint,
    taken_up_to  bigint,                 -- parked jobs up to this number have been taken; null: 0
    place        smallint,               -- within that batch, of the only job of the key,
    is_suspect   boolean,                -- runs alone: its lease gets no more of the key; null: false
    ordering_key text collate "C" not null,
    offsets      smallint[],             --   or of all of them, in order
    jobs         bigint[],               -- ids of these jobs; null: low_seq
    rest_lanes   bigint[],               -- requeued by an earlier key run and not taken by this one, in order
    rest_seqs    bigint[],
    waits_for    text collate "C",       -- the limit key for a turn of which the first of them waits,
    waits_at     bigint,                 --   and its row of limit_parked, by parked_no
    primary key (group_id, ordering_key, no)
);
create index key_run_with_rest on forebay.key_run (group_id, ordering_key) where rest_seqs is not null;

-- Parked jobs: a group's cursor has passed them while their key was taken. They keep their order.
create sequence forebay.parked_seq as bigint cache 1;

-- Lets a claim see, without reading a table, that no job ever had an ordering key.
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


-- tables/kind_queue.sql

-- In which queue the jobs of a kind wait, as the worker that started last declares it. An enqueue by name without a queue reads it.
create table forebay.kind_queue (
    kind           text collate "C" primary key,
    queue          text not null,
    holds_key      boolean not null default false,  -- a dead letter of the kind holds its ordering key
    recorded_at    timestamptz not null,
    recorded_by    text not null,        -- the worker
    previous_queue text,                 -- before it was recorded; null: the kind was not known
    previous_by    text,
    alternated_at  timestamptz           -- when a worker last recorded the previous queue again; null: never
);


-- tables/known_lanes.sql

-- Flag sequences of known lanes. Each may name a lane whose registry row is committed, so that an enqueue need not read the
-- registry. forebay._lane_stamp() computes the values; they mean nothing after a restart, in a restored database, or after lanes
-- were retired.
do $$
begin
    for i in 0..15 loop
        execute format('create sequence forebay.known_%s as bigint minvalue -9223372036854775808 cache 1', i);
    end loop;
end
$$;


-- tables/lane.sql

-- The existing lanes. No unique key on purpose: with one, the first user of a lane would make every
-- other producer wait for its commit. Concurrent first users leave a few equal rows.
create table forebay.lane (
    lane     bigint not null,
    queue    text not null,
    priority integer not null,
    audience bigint not null,            -- 0 all groups, g retries of group g, -g suspects of group g
    sort     text collate "C" not null check (sort in ('plain', 'keyed', 'limited')),
                                         -- jobs without a key; with an ordering key; with a limit key
    shard    integer check (shard between 0 and 63),  -- of a plain public lane: its shard; 0 is the first
    recorded_at timestamptz not null,    -- or last found in use; a lane is looked at again a while later
    row_no   bigint generated always as identity primary key,
    state    text collate "C" not null default 'used' check (state in ('used', 'retired', 'dormant')),
                                         -- see forebay.forget_v1()
    dormant_xid xid8,                    -- the transaction that made it dormant; transactions that see it see all its rows
    dormant_seq bigint,                  -- all its rows have numbers up to this one
    check ((sort = 'plain' and audience = 0) = (shard is not null)),
    check ((state = 'dormant') = (dormant_xid is not null) and (state = 'dormant') = (dormant_seq is not null))
);
create index lane_by_id on forebay.lane (lane);
create index lane_by_queue on forebay.lane (queue, sort);
create index lane_in_use on forebay.lane (queue, sort) where state <> 'dormant';
create index lane_to_check on forebay.lane (recorded_at) where state = 'used';
create index lane_retired on forebay.lane (row_no) where state = 'retired';
create index lane_dormant on forebay.lane (dormant_seq) where state = 'dormant';

-- Flag sequence: the transaction that last retired lanes. Who does not see it relies on no row of the registry.
create sequence forebay.lane_horizon as bigint cache 1;

-- Flag sequence: a transaction id above those of all who relied on the lanes that are retired now.
create sequence forebay.lane_barrier as bigint cache 1;


-- A lane that a group may claim from, and the snapshot that the group has reached.
create type forebay._place as (
    group_id bigint, lane bigint, queue text, priority integer, audience bigint, snap pg_snapshot, claimed_at timestamptz);


-- What a session remembers of a poll that found no ready lane: everything that `snap` shows has been claimed, by all of the groups.
-- The text of one is the value of a parameter of the session, see forebay._recall_poll().
create type forebay._idle_poll as (
    hash       bigint,       -- of the ids of the groups
    horizon    bigint,       -- forebay.poll_horizon then
    last_seq   bigint,       -- the last number of the log that was drawn before
    next_xid   xid8,         -- transactions with those numbers have ids below it
    snap       pg_snapshot,
    checked_at bigint,       -- when all lanes were last looked at, in milliseconds since 1970
    queues     text[],       -- of the groups; null: too many to remember
    flags      oid[]);       -- the wake-up sequences of these queues

-- Flag sequence: the transaction that last made a lane ready without a row of the log.
create sequence forebay.poll_horizon as bigint cache 1;


-- A lane and a group, with the group's cursor there, for reading what the cursor has not passed. nr names it in results.
create type forebay._cursor as (
    nr bigint, lane bigint, start pg_snapshot, snap_from pg_snapshot, snap_to pg_snapshot, lo bigint, hi bigint, pos_xid xid8,
    pos_seq bigint);


-- tables/lane_secret.sql

-- What every enqueue reads, in one sequence, whose value is read without a query:
--   the upper 63 bits are random, drawn once for each schema. Lanes get their ids from them, see forebay._secret_hash(). Only the
--     owner of the schema can read them, and a dump contains them.
--   the lowest bit is set once a queue was sharded or has had a max_waiting, and then stays.
create sequence forebay.lane_secret as bigint minvalue -9223372036854775808 cache 1;


-- tables/leadership.sql

-- Leadership: "held until" in milliseconds since 1970, and the holder in the lowest 20 bits. One worker leads each duty:
-- duty 0 is maintenance, duty N watches for ready jobs of group N. Flag sequences like the wake-ups; a step is 250 ms by the same holder.
create sequence forebay.leader_0 as bigint increment 262144000 cache 1;


-- tables/lease.sql

-- Leases: one for each worker process and epoch of its database connection. The row is written when the lease opens and when
-- it closes, never between; heartbeats have a separate table.
create table forebay.lease (
    lease_id        bigint primary key,  -- random, so that no lease has the id of a lost one
    worker          text not null,       -- a name for humans: host:pid:token
    version         integer,             -- schema version that its code was made for; null: not reported
    lease_seconds   double precision not null,
    suspect_seconds double precision not null,
    opened_at       timestamptz not null,
    closed_at       timestamptz,
    closed_as       text check (closed_as in ('closed', 'revoked', 'adopted')),
    details         jsonb,               -- what the worker reports of itself: host, pid, group, queues, versions, concurrency
    check ((closed_at is null) = (closed_as is null))
);
create index lease_open on forebay.lease (lease_id) where closed_at is null;
create index lease_by_end on forebay.lease (closed_at, lease_id) where closed_at is not null;

create table forebay.heartbeat (
    lease_id     bigint not null,
    heartbeat_at timestamptz not null,
    backend_pid  integer not null,
    running_jobs bigint[],               -- ids of jobs whose handlers run in the process, at most 1,000; null: none
    memory_kb    integer                 -- resident memory of the process; null: not reported
);
create index heartbeat_newest on forebay.heartbeat (lease_id, heartbeat_at desc);
alter table forebay.heartbeat replica identity full;

-- What operators set for running workers. A row is over with its worker.
create table forebay.worker_setting (
    worker      text primary key,        -- as in lease.worker
    concurrency integer not null check (concurrency between 1 and 10000)
);


-- tables/limiter.sql

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
    no          bigint not null,                             -- new with each change: limit_run.limits_no
    primary key (queue, key),
    check (rate is not null or burst is null)
);

comment on table forebay.key_limits is 'Limits of single limit keys, instead of those that the queue has for each key; set with forebay.limit_key().';

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


-- tables/lock.sql

-- Tables that are only locked; they never hold a row. Advisory locks need no right: any role that may connect could hold the key of
-- a claim or of a maintenance task. LOCK TABLE needs the right to write the table, and PUBLIC has none.
--
-- SHARE UPDATE EXCLUSIVE conflicts with itself, draws no transaction id and writes no WAL: it costs what an advisory lock costs.
-- Partitioned tables without partitions have no file, and neither autovacuum nor the protection against wraparound locks them.
-- Of the numbered ones a hash chooses: two lanes with one lock wait for each other's claims.
do $$
declare
    v_name text;
begin
    for v_name in
        select 'lock_' || n from unnest(array[
            'maintenance', 'promotion', 'sweep', 'retention', 'trim', 'summary', 'forgetting', 'follow_up', 'mirror_sample', 'routing', 'migration']) n
        union all
        select 'lock_lane_' || n from generate_series(0, 127) n
        union all
        select f || n from unnest(array['lock_limiter_', 'lock_keys_']) f, generate_series(0, 63) n
    loop
        execute format('create table forebay.%s (unused integer) partition by list (unused)', v_name);
        execute format('comment on table forebay.%s is ''A lock; it holds no rows.''', v_name);
    end loop;
end
$$;


-- tables/log.sql

-- Tables of the job log. Everything a claim, a settlement or an enqueue touches is append-only:
-- rows are inserted, read newest first, and removed in bulk from behind. See docs/design/engine.md.

-- Numbers of the log. CACHE 1 and never altered: sealing a segment relies on
-- "a transaction with a number below last_value has drawn its xid already".
create sequence forebay.log_seq as bigint cache 1;

-- The log. xid stands before seq on purpose: defaults are evaluated in column order, and a row must draw its transaction id
-- before its number.
create table forebay.log (
    xid            xid8 not null default pg_current_xact_id(),
    seq            bigint not null default nextval('forebay.log_seq'),
    lane           bigint not null,
    enqueued_at    timestamptz not null,
    job_id         bigint,               -- null: the first row of its job, whose id is seq
    expires_at     timestamptz,          -- null: 30 days after enqueued_at
    attempt        integer,              -- attempts used before this row; null: none
    max_attempts   integer,              -- null: what the handler's retry policy says
    pauses         integer,              -- snoozes and unknown-kind pauses since the last failed attempt; null: none
    kind           text not null,
    args           jsonb not null,
    tag            text,
    correlation_id text,
    headers        jsonb,
    ordering_key   text collate "C",
    unique_key     text,
    limit_key      text collate "C"
) partition by range (seq);
alter table forebay.log replica identity full;

comment on table forebay.log is
    'Every job, append-only. seq numbers rows; job_id names the job across its retries.';


-- Transaction ids from low, up to and without high.
create type forebay._xid_range as (low xid8, high xid8);


-- tables/max_waiting.sql

-- Counts of the jobs that wait: of depth(), and of max_waiting, which enqueues check while no worker runs, too.
--
-- A count holds for a queue, a group and a snapshot. Rows that are visible now and were not visible then are added; jobs that the
-- newest batches handed out or skipped are subtracted. Counts are appended and read newest first; no count is updated.
-- See docs/design/backpressure.md.
create sequence forebay.queue_count_seq as bigint cache 1;


-- A keyed lane when it was counted: its rows in front of the cursor, the lowest number that one of them may have, and the cursor.
create type forebay._keyed_count as (lane bigint, unread bigint, low bigint, at forebay._cursor);

create table forebay.queue_count (
    queue      text not null,
    group_id   bigint not null,            -- 0: the queue has no group yet
    no         bigint not null default nextval('forebay.queue_count_seq'),
    oldest     xid8 not null,              -- the oldest transaction that may be missing in snap
    seq        bigint not null,            -- the last number drawn before the snapshot, in the log and in deferred
    deferred_seq bigint not null,
    snap       pg_snapshot not null,
    counted_at timestamptz not null,
    waiting    bigint not null,            -- the sum: how many jobs waited
    consumed   bigint not null,            -- how many jobs the batches of plain lanes had handed out or skipped
    priorities integer[] not null,         -- the following ones belong together:
    totals     bigint[] not null,          --   jobs appended to plain lanes, less those moved or expired before a claim
    scheduled  bigint[] not null,          --   scheduled rows of deferred that were not promoted, with those of cancelled jobs
    retrying   bigint[] not null,
    keyed      forebay._keyed_count[] not null
);
-- The count that is read is the one with the newest snapshot: a transaction with an old snapshot may append its count late.
create unique index queue_count_newest on forebay.queue_count (queue, group_id, oldest desc, no desc);
-- Not the whole row: a subscriber cannot compare snapshots.
alter table forebay.queue_count replica identity using index queue_count_newest;

-- Rows that left their place in another way than through a claim. Counts whose snapshot does not show this row subtract its jobs.
-- Arrays belong together.
create table forebay.count_change (
    xid        xid8 not null default pg_current_xact_id(),
    queue      text not null,
    group_id   bigint,                   -- of ready jobs
    priorities integer[] not null,
    audiences  bigint[] not null,
    states     "char"[] not null,        -- s scheduled, r retrying: promoted or moved. w: ready, moved or expired before a claim
    row_xids   xid8[] not null,          -- of deferred rows: a count that does not show this transaction never counted the row
    jobs       integer[] not null
);
create index count_change_by_xid on forebay.count_change (queue, xid);
alter table forebay.count_change replica identity full;

-- Jobs that were cancelled, replaced or debounced while they were scheduled or retrying. Their rows of deferred remain until they are due.
create table forebay.withdrawn (
    xid         xid8 not null default pg_current_xact_id(),
    queue       text not null,
    priority    integer not null,
    audience    bigint not null,         -- of the row's lane
    group_id    bigint,                  -- null: for every group
    state       text not null check (state in ('scheduled', 'retrying')),
    row_xid     xid8 not null,
    run_at      timestamptz not null,
    deferred_id bigint not null
);
create index withdrawn_by_time on forebay.withdrawn (queue, run_at, deferred_id);
create index withdrawn_by_xid on forebay.withdrawn (queue, xid);
create index withdrawn_to_trim on forebay.withdrawn (run_at, deferred_id);
alter table forebay.withdrawn replica identity full;


-- What is counted: a queue and a group, with the last count, and the transactions whose rows it does not have.
create type forebay._count_base as (
    nr bigint, queue text, group_id bigint, group_name text, start pg_snapshot, no bigint, snap pg_snapshot, priorities integer[], totals bigint[],
    scheduled bigint[], retrying bigint[], keyed forebay._keyed_count[], ranges forebay._xid_range[]);

-- A lane of it: what its newest batch has handed out and skipped, the cursor and the highest number behind it; for a keyed lane, what
-- was counted before.
create type forebay._count_lane as (
    nr bigint, base bigint, priority integer, audience bigint, is_keyed boolean, consumed bigint, cursor forebay._cursor, high_seq bigint,
    before forebay._keyed_count);

-- Rows that were found in a lane, how many of them are the caller's own, and the lowest number of the others.
create type forebay._count_rows as (nr bigint, jobs bigint, own bigint, low bigint);


-- tables/mirror.sql

-- Records of mirrors: results of their passes, number of waiting jobs, open breakers, and findings of audits.
--
-- All rows are appended; maintenance folds and removes old ones. The counts of a pass are part of the settlement of its jobs:
-- they exist if and only if the settlement does. Invariant "counted with the settlement": docs/design/reconcile.md.

-- Results of passes and direct writes. Rows are folded with age: level 0 as they came, 1 by minute, 2 by hour, 3 all that is
-- older than retention, at -infinity. The sum over all levels is the total since the beginning.
create table forebay.mirror_count (
    mirror     text not null,
    at       timestamptz not null,
    level    smallint not null default 0 check (level between 0 and 3),
    outcome  text not null,
    tag      text,
    priority integer,                    -- null: not of a job, for example a direct write
    count    bigint not null
);
create index mirror_count_by_time on forebay.mirror_count (mirror, at);
create index mirror_count_by_level on forebay.mirror_count (level, at);
create unique index mirror_count_of_all on forebay.mirror_count (mirror, outcome, tag, priority) nulls not distinct where level = 3;
alter table forebay.mirror_count replica identity full;

-- How many jobs were due, sampled once a minute while passes run or a status is read.
create table forebay.mirror_sample (
    mirror  text not null,
    at      timestamptz not null,
    due     bigint not null,             -- without jobs that alerts ignore
    due_all bigint not null,
    waiting bigint not null              -- also jobs within their grace period, and scheduled ones
);
create index mirror_sample_by_time on forebay.mirror_sample (mirror, at);
create index mirror_sample_by_age on forebay.mirror_sample (at);
alter table forebay.mirror_sample replica identity full;

-- Circuit breakers: when each opens, fails again and closes.
create table forebay.mirror_breaker (
    mirror       text not null,
    at         timestamptz not null,
    who        text not null,            -- the worker, or the process of direct writes
    place      text not null check (place in ('pass', 'direct')),
    open_until timestamptz,              -- null: closed
    why        text
);
create index mirror_breaker_by_time on forebay.mirror_breaker (mirror, at);
create index mirror_breaker_by_age on forebay.mirror_breaker (at);
alter table forebay.mirror_breaker replica identity full;

-- Finished audits.
create table forebay.mirror_audit (
    audit_id bigint primary key,         -- random
    mirror     text not null,
    ended_at timestamptz not null,
    seconds  double precision not null,
    compared text not null,              -- version or hash
    items    bigint not null,
    copies   bigint not null,
    rows     bigint not null,            -- read from both stores together
    ranges   bigint not null,            -- compared by checksum
    differed bigint not null,            -- of these
    suspects bigint not null,
    missing  bigint not null,
    stale    bigint not null,
    orphaned bigint not null,
    ahead    bigint not null,
    repaired bigint not null default 0   -- jobs enqueued to repair the findings
);
create index mirror_audit_by_time on forebay.mirror_audit (mirror, ended_at);
create index mirror_audit_by_age on forebay.mirror_audit (ended_at);

comment on table forebay.mirror_count is 'Results of mirrors, by outcome, tag and priority; read them with forebay.mirror_status().';


-- tables/queue_attempts.sql

-- The maximum number of attempts of a queue's jobs, instead of that of their kinds.
create table forebay.queue_attempts (
    queue        text primary key,
    max_attempts integer not null check (max_attempts between 1 and 10000)
);

comment on table forebay.queue_attempts is 'Maximum attempts of the jobs of a queue; set with forebay.set_max_attempts().';

-- Lets a settlement see, without reading the table, that no queue ever had one.
create sequence forebay.queue_attempts_seq as bigint cache 1;


-- tables/result.sql

-- Results and progress of handlers: appended, read by job, deleted by age.
--
-- The settlement that ends a job writes its result in the same transaction: the result exists if and only if the job is done.
-- Jobs whose handler keeps no result cost nothing.

-- "A caller waits for the end of a job until", in milliseconds since 1970: a flag sequence like the wake-ups.
create sequence forebay.result_wakeup as bigint cache 1;

create table forebay.result (
    job_id      bigint not null,
    group_id    bigint not null,
    enqueued_at timestamptz not null,     -- of the job: ids can be reused after a lost commit
    kept_at     timestamptz not null,
    kept_until  timestamptz not null,
    value       jsonb,
    problem     text,                     -- why the value is missing
    check ((value is null) <> (problem is null))
);
create index result_by_job on forebay.result (job_id);
create index result_by_age on forebay.result (kept_until);
alter table forebay.result replica identity full;

create table forebay.progress (
    job_id   bigint not null,
    group_id bigint not null,
    recorded_at timestamptz not null,
    done     double precision not null,   -- 0 to 1
    note     text not null
);
create index progress_by_job on forebay.progress (job_id, recorded_at);
create index progress_by_age on forebay.progress (recorded_at);
alter table forebay.progress replica identity full;


-- tables/segment.sql

-- Segments: the partitions of the log. Each is a range of seq with its read functions.
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


-- tables/setting.sql

-- Settings of the database rather than of one process. Maintenance reads them; an enqueue does so only when its arguments are
-- large enough to come near a limit.
create table forebay.setting (
    name  text primary key,
    value bigint not null
);

insert into forebay.setting (name, value) values
    ('segment_rows', 1000000),          -- numbers per segment of the log
    ('reserve_rows', 64000000),         -- numbers ahead of the sequence that have segments
    ('retention_days', 30),             -- settled segments older than this are emptied
    ('retention_bytes', 20000000000),   -- so are the oldest settled ones beyond this total size
    ('lane_idle_hours', 24),            -- lanes without jobs for this time are forgotten in steps
    ('args_bytes_max', 1048576),
    ('args_depth_max', 64),
    ('result_bytes_max', 65536);

comment on table forebay.setting is 'Database-wide settings; change them with forebay.configure().';


-- tables/settlement.sql

-- Settlements: how jobs of a batch ended. (lease, claim_no, flush_no) names a flush, so that a flush whose answer was lost can
-- be repeated. A negative flush_no settles the single job at offset -flush_no.
create table forebay.settlement (
    lease_id   bigint not null,
    claim_no   bigint not null,
    flush_no   integer not null,
    settled_at timestamptz not null,
    offsets    smallint[],               -- null: the whole batch
    outcomes   "char"[],                 -- named in forebay.code; null: all done
    millis     integer[],                -- durations, null: not measured
    primary key (lease_id, claim_no, flush_no)
);
create index settlement_that_requeues on forebay.settlement (lease_id, claim_no) where 'k' = any (outcomes);

-- A suspect is claimed alone and its start is recorded, so that a death of the worker can be attributed to it.
create table forebay.suspect_start (
    lease_id   bigint not null,
    claim_no   bigint not null,
    started_at timestamptz not null,
    primary key (lease_id, claim_no)
);


-- tables/shard.sql

-- Sharded queues: the number of public lanes of each priority over which their jobs are distributed.
-- The sequence lets an enqueue see, without reading the table, that no queue was ever sharded.
create table forebay.queue_shards (
    queue text primary key,
    lanes integer not null check (lanes between 1 and 64)
);
create sequence forebay.shard_seq as bigint cache 1;


-- tables/tombstone.sql

-- Requests to cancel, expiries decided by the sweep, and records of unique keys: that a newer job of its key replaced a job, and
-- that a claim must check a job's key before it starts the job, and that an operator moved a job to another row. Claims and settlements read them.
-- The sequence lets a claim see, without reading the table, that no row was ever written.
create sequence forebay.tombstone_seq as bigint cache 1;

create table forebay.tombstone (
    tombstone_no bigint not null default nextval('forebay.tombstone_seq'),
    job_id     bigint not null,
    group_id   bigint,                   -- null: for every group
    reason     "char" not null check (reason in ('c', 'e', 'r', 'k', 'm')),  -- named in forebay.code
    recorded_at   timestamptz not null,
    enqueued_at timestamptz,             -- of the expired job
    up_to      bigint,                   -- moved: rows of the job up to this number in the log were replaced by a newer one
    check ((reason = 'm') = (up_to is not null))
);
create index tombstone_by_job on forebay.tombstone (job_id);
create index tombstone_by_time on forebay.tombstone (recorded_at, tombstone_no);
alter table forebay.tombstone replica identity full;


-- A job that an operator's act concerns, for one group: see forebay._matching().
create type forebay._match as (
    job_id bigint, group_id bigint, place "char", lane bigint, xid xid8, seq bigint, state text, enqueued_at timestamptz, answer text);


-- tables/trimming.sql

-- Up to which run_at, in microseconds since 1970, deferred rows were removed. While a snapshot is held, removed rows lie in front
-- of those to be removed next.
create sequence forebay.trim_position_seq as bigint cache 1;

-- Duties of maintenance that fail or are behind, for the doctor. A row exists only while there is something to report.
create table forebay.duty (
    name        text primary key,
    error       text,                    -- the last error; null: it does not fail
    since       timestamptz not null,    -- when it last was well
    recorded_at timestamptz not null,
    worker      text not null            -- the session that reported it
);


-- tables/unique.sql

-- Unique keys: the uniqueness mode decides what a key means while another job of the same key waits or runs.
--
-- A key has generations, each with its job, appended and read newest first. Whether a generation still holds its key is not
-- stored: it follows from the state of its job, which ends in one commit however it ends. So the end of a job releases nothing,
-- and no key can stay locked.
--
-- Invariant "one generation": of a key's jobs only the newest can ever start. See docs/design/unique.md.

create table forebay.unique_key (
    xid         xid8 not null default pg_current_xact_id(),           -- Before job_id, as in the log.
    queue       text collate "C" not null,
    mode      "char" not null check (mode in ('o', 'i', 'c', 'r', 'd', 't')),  -- named in forebay.code
    key         text collate "C" not null,
    gen         bigint not null,
    job_id      bigint not null default nextval('forebay.log_seq'),
    lane        bigint not null,         -- public lane of the job
    is_deferred boolean not null,        -- scheduled for later: its first row is not in the log under its number
    taken_at    timestamptz not null,
    expires_at  timestamptz not null,    -- the job does not start at or after this
    free_at     timestamptz,             -- throttle: when the period is over
    first_at    timestamptz,             -- debounce: time of the first call that this job stands for
    payload     bytea,                   -- idempotent: hash of kind and arguments
    origin      bigint not null,         -- coalesce: the oldest generation that an open transaction may still have joined
    primary key (queue, mode, key, gen)
);
create index unique_key_by_job on forebay.unique_key (job_id) where mode = 'c';
-- For maintenance: a key of a long period is not looked at before its end.
create index unique_key_by_time on forebay.unique_key (coalesce(free_at, taken_at), job_id);

comment on table forebay.unique_key is 'Unique keys: a row for each generation of a key, with its job.';


-- One job with a unique key in a bulk enqueue. first_nr is the first job of the same key; differs: an idempotency key
-- refuses it. No column has the name of a column of unique_key.
create type forebay._key_input as (
    nr bigint, first_nr bigint, differs boolean, its_queue text, code "char", word text, unique_as jsonb, its_lane bigint,
    start timestamptz, ends timestamptz, digest bytea);

-- The result: the job that stands for the input; for a new job also when it was enqueued and when it starts (null: at once).
create type forebay._key_taken as (stands_for bigint, is_new boolean, since timestamptz, starts_at timestamptz);


-- tables/version.sql

-- Which migrations were applied, and when. Written by `forebay migrate` and by the script of `forebay sql`.

create table forebay.schema_migration (
    version    integer primary key check (version > 0),
    name       text not null,
    checksum   text not null check (checksum ~ '^[0-9a-f]{64}$'),   -- SHA-256 of the file
    applied_at timestamptz not null default clock_timestamp()
);

comment on table forebay.schema_migration is 'Applied migrations; a migration file that changed afterwards is refused.';


-- tables/wakeup.sql

-- Wake-ups: "a worker sleeps until", in milliseconds since 1970, one flag sequence for each hash of a queue name.
-- They are sequences because a sequence is read and set outside transactions and leaves no dead rows. The increment is the step of
-- forebay._advance_flag(). No sequence here is unlogged: PostgreSQL can lose the page of one at a promotion, and then each read fails.
do $$
begin
    for i in 0..15 loop
        execute format('create sequence forebay.wakeup_%s as bigint increment 250 cache 1', i);
    end loop;
end
$$;


-- functions/adopt/adopt.sql

-- Adoption: decide what becomes of a log that was restored from another cluster.
-- grant: none

-- The transaction that divides the rows: older rows were restored, younger ones were written here.
--
-- A restore copies the rows before it creates the constraints, so the catalog row of a primary key, which is never updated,
-- divides the two. In a copy that was made within the cluster that row is as old as the original; there the catalog row of the
-- database divides them.
create function forebay._native_after() returns xid
language sql stable
as $$
    select case when n.system_identifier = i.system_identifier and age(d.xmin) < age(c.xmin) then d.xmin else c.xmin end
    from (select * from forebay.cluster order by cluster_no desc limit 1) n, forebay._identity() i, pg_database d, pg_constraint c
    where d.datname = current_database() and c.conname = 'cluster_pk' and c.conrelid = 'forebay.cluster'::regclass
$$;


-- Adopt a log restored from another cluster.
--
-- Every old segment becomes archive, new rows go to fresh segments, and cursors are created again. With p_resume, jobs that
-- were waiting, scheduled, or claimed but not settled when the dump was taken are appended again, once for each group that had
-- not finished them; without it they count as cancelled. Jobs enqueued here since the restore are kept in either case.
--
-- Returns: the number of jobs appended again, and the number discarded.
-- Errors: JQ031 when this is the log's own cluster; JQ012 not called alone.
-- Locks: the maintenance and promotion locks; SHARE on the old segments (waits for enqueues in progress there, new ones write
--   elsewhere), at the end ACCESS EXCLUSIVE on those that were in use.
create function forebay.adopt_v1(p_resume boolean, out resumed bigint, out discarded bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '60s'
set jit = off
as $$
declare
    v_last    bigint;
    v_start   bigint;
    v_segment record;
    v_lane    record;
    v_lease   record;
    v_row     record;
    v_queue   record;
    v_position    forebay.promotion;
    v_count   bigint;
    v_skipped bigint[];
    v_border  constant xid := forebay._native_after();
begin
    perform forebay._require_alone('forebay.adopt_v1()');
    resumed := 0;
    discarded := 0;
    if exists (select from forebay._identity() i,
                           (select c.* from forebay.cluster c order by c.cluster_no desc limit 1) n
               where n.system_identifier = i.system_identifier and n.database_oid = i.database_oid) then
        raise exception using errcode = 'JQ031',
            message = 'this log belongs to this cluster; there is nothing to adopt',
            hint = 'Adopt only a log that was restored from a dump of another cluster.';
    end if;
    lock table only forebay.lock_maintenance, only forebay.lock_promotion in share update exclusive mode;

    -- Fresh segments for all jobs enqueued from now on; wait for enqueues in progress in the old ones.
    v_last := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    select s.lo into v_start from forebay.segment s where s.lo > v_last order by s.lo limit 1;
    if v_start is null then
        perform forebay._make_segment(s.segment_id + 1, s.hi, s.hi + forebay._setting_value('segment_rows'))
        from forebay.segment s order by s.segment_id desc limit 1;
        select s.lo into v_start from forebay.segment s where s.lo > v_last order by s.lo limit 1;
    end if;
    perform setval('forebay.log_seq', v_start);
    for v_segment in select s.segment_id from forebay.segment s where s.lo < v_start and s.removed_at is null loop
        execute format('lock table forebay.log_%s in share mode', v_segment.segment_id);
    end loop;

    -- Queues that no worker has served yet.
    for v_queue in select distinct l.queue from forebay.lane l
                   where not exists (select from forebay.queue_group g where g.queue = l.queue) loop
        perform forebay._imply_group(v_queue.queue);
    end loop;

    -- Behind a cursor, waiting for their key; jobs of the leases are counted with these.
    select coalesce(sum(p.jobs), 0) into v_count from forebay._all_parked() p;
    if p_resume then
        resumed := v_count;
    else
        discarded := v_count;
    end if;

    -- Claimed and not settled.
    for v_lease in select l.lease_id from forebay.lease l where l.closed_at is null order by l.opened_at loop
        if p_resume then
            resumed := resumed + coalesce(forebay._revoke(v_lease.lease_id, 'adopted', false), 0);
        else
            discarded := discarded + coalesce(forebay._discard_lease(v_lease.lease_id), 0);
        end if;
    end loop;

    if p_resume then
        for v_row in select p.group_id, p.job from forebay._parked_jobs() p order by p.group_id, p.place loop
            select l.queue, l.priority into v_lane from forebay.lane l where l.lane = (v_row.job).lane limit 1;
            perform forebay._continue_job(
                v_row.job, forebay._record_private_lane(v_lane.queue, v_lane.priority, v_row.group_id,
                                                        (v_row.job).ordering_key, (v_row.job).limit_key),
                (v_row.job).attempt, (v_row.job).pauses, null);
        end loop;
    end if;
    delete from forebay.parked;
    delete from forebay.key_run;
    delete from forebay.limit_parked;
    delete from forebay.limit_run;

    -- Waiting in the log.
    for v_lane in
        select l.lane, l.queue, l.priority, l.audience, g.group_id, g.start_after, b.no, b.snap_from, b.snap_to,
               b.pos_xid, b.pos_seq, b.high_seq, b.handed_total, b.skipped_total, s.lo, s.hi
        from (select distinct i.lane, i.queue, i.priority, i.audience from forebay.lane i) l
        join forebay.queue_group g on g.queue = l.queue and (l.audience = 0 or abs(l.audience) = g.group_id)
        left join lateral (select i.* from forebay.batch i
                           where i.group_id = g.group_id and i.lane = l.lane order by i.no desc limit 1) b on true
        left join forebay.segment s on s.segment_id = b.pos_segment
    loop
        v_skipped := '{}';
        for v_segment in
            select s.segment_id from forebay.segment s where s.lo < v_start and s.removed_at is null order by s.segment_id
        loop
            for v_row in execute format(
                'select row(l.*)::forebay.log as r, age(l.xmin) < age($2) as native
                 from forebay.log_%s l where l.lane = $1 and l.kind <> '''' order by l.xid, l.seq', v_segment.segment_id) using v_lane.lane, v_border
            loop
                if not v_row.native then
                    continue when v_lane.snap_from is null and v_lane.audience = 0
                                  and pg_visible_in_snapshot((v_row.r).xid, v_lane.start_after);
                    continue when v_lane.snap_from is not null and forebay._is_consumed(
                        (v_row.r).xid, (v_row.r).seq, v_lane.snap_from, v_lane.snap_to, v_lane.lo, v_lane.hi,
                        v_lane.pos_xid, v_lane.pos_seq);
                    if not p_resume then
                        discarded := discarded + 1;
                        v_skipped := v_skipped || (v_row.r).seq;
                        continue;
                    end if;
                end if;
                continue when forebay._is_moved(coalesce((v_row.r).job_id, (v_row.r).seq), v_lane.group_id, (v_row.r).seq);
                resumed := resumed + 1;
                perform forebay._continue_job(
                    v_row.r,
                    forebay._record_private_lane(v_lane.queue, v_lane.priority,
                                               case when v_lane.audience < 0 then v_lane.audience else v_lane.group_id end,
                                               (v_row.r).ordering_key, (v_row.r).limit_key),
                    coalesce((v_row.r).attempt, 0), coalesce((v_row.r).pauses, 0), null);
            end loop;
        end loop;
        insert into forebay.batch (
            group_id, lane, no, snap_from, pos_segment, pos_xid, pos_seq, high_seq, handed_total, skipped_total,
            claimed_at, skipped, skipped_as)
        values (v_lane.group_id, v_lane.lane, coalesce(v_lane.no, 0) + 1, '1:1:', 0, '0', 0,
                greatest(v_lane.high_seq, v_last), coalesce(v_lane.handed_total, 0),
                coalesce(v_lane.skipped_total, 0) + cardinality(v_skipped), forebay._now(),
                v_skipped, array_fill('c'::"char", array[cardinality(v_skipped)]));
    end loop;
    -- A group that was being closed stays, paused: its jobs have new rows, and closing it would give up all of them.
    update forebay.queue_group g
    set start_after = '1:1:', closing_at = null, closing_snap = null, fenced_lane = null;
    delete from forebay.batch b using forebay.closed_group c where c.group_id = b.group_id;
    -- Counted by snapshots of the other cluster.
    delete from forebay.queue_count;
    delete from forebay.count_change;
    delete from forebay.withdrawn;
    delete from forebay.limiter;
    -- Transaction ids of the other cluster.
    update forebay.lane l set state = 'used' where l.state = 'retired';
    perform setval('forebay.lane_horizon', 1), setval('forebay.lane_barrier', 1), setval('forebay.poll_horizon', 1);

    -- Deferred and not yet promoted: written again, with xids of this cluster.
    select * into v_position from forebay.promotion p order by p.no desc limit 1;
    if p_resume then
        insert into forebay.deferred (
            run_at, lane, enqueued_at, job_id, expires_at, attempt, max_attempts, pauses, kind, args, tag, correlation_id, headers,
            ordering_key, unique_key, limit_key)
        select d.run_at, d.lane, d.enqueued_at, d.job_id, d.expires_at, d.attempt, d.max_attempts, d.pauses, d.kind,
               d.args, d.tag, d.correlation_id, d.headers, d.ordering_key, d.unique_key, d.limit_key
        from forebay.deferred d
        where age(d.xmin) >= age(v_border) and d.kind <> ''
          and not (v_position.no is not null and pg_visible_in_snapshot(d.xid, v_position.snap)
                   and (d.run_at, d.deferred_id) <= (v_position.run_at, v_position.deferred_id))
        order by d.run_at, d.deferred_id;
        get diagnostics v_count = row_count;
        resumed := resumed + v_count;
    else
        select count(*) into v_count
        from forebay.deferred d
        where age(d.xmin) >= age(v_border) and d.kind <> ''
          and not (v_position.no is not null and pg_visible_in_snapshot(d.xid, v_position.snap)
                   and (d.run_at, d.deferred_id) <= (v_position.run_at, v_position.deferred_id));
        discarded := discarded + v_count;
    end if;
    -- The rows written above are younger than the border.
    delete from forebay.deferred d where age(d.xmin) >= age(v_border);
    delete from forebay.promotion;

    -- An enqueue that drew its number before the move and writes its row after this commit would write to a segment that is
    -- no longer read: refuse the row, and the transaction with it.
    for v_segment in
        select s.segment_id from forebay.segment s
        where s.lo <= v_last and s.removed_at is null
          and not exists (select from forebay.seal f where f.segment_id = s.segment_id)
    loop
        execute format('alter table forebay.log_%s add constraint adopted check (false) not valid', v_segment.segment_id);
    end loop;

    delete from forebay.seal;
    insert into forebay.seal (segment_id, xid, sealed_at)
    select s.segment_id, '0', forebay._now() from forebay.segment s where s.lo < v_start;
    insert into forebay.cluster (system_identifier, database_oid)
    select i.system_identifier, i.database_oid from forebay._identity() i;
    perform forebay._record_event('adopt', p_new => jsonb_build_object('resumed', resumed, 'discarded', discarded),
                                  p_count => resumed + discarded);
end
$$;


-- Close a restored lease and count its unsettled jobs as cancelled; returns how many.
create function forebay._discard_lease(p_lease_id bigint) returns bigint
language plpgsql volatile
as $$
declare
    v_batch record;
    v_open  smallint[];
    v_count bigint := 0;
begin
    update forebay.lease l set closed_at = forebay._now(), closed_as = 'adopted' where l.lease_id = p_lease_id;
    for v_batch in select b.claim_no, b.seqs from forebay.batch b where b.lease_id = p_lease_id loop
        v_open := array(
            select i::smallint from generate_subscripts(v_batch.seqs, 1) i
            where not exists (select from forebay.settlement s
                              where s.lease_id = p_lease_id and s.claim_no = v_batch.claim_no
                                and (s.offsets is null or i::smallint = any (s.offsets))));
        continue when cardinality(v_open) = 0;
        insert into forebay.settlement (lease_id, claim_no, flush_no, settled_at, offsets, outcomes)
        values (p_lease_id, v_batch.claim_no, 2147483647, forebay._now(), v_open,
                array_fill('c'::"char", array[cardinality(v_open)]));
        v_count := v_count + cardinality(v_open);
    end loop;
    return v_count;
end
$$;


-- functions/backfill/backfill.sql

-- Backfill: a job for each row of a query, in one statement or chunk by chunk.
--
-- The query is the caller's SQL and is read with the caller's rights, while the log is written with the owner's. So the
-- functions that run the query are not security definers; they pass arrays of values to functions that are. They also set no
-- search_path, since the names in the query are the caller's: everything else in these functions is written with its schema.
-- See docs/design/backfill.md.
-- The role that the caller has set, or its login. Unlike current_user it is the same within a security definer.
create function forebay._role_in_use() returns name
language sql stable
return coalesce(nullif(current_setting('role'), 'none'), session_user)::name;

-- grant: producer, worker

-- Enqueue a job for each row of a query, in the caller's transaction; returns how many.
--
-- Parameters:
--   kind     selects the handler
--   query    a SELECT, read with the caller's rights. The columns of a row are the arguments of its job. If there is a column
--            args, that column has the arguments, and the other columns are options of the job: ordering_key, unique_as,
--            delay and others
--   options  for all jobs, a JSON object: queue (forebay.queue_of() the kind), priority (1000), tag (backfill), delay and expires_in in seconds, run_at,
--            expires_at, max_attempts, correlation_id, headers, ordering_key, limit_key; args, arguments common to all
--   token    from forebay.backfill_plan: enqueue exactly the jobs that it counted, or nothing
-- Errors: as forebay.enqueue_many; JQ040 the jobs differ from those of the token.
create function forebay.backfill(kind text, query text, options jsonb default '{}', token text default null) returns bigint
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    v_found pg_catalog.record;
begin
    if token is not null then
        -- Before anything is written, because jobs that are rolled back leave dead rows in the log.
        v_found := forebay.backfill_count_v1(query);
        perform forebay.backfill_token_v1(kind, options, v_found.jobs, v_found.digest, token);
    end if;
    v_found := forebay.backfill_run_v1(kind, query, options, null, token is not null);
    if token is not null then
        perform forebay.backfill_token_v1(kind, options, v_found.jobs, v_found.digest, token);
    end if;
    perform forebay.backfill_enqueued_v1(kind, query, options, v_found.jobs);
    return v_found.jobs;
end
$$;


-- functions/backfill/begin.sql

-- grant: producer, worker

-- Begin a backfill in chunks; returns its number. This enqueues nothing: forebay.backfill_next does, chunk by chunk.
--
-- It reads the rows once, in the order of the key, and records where each chunk ends. Rows beyond the last key are not part of
-- the backfill, even if they appear later.
--
-- Parameters: as forebay.backfill, and
--   key    a column of the query, without nulls; rows with the same key are in one chunk. With an index on it, a chunk costs
--          the same however many rows there are
--   chunk  jobs of a chunk, 1 to 1,000,000
--   token  from forebay.backfill_plan: a chunk whose jobs differ from those counted here is refused
-- Errors: JQ001, JQ040 the jobs differ from those of the token.
create function forebay.backfill_begin(
    kind text, query text, key text, chunk integer default 50000, options jsonb default '{}', token text default null)
returns bigint
language plpgsql volatile
set datestyle = 'ISO'
set intervalstyle = 'postgres'
set extra_float_digits = 1
set bytea_output = 'hex'
as $$
#variable_conflict use_variable
declare
    v_row     pg_catalog.record;
    v_last    pg_catalog.text;
    v_count   pg_catalog.int8 := 0;
    v_digest  pg_catalog.numeric := 0;
    v_upto    pg_catalog.text[] := '{}';
    v_jobs    pg_catalog.int8[] := '{}';
    v_digests pg_catalog.numeric[] := '{}';
begin
    if key is null or chunk is null or chunk operator(pg_catalog.<) 1 or chunk operator(pg_catalog.>) 1000000 then
        raise exception using errcode = 'JQ001', column = 'chunk',
            message = pg_catalog.format('cannot make chunks of %s jobs by key %s', coalesce(chunk::pg_catalog.text, 'null'), coalesce(pg_catalog.quote_literal(key), 'null')),
            hint = 'A chunk has 1 to 1,000,000 jobs; the key is a column of the query.';
    end if;
    for v_row in execute pg_catalog.format(
        E'select pg_catalog.to_jsonb(q.%I) operator(pg_catalog.#>>) ''{}''::pg_catalog.text[] as key,
                 pg_catalog.hashtextextended(pg_catalog.to_jsonb(q.*)::pg_catalog.text collate pg_catalog."C", 0) as digest
          from (%s\n) q order by q.%I', key, query, key)
    loop
        if v_row.key is null then
            raise exception using errcode = 'JQ001', column = 'key',
                message = pg_catalog.format('key %s has nulls', pg_catalog.quote_literal(key)),
                hint = 'Nothing was enqueued. Use a column without nulls, such as the primary key.';
        end if;
        if v_count operator(pg_catalog.>=) chunk::pg_catalog.int8 and v_row.key operator(pg_catalog.<>) v_last then
            v_upto := pg_catalog.array_append(v_upto, v_last);
            v_jobs := pg_catalog.array_append(v_jobs, v_count);
            v_digests := pg_catalog.array_append(v_digests, v_digest);
            v_count := 0;
            v_digest := 0;
        end if;
        v_last := v_row.key;
        v_count := v_count operator(pg_catalog.+) 1::pg_catalog.int8;
        v_digest := v_digest operator(pg_catalog.+) v_row.digest::pg_catalog.numeric;
    end loop;
    if v_count operator(pg_catalog.>) 0::pg_catalog.int8 then
        v_upto := pg_catalog.array_append(v_upto, v_last);
        v_jobs := pg_catalog.array_append(v_jobs, v_count);
        v_digests := pg_catalog.array_append(v_digests, v_digest);
    end if;
    return forebay.backfill_record_v1(kind, query, key, options, token, v_upto, v_jobs, v_digests);
end
$$;


-- functions/backfill/count.sql

-- grant: producer, worker

-- Count the rows of a query, and the bytes of the arguments they produce. Runs with the rights and the search_path of the caller.
create function forebay.backfill_count_v1(query text, out jobs bigint, out bytes bigint, out digest numeric)
language plpgsql volatile
set datestyle = 'ISO'
set intervalstyle = 'postgres'
set extra_float_digits = 1
set bytea_output = 'hex'
as $$
#variable_conflict use_variable
begin
    execute pg_catalog.format(
        E'select pg_catalog.count(*),
                 coalesce(pg_catalog.sum(pg_catalog.octet_length(
                     coalesce(r.row operator(pg_catalog.->) ''args''::pg_catalog.text, r.row)::pg_catalog.text)), 0)::pg_catalog.int8,
                 coalesce(pg_catalog.sum(pg_catalog.hashtextextended(r.row::pg_catalog.text collate pg_catalog."C", 0)), 0)
          from (select pg_catalog.to_jsonb(q.*) as row from (%s\n) q) r', query)
        into jobs, bytes, digest;
end
$$;


-- functions/backfill/done.sql

-- grant: producer, worker

-- Mark a chunk done; returns the progress of the backfill.
--
-- Errors: JQ040 the backfill began with a token, and the jobs of the chunk differ from those counted; JQ041 no such open chunk.
create function forebay.backfill_done_v1(
    backfill_id bigint, no integer, enqueued bigint, digest numeric, out jobs_done bigint, out jobs_all bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_chunk record;
begin
    update forebay.backfill_chunk c set enqueued = backfill_done_v1.enqueued, done_at = forebay._now()
    from forebay.backfill b
    where c.backfill_id = backfill_done_v1.backfill_id and c.no = backfill_done_v1.no and c.done_at is null
      and b.backfill_id = c.backfill_id and b.made_by = session_user and b.made_as = forebay._role_in_use()
    returning b.is_fixed, c.jobs, c.digest into v_chunk;
    if v_chunk.jobs is null then
        raise exception using errcode = 'JQ041',
            message = format('backfill %s has no open chunk %s', backfill_done_v1.backfill_id, backfill_done_v1.no),
            detail = jsonb_build_object('backfill_id', backfill_done_v1.backfill_id);
    elsif v_chunk.is_fixed and (v_chunk.jobs, v_chunk.digest) is distinct from (backfill_done_v1.enqueued, backfill_done_v1.digest) then
        raise exception using errcode = 'JQ040',
            message = format('chunk %s of backfill %s has other jobs than were counted: %s, not %s', backfill_done_v1.no,
                             backfill_done_v1.backfill_id, backfill_done_v1.enqueued, v_chunk.jobs),
            hint = 'Earlier chunks are enqueued; nothing of this one is. Do a new dry run of the rest.';
    end if;
    select sum(c.jobs) filter (where c.done_at is not null), sum(c.jobs) into jobs_done, jobs_all
    from forebay.backfill_chunk c where c.backfill_id = backfill_done_v1.backfill_id;
    if not exists (select from forebay.backfill_chunk c where c.backfill_id = backfill_done_v1.backfill_id and c.done_at is null) then
        perform forebay._record_event('backfill.end', forebay._backfill_options(b.kind, b.options) ->> 'queue', p_kind => b.kind,
                                      p_subject_id => b.backfill_id, p_count => backfill_done_v1.jobs_done)
        from forebay.backfill b where b.backfill_id = backfill_done_v1.backfill_id;
    end if;
end
$$;


-- functions/backfill/enqueued.sql

-- grant: producer, worker

-- Record in the event log that a backfill enqueued all its jobs in one statement.
create function forebay.backfill_enqueued_v1(kind text, query text, options jsonb, jobs bigint) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if jobs > 0 then
        perform forebay._record_event('backfill', forebay._backfill_options(kind, options) ->> 'queue', p_kind => kind, p_count => jobs,
                                      p_new => jsonb_build_object('query', left(query, 2000)));
    end if;
end
$$;


-- functions/backfill/next.sql

-- grant: producer, worker

-- Enqueue the next chunk of a backfill, in the caller's transaction; no row when all chunks are done.
--
-- Invariant "a chunk and its position are one": docs/design/backfill.md. Call it until it returns no row, each time in a
-- separate transaction; call it again after a crash.
--
-- Returns the number of jobs in this chunk, the number of jobs in all done chunks, and the number counted at the beginning.
-- Errors: as forebay.backfill; JQ040 the jobs of the chunk differ from those counted; JQ041 no such backfill, or that of another login or role.
-- Locks: the backfill.
create function forebay.backfill_next(backfill_id bigint)
returns table (enqueued bigint, jobs_done bigint, jobs_all bigint)
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    v_chunk pg_catalog.record;
    v_found pg_catalog.record;
    v_done  pg_catalog.record;
begin
    select t.* into v_chunk from forebay.backfill_take_v1(backfill_id) t;
    if v_chunk.no is null then
        return;
    end if;
    v_found := forebay.backfill_run_v1(
        v_chunk.kind,
        pg_catalog.format(
            E'select * from (%1$s\n) chunk where chunk.%2$I <= %3$L%4$s order by chunk.%2$I',
            v_chunk.query, v_chunk.key, v_chunk.upto,
            case when v_chunk.behind is not null then pg_catalog.format(' and chunk.%I > %L', v_chunk.key, v_chunk.behind) end),
        v_chunk.options, v_chunk.key, v_chunk.is_fixed);
    v_done := forebay.backfill_done_v1(backfill_id, v_chunk.no, v_found.jobs, v_found.digest);
    enqueued := v_found.jobs;
    jobs_done := v_done.jobs_done;
    jobs_all := v_done.jobs_all;
    return next;
end
$$;


-- functions/backfill/options.sql

-- The options of a backfill with their defaults, checked. The default queue is that of the kind.
--
-- Errors: JQ001.
create function forebay._backfill_options(p_kind text, p_options jsonb) returns jsonb
language plpgsql stable
as $$
declare
    v_keys constant text[] := array['args', 'queue', 'priority', 'delay', 'run_at', 'expires_at', 'expires_in', 'max_attempts',
                                    'tag', 'correlation_id', 'headers', 'ordering_key', 'limit_key'];
    v_given jsonb;
begin
    if p_options is null or jsonb_typeof(p_options) <> 'object' then
        raise exception using errcode = 'JQ001', column = 'options',
            message = format('options must be a JSON object, not %s', coalesce(jsonb_typeof(p_options), 'null'));
    elsif p_options - v_keys <> '{}' then
        raise exception using errcode = 'JQ001', column = 'options',
            message = format('unknown option %s', (select quote_literal(left(k, 40)) from jsonb_object_keys(p_options - v_keys) k limit 1)),
            hint = format('The options for all jobs are %s. Options that differ from job to job, such as unique_as, are columns of the query.',
                          array_to_string(v_keys, ', '));
    end if;
    v_given := coalesce((select jsonb_object_agg(o.key, o.value) from jsonb_each(p_options) o where o.value <> 'null'), '{}');
    if jsonb_typeof(coalesce(v_given -> 'args', '{}')) <> 'object' then
        raise exception using errcode = 'JQ001', column = 'options',
            message = format('option args must be a JSON object, not %s', jsonb_typeof(v_given -> 'args'));
    end if;
    return jsonb_build_object('queue', coalesce(v_given ->> 'queue', forebay.queue_of(p_kind), 'default'), 'priority', 1000, 'tag', 'backfill')
        || v_given;
end
$$;


-- functions/backfill/plan.sql

-- grant: producer, worker

-- Report what forebay.backfill would enqueue, and enqueue nothing.
--
-- Returns the token of exactly these jobs, their number and the bytes of their arguments as JSON; the estimated seconds to
-- enqueue them, from the time of this call and of up to 2,000 of them enqueued and rolled back (null where that is not
-- possible); how many jobs wait in the queue already, in all and of the same priority; and the queue.
--
-- Parameters and errors: as forebay.backfill.
create function forebay.backfill_plan(kind text, query text, options jsonb default '{}')
returns table (token text, jobs bigint, bytes bigint, seconds double precision, waiting bigint, waiting_alike bigint, queue text)
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    v_begun   pg_catalog.timestamptz := pg_catalog.clock_timestamp();
    v_count   pg_catalog.record;
    v_reading pg_catalog.float8;
    v_some    pg_catalog.int8;
begin
    v_count := forebay.backfill_count_v1(query);
    v_reading := pg_catalog.date_part('epoch'::pg_catalog.text, pg_catalog.clock_timestamp() operator(pg_catalog.-) v_begun);
    token := forebay.backfill_token_v1(kind, options, v_count.jobs, v_count.digest);
    jobs := v_count.jobs;
    bytes := v_count.bytes;
    begin
        v_begun := pg_catalog.clock_timestamp();
        v_some := (forebay.backfill_run_v1(kind, pg_catalog.concat(E'select * from (', query, E'\n) sample limit 2000'), options, null, false)).jobs;
        seconds := pg_catalog.date_part('epoch'::pg_catalog.text, pg_catalog.clock_timestamp() operator(pg_catalog.-) v_begun);
        raise exception using errcode = 'ZF000';
    exception
        when sqlstate 'ZF000' then  -- Raised to roll back.
            seconds := case when v_some operator(pg_catalog.=) 0::pg_catalog.int8 then 0.0::pg_catalog.float8
                            -- Operators written this way have no precedence.
                            else v_reading operator(pg_catalog.+)
                                 (seconds operator(pg_catalog.*) (jobs::pg_catalog.float8 operator(pg_catalog./) v_some::pg_catalog.float8)) end;
        when read_only_sql_transaction or configuration_limit_exceeded then
            seconds := null;
    end;
    select w.waiting, w.waiting_alike, w.queue into waiting, waiting_alike, queue from forebay.backfill_waiting_v1(kind, options) w;
    return next;
end
$$;


-- functions/backfill/record.sql

-- grant: producer, worker

-- Record a backfill in chunks; returns its number.
--
-- Parameters: upto, jobs and digests have an element for each chunk.
-- Errors: JQ001 bad options, JQ040 the jobs differ from those of the token.
create function forebay.backfill_record_v1(
    kind text, query text, key text, options jsonb, token text, upto text[], jobs bigint[], digests numeric[])
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id   bigint;
    v_jobs bigint := coalesce((select sum(j) from unnest(backfill_record_v1.jobs) j), 0);
begin
    perform forebay.backfill_token_v1(
        backfill_record_v1.kind, backfill_record_v1.options, v_jobs,
        coalesce((select sum(d) from unnest(backfill_record_v1.digests) d), 0), backfill_record_v1.token);
    delete from forebay.backfill b where b.made_at < forebay._now() - interval '30 days';
    insert into forebay.backfill (backfill_id, made_at, made_by, made_as, kind, query, options, key, is_fixed, jobs)
    values (forebay._random_name(), forebay._now(), session_user, forebay._role_in_use(), backfill_record_v1.kind,
            backfill_record_v1.query, forebay._backfill_options(backfill_record_v1.kind, backfill_record_v1.options), backfill_record_v1.key,
            backfill_record_v1.token is not null, v_jobs)
    returning backfill_id into v_id;
    insert into forebay.backfill_chunk (backfill_id, no, upto, jobs, digest)
    select v_id, u.nr, u.upto, u.jobs, u.digest
    from rows from (unnest(backfill_record_v1.upto), unnest(backfill_record_v1.jobs), unnest(backfill_record_v1.digests))
         with ordinality u (upto, jobs, digest, nr);
    perform forebay._record_event(
        'backfill.begin', forebay._backfill_options(backfill_record_v1.kind, backfill_record_v1.options) ->> 'queue', p_kind => backfill_record_v1.kind, p_subject_id => v_id,
        p_count => v_jobs, p_new => jsonb_build_object('query', left(backfill_record_v1.query, 2000), 'options', backfill_record_v1.options));
    return v_id;
end
$$;


-- functions/backfill/run.sql

-- grant: producer, worker

-- Enqueue a job for each row of a query, some thousand at a time; returns their number, and their digest on request.
--
-- Runs with the rights and the search_path of the caller. Each batch is an array, so that memory is bounded.
create function forebay.backfill_run_v1(
    kind text, query text, options jsonb, key text, is_digested boolean, out jobs bigint, out digest numeric)
language plpgsql volatile
set datestyle = 'ISO'
set intervalstyle = 'postgres'
set extra_float_digits = 1
set bytea_output = 'hex'
as $$
#variable_conflict use_variable
declare
    v_row   pg_catalog.jsonb;
    v_rows  pg_catalog.jsonb[] := '{}';
    v_bytes pg_catalog.int8 := 0;
    v_part  pg_catalog.record;
begin
    jobs := 0;
    digest := 0;
    for v_row in execute pg_catalog.format(E'select pg_catalog.to_jsonb(q.*) from (%s\n) q', query) loop
        v_rows := pg_catalog.array_append(v_rows, v_row);
        v_bytes := v_bytes operator(pg_catalog.+) pg_catalog.pg_column_size(v_row)::pg_catalog.int8;
        if pg_catalog.cardinality(v_rows) operator(pg_catalog.>=) 20000 or v_bytes operator(pg_catalog.>=) 8000000::pg_catalog.int8 then
            v_part := forebay.backfill_write_v1(kind, options, key, v_rows, is_digested);
            jobs := jobs operator(pg_catalog.+) v_part.jobs::pg_catalog.int8;
            digest := digest operator(pg_catalog.+) v_part.digest::pg_catalog.numeric;
            v_rows := '{}';
            v_bytes := 0;
        end if;
    end loop;
    v_part := forebay.backfill_write_v1(kind, options, key, v_rows, is_digested);
    jobs := jobs operator(pg_catalog.+) v_part.jobs::pg_catalog.int8;
    digest := digest operator(pg_catalog.+) v_part.digest::pg_catalog.numeric;
end
$$;


-- functions/backfill/take.sql

-- grant: producer, worker

-- Take the next chunk of a backfill: the parts of its query, and what was counted; no row when all chunks are done.
--
-- Errors: JQ041 no such backfill, or that of another login or role.
-- Locks: the backfill, so that one session at a time works on it.
create function forebay.backfill_take_v1(backfill_id bigint)
returns table (kind text, query text, options jsonb, key text, is_fixed boolean, no integer, behind text, upto text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_run forebay.backfill;
begin
    select b.* into v_run from forebay.backfill b where b.backfill_id = backfill_take_v1.backfill_id for update;
    if v_run.backfill_id is null then
        raise exception using errcode = 'JQ041',
            message = format('backfill %s not found', coalesce(backfill_take_v1.backfill_id::text, 'null')),
            detail = jsonb_build_object('backfill_id', backfill_take_v1.backfill_id),
            hint = 'The table forebay.backfill lists backfills in chunks for 30 days.';
    elsif (v_run.made_by, v_run.made_as) is distinct from (session_user, forebay._role_in_use()) then
        -- Its query would run with the rights of the role that continues it, and could return to those of the login.
        raise exception using errcode = 'JQ041',
            message = format('backfill %s was begun by %s%s', backfill_take_v1.backfill_id, v_run.made_by,
                             case when v_run.made_as <> v_run.made_by then format(' as %s', v_run.made_as) end),
            detail = jsonb_build_object('backfill_id', backfill_take_v1.backfill_id),
            hint = 'Only the login that began a backfill can continue it, in the same role.';
    end if;
    return query
    select v_run.kind, v_run.query, v_run.options, v_run.key, v_run.is_fixed, c.no,
           (select p.upto from forebay.backfill_chunk p where p.backfill_id = c.backfill_id and p.no = c.no - 1),
           c.upto
    from forebay.backfill_chunk c
    where c.backfill_id = backfill_take_v1.backfill_id and c.done_at is null
    order by c.no limit 1;
end
$$;


-- functions/backfill/token.sql

-- grant: producer, worker

-- The token of a set of jobs: their number, and a digest of kind, options and rows. Given a token, refuse any other set.
--
-- Errors: JQ001 bad options, JQ040 the jobs differ from those of the token.
create function forebay.backfill_token_v1(kind text, options jsonb, jobs bigint, digest numeric, token text default null)
returns text
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_found constant text := forebay._token(backfill_token_v1.jobs, jsonb_build_array(
        backfill_token_v1.kind, forebay._backfill_options(backfill_token_v1.kind, backfill_token_v1.options), backfill_token_v1.digest));
begin
    if v_found <> backfill_token_v1.token then
        raise exception using errcode = 'JQ040',
            message = format('the jobs no longer match token %s: their token is now %s', quote_literal(left(backfill_token_v1.token, 60)), v_found),
            detail = jsonb_build_object('token', backfill_token_v1.token),
            hint = 'Nothing was enqueued. Do a new dry run; kind and options are part of the token, too.';
    end if;
    return v_found;
end
$$;


-- functions/backfill/waiting.sql

-- grant: producer, worker

-- The queue of a backfill, and how many jobs wait there, ready or scheduled, for the group that is furthest behind: in all, and
-- of one priority. It visits each of these jobs. Errors: JQ001 bad options.
create function forebay.backfill_waiting_v1(kind text, options jsonb, out waiting bigint, out waiting_alike bigint, out queue text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(max(g.waiting), 0)::bigint, coalesce(max(g.alike), 0)::bigint, max(o.options ->> 'queue')
    from (select forebay._backfill_options(backfill_waiting_v1.kind, backfill_waiting_v1.options) as options) o
    left join lateral (
        select sum(d.scheduled + d.ready + d.retrying) as waiting,
               sum(d.scheduled + d.ready + d.retrying) filter (where d.priority::text = o.options ->> 'priority') as alike
        from forebay.depth(o.options ->> 'queue') d
        group by d.group_name) g on true
$$;


-- functions/backfill/write.sql

-- grant: producer, worker

-- Enqueue a job for each of some rows; returns their number and, on request, a digest of the rows that ignores their order.
--
-- A row holds the arguments of its job. If it has a field args, that field has the arguments, and the other fields are options.
--
-- Parameters: key, a field that is neither argument nor option; null: none.
-- Errors: as forebay.enqueue_many.
create function forebay.backfill_write_v1(
    kind text, options jsonb, key text, rows jsonb[], is_digested boolean, out jobs bigint, out digest numeric)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_names  constant text[] := array['queue', 'priority', 'delay', 'run_at', 'expires_at', 'max_attempts', 'tag',
                                      'correlation_id', 'headers', 'unique_as', 'ordering_key', 'limit_key'];
    v_kind   constant text := backfill_write_v1.kind;
    v_key    constant text := backfill_write_v1.key;
    v_options constant jsonb := forebay._backfill_options(backfill_write_v1.kind, backfill_write_v1.options);
    v_rows   jsonb[] := backfill_write_v1.rows;
    v_common constant jsonb := v_options -> 'args';
    v_priority integer;
    v_delay  interval;
    v_run_at timestamptz;
    v_expires_at timestamptz;
    v_max_attempts integer;
begin
    jobs := cardinality(v_rows);
    if is_digested then
        -- Of the text: a hash of jsonb ignores the sign of a number.
        select coalesce(sum(hashtextextended(r::text collate "C", 0)), 0) into digest from unnest(v_rows) r;
    end if;
    if jobs = 0 then
        return;
    end if;
    begin
        -- This loop writes nothing: a subtransaction for each batch would soon exceed what a snapshot can list.
        v_priority := (v_options ->> 'priority')::integer;
        v_delay := make_interval(secs => (v_options ->> 'delay')::double precision);
        v_run_at := (v_options ->> 'run_at')::timestamptz;
        v_max_attempts := (v_options ->> 'max_attempts')::integer;
        v_expires_at := coalesce(
            (v_options ->> 'expires_at')::timestamptz,
            coalesce(v_run_at, forebay._now() + coalesce(v_delay, interval '0'))
            + make_interval(secs => (v_options ->> 'expires_in')::double precision));
    exception when data_exception then
        raise exception using errcode = 'JQ001', column = 'options',
            message = format('an option has the wrong type: %s', sqlerrm), hint = 'Nothing was enqueued.';
    end;
    if not v_rows[1] ? 'args' then
        if v_common is not null then
            v_rows := array(select v_common || r.row from unnest(v_rows) r (row));
        end if;
        perform forebay.enqueue_many(
            v_kind, v_rows, queue => v_options ->> 'queue', priority => v_priority, delay => v_delay, run_at => v_run_at,
            expires_at => v_expires_at, max_attempts => v_max_attempts, tag => v_options ->> 'tag',
            correlation_id => v_options ->> 'correlation_id', headers => v_options -> 'headers',
            ordering_key => v_options ->> 'ordering_key', limit_key => v_options ->> 'limit_key');
        return;
    end if;
    perform forebay.enqueue_many((
        select jsonb_agg(
            jsonb_strip_nulls(v_options - '{args,expires_in}'::text[] || jsonb_build_object('expires_at', v_expires_at))
            || coalesce((select jsonb_object_agg(f.key, f.value) from jsonb_each(r.row - 'args') f
                         where f.value <> 'null' and (f.key <> v_key or f.key = any (v_names)) is not false), '{}')
            || jsonb_build_object(
                'kind', v_kind,
                'args', case when jsonb_typeof(r.row -> 'args') = 'object' then coalesce(v_common, '{}') || (r.row -> 'args')
                             else r.row -> 'args' end)
            order by r.nr)
        from unnest(v_rows) with ordinality r (row, nr)));
end
$$;


-- functions/change/change_jobs.sql

-- grant: operator

-- Cancel, retry, reschedule or reprioritise the unfinished jobs that match a filter, at most `most` of them; returns the number of
-- jobs by answer. See docs/design/change.md.
--
-- Invariants: "a change takes only what it changes": a call that is repeated takes the jobs that are left, so a crash between calls leaves
-- some jobs changed and the next call finishes. "one live row": of the rows of a job that wait for a group only the newest is ever
-- handed out, so that a job which a claim takes at the same moment is either moved or claimed.
--
-- Parameters:
--   act      cancel; purge, the same for a whole queue; truncate, the same for the jobs that wait there at the first call; retry, a scheduled or retrying job is ready now; reschedule; reprioritise
--   filter   a JSON object: queue, kind, tag, state, ordering_key, limit_key, unique_key, correlation_id, enqueued_after,
--            enqueued_before, ids, or all: true
--   options  for reschedule run_at, for reprioritise priority
--   token    of forebay.plan_change(): refuse if more jobs match now
--   most     the maximum number of jobs; call again while as many were taken; null: all, for cancel, purge and truncate only
--   event_id of the call before, so that the event log has one row for all; a truncation goes by what that call saw waiting, and its
--            first step takes all scheduled and retrying jobs, whatever most is
-- Returns: answer, and its number of jobs. With ids a row for each of them, with job_id. Answers are cancelled, requested (a worker has
--   it, its handler is requested to stop), changed, unchanged (ready already, or has this time or priority), running, ordering key (it
--   would lose its place), expires before, already ended, unknown.
-- Errors: JQ001, JQ042 more jobs than those of the token; but for cancel, purge and truncate: JQ012 not called alone, JQ030 foreign cluster.
-- Locks: but for cancel, purge and truncate: the promotion lock, or those of the sweep and of the lanes that jobs leave.
-- pages: 500 + 60 a lane + 3 a waiting job + 40 a job + 20 an open lease
create function forebay.change_jobs(
    act text, filter jsonb, options jsonb default '{}', token text default null, most integer default null, event_id bigint default null)
returns table (job_id bigint, answer text, jobs bigint, event bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
set jit = off
as $$
#variable_conflict use_column
declare
    v_filter  constant jsonb := forebay._checked_filter(change_jobs.filter);
    v_given   constant jsonb := forebay._checked_change(change_jobs.act, v_filter, change_jobs.options);
    v_options jsonb := v_given;
    v_act     constant text := case change_jobs.act when 'purge' then 'cancel' else change_jobs.act end;
    v_cancels constant boolean := v_act in ('cancel', 'truncate');
    v_most    constant bigint := coalesce(change_jobs.most, 9223372036854775807);
    v_ids     constant bigint[] := translate(v_filter ->> 'ids', '[]', '{}');
    v_found   forebay._match[];
    v_taken   bigint[] := '{}';
    v_asked   bigint[] := '{}';
    v_held    bigint[] := '{}';  -- jobs that a worker has for one group
    v_count   bigint;
begin
    if (v_most between 1 and 100000) is not true and (not v_cancels or change_jobs.most is not null) then
        raise exception using errcode = 'JQ001', column = 'most', message = format('most %s is outside 1 to 100000', coalesce(change_jobs.most::text, 'null'));
    elsif cardinality(v_ids) > 10000 then
        raise exception using errcode = 'JQ001', column = 'filter', message = format('%s ids are more than 10000', cardinality(v_ids));
    end if;
    if not v_cancels then
        perform forebay._require_alone('forebay.change_jobs()');
        perform forebay._require_same_cluster();
    end if;
    if v_act = 'truncate' then
        v_options := jsonb_build_object('snapshot', coalesce(
            (select e.new ->> 'snapshot' from forebay.event e
             where forebay._is_own_event(e, change_jobs.event_id, change_jobs.act) and e.queue = v_filter ->> 'queue'),
            pg_current_snapshot()::text));
    end if;
    if change_jobs.token is not null then
        select count(distinct m.job_id) into v_count
        from forebay._matching(v_act, v_filter, v_options, true, null) m;
        if change_jobs.token !~ '^\d{1,18}-' or forebay._change_token(change_jobs.act, v_filter, v_given, split_part(change_jobs.token, '-', 1)::bigint) <> change_jobs.token
           or v_count > greatest(split_part(change_jobs.token, '-', 1)::bigint * 1.01, split_part(change_jobs.token, '-', 1)::bigint + 10) then
            raise exception using errcode = 'JQ042',
                message = format('token %s is not that of this change, which would take %s jobs now', quote_literal(left(change_jobs.token, 60)), v_count),
                detail = jsonb_build_object('token', left(change_jobs.token, 60), 'jobs', v_count),
                hint = 'Nothing was changed. Do a new dry run: act, filter and options are part of the token.';
        end if;
    end if;

    select array_agg(row(m.*)::forebay._match) into v_found
    from (select f.* from forebay._matching(v_act, v_filter, v_options, v_ids is null, case when v_ids is null then change_jobs.most end) f
          limit case when v_ids is null and v_act <> 'truncate' then v_most end) m;
    if v_cancels then
        select array_agg(distinct f.job_id) filter (where f.answer = 'changed'), array_agg(distinct f.job_id) filter (where f.answer = 'requested')
        into v_taken, v_asked from unnest(v_found) f;
        -- A job that waits for one group and runs for another: a truncation cancels it for the first only.
        if v_act = 'truncate' and (select count(*) > 1 from forebay.queue_group g where g.queue = v_filter ->> 'queue') then
            v_held := array(select m.job_id from unnest(array['claimed', 'running']) s
                            cross join lateral forebay._matching('cancel', v_filter || jsonb_build_object('state', s), '{}', true, null) m);
            perform forebay._cancel_waiting(v_found, v_held);
        end if;
        insert into forebay.tombstone (job_id, reason, recorded_at)
        select distinct f.job_id, 'c'::"char", forebay._now() from unnest(v_found) f where f.job_id <> all (v_held) order by 1;
        perform forebay._withdraw(array(select distinct f.job_id from unnest(v_found) f where f.place = 'd' and f.job_id <> all (v_held)));
    elsif exists (select from unnest(v_found) f where f.answer = 'changed') then
        v_taken := forebay._move_deferred(v_act, v_options, array(select f.seq from unnest(v_found) f where f.place = 'd' and f.answer = 'changed'))
            || forebay._move_ready(v_act, v_options, array(select f from unnest(v_found) f where f.place = 'l' and f.answer = 'changed'));
    end if;
    v_asked := coalesce(v_asked, '{}');
    v_taken := coalesce(array(select distinct u from unnest(v_taken) u where u <> all (v_asked)), '{}');
    v_count := cardinality(v_taken) + cardinality(v_asked);
    if v_count > 0 then
        event := forebay._record_change(change_jobs.event_id, change_jobs.act, v_filter, v_options, v_count);
    else
        event := change_jobs.event_id;
    end if;

    if v_ids is null then
        for answer, jobs in
            select * from (values (case when v_cancels then 'cancelled' else 'changed' end, cardinality(v_taken)), ('requested', cardinality(v_asked))) n
            where n.column2 > 0
        loop
            return next;
        end loop;
        return;
    end if;
    jobs := 1;
    for job_id in select distinct u from unnest(v_ids) u order by 1 loop
        answer := case when job_id = any (v_asked) then 'requested'
                       when job_id = any (v_taken) then case v_act when 'cancel' then 'cancelled' else 'changed' end
                       else (select min(f.answer) from unnest(v_found) f where f.job_id = change_jobs.job_id and f.answer <> 'changed') end;
        answer := coalesce(answer, (
            select case when bool_and(j.state = 'cancelled') and v_act = 'cancel' then 'cancelled'
                        when bool_and(j.state in ('done', 'cancelled', 'expired', 'dead')) then 'already ended'
                        when bool_or(j.state in ('claimed', 'running')) then case v_act when 'cancel' then 'requested' else 'running' end
                        when v_act = 'cancel' and count(*) > 0 then 'cancelled'
                        when bool_and(j.cancel_requested) then 'already ended'
                        when count(*) > 0 then 'unchanged' end
            from forebay.job(change_jobs.job_id) j), 'unknown');
        return next;
    end loop;
end
$$;


-- Cancel jobs that a worker has for one group, for the groups that they wait for.
create function forebay._cancel_waiting(p_found forebay._match[], p_held bigint[]) returns void
language plpgsql volatile
as $$
declare
    v_group record;
begin
    for v_group in
        select f.group_id, array_agg(distinct f.job_id) as jobs
        from unnest(p_found) f where f.job_id = any (p_held) and f.group_id is not null group by f.group_id
    loop
        insert into forebay.tombstone (job_id, group_id, reason, recorded_at)
        select u, v_group.group_id, 'c', forebay._now() from unnest(v_group.jobs) u order by 1;
        perform forebay._withdraw(v_group.jobs, v_group.group_id);
    end loop;
end
$$;


-- Is this the event of an earlier step of a change, of the same role and act, and not older than a day?
create function forebay._is_own_event(e forebay.event, p_event_id bigint, p_act text) returns boolean
language sql volatile
as $$
    select e.event_id = p_event_id and e.role = session_user and e.act in ('jobs.' || p_act, 'queues.' || p_act)
           and e.at > forebay._now() - interval '1 day'
$$;


-- Record a change, or add to the event of an earlier step of it.
create function forebay._record_change(p_event_id bigint, p_act text, p_filter jsonb, p_options jsonb, p_count bigint) returns bigint
language plpgsql volatile
as $$
begin
    update forebay.event e set count = e.count + p_count where forebay._is_own_event(e, p_event_id, p_act);
    if found then
        return p_event_id;
    end if;
    return forebay._record_event(
        case when p_act in ('purge', 'truncate') then 'queues.' else 'jobs.' end || p_act, p_filter ->> 'queue', p_kind => p_filter ->> 'kind', p_count => p_count,
        p_new => p_options || (case when jsonb_array_length(p_filter -> 'ids') > 20 then p_filter - 'ids' || jsonb_build_object('ids', p_filter -> 'ids' -> 0) else p_filter end
                               - '{queue,kind}'::text[]));
end
$$;


-- functions/change/filter.sql

-- A filter of jobs, checked: names without values are left out.
--
-- Errors: JQ001 an unknown name, a value of the wrong type, or nothing that restricts it.
create function forebay._checked_filter(p_filter jsonb) returns jsonb
language plpgsql stable
as $$
declare
    v_texts  constant text[] := array['queue', 'kind', 'tag', 'state', 'ordering_key', 'limit_key', 'unique_key', 'correlation_id'];
    v_states constant text[] := array['scheduled', 'ready', 'claimed', 'running', 'retrying'];
    v_given  jsonb;
    v_name   text;
begin
    if p_filter is null or jsonb_typeof(p_filter) <> 'object' then
        raise exception using errcode = 'JQ001', column = 'filter',
            message = format('filter must be a JSON object, not %s', coalesce(jsonb_typeof(p_filter), 'null'));
    end if;
    v_given := jsonb_strip_nulls(p_filter);
    for v_name in select jsonb_object_keys(v_given) loop
        if v_name = any (v_texts) and jsonb_typeof(v_given -> v_name) = 'string'
           or v_name = 'all' and v_given -> v_name in ('true', 'false')
           or v_name = 'ids' and jsonb_typeof(v_given -> v_name) = 'array'
              and not jsonb_path_exists(v_given -> v_name, '$[*] ? (@.type() != "number" || @ < 0 || @ > 9223372036854775807)')
           or v_name in ('enqueued_after', 'enqueued_before') and forebay._as_instant(v_given ->> v_name) is not null then
            continue;
        end if;
        raise exception using errcode = 'JQ001', column = 'filter',
            message = format('filter has %s: %s', quote_literal(left(v_name, 40)), left((v_given -> v_name)::text, 60)),
            hint = format('It has texts %s, times enqueued_after and enqueued_before, an array ids, or all: true.', array_to_string(v_texts, ', '));
    end loop;
    if v_given ->> 'state' <> all (v_states) then
        raise exception using errcode = 'JQ001', column = 'filter', message = format('state %s is not a state of an unfinished job', quote_literal(left(v_given ->> 'state', 40))),
            hint = format('States are %s.', array_to_string(v_states, ', '));
    elsif v_given - 'all' = '{}' and v_given -> 'all' is distinct from 'true' then
        raise exception using errcode = 'JQ001', column = 'filter', message = 'the filter is empty and would take every job',
            hint = 'Nothing was changed. Name a queue, kind or tag, or say all: true.';
    end if;
    return v_given - 'all';
end
$$;


-- A text as an instant; null if it is none.
create function forebay._as_instant(p_text text) returns timestamptz
language plpgsql stable
as $$
begin
    return p_text::timestamptz;
exception when data_exception then
    return null;
end
$$;


-- The conditions of a filter on columns job_id, kind, tag and others of j, as SQL. Queue and state are not among them.
create function forebay._filter_sql(p_filter jsonb) returns text
language sql stable
as $$
    select coalesce(string_agg(format(
        case f.key when 'ids' then 'j.job_id = any (%L::bigint[])'
                   when 'enqueued_after' then 'j.enqueued_at >= %L::timestamptz'
                   when 'enqueued_before' then 'j.enqueued_at < %L::timestamptz'
                   else 'j.' || f.key || ' = %L' end,
        case f.key when 'ids' then translate(f.value, '[]', '{}') else f.value end), ' and '), 'true')
    from jsonb_each_text(p_filter) f
    where f.key not in ('queue', 'state')
$$;


-- functions/change/matching.sql

-- The unfinished jobs that match a filter, and what an act would mean for each: one row for each group, and for each row of the log.
--
-- place: l waiting in the log, or parked for its limit key, p parked for its ordering key, d in deferred, h in the hands of a worker.
-- seq is the number in the log,
-- or that in deferred. group_id is null in deferred, and where the queue has no group. answer:
--
--   changed         the act takes the job: cancelled before it starts, or moved
--   requested       a worker has it, and its handler is requested to stop
--   running         a worker has it; only a cancellation concerns it, and no truncation
--   unchanged       it is ready already, has this time or this priority already
--   ordering key    it would lose its place among the jobs of its key
--   expires before  it would expire before it may start
--
-- Jobs that were cancelled, replaced or expired by the sweep are not among them, nor are rows that were moved. So an act that is
-- repeated finds what is left. Reads every waiting job of the queues.
--
-- Parameters: p_most, with p_taken, the maximum number of rows of each place; p_taken, only jobs that the act takes. A truncation has the option
--   snapshot: only rows that it shows; and takes all deferred jobs, before a promotion gives them rows that the snapshot does not show.
create function forebay._matching(p_act text, p_filter jsonb, p_options jsonb, p_taken boolean, p_most bigint)
returns table (job_id bigint, group_id bigint, place "char", lane bigint, xid xid8, seq bigint, state text, enqueued_at timestamptz, answer text)
language plpgsql stable
set jit = off
as $$
#variable_conflict use_column
declare
    v_cancels   constant boolean := p_act in ('cancel', 'truncate');
    v_run_at    constant timestamptz := p_options ->> 'run_at';
    v_state     constant text := p_filter ->> 'state';
    v_limit     constant text := coalesce(' limit ' || p_most, '');
    v_waiting   text;     -- what the act means for a waiting job
    v_untouched text := 'true';
    v_deferred  text;
    v_wanted    text;
    v_position  forebay.promotion;
    v_cursors   forebay._cursor[];
    v_groups    bigint[];
    v_priorities integer[];
begin
    v_waiting := case
        when v_cancels then '''changed'''
        when p_act = 'retry' then '''unchanged'''
        when p_act = 'reschedule' then format(
            'case when j.is_keyed then ''ordering key'' when j.expires_at <= %1$L then ''expires before'' when %1$L <= forebay._now() then ''unchanged'' else ''changed'' end',
            v_run_at)
        else format('case when j.is_keyed then ''ordering key'' when j.priority = %L then ''unchanged'' else ''changed'' end', (p_options ->> 'priority')::integer) end;
    v_deferred := case
        when v_cancels or p_act = 'retry' then '''changed'''
        when p_act = 'reschedule' then format(
            'case when j.expires_at <= %1$L then ''expires before'' when j.run_at = %1$L then ''unchanged'' else ''changed'' end', v_run_at)
        else v_waiting end;
    if pg_sequence_last_value('forebay.tombstone_seq') is not null then
        v_untouched :=
            'not exists (select from forebay.tombstone t
                         where t.job_id = j.job_id and (t.group_id is null or t.group_id = j.group_id)
                           and (t.reason in (''c'', ''r'', ''e'') or t.reason = ''m'' and j.seq <= t.up_to))';
    end if;
    v_wanted := format('where %s and %s', forebay._filter_sql(p_filter), v_untouched);
    if p_act = 'truncate' and p_options ? 'snapshot' then
        v_wanted := v_wanted || format(
            ' and (pg_visible_in_snapshot(j.xid, %L) or j.xid = pg_current_xact_id_if_assigned())', p_options ->> 'snapshot');
    end if;

    select array_agg(r.cursor order by r.nr), array_agg(r.group_id order by r.nr), array_agg(r.priority order by r.nr)
    into v_cursors, v_groups, v_priorities
    from (
        select i.nr, g.group_id, i.priority,
               row(i.nr, i.lane, case i.audience when 0 then coalesce(g.start_after, '1:1:') else '1:1:' end, b.snap_from, b.snap_to,
                   s.lo, s.hi, b.pos_xid, b.pos_seq)::forebay._cursor as cursor
        from (select row_number() over (order by l.priority, l.lane, g.group_id) as nr, l.lane, l.priority, l.audience, g.group_id
              from (select distinct i.lane, i.queue, i.priority, i.audience from forebay.lane i
                    where p_filter ->> 'queue' is null or i.queue = p_filter ->> 'queue') l
              left join forebay.queue_group g on g.queue = l.queue
              where l.audience = 0 or g.group_id = abs(l.audience)) i
        left join forebay.queue_group g on g.group_id = i.group_id
        left join lateral (select b.* from forebay.batch b where b.group_id = i.group_id and b.lane = i.lane order by b.no desc limit 1) b on true
        left join forebay.segment s on s.segment_id = b.pos_segment
        where g.closing_at is null) r;

    if v_cursors is not null and coalesce(v_state, 'ready') = 'ready' and not (p_taken and p_act = 'retry') then
        return query execute format(
            'select j.job_id, j.group_id, ''l''::"char", j.lane, j.xid, j.seq, ''ready'', j.enqueued_at, j.answer
             from (select j.*, %s as answer
                   from (select coalesce(u.job_id, u.seq) as job_id, ($2)[u.nr] as group_id, ($3)[u.nr] as priority, u.lane, u.xid, u.seq, u.kind, u.tag,
                                u.correlation_id, u.ordering_key, u.unique_key, u.limit_key, u.enqueued_at, u.ordering_key is not null as is_keyed,
                                coalesce(u.expires_at, u.enqueued_at + interval ''30 days'') as expires_at
                         from (%s) u) j
                   %s) j
             where not $4 or j.answer = ''changed''%s',
            v_waiting,
            forebay._unread_sql(v_cursors, 'l.lane, l.xid, l.seq, l.job_id, l.kind, l.tag, l.correlation_id, l.ordering_key, l.unique_key, l.limit_key, l.enqueued_at, l.expires_at'),
            v_wanted, v_limit) using v_cursors, v_groups, v_priorities, p_taken;
    end if;
    if coalesce(v_state, 'ready') = 'ready' and not (p_taken and p_act = 'retry') then
        return query execute format(
            'select j.job_id, j.group_id, case when j.is_keyed then ''p'' else ''l'' end::"char", j.lane, j.xid, j.seq, ''ready'', j.enqueued_at, j.answer
             from (select j.*, %s as answer
                   from (select coalesce((r.job).job_id, (r.job).seq) as job_id, r.group_id, (r.job).lane, (r.job).xid, (r.job).seq, (r.job).kind, (r.job).tag,
                                (r.job).correlation_id, (r.job).ordering_key, (r.job).unique_key, (r.job).limit_key, (r.job).enqueued_at,
                                (r.job).ordering_key is not null as is_keyed,
                                coalesce((r.job).expires_at, (r.job).enqueued_at + interval ''30 days'') as expires_at,
                                (select l.priority from forebay.lane l where l.lane = (r.job).lane limit 1) as priority
                         from forebay._parked_jobs($1) r) j
                   %s) j
             where not $2 or j.answer = ''changed''%s', v_waiting, v_wanted, v_limit)
            using p_filter ->> 'queue', p_taken;
    end if;
    if coalesce(v_state, 'scheduled') in ('scheduled', 'retrying') then
        select p.* into v_position from forebay.promotion p order by p.no desc limit 1;
        return query execute format(
            'select j.job_id, null::bigint, ''d''::"char", j.lane, j.xid, j.seq, j.state, j.enqueued_at, j.answer
             from (select j.*, %s as answer
                   from (select d.job_id, nullif(abs(l.audience), 0) as group_id, l.priority, d.lane, d.xid, d.deferred_id as seq, d.kind, d.tag, d.correlation_id,
                                d.ordering_key, d.unique_key, d.limit_key, d.enqueued_at, d.ordering_key is not null as is_keyed, d.run_at,
                                coalesce(d.expires_at, d.enqueued_at + interval ''30 days'') as expires_at,
                                forebay._state_of_deferred(d.attempt, d.pauses) as state
                         from (select distinct i.lane, i.queue, i.priority, i.audience from forebay.lane i) l
                         join forebay.deferred d on d.lane = l.lane and d.kind <> ''''
                         where ($1 is null or l.queue = $1)
                           and not ($2 is not null and pg_visible_in_snapshot(d.xid, $2) and (d.run_at, d.deferred_id) <= ($3, $4))) j
                   %s) j
             where ($5 is null or j.state = $5) and (not $6 or j.answer = ''changed'')%s',
            v_deferred, replace(v_wanted, 'j.seq <= t.up_to', 'false'), case when p_act <> 'truncate' then v_limit end)
            using p_filter ->> 'queue', v_position.snap, v_position.run_at, v_position.deferred_id, v_state, p_taken;
    end if;
    if coalesce(v_state, 'claimed') in ('claimed', 'running') and not (p_taken and p_act <> 'cancel') then
        return query execute format(
            'select j.job_id, j.group_id, ''h''::"char", j.lane, j.xid, j.seq, j.state, j.enqueued_at, $3
             from (select coalesce(r.job_id, r.seq) as job_id, b.group_id, r.lane, r.xid, r.seq, r.kind, r.tag, r.correlation_id, r.ordering_key, r.unique_key, r.limit_key,
                          r.enqueued_at,
                          case when coalesce(r.job_id, r.seq) = any (h.running_jobs) and h.heartbeat_at >= b.claimed_at then ''running'' else ''claimed'' end as state
                   from forebay.lease e
                   join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f on true
                   left join lateral (select i.heartbeat_at, i.running_jobs from forebay.heartbeat i
                                      where i.lease_id = e.lease_id order by i.heartbeat_at desc limit 1) h on true
                   join forebay.batch b on b.lease_id = e.lease_id and b.claim_no >= f.floor
                   join lateral unnest(b.seqs) with ordinality u (seq, nr) on not exists (
                       select from forebay.settlement s
                       where s.lease_id = b.lease_id and s.claim_no = b.claim_no and (s.offsets is null or u.nr::smallint = any (s.offsets)))
                   join lateral (select i.* from forebay._row(coalesce(b.lanes[u.nr], b.lane), coalesce(b.xids[u.nr], b.xids[1]), u.seq) i
                                 where exists (select from forebay.lane l where l.lane = i.lane and ($1 is null or l.queue = $1))) r on true
                   where e.closed_at is null) j
             %s and ($2 is null or j.state = $2)%s', replace(v_wanted, 'j.seq <= t.up_to', 'false'), v_limit)
            using p_filter ->> 'queue', v_state, case p_act when 'cancel' then 'requested' else 'running' end;
    end if;
end
$$;


-- functions/change/move.sql

-- Move deferred jobs: into the log, to another time, or to another priority. Returns the ids of those that it moved.
--
-- A promotion and a move never both decide: both happen under the promotion lock, and a later statement reads what the last holder committed.
--
-- Invariant "one live row": the old row is deleted by the statement that writes the new one.
-- Locks: the promotion lock.
create function forebay._move_deferred(p_act text, p_options jsonb, p_ids bigint[]) returns bigint[]
language plpgsql volatile
set enable_seqscan = off
set jit = off
as $$
declare
    v_position forebay.promotion;
    v_run_at   constant timestamptz := p_options ->> 'run_at';
    v_is_due   constant boolean := p_act = 'retry' or coalesce(v_run_at <= forebay._now(), false);
    v_from     bigint[];
    v_to       bigint[];
    v_jobs     bigint[];
    v_lanes    bigint[];
    v_left     record;
    v_withdrawn record;
begin
    if cardinality(p_ids) = 0 then
        return '{}';
    end if;
    lock table only forebay.lock_promotion in share update exclusive mode;
    select * into v_position from forebay.promotion p order by p.no desc limit 1;
    if p_act = 'reprioritise' then
        select array_agg(l.lane), array_agg(forebay._lane_beside(l.lane, (p_options ->> 'priority')::integer)) into v_from, v_to
        from (select distinct d.lane from forebay.deferred d where d.deferred_id = any (p_ids)) l;
    end if;
    with gone as (
        delete from forebay.deferred d
        where d.deferred_id = any (p_ids)
          and not (v_position.no is not null and pg_visible_in_snapshot(d.xid, v_position.snap)
                   and (d.run_at, d.deferred_id) <= (v_position.run_at, v_position.deferred_id))
        returning d.*
    ), later as (
        insert into forebay.deferred (
            run_at, lane, enqueued_at, job_id, expires_at, attempt, max_attempts, pauses, kind, args, tag, correlation_id, headers,
            ordering_key, unique_key, limit_key)
        select coalesce(v_run_at, g.run_at), coalesce(v_to[array_position(v_from, g.lane)], g.lane), g.enqueued_at, g.job_id, g.expires_at, g.attempt,
               g.max_attempts, g.pauses, g.kind, g.args, g.tag, g.correlation_id, g.headers, g.ordering_key, g.unique_key, g.limit_key
        from gone g where not v_is_due order by g.run_at, g.deferred_id
    ), now as (
        insert into forebay.log (
            lane, enqueued_at, job_id, expires_at, attempt, max_attempts, pauses, kind, args, tag, correlation_id, headers,
            ordering_key, unique_key, limit_key)
        select g.lane, g.enqueued_at, g.job_id, g.expires_at, g.attempt, g.max_attempts, g.pauses, g.kind, g.args, g.tag, g.correlation_id,
               g.headers, g.ordering_key, g.unique_key, g.limit_key
        from gone g where v_is_due order by g.run_at, g.deferred_id
    )
    select array_agg(distinct g.job_id) as jobs, array_agg(distinct g.lane) filter (where v_is_due) as due_lanes,
           array_agg(g.lane) as lanes, array_agg(g.xid) as xids, array_agg(forebay._state_of_deferred(g.attempt, g.pauses)) as states,
           array_agg(g.run_at) as times, array_agg(g.deferred_id) as ids, array_agg(g.job_id) as row_jobs
    into v_left from gone g;
    v_jobs := v_left.jobs;
    v_lanes := v_left.due_lanes;
    perform forebay._record_left(v_left.lanes, v_left.xids, v_left.states);
    -- A job that was cancelled for one of several groups: the new row is withdrawn for it.
    for v_withdrawn in
        with old as (
            delete from forebay.withdrawn w
            using unnest(v_left.times, v_left.ids, v_left.row_jobs) u (run_at, deferred_id, job_id)
            where w.run_at = u.run_at and w.deferred_id = u.deferred_id
            returning u.job_id, w.group_id
        )
        select o.group_id, array_agg(distinct o.job_id) as jobs from old o group by o.group_id
    loop
        perform forebay._withdraw(v_withdrawn.jobs, v_withdrawn.group_id);
    end loop;
    if v_lanes <> '{}' then
        perform forebay._use_lanes(v_lanes);
        perform forebay._notify(q.queue)
        from (select distinct l.queue from unnest(v_lanes) u (lane) cross join lateral (select i.queue from forebay.lane i where i.lane = u.lane limit 1) l) q;
    end if;
    return coalesce(v_jobs, '{}');
end
$$;


-- The lane of another priority that is otherwise like this one, recorded in the registry.
create function forebay._lane_beside(p_lane bigint, p_priority integer) returns bigint
language plpgsql volatile
as $$
declare
    l forebay.lane;
begin
    select i.* into l from forebay.lane i where i.lane = p_lane limit 1;
    return case l.sort when 'keyed' then forebay._record_keyed_lane(l.queue, p_priority, l.audience)
                       when 'limited' then forebay._record_limited_lane(l.queue, p_priority, l.audience)
                       else forebay._add_lane(
                           case l.audience when 0 then forebay._shard_id(l.queue, p_priority, l.shard) else forebay._lane_id(l.queue, p_priority, l.audience) end,
                           l.queue, p_priority, l.audience, 'plain', l.shard) end;
end
$$;


-- Move ready jobs of groups to a later time or another priority. Returns the ids of those that it moved.
--
-- A claim and a move never both decide: both happen under the lock of the lane, and a later statement reads the cursor. The old row
-- stays, with a tombstone: claims skip it, and a group that is opened later reads it. The new row is private to the group, like that of a retry.
--
-- Locks: the sweep lock, for jobs with limit keys the limiters of their groups, then the lanes of the jobs.
create function forebay._move_ready(p_act text, p_options jsonb, p_found forebay._match[]) returns bigint[]
language plpgsql volatile
set enable_seqscan = off
set jit = off
as $$
declare
    v_jobs  bigint[] := '{}';
    v_row   record;
    v_log   forebay.log;
    v_lane  forebay.lane;
    v_group_id bigint;
    v_target   bigint;
begin
    if cardinality(p_found) = 0 then
        return '{}';
    end if;
    lock table only forebay.lock_sweep in share update exclusive mode;
    -- A queue that was never served has no group yet.
    perform forebay._imply_group(q.queue)
    from (select distinct l.queue from unnest(p_found) f cross join lateral (select i.queue from forebay.lane i where i.lane = f.lane limit 1) l
          where f.group_id is null) q;
    -- Before the lanes, as a claim does.
    for v_row in
        select distinct g.group_id, hashint8(g.group_id) & 63 as nr
        from unnest(p_found) f
        cross join lateral (select i.queue from forebay.lane i where i.lane = f.lane limit 1) l
        join forebay.queue_group g on g.queue = l.queue and (g.group_id = f.group_id or f.group_id is null)
        where f.lane & 1 = 1
        order by 2
    loop
        perform forebay._lock_limiter(v_row.group_id, false);
    end loop;
    -- In the order of the locks.
    for v_row in
        select distinct g.group_id, f.lane, hashint8(g.group_id # f.lane) & 127 as nr
        from unnest(p_found) f
        cross join lateral (select i.queue from forebay.lane i where i.lane = f.lane limit 1) l
        join forebay.queue_group g on g.queue = l.queue and (g.group_id = f.group_id or f.group_id is null)
        order by 3
    loop
        perform forebay._lock_lane(v_row.group_id, v_row.lane);
    end loop;
    for v_row in
        select f.job_id, f.lane, f.xid, f.seq, g.group_id
        from unnest(p_found) f
        cross join lateral (select i.queue from forebay.lane i where i.lane = f.lane limit 1) l
        join forebay.queue_group g on g.queue = l.queue and (g.group_id = f.group_id or f.group_id is null)
        left join lateral (
            select b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq
            from forebay.batch b left join forebay.segment s on s.segment_id = b.pos_segment
            where b.group_id = g.group_id and b.lane = f.lane order by b.no desc limit 1) c on true
        where g.closing_at is null
          and (c.snap_from is null
               or not forebay._is_consumed(f.xid, f.seq, c.snap_from, c.snap_to, c.lo, c.hi, c.pos_xid, c.pos_seq)
               -- A lane of jobs with limit keys.
               or f.lane & 1 = 1
                  and forebay._is_limit_parked(g.group_id, (forebay._row(f.lane, f.xid, f.seq)).limit_key, f.xid, f.seq))
          and not exists (select from forebay.tombstone t
                          where t.job_id = f.job_id and (t.reason = 'e' or t.reason = 'm' and f.seq <= t.up_to)
                            and (t.group_id is null or t.group_id = g.group_id))
        order by f.seq
    loop
        if (v_row.lane, v_row.group_id) is distinct from (v_lane.lane, v_group_id) then
            select i.* into v_lane from forebay.lane i where i.lane = v_row.lane limit 1;
            v_group_id := v_row.group_id;
            v_target := forebay._record_private_lane(
                v_lane.queue, coalesce((p_options ->> 'priority')::integer, v_lane.priority),
                case when v_lane.audience < 0 then v_lane.audience else v_group_id end, null,
                case when v_lane.sort = 'limited' then '' end);
        end if;
        v_log := forebay._row(v_row.lane, v_row.xid, v_row.seq);
        perform forebay._continue_job(v_log, v_target, coalesce(v_log.attempt, 0), coalesce(v_log.pauses, 0), (p_options ->> 'run_at')::timestamptz);
        insert into forebay.tombstone (job_id, group_id, reason, recorded_at, up_to)
        values (v_row.job_id, v_row.group_id, 'm', forebay._now(), v_row.seq);
        perform forebay._record_skipped(v_lane.queue, v_row.group_id, v_lane.priority, 1);
        v_jobs := v_jobs || v_row.job_id;
    end loop;
    if p_act = 'reprioritise' and v_jobs <> '{}' then
        perform forebay._notify(q.queue)
        from (select distinct l.queue from unnest(p_found) f cross join lateral (select i.queue from forebay.lane i where i.lane = f.lane limit 1) l) q;
    end if;
    return v_jobs;
end
$$;


-- functions/change/plan_change.sql

-- grant: operator

-- Report what forebay.change_jobs() would do, and do nothing. Returns a row for each answer and state: the number of jobs, the
-- oldest and the newest of them, and the token of the change.
--
-- With the token the act is refused if by then it would take over a hundredth more jobs, and more than ten: jobs that ended
-- since are no reason. A job that waits for several groups counts once, with its first answer.
--
-- Parameters and errors: as forebay.change_jobs().
-- pages: 400 + 60 a lane + 3 a waiting job + 20 an open lease
create function forebay.plan_change(act text, filter jsonb, options jsonb default '{}')
returns table (token text, answer text, state text, jobs bigint, oldest_at timestamptz, newest_at timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
    v_filter  constant jsonb := forebay._checked_filter(plan_change.filter);
    v_options constant jsonb := forebay._checked_change(plan_change.act, v_filter, plan_change.options);
    v_act     constant text := case plan_change.act when 'purge' then 'cancel' else plan_change.act end;
begin
    return query
    with found as materialized (
        select m.job_id, (array_agg(m.answer order by m.answer))[1] as answer, (array_agg(m.state order by m.answer))[1] as state,
               min(m.enqueued_at) as enqueued_at
        from forebay._matching(v_act, v_filter, v_options, false, null) m group by m.job_id),
    total as (
        select forebay._change_token(plan_change.act, v_filter, v_options, count(*)) as token from found f
        where f.answer in ('changed', 'requested'))
    select t.token, case when v_act in ('cancel', 'truncate') and f.answer = 'changed' then 'cancelled' else f.answer end, f.state, count(f.job_id),
           min(f.enqueued_at), max(f.enqueued_at)
    from total t left join found f on true
    group by 1, 2, 3 order by 2, 3;
end
$$;


-- The options of a change, checked.
--
-- Errors: JQ001.
create function forebay._checked_change(p_act text, p_filter jsonb, p_options jsonb) returns jsonb
language plpgsql stable
as $$
declare
    v_problem text;
begin
    v_problem := case
        when (p_act in ('cancel', 'purge', 'truncate', 'retry', 'reschedule', 'reprioritise')) is not true
            then format('unknown act %s: cancel, purge, truncate, retry, reschedule or reprioritise', coalesce(quote_literal(left(p_act, 40)), 'null'))
        when p_options is null or jsonb_typeof(p_options) <> 'object' then 'options must be a JSON object'
        when p_act = 'reschedule' and (p_options - 'run_at' <> '{}' or forebay._as_instant(p_options ->> 'run_at') is null)
            then 'a reschedule needs the option run_at, a time, and no other'
        when p_act = 'reprioritise' and (p_options - 'priority' <> '{}' or (jsonb_typeof(p_options -> 'priority') = 'number') is not true
             or (p_options ->> 'priority')::numeric not between -32768 and 32767 or (p_options ->> 'priority')::numeric % 1 <> 0)
            then 'a reprioritisation needs the option priority, -32768 to 32767, and no other'
        when p_act in ('cancel', 'purge', 'truncate', 'retry') and p_options <> '{}' then format('%s takes no options', p_act)
        when p_act in ('purge', 'truncate') and (not p_filter ? 'queue' or p_filter - 'queue' <> '{}')
            then format('a %s takes a queue and no other filter', p_act) end;
    if v_problem is not null then
        raise exception using errcode = 'JQ001', column = 'options', message = v_problem, hint = 'Nothing was changed.';
    end if;
    return p_options;
end
$$;


-- The token of a change that would take this many jobs.
create function forebay._change_token(p_act text, p_filter jsonb, p_options jsonb, p_jobs bigint) returns text
language sql immutable
as $$ select forebay._token(p_jobs, jsonb_build_array(p_act, p_filter, p_options)) $$;


-- A token: a number of jobs, and a digest of what else it stands for.
create function forebay._token(p_jobs bigint, p_what jsonb) returns text
language sql immutable
as $$ select format('%s-%s', p_jobs, left(encode(sha256(convert_to(p_what::text, 'UTF8')), 'hex'), 32)) $$;


-- functions/change/truncate_queue.sql

-- grant: operator

-- Cancel the jobs of a queue that wait at this call, in the caller's transaction: ready, scheduled and retrying ones. Running jobs finish,
-- and may run again; jobs that are enqueued later stay. Returns the number of jobs.
--
-- In steps: forebay.change_jobs('truncate', ...).
--
-- Parameters: token, of forebay.plan_change('truncate', ...): refuse if more jobs wait now.
-- Errors: JQ001 no queue is given, JQ042 more jobs than those of the token.
create function forebay.truncate_queue(queue text, token text default null) returns bigint
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(sum(c.jobs), 0)::bigint
    from forebay.change_jobs('truncate', jsonb_build_object('queue', queue), token => truncate_queue.token) c
$$;


-- functions/claim/bytes.sql

-- A claim ends with the job that brings the texts of its jobs to this size, in bytes: a worker holds two claims, and while a claim
-- is written and read, the worker is not served from another lane.
create function forebay._claim_bytes() returns integer
language sql immutable
as $$ select 2097152 $$;


-- The size of a job as text, in bytes, without its short fields. Of stored arguments beyond a quarter of a megabyte it is an
-- estimate, at least one megabyte. The stored size alone says little: it can be that of a compressed value, or of a number with
-- thousands of zeros.
create function forebay._job_bytes(p_args jsonb, p_headers jsonb) returns integer
language sql stable
as $$
    select case when pg_column_size(p_args) > 262144 then greatest(1048576, pg_column_size(p_args)) else octet_length(p_args::text) end
           + case when p_headers is null then 0 else octet_length(p_headers::text) end
$$;


-- functions/claim/claim.sql

-- Claim: the jobs that a group has not had yet, from one lane, in the order segment, xid, seq.
--
-- A window (from, to] is two snapshots: a row is in it when it is visible in `to` and not visible in
-- `from`. When a claim uses up a window, `from` becomes `to` and `to` becomes now, in the same call:
-- the batch rule of PgQ (M. Kreen, A. Helsing, Skype, 2007) with the tick inside the claim.
--
-- From which lane a worker claims, and in which order of priorities, is decided in forebay.policy.claims, not here.
-- grant: worker

-- Take at most p_limit jobs of one lane for a lease; returns them in order as JSON arrays separated by commas, offset 1 first,
-- or null for none. Without outer brackets, since a text cannot exceed 1 GB: see forebay._job_json().
--
-- Invariants: "commit decides", "once per lease", "flat cost" (docs/design/engine.md).
-- Jobs past their expiry and cancelled ones are skipped and recorded, expired ones as dead letters.
-- Of suspects it takes one at a time.
--
-- Parameters:
--   p_lease_id, p_claim_no  the batch's name; the worker counts claim_no from 1 and never reuses one
--   p_floor                 the oldest claim_no of the lease that is still open, this claim_no when none is
--   p_group_id, p_lane      as reported by ready_v1
--   p_limit                 1 to 10000
-- Jobs with ordering keys come one key after another or mixed, each key's in its order, with the key as one more element. The
-- holder runs a key's jobs one at a time, those of an earlier claim of the lease first. When one of them must run again, the
-- holder releases all later ones.
-- Errors: JQ001 a bad number, floor or limit, 54000 the text of the jobs would exceed 1 GB: ask for fewer, JQ010 the lease is
--   closed, JQ012 not called alone, JQ014 no such group, JQ030 foreign cluster.
-- Locks, in order: the group's limiter (of a queue with limits on starts or with limit keys only), the lock of the lane, the
--   lock of the group's ordering keys (for these only), the lease (KEY SHARE).
-- Commits asynchronously: a durable settlement makes the earlier claim durable.
-- pages: 110 + 4 a job + 3 an open transaction + 25 a segment
create function forebay.claim_v1(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer)
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_segment bigint;
    v_jobs    text;
    v_rows    forebay.log[];
begin
    if p_limit is null or p_limit not between 1 and 10000 then
        raise exception using errcode = 'JQ001', message = format('limit %s is outside 1 to 10000', coalesce(p_limit::text, 'null'));
    end if;
    if (p_claim_no >= 1 and p_floor between 0 and p_claim_no) is not true then
        raise exception using errcode = 'JQ001',
            message = format('claim %s with floor %s: the number is at least 1, the floor at most the number',
                             coalesce(p_claim_no::text, 'null'), coalesce(p_floor::text, 'null'));
    end if;
    -- Expressions instead of PERFORM, and the test before the call: a statement costs more than either.
    if (forebay._is_alone() and pg_sequence_last_value('forebay.limiter_seq') is null) is not true then
        perform forebay._require_alone('forebay.claim_v1()');
        if exists (select from forebay.lane l
                   where l.lane = p_lane
                     and (l.sort = 'limited' or exists (select from forebay.queue_limits q where q.queue = l.queue and q.starts_set_at is not null)
                          or l.sort = 'keyed' and exists (select from forebay.key_pause p where p.queue = l.queue and p.sort = 'limit'))) then
            return forebay._claim_limited(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit);
        end if;
    end if;
    if set_config('synchronous_commit', 'off', true) is null then
        raise exception 'unreachable';
    end if;
    execute 'lock table only forebay.lock_lane_' || (hashint8(p_group_id # p_lane) & 127) || ' in share update exclusive mode';
    -- Two conditions, since a condition with a query is a statement even where the query is not evaluated.
    if pg_sequence_last_value('forebay.key_seq') is not null then
        if exists (select from forebay.lane l where l.lane = p_lane and l.sort = 'keyed') then
            return forebay._claim_keyed(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit);
        end if;
    end if;
    -- Where the current window continues, else the newest segment: nearly always all jobs lie there.
    v_segment := coalesce(
        (select case when b.snap_to is not null then b.pos_segment end from forebay.batch b
         where b.group_id = p_group_id and b.lane = p_lane order by b.no desc limit 1),
        (select s.segment_id from forebay.segment s
         where s.lo <= pg_sequence_last_value('forebay.log_seq') order by s.lo desc limit 1));
    if v_segment is not null then
        execute 'select forebay._take_' || v_segment || '($1, $2, $3, $4, $5, $6)'
            into v_jobs
            using p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit;
    end if;
    if v_jobs is null then
        v_rows := forebay._take(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit, false);
        select string_agg(forebay._job_json(
                   u.seq, u.job_id, u.enqueued_at, u.expires_at, u.attempt, u.max_attempts, u.pauses, u.kind, u.args,
                   u.tag, u.correlation_id, u.headers), ',' order by u.ordinality)
        into v_jobs
        from unnest(v_rows) with ordinality u;
    end if;
    return v_jobs;
end
$$;


-- functions/claim/idle_poll.sql

-- Idle polls: what a session remembers of its last poll that found no ready lane, so that the next one reads only what is newer.
--
-- Invariant "commit decides": the memory of a poll at the snapshot S is that everything S shows has been claimed. Later only a newer
-- row of the log makes a lane ready, or a transaction that sets forebay.poll_horizon. A row is newer when S does not show its
-- transaction: that began after S, or was in progress at S. So a poll with the same answer reads no cursor. Time alone makes a lane
-- ready too, so that its cursor moves (forebay._should_move()), and the horizon names one of two resumptions that overlap: after five
-- seconds the memory is not used.
--
-- It is a parameter of the session without any effect, not a table: it costs no write, and a crash, which may take back the claims
-- that it relies on, ends the session. A pooler may pass it to another client; it says the same to each.


-- What this session remembers of a poll for groups with this hash of ids; null: nothing. A change of the type forebay._idle_poll needs
-- other names of the parameters, since sessions outlive migrations.
create function forebay._recall_poll(p_hash bigint) returns forebay._idle_poll
language plpgsql volatile
as $$
declare
    v forebay._idle_poll := nullif(current_setting('forebay.idle_' || (p_hash & 15), true), '')::forebay._idle_poll;
begin
    return case when v.hash = p_hash then v end;
end
$$;


-- The id of the next transaction, without drawing one. All that drew a number before this call have lower ids.
create function forebay._next_xid() returns xid8
language plpgsql volatile
as $$
declare
    v_known constant xid8 := pg_snapshot_xmax(pg_current_snapshot());
begin
    return (v_known::text::bigint + age(v_known::xid))::text::xid8;
end
$$;


-- Is the log, without reading it, known to have no row that an idle poll did not see? p_last is its last number.
create function forebay._is_still_idle(p_idle forebay._idle_poll, p_last bigint) returns boolean
language plpgsql volatile
as $$
begin
    -- In steps, since an expression with a query is a statement even where the query is not evaluated.
    if p_last <> p_idle.last_seq
       -- A transaction that had begun, and that the snapshot did not list yet, may have ended.
       or p_idle.next_xid > pg_snapshot_xmax(p_idle.snap)
          and pg_snapshot_xmax(pg_current_snapshot()) > pg_snapshot_xmax(p_idle.snap) then
        return false;
    elsif pg_snapshot_xmin(p_idle.snap) = pg_snapshot_xmax(p_idle.snap) then
        return true;
    end if;
    return not exists (select from pg_snapshot_xip(p_idle.snap) x where pg_visible_in_snapshot(x, pg_current_snapshot()));
end
$$;


-- The segments that a poll reads: the last sealed one and those after it, up to the number p_last; which one is sealed; its seal; and that
-- of the one before.
create function forebay._newest_segments(p_last bigint, out segments bigint[], out sealed bigint, out below xid8, out before xid8)
language plpgsql volatile
as $$
declare
    v_hi bigint;
begin
    select f.segment_id, f.xid, i.hi into sealed, below, v_hi
    from forebay.seal f join forebay.segment i using (segment_id) order by f.segment_id desc limit 1;
    segments := array(
        select s.segment_id from forebay.segment s
        where s.lo >= coalesce(v_hi, 0) and s.lo <= p_last
        order by s.lo);
    select f.xid into before from forebay.seal f where f.segment_id = sealed - 1;
    if sealed is not null then
        segments := sealed || segments;
    end if;
end
$$;


-- The lanes of some groups with rows that an idle poll did not see, and the snapshot of this answer. Groups share the probe of a public
-- lane. p_segments are read; rows of transactions below p_before may be in older ones, and if such a one has ended since, lanes is null.
create function forebay._changed_lanes(
    p_group_ids bigint[], p_idle forebay._idle_poll, p_segments bigint[], p_sealed bigint, p_below xid8, p_before xid8,
    out lanes bigint[], out snap pg_snapshot)
language plpgsql volatile
as $$
declare
    v_places  forebay._place[];
    v_moved   boolean[];
    v_ended   forebay._xid_range[];
    v_segment bigint;
begin
    select array_agg(row(null, l.lane, null, null, null, p_idle.snap, null)::forebay._place), array_agg(false), pg_current_snapshot()
    into v_places, v_moved, snap
    from (select distinct i.lane from forebay.lane i
          where i.queue = any (p_idle.queues) and i.state <> 'dormant'
            and (i.audience = 0 or abs(i.audience) = any (p_group_ids))) l;
    if p_before > pg_snapshot_xmin(p_idle.snap) then
        if p_before > pg_snapshot_xmax(p_idle.snap)
           or exists (select from pg_snapshot_xip(p_idle.snap) x where x < p_before and pg_visible_in_snapshot(x, snap)) then
            return;
        end if;
    end if;
    v_ended := forebay._xid_ranges('1:1:', snap);
    foreach v_segment in array p_segments loop
        exit when array_position(v_moved, false) is null;
        execute 'select forebay._moved_' || v_segment || '($1, $2, $3, $4, $5)'
            into v_moved using v_places, v_moved, snap, v_ended, case when v_segment = p_sealed then p_below end;
    end loop;
    lanes := array(select (p.place).lane from (select unnest(v_places) as place, unnest(v_moved) as moved) p where p.moved);
end
$$;


-- Let the session remember that a poll found no ready lane.
--
-- Parameters:
--   p_idle   what the session remembered so far of these groups
--   p_new    the poll; its queues and wake-up sequences are added here
create function forebay._remember_poll(p_group_ids bigint[], p_idle forebay._idle_poll, p_new forebay._idle_poll) returns void
language plpgsql volatile
as $$
declare
    v      forebay._idle_poll := p_new;
    v_last constant bigint := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
begin
    -- The transaction that set the horizon is open: a group is paused until it commits.
    if not pg_visible_in_snapshot(v.horizon::text::xid8, v.snap) then
        return;
    end if;
    -- A segment was begun during the poll: the snapshot may show rows of it that were not looked for.
    if v_last <> v.last_seq then
        if exists (select from forebay.segment s where s.lo > v.last_seq and s.lo <= v_last) then
            return;
        end if;
    end if;
    if p_idle.hash is not null then
        v.queues := p_idle.queues;
        v.flags := p_idle.flags;
    else
        select case when count(distinct g.queue) <= 16 then array_agg(distinct g.queue) end,
               array_agg(distinct forebay._wakeup(g.queue)::oid)
        into v.queues, v.flags
        from forebay.queue_group g where g.group_id = any (p_group_ids);
    end if;
    perform set_config('forebay.idle_' || (v.hash & 15), v::text, false);
end
$$;


-- Let no session rely on an idle poll from before this transaction's commit: it makes lanes ready without a row of the log.
create function forebay._forget_polls() returns void
language sql volatile
as $$
    select setval('forebay.poll_horizon', greatest(pg_current_xact_id()::text::bigint, pg_sequence_last_value('forebay.poll_horizon')))
$$;


-- Let producers notify for some time: a worker sleeps. Nothing without a time.
create function forebay._announce_sleep(p_flags oid[], p_millis integer) returns void
language plpgsql volatile
as $$
declare
    v_until constant bigint := (extract(epoch from clock_timestamp()) * 1000)::bigint + p_millis;
begin
    if p_millis is null then
        return;
    end if;
    perform set_config('synchronous_commit', 'off', true);  -- Setting a flag sequence writes WAL; the commit need not wait for it.
    if not forebay._is_same_cluster() then
        perform forebay._record_same_cluster();
    end if;
    perform forebay._advance_flag(f.flag, v_until, 250)
    from unnest(p_flags) f (flag)
    -- A time in the future is from before the clock was set back.
    where not coalesce(pg_sequence_last_value(f.flag) between v_until and v_until + 70000, false);
end
$$;


-- functions/claim/job_json.sql

-- One job as a claim returns it: a JSON array of seq, kind, time of the enqueue (microseconds since 1970) and args; and, when
-- one of them is set, of job_id, expires_at (microseconds), attempt, max_attempts, pauses, tag, correlation_id
-- and headers.
create function forebay._job_json(
    p_seq bigint, p_job_id bigint, p_enqueued_at timestamptz, p_expires_at timestamptz, p_attempt integer,
    p_max_attempts integer, p_pauses integer, p_kind text, p_args jsonb, p_tag text, p_correlation_id text, p_headers jsonb)
returns text
language sql stable
as $$
    select '[' || p_seq || ',"' || p_kind || '",' || (date_part('epoch', p_enqueued_at) * 1000000)::bigint || ',' || p_args
           || case when num_nonnulls(p_job_id, p_expires_at, p_attempt, p_max_attempts, p_pauses, p_tag, p_correlation_id, p_headers) = 0
                   then ']'
                   else ',' || ltrim(json_build_array(
                       coalesce(p_job_id, p_seq), (date_part('epoch', p_expires_at) * 1000000)::bigint, p_attempt, p_max_attempts, p_pauses,
                       p_tag, p_correlation_id, p_headers)::text, '[') end
$$;


-- functions/claim/ready.sql

-- grant: worker

-- The ready lanes of some groups: lanes with something to claim, or with a cursor to advance.
--
-- One call per poll. When no lane is ready and p_sleep_millis is given, it sets the wake-ups of p_queues: a worker
-- sleeps for that long. It may report a lane that turns out empty; it never omits a ready lane for good. For a queue with limits
-- on starts (is_limited) it reports lanes only while the queue's limiter lets something through, see docs/design/limits.md;
-- jobs that the limiter holds back set no wake-up.
--
-- Errors: JQ030 foreign cluster.
-- pages: 70 + 6 a lane + 5 an open transaction
create function forebay.ready_v1(p_group_ids bigint[], p_sleep_millis integer default null)
returns table (group_id bigint, lane bigint, queue text, priority integer, is_private boolean, is_suspect boolean, is_limited boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_places  forebay._place[];
    v_moved   boolean[];
    v_now     pg_snapshot;
    v_ended   forebay._xid_range[];
    v_last    bigint;
    v_seal_id bigint;
    v_below   xid8;
    v_before  xid8;
    v_tail    bigint[];
    v_segment bigint;
    v_limiters   bigint[] := '{}';
    v_shut    bigint[] := '{}';
    v_any     boolean;
    v_poll    forebay._idle_poll;  -- this poll, if it finds nothing
    v_idle    forebay._idle_poll;  -- the last one that did, see idle_poll.sql
    v_changed bigint[];            -- lanes with rows since then; null: any lane may have some
begin
    if not forebay._is_same_cluster() then
        perform forebay._require_same_cluster();
    end if;
    v_poll.horizon := coalesce(pg_sequence_last_value('forebay.poll_horizon'), 0);
    v_last := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    -- Alone, so that the memory of the session is about what each transaction committed until now.
    if forebay._is_alone() then
        v_poll.hash := hash_array_extended(p_group_ids, 0);
        v_poll.last_seq := v_last;
        v_poll.next_xid := forebay._next_xid();
        v_poll.checked_at := (extract(epoch from forebay._now()) * 1000)::bigint;
        v_idle := forebay._recall_poll(v_poll.hash);
        if (v_idle.horizon = v_poll.horizon and v_poll.checked_at between v_idle.checked_at and v_idle.checked_at + 5000) is not true then
            v_idle := null;
        elsif forebay._is_still_idle(v_idle, v_last) then
            perform forebay._announce_sleep(v_idle.flags, p_sleep_millis);
            return;
        end if;
    end if;
    -- The last sealed segment counts too, so that a quiet lane is not reported as ready at each new seal.
    select s.segments, s.sealed, s.below, s.before into v_tail, v_seal_id, v_below, v_before from forebay._newest_segments(v_last) s;
    -- Few groups are looked at as fast.
    if v_idle.queues is not null and cardinality(p_group_ids) > 8 then
        select c.lanes, c.snap into v_changed, v_poll.snap
        from forebay._changed_lanes(p_group_ids, v_idle, v_tail, v_seal_id, v_below, v_before) c;
        v_poll.checked_at := case when v_changed is null then v_poll.checked_at else v_idle.checked_at end;
        if v_changed = '{}' then
            perform forebay._remember_poll(p_group_ids, v_idle, v_poll), forebay._announce_sleep(v_idle.flags, p_sleep_millis);
            return;
        end if;
    end if;
    if pg_sequence_last_value('forebay.limiter_seq') is not null then
        v_limiters := array(select g.group_id from forebay.queue_group g
                         where g.group_id = any (p_group_ids) and (g.paused_at is null or g.resume_at <= forebay._now())
                           and exists (select from forebay.queue_limits l where l.queue = g.queue and l.starts_set_at is not null));
    end if;
    if v_limiters <> '{}' then
        v_poll.hash := null;
        v_changed := null;
    end if;

    -- A lane has moved when it has a current window, or when it is so far behind that the claim has to read it.
    select array_agg(row(p.group_id, p.lane, p.queue, p.priority, p.audience, p.snap, p.claimed_at)::forebay._place),
           array_agg(p.in_hand or coalesce(v_before > pg_snapshot_xmax(p.snap), false)),
           pg_current_snapshot(),
           case when pg_snapshot_xmin(pg_current_snapshot()) = pg_snapshot_xmax(pg_current_snapshot())
                then array[row('1', pg_snapshot_xmax(pg_current_snapshot()))::forebay._xid_range] end
    into v_places, v_moved, v_now, v_ended
    from (select g.group_id, l.lane, l.queue, l.priority, l.audience, b.claimed_at, b.snap_to is not null as in_hand,
                 coalesce(b.snap_from, case l.audience when 0 then g.start_after else '1:1:' end) as snap
          from forebay.queue_group g
          join lateral (
              select distinct i.lane, i.queue, i.priority, i.audience
              from forebay.lane i
              where (v_changed is null or i.lane = any (v_changed))
                and i.queue = g.queue and i.state <> 'dormant'
                and i.audience in (0, g.group_id, -g.group_id)) l on true
          left join lateral (
              select c.snap_from, c.snap_to, c.claimed_at
              from forebay.batch c
              where c.group_id = g.group_id and c.lane = l.lane
              order by c.no desc limit 1) b on true
          where g.group_id = any (p_group_ids) and (g.paused_at is null or g.resume_at <= forebay._now())) p;

    if v_ended is null then
        v_ended := forebay._xid_ranges('1:1:', v_now);
    end if;
    foreach v_segment in array v_tail loop
        exit when array_position(v_moved, false) is null;
        execute 'select forebay._moved_' || v_segment || '($1, $2, $3, $4, $5)'
            into v_moved using v_places, v_moved, v_now, v_ended, case when v_segment = v_seal_id then v_below end;
    end loop;

    if v_limiters <> '{}' then
        v_shut := forebay._shut_limiters(v_limiters);
    end if;
    return query
    select p.group_id, p.lane, p.queue, p.priority, p.audience <> 0, p.audience < 0, p.group_id = any (v_limiters)
    from rows from (unnest(v_places), unnest(v_moved)) with ordinality
         as p (group_id, lane, queue, priority, audience, snap, claimed_at, moved, nr)
    where p.group_id <> all (v_shut) and case
        when p.moved then true
        -- A late committer of an older segment: let the claim read. It would not read for one that was rolled back, nor move.
        when pg_snapshot_xmin(p.snap) <> pg_snapshot_xmax(p.snap) and v_before > pg_snapshot_xmin(p.snap)
             and exists (select from pg_snapshot_xip(p.snap) x
                         where x < v_before and pg_visible_in_snapshot(x, v_now) and pg_xact_status(x) is distinct from 'aborted') then true
        else forebay._should_move(p.snap, v_now, p.claimed_at) end;
    v_any := found;
    if v_shut <> '{}' then
        -- A shut limiter behind which nothing waits needs a wake-up, like an idle queue.
        v_shut := array(select distinct p.group_id
                        from rows from (unnest(v_places), unnest(v_moved)) as p (group_id, lane, queue, priority, audience, snap, claimed_at, moved)
                        where p.group_id = any (v_shut) and p.moved);
    end if;

    if not v_any and v_poll.hash is not null then
        v_poll.snap := coalesce(v_poll.snap, v_now);
        -- The end of a pause makes lanes ready without a row of the log: the memory ends with it.
        if pg_sequence_last_value('forebay.timed_pause_seq') is not null then
            v_poll.checked_at := least(v_poll.checked_at, (
                select (extract(epoch from min(g.resume_at)) * 1000)::bigint - 5000
                from forebay.queue_group g where g.group_id = any (p_group_ids) and g.resume_at > to_timestamp(v_poll.checked_at / 1000.0)));
        end if;
        perform forebay._remember_poll(p_group_ids, v_idle, v_poll);
    end if;
    if not v_any and p_sleep_millis is not null then
        perform forebay._announce_sleep(array(
            select distinct forebay._wakeup(g.queue)::oid
            from forebay.queue_group g where g.group_id = any (p_group_ids) and g.group_id <> all (v_shut)), p_sleep_millis);
    end if;
end
$$;


-- functions/claim/segment_functions.sql

-- Create or replace the functions of one segment. A migration that changes one of them calls this for each segment.
-- Their texts are the files of functions/claim/segment.
--
-- Locks: the caller holds the maintenance key.
create function forebay._make_segment_functions(p_segment_id bigint, p_hi bigint) returns void
language plpgsql volatile
as $$
declare
    v_sealed_before constant text :=
        case when exists (select from forebay.segment s where s.segment_id = p_segment_id - 1)
             then format('exists (select from forebay.seal f where f.segment_id = %s and f.xid <= pg_snapshot_xmax(s.stop))', p_segment_id - 1)
             else 'true' end;
begin
    execute format($segment$
-- Rows of keyed jobs by lane and number.
create or replace function forebay._fetch_%1$s(p_lanes bigint[], p_seqs bigint[]) returns forebay.log[]
language plpgsql stable
as $body$
begin
    return array(
        select row(l.*)::forebay.log
        from unnest(p_lanes, p_seqs) as u (lane, seq),
             lateral (select * from forebay.log_%1$s i
                      where i.lane = u.lane and i.seq = u.seq and i.ordering_key is not null limit 1) l);
end
$body$;
    $segment$, p_segment_id, p_hi, v_sealed_before);
    execute format('revoke all on function forebay._fetch_%s from public', p_segment_id);

    execute format($segment$
-- The first rows of runs of jobs, at most p_most of each run, with the number of the run.
create or replace function forebay._fetch_limited_%1$s(
    p_nrs bigint[], p_lanes bigint[], p_xids xid8[], p_after bigint[], p_seqs_to bigint[], p_most bigint[])
returns table (nr bigint, job forebay.log)
language plpgsql stable
as $body$
begin
    return query
    select u.nr, row(l.*)::forebay.log
    from unnest(p_nrs, p_lanes, p_xids, p_after, p_seqs_to, p_most) u (nr, lane, xid, after, seq_to, most),
         lateral (select * from forebay.log_%1$s i
                  where i.lane = u.lane and i.xid = u.xid and i.seq > u.after and i.seq <= u.seq_to
                  order by i.seq limit u.most) l;
end
$body$;
    $segment$, p_segment_id, p_hi, v_sealed_before);
    execute format('revoke all on function forebay._fetch_limited_%s from public', p_segment_id);

    execute format($segment$
-- Has a lane rows that its snapshot does not show? Answered from the newest segment and the one before, for all lanes at once.
-- p_ended are the ranges of transactions that have ended, see forebay._xid_ranges(). p_below: the segment is sealed and has only rows
-- with a lower xid; null: not sealed, or not known. Most cursors have passed a sealed segment, and it is not read for these.
create or replace function forebay._moved_%1$s(
    p_places forebay._place[], p_moved boolean[], p_now pg_snapshot, p_ended forebay._xid_range[], p_below xid8 default null)
returns boolean[]
language plpgsql stable
as $body$
begin
    return array(
        select case
            when p.moved then true
            when (pg_snapshot_xmax(p.snap) < p_below) is not false and exists (
                select from (select unnest(p_ended) as xids) e, lateral (
                    select from forebay.log_%1$s l
                    where l.lane = p.lane and l.xid >= greatest((e.xids).low, pg_snapshot_xmax(p.snap)) and l.xid < (e.xids).high limit 1) f
                where (e.xids).high > pg_snapshot_xmax(p.snap)) then true
            when pg_snapshot_xmin(p.snap) = pg_snapshot_xmax(p.snap) then false
            else exists (
                select from pg_snapshot_xip(p.snap) late (xid), lateral (
                    select from forebay.log_%1$s l where l.lane = p.lane and l.xid = late.xid limit 1) f
                where pg_visible_in_snapshot(late.xid, p_now) and pg_xact_status(late.xid) is distinct from 'aborted') end
        from rows from (unnest(p_places), unnest(p_moved)) with ordinality
             as p (group_id, lane, queue, priority, audience, snap, claimed_at, moved, nr)
        order by p.nr);
end
$body$;
    $segment$, p_segment_id, p_hi, v_sealed_before);
    execute format('revoke all on function forebay._moved_%s from public', p_segment_id);

    execute format($segment$
-- Rows of one lane in ranges of transactions, which are in order, after a position; in the order (xid, seq). It ends with the row
-- that brings the jobs to p_bytes or more.
create or replace function forebay._read_%1$s(
    p_lane bigint, p_ranges forebay._xid_range[], p_pos_xid xid8, p_pos_seq bigint, p_limit integer, p_bytes bigint,
    out rows forebay.log[], out bytes bigint)
language plpgsql stable
as $body$
declare
    v_range forebay._xid_range;
    v_row   forebay.log;
begin
    rows := '{}';
    bytes := 0;
    foreach v_range in array p_ranges loop
        continue when v_range.high <= p_pos_xid;
        -- One lower bound, so that the index finds it: a second one would be compared with each row of the transaction.
        for v_row in
            select l.*
            from forebay.log_%1$s l
            where l.lane = p_lane
              and (l.xid, l.seq) > (greatest(v_range.low, p_pos_xid), case when p_pos_xid >= v_range.low then p_pos_seq else -1 end)
              and l.xid < v_range.high
            order by l.xid, l.seq
            limit p_limit - cardinality(rows)
        loop
            rows := rows || v_row;
            bytes := bytes + forebay._job_bytes(v_row.args, v_row.headers);
            if bytes >= p_bytes then
                return;
            end if;
        end loop;
        exit when cardinality(rows) >= p_limit;
    end loop;
end
$body$;
    $segment$, p_segment_id, p_hi, v_sealed_before);
    execute format('revoke all on function forebay._read_%s from public', p_segment_id);

    execute format($segment$
-- Rows of a lane of keyed jobs that a window covers, in the order of their numbers. Transactions that began after the window's
-- start have numbers above p_low; those in progress at the start are searched by xid below it.
-- It ends with the row that brings the jobs to p_bytes or more.
create or replace function forebay._read_keyed_%1$s(
    p_lane bigint, p_from pg_snapshot, p_low bigint, p_to pg_snapshot, p_late xid8[], p_pos_seq bigint, p_limit integer,
    p_bytes bigint, out rows forebay.log[], out bytes bigint)
language plpgsql stable
as $body$
declare
    v_row forebay.log;
begin
    rows := '{}';
    bytes := 0;
    for v_row in
        select w.*
        from (
            (select l.*
             from unnest(p_late) as late (xid),
                  lateral (select * from forebay.log_%1$s i
                           where i.lane = p_lane and i.xid = late.xid and i.seq > p_pos_seq and i.seq <= p_low
                           order by i.seq limit p_limit) l)
            union all
            (select l.*
             from forebay.log_%1$s l
             where l.lane = p_lane and l.ordering_key is not null and l.seq > greatest(p_low, p_pos_seq)
               and pg_visible_in_snapshot(l.xid, p_to)
               and not pg_visible_in_snapshot(l.xid, p_from)
             order by l.seq
             limit p_limit)
        ) w
        order by w.seq
        limit p_limit
    loop
        rows := rows || v_row;
        bytes := bytes + forebay._job_bytes(v_row.args, v_row.headers);
        exit when bytes >= p_bytes;
    end loop;
end
$body$;
    $segment$, p_segment_id, p_hi, v_sealed_before);
    execute format('revoke all on function forebay._read_keyed_%s from public', p_segment_id);

    execute format($segment$
-- Jobs with limit keys in ranges of transactions, which are in order, after a position: runs of one key and one transaction, in the
-- order (xid, seq), from about p_most rows. The last run is read to its end, up to 100,000 jobs.
create or replace function forebay._read_limited_%1$s(
    p_segment_id bigint, p_lane bigint, p_ranges forebay._xid_range[], p_pos_xid xid8, p_pos_seq bigint, p_most integer)
returns forebay._limit_item[]
language plpgsql stable
as $body$
declare
    v_items forebay._limit_item[];
    v_read  bigint;
    v_last  forebay._limit_item;
    v_more  record;
begin
    select array_agg(row(p_lane, p_segment_id, i.xid, i.seq, i.seq_to, i.jobs, i.limit_key, i.turn)::forebay._limit_item order by i.nr),
           sum(greatest(i.jobs, 1))
    into v_items, v_read
    from (select x.xid, min(x.seq) as seq, max(x.seq) as seq_to, count(*) filter (where x.is_job) as jobs, x.limit_key,
                 max(x.attempt) filter (where not x.is_job) as turn, min(x.nr) as nr
          from (select r.*, r.nr - row_number() over (partition by r.xid, r.limit_key, r.is_job order by r.nr) as run
                from (select l.xid, l.seq, l.limit_key, l.kind <> '' as is_job, l.attempt,
                             row_number() over (order by l.xid, l.seq) as nr
                      from (select unnest(p_ranges) as xids) r, lateral (
                          select i.xid, i.seq, i.limit_key, i.kind, i.attempt
                          from forebay.log_%1$s i
                          where i.lane = p_lane
                            and (i.xid, i.seq) > (greatest((r.xids).low, p_pos_xid), case when p_pos_xid >= (r.xids).low then p_pos_seq else -1 end)
                            and i.xid < (r.xids).high
                          order by i.xid, i.seq
                          limit p_most) l
                      order by l.xid, l.seq
                      limit p_most) r) x
          -- Each recheck row is one item.
          group by x.xid, x.limit_key, x.is_job, x.run, case when not x.is_job then x.nr end) i;
    if v_read >= p_most then
        v_last := v_items[cardinality(v_items)];
        if v_last.jobs > 0 then
            select count(*) as jobs, max(u.seq) as seq_to into v_more
            from (select i.seq from forebay.log_%1$s i
                  where i.lane = p_lane and i.xid = v_last.xid and i.seq > v_last.seq_to
                    and i.seq < coalesce((select f.seq from forebay.log_%1$s f
                                          where f.lane = p_lane and f.xid = v_last.xid and f.seq > v_last.seq_to
                                            and (f.limit_key is distinct from v_last.limit_key or f.kind = '')
                                          order by f.seq limit 1), 9223372036854775807)
                  order by i.seq limit 100000) u;
            v_last.jobs := v_last.jobs + v_more.jobs;
            v_last.seq_to := coalesce(v_more.seq_to, v_last.seq_to);
            v_items[cardinality(v_items)] := v_last;
        end if;
    end if;
    return coalesce(v_items, '{}');
end
$body$;
    $segment$, p_segment_id, p_hi, v_sealed_before);
    execute format('revoke all on function forebay._read_limited_%s from public', p_segment_id);

    execute format($segment$
-- The claim of jobs that all lie in this segment, in one statement: the common case, at half the
-- cost of forebay._take(), which handles all other cases. It takes nothing, and returns null, unless
--   * the lane has a cursor, its group is not paused, and it is not a lane of suspects,
--   * no late committer is among the rows that the current window, or the next one, has to deliver,
--   * either nothing outside this segment can be in either window (`whole`), or p_limit jobs of the current window
--     are found here,
--   * none of the jobs is cancelled or expired,
--   * none of the jobs is larger than a kilobyte and its share of forebay._claim_bytes(): the size of all of them is known before they are read,
--   * the lease is open.
-- With `whole` both windows are one range of the index: without late committers, a transaction that began before the end of the
-- first and is visible in it is visible now, and the reverse.
--
-- Most of the cost is preparing the expressions, again in each transaction: each column counts.
create or replace function forebay._take_%1$s(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer)
returns text
language plpgsql volatile
as $body$
declare
    v_jobs text;
begin
    with cur as materialized (
        select b.no, b.snap_from, b.snap_to, b.stop, b.pos_xid, b.pos_seq, b.high_seq, b.handed_total, b.skipped_total,
               b.whole, u.upto, forebay._now() as at, forebay._claim_bytes() / p_limit + 1024 as share,
               case when pg_snapshot_xmin(u.upto) <> pg_snapshot_xmax(u.upto)
                         and exists (select from pg_snapshot_xip(u.upto) open (xid) where open.xid >= pg_snapshot_xmax(b.snap_from))
                    then forebay._xid_ranges(b.snap_from, u.upto)
                    else array[row(pg_snapshot_xmax(b.snap_from), pg_snapshot_xmax(u.upto))::forebay._xid_range] end as ranges
        from (select n.no, n.snap_from, n.snap_to, n.pos_segment, n.pos_xid, n.pos_seq, n.high_seq, n.handed_total,
                     n.skipped_total, s.stop,
                     pg_sequence_last_value('forebay.log_seq') < %2$s
                     and (pg_snapshot_xmin(s.stop) = pg_snapshot_xmax(s.stop)
                          or not exists (select from pg_snapshot_xip(s.stop) late (xid)
                                         where pg_visible_in_snapshot(late.xid, pg_current_snapshot())))
                     and %3$s as whole
              from forebay.batch n, lateral (select coalesce(n.snap_to, n.snap_from) as stop) s
              where n.group_id = p_group_id and n.lane = p_lane
              order by n.no desc limit 1) b,
             lateral (select case when b.whole then pg_current_snapshot() else b.snap_to end as upto) u
        where (b.snap_to is null
               or b.pos_segment = %1$s
               and (pg_snapshot_xmin(b.snap_from) = pg_snapshot_xmax(b.snap_from)
                    or not exists (select from pg_snapshot_xip(b.snap_from) late (xid)
                                   where pg_visible_in_snapshot(late.xid, b.snap_to))))
          and exists (select from forebay.queue_group g where g.group_id = p_group_id and (g.paused_at is null or g.resume_at <= forebay._now()))
          and not exists (select from forebay.lane l where l.lane = p_lane and l.audience < 0)
    ), taken as materialized (
        select count(*)::integer as size, array_agg(t.seq) as seqs, array_agg(t.xid) as xids, max(t.seq) as high,
               array_agg(t.job_id) as job_ids, -- A job that is too large counts as expired: nothing is written.
               min(case when t.job is not null then coalesce(t.expires_at, t.enqueued_at + interval '30 days') else '-infinity' end) as expires,
               string_agg(t.job, ',') as jobs
        from cur, lateral (
            select j.seq, j.xid, j.expires_at, j.enqueued_at, j.job_id, case when octet_length(j.job) <= cur.share then j.job end as job
            from (select unnest(cur.ranges) as xids) r, lateral (
            select j.seq, j.xid, j.expires_at, j.enqueued_at, coalesce(j.job_id, j.seq) as job_id,
                   case when pg_column_size(j.args) <= cur.share
                        then forebay._job_json(j.seq, j.job_id, j.enqueued_at, j.expires_at, j.attempt, j.max_attempts, j.pauses,
                                               j.kind, j.args, j.tag, j.correlation_id, j.headers) end as job
            from forebay.log_%1$s j
            where j.lane = p_lane
              and (j.xid, j.seq) > (greatest((r.xids).low, cur.pos_xid), case when cur.pos_xid >= (r.xids).low then cur.pos_seq else -1 end)
              and j.xid < (r.xids).high
            order by j.xid, j.seq
            limit p_limit) j
            limit p_limit) t
    ), written as (
        insert into forebay.batch (
            group_id, lane, no, lease_id, claim_no, floor, snap_from, snap_to, pos_segment, pos_xid, pos_seq,
            high_seq, handed_total, skipped_total, claimed_at, seqs, xids)
        select p_group_id, p_lane, c.no + 1, p_lease_id, p_claim_no, p_floor,
               -- Used up, still in the current window, or in the next one.
               case when t.size < p_limit then c.upto when t.xids[t.size] < pg_snapshot_xmax(c.stop) then c.snap_from else c.stop end,
               case when t.size < p_limit then null when t.xids[t.size] < pg_snapshot_xmax(c.stop) then c.snap_to else c.upto end,
               case when t.size < p_limit then 0 else %1$s end,
               case when t.size < p_limit then '0' else t.xids[t.size] end,
               case when t.size < p_limit then 0 else t.seqs[t.size] end,
               greatest(c.high_seq, t.high), c.handed_total + t.size, c.skipped_total, c.at,
               t.seqs, case when t.xids[1] = all (t.xids) then t.xids[:1] else t.xids end
        from cur c, taken t,
             (select from forebay.lease i
              where i.lease_id = p_lease_id and i.closed_at is null
              for key share) held
        where t.size > 0 and (c.whole or t.size = p_limit) and t.expires > c.at
          and (pg_sequence_last_value('forebay.tombstone_seq') is null
               or not exists (select from forebay.tombstone x where x.job_id = any (t.job_ids)))
        returning true
    )
    select t.jobs into v_jobs from written, taken t;
    return v_jobs;
end
$body$;
    $segment$, p_segment_id, p_hi, v_sealed_before);
    execute format('revoke all on function forebay._take_%s from public', p_segment_id);
end
$$;


-- functions/claim/take.sql

-- The claim itself, shared with the sweep: with p_sweep it takes nothing, and stops before the first
-- job that can still run. Null: it read nothing, since the group is paused or the lane unknown.
create function forebay._take(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer,
    p_sweep boolean)
returns forebay.log[]
language plpgsql volatile
as $$
declare
    c          record;
    v_from     pg_snapshot;              -- the current window
    v_to       pg_snapshot;
    v_limit    integer := p_limit;
    v_window   record;
    v_rows     forebay.log[] := '{}';
    v_segments bigint[] := '{}';
    v_looked   integer := 0;
    v_bytes    bigint := 0;              -- size of the rows
    v_old      integer := 0;             -- how many of the rows belong to the current window
    v_count    integer;                  -- how many rows this call disposes of
    v_verdicts "char"[];                 -- e expired, E expired and already a dead letter, c cancelled, m moved, null to be run
    v_taken    forebay.log[];
    v_seqs     bigint[];
    v_xids     xid8[];
    v_skipped  bigint[];
    v_as       "char"[];
    v_high     bigint;
    v_used_up  boolean;
    v_tombstones boolean;
    v_dead     bigint[];
    v_uncounted bigint := 0;             -- skipped rows that are in forebay.count_change: moved, or expired by the sweep
begin
    execute 'lock table only forebay.lock_lane_' || (hashint8(p_group_id # p_lane) & 127) || ' in share update exclusive mode';

    -- A later statement than the lock: its snapshot sees what the last holder committed.
    select pg_current_snapshot() as now, forebay._now() as at,
           g.start_after, g.queue, forebay._paused_since(g.paused_at, g.resume_at) as paused_at, l.audience, l.priority,
           f.xid as seal_xid,
           array(select s.segment_id from forebay.segment s
                 where s.lo >= coalesce(f.hi, 0) and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)
                 order by s.lo) as unsealed,
           b.no, b.snap_from, b.snap_to, b.pos_segment, b.pos_xid, b.pos_seq, b.high_seq,
           b.handed_total, b.skipped_total, b.claimed_at, w.start, w.stop
    into c
    from forebay.queue_group g
    left join lateral (select i.audience, i.priority from forebay.lane i where i.lane = p_lane limit 1) l on true
    left join lateral (select s.xid, i.hi from forebay.seal s join forebay.segment i using (segment_id)
                       order by s.segment_id desc limit 1) f on true
    left join lateral (select * from forebay.batch i
                       where i.group_id = p_group_id and i.lane = p_lane
                       order by i.no desc limit 1) b on true
    cross join lateral (
        select coalesce(b.snap_from, f.first) as start, coalesce(b.snap_to, b.snap_from, f.first) as stop
        from (select case l.audience when 0 then g.start_after else '1:1:' end as first) f) w
    where g.group_id = p_group_id;

    if c.queue is null then
        raise exception using errcode = 'JQ014',
            message = format('group %s not found', p_group_id),
            hint = 'Open the group with forebay.open_group() first.';
    end if;
    if c.audience is null or (c.paused_at is not null and not p_sweep) then
        return null;
    end if;

    v_from := c.start;
    v_to := c.stop;
    if pg_snapshot_xmax(c.stop) > pg_snapshot_xmax(c.now) then
        raise exception using errcode = 'JQ030',
            message = format('the cursor of lane %s is ahead of this cluster: xid %s, now %s',
                             p_lane, pg_snapshot_xmax(c.stop), pg_snapshot_xmax(c.now)),
            hint = 'This database was restored from another cluster. Run forebay adopt --resume or --discard.';
    end if;
    if c.audience < 0 and not p_sweep then
        v_limit := 1;
    end if;

    -- The rest of the current window, then the next one, from its end to now.
    if c.snap_to is not null then
        v_window := forebay._window(p_lane, forebay._xid_ranges(v_from, v_to), c.pos_segment, c.pos_xid, c.pos_seq, v_limit,
                                    c.unsealed, c.seal_xid, forebay._claim_bytes());
        v_rows := v_window.rows;
        v_segments := v_window.segments;
        v_looked := v_window.looked;
        v_old := cardinality(v_rows);
        v_bytes := v_window.bytes;
    end if;
    if v_old < v_limit and v_bytes < forebay._claim_bytes() then
        v_window := forebay._window(p_lane, forebay._xid_ranges(v_to, c.now), 0, '0', 0, v_limit - v_old, c.unsealed, c.seal_xid,
                                    forebay._claim_bytes() - v_bytes);
        v_rows := v_rows || v_window.rows;
        v_segments := v_segments || v_window.segments;
        v_looked := v_looked + v_window.looked;
        v_bytes := v_bytes + v_window.bytes;
    end if;
    v_count := cardinality(v_rows);
    v_used_up := v_count < v_limit and v_bytes < forebay._claim_bytes();
    -- After the rows were read: the transaction that wrote one of them has already written its tombstones.
    v_tombstones := pg_sequence_last_value('forebay.tombstone_seq') is not null;

    if v_count = 0 then
        if c.snap_to is not null or v_looked > 2 or forebay._should_move(v_from, c.now, c.claimed_at) or forebay._is_old_cursor(v_from) then
            insert into forebay.batch (
                group_id, lane, no, snap_from, pos_segment, pos_xid, pos_seq, high_seq,
                handed_total, skipped_total, claimed_at)
            values (p_group_id, p_lane, coalesce(c.no, 0) + 1, c.now, 0, '0', 0, coalesce(c.high_seq, 0),
                    coalesce(c.handed_total, 0), coalesce(c.skipped_total, 0), c.at);
        end if;
        return '{}';
    end if;

    select array_agg(u.seq order by u.ordinality), array_agg(u.xid order by u.ordinality), max(u.seq),
           array_agg(case when t.reason = 'm' then 'm'
                          when t.reason in ('c', 'r') then 'c'
                          when t.reason = 'e' then 'E'
                          when coalesce(u.expires_at, u.enqueued_at + interval '30 days') <= c.at then 'e'
                     end::"char" order by u.ordinality)
    into v_seqs, v_xids, v_high, v_verdicts
    from unnest(v_rows) with ordinality u
    left join lateral (
        select i.reason from forebay.tombstone i
        where v_tombstones and i.job_id = coalesce(u.job_id, u.seq) and (i.group_id is null or i.group_id = p_group_id)
          and i.reason <> 'k' and (i.reason <> 'm' or u.seq <= i.up_to)
        -- The newer row of a moved job decides. An expiry outranks a cancellation: its dead letter is written.
        order by i.reason = 'm' desc, i.reason = 'e' desc limit 1) t on true;

    v_taken := v_rows;
    if p_sweep then
        v_count := coalesce(array_position(v_verdicts, null) - 1, v_count);
        if v_count = 0 then
            return '{}';
        end if;
        v_used_up := v_used_up and v_count = cardinality(v_rows);
        v_high := (select max(s) from unnest(v_seqs[:v_count]) s);
    end if;
    if p_sweep or v_verdicts[1] is not null or array_position(v_verdicts, 'c') is not null or array_position(v_verdicts, 'm') is not null
       or array_position(v_verdicts, 'e') is not null or array_position(v_verdicts, 'E') is not null then
        select array_agg((u.r).seq order by u.nr) filter (where u.verdict is not null),
               array_agg(lower(u.verdict)::"char" order by u.nr) filter (where u.verdict is not null),
               array_agg((u.r).seq order by u.nr) filter (where u.verdict is null),
               array_agg((u.r).xid order by u.nr) filter (where u.verdict is null),
               array_agg(u.r order by u.nr) filter (where u.verdict is null),
               array_agg(forebay._write_dead_letter(p_group_id, c.queue, c.priority, u.r, 'expired', coalesce((u.r).attempt, 0)) order by u.nr)
                   filter (where u.verdict = 'e'),
               count(*) filter (where u.verdict in ('m', 'E'))
        into v_skipped, v_as, v_seqs, v_xids, v_taken, v_dead, v_uncounted
        from (select unnest(v_rows) as r, unnest(v_verdicts) as verdict, generate_subscripts(v_rows, 1) as nr) u
        where u.nr <= v_count;
        if v_dead is not null then
            perform forebay._report_deaths(v_dead);
        end if;
    end if;
    if v_xids[1] = all (v_xids) then
        v_xids := v_xids[:1];
    end if;
    if v_tombstones and v_seqs is not null then
        perform forebay._follow_up(v_taken, p_group_id);
    end if;

    -- The window of the last row, or an empty one at now when everything is used up.
    if v_count > v_old then
        v_from := v_to;
        v_to := c.now;
    end if;
    insert into forebay.batch (
        group_id, lane, no, lease_id, claim_no, floor, snap_from, snap_to, pos_segment, pos_xid, pos_seq, high_seq,
        handed_total, skipped_total, claimed_at, seqs, xids, skipped, skipped_as)
    select p_group_id, p_lane, coalesce(c.no, 0) + 1,
           case when v_seqs is not null then p_lease_id end, case when v_seqs is not null then p_claim_no end, p_floor,
           case when v_used_up then c.now else v_from end,
           case when v_used_up then null else v_to end,
           case when v_used_up then 0 else v_segments[v_count] end,
           case when v_used_up then '0' else v_rows[v_count].xid end,
           case when v_used_up then 0 else v_rows[v_count].seq end,
           greatest(c.high_seq, v_high),
           coalesce(c.handed_total, 0) + coalesce(cardinality(v_seqs), 0),
           coalesce(c.skipped_total, 0) + coalesce(cardinality(v_skipped), 0) - v_uncounted,
           c.at, v_seqs, v_xids, v_skipped, v_as
    from (select where p_sweep
          union all
          select from (select from forebay.lease i
                       where i.lease_id = p_lease_id and i.closed_at is null
                       for key share) held) fence;
    if not found then
        raise exception using errcode = 'JQ010',
            message = format('lease %s is closed', p_lease_id),
            detail = jsonb_build_object('lease', p_lease_id),
            hint = 'Its jobs were given to other workers. Open a new lease.';
    end if;
    return coalesce(v_taken, '{}');
end
$$;


-- functions/claim/window.sql

-- The rows of one lane in a window, after a position, at most p_limit, up to the one that brings their size to p_bytes; how many segments
-- were read; and the size of the rows.
--
-- Segments are chosen by their seals: sealed with X_S, a segment has only rows with an xid below X_S.
-- p_ranges are the window's transactions, see forebay._xid_ranges().
create function forebay._window(
    p_lane bigint, p_ranges forebay._xid_range[],
    p_pos_segment bigint, p_pos_xid xid8, p_pos_seq bigint, p_limit integer,
    p_unsealed bigint[], p_last_seal xid8,
    p_bytes bigint, out rows forebay.log[], out segments bigint[], out looked integer, out bytes bigint)
language plpgsql volatile
as $$
declare
    v_needed  bigint[] := p_unsealed;
    v_piece   record;
    v_segment bigint;
begin
    rows := '{}';
    segments := '{}';
    looked := 0;
    bytes := 0;
    if p_last_seal > p_ranges[1].low then
        v_needed := array(
            select s.segment_id from forebay.seal s join forebay.segment i using (segment_id)
            where s.segment_id >= p_pos_segment and i.removed_at is null
              and s.segment_id <> all (p_unsealed)  -- Sealed since the caller looked: read once.
              and s.xid > p_ranges[1].low
            order by s.segment_id) || v_needed;
    end if;
    foreach v_segment in array v_needed loop
        continue when v_segment < p_pos_segment;
        looked := looked + 1;
        execute 'select * from forebay._read_' || v_segment || '($1, $2, $3, $4, $5, $6)'
            into v_piece
            using p_lane, p_ranges,
                  case when v_segment = p_pos_segment then p_pos_xid else '0'::xid8 end,
                  case when v_segment = p_pos_segment then p_pos_seq else 0 end,
                  p_limit - cardinality(rows), p_bytes - bytes;
        if cardinality(v_piece.rows) > 0 then
            rows := rows || v_piece.rows;
            bytes := bytes + v_piece.bytes;
            segments := segments || array_fill(v_segment, array[cardinality(v_piece.rows)]);
            exit when cardinality(rows) >= p_limit or bytes >= p_bytes;
        end if;
    end loop;
end
$$;


-- Should an idle cursor move although no row was found?
--
-- Yes when a writer that began after the cursor is still at work, at most once in five minutes: if the writer is rolled back, later
-- windows do not read what it left in the index. Each move costs a row and a transaction id, in every lane, so a busy writer
-- elsewhere must not cause many.
create function forebay._should_move(p_from pg_snapshot, p_now pg_snapshot, p_moved_at timestamptz) returns boolean
language plpgsql stable
as $$
begin
    -- In two steps, since an expression with a query is a statement even where the query is not evaluated.
    if pg_snapshot_xmin(p_now) = pg_snapshot_xmax(p_now)
       -- A time in the future is from before the clock was set back.
       or p_moved_at between forebay._now() - interval '5 minutes' and forebay._now() + interval '5 minutes' then
        return false;
    end if;
    return exists (select from pg_snapshot_xip(p_now) x where x >= pg_snapshot_xmax(p_from));
end
$$;


-- Is a cursor so far behind that forebay.ready_v1() reports its lane? The claim then moves it, also where the segments between are emptied
-- and leave nothing to read: otherwise polls and empty claims would not end.
create function forebay._is_old_cursor(p_from pg_snapshot) returns boolean
language sql stable
as $$
    select coalesce(pg_snapshot_xmax(p_from) < (select f.xid from forebay.seal f order by f.segment_id desc offset 1 limit 1), false)
$$;


-- functions/claim/xid_ranges.sql

-- The ids of the transactions that p_to shows and p_from does not, as ranges in ascending order. Rows are read by these ranges.
--
-- A scan of a longer range would visit the rows of each transaction that is in progress, and return none of them. Invariant "flat
-- cost": no claim and no poll reads the rows of an open transaction, however many it has written. Transactions that were in
-- progress at p_from and were rolled back since are left out too: their rows stay in the index until a vacuum.
create function forebay._xid_ranges(p_from pg_snapshot, p_to pg_snapshot) returns forebay._xid_range[]
language plpgsql stable
as $$
declare
    v_ranges forebay._xid_range[] := '{}';
    v_low    xid8 := pg_snapshot_xmax(p_from);
    v_xid    xid8;
begin
    if pg_snapshot_xmin(p_from) <> pg_snapshot_xmax(p_from) then
        v_ranges := array(
            select row(x, (x::text::numeric + 1)::text::xid8)::forebay._xid_range from pg_snapshot_xip(p_from) x
            where pg_visible_in_snapshot(x, p_to) and pg_xact_status(x) is distinct from 'aborted'
            order by x);
    end if;
    if pg_snapshot_xmin(p_to) <> pg_snapshot_xmax(p_to) then
        -- Its text has them in order. A query would cost more.
        foreach v_xid in array string_to_array(split_part(p_to::text, ':', 3), ',')::xid8[] loop
            continue when v_xid < v_low;
            if v_low < v_xid then
                v_ranges := v_ranges || row(v_low, v_xid)::forebay._xid_range;
            end if;
            v_low := (v_xid::text::numeric + 1)::text::xid8;
        end loop;
    end if;
    if v_low < pg_snapshot_xmax(p_to) then
        v_ranges := v_ranges || row(v_low, pg_snapshot_xmax(p_to))::forebay._xid_range;
    end if;
    return v_ranges;
end
$$;


-- The id of the caller's transaction, if it has one that its snapshot does not cover: a count includes the caller's own rows.
create function forebay._own_xid_range() returns forebay._xid_range[]
language sql stable
as $$
    select case when x.own >= pg_snapshot_xmax(pg_current_snapshot())
                then array[row(x.own, (x.own::text::numeric + 1)::text::xid8)::forebay._xid_range] else '{}' end
    from pg_current_xact_id_if_assigned() x (own)
$$;


-- functions/counts/change.sql

-- Record that deferred jobs were cancelled or replaced before they were due, so that counts subtract them at once.
create function forebay._withdraw(p_job_ids bigint[], p_group_id bigint default null) returns void
language plpgsql volatile
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
begin
    insert into forebay.withdrawn (queue, priority, audience, group_id, state, row_xid, run_at, deferred_id)
    select l.queue, l.priority, l.audience, p_group_id, forebay._state_of_deferred(d.attempt, d.pauses), d.xid, d.run_at, d.deferred_id
    from unnest(p_job_ids) j (job_id)
    cross join lateral (select i.* from forebay.deferred i where i.job_id = j.job_id offset 0) d
    cross join lateral (select i.queue, i.priority, i.audience from forebay.lane i where i.lane = d.lane limit 1) l
    left join lateral (select p.* from forebay.promotion p order by p.no desc limit 1) p on true
    where (pg_visible_in_snapshot(d.xid, p.snap) and (d.run_at, d.deferred_id) <= (p.run_at, p.deferred_id)) is not true
      and (p_group_id is null or l.audience in (0, p_group_id, -p_group_id));
end
$$;


-- Record that deferred rows were promoted or moved. Arrays belong together.
create function forebay._record_left(p_lanes bigint[], p_xids xid8[], p_states text[]) returns void
language plpgsql volatile
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
begin
    insert into forebay.count_change (queue, priorities, audiences, states, row_xids, jobs)
    select g.queue, array_agg(g.priority), array_agg(g.audience), array_agg(g.state), array_agg(g.xid), array_agg(g.jobs)
    from (select l.queue, l.priority, l.audience, left(u.state, 1)::"char" as state, u.xid, sum(u.jobs)::integer as jobs
          from (select i.lane, i.xid, i.state, count(*) as jobs from unnest(p_lanes, p_xids, p_states) i (lane, xid, state) group by 1, 2, 3) u
          cross join lateral (select i.queue, i.priority, i.audience from forebay.lane i where i.lane = u.lane limit 1) l
          group by 1, 2, 3, 4, 5) g
    group by g.queue;
end
$$;


-- Record that ready jobs of plain lanes were moved, or that the sweep has expired them: the claim that skips their rows does not count them.
create function forebay._record_skipped(p_queue text, p_group_id bigint, p_priority integer, p_jobs integer) returns void
language sql volatile
as $$
    insert into forebay.count_change (queue, group_id, priorities, audiences, states, row_xids, jobs)
    values (p_queue, p_group_id, array[p_priority], array[0], array['w'::"char"], array['0'::xid8], array[p_jobs])
$$;


-- functions/counts/parked.sql

-- The jobs of ordering keys that wait behind the cursors of groups, by the priority of their lanes; cancelled ones do not count.
create function forebay._parked_counts(p_queues text[])
returns table (queue text, priority integer, group_id bigint, parked bigint)
language plpgsql stable
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_tombstones constant boolean := pg_sequence_last_value('forebay.tombstone_seq') is not null;
begin
    if pg_sequence_last_value('forebay.key_seq') is null then
        return;
    end if;
    return query
    with parked as materialized (
        select l.queue, l.priority, p.group_id, p.lane, p.seq
        from forebay._all_ordering_parked() p
        cross join lateral (select i.queue, i.priority from forebay.lane i where i.lane = p.lane limit 1) l
        where p_queues is null or l.queue = any (p_queues)),
    cancelled as materialized (
        select p.group_id, r.lane, r.seq
        from (select i.group_id, array_agg(i.lane) as lanes, array_agg(i.seq) as seqs from parked i
              where v_tombstones group by i.group_id) p
        cross join lateral unnest(forebay._fetch(p.lanes, p.seqs)) r
        where exists (select from forebay.tombstone t
                      where t.job_id = coalesce(r.job_id, r.seq) and t.reason in ('c', 'r') and (t.group_id is null or t.group_id = p.group_id)))
    select p.queue, p.priority, p.group_id, count(*) from parked p
    where not exists (select from cancelled c where c.group_id = p.group_id and c.lane = p.lane and c.seq = p.seq)
    group by p.queue, p.priority, p.group_id;
end
$$;


-- functions/counts/read.sql

-- The jobs that wait, for the groups of some queues (null: all) or one group: by priority, and as a count that may be appended.
--
-- The sum over the states of forebay.job(), in the caller's snapshot, the caller's own jobs included. From the last count on it visits
-- what was appended, promoted, moved and, in keyed lanes, claimed since; and the cancelled scheduled jobs that are not due yet.
--
-- Parameters: p_most, a first count ends there: then visited is at least p_most and the numbers are lower bounds.
-- Returns: last, the count to append, without the caller's own rows; its no and its numbers of sequences are null. base_no: the number
--   of the count that it begins with. visited: rows.
create function forebay._count_waiting(p_queues text[], p_group_id bigint default null, p_most bigint default null)
returns table (queue text, group_id bigint, group_name text, priorities integer[], ready bigint[], scheduled bigint[], retrying bigint[],
               last forebay.queue_count, base_no bigint, visited bigint, is_first boolean)
language plpgsql stable
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now      constant pg_snapshot := pg_current_snapshot();
    v_own      constant xid8 := pg_current_xact_id_if_assigned();
    v_bases    forebay._count_base[];
    v_lanes    forebay._count_lane[];
    v_rows     forebay._count_rows[];
    v_passed   forebay._count_rows[] := '{}';
    v_position forebay.promotion;
begin
    v_bases := array(
        select row(row_number() over (order by w.queue, w.name), w.queue, w.group_id, w.name, w.start, c.no, c.snap, c.priorities, c.totals, c.scheduled,
                   c.retrying, c.keyed,
                   case when c.snap is not null then forebay._xid_ranges(c.snap, v_now) || forebay._own_xid_range() end)::forebay._count_base
        from (select q.queue, coalesce(g.group_id, 0) as group_id, coalesce(g.name, 'default') as name, coalesce(g.start_after, '1:1:') as start
              from forebay._queues_of(p_queues) q (queue) left join forebay.queue_group g on g.queue = q.queue) w
        left join lateral (select i.* from forebay.queue_count i
                           where i.queue = w.queue and i.group_id = w.group_id order by i.oldest desc, i.no desc limit 1) c on true
        where p_group_id is null or w.group_id = p_group_id);
    v_lanes := array(
        select row(row_number() over (), b.nr, l.priority, l.audience, l.sort = 'keyed',
                   case when l.sort = 'keyed' then 0 else coalesce(n.handed_total + n.skipped_total, 0) end,
                   row(0, l.lane, case l.audience when 0 then b.start else '1:1:' end, n.snap_from, n.snap_to, s.lo, s.hi, n.pos_xid,
                       n.pos_seq)::forebay._cursor,
                   n.high_seq, k.before)::forebay._count_lane
        from unnest(v_bases) b
        cross join lateral (select distinct i.lane, i.priority, i.audience, i.sort from forebay.lane i
                            where i.queue = b.queue and i.audience in (0, b.group_id, -b.group_id)) l
        left join lateral (select i.* from forebay.batch i
                           where i.group_id = b.group_id and i.lane = l.lane order by i.no desc limit 1) n on true
        left join forebay.segment s on s.segment_id = n.pos_segment
        left join lateral (select row(i.lane, i.unread, i.low, i.at)::forebay._keyed_count as before
                           from unnest(b.keyed) i where l.sort = 'keyed' and i.lane = l.lane limit 1) k on true);
    v_rows := array(select a from forebay._count_appended(v_bases, v_lanes) a union all select f from forebay._count_first(v_bases, v_lanes, p_most) f);
    if pg_sequence_last_value('forebay.key_seq') is not null then
        v_passed := array(select p from forebay._count_passed(v_bases, v_lanes) p);
    end if;
    select p.* into v_position from forebay.promotion p order by p.no desc limit 1;

    return query
    with lanes as materialized (
        select l.nr, l.base, l.priority, l.audience, l.is_keyed, l.consumed, l.cursor, l.high_seq, b.queue, b.snap, b.ranges,
               coalesce(r.jobs, 0) as jobs, coalesce(r.own, 0) as own, coalesce(p.jobs, 0) as passed,
               coalesce((l.before).unread, 0) + coalesce(r.jobs, 0) - coalesce(p.jobs, 0) as unread,
               -- The lowest number in front of the cursor: of the rows counted before, of the new ones, or above all that are behind it.
               least(p.low, r.low, coalesce(greatest((l.before).low, l.high_seq + 1), l.high_seq + 1)) as low
        from unnest(v_lanes) l
        join unnest(v_bases) b on b.nr = l.base
        left join unnest(v_rows) r on r.nr = l.nr
        left join unnest(v_passed) p on p.nr = l.nr),
    deferred_rows as materialized (
        select l.base, l.priority, count(*) as visited,
               count(*) filter (where d.state = 'scheduled' and d.is_waiting) as scheduled, count(*) filter (where d.state = 'retrying' and d.is_waiting) as retrying,
               count(*) filter (where d.state = 'scheduled' and d.is_waiting and d.is_own) as own_scheduled,
               count(*) filter (where d.state = 'retrying' and d.is_waiting and d.is_own) as own_retrying
        from lanes l
        cross join lateral unnest(coalesce(l.ranges, case when l.snap is null then array[row('0', '18446744073709551615')::forebay._xid_range] end)) r (low, high)
        cross join lateral (
            select forebay._state_of_deferred(i.attempt, i.pauses) as state, i.xid is not distinct from v_own as is_own,
                   not (v_position.no is not null and pg_visible_in_snapshot(i.xid, v_position.snap)
                        and (i.run_at, i.deferred_id) <= (v_position.run_at, v_position.deferred_id)) as is_waiting
            from forebay.deferred i where i.lane = (l.cursor).lane and i.kind <> '' and i.xid >= r.low and i.xid < r.high
            limit case when l.snap is null then p_most end offset 0) d
        group by l.base, l.priority),
    changes as materialized (
        select b.nr as base, u.priority, sum(u.jobs) as visited, sum(u.jobs) filter (where u.state = 'w') as moved,
               sum(u.jobs) filter (where u.state = 's') as scheduled, sum(u.jobs) filter (where u.state = 'r') as retrying
        from unnest(v_bases) b
        cross join lateral unnest(b.ranges) r
        cross join lateral (select i.* from forebay.count_change i where i.queue = b.queue and i.xid >= r.low and i.xid < r.high offset 0) c
        cross join lateral unnest(c.priorities, c.audiences, c.states, c.row_xids, c.jobs) u (priority, audience, state, row_xid, jobs)
        where case u.state when 'w' then c.group_id = b.group_id
                           else u.audience in (0, b.group_id, -b.group_id) and pg_visible_in_snapshot(u.row_xid, b.snap) end
        group by b.nr, u.priority),
    withdrawn_rows as materialized (
        select w.base, w.priority, count(*) filter (where w.state = 'scheduled') as scheduled, count(*) filter (where w.state = 'retrying') as retrying
        from (select distinct b.nr as base, u.priority, u.state, u.deferred_id
              from unnest(v_bases) b
              cross join lateral (
                  select i.* from forebay.withdrawn i
                  where i.queue = b.queue and (v_position.no is null or (i.run_at, i.deferred_id) > (v_position.run_at, v_position.deferred_id))
                  union all
                  -- Committed since the last promotion: it may be past due.
                  select i.* from unnest(forebay._xid_ranges(v_position.snap, v_now) || forebay._own_xid_range()) r
                  cross join lateral (select j.* from forebay.withdrawn j where j.queue = b.queue and j.xid >= r.low and j.xid < r.high offset 0) i
                  where not pg_visible_in_snapshot(i.row_xid, v_position.snap)) u
              where u.audience in (0, b.group_id, -b.group_id) and (u.group_id is null or u.group_id = b.group_id)) w
        group by w.base, w.priority),
    parked_jobs as materialized (
        select b.nr as base, p.priority, sum(p.parked) as parked
        from forebay._parked_counts(p_queues) p join unnest(v_bases) b on b.queue = p.queue and b.group_id = p.group_id
        group by b.nr, p.priority),
    limited_parked as materialized (
        select b.nr as base, l.priority, sum(p.jobs) as parked
        from forebay._all_limit_parked() p
        cross join lateral (select i.queue, i.priority from forebay.lane i where i.lane = p.lane limit 1) l
        join unnest(v_bases) b on b.queue = l.queue and b.group_id = p.group_id
        where exists (select from unnest(v_bases) n where n.snap is null) and b.snap is null
        group by b.nr, l.priority),
    gone as materialized (
        select b.nr as base, f.priority, f.total from unnest(v_bases) b join forebay.forgotten f on f.queue = b.queue and f.group_id = b.group_id),
    in_lanes as materialized (
        select l.base, l.priority, sum(l.jobs + l.passed) as visited, sum(l.jobs) filter (where not l.is_keyed) as jobs, sum(l.own) filter (where not l.is_keyed) as own,
               sum(l.consumed) as consumed, sum(l.unread) filter (where l.is_keyed) as keyed, sum(l.own) filter (where l.is_keyed) as own_keyed
        from lanes l group by l.base, l.priority),
    cells as materialized (
        select p.base, p.priority, b.snap is null as is_first, l.base is not null as has_lanes,
               coalesce(l.consumed, 0) + coalesce(f.total, 0) as consumed,
               coalesce(b.totals[p.place], case when b.snap is null then coalesce(l.consumed, 0) + coalesce(f.total, 0) else 0 end)
               + coalesce(l.jobs, 0) - coalesce(c.moved, 0) + coalesce(i.parked, 0) as total,
               coalesce(b.scheduled[p.place], 0) + coalesce(d.scheduled, 0) - coalesce(c.scheduled, 0) as scheduled,
               coalesce(b.retrying[p.place], 0) + coalesce(d.retrying, 0) - coalesce(c.retrying, 0) as retrying,
               coalesce(l.own, 0) as own, coalesce(d.own_scheduled, 0) as own_scheduled, coalesce(d.own_retrying, 0) as own_retrying,
               coalesce(l.keyed, 0) as keyed, coalesce(l.own_keyed, 0) as own_keyed, coalesce(k.parked, 0) as parked,
               coalesce(w.scheduled, 0) as withdrawn_scheduled, coalesce(w.retrying, 0) as withdrawn_retrying,
               coalesce(l.visited, 0) + coalesce(d.visited, 0) + coalesce(c.visited, 0) as visited
        from (select i.base, i.priority, array_position(b.priorities, i.priority) as place
              from (select l.base, l.priority from in_lanes l
                    union select b.nr, u from unnest(v_bases) b cross join lateral unnest(b.priorities) u
                    union select f.base, f.priority from gone f
                    union select k.base, k.priority from parked_jobs k
                    union select q.base, q.priority from limited_parked q) i
              join unnest(v_bases) b on b.nr = i.base) p
        join unnest(v_bases) b on b.nr = p.base
        left join in_lanes l on l.base = p.base and l.priority = p.priority
        left join deferred_rows d on d.base = p.base and d.priority = p.priority
        left join changes c on c.base = p.base and c.priority = p.priority
        left join withdrawn_rows w on w.base = p.base and w.priority = p.priority
        left join parked_jobs k on k.base = p.base and k.priority = p.priority
        left join gone f on f.base = p.base and f.priority = p.priority
        -- Behind the cursors, but not taken: the first count has them, later ones subtract what batches take.
        left join limited_parked i on i.base = p.base and i.priority = p.priority),
    keyed as materialized (
        select l.base, array_agg(row((l.cursor).lane, l.unread - l.own, l.low, l.cursor)::forebay._keyed_count) as keyed
        from lanes l where l.is_keyed group by l.base)
    select b.queue, b.group_id, b.group_name,
           coalesce(s.priorities, '{}'), coalesce(s.ready, '{}'), coalesce(s.scheduled, '{}'), coalesce(s.retrying, '{}'),
           row(b.queue, b.group_id, null, null, null, null, forebay._snapshot_of_others(v_now), null,
               coalesce(s.waiting, 0), coalesce(s.consumed, 0), coalesce(s.all_priorities, '{}'), coalesce(s.all_totals, '{}'),
               coalesce(s.all_scheduled, '{}'), coalesce(s.all_retrying, '{}'), coalesce(k.keyed, '{}'))::forebay.queue_count,
           b.no, coalesce(s.visited, 0)::bigint, b.snap is null
    from unnest(v_bases) b
    left join (
        select c.base, sum(c.visited) as visited, sum(c.consumed)::bigint as consumed,
               -- Without the caller's own jobs, those that it has withdrawn excepted: an enqueue that counts is rolled back or adds more.
               sum(c.total - c.own - c.consumed + c.keyed - c.own_keyed + c.parked + c.scheduled - c.own_scheduled - c.withdrawn_scheduled
                   + c.retrying - c.own_retrying - c.withdrawn_retrying)::bigint as waiting,
               array_agg(c.priority order by c.priority) filter (where c.is_shown) as priorities,
               array_agg((c.total - c.consumed + c.keyed + c.parked)::bigint order by c.priority) filter (where c.is_shown) as ready,
               array_agg((c.scheduled - c.withdrawn_scheduled)::bigint order by c.priority) filter (where c.is_shown) as scheduled,
               array_agg((c.retrying - c.withdrawn_retrying)::bigint order by c.priority) filter (where c.is_shown) as retrying,
               array_agg(c.priority order by c.priority) as all_priorities,
               array_agg((c.total - c.own)::bigint order by c.priority) as all_totals,
               array_agg((c.scheduled - c.own_scheduled)::bigint order by c.priority) as all_scheduled,
               array_agg((c.retrying - c.own_retrying)::bigint order by c.priority) as all_retrying
        from (select i.*, i.has_lanes or i.total - i.consumed + i.keyed + i.parked + i.scheduled + i.retrying <> 0 as is_shown from cells i) c
        group by c.base) s on s.base = b.nr
    left join keyed k on k.base = b.nr
    order by b.nr;
end
$$;


-- The queues of the registry of lanes, or p_queues.
create function forebay._queues_of(p_queues text[]) returns setof text
language sql stable
as $$
    with recursive queue as (
        (select l.queue from forebay.lane l where p_queues is null order by l.queue limit 1)
        union all
        select n.queue from queue q, lateral (
            select l.queue from forebay.lane l where l.queue > q.queue order by l.queue limit 1) n
    )
    select q.queue from queue q
    union
    select u from unnest(p_queues) u
$$;


-- A snapshot without the caller's transaction. The server's list of those in progress leaves the caller out. So where a later
-- transaction has ended, the caller's counts as visible, and with that snapshot its rows would never be counted.
create function forebay._snapshot_of_others(p_snap pg_snapshot) returns pg_snapshot
language sql stable
as $$
    select case when x.own < pg_snapshot_xmax(p_snap)
                then (pg_snapshot_xmin(p_snap) || ':' || pg_snapshot_xmax(p_snap) || ':'
                      || (select string_agg(i.xid::text, ',' order by i.xid)
                          from (select pg_snapshot_xip(p_snap) as xid union select x.own) i))::pg_snapshot
                else p_snap end
    from pg_current_xact_id_if_assigned() x (own)
$$;


-- functions/counts/renew.sql

-- grant: worker

-- Renew the counts of waiting jobs that have much to visit, so that neither forebay.depth() nor an enqueue visits many rows. Returns how
-- many counts it appended.
--
-- A count is renewed when it visited p_least rows or more, and once a minute when it visited any. The first count of a group visits all its waiting
-- jobs, about a second for a million; later ones visit what was enqueued, promoted or claimed since. Not in steps: see
-- docs/design/backpressure.md. No enqueue and no claim waits for it.
--
-- Parameters: p_queues, null: all.
-- Errors: JQ030 foreign cluster.
-- pages: 1000 + 100 a lane + 4 an uncounted job
create function forebay.renew_counts_v1(p_least bigint default 500, p_queues text[] default null) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    -- Before the snapshot below.
    v_last     constant bigint := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    v_deferred constant bigint := coalesce(pg_sequence_last_value('forebay.deferred_seq'), 0);
    v_found    record;
    v_renewed  integer := 0;
begin
    perform forebay._require_same_cluster();
    for v_found in
        select w.last, w.base_no
        from forebay._count_waiting(p_queues) w
        left join lateral (select c.counted_at, c.consumed from forebay.queue_count c
                           where c.queue = w.queue and c.group_id = w.group_id order by c.oldest desc, c.no desc limit 1) c on true
        where w.is_first or w.visited >= p_least
           or (w.visited > 0 or c.consumed <> (w.last).consumed) and c.counted_at not between forebay._now() - interval '1 minute' and forebay._now()
    loop
        perform forebay._keep_count(v_found.last, v_found.base_no, v_last, v_deferred);
        v_renewed := v_renewed + 1;
    end loop;
    return v_renewed;
end
$$;


-- functions/counts/rows.sql

-- Is a row of the log behind a cursor, or older than the group?
create function forebay._is_behind(p_xid xid8, p_seq bigint, c forebay._cursor) returns boolean
language sql immutable
as $$
    select case when c.snap_from is null then pg_visible_in_snapshot(p_xid, c.start)
                else forebay._is_consumed(p_xid, p_seq, c.snap_from, c.snap_to, c.lo, c.hi, c.pos_xid, c.pos_seq) end
$$;


-- The rows of the log that the last counts do not have: in plain lanes all, in keyed lanes those in front of the cursor.
--
-- Invariant "flat cost": reads segments that may have such rows, each by name, and the rows by ranges of transactions.
create function forebay._count_appended(p_bases forebay._count_base[], p_lanes forebay._count_lane[]) returns setof forebay._count_rows
language plpgsql stable
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_oldest xid8 := (select min((b.ranges[1]).low) from unnest(p_bases) b);
    v_sql    text;
begin
    select string_agg(format(
        'select l.nr, i.xid, i.seq from unnest($1) b cross join lateral unnest(b.ranges) r join unnest($2) l on l.base = b.nr and not l.is_keyed
         cross join lateral (
             select i.xid, i.seq from forebay.log_%1$s i
             where i.lane = (l.cursor).lane and i.xid >= r.low and i.xid < r.high and (i.lane & 1 = 0 or i.kind <> '''') offset 0) i
         union all
         select l.nr, i.xid, i.seq from unnest($1) b cross join lateral unnest(b.ranges) r join unnest($2) l on l.base = b.nr and l.is_keyed
         cross join lateral (
             select i.xid, i.seq from forebay.log_%1$s i
             where i.lane = (l.cursor).lane and i.xid >= r.low and i.xid < r.high and i.kind <> '''' and not forebay._is_behind(i.xid, i.seq, l.cursor)
             offset 0) i', s.segment_id), ' union all ')
    into v_sql
    from forebay.segment s left join forebay.seal f using (segment_id)
    where s.removed_at is null and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0) and s.lo >= forebay._archived_below()
      and (f.xid is null or f.xid > v_oldest) and forebay._has_table(s.segment_id);
    if v_sql is null or v_oldest is null then
        return;
    end if;
    return query execute
        'select u.nr, count(*), count(*) filter (where u.xid = pg_current_xact_id_if_assigned()),
                min(u.seq) filter (where u.xid is distinct from pg_current_xact_id_if_assigned())
         from (' || v_sql || ') u group by u.nr' using p_bases, p_lanes;
end
$$;


-- The rows of keyed lanes that the last count had in front of the cursor, and that are behind it now; low is the lowest number of
-- those that are still in front of it and not above the highest number behind it.
--
-- A keyed lane is read in the order of numbers, so these rows lie between the lowest number in front of the earlier cursor and the
-- highest number behind the present one.
create function forebay._count_passed(p_bases forebay._count_base[], p_lanes forebay._count_lane[]) returns setof forebay._count_rows
language plpgsql stable
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_low  bigint;
    v_high bigint;
    v_sql  text;
begin
    select min((l.before).low), max(l.high_seq) into v_low, v_high from unnest(p_lanes) l where l.is_keyed;
    if v_low is null then
        return;
    end if;
    select string_agg(format(
        'select l.nr, i.seq, i.is_behind from unnest($1) b join unnest($2) l on l.base = b.nr and l.is_keyed
         cross join lateral (
             select i.seq, forebay._is_behind(i.xid, i.seq, l.cursor) as is_behind from forebay.log_%s i
             where i.lane = (l.cursor).lane and i.ordering_key is not null and i.seq >= (l.before).low and i.seq <= l.high_seq and i.kind <> ''''
               and pg_visible_in_snapshot(i.xid, b.snap) and not forebay._is_behind(i.xid, i.seq, (l.before).at)
             offset 0) i', s.segment_id), ' union all ')
    into v_sql
    from forebay.segment s
    where s.removed_at is null and s.hi > v_low and s.lo <= v_high and s.lo >= forebay._archived_below() and forebay._has_table(s.segment_id);
    if v_sql is null then
        return;
    end if;
    return query execute
        'select u.nr, count(*) filter (where u.is_behind), 0::bigint, min(u.seq) filter (where not u.is_behind) from (' || v_sql || ') u group by u.nr'
        using p_bases, p_lanes;
end
$$;


-- The rows in front of the cursors of lanes that were never counted. Ready jobs of plain lanes that were moved, or that the sweep has
-- expired, do not count. With p_most no more rows than that are visited.
create function forebay._count_first(p_bases forebay._count_base[], p_lanes forebay._count_lane[], p_most bigint)
returns setof forebay._count_rows
language plpgsql stable
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_cursors forebay._cursor[];
    v_nrs     bigint[];
    v_groups  bigint[];
    v_keyed   boolean[];
begin
    select array_agg(row(l.place, (l.cursor).lane, (l.cursor).start, (l.cursor).snap_from, (l.cursor).snap_to, (l.cursor).lo, (l.cursor).hi,
                         (l.cursor).pos_xid, (l.cursor).pos_seq)::forebay._cursor order by l.place),
           array_agg(l.nr order by l.place), array_agg(l.group_id order by l.place), array_agg(l.is_keyed order by l.place)
    into v_cursors, v_nrs, v_groups, v_keyed
    from (select i.nr, i.cursor, i.is_keyed, b.group_id, row_number() over (order by i.nr) as place
          from unnest(p_lanes) i join unnest(p_bases) b on b.nr = i.base where b.snap is null) l;
    if v_cursors is null then
        return;
    end if;
    return query execute
        'select ($2)[u.nr], count(*), count(*) filter (where u.xid = pg_current_xact_id_if_assigned()),
                min(u.seq) filter (where u.xid is distinct from pg_current_xact_id_if_assigned())
         from (' || forebay._unread_sql(v_cursors, 'l.xid, l.seq, l.job_id') || coalesce(' limit ' || p_most, '') || ') u
         where $5 or ($4)[u.nr]
            or not exists (select from forebay.tombstone t
                           where t.job_id = coalesce(u.job_id, u.seq) and t.group_id = ($3)[u.nr]
                             and (t.reason = ''e'' or t.reason = ''m'' and u.seq <= t.up_to))
         group by u.nr'
        using v_cursors, v_nrs, v_groups, v_keyed, pg_sequence_last_value('forebay.tombstone_seq') is null;
end
$$;


-- functions/counts/trim.sql

-- Delete counts of waiting jobs behind the newest ones, and those of groups that are gone: an enqueue that was open when its group was
-- deleted may commit one afterwards. Then what only older counts need: changes, and withdrawn jobs that were promoted.
create function forebay._trim_counts(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_queue text := coalesce(p_after::jsonb ->> 0, '');
    v_group bigint := coalesce((p_after::jsonb ->> 1)::bigint, -9223372036854775808);
    v_next  record;
    v_left  bigint := p_most;
    v_is_used boolean;
    v_gone  bigint;
begin
    rows := 0;
    loop
        select c.queue, c.group_id, c.oldest, c.no into v_next from forebay.queue_count c
        where (c.queue, c.group_id) > (v_queue, v_group) order by c.queue, c.group_id, c.oldest desc, c.no desc limit 1;
        exit when not found;
        -- 0 stands for the group of a queue that has none.
        v_is_used := exists (select from forebay.queue_group g where g.queue = v_next.queue and g.group_id = v_next.group_id)
                     or v_next.group_id = 0 and not exists (select from forebay.queue_group g where g.queue = v_next.queue);
        delete from forebay.queue_count c
        where c.ctid = any (array(
            select o.ctid from forebay.queue_count o
            where o.queue = v_next.queue and o.group_id = v_next.group_id and (not v_is_used or (o.oldest, o.no) < (v_next.oldest, v_next.no))
            order by o.oldest desc, o.no desc limit v_left));
        get diagnostics v_gone = row_count;
        rows := rows + v_gone;
        if v_gone < v_left then
            v_queue := v_next.queue;
            v_group := v_next.group_id;
        end if;
        v_left := v_left - v_gone - 1;
        if v_left <= 0 then
            next := jsonb_build_array(v_queue, v_group);
            return;
        end if;
    end loop;
    v_gone := forebay._trim_changes(p_most) + forebay._trim_withdrawn(p_most);
    rows := rows + v_gone;
    next := case when v_gone >= p_most then jsonb_build_array(v_queue, v_group) end;
end
$$;


-- Delete changes that the newest counts have. A count that an open transaction appends is read only if its snapshot is as new.
create function forebay._trim_changes(p_most integer) returns bigint
language plpgsql volatile
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_queue text;
    v_up_to xid8;
    v_gone  bigint;
    v_total bigint := 0;
begin
    for v_queue in
        with recursive queue as (
            (select c.queue from forebay.count_change c order by c.queue limit 1)
            union all
            select n.queue from queue q, lateral (
                select c.queue from forebay.count_change c where c.queue > q.queue order by c.queue limit 1) n
        )
        select q.queue from queue q
    loop
        select case when bool_and(c.oldest is not null) then min(c.oldest) end into v_up_to
        from (select coalesce(i.group_id, 0) as group_id
              from (select) one left join forebay.queue_group i on i.queue = v_queue) g
        left join lateral (select i.oldest from forebay.queue_count i
                           where i.queue = v_queue and i.group_id = g.group_id order by i.oldest desc, i.no desc limit 1) c on true;
        delete from forebay.count_change c
        where c.ctid = any (array(
            select i.ctid from forebay.count_change i where i.queue = v_queue and i.xid < v_up_to order by i.xid limit p_most - v_total));
        get diagnostics v_gone = row_count;
        v_total := v_total + v_gone;
        exit when v_total >= p_most;
    end loop;
    return v_total;
end
$$;


-- Delete withdrawn jobs whose rows were promoted.
create function forebay._trim_withdrawn(p_most integer) returns bigint
language plpgsql volatile
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_gone bigint;
begin
    delete from forebay.withdrawn w
    where w.ctid = any (array(
        select i.ctid from (select p.* from forebay.promotion p order by p.no desc limit 1) p
        cross join lateral (
            select j.ctid from forebay.withdrawn j
            where (j.run_at, j.deferred_id) <= (p.run_at, p.deferred_id) and pg_visible_in_snapshot(j.row_xid, p.snap)
            order by j.run_at, j.deferred_id limit p_most) i));
    get diagnostics v_gone = row_count;
    return v_gone;
end
$$;


-- functions/counts/waiting.sql

-- How many jobs of a queue wait for a group (0: the queue has no group), or an upper bound that is at most p_enough.
--
-- All that wait count: ready, scheduled, retrying and parked jobs, as forebay.depth() shows them. Of open transactions only the caller's.
--
-- Parameters: p_keep_from, append the count when at least this many rows had to be visited; null: never. p_most, for an enqueue: a
--   first count ends there, is not kept, and its result is a lower bound; and after this many numbers a count is renewed, so that
--   none has much more to visit.
create function forebay._waiting(p_queue text, p_group_id bigint, p_enough bigint, p_keep_from bigint, p_most bigint default null)
returns bigint
language plpgsql volatile
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    -- Before any snapshot below.
    v_last     constant bigint := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    v_deferred constant bigint := coalesce(pg_sequence_last_value('forebay.deferred_seq'), 0);
    v_drawn    bigint;
    v_bound    bigint;
    v_count    record;
    v_found    record;
    v_waiting  bigint;
begin
    select c.seq, c.deferred_seq, c.waiting, c.consumed into v_count from forebay.queue_count c
    where c.queue = p_queue and c.group_id = p_group_id order by c.oldest desc, c.no desc limit 1;
    if v_count.waiting is not null then
        -- A job that begins to wait draws a number: that of its row. Only keyed jobs that are requeued do not.
        v_drawn := v_last - v_count.seq + v_deferred - v_count.deferred_seq;
        if v_count.waiting + v_drawn <= p_enough and (v_drawn >= p_most) is not true then
            return v_count.waiting + v_drawn;
        end if;
        v_bound := v_count.waiting + v_drawn + v_count.consumed - forebay._consumed(p_queue, p_group_id);
        if v_bound <= p_enough and (v_drawn >= p_most) is not true then
            return v_bound;
        end if;
    end if;
    select w.* into v_found from forebay._count_waiting(array[p_queue], p_group_id, p_most) w;
    if v_found.queue is null then
        return 0;  -- No such group.
    end if;
    v_waiting := (select coalesce(sum(u.ready + u.scheduled + u.retrying), 0)
                  from unnest(v_found.ready, v_found.scheduled, v_found.retrying) u (ready, scheduled, retrying));
    if v_found.is_first and v_waiting >= p_most then
        return v_waiting;
    end if;
    if v_found.visited >= p_keep_from or v_drawn >= p_most or v_found.is_first and p_keep_from is not null then
        perform forebay._keep_count(v_found.last, v_found.base_no, v_last, v_deferred);
    end if;
    return v_waiting;
end
$$;


-- Append a count; p_seq and p_deferred_seq are the last numbers before its snapshot.
--
-- Nothing where another count was appended since the one that it begins with, p_base_no: forebay.retain_v1() renews counts and then
-- empties a segment, and this one may have missed the rows. A transaction with one snapshot for all statements cannot tell, and keeps none.
create function forebay._keep_count(p_count forebay.queue_count, p_base_no bigint, p_seq bigint, p_deferred_seq bigint) returns void
language sql volatile
as $$
    insert into forebay.queue_count (
        queue, group_id, oldest, seq, deferred_seq, snap, counted_at, waiting, consumed, priorities, totals, scheduled, retrying, keyed)
    select p_count.queue, p_count.group_id, pg_snapshot_xmin(p_count.snap), p_seq, p_deferred_seq, p_count.snap, forebay._now(), p_count.waiting,
           p_count.consumed, p_count.priorities, p_count.totals, p_count.scheduled, p_count.retrying, p_count.keyed
    where current_setting('transaction_isolation') = 'read committed'
      and p_base_no is not distinct from (select c.no from forebay.queue_count c where c.queue = p_count.queue and c.group_id = p_count.group_id
                                          order by c.oldest desc, c.no desc limit 1)
$$;


-- The jobs that a group's batches have handed out or skipped in the plain lanes of a queue, those of forgotten lanes included.
create function forebay._consumed(p_queue text, p_group_id bigint) returns bigint
language sql stable
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
    select (select coalesce(sum(b.handed_total + b.skipped_total), 0)
            from (select distinct i.lane from forebay.lane i
                  where i.queue = p_queue and i.audience in (0, p_group_id, -p_group_id) and i.sort <> 'keyed') l
            cross join lateral (select i.handed_total, i.skipped_total from forebay.batch i
                                where i.group_id = p_group_id and i.lane = l.lane order by i.no desc limit 1) b)
         + (select coalesce(sum(f.total), 0) from forebay.forgotten f where f.queue = p_queue and f.group_id = p_group_id)
$$;


-- The group that max_waiting of a queue counts for: the one named there, 0 while the queue has no group, null without such a group.
create function forebay._counting_group(p_queue text, p_name text) returns bigint
language sql stable
as $$
    select case when count(*) = 0 then 0 else min(g.group_id) filter (where g.name = coalesce(p_name, 'default')) end
    from forebay.queue_group g where g.queue = p_queue
$$;


-- Refuse p_more jobs when they would exceed the queue's max_waiting for the group that it counts for. Other groups, dead ones perhaps,
-- stop no enqueue.
--
-- A group that was not counted yet, with more than 10,000 waiting jobs, refuses only what exceeds these: no enqueue counts millions.
-- forebay.renew_counts_v1() counts it within seconds.
-- Errors: 53400.
create function forebay._require_below_max_waiting(p_queue text, p_more bigint) returns void
language plpgsql volatile
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_max      bigint;
    v_name     text;
    v_group_id bigint;
    v_waiting  bigint;
begin
    select l.max_waiting, l.max_waiting_group into v_max, v_name from forebay.queue_limits l where l.queue = p_queue;
    if v_max is null or p_more = 0 then
        return;
    end if;
    v_group_id := forebay._counting_group(p_queue, v_name);
    if v_group_id is null then
        return;
    end if;
    v_waiting := forebay._waiting(p_queue, v_group_id, v_max - p_more, 100, 10000);
    if v_waiting + p_more > v_max then
        raise exception using errcode = '53400',
            message = format('queue %s is full: %s jobs wait, %s more would exceed max_waiting %s', p_queue, v_waiting, p_more, v_max),
            detail = jsonb_build_object('queue', p_queue, 'waiting', v_waiting, 'max_waiting', v_max),
            hint = 'Nothing was enqueued. Try again when workers have caught up, or raise max_waiting with forebay.limit_queue().';
    end if;
end
$$;


-- functions/deferred/promote.sql

-- grant: worker

-- Append at most p_limit due jobs to the log; returns how many.
--
-- Promoted rows are those visible in a snapshot at or below a position (run_at, deferred_id). A promotion takes two
-- disjoint sets: rows between the old position and the new one, and rows at or below the old position that became visible
-- since. Nothing is updated, locked or skipped, so no row can be missed.
--
-- Invariant "nothing lost".
-- Parameters: p_limit, 1 to 100000.
-- Errors: JQ001 a bad limit, JQ012 not called alone, JQ030 foreign cluster.
-- Locks: the promotion lock, or returns 0 when another promoter has it.
-- pages: 60 + 20 a job + 3 an open transaction
create function forebay.promote_v1(p_limit integer default 5000) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_cursor forebay.promotion;
    v_now    pg_snapshot;
    v_ranges forebay._xid_range[];
    v_at     timestamptz;
    v_run_at timestamptz[];
    v_ids    bigint[];
    v_position   timestamptz;
    v_position_id bigint;
    v_due    integer := 0;
    v_late   integer := 0;
    v_lanes  bigint[];
    v_left   record;
begin
    -- With a limit of 0 the position would move past jobs that were not promoted.
    if p_limit is null or p_limit not between 1 and 100000 then
        raise exception using errcode = 'JQ001', message = format('limit %s is outside 1 to 100000', coalesce(p_limit::text, 'null'));
    end if;
    perform forebay._require_alone('forebay.promote_v1()');
    perform forebay._require_same_cluster();
    if not forebay._try_lock('promotion') then
        return 0;
    end if;
    select pg_current_snapshot(), forebay._now() into v_now, v_at;
    select * into v_cursor from forebay.promotion p order by p.no desc limit 1;
    if not found then
        v_cursor := row(0, '1:1:', '-infinity', 0, 0, v_at);
    end if;
    if pg_snapshot_xmax(v_cursor.snap) > pg_snapshot_xmax(v_now) then
        raise exception using errcode = 'JQ030',
            message = 'the promotion cursor is ahead of this cluster',
            hint = 'This database was restored from another cluster. Run forebay adopt --resume or --discard.';
    end if;
    if v_cursor.run_at > v_at then
        -- The clock was set back. Once the rows promoted already are deleted, the position may follow the clock.
        delete from forebay.deferred d
        where (d.run_at, d.deferred_id) <= (v_cursor.run_at, v_cursor.deferred_id)
          and pg_visible_in_snapshot(d.xid, v_cursor.snap);
        delete from forebay.withdrawn w
        where (w.run_at, w.deferred_id) <= (v_cursor.run_at, v_cursor.deferred_id)
          and pg_visible_in_snapshot(w.row_xid, v_cursor.snap);
        v_cursor.run_at := v_at;
        v_cursor.deferred_id := 0;
    end if;

    v_ranges := forebay._xid_ranges(v_cursor.snap, v_now);
    -- Mostly nothing is due and nothing was added: two probes, and one for each transaction in progress at either snapshot.
    if not exists (select from forebay.deferred d
                   where (d.run_at, d.deferred_id) > (v_cursor.run_at, v_cursor.deferred_id) and d.run_at <= v_at)
       and not exists (
           select from unnest(v_ranges) r (low, high), lateral (
               select from forebay.deferred d where d.xid >= r.low and d.xid < r.high limit 1) f)
       and not forebay._should_move(v_cursor.snap, v_now, v_cursor.promoted_at) then
        return 0;
    end if;

    select array_agg(d.run_at order by d.run_at, d.deferred_id), array_agg(d.deferred_id order by d.run_at, d.deferred_id)
    into v_run_at, v_ids
    from (select i.run_at, i.deferred_id from forebay.deferred i
          where (i.run_at, i.deferred_id) > (v_cursor.run_at, v_cursor.deferred_id)
            and i.run_at <= v_at
            and pg_visible_in_snapshot(i.xid, v_now)
          order by i.run_at, i.deferred_id
          limit p_limit) d;
    if cardinality(v_ids) = p_limit then
        v_position := v_run_at[p_limit];
        v_position_id := v_ids[p_limit];
    else
        v_position := v_at;
        v_position_id := 9223372036854775807;
    end if;

    if v_ids is not null then
        with due as materialized (
            select d.* from forebay.deferred d
            where (d.run_at, d.deferred_id) > (v_cursor.run_at, v_cursor.deferred_id)
              and (d.run_at, d.deferred_id) <= (v_position, v_position_id)
              and pg_visible_in_snapshot(d.xid, v_now)
        ), written as (
            insert into forebay.log (
                lane, enqueued_at, job_id, expires_at, attempt, max_attempts, pauses, kind, args, tag, correlation_id, headers,
                ordering_key, unique_key, limit_key)
            select d.lane, d.enqueued_at, nullif(d.job_id, 0), d.expires_at, d.attempt, d.max_attempts, d.pauses, d.kind, d.args,
                   d.tag, d.correlation_id, d.headers, d.ordering_key, d.unique_key, d.limit_key
            from due d
            order by d.run_at, d.deferred_id
        )
        select count(*) as jobs, array_agg(d.lane) as all_lanes, array_agg(d.lane) filter (where d.kind <> '') as lanes,
               array_agg(d.xid) filter (where d.kind <> '') as xids,
               array_agg(forebay._state_of_deferred(d.attempt, d.pauses)) filter (where d.kind <> '') as states
        into v_left from due d;
        v_due := v_left.jobs;
        v_lanes := v_left.all_lanes;
        perform forebay._record_left(v_left.lanes, v_left.xids, v_left.states);
    end if;

    -- At or below the old position, and visible only since.
    with late as materialized (
        select d.*
        from unnest(v_ranges) r (low, high), lateral (
            select * from forebay.deferred i where i.xid >= r.low and i.xid < r.high
            offset 0) d  -- Keeps the planner from reading everything below the position by time.
        where (d.run_at, d.deferred_id) <= (v_cursor.run_at, v_cursor.deferred_id)
    ), written as (
        insert into forebay.log (
            lane, enqueued_at, job_id, expires_at, attempt, max_attempts, pauses, kind, args, tag, correlation_id, headers,
            ordering_key, unique_key, limit_key)
        select d.lane, d.enqueued_at, nullif(d.job_id, 0), d.expires_at, d.attempt, d.max_attempts, d.pauses, d.kind, d.args,
               d.tag, d.correlation_id, d.headers, d.ordering_key, d.unique_key, d.limit_key
        from late d
        order by d.run_at, d.deferred_id
    )
    select count(*) as jobs, array_agg(d.lane) as all_lanes, array_agg(d.lane) filter (where d.kind <> '') as lanes,
               array_agg(d.xid) filter (where d.kind <> '') as xids,
           array_agg(forebay._state_of_deferred(d.attempt, d.pauses)) filter (where d.kind <> '') as states
    into v_left from late d;
    v_late := v_left.jobs;
    if v_late > 0 then
        v_lanes := v_lanes || v_left.all_lanes;
        perform forebay._record_left(v_left.lanes, v_left.xids, v_left.states);
    end if;
    v_lanes := array(select distinct u from unnest(v_lanes) u);
    -- The lanes may have become dormant while the jobs waited.
    if v_lanes <> '{}' then
        perform forebay._use_lanes(v_lanes);
    end if;

    if v_due + v_late > 0
       or exists (
           select from unnest(v_ranges) r (low, high), lateral (
               select from forebay.deferred d where d.xid >= r.low and d.xid < r.high limit 1) f)
       or forebay._should_move(v_cursor.snap, v_now, v_cursor.promoted_at) then
        insert into forebay.promotion (no, snap, run_at, deferred_id, promoted, promoted_at)
        values (v_cursor.no + 1, v_now, v_position, v_position_id, v_due + v_late, v_at);
        if v_due + v_late > 0 then
            perform forebay._notify(q.queue)
            from (select distinct l.queue
                  from (select distinct d.lane from forebay.deferred d
                        where (d.run_at, d.deferred_id) > (v_cursor.run_at, v_cursor.deferred_id)
                          and (d.run_at, d.deferred_id) <= (v_position, v_position_id)) d
                  cross join lateral (select i.queue from forebay.lane i where i.lane = d.lane limit 1) l) q;
        end if;
    end if;
    return v_due + v_late;
end
$$;


-- functions/drain/proofs.sql

-- The audit of a drain: it reads the proofs that the drain keeps as results, and sends again what the far side has lost.
-- See "Audits" in docs/design/deliver.md.
-- grant: worker

-- A page of the proofs of a group, in the order of their ends: id of the job, when it was enqueued, until when the proof is kept, the
-- proof. Its last row is where the next page begins.
--
-- Parameters: p_after_until and p_after_job_id, of the last row of the page before; null: the first page. p_most, 1 to 10000.
-- Errors: JQ001 a bad number, JQ014 no such group.
-- pages: 60 + 6 a proof + 1 a result of another group
create function forebay.proofs_v1(
    p_queue text, p_group_name text, p_after_until timestamptz default null, p_after_job_id bigint default null, p_most integer default 1000)
returns table (job_id bigint, enqueued_at timestamptz, kept_until timestamptz, proof jsonb)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
    if (p_most between 1 and 10000) is not true then
        raise exception using errcode = 'JQ001', message = format('most %s is outside 1 to 10000', coalesce(p_most::text, 'null'));
    end if;
    perform forebay._require_group(p_queue, p_group_name);
    return query
    select r.job_id, r.enqueued_at, r.kept_until, r.value
    from forebay.result r
    where r.kept_until >= coalesce(p_after_until, forebay._now())
      and (p_after_until is null or (r.kept_until, r.job_id) > (p_after_until, p_after_job_id))
      and r.group_id = (select g.group_id from forebay.queue_group g where g.queue = p_queue and g.name = p_group_name)
      and r.value ? 'proof'
    order by r.kept_until, r.job_id
    limit p_most;
end
$$;


-- functions/drain/resend.sql

-- grant: worker

-- Send lost messages again: for each job whose proof is there a new job of the same group with the same contents; returns their number.
--
-- Invariant "sent again once": the proof is deleted in the same transaction, so a second audit does not find the message. A job whose row the
-- log has no longer keeps its proof, and is not counted.
-- The new job keeps queue, priority, tag, correlation id, headers, keys and max_attempts; its expiry begins again.
-- Parameters: p_drain, the drain whose counters get the losses. p_job_ids and p_enqueued_at, which belong together, at most 10000.
-- Errors: JQ001 too many, JQ014 no such group.
-- Locks: the proofs' rows, and the group's row (SHARE).
-- pages: 300 + 200 a job + 1000 a segment
create function forebay.resend_v1(
    p_drain text, p_queue text, p_group_name text, p_job_ids bigint[], p_enqueued_at timestamptz[])
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_group_id bigint;
    v_segment  record;
    v_rows     forebay.log[];
    v_resent   integer := 0;
begin
    if cardinality(p_job_ids) > 10000 then
        raise exception using errcode = 'JQ001', message = format('%s jobs are more than 10000', cardinality(p_job_ids));
    end if;
    perform forebay._require_group(p_queue, p_group_name);
    select g.group_id into v_group_id from forebay.queue_group g
    where g.queue = p_queue and g.name = p_group_name and g.closing_at is null for share;
    if not found then
        raise exception using errcode = 'JQ014', message = format('group %s of queue %s was closed', p_group_name, p_queue);
    end if;
    for v_segment in
        select s.segment_id from forebay.segment s
        where s.hi > (select min(u) from unnest(p_job_ids) u) and s.removed_at is null
          and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0) and forebay._has_table(s.segment_id)
        order by s.segment_id
    loop
        -- The first row of each job; a job that was delayed has its id beside another number.
        execute format(
            'select array_agg(f.row order by (f.row).seq)
             from (select distinct on (coalesce(l.job_id, l.seq)) l as row
                   from (select i.* from forebay.log_%1$s i
                         where i.seq >= $3 and i.seq <= $4 and i.seq = any ($1) and i.job_id is null and i.kind <> ''''
                         union all
                         select i.* from forebay.log_%1$s i where i.job_id = any ($1)) l
                   join unnest($1, $2) u (job_id, enqueued_at) on u.job_id = coalesce(l.job_id, l.seq) and u.enqueued_at = l.enqueued_at
                   order by coalesce(l.job_id, l.seq), l.seq) f', v_segment.segment_id)
        into v_rows
        using p_job_ids, p_enqueued_at, (select min(u) from unnest(p_job_ids) u), (select max(u) from unnest(p_job_ids) u);
        continue when v_rows is null;
        with gone as materialized (
            delete from forebay.result r
            using unnest(v_rows) l
            where r.job_id = coalesce(l.job_id, l.seq) and r.group_id = v_group_id and r.enqueued_at = l.enqueued_at and r.value ? 'proof'
            returning r.job_id
        ), lost as materialized (
            select l.*, i.priority
            from unnest(v_rows) l
            cross join lateral (select n.priority from forebay.lane n where n.lane = l.lane limit 1) i
            where coalesce(l.job_id, l.seq) in (select g.job_id from gone g)
        ), target as materialized (
            select t.*, forebay._record_private_lane(p_queue, t.priority, v_group_id, case when t.is_keyed then '' end,
                                                     case when t.is_limited then '' end) as lane
            from (select distinct l.priority, l.ordering_key is not null as is_keyed, l.limit_key is not null as is_limited from lost l) t
        ), written as (
            insert into forebay.log (
                lane, enqueued_at, max_attempts, kind, args, tag, correlation_id, headers, ordering_key, limit_key)
            select t.lane, forebay._now(), l.max_attempts, l.kind, l.args, l.tag, l.correlation_id, l.headers, l.ordering_key, l.limit_key
            from lost l
            join target t on t.priority = l.priority and t.is_keyed = (l.ordering_key is not null) and t.is_limited = (l.limit_key is not null)
            order by l.seq
            returning 1
        )
        select v_resent + count(*) into v_resent from written;
    end loop;
    if v_resent > 0 then
        perform forebay._notify(p_queue);
        perform forebay._record_counters(
            jsonb_build_object('mirror', 'drain.' || p_drain, 'counts', jsonb_build_array(jsonb_build_array('lost', null, null, v_resent))), session_user);
        perform forebay._record_event('drains.resend', p_queue, p_group_name, p_count => v_resent, p_detail => p_drain);
    end if;
    return v_resent;
end
$$;


-- functions/endpoints/alter_endpoint.sql

-- grant: operator

-- Change settings of an endpoint, also while it delivers. null leaves a setting as it is. Returns whether that changed anything.
--
-- First the settings named in `remove` are removed ('all' for all of them), then the given ones are set. Removing a rate removes its burst.
-- New limits apply from the next claim on; if the breaker is open, when it closes. The new retry policy applies from the next failure on.
-- A configuration replaces the old one as a whole.
--
-- Parameters: as forebay.create_endpoint(); remove, some of rate, burst, disable_after, max_waiting, max_age.
-- Errors: JQ001 a bad option, JQ050 no endpoint has this name. On an error nothing is changed.
-- Locks, until the transaction ends: the endpoint, which makes reports of its deliveries wait; and as forebay.limit_key().
create function forebay.alter_endpoint(
    name text, sink text default null, config jsonb default null, retry jsonb default null, rate double precision default null,
    burst integer default null, concurrency integer default null, breaker_threshold integer default null,
    breaker_cooldown integer default null, disable_after interval default null, max_waiting bigint default null,
    max_age interval default null, keeps_response boolean default null, remove text[] default '{}')
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_names  constant text[] := '{rate,burst,disable_after,max_waiting,max_age}';
    v_remove text[] := coalesce(alter_endpoint.remove, '{}');
    v_bad    text;
    v_before constant forebay.endpoint := forebay._lock_endpoint(alter_endpoint.name);
    v_new    forebay.endpoint := v_before;
    v_state  forebay.endpoint_state;
begin
    select coalesce(quote_literal(left(r.name, 40)), 'null') into v_bad
    from unnest(v_remove) r (name) where (r.name = any (v_names || 'all'::text)) is not true limit 1;
    if v_bad is not null then
        raise exception using errcode = 'JQ001', column = 'remove',
            message = format('remove has %s, which is none of %s, all', v_bad, array_to_string(v_names, ', ')), hint = 'Nothing was changed.';
    end if;
    v_remove := case when 'all' = any (v_remove) then v_names
                     else v_remove || case when 'rate' = any (v_remove) then '{burst}'::text[] end end;
    v_new.sink := coalesce(alter_endpoint.sink, v_before.sink);
    v_new.config := coalesce(alter_endpoint.config, v_before.config);
    v_new.retry := coalesce(alter_endpoint.retry, v_before.retry);
    v_new.rate := coalesce(alter_endpoint.rate, case when 'rate' <> all (v_remove) then v_before.rate end);
    v_new.burst := coalesce(alter_endpoint.burst, case when 'burst' <> all (v_remove) then v_before.burst end);
    v_new.concurrency := coalesce(alter_endpoint.concurrency, v_before.concurrency);
    v_new.breaker_threshold := coalesce(alter_endpoint.breaker_threshold, v_before.breaker_threshold);
    v_new.breaker_cooldown := coalesce(alter_endpoint.breaker_cooldown, v_before.breaker_cooldown);
    v_new.disable_after := coalesce(alter_endpoint.disable_after, case when 'disable_after' <> all (v_remove) then v_before.disable_after end);
    v_new.max_waiting := coalesce(alter_endpoint.max_waiting, case when 'max_waiting' <> all (v_remove) then v_before.max_waiting end);
    v_new.max_age := coalesce(alter_endpoint.max_age, case when 'max_age' <> all (v_remove) then v_before.max_age end);
    v_new.keeps_response := coalesce(alter_endpoint.keeps_response, v_before.keeps_response);
    perform forebay._check_endpoint(v_new);
    if v_new is not distinct from v_before then
        return false;
    end if;
    if v_new.sink <> v_before.sink then
        v_new.retired_secrets := '[]';
    end if;
    update forebay.endpoint e
    set sink = v_new.sink, config = v_new.config, retired_secrets = v_new.retired_secrets, retry = v_new.retry, rate = v_new.rate,
        burst = v_new.burst, concurrency = v_new.concurrency, breaker_threshold = v_new.breaker_threshold,
        breaker_cooldown = v_new.breaker_cooldown, disable_after = v_new.disable_after, max_waiting = v_new.max_waiting,
        max_age = v_new.max_age, keeps_response = v_new.keeps_response, changed_at = forebay._now()
    where e.endpoint_id = v_new.endpoint_id;
    perform forebay._renew_endpoint(v_new.endpoint_id);
    select s.* into v_state from forebay.endpoint_state s where s.endpoint_id = v_new.endpoint_id;
    if v_state.opened_at is null then
        perform forebay._limit_endpoint(v_new, null);
    elsif v_new.breaker_cooldown <> v_before.breaker_cooldown then
        perform forebay._limit_endpoint(v_new, forebay._probe_at(v_state, v_new.breaker_cooldown));
    end if;
    -- Only what has changed.
    perform forebay._record_event(
        'endpoints.alter', p_subject_id => v_new.endpoint_id,
        p_old => (select jsonb_object_agg(o.key, o.value) from jsonb_each(forebay._endpoint_facts(v_before)) o
                  where o.key = 'name' or o.value is distinct from forebay._endpoint_facts(v_new) -> o.key),
        p_new => (select jsonb_object_agg(n.key, n.value) from jsonb_each(forebay._endpoint_facts(v_new)) n
                  where n.key = 'name' or n.value is distinct from forebay._endpoint_facts(v_before) -> n.key));
    return true;
end
$$;


-- functions/endpoints/check.sql

-- Refuse an endpoint whose settings are out of range, or whose configuration its sink does not take.
--
-- Errors: JQ001; COLUMN names the setting. The message repeats no value of the configuration: it may be a secret.
create function forebay._check_endpoint(e forebay.endpoint) returns void
language plpgsql stable
as $$
declare
    v_type    forebay.sink_type;
    v_problem record;
    v_hint    text;
begin
    select * into v_type from forebay.sink_type t where t.name = e.sink;
    select * into v_problem from (
        select 1 as place, 'name' as field, format('name %s of an endpoint must have 1 to 100 characters: letters, digits and _ . - only',
                                                   coalesce(quote_literal(left(e.name, 40)), 'null')) as text
        where (e.name ~ '^[A-Za-z0-9_.-]{1,100}$') is not true
        union all
        select 2, 'sink', format('sink %s is an unknown type', coalesce(quote_literal(left(e.sink, 40)), 'null')) where v_type.name is null
        union all
        select 3, 'config', format('config is %s, not a JSON object', coalesce(jsonb_typeof(e.config), 'null'))
        where jsonb_typeof(e.config) is distinct from 'object'
        union all
        select 4, 'config', p from forebay._config_problem(e.config, v_type) p where p is not null
        union all
        select 5, 'retry', p from forebay._retry_problem(e.retry) p where p is not null
        union all
        select 6, r.field, format('%s %s is outside %s', r.field, r.value, r.range)
        from (values ('rate', e.rate::numeric, '0.000001 to 1000000 per second', e.rate between 0.000001 and 1000000),
                     ('burst', e.burst, '1 to 1000000', e.burst between 1 and 1000000),
                     ('concurrency', e.concurrency, '1 to 1000000', e.concurrency between 1 and 1000000),
                     ('breaker_threshold', e.breaker_threshold, '1 to 1000', e.breaker_threshold between 1 and 1000),
                     ('breaker_cooldown', e.breaker_cooldown, '5 to 3600 seconds', e.breaker_cooldown between 5 and 3600),
                     ('max_waiting', e.max_waiting, '1 to 10^12', e.max_waiting between 1 and 1000000000000)) r (field, value, range, is_within)
        where not r.is_within
        union all
        select 7, 'burst', format('burst %s without a rate', e.burst) where e.burst is not null and e.rate is null
        union all
        select 8, r.field, format('%s %s is outside %s', r.field, r.value, r.range)
        from (values ('disable_after', e.disable_after, '12 hours to 365 days', e.disable_after between interval '12 hours' and interval '365 days'),
                     ('max_age', e.max_age, '1 second to 10 years', e.max_age between interval '1 second' and interval '10 years'))
             r (field, value, range, is_within)
        where not r.is_within
        union all
        select 9, r.field, format('%s is null', r.field)
        from (values ('concurrency', e.concurrency is null), ('breaker_threshold', e.breaker_threshold is null),
                     ('breaker_cooldown', e.breaker_cooldown is null), ('keeps_response', e.keeps_response is null)) r (field, is_null)
        where r.is_null) p
    order by p.place limit 1;
    if v_problem.text is not null then
        v_hint := case v_problem.field
            when 'sink' then format('Types: %s. Those of other packages are known once a process with the package has recorded them.',
                                    (select string_agg(t.name, ', ' order by t.name) from forebay.sink_type t))
            when 'config' then case when v_type.name is not null then format('Settings of %s: %s.', v_type.name, array_to_string(v_type.settings, ', ')) end
            when 'retry' then 'Give "standard", "ulak", or at most 100 delays in seconds, such as [10, 60, 600].' end;
        raise exception using errcode = 'JQ001', column = v_problem.field, message = v_problem.text,
            hint = coalesce(v_hint, 'Nothing was changed. See the function forebay.create_endpoint in the reference.');
    end if;
end
$$;


-- The problem with the configuration of a sink, or null.
create function forebay._config_problem(p_config jsonb, p_type forebay.sink_type) returns text
language sql stable
as $$
    select case
        when p_type.name is null or jsonb_typeof(p_config) is distinct from 'object' then null
        when octet_length(p_config::text) > 65536 then format('config takes %s bytes, the limit is 65536', octet_length(p_config::text))
        else coalesce(
            (select format('config has %s, which is not a setting of the sink %s', quote_literal(left(k, 40)), p_type.name)
             from jsonb_object_keys(p_config) k where k <> all (p_type.settings) order by k limit 1),
            (select format('config lacks %s, which the sink %s needs', quote_literal(r.name), p_type.name)
             from unnest(p_type.required) with ordinality r (name, nr) where not p_config ? r.name order by r.nr limit 1),
            case when p_type.name = 'http' then forebay._http_secret_problem(p_config) end) end
$$;


-- The problem with the secrets in the configuration of an HTTP endpoint, or null: all must be references.
create function forebay._http_secret_problem(p_config jsonb) returns text
language sql immutable
as $$
    select case
        when jsonb_typeof(p_config -> 'secrets') <> 'array' then 'config: secrets is not a list of references'
        when jsonb_array_length(case when jsonb_typeof(p_config -> 'secrets') = 'array' then p_config -> 'secrets' end) > 10
            then 'config: secrets has more than 10 entries'
        when exists (select from jsonb_array_elements(case when jsonb_typeof(p_config -> 'secrets') = 'array' then p_config -> 'secrets' end) s
                     where not forebay._is_reference(s))
            then 'config: secrets has an entry that is not a reference to a secret, "env:NAME" or "file:/path"'
        when jsonb_typeof(p_config -> 'auth') = 'null' then null
        when not forebay._is_reference(case when jsonb_typeof(p_config -> 'auth') = 'string'
                                            then to_jsonb(regexp_replace(p_config ->> 'auth', '^(bearer|basic) ', '', 'i')) else p_config -> 'auth' end)
            then 'config: auth is not a reference to a secret, such as "bearer env:NAME"' end
$$;


-- Does a value name a secret, instead of being one?
create function forebay._is_reference(p_value jsonb) returns boolean
language sql immutable
as $$ select case when p_value is not null then coalesce(jsonb_typeof(p_value) = 'string' and (p_value #>> '{}') ~ '^(env|file):.', false) end $$;


-- The problem with a retry policy, or null.
create function forebay._retry_problem(p_retry jsonb) returns text
language sql immutable
as $$
    select case
        when p_retry in ('"standard"', '"ulak"') then null
        when jsonb_typeof(p_retry) is distinct from 'array'
            then format('retry %s is neither a preset nor a list of delays', coalesce(quote_literal(left(p_retry::text, 40)), 'null'))
        when jsonb_array_length(p_retry) > 100 then format('retry has %s delays, the limit is 100', jsonb_array_length(p_retry))
        else (select format('retry has the delay %s, not a number of seconds from 0 to 2592000', left(d::text, 40))
              from jsonb_array_elements(p_retry) d
              where case when jsonb_typeof(d) = 'number' then d::numeric not between 0 and 2592000 else true end limit 1) end
$$;


-- The endpoint of a name, locked until the transaction ends.
--
-- Reports of deliverers lock the state first too, in the order of the ids, so that no two of them wait for each other.
-- Errors: JQ050.
create function forebay._lock_endpoint(p_name text) returns forebay.endpoint
language plpgsql volatile
as $$
declare
    v_endpoint forebay.endpoint;
    v_id       bigint;
begin
    select e.endpoint_id into v_id from forebay.endpoint e where e.name = p_name;
    perform from forebay.endpoint_state s where s.endpoint_id = v_id for update;
    select e.* into v_endpoint from forebay.endpoint e where e.endpoint_id = v_id;
    if v_endpoint.endpoint_id is null then
        perform forebay._raise_no_endpoint(p_name);
    end if;
    return v_endpoint;
end
$$;


-- Errors: JQ050.
create function forebay._raise_no_endpoint(p_name text) returns void
language plpgsql stable
as $$
begin
    raise exception using errcode = 'JQ050', message = format('endpoint %s not found', coalesce(quote_literal(left(p_name, 100)), 'null')),
        detail = jsonb_build_object('endpoint', left(p_name, 100)), hint = 'forebay.endpoints() lists all endpoints.';
end
$$;


-- The settings of an endpoint, as the event log has them.
create function forebay._endpoint_facts(e forebay.endpoint) returns jsonb
language sql stable
as $$
    select jsonb_strip_nulls(to_jsonb(e) - '{endpoint_id,retired_secrets,disabled_at,disabled_why,created_at,changed_at,version}'::text[])
$$;


-- Let deliverers see a change of an endpoint once this transaction has committed.
create function forebay._renew_endpoint(p_endpoint_id bigint) returns void
language sql volatile
as $$
    update forebay.endpoint e set version = pg_current_xact_id()::text::bigint where e.endpoint_id = p_endpoint_id;
    select nextval('forebay.endpoint_seq');
$$;


-- Give the key of an endpoint the limits of the endpoint, or of an open breaker: one delivery at once, one per cooldown, the first one at
-- p_probe_at. null: the breaker is closed.
create function forebay._limit_endpoint(e forebay.endpoint, p_probe_at timestamptz) returns void
language plpgsql volatile
as $$
begin
    if p_probe_at is null then
        perform forebay._set_key_limits('forebay.deliver', e.name, e.rate, e.burst, e.concurrency);
    else
        perform forebay._set_key_limits('forebay.deliver', e.name, 1.0 / e.breaker_cooldown, 1, 1, p_probe_at);
    end if;
end
$$;


-- When an open breaker lets the next probe pass; null: it is closed.
create function forebay._probe_at(s forebay.endpoint_state, p_cooldown integer) returns timestamptz
language sql immutable
as $$ select case when s.opened_at is not null then greatest(s.opened_at, s.last_failure_at) + make_interval(secs => p_cooldown) end $$;


-- functions/endpoints/create_endpoint.sql

-- grant: operator

-- Create an endpoint, a destination of events and messages; returns its id. It is enabled.
--
-- Parameters:
--   name               1 to 100 letters, digits and _ . -
--   sink, config       type of the sink, and its settings; secrets by reference, "env:NAME" or "file:/path"
--   retry              "standard", "ulak", or a list of at most 100 delays in seconds, 0 to 30 days each; there is one try more than delays
--   rate, burst        deliveries started per second, and at once after an idle time; null: no limit, and those of one second
--   concurrency        deliveries that run at once, over all deliverers
--   breaker_threshold  failures in a row that open the breaker, 1 to 1000
--   breaker_cooldown   seconds between two probes of an open breaker, 5 to 3600
--   disable_after      12 hours to 365 days without a success, while deliveries fail, disable the endpoint; null: never
--   max_waiting        deliveries that wait, beyond which events are dropped for this endpoint; null: no limit
--   max_age            age at which a delivery expires, at most 10 years; null: that of its event
--   keeps_response     the answer is kept as the result of the delivery
-- Errors: JQ001 a bad option, JQ051 the name is taken. On an error nothing is written.
-- Locks: until the transaction ends, the name; and as forebay.limit_key().
create function forebay.create_endpoint(
    name text, sink text, config jsonb, retry jsonb default '"standard"', rate double precision default null,
    burst integer default null, concurrency integer default 50, breaker_threshold integer default 10,
    breaker_cooldown integer default 30, disable_after interval default null, max_waiting bigint default null,
    max_age interval default null, keeps_response boolean default false)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_at  constant timestamptz := forebay._now();
    v_new forebay.endpoint;
begin
    v_new.name := create_endpoint.name;
    v_new.sink := create_endpoint.sink;
    v_new.config := create_endpoint.config;
    v_new.retry := create_endpoint.retry;
    v_new.rate := create_endpoint.rate;
    v_new.burst := create_endpoint.burst;
    v_new.concurrency := create_endpoint.concurrency;
    v_new.breaker_threshold := create_endpoint.breaker_threshold;
    v_new.breaker_cooldown := create_endpoint.breaker_cooldown;
    v_new.disable_after := create_endpoint.disable_after;
    v_new.max_waiting := create_endpoint.max_waiting;
    v_new.max_age := create_endpoint.max_age;
    v_new.keeps_response := create_endpoint.keeps_response;
    perform forebay._check_endpoint(v_new);
    insert into forebay.endpoint as e (
        name, sink, config, retry, rate, burst, concurrency, breaker_threshold, breaker_cooldown, disable_after, max_waiting, max_age,
        keeps_response, created_at, changed_at, version)
    values (v_new.name, v_new.sink, v_new.config, v_new.retry, v_new.rate, v_new.burst, v_new.concurrency, v_new.breaker_threshold,
            v_new.breaker_cooldown, v_new.disable_after, v_new.max_waiting, v_new.max_age, v_new.keeps_response, v_at, v_at, 0)
    on conflict on constraint endpoint_name_key do nothing
    returning e.* into v_new;
    if v_new.endpoint_id is null then
        raise exception using errcode = 'JQ051', message = format('endpoint %s exists already', quote_literal(create_endpoint.name)),
            detail = jsonb_build_object('endpoint', create_endpoint.name), hint = 'Change it with forebay.alter_endpoint().';
    end if;
    insert into forebay.endpoint_state (endpoint_id) values (v_new.endpoint_id);
    perform forebay._renew_endpoint(v_new.endpoint_id);
    perform forebay._limit_endpoint(v_new, null);
    perform forebay._record_event('endpoints.create', p_subject_id => v_new.endpoint_id, p_new => forebay._endpoint_facts(v_new));
    return v_new.endpoint_id;
end
$$;


-- functions/endpoints/drop_endpoint.sql

-- grant: operator

-- Drop an endpoint, with its subscriptions. Deliveries that still wait for it become dead letters when a deliverer comes to them.
--
-- Parameters: discard, also if deliveries wait; deliveries that wait for a retry, or that no deliverer has met yet, are not seen here.
-- Errors: JQ050 no endpoint has this name, JQ053 deliveries wait.
-- Locks, until the transaction ends: the endpoint, which makes reports of its deliveries wait; and as forebay.limit_key().
create function forebay.drop_endpoint(name text, discard boolean default false) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_endpoint constant forebay.endpoint := forebay._lock_endpoint(drop_endpoint.name);
    v_waiting  bigint;
begin
    select w.waiting into v_waiting from forebay._endpoint_waiting(v_endpoint.name) w;
    if v_waiting > 0 and discard is not true then
        raise exception using errcode = 'JQ053', message = format('endpoint %s has %s waiting deliveries', quote_literal(v_endpoint.name), v_waiting),
            detail = jsonb_build_object('endpoint', v_endpoint.name, 'waiting', v_waiting),
            hint = 'Wait until they are delivered, or drop it with discard => true: they become dead letters.';
    end if;
    delete from forebay.endpoint e where e.endpoint_id = v_endpoint.endpoint_id;
    perform nextval('forebay.endpoint_seq');
    perform forebay._set_key_limits('forebay.deliver', v_endpoint.name, null, null, null);
    perform forebay.resume_key('forebay.deliver', limit_key => v_endpoint.name);
    perform forebay._record_event(
        'endpoints.drop', p_subject_id => v_endpoint.endpoint_id, p_old => forebay._endpoint_facts(v_endpoint), p_count => v_waiting);
end
$$;


-- functions/endpoints/enable_endpoint.sql

-- grant: operator

-- Enable an endpoint: deliveries that wait are sent, and the breaker is closed. Returns whether it was disabled.
--
-- Events that were published while it was disabled are not delivered; forebay.replay_endpoint() since disabled_at does that.
--
-- Errors: JQ050 no endpoint has this name.
-- Locks, until the transaction ends: the endpoint, which makes reports of its deliveries wait; and as forebay.resume_key().
create function forebay.enable_endpoint(name text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_endpoint constant forebay.endpoint := forebay._lock_endpoint(enable_endpoint.name);
begin
    if v_endpoint.disabled_at is null then
        return false;
    end if;
    update forebay.endpoint e set disabled_at = null, disabled_why = null, changed_at = forebay._now()
    where e.endpoint_id = v_endpoint.endpoint_id;
    -- Or the first failure would disable it again.
    update forebay.endpoint_state s set failures = 0, opened_at = null, failing_since = null, failing_percent = 0
    where s.endpoint_id = v_endpoint.endpoint_id;
    perform forebay._renew_endpoint(v_endpoint.endpoint_id);
    perform forebay._limit_endpoint(v_endpoint, null);
    perform forebay.resume_key('forebay.deliver', limit_key => v_endpoint.name);
    perform forebay._record_event(
        'endpoints.enable', p_subject_id => v_endpoint.endpoint_id,
        p_old => jsonb_build_object('name', v_endpoint.name, 'disabled_at', v_endpoint.disabled_at, 'why', v_endpoint.disabled_why));
    return true;
end
$$;


-- Disable an endpoint: nothing is sent to it. Deliveries wait, and events that are published from now on are not delivered to it. Calls that
-- run finish. Returns whether it was enabled.
--
-- Parameters: why, at most 1,000 characters, shown in the event log and by forebay.endpoints().
-- Errors: JQ050 no endpoint has this name.
-- Locks, until the transaction ends: the endpoint, which makes reports of its deliveries wait; and as forebay.pause_key().
create function forebay.disable_endpoint(name text, why text default null) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_endpoint constant forebay.endpoint := forebay._lock_endpoint(disable_endpoint.name);
begin
    if v_endpoint.disabled_at is not null then
        return false;
    end if;
    perform forebay._disable_endpoint(v_endpoint, why);
    return true;
end
$$;


-- Disable an endpoint that is enabled and locked.
create function forebay._disable_endpoint(e forebay.endpoint, p_why text) returns void
language plpgsql volatile
as $$
declare
    v_at constant timestamptz := forebay._now();
begin
    update forebay.endpoint i set disabled_at = v_at, disabled_why = left(p_why, 1000), changed_at = v_at where i.endpoint_id = e.endpoint_id;
    perform forebay._renew_endpoint(e.endpoint_id);
    perform forebay.pause_key('forebay.deliver', limit_key => e.name);
    perform forebay._record_event(
        'endpoints.disable', p_subject_id => e.endpoint_id, p_new => jsonb_build_object('name', e.name), p_detail => p_why);
end
$$;


-- functions/endpoints/endpoint_settings.sql

-- grant: worker

-- Settings of endpoints, for deliverers: those that changed after an earlier call, and the ids of all.
--
-- version: for the next call. Changes of transactions that were open during this call are returned by the next one, and an endpoint may
-- be returned several times; the same (endpoint_id, version) has the same settings. endpoints: an array of objects with endpoint_id,
-- name, sink, config, retired_secrets (array of {"secret", "until"}: they sign too until then), retry, concurrency, keeps_response, breaker_threshold,
-- disabled_at and opened_at (null: it is enabled, and the breaker is closed), version.
--
-- Parameters: p_since, version of the call before; 0: return all, also after each new connection.
-- Errors: none.
-- pages: 20 + 3 an endpoint
create function forebay.endpoint_settings_v1(p_since bigint, out version bigint, out ids bigint[], out endpoints jsonb)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
    -- A transaction that is open now, and one that begins later, has no number below xmin.
    select pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
           array(select e.endpoint_id from forebay.endpoint e order by e.endpoint_id),
           (select coalesce(jsonb_agg(jsonb_build_object(
                'endpoint_id', e.endpoint_id, 'name', e.name, 'sink', e.sink, 'config', e.config, 'retired_secrets', e.retired_secrets,
                'retry', e.retry, 'concurrency', e.concurrency, 'keeps_response', e.keeps_response, 'breaker_threshold', e.breaker_threshold,
                'disabled_at', e.disabled_at, 'opened_at', s.opened_at, 'version', e.version) order by e.endpoint_id), '[]')
            from forebay.endpoint e
            join forebay.endpoint_state s on s.endpoint_id = e.endpoint_id
            where e.version >= p_since)
$$;


-- functions/endpoints/endpoints.sql

-- grant: operator, reader

-- The endpoints with their settings and their health, by name, without counting jobs.
--
-- breaker: closed, open, or half-open: since next_probe_at one delivery may run as a probe. failures: in a row.
-- waiting: parked deliveries, since waiting_since the first one; those that wait for a retry, and those that no deliverer has met yet, are not counted.
-- paused_until: the endpoint asked for a pause, or an operator paused its key; infinity: without an end.
-- accepted_per_second, failed_per_second, rejected_per_second, p99_seconds: of the last two minutes. p99_seconds: at least 99 % of the accepted
-- messages took at most that long since their publication, in steps of powers of two; null: none was accepted. It is rounded up.
-- failing_since: the first failure since the last success. is_overfull: events are dropped, since max_waiting deliveries wait.
--
-- Parameters: only_name, null: all.
-- Errors: none.
-- pages: 200 + 100 an endpoint
create function forebay.endpoints(only_name text default null)
returns table (name text, endpoint_id bigint, sink text, config jsonb, retry jsonb, rate double precision, burst integer, concurrency integer,
               breaker_threshold integer, breaker_cooldown integer, disable_after interval, max_waiting bigint, max_age interval,
               keeps_response boolean, created_at timestamptz, changed_at timestamptz, disabled_at timestamptz, disabled_why text, breaker text,
               failures integer, opened_at timestamptz, next_probe_at timestamptz, failing_since timestamptz, paused_until timestamptz,
               waiting bigint, waiting_since timestamptz, is_overfull boolean, accepted_per_second double precision,
               failed_per_second double precision, rejected_per_second double precision, p99_seconds double precision,
               last_success_at timestamptz, last_failure_at timestamptz, last_error text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_at constant timestamptz := forebay._now();
begin
    return query
    select e.name, e.endpoint_id, e.sink, e.config, e.retry, e.rate, e.burst, e.concurrency, e.breaker_threshold, e.breaker_cooldown,
           e.disable_after, e.max_waiting, e.max_age, e.keeps_response, e.created_at, e.changed_at, e.disabled_at, e.disabled_why,
           case when s.opened_at is null then 'closed' when o.probe_at > v_at then 'open' else 'half-open' end,
           s.failures, s.opened_at, o.probe_at, s.failing_since,
           case when e.disabled_at is null then p.until end,
           w.waiting, w.since, s.is_overfull, a.accepted / 120.0::double precision, a.failed / 120.0::double precision,
           a.rejected / 120.0::double precision, h.p99, s.last_success_at, s.last_failure_at, s.last_error
    from forebay.endpoint e
    join forebay.endpoint_state s on s.endpoint_id = e.endpoint_id
    cross join lateral (select forebay._probe_at(s, e.breaker_cooldown) as probe_at offset 0) o
    cross join lateral forebay._endpoint_waiting(e.name) w
    left join lateral (select coalesce(k.resume_at, 'infinity') as until from forebay.key_pause k
                       where k.queue = 'forebay.deliver' and k.sort = 'limit' and k.key = e.name and coalesce(k.resume_at > v_at, true)
                         and coalesce(k.begins_at <= v_at, true)) p on true
    cross join lateral (select coalesce(sum(i.accepted), 0) as accepted, coalesce(sum(i.failed), 0) as failed, coalesce(sum(i.rejected), 0) as rejected
                        from forebay.endpoint_activity i
                        where i.endpoint_id = e.endpoint_id and i.at > v_at - interval '2 minutes') a
    cross join lateral (select min(c.bound) as p99
                        from (select 0.001 * power(2::double precision, u.nr - 1) as bound, sum(sum(u.count)) over (order by u.nr) as below,
                                     sum(sum(u.count)) over () as total
                              from forebay.endpoint_activity i cross join lateral unnest(i.latencies) with ordinality u (count, nr)
                              where i.endpoint_id = e.endpoint_id and i.at > v_at - interval '2 minutes'
                              group by u.nr) c
                        where c.total > 0 and c.below >= 0.99 * c.total) h
    where endpoints.only_name is null or e.name = endpoints.only_name
    order by e.name;
end
$$;


-- functions/endpoints/report.sql

-- grant: worker

-- Report what calls of endpoints found. Counts failures, opens and closes breakers, pauses and disables endpoints; returns the state of each
-- reported endpoint that exists.
--
-- Invariant: an answer ends the row of failures, also a permanent error. At breaker_threshold failures in a row, over all
-- processes, the breaker opens, once. A success or a count that changes no state updates no row, except last_success_at each 5 seconds.
--
-- Parameters: p_worker, the name of the process; p_reports, an array of objects, one for each endpoint:
--   endpoint_id
--   accepted, failed, rejected   messages since the last report
--   latencies       of accepted messages, from publication: element n, from 0, counts those below 2^n ms, and not below 2^(n-1) ms
--   failures        failed calls in a row, since the last answer if there was one
--   answered        whether the endpoint answered at all
--   error           of the last call that failed; null: none
--   pause_seconds   the endpoint asked for a pause, at most an hour is granted; null: it did not
--   gone            the endpoint wants no messages any more: it is disabled
-- Errors: JQ001 no array.
-- Locks, until the transaction ends: each endpoint whose state changes, in the order of the ids; and, if a breaker changes, as forebay.limit_key().
-- pages: 50 + 150 an endpoint
create function forebay.report_deliveries_v1(p_worker text, p_reports jsonb)
returns table (endpoint_id bigint, opened_at timestamptz, disabled_at timestamptz, version bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_at     constant timestamptz := forebay._now();
    v_report forebay._delivery_report;
begin
    if jsonb_typeof(p_reports) is distinct from 'array' then
        raise exception using errcode = 'JQ001', column = 'p_reports',
            message = format('reports are %s, not a JSON array', coalesce(jsonb_typeof(p_reports), 'null'));
    end if;
    insert into forebay.endpoint_activity (endpoint_id, at, accepted, failed, rejected, dropped, latencies)
    select r.endpoint_id, v_at, coalesce(r.accepted, 0), coalesce(r.failed, 0), coalesce(r.rejected, 0), 0, coalesce(r.latencies, '{}')
    from jsonb_populate_recordset(null::forebay._delivery_report, p_reports) r
    where coalesce(r.accepted, 0) + coalesce(r.failed, 0) + coalesce(r.rejected, 0) > 0
      and exists (select from forebay.endpoint e where e.endpoint_id = r.endpoint_id);
    for v_report in
        select r.*
        from jsonb_populate_recordset(null::forebay._delivery_report, p_reports) r
        join forebay.endpoint_state s on s.endpoint_id = r.endpoint_id
        where r.failures > 0 or r.failed > 0 or r.rejected > 0 or r.pause_seconds > 0 or r.gone
           or r.answered and (s.failures > 0 or s.opened_at is not null)
           or r.accepted > 0 and (s.failing_since is not null or coalesce(s.last_success_at <= v_at - interval '5 seconds', true))
        order by r.endpoint_id
    loop
        perform forebay._report_endpoint(p_worker, v_report, v_at);
    end loop;
    return query
    select e.endpoint_id, s.opened_at, e.disabled_at, e.version
    from jsonb_populate_recordset(null::forebay._delivery_report, p_reports) r
    join forebay.endpoint e on e.endpoint_id = r.endpoint_id
    join forebay.endpoint_state s on s.endpoint_id = e.endpoint_id
    order by e.endpoint_id;
end
$$;


-- Record the report about one endpoint.
create function forebay._report_endpoint(p_worker text, r forebay._delivery_report, p_at timestamptz) returns void
language plpgsql volatile
as $$
declare
    e         forebay.endpoint;
    s         forebay.endpoint_state;
    n         forebay.endpoint_state;
    v_failed  constant boolean := coalesce(r.failed, 0) + coalesce(r.rejected, 0) + coalesce(r.failures, 0) > 0;
    v_is_due  constant interval := interval '5 seconds';
    v_percent integer := 0;
    v_why     text;
begin
    select i.* into s from forebay.endpoint_state i where i.endpoint_id = r.endpoint_id for update;
    if not found then
        return;  -- It was dropped meanwhile.
    end if;
    -- Who changes an endpoint has locked its state.
    select i.* into e from forebay.endpoint i where i.endpoint_id = r.endpoint_id;
    n := s;
    n.failures := least(coalesce(r.failures, 0) + case when r.answered then 0 else s.failures::bigint end, 1000000);
    n.opened_at := case when n.failures >= e.breaker_threshold then coalesce(s.opened_at, p_at)
                        when not coalesce(r.answered, false) then s.opened_at end;
    n.failing_since := case when r.accepted > 0 then case when r.failures > 0 then p_at end
                            else coalesce(s.failing_since, case when v_failed then p_at end) end;
    if n.failing_since is distinct from s.failing_since then
        n.failing_percent := 0;
    end if;
    if v_failed and e.disabled_at is null and e.disable_after is not null then
        v_percent := (select coalesce(max(l), 0) from unnest('{50,70,90,100}'::integer[]) l
                      where p_at >= n.failing_since + e.disable_after * (l / 100.0));
        n.failing_percent := greatest(n.failing_percent, v_percent);
    end if;

    if (n.failures, n.opened_at, n.failing_since, n.failing_percent) is distinct from (s.failures, s.opened_at, s.failing_since, s.failing_percent)
       or v_failed and coalesce(s.last_failure_at <= p_at - v_is_due, true)
       or r.accepted > 0 and coalesce(s.last_success_at <= p_at - v_is_due, true) then
        update forebay.endpoint_state i
        set failures = n.failures, opened_at = n.opened_at, failing_since = n.failing_since, failing_percent = n.failing_percent,
            last_success_at = case when r.accepted > 0 then p_at else i.last_success_at end,
            last_failure_at = case when v_failed then p_at else i.last_failure_at end,
            last_error = case when v_failed then left(r.error, 1000) else i.last_error end
        where i.endpoint_id = r.endpoint_id;
    end if;
    if n.opened_at is distinct from s.opened_at then
        perform forebay._renew_endpoint(e.endpoint_id);
        perform forebay._limit_endpoint(e, n.opened_at + make_interval(secs => e.breaker_cooldown));
        perform forebay._record_event(
            case when n.opened_at is null then 'circuit.closed' else 'circuit.opened' end, p_subject_id => e.endpoint_id,
            p_old => case when n.opened_at is null then jsonb_build_object('name', e.name, 'opened_at', s.opened_at) end,
            p_new => case when n.opened_at is not null
                          then jsonb_build_object('name', e.name, 'failures', n.failures, 'error', left(r.error, 1000)) end,
            p_detail => 'reported by ' || p_worker);
    end if;

    v_why := case when e.disabled_at is not null then null
                  when r.gone then coalesce('gone: ' || left(r.error, 900), 'gone')
                  when v_percent = 100 then format('no success since %s', n.failing_since) end;
    if n.failing_percent > s.failing_percent then
        perform forebay._publish_failing(e, n, r.error);
    end if;
    if v_why is not null then
        perform forebay._disable_endpoint(e, v_why);
    elsif e.disabled_at is null and r.pause_seconds > 0 then
        perform forebay._pause_endpoint(e.name, least(r.pause_seconds, 3600), p_at);
    end if;
end
$$;


-- Pause the key of an endpoint that asked for it. A pause of an operator, also a planned one, and one that is about as long are left alone.
create function forebay._pause_endpoint(p_name text, p_seconds double precision, p_at timestamptz) returns void
language plpgsql volatile
as $$
begin
    if not exists (select from forebay.key_pause p
                   where p.queue = 'forebay.deliver' and p.sort = 'limit' and p.key = p_name
                     and (coalesce(p.resume_at > p_at + make_interval(secs => greatest(p_seconds - 1, 0)), true)
                          or coalesce(p.begins_at > p_at, false))) then
        perform forebay.pause_key('forebay.deliver', limit_key => p_name, resume_after => make_interval(secs => p_seconds));
    end if;
end
$$;


-- Publish that an endpoint has had no success for a part of the time after which it is disabled.
create function forebay._publish_failing(e forebay.endpoint, s forebay.endpoint_state, p_error text) returns void
language plpgsql volatile
as $$
begin
    perform forebay.publish(
        'forebay.endpoint_failing',
        jsonb_build_object('endpoint', e.name, 'percent', s.failing_percent, 'since', s.failing_since, 'error', left(p_error, 1000)));
exception
    when configuration_limit_exceeded or sqlstate 'JQ001' then
        null;  -- The queue of events is full, or an operator dropped the event type. The report counts nevertheless.
end
$$;


-- functions/endpoints/reset_endpoint.sql

-- grant: operator

-- Close the breaker of an endpoint, and count its failures from 0. Returns whether the breaker was open.
--
-- Errors: JQ050 no endpoint has this name.
-- Locks, until the transaction ends: the endpoint, which makes reports of its deliveries wait; and as forebay.limit_key().
create function forebay.reset_endpoint(name text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_endpoint constant forebay.endpoint := forebay._lock_endpoint(reset_endpoint.name);
    v_before   forebay.endpoint_state;
begin
    select s.* into v_before from forebay.endpoint_state s where s.endpoint_id = v_endpoint.endpoint_id;
    if v_before.failures = 0 and v_before.opened_at is null then
        return false;
    end if;
    update forebay.endpoint_state s set failures = 0, opened_at = null where s.endpoint_id = v_endpoint.endpoint_id;
    if v_before.opened_at is null then
        return false;
    end if;
    perform forebay._renew_endpoint(v_endpoint.endpoint_id);
    perform forebay._limit_endpoint(v_endpoint, null);
    perform forebay._record_event(
        'circuit.reset', p_subject_id => v_endpoint.endpoint_id,
        p_old => jsonb_build_object('name', v_endpoint.name, 'opened_at', v_before.opened_at, 'failures', v_before.failures));
    return true;
end
$$;


-- functions/endpoints/rotate_secret.sql

-- grant: operator

-- Sign the messages of an endpoint with a new secret. The old secrets sign too until the grace has passed, so that the receiver can change
-- to the new one meanwhile.
--
-- Parameters: secret, a reference, "env:NAME" or "file:/path"; grace, 0 to 30 days.
-- Errors: JQ001 the sink does not sign, the secret is not a reference or is in use, or there would be more than 10; JQ050 no endpoint has this name.
-- Locks, until the transaction ends: the endpoint, which makes reports of its deliveries wait.
create function forebay.rotate_secret(endpoint text, secret text, grace interval default '24 hours') returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_at       constant timestamptz := forebay._now();
    v_endpoint constant forebay.endpoint := forebay._lock_endpoint(rotate_secret.endpoint);
    v_current  constant jsonb := coalesce(nullif(v_endpoint.config -> 'secrets', 'null'), '[]');
    v_retired  jsonb;
    v_problem  text;
begin
    select coalesce(jsonb_agg(r), '[]') into v_retired
    from (select i from jsonb_array_elements(v_endpoint.retired_secrets) i where (i ->> 'until')::timestamptz > v_at
          union all
          select jsonb_build_object('secret', s, 'until', v_at + grace) from jsonb_array_elements(v_current) s where grace > interval '0') o (r);
    v_problem := case
        when not exists (select from forebay.sink_type t where t.name = v_endpoint.sink and 'secrets' = any (t.settings))
            then format('the sink %s of endpoint %s does not sign', v_endpoint.sink, quote_literal(v_endpoint.name))
        when (rotate_secret.secret ~ '^(env|file):.') is not true then 'secret is not a reference, "env:NAME" or "file:/path"'
        when v_current ? rotate_secret.secret then format('secret %s is in use already', quote_literal(left(rotate_secret.secret, 80)))
        when (grace between interval '0' and interval '30 days') is not true
            then format('grace %s is outside 0 to 30 days', coalesce(grace::text, 'null'))
        when jsonb_array_length(v_retired) >= 10 then format('%s secrets are in their grace, the limit is 9', jsonb_array_length(v_retired)) end;
    if v_problem is not null then
        raise exception using errcode = 'JQ001', column = case when v_problem like 'grace%' then 'grace' else 'secret' end,
            message = v_problem, hint = 'Nothing was changed.';
    end if;
    update forebay.endpoint e
    set config = jsonb_set(e.config, '{secrets}', jsonb_build_array(rotate_secret.secret)), retired_secrets = v_retired, changed_at = v_at
    where e.endpoint_id = v_endpoint.endpoint_id;
    perform forebay._renew_endpoint(v_endpoint.endpoint_id);
    perform forebay._record_event(
        'endpoints.rotate', p_subject_id => v_endpoint.endpoint_id,
        p_old => jsonb_build_object('name', v_endpoint.name, 'secrets', v_current),
        p_new => jsonb_build_object('name', v_endpoint.name, 'secrets', jsonb_build_array(rotate_secret.secret), 'grace', grace));
end
$$;


-- functions/endpoints/send.sql

-- grant: producer, worker

-- Send a message to one endpoint, in the caller's transaction; returns the id of the delivery, a job.
--
-- Invariant "commit decides": the message is sent if and only if this transaction commits.
--
-- Parameters:
--   endpoint        the name of an enabled endpoint
--   payload         JSON object, the body of the message
--   kind            for the receiver: letters, digits and _ . : -
--   priority, delay, run_at, expires_at, tag, correlation_id, headers, unique_as   as forebay.enqueue(). The endpoint's max_age, if it has
--                   one, bounds expires_at
--   ordering_key    messages of the endpoint with the same key are sent one at a time, in order
-- Errors: those of forebay.enqueue(), JQ050 no endpoint has this name, JQ052 it is disabled. On an error nothing is written.
-- Locks: as forebay.enqueue().
create function forebay.send(
    endpoint text, payload jsonb, kind text default 'message', priority integer default 100, delay interval default null,
    run_at timestamptz default null, expires_at timestamptz default null, tag text default null, correlation_id text default null,
    headers jsonb default null, unique_as jsonb default null, ordering_key text default null)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_endpoint forebay.endpoint;
begin
    select e.* into v_endpoint from forebay.endpoint e where e.name = send.endpoint;
    if v_endpoint.endpoint_id is null then
        perform forebay._raise_no_endpoint(send.endpoint);
    elsif v_endpoint.disabled_at is not null then
        raise exception using errcode = 'JQ052', message = format('endpoint %s is disabled', quote_literal(v_endpoint.name)),
            detail = jsonb_build_object('endpoint', v_endpoint.name, 'why', v_endpoint.disabled_why),
            hint = 'Nothing was sent. forebay.enable_endpoint() enables it.';
    elsif jsonb_typeof(send.payload) is distinct from 'object' then
        raise exception using errcode = 'JQ001', column = 'payload',
            message = format('payload must be a JSON object, not %s', coalesce(jsonb_typeof(send.payload), 'null')), hint = 'Nothing was sent.';
    end if;
    return forebay.enqueue(
        send.kind, jsonb_build_object('payload', send.payload, 'endpoint', v_endpoint.endpoint_id), 'forebay.deliver', send.priority,
        send.delay, send.run_at,
        least(send.expires_at, coalesce(send.run_at, forebay._now() + coalesce(send.delay, interval '0')) + v_endpoint.max_age),
        null, send.tag, send.correlation_id, send.headers, send.unique_as,
        forebay._delivery_key(v_endpoint.name, send.ordering_key), v_endpoint.name);
end
$$;


-- The ordering key of a delivery: that of the message, for one endpoint. One that would be too long is replaced by its hash.
create function forebay._delivery_key(p_endpoint text, p_key text) returns text
language sql immutable
as $$
    select case when length(p_endpoint) + 1 + length(p_key) <= 200 or p_key ~ E'[\x01-\x1f\x7f]' then p_endpoint || '/' || p_key
                else p_endpoint || '/' || encode(sha256(convert_to(p_key, 'UTF8')), 'hex') end
$$;


-- functions/endpoints/sink_types.sql

-- grant: worker

-- Let endpoints have sinks of other packages: record their types. Returns how many are new or changed.
--
-- Parameters: p_types, an array of {"name", "settings", "required"}; those of Forebay are ignored.
-- Errors: JQ001 something else.
create function forebay.record_sink_types_v1(p_types jsonb) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_count bigint;
begin
    if not coalesce(jsonb_typeof(p_types) = 'array' and octet_length(p_types::text) <= 1000000
                    and (select coalesce(bool_and(coalesce(
                             jsonb_typeof(t) = 'object' and t ->> 'name' ~ '^[A-Za-z0-9_.-]{1,100}$'
                             and jsonb_typeof(t -> 'settings') = 'array' and jsonb_typeof(t -> 'required') = 'array', false)), true)
                         from jsonb_array_elements(case when jsonb_typeof(p_types) = 'array' then p_types end) t), false) then
        raise exception using errcode = 'JQ001', column = 'p_types', message = 'types of sinks need name, settings and required';
    end if;
    insert into forebay.sink_type as s (name, settings, required, is_ours)
    select t ->> 'name', array(select jsonb_array_elements_text(t -> 'settings')), array(select jsonb_array_elements_text(t -> 'required')), false
    from (select distinct on (i ->> 'name') i from jsonb_array_elements(p_types) i) d (t)
    order by t ->> 'name'
    on conflict on constraint sink_type_pkey do update set settings = excluded.settings, required = excluded.required
    where not s.is_ours and (s.settings, s.required) is distinct from (excluded.settings, excluded.required);
    get diagnostics v_count = row_count;
    return v_count;
end
$$;


-- functions/endpoints/test_endpoint.sql

-- grant: operator

-- Send a test message to an endpoint, of the kind forebay.test and before its other deliveries; returns the id of the delivery, a job.
--
-- The breaker, the limits and the retries of the endpoint apply.
--
-- Errors: JQ050 no endpoint has this name, JQ052 it is disabled.
create function forebay.test_endpoint(name text) returns bigint
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
    select forebay.send(
        test_endpoint.name, jsonb_build_object('endpoint', test_endpoint.name, 'sent_at', forebay._now()), 'forebay.test', -32768,
        expires_at => forebay._now() + interval '1 hour', tag => 'forebay.test_endpoint')
$$;


-- functions/endpoints/waiting.sql

-- How many deliveries of an endpoint are parked, and since when the first of them waits. No job is counted: claims keep the number.
create function forebay._endpoint_waiting(p_name text, out waiting bigint, out since timestamptz)
language plpgsql stable
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_run forebay.limit_run;
    v_row forebay.limit_parked;
begin
    select i.* into v_run
    from forebay.queue_group g
    cross join lateral (select * from forebay.limit_run i
                        where i.group_id = g.group_id and i.limit_key = p_name order by i.no desc limit 1) i
    where g.queue = 'forebay.deliver' and g.name = 'default';
    waiting := coalesce(v_run.waiting, 0);
    if waiting > 0 then
        select p.* into v_row from forebay.limit_parked p
        where p.group_id = v_run.group_id and p.limit_key = p_name and p.parked_no > coalesce(v_run.taken_up_to, 0)
        order by p.parked_no limit 1;
        since := (forebay._row(v_row.lane, v_row.xid, v_row.seq)).enqueued_at;
    end if;
end
$$;


-- functions/enqueue/append_jobs.sql

-- Write checked jobs; returns their ids in input order.
create function forebay._enqueue_jobs(p_jobs forebay._job_input[]) returns bigint[]
language plpgsql volatile
as $$
declare
    v_now      timestamptz := forebay._now();
    v_ready    bigint[];
    v_deferred bigint[];
    v_target   record;
    v_queue    text;
    v_priority integer;
    v_lanes    bigint[];  -- the lanes of that queue and priority, which most jobs have
    v_shards   constant jsonb := forebay._shards(array(select distinct u.queue from unnest(p_jobs) u));
begin
    for v_target in
        select distinct u.queue, u.priority, u.ordering_key is not null as is_keyed, u.limit_key is not null as is_limited from unnest(p_jobs) u
    loop
        if v_target.is_keyed then
            perform forebay._record_keyed_lane(v_target.queue, v_target.priority, 0);
        elsif v_target.is_limited then
            perform forebay._record_limited_lane(v_target.queue, v_target.priority, 0);
        else
            v_lanes := forebay._record_lanes(v_target.queue, v_target.priority, v_shards);
            v_queue := v_target.queue;
            v_priority := v_target.priority;
        end if;
        perform forebay._notify(v_target.queue);
    end loop;
    if pg_sequence_last_value('forebay.limit_seq') is not null then
        perform forebay._require_below_max_waiting(q.queue, q.more)
        from (select u.queue, count(*) as more from unnest(p_jobs) u group by u.queue) q;
    end if;

    with written as (
        insert into forebay.log (
            lane, enqueued_at, expires_at, max_attempts, kind, args, tag, correlation_id, headers, ordering_key, limit_key)
        select case when u.ordering_key is not null then forebay._keyed_lane_id(u.queue, u.priority, 0)
                    when u.limit_key is not null then forebay._limited_lane_id(u.queue, u.priority, 0)
                    when u.queue = v_queue and u.priority = v_priority then v_lanes[1 + u.ordinality % cardinality(v_lanes)]
                    else forebay._lane_for_place(u.queue, u.priority, u.ordinality, v_shards) end, v_now, u.expires_at, u.max_attempts,
               u.kind, u.args, u.tag, u.correlation_id, u.headers, u.ordering_key, u.limit_key
        from unnest(p_jobs) with ordinality u
        where coalesce(u.run_at, v_now + make_interval(secs => u.delay), v_now) <= v_now
        order by u.ordinality
        returning seq)
    select array_agg(w.seq) into v_ready from written w;

    if coalesce(cardinality(v_ready), 0) = cardinality(p_jobs) then
        return coalesce(v_ready, '{}');
    end if;

    with written as (
        insert into forebay.deferred (
            run_at, lane, enqueued_at, job_id, expires_at, max_attempts, kind, args, tag, correlation_id, headers, ordering_key,
            limit_key)
        select d.start,
               case when d.ordering_key is not null then forebay._keyed_lane_id(d.queue, d.priority, 0)
                    when d.limit_key is not null then forebay._limited_lane_id(d.queue, d.priority, 0)
                    when d.queue = v_queue and d.priority = v_priority then v_lanes[1 + d.ordinality % cardinality(v_lanes)]
                    else forebay._lane_for_place(d.queue, d.priority, d.ordinality, v_shards) end, v_now, nextval('forebay.log_seq'),
               coalesce(d.expires_at, d.start + interval '30 days'), d.max_attempts,
               d.kind, d.args, d.tag, d.correlation_id, d.headers, d.ordering_key, d.limit_key
        from (select u.*, coalesce(u.run_at, v_now + make_interval(secs => u.delay)) as start
              from unnest(p_jobs) with ordinality u
              where coalesce(u.run_at, v_now + make_interval(secs => u.delay)) > v_now
              order by u.ordinality) d
        returning job_id)
    select array_agg(w.job_id) into v_deferred from written w;

    -- Both lists are in input order: merge them by what each job was, ready or deferred.
    return (
        select array_agg(case when m.is_deferred then v_deferred[m.place] else v_ready[m.place] end order by m.nr)
        from (select c.nr, c.is_deferred, row_number() over (partition by c.is_deferred order by c.nr) as place
              from (select u.ordinality as nr, coalesce(coalesce(u.run_at, v_now + make_interval(secs => u.delay)) > v_now, false) as is_deferred
                    from unnest(p_jobs) with ordinality u
                   ) c) m);
end
$$;


-- functions/enqueue/check_job.sql

-- The problem with one job's options, or null. One line, lower case, with the value.
create function forebay._job_problem(
    p_kind text, p_args jsonb, p_queue text, p_priority integer, p_delay interval, p_run_at timestamptz,
    p_expires_at timestamptz, p_max_attempts integer, p_tag text, p_correlation_id text, p_headers jsonb,
    p_ordering_key text, p_limit_key text default null)
returns text
language plpgsql stable
as $$
declare
    v_name constant text := '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$';
    v_starts timestamptz;
begin
    if p_kind is null or p_kind !~ v_name then
        return format('kind %s is not a name: letters, digits and _ . : - only, at most 128', coalesce(quote_literal(left(p_kind, 40)), 'null'));
    elsif p_queue is null or p_queue !~ v_name then
        return format('queue %s is not a name: letters, digits and _ . : - only, at most 128', coalesce(quote_literal(left(p_queue, 40)), 'null'));
    elsif p_args is null or jsonb_typeof(p_args) <> 'object' then
        return format('args must be a JSON object, not %s', coalesce(jsonb_typeof(p_args), 'null'));
    elsif p_priority is null or p_priority not between -32768 and 32767 then
        return format('priority %s is outside -32768 to 32767', coalesce(p_priority::text, 'null'));
    elsif p_delay is not null and p_run_at is not null then
        return 'delay and run_at exclude each other';
    elsif p_delay is not null and (p_delay < interval '0' or p_delay > interval '100 years') then
        return format('delay %s is outside 0 to 100 years', p_delay);
    elsif p_run_at is not null and not isfinite(p_run_at) then
        return format('run_at %s is not a finite time', p_run_at);
    elsif p_run_at is not null and p_run_at > forebay._now() + interval '100 years' then
        return format('run_at %s is more than 100 years away', p_run_at);
    elsif p_expires_at is not null and (not isfinite(p_expires_at) or p_expires_at > forebay._now() + interval '200 years') then
        return format('expires_at %s is not a time within 200 years', p_expires_at);
    elsif p_max_attempts is not null and p_max_attempts not between 1 and 10000 then
        return format('max_attempts %s is outside 1 to 10000', p_max_attempts);
    elsif p_tag is not null and (length(p_tag) not between 1 and 200 or p_tag ~ E'[\x01-\x1f\x7f]') then
        return format('tag %s must have 1 to 200 characters, none of them a control character', quote_literal(left(p_tag, 40)));
    elsif p_correlation_id is not null and (length(p_correlation_id) not between 1 and 200 or p_correlation_id ~ E'[\x01-\x1f\x7f]') then
        return format('correlation_id %s must have 1 to 200 characters, none of them a control character', quote_literal(left(p_correlation_id, 40)));
    elsif p_ordering_key is not null and (length(p_ordering_key) not between 1 and 200 or p_ordering_key ~ E'[\x01-\x1f\x7f]') then
        return format('ordering_key %s must have 1 to 200 characters, none of them a control character', quote_literal(left(p_ordering_key, 40)));
    elsif p_limit_key is not null and (length(p_limit_key) not between 1 and 200 or p_limit_key ~ E'[\x01-\x1f\x7f]') then
        return format('limit_key %s must have 1 to 200 characters, none of them a control character', quote_literal(left(p_limit_key, 40)));
    end if;
    if p_headers is not null then
        if jsonb_typeof(p_headers) <> 'object' then
            return format('headers must be a JSON object of strings, not %s', jsonb_typeof(p_headers));
        elsif octet_length(p_headers::text) > 8192 then
            return format('headers take %s bytes, the limit is 8192', octet_length(p_headers::text));
        elsif (select count(*) from jsonb_object_keys(p_headers)) > 64 then
            return 'headers have more than 64 entries';
        elsif exists (select from jsonb_each(p_headers) h where jsonb_typeof(h.value) <> 'string') then
            return 'headers must have string values';
        end if;
    end if;
    if p_expires_at is not null then
        v_starts := coalesce(p_run_at, forebay._now() + coalesce(p_delay, interval '0'));
        if p_expires_at <= v_starts then
            return format('expires_at %s is not after the job''s start %s', p_expires_at, v_starts);
        end if;
    end if;
    return null;
end
$$;


-- Refuse arguments that are too large, too deep, or contain a number that clients do not read. A value of at most 500
-- bytes and 500 characters passes: each level takes 8 bytes. Both sizes count, since a number like 1e100000
-- takes a few bytes and a hundred thousand characters.
--
-- Errors: JQ001 a number of more than 4300 digits, which Python refuses to read; JQ002 too large, JQ003 too deep.
create function forebay._check_args(p_args jsonb, p_index bigint) returns void
language plpgsql stable
as $$
declare
    v_bytes_max bigint := forebay._setting_value('args_bytes_max');
    v_depth_max bigint := forebay._setting_value('args_depth_max');
    v_bytes     bigint := octet_length(p_args::text);
    v_where     text := case when p_index is null then '' else format('job %s: ', p_index) end;
begin
    if v_bytes > v_bytes_max then
        raise exception using
            errcode = 'JQ002',
            message = format('%sargs take %s bytes, the limit is %s', v_where, v_bytes, v_bytes_max),
            detail = jsonb_strip_nulls(jsonb_build_object('index', p_index, 'bytes', v_bytes, 'limit', v_bytes_max)),
            hint = 'Store the data in your own table and pass its key.';
    end if;
    if jsonb_path_exists(p_args, format('strict $.**{%s}', v_depth_max + 1)::jsonpath) then
        raise exception using
            errcode = 'JQ003',
            message = format('%sargs are nested deeper than %s levels', v_where, v_depth_max),
            detail = jsonb_strip_nulls(jsonb_build_object('index', p_index, 'depth', v_depth_max + 1, 'limit', v_depth_max)),
            hint = 'Pass flat arguments, or the nested document as a string.';
    end if;
    if v_bytes > 4300 and jsonb_path_exists(
           p_args, 'strict $.** ? (@.type() == "number" && (@ >= 1e4300 || @ <= -1e4300))') then
        raise exception using
            errcode = 'JQ001', column = 'args',
            message = format('%sargs contain a number of more than 4300 digits', v_where),
            detail = jsonb_strip_nulls(jsonb_build_object('index', p_index, 'field', 'args')),
            hint = 'Pass it as a string.';
    end if;
end
$$;


-- functions/enqueue/enqueue.sql

-- Enqueue: the public contract for producers in any language.
-- grant: producer, worker

-- The public lane for one job, recorded in the registry; a lane that gets many jobs also becomes known to its flag sequence.
--
-- Errors: JQ001 the queue's name, JQ006 another lane has the number.
create function forebay._find_lane(p_queue text, p_priority integer, p_ordering_key text, p_limit_key text) returns bigint
language plpgsql volatile
set enable_seqscan = off
set jit = off
as $$
declare
    v_lane  constant bigint := forebay._lane_id(p_queue, p_priority, 0);
    v_found record;
begin
    if num_nonnulls(p_ordering_key, p_limit_key, pg_sequence_last_value('forebay.shard_seq')) = 0 then
        v_found := forebay._is_recorded(v_lane, p_queue, p_priority, 0, 'plain', 0);
        if v_found.is_recorded then
            -- Rarely, so that two lanes with one flag sequence do not replace each other at every job. With the horizon that was
            -- read before the row: if lanes were retired since, the value names no lane.
            perform setval(forebay._lane_flag(v_lane), forebay._lane_stamp(v_lane, v_found.horizon))
            where v_found.is_committed and random() < 0.03;
            return v_lane;
        end if;
    end if;
    if p_queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$' is not true then
        raise exception using errcode = 'JQ001',
            message = forebay._job_problem('_', '{}', p_queue, p_priority, null, null, null, null, null, null, null, null),
            hint = 'Nothing was enqueued. See the function forebay.enqueue in the reference.';
    end if;
    return case when p_ordering_key is not null then forebay._record_keyed_lane(p_queue, p_priority, 0)
                when p_limit_key is not null then forebay._record_limited_lane(p_queue, p_priority, 0)
                when pg_sequence_last_value('forebay.shard_seq') is not null then forebay._pick_lane(p_queue, p_priority)
                else forebay._record_lane(p_queue, p_priority, 0) end;
end
$$;


-- Enqueue one job in the caller's transaction; returns its id.
--
-- Invariant "commit decides": the job exists if and only if this transaction commits.
--
-- Parameters:
--   kind            selects the handler
--   args            JSON object, the handler's keyword arguments
--   queue           the queue of the job; null: forebay.queue_of() its kind, or `default`
--   priority        -32768 to 32767, lower first
--   delay, run_at   earliest start; at most one of the two; null: at once
--   expires_at      not started at or after this; null: 30 days after the enqueue or its start
--   max_attempts    1 to 10000; null: set by the handler's retry policy
--   tag             source of the job
--   correlation_id  carried through retries, dead letters and redrives
--   headers         JSON object of strings
--   ordering_key    jobs of the queue with the same key run one at a time, in the order they were enqueued
--   unique_as       a unique key and its mode, see forebay.enqueue_unique; the id may be that of an existing job
--   limit_key       the job's tenant: jobs of the queue with the same key share its limits per key, and all keys take turns
-- Errors: JQ001 a bad option, JQ002 and JQ003 args too large or too deep; with unique_as also JQ004 and JQ005; JQ006 another
--   queue or priority has the same internal number; 53400 the queue is full. On an error nothing is written.
-- Locks: none that another enqueue, a claim or maintenance waits for; with unique_as the key.
-- pages: 150
create function forebay.enqueue(
    kind text, args jsonb default '{}', queue text default null, priority integer default 100,
    delay interval default null, run_at timestamptz default null, expires_at timestamptz default null,
    max_attempts integer default null, tag text default null, correlation_id text default null,
    headers jsonb default null, unique_as jsonb default null, ordering_key text default null, limit_key text default null)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now     timestamptz;
    v_start   timestamptz;
    v_problem text;
    v_lane    bigint;
    v_job_id  bigint;
begin
    -- A valid, plain job in a known lane passes two expressions, since each expression costs more than the checks in it. A pattern
    -- without a bound is matched in a fraction of the time. The queue's name is checked only if its lane is not known.
    -- 124 characters make at most 62 levels. A queue that is not given is looked up. The concatenation decompresses a value that comes compressed from a table.
    v_lane := case
        when enqueue.kind ~ '^[A-Za-z_][A-Za-z0-9_.:-]*$' and length(enqueue.kind) <= 128
             and jsonb_typeof(enqueue.args) = 'object'
             and enqueue.queue is not null and enqueue.priority between -32768 and 32767
             and (octet_length(enqueue.args::text) <= 124
                  or pg_column_size(enqueue.args || '{}') <= 500 and octet_length(enqueue.args::text) <= 500)
             and num_nonnulls(enqueue.delay, enqueue.run_at, enqueue.expires_at, enqueue.max_attempts, enqueue.tag,
                              enqueue.correlation_id, enqueue.headers, enqueue.unique_as, enqueue.ordering_key, enqueue.limit_key) = 0
        then forebay._lane_id(enqueue.queue, enqueue.priority, 0) end;

    -- The lowest bit: a queue was sharded, or has had a max_waiting.
    if (v_lane is not null and pg_sequence_last_value('forebay.lane_secret') & 1 = 0 and forebay._is_known(v_lane)) is not true then
        v_now := forebay._now();
        if v_lane is null then
            enqueue.queue := coalesce(enqueue.queue, forebay.queue_of(enqueue.kind), 'default');
            if enqueue.unique_as is not null then
                return (forebay.enqueue_unique(
                    enqueue.kind, enqueue.args, enqueue.unique_as, enqueue.queue, enqueue.priority, enqueue.delay, enqueue.run_at,
                    enqueue.expires_at, enqueue.max_attempts, enqueue.tag, enqueue.correlation_id, enqueue.headers,
                    enqueue.ordering_key, enqueue.limit_key)).job_id;
            end if;
            v_problem := forebay._job_problem(
                enqueue.kind, enqueue.args, enqueue.queue, enqueue.priority, enqueue.delay, enqueue.run_at,
                enqueue.expires_at, enqueue.max_attempts, enqueue.tag, enqueue.correlation_id, enqueue.headers,
                enqueue.ordering_key, enqueue.limit_key);
            if v_problem is not null then
                raise exception using errcode = 'JQ001', message = v_problem,
                    hint = 'Nothing was enqueued. See the function forebay.enqueue in the reference.';
            end if;
            if pg_column_size(enqueue.args || '{}') > 500 or octet_length(enqueue.args::text) > 500 then
                perform forebay._check_args(enqueue.args, null);
            end if;
            v_start := coalesce(enqueue.run_at, v_now + enqueue.delay);
            v_lane := forebay._lane_id(enqueue.queue, enqueue.priority, 0);
        end if;
        if (num_nonnulls(enqueue.ordering_key, enqueue.limit_key) = 0
            and pg_sequence_last_value('forebay.lane_secret') & 1 = 0 and forebay._is_known(v_lane)) is not true then
            v_lane := forebay._find_lane(enqueue.queue, enqueue.priority, enqueue.ordering_key, enqueue.limit_key);
            if pg_sequence_last_value('forebay.limit_seq') is not null then
                perform forebay._require_below_max_waiting(enqueue.queue, 1);
            end if;
        end if;
        if v_start > v_now then
            insert into forebay.deferred (
                run_at, lane, enqueued_at, job_id, expires_at, max_attempts, kind, args, tag, correlation_id, headers, ordering_key,
                limit_key)
            values (
                v_start, v_lane, v_now, nextval('forebay.log_seq'),
                coalesce(enqueue.expires_at, v_start + interval '30 days'), enqueue.max_attempts,
                enqueue.kind, enqueue.args, enqueue.tag, enqueue.correlation_id, enqueue.headers, enqueue.ordering_key, enqueue.limit_key)
            returning job_id into v_job_id;
            return v_job_id;
        end if;
    end if;

    insert into forebay.log (
        lane, enqueued_at, expires_at, max_attempts, kind, args, tag, correlation_id, headers, ordering_key, limit_key)
    values (
        v_lane, coalesce(v_now, forebay._now()), enqueue.expires_at, enqueue.max_attempts,
        enqueue.kind, enqueue.args, enqueue.tag, enqueue.correlation_id, enqueue.headers, enqueue.ordering_key, enqueue.limit_key);
    if forebay._is_awaited(enqueue.queue) then
        perform forebay._notify(enqueue.queue);
    end if;
    -- The number of the new row. RETURNING would cost more: it is planned for the segment each time.
    return currval('forebay.log_seq');
end
$$;


-- functions/enqueue/enqueue_many.sql

-- grant: producer, worker

-- Refuse the first invalid job of a bulk enqueue by its index. Valid jobs without options, except an ordering key, pass one expression.
--
-- Errors: JQ001, JQ002, JQ003.
create function forebay._check_jobs(p_jobs forebay._job_input[]) returns void
language plpgsql stable
as $$
declare
    v_name constant text := '^[A-Za-z_][A-Za-z0-9_.:-]*$';  -- A bound in the pattern would take several times as long.
    v_odd     record;
    v_problem text;
begin
    for v_odd in
        select u.*
        from unnest(p_jobs) with ordinality u
        where (u.kind ~ v_name and length(u.kind) <= 128 and u.queue ~ v_name and length(u.queue) <= 128
               and jsonb_typeof(u.args) = 'object'
               and u.priority between -32768 and 32767
               and pg_column_size(u.args) <= 500 and octet_length(u.args::text) <= 500
               and num_nonnulls(u.delay, u.run_at, u.expires_at, u.max_attempts, u.tag, u.correlation_id, u.headers, u.limit_key) = 0
               and (u.ordering_key is null or length(u.ordering_key) between 1 and 200 and u.ordering_key !~ E'[\x01-\x1f\x7f]')
              ) is not true
        order by u.ordinality
    loop
        if v_odd.delay is not null and (v_odd.delay < 0 or v_odd.delay > 3155760000 or v_odd.delay = 'NaN') then
            v_problem := format('delay %s is outside 0 to 100 years', v_odd.delay);
        else
            v_problem := forebay._job_problem(
                v_odd.kind, v_odd.args, v_odd.queue, v_odd.priority, make_interval(secs => v_odd.delay), v_odd.run_at,
                v_odd.expires_at, v_odd.max_attempts, v_odd.tag, v_odd.correlation_id, v_odd.headers, v_odd.ordering_key,
                v_odd.limit_key);
        end if;
        if v_problem is not null then
            raise exception using errcode = 'JQ001',
                message = format('job %s: %s', v_odd.ordinality - 1, v_problem),
                detail = jsonb_build_object('index', v_odd.ordinality - 1),
                hint = 'Nothing was enqueued: a bulk call is all or none.';
        end if;
        if pg_column_size(v_odd.args) > 500 or octet_length(v_odd.args::text) > 500 then
            perform forebay._check_args(v_odd.args, v_odd.ordinality - 1);
        end if;
    end loop;
end
$$;


-- Enqueue jobs from JSON; returns their ids in input order, and which are new: null if all are.
--
-- Parameters and errors: as forebay.enqueue_many.
create function forebay._enqueue_json(p_jobs jsonb, out ids bigint[], out news boolean[])
language plpgsql volatile
as $$
declare
    v_keys constant text[] := array['kind', 'args', 'queue', 'priority', 'delay', 'run_at', 'expires_at',
                                    'max_attempts', 'tag', 'correlation_id', 'headers', 'unique_as', 'ordering_key', 'limit_key'];
    v_bad  record;
    v_jobs forebay._job_input[];
begin
    if p_jobs is null or jsonb_typeof(p_jobs) <> 'array' then
        raise exception using errcode = 'JQ001',
            message = format('jobs must be a JSON array, not %s', coalesce(jsonb_typeof(p_jobs), 'null')),
            hint = 'Pass an array of objects, one for each job.';
    end if;

    for v_bad in
        select e.ordinality - 1 as index, e.value as job
        from jsonb_array_elements(p_jobs) with ordinality e
        where case when jsonb_typeof(e.value) = 'object' then (e.value - v_keys) <> '{}'::jsonb else true end
        limit 1
    loop
        raise exception using errcode = 'JQ001',
            message = case when jsonb_typeof(v_bad.job) <> 'object'
                then format('job %s: must be a JSON object, not %s', v_bad.index, jsonb_typeof(v_bad.job))
                else format('job %s: unknown option %s', v_bad.index,
                            (select k from jsonb_object_keys(v_bad.job - v_keys) k limit 1)) end,
            detail = jsonb_build_object('index', v_bad.index),
            hint = 'Nothing was enqueued. The options are ' || array_to_string(v_keys, ', ') || '.';
    end loop;

    begin
        select array_agg(
            row(r.kind, coalesce(r.args, '{}'), coalesce(r.queue, (select k.queue from forebay.kind_queue k where k.kind = r.kind), 'default'), coalesce(r.priority, 100), r.delay,
                r.run_at, r.expires_at, r.max_attempts, r.tag, r.correlation_id, r.headers, r.ordering_key, r.limit_key)::forebay._job_input
            order by r.ordinality)
        into v_jobs
        from rows from (jsonb_to_recordset(p_jobs) as (
                kind text, args jsonb, queue text, priority integer, delay double precision, run_at timestamptz,
                expires_at timestamptz, max_attempts integer, tag text, correlation_id text, headers jsonb,
                ordering_key text, limit_key text))
             with ordinality r;
    exception when data_exception then
        raise exception using errcode = 'JQ001',
            message = format('an option of a job has the wrong type: %s', sqlerrm),
            hint = 'Nothing was enqueued: a bulk call is all or none.';
    end;
    if v_jobs is null then
        ids := '{}';
        return;
    end if;
    perform forebay._check_jobs(v_jobs);
    if p_jobs @? '$[*].unique_as ? (@ != null)' then
        select m.ids, m.news into ids, news from forebay._enqueue_mixed(v_jobs, array(
            select nullif(e.value -> 'unique_as', 'null') from jsonb_array_elements(p_jobs) with ordinality e order by e.ordinality)) m;
        return;
    end if;
    ids := forebay._enqueue_jobs(v_jobs);
end
$$;


-- Enqueue many jobs in the caller's transaction; returns their ids in input order.
--
-- All or none: one invalid job fails the call, and the message has its index, from 0.
--
-- Parameters: jobs, a JSON array of objects with the keys kind, args, queue, priority, delay
--   (seconds), run_at, expires_at, max_attempts, tag, correlation_id, headers, unique_as, ordering_key, limit_key; all but
--   kind optional.
-- Errors: as forebay.enqueue.
-- pages: 60 + 8 a job
create function forebay.enqueue_many(jobs jsonb) returns bigint[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    return (forebay._enqueue_json(jobs)).ids;
end
$$;


-- Do as forebay.enqueue_many(jobs), and return a row for each job, in input order: its id, and whether it is new. The id of a job that is not
-- new is that of the job which has its unique key.
--
-- Parameters and errors: as forebay.enqueue_many.
-- pages: 60 + 8 a job
create function forebay.enqueue_each(jobs jsonb) returns table (job_id bigint, is_new boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    return query
        select u.id, coalesce(u.made, true)
        from forebay._enqueue_json(jobs) e, unnest(e.ids, e.news) with ordinality u (id, made, nr)
        order by u.nr;
end
$$;


-- Enqueue one job of a kind for each element of args; returns how many. For INSERT ... SELECT:
--   select forebay.enqueue_many('reindex', array_agg(jsonb_build_object('id', id))) from document;
--
-- Parameters and errors: as forebay.enqueue; the options are common to all jobs.
-- pages: 60 + 8 a job
create function forebay.enqueue_many(
    kind text, args jsonb[], queue text default null, priority integer default 100,
    delay interval default null, run_at timestamptz default null, expires_at timestamptz default null,
    max_attempts integer default null, tag text default null, correlation_id text default null,
    headers jsonb default null, ordering_key text default null, limit_key text default null)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_now     timestamptz := forebay._now();
    v_start   timestamptz := coalesce(enqueue_many.run_at, v_now + enqueue_many.delay);
    v_problem text;
    v_odd     record;
    v_lanes   bigint[];
begin
    if coalesce(cardinality(enqueue_many.args), 0) = 0 then
        return 0;
    end if;
    enqueue_many.queue := coalesce(enqueue_many.queue, forebay.queue_of(enqueue_many.kind), 'default');
    v_problem := forebay._job_problem(
        enqueue_many.kind, '{}', enqueue_many.queue, enqueue_many.priority, enqueue_many.delay, enqueue_many.run_at,
        enqueue_many.expires_at, enqueue_many.max_attempts, enqueue_many.tag, enqueue_many.correlation_id, enqueue_many.headers,
        enqueue_many.ordering_key, enqueue_many.limit_key);
    for v_odd in
        select a.args, a.nr - 1 as index
        from unnest(enqueue_many.args) with ordinality a (args, nr)
        where v_problem is not null
           or (jsonb_typeof(a.args) = 'object'
               and pg_column_size(a.args) <= 500 and octet_length(a.args::text) <= 500) is not true
        order by a.nr
    loop
        v_problem := coalesce(
            v_problem,
            case when v_odd.args is null or jsonb_typeof(v_odd.args) <> 'object'
                 then format('args must be a JSON object, not %s', coalesce(jsonb_typeof(v_odd.args), 'null')) end);
        if v_problem is not null then
            raise exception using errcode = 'JQ001',
                message = format('job %s: %s', v_odd.index, v_problem),
                detail = jsonb_build_object('index', v_odd.index),
                hint = 'Nothing was enqueued: a bulk call is all or none.';
        end if;
        perform forebay._check_args(v_odd.args, v_odd.index);
    end loop;

    if enqueue_many.ordering_key is not null then
        v_lanes := array[forebay._record_keyed_lane(enqueue_many.queue, enqueue_many.priority, 0)];
    elsif enqueue_many.limit_key is not null then
        v_lanes := array[forebay._record_limited_lane(enqueue_many.queue, enqueue_many.priority, 0)];
    else
        v_lanes := forebay._record_lanes(enqueue_many.queue, enqueue_many.priority, forebay._shards(array[enqueue_many.queue]));
    end if;
    if pg_sequence_last_value('forebay.limit_seq') is not null then
        perform forebay._require_below_max_waiting(enqueue_many.queue, cardinality(enqueue_many.args));
    end if;
    if v_start > v_now then
        insert into forebay.deferred (
            run_at, lane, enqueued_at, job_id, expires_at, max_attempts, kind, args, tag, correlation_id, headers, ordering_key,
            limit_key)
        select v_start, v_lanes[1 + a.nr % cardinality(v_lanes)], v_now, nextval('forebay.log_seq'),
               coalesce(enqueue_many.expires_at, v_start + interval '30 days'), enqueue_many.max_attempts,
               enqueue_many.kind, a.args, enqueue_many.tag, enqueue_many.correlation_id, enqueue_many.headers,
               enqueue_many.ordering_key, enqueue_many.limit_key
        from unnest(enqueue_many.args) with ordinality a (args, nr);
    else
        insert into forebay.log (
            lane, enqueued_at, expires_at, max_attempts, kind, args, tag, correlation_id, headers, ordering_key, limit_key)
        select v_lanes[1 + a.nr % cardinality(v_lanes)], v_now, enqueue_many.expires_at, enqueue_many.max_attempts,
               enqueue_many.kind, a.args, enqueue_many.tag, enqueue_many.correlation_id, enqueue_many.headers,
               enqueue_many.ordering_key, enqueue_many.limit_key
        from unnest(enqueue_many.args) with ordinality a (args, nr);
        perform forebay._notify(enqueue_many.queue);
    end if;
    return cardinality(enqueue_many.args);
end
$$;


-- functions/enqueue/known_lanes.sql

-- The flag sequence that may name a lane.
create function forebay._lane_flag(p_lane bigint) returns regclass
language sql stable
as $$
    select (array[
        'forebay.known_0', 'forebay.known_1', 'forebay.known_2', 'forebay.known_3', 'forebay.known_4', 'forebay.known_5', 'forebay.known_6', 'forebay.known_7',
        'forebay.known_8', 'forebay.known_9', 'forebay.known_10', 'forebay.known_11', 'forebay.known_12', 'forebay.known_13', 'forebay.known_14', 'forebay.known_15']::regclass[])[((p_lane >> 1) & 15) + 1]
$$;


-- The value in the flag sequence of a known lane: it differs for each lane, each start of the server, each file of the registry
-- and each retirement of lanes (p_horizon). So a flag sequence that was dumped later than the registry, or outlived it, names no lane.
create function forebay._lane_stamp(p_lane bigint, p_horizon bigint) returns bigint
language sql stable
as $$
    select p_lane # hashfloat8extended(date_part('epoch', pg_postmaster_start_time()), pg_relation_filenode('forebay.lane')::bigint # p_horizon)
$$;


-- Is the lane's row in the registry committed and in use, according to its flag sequence?
--
-- Invariant "known is committed": a flag sequence names a lane only after its row was committed. Read and set outside transactions.
-- The call draws the transaction id before it reads: see forebay.forget_v1().
create function forebay._is_known(p_lane bigint) returns boolean
language sql volatile
as $$
    select case when pg_current_xact_id() is not null
                then pg_sequence_last_value(forebay._lane_flag(p_lane))
                     = forebay._lane_stamp(p_lane, pg_sequence_last_value('forebay.lane_horizon')) end
$$;


-- functions/enqueue/lane_ids.sql

-- A number for a name: 64 bits of a cryptographic hash with this schema's secret.
--
-- Invariant "own lane": without the secret, names with the same number cannot be constructed. The outer hash only shortens the
-- unpredictable result of the inner one.
create function forebay._secret_hash(p_name text) returns bigint
language sql volatile
as $$
    select hashtextextended(
        encode(sha256(convert_to(concat_ws('/', pg_sequence_last_value('forebay.lane_secret') | 1, p_name), 'UTF8')), 'hex')
        collate "C", 0)
$$;


-- The lane of (queue, priority, audience), computed from its name alone, so that an enqueue finds the lane without the registry.
-- Its number is even, like those of all lanes except those of jobs with limit keys.
create function forebay._lane_id(p_queue text, p_priority integer, p_audience bigint) returns bigint
language sql volatile
as $$
    -- forebay._secret_hash(concat_ws('/', p_queue, p_priority, p_audience)), in fewer steps: every enqueue calls this.
    select hashtextextended(
        encode(sha256(convert_to(concat_ws('/', pg_sequence_last_value('forebay.lane_secret') | 1, p_queue, p_priority, p_audience), 'UTF8')),
               'hex') collate "C", 0) & -2
$$;


-- One of the public lanes of a sharded queue. Shard 0 is the lane that the queue had before.
create function forebay._shard_id(p_queue text, p_priority integer, p_shard integer) returns bigint
language sql volatile
as $$
    select case p_shard when 0 then forebay._lane_id(p_queue, p_priority, 0)
                        else forebay._secret_hash(concat_ws('/', p_queue, p_priority, 0, p_shard)) & -2 end
$$;


-- The lane of jobs with ordering keys for (queue, priority, audience).
create function forebay._keyed_lane_id(p_queue text, p_priority integer, p_audience bigint) returns bigint
language sql volatile
as $$ select forebay._secret_hash(concat_ws('/', p_queue, p_priority, p_audience, 'key')) & -2 $$;


-- The lane of jobs with limit keys for (queue, priority, audience).
create function forebay._limited_lane_id(p_queue text, p_priority integer, p_audience bigint) returns bigint
language sql volatile
as $$ select forebay._secret_hash(concat_ws('/', p_queue, p_priority, p_audience, 'limit')) | 1 $$;


-- functions/enqueue/queue_of.sql

-- grant: producer, worker, operator, reader

-- The queue of a kind, as the worker that started last declares it; null when no worker has declared the kind. An enqueue without a
-- queue goes there, or to `default`.
--
-- Errors: none.
-- pages: 10
create function forebay.queue_of(kind text) returns text
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$ select k.queue from forebay.kind_queue k where k.kind = queue_of.kind $$;


-- functions/enqueue/record_lane.sql

-- Can this transaction rely on a row of the lane in the registry? Then readers find its jobs without a further row.
--
-- It can rely on a row in use that it wrote, and, when it sees the last retirement of lanes, on one that it sees. The transaction
-- id is drawn before the horizon is read, and the horizon before the row: see forebay.forget_v1().
--
-- Invariant "own lane": the whole row is compared, not only the number.
-- Errors: JQ006 another lane has the number.
create function forebay._is_recorded(
    p_lane bigint, p_queue text, p_priority integer, p_audience bigint, p_sort text, p_shard integer,
    out is_recorded boolean, out is_committed boolean, out horizon bigint)
language plpgsql volatile
as $$
declare
    v_is_same boolean;
begin
    horizon := case when pg_current_xact_id() is not null then coalesce(pg_sequence_last_value('forebay.lane_horizon'), 1) end;
    -- Positive is the age of a row of another transaction, which is committed because it is visible; not of this transaction's.
    select bool_and((l.queue, l.priority, l.audience, l.sort) = (p_queue, p_priority, p_audience, p_sort)
                    and l.shard is not distinct from p_shard),
           coalesce(bool_or(l.state = 'used' and (age(l.xmin) <= 0 or s.is_seen)), false),
           coalesce(bool_or(l.state = 'used' and age(l.xmin) > 0 and s.is_seen), false)
    into v_is_same, is_recorded, is_committed
    from (select pg_visible_in_snapshot(horizon::text::xid8, pg_current_snapshot()) as is_seen offset 0) s
    join forebay.lane l on l.lane = p_lane;
    if v_is_same is false then
        raise exception using errcode = 'JQ006',
            message = format('the lane of queue %s, priority %s is in use under another name', p_queue, p_priority),
            detail = jsonb_build_object('queue', p_queue, 'priority', p_priority),
            hint = 'Nothing was written. Use another queue or priority.';
    end if;
end
$$;


-- Add a lane to the registry unless the transaction can rely on a row of it; returns the lane.
--
-- A session that sees a committed job also sees its lane: the row seen here, or written here, belongs to a committed
-- transaction or to the job's transaction. Never waits: there is no unique key.
-- Errors: JQ006 another lane has the number.
create function forebay._add_lane(
    p_lane bigint, p_queue text, p_priority integer, p_audience bigint, p_sort text,
    p_shard integer default null)
returns bigint
language plpgsql volatile
as $$
begin
    if not (forebay._is_recorded(p_lane, p_queue, p_priority, p_audience, p_sort, p_shard)).is_recorded then
        insert into forebay.lane (lane, queue, priority, audience, sort, shard, recorded_at)
        values (p_lane, p_queue, p_priority, p_audience, p_sort, p_shard, forebay._now());
    end if;
    return p_lane;
end
$$;


-- Put lanes in use again, for rows that this transaction has written to them without the registry: a dormant lane has a row with
-- its name.
create function forebay._use_lanes(p_lanes bigint[]) returns void
language plpgsql volatile
as $$
declare
    v_horizon constant bigint := case when pg_current_xact_id() is not null then coalesce(pg_sequence_last_value('forebay.lane_horizon'), 1) end;
begin
    insert into forebay.lane (lane, queue, priority, audience, sort, shard, recorded_at)
    select n.lane, n.queue, n.priority, n.audience, n.sort, n.shard, forebay._now()
    from (select distinct u from unnest(p_lanes) u) a (lane)
    cross join lateral (select l.* from forebay.lane l where l.lane = a.lane limit 1) n
    where not exists (
        select from forebay.lane i
        where i.lane = a.lane and i.state = 'used'
          and (age(i.xmin) <= 0 or pg_visible_in_snapshot(v_horizon::text::xid8, pg_current_snapshot())));
end
$$;


-- The lane of (queue, priority, audience), recorded in the registry.
create function forebay._record_lane(p_queue text, p_priority integer, p_audience bigint) returns bigint
language sql volatile
as $$
    select forebay._add_lane(forebay._lane_id(p_queue, p_priority, p_audience), p_queue, p_priority, p_audience, 'plain',
                         case p_audience when 0 then 0 end)
$$;


-- The lane of jobs with ordering keys for (queue, priority, audience), recorded in the registry.
create function forebay._record_keyed_lane(p_queue text, p_priority integer, p_audience bigint) returns bigint
language plpgsql volatile
as $$
begin
    if pg_sequence_last_value('forebay.key_seq') is null then
        perform nextval('forebay.key_seq');
    end if;
    return forebay._add_lane(forebay._keyed_lane_id(p_queue, p_priority, p_audience), p_queue, p_priority, p_audience, 'keyed');
end
$$;


-- The lane of jobs with limit keys for (queue, priority, audience), recorded in the registry.
create function forebay._record_limited_lane(p_queue text, p_priority integer, p_audience bigint) returns bigint
language plpgsql volatile
as $$
begin
    if pg_sequence_last_value('forebay.limiter_seq') is null then
        perform nextval('forebay.limiter_seq');
    end if;
    return forebay._add_lane(forebay._limited_lane_id(p_queue, p_priority, p_audience), p_queue, p_priority, p_audience, 'limited');
end
$$;


-- The lane in which a group's job continues, recorded in the registry.
create function forebay._record_private_lane(
    p_queue text, p_priority integer, p_audience bigint, p_ordering_key text, p_limit_key text)
returns bigint
language sql volatile
as $$
    select case when p_ordering_key is not null then forebay._record_keyed_lane(p_queue, p_priority, p_audience)
                when p_limit_key is not null then forebay._record_limited_lane(p_queue, p_priority, p_audience)
                else forebay._record_lane(p_queue, p_priority, p_audience) end
$$;


-- The public lanes for many jobs, recorded in the registry: one, or all lanes of a sharded queue.
--
-- The caller distributes the jobs by p_shards. Read a second time, the numbers of shards may have changed, and jobs would go to
-- lanes that are not in the registry.
create function forebay._record_lanes(p_queue text, p_priority integer, p_shards jsonb) returns bigint[]
language sql volatile
as $$
    select array(
        select forebay._add_lane(forebay._shard_id(p_queue, p_priority, shard), p_queue, p_priority, 0, 'plain', shard)
        from generate_series(0, coalesce((p_shards ->> p_queue)::integer, 1) - 1) shard order by shard)
$$;


-- functions/enqueue/shards.sql

-- The number of public lanes of each priority over which the jobs of a queue are distributed; 1 where their order is kept.
create function forebay._shards_of(p_queue text) returns integer
language sql stable
as $$ select coalesce((select s.lanes from forebay.queue_shards s where s.queue = p_queue), 1) $$;


-- A public lane for one job, recorded in the registry: any lane of a sharded queue.
create function forebay._pick_lane(p_queue text, p_priority integer) returns bigint
language plpgsql volatile
as $$
declare
    v_shard integer := floor(random() * forebay._shards_of(p_queue));
begin
    return forebay._add_lane(forebay._shard_id(p_queue, p_priority, v_shard), p_queue, p_priority, 0, 'plain', v_shard);
end
$$;


-- The number of public lanes of some queues, by queue; null: none of them is sharded.
create function forebay._shards(p_queues text[]) returns jsonb
language sql volatile
as $$
    select case when pg_sequence_last_value('forebay.shard_seq') is not null then
        (select jsonb_object_agg(s.queue, s.lanes) from forebay.queue_shards s where s.queue = any (p_queues)) end
$$;


-- The public lane for the job at a place of the input.
create function forebay._lane_for_place(p_queue text, p_priority integer, p_place bigint, p_shards jsonb) returns bigint
language sql volatile
as $$
    select case when p_shards is null then forebay._lane_id(p_queue, p_priority, 0)
                else forebay._shard_id(p_queue, p_priority, (p_place % coalesce((p_shards ->> p_queue)::integer, 1))::integer) end
$$;


-- functions/enqueue/wakeup.sql

-- The wake-up sequence of a queue.
create function forebay._wakeup(p_queue text) returns regclass
language sql stable
as $$
    select (array[
        'forebay.wakeup_0', 'forebay.wakeup_1', 'forebay.wakeup_2', 'forebay.wakeup_3', 'forebay.wakeup_4', 'forebay.wakeup_5', 'forebay.wakeup_6', 'forebay.wakeup_7',
        'forebay.wakeup_8', 'forebay.wakeup_9', 'forebay.wakeup_10', 'forebay.wakeup_11', 'forebay.wakeup_12', 'forebay.wakeup_13', 'forebay.wakeup_14', 'forebay.wakeup_15']::regclass[])[(hashtext(p_queue) & 15) + 1]
$$;


-- Is the time of a flag sequence, in milliseconds since 1970, still to come? A worker sleeps, or a caller waits, until then.
--
-- At most for about a minute: a time further in the future was written before the clock was set back.
create function forebay._is_ahead(p_millis bigint) returns boolean
language sql volatile
-- The parameter stands here once, so that the function is inlined.
as $$ select coalesce(abs(p_millis - date_part('epoch', clock_timestamp()) * 1000 - 35000) < 35000, false) $$;


-- Set a flag sequence to a value, or less than one step beyond it; p_step is its increment.
--
-- A few steps forward are nextval(): it writes WAL, and draws a transaction id, at one call in 33 and at the first one after a
-- checkpoint; setval() does at every call. A crash sets the flag up to 32 steps ahead. Not for a session of the user: nextval()
-- changes its lastval().
create function forebay._advance_flag(p_flag regclass, p_value bigint, p_step bigint) returns void
language plpgsql volatile
as $$
declare
    v_steps constant bigint := (p_value - pg_sequence_last_value(p_flag) + p_step - 1) / p_step;
begin
    if v_steps between 1 and 32 then
        perform nextval(p_flag) from generate_series(1, v_steps);
    else
        perform setval(p_flag, p_value);
    end if;
end
$$;


-- Does a worker that serves the queue sleep?
create function forebay._is_awaited(p_queue text) returns boolean
language sql volatile
as $$
    select forebay._is_ahead(pg_sequence_last_value(forebay._wakeup(p_queue)))
$$;


-- May a transaction notify when a worker waits?
--
-- Only while the notification queue is nearly empty: when it is full, every transaction that notifies fails. Not where
-- transactions can be prepared: a transaction that has notified cannot be, and a waiting worker must not decide over a
-- producer's commit. The parameter forebay.wakeup, on or off, overrides this for a server, a database, a role or a
-- session.
create function forebay._may_notify() returns boolean
language sql volatile
as $$
    select coalesce(nullif(current_setting('forebay.wakeup', true), '') = 'on',
                    current_setting('max_prepared_transactions') = '0')
           and pg_notification_queue_usage() < 0.25
$$;


-- Wake a sleeping worker of the queue when this transaction commits.
--
-- Only while a worker sleeps: NOTIFY takes a database-wide lock at commit. The wake-up shortens the wait and guarantees
-- nothing; workers poll.
create function forebay._notify(p_queue text) returns void
language plpgsql volatile
as $$
begin
    if forebay._is_awaited(p_queue) and forebay._may_notify() then
        perform pg_notify('forebay_wakeup', p_queue);
    end if;
end
$$;


-- functions/guard/record_act.sql

-- grant: operator

-- Record an act of the guard before it happens; returns the event's number.
--
-- Invariant: "no act without its record". Durable on this server when the function returns, whatever the session's
-- synchronous_commit. It waits for no standby, since a standby that hangs may be the reason for the guard's act.
--
-- Errors: JQ001 an unknown action, or a missing value.
create function forebay.record_act(
    p_server text, p_action text, p_holder text, p_name text, p_reason text, p_user text default null,
    p_application text default null, p_database text default null, p_state text default null,
    p_xact_start timestamptz default null, p_seconds double precision default null, p_age bigint default null,
    p_query text default null)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_event_id bigint;
begin
    if (p_action in ('cancel', 'terminate', 'rollback prepared')) is not true then
        raise exception using errcode = 'JQ001', column = 'action',
            message = format('unknown action %s of the guard', coalesce(quote_literal(left(p_action, 40)), 'null'));
    elsif p_server is null or p_holder is null or p_name is null or p_reason is null then
        raise exception using errcode = 'JQ001', message = 'an act needs server, holder, name and reason';
    end if;
    perform set_config('synchronous_commit', 'local', true);
    insert into forebay.guard_event (event_id, at, acted_as, server, action, holder, name, user_name, application, database_name,
                                     state, xact_start, seconds, age, reason, query)
    values (forebay._random_name(), forebay._now(), session_user, left(p_server, 200), p_action, left(p_holder, 40), left(p_name, 200),
            p_user, p_application, p_database, left(p_state, 40), p_xact_start, p_seconds, p_age,
            left(p_reason, 200), left(p_query, 200))
    returning event_id into v_event_id;
    return v_event_id;
end
$$;


-- functions/guard/record_outcome.sql

-- grant: operator

-- Record the outcome of an act: once, and only by the role that recorded the act.
--
-- Errors: JQ001 this role has no such act without an outcome.
create function forebay.record_outcome(p_event_id bigint, p_outcome text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
begin
    update forebay.guard_event e
    set outcome = left(coalesce(p_outcome, ''), 200), outcome_at = forebay._now()
    where e.event_id = p_event_id and e.outcome is null and e.acted_as = session_user;
    if not found then
        raise exception using errcode = 'JQ001', column = 'event_id',
            message = format('act %s of %s does not exist or already has an outcome', coalesce(p_event_id::text, 'null'), session_user);
    end if;
end
$$;


-- functions/keys/announce.sql

-- Make the group's claims look at some keys again: append a recheck row for each.
create function forebay._announce_keys(p_queue text, p_priority integer, p_group_id bigint, p_keys text[]) returns void
language plpgsql volatile
as $$
begin
    insert into forebay.log (lane, enqueued_at, kind, args, ordering_key)
    select l.lane, l.at, '', '{}', k.key
    from unnest(p_keys) k (key),
         (select forebay._record_keyed_lane(p_queue, p_priority, p_group_id) as lane, forebay._now() as at offset 0) l;
end
$$;


-- functions/keys/before.sql

-- Keys of a batch whose next job is in a new row, or that a dead letter holds, by the settlements of the batch.
create function forebay._keys_in_transit(p_lease_id bigint, p_claim_no bigint, p_keys text[]) returns text[]
language sql stable
as $$
    select array(select p_keys[u.place] from forebay.settlement s, unnest(s.offsets, s.outcomes) u (place, code)
                 where s.lease_id = p_lease_id and s.claim_no = p_claim_no and u.code in ('r', 'l', 's', 'u', 'h', 'y'))
$$;


-- Keys of which an earlier batch of a lease has a job that has not ended for good: it is open, continues in a new row, or was
-- requeued. Only key runs that the newest one of the key continues count.
create function forebay._keys_before(p_group_id bigint, p_lease_id bigint, p_claim_no bigint, p_keys text[]) returns text[]
language sql stable
set enable_nestloop = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
    with entry as materialized (
        select k.key, e.claim_no, o.place
        from (select distinct u.key from unnest(p_keys) u (key)) k
        cross join lateral (select coalesce(i.since, i.no) as since from forebay.key_run i
                            where i.group_id = p_group_id and i.ordering_key = k.key order by i.no desc limit 1) t
        cross join lateral (select i.claim_no, coalesce(i.offsets, array[i.place]) as offsets from forebay.key_run i
                            where i.group_id = p_group_id and i.ordering_key = k.key and i.no >= t.since
                              and i.lease_id = p_lease_id and i.claim_no < p_claim_no offset 0) e
        cross join lateral unnest(e.offsets) o (place)
    ), flush as materialized (
        select b.claim_no, s.offsets, s.outcomes
        from (select distinct e.claim_no from entry e) b
        cross join lateral (select i.offsets, i.outcomes from forebay.settlement i
                            where i.lease_id = p_lease_id and i.claim_no = b.claim_no offset 0) s
    ), final as materialized (
        select f.claim_no, u.place from flush f, unnest(f.offsets, f.outcomes) u (place, code)
        where coalesce(u.code, 'd') in ('d', 'c', 'x')
    )
    select array(
        select distinct e.key from entry e
        where not exists (select from flush f where f.claim_no = e.claim_no and f.offsets is null)
          and not exists (select from final f where f.claim_no = e.claim_no and f.place = e.place))
$$;


-- functions/keys/claim.sql

-- A job of a keyed lane as a claim returns it: like any other, with its ordering key at the end.
create function forebay._keyed_json(
    p_seq bigint, p_job_id bigint, p_enqueued_at timestamptz, p_expires_at timestamptz, p_attempt integer,
    p_max_attempts integer, p_pauses integer, p_kind text, p_args jsonb, p_tag text, p_correlation_id text, p_headers jsonb,
    p_ordering_key text) returns text
language sql stable
as $$
    select '[' || p_seq || ',"' || p_kind || '",' || (date_part('epoch', p_enqueued_at) * 1000000)::bigint || ',' || p_args
           || case when num_nonnulls(p_job_id, p_expires_at, p_attempt, p_max_attempts, p_pauses, p_tag, p_correlation_id, p_headers) = 0
                   then ',0,null,null,null,null,null,null,null,'
                   else ',' || btrim(json_build_array(
                       coalesce(p_job_id, p_seq), (date_part('epoch', p_expires_at) * 1000000)::bigint, p_attempt, p_max_attempts,
                       p_pauses, p_tag, p_correlation_id, p_headers)::text, '[]') || ',' end
           || to_json(p_ordering_key) || ']'
$$;


-- forebay.claim_v1() for a keyed lane; v: the group's limiter, see forebay._take_keyed().
create function forebay._claim_keyed(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer,
    v forebay._limiter_view default null)
returns text
language plpgsql volatile
as $$
declare
    v_rows forebay.log[] := forebay._take_keyed(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit, v);
begin
    -- The order is that of the array, as nothing else happens to its rows.
    return (select string_agg(forebay._keyed_json(
                       u.seq, u.job_id, u.enqueued_at, u.expires_at, u.attempt, u.max_attempts, u.pauses, u.kind, u.args,
                       u.tag, u.correlation_id, u.headers, u.ordering_key), ',')
            from unnest(v_rows) u);
end
$$;


-- functions/keys/fetch.sql

-- Rows of keyed jobs by lane and number, in no order.
create function forebay._fetch(p_lanes bigint[], p_seqs bigint[]) returns forebay.log[]
language plpgsql stable
as $$
declare
    v_rows  forebay.log[] := '{}';
    v_part  forebay.log[];
    v_piece record;
begin
    for v_piece in
        select s.segment_id, array_agg(u.lane) as lanes, array_agg(u.seq) as seqs
        from unnest(p_lanes, p_seqs) as u (lane, seq)
        cross join lateral (select i.segment_id from forebay.segment i where i.lo <= u.seq order by i.lo desc limit 1) s
        group by s.segment_id
    loop
        execute 'select forebay._fetch_' || v_piece.segment_id || '($1, $2)' into v_part using v_piece.lanes, v_piece.seqs;
        v_rows := v_rows || v_part;
    end loop;
    return v_rows;
end
$$;


-- functions/keys/limits.sql

-- What the claim of a keyed lane did to the limit keys of its jobs: the jobs that it took, and those that wait now for a turn of their limit
-- key. The lock of the group's limiter is held.
--
-- Invariant "no key is forgotten": a limit key that has parked jobs now, or passed its turn on to an ordering key of this claim, gets its
-- next turn.
--
-- Parameters: p_states, of the limit keys that the claim met; p_paused and p_ends, which of them are paused, and the ends of the pauses.
--   p_keys, p_seqs: of the jobs taken, in their order; a key is null for a job without one. p_granted: limit keys that passed their turn on.
--   The others: the jobs that wait.
create function forebay._record_keyed_limits(
    v forebay._limiter_view, p_queue text, p_priority integer, p_group_id bigint, p_lease_id bigint, p_claim_no bigint,
    p_states forebay._limit_state[], p_paused text[], p_ends timestamptz[], p_keys text[], p_seqs bigint[], p_granted text[],
    p_limit_keys text[], p_ordering_keys text[], p_parked_nos bigint[], p_lanes bigint[], p_xids xid8[], p_waiting bigint[])
returns void
language plpgsql volatile
set enable_nestloop = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_turns record;
begin
    with run as materialized (
        select u.key, array_agg(u.place::smallint order by u.place) as places, max(u.seq) as high
        from unnest(p_keys, p_seqs) with ordinality u (key, seq, place)
        where u.key is not null group by u.key
    ), parking as (
        insert into forebay.limit_parked (group_id, limit_key, parked_no, lane, xid, seq, seq_to, jobs, ordering_key)
        select p_group_id, u.limit_key, u.parked_no, u.lane, u.xid, u.seq, u.seq, 1, u.ordering_key
        from unnest(p_limit_keys, p_ordering_keys, p_parked_nos, p_lanes, p_xids, p_waiting) u (limit_key, ordering_key, parked_no, lane, xid, seq)
        returning limit_key, parked_no
    ), parked as materialized (
        select p.limit_key, max(p.parked_no) as last, count(*) as jobs from parking p group by p.limit_key
    ), next as materialized (
        select s.limit_key, s.no, s.turn, s.taken_up_to, s.taken_seq, s.taken_jobs, s.leases, s.claims, s.offsets, r.places, r.high,
               coalesce(d.last, s.parked_up_to) as parked_up_to, s.waiting + coalesce(d.jobs, 0) as left, s.is_full, d.jobs as newly,
               s.waiting = 0 or s.limit_key = any (p_granted) as gets_turn, n.run, s.tokens - n.run as tokens,
               case when n.run > 0 then forebay._tat_after(s.tat, s.rate, v.at, n.run) else s.tat end as tat,
               coalesce(cardinality(s.leases) + n.run >= s.concurrency, false) as fills,
               case when s.concurrency is not null then n.run else 0 end as slots, s.rate, s.burst, s.concurrency, s.limits_no, s.has_new_limits
        from unnest(p_states) s
        left join run r on r.key = s.limit_key
        left join parked d on d.limit_key = s.limit_key
        cross join lateral (select coalesce(cardinality(r.places), 0) as run) n
    ), written as (
        insert into forebay.limit_run (
            group_id, limit_key, no, high_seq, turn, waiting, parked_up_to, taken_up_to, taken_seq, taken_jobs, is_full, tat, decided_at,
            leases, claims, offsets, limits_no)
        select p_group_id, n.limit_key, n.no + 1, coalesce(n.high, 0), nullif(n.turn, 0), nullif(n.left, 0), nullif(n.parked_up_to, 0),
               nullif(n.taken_up_to, 0), nullif(n.taken_seq, 0), nullif(n.taken_jobs, 0),
               case when n.gets_turn then n.left > 0 and n.fills else n.is_full end, n.tat, case when n.tat is not null then v.at end,
               nullif(n.leases || array_fill(p_lease_id, array[n.slots]), '{}'), nullif(n.claims || array_fill(p_claim_no, array[n.slots]), '{}'),
               nullif(n.offsets || case when n.slots > 0 then n.places end, '{}'), n.limits_no
        from next n
        where n.newly > 0 or n.run > 0 and (num_nonnulls(n.concurrency, n.rate) > 0 or n.has_new_limits)
    )
    select array_agg(n.limit_key order by n.limit_key) as keys, array_agg(n.turn order by n.limit_key) as turns,
           array_agg(n.fills order by n.limit_key) as fills, array_agg(n.tokens order by n.limit_key) as tokens,
           array_agg(n.tat order by n.limit_key) as tats, array_agg(n.rate order by n.limit_key) as rates,
           array_agg(n.burst order by n.limit_key) as bursts
    into v_turns
    from next n where n.left > 0 and n.gets_turn;
    if v_turns.keys is not null then
        perform forebay._give_turns(v, p_queue, p_priority, p_group_id, v_turns.keys, v_turns.turns, v_turns.fills, v_turns.tokens, v_turns.tats,
                                    v_turns.rates, v_turns.bursts, p_paused, p_ends);
    end if;
end
$$;


-- functions/keys/parked.sql

-- Does a keyed job that a group's cursor has passed still wait for its key?
create function forebay._is_parked(p_group_id bigint, p_ordering_key text, p_seq bigint) returns boolean
language sql stable
as $$
    select exists (
        select from forebay._key_states(p_group_id, array[p_ordering_key]) s
        where p_seq = any (s.waiting_seqs)
           or exists (select from forebay.parked p
                      where p.seq = p_seq and p.group_id = p_group_id and p.ordering_key = p_ordering_key and p.parked_no > s.taken_up_to))
$$;


-- The last batch with a row of a keyed job, or null.
create function forebay._keyed_batch_of(p_group_id bigint, p_ordering_key text, p_seq bigint) returns forebay.batch
language plpgsql stable
as $$
declare
    v_batch forebay.batch;
begin
    for v_batch in
        select b.* from forebay.key_run t
        join forebay.batch b on b.lease_id = t.lease_id and b.claim_no = t.claim_no
        where t.group_id = p_group_id and t.ordering_key = p_ordering_key and t.low_seq <= p_seq and coalesce(t.high_seq, t.low_seq) >= p_seq
          and p_seq = any (b.seqs)
        order by t.no desc limit 1
    loop
        return v_batch;
    end loop;
    return null;
end
$$;


-- The ordering keys that may have jobs behind a cursor: with parked rows, and with jobs that were requeued, now or earlier. So the many
-- keys of which no job waits cost nothing.
create function forebay._waiting_ordering_keys()
returns table (group_id bigint, ordering_key text)
language sql stable
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
    with recursive parked_key as (
        (select p.group_id, p.ordering_key from forebay.parked p order by p.group_id, p.ordering_key limit 1)
        union all
        select n.group_id, n.ordering_key
        from parked_key k, lateral (
            select p.group_id, p.ordering_key from forebay.parked p
            where (p.group_id, p.ordering_key) > (k.group_id, k.ordering_key)
            order by p.group_id, p.ordering_key limit 1) n
    )
    select k.group_id, k.ordering_key from parked_key k
    union
    select t.group_id, t.ordering_key from forebay.key_run t where t.rest_seqs is not null
    union
    select b.group_id, b.keys[u.place]
    from forebay.settlement s
    cross join lateral (select i.group_id, i.keys from forebay.batch i
                        where i.lease_id = s.lease_id and i.claim_no = s.claim_no offset 0) b
    cross join lateral unnest(s.offsets, s.outcomes) u (place, code)
    where 'k' = any (s.outcomes) and u.code = 'k'
$$;


-- All jobs with ordering keys that wait behind a cursor: parked or requeued.
create function forebay._all_ordering_parked()
returns table (group_id bigint, ordering_key text, lane bigint, seq bigint, place bigint)
language sql stable
as $$
    with state as materialized (
        select g.group_id, s.*
        from (select k.group_id, array_agg(k.ordering_key) as keys from forebay._waiting_ordering_keys() k group by k.group_id) g,
             lateral forebay._key_states(g.group_id, g.keys) s
    )
    select s.group_id, s.ordering_key, u.lane, u.seq, u.nr - 1000000000
    from state s, unnest(s.waiting_lanes, s.waiting_seqs) with ordinality u (lane, seq, nr)
    union all
    select p.group_id, p.ordering_key, p.lane, p.seq, p.parked_no
    from forebay.parked p
    left join state s on s.group_id = p.group_id and s.ordering_key = p.ordering_key
    where p.parked_no > coalesce(s.taken_up_to, 0)
$$;


-- functions/keys/paused.sql

-- Of some keys those that are paused, with the end of each pause, null for none.
create function forebay._paused_keys(p_queue text, p_sort text, p_keys text[], p_at timestamptz, out keys text[], out ends timestamptz[])
language sql stable
as $$
    select coalesce(array_agg(p.key order by p.key), '{}'), coalesce(array_agg(p.resume_at order by p.key), '{}')
    from forebay.key_pause p
    where p.queue = p_queue and p.sort = p_sort and p.key = any (p_keys)
      and coalesce(p.begins_at <= p_at, true) and coalesce(p.resume_at > p_at, true)
$$;


-- What a claim does about the paused ordering keys that it met, before it parks their jobs. The lock of the group's keys is held.
--
-- A job on its way (a retry, for example) that has come back becomes the first of the key's requeued jobs; returns the numbers of such
-- rows. A suspect does not: it returns to its own lane.
--
-- Invariant "a paused key is not forgotten": when the pause has an end, the key gets a recheck row at that time, unless something that was
-- there before makes a claim look at the key again.
create function forebay._hold_keys(
    p_group_id bigint, p_queue text, p_priority integer, p_audience bigint, p_keys text[], p_ends timestamptz[],
    p_rows forebay.log[], p_at timestamptz)
returns bigint[]
language plpgsql volatile
set enable_nestloop = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_key     record;
    v_private bigint;
    v_seqs    bigint[] := '{}';
begin
    for v_key in
        select s.*, p.ends, h.lane, h.seq,
               s.waiting_seqs <> '{}'
               or exists (select from forebay.parked i
                          where i.group_id = p_group_id and i.ordering_key = s.ordering_key and i.parked_no > s.taken_up_to) as has_waiting,
               exists (select from unnest(p_rows) r where r.ordering_key = s.ordering_key and r.kind = '') as is_recheck
        from forebay._key_states(p_group_id, p_keys) s
        join unnest(p_keys, p_ends) p (key, ends) on p.key = s.ordering_key
        left join lateral (select r.lane, r.seq from unnest(p_rows) r
                           where p_audience >= 0 and s.open = 0 and r.ordering_key = s.ordering_key and r.kind <> ''
                             and coalesce(r.job_id, r.seq) = s.head limit 1) h on true
    loop
        if v_key.seq is not null then
            v_seqs := v_seqs || v_key.seq;
            insert into forebay.key_run (
                group_id, ordering_key, no, since, taken_up_to, rest_lanes, rest_seqs, low_seq, high_seq)
            select p_group_id, v_key.ordering_key, v_key.no + 1, v_key.no + 1, v_key.taken_up_to, v_key.lane || v_key.waiting_lanes,
                   v_key.seq || v_key.waiting_seqs, min(u), max(u)
            from unnest(v_key.seq || v_key.waiting_seqs) u;
            -- A redriven job has its place now: its dead letter holds the key no longer.
            update forebay.dead_letter d set holds_key = false
            where pg_sequence_last_value('forebay.hold_seq') is not null
              and d.group_id = p_group_id and d.ordering_key = v_key.ordering_key and d.holds_key and d.redriven_as = v_key.head;
        end if;
        if v_key.ends is not null and (v_key.is_recheck or v_key.seq is not null or not v_key.has_waiting) then
            v_private := forebay._record_keyed_lane(p_queue, p_priority, p_group_id);
            -- One is enough, if it was not promoted before the clock was set back.
            if not exists (select from forebay.deferred d
                           where d.run_at = v_key.ends and d.lane = v_private and d.ordering_key = v_key.ordering_key and d.kind = ''
                             and d.run_at > coalesce((select p.run_at from forebay.promotion p order by p.no desc limit 1), '-infinity')) then
                insert into forebay.deferred (run_at, lane, enqueued_at, job_id, kind, args, ordering_key)
                values (v_key.ends, v_private, p_at, 0, '', '{}', v_key.ordering_key);
            end if;
        end if;
    end loop;
    return v_seqs;
end
$$;


-- functions/keys/release.sql

-- The outcomes of a flush, with k for every job that would run again although an earlier job of its key has not ended: it
-- is requeued behind that job. So at most one job of a key is in a new row that no claim has read.
create function forebay._requeued(
    p_group_id bigint, p_lease_id bigint, p_claim_no bigint, p_keys text[], p_offsets smallint[], p_outcomes "char"[])
returns "char"[]
language sql stable
set enable_nestloop = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
    with now as materialized (
        select u.place, u.code, u.nr from unnest(p_offsets, p_outcomes) with ordinality u (place, code, nr)
    ), ended as materialized (
        select n.place, n.code from now n
        union all
        select u.place, coalesce(u.code, 'd')
        from (select i.offsets, i.outcomes from forebay.settlement i
              where i.lease_id = p_lease_id and i.claim_no = p_claim_no offset 0) s, unnest(s.offsets, s.outcomes) u (place, code)
    ), entry as materialized (
        select b.key, b.place, e.code is not null and e.code in ('d', 'c', 'x') as is_final
        from unnest(p_keys) with ordinality b (key, place) left join ended e on e.place = b.place
    ), first as materialized (
        select e.key, min(e.place) as place from entry e where not e.is_final group by e.key
    ), before as materialized (
        select k.key from unnest(forebay._keys_before(p_group_id, p_lease_id, p_claim_no, array(
            select p_keys[n.place] from now n where n.code not in ('d', 'c', 'x')))) k (key)
    )
    select array_agg(case when n.code not in ('d', 'c', 'x') and (n.place > f.place or b.key is not null) then 'k' else n.code end
                     order by n.nr)
    from now n
    join entry e on e.place = n.place
    left join first f on f.key = e.key
    left join before b on b.key = e.key
$$;


-- Announce the keys of a flush whose key run may be over, with its last job settled now or before, and for which
-- jobs wait.
--
-- The waiting jobs are read under the lock of the claims' decisions: a claim that has parked a job by then is seen, and a later
-- one sees this settlement. A handler's transaction may be held open; it neither takes that lock nor reads, and announces in any
-- case. A superfluous recheck row is read and ignored.
--
-- Parameters: p_parked_no, see batch.parked_no.
-- Locks: the lock of the group's ordering keys (shared), except for a handler's own transaction.
create function forebay._release_keys(
    p_lease_id bigint, p_claim_no bigint, p_lane bigint, p_group_id bigint, p_keys text[], p_tails smallint[],
    p_parked_no bigint, p_flush_no integer, p_offsets smallint[], p_outcomes "char"[])
returns void
language plpgsql volatile
as $$
declare
    v_lane  record;
    v_tails smallint[];
    v_keys  text[];
    v_looks constant boolean := forebay._may_look(p_flush_no);
begin
    if v_looks then
        perform forebay._lock_keys(p_group_id, true);
        -- No job was parked since the claim, and no job of these keys continues or was requeued.
        if p_outcomes is null and p_parked_no = coalesce(pg_sequence_last_value('forebay.parked_seq'), 0)
           and not exists (select from forebay.settlement s
                           where s.lease_id = p_lease_id and s.claim_no >= p_claim_no and s.outcomes is not null) then
            return;
        end if;
    end if;
    p_tails := coalesce(p_tails, array(select i::smallint from generate_subscripts(p_keys, 1) i));
    if p_offsets is null then
        v_tails := array(select distinct o from unnest(p_tails) o);
    elsif p_outcomes is null and p_flush_no > 0 then
        v_tails := array(select distinct p_tails[o] from unnest(p_offsets) o);
        if not v_tails <@ p_offsets then
            v_tails := array(select o from unnest(v_tails) o
                             where o = any (p_offsets)
                                or exists (select from forebay.settlement s
                                           where s.lease_id = p_lease_id and s.claim_no = p_claim_no and o = any (s.offsets)));
        end if;
    else
        -- Where a job continues in a new row, or holds its key, the key waits for that.
        v_tails := array(
            select p_tails[u.place] from unnest(p_offsets, p_outcomes) u (place, code)
            group by 1
            having bool_or(u.code in ('r', 'l', 's', 'u', 'h', 'y')) is not true);
    end if;
    if v_tails = '{}' then
        return;
    end if;
    v_keys := array(select p_keys[o] from unnest(v_tails) o);
    if v_looks and not exists (select from forebay.settlement s
                               where s.lease_id = p_lease_id and s.claim_no >= p_claim_no and 'k' = any (s.outcomes)) then
        v_keys := array(
            select k.key
            from unnest(v_keys) k (key)
            left join lateral (select i.taken_up_to, i.rest_seqs from forebay.key_run i
                               where i.group_id = p_group_id and i.ordering_key = k.key order by i.no desc limit 1) t on true
            where t.rest_seqs is not null
               or exists (select from forebay.parked p
                          where p.group_id = p_group_id and p.ordering_key = k.key and p.parked_no > coalesce(t.taken_up_to, 0)));
    end if;
    if v_keys <> '{}' then
        select l.queue, l.priority into v_lane from forebay.lane l where l.lane = p_lane limit 1;
        perform forebay._announce_keys(v_lane.queue, v_lane.priority, p_group_id, v_keys);
    end if;
end
$$;


-- functions/keys/states.sql

-- The states of keys for a group: one row for each.
--
-- is_suspect: the lease that has the key gets no more of it: it has a suspect, or releases the jobs behind one that held the key.
-- open: unsettled jobs of its newest key runs; the lease holder has them, the first is of key run first_open. head: the
-- id of a job that must come first and is in a new row, for example a retry; or of a dead letter's job that holds the key. waiting_*: requeued jobs, in order; the first of
-- them is next, before all parked ones. waits_for: the limit key for a turn of which that first one waits, and waits_at its row there.
create function forebay._key_states(p_group_id bigint, p_keys text[])
returns table (
    ordering_key text, no bigint, since bigint, taken_up_to bigint, is_suspect boolean, open bigint, holder bigint, first_open bigint, head bigint,
    waiting_lanes bigint[], waiting_seqs bigint[], waits_for text, waits_at bigint)
language sql stable
set enable_nestloop = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
    with last as materialized (
        select k.key, t.no, coalesce(t.since, t.no) as since, t.taken_up_to, t.is_suspect, t.rest_lanes, t.rest_seqs, t.waits_for, t.waits_at
        from unnest(p_keys) k (key)
        left join lateral (select * from forebay.key_run i
                           where i.group_id = p_group_id and i.ordering_key = k.key
                           order by i.no desc limit 1) t on true
    ), key_run as materialized (
        select l.key, t.no, t.lease_id, t.claim_no, coalesce(t.offsets, array[t.place]) as offsets, coalesce(t.jobs, array[t.low_seq]) as jobs
        from last l
        cross join lateral (select * from forebay.key_run i
                            where i.group_id = p_group_id and i.ordering_key = l.key and i.no between l.since and l.no
                              and i.lease_id is not null offset 0) t
    ), flush as materialized (
        select b.lease_id, b.claim_no, s.offsets, s.outcomes
        from (select distinct t.lease_id, t.claim_no from key_run t) b
        cross join lateral (select i.offsets, i.outcomes from forebay.settlement i
                            where i.lease_id = b.lease_id and i.claim_no = b.claim_no offset 0) s
    ), ended as materialized (
        select f.lease_id, f.claim_no, u.place, coalesce(u.code, 'd') as code
        from flush f, unnest(f.offsets, f.outcomes) u (place, code)
    ), open as materialized (
        -- Batches that are not settled as a whole. A batch removed meanwhile ended long ago.
        select b.lease_id, b.claim_no
        from (select distinct t.lease_id, t.claim_no from key_run t) b
        cross join lateral (select from forebay.batch i
                            where i.lease_id = b.lease_id and i.claim_no = b.claim_no offset 0) i
        where not exists (select from flush f where f.lease_id = b.lease_id and f.claim_no = b.claim_no and f.offsets is null)
    ), partial as materialized (
        select t.key, t.no, t.lease_id, t.claim_no, u.place, u.job, e.code
        from open o
        join key_run t on t.lease_id = o.lease_id and t.claim_no = o.claim_no
        cross join lateral unnest(t.offsets, t.jobs) u (place, job)
        left join ended e on e.lease_id = t.lease_id and e.claim_no = t.claim_no and e.place = u.place
    ), kept as materialized (
        select p.key, array_agg(u.lane order by p.no, p.place) as lanes, array_agg(u.seq order by p.no, p.place) as seqs
        from partial p
        join (select b.lease_id, b.claim_no, u.place, u.seq, coalesce(u.lane, i.lane) as lane
              from (select distinct k.lease_id, k.claim_no from partial k where k.code = 'k') b
              cross join lateral (select i.lane, i.seqs, i.lanes from forebay.batch i
                                  where i.lease_id = b.lease_id and i.claim_no = b.claim_no offset 0) i
              cross join lateral unnest(i.seqs, i.lanes) with ordinality u (seq, lane, place)) u
          on u.lease_id = p.lease_id and u.claim_no = p.claim_no and u.place = p.place
        where p.code = 'k'
        group by p.key
    ), state as materialized (
        select p.key, count(*) filter (where p.code is null) as open, min(p.lease_id) as holder,
               min(p.no) filter (where p.code is null) as first_open,
               min(p.job) filter (where p.code in ('r', 'l', 's', 'u', 'h')) as head, bool_or(p.code = 'y') as has_held
        from partial p
        group by p.key
    ), held as materialized (
        -- A dead letter's own job never comes. The one that it is redriven as does.
        select l.key, d.head
        from last l
        cross join lateral (select coalesce(i.redriven_as, i.job_id) as head from forebay.dead_letter i
                            where i.group_id = p_group_id and i.ordering_key = l.key and i.holds_key order by i.dead_id limit 1) d
        where pg_sequence_last_value('forebay.hold_seq') is not null
    )
    select l.key, coalesce(l.no, 0), coalesce(l.since, 0), coalesce(l.taken_up_to, 0), coalesce(l.is_suspect, false) or coalesce(s.has_held, false), coalesce(s.open, 0), s.holder, s.first_open, coalesce(h.head, s.head),
           coalesce(k.lanes || l.rest_lanes, k.lanes, l.rest_lanes, '{}'), coalesce(k.seqs || l.rest_seqs, k.seqs, l.rest_seqs, '{}'), l.waits_for, l.waits_at
    from last l
    left join state s on s.key = l.key
    left join kept k on k.key = l.key
    left join held h on h.key = l.key
$$;


-- functions/keys/take.sql

-- The claim of a keyed lane: the counterpart of forebay._take().
--
-- Invariant "order by key": of a group's jobs with one key, only one lease has any in live batches, and in their order by the
-- numbers of its claims. A key run takes the first of the waiting jobs, in this order: requeued, parked, new to the cursor.
-- All key runs of a group are decided under one lock. While jobs of a key wait, something will make a claim look at the key again:
-- an open key run, a job in a new row in one of the group's lanes, or an unread recheck row.
--
-- A paused key is taken for every lease; see forebay._hold_keys().
--
-- A job with a limit key too needs a permit of that key, when its turn in the ordering key has come. If it gets none and no job of the
-- ordering key is with a lease, it becomes the first requeued one and waits for a turn of the limit key, which a recheck row passes on.
-- Jobs that wait in a worker behind others of their ordering key would use slots of the limit key: they get some only while half of
-- them stay free.
--
-- Parameters: v, the group's limiter, whose lock is held; null: the queue has no limits on starts and no paused limit key.
-- A lease that has a key gets more of its jobs while none of them must run again, and while at most v_ahead of those it has are
-- open. v_ahead grows with the request: jobs behind a slow one should stay in the log, where they can be cancelled.
create function forebay._take_keyed(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer,
    v forebay._limiter_view)
returns forebay.log[]
language plpgsql volatile
set enable_nestloop = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
    c          record;
    v_low      bigint;
    v_from     pg_snapshot;
    v_to       pg_snapshot;
    v_limit    integer := p_limit;       -- how many jobs may be taken
    v_most     integer;                  -- how many rows are read from the log
    v_ahead    constant integer := greatest(50, 3 * p_limit);  -- a lease with more open jobs of a key gets no more of it
    v_window   record;
    v_rows     forebay.log[] := '{}';
    v_segments bigint[] := '{}';
    v_looked   integer := 0;
    v_bytes    bigint := 0;              -- size of the rows
    v_old      integer := 0;
    v_count    integer;
    v_used_up  boolean;
    v_found    record;                   -- jobs that may be taken, and their keys, as arrays
    v_taken    record;                   -- jobs taken and skipped
    v_tombstones boolean;
    v_holds      boolean;                -- a dead letter held its key once
    v_parks      boolean;                -- a job was parked once
    v_is_plain   boolean := false;
    v_parked_no  bigint;                 -- see batch.parked_no
    v_public   bigint[];                 -- the queue's keyed public lanes
    v_paused   text[] := '{}';           -- paused keys, and the ends of the pauses
    v_ends     timestamptz[];
    v_held     bigint[] := '{}';         -- rows of paused keys that were requeued
    v_read     forebay.log[];            -- all rows that were read
    v_names    text[] := '{}';           -- the limit keys of these, and their states,
    v_states   forebay._limit_state[];
    v_shut     text[];                   --   the paused ones of them, and the ends of the pauses
    v_shut_ends timestamptz[];
    v_fits     text;                     -- whether the limit keys let all rows of the lane through: all, first (one of each ordering key), none
    v_turns    text[] := '{}';           -- limit keys that passed their turn on, and the jobs that waited for it
    v_turn_of  bigint[] := '{}';
begin
    execute 'lock table only forebay.lock_lane_' || (hashint8(p_group_id # p_lane) & 127) || ' in share update exclusive mode';
    -- Before the snapshot and before this transaction draws an id: see batch.low_from. The segments are chosen by a later value:
    -- the snapshot may show rows of a segment that was begun since.
    v_low := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    if pg_current_xact_id_if_assigned() is not null then
        raise exception 'the claim of a keyed lane has drawn a transaction id too early';
    end if;

    select pg_current_snapshot() as now, forebay._now() as at,
           g.start_after, g.queue, forebay._paused_since(g.paused_at, g.resume_at) as paused_at, l.audience, l.priority, f.xid as seal_xid,
           array(select s.segment_id from forebay.segment s
                 where s.lo >= coalesce(f.hi, 0) and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)
                 order by s.lo) as unsealed,
           b.no, b.snap_from, b.snap_to, b.pos_segment, b.pos_seq, b.high_seq, b.handed_total, b.skipped_total, b.claimed_at,
           b.keys is not null and b.parked_no is null as has_waiting,
           coalesce(b.low_from, 0) as low_from, coalesce(b.edge_from, '0') as edge_from,
           coalesce(b.low_to, b.low_from, 0) as low_to, coalesce(b.edge_to, b.edge_from, '0') as edge_to,
           coalesce(b.snap_from, w.first) as start, coalesce(b.snap_to, b.snap_from, w.first) as stop
    into c
    from forebay.queue_group g
    left join lateral (select i.audience, i.priority from forebay.lane i where i.lane = p_lane limit 1) l on true
    left join lateral (select s.xid, (select i.hi from forebay.segment i where i.segment_id = s.segment_id) as hi
                       from forebay.seal s order by s.segment_id desc limit 1) f on true
    left join lateral (select * from forebay.batch i
                       where i.group_id = p_group_id and i.lane = p_lane order by i.no desc limit 1) b on true
    cross join lateral (select case l.audience when 0 then g.start_after else '1:1:' end as first) w
    where g.group_id = p_group_id;

    if c.queue is null then
        raise exception using errcode = 'JQ014',
            message = format('group %s not found', p_group_id),
            hint = 'Open the group with forebay.open_group() first.';
    end if;
    if c.audience is null or c.paused_at is not null then
        return '{}';
    end if;
    if pg_snapshot_xmax(c.stop) > pg_snapshot_xmax(c.now) then
        raise exception using errcode = 'JQ030',
            message = format('the cursor of lane %s is ahead of this cluster: xid %s, now %s',
                             p_lane, pg_snapshot_xmax(c.stop), pg_snapshot_xmax(c.now)),
            hint = 'This database was restored from another cluster. Run forebay adopt --resume or --discard.';
    end if;
    if c.audience < 0 then
        v_limit := 1;
    end if;
    -- Where jobs are parked, read fewer than may be taken; otherwise as many would be parked again.
    v_most := case when c.has_waiting then greatest(1, v_limit / 2) else v_limit end;

    if c.snap_to is not null then
        v_window := forebay._window_keyed(p_lane, c.start, c.low_from, c.edge_from, c.stop, c.pos_segment, c.pos_seq, v_most,
                                          c.unsealed, c.seal_xid, forebay._claim_bytes());
        v_rows := v_window.rows;
        v_segments := v_window.segments;
        v_looked := v_window.looked;
        v_old := cardinality(v_rows);
        v_bytes := v_window.bytes;
    end if;
    if v_old < v_most and v_bytes < forebay._claim_bytes() then
        v_window := forebay._window_keyed(p_lane, c.stop, c.low_to, c.edge_to, c.now, 0, 0, v_most - v_old, c.unsealed, c.seal_xid, forebay._claim_bytes() - v_bytes);
        v_rows := v_rows || v_window.rows;
        v_segments := v_segments || v_window.segments;
        v_looked := v_looked + v_window.looked;
        v_bytes := v_bytes + v_window.bytes;
    end if;
    v_count := cardinality(v_rows);
    v_used_up := v_count < v_most and v_bytes < forebay._claim_bytes();
    -- After the rows were read: the transaction that wrote one of them has already written its tombstones.
    v_tombstones := pg_sequence_last_value('forebay.tombstone_seq') is not null;

    if v_count = 0 then
        if c.snap_to is not null or v_looked > 2 or forebay._should_move(c.start, c.now, c.claimed_at) or forebay._is_old_cursor(c.start) then
            insert into forebay.batch (
                group_id, lane, no, snap_from, pos_segment, pos_xid, pos_seq, high_seq,
                handed_total, skipped_total, claimed_at, edge_from, low_from)
            values (p_group_id, p_lane, coalesce(c.no, 0) + 1, c.now, 0, '0', 0, coalesce(c.high_seq, 0),
                    coalesce(c.handed_total, 0), coalesce(c.skipped_total, 0), c.at, pg_current_xact_id(), v_low);
        end if;
        return '{}';
    end if;

    -- From here on no other session decides about the group's keys, and later statements see earlier decisions.
    perform forebay._lock_keys(p_group_id, false);
    v_holds := pg_sequence_last_value('forebay.hold_seq') is not null;
    v_parks := pg_sequence_last_value('forebay.parked_seq') is not null;

    if pg_sequence_last_value('forebay.key_pause_seq') is not null then
        -- A later statement than the one that read the lane: it sees the call that appended a recheck row that was read.
        select p.keys, p.ends into v_paused, v_ends
        from forebay._paused_keys(c.queue, 'ordering', array(select u.ordering_key from unnest(v_rows) u), c.at) p;
        if v_paused <> '{}' then
            v_held := forebay._hold_keys(p_group_id, c.queue, c.priority, c.audience, v_paused, v_ends, v_rows, c.at);
        end if;
    end if;

    if v.at is not null then
        v_names := array(select distinct u.limit_key from unnest(v_rows) u where u.limit_key is not null);
    end if;
    if v_names <> '{}' and c.audience = 0 then
        select m.states, m.paused, m.ends into v_states, v_shut, v_shut_ends from forebay._limits_met(p_group_id, c.queue, v_names, v) m;
        select case when v.seed_until >= v.at then 'none'
                    when bool_and(s.waiting = 0 and n.jobs <= s.permits - forebay._reserve(s.concurrency)) then 'all'
                    when bool_and(s.waiting = 0 and n.jobs <= s.permits) then 'first'
                    else 'none' end
        into v_fits
        from unnest(v_states) s
        join (select u.limit_key, count(*) as jobs from unnest(v_rows) u group by u.limit_key) n on n.limit_key = s.limit_key;
    end if;

    -- Nearly always each key is free or belongs to this lease, no job of it waits or runs again, and all rows read are taken.
    if c.audience = 0 and v_paused = '{}' and v_fits is distinct from 'none' then
        with met as materialized (
            select u.ordering_key as key, u.ordinality::smallint as place, u.seq, u.xid, u.limit_key, coalesce(u.job_id, u.seq) as job_id,
                   coalesce(u.expires_at, u.enqueued_at + interval '30 days') as expires
            from unnest(v_rows) with ordinality u
        ), met_all as materialized (
            select array_agg(m.seq) as seqs, array_agg(m.xid) as xids, array_agg(m.key) as keys, max(m.seq) as high, min(m.expires) as expires
            from met m
        ), key as materialized (
            select m.key, min(m.place) as head, max(m.place) as tail, min(m.job_id) as job, min(m.seq) as low, max(m.seq) as high
            from met m group by m.key
        ), several as materialized (
            -- Arrays only of keys with several jobs: an array for each of a thousand keys costs more than to read their states.
            select m.key, array_agg(m.place) as offsets, array_agg(m.job_id) as jobs
            from met m join key k on k.key = m.key where k.tail > k.head group by m.key
        ), last as materialized (
            select k.*, t.no, t.since, t.lease_id, t.claim_no, t.taken_up_to, t.is_suspect,
                   t.has_rest is true
                   or v_parks and exists (select from forebay.parked p
                              where p.group_id = p_group_id and p.ordering_key = k.key and p.parked_no > coalesce(t.taken_up_to, 0))
                   or v_holds and exists (select from forebay.dead_letter d
                                          where d.group_id = p_group_id and d.ordering_key = k.key and d.holds_key) as waits
            from key k
            left join lateral (select i.no, coalesce(i.since, i.no) as since, i.lease_id, i.claim_no, i.taken_up_to, i.is_suspect is true as is_suspect, i.rest_seqs is not null as has_rest
                               from forebay.key_run i
                               where i.group_id = p_group_id and i.ordering_key = k.key
                               order by i.no desc limit 1) t on true
        ), key_run as materialized (
            select l.key, l.no, l.lease_id, l.claim_no, l.is_suspect from last l where l.since = l.no and l.lease_id is not null
            union all
            select l.key, t.no, t.lease_id, t.claim_no, l.is_suspect
            from last l
            cross join lateral (select i.no, i.lease_id, i.claim_no from forebay.key_run i
                                where i.group_id = p_group_id and i.ordering_key = l.key and i.no between l.since and l.no
                                  and i.lease_id is not null offset 0) t
            where l.since < l.no
        ), batch_state as materialized (
            select b.lease_id, b.is_suspect, s.continues, case when s.is_whole then 0 else coalesce(i.size, 0) - s.ended end as open
            from (select t.lease_id, t.claim_no, bool_or(t.is_suspect) as is_suspect from key_run t group by t.lease_id, t.claim_no) b
            cross join lateral (
                select coalesce(bool_or(s.offsets is null), false) as is_whole, coalesce(sum(cardinality(s.offsets)), 0) as ended,
                       coalesce(bool_or(s.outcomes && '{r,l,s,u,h,k,y}'), false) as continues
                from forebay.settlement s where s.lease_id = b.lease_id and s.claim_no = b.claim_no) s
            left join lateral (select cardinality(i.seqs) as size from forebay.batch i
                               where i.lease_id = b.lease_id and i.claim_no = b.claim_no offset 0) i on true
        ), verdict as materialized (
            select not exists (select from last l where l.waits)
               and not exists (select from batch_state b where b.continues or b.open > 0 and (b.lease_id <> p_lease_id or b.is_suspect))
               and coalesce((select sum(b.open) from batch_state b where b.lease_id = p_lease_id), 0) <= v_ahead
               and (select m.expires from met_all m) > c.at
               and (v_fits is distinct from 'first'
                    or (select count(*) from key k) = v_count and not exists (select from batch_state b where b.open > 0))
               and not (v_tombstones and exists (select from forebay.tombstone x where x.job_id = any (array(select m.job_id from met m)))) as is_plain
        ), written as (
            insert into forebay.key_run (
                group_id, ordering_key, no, since, lease_id, claim_no, place, offsets, jobs, taken_up_to, low_seq, high_seq)
            select p_group_id, l.key, coalesce(l.no, 0) + 1, f.no, p_lease_id, p_claim_no, case when l.head = l.tail then l.head end, s.offsets,
                   case when l.head < l.tail then s.jobs when l.job <> l.low then array[l.job] end,
                   nullif(l.taken_up_to, 0), l.low, nullif(l.high, l.low)
            from last l
            left join several s on s.key = l.key
            left join (select t.key, min(t.no) as no from key_run t
                       where t.lease_id = p_lease_id and t.claim_no >= p_floor group by t.key) f on f.key = l.key
            where (select d.is_plain from verdict d)
        )
        select d.is_plain, null::bigint[] as lanes, a.seqs, a.xids, a.keys,
               case when exists (select from several)
                    then (select array_agg(k.tail order by m.place) from met m join key k on k.key = m.key) end as tails,
               (select array_agg(m.limit_key) from met m having bool_or(m.limit_key is not null)) as limit_keys,
               null::text[] as waiting_limits, null::text[] as waiting_keys, null::bigint[] as waiting_nos, null::bigint[] as waiting_lanes, null::xid8[] as waiting_xids,
               null::bigint[] as waiting_seqs, v_count::bigint as fresh, 0::bigint as fresh_skipped, a.high, v_rows as jobs, null::bigint[] as skipped, null::"char"[] as skipped_as
        into v_taken
        from verdict d, met_all a;
        v_is_plain := v_taken.is_plain;
    end if;

    if v_is_plain then
        v_parked_no := coalesce(pg_sequence_last_value('forebay.parked_seq'), 0);
    else
        v_public := array(select l.lane from forebay.lane l where l.queue = c.queue and l.audience = 0 and l.sort = 'keyed');
        with met as materialized (
            select u.ordering_key as key, u.ordinality as nr, u.lane, u.seq, u.kind = '' as is_recheck, coalesce(u.job_id, u.seq) as job_id
            from unnest(v_rows) with ordinality u
            where u.seq <> all (v_held)
        ), stands as materialized (
            select s.*, s.open > 0 as is_busy, s.ordering_key = any (v_paused) as is_paused,
                   s.head is not null
                   and not exists (select from met m where m.key = s.ordering_key and m.job_id = s.head and not m.is_recheck)
                   or s.waits_for is not null and not exists (select from met m where m.key = s.ordering_key and m.is_recheck) as waits,
                   s.open between 1 and v_ahead and s.holder = p_lease_id and not s.is_suspect and c.audience >= 0
                   and s.head is null and s.waiting_seqs = '{}' as continues
            from forebay._key_states(p_group_id, array(select distinct m.key from met m)) s
        ), state as materialized (
            select s.ordering_key as key, s.no, s.taken_up_to, s.head, s.is_busy, s.is_paused, s.waits_for, s.waits_at, s.waiting_lanes, s.waiting_seqs, t.is_taken,
                   case when s.continues then s.first_open else s.no + 1 end as since,
                   greatest(1, v_limit / greatest(1, count(*) filter (where not t.is_taken) over ()))::integer as quota
            from stands s cross join lateral (select s.is_busy and not s.continues or s.waits or s.is_paused as is_taken) t
        ), parked as materialized (
            select s.key, i.parked_no, i.lane, i.seq
            from state s, lateral (
                select p.parked_no, p.lane, p.seq from forebay.parked p
                where p.group_id = p_group_id and p.ordering_key = s.key and p.parked_no > s.taken_up_to
                order by p.parked_no limit s.quota) i
            where not s.is_taken
        ), behind as materialized (
            select p.key, count(*) as jobs from parked p group by p.key
        ), candidate as (
            -- A key's jobs in the order in which they are to be taken. 0: the key's next job, in a new row.
            select s.key, 0 as class, m.nr, m.lane, m.seq, null::bigint as parked_no
            from met m join state s on s.key = m.key
            where m.job_id = s.head and not m.is_recheck and not s.is_busy and not s.is_paused
            union all
            -- 1: requeued. 2: parked.
            select s.key, 1, u.nr, u.lane, u.seq, null
            from state s, unnest(s.waiting_lanes, s.waiting_seqs) with ordinality u (lane, seq, nr)
            where not s.is_taken
            union all
            select p.key, 2, p.parked_no, p.lane, p.seq, p.parked_no from parked p
            union all
            -- 3: new. 4: new, and to be parked: the key is taken, or more jobs come before it than were read.
            select s.key, case when s.is_taken or b.jobs >= s.quota
                                    or c.audience < 0 and (b.jobs > 0 or s.waiting_seqs <> '{}') then 4 else 3 end,
                   m.nr, m.lane, m.seq, null
            from met m join state s on s.key = m.key left join behind b on b.key = m.key
            where m.job_id is distinct from s.head and not m.is_recheck
            union all
            -- 5: returned while other jobs of its key run have not ended, as their holder is about to report; or a suspect of a paused key.
            select s.key, 5, m.nr, m.lane, m.seq, null
            from met m join state s on s.key = m.key
            where m.job_id = s.head and not m.is_recheck and (s.is_busy or s.is_paused)
        ), listed as materialized (
            select x.*, row_number() over (order by x.key, x.class, x.nr) as place from candidate x
        )
        select (select array_agg(x.key order by x.place) from listed x) as keys,
               (select array_agg(x.class order by x.place) from listed x) as classes,
               (select array_agg(x.lane order by x.place) from listed x) as lanes,
               (select array_agg(x.seq order by x.place) from listed x) as seqs,
               (select array_agg(x.parked_no order by x.place) from listed x) as parked,
               (select array_agg(x.lane order by x.place) from listed x where x.class in (1, 2)) as fetch_lanes,
               (select array_agg(x.seq order by x.place) from listed x where x.class in (1, 2)) as fetch_seqs,
               array(select s.key from state s order by s.key) as state_keys,
               array(select s.no from state s order by s.key) as state_nos,
               array(select s.since from state s order by s.key) as state_since,
               array(select s.taken_up_to from state s order by s.key) as state_positions,
               array(select s.is_busy from state s order by s.key) as state_busy,
               -- The job that waits for a turn of its limit key.
               array(select case when s.waits_for is not null then s.waiting_seqs[1] end from state s order by s.key) as state_waiting,
               array(select s.waits_at from state s order by s.key) as state_waits_at
        into v_found;

        v_read := v_rows || forebay._fetch(v_found.fetch_lanes, v_found.fetch_seqs);
        if v.at is not null then
            v_names := array(select distinct u.limit_key from unnest(v_read) u where u.limit_key is not null);
        end if;
        if v_names <> '{}' then
            v_turns := array(select u.limit_key from unnest(v_rows) u where u.kind = '' and u.limit_key is not null);
            v_turn_of := array(select (u.args ->> 'seq')::bigint from unnest(v_rows) u where u.kind = '' and u.limit_key is not null);
            select m.states, m.paused, m.ends into v_states, v_shut, v_shut_ends from forebay._limits_met(p_group_id, c.queue, v_names, v) m;
            if v.seed_until >= v.at then
                -- The states lack claims that were in progress when the limits were set.
                v_states := array(
                    select row(s.limit_key, s.no, s.turn, s.waiting, s.parked_up_to, s.taken_up_to, s.taken_seq, s.taken_jobs, s.is_full, s.tat,
                               s.leases, s.claims, s.offsets, least(s.permits, s.concurrency - coalesce(f.jobs, 0)),
                               s.tokens, s.rate, s.burst, s.concurrency, s.limits_no, s.has_new_limits)::forebay._limit_state
                    from unnest(v_states) s
                    left join (select u.key, count(*) as jobs
                               from forebay._in_flight(p_group_id) i cross join lateral unnest(i.limit_keys) with ordinality u (key, place)
                               where not exists (select from forebay.settlement e
                                                 where e.lease_id = i.lease_id and e.claim_no = i.claim_no and u.place::smallint = any (e.offsets))
                               group by u.key) f on f.key = s.limit_key);
            end if;
        end if;

        with row_of as materialized (
            select u.seq, u.lane, u.xid, coalesce(u.job_id, u.seq) as job_id, u as job,
                   case when n.reason in ('c', 'r') then 'c'
                        when n.reason = 'e' then 'E'
                        when coalesce(u.expires_at, u.enqueued_at + interval '30 days') <= c.at then 'e' end as verdict
            from unnest(v_read) u
            left join lateral (
                select i.reason from forebay.tombstone i
                where v_tombstones and i.job_id = coalesce(u.job_id, u.seq) and (i.group_id is null or i.group_id = p_group_id)
                  and i.reason <> 'k'
                order by i.reason = 'e' desc limit 1) n on true
            where u.kind <> ''
        ), listed as materialized (
            select x.key, x.class, x.nr, x.parked_no, r.lane, r.seq, r.xid, r.job_id, r.job, r.verdict, (r.job).limit_key, s.is_busy, a.may,
                   a.may and r.verdict is null as would,
                   x.class = 1 and r.seq = any (v_turn_of) as is_granted,
                   x.class in (2, 3) and x.lane = any (v_public) as is_fresh,
                   count(*) filter (where a.may and r.verdict is null) over (partition by x.key order by x.nr) as rank
            from unnest(v_found.keys, v_found.classes, v_found.lanes, v_found.seqs, v_found.parked) with ordinality x (key, class, lane, seq, parked_no, nr)
            join row_of r on r.seq = x.seq and r.lane = x.lane
            join unnest(v_found.state_keys, v_found.state_busy) s (key, is_busy) on s.key = x.key
            cross join lateral (select x.class < 4 and (c.audience >= 0 or x.class in (0, 3)) as may) a
        ), limited as materialized (
            -- Jobs that get no permit of their limit key, each counted in the order in which they would be taken.
            select i.key, min(i.nr) as stop
            from (select l.key, l.nr, l.limit_key, l.is_granted, l.rank = 1 and not l.is_busy as is_first,
                         row_number() over (partition by l.limit_key order by l.is_granted desc, l.rank, l.class > 0, l.nr) as place
                  from listed l where l.would and l.limit_key is not null) i
            join unnest(v_states) s on s.limit_key = i.limit_key
            where not i.is_granted and s.waiting > 0 or i.place > s.permits - case when i.is_first then 0 else forebay._reserve(s.concurrency) end
            group by i.key
        ), candidate as materialized (
            select l.*, p.stop, l.may and n.is_before as may_run, l.would and n.is_before as runs
            from listed l left join limited p on p.key = l.key
            cross join lateral (select coalesce(l.nr < p.stop, true) as is_before) n
        ), chosen as materialized (
            -- The first of each key before the second of any. Returned jobs, whose rows have been read, come first, and always: together
            -- they are within the bound.
            select i.key, i.nr, i.lane, i.seq, i.xid, i.job_id, i.job, i.is_fresh, i.place
            from (select w.key, w.class, w.nr, w.lane, w.seq, w.xid, w.job_id, w.job, w.is_fresh, (row_number() over o)::smallint as place,
                         sum(forebay._job_bytes((w.job).args, (w.job).headers)) over (o rows between unbounded preceding and 1 preceding) as bytes
                  from candidate w where w.runs
                  window o as (order by w.rank, w.class > 0, w.nr)
                  order by w.rank, w.class > 0, w.nr limit v_limit) i
            where i.place = 1 or i.class = 0 or i.bytes < forebay._claim_bytes()
        ), reach as materialized (
            -- A key run reaches to the last job taken, or over all skipped jobs when none is to run.
            select s.key, s.no, s.since, s.taken_up_to, h.places, h.jobs, h.low, h.high, i.runs, i.stop, w.at as waits, s.waiting, s.waits_at,
                   coalesce(h.upto, w.at, case when not i.runs then i.upto end) as upto
            from unnest(v_found.state_keys, v_found.state_nos, v_found.state_since, v_found.state_positions, v_found.state_busy,
                        v_found.state_waiting, v_found.state_waits_at) s (key, no, since, taken_up_to, is_busy, waiting, waits_at)
            left join (select x.key, max(x.nr) as upto, array_agg(x.place order by x.nr) as places,
                              array_agg(x.job_id order by x.nr) as jobs, min(x.seq) as low, max(x.seq) as high
                       from chosen x group by x.key) h on h.key = s.key
            left join (select x.key, max(x.nr) filter (where x.may_run) as upto, bool_or(x.runs) as runs, min(x.stop) as stop
                       from candidate x group by x.key) i on i.key = s.key
            -- With no job of the key in a worker, the job that got no permit waits for a turn of its limit key.
            cross join lateral (select case when not s.is_busy and not i.runs and c.audience >= 0 then i.stop end as at) w
        ), rest as materialized (
            select i.key, max(i.parked_no) filter (where i.nr <= t.upto) as taken_up_to,
                   array_agg(i.lane order by i.nr) filter (where i.nr > t.upto and i.class = 1 or i.nr = t.waits) as lanes,
                   array_agg(i.seq order by i.nr) filter (where i.nr > t.upto and i.class = 1 or i.nr = t.waits) as seqs,
                   min(i.seq) filter (where i.class = 1 or i.nr = t.waits) as low, max(i.seq) filter (where i.class = 1 or i.nr = t.waits) as high
            from candidate i join reach t on t.key = i.key
            where t.upto is not null
            group by i.key
        ), waiting as materialized (
            -- It may wait already: its row there is not taken.
            select i.key, i.limit_key, i.lane, i.xid, i.seq, i.nr, w.is_new, case when w.is_new then nextval('forebay.limit_parked_seq') else t.waits_at end as parked_no
            from candidate i join reach t on t.key = i.key and i.nr = t.waits
            join unnest(v_states) s on s.limit_key = i.limit_key
            cross join lateral (select i.seq is distinct from t.waiting or t.waits_at <= s.taken_up_to as is_new) w
        ), key_run as (
            insert into forebay.key_run (
                group_id, ordering_key, no, since, lease_id, claim_no, offsets, jobs, taken_up_to, rest_lanes, rest_seqs, waits_for, waits_at, low_seq, high_seq,
                is_suspect)
            select p_group_id, t.key, t.no + 1, t.since, case when t.places is not null then p_lease_id end,
                   case when t.places is not null then p_claim_no end, t.places, t.jobs, greatest(t.taken_up_to, r.taken_up_to), r.lanes, r.seqs, w.limit_key, w.parked_no,
                   coalesce(least(t.low, r.low), 0), coalesce(greatest(t.high, r.high), 0), c.audience < 0
            from reach t join rest r on r.key = t.key left join waiting w on w.key = t.key
        ), parking as (
            insert into forebay.parked (group_id, ordering_key, lane, seq)
            select p_group_id, i.key, i.lane, i.seq
            from candidate i join reach t on t.key = i.key
            where i.class = 4 or i.class = 3 and i.nr > coalesce(t.upto, 0) and not (c.audience < 0 and i.nr = t.stop)
            order by i.nr
        ), skipped as materialized (
            select i.nr, i.seq, i.job, i.verdict, i.is_fresh from candidate i join reach t on t.key = i.key and i.nr <= t.upto
            where i.may_run and i.verdict is not null
        )
        select (select array_agg(i.lane order by i.place) from chosen i) as lanes,
               (select array_agg(i.seq order by i.place) from chosen i) as seqs,
               (select array_agg(i.xid order by i.place) from chosen i) as xids,
               (select array_agg(i.key order by i.place) from chosen i) as keys,
               (select array_agg(i.places[cardinality(i.places)] order by o.place)
                from chosen o join reach i on i.key = o.key) as tails,
               (select array_agg((i.job).limit_key order by i.place) from chosen i having bool_or((i.job).limit_key is not null)) as limit_keys,
               (select max(u.seq) from (select i.seq from candidate i union all select r.seq from unnest(v_rows) r) u) as high,
               (select array_agg(i.job order by i.place) from chosen i) as jobs,
               (select count(*) from chosen i where i.is_fresh) as fresh, (select count(*) from skipped i where i.is_fresh) as fresh_skipped,
               (select array_agg(i.seq order by i.nr) from skipped i) as skipped,
               (select array_agg(lower(i.verdict)::"char" order by i.nr) from skipped i) as skipped_as,
               (select array_agg(forebay._write_dead_letter(p_group_id, c.queue, c.priority, i.job, 'expired', coalesce((i.job).attempt, 0)) order by i.nr)
                from skipped i where i.verdict = 'e') as dead,
               (select count(forebay._append_again(i.job, c.at + case when i.key = any (v_paused) and c.audience < 0 then interval '10 seconds'
                                                                  when i.nr = i.stop then interval '1 second'
                                                                  else interval '0.2 seconds' end))
                from candidate i where i.class = 5 or c.audience < 0 and i.nr = i.stop) as appended_again,
               (select array_agg(w.limit_key order by w.nr) from waiting w where w.is_new) as waiting_limits,
               (select array_agg(w.key order by w.nr) from waiting w where w.is_new) as waiting_keys,
               (select array_agg(w.parked_no order by w.nr) from waiting w where w.is_new) as waiting_nos,
               (select array_agg(w.lane order by w.nr) from waiting w where w.is_new) as waiting_lanes,
               (select array_agg(w.xid order by w.nr) from waiting w where w.is_new) as waiting_xids,
               (select array_agg(w.seq order by w.nr) from waiting w where w.is_new) as waiting_seqs,
               -- No job of these keys is taken, and more may wait than were read, or their first jobs did not fit into the claim.
               array(select i.key from reach i where i.places is null and i.waits is null and (i.upto is not null or i.runs)) as again
        into v_taken;
        if v_taken.again <> '{}' then
            perform forebay._announce_keys(c.queue, c.priority, p_group_id, v_taken.again);
        end if;
        if v_taken.dead is not null then
            perform forebay._report_deaths(v_taken.dead);
        end if;
        if v_holds then
            -- The redriven job has its place: the dead letter holds the key no longer.
            update forebay.dead_letter d set holds_key = false
            from unnest(v_rows) r
            where d.group_id = p_group_id and d.ordering_key = r.ordering_key and d.holds_key and d.redriven_as = coalesce(r.job_id, r.seq)
              and (r.seq = any (v_taken.seqs) or r.seq = any (v_taken.skipped) or r.seq = any (v_taken.waiting_seqs));
        end if;
    end if;
    if v_names <> '{}' then
        perform forebay._record_keyed_limits(
            v, c.queue, c.priority, p_group_id, p_lease_id, p_claim_no, v_states, v_shut, v_shut_ends,
            v_taken.limit_keys, v_taken.seqs, v_turns,
            v_taken.waiting_limits, v_taken.waiting_keys, v_taken.waiting_nos, v_taken.waiting_lanes, v_taken.waiting_xids, v_taken.waiting_seqs);
    end if;

    if v_tombstones and v_taken.seqs is not null then
        perform forebay._follow_up(v_taken.jobs, p_group_id);
    end if;

    v_from := c.start;
    v_to := c.stop;
    if v_count > v_old then
        v_from := c.stop;
        v_to := c.now;
        c.low_from := c.low_to;
        c.edge_from := c.edge_to;
        c.low_to := v_low;
        c.edge_to := pg_current_xact_id();
    end if;
    insert into forebay.batch (
        group_id, lane, no, lease_id, claim_no, floor, snap_from, snap_to, pos_segment, pos_xid, pos_seq, high_seq,
        handed_total, skipped_total, claimed_at, seqs, xids, skipped, skipped_as, lanes, keys, tails,
        edge_from, low_from, edge_to, low_to, parked_no, limit_keys)
    select p_group_id, p_lane, coalesce(c.no, 0) + 1,
           case when v_taken.seqs is not null then p_lease_id end, case when v_taken.seqs is not null then p_claim_no end, p_floor,
           case when v_used_up then c.now else v_from end,
           case when v_used_up then null else v_to end,
           case when v_used_up then 0 else v_segments[v_count] end,
           '0', case when v_used_up then 0 else v_rows[v_count].seq end,
           greatest(c.high_seq, v_taken.high),
           coalesce(c.handed_total, 0) + v_taken.fresh, coalesce(c.skipped_total, 0) + v_taken.fresh_skipped,
           c.at, v_taken.seqs, case when v_taken.xids[1] = all (v_taken.xids) then v_taken.xids[:1] else v_taken.xids end, v_taken.skipped, v_taken.skipped_as,
           case when exists (select from unnest(v_taken.lanes) l where l <> p_lane) then v_taken.lanes end, v_taken.keys, v_taken.tails,
           case when v_used_up then pg_current_xact_id() else c.edge_from end,
           case when v_used_up then v_low else c.low_from end,
           case when not v_used_up then c.edge_to end,
           case when not v_used_up then c.low_to end,
           v_parked_no, v_taken.limit_keys
    from (select from forebay.lease i
          where i.lease_id = p_lease_id and i.closed_at is null
          for key share) held;
    if not found then
        raise exception using errcode = 'JQ010',
            message = format('lease %s is closed', p_lease_id),
            detail = jsonb_build_object('lease', p_lease_id),
            hint = 'Its jobs were given to other workers. Open a new lease.';
    end if;
    return coalesce(v_taken.jobs, '{}');
end
$$;


-- How many slots of a limit key are kept free of jobs that wait in a worker behind others of their ordering key.
create function forebay._reserve(p_concurrency integer) returns integer
language sql immutable
as $$ select coalesce((p_concurrency + 1) / 2, 0) $$;


-- Append a key's next job again, to return in a moment, because it came too early.
create function forebay._append_again(p_row forebay.log, p_run_at timestamptz) returns boolean
language plpgsql volatile
as $$
begin
    perform forebay._continue_job(p_row, p_row.lane, p_row.attempt, p_row.pauses, p_run_at);
    return true;
end
$$;


-- functions/keys/trim.sql

-- Delete parked rows whose jobs have been taken, and key runs that are no longer needed: not the newest of their key, or of jobs
-- that all left the archive.
--
-- A key loses its oldest runs first: the newest run that is left has its state. A run that took no job has no numbers, so it would
-- go before older ones, and the key would again wait for a job that was cancelled.
create function forebay._trim_key_runs(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_key   record;
    v_first bigint;
    v_gone  bigint;
    v_keys  integer := 0;
    v_stay  text := p_after;
begin
    rows := 0;
    if pg_sequence_last_value('forebay.key_seq') is null then
        return;
    end if;
    select coalesce(min(s.lo), 0) into v_first from forebay.segment s where s.removed_at is null;
    for v_key in
        with recursive key as (
            (select t.group_id, t.ordering_key, 1 as nr from forebay.key_run t
             where (t.group_id, t.ordering_key) > (coalesce((p_after::jsonb ->> 0)::bigint, -9223372036854775808),
                                                   coalesce(p_after::jsonb ->> 1, ''))
             order by t.group_id, t.ordering_key limit 1)
            union all
            select n.group_id, n.ordering_key, k.nr + 1
            from key k, lateral (
                select t.group_id, t.ordering_key from forebay.key_run t
                where (t.group_id, t.ordering_key) > (k.group_id, k.ordering_key)
                order by t.group_id, t.ordering_key limit 1) n
            where k.nr < p_most
        )
        -- Most keys have nothing to delete: numbers rise from key run to key run.
        select k.group_id, k.ordering_key,
               exists (select from forebay.parked p where p.group_id = k.group_id and p.ordering_key = k.ordering_key)
               or v_first > (select coalesce(t.high_seq, t.low_seq) from forebay.key_run t
                             where t.group_id = k.group_id and t.ordering_key = k.ordering_key order by t.no limit 1) as is_due
        from key k
    loop
        v_keys := v_keys + 1;
        if v_key.is_due then
            v_gone := forebay._trim_key(v_key.group_id, v_key.ordering_key, v_first, p_most);
            rows := rows + v_gone;
            if v_gone >= p_most then  -- The key may have more.
                next := coalesce(v_stay, '[]');
                return;
            end if;
        end if;
        v_stay := jsonb_build_array(v_key.group_id, v_key.ordering_key);
        if v_keys + rows >= p_most then
            next := v_stay;
            return;
        end if;
    end loop;
end
$$;


-- Delete at most p_most parked rows, and as many key runs, of one key; returns the number of rows.
create function forebay._trim_key(p_group_id bigint, p_key text, p_first bigint, p_most integer) returns bigint
language plpgsql volatile
as $$
declare
    v_state  record;
    v_parked bigint;
    v_runs   bigint;
begin
    select s.taken_up_to, s.since, s.open > 0 or s.head is not null or s.waiting_seqs <> '{}' as is_needed into v_state
    from forebay._key_states(p_group_id, array[p_key]) s;
    delete from forebay.parked p
    where p.ctid = any (array(
        select o.ctid from forebay.parked o
        where o.group_id = p_group_id and o.ordering_key = p_key and o.parked_no <= v_state.taken_up_to
        order by o.parked_no limit p_most));
    get diagnostics v_parked = row_count;
    with old as (
        select o.ctid as row, o.no, coalesce(o.high_seq, o.low_seq) as high_seq from forebay.key_run o
        where o.group_id = p_group_id and o.ordering_key = p_key order by o.no limit p_most)
    delete from forebay.key_run t
    where t.ctid = any (array(
        select o.row from old o
        where o.no < coalesce((select min(i.no) from old i where i.high_seq >= p_first), 9223372036854775807)
          and (o.no < v_state.since or not v_state.is_needed)));
    get diagnostics v_runs = row_count;
    return v_parked + v_runs;
end
$$;


-- functions/keys/window.sql

-- The rows of one keyed lane in a window, in the order of their numbers; see forebay._window().
--
-- Late are transactions up to the window's edge that had not ended at its start: their numbers may be below p_low, and their
-- segments sealed before its start.
create function forebay._window_keyed(
    p_lane bigint, p_from pg_snapshot, p_low bigint, p_edge xid8, p_to pg_snapshot,
    p_pos_segment bigint, p_pos_seq bigint, p_limit integer, p_unsealed bigint[], p_last_seal xid8,
    p_bytes bigint, out rows forebay.log[], out segments bigint[], out looked integer, out bytes bigint)
language plpgsql volatile
as $$
declare
    v_needed  bigint[] := p_unsealed;
    v_piece   record;
    v_segment bigint;
    v_xmax    constant xid8 := pg_snapshot_xmax(p_from);
    v_late    xid8[] := '{}';
begin
    rows := '{}';
    segments := '{}';
    looked := 0;
    bytes := 0;
    v_late := array(
        select x.xid
        from (select pg_snapshot_xip(p_from) as xid
              union
              select i::text::xid8 from generate_series(v_xmax::text::bigint, p_edge::text::bigint) i) x
        where pg_visible_in_snapshot(x.xid, p_to)
        order by x.xid);
    if p_last_seal > v_xmax or p_last_seal > v_late[1] then
        v_needed := array(
            select s.segment_id from forebay.seal s join forebay.segment i using (segment_id)
            where s.segment_id >= p_pos_segment and i.removed_at is null
              and s.segment_id <> all (p_unsealed)
              and (s.xid > v_xmax or s.xid > v_late[1])
            order by s.segment_id) || v_needed;
    end if;
    foreach v_segment in array v_needed loop
        continue when v_segment < p_pos_segment;
        looked := looked + 1;
        execute 'select * from forebay._read_keyed_' || v_segment || '($1, $2, $3, $4, $5, $6, $7, $8)'
            into v_piece
            using p_lane, p_from, p_low, p_to, v_late, p_pos_seq, p_limit - cardinality(rows), p_bytes - bytes;
        if cardinality(v_piece.rows) > 0 then
            rows := rows || v_piece.rows;
            bytes := bytes + v_piece.bytes;
            segments := segments || array_fill(v_segment, array[cardinality(v_piece.rows)]);
            exit when cardinality(rows) >= p_limit or bytes >= p_bytes;
        end if;
    end loop;
end
$$;


-- functions/lease/close_lease.sql

-- grant: worker

-- Close a lease that its worker no longer needs. Jobs that it holds without knowing (the answer to their claim was lost)
-- are released unstarted. Returns their number; null when the lease was closed already.
-- pages: 40 + 20 a job
create function forebay.close_lease_v1(p_lease_id bigint) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set lock_timeout = '2s'
as $$
begin
    return forebay._revoke(p_lease_id, 'closed', false);
end
$$;


-- functions/lease/heartbeat.sql

-- grant: worker

-- Keep leases alive. Returns the leases still open, the running jobs with a request to cancel, the duties without a leader,
-- the number of open leases in all, at most 1,000; null while the process runs jobs; the time of the server; the concurrency
-- that an operator has set for this worker, null for none; the muted causes of death; and the maximum attempts of queues that have one.
--
-- Writes to no lease row and takes no lock that another session holds. The heartbeat's row has the first 1,000 running jobs:
-- by these forebay.job() and forebay.depth() distinguish running jobs from claimed ones.
--
-- Parameters: p_lease_ids, all leases of this process; p_job_ids, its running jobs; p_duties, duties it would take; p_memory_kb, its
-- resident memory.
-- pages: 40 + 5 a job
create function forebay.heartbeat_v1(p_lease_ids bigint[], p_job_ids bigint[] default '{}', p_duties bigint[] default '{}',
                                     p_memory_kb integer default null)
returns table (open_leases bigint[], cancelled_jobs bigint[], leaderless bigint[], lease_count integer, server_time timestamptz,
               concurrency integer, muted_causes text[], queue_attempts jsonb)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_duty bigint;
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into forebay.heartbeat (lease_id, heartbeat_at, backend_pid, running_jobs, memory_kb)
    select b.lease_id, forebay._now(), pg_backend_pid(), nullif(p_job_ids[1:1000], '{}'), p_memory_kb from unnest(p_lease_ids) b (lease_id);
    open_leases := array(select l.lease_id from forebay.lease l
                         where l.lease_id = any (p_lease_ids) and l.closed_at is null);
    cancelled_jobs := '{}';
    if cardinality(p_job_ids) > 0 and pg_sequence_last_value('forebay.tombstone_seq') is not null then
        cancelled_jobs := array(select distinct t.job_id from forebay.tombstone t
                                where t.job_id = any (p_job_ids) and t.reason = 'c');
    end if;
    leaderless := '{}';
    foreach v_duty in array p_duties loop
        if forebay._leader_of(v_duty) is null then
            leaderless := leaderless || v_duty;
        end if;
    end loop;
    if cardinality(p_job_ids) = 0 then
        lease_count := (select count(*) from (select from forebay.lease l where l.closed_at is null limit 1000) o);
    end if;
    concurrency := (select s.concurrency from forebay.worker_setting s
                    join forebay.lease l on l.worker = s.worker where l.lease_id = any (p_lease_ids) limit 1);
    server_time := clock_timestamp();
    muted_causes := (select array_agg(m.cause) from forebay.muted_cause m where m.until > server_time or m.until is null);
    if pg_sequence_last_value('forebay.queue_attempts_seq') is not null then
        queue_attempts := (select jsonb_object_agg(a.queue, a.max_attempts) from forebay.queue_attempts a);
    end if;
    return next;
end
$$;


-- functions/lease/leadership.sql

-- The flag sequence of a duty; null when there is none.
create function forebay._leader_flag(p_duty bigint) returns regclass
language sql stable
as $$ select to_regclass('forebay."leader_' || p_duty::text || '"') $$;


-- The holder of a duty now, a number below 2^20; null when no worker leads it, or it has no flag sequence.
--
-- A time too far in the future was written before the clock was set back: lead_v1() sets one of at most 130 s and a step.
create function forebay._leader_of(p_duty bigint) returns integer
language plpgsql volatile
as $$
declare
    v_value constant bigint := pg_sequence_last_value(forebay._leader_flag(p_duty));
begin
    if (v_value >> 20) - (extract(epoch from clock_timestamp()) * 1000)::bigint between 1 and 130250 then
        return (v_value & 1048575)::integer;
    end if;
    return null;
end
$$;


-- functions/lease/missing_batches.sql

-- grant: worker

-- The batches of a worker that the database does not know: a crash of the server undid their asynchronously committed
-- claims. Their jobs are claimed again; the worker stops its handlers of them.
-- pages: 10 + 5 a job
create function forebay.missing_batches_v1(p_lease_id bigint, p_claim_nos bigint[]) returns bigint[]
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
    select array(select c.claim_no from unnest(p_claim_nos) c (claim_no)
                 where not exists (select from forebay.batch b
                                   where b.lease_id = p_lease_id and b.claim_no = c.claim_no))
$$;


-- functions/lease/open_lease.sql

-- Leases: a worker process's right to its batches, with heartbeats and revocation.
-- grant: worker

-- Open a lease for a worker process; returns its id.
--
-- Parameters:
--   p_worker           a name for humans
--   p_lease_seconds    the lease is lost after this time without a heartbeat
--   p_suspect_seconds  or after this time, if its heartbeat connection is gone too
--   p_version          schema version that the worker's code was made for; null: not reported
--   p_details          for forebay.workers(): host, pid, group, queues, app, app_version, version, concurrency, uptime_seconds; an
--                      object of at most 20,000 bytes
-- Errors: JQ001 a bad duration, JQ020 code of that version is no longer served, JQ030 foreign cluster.
-- pages: 40
create function forebay.open_lease_v1(
    p_worker text, p_lease_seconds double precision default 30, p_suspect_seconds double precision default 5,
    p_version integer default null, p_details jsonb default null)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_lease_id bigint;
begin
    if p_worker is null or not (p_lease_seconds > 0 and p_lease_seconds <= 86400)
       or not (p_suspect_seconds > 0 and p_suspect_seconds <= p_lease_seconds) then
        raise exception using errcode = 'JQ001',
            message = format('lease of %s s with suspicion after %s s: both must be positive, at most a day, the second at most the first',
                             p_lease_seconds, p_suspect_seconds);
    end if;
    if p_details is not null and (jsonb_typeof(p_details) <> 'object' or octet_length(p_details::text) > 20000) then
        raise exception using errcode = 'JQ001', message = 'details of a worker must be an object of at most 20000 bytes';
    end if;
    if not forebay._is_same_cluster() then
        perform forebay._require_same_cluster();
        perform forebay._record_same_cluster();
    end if;
    insert into forebay.lease (lease_id, worker, version, lease_seconds, suspect_seconds, opened_at, details)
    values (forebay._random_name(), left(p_worker, 200), p_version, p_lease_seconds, p_suspect_seconds, forebay._now(),
            p_details || jsonb_build_object('started_at', forebay._now() - make_interval(secs => (p_details -> 'uptime_seconds')::double precision)))
    returning lease_id into v_lease_id;
    -- A later statement than the insert, which waits for a migration that removes what older code calls.
    if p_version < forebay._served_from() then
        raise exception using errcode = 'JQ020',
            message = format('schema version %s serves code made for version %s or later; this worker was made for %s',
                             forebay.schema_version(), forebay._served_from(), p_version),
            detail = jsonb_build_object('found', forebay.schema_version(), 'needed', p_version),
            hint = 'Install a newer version of the library; a schema is never downgraded.';
    end if;
    insert into forebay.heartbeat (lease_id, heartbeat_at, backend_pid)
    values (v_lease_id, forebay._now(), pg_backend_pid());
    return v_lease_id;
end
$$;


-- The version of the oldest code that this schema serves: code made for this version or a later one. A migration named post_
-- removes what code of earlier versions calls.
create function forebay._served_from() returns integer
language sql stable
as $$ select coalesce(max(m.version), 0) from forebay.schema_migration m where starts_with(m.name, 'post_') $$;


-- functions/lease/record_kinds.sql

-- grant: worker

-- Record in which queue the jobs of each kind of a worker wait; returns the kinds that had another queue, with both queues. Kinds
-- whose queue is recorded already are not written. Of two versions of an application that disagree, the last caller is right.
--
-- Parameters: p_holding, the kinds whose dead letters hold their ordering key.
-- Errors: JQ001 a bad name.
-- Locks: the rows of the kinds that change, in their order.
-- pages: 20 + 5 a kind
create function forebay.record_kinds_v1(p_worker text, p_kinds text[], p_queues text[], p_holding text[] default '{}')
returns table (kind text, queue text, previous_queue text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_name constant text := '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$';
begin
    if cardinality(p_kinds) <> cardinality(p_queues)
       or exists (select from unnest(p_kinds, p_queues) n (kind, queue) where (n.kind ~ v_name and n.queue ~ v_name) is not true) then
        raise exception using errcode = 'JQ001', message = 'a kind or its queue is not a name',
            hint = 'Names have letters, digits and _ . : - only, at most 128.';
    end if;
    with other as materialized (
        select k.kind from forebay.kind_queue k
        where k.kind = any (p_kinds) and k.holds_key <> (k.kind = any (p_holding)) order by k.kind for update)
    update forebay.kind_queue k set holds_key = not k.holds_key from other o where k.kind = o.kind;
    return query
    with changed as (
        insert into forebay.kind_queue as k (kind, queue, holds_key, recorded_at, recorded_by)
        select distinct on (n.kind collate "C") n.kind, n.queue, n.kind = any (p_holding), forebay._now(), left(p_worker, 200)
        from unnest(p_kinds, p_queues) n (kind, queue)
        where not exists (select from forebay.kind_queue i where i.kind = n.kind and i.queue = n.queue)
        order by n.kind collate "C"
        on conflict on constraint kind_queue_pkey do update
        set queue = excluded.queue, recorded_at = excluded.recorded_at, recorded_by = excluded.recorded_by,
            previous_queue = k.queue, previous_by = k.recorded_by,
            alternated_at = case when excluded.queue = k.previous_queue then excluded.recorded_at else k.alternated_at end
        where k.queue <> excluded.queue
        returning k.kind, k.queue, k.previous_queue)
    select c.kind, c.queue, c.previous_queue from changed c where c.previous_queue is not null;
end
$$;


-- functions/lease/resign.sql

-- grant: worker

-- Resign from duties that the caller holds, and notify all listeners: NOTIFY forebay_wakeup with the duty's number.
--
-- This is not a producer's transaction, so it may notify where enqueues may not.
create function forebay.resign_v1(p_holder integer, p_duties bigint[]) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_duty bigint;
begin
    perform set_config('synchronous_commit', 'off', true);
    foreach v_duty in array p_duties loop
        if forebay._leader_of(v_duty) = p_holder then
            perform setval(forebay._leader_flag(v_duty), 1);
            if pg_notification_queue_usage() < 0.25 then
                perform pg_notify('forebay_wakeup', v_duty::text);
            end if;
        end if;
    end loop;
end
$$;


-- functions/lease/revoke.sql

-- Revoke a lease: close it and send its unsettled jobs to the group's private lanes.
--
-- Invariants: "single holder", "nothing lost". The lease row is locked FOR UPDATE, which waits for
-- every claim and settlement that holds it FOR KEY SHARE; later statements read what is settled.
-- A death is attributed to a job only if the job was a suspect, claimed alone, and its start is recorded.
--
-- Parameters: p_suspects, whether the jobs return as suspects; false when the worker itself reports
--   that it never started them.
-- Returns: the number of jobs sent back; null when the lease was closed already.
-- Errors: 55P03 when a transaction holds a settlement open; try again.
-- Locks: the lease (FOR UPDATE).
create function forebay._revoke(p_lease_id bigint, p_closed_as text, p_suspects boolean) returns bigint
language plpgsql volatile
as $$
declare
    v_worker  text;
    v_floor   bigint;
    v_batch   record;
    v_lane    record;
    v_row     forebay.log;
    v_attempt integer;
    v_target  bigint;
    v_open    integer;
    v_started boolean;
    v_sent    bigint := 0;
    v_held    text[];  -- keys whose next job is in a new row
    v_dead    text[];
    v_requeued text[]; -- keys of jobs that wait behind one that was settled before
    v_back    text[] := '{}';  -- groups and keys of jobs that this revocation sent back
    v_letters bigint[] := '{}';
    v_holds   boolean;
begin
    select l.worker into v_worker from forebay.lease l
    where l.lease_id = p_lease_id and l.closed_at is null for update;
    if not found then
        return null;
    end if;
    update forebay.lease l set closed_at = forebay._now(), closed_as = p_closed_as where l.lease_id = p_lease_id;

    select b.floor into v_floor from forebay.batch b
    where b.lease_id = p_lease_id order by b.claim_no desc limit 1;

    for v_batch in
        select b.claim_no, b.group_id, b.lane, b.seqs, b.xids, b.lanes, b.keys, b.limit_keys, s.whole, s.offsets
        from forebay.batch b
        cross join lateral (
            select coalesce(bool_or(i.offsets is null), false) as whole,
                   array(select o from forebay.settlement j, unnest(j.offsets) o
                         where j.lease_id = p_lease_id and j.claim_no = b.claim_no) as offsets
            from forebay.settlement i
            where i.lease_id = p_lease_id and i.claim_no = b.claim_no) s
        where b.lease_id = p_lease_id and b.claim_no >= coalesce(v_floor, 0)
        order by b.claim_no
    loop
        continue when v_batch.whole;
        select l.queue, l.priority, l.audience into v_lane from forebay.lane l where l.lane = v_batch.lane limit 1;
        v_held := null;
        v_dead := '{}';
        v_requeued := '{}';
        if v_batch.keys is not null then
            v_held := forebay._keys_in_transit(p_lease_id, v_batch.claim_no, v_batch.keys)
                      || forebay._keys_before(v_batch.group_id, p_lease_id, v_batch.claim_no, v_batch.keys);
        end if;
        v_started := v_lane.audience < 0 and exists (
            select from forebay.suspect_start s where s.lease_id = p_lease_id and s.claim_no = v_batch.claim_no);
        for v_open in
            select i from generate_subscripts(v_batch.seqs, 1) i
            where i <> all (v_batch.offsets) order by i
        loop
            v_sent := v_sent + 1;
            -- Of a key's jobs only the first can have been started.
            if v_batch.keys[v_open] = any (v_held) then
                insert into forebay.settlement (lease_id, claim_no, flush_no, settled_at, offsets, outcomes)
                values (p_lease_id, v_batch.claim_no, -v_open, forebay._now(), array[v_open::smallint], array['k'::"char"]);
                if format('%s %s', v_batch.group_id, v_batch.keys[v_open]) <> all (v_back) then
                    v_requeued := v_requeued || v_batch.keys[v_open];
                end if;
                continue;
            end if;
            v_row := forebay._row(coalesce(v_batch.lanes[v_open], v_batch.lane),
                                  coalesce(v_batch.xids[v_open], v_batch.xids[1]), v_batch.seqs[v_open]);
            v_attempt := coalesce(v_row.attempt, 0);
            if p_suspects and v_started then
                v_attempt := v_attempt + 1;
                perform forebay._record_failure(v_row, v_batch.group_id, v_attempt, 'worker lost',
                    jsonb_build_object('type', 'WorkerLost', 'message', 'the worker died while it ran this job alone',
                                       'max_attempts', 20), v_worker);
                if v_attempt >= coalesce(v_row.max_attempts, forebay._queue_attempts(v_lane.queue), 20) then
                    v_holds := v_row.ordering_key is not null
                               and exists (select from forebay.kind_queue k where k.kind = v_row.kind and k.holds_key);
                    v_letters := v_letters || forebay._write_dead_letter(
                        v_batch.group_id, v_lane.queue, v_lane.priority, v_row, 'worker lost', v_attempt, v_holds);
                    insert into forebay.settlement (lease_id, claim_no, flush_no, settled_at, offsets, outcomes)
                    values (p_lease_id, v_batch.claim_no, -v_open, forebay._now(), array[v_open::smallint], array[case when v_holds then 'y' else 'x' end::"char"]);
                    if v_holds then
                        v_held := v_held || v_row.ordering_key;
                        v_back := v_back || format('%s %s', v_batch.group_id, v_row.ordering_key);
                    elsif v_row.ordering_key is not null then
                        v_dead := v_dead || v_row.ordering_key;
                    end if;
                    continue;
                end if;
            end if;
            if v_row.ordering_key is not null then
                v_held := v_held || v_row.ordering_key;
                v_back := v_back || format('%s %s', v_batch.group_id, v_row.ordering_key);
            end if;
            v_target := forebay._record_private_lane(
                v_lane.queue, (select l.priority from forebay.lane l where l.lane = v_row.lane limit 1),
                case when p_suspects or v_lane.audience < 0 then -v_batch.group_id else v_batch.group_id end,
                v_row.ordering_key, v_row.limit_key);
            perform forebay._continue_job(v_row, v_target, v_attempt,
                case when p_suspects and v_started then 0 else coalesce(v_row.pauses, 0) end,
                case when p_suspects and v_started
                     then forebay._now() + make_interval(secs => least(3600, 5 * 2 ^ least(v_attempt - 1, 20))) end);
            insert into forebay.settlement (lease_id, claim_no, flush_no, settled_at, offsets, outcomes)
            values (p_lease_id, v_batch.claim_no, -v_open, forebay._now(), array[v_open::smallint],
                    array[case when p_suspects then 'l' else 'h' end::"char"]);
        end loop;
        if v_batch.limit_keys is not null then
            perform forebay._release_limits(v_batch.lane, v_batch.group_id, v_batch.limit_keys, false);
        end if;
        -- Requeued behind a dead letter that may hold the key no longer: a claim that read the recheck row of its end found these jobs open.
        v_dead := v_dead || v_requeued;
        if v_dead <> '{}' then
            perform forebay._announce_keys(
                v_lane.queue, v_lane.priority, v_batch.group_id, array(select distinct k from unnest(v_dead) k order by k));
        end if;
    end loop;
    if v_letters <> '{}' then
        perform forebay._report_deaths(v_letters);
    end if;
    return v_sent;
end
$$;


-- functions/lease/revoke_lost.sql

-- grant: worker

-- Revoke at most one lease that is lost; returns it, or no row.
--
-- A lease is lost when there was no sign of life, heartbeat or claim, for lease_seconds; or for suspect_seconds if the connection
-- that sent the last heartbeat is gone and the lease has jobs (without jobs it can wait). The caller's session must also
-- be that old: after a restart, a crash of one backend or a failover every session is new, and live workers get
-- their time to report. Where the schema's owner may not see when the session began, its age counts from its first call of this
-- function. A lease that a settlement's open transaction holds is skipped until that transaction ends. If idle,
-- it is ended after five seconds; a forgotten prepared transaction keeps only its lease from being revoked, and no other.
--
-- Invariant "silence is observed": the clock of the server may have been set. It shows how long a lease is silent only as far as
-- the caller has seen it run evenly; and signs of life from the future are from before it was set back, and prove nothing.
--
-- Parameters:
--   p_observed_seconds  for how long the caller has seen the clock run evenly; null: it relies on the clock
--   p_clock             the clock as the caller has just read it; nothing is revoked if the clock was set since
-- Errors: JQ012 not called alone, JQ030 foreign cluster.
-- pages: 40 + 12 an open lease
create function forebay.revoke_lost_v1(p_observed_seconds double precision default null, p_clock timestamptz default null)
returns table (lease_id bigint, worker text, jobs bigint, silent_seconds double precision)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set lock_timeout = '500ms'
as $$
declare
    v_at      timestamptz;
    v_session double precision := forebay._observed_seconds(clock_timestamp());
    v_lost    record;
begin
    perform forebay._require_alone('forebay.revoke_lost_v1()');
    perform forebay._require_same_cluster();
    v_at := forebay._now();
    if (clock_timestamp() - p_clock between interval '-1 second' and interval '1 second') is false then
        return;
    end if;
    for v_lost in
        select l.lease_id, l.worker, l.suspect_seconds, l.lease_seconds, h.backend_pid, s.silent::double precision
        from forebay.lease l
        left join lateral (
            select b.heartbeat_at, b.backend_pid from forebay.heartbeat b
            where b.lease_id = l.lease_id and b.heartbeat_at <= v_at + interval '1 second'
            order by b.heartbeat_at desc limit 1) h on true
        left join lateral (
            select b.claimed_at, b.floor from forebay.batch b
            where b.lease_id = l.lease_id order by b.claim_no desc limit 1) c on true
        cross join lateral (
            select coalesce(extract(epoch from v_at - greatest(
                                h.heartbeat_at, case when c.claimed_at <= v_at + interval '1 second' then c.claimed_at end)),
                            p_observed_seconds) as silent) s
        where l.closed_at is null
          and (extract(epoch from v_at - h.heartbeat_at) > l.suspect_seconds) is not false
          and least(s.silent, p_observed_seconds) > l.suspect_seconds
          and (least(s.silent, p_observed_seconds) > l.lease_seconds
               or exists (select from forebay.batch b
                          where b.lease_id = l.lease_id and b.claim_no >= c.floor
                            and not exists (select from forebay.settlement t
                                            where t.lease_id = b.lease_id and t.claim_no = b.claim_no and t.offsets is null)))
        order by h.heartbeat_at nulls first
    loop
        -- Only now, since looking up one session means reading all of them.
        if v_session is null then
            -- A session from the future began before the clock was set back: it is older than what the caller has observed.
            select coalesce(case when a.backend_start <= clock_timestamp()
                                 then extract(epoch from clock_timestamp() - a.backend_start) end, p_observed_seconds, 0)
            into v_session
            from pg_stat_get_activity(pg_backend_pid()) a;
        end if;
        continue when v_session <= v_lost.suspect_seconds
            or least(v_lost.silent, p_observed_seconds) <= v_lost.lease_seconds
               and exists (select from pg_stat_get_activity(coalesce(v_lost.backend_pid, 0)) a where a.pid is not null);
        begin
            jobs := forebay._revoke(v_lost.lease_id, 'revoked', true);
        exception when lock_not_available then
            continue;
        end;
        if jobs is not null then
            lease_id := v_lost.lease_id;
            worker := v_lost.worker;
            silent_seconds := v_lost.silent;
            return next;
            return;
        end if;
    end loop;
end
$$;


-- Seconds since this session first called revoke_lost_v1; null where the owner of the schema may see when the session began, and
-- when the clock was set back since.
--
-- PostgreSQL shows the start of a session to its own role and to pg_read_all_stats. Inside a function of the owner that is the
-- owner, not the caller. So the session itself keeps the time of its first call, in a parameter without effect. The value has the
-- process id, so that a default of the role or the database is not believed.
create function forebay._observed_seconds(p_at timestamptz) returns double precision
language plpgsql volatile
as $$
declare
    v_since   text;
    v_seconds double precision;
begin
    if pg_has_role(session_user, 'usage') or pg_has_role('pg_read_all_stats', 'usage') then
        return null;
    end if;
    v_since := current_setting('forebay.observes_since', true);
    if v_since is null or split_part(v_since, ' ', 1) <> pg_backend_pid()::text then
        perform set_config('forebay.observes_since', format('%s %s', pg_backend_pid(), extract(epoch from p_at)), false);
        return 0;
    end if;
    v_seconds := extract(epoch from p_at) - split_part(v_since, ' ', 2)::numeric;
    return case when v_seconds >= 0 then v_seconds end;
end
$$;


-- functions/lease/same_cluster.sql

-- Identity of this database: the cluster and the database within it.
create function forebay._identity(out system_identifier bigint, out database_oid oid)
language sql stable
as $$
    select c.system_identifier, d.oid
    from pg_control_system() c, pg_database d where d.datname = current_database()
$$;


create function forebay._cluster_stamp() returns bigint
language sql stable
as $$
    select hashtextextended(pg_relation_filepath('forebay.cluster') collate "C",
                            (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint)
$$;


create function forebay._is_same_cluster() returns boolean
language sql volatile
as $$ select coalesce(pg_sequence_last_value('forebay.same_cluster_seq') = forebay._cluster_stamp(), false) $$;


-- Raise when this schema was restored from another cluster and not yet adopted. Writes nothing, so callers that must not have
-- written can use it.
--
-- Errors: JQ030.
create function forebay._require_same_cluster() returns void
language plpgsql volatile
as $$
declare
    v_recorded record;
    v_here  record;
begin
    if forebay._is_same_cluster() then
        return;
    end if;
    select c.system_identifier, c.database_oid into v_recorded from forebay.cluster c order by c.cluster_no desc limit 1;
    select i.* into v_here from forebay._identity() i;
    if v_recorded.system_identifier is distinct from v_here.system_identifier
       or v_recorded.database_oid is distinct from v_here.database_oid then
        raise exception using errcode = 'JQ030',
            message = format('this schema belongs to cluster %s, database %s; this is cluster %s, database %s',
                             v_recorded.system_identifier, v_recorded.database_oid, v_here.system_identifier, v_here.database_oid),
            detail = jsonb_build_object('recorded', format('%s/%s', v_recorded.system_identifier, v_recorded.database_oid),
                                        'actual', format('%s/%s', v_here.system_identifier, v_here.database_oid)),
            hint = 'The schema was restored from another cluster. Nothing runs until you call forebay adopt --resume or --discard.';
    end if;
end
$$;


-- Remember until the next start of the server that this schema belongs to this cluster. Only after
-- forebay._require_same_cluster(), and where a transaction may draw its id.
create function forebay._record_same_cluster() returns void
language sql volatile
as $$ select setval('forebay.same_cluster_seq', forebay._cluster_stamp()) $$;


-- functions/lease/take_leadership.sql

-- grant: worker

-- Take duties without a leader, and keep those that the caller holds, for some seconds; returns the duties it holds now.
--
-- A flag sequence is read and set outside transactions and locks nothing. If two workers take a duty at the same moment, the
-- later one is recorded; the other learns it at its next call. Several workers may do the work of a duty without harm. Every
-- worker may do a duty without a flag sequence.
--
-- Parameters:
--   p_holder   the caller's number, 0 to 1048575, drawn at random by each worker
--   p_duties   0 is maintenance, any other number is the group of that number
--   p_seconds  how long the duties are kept unless renewed, at most 130
-- Errors: JQ001 a bad holder or time.
create function forebay.lead_v1(p_holder integer, p_duties bigint[], p_seconds double precision) returns bigint[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_duty     bigint;
    v_flag     regclass;
    v_value    bigint;
    v_held     bigint[] := '{}';
begin
    if (p_holder between 0 and 1048575 and p_seconds > 0 and p_seconds <= 130) is not true then
        raise exception using errcode = 'JQ001',
            message = format('holder %s for %s s: the first must be within 0 to 1048575, the second within 0 to 130',
                             coalesce(p_holder::text, 'null'), coalesce(p_seconds::text, 'null'));
    end if;
    perform set_config('synchronous_commit', 'off', true);
    foreach v_duty in array p_duties loop
        continue when forebay._leader_of(v_duty) <> p_holder;
        v_flag := forebay._leader_flag(v_duty);
        if v_flag is not null then
            v_value := ((extract(epoch from clock_timestamp()) + p_seconds) * 1000)::bigint << 20 | p_holder;
            if pg_sequence_last_value(v_flag) & 1048575 = p_holder then
                perform forebay._advance_flag(v_flag, v_value, 262144000);  -- Steps of 250 ms; the holder stays.
            else
                perform setval(v_flag, v_value);
            end if;
        end if;
        v_held := v_held || v_duty;
    end loop;
    return v_held;
end
$$;


-- functions/limits/claim.sql

-- forebay.claim_v1() for a lane of jobs with limit keys, or for a lane whose queue has limits on starts: as many jobs as the limiter
-- lets through.
--
-- Invariants "no more at once" and "no more per second" (docs/design/limits.md): all claims of the group that pass here run one
-- after another, and the limiter's row and the batch are one commit.
-- Locks, in order: the limiter, then as any claim.
create function forebay._claim_limited(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer)
returns text
language plpgsql volatile
as $$
declare
    v      forebay._limiter_view;
    v_lane record;
    v_jobs text;
    v_size integer := 0;
    v_seeds boolean;
begin
    perform set_config('synchronous_commit', 'off', true), forebay._lock_limiter(p_group_id, false);
    -- Later statements than the lock: they see what its last holder committed.
    select l.queue, l.sort, g.group_id, forebay._paused_since(g.paused_at, g.resume_at) as paused_at into v_lane
    from forebay.lane l left join forebay.queue_group g on g.group_id = p_group_id
    where l.lane = p_lane limit 1;
    if v_lane.group_id is null then
        raise exception using errcode = 'JQ014',
            message = format('group %s not found', p_group_id),
            hint = 'Open the group with forebay.open_group() first.';
    elsif v_lane.paused_at is not null then
        return null;
    end if;
    v := forebay._read_limiter(p_group_id, v_lane.queue);
    v.is_bare := v.is_bare and v_lane.sort = 'limited';
    v_seeds := v.has_new_limits or v.seed_until >= v.at;
    -- The claim of a lane of ordering keys must not have written anything before.
    if v_seeds and v_lane.sort <> 'keyed' then
        perform forebay._seed_limit_keys(v, p_group_id);
    end if;
    if v.free_slots > 0 then
        v_jobs := forebay._claim_one(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, least(p_limit, v.free_slots)::integer,
                                     v_lane.sort, v);
    end if;
    if v_seeds and v_lane.sort = 'keyed' then
        perform forebay._seed_limit_keys(v, p_group_id);
    end if;
    if v_jobs is not null and (v.limits).starts_set_at is not null then
        select cardinality(b.seqs) into v_size from forebay.batch b where b.lease_id = p_lease_id and b.claim_no = p_claim_no;
    end if;
    if v_size > 0 or v.is_changed then
        perform forebay._record_limiter(v, p_group_id, p_lease_id, p_claim_no, coalesce(v_size, 0));
    end if;
    return v_jobs;
end
$$;


-- The claim of one lane behind a limiter, whose lock is held: as in forebay.claim_v1().
create function forebay._claim_one(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer, p_sort text,
    v forebay._limiter_view)
returns text
language plpgsql volatile
as $$
declare
    v_segment bigint;
    v_jobs    text;
    v_rows    forebay.log[];
begin
    if p_sort = 'limited' then
        v_rows := forebay._take_limited(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit, v);
        select string_agg(forebay._job_json(
                   u.seq, u.job_id, u.enqueued_at, u.expires_at, u.attempt, u.max_attempts, u.pauses, u.kind, u.args,
                   u.tag, u.correlation_id, u.headers), ',' order by u.ordinality)
        into v_jobs
        from unnest(v_rows) with ordinality u;
        return v_jobs;
    elsif p_sort = 'keyed' then
        return forebay._claim_keyed(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit, v);
    end if;
    execute 'lock table only forebay.lock_lane_' || (hashint8(p_group_id # p_lane) & 127) || ' in share update exclusive mode';
    -- Where the current window continues, else the newest segment: nearly always all jobs lie there.
    v_segment := coalesce(
        (select case when b.snap_to is not null then b.pos_segment end from forebay.batch b
         where b.group_id = p_group_id and b.lane = p_lane order by b.no desc limit 1),
        (select s.segment_id from forebay.segment s
         where s.lo <= pg_sequence_last_value('forebay.log_seq') order by s.lo desc limit 1));
    if v_segment is not null then
        execute 'select forebay._take_' || v_segment || '($1, $2, $3, $4, $5, $6)'
            into v_jobs
            using p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit;
    end if;
    if v_jobs is null then
        v_rows := forebay._take(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit, false);
        select string_agg(forebay._job_json(
                   u.seq, u.job_id, u.enqueued_at, u.expires_at, u.attempt, u.max_attempts, u.pauses, u.kind, u.args,
                   u.tag, u.correlation_id, u.headers), ',' order by u.ordinality)
        into v_jobs
        from unnest(v_rows) with ordinality u;
    end if;
    return v_jobs;
end
$$;


-- functions/limits/cursors.sql

-- Lock lanes of jobs with limit keys of one priority for a claim and read them, each from its cursor: the public lane and the
-- group's private lane, or the lane of suspects alone. A lane that another session has locked is left out, except p_lane. The items are
-- in the order of their numbers, as far as that leaves each lane in its order. Null cursors: the group is paused.
create function forebay._read_limited(
    p_group_id bigint, p_lane bigint, p_queue text, p_priority integer, p_alone boolean, p_most integer,
    out cursors forebay._limit_cursor[], out items forebay._limit_item[])
language plpgsql volatile
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_lanes  bigint[] := array[p_lane];
    v_lane   bigint;
    v_read   record;
    v_window record;
    v_items  forebay._limit_item[];
    v_cursor forebay._limit_cursor;
begin
    perform forebay._lock_lane(p_group_id, p_lane);
    for v_lane in
        select distinct l.lane from forebay.lane l
        where l.queue = p_queue and l.sort = 'limited' and l.priority = p_priority and l.lane <> p_lane
          and l.audience in (0, p_group_id) and not p_alone
    loop
        -- Not waited for: forebay.sweep_v1() has several such locks, and waits for more.
        if forebay._try_lock_lane(p_group_id, v_lane) then
            v_lanes := v_lanes || v_lane;
        end if;
    end loop;
    if cardinality(v_lanes) > 1 then
        v_lanes := array(select u from unnest(v_lanes) u order by u);
    end if;
    cursors := '{}';
    items := '{}';
    foreach v_lane in array v_lanes loop
        -- A later statement than the locks.
        select f.xid as seal_xid, forebay._paused_since(g.paused_at, g.resume_at) as paused_at,
               array(select s.segment_id from forebay.segment s
                     where s.lo >= coalesce(f.hi, 0) and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)
                     order by s.lo) as unsealed,
               row(v_lane, coalesce(b.no, 0), coalesce(b.snap_from, w.first), coalesce(b.snap_to, b.snap_from, w.first), b.snap_to is not null,
                   b.pos_segment, b.pos_xid, b.pos_seq, coalesce(b.high_seq, 0), coalesce(b.handed_total, 0), coalesce(b.skipped_total, 0),
                   b.claimed_at, pg_current_snapshot(), 0, 0, false, 0)::forebay._limit_cursor as cursor
        into v_read
        from forebay.queue_group g
        cross join lateral (select i.audience from forebay.lane i where i.lane = v_lane limit 1) l
        left join lateral (select s.xid, i.hi from forebay.seal s join forebay.segment i using (segment_id)
                           order by s.segment_id desc limit 1) f on true
        left join lateral (select i.no, i.snap_from, i.snap_to, i.pos_segment, i.pos_xid, i.pos_seq, i.high_seq, i.handed_total,
                                  i.skipped_total, i.claimed_at
                           from forebay.batch i
                           where i.group_id = p_group_id and i.lane = v_lane order by i.no desc limit 1) b on true
        cross join lateral (select case l.audience when 0 then g.start_after else '1:1:' end as first) w
        where g.group_id = p_group_id;
        if v_read.paused_at is not null then
            cursors := null;
            return;
        end if;
        v_cursor := v_read.cursor;
        perform forebay._require_not_ahead(v_lane, v_cursor.stop, v_cursor.now);
        v_items := '{}';
        if v_cursor.has_window then
            v_window := forebay._window_limited(v_lane, forebay._xid_ranges(v_cursor.start, v_cursor.stop), v_cursor.pos_segment,
                                                v_cursor.pos_xid, v_cursor.pos_seq, p_most, v_read.unsealed, v_read.seal_xid);
            v_items := v_window.items;
            v_cursor.old := cardinality(v_items);
            v_cursor.looked := v_window.looked;
            v_cursor.is_more := v_window.is_more;
        end if;
        if not v_cursor.is_more then
            v_window := forebay._window_limited(v_lane, forebay._xid_ranges(v_cursor.stop, v_cursor.now), 0, '0', 0, p_most,
                                                v_read.unsealed, v_read.seal_xid);
            v_items := v_items || v_window.items;
            v_cursor.looked := v_cursor.looked + v_window.looked;
            v_cursor.is_more := v_window.is_more;
        end if;
        v_cursor.items := cardinality(v_items);
        cursors := cursors || v_cursor;
        items := items || v_items;
    end loop;
    if cardinality(cursors) > 1 then
        items := array(
            select row(u.lane, u.segment_id, u.xid, u.seq, u.seq_to, u.jobs, u.limit_key, u.turn)::forebay._limit_item
            from (select i.*, max(i.seq) over (partition by i.lane order by i.ordinality) as after
                  from unnest(items) with ordinality i) u
            order by u.after, u.ordinality);
    end if;
end
$$;


-- Errors: JQ030 the cursor is ahead of this cluster.
create function forebay._require_not_ahead(p_lane bigint, p_stop pg_snapshot, p_now pg_snapshot) returns void
language plpgsql stable
as $$
declare
    c record;
begin
    select p_stop as stop, p_now as now into c;
    if pg_snapshot_xmax(c.stop) > pg_snapshot_xmax(c.now) then
        raise exception using errcode = 'JQ030',
            message = format('the cursor of lane %s is ahead of this cluster: xid %s, now %s',
                             p_lane, pg_snapshot_xmax(c.stop), pg_snapshot_xmax(c.now)),
            hint = 'This database was restored from another cluster. Run forebay adopt --resume or --discard.';
    end if;
end
$$;


-- Where cursors stand after the items that a claim used: the first ones of each lane. is_moved: further than before.
create function forebay._limited_positions(p_cursors forebay._limit_cursor[], p_items forebay._limit_item[])
returns table (lane bigint, no bigint, snap_from pg_snapshot, snap_to pg_snapshot, pos_segment bigint, pos_xid xid8, pos_seq bigint,
               high_seq bigint, handed_total bigint, skipped_total bigint, is_moved boolean)
language sql stable
as $$
    select c.lane, c.no,
           case when u.is_up then c.now when i.used = 0 or i.used <= c.old then c.start else c.stop end,
           case when u.is_up then null when i.used = 0 then case when c.has_window then c.stop end when i.used <= c.old then c.stop else c.now end,
           case when u.is_up then 0 when i.used = 0 then coalesce(c.pos_segment, 0) else i.segment_id end,
           case when u.is_up then '0' when i.used = 0 then coalesce(c.pos_xid, '0') else i.xid end,
           case when u.is_up then 0 when i.used = 0 then coalesce(c.pos_seq, 0) else i.seq_to end,
           greatest(c.high_seq, i.high), c.handed_total, c.skipped_total,
           i.used > 0 or u.is_up and (c.has_window or c.looked > 2)
    from unnest(p_cursors) c
    cross join lateral (select count(*) as used, max(n.seq_to) as high, (array_agg(n.segment_id order by n.ordinality desc))[1] as segment_id,
                               (array_agg(n.xid order by n.ordinality desc))[1] as xid, (array_agg(n.seq_to order by n.ordinality desc))[1] as seq_to
                        from unnest(p_items) with ordinality n where n.lane = c.lane) i
    cross join lateral (select i.used = c.items and not c.is_more as is_up) u
$$;


-- Move cursors over the items that a claim used.
create function forebay._move_limited(
    p_group_id bigint, p_cursors forebay._limit_cursor[], p_items forebay._limit_item[], p_at timestamptz) returns void
language sql volatile
as $$
    insert into forebay.batch (
        group_id, lane, no, snap_from, snap_to, pos_segment, pos_xid, pos_seq, high_seq, handed_total, skipped_total, claimed_at)
    select p_group_id, p.lane, p.no + 1, p.snap_from, p.snap_to, p.pos_segment, p.pos_xid, p.pos_seq, p.high_seq,
           p.handed_total, p.skipped_total, p_at
    from forebay._limited_positions(p_cursors, p_items) p
    join unnest(p_cursors) c on c.lane = p.lane
    where p.is_moved or c.items = 0 and (forebay._should_move(c.start, c.now, c.claimed_at) or forebay._is_old_cursor(c.start))
$$;


-- functions/limits/fetch.sql

-- The first rows of runs of jobs with limit keys, at most p_most of each run, with the number of the run.
create function forebay._fetch_limited(
    p_nrs bigint[], p_lanes bigint[], p_xids xid8[], p_after bigint[], p_seqs_to bigint[], p_most bigint[],
    out nrs bigint[], out jobs forebay.log[])
language plpgsql stable
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_piece record;
    v_part  record;
begin
    nrs := '{}';
    jobs := '{}';
    for v_piece in
        select s.segment_id, array_agg(u.nr) as nrs, array_agg(u.lane) as lanes, array_agg(u.xid) as xids, array_agg(u.after) as afters,
               array_agg(u.seq_to) as seqs_to, array_agg(u.most) as most
        from unnest(p_nrs, p_lanes, p_xids, p_after, p_seqs_to, p_most) u (nr, lane, xid, after, seq_to, most)
        cross join lateral (select i.segment_id from forebay.segment i where i.lo <= u.seq_to order by i.lo desc limit 1) s
        group by s.segment_id
    loop
        execute 'select array_agg(f.nr) as nrs, array_agg(f.job) as jobs from forebay._fetch_limited_' || v_piece.segment_id
                || '($1, $2, $3, $4, $5, $6) f'
            into v_part using v_piece.nrs, v_piece.lanes, v_piece.xids, v_piece.afters, v_piece.seqs_to, v_piece.most;
        nrs := nrs || v_part.nrs;
        jobs := jobs || v_part.jobs;
    end loop;
end
$$;


-- functions/limits/limit_key.sql

-- grant: operator

-- Set limits of one limit key of a queue, for all groups: how many of its jobs start per second and run at once. They replace the limits
-- that the queue has for each key. Only the given ones change. Returns the key's own limits before, null for none.
--
-- With remove, the key's own limits are removed first; what is given with it is set then. A key without a rate here has the queue's key_rate
-- and key_burst, and one without a concurrency the queue's key_concurrency. Limits apply from the next claim on, also to
-- waiting jobs; jobs that run already count.
--
-- Invariants "no more at once", "no more per second", "no key is forgotten" (docs/design/limits.md).
-- Parameters: rate, starts per second, also below 1; burst, how many jobs may start at once after an idle time: by default the starts of
--   one second, at least 1; concurrency, at least 1.
-- Errors: JQ001 a bad name, key or number, a burst without a rate, or neither a limit nor remove.
-- Locks, until the transaction ends: the row of the key, the row of the queue's limits (shared), and the table queue_group in a mode that makes
--   only the opening of new groups wait. With remove, the row of the queue's limits, which makes other changes of this queue's limits wait.
create function forebay.limit_key(
    queue text, limit_key text, rate double precision default null, burst integer default null, concurrency integer default null,
    remove boolean default false)
returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_before  forebay.key_limits;
    v_kept    forebay.key_limits;
    v_old     jsonb;
    v_new     jsonb;
    v_problem text;
begin
    perform forebay._require_key(limit_key.queue, null, limit_key.limit_key);
    v_problem := case
        when limit_key.rate not between 0.000001 and 1000000 then format('rate %s is outside 0.000001 to 1000000 per second', limit_key.rate)
        when limit_key.burst not between 1 and 1000000 then format('burst %s is outside 1 to 1000000', limit_key.burst)
        when limit_key.concurrency not between 1 and 1000000 then format('concurrency %s is outside 1 to 1000000', limit_key.concurrency)
        when num_nonnulls(limit_key.rate, limit_key.burst, limit_key.concurrency) = 0 and limit_key.remove is not true
            then 'neither rate, burst, concurrency nor remove is given' end;
    if v_problem is null then
        if limit_key.remove then
            perform from forebay.queue_limits l where l.queue = limit_key.queue for update;
        end if;
        if num_nonnulls(limit_key.rate, limit_key.burst, limit_key.concurrency) > 0 then
            -- A row that limits nothing, or the one that is there, locked: of two calls for one key the later one sees what the first has set.
            insert into forebay.key_limits as i (queue, key, set_at, no) values (limit_key.queue, limit_key.limit_key, forebay._now(), 0)
            on conflict on constraint key_limits_pkey do update set key = i.key
            returning i.* into v_before;
        else
            select i.* into v_before from forebay.key_limits i where i.queue = limit_key.queue and i.key = limit_key.limit_key for update;
        end if;
        if limit_key.remove is not true then
            v_kept := v_before;
        end if;
        v_kept.rate := coalesce(limit_key.rate, v_kept.rate);
        v_kept.burst := coalesce(limit_key.burst, v_kept.burst);
        v_kept.concurrency := coalesce(limit_key.concurrency, v_kept.concurrency);
        v_problem := case when v_kept.burst is not null and v_kept.rate is null then format('burst %s without a rate', v_kept.burst) end;
    end if;
    if v_problem is not null then
        raise exception using errcode = 'JQ001', message = v_problem,
            hint = 'Nothing was changed. See the function forebay.limit_key in the reference.';
    end if;
    if forebay._set_key_limits(limit_key.queue, limit_key.limit_key, v_kept.rate, v_kept.burst, v_kept.concurrency) then
        v_old := forebay._key_limit_facts(v_before);
        select forebay._key_limit_facts(i) into v_new from forebay.key_limits i where i.queue = limit_key.queue and i.key = limit_key.limit_key;
        perform forebay._record_event(
            'keys.limit', limit_key.queue, p_old => jsonb_build_object('limit_key', limit_key.limit_key) || v_old,
            p_new => jsonb_build_object('limit_key', limit_key.limit_key) || coalesce(v_new, '{}'));
    end if;
    if limit_key.remove then
        -- Without limits the claims of the queue need not pass the limiter. Other changes wait for the row, which is locked.
        update forebay.queue_limits l set starts_set_at = null
        where l.queue = limit_key.queue and num_nonnulls(l.rate, l.concurrency, l.key_rate, l.key_concurrency) = 0
          and l.starts_set_at is not null and not exists (select from forebay.key_limits i where i.queue = l.queue);
        delete from forebay.queue_limits l
        where l.queue = limit_key.queue and num_nonnulls(l.max_waiting, l.starts_set_at) = 0;
    end if;
    return nullif(forebay._key_limit_facts(v_before), '{}');
end
$$;


-- The limits that a key has itself.
create function forebay._key_limit_facts(p_limits forebay.key_limits) returns jsonb
language sql immutable
as $$
    select jsonb_strip_nulls(jsonb_build_object('rate', p_limits.rate, 'burst', p_limits.burst, 'concurrency', p_limits.concurrency,
                                                'empty_until', p_limits.empty_until))
$$;


-- Set all limits of one limit key of a queue; all null: remove them. Returns whether that changed anything.
--
-- p_empty_until: the bucket of the key has no token before, and one then. It needs a rate, here or of the queue.
-- The caller has checked the name, the key and the numbers, and records the act.
-- Locks: as forebay.limit_key() without remove.
create function forebay._set_key_limits(
    p_queue text, p_key text, p_rate double precision, p_burst integer, p_concurrency integer, p_empty_until timestamptz default null)
returns boolean
language plpgsql volatile
as $$
declare
    v_at     constant timestamptz := forebay._now();
    v_marked timestamptz;
    v_found  boolean := false;
begin
    if num_nonnulls(p_rate, p_burst, p_concurrency, p_empty_until) = 0 then
        delete from forebay.key_limits i where i.queue = p_queue and i.key = p_key;
        if not found then
            return false;
        end if;
    else
        -- The queue passes the limiter while it has rows here: a call that removes the mark waits for this one.
        while not v_found loop
            select l.starts_set_at into v_marked from forebay.queue_limits l where l.queue = p_queue for share;
            v_found := found and v_marked is not null;
            if not v_found then
                perform nextval('forebay.limiter_seq');
                insert into forebay.queue_limits as l (queue, starts_set_at) values (p_queue, v_at)
                on conflict on constraint queue_limits_pkey do update set starts_set_at = coalesce(l.starts_set_at, excluded.starts_set_at);
            end if;
        end loop;
        insert into forebay.key_limits as i (queue, key, rate, burst, concurrency, empty_until, set_at, no)
        values (p_queue, p_key, p_rate, p_burst, p_concurrency, p_empty_until, v_at, nextval('forebay.key_limits_seq'))
        on conflict on constraint key_limits_pkey do update
        set rate = excluded.rate, burst = excluded.burst, concurrency = excluded.concurrency, empty_until = excluded.empty_until,
            set_at = excluded.set_at, no = excluded.no
        where (i.rate, i.burst, i.concurrency, i.empty_until)
              is distinct from (excluded.rate, excluded.burst, excluded.concurrency, excluded.empty_until);
        if not found then
            return false;
        end if;
    end if;
    -- Jobs may be parked until a time that the earlier limits had set, or for a slot that is free under the new ones.
    perform forebay._announce_key(p_queue, 'limit', p_key);
    return true;
end
$$;


-- functions/limits/limit_queue.sql

-- grant: operator

-- Set limits of a queue: how many of its jobs may wait, and how many start per second and run at once, in all and for each limit
-- key. Only the given limits change. Returns the limits before, null for none.
--
-- First the limits named in `remove` are removed ('all' for all of them), then the given ones are set. Removing a rate removes
-- its burst. max_waiting applies to enqueues from the commit on; the others apply to each group of the queue, from the next
-- claim on, and jobs that run already count.
--
-- max_waiting counts the jobs that wait for one group: ready, scheduled, retrying or parked. max_waiting_group names the group, by default
-- the group default. Other groups stop no enqueue. Removing max_waiting removes it.
--
-- Parameters: max_waiting, concurrency, key_concurrency, at least 1; rate, key_rate, starts per second, also below 1; burst,
--   key_burst, how many jobs may start at once after an idle time: by default the starts of one second, at least 1.
-- Errors: JQ001 a bad name or number.
-- Locks: the table queue_limits, in a mode that makes only other calls of this function wait, until the transaction ends.
create function forebay.limit_queue(
    queue text, max_waiting bigint default null, rate double precision default null, burst integer default null,
    concurrency integer default null, key_rate double precision default null, key_burst integer default null,
    key_concurrency integer default null, remove text[] default '{}', max_waiting_group text default null)
returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_names   constant text[] := '{max_waiting,max_waiting_group,rate,burst,concurrency,key_rate,key_burst,key_concurrency}';
    v_remove  text[] := coalesce(limit_queue.remove, '{}');
    v_given   forebay.queue_limits;
    v_before  forebay.queue_limits;
    v_after   forebay.queue_limits;
    v_problem text;
begin
    v_given := row(limit_queue.queue, limit_queue.max_waiting, limit_queue.rate, limit_queue.burst, limit_queue.concurrency,
                   limit_queue.key_rate, limit_queue.key_burst, limit_queue.key_concurrency, null, limit_queue.max_waiting_group);
    v_problem := case
        when (v_given.queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$') is not true
            then format('queue %s is not a name: letters, digits and _ . : - only, at most 128', coalesce(quote_literal(left(v_given.queue, 40)), 'null'))
        when v_given.max_waiting < 1 then format('max_waiting %s is below 1', v_given.max_waiting)
        when (v_given.max_waiting_group ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$') is false
            then format('max_waiting_group %s is not a name: letters, digits and _ . : - only, at most 128', quote_literal(left(v_given.max_waiting_group, 40)))
        when v_given.rate not between 0.000001 and 1000000 then format('rate %s is outside 0.000001 to 1000000 per second', v_given.rate)
        when v_given.burst not between 1 and 1000000 then format('burst %s is outside 1 to 1000000', v_given.burst)
        when v_given.concurrency not between 1 and 1000000 then format('concurrency %s is outside 1 to 1000000', v_given.concurrency)
        when v_given.key_rate not between 0.000001 and 1000000 then format('key_rate %s is outside 0.000001 to 1000000 per second', v_given.key_rate)
        when v_given.key_burst not between 1 and 1000000 then format('key_burst %s is outside 1 to 1000000', v_given.key_burst)
        when v_given.key_concurrency not between 1 and 1000000 then format('key_concurrency %s is outside 1 to 1000000', v_given.key_concurrency)
        when not v_remove <@ (v_names || 'all'::text) then (
            select format('remove has %s, which is none of %s, all', coalesce(quote_literal(left(r.name, 40)), 'null'), array_to_string(v_names, ', '))
            from unnest(v_remove) r (name) where (r.name = any (v_names || 'all'::text)) is not true limit 1) end;
    if v_problem is null then
        -- Two calls that change different limits of a queue must both count.
        lock table forebay.queue_limits in share row exclusive mode;
        -- A call of limit_key() holds the row: whether keys have limits is read after it has committed.
        select l.* into v_before from forebay.queue_limits l where l.queue = v_given.queue for update;
        v_remove := case when 'all' = any (v_remove) then v_names
                         else v_remove || case when 'max_waiting' = any (v_remove) then '{max_waiting_group}'::text[] end
                                       || case when 'rate' = any (v_remove) then '{burst}'::text[] end
                                       || case when 'key_rate' = any (v_remove) then '{key_burst}'::text[] end end;
        v_after.queue := v_given.queue;
        v_after.starts_set_at := v_before.starts_set_at;
        v_after.max_waiting := coalesce(v_given.max_waiting, case when 'max_waiting' <> all (v_remove) then v_before.max_waiting end);
        v_after.max_waiting_group := nullif(coalesce(
            v_given.max_waiting_group, case when 'max_waiting_group' <> all (v_remove) then v_before.max_waiting_group end), 'default');
        v_after.rate := coalesce(v_given.rate, case when 'rate' <> all (v_remove) then v_before.rate end);
        v_after.burst := coalesce(v_given.burst, case when 'burst' <> all (v_remove) then v_before.burst end);
        v_after.concurrency := coalesce(v_given.concurrency, case when 'concurrency' <> all (v_remove) then v_before.concurrency end);
        v_after.key_rate := coalesce(v_given.key_rate, case when 'key_rate' <> all (v_remove) then v_before.key_rate end);
        v_after.key_burst := coalesce(v_given.key_burst, case when 'key_burst' <> all (v_remove) then v_before.key_burst end);
        v_after.key_concurrency := coalesce(v_given.key_concurrency, case when 'key_concurrency' <> all (v_remove) then v_before.key_concurrency end);
        v_problem := case
            when v_after.max_waiting_group is not null and v_after.max_waiting is null
                then format('max_waiting_group %s without a max_waiting', v_after.max_waiting_group)
            when v_after.burst is not null and v_after.rate is null then format('burst %s without a rate', v_after.burst)
            when v_after.key_burst is not null and v_after.key_rate is null then format('key_burst %s without a key_rate', v_after.key_burst) end;
    end if;
    if v_problem is not null then
        raise exception using errcode = 'JQ001', message = v_problem,
            hint = 'Nothing was changed. See the function forebay.limit_queue in the reference.';
    end if;

    if row(v_after.rate, v_after.burst, v_after.concurrency, v_after.key_rate, v_after.key_burst, v_after.key_concurrency)
       is distinct from
       row(v_before.rate, v_before.burst, v_before.concurrency, v_before.key_rate, v_before.key_burst, v_before.key_concurrency) then
        v_after.starts_set_at := case
            when num_nonnulls(v_after.rate, v_after.concurrency, v_after.key_rate, v_after.key_concurrency) > 0
                 or exists (select from forebay.key_limits i where i.queue = v_given.queue) then forebay._now() end;
    end if;
    if v_after.starts_set_at is not null then
        perform nextval('forebay.limiter_seq');
    end if;
    if v_after.max_waiting is not null then
        perform nextval('forebay.limit_seq'), setval('forebay.lane_secret', pg_sequence_last_value('forebay.lane_secret') | 1);
    end if;
    if num_nonnulls(v_after.max_waiting, v_after.starts_set_at) = 0 then
        delete from forebay.queue_limits l where l.queue = v_given.queue;
    else
        insert into forebay.queue_limits select v_after.*
        on conflict on constraint queue_limits_pkey do update
        set max_waiting = excluded.max_waiting, max_waiting_group = excluded.max_waiting_group, rate = excluded.rate, burst = excluded.burst, concurrency = excluded.concurrency,
            key_rate = excluded.key_rate, key_burst = excluded.key_burst, key_concurrency = excluded.key_concurrency,
            starts_set_at = excluded.starts_set_at;
    end if;
    if v_after.max_waiting is not null
       and (v_after.max_waiting, v_after.max_waiting_group) is distinct from (v_before.max_waiting, v_before.max_waiting_group) then
        -- The first count visits all waiting jobs; enqueues continue from it.
        perform forebay._waiting(v_given.queue, forebay._counting_group(v_given.queue, v_after.max_waiting_group), -1, 0);
    end if;
    if v_after.starts_set_at is distinct from v_before.starts_set_at then
        -- Jobs may be parked while nothing is left to claim. A recheck row of no key brings a claim, which gives the keys their turns.
        perform forebay._announce_limit_keys(
            forebay._record_limited_lane(v_given.queue, l.priority, g.group_id), array[''], null)
        from forebay.queue_group g
        cross join lateral (select i.priority from forebay.lane i where i.queue = g.queue and i.sort = 'limited' limit 1) l
        where g.queue = v_given.queue;
        perform forebay._notify(v_given.queue);
    end if;
    if to_jsonb(v_after) - 'starts_set_at' <> to_jsonb(v_before) - 'starts_set_at' then
        perform forebay._record_event(
            'queues.limit', v_given.queue, p_old => jsonb_strip_nulls(to_jsonb(v_before) - '{queue,starts_set_at}'::text[]),
            p_new => jsonb_strip_nulls(to_jsonb(v_after) - '{queue,starts_set_at}'::text[]));
    end if;
    return case when num_nonnulls(v_before.max_waiting, v_before.rate, v_before.concurrency, v_before.key_rate, v_before.key_concurrency) > 0
                then to_jsonb(v_before) - '{queue,starts_set_at}'::text[] end;
end
$$;


-- functions/limits/limits.sql

-- grant: operator, reader

-- The queues with limits or limit keys, a row for each group: the limits, the number of running jobs, the number of limit keys
-- with parked jobs, and when the queue's rate lets the next job start.
-- pages: 300 + 2 a lane + 20 an open lease
create function forebay.limits(only_queue text default null)
returns table (queue text, group_name text, max_waiting bigint, rate double precision, burst integer, concurrency integer,
               key_rate double precision, key_burst integer, key_concurrency integer, running bigint, keys_waiting integer,
               next_start_at timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_group record;
    v       forebay._limiter_view;
begin
    for v_group in
        select q.queue, g.group_id, g.name
        from (select l.queue from forebay.queue_limits l union select l.queue from forebay.lane l where l.sort = 'limited') q
        left join forebay.queue_group g on g.queue = q.queue
        where only_queue is null or q.queue = only_queue
        order by q.queue, g.name
    loop
        v := forebay._read_limiter(coalesce(v_group.group_id, 0), v_group.queue);
        queue := v_group.queue;
        group_name := coalesce(v_group.name, 'default');
        max_waiting := (v.limits).max_waiting;
        rate := (v.limits).rate;
        burst := (v.limits).burst;
        concurrency := (v.limits).concurrency;
        key_rate := (v.limits).key_rate;
        key_burst := (v.limits).key_burst;
        key_concurrency := (v.limits).key_concurrency;
        running := coalesce((select sum(f.open) from forebay._in_flight(v_group.group_id) f), 0);
        keys_waiting := (select count(*) from forebay._waiting_limit_keys(v_group.group_id));
        next_start_at := case when rate is not null and forebay._permits(v.tat, rate, burst, v.at) = 0
                              then v.tat - make_interval(secs => (coalesce(burst, ceil(rate)) - 1) / rate) end;
        return next;
    end loop;
end
$$;


-- functions/limits/parked.sql

-- Does a job with a limit key that a group's cursor has passed still wait for its key?
create function forebay._is_limit_parked(p_group_id bigint, p_limit_key text, p_xid xid8, p_seq bigint) returns boolean
language sql stable
as $$
    select exists (
        select from (select * from forebay.limit_run i
                     where i.group_id = p_group_id and i.limit_key = p_limit_key order by i.no desc limit 1) t
        cross join lateral (select * from forebay.limit_parked p
                            where p.group_id = p_group_id and p.limit_key = p_limit_key
                              and p.parked_no > coalesce(t.taken_up_to, 0) and p.parked_no <= t.parked_up_to
                              and p.xid = p_xid and p_seq between p.seq and p.seq_to limit 1) p
        where t.waiting > 0
          and (p_seq > coalesce(t.taken_seq, 0)
               or p.parked_no > (select n.parked_no from forebay.limit_parked n
                                 where n.group_id = p_group_id and n.limit_key = p_limit_key and n.parked_no > coalesce(t.taken_up_to, 0)
                                 order by n.parked_no limit 1)))
$$;


-- The batch with a row of a job with a limit key, or null. It may be of another lane than the row: a claim reads the public lane and
-- the private one, and takes parked jobs of any priority.
create function forebay._limited_batch_of(p_group_id bigint, p_limit_key text, p_lane bigint, p_seq bigint) returns forebay.batch
language plpgsql stable
as $$
declare
    v_batch forebay.batch;
    v_lane  bigint;
begin
    for v_batch in
        select b.* from forebay.limit_run t
        join forebay.batch b on b.lease_id = t.lease_id and b.claim_no = t.claim_no
        where t.group_id = p_group_id and t.limit_key = p_limit_key and t.low_seq <= p_seq and t.high_seq >= p_seq
          and p_seq = any (b.seqs)
        order by t.no desc limit 1
    loop
        return v_batch;
    end loop;
    for v_lane in
        select distinct i.lane from forebay.lane l join forebay.lane i on i.queue = l.queue and i.priority = l.priority and i.sort = 'limited'
        where l.lane = p_lane and i.audience in (0, p_group_id, -p_group_id)
    loop
        v_batch := forebay._batch_of(p_group_id, v_lane, p_seq);
        if v_batch.no is not null then
            return v_batch;
        end if;
    end loop;
    return null;
end
$$;


-- The limit keys with parked jobs, and their states' newest rows.
create function forebay._waiting_limit_keys(p_group_id bigint) returns setof forebay.limit_run
language sql stable
as $$
    with recursive key as (
        (select p.limit_key from forebay.limit_parked p where p.group_id = p_group_id order by p.limit_key limit 1)
        union all
        select n.limit_key
        from key k, lateral (
            select p.limit_key from forebay.limit_parked p
            where p.group_id = p_group_id and p.limit_key > k.limit_key order by p.limit_key limit 1) n
    )
    select t.* from key k
    cross join lateral (select * from forebay.limit_run i
                        where i.group_id = p_group_id and i.limit_key = k.limit_key order by i.no desc limit 1) t
    where t.waiting > 0
$$;


-- The runs of parked jobs that are not taken, of all groups.
create function forebay._all_limit_parked()
returns table (group_id bigint, limit_key text, lane bigint, xid xid8, after bigint, seq_to bigint, jobs bigint, parked_no bigint)
language sql stable
as $$
    select t.group_id, t.limit_key, p.lane, p.xid, greatest(p.seq - 1, p.after), p.seq_to,
           p.jobs - case when p.after is not null then coalesce(t.taken_jobs, 0) else 0 end, p.parked_no
    from forebay.queue_group g
    cross join lateral forebay._waiting_limit_keys(g.group_id) t
    cross join lateral (
        select i.*, case when row_number() over (order by i.parked_no) = 1 then coalesce(t.taken_seq, 0) end as after
        from forebay.limit_parked i
        where i.group_id = t.group_id and i.limit_key = t.limit_key and i.parked_no > coalesce(t.taken_up_to, 0) and i.parked_no <= t.parked_up_to) p
    where p.ordering_key is null  -- A job with an ordering key waits there.
$$;


-- All jobs that wait behind a cursor for a key, by lane: parked or requeued. jobs: with a limit key, how many in one run.
create function forebay._all_parked()
returns table (group_id bigint, lane bigint, seq bigint, place bigint, jobs bigint)
language sql stable
as $$
    select p.group_id, p.lane, p.seq, p.place, 1::bigint from forebay._all_ordering_parked() p
    where pg_sequence_last_value('forebay.key_seq') is not null
    union all
    select p.group_id, p.lane, p.after + 1, p.parked_no, p.jobs from forebay._all_limit_parked() p
    where pg_sequence_last_value('forebay.limit_parked_seq') is not null
$$;


-- The same with the rows of the jobs, for the groups of a queue; null: of all queues.
create function forebay._parked_jobs(p_queue text default null)
returns table (group_id bigint, place bigint, job forebay.log)
language plpgsql stable
as $$
#variable_conflict use_column
begin
    if pg_sequence_last_value('forebay.key_seq') is not null then
        return query
        select p.group_id, p.place, u
        from (select a.group_id, array_agg(a.lane) as lanes, array_agg(a.seq) as seqs
              from forebay._all_ordering_parked() a
              where p_queue is null or exists (select from forebay.lane l where l.lane = a.lane and l.queue = p_queue)
              group by a.group_id) g
        cross join lateral unnest(forebay._fetch(g.lanes, g.seqs)) u
        join forebay._all_ordering_parked() p on p.group_id = g.group_id and p.lane = u.lane and p.seq = u.seq;
    end if;
    if pg_sequence_last_value('forebay.limit_parked_seq') is null then
        return;
    end if;
    return query
    select (a.groups)[f.nr], (a.nos)[f.nr], f.job
    from (select array_agg(p.group_id) as groups, array_agg(p.parked_no) as nos, array_agg(p.nr) as nrs, array_agg(p.lane) as lanes,
                 array_agg(p.xid) as xids, array_agg(p.after) as afters, array_agg(p.seq_to) as seqs_to, array_agg(p.jobs) as most
          from (select i.*, row_number() over () as nr from forebay._all_limit_parked() i
                where p_queue is null or exists (select from forebay.lane l where l.lane = i.lane and l.queue = p_queue)) p) a
    cross join lateral forebay._fetch_limited(a.nrs, a.lanes, a.xids, a.afters, a.seqs_to, a.most) b
    cross join lateral (select unnest(b.nrs) as nr, unnest(b.jobs) as job) f;
end
$$;


-- functions/limits/read.sql

-- What a group's limiter sees now: its newest row, minus ended jobs.
--
-- A batch is in flight until it is settled or its lease is closed; so nothing needs to be released after a crash. For one second
-- after limits on starts were set, everything is counted from the leases: claims in progress then did not pass the limiter.
create function forebay._read_limiter(p_group_id bigint, p_queue text) returns forebay._limiter_view
language plpgsql volatile
as $$
declare
    v forebay._limiter_view;
begin
    -- One statement: in each transaction an expression costs more to prepare than to evaluate.
    select coalesce(c.no, 0), n.at, c.seed_until, c.tat,
           coalesce(o.leases, '{}'), coalesce(o.claims, '{}'), coalesce(o.sizes, '{}'), coalesce(o.opens, '{}'),
           q.starts_set_at is distinct from c.limits_at or c.decided_at > n.at, coalesce(c.decided_at > n.at, false),
           q.starts_set_at is distinct from c.limits_at, k.leases, k.claims,
           -- Each claim reads the keys of these batches: a bounded number, so that beside many workers it does not.
           q.key_concurrency is not null and q.key_rate is null and k.batches < 16 and coalesce(k.jobs, 0) < 2000, 0, q
    into v
    from (select forebay._now() as at offset 0) n
    left join forebay.queue_limits q on q.queue = p_queue
    left join lateral (select g.* from forebay.limiter g where g.group_id = p_group_id order by g.no desc limit 1) c on true
    left join lateral (
        select array_agg(i.lease_id order by i.nr) as leases, array_agg(i.claim_no order by i.nr) as claims,
               array_agg(i.size order by i.nr) as sizes, array_agg(i.size - s.settled order by i.nr) as opens
        from unnest(c.leases, c.claims, c.sizes) with ordinality i (lease_id, claim_no, size, nr)
        cross join lateral (
            select coalesce(bool_or(j.offsets is null), false) as whole, coalesce(sum(cardinality(j.offsets)), 0)::integer as settled
            from forebay.settlement j where j.lease_id = i.lease_id and j.claim_no = i.claim_no) s
        where not s.whole and s.settled < i.size
          and exists (select from forebay.lease l where l.lease_id = i.lease_id and l.closed_at is null)
          and exists (select from forebay.batch b where b.lease_id = i.lease_id and b.claim_no = i.claim_no)) o on true
    left join lateral (
        select array_agg(i.lease_id order by i.nr) as leases, array_agg(i.claim_no order by i.nr) as claims, count(*) as batches, sum(i.size) as jobs
        from (select u.*, (select cardinality(b.seqs) from forebay.batch b where b.lease_id = u.lease_id and b.claim_no = u.claim_no) as size
              from unnest(c.bare_leases, c.bare_claims) with ordinality u (lease_id, claim_no, nr)) i
        cross join lateral (
            select coalesce(bool_or(j.offsets is null), false) as whole, coalesce(sum(cardinality(j.offsets)), 0)::integer as settled
            from forebay.settlement j where j.lease_id = i.lease_id and j.claim_no = i.claim_no) s
        where not s.whole and s.settled < i.size) k on true;

    if v.is_changed or v.seed_until >= v.at then
        v := forebay._read_limiter_fully(v, p_group_id);
    end if;
    v.free_slots := least(coalesce((v.limits).concurrency - (select sum(o) from unnest(v.opens) o), (v.limits).concurrency, 9223372036854775807),
                    forebay._permits(v.tat, (v.limits).rate, (v.limits).burst, v.at));
    return v;
end
$$;


-- Rare work of a limiter. After limits on starts were set it counts jobs in flight from the leases, and the bucket owes no more than
-- it can hold; a clock that was set back resets the bucket.
create function forebay._read_limiter_fully(v forebay._limiter_view, p_group_id bigint) returns forebay._limiter_view
language plpgsql volatile
as $$
begin
    if v.has_new_limits then
        v.seed_until := v.at + interval '1 second';
    end if;
    if v.seed_until >= v.at and (v.limits).concurrency is not null then
        select coalesce(array_agg(f.lease_id), '{}'), coalesce(array_agg(f.claim_no), '{}'),
               coalesce(array_agg(f.size), '{}'), coalesce(array_agg(f.open), '{}')
        into v.leases, v.claims, v.sizes, v.opens
        from forebay._in_flight(p_group_id) f;
    end if;
    if v.is_back then
        v.tat := v.tat - (select g.decided_at - v.at from forebay.limiter g where g.group_id = p_group_id and g.no = v.no);
    end if;
    if v.has_new_limits then
        v.tat := forebay._tat_within(v.tat, (v.limits).rate, (v.limits).burst, (v.limits).starts_set_at);
    end if;
    return v;
end
$$;


-- Batches in flight of a group, counted from the open leases: how many jobs each took and has unsettled.
create function forebay._in_flight(p_group_id bigint)
returns table (lease_id bigint, claim_no bigint, size integer, open integer, limit_keys text[])
language sql volatile
as $$
    select b.lease_id, b.claim_no, cardinality(b.seqs), cardinality(b.seqs) - s.settled, b.limit_keys
    from forebay.lease e
    cross join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f
    join forebay.batch b on b.lease_id = e.lease_id and b.claim_no >= f.floor
    cross join lateral (
        select coalesce(bool_or(j.offsets is null), false) as whole, coalesce(sum(cardinality(j.offsets)), 0)::integer as settled
        from forebay.settlement j where j.lease_id = b.lease_id and j.claim_no = b.claim_no) s
    where e.closed_at is null and b.group_id = p_group_id and not s.whole and s.settled < cardinality(b.seqs)
$$;


-- Append the limiter's state after a claim that took p_count jobs.
create function forebay._record_limiter(
    v forebay._limiter_view, p_group_id bigint, p_lease_id bigint, p_claim_no bigint, p_count integer)
returns void
language plpgsql volatile
as $$
begin
    if p_count > 0 then
        v.tat := forebay._tat_after(v.tat, (v.limits).rate, v.at, p_count);
        v.leases := v.leases || p_lease_id;
        v.claims := v.claims || p_claim_no;
        v.sizes := v.sizes || p_count;
        if v.is_bare then
            v.bare_leases := v.bare_leases || p_lease_id;
            v.bare_claims := v.bare_claims || p_claim_no;
        end if;
    end if;
    if (v.limits).concurrency is null then
        v.leases := '{}';
        v.claims := '{}';
        v.sizes := '{}';
    end if;
    insert into forebay.limiter (group_id, no, decided_at, limits_at, seed_until, tat, leases, claims, sizes, bare_leases, bare_claims)
    values (p_group_id, v.no + 1, v.at, (v.limits).starts_set_at, v.seed_until, v.tat, v.leases, v.claims, v.sizes, v.bare_leases, v.bare_claims);
end
$$;


-- After limits for each key were set: record which jobs of each key are in flight, and give every key a turn that has parked jobs.
create function forebay._seed_limit_keys(v forebay._limiter_view, p_group_id bigint) returns void
language plpgsql volatile
set enable_nestloop = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
begin
    -- Once: each turn of a full key would bring the next claim, and that one all turns again.
    if v.has_new_limits then
        perform forebay._announce_waiting(p_group_id);
    end if;
    if (v.limits).key_concurrency is null and pg_sequence_last_value('forebay.key_limits_seq') is null then
        return;
    end if;
    insert into forebay.limit_run (
        group_id, limit_key, no, high_seq, turn, waiting, parked_up_to, taken_up_to, taken_seq, taken_jobs, is_full, tat, decided_at,
        leases, claims, offsets, limits_no)
    select p_group_id, k.key, coalesce(t.no, 0) + 1, 0, t.turn, t.waiting, t.parked_up_to, t.taken_up_to, t.taken_seq, t.taken_jobs,
           coalesce(t.is_full, false), t.tat, t.decided_at, k.leases, k.claims, k.offsets, t.limits_no
    from (select u.key, array_agg(f.lease_id) as leases, array_agg(f.claim_no) as claims, array_agg(u.place::smallint) as offsets
          from forebay._in_flight(p_group_id) f
          cross join lateral unnest(f.limit_keys) with ordinality u (key, place)
          where u.key is not null
            and ((v.limits).key_concurrency is not null
                 or exists (select from forebay.key_limits o where o.queue = (v.limits).queue and o.key = u.key and o.concurrency is not null))
          group by u.key) k
    left join lateral (select * from forebay.limit_run i
                       where i.group_id = p_group_id and i.limit_key = k.key order by i.no desc limit 1) t on true;
end
$$;


-- functions/limits/ready.sql

-- Of some groups those whose limiter lets nothing through now.
create function forebay._shut_limiters(p_group_ids bigint[]) returns bigint[]
language plpgsql volatile
as $$
declare
    v_group record;
    v       forebay._limiter_view;
    v_shut  bigint[] := '{}';
begin
    for v_group in select g.group_id, g.queue from forebay.queue_group g where g.group_id = any (p_group_ids) loop
        v := forebay._read_limiter(v_group.group_id, v_group.queue);
        if v.free_slots <= 0 and not v.is_back then
            v_shut := v_shut || v_group.group_id;
        end if;
    end loop;
    return v_shut;
end
$$;


-- functions/limits/states.sql

-- The states of limit keys for a group, in the order of the keys. Jobs in flight that have ended are left out. A job in flight may be
-- in the key's newest row and in a batch of limiter.bare_leases.
--
-- The first state after a change of the key's own limits counts the jobs in flight from the leases too: without a limit on concurrency none
-- were recorded. No claim is missed: all claims of the queue pass the limiter, and each records under which limits it decided.
create function forebay._limit_states(p_group_id bigint, p_keys text[], p_limits forebay.queue_limits, p_at timestamptz)
returns forebay._limit_state[]
language plpgsql stable  -- In SQL it would be planned at each call.
set enable_nestloop = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
    -- A variable: the planner does not trust a sequence, and would read the table for each key.
    v_queue constant text := case when pg_sequence_last_value('forebay.key_limits_seq') is not null then p_limits.queue end;
begin
    return (
    with last as materialized (
        select k.key, k.nr, t.*, coalesce(o.rate, p_limits.key_rate) as rate,
               case when o.rate is null then p_limits.key_burst else o.burst end as burst,
               coalesce(o.concurrency, p_limits.key_concurrency) as concurrency, o.no as own_no, o.set_at, o.empty_until,
               t.limits_no is distinct from o.no as has_new_limits
        from unnest(p_keys) with ordinality k (key, nr)
        left join lateral (select * from forebay.limit_run i
                           where i.group_id = p_group_id and i.limit_key = k.key
                           order by i.no desc limit 1) t on true
        left join lateral (select * from forebay.key_limits i
                           where v_queue is not null and i.queue = v_queue and i.key = k.key offset 0) o on true
    ), listed as materialized (
        select l.nr, u.lease_id, u.claim_no, u.place, u.ordinality as job
        from last l cross join lateral unnest(l.leases, l.claims, l.offsets) with ordinality u (lease_id, claim_no, place, ordinality)
        union all
        select l.nr, l.lease_id, l.claim_no, o::smallint, 1000000 + o
        from last l cross join lateral generate_series(l.place, l.place + l.jobs - 1) o
        where l.concurrency is not null
        union all
        select l.nr, b.lease_id, b.claim_no, u.place::smallint, 2000000 + u.place
        from (select i.bare_leases, i.bare_claims from forebay.limiter i where i.group_id = p_group_id order by i.no desc limit 1) g
        cross join lateral unnest(g.bare_leases, g.bare_claims) o (lease_id, claim_no)
        cross join lateral (select i.lease_id, i.claim_no, i.limit_keys from forebay.batch i
                            where i.lease_id = o.lease_id and i.claim_no = o.claim_no offset 0) b
        cross join lateral unnest(b.limit_keys) with ordinality u (key, place)
        join last l on l.key = u.key
        where l.concurrency is not null
        union all
        select l.nr, i.lease_id, i.claim_no, u.place::smallint, 3000000 + u.place
        from (select p_group_id as group_id from last c where c.has_new_limits and c.own_no is not null and c.concurrency is not null limit 1) g
        cross join lateral forebay._in_flight(g.group_id) i
        cross join lateral unnest(i.limit_keys) with ordinality u (key, place)
        join last l on l.key = u.key
        where l.has_new_limits and l.own_no is not null and l.concurrency is not null
    ), flight as materialized (
        select u.nr, u.lease_id, u.claim_no, u.place, min(u.job) as job from listed u group by u.nr, u.lease_id, u.claim_no, u.place
    ), flush as materialized (
        select b.lease_id, b.claim_no, s.offsets
        from (select distinct f.lease_id, f.claim_no from flight f) b
        cross join lateral (select i.offsets from forebay.settlement i
                            where i.lease_id = b.lease_id and i.claim_no = b.claim_no offset 0) s
    ), ended as materialized (
        select f.lease_id, f.claim_no, u.place from flush f, unnest(f.offsets) u (place)
    ), open as materialized (
        select f.nr, count(*) as jobs, array_agg(f.lease_id order by f.job) as leases, array_agg(f.claim_no order by f.job) as claims,
               array_agg(f.place order by f.job) as offsets
        from flight f
        -- A batch that was removed ended long ago.
        where exists (select from forebay.batch b where b.lease_id = f.lease_id and b.claim_no = f.claim_no)
          and not exists (select from flush w where w.lease_id = f.lease_id and w.claim_no = f.claim_no and w.offsets is null)
          and not exists (select from ended e where e.lease_id = f.lease_id and e.claim_no = f.claim_no and e.place = f.place)
        group by f.nr
    )
    select array_agg(
        row(l.key, coalesce(l.no, 0), coalesce(l.turn, 0), coalesce(l.waiting, 0), coalesce(l.parked_up_to, 0),
            coalesce(l.taken_up_to, 0), coalesce(l.taken_seq, 0), coalesce(l.taken_jobs, 0), coalesce(l.is_full, false), b.tat,
            coalesce(o.leases, '{}'), coalesce(o.claims, '{}'), coalesce(o.offsets, '{}'),
            least(coalesce(l.concurrency - coalesce(o.jobs, 0), 9223372036854775807), b.tokens), b.tokens,
            l.rate, l.burst, l.concurrency, l.own_no, l.has_new_limits)::forebay._limit_state
        order by l.nr)
    from last l
    left join open o on o.nr = l.nr
    cross join lateral (
        select t.tat, forebay._permits(t.tat, l.rate, l.burst, p_at) as tokens
        -- A clock that was set back moves the bucket; a rate that was set since bounds what it owes.
        from (select case when l.has_new_limits and l.empty_until is not null
                          then l.empty_until + make_interval(secs => (coalesce(l.burst, ceil(l.rate)) - 1) / l.rate)
                          when l.has_new_limits then forebay._tat_within(l.tat, l.rate, l.burst, coalesce(l.set_at, p_at))
                          when l.decided_at < p_limits.starts_set_at then forebay._tat_within(l.tat, l.rate, l.burst, p_limits.starts_set_at)
                          when l.decided_at > p_at then l.tat - (l.decided_at - p_at)
                          else l.tat end as tat offset 0) t) b);
end
$$;


-- The states of the limit keys that a claim met, in the order of the keys, under the lock of the group's limiter; and which of them are
-- paused, with the end of each pause, null for none. A paused key has no permit.
create function forebay._limits_met(
    p_group_id bigint, p_queue text, p_keys text[], v forebay._limiter_view,
    out states forebay._limit_state[], out paused text[], out ends timestamptz[])
language plpgsql volatile
set enable_nestloop = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
begin
    paused := '{}';
    ends := '{}';
    states := forebay._limit_states(p_group_id, p_keys, v.limits, v.at);
    if pg_sequence_last_value('forebay.key_pause_seq') is not null then
        -- A later statement than the one that read the lanes: it sees the call that appended a recheck row that was read.
        select p.keys, p.ends into paused, ends from forebay._paused_keys(p_queue, 'limit', p_keys, v.at) p;
        for v_nr in 1 .. cardinality(states) loop
            if states[v_nr].limit_key = any (paused) then
                states[v_nr].permits := 0;
                states[v_nr].tokens := 0;
            end if;
        end loop;
    end if;
end
$$;


-- Give the next turn to limit keys with parked jobs, after a claim: at once, or when their bucket has a token or their pause ends. A key
-- that is full (p_fills) gets it from a settlement, and a key that is paused without an end from the call that resumes it.
--
-- Invariant "no key is forgotten". Arrays belong together, except the last two: paused keys and the ends of their pauses. p_rates, p_bursts:
-- the rates of the keys, null for none.
create function forebay._give_turns(
    v forebay._limiter_view, p_queue text, p_priority integer, p_group_id bigint, p_keys text[], p_turns bigint[], p_fills boolean[],
    p_tokens bigint[], p_tats timestamptz[], p_rates double precision[], p_bursts integer[], p_paused text[], p_ends timestamptz[])
returns void
language plpgsql volatile
set enable_nestloop = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
    a         record;
    v_private bigint;
begin
    with again as materialized (
        select k.key, k.turn, k.fills,
               case when not k.fills and k.tokens > 0 then v.at
                    -- Until then a claim counts jobs in flight anew: one of them may end without a turn for the key.
                    when k.fills then case when v.seed_until >= v.at then v.seed_until + interval '0.1 seconds' end
                    when p.key is null then forebay._next_start(k.tat, k.rate, k.burst)
                    else p.ends end as at
        from unnest(p_keys, p_turns, p_fills, p_tokens, p_tats, p_rates, p_bursts) k (key, turn, fills, tokens, tat, rate, burst)
        left join unnest(p_paused, p_ends) p (key, ends) on p.key = k.key
    )
    select array_agg(i.key order by i.key) filter (where i.at = v.at) as now_keys,
           array_agg(i.turn order by i.key) filter (where i.at = v.at) as now_turns,
           array_agg(i.key order by i.key) filter (where i.at <> v.at) as later_keys,
           array_agg(i.turn order by i.key) filter (where i.at <> v.at) as later_turns,
           array_agg(i.at order by i.key) filter (where i.at <> v.at) as later_at
    into a
    from again i;
    if num_nonnulls(a.now_keys, a.later_keys) = 0 then
        return;
    end if;
    v_private := forebay._record_limited_lane(p_queue, p_priority, p_group_id);
    perform forebay._announce_limit_keys(v_private, a.now_keys, a.now_turns);
    insert into forebay.deferred (run_at, lane, enqueued_at, job_id, attempt, kind, args, limit_key)
    select u.at, v_private, v.at, 0, (u.turn & 2147483647)::integer, '', '{}', u.key
    from unnest(a.later_keys, a.later_turns, a.later_at) u (key, turn, at);
end
$$;


-- Pass the turns of limit keys on to ordering keys: a recheck row for each, with the number of the job that waits for the turn.
create function forebay._grant_turns(
    p_queue text, p_priority integer, p_group_id bigint, p_ordering_keys text[], p_limit_keys text[], p_seqs bigint[])
returns void
language plpgsql volatile
as $$
begin
    if p_ordering_keys <> '{}' then
        insert into forebay.log (lane, enqueued_at, kind, args, ordering_key, limit_key)
        select l.lane, forebay._now(), '', jsonb_build_object('seq', u.seq), u.ordering_key, u.limit_key
        from (select forebay._record_keyed_lane(p_queue, p_priority, p_group_id) as lane offset 0) l,
             unnest(p_ordering_keys, p_limit_keys, p_seqs) with ordinality u (ordering_key, limit_key, seq, nr)
        order by u.nr;
    end if;
end
$$;


-- Give limit keys a turn: append a recheck row for each. p_turns: the turns that they follow, null: whatever turn it is then.
create function forebay._announce_limit_keys(p_lane bigint, p_keys text[], p_turns bigint[]) returns void
language sql volatile
as $$
    insert into forebay.log (lane, enqueued_at, attempt, kind, args, limit_key)
    select p_lane, forebay._now(), (u.turn & 2147483647)::integer, '', '{}', u.key
    from unnest(p_keys, p_turns) with ordinality u (key, turn, nr) order by u.nr
$$;


-- Give a turn to all limit keys of a group that have parked jobs.
create function forebay._announce_waiting(p_group_id bigint) returns void
language sql volatile
as $$
    select forebay._announce_limit_keys(forebay._record_limited_lane(k.queue, k.priority, p_group_id), k.keys, null)
    from (select l.queue, l.priority, array_agg(w.limit_key order by w.limit_key) as keys
          from forebay._waiting_limit_keys(p_group_id) w
          cross join lateral (select p.lane from forebay.limit_parked p
                              where p.group_id = p_group_id and p.limit_key = w.limit_key and p.parked_no > coalesce(w.taken_up_to, 0)
                              order by p.parked_no limit 1) p
          cross join lateral (select i.queue, i.priority from forebay.lane i where i.lane = p.lane limit 1) l
          where pg_sequence_last_value('forebay.limit_parked_seq') is not null
          group by l.queue, l.priority) k
$$;


-- Give limit keys a turn when one of their jobs has ended, as far as jobs of them wait for that.
--
-- The states are read under the lock of the claims' decisions: a claim that parked a job by then is seen, and a later one sees this
-- settlement. A handler's transaction may be held open; it does not take that lock, and announces in any case, like a revocation.
--
-- Locks: the group's limiter (shared), with p_looks.
create function forebay._release_limits(p_lane bigint, p_group_id bigint, p_keys text[], p_looks boolean) returns void
language plpgsql volatile
as $$
declare
    v_lane record;
    v_keys text[] := array(select distinct k from unnest(p_keys) k where k is not null);
begin
    if v_keys <> '{}' and p_looks then
        perform forebay._lock_limiter(p_group_id, true);
        v_keys := array(
            select k.key
            from unnest(v_keys) k (key)
            cross join lateral (select i.waiting, i.is_full from forebay.limit_run i
                                where i.group_id = p_group_id and i.limit_key = k.key order by i.no desc limit 1) t
            where t.waiting > 0 and t.is_full);
    end if;
    if v_keys <> '{}' then
        select l.queue, l.priority into v_lane from forebay.lane l where l.lane = p_lane limit 1;
        perform forebay._announce_limit_keys(
            forebay._record_limited_lane(v_lane.queue, v_lane.priority, p_group_id), v_keys, null);
    end if;
end
$$;


-- functions/limits/take.sql

-- The claim of a lane of jobs with limit keys: the counterpart of forebay._take().
--
-- Invariants "no more at once", "no more per second" for each key, "even turns". The claim reads runs of jobs and recheck rows from the
-- public lane and the private lane, in the order of their numbers, until as many keys as jobs may be taken have had a turn. Each key
-- gets an even part. Jobs that it does not get are parked, and the key comes again at the end. A key with parked jobs is served
-- only when a recheck row of its present turn is read; newer jobs are parked behind.
--
-- While jobs of a key are parked, something gives it a turn: an unread recheck row, one scheduled for the time when its bucket has a
-- token, or, if it is full, the settlement of one of its jobs.
--
-- A paused key has no permit, and its jobs are parked. Its next turn comes from a recheck row for the end of the pause, or from the call
-- that resumes it.
--
-- A parked job with an ordering key too is not taken here: its key gets the turn, and a claim of its keyed lane takes the job.
--
-- A suspect is claimed alone from its lane. While its key is full it goes back to its lane, to return after a second; while the key is
-- paused, after ten.
create function forebay._take_limited(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer, v forebay._limiter_view)
returns forebay.log[]
language plpgsql volatile
set enable_nestloop = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_here    record;                    -- the lane of the claim
    v_suspect boolean;
    v_limit   integer := p_limit;
    v_cursors forebay._limit_cursor[];
    v_items   forebay._limit_item[];
    v_keys    text[];
    v_states  forebay._limit_state[];
    v_paused  text[] := '{}';            -- paused keys, and the ends of the pauses
    v_ends    timestamptz[] := '{}';
    v_plan    record;
    v_pieces  record;
    v_is_plain boolean := false;
    v_used    integer;                   -- how many of the items are used
    v_rows    forebay.log[];
    v_nrs     bigint[];
    v_taken   record;
    v_after   record;
    v_granted record;                    -- pieces of jobs with ordering keys, as arrays
begin
    select l.queue, l.priority, l.audience into v_here from forebay.lane l where l.lane = p_lane limit 1;
    v_suspect := v_here.audience < 0;
    if v_suspect then
        v_limit := 1;
    end if;
    select c.cursors, c.items into v_cursors, v_items
    from forebay._read_limited(p_group_id, p_lane, v_here.queue, v_here.priority, v_suspect, v_limit + 20) c;
    if v_cursors is null then
        return '{}';  -- Paused.
    end if;
    if v_suspect and v_items <> '{}' then
        v_items := v_items[:1];
        v_cursors[1].is_more := v_cursors[1].is_more or v_items[1].jobs > 1;  -- The rest of the run.
        v_items[1].seq_to := v_items[1].seq;
        v_items[1].jobs := 1;
    end if;
    if cardinality(v_items) = 0 then
        perform forebay._move_limited(p_group_id, v_cursors, v_items, v.at);
        return '{}';
    end if;
    v_keys := array(select distinct i.limit_key from unnest(v_items) i);
    select m.states, m.paused, m.ends into v_states, v_paused, v_ends from forebay._limits_met(p_group_id, v_here.queue, v_keys, v) m;

    -- Nearly always no job of these keys waits, and all that is read may be taken.
    if not v_suspect then
        select array_agg(i.nr order by i.nr) as nrs, array_agg(i.lane order by i.nr) as lanes, array_agg(i.xid order by i.nr) as xids,
               array_agg(i.seq - 1 order by i.nr) as afters, array_agg(i.seq_to order by i.nr) as seqs_to, array_agg(i.jobs order by i.nr) as takes,
               max(i.ordinality)::integer as used,
               bool_and(i.jobs > 0 and s.waiting = 0 and s.permits >= i.of_key)
               and (max(i.ordinality) = cardinality(v_items) and not exists (select from unnest(v_cursors) c where c.is_more)
                    or max(i.of_key) <= greatest(1, v_limit / cardinality(v_keys))) as is_plain
        into v_pieces
        from (select u.*, row_number() over (order by u.key_at, u.ordinality) as nr, sum(u.jobs) over (partition by u.limit_key) as of_key
              from (select r.*, min(r.ordinality) over (partition by r.limit_key) as key_at, sum(r.jobs) over (order by r.ordinality) as up_to
                    from unnest(v_items) with ordinality r) u
              where u.up_to <= v_limit) i
        join unnest(v_states) s on s.limit_key = i.limit_key;
        if v_pieces.is_plain then
            v_used := v_pieces.used;
            select f.nrs, f.jobs into v_nrs, v_rows
            from forebay._fetch_limited(v_pieces.nrs, v_pieces.lanes, v_pieces.xids, v_pieces.afters, v_pieces.seqs_to, v_pieces.takes) f;
            v_is_plain := (select sum(forebay._job_bytes(r.args, r.headers)) from unnest(v_rows) r) < forebay._claim_bytes();
        end if;
    end if;

    select null::bigint[] as nrs, null::text[] as keys, null::text[] as limit_keys, null::bigint[] as seqs into v_granted;
    if not v_is_plain then
        -- How many items are used, and how many jobs each key gets: first an even part, then what is left in the order of the turns.
        with item as materialized (
            select i.jobs, i.turn, i.ordinality as pos, k.nr
            from unnest(v_items) with ordinality i
            join unnest(v_keys) with ordinality k (key, nr) on k.key = i.limit_key
        ), state as materialized (
            select s.ordinality as nr, case when v_suspect then 0 else s.waiting end as waiting, s.turn, greatest(s.permits, 0) as permits
            from unnest(v_states) with ordinality s
        ), met as materialized (
            select s.nr, s.waiting, s.permits,
                   min(i.pos) filter (where i.jobs = 0 and s.waiting > 0 and (i.turn is null or i.turn = s.turn & 2147483647)) as turn_at,
                   min(i.pos) filter (where i.jobs > 0) as first_at
            from state s join item i on i.nr = s.nr
            group by s.nr, s.waiting, s.permits
        ), cut as materialized (
            select coalesce((select c.at - 1
                             from (select case when m.waiting > 0 then m.turn_at else m.first_at end as at from met m where m.permits > 0) c
                             where c.at is not null order by c.at offset v_limit limit 1), cardinality(v_items))::integer as at
        ), wish as materialized (
            select m.nr, coalesce(m.turn_at <= c.at, false) as has_turn, least(coalesce(m.turn_at, m.first_at), coalesce(m.first_at, m.turn_at)) as at,
                   least(m.permits, case when m.waiting = 0 then coalesce(n.jobs, 0)
                                         when m.turn_at <= c.at then m.waiting + coalesce(n.jobs, 0) else 0 end) as jobs
            from met m cross join cut c
            left join lateral (select sum(i.jobs) as jobs from item i where i.nr = m.nr and i.pos <= c.at) n on true
        ), part as materialized (
            select w.nr, w.jobs, w.at, least(w.jobs, q.quota) as first
            from wish w, (select greatest(1, v_limit / greatest(1, count(*) filter (where u.jobs > 0))) as quota from wish u) q
        ), given as materialized (
            select p.nr, p.first + least(p.jobs - p.first, greatest(0, v_limit - sum(p.first) over ()
                - coalesce(sum(p.jobs - p.first) over (order by p.at, p.nr rows between unbounded preceding and 1 preceding), 0))) as jobs, p.at
            from part p
        )
        select (select c.at from cut c) as used,
               (select array_agg(g.jobs::bigint order by g.nr) from given g) as jobs,
               (select array_agg(g.at order by g.nr) from given g) as places,
               (select array_agg(w.has_turn order by w.nr) from wish w) as has_turn
        into v_plan;

        -- The pieces of runs to take: of each key its parked ones, then those just read.
        with key as materialized (
            select k.nr, k.jobs, k.at, k.has_turn, s.limit_key, s.parked_up_to, s.taken_up_to, s.taken_seq, s.taken_jobs
            from unnest(v_plan.jobs, v_plan.places, v_plan.has_turn) with ordinality k (jobs, at, has_turn, nr)
            join unnest(v_states) with ordinality s on s.ordinality = k.nr
            where k.jobs > 0
        ), piece as (
            select k.nr, k.jobs as most, k.at, 1 as class, p.parked_no as place, p.lane, p.xid,
                   case when p.is_first then greatest(p.seq - 1, k.taken_seq) else p.seq - 1 end as after, p.seq_to,
                   p.jobs - case when p.is_first then k.taken_jobs else 0 end as jobs, p.ordering_key
            from key k cross join lateral (
                select i.*, row_number() over (order by i.parked_no) = 1 as is_first
                from forebay.limit_parked i
                where i.group_id = p_group_id and i.limit_key = k.limit_key and i.parked_no > k.taken_up_to and i.parked_no <= k.parked_up_to
                order by i.parked_no limit k.jobs) p
            where k.has_turn
            union all
            select k.nr, k.jobs, k.at, 2, i.ordinality, i.lane, i.xid, i.seq - 1, i.seq_to, i.jobs, null
            from key k join unnest(v_items) with ordinality i on i.limit_key = k.limit_key
            where i.jobs > 0 and i.ordinality <= v_plan.used
        ), chosen as materialized (
            select p.*, row_number() over (order by p.at, p.nr, p.class, p.place) as piece_no, least(p.jobs, p.most - p.before) as take
            from (select q.*, coalesce(sum(q.jobs) over (partition by q.nr order by q.class, q.place rows between unbounded preceding and 1 preceding), 0) as before
                  from piece q) p
            where p.before < p.most
        )
        select coalesce(array_agg(c.piece_no order by c.piece_no), '{}') as nrs, array_agg(c.nr order by c.piece_no) as keys,
               array_agg(c.class order by c.piece_no) as classes, array_agg(c.place order by c.piece_no) as places,
               array_agg(c.lane order by c.piece_no) as lanes, array_agg(c.xid order by c.piece_no) as xids,
               array_agg(c.after order by c.piece_no) as afters, array_agg(c.seq_to order by c.piece_no) as seqs_to,
               array_agg(c.jobs::bigint order by c.piece_no) as jobs, array_agg(c.take::bigint order by c.piece_no) as takes,
               coalesce(array_agg(c.ordering_key order by c.piece_no), '{}') as ordering_keys
        into v_pieces
        from chosen c;
        v_used := v_plan.used;
        select array_agg(u.nr) as nrs, array_agg(u.ordering_key) as keys, array_agg(v_keys[u.key]) as limit_keys, array_agg(u.seq) as seqs
        into v_granted
        from unnest(v_pieces.nrs, v_pieces.ordering_keys, v_pieces.keys, v_pieces.seqs_to) u (nr, ordering_key, key, seq)
        where u.ordering_key is not null;
        select f.nrs, f.jobs into v_nrs, v_rows
        from (select array_agg(u.nr) as nrs, array_agg(u.lane) as lanes, array_agg(u.xid) as xids, array_agg(u.after) as afters,
                     array_agg(u.seq_to) as seqs_to, array_agg(u.take) as takes
              from unnest(v_pieces.nrs, v_pieces.lanes, v_pieces.xids, v_pieces.afters, v_pieces.seqs_to, v_pieces.takes, v_pieces.ordering_keys)
                   u (nr, lane, xid, after, seq_to, take, ordering_key)
              where u.ordering_key is null) u
        cross join lateral forebay._fetch_limited(u.nrs, u.lanes, u.xids, u.afters, u.seqs_to, u.takes) f;
    end if;

    -- What becomes of each job. A claim ends with the job that brings their texts to the limit.
    with job as materialized (
        select r.piece_no, r.job, coalesce((r.job).seq, r.seq) as seq, (r.job).xid, (r.job).lane, coalesce((r.job).limit_key, r.limit_key) as limit_key, r.ordering_key,
               case when r.ordering_key is not null then 'o' when n.reason = 'm' then 'm' when n.reason in ('c', 'r') then 'c' when n.reason = 'e' then 'E'
                    when coalesce((r.job).expires_at, (r.job).enqueued_at + interval '30 days') <= v.at then 'e' end as verdict,
               sum(case when r.ordering_key is null then forebay._job_bytes((r.job).args, (r.job).headers) else 0 end) over (o rows between unbounded preceding and 1 preceding) as before
        from (select unnest(v_nrs) as piece_no, unnest(v_rows) as job, null::text as ordering_key, null::bigint as seq, null::text as limit_key
              union all
              -- Of a job with an ordering key too: the key gets the turn, the job is not taken here.
              select u.nr, null, u.key, u.seq, u.limit_key
              from unnest(v_granted.nrs, v_granted.keys, v_granted.seqs, v_granted.limit_keys) u (nr, key, seq, limit_key)) r
        left join lateral (
            select i.reason from forebay.tombstone i
            where pg_sequence_last_value('forebay.tombstone_seq') is not null and i.job_id = coalesce((r.job).job_id, (r.job).seq)
              and (i.group_id is null or i.group_id = p_group_id) and i.reason <> 'k' and (i.reason <> 'm' or (r.job).seq <= i.up_to)
            order by i.reason = 'm' desc, i.reason = 'e' desc limit 1) n on true
        window o as (order by r.piece_no, coalesce((r.job).seq, r.seq))
    ), kept as materialized (
        select j.*, l.priority, row_number() over (partition by j.verdict is null order by j.piece_no, j.seq)::smallint as place
        from job j
        left join (select distinct i.lane, i.priority from forebay.lane i where i.queue = v_here.queue and i.sort = 'limited') l on l.lane = j.lane
        where coalesce(j.before, 0) < forebay._claim_bytes()
    ), piece as materialized (
        select k.piece_no, count(*) as jobs, max(k.seq) as seq from kept k group by k.piece_no
    ), run as materialized (
        -- The jobs of a key follow one another.
        select k.limit_key, count(*) as jobs, min(k.place) as first, min(k.seq) as low, max(k.seq) as high
        from kept k where k.verdict is null group by k.limit_key
    )
    select (select array_agg(k.seq order by k.place) from kept k where k.verdict is null) as seqs,
           (select array_agg(k.xid order by k.place) from kept k where k.verdict is null) as xids,
           (select array_agg(k.lane order by k.place) from kept k where k.verdict is null) as lanes,
           (select array_agg(k.limit_key order by k.place) from kept k where k.verdict is null) as keys,
           (select array_agg(k.job order by k.place) from kept k where k.verdict is null) as jobs,
           (select array_agg(k.seq order by k.place) from kept k where k.verdict <> 'o') as skipped,
           (select array_agg(lower(k.verdict)::"char" order by k.place) from kept k where k.verdict <> 'o') as skipped_as,
           array(select k.ordering_key from kept k where k.verdict = 'o' order by k.place) as granted_keys,
           array(select k.limit_key from kept k where k.verdict = 'o' order by k.place) as granted_limits,
           array(select k.seq from kept k where k.verdict = 'o' order by k.place) as granted_seqs,
           (select array_agg(forebay._write_dead_letter(p_group_id, v_here.queue, v_here.priority, k.job, 'expired',
                                                        coalesce((k.job).attempt, 0)) order by k.place)
            from kept k where k.verdict = 'e') as dead,
           -- Moved ones, and those that the sweep has expired, were counted by these.
           (select count(*) from kept k where k.verdict is null and k.priority = v_here.priority) as counted,
           (select count(*) from kept k where k.verdict in ('c', 'e') and k.priority = v_here.priority) as counted_skipped,
           (select count(forebay._record_skipped(v_here.queue, p_group_id, k.priority, k.jobs))
            from (select i.priority, count(*)::integer as jobs from kept i
                  where i.priority <> v_here.priority and coalesce(i.verdict, 'c') in ('c', 'e') group by i.priority) k) as others,
           (select max(k.seq) from kept k) as high,
           array(select r.limit_key from run r order by r.limit_key) as run_keys,
           array(select r.jobs from run r order by r.limit_key) as run_jobs,
           array(select r.first from run r order by r.limit_key) as run_firsts,
           array(select r.low from run r order by r.limit_key) as run_lows,
           array(select r.high from run r order by r.limit_key) as run_highs,
           array(select p.piece_no from piece p order by p.piece_no) as kept_nrs,
           array(select p.jobs from piece p order by p.piece_no) as kept_jobs,
           array(select p.seq from piece p order by p.piece_no) as kept_seqs
    into v_taken;
    if v_taken.dead is not null then
        perform forebay._report_deaths(v_taken.dead);
    end if;
    if v_taken.seqs is not null and pg_sequence_last_value('forebay.tombstone_seq') is not null then
        perform forebay._follow_up(v_taken.jobs, p_group_id);
    end if;

    if v_suspect then
        if v_pieces.nrs = '{}' then
            perform forebay._continue_job(r, r.lane, coalesce(r.attempt, 0), coalesce(r.pauses, 0),
                                          v.at + case when v_items[1].limit_key = any (v_paused) then interval '10 seconds' else interval '1 second' end)
            from forebay._row(v_items[1].lane, v_items[1].xid, v_items[1].seq) r;
            perform forebay._record_skipped(v_here.queue, p_group_id, v_here.priority, 1);
        end if;
        v_plan.used := 0;  -- Nothing is parked, whatever comes.
    end if;
    if v_is_plain then
        insert into forebay.limit_run (
            group_id, limit_key, no, lease_id, claim_no, place, jobs, high_seq, is_full, tat, decided_at, turn, parked_up_to, taken_up_to, leases,
            claims, offsets, limits_no)
        select p_group_id, r.key, s.no + 1, p_lease_id, p_claim_no, r.first, r.jobs::smallint, r.high, false,
               forebay._tat_after(s.tat, s.rate, v.at, r.jobs::integer), case when s.rate is not null then v.at end,
               nullif(s.turn, 0), nullif(s.parked_up_to, 0), nullif(s.taken_up_to, 0), nullif(s.leases, '{}'), nullif(s.claims, '{}'),
               nullif(s.offsets, '{}'), s.limits_no
        from unnest(v_taken.run_keys, v_taken.run_jobs, v_taken.run_firsts, v_taken.run_highs) r (key, jobs, first, high)
        join unnest(v_states) s on s.limit_key = r.key
        where s.rate is not null or s.has_new_limits or s.concurrency is not null and not v.is_bare;
    else
        with piece as materialized (
            select p.key, p.class, p.place, p.jobs, coalesce(k.jobs, 0) as kept, k.seq,
                   row_number() over (partition by p.key, p.class order by p.place) = 1 as is_first
            from unnest(v_pieces.nrs, v_pieces.keys, v_pieces.classes, v_pieces.places, v_pieces.jobs) p (piece_no, key, class, place, jobs)
            left join unnest(v_taken.kept_nrs, v_taken.kept_jobs, v_taken.kept_seqs) k (piece_no, jobs, seq) on k.piece_no = p.piece_no
        ), parking as (
            insert into forebay.limit_parked (group_id, limit_key, lane, xid, seq, seq_to, jobs)
            select p_group_id, i.limit_key, i.lane, i.xid, coalesce(p.seq + 1, i.seq), i.seq_to, i.jobs - coalesce(p.kept, 0)
            from unnest(v_items) with ordinality i
            left join piece p on p.class = 2 and p.place = i.ordinality
            where i.jobs > coalesce(p.kept, 0) and i.ordinality <= v_plan.used
            order by i.ordinality
            returning limit_key, parked_no, jobs
        ), parked as materialized (
            select p.limit_key, max(p.parked_no) as last, sum(p.jobs) as jobs from parking p group by p.limit_key
        ), progress as materialized (
            select p.key, sum(p.kept) as jobs, max(p.place) filter (where p.kept = p.jobs) as whole,
                   max(p.seq) filter (where p.kept between 1 and p.jobs - 1) as seq,
                   max(p.kept) filter (where p.kept between 1 and p.jobs - 1) as rest,
                   coalesce(bool_or(p.is_first) filter (where p.kept between 1 and p.jobs - 1), false) as is_first
            from piece p where p.class = 1 group by p.key
        ), next as materialized (
            -- A key that waits and has no turn stays as it is; its newer jobs were parked behind.
            select s.limit_key, s.no, s.turn, s.waiting, s.is_full, s.leases, s.claims, s.offsets, s.parked_up_to,
                   s.waiting > 0 and not w.has_turn or v_suspect as is_behind, coalesce(r.jobs, 0)::integer as run, r.first, r.low, r.high,
                   d.last, d.jobs as newly, g.jobs as went, coalesce(o.jobs, 0)::integer as granted, s.waiting - coalesce(g.jobs, 0) + coalesce(d.jobs, 0) as left,
                   coalesce(g.whole, s.taken_up_to) as up_to,
                   case when g.seq is not null then g.seq when g.whole is not null then 0 else s.taken_seq end as seq,
                   case when g.seq is not null then g.rest + case when g.is_first then s.taken_jobs else 0 end
                        when g.whole is not null then 0 else s.taken_jobs end as jobs,
                   case when r.jobs > 0 then forebay._tat_after(s.tat, s.rate, v.at, r.jobs::integer) else s.tat end as tat,
                   s.tokens - coalesce(r.jobs, 0) - coalesce(o.jobs, 0) as tokens,
                   coalesce(cardinality(s.leases) + coalesce(r.jobs, 0) + coalesce(o.jobs, 0) >= s.concurrency, false) as fills,
                   s.rate, s.burst, s.concurrency, s.limits_no, s.has_new_limits
            from unnest(v_states) with ordinality s
            join unnest(v_plan.has_turn) with ordinality w (has_turn, nr) on w.nr = s.ordinality
            left join unnest(v_taken.run_keys, v_taken.run_jobs, v_taken.run_firsts, v_taken.run_lows, v_taken.run_highs) r (key, jobs, first, low, high)
                   on r.key = s.limit_key
            left join parked d on d.limit_key = s.limit_key
            left join progress g on g.key = s.ordinality
            left join (select u as key, count(*) as jobs from unnest(v_taken.granted_limits) u group by u) o on o.key = s.limit_key
        ), written as (
            insert into forebay.limit_run (
                group_id, limit_key, no, lease_id, claim_no, place, jobs, high_seq, low_seq, turn, waiting, parked_up_to, taken_up_to, taken_seq,
                taken_jobs, is_full, tat, decided_at, leases, claims, offsets, limits_no)
            select p_group_id, n.limit_key, n.no + 1,
                   case when n.run > 0 then p_lease_id end, case when n.run > 0 then p_claim_no end, n.first, nullif(n.run, 0)::smallint,
                   coalesce(n.high, 0), n.low, nullif(n.turn + case when n.is_behind then 0 else 1 end, 0), nullif(n.left, 0),
                   nullif(coalesce(n.last, n.parked_up_to), 0), nullif(n.up_to, 0), nullif(n.seq, 0), nullif(n.jobs, 0),
                   case when n.is_behind then n.is_full else n.left > 0 and n.fills end, n.tat, case when n.tat is not null then v.at end,
                   nullif(n.leases, '{}'), nullif(n.claims, '{}'), nullif(n.offsets, '{}'), n.limits_no
            from next n
            where n.newly > 0 or n.went > 0 or n.waiting > 0 and not n.is_behind
               or n.run > 0 and (n.rate is not null or n.has_new_limits or n.concurrency is not null and not v.is_bare)
            returning limit_key, turn
        )
        select array_agg(w.limit_key order by w.limit_key) as keys, array_agg(w.turn order by w.limit_key) as turns,
               array_agg(n.fills order by w.limit_key) as fills, array_agg(n.tokens order by w.limit_key) as tokens,
               -- A key with an ordering key that got the turn takes its job soon.
               array_agg(case when n.granted > 0 then forebay._tat_after(n.tat, n.rate, v.at, n.granted) else n.tat end
                         order by w.limit_key) as tats,
               array_agg(n.rate order by w.limit_key) as rates, array_agg(n.burst order by w.limit_key) as bursts
        into v_after
        from written w join next n on n.limit_key = w.limit_key
        where n.left > 0 and not n.is_behind;
        perform forebay._grant_turns(v_here.queue, v_here.priority, p_group_id, v_taken.granted_keys, v_taken.granted_limits, v_taken.granted_seqs);
        perform forebay._give_turns(v, v_here.queue, v_here.priority, p_group_id, v_after.keys, v_after.turns, v_after.fills, v_after.tokens,
                                    v_after.tats, v_after.rates, v_after.bursts, v_paused, v_ends);
    end if;

    v_items := v_items[:case when v_suspect then 1 else v_used end];
    if v_taken.seqs is null and v_taken.skipped is null then
        perform forebay._move_limited(p_group_id, v_cursors, v_items, v.at);
        return '{}';
    end if;
    perform forebay._move_limited(p_group_id, array(select c from unnest(v_cursors) c where c.lane <> p_lane), v_items, v.at);
    insert into forebay.batch (
        group_id, lane, no, lease_id, claim_no, floor, snap_from, snap_to, pos_segment, pos_xid, pos_seq, high_seq,
        handed_total, skipped_total, claimed_at, seqs, xids, skipped, skipped_as, lanes, limit_keys)
    select p_group_id, p_lane, p.no + 1,
           case when v_taken.seqs is not null then p_lease_id end, case when v_taken.seqs is not null then p_claim_no end, p_floor,
           p.snap_from, p.snap_to, p.pos_segment, p.pos_xid, p.pos_seq, greatest(p.high_seq, v_taken.high),
           p.handed_total + v_taken.counted, p.skipped_total + v_taken.counted_skipped, v.at, v_taken.seqs,
           case when v_taken.xids[1] = all (v_taken.xids) then v_taken.xids[:1] else v_taken.xids end, v_taken.skipped, v_taken.skipped_as,
           case when exists (select from unnest(v_taken.lanes) l where l <> p_lane) then v_taken.lanes end, v_taken.keys
    from (select from forebay.lease i
          where i.lease_id = p_lease_id and i.closed_at is null
          for key share) held,
         forebay._limited_positions(array(select c from unnest(v_cursors) c where c.lane = p_lane), v_items) p;
    if not found then
        raise exception using errcode = 'JQ010',
            message = format('lease %s is closed', p_lease_id),
            detail = jsonb_build_object('lease', p_lease_id),
            hint = 'Its jobs were given to other workers. Open a new lease.';
    end if;
    return coalesce(v_taken.jobs, '{}');
end
$$;


-- functions/limits/token_bucket.sql

-- How many jobs a bucket lets start now: the burst, minus what it owes.
--
-- A bucket is one time, at which it will be full again: the "generic cell rate algorithm" (ITU-T I.371), which needs no
-- updates between two claims.
create function forebay._permits(p_tat timestamptz, p_rate double precision, p_burst integer, p_at timestamptz) returns bigint
language sql immutable
as $$
    select case when p_rate is null then 9223372036854775807
                else greatest(0, floor(coalesce(p_burst, ceil(p_rate))
                                       - greatest(0, coalesce(date_part('epoch', p_tat - p_at), 0)) * p_rate + 1e-6))::bigint end
$$;


-- The bucket after p_count more starts.
create function forebay._tat_after(p_tat timestamptz, p_rate double precision, p_at timestamptz, p_count integer) returns timestamptz
language sql immutable
as $$ select case when p_rate is not null then greatest(p_tat, p_at) + make_interval(secs => p_count / p_rate) end $$;


-- The bucket under a rate set at p_at: it owed no more then than it can hold.
create function forebay._tat_within(p_tat timestamptz, p_rate double precision, p_burst integer, p_at timestamptz) returns timestamptz
language sql immutable
as $$
    select case when p_rate is not null and p_tat is not null
                then least(p_tat, p_at + make_interval(secs => coalesce(p_burst, ceil(p_rate)) / p_rate)) end
$$;


-- functions/limits/trim.sql

-- Delete parked rows of limit keys whose jobs have been taken, and what claims decided about keys when it is no longer needed: not the
-- newest decision about a key that says more than nothing, or about jobs that did not leave the archive.
create function forebay._trim_limit_runs(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_key   record;
    v_first bigint;
    v_gone  bigint;
    v_keys  integer := 0;
    v_stay  text := p_after;
    v_before text := p_after;  -- the key before
begin
    rows := 0;
    if pg_sequence_last_value('forebay.limiter_seq') is null then
        return;
    end if;
    select coalesce(min(s.lo), 0) into v_first from forebay.segment s where s.removed_at is null;
    for v_key in
        with recursive key as (
            (select t.group_id, t.limit_key, 1 as nr from forebay.limit_run t
             where (t.group_id, t.limit_key) > (coalesce((p_after::jsonb ->> 0)::bigint, -9223372036854775808), coalesce(p_after::jsonb ->> 1, ''))
             order by t.group_id, t.limit_key limit 1)
            union all
            select n.group_id, n.limit_key, k.nr + 1
            from key k, lateral (
                select t.group_id, t.limit_key from forebay.limit_run t
                where (t.group_id, t.limit_key) > (k.group_id, k.limit_key)
                order by t.group_id, t.limit_key limit 1) n
            where k.nr < p_most
        )
        select k.group_id, k.limit_key, t.no, coalesce(t.taken_up_to, 0) as taken_up_to, coalesce(t.waiting, 0) = 0 and coalesce(t.tat <= forebay._now(), true) as is_idle, t.leases || t.lease_id as leases, t.claims || t.claim_no as claims,
               -- Most keys have nothing to delete.
               exists (select from forebay.limit_parked p
                       where p.group_id = k.group_id and p.limit_key = k.limit_key and p.parked_no <= coalesce(t.taken_up_to, 0))
               or v_first > (select o.high_seq from forebay.limit_run o
                             where o.group_id = k.group_id and o.limit_key = k.limit_key order by o.no limit 1) as is_due,
               -- The newest row has the state of the key. One that took no job has no numbers, and would go before these.
               exists (select from forebay.limit_run o
                       where o.group_id = k.group_id and o.limit_key = k.limit_key and o.no < t.no and o.high_seq >= v_first) as has_older
        from key k
        cross join lateral (select * from forebay.limit_run i
                            where i.group_id = k.group_id and i.limit_key = k.limit_key order by i.no desc limit 1) t
    loop
        v_keys := v_keys + 1;
        v_stay := jsonb_build_array(v_key.group_id, v_key.limit_key);
        if not v_key.is_due and v_keys + rows < p_most then
            v_before := v_stay;
            continue;
        end if;
        with parked as (
            delete from forebay.limit_parked p
            where p.ctid = any (array(
                select o.ctid from forebay.limit_parked o
                where o.group_id = v_key.group_id and o.limit_key = v_key.limit_key and o.parked_no <= v_key.taken_up_to
                order by o.parked_no limit p_most))
            returning 1
        ), runs as (
            delete from forebay.limit_run t
            where t.ctid = any (array(
                select o.ctid from forebay.limit_run o
                where o.group_id = v_key.group_id and o.limit_key = v_key.limit_key and o.high_seq < v_first
                  and (o.no < v_key.no
                       or v_key.is_idle and not v_key.has_older and not exists (
                           select from unnest(v_key.leases, v_key.claims) f (lease_id, claim_no)
                           join forebay.lease e on e.lease_id = f.lease_id and e.closed_at is null
                           join forebay.batch b on b.lease_id = f.lease_id and b.claim_no = f.claim_no
                           where b.high_seq >= v_first))
                order by o.no limit p_most))
            returning 1
        )
        select (select count(*) from parked) + (select count(*) from runs) into v_gone;
        rows := rows + v_gone;
        if v_gone >= p_most then  -- The key may have more.
            next := coalesce(v_before, '[]');
            return;
        end if;
        v_before := v_stay;
        if v_keys + rows >= p_most then
            next := v_stay;
            return;
        end if;
    end loop;
end
$$;


-- Delete rows of limiters behind the newest ones.
create function forebay._trim_limiters(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_group bigint := coalesce((p_after::jsonb ->> 0)::bigint, -9223372036854775808);
    v_no    bigint := coalesce((p_after::jsonb ->> 1)::bigint, -1);
    v_next  record;
    v_end   bigint;
    v_left  bigint := p_most;
    v_gone  bigint;
begin
    rows := 0;
    if pg_sequence_last_value('forebay.limiter_seq') is null then
        return;
    end if;
    while v_left > 0 loop
        select g.group_id, g.no into v_next from forebay.limiter g
        where (g.group_id, g.no) > (v_group, v_no) order by g.group_id, g.no limit 1;
        if not found then
            return;
        end if;
        v_group := v_next.group_id;
        v_end := least(v_next.no + v_left, (select g.no from forebay.limiter g where g.group_id = v_group order by g.no desc limit 1) - 10);
        v_left := v_left - 1;
        if v_next.no >= v_end then
            v_no := 9223372036854775807;
            continue;
        end if;
        delete from forebay.limiter g where g.group_id = v_group and g.no >= v_next.no and g.no < v_end;
        get diagnostics v_gone = row_count;
        rows := rows + v_gone;
        v_left := v_left - v_gone;
        v_no := v_end - 1;
    end loop;
    next := jsonb_build_array(v_group, v_no);
end
$$;


-- functions/limits/window.sql

-- Runs of jobs with limit keys of one lane in a window, after a position; see forebay._window(). is_more: there may be more.
create function forebay._window_limited(
    p_lane bigint, p_ranges forebay._xid_range[], p_pos_segment bigint, p_pos_xid xid8, p_pos_seq bigint, p_most integer,
    p_unsealed bigint[], p_last_seal xid8, out items forebay._limit_item[], out looked integer, out is_more boolean)
language plpgsql volatile
as $$
declare
    v_needed  bigint[] := p_unsealed;
    v_piece   forebay._limit_item[];
    v_last    forebay._limit_item;
    v_segment bigint;
    v_xid     xid8;
    v_seq     bigint;
    v_rounds  integer := 0;
begin
    items := '{}';
    looked := 0;
    is_more := false;
    if p_last_seal > p_ranges[1].low then
        v_needed := array(
            select s.segment_id from forebay.seal s join forebay.segment i using (segment_id)
            where s.segment_id >= p_pos_segment and i.removed_at is null
              and s.segment_id <> all (p_unsealed)  -- Sealed since the caller looked: read once.
              and s.xid > p_ranges[1].low
            order by s.segment_id) || v_needed;
    end if;
    foreach v_segment in array v_needed loop
        continue when v_segment < p_pos_segment;
        looked := looked + 1;
        v_xid := case when v_segment = p_pos_segment then p_pos_xid else '0'::xid8 end;
        v_seq := case when v_segment = p_pos_segment then p_pos_seq else 0 end;
        loop
            -- Long runs are many rows and few items: what was read so far is enough then.
            is_more := cardinality(items) >= p_most or v_rounds >= greatest(4, 4000 / p_most);
            exit when is_more;
            execute 'select forebay._read_limited_' || v_segment || '($1, $2, $3, $4, $5, $6)'
                into v_piece using v_segment, p_lane, p_ranges, v_xid, v_seq, p_most;
            items := items || v_piece;
            -- Fewer jobs than were asked for: the segment has no more in the window.
            exit when (select coalesce(sum(greatest(u.jobs, 1)), 0) from unnest(v_piece) u) < p_most;
            v_rounds := v_rounds + 1;
            v_last := v_piece[cardinality(v_piece)];
            v_xid := v_last.xid;
            v_seq := v_last.seq_to;
        end loop;
        exit when is_more;
    end loop;
end
$$;


-- functions/maintenance/close_groups.sql

-- grant: worker, operator

-- Continue to close groups; returns how much was done. 0: nothing is left to do, or running jobs of a closing group must end first.
--
-- forebay.close_group() stops the claims that begin later. This function then
--   1. waits in each lane for a claim that began before, some lanes in each call: a claim holds the lock of its lane,
--   2. when no unsettled job of the group is in an open batch, deletes the group and its private lanes, in one transaction,
--   3. deletes the rows of the group, about p_most in each call.
-- After 2. no other function meets these rows: segments, depth and claims know only groups and lanes that exist. A crash between two
-- calls leaves the group in one of these states, and the next call continues.
--
-- Invariant "nothing lost": of the queue's only group the last cursors pass to an implied group: it begins where the closing began.
-- Parameters: p_most, 1 to 1000000.
-- Errors: JQ001 a bad number, JQ012 not called alone, JQ030 foreign cluster; 55P03 when another session holds a lock, try again.
-- Locks: the sweep's lock, and the locks of the lanes, or the lock of forgetting and the table queue_group, or the lock of trimming.
create function forebay.close_groups(p_most integer default 10000) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '2s'
as $$
declare
    v_group  forebay.queue_group;
    v_closed forebay.closed_group;
    v_lanes  bigint[];
    v_lane   bigint;
    v_done   bigint := 0;
begin
    if (p_most between 1 and 1000000) is not true then
        raise exception using errcode = 'JQ001', message = format('%s is outside 1 to 1000000', coalesce(p_most::text, 'null'));
    end if;
    perform forebay._require_alone('forebay.close_groups()');
    perform forebay._require_same_cluster();
    if not exists (select from forebay.queue_group g where g.closing_at is not null)
       and not exists (select from forebay.closed_group c where c.lanes is not null) then
        return 0;
    end if;
    -- Like the sweep it holds the locks of several lanes; only one of the two runs.
    if not forebay._try_lock('sweep') then
        return 0;
    end if;

    for v_group in select g.* from forebay.queue_group g where g.closing_at is not null order by g.group_id loop
        v_lanes := array(
            select distinct l.lane from forebay.lane l
            where l.queue = v_group.queue and l.audience in (0, v_group.group_id, -v_group.group_id)
              and l.lane > coalesce(v_group.fenced_lane, -9223372036854775808)
            order by l.lane limit 200);
        if v_lanes <> '{}' then
            foreach v_lane in array v_lanes loop
                perform forebay._lock_lane(v_group.group_id, v_lane);
            end loop;
            update forebay.queue_group g set fenced_lane = v_lanes[cardinality(v_lanes)] where g.group_id = v_group.group_id;
            return cardinality(v_lanes);
        end if;
        continue when exists (select from forebay._open_jobs() o where o.group_id = v_group.group_id);
        perform forebay._delete_group(v_group);
        return 1;
    end loop;

    -- Trimming deletes the same rows, in another order.
    lock table only forebay.lock_trim in share update exclusive mode;
    for v_closed in select c.* from forebay.closed_group c where c.lanes is not null order by c.group_id loop
        v_done := v_done + forebay._clear_group(v_closed.group_id, v_closed.lanes, p_most);
        exit when v_done >= p_most;
        update forebay.closed_group c set lanes = null where c.group_id = v_closed.group_id;
        v_done := v_done + 1;
    end loop;
    return v_done;
end
$$;


-- Delete a group and its private lanes. No claim of it runs, none can begin, and it has no open batch: no more rows are written
-- for it.
create function forebay._delete_group(v_group forebay.queue_group) returns void
language plpgsql volatile
as $$
declare
    v_lanes   bigint[];
    v_heir_id bigint;
begin
    lock table only forebay.lock_forgetting in share update exclusive mode;  -- It deletes cursors and adds them up, group by group.
    lock table forebay.queue_group in share row exclusive mode;
    delete from forebay.queue_group g where g.group_id = v_group.group_id;
    delete from forebay.forgotten f where f.group_id = v_group.group_id;
    with gone as (
        delete from forebay.lane l
        where l.queue = v_group.queue and l.audience in (v_group.group_id, -v_group.group_id)
        returning l.lane)
    select coalesce(array_agg(distinct n.lane), '{}') into v_lanes from gone n;
    insert into forebay.closed_group (group_id, queue, name, closed_at, lanes)
    values (v_group.group_id, v_group.queue, v_group.name, forebay._now(), v_lanes);
    v_heir_id := forebay._imply_group(v_group.queue, v_group.closing_snap);
    -- Where a claim read further than the snapshot of the closing, the implied group continues after it.
    insert into forebay.batch (
        group_id, lane, no, snap_from, snap_to, pos_segment, pos_xid, pos_seq, high_seq, handed_total, skipped_total, claimed_at,
        edge_from, low_from, edge_to, low_to)
    select v_heir_id, b.lane, 1, b.snap_from, b.snap_to, b.pos_segment, b.pos_xid, b.pos_seq, b.high_seq, 0, 0, b.claimed_at,
           b.edge_from, b.low_from, b.edge_to, b.low_to
    from (select distinct i.lane from forebay.lane i where i.queue = v_group.queue and i.audience = 0) l
    cross join lateral (select i.* from forebay.batch i
                        where i.group_id = v_group.group_id and i.lane = l.lane order by i.no desc limit 1) b
    cross join lateral (select coalesce(b.snap_to, b.snap_from) as snap) r
    where v_heir_id is not null
      and (pg_snapshot_xmax(r.snap) > pg_snapshot_xmax(v_group.closing_snap)
           or exists (select from pg_snapshot_xip(v_group.closing_snap) x where pg_visible_in_snapshot(x, r.snap)));
    execute format('drop sequence forebay.leader_%s', v_group.group_id);
end
$$;


-- Delete rows of a group that is gone; returns their number: fewer than p_most when none is left.
create function forebay._clear_group(p_group_id bigint, p_lanes bigint[], p_most integer) returns bigint
language plpgsql volatile
as $$
declare
    v_rows  bigint;
    v_total bigint;
begin
    with gone as (
        delete from forebay.batch b
        using (select i.lane, i.no from forebay.batch i where i.group_id = p_group_id order by i.lane, i.no limit p_most) o
        where b.group_id = p_group_id and b.lane = o.lane and b.no = o.no
        returning b.lease_id, b.claim_no),
    settled as (
        delete from forebay.settlement s using gone g
        where s.lease_id = g.lease_id and s.claim_no = g.claim_no returning 1),
    started as (
        delete from forebay.suspect_start s using gone g
        where s.lease_id = g.lease_id and s.claim_no = g.claim_no returning 1)
    select count(*) into v_total from gone;
    delete from forebay.deferred d
    where d.ctid = any (array(select i.ctid from forebay.deferred i where i.lane = any (p_lanes) limit p_most - v_total));
    get diagnostics v_rows = row_count;
    v_total := v_total + v_rows;
    delete from forebay.parked p
    where p.ctid = any (array(select i.ctid from forebay.parked i where i.group_id = p_group_id limit p_most - v_total));
    get diagnostics v_rows = row_count;
    v_total := v_total + v_rows;
    delete from forebay.key_run t
    where t.ctid = any (array(select i.ctid from forebay.key_run i where i.group_id = p_group_id limit p_most - v_total));
    get diagnostics v_rows = row_count;
    v_total := v_total + v_rows;
    delete from forebay.limit_parked p
    where p.ctid = any (array(select i.ctid from forebay.limit_parked i where i.group_id = p_group_id limit p_most - v_total));
    get diagnostics v_rows = row_count;
    v_total := v_total + v_rows;
    delete from forebay.limit_run t
    where t.ctid = any (array(select i.ctid from forebay.limit_run i where i.group_id = p_group_id limit p_most - v_total));
    get diagnostics v_rows = row_count;
    v_total := v_total + v_rows;
    delete from forebay.limiter g
    where g.ctid = any (array(select i.ctid from forebay.limiter i where i.group_id = p_group_id limit p_most - v_total));
    get diagnostics v_rows = row_count;
    v_total := v_total + v_rows;
    delete from forebay.queue_count c
    where c.ctid = any (array(select i.ctid from forebay.queue_count i where i.group_id = p_group_id limit p_most - v_total));
    get diagnostics v_rows = row_count;
    return v_total + v_rows;
end
$$;


-- functions/maintenance/count.sql

-- grant: worker

-- The queues with p_most waiting jobs or more. Workers call it regularly, and log them.
--
-- Errors: JQ030 foreign cluster.
-- pages: 1000 + 100 a lane + 4 an uncounted job
create function forebay.count_v1(p_most bigint default 1000000)
returns table (queue text, group_name text, waiting bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
    perform forebay._require_same_cluster();
    return query
    select w.queue, w.group_name, sum(u.ready + u.scheduled + u.retrying)::bigint
    from forebay._count_waiting(null) w cross join lateral unnest(w.ready, w.scheduled, w.retrying) u (ready, scheduled, retrying)
    where w.group_id <> 0
    group by w.queue, w.group_id, w.group_name
    having sum(u.ready + u.scheduled + u.retrying) >= p_most
    order by 1, 2;
end
$$;


-- functions/maintenance/drop_segments.sql

-- grant: worker

-- Drop the tables and functions of segments that were emptied a while ago; returns the number of segments.
--
-- Dropping a partition needs ACCESS EXCLUSIVE on the log, and an enqueue that comes meanwhile waits. So the lock is taken only
-- when it is free at once: a request that waits in the queue of a lock would stop all enqueues behind it. And p_most is small:
-- each segment takes about two milliseconds and the commit. While a session that used the log is in a transaction, nothing is
-- dropped; call again.
--
-- Kept are the two newest sealed segments, by which claims recognize a cursor that is far behind, and the newest segment of the
-- archive of another cluster, which marks the end of that archive.
--
-- Parameters: p_most, the maximum number of segments in this call; p_age, for how long they have been empty: a call that found
--   a segment in the registry before it was emptied has ended since.
-- Errors: JQ001 a bad number, JQ012 not called alone, JQ030 foreign cluster.
-- Locks: the retention lock; ACCESS EXCLUSIVE on the log and on the segments, without waiting.
-- pages: 300 + 2000 a segment
create function forebay.drop_segments_v1(p_most integer default 1, p_age interval default '1 hour') returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '100ms'
as $$
declare
    v_segment  bigint;
    v_function regprocedure;
    v_dropped  integer := 0;
    v_segments bigint[];
begin
    if (p_most between 1 and 1000 and p_age >= interval '0') is not true then
        raise exception using errcode = 'JQ001',
            message = format('cannot drop %s segments that are empty for %s', coalesce(p_most::text, 'null'), coalesce(p_age::text, 'null')),
            hint = 'The number is 1 to 1000, the age is not negative.';
    end if;
    perform forebay._require_alone('forebay.drop_segments_v1()');
    perform forebay._require_same_cluster();
    v_segments := array(
        select s.segment_id from forebay.segment s join forebay.seal f using (segment_id)
        where s.removed_at <= forebay._now() - p_age
          and s.segment_id < (select i.segment_id from forebay.seal i order by i.segment_id desc offset 1 limit 1)
          and not (f.xid = '0' and s.hi = forebay._archived_below())
        order by s.segment_id limit p_most);
    if v_segments = '{}' or not forebay._try_lock('retention') then
        return 0;
    end if;
    -- No standby is waited for while the log is locked.
    perform set_config('synchronous_commit', 'local', true);
    begin
        lock table only forebay.log in access exclusive mode nowait;
    exception when lock_not_available then
        return 0;
    end;
    foreach v_segment in array v_segments loop
        begin
            execute format('lock table forebay.log_%s in access exclusive mode nowait', v_segment);
        exception when lock_not_available then
            continue;
        end;
        execute format('drop table forebay.log_%s', v_segment);
        for v_function in
            select p.oid from pg_proc p
            where p.pronamespace = 'forebay'::regnamespace and p.proname ~ format('^_[a-z_]+_%s$', v_segment)
        loop
            execute format('drop function %s', v_function);
        end loop;
        delete from forebay.seal f where f.segment_id = v_segment;
        delete from forebay.segment s where s.segment_id = v_segment;
        v_dropped := v_dropped + 1;
    end loop;
    return v_dropped;
end
$$;


-- functions/maintenance/extend.sql

-- grant: worker

-- Create segments until the reserve ahead of the sequence is full; returns their number.
--
-- Invariant "room to write": no enqueue fails because maintenance did not run. The reserve is what
-- producers can use while no worker runs.
--
-- Parameters: p_most, the maximum number of segments to create in this call.
-- Errors: 55P03 when another session holds a lock on the log for longer than lock_timeout; try again.
-- Locks: the maintenance lock; SHARE UPDATE EXCLUSIVE on the log.
-- pages: 60
create function forebay.extend_v1(p_most integer default 64) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
declare
    v_rows    bigint := forebay._setting_value('segment_rows');
    v_reserve bigint := forebay._setting_value('reserve_rows');
    v_last    bigint;
    v_hi      bigint;
    v_id      bigint;
    v_made    integer := 0;
begin
    if not forebay._try_lock('maintenance') then
        return 0;
    end if;
    v_last := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    select s.segment_id, s.hi into v_id, v_hi from forebay.segment s order by s.segment_id desc limit 1;
    v_id := coalesce(v_id, -1);
    v_hi := coalesce(v_hi, 1);
    -- The very last segment ends at the end of bigint.
    while v_made < p_most and v_hi - v_last < v_reserve and v_hi < 9223372036854775807 loop
        v_rows := least(v_rows, 9223372036854775807 - v_hi);
        v_id := v_id + 1;
        perform forebay._make_segment(v_id, v_hi, v_hi + v_rows);
        v_hi := v_hi + v_rows;
        v_made := v_made + 1;
    end loop;
    return v_made;
end
$$;


-- functions/maintenance/forget.sql

-- grant: worker

-- Forget lanes that are over, one step a call; returns the number of lanes of that step. While it is not 0, call it again.
--
-- A lane that was not looked at for lane_idle_hours, and in which every group has had every job, is *retired*: a transaction that
-- enqueues relies no longer on its row, and writes another one. When all transactions that may have relied on it have ended, the
-- lane becomes *dormant* if still every group has had every job, and polls do not look at it; or it is in use again. When the
-- segments that may have rows of a dormant lane are emptied, its row and its cursors are deleted.
--
-- Invariant "commit decides", the protocol with forebay._is_recorded() and forebay._is_known():
--   1. A retirement sets the horizon, outside of transactions, to its transaction id, and then marks the rows. A transaction that
--      enqueues draws its id, then reads the horizon, then the row; and relies on the row, or on a flag sequence with this horizon,
--      only if the horizon's transaction is visible to it: then it sees the marks. Old snapshots do not see it.
--   2. A later call draws the barrier, a transaction id above those of all who read the horizon before.
--   3. A call after all these have ended looks for rows again, and then decides.
--
-- One step has at most p_most lanes. While a transaction is open that is older than the barrier, nothing happens.
-- Parameters: p_most, at least 1.
-- Errors: JQ001 a bad number, JQ012 not called alone, JQ030 foreign cluster.
-- pages: 100 + 60 a lane
create function forebay.forget_v1(p_most integer default 1000) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_horizon bigint;
    v_barrier bigint;
    v_count   integer;
begin
    if (p_most >= 1) is not true then
        raise exception using errcode = 'JQ001', message = format('a step of %s lanes does nothing', coalesce(p_most::text, 'null'));
    end if;
    perform forebay._require_alone('forebay.forget_v1()');
    perform forebay._require_same_cluster();
    if not forebay._try_lock('forgetting') then
        return 0;
    end if;
    v_count := forebay._wake_lanes(p_most);
    if v_count > 0 then
        return v_count;
    end if;
    v_horizon := coalesce(pg_sequence_last_value('forebay.lane_horizon'), 1);
    v_barrier := coalesce(pg_sequence_last_value('forebay.lane_barrier'), 0);
    if not exists (select from forebay.lane l where l.state = 'retired') then
        v_count := forebay._delete_lanes(p_most);
        return v_count + forebay._retire_lanes(p_most);
    elsif v_barrier <= v_horizon then
        -- Drawn after the retirement was committed, so after the horizon was set.
        perform setval('forebay.lane_barrier', pg_current_xact_id()::text::bigint);
        return 1;
    elsif pg_snapshot_xmin(pg_current_snapshot()) > v_barrier::text::xid8 then
        return forebay._finish_retired(p_most);
    end if;
    return 0;
end
$$;


-- Of some lanes those in which every group has had every job that is visible now, and no group has just taken one.
create function forebay._quiet_lanes(p_lanes bigint[]) returns bigint[]
language plpgsql volatile
as $$
declare
    v_since   constant timestamptz := forebay._now() - make_interval(hours => forebay._setting_value('lane_idle_hours')::integer);
    v_places  forebay._place[];
    v_moved   boolean[];
    v_oldest  xid8;
    v_now     pg_snapshot;
    v_ended   forebay._xid_range[];
    v_segment bigint;
begin
    -- A lane without a group to read it has had nothing read; a private lane without its group is over.
    select array_agg(row(p.group_id, p.lane, null, null, null, p.snap, null)::forebay._place),
           array_agg(p.group_id is null and p.audience = 0 or p.snap_to is not null
                     or p.lease_id is not null and p.claimed_at > v_since),
           min(pg_snapshot_xmin(p.snap)::text::bigint)::text::xid8, pg_current_snapshot()
    into v_places, v_moved, v_oldest, v_now
    from (select g.group_id, l.lane, l.audience, b.snap_to, b.lease_id, b.claimed_at,
                 coalesce(b.snap_from, case when l.audience = 0 then g.start_after end, '1:1:') as snap
          from (select distinct i.lane, i.queue, i.audience from unnest(p_lanes) u (lane)
                cross join lateral (select n.* from forebay.lane n where n.lane = u.lane limit 1) i) l
          left join forebay.queue_group g on g.queue = l.queue and (l.audience = 0 or g.group_id = abs(l.audience))
          left join lateral (select c.snap_from, c.snap_to, c.lease_id, c.claimed_at from forebay.batch c
                             where c.group_id = g.group_id and c.lane = l.lane order by c.no desc limit 1) b on true) p;
    v_ended := forebay._xid_ranges('1:1:', v_now);
    for v_segment in
        select s.segment_id from forebay.segment s left join forebay.seal f using (segment_id)
        where s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0) and s.removed_at is null
          and (f.xid is null or f.xid > v_oldest)
        order by s.segment_id desc
    loop
        exit when array_position(v_moved, false) is null;
        execute 'select forebay._moved_' || v_segment || '($1, $2, $3, $4)' into v_moved using v_places, v_moved, v_now, v_ended;
    end loop;
    return array(
        select p.lane from rows from (unnest(v_places), unnest(v_moved)) as p (group_id, lane, queue, priority, audience, snap, claimed_at, moved)
        group by p.lane having not bool_or(p.moved));
end
$$;


-- Retire quiet lanes that were not looked at for a while; returns their number.
create function forebay._retire_lanes(p_most integer) returns integer
language plpgsql volatile
as $$
declare
    v_at    constant timestamptz := forebay._now();
    v_rows  bigint[];
    v_lanes bigint[];
    v_quiet bigint[];
begin
    select array_agg(l.row_no), array_agg(distinct l.lane) into v_rows, v_lanes
    from (select i.row_no, i.lane from forebay.lane i
          where i.state = 'used'
            and i.recorded_at <= v_at - make_interval(hours => forebay._setting_value('lane_idle_hours')::integer)
          order by i.recorded_at
          limit greatest(1, p_most * 10 / (10 + (
              select count(*) from forebay.segment s
              where s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0) and s.removed_at is null)))) l;
    if v_rows is null then
        return 0;
    end if;
    v_quiet := forebay._quiet_lanes(v_lanes);
    update forebay.lane l set recorded_at = v_at where l.row_no = any (v_rows) and l.lane <> all (v_quiet);
    if v_quiet <> '{}' then
        perform setval('forebay.lane_horizon', pg_current_xact_id()::text::bigint);
        update forebay.lane l set state = 'retired' where l.lane = any (v_quiet) and l.state = 'used';
    end if;
    return cardinality(v_quiet);
end
$$;


-- Decide on retired lanes when all who may have relied on their rows have ended; returns the number of lanes.
create function forebay._finish_retired(p_most integer) returns integer
language plpgsql volatile
as $$
declare
    v_at    constant timestamptz := forebay._now();
    v_lanes bigint[];
    v_quiet bigint[];
begin
    v_lanes := array(select distinct l.lane from (
        select i.lane from forebay.lane i where i.state = 'retired' order by i.row_no limit p_most) l);
    v_quiet := forebay._quiet_lanes(v_lanes);
    -- One row of each lane is enough, and none where a row in use has the name.
    delete from forebay.lane l
    where l.lane = any (v_lanes) and l.state <> 'used'
      and exists (select from forebay.lane i where i.lane = l.lane and (i.state = 'used' or l.state <> 'used' and i.row_no < l.row_no));
    update forebay.lane l set state = 'used', recorded_at = v_at, dormant_xid = null, dormant_seq = null
    where l.lane = any (v_lanes) and l.state <> 'used' and l.lane <> all (v_quiet);
    update forebay.lane l
    set state = 'dormant', dormant_xid = pg_current_xact_id(), dormant_seq = coalesce(pg_sequence_last_value('forebay.log_seq'), 0)
    where l.lane = any (v_quiet) and l.state <> 'used';
    return cardinality(v_lanes);
end
$$;


-- Put lanes in use that became dormant before a new group was seen, if the group may not have had their jobs; returns their number.
create function forebay._wake_lanes(p_most integer) returns integer
language plpgsql volatile
as $$
declare
    v_group record;
    v_count integer;
begin
    for v_group in select g.group_id, g.queue, g.start_after from forebay.queue_group g where not g.has_all_lanes order by g.group_id loop
        -- Transactions that see the one that made a lane dormant see all its rows.
        update forebay.lane l set state = 'used', recorded_at = forebay._now(), dormant_xid = null, dormant_seq = null
        where l.row_no = any (array(
            select i.row_no from forebay.lane i
            where i.queue = v_group.queue and i.state = 'dormant' and i.audience = 0
              and not pg_visible_in_snapshot(i.dormant_xid, v_group.start_after)
            limit p_most));
        get diagnostics v_count = row_count;
        if v_count > 0 then
            perform forebay._forget_polls();
            return v_count;
        end if;
        update forebay.queue_group g set has_all_lanes = true where g.group_id = v_group.group_id;
    end loop;
    return 0;
end
$$;


-- Delete dormant lanes, with their cursors, when no segment is left that may have rows of them; returns their number.
create function forebay._delete_lanes(p_most integer) returns integer
language plpgsql volatile
as $$
declare
    v_first bigint;
    v_rows  bigint[];
    v_kept  bigint[];
begin
    select coalesce(min(s.lo), 0) into v_first from forebay.segment s where s.removed_at is null;
    v_rows := array(
        select l.row_no from forebay.lane l
        where l.state = 'dormant' and l.dormant_seq < v_first order by l.dormant_seq limit p_most);
    if v_rows = '{}' then
        return 0;
    end if;
    -- Jobs that wait for a time; batches not yet trimmed, or that a worker may still name.
    v_kept := array(
        select l.row_no from forebay.lane l
        where l.row_no = any (v_rows)
          and (exists (select from forebay.deferred d where d.lane = l.lane)
               or exists (select from forebay.queue_group g
                          cross join lateral (select b.no, b.lease_id, b.claim_no from forebay.batch b
                                              where b.group_id = g.group_id and b.lane = l.lane order by b.no desc limit 1) n
                          where g.queue = l.queue and (l.audience = 0 or g.group_id = abs(l.audience))
                            and (exists (select from forebay.batch b
                                         where b.group_id = g.group_id and b.lane = l.lane and b.no < n.no)
                                 or exists (select from forebay.lease e where e.lease_id = n.lease_id and e.closed_at is null
                                            and n.claim_no >= (select i.floor from forebay.batch i
                                                               where i.lease_id = e.lease_id order by i.claim_no desc limit 1))))));
    -- Looked at again when the present segment is emptied.
    update forebay.lane l set dormant_seq = coalesce(pg_sequence_last_value('forebay.log_seq'), 0) where l.row_no = any (v_kept);

    with gone as (
        delete from forebay.lane l
        where l.row_no = any (v_rows) and l.row_no <> all (v_kept)
        returning l.lane, l.queue, l.priority, l.audience, l.sort),
    -- Where another row has the name, the lane stays, and its cursors.
    over as (
        select g.* from gone g
        where not exists (select from forebay.lane i where i.lane = g.lane and i.row_no <> all (v_rows))),
    batches as (
        delete from forebay.batch b
        using over o, forebay.queue_group g
        where g.queue = o.queue and (o.audience = 0 or g.group_id = abs(o.audience)) and b.group_id = g.group_id and b.lane = o.lane
        returning b.group_id, o.queue, o.priority, o.sort <> 'keyed' as is_counted, b.handed_total + b.skipped_total as total,
                  b.lease_id, b.claim_no),
    settlements as (
        delete from forebay.settlement s using batches b where s.lease_id = b.lease_id and s.claim_no = b.claim_no),
    starts as (
        delete from forebay.suspect_start s using batches b where s.lease_id = b.lease_id and s.claim_no = b.claim_no)
    -- Counts of waiting jobs subtract the totals of all plain lanes.
    insert into forebay.forgotten (queue, group_id, priority, total)
    select b.queue, b.group_id, b.priority, sum(b.total) from batches b where b.is_counted group by b.queue, b.group_id, b.priority
    on conflict on constraint forgotten_pkey do update set total = forgotten.total + excluded.total;
    return cardinality(v_rows) - cardinality(v_kept);
end
$$;


-- functions/maintenance/make_segment.sql

-- Create one segment: its table, its indexes, its functions, its registry row.
--
-- CREATE TABLE (LIKE) + CHECK + ATTACH takes SHARE UPDATE EXCLUSIVE on the log, which waits for no
-- reader or writer (PARTITION OF would wait for all of them).
--
-- Locks: the caller holds the maintenance lock.
create function forebay._make_segment(p_segment_id bigint, p_lo bigint, p_hi bigint) returns void
language plpgsql volatile
as $$
declare
    v_leaf text := format('forebay.log_%s', p_segment_id);
begin
    execute format(
        'create table %s (like forebay.log including defaults, constraint seq_range check (seq >= %s and seq < %s))',
        v_leaf, p_lo, p_hi);
    execute format('create index on %s (lane, xid, seq)', v_leaf);
    execute format('create index on %s (job_id) where job_id is not null', v_leaf);
    execute format('create index on %s (expires_at, seq) where expires_at is not null', v_leaf);
    execute format('create index on %s (lane, seq) where ordering_key is not null', v_leaf);
    execute format('create index on %s using brin (seq) with (pages_per_range = 32)', v_leaf);
    execute format('revoke all on %s from public', v_leaf);
    execute format('alter table %s replica identity full', v_leaf);  -- Attaching does not pass it on.
    execute format('alter table forebay.log attach partition %s for values from (%s) to (%s)', v_leaf, p_lo, p_hi);
    -- It spared the attachment a scan of all rows; if kept, each INSERT would parse it again.
    execute format('alter table %s drop constraint seq_range', v_leaf);

    perform forebay._make_segment_functions(p_segment_id, p_hi);
    insert into forebay.segment (segment_id, lo, hi, created_at)
    values (p_segment_id, p_lo, p_hi, forebay._now());
end
$$;


-- functions/maintenance/record_duty.sql

-- grant: worker

-- Record that a duty of maintenance fails or is behind, or, with p_seconds null, that it is well again. forebay doctor shows it.
--
-- Parameters: p_name, at most 100 characters; p_seconds, for how long; p_error, null when it is only behind.
-- Errors: JQ001 no name, or seconds outside 0 to 100000000. Locks: none.
-- pages: 20
create function forebay.record_duty_v1(p_name text, p_seconds double precision default null, p_error text default null) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_now constant timestamptz := forebay._now();
begin
    if (length(p_name) between 1 and 100 and coalesce(p_seconds, 0) between 0 and 100000000) is not true then
        raise exception using errcode = 'JQ001',
            message = format('duty %s cannot fail for %s seconds', coalesce(quote_literal(left(p_name, 100)), 'null'), coalesce(p_seconds::text, 'null'));
    end if;
    if p_seconds is null then
        delete from forebay.duty d where d.name = p_name;
        return;
    end if;
    insert into forebay.duty as d (name, error, since, recorded_at, worker)
    values (p_name, left(p_error, 1000), v_now - make_interval(secs => p_seconds), v_now, coalesce(current_setting('application_name', true), ''))
    on conflict on constraint duty_pkey do update
    set error = excluded.error, since = least(d.since, excluded.since), recorded_at = excluded.recorded_at, worker = excluded.worker;
end
$$;


-- functions/maintenance/retain.sql

-- grant: worker

-- Empty the oldest segment that may be emptied. emptied is its number, or null; a call looks at no more than twenty segments that
-- must stay, and next is the p_after of the call that continues, or null when all were looked at.
--
-- A segment may be emptied if it was sealed longer ago than retention_days, or lies beyond retention_bytes in total; never with
-- an unsettled job. TRUNCATE of the leaf under a short lock_timeout: it waits only for sessions that touched this very leaf, and
-- no session waits for it. The empty table stays until forebay.drop_segments_v1() drops it.
--
-- Errors: 55P03 when another session holds a lock on the segment, try again; JQ030 foreign cluster.
-- Locks: the retention lock, ACCESS EXCLUSIVE on the leaf.
-- pages: 1100 + 100 a lane + 4 an uncounted job
create function forebay.retain_v1(p_after bigint default null, out emptied bigint, out next bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set lock_timeout = '100ms'
as $$
declare
    v_segment record;
    v_total   numeric;
    v_days    bigint := forebay._setting_value('retention_days');
    v_bytes   bigint := forebay._setting_value('retention_bytes');
    v_kept    integer := 0;
    v_queues  text[];
begin
    perform forebay._require_same_cluster();
    if not forebay._try_lock('retention') then
        return;
    end if;
    select sum(pg_total_relation_size(format('forebay.log_%s', s.segment_id)::regclass)) into v_total
    from forebay.segment s where s.removed_at is null and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    for v_segment in
        select s.segment_id, f.sealed_at, f.xid from forebay.segment s join forebay.seal f using (segment_id)
        where s.removed_at is null and s.segment_id > coalesce(p_after, -1)
        order by s.segment_id
    loop
        continue when v_segment.sealed_at > forebay._now() - make_interval(days => v_days::integer) and v_total <= v_bytes;
        if forebay._segment_held_by(v_segment.segment_id) is not null then
            v_kept := v_kept + 1;
            if v_kept >= 20 then
                next := v_segment.segment_id;
                return;
            end if;
            continue;
        end if;
        -- A count of waiting jobs from before the seal visits the segment. Invariant "counters agree".
        v_queues := array(
            select distinct c.queue
            from (select distinct on (i.queue, i.group_id) i.queue, i.oldest from forebay.queue_count i
                  order by i.queue, i.group_id, i.oldest desc, i.no desc) c
            where c.oldest < v_segment.xid);
        if v_queues <> '{}' then
            perform forebay.renew_counts_v1(1, v_queues);
        end if;
        execute format('truncate forebay.log_%s', v_segment.segment_id);
        update forebay.segment s set removed_at = forebay._now() where s.segment_id = v_segment.segment_id;
        emptied := v_segment.segment_id;
        next := emptied;
        return;
    end loop;
end
$$;


-- functions/maintenance/seal.sql

-- grant: worker

-- Seal every segment that the sequence has passed; returns their number.
--
-- A row draws its xid before its number. So once last_value has passed the end of a segment, every
-- row of it has an xid below one drawn *afterwards*: that xid is recorded. (The xmin of a snapshot
-- taken then would not do: a writer may have drawn its xid without showing it yet.)
--
-- Errors: JQ012 unless called alone, JQ030 foreign cluster.
-- Locks: the maintenance lock.
-- pages: 60
create function forebay.seal_v1() returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_last   bigint;
    v_sealed integer;
begin
    perform forebay._require_alone('forebay.seal_v1()');
    perform forebay._require_same_cluster();
    if not forebay._try_lock('maintenance') then
        return 0;
    end if;
    v_last := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    if not exists (
        select from forebay.segment s
        where s.hi <= v_last
          and s.segment_id > coalesce((select max(f.segment_id) from forebay.seal f), -1)) then
        return 0;
    end if;
    -- The insert draws the xid, in this later statement.
    insert into forebay.seal (segment_id, xid, sealed_at)
    select s.segment_id, pg_current_xact_id(), forebay._now()
    from forebay.segment s
    where s.hi <= v_last
      and s.segment_id > coalesce((select max(f.segment_id) from forebay.seal f), -1)
    order by s.segment_id;
    get diagnostics v_sealed = row_count;
    perform forebay._forget_polls();  -- Cursors may be far behind now.
    return v_sealed;
end
$$;


-- functions/maintenance/segment_held_by.sql

-- grant: operator, reader

-- Why a sealed segment cannot be emptied yet, or null when every job in it is settled for every group.
create function forebay._segment_held_by(p_segment_id bigint) returns text
language plpgsql volatile
as $$
declare
    v_seal xid8;
begin
    select f.xid into v_seal from forebay.seal f where f.segment_id = p_segment_id;
    -- All writers of the segment have ended: later statements see all its rows, and no new row can come.
    if pg_snapshot_xmin(pg_current_snapshot()) < v_seal then
        return 'a transaction that may have written to it is still open';
    end if;
    return (select h.reason from forebay._segment_holders(array[p_segment_id], true) h limit 1);
end
$$;


-- What keeps sealed segments from being emptied: groups that have not passed a lane (0: the queue has no group), running jobs, jobs
-- that wait for their key. forebay.retain_v1() and forebay.groups() both follow it.
--
-- Stable, so that one snapshot shows cursors, batches and waiting jobs: with one for each, a job that waits for its key when the
-- batches are read, and is claimed before the waiting jobs are, would be in neither.
--
-- Parameters: p_first, end with the first one that is found; otherwise all, a group more than once.
create function forebay._segment_holders(p_segments bigint[], p_first boolean)
returns table (segment_id bigint, group_id bigint, reason text)
language plpgsql stable
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_lo bigint;
    v_hi bigint;
begin
    foreach segment_id in array p_segments loop
        -- The lanes that have rows in the segment, one probe each.
        for group_id, reason in execute format(
            'with recursive used as (
                 (select i.lane from forebay.log_%1$s i order by i.lane limit 1)
                 union all
                 select n.lane from used u cross join lateral (
                     select i.lane from forebay.log_%1$s i where i.lane > u.lane order by i.lane limit 1) n)
             select coalesce(g.group_id, 0),
                    format(''queue %%s, priority %%s: group %%s has not passed it'', l.queue, l.priority, coalesce(g.name, ''default''))
             from used u
             cross join lateral (select i.queue, i.priority, i.audience, bool_and(i.state = ''dormant'') as is_dormant
                                 from forebay.lane i where i.lane = u.lane group by i.queue, i.priority, i.audience) l
             left join lateral (select i.group_id, i.name, i.start_after, i.has_all_lanes from forebay.queue_group i
                                where i.queue = l.queue and (l.audience = 0 or i.group_id = abs(l.audience)) offset 0) g on true
             -- Without a cursor: jobs of public lanes that are older than the group are not its own.
             left join lateral (select coalesce((select b.snap_from from forebay.batch b
                                                 where b.group_id = g.group_id and b.lane = u.lane order by b.no desc limit 1),
                                                case l.audience when 0 then g.start_after end) as snap_from) c on true
             -- Every group that was there has had the jobs of a dormant lane.
             where not (l.is_dormant and coalesce(g.has_all_lanes, true)) and (c.snap_from is null or pg_snapshot_xmin(c.snap_from) < $1)',
            segment_id) using (select f.xid from forebay.seal f where f.segment_id = _segment_holders.segment_id)
        loop
            return next;
            if p_first then
                return;
            end if;
        end loop;
    end loop;
    select min(s.lo), max(s.hi) into v_lo, v_hi from forebay.segment s where s.segment_id = any (p_segments);
    for segment_id, group_id, reason in
        with part as materialized (select s.segment_id, s.lo, s.hi from forebay.segment s where s.segment_id = any (p_segments))
        select p.segment_id, o.group_id, format('worker %s still has jobs of it', (select e.worker from forebay.lease e where e.lease_id = o.lease_id))
        from forebay._open_jobs() o join part p on o.seq >= p.lo and o.seq < p.hi
        where o.seq >= v_lo and o.seq < v_hi
    loop
        return next;
        if p_first then
            return;
        end if;
    end loop;
    return query
    select distinct s.segment_id, p.group_id, 'jobs of it wait for their key'
    from forebay._all_parked() p
    join forebay.segment s on p.seq >= s.lo and p.seq < s.hi and s.segment_id = any (p_segments);
end
$$;


-- Why a sealed segment cannot be emptied yet; null when it can, or when it is not sealed.
--
-- Reads the segment's rows, and reports only which queue, group or worker they belong to.
create function forebay.segment_held_by(segment_id bigint) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    if not exists (select from forebay.seal f where f.segment_id = segment_held_by.segment_id) then
        return null;
    end if;
    return forebay._segment_held_by(segment_held_by.segment_id);
end
$$;


-- functions/maintenance/summarize.sql

-- grant: worker

-- Update the block index on numbers of the segments in use, the newest first, one segment a call. added is the number of page
-- ranges added; next is the p_after of the call that continues, or null when all were looked at.
--
-- That index finds a job by its id. It learns of new pages only by a call like this one, and page ranges that it does not know
-- are read from end to end.
--
-- Errors: 55P03 when another session holds a lock on the segment, try again.
-- Locks: the summary lock; SHARE UPDATE EXCLUSIVE on the segment.
-- pages: 200
create function forebay.summarize_v1(p_after bigint default null, out added integer, out next bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
    v_segment bigint;
begin
    added := 0;
    if not forebay._try_lock('summary') then
        return;
    end if;
    select s.segment_id into v_segment from forebay.segment s
    where s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0) and s.removed_at is null
      and s.segment_id < coalesce(p_after, 9223372036854775807)
    order by s.lo desc limit 1;
    if found then
        added := brin_summarize_new_values(format('forebay.log_%s_seq_idx', v_segment)::regclass);
        next := v_segment;
    end if;
end
$$;


-- functions/maintenance/sweep.sql

-- grant: worker

-- Expire jobs that no worker claims. expired is their number; next is the p_after of the call that continues, or null when the pass
-- is over.
--
-- A pass looks in two places: jobs with an explicit expiry anywhere (it writes a tombstone, which the claim later reads), and expired
-- jobs at the head of a lane (the cursor moves over them). Both happen under the lane's lock, so that a claim and the
-- sweep never both decide. Bounded: a call looks at p_most jobs of the first kind, then at p_lanes lanes, and expires about p_most
-- jobs.
--
-- Parameters: p_since, look at expiries after this time only; null: all. An expiry may be committed long after its time, so from time
--   to time a pass must look at all of them. p_after, as returned by the call before; null: begin a pass. p_most, p_lanes, 1 to
--   1000000.
-- Errors: JQ001 a bad number, JQ012 not called alone, JQ030 foreign cluster.
-- pages: 300 + 20 a lane + 12 a job + 700 a segment
create function forebay.sweep_v1(
    p_since timestamptz default null, p_after text default null, p_most integer default 1000, p_lanes integer default 50,
    out expired bigint, out next text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set lock_timeout = '1s'
as $$
declare
    v_after   constant jsonb := p_after;
    v_at      constant timestamptz := forebay._now();
    v_queue   text;
    v_place   record;
    v_segment bigint;
    v_row     record;
    v_end     record;
    v_from    timestamptz;
    v_seq     bigint;
    v_left    integer := p_most;
    v_lane    bigint;
    v_lanes   integer := 0;
    v_rows       forebay.log[] := '{}';
    v_groups     bigint[] := '{}';
    v_queues     text[] := '{}';
    v_priorities integer[] := '{}';
    v_audiences  bigint[] := '{}';
    v_starts     pg_snapshot[] := '{}';
    v_died       bigint;
    v_dead       bigint[] := '{}';
begin
    if (p_most between 1 and 1000000 and p_lanes between 1 and 1000000) is not true then
        raise exception using errcode = 'JQ001',
            message = format('cannot sweep %s jobs in %s lanes', coalesce(p_most::text, 'null'), coalesce(p_lanes::text, 'null')),
            hint = 'Both numbers are 1 to 1000000.';
    end if;
    perform forebay._require_alone('forebay.sweep_v1()');
    perform forebay._require_same_cluster();
    expired := 0;
    if not forebay._try_lock('sweep') then
        return;
    end if;
    if v_after is null then
        -- A queue that was never served has no group yet; its jobs expire for an implied one.
        for v_queue in
            with recursive queue as (
                (select l.queue from forebay.lane l order by l.queue limit 1)
                union all
                select n.queue from queue q, lateral (
                    select l.queue from forebay.lane l where l.queue > q.queue order by l.queue limit 1) n
            )
            select q.queue from queue q where not exists (select from forebay.queue_group g where g.queue = q.queue) limit p_most
        loop
            perform forebay._imply_group(v_queue);
        end loop;
    end if;

    -- First the search, then the locks: claims must not wait for the search.
    if v_after ->> 0 is distinct from 'lane' then
        for v_segment in
            select s.segment_id from forebay.segment s
            where s.removed_at is null and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)
              and s.lo >= forebay._archived_below() and s.segment_id >= coalesce((v_after ->> 1)::bigint, 0)
            order by s.segment_id
        loop
            v_from := coalesce(case when v_segment = (v_after ->> 1)::bigint then (v_after ->> 2)::timestamptz end, p_since, '-infinity');
            v_seq := coalesce(case when v_segment = (v_after ->> 1)::bigint then (v_after ->> 3)::bigint end, 9223372036854775807);
            execute format(
                'select count(*) as seen, max(x.expires_at) as at, (array_agg(x.seq order by x.expires_at desc, x.seq desc))[1] as seq
                 from (select i.expires_at, i.seq from forebay.log_%s i
                       where i.expires_at is not null and i.expires_at <= $1 and (i.expires_at, i.seq) > ($2, $3)
                       order by i.expires_at, i.seq limit $4) x', v_segment)
                into v_end using v_at, v_from, v_seq, v_left;
            continue when v_end.seen = 0;
            for v_row in execute format(
                'select row(l.*)::forebay.log as r, p.group_id, p.queue, p.priority, p.audience, p.start_after
                 from (select * from forebay.log_%s x
                       where x.expires_at is not null and (x.expires_at, x.seq) > ($1, $2) and (x.expires_at, x.seq) <= ($3, $4) offset 0) l
                 cross join lateral (
                     select g.group_id, g.queue, g.start_after, i.priority, i.audience, c.*
                     from (select distinct j.queue, j.priority, j.audience from forebay.lane j where j.lane = l.lane) i
                     join forebay.queue_group g on g.queue = i.queue and i.audience in (0, g.group_id, -g.group_id) and g.closing_at is null
                     left join lateral (select b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq
                                        from forebay.batch b left join forebay.segment s on s.segment_id = b.pos_segment
                                        where b.group_id = g.group_id and b.lane = l.lane order by b.no desc limit 1) c on true) p
                 where (p.snap_from is not null or p.audience <> 0 or not pg_visible_in_snapshot(l.xid, p.start_after))
                   and (p.snap_from is null
                        or not forebay._is_consumed(l.xid, l.seq, p.snap_from, p.snap_to, p.lo, p.hi, p.pos_xid, p.pos_seq))
                   and not exists (select from forebay.tombstone t
                                   where t.job_id = coalesce(l.job_id, l.seq) and t.reason <> ''k'' and (t.reason <> ''m'' or l.seq <= t.up_to)
                                     and (t.group_id is null or t.group_id = p.group_id))', v_segment)
                using v_from, v_seq, v_end.at, v_end.seq
            loop
                v_rows := v_rows || v_row.r;
                v_groups := v_groups || v_row.group_id;
                v_queues := v_queues || v_row.queue;
                v_priorities := v_priorities || v_row.priority;
                v_audiences := v_audiences || v_row.audience;
                v_starts := v_starts || v_row.start_after;
            end loop;
            v_left := v_left - v_end.seen;
            if v_left <= 0 then
                next := jsonb_build_array('row', v_segment, v_end.at, v_end.seq);
                exit;
            end if;
        end loop;
        for v_nr in 1 .. cardinality(v_rows) loop
            v_died := forebay._expire_one(
                v_rows[v_nr], v_groups[v_nr], v_queues[v_nr], v_priorities[v_nr], v_audiences[v_nr], v_starts[v_nr]);
            if v_died is not null then
                v_dead := v_dead || v_died;
            end if;
        end loop;
        expired := cardinality(v_dead);
        if expired > 0 then
            perform forebay._report_deaths(v_dead);
        end if;
        if next is not null then
            return;
        end if;
    end if;

    v_lane := coalesce(case when v_after ->> 0 = 'lane' then (v_after ->> 1)::bigint end, -9223372036854775808);
    for v_place in
        select l.lane, g.group_id, c.claimed_at
        from (select i.lane, i.queue, i.audience, i.sort, i.state from forebay.lane i where i.lane > v_lane order by i.lane limit p_lanes) l
        left join forebay.queue_group g
            on g.queue = l.queue and l.audience in (0, g.group_id, -g.group_id) and l.sort = 'plain' and l.state <> 'dormant' and g.closing_at is null
        left join lateral (select b.claimed_at from forebay.batch b
                           where b.group_id = g.group_id and b.lane = l.lane order by b.no desc limit 1) c on true
        order by l.lane
    loop
        -- The locks last until the end of this call: with p_most jobs it has had them for long enough.
        if expired >= p_most then
            next := jsonb_build_array('lane', v_lane);
            return;
        end if;
        if v_place.group_id is not null and coalesce(v_place.claimed_at < v_at - interval '5 seconds', true) then
            expired := expired + forebay._sweep_lane(v_place.group_id, v_place.lane, p_most);
        end if;
        if expired < p_most then
            v_lane := v_place.lane;
            v_lanes := v_lanes + 1;
        end if;
    end loop;
    next := case when expired >= p_most or v_lanes >= p_lanes then jsonb_build_array('lane', v_lane) end;
end
$$;


-- Move the cursor of a lane over expired jobs at its head; returns their number.
--
-- A lane that another session claims from needs no sweep. The lock of a lane without such jobs is released at once, by the
-- rollback to a savepoint: other lanes may have the same lock, and their claims wait.
create function forebay._sweep_lane(p_group_id bigint, p_lane bigint, p_most integer) returns bigint
language plpgsql volatile
as $$
declare
    v_before record;
    v_after  record;
begin
    if not forebay._try_lock_lane(p_group_id, p_lane) then
        return 0;
    end if;
    select max(b.no) as no, max(b.skipped_total) as skipped into v_before
    from (select i.no, i.skipped_total from forebay.batch i
          where i.group_id = p_group_id and i.lane = p_lane order by i.no desc limit 1) b;
    perform forebay._take(null, null, null, p_group_id, p_lane, p_most, true);
    select max(b.no) as no, max(b.skipped_total) as skipped into v_after
    from (select i.no, i.skipped_total from forebay.batch i
          where i.group_id = p_group_id and i.lane = p_lane order by i.no desc limit 1) b;
    if v_after.no is not distinct from v_before.no then
        raise no_data_found;
    end if;
    return coalesce(v_after.skipped, 0) - coalesce(v_before.skipped, 0);
exception when no_data_found then
    return 0;
end
$$;


-- Expire one job of a group under its lane's lock, unless the cursor has passed it; returns its dead letter's id, or null.
create function forebay._expire_one(
    p_row forebay.log, p_group_id bigint, p_queue text, p_priority integer, p_audience bigint, p_start_after pg_snapshot)
returns bigint
language plpgsql volatile
as $$
declare
    v_cur record;
begin
    perform forebay._lock_lane(p_group_id, p_row.lane);
    select b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq into v_cur
    from forebay.batch b left join forebay.segment s on s.segment_id = b.pos_segment
    where b.group_id = p_group_id and b.lane = p_row.lane order by b.no desc limit 1;
    if v_cur.snap_from is null then
        if p_audience = 0 and pg_visible_in_snapshot(p_row.xid, p_start_after) then
            return null;
        end if;
    elsif forebay._is_consumed(p_row.xid, p_row.seq, v_cur.snap_from, v_cur.snap_to, v_cur.lo, v_cur.hi, v_cur.pos_xid, v_cur.pos_seq) then
        return null;
    end if;
    insert into forebay.tombstone (job_id, group_id, reason, recorded_at, enqueued_at)
    values (coalesce(p_row.job_id, p_row.seq), p_group_id, 'e', forebay._now(), p_row.enqueued_at);
    if p_row.ordering_key is null then
        perform forebay._record_skipped(p_queue, p_group_id, p_priority, 1);
    end if;
    return forebay._write_dead_letter(p_group_id, p_queue, p_priority, p_row, 'expired', coalesce(p_row.attempt, 0));
end
$$;


-- functions/maintenance/trim.sql

-- grant: worker

-- Delete some rows of one kind that are no longer needed; returns their number, and in next where the next call continues. next is
-- null when the pass is over: all rows were looked at.
--
-- Each part is a pass over one kind of rows, oldest first, in steps: a call looks at about p_most rows, by an index, and begins
-- behind those that earlier calls of the pass looked at. So a call takes as long with a backlog of a million rows as with one of a
-- few thousand, rows that must stay are passed over once in a pass, and a pass visits no rows that it deleted itself. Invariant
-- "flat cost": while a snapshot is held, deleted rows stay in the indexes. A part that fails stops no other part.
--
-- Parts: deferred, promoted rows, from a stored position on; late_deferred, promoted rows from the beginning, for rows that a late
-- commit, or a call that was rolled back, left behind; promotions, old cursors of the promoter; batches, whose jobs left the
-- archive, with their settlements, never the newest row of a cursor, never an open batch; key_runs; limit_runs; limiters; counts; heartbeats;
-- leases; failures; events; guard_events; dead_letters, past the time that forebay.keep_dead() set; tombstones; results; progress; mirror_counts, which are added up instead; mirror_samples;
-- mirror_breakers; mirror_audits; unique_keys; endpoint_activities; published, events past their keep_until; replays.
--
-- Parameters: p_part; p_after, next of the call before, null: begin a pass; p_most, 1 to 1000000.
-- Errors: JQ001 an unknown part or a bad number, JQ030 foreign cluster.
-- Locks: the trimming lock; without it nothing is done, and next is null.
-- pages: 60 + 30 a job
create function forebay.trim_v1(p_part text, p_after text default null, p_most integer default 5000, out rows bigint, out next text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set lock_timeout = '1s'
as $$
begin
    if (p_part = any (forebay._trim_parts()) and p_most between 1 and 1000000) is not true then
        raise exception using errcode = 'JQ001',
            message = format('cannot trim %s rows of %s', coalesce(p_most::text, 'null'), coalesce(quote_literal(p_part), 'null')),
            hint = format('The number is 1 to 1000000, the part one of %s.', array_to_string(forebay._trim_parts(), ', '));
    end if;
    perform forebay._require_same_cluster();
    rows := 0;
    if not forebay._try_lock('trim') then
        return;
    end if;
    execute format('select t.rows, t.next from forebay._trim_%s($1, $2) t', p_part) into rows, next using p_after, p_most;
end
$$;


-- The parts of trimming.
create function forebay._trim_parts() returns text[]
language sql immutable
as $$
    select array[
        'deferred', 'late_deferred', 'promotions', 'batches', 'key_runs', 'limit_runs', 'limiters', 'counts', 'heartbeats', 'leases', 'failures',
        'events', 'guard_events', 'dead_letters', 'tombstones', 'results', 'progress', 'mirror_counts', 'mirror_samples', 'mirror_breakers', 'mirror_audits',
        'unique_keys', 'endpoint_activities', 'published', 'replays']
$$;


-- Delete promoted rows from the stored position on.
create function forebay._trim_deferred(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_cursor forebay.promotion;
    v_from   timestamptz;
    v_gone   timestamptz;
begin
    rows := 0;
    select * into v_cursor from forebay.promotion p order by p.no desc limit 1;
    if not found then
        return;
    end if;
    v_from := to_timestamp(coalesce(pg_sequence_last_value('forebay.trim_position_seq'), 0) / 1000000.0);
    with gone as (
        delete from forebay.deferred d
        where d.ctid = any (array(
            select i.ctid from forebay.deferred i
            where (i.run_at, i.deferred_id) <= (v_cursor.run_at, v_cursor.deferred_id)
              and i.run_at >= v_from
              and pg_visible_in_snapshot(i.xid, v_cursor.snap)
            order by i.run_at, i.deferred_id limit p_most))
        returning d.run_at)
    select count(*), max(g.run_at) into rows, v_gone from gone g;
    if rows = 0 then
        return;
    end if;
    -- Just below: some rows as old as the position may be left.
    perform setval('forebay.trim_position_seq', greatest(
        1, (extract(epoch from case when rows < p_most then v_cursor.run_at else v_gone end) * 1000000)::bigint - 1));
    next := case when rows >= p_most then '[]' end;
end
$$;


-- Delete promoted rows from the beginning on.
create function forebay._trim_late_deferred(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_cursor forebay.promotion;
    v_gone   tid[];
    v_seen   integer;
    v_run_at timestamptz;
    v_id     bigint;
begin
    rows := 0;
    select * into v_cursor from forebay.promotion p order by p.no desc limit 1;
    if not found then
        return;
    end if;
    select array_agg(d.ctid) filter (where d.is_promoted), count(*), max(d.run_at),
           (array_agg(d.deferred_id order by d.run_at desc, d.deferred_id desc))[1]
    into v_gone, v_seen, v_run_at, v_id
    from (select i.ctid, i.run_at, i.deferred_id, pg_visible_in_snapshot(i.xid, v_cursor.snap) as is_promoted
          from forebay.deferred i
          where (i.run_at, i.deferred_id) <= (v_cursor.run_at, v_cursor.deferred_id)
            and (i.run_at, i.deferred_id) > (coalesce((p_after::jsonb ->> 0)::timestamptz, '-infinity'), coalesce((p_after::jsonb ->> 1)::bigint, 0))
          order by i.run_at, i.deferred_id limit p_most) d;
    delete from forebay.deferred d where d.ctid = any (v_gone);
    get diagnostics rows = row_count;
    next := case when v_seen >= p_most then jsonb_build_array(v_run_at, v_id) end;
end
$$;


-- Delete old cursors of the promoter.
create function forebay._trim_promotions(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_no bigint;
begin
    with gone as (
        delete from forebay.promotion p
        where p.no = any (array(
            select o.no from forebay.promotion o
            where o.no < (select n.no from forebay.promotion n order by n.no desc limit 1) - 100
              and o.no > coalesce((p_after::jsonb ->> 0)::bigint, 0)
            order by o.no limit p_most))
        returning p.no)
    select count(*), max(g.no) into rows, v_no from gone g;
    next := case when rows >= p_most then jsonb_build_array(v_no) end;
end
$$;


-- Delete batches whose jobs left the archive, with their settlements and starts of suspects.
create function forebay._trim_batches(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_first  bigint;
    v_lane   record;
    v_group  bigint := coalesce((p_after::jsonb ->> 0)::bigint, -9223372036854775808);
    v_at     bigint := coalesce((p_after::jsonb ->> 1)::bigint, -9223372036854775808);
    v_no     bigint := coalesce((p_after::jsonb ->> 2)::bigint, 0);
    v_left   bigint := p_most;
    v_end    bigint;
    v_gone   bigint;
begin
    rows := 0;
    select coalesce(min(s.lo), 0) into v_first from forebay.segment s where s.removed_at is null;
    while v_left > 0 loop
        select b.group_id, b.lane, b.no, b.high_seq into v_lane from forebay.batch b
        where (b.group_id, b.lane, b.no) > (v_group, v_at, v_no) order by b.group_id, b.lane, b.no limit 1;
        if not found then
            return;
        end if;
        v_left := v_left - 1;
        v_group := v_lane.group_id;
        v_at := v_lane.lane;
        select i.no into v_end from forebay.batch i
        where i.group_id = v_group and i.lane = v_at order by i.no desc limit 1;
        -- high_seq rises with no: mostly the first row of a lane shows that there is nothing to delete.
        if v_lane.no >= v_end or v_lane.high_seq >= v_first then
            v_no := 9223372036854775807;
            continue;
        end if;
        v_end := least(v_end, v_lane.no + v_left + 1);
        with gone as (
            delete from forebay.batch b
            where b.group_id = v_group and b.lane = v_at and b.no >= v_lane.no and b.no < v_end and b.high_seq < v_first
              and not exists (select from forebay.lease l where l.lease_id = b.lease_id and l.closed_at is null
                              and b.claim_no >= (select i.floor from forebay.batch i
                                                 where i.lease_id = l.lease_id order by i.claim_no desc limit 1))
              -- A key run that still exists has the state of its key: a job of it may run long after its first row has gone.
              and (b.keys is null or not exists (
                  select from unnest(b.keys) k (key)
                  join forebay.key_run t on t.group_id = b.group_id and t.ordering_key = k.key
                                         and t.lease_id = b.lease_id and t.claim_no = b.claim_no))
            returning b.lease_id, b.claim_no),
        settled as (
            delete from forebay.settlement s using gone g
            where s.lease_id = g.lease_id and s.claim_no = g.claim_no returning 1),
        started as (
            delete from forebay.suspect_start s using gone g
            where s.lease_id = g.lease_id and s.claim_no = g.claim_no returning 1)
        select (select count(*) from gone) + (select count(*) from settled) + (select count(*) from started) into v_gone;
        rows := rows + v_gone;
        v_left := v_left - (v_end - v_lane.no);
        v_no := v_end - 1;
    end loop;
    next := jsonb_build_array(v_group, v_at, v_no);
end
$$;


-- Delete heartbeats older than ten minutes, but not the newest of an open lease; and those from before the clock was set back.
create function forebay._trim_heartbeats(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_now    constant timestamptz := forebay._now();
    v_lease  bigint := coalesce((p_after::jsonb ->> 0)::bigint, -9223372036854775808);
    v_next   bigint;
    v_before timestamptz;
    v_left   bigint := p_most;
    v_gone   bigint;
begin
    rows := 0;
    loop
        select h.lease_id into v_next from forebay.heartbeat h where h.lease_id > v_lease order by h.lease_id limit 1;
        if not found then
            return;
        end if;
        v_before := v_now - interval '10 minutes';
        if exists (select from forebay.lease l where l.lease_id = v_next and l.closed_at is null) then
            v_before := least(v_before, (select h.heartbeat_at from forebay.heartbeat h
                                         where h.lease_id = v_next and h.heartbeat_at <= v_now + interval '1 minute'
                                         order by h.heartbeat_at desc limit 1));
        end if;
        delete from forebay.heartbeat h
        where h.ctid = any (array(
            select o.ctid from forebay.heartbeat o
            where o.lease_id = v_next and (o.heartbeat_at < v_before or o.heartbeat_at > v_now + interval '1 minute')
            order by o.heartbeat_at desc limit v_left));
        get diagnostics v_gone = row_count;
        rows := rows + v_gone;
        if v_gone < v_left then
            v_lease := v_next;
        end if;
        v_left := v_left - v_gone - 1;
        exit when v_left <= 0;
    end loop;
    next := jsonb_build_array(v_lease);
end
$$;


-- Delete leases that closed long ago and have no batch.
create function forebay._trim_leases(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_before constant timestamptz := forebay._now() - forebay._retention(1);  -- A constant: the index is read up to it.
    v_leases bigint[];
    v_at     timestamptz;
begin
    select array_agg(l.lease_id order by l.closed_at, l.lease_id), max(l.closed_at) into v_leases, v_at
    from (select i.lease_id, i.closed_at from forebay.lease i
          where i.closed_at < v_before
            and (i.closed_at, i.lease_id) > (coalesce((p_after::jsonb ->> 0)::timestamptz, '-infinity'),
                                             coalesce((p_after::jsonb ->> 1)::bigint, -9223372036854775808))
          order by i.closed_at, i.lease_id limit p_most) l;
    delete from forebay.lease l
    where l.lease_id = any (v_leases)
      and (select b.lease_id from forebay.batch b where b.lease_id = l.lease_id limit 1) is null;  -- a probe each, never a join
    get diagnostics rows = row_count;
    next := case when cardinality(v_leases) >= p_most then jsonb_build_array(v_at, v_leases[cardinality(v_leases)]) end;
end
$$;


-- Delete tombstones of jobs that have no row any more: a claim or a settlement may read the others.
--
-- A job has none when its first segment was emptied, none of those in use has a row of it, and it does not wait for a time. This
-- takes a probe of each segment in use for each job, so a call looks at fewer rows where there are many segments.
create function forebay._trim_tombstones(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_before   constant timestamptz := forebay._now() - forebay._retention(2);
    v_segments bigint[];
    v_segment  bigint;
    v_most     integer;
    v_last     forebay.tombstone;
    v_seen     integer;
    v_jobs     bigint[];
    v_some     bigint[];
    v_used     bigint[] := '{}';
    v_ctids    tid[];
begin
    v_segments := array(select s.segment_id from forebay.segment s
                        where s.removed_at is null and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0));
    v_most := greatest(1, least(p_most, 200000 / greatest(cardinality(v_segments), 1)));
    select count(*), array_agg(t.ctid), array_agg(distinct t.job_id) filter (where not t.is_kept)
    into v_seen, v_ctids, v_jobs
    from (select i.ctid, i.job_id, exists (
              select from (select s.hi, s.removed_at from forebay.segment s where s.lo <= i.job_id order by s.lo desc limit 1) f
              where f.hi > i.job_id and f.removed_at is null) as is_kept
          from forebay.tombstone i
          where i.recorded_at < v_before
            and (i.recorded_at, i.tombstone_no) > (coalesce((p_after::jsonb ->> 0)::timestamptz, '-infinity'),
                                                   coalesce((p_after::jsonb ->> 1)::bigint, 0))
          order by i.recorded_at, i.tombstone_no limit v_most) t;
    rows := 0;
    if v_seen = 0 then
        return;
    end if;
    select t.* into v_last from forebay.tombstone t where t.ctid = v_ctids[cardinality(v_ctids)];
    if v_jobs is not null then
        foreach v_segment in array v_segments loop
            execute format('select array_agg(distinct l.job_id) from forebay.log_%s l where l.job_id = any ($1)', v_segment)
                into v_some using v_jobs;
            v_used := v_used || v_some;
        end loop;
        select array_agg(distinct d.job_id) into v_some from forebay.deferred d where d.job_id = any (v_jobs);
        v_used := v_used || v_some;
        select array_agg(u.job_id) into v_jobs from (select unnest(v_jobs) as job_id except select unnest(v_used)) u;
        delete from forebay.tombstone t
        where t.ctid = any (v_ctids) and t.job_id in (select unnest(v_jobs));
        get diagnostics rows = row_count;
    end if;
    next := case when v_seen >= v_most then jsonb_build_array(v_last.recorded_at, v_last.tombstone_no) end;
end
$$;


-- Delete errors; they outlive the attempts of their jobs.
create function forebay._trim_failures(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$
    select * from forebay._trim_by_time(
        'failure', 'failed_at', forebay._now() - greatest(interval '60 days', forebay._retention(2)), p_after, p_most)
$$;


-- Delete what operators did.
create function forebay._trim_events(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$
    select * from forebay._trim_by_time(
        'event', 'at', forebay._now() - greatest(interval '60 days', forebay._retention(2)), p_after, p_most)
$$;


-- Delete acts of the guard.
create function forebay._trim_guard_events(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$
    select * from forebay._trim_by_time(
        'guard_event', 'at', forebay._now() - greatest(interval '60 days', forebay._retention(2)), p_after, p_most)
$$;


-- Delete counts of calls of endpoints: the health of an endpoint is that of the last minutes.
create function forebay._trim_endpoint_activities(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$
    select * from forebay._trim_by_time('endpoint_activity', 'at', forebay._now() - interval '1 hour', p_after, p_most)
$$;


-- p_times the retention of the log.
create function forebay._retention(p_times integer) returns interval
language sql stable
as $$
    select make_interval(days => (p_times * forebay._setting_value('retention_days'))::integer)
$$;


-- Delete the oldest rows of a table with an index on a column of times, up to a time; returns their number and where to continue.
create function forebay._trim_by_time(
    p_table text, p_column text, p_before timestamptz, p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_at timestamptz;
begin
    execute format(
        'with old as materialized (
             select o.ctid, o.%2$I as at from forebay.%1$I o where o.%2$I < $1 and o.%2$I >= $2 order by o.%2$I limit $3),
         gone as (
             delete from forebay.%1$I t where t.ctid = any (array(select o.ctid from old o)))
         select count(*), max(o.at) from old o', p_table, p_column)
        into rows, v_at using p_before, coalesce((p_after::jsonb ->> 0)::timestamptz, '-infinity'), p_most;
    next := case when rows >= p_most then jsonb_build_array(v_at) end;
end
$$;


-- functions/mirror/audits.sql

-- grant: worker, operator, reader

-- The newest audits of a mirror, newest first, as a JSON array.
create function forebay.mirror_audits(name text, most integer default 100) returns jsonb
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
    select coalesce(jsonb_agg(to_jsonb(o) order by o.ended_at desc, o.audit_id), '[]')
    from (select a.* from forebay.mirror_audit a where a.mirror = mirror_audits.name order by a.ended_at desc, a.audit_id limit most) o
$$;


-- functions/mirror/bulk.sql

-- Is a job, by its tag and priority, part of a bulk request, which alerts ignore?
create function forebay._is_bulk(p_tag text, p_priority integer, p_tags text[], p_least integer) returns boolean
language sql immutable
as $$
    select coalesce(p_priority >= p_least, false)
        or exists (select from unnest(p_tags) t (tag) where p_tag = t.tag or starts_with(p_tag, t.tag || '.'))
$$;


-- functions/mirror/counters.sql

-- Append the counters of a pass or a direct write.
--
-- Parameters: p_counters, {"mirror", "counts": [[outcome, tag, priority, count], ..],
--   "breaker": {"place", "open_seconds": null for closed, "why"}, absent when there is nothing new}
--   p_who, the worker or the process. A count is 0 to 1000000000 and open_seconds 0 to 31536000, so that no sum of them overflows.
-- Errors: JQ001 another number.
create function forebay._record_counters(p_counters jsonb, p_who text) returns void
language plpgsql volatile
as $$
declare
    v_now  constant timestamptz := forebay._now();
    v_open constant jsonb := p_counters -> 'breaker';
begin
    if exists (select from jsonb_array_elements(p_counters -> 'counts') c
               where ((c.value ->> 3)::numeric between 0 and 1000000000) is not true)
       or not coalesce((v_open ->> 'open_seconds')::numeric, 0) between 0 and 31536000 then
        raise exception using errcode = 'JQ001', message = 'a count is outside 0 to 1000000000, or open_seconds outside 0 to 31536000';
    end if;
    insert into forebay.mirror_count (mirror, at, outcome, tag, priority, count)
    select left(p_counters ->> 'mirror', 200), v_now, left(c.value ->> 0, 100), left(c.value ->> 1, 200), (c.value ->> 2)::integer, (c.value ->> 3)::bigint
    from jsonb_array_elements(p_counters -> 'counts') c;
    if v_open is not null then
        insert into forebay.mirror_breaker (mirror, at, who, place, open_until, why)
        values (left(p_counters ->> 'mirror', 200), v_now, left(p_who, 200), v_open ->> 'place',
                v_now + make_interval(secs => (v_open ->> 'open_seconds')::double precision), left(v_open ->> 'why', 500));
    end if;
end
$$;


-- functions/mirror/record_audit.sql

-- grant: worker, operator

-- Record the findings of an audit; returns its number.
--
-- Parameters: p_found, an object with the columns of forebay.mirror_audit.
create function forebay.record_audit(p_name text, p_found jsonb) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint;
begin
    insert into forebay.mirror_audit (audit_id, mirror, ended_at, seconds, compared, items, copies, rows, ranges, differed, suspects,
                                    missing, stale, orphaned, ahead)
    select forebay._random_name(), p_name, forebay._now(), f.seconds, f.compared, f.items, f.copies, f.rows, f.ranges, f.differed, f.suspects,
           f.missing, f.stale, f.orphaned, f.ahead
    from jsonb_populate_record(null::forebay.mirror_audit, p_found) f
    returning audit_id into v_id;
    return v_id;
end
$$;


-- functions/mirror/record_direct.sql

-- grant: producer, worker

-- Append the counters of direct writes, which belong to no settlement. Roles that may enqueue may record these counters, but none
-- that only a settlement proves.
--
-- Parameters: p_counters, see forebay._record_counters; p_who, the process.
-- Errors: JQ001 malformed counters, counters other than those of direct writes, or a number out of range. Locks: none.
create function forebay.record_direct(p_counters jsonb, p_who text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if (jsonb_typeof(p_counters -> 'mirror') = 'string' and jsonb_typeof(p_counters -> 'counts') = 'array'
        and jsonb_array_length(p_counters -> 'counts') <= 1000 and p_who is not null
        and coalesce(p_counters -> 'breaker' ->> 'place', 'direct') = 'direct'
        and not exists (select from jsonb_array_elements(p_counters -> 'counts') c
                        where (c.value ->> 0 like 'direct.%') is not true)) is not true then
        raise exception using errcode = 'JQ001',
            message = 'counters of direct writes need a mirror, a process, and only counts whose names begin with direct';
    end if;
    perform set_config('synchronous_commit', 'off', true);
    perform forebay._record_counters(p_counters, p_who);
end
$$;


-- functions/mirror/record_repair.sql

-- grant: worker, operator

-- Record how many jobs were enqueued to repair what an audit found.
create function forebay.record_repair(p_audit_id bigint, p_jobs bigint) returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
    update forebay.mirror_audit a set repaired = a.repaired + p_jobs where a.audit_id = p_audit_id
$$;


-- functions/mirror/sample.sql

-- grant: worker, operator

-- Sample how many jobs of a mirror are due, unless the last 50 seconds have a sample; returns whether it did.
--
-- Parameters: as for forebay.mirror_status.
-- Locks: the lock of samples, only tried: if another session has it, that one samples.
create function forebay.sample_mirror(
    p_name text, p_queue text, p_group_name text, p_expires_seconds double precision, p_bulk_tags text[], p_bulk_priority integer)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
declare
    v_now constant timestamptz := forebay._now();
begin
    if exists (select from forebay.mirror_sample s where s.mirror = p_name and s.at > v_now - interval '50 seconds')
       or not forebay._try_lock('mirror_sample') then
        return false;
    end if;
    perform set_config('synchronous_commit', 'off', true);
    insert into forebay.mirror_sample (mirror, at, due, due_all, waiting)
    select p_name, v_now,
           coalesce(sum(o.due) filter (where not forebay._is_bulk(o.tag, o.priority, p_bulk_tags, p_bulk_priority)), 0),
           coalesce(sum(o.due), 0), coalesce(sum(o.waiting), 0)
    from (select u.tag, u.priority, count(*) as waiting, count(*) filter (where u.due_at <= v_now) as due
          from forebay.unfinished('mirror.' || p_name, p_queue, p_group_name, p_expires_seconds) u
          group by u.tag, u.priority) o;
    return true;
end
$$;


-- functions/mirror/status.sql

-- grant: worker, operator, reader

-- All that is known of a mirror, as JSON; `forebay mirror status` decides which of it is an alert.
--
-- Counts every waiting job. If more than `most` jobs are due, above_since is the due time of the job that has exactly `most`
-- before it.
--
-- Parameters: queue and group_name of its jobs; expires_seconds, how long after they were due they expire; within_seconds, for
--   the rates; most, how many may wait; bulk_tags and bulk_priority, which jobs alerts ignore: those with one of these tags, or
--   with a tag that begins with one of these and a full stop, or with this priority or a higher number.
-- Errors: none; a name that was never used has no data.
create function forebay.mirror_status(
    name text, queue text default 'mirror', group_name text default 'default', expires_seconds double precision default 2592000,
    within_seconds double precision default 600, most bigint default 10000,
    bulk_tags text[] default '{audit,backfill}', bulk_priority integer default 1000)
returns jsonb
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
    v_kind   constant text := 'mirror.' || name;
    v_now    constant timestamptz := forebay._now();
    v_since  constant timestamptz := v_now - make_interval(secs => within_seconds);
    v_jobs   jsonb;
    v_counts jsonb;
    v_facts  jsonb;
begin
    with every as materialized (
        select u.* from forebay.unfinished(v_kind, mirror_status.queue, mirror_status.group_name, expires_seconds) u),
    origins as materialized (  -- Read once for each, not for each job.
        select d.tag, d.priority, forebay._is_bulk(d.tag, d.priority, bulk_tags, bulk_priority) as is_bulk
        from (select distinct coalesce(e.tag, '') as tag, e.priority from every e) d),
    found as materialized (
        select e.*, o.is_bulk, e.due_at <= v_now as is_due
        from every e join origins o on o.tag = coalesce(e.tag, '') and o.priority = e.priority),
    sums as (
        select count(*) as waiting, count(*) filter (where f.is_due) as due_all,
               count(*) filter (where f.is_due and not f.is_bulk) as due, count(*) filter (where f.state = 'claimed') as claimed,
               count(*) filter (where f.state = 'running') as running,
               count(*) filter (where f.attempt > 1) as tried, min(f.due_at) filter (where f.is_due and not f.is_bulk) as oldest
        from found f)
    select jsonb_build_object(
        'due', s.due, 'due_all', s.due_all, 'waiting', s.waiting, 'claimed', s.claimed, 'running', s.running, 'tried', s.tried, 'oldest_due_at', s.oldest,
        'above_since', case when s.due > most then (
            select f.due_at from found f where f.is_due and not f.is_bulk order by f.due_at offset most limit 1) end,
        'stuck', coalesce((
            select jsonb_agg(jsonb_build_object('job_id', o.job_id, 'tag', o.tag, 'attempts', o.attempt - 1, 'due_at', o.due_at,
                                                'error', (select x.message from forebay.failure x
                                                          where x.job_id = o.job_id order by x.failed_at desc limit 1))
                             order by o.due_at, o.job_id)
            from (select * from found f where f.attempt > 1 and not f.is_bulk order by f.due_at, f.job_id limit 5) o), '[]'),
        'by', coalesce((
            select jsonb_agg(jsonb_build_object('tag', o.tag, 'priority', o.priority, 'is_bulk', o.is_bulk, 'due', o.due,
                                                'later', o.later, 'tried', o.tried, 'oldest_due_at', o.oldest)
                             order by o.priority, o.tag nulls first)
            from (select f.tag, f.priority, f.is_bulk, count(*) filter (where f.is_due) as due,
                         count(*) filter (where not f.is_due) as later, count(*) filter (where f.attempt > 1) as tried,
                         min(f.due_at) filter (where f.is_due) as oldest
                  from found f group by f.tag, f.priority, f.is_bulk) o), '[]'))
    into v_jobs from sums s;

    with summed as materialized (
        select c.outcome, c.tag, c.priority, sum(c.count) as total,
               coalesce(sum(c.count) filter (where c.at > v_since), 0) as lately,
               max(c.at) filter (where isfinite(c.at)) as last_at
        from forebay.mirror_count c where c.mirror = name
        group by c.outcome, c.tag, c.priority)
    select jsonb_build_object(
        'counts', coalesce(jsonb_agg(jsonb_build_object('outcome', s.outcome, 'tag', s.tag, 'priority', s.priority,
                                                        'lately', s.lately, 'total', s.total)
                                     order by s.outcome, s.priority, s.tag nulls first), '[]'),
        'completed', coalesce(sum(s.lately) filter (where s.outcome like 'completed.%'
                                                      and not forebay._is_bulk(s.tag, s.priority, bulk_tags, bulk_priority)), 0),
        'completed_at', max(s.last_at) filter (where s.outcome like 'completed.%'
                                                 and not forebay._is_bulk(s.tag, s.priority, bulk_tags, bulk_priority)))
    into v_counts
    from summed s;

    select jsonb_build_object(
        'at', v_now,
        'expired', (select count(*) from forebay.dead_letter d
                    where d.queue = mirror_status.queue and d.kind = v_kind and d.reason = 'expired' and d.redriven_at is null),
        'dead', (select count(*) from forebay.dead_letter d
                 where d.queue = mirror_status.queue and d.kind = v_kind and d.reason <> 'expired' and d.redriven_at is null),
        'paused_at', (select forebay._paused_since(g.paused_at, g.resume_at) from forebay.queue_group g
                      where g.queue = mirror_status.queue and g.name = mirror_status.group_name),
        'breakers', coalesce((
            select jsonb_agg(jsonb_build_object('who', o.who, 'place', o.place, 'open_until', o.open_until, 'why', o.why)
                             order by o.place desc, o.who)
            from (select distinct on (b.who, b.place) b.* from forebay.mirror_breaker b
                  where b.mirror = name and b.at > v_now - interval '1 hour' order by b.who, b.place, b.at desc) o
            -- A live breaker is tried at least every minute, and records the result.
            where o.open_until > v_now - interval '3 minutes'), '[]'),
        'samples', coalesce((
            select jsonb_agg(jsonb_build_array(o.at, o.due) order by o.at)
            from (select s.at, s.due from forebay.mirror_sample s where s.mirror = name order by s.at desc limit 200) o), '[]'),
        'audits', forebay.mirror_audits(name, 5))
    into v_facts;
    return v_facts || v_jobs || v_counts;
end
$$;


-- functions/mirror/trim.sql

-- Add up old counts, the oldest first; returns the number of rows added up.
--
-- Invariant: the sum of a mirror's counts does not change, except that it stops at the end of bigint.
create function forebay._trim_mirror_counts(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_now   constant timestamptz := forebay._now();
    v_level smallint := coalesce((p_after::jsonb ->> 0)::smallint, 0);
    v_from  timestamptz := coalesce((p_after::jsonb ->> 1)::timestamptz, '-infinity');
    v_before timestamptz;
    v_at    timestamptz;
begin
    v_before := case v_level when 0 then date_trunc('minute', v_now - interval '10 minutes')
                             when 1 then date_trunc('hour', v_now - interval '1 day')
                             else v_now - forebay._retention(1) end;
    with gone as (
        delete from forebay.mirror_count c
        where c.ctid = any (array(
            select o.ctid from forebay.mirror_count o
            where o.level = v_level and o.at >= v_from and o.at < v_before order by o.at limit p_most))
        returning c.*),
    added as (
        select g.mirror, case v_level when 0 then date_trunc('minute', g.at) when 1 then date_trunc('hour', g.at) else '-infinity' end as at,
               g.outcome, g.tag, g.priority, least(sum(g.count), 9223372036854775807)::bigint as count
        from gone g group by 1, 2, 3, 4, 5),
    kept as (
        insert into forebay.mirror_count as c (mirror, at, level, outcome, tag, priority, count)
        select a.mirror, a.at, v_level + 1, a.outcome, a.tag, a.priority, a.count from added a
        on conflict (mirror, outcome, tag, priority) where level = 3
        do update set count = least(c.count::numeric + excluded.count, 9223372036854775807)::bigint)
    select count(*), max(g.at) into rows, v_at from gone g;
    next := case when rows >= p_most then jsonb_build_array(v_level, v_at)
                 when v_level < 2 then jsonb_build_array(v_level + 1, null) end;
end
$$;


-- Delete samples of waiting jobs.
create function forebay._trim_mirror_samples(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$
    select * from forebay._trim_by_time('mirror_sample', 'at', forebay._now() - interval '2 days', p_after, p_most)
$$;


-- Delete records of circuit breakers.
create function forebay._trim_mirror_breakers(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$
    select * from forebay._trim_by_time('mirror_breaker', 'at', forebay._now() - interval '2 days', p_after, p_most)
$$;


-- Delete records of audits.
create function forebay._trim_mirror_audits(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$
    select * from forebay._trim_by_time(
        'mirror_audit', 'ended_at', forebay._now() - greatest(interval '365 days', forebay._retention(1)), p_after, p_most)
$$;


-- functions/mirror/unfinished.sql

-- grant: worker, operator, reader

-- The jobs of a kind that have not ended, for one group of a queue, in one snapshot: waiting, claimed or scheduled.
--
-- Visits every one of them. State and attempt are those of forebay.job(); due_at is when a job was first due, whatever its state
-- since.
--
-- Parameters: expires_seconds, how long after its due time a job of the kind expires.
-- Errors: none; no row when the queue is not known. Parked jobs are not seen.
-- pages: 300 + 60 a lane + 1 a waiting job + 20 an open lease
create function forebay.unfinished(
    kind text, queue text default 'default', group_name text default 'default', expires_seconds double precision default 2592000)
returns table (job_id bigint, state text, priority integer, tag text, attempt integer, enqueued_at timestamptz, due_at timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
    v_position     forebay.promotion;
    v_now      constant timestamptz := forebay._now();
    v_expires  constant interval := make_interval(secs => least(unfinished.expires_seconds, 3e9));
begin
    select p.* into v_position from forebay.promotion p order by p.no desc limit 1;
    return query
    with readers as materialized (
        select row_number() over () as nr, l.lane, l.priority, g.group_id,
               case l.audience when 0 then coalesce(g.start_after, '1:1:') else '1:1:' end as start, b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq
        from (select distinct i.lane, i.priority, i.audience from forebay.lane i where i.queue = unfinished.queue) l
        left join forebay.queue_group g on g.queue = unfinished.queue and g.name = unfinished.group_name
        left join lateral (select i.* from forebay.batch i
                           where i.group_id = g.group_id and i.lane = l.lane order by i.no desc limit 1) b on true
        left join forebay.segment s on s.segment_id = b.pos_segment
        where l.audience = 0 or abs(l.audience) = g.group_id),
    found as (
        select coalesce(l.job_id, l.seq) as job_id, 'ready' as state, r.priority, l.tag, l.attempt, l.enqueued_at, l.expires_at, v_now as latest
        from (select array_agg(row(r.nr, r.lane, r.start, r.snap_from, r.snap_to, r.lo, r.hi, r.pos_xid, r.pos_seq)::forebay._cursor) as all
              from readers r) c
        cross join lateral forebay._unread_of_kind(c.all, unfinished.kind) l
        join readers r on r.nr = l.nr
        union all
        select coalesce(l.job_id, l.seq),
               case when coalesce(l.job_id, l.seq) = any (h.running_jobs) and h.heartbeat_at >= b.claimed_at then 'running' else 'claimed' end,
               r.priority, l.tag, l.attempt, l.enqueued_at, l.expires_at, v_now
        from forebay.lease e
        join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f on true
        left join lateral (select i.heartbeat_at, i.running_jobs from forebay.heartbeat i
                           where i.lease_id = e.lease_id order by i.heartbeat_at desc limit 1) h on true
        join forebay.batch b on b.lease_id = e.lease_id and b.claim_no >= f.floor
        join readers r on r.group_id = b.group_id and r.lane = b.lane
        join lateral unnest(b.seqs) with ordinality u (seq, nr) on not exists (
            select from forebay.settlement s
            where s.lease_id = b.lease_id and s.claim_no = b.claim_no
              and (s.offsets is null or u.nr::smallint = any (s.offsets)))
        join lateral (select i.* from forebay._row(coalesce(b.lanes[u.nr], b.lane), coalesce(b.xids[u.nr], b.xids[1]), u.seq) i
                      where i.kind = unfinished.kind) l on true
        where e.closed_at is null
        union all
        select d.job_id, forebay._state_of_deferred(d.attempt, d.pauses), r.priority, d.tag, d.attempt, d.enqueued_at, d.expires_at,
               case when d.attempt is null and d.pauses is null then d.run_at else v_now end
        from readers r
        join forebay.deferred d on d.lane = r.lane and d.kind = unfinished.kind
        where not (v_position.no is not null and pg_visible_in_snapshot(d.xid, v_position.snap)
                   and (d.run_at, d.deferred_id) <= (v_position.run_at, v_position.deferred_id)))
    select o.job_id, o.state, o.priority, o.tag, coalesce(o.attempt, 0) + 1, o.enqueued_at,
           -- The expiry gives the due time; a job in the log is due no later than now, a deferred one no later than its start.
           greatest(o.enqueued_at, least(coalesce(o.expires_at, o.enqueued_at + interval '30 days') - v_expires, o.latest))
    from found o;
end
$$;


-- functions/operate/apply_queues.sql

-- grant: operator

-- Make the settings of queues what an application declares, except those that were changed by hand. Returns a row for each
-- difference that there was: database, what the database had, null for the default; code, what is declared; applied, applied_by,
-- applied_at, what was applied last, by which application and when; action:
--
--   set, change, remove  done. A setting is removed if it is no longer declared and still has the value that was applied.
--   kept      changed by hand since it was applied; the code did not change.
--   conflict  changed by hand, and the code has another value too; or it was set by hand before it was first declared; or another
--             application applied it. The database's value stays.
--   forget    no longer declared. It stays, because it was changed by hand, or because it is a group: groups are never closed.
--
-- changed_by and changed_at name who last changed a setting that is kept, in conflict or forgotten, as the event log has it. Each change
-- is in the event log, with the actor "apply" and the name of the application.
--
-- Calls wait for each other, also for those of forebay.limit_queue(), so each compares with what the last one left.
--
-- Parameters:
--   app        the name of the application: settings that it no longer declares are removed, those of other applications are not
--   queues     an array of objects with the queue's name as queue, and max_waiting, max_waiting_group, rate, burst, concurrency, key_rate, key_burst,
--              key_concurrency as in forebay.limit_queue(), shards, dead_keep_days (a number or "forever"), groups (names).
--              If no group of the queue was opened before, all of them start at the beginning.
--   overwrite  take the declared value also for what is kept or in conflict
-- Errors: JQ001 a declaration is refused, JQ017 a declared group is being closed.
-- Locks: the tables of these settings, in a mode that makes only other calls that change them wait, until the transaction ends.
create function forebay.apply_queues(
    app text, queues jsonb, overwrite boolean default false)
returns table (queue text, setting text, database jsonb, code jsonb, applied jsonb, applied_by text,
               applied_at timestamptz, action text, changed_by text, changed_at timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_all   forebay._queue_difference[];
    v_row   record;
    v_start text;
    v_queue text;
    v_actor constant text := current_setting('forebay.actor', true);
begin
    if (length(apply_queues.app) between 1 and 200 and apply_queues.app !~ '[[:cntrl:]]') is not true then
        raise exception using errcode = 'JQ001',
            message = format('app %s is not a name of 1 to 200 characters', coalesce(quote_literal(left(apply_queues.app, 40)), 'null'));
    end if;
    -- What is compared must not change before it is replaced.
    lock table forebay.applied_setting, forebay.queue_limits, forebay.queue_shards, forebay.dead_retention in share row exclusive mode;
    v_all := array(select d from forebay._compare_queues(apply_queues.app, apply_queues.queues, coalesce(apply_queues.overwrite, false)) d);

    perform set_config('forebay.actor', concat_ws(' by ', 'apply ' || apply_queues.app, nullif(v_actor, '')), true);
    for v_row in
        select d.queue, jsonb_object_agg(d.setting, d.code) as v, array_agg(d.setting) as names
        from unnest(v_all) d
        where d.action in ('set', 'change', 'remove') and d.setting in ('max_waiting', 'rate', 'concurrency', 'key_rate', 'key_concurrency')
        group by d.queue order by d.queue
    loop
        perform forebay.limit_queue(
            v_row.queue, max_waiting => coalesce(v_row.v #>> '{max_waiting,max_waiting}', v_row.v ->> 'max_waiting')::bigint,
            max_waiting_group => case when v_row.v -> 'max_waiting' <> 'null' then coalesce(v_row.v #>> '{max_waiting,max_waiting_group}', 'default') end,
            rate => (v_row.v #>> '{rate,rate}')::double precision, burst => (v_row.v #>> '{rate,burst}')::integer,
            concurrency => (v_row.v ->> 'concurrency')::integer,
            key_rate => (v_row.v #>> '{key_rate,rate}')::double precision, key_burst => (v_row.v #>> '{key_rate,burst}')::integer,
            key_concurrency => (v_row.v ->> 'key_concurrency')::integer, remove => v_row.names);
    end loop;

    for v_row in
        select d.* from unnest(v_all) with ordinality d
        where d.action in ('set', 'change', 'remove') and (d.setting in ('shards', 'dead_keep_days') or d.setting like 'group %')
        order by d.ordinality
    loop
        if v_row.setting = 'shards' then
            perform forebay.shard_queue(v_row.queue, coalesce(v_row.code::integer, 1));
        elsif v_row.setting = 'dead_keep_days' then
            perform forebay.keep_dead(v_row.queue, case when jsonb_typeof(v_row.code) = 'number' then v_row.code::integer end, v_row.code is null);
        else
            if v_queue is distinct from v_row.queue then
                v_queue := v_row.queue;
                v_start := case when not exists (select from forebay.queue_group g where g.queue = v_queue and not g.is_implied) then 'beginning' end;
            end if;
            perform forebay.open_group(v_row.queue, substr(v_row.setting, 7), v_start);
        end if;
    end loop;

    perform set_config('forebay.actor', coalesce(v_actor, ''), true);
    delete from forebay.applied_setting a using unnest(v_all) d
    where a.queue = d.queue and a.setting = d.setting and d.code is null;
    insert into forebay.applied_setting (queue, setting, value, app, applied_at)
    select d.queue, d.setting, d.code, apply_queues.app, forebay._now() from unnest(v_all) d
    where d.code is not null and d.action in ('set', 'change', 'record')
    on conflict on constraint applied_setting_pkey do update
    set value = excluded.value, app = excluded.app, applied_at = excluded.applied_at;
    return query select d.* from unnest(v_all) d where d.action <> 'record';
end
$$;


-- functions/operate/cancel.sql

-- grant: producer, worker, operator

-- Cancel a job, in the caller's transaction. Returns
--
--   cancelled      the job waits, or was cancelled before: it will not start. A claim at the same moment may still start it; then its
--                  handler is requested to stop;
--   requested      a worker has the job in one of the groups: a running handler is requested to stop, and the first writer wins: a job
--                  that finishes first stays done;
--   already ended  the job is done, expired or dead; nothing was changed;
--   unknown        no such job: never enqueued, not visible to this transaction, or past retention; nothing was changed.
--
-- The job's next claim or settlement decides. A worker learns of the request for a running handler at its next heartbeat.
--
-- Parameters: group_name, null for every group.
-- Errors: JQ014 no such group.
-- pages: 460 + 60 a segment
create function forebay.cancel(job_id bigint, group_name text default null) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_group_id bigint;
    v_queue    text;
    v_states   text[];
begin
    select min(j.queue), array_agg(j.state) filter (where cancel.group_name is null or j.group_name = cancel.group_name)
    into v_queue, v_states
    from forebay.job(cancel.job_id) j;
    if v_queue is null then
        return 'unknown';
    end if;
    if cancel.group_name is not null then
        perform forebay._require_group(v_queue, cancel.group_name);
        select g.group_id into v_group_id from forebay.queue_group g where g.queue = v_queue and g.name = cancel.group_name;
    end if;
    if v_states is null then  -- The group was opened after the job, and does not read it.
        return 'unknown';
    elsif v_states <@ array['cancelled'] then
        return 'cancelled';
    elsif v_states <@ array['done', 'cancelled', 'expired', 'dead'] then
        return 'already ended';
    end if;
    if not exists (select from forebay.tombstone t
                   where t.job_id = cancel.job_id and t.reason = 'c'
                     and (t.group_id is null or t.group_id = v_group_id)) then
        insert into forebay.tombstone (job_id, group_id, reason, recorded_at)
        values (cancel.job_id, v_group_id, 'c', forebay._now());
        perform forebay._withdraw(array[cancel.job_id], v_group_id);
        perform forebay._record_event('jobs.cancel', v_queue, cancel.group_name, p_subject_id => cancel.job_id, p_count => 1);
    end if;
    return case when v_states && array['claimed', 'running'] then 'requested' else 'cancelled' end;
end
$$;


-- functions/operate/close_group.sql

-- grant: operator

-- Begin to close a consumer group, in the caller's transaction; returns what that gives up and releases.
--
-- From the commit on the group gets no jobs. Its running jobs finish. Jobs that wait for it, retries included, are cancelled for
-- this group; other groups keep theirs. forebay.close_groups() does the rest in steps: workers call it, and so does
-- `forebay groups close`. Then the group is gone, and segments that only it kept can be emptied. Its dead letters stay.
--
-- If it is the queue's only group, jobs that are enqueued later wait for the next group that is opened.
--
-- Parameters: force, close it although workers serve it; dry_run, change nothing.
-- Returns: cancelled, jobs that wait now; running, jobs that workers have; segments and bytes, what can be emptied then.
-- Errors: JQ014 no such group, JQ017 workers serve it.
-- Locks: the group's row.
create function forebay.close_group(
    queue text, name text default 'default', force boolean default false, dry_run boolean default false,
    out cancelled bigint, out running bigint, out segments bigint, out bytes bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
declare
    v_group forebay.queue_group;
    v_state record;
begin
    if close_group.name is null then
        raise exception using errcode = 'JQ001', message = 'name null: give the group to close';
    end if;
    perform forebay._require_group(close_group.queue, close_group.name);
    select g.* into v_group from forebay.queue_group g
    where g.queue = close_group.queue and g.name = close_group.name for no key update;
    if not found then
        perform forebay._require_group(close_group.queue, close_group.name);  -- It went meanwhile.
    end if;
    select * into v_state from forebay.groups(close_group.queue) g where g.group_name = close_group.name;
    if v_state.is_served and v_group.closing_at is null and close_group.force is not true and close_group.dry_run is not true then
        raise exception using errcode = 'JQ017',
            message = format('workers serve group %s of queue %s: they have %s jobs of it', close_group.name, close_group.queue, v_state.running),
            detail = jsonb_build_object('queue', close_group.queue, 'group', close_group.name),
            hint = 'Stop the workers of this group first, or force it: running jobs finish, and the workers get no more.';
    end if;
    cancelled := v_state.unread + (
        select count(*) from forebay.deferred d
        where d.kind <> '' and d.lane in (select l.lane from forebay.lane l
                         where l.queue = v_group.queue and abs(l.audience) = v_group.group_id)
          and not exists (select from (select p.* from forebay.promotion p order by p.no desc limit 1) p
                          where pg_visible_in_snapshot(d.xid, p.snap) and (d.run_at, d.deferred_id) <= (p.run_at, p.deferred_id)));
    running := v_state.running;
    segments := v_state.held_segments;
    bytes := v_state.held_bytes;
    if v_group.closing_at is null and close_group.dry_run is not true then
        -- A pause is what claims look at.
        update forebay.queue_group g
        set paused_at = coalesce(g.paused_at, forebay._now()), resume_at = null, closing_at = forebay._now(), closing_snap = pg_current_snapshot()
        where g.group_id = v_group.group_id;
        perform forebay._record_event('groups.close', close_group.queue, close_group.name, p_count => close_group.cancelled,
                                      p_new => jsonb_build_object('force', close_group.force is true, 'running', close_group.running));
    end if;
end
$$;


-- functions/operate/compare_queues.sql

-- grant: worker, operator, reader

-- Compare the queues that an application declares with the database, and change nothing. Returns a row for each difference, as
-- forebay.apply_queues() does.
--
-- Parameters: see forebay.apply_queues().
-- Errors: JQ001 a declaration is refused.
create function forebay.compare_queues(
    app text, queues jsonb, overwrite boolean default false)
returns table (queue text, setting text, database jsonb, code jsonb, applied jsonb, applied_by text,
               applied_at timestamptz, action text, changed_by text, changed_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select d.* from forebay._compare_queues(compare_queues.app, compare_queues.queues, coalesce(compare_queues.overwrite, false)) d
    where d.action <> 'record'
$$;


-- functions/operate/configure.sql

-- grant: none

-- Change a database-wide setting; returns its previous value.
--
-- Settings: segment_rows 100 to 100000000, reserve_rows 1000 to 10^12, retention_days 0 to 36500, retention_bytes
-- from 0, lane_idle_hours 0 to 876000, args_bytes_max 1024 to 104857600, args_depth_max 64 to 200, result_bytes_max 1024 to 104857600.
-- Errors: JQ001 an unknown name or a value outside its range.
create function forebay.configure(name text, value bigint) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_before bigint;
    v_range  int8range := case configure.name
        when 'segment_rows' then int8range(100, 100000000, '[]')
        when 'reserve_rows' then int8range(1000, 1000000000000, '[]')
        when 'retention_days' then int8range(0, 36500, '[]')
        when 'retention_bytes' then int8range(0, null, '[]')
        when 'lane_idle_hours' then int8range(0, 876000, '[]')
        when 'args_bytes_max' then int8range(1024, 104857600, '[]')
        when 'result_bytes_max' then int8range(1024, 104857600, '[]')
        when 'args_depth_max' then int8range(64, 200, '[]') end;  -- Small arguments are never deeper: see _check_args.
begin
    if v_range is null then
        raise exception using errcode = 'JQ001', message = format('unknown setting %s', coalesce(quote_literal(configure.name), 'null')),
            hint = 'One of args_bytes_max, args_depth_max, lane_idle_hours, reserve_rows, result_bytes_max, retention_bytes, retention_days, segment_rows.';
    elsif configure.value is null or not v_range @> configure.value then
        raise exception using errcode = 'JQ001', message = format('%s %s is outside %s', configure.name, coalesce(configure.value::text, 'null'), v_range),
            hint = 'Nothing was changed.';
    end if;
    select s.value into v_before from forebay.setting s where s.name = configure.name;
    update forebay.setting s set value = configure.value where s.name = configure.name;
    if v_before is distinct from configure.value then
        perform forebay._record_event('configure', p_old => jsonb_build_object(configure.name, v_before),
                                      p_new => jsonb_build_object(configure.name, configure.value));
    end if;
    return v_before;
end
$$;


-- functions/operate/dead_groups.sql

-- grant: operator, reader

-- Dead letters that were not redriven, grouped by cause, the newest death first: kind, class and place of the last error, reason of the
-- newest, how many, times of the first and the last death, the newest dead letter and the message of its last error, and whether
-- the cause is muted, and until when; null until it is unmuted.
--
-- Reads all dead letters, or those of one cause or queue. Parameters: null means any.
create function forebay.dead_groups(only_queue text default null, only_kind text default null, only_cause text default null)
returns table (cause text, kind text, error_type text, place text, reason text, jobs bigint, first_at timestamptz, last_at timestamptz,
               dead_id bigint, message text, is_muted boolean, muted_until timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
    select g.cause, d.kind, d.errors -> -1 ->> 'type', d.place, d.reason, g.jobs, g.first_at, g.last_at, d.dead_id,
           left(d.errors -> -1 ->> 'message', 500), m.cause is not null, m.until
    from (select i.cause, count(*) as jobs, min(i.died_at) as first_at, max(i.died_at) as last_at, max(i.dead_id) as dead_id
          from forebay.dead_letter i
          where i.redriven_at is null
            and (dead_groups.only_queue is null or i.queue = dead_groups.only_queue)
            and (dead_groups.only_kind is null or i.kind = dead_groups.only_kind)
            and (dead_groups.only_cause is null or i.cause = dead_groups.only_cause)
          group by i.cause) g
    join forebay.dead_letter d on d.dead_id = g.dead_id
    left join forebay.muted_cause m on m.cause = g.cause and (m.until > forebay._now() or m.until is null)
    order by g.last_at desc, g.cause
$$;


-- functions/operate/dead_summary.sql

-- grant: operator, reader

-- Dead letters by queue, kind, reason and class of the last error (empty: no error): how many are kept, how many of them were not
-- redriven, how many were deleted, and the day of the last death, in UTC. keep_days: how long the queue keeps them, null forever.
--
-- Reads all dead letters. Deletions are counted for jobs that died in the last 400 days.
create function forebay.dead_summary(only_queue text default null)
returns table (queue text, kind text, reason text, error_type text, kept bigint, not_redriven bigint, deleted bigint, last_died_on date,
               keep_days integer)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
    select u.queue, u.kind, u.reason, u.error_type, sum(u.kept)::bigint, sum(u.not_redriven)::bigint, sum(u.deleted)::bigint,
           max(u.died_on), forebay._days_of_dead(u.queue)
    from (select d.queue, d.kind, d.reason, coalesce(left(d.errors -> -1 ->> 'type', 200), '') as error_type,
                 (d.died_at at time zone 'UTC')::date as died_on, 1 as kept, (d.redriven_at is null)::integer as not_redriven, 0 as deleted
          from forebay.dead_letter d
          union all
          select c.queue, c.kind, c.reason, c.error_type, c.died_on, 0, 0, c.deleted from forebay.dead_deletion c) u
    where only_queue is null or u.queue = only_queue
    group by u.queue, u.kind, u.reason, u.error_type
    order by sum(u.not_redriven) desc, u.queue, u.kind, u.reason, u.error_type
$$;


-- functions/operate/depth.sql

-- grant: operator, reader

-- How many jobs wait and run, by queue, priority and group, counted in one snapshot. The states are those of forebay.job().
--
-- It continues from the last counts of waiting jobs: it visits the jobs enqueued, promoted or moved since, and in lanes of ordering keys
-- those claimed since; and scheduled jobs that were cancelled or replaced and are not due yet. The leader of maintenance renews
-- the counts every two seconds. Where no worker has run yet it visits every waiting job.
-- pages: 1000 + 100 a lane + 4 an uncounted job + 20 an open lease
create function forebay.depth(only_queue text default null)
returns table (queue text, priority integer, group_name text, scheduled bigint, ready bigint, claimed bigint, running bigint,
               retrying bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
    with waiting as materialized (
        select w.queue, w.group_id, w.group_name, u.priority, u.ready, u.scheduled, u.retrying
        from forebay._count_waiting(case when only_queue is not null then array[only_queue] end) w
        cross join lateral unnest(w.priorities, w.ready, w.scheduled, w.retrying) u (priority, ready, scheduled, retrying)),
    open_leases as materialized (
        select e.lease_id, f.floor, h.heartbeat_at, h.running_jobs
        from forebay.lease e
        join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f on true
        left join lateral (select i.heartbeat_at, i.running_jobs from forebay.heartbeat i
                           where i.lease_id = e.lease_id order by i.heartbeat_at desc limit 1) h on true
        where e.closed_at is null),
    open_batches as materialized (
        select b.lease_id, b.group_id, b.lane, b.seqs, b.xids, b.lanes, s.whole, s.offsets,
               e.running_jobs is not null and e.heartbeat_at >= b.claimed_at as is_reported
        from open_leases e
        join forebay.batch b on b.lease_id = e.lease_id and b.claim_no >= e.floor
        cross join lateral (
            select coalesce(bool_or(j.offsets is null), false) as whole,
                   coalesce(array_agg(o.nr) filter (where o.nr is not null), '{}') as offsets
            from forebay.settlement j left join lateral unnest(j.offsets) o (nr) on true
            where j.lease_id = b.lease_id and j.claim_no = b.claim_no) s),
    open_jobs as (
        select o.group_id, o.lane, sum(o.open) as open
        from (select b.group_id, b.lane, cardinality(b.seqs) - cardinality(b.offsets) as open
              from open_batches b where not b.whole and b.lanes is null
              union all
              -- A claim of ordering keys takes jobs of several lanes.
              select b.group_id, u.lane, 1
              from open_batches b cross join lateral unnest(b.lanes) with ordinality u (lane, nr)
              where not b.whole and u.nr <> all (b.offsets)) o
        group by o.group_id, o.lane),
    -- Heartbeats have ids of jobs, batches have numbers of rows: for a job's first row they are equal; other rows are read, one
    -- index probe each.
    reported as materialized (
        select distinct e.lease_id, j.job_id from open_leases e cross join lateral unnest(e.running_jobs) j (job_id)),
    handed_out as materialized (
        select b.lease_id, b.group_id, b.lane, u.seq, coalesce(b.lanes[u.nr], b.lane) as row_lane,
               case when cardinality(b.xids) = 1 then b.xids[1] else b.xids[u.nr] end as xid
        from open_batches b cross join lateral unnest(b.seqs) with ordinality u (seq, nr)
        where b.is_reported and not b.whole and u.nr <> all (b.offsets)),
    first_rows as materialized (
        select h.*, r.job_id from handed_out h join reported r on r.lease_id = h.lease_id and r.job_id = h.seq),
    has_later_rows as materialized (
        select r.lease_id from reported r group by r.lease_id
        having count(*) > (select count(*) from first_rows f where f.lease_id = r.lease_id)),
    later_rows as (
        select h.*, l.job_id
        from (select array_agg(i.row_lane) as lanes, array_agg(i.xid) as xids, array_agg(i.seq) as seqs
              from handed_out i where i.lease_id in (select n.lease_id from has_later_rows n)) a
        cross join lateral (select distinct i.seq, i.job_id from forebay._job_ids(a.lanes, a.xids, a.seqs) i) l
        join handed_out h on h.seq = l.seq
        join reported r on r.lease_id = h.lease_id and r.job_id = l.job_id),
    running_jobs as (
        select h.group_id, h.row_lane as lane, count(*) as running
        from (select * from first_rows union all select * from later_rows) h
        group by h.group_id, h.row_lane),
    by_priority as materialized (
        select o.group_id, l.priority, sum(o.open) as open, coalesce(sum(j.running), 0) as running
        from open_jobs o
        left join running_jobs j on j.group_id = o.group_id and j.lane = o.lane
        cross join lateral (select i.priority from forebay.lane i where i.lane = o.lane limit 1) l
        group by o.group_id, l.priority)
    select w.queue, w.priority, w.group_name, w.scheduled, w.ready, coalesce(p.open - p.running, 0)::bigint, coalesce(p.running, 0)::bigint,
           w.retrying
    from waiting w
    left join by_priority p on p.group_id = w.group_id and p.priority = w.priority
    order by w.queue, w.priority, w.group_name;
end
$$;


-- functions/operate/drop_queue.sql

-- grant: operator

-- Drop a queue, in the caller's transaction: cancel the jobs that wait, close its consumer groups, and remove its settings: limits of the
-- queue and of its keys, shards, pauses, maximum attempts, the time for which dead letters are kept, what an application declared,
-- and that kinds belong to it.
--
-- forebay.close_groups() does the rest of closing the groups: workers call it, and so does `forebay queues drop`. Dead letters, results and
-- events stay, with their own times. A job that is enqueued later makes the queue anew, and a worker that serves it opens its group again.
--
-- Parameters: token, of forebay.plan_change('truncate', ...): refuse if more jobs wait now; force, although workers serve it: their running
--   jobs finish; dry_run, change nothing.
-- Returns: cancelled, jobs that waited; running, jobs that workers have; groups, closed; settings, removed: limits, key limits, shards,
--   paused keys, max attempts, dead letters, declared, kinds.
-- Errors: JQ001 no queue is given, or one of Forebay; JQ014 no such queue; JQ017 workers serve it; JQ042 more jobs than those of the token.
-- Locks, until the transaction ends: rows of its groups, and those of forebay.limit_queue(), limit_key() and resume_key().
create function forebay.drop_queue(
    queue text, token text default null, force boolean default false, dry_run boolean default false,
    out cancelled bigint, out running bigint, out groups text[], out settings text[])
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
declare
    v_queue   constant text := drop_queue.queue;
    v_state   record;
    v_key     record;
begin
    if v_queue is null or starts_with(v_queue, 'forebay.') then
        raise exception using errcode = 'JQ001', column = 'queue',
            message = format('queue %s cannot be dropped', coalesce(quote_literal(left(v_queue, 40)), 'null')),
            hint = 'Give the name of a queue that is not one of Forebay.';
    end if;
    perform from forebay.queue_group g where g.queue = v_queue order by g.group_id for no key update;
    settings := array_remove(array[
        case when exists (select from forebay.queue_limits l where l.queue = v_queue) then 'limits' end,
        case when exists (select from forebay.key_limits l where l.queue = v_queue) then 'key limits' end,
        case when exists (select from forebay.queue_shards s where s.queue = v_queue) then 'shards' end,
        case when exists (select from forebay.key_pause p where p.queue = v_queue) then 'paused keys' end,
        case when exists (select from forebay.queue_attempts a where a.queue = v_queue) then 'max attempts' end,
        case when exists (select from forebay.dead_retention r where r.queue = v_queue) then 'dead letters' end,
        case when exists (select from forebay.applied_setting a where a.queue = v_queue) then 'declared' end,
        case when exists (select from forebay.kind_queue k where k.queue = v_queue) then 'kinds' end], null);
    select coalesce(array_agg(g.group_name order by g.group_name) filter (where not g.is_implied and g.closing_at is null), '{}') as names,
           coalesce(sum(g.running), 0) as running, string_agg(g.group_name, ', ' order by g.group_name) filter (where g.is_served) as served, count(*) as count
    into v_state from forebay.groups(v_queue) g;
    groups := v_state.names;
    running := v_state.running;
    if v_state.count = 0 and settings = '{}' and not exists (select from forebay.lane l where l.queue = v_queue) then
        raise exception using errcode = 'JQ014',
            message = format('there is no queue %s', quote_literal(left(v_queue, 128))),
            detail = jsonb_build_object('queue', v_queue, 'group', null),
            hint = 'Nothing was changed. `forebay queues list` lists the queues.';
    elsif v_state.served is not null and drop_queue.force is not true and drop_queue.dry_run is not true then
        raise exception using errcode = 'JQ017',
            message = format('workers serve queue %s: they have %s jobs of it', v_queue, running),
            detail = jsonb_build_object('queue', v_queue, 'group', v_state.served),
            hint = 'Nothing was changed. Stop the workers of this queue first, or force it: running jobs finish, and the workers get no more.';
    end if;
    if drop_queue.dry_run then
        cancelled := (select coalesce(sum(p.jobs), 0) from forebay.plan_change('truncate', jsonb_build_object('queue', v_queue)) p
                      where p.answer = 'cancelled');
        return;
    end if;
    cancelled := forebay.truncate_queue(v_queue, drop_queue.token);
    perform forebay.close_group(v_queue, g.name, force => true)
    from (select u.name from unnest(groups) u (name) order by u.name) g;
    perform forebay.resume_queue(v_queue) from (select) s where v_state.count > cardinality(groups);

    for v_key in select l.key from forebay.key_limits l where l.queue = v_queue order by l.key loop
        perform forebay.limit_key(v_queue, v_key.key, remove => true);
    end loop;
    if exists (select from forebay.queue_limits l where l.queue = v_queue) then
        perform forebay.limit_queue(v_queue, remove => '{all}');
    end if;
    for v_key in select p.sort, p.key from forebay.key_pause p where p.queue = v_queue order by p.sort, p.key loop
        perform forebay.resume_key(v_queue, case v_key.sort when 'ordering' then v_key.key end, case v_key.sort when 'limit' then v_key.key end);
    end loop;
    delete from forebay.key_pause p where p.queue = v_queue;  -- Those that had ended.
    if 'shards' = any (settings) then
        perform forebay.shard_queue(v_queue, 1);
        delete from forebay.queue_shards s where s.queue = v_queue;
    end if;
    if 'dead letters' = any (settings) then
        perform forebay.keep_dead(v_queue, inherit => true);
    end if;
    perform forebay.set_max_attempts(v_queue);
    delete from forebay.applied_setting a where a.queue = v_queue;
    delete from forebay.kind_queue k where k.queue = v_queue;
    perform forebay._record_event('queues.drop', v_queue, p_count => cancelled,
                                  p_new => jsonb_build_object('groups', groups, 'settings', settings, 'running', running));
end
$$;


-- functions/operate/events.sql

-- grant: operator, reader

-- What operators did, newest first: pauses, limits, cancellations, redrives, settings, acts of the guard and others.
--
-- act is the name of the command, such as queues.pause or jobs.cancel; role the login role, actor who acted as the client says; old
-- and new are what was before and is now, or which jobs were chosen. For acts of the guard, new has the outcome; without one the
-- guard was stopped in between.
--
-- Parameters: null means any; only_act, an act or its first part, such as queues; since and until bound the time, until is excluded;
--   most, 1 to 10000.
-- Errors: JQ001 a bad most.
create function forebay.events(
    only_queue text default null, only_act text default null, since timestamptz default null, until timestamptz default null,
    most integer default 50)
returns table (event_id bigint, at timestamptz, role text, actor text, act text, queue text, group_name text, kind text,
               subject_id bigint, old jsonb, new jsonb, count bigint, detail text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
    if (events.most between 1 and 10000) is not true then
        raise exception using errcode = 'JQ001', column = 'most',
            message = format('most %s is outside 1 to 10000', coalesce(events.most::text, 'null'));
    end if;
    return query
    select * from (
        (select e.event_id, e.at, e.role, e.actor, e.act, e.queue, e.group_name, e.kind, e.subject_id, e.old, e.new, e.count, e.detail
         from forebay.event e
         where e.at >= coalesce(events.since, '-infinity') and e.at < coalesce(events.until, 'infinity')
           and (events.only_queue is null or e.queue = events.only_queue)
           and (events.only_act is null or e.act = events.only_act or starts_with(e.act, events.only_act || '.'))
         order by e.at desc, e.event_id desc limit events.most)
        union all
        (select g.event_id, g.at, g.acted_as, null, 'guard.' || replace(g.action, ' ', '-'), null, null, null, null,
                jsonb_strip_nulls(jsonb_build_object(
                    'server', g.server, 'user', g.user_name, 'application', g.application, 'database', g.database_name, 'state', g.state,
                    'xact_start', g.xact_start)),
                jsonb_build_object('outcome', g.outcome), null,
                format('%s %s: %s', g.holder, g.name, g.reason)
         from forebay.guard_event g
         where g.at >= coalesce(events.since, '-infinity') and g.at < coalesce(events.until, 'infinity')
           and events.only_queue is null
           and (events.only_act is null or events.only_act = 'guard' or 'guard.' || replace(g.action, ' ', '-') = events.only_act)
         order by g.at desc limit events.most)) found
    order by 2 desc, 1 desc limit events.most;
end
$$;


-- functions/operate/explain_job.sql

-- grant: operator, reader

-- What decides whether and when a job starts: one row for each group that reads its queue, with facts for
-- `forebay doctor --job`. The state of the job is in forebay.job(), its failed attempts in forebay.job_history().
--
-- One row without a group: no such job is visible. Its facts: last_id, the newest number of the log; is_past_retention, segments
-- with such numbers were removed; writers, sessions with an open transaction that has written jobs.
-- Else facts has:
--   is_same_cluster        false: the log was restored from another cluster, and nothing runs
--   paused_at, resume_at, closing_at  of the group
--   is_served              a living worker serves the group: it says so, has jobs of it, or looks for some
--   workers, others        names of living workers that serve the group, and of other living workers, at most 5 each
--   kind_queue, has_kinds  the queue that workers have declared for the job's kind; whether they have declared any kind
--   last_claim_at, last_claim_by, last_claim_alive  of the group, in any lane
--   holder                 of a claimed or running job: worker, silent_seconds, suspect_seconds, lease_seconds, jobs, running
--   ordering_key, key_job  the job of the key that must end first
--   held_by                the dead letter that holds the key
--   paused_key, key_paused_at, key_resume_at  while a key of the job is paused: ordering or limit; since when, and when the pause ends,
--                          null: when it is resumed
--   key                    of a job that is parked behind its key: the row of forebay.key()
--   limit_key, limits, running, key_running, permits, key_permits, next_start_at, key_next_start_at
--   before                 ready jobs that come first: of a better priority, or earlier in the job's lane; at most 10,001
--   is_suspect             it was running when its worker was lost: it runs alone
--
-- Visits every waiting job of the queue.
-- Errors: none.
create function forebay.explain_job(job_id bigint)
returns table (group_name text, facts jsonb)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_id    constant bigint := explain_job.job_id;
    v_group record;
    v_row   record;
begin
    for v_group in
        select q.queue, g.group_id, g.name, forebay._paused_since(g.paused_at, g.resume_at) as paused_at, g.resume_at, g.closing_at
        from (select i.queue from forebay.lane i
              where i.lane in (select r.lane from forebay._rows_of(v_id) r
                               union select d.lane from forebay.deferred d where d.job_id = v_id)
              limit 1) q
        left join forebay.queue_group g on g.queue = q.queue
        order by g.created_at, g.group_id
    loop
        select r.xid, r.seq, r.lane, r.kind, r.ordering_key, r.limit_key, i.priority, i.audience into v_row
        from forebay._rows_of(v_id) r
        cross join lateral (select l.priority, l.audience from forebay.lane l where l.lane = r.lane limit 1) i
        where i.audience in (0, v_group.group_id, -v_group.group_id)
        order by r.seq desc limit 1;
        group_name := coalesce(v_group.name, 'default');
        facts := jsonb_build_object(
                     'is_same_cluster', forebay._belongs_here(), 'paused_at', v_group.paused_at, 'resume_at', v_group.resume_at, 'closing_at', v_group.closing_at,
                     'is_suspect', coalesce(v_row.audience < 0, false),
                     'kind_queue', (select k.queue from forebay.kind_queue k where k.kind = v_row.kind),
                     'has_kinds', exists (select from forebay.kind_queue))
                 || forebay._explain_workers(v_group.group_id, v_group.queue, group_name, v_row.seq)
                 || forebay._explain_key(v_group.group_id, v_row.ordering_key, v_id)
                 || forebay._explain_limits(v_group.group_id, v_group.queue, v_row.limit_key)
                 || coalesce((select jsonb_build_object('paused_key', p.sort, 'key_paused_at', coalesce(p.begins_at, p.paused_at), 'key_resume_at', p.resume_at)
                              from forebay.key_pause p
                              where p.queue = v_group.queue
                                and coalesce(p.begins_at <= forebay._now(), true) and coalesce(p.resume_at > forebay._now(), true)
                                and (p.sort, p.key) in (('ordering', v_row.ordering_key), ('limit', v_row.limit_key))
                              order by p.sort desc limit 1), '{}')
                 || forebay._explain_parked(v_group.group_id, v_row.ordering_key, v_row.limit_key, v_row.xid, v_row.seq)
                 || jsonb_build_object('before', forebay._ready_before(v_group.group_id, v_group.queue, v_row.priority, v_row.lane, v_row.seq));
        return next;
    end loop;
    if not found then
        group_name := null;
        facts := jsonb_build_object(
            'last_id', coalesce(pg_sequence_last_value('forebay.log_seq'), 0),
            'is_past_retention',
            v_id < (select min(s.lo) from forebay.segment s where s.removed_at is null)
            or exists (select from forebay.segment s where s.lo <= v_id and s.hi > v_id and s.removed_at is not null),
            'writers', (
                select coalesce(jsonb_agg(w.name), '[]') from (
                    select distinct concat_ws(' ', nullif(a.application_name, ''), '(pid ' || a.pid || ')') as name
                    from pg_locks l join pg_class c on c.oid = l.relation join pg_stat_activity a on a.pid = l.pid
                    where l.mode = 'RowExclusiveLock' and l.database = (select d.oid from pg_database d where d.datname = current_database())
                      and c.relnamespace = 'forebay'::regnamespace and (c.relname ~ '^log_\d+$' or c.relname = 'deferred')
                      and l.pid <> pg_backend_pid()
                    order by name limit 5) w));
        return next;
    end if;
end
$$;


-- Was this schema made in, or adopted by, this cluster and database?
create function forebay._belongs_here() returns boolean
language sql stable
as $$
    select (c.system_identifier, c.database_oid) is not distinct from (h.system_identifier, h.database_oid)
    from forebay._identity() h
    left join lateral (select * from forebay.cluster order by cluster_no desc limit 1) c on true
$$;


-- Facts about the workers of a group, and about the one that has the row p_seq.
create function forebay._explain_workers(p_group_id bigint, p_queue text, p_group_name text, p_seq bigint) returns jsonb
language sql volatile
as $$
    with alive as materialized (
        select l.lease_id, l.worker, l.details, l.suspect_seconds, l.lease_seconds, h.running_jobs,
               extract(epoch from clock_timestamp() - h.heartbeat_at)::float8 as silent
        from forebay.lease l
        left join lateral (select i.heartbeat_at, i.running_jobs from forebay.heartbeat i
                           where i.lease_id = l.lease_id order by i.heartbeat_at desc limit 1) h on true
        where l.closed_at is null),
    open_jobs as materialized (select o.group_id, o.lease_id, o.seq from forebay._open_jobs() o),
    newest as (
        select b.claimed_at, b.lease_id
        from (select distinct i.lane from forebay.lane i where i.queue = p_queue) i
        cross join lateral (select b.claimed_at, b.lease_id from forebay.batch b
                            where b.group_id = p_group_id and b.lane = i.lane and b.lease_id is not null
                            order by b.no desc limit 1) b
        order by b.claimed_at desc limit 1),
    names as (
        select a.worker, exists (select from open_jobs o where o.group_id = p_group_id and o.lease_id = a.lease_id)
                         or coalesce(a.details -> 'queues' ? p_queue and coalesce(a.details ->> 'group', 'default') = p_group_name, false) as serves
        from alive a where a.silent <= a.lease_seconds)
    select jsonb_build_object(
        'is_served', p_group_id is not null
                     and (forebay._leader_of(p_group_id) is not null and exists (select from names)
                          or exists (select from names n where n.serves)),
        'is_watched', p_group_id is not null and forebay._leader_of(p_group_id) is not null and exists (select from names),
        'workers', coalesce((select jsonb_agg(n.worker) from (select i.worker from names i where i.serves order by 1 limit 5) n), '[]'),
        'others', coalesce((select jsonb_agg(n.worker) from (select i.worker from names i where not i.serves order by 1 limit 5) n), '[]'),
        'last_claim_at', (select n.claimed_at from newest n),
        'last_claim_by', (select l.worker from newest n join forebay.lease l using (lease_id)),
        'last_claim_alive', exists (select from newest n join alive a using (lease_id) where a.silent <= a.lease_seconds),
        'holder', (
            select jsonb_build_object('worker', a.worker, 'silent_seconds', a.silent, 'suspect_seconds', a.suspect_seconds,
                                      'lease_seconds', a.lease_seconds,
                                      'jobs', (select count(*) from open_jobs i where i.lease_id = o.lease_id),
                                      'running', coalesce(cardinality(a.running_jobs), 0))
            from open_jobs o join alive a using (lease_id)
            where o.group_id = p_group_id and o.seq = p_seq limit 1))
$$;


-- Facts about the ordering key of a job: which job of the key must end first. Jobs that no cursor has passed are not looked at.
create function forebay._explain_key(p_group_id bigint, p_ordering_key text, p_job_id bigint) returns jsonb
language plpgsql stable
as $$
declare
    v_key    record;
    v_first  bigint;
begin
    if p_ordering_key is null or p_group_id is null then
        return jsonb_build_object('ordering_key', p_ordering_key);
    end if;
    select * into v_key from forebay._key_states(p_group_id, array[p_ordering_key]);
    -- In this order: a job in a new row, for example a retry; those in a worker; requeued ones; parked ones.
    v_first := coalesce(
        v_key.head,
        (select u.job from forebay.key_run t cross join unnest(coalesce(t.offsets, array[t.place]), coalesce(t.jobs, array[t.low_seq])) u (place, job)
         where t.group_id = p_group_id and t.ordering_key = p_ordering_key and t.no between v_key.since and v_key.no
           and t.lease_id is not null
           and exists (select from forebay.batch b where b.lease_id = t.lease_id and b.claim_no = t.claim_no)
           and not exists (select from forebay.settlement s
                           where s.lease_id = t.lease_id and s.claim_no = t.claim_no
                             and (s.offsets is null or u.place = any (s.offsets)))
         order by t.no, u.place limit 1),
        forebay._job_id_of(v_key.waiting_seqs[1]),
        forebay._job_id_of((select p.seq from forebay.parked p
                            where p.group_id = p_group_id and p.ordering_key = p_ordering_key and p.parked_no > v_key.taken_up_to
                            order by p.parked_no limit 1)));
    return jsonb_build_object(
        'ordering_key', p_ordering_key, 'key_job', nullif(v_first, p_job_id),
        'held_by', (select d.dead_id from forebay.dead_letter d
                    where d.group_id = p_group_id and d.ordering_key = p_ordering_key and d.holds_key and d.redriven_as is null
                    order by d.dead_id limit 1));
end
$$;


-- Of a job that is parked behind its key: why the key does not run.
create function forebay._explain_parked(p_group_id bigint, p_ordering_key text, p_limit_key text, p_xid xid8, p_seq bigint) returns jsonb
language sql volatile
as $$
    select coalesce((
        select jsonb_build_object('key', to_jsonb(k) || jsonb_build_object('queue', g.queue, 'group', g.name))
        from forebay.queue_group g
        cross join lateral forebay._show_keys(g.group_id, array_remove(array[p_ordering_key], null),
                                                  array_remove(array[case when p_ordering_key is null then p_limit_key end], null)) k
        where g.group_id = p_group_id
          and case when p_ordering_key is not null then forebay._is_parked(p_group_id, p_ordering_key, p_seq)
                   when p_limit_key is not null then forebay._is_limit_parked(p_group_id, p_limit_key, p_xid, p_seq)
                   else false end), '{}')
$$;


-- The job of a row of the log, by the row's number.
create function forebay._job_id_of(p_seq bigint) returns bigint
language plpgsql stable
as $$
declare
    v_segment bigint;
    v_job_id  bigint;
begin
    select s.segment_id into v_segment from forebay.segment s
    where s.lo <= p_seq and s.hi > p_seq and s.removed_at is null and forebay._has_table(s.segment_id);
    if v_segment is null then
        return null;
    end if;
    execute format('select coalesce(l.job_id, l.seq) from forebay.log_%s l where l.seq = $1', v_segment) into v_job_id using p_seq;
    return v_job_id;
end
$$;


-- Facts about the limits of a queue and of one of its limit keys.
create function forebay._explain_limits(p_group_id bigint, p_queue text, p_limit_key text) returns jsonb
language plpgsql volatile
as $$
declare
    v     forebay._limiter_view;
    v_key forebay._limit_state;
begin
    if pg_sequence_last_value('forebay.limiter_seq') is null
       or not exists (select from forebay.queue_limits l where l.queue = p_queue) then
        return jsonb_build_object('limit_key', p_limit_key);
    end if;
    v := forebay._read_limiter(coalesce(p_group_id, 0), p_queue);
    if p_limit_key is not null then
        v_key := (forebay._limit_states(p_group_id, array[p_limit_key], v.limits, v.at))[1];
    end if;
    return jsonb_build_object(
        'limit_key', p_limit_key,
        'limits', to_jsonb(v.limits) - 'queue' - 'starts_set_at'
                  || case when v_key.limits_no is null then '{}'
                          else jsonb_build_object('key_rate', v_key.rate, 'key_burst', v_key.burst, 'key_concurrency', v_key.concurrency) end,
        'running', (select coalesce(sum(o), 0) from unnest(v.opens) o),
        'key_running', coalesce(cardinality(v_key.leases), 0),
        'permits', case when (v.limits).rate is not null then forebay._permits(v.tat, (v.limits).rate, (v.limits).burst, v.at) end,
        'key_permits', case when v_key.rate is not null then v_key.tokens end,
        'next_start_at', forebay._next_start(v.tat, (v.limits).rate, (v.limits).burst),
        'key_next_start_at', forebay._next_start(v_key.tat, v_key.rate, v_key.burst));
end
$$;


-- When a bucket lets the next job start; null without a rate, or if the bucket was never used.
create function forebay._next_start(p_tat timestamptz, p_rate double precision, p_burst integer) returns timestamptz
language sql immutable
as $$ select p_tat - make_interval(secs => (coalesce(p_burst, ceil(p_rate)) - 1) / p_rate) $$;


-- How many ready jobs of a queue come before a row: those of a better priority, and earlier ones of its lane. At most 10,001.
create function forebay._ready_before(p_group_id bigint, p_queue text, p_priority integer, p_lane bigint, p_seq bigint) returns integer
language plpgsql stable
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_cursors forebay._cursor[];
    v_count   integer;
begin
    select array_agg(row(row_number, l.lane, case l.audience when 0 then coalesce(g.start_after, '1:1:') else '1:1:' end,
                         b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq)::forebay._cursor)
    into v_cursors
    from (select i.lane, i.audience, row_number() over () from (
              select distinct j.lane, j.audience from forebay.lane j
              where j.queue = p_queue and j.audience in (0, p_group_id, -p_group_id)
                and (j.priority < p_priority or j.lane = p_lane)) i) l
    left join forebay.queue_group g on g.group_id = p_group_id
    left join lateral (select i.* from forebay.batch i
                       where i.group_id = p_group_id and i.lane = l.lane order by i.no desc limit 1) b on true
    left join forebay.segment s on s.segment_id = b.pos_segment;
    if v_cursors is null then
        return 0;
    end if;
    execute 'select count(*) from (select from ('
        || forebay._unread_sql(v_cursors, 'l.lane, l.seq') || ') u where u.lane <> $2 or u.seq < $3 limit 10001) c'
        into v_count using v_cursors, p_lane, p_seq;
    return v_count;
end
$$;


-- functions/operate/groups.sql

-- grant: operator, reader

-- The consumer groups of all queues, or of one.
--
-- is_served: a worker serves the group now: an idle one leads it, or one has jobs of it. unread: jobs that wait for the group, and
-- oldest_unread_at, when the oldest of them was enqueued; retrying and snoozed jobs are not counted. running: jobs that workers
-- have. paused_at and resume_at: of a pause that lasts. held_segments, held_bytes: segments of the log that could be emptied without this group, whatever their age. claimed_at:
-- the last claim of a worker.
--
-- Visits every waiting job.
create function forebay.groups(only_queue text default null)
returns table (queue text, group_name text, is_implied boolean, is_served boolean, created_at timestamptz, paused_at timestamptz,
               resume_at timestamptz, closing_at timestamptz, unread bigint, oldest_unread_at timestamptz, running bigint, open_batches bigint,
               held_segments bigint, held_bytes bigint, claimed_at timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
begin
    return query
    with cursors as materialized (
        select row_number() over () as nr, g.group_id, l.lane,
               case l.audience when 0 then g.start_after else '1:1:' end as start,
               b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq
        from forebay.queue_group g
        join lateral (select distinct i.lane, i.audience from forebay.lane i
                      where i.queue = g.queue and i.audience in (0, g.group_id, -g.group_id)) l on true
        left join lateral (select i.* from forebay.batch i
                           where i.group_id = g.group_id and i.lane = l.lane order by i.no desc limit 1) b on true
        left join forebay.segment s on s.segment_id = b.pos_segment
        where groups.only_queue is null or g.queue = groups.only_queue),
    unread_rows as materialized (
        select c.group_id, sum(u.unread) as unread, min(u.oldest) as oldest
        from (select array_agg(row(i.nr, i.lane, i.start, i.snap_from, i.snap_to, i.lo, i.hi, i.pos_xid, i.pos_seq)::forebay._cursor) as all
              from cursors i) a
        cross join lateral forebay._count_unread(a.all) u
        join cursors c on c.nr = u.nr
        group by c.group_id),
    parked_rows as materialized (
        select p.group_id, sum(p.jobs) as parked from forebay._all_parked() p group by p.group_id),
    open_rows as materialized (
        select o.group_id, count(*) as jobs, count(distinct (o.lease_id, o.claim_no)) as batches from forebay._open_jobs() o group by o.group_id),
    held as materialized (
        select h.group_id, count(*) as segments,
               sum(pg_total_relation_size(to_regclass('forebay.log_' || h.segment_id)))::bigint as bytes
        from (select i.segment_id, min(i.group_id) as group_id
              from forebay._segment_holders(array(select s.segment_id from forebay.segment s join forebay.seal f using (segment_id)
                                                  where s.removed_at is null and forebay._has_table(s.segment_id)), false) i
              group by i.segment_id having count(distinct i.group_id) = 1) h
        group by 1)
    select g.queue, g.name, g.is_implied, o.jobs is not null or forebay._leader_of(g.group_id) is not null, g.created_at,
           case when g.closing_at is null then forebay._paused_since(g.paused_at, g.resume_at) end,
           case when g.resume_at > forebay._now() then g.resume_at end, g.closing_at,
           (coalesce(u.unread, 0) + coalesce(p.parked, 0))::bigint, u.oldest, coalesce(o.jobs, 0), coalesce(o.batches, 0),
           coalesce(h.segments, 0), coalesce(h.bytes, 0),
           (select max(b.claimed_at) from (select distinct c.lane from cursors c where c.group_id = g.group_id) c
            cross join lateral (select i.claimed_at from forebay.batch i
                                where i.group_id = g.group_id and i.lane = c.lane and i.lease_id is not null
                                order by i.no desc limit 1) b)
    from forebay.queue_group g
    left join unread_rows u on u.group_id = g.group_id
    left join parked_rows p on p.group_id = g.group_id
    left join open_rows o on o.group_id = g.group_id
    left join held h on h.group_id = g.group_id
    where groups.only_queue is null or g.queue = groups.only_queue
    order by g.queue, g.name;
end
$$;


-- The unsettled jobs of open leases.
create function forebay._open_jobs()
returns table (group_id bigint, lease_id bigint, claim_no bigint, seq bigint)
language sql stable
as $$
    select b.group_id, b.lease_id, b.claim_no, u.seq
    from forebay.lease e
    join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f on true
    join forebay.batch b on b.lease_id = e.lease_id and b.claim_no >= f.floor
    cross join lateral unnest(b.seqs) with ordinality u (seq, nr)
    where e.closed_at is null
      and not exists (select from forebay.settlement s
                      where s.lease_id = b.lease_id and s.claim_no = b.claim_no
                        and (s.offsets is null or u.nr::smallint = any (s.offsets)))
$$;


-- functions/operate/job.sql

-- grant: worker, operator, reader

-- The batch of a (group, lane) that disposed of a row, or null. Numbers are dense and high_seq only
-- rises: a binary search finds the first candidate; for late committers the batch is a few later.
create function forebay._batch_of(p_group_id bigint, p_lane bigint, p_seq bigint) returns forebay.batch
language plpgsql stable
as $$
declare
    v_low  bigint;
    v_high bigint;
    v_mid  bigint;
    v_at   bigint;
    v_row  forebay.batch;
begin
    select b.no into v_low from forebay.batch b where b.group_id = p_group_id and b.lane = p_lane order by b.no limit 1;
    select b.no into v_high from forebay.batch b where b.group_id = p_group_id and b.lane = p_lane order by b.no desc limit 1;
    while v_low < v_high loop
        v_mid := (v_low + v_high) / 2;
        select b.high_seq into v_at from forebay.batch b where b.group_id = p_group_id and b.lane = p_lane and b.no = v_mid;
        if v_at >= p_seq then
            v_high := v_mid;
        else
            v_low := v_mid + 1;
        end if;
    end loop;
    select b.* into v_row from forebay.batch b
    where b.group_id = p_group_id and b.lane = p_lane and b.no >= v_low
      and (p_seq = any (b.seqs) or p_seq = any (b.skipped))
    order by b.no limit 1;
    return v_row;
end
$$;


-- The state of a job, one row for each group that reads its queue.
--
-- state: scheduled, ready, claimed, running, retrying, done, cancelled, expired, dead. No row: no such job, or it ended
-- long ago and its segment has left the archive.
-- claimed, running: a worker has the job; it is running if the worker's last heartbeat listed it. A job that is shorter than
-- the interval between heartbeats may be claimed until it has ended.
-- attempt: the current or next attempt, from 1; for a job that has ended, the last one, 0 if it never ran.
-- max_attempts: as set at the enqueue, else as the worker reported with the last failed attempt; null while neither is known.
-- dead_id: the dead letter of the job. redriven_as: the job that this letter was redriven as. redriven_from and redriven_from_dead_id: the
-- job that died before, and its dead letter, if this job was made by a redrive.
-- For people and tests, not for a hot path: it costs a few index probes for each retry and group.
-- pages: 400 + 60 a segment
create function forebay.job(id bigint)
returns table (job_id bigint, group_name text, state text, queue text, priority integer, kind text, args jsonb,
               attempt integer, max_attempts integer, enqueued_at timestamptz, run_at timestamptz,
               expires_at timestamptz, tag text, correlation_id text, headers jsonb, cancel_requested boolean,
               worker text, claimed_at timestamptz, ended_at timestamptz, redriven_from bigint, redriven_as bigint,
               redriven_from_dead_id bigint, dead_id bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_group record;
    v_row   record;
    v_wait  record;
    v_position  forebay.promotion;
    v_batch forebay.batch;
    v_cur   record;
    v_end   record;
    v_id    constant bigint := job.id;
    v_archived constant bigint := forebay._archived_below();
begin
    select p.* into v_position from forebay.promotion p order by p.no desc limit 1;
    for v_group in
        select q.queue, g.group_id, g.name, g.start_after
        from (select i.queue from forebay.lane i
              where i.lane in (select r.lane from forebay._rows_of(v_id) r
                               union select d.lane from forebay.deferred d where d.job_id = v_id)
              limit 1) q
        left join forebay.queue_group g on g.queue = q.queue
        order by g.created_at, g.group_id
    loop
        queue := v_group.queue;
        group_name := coalesce(v_group.name, 'default');
        job_id := v_id;
        state := null;
        run_at := null;
        worker := null;
        claimed_at := null;
        ended_at := null;

        select d.*, i.priority as lane_priority into v_wait
        from forebay.deferred d
        join lateral (select l.priority, l.audience from forebay.lane l where l.lane = d.lane limit 1) i on true
        where d.job_id = v_id and i.audience in (0, v_group.group_id, -v_group.group_id)
          and not (v_position.no is not null and pg_visible_in_snapshot(d.xid, v_position.snap)
                   and (d.run_at, d.deferred_id) <= (v_position.run_at, v_position.deferred_id))
        order by d.deferred_id desc limit 1;
        select r.*, i.priority as lane_priority, i.audience into v_row
        from forebay._rows_of(v_id) r
        join lateral (select l.priority, l.audience from forebay.lane l where l.lane = r.lane limit 1) i on true
        where i.audience in (0, v_group.group_id, -v_group.group_id)
        order by r.seq desc limit 1;
        cancel_requested := exists (
            select from forebay.tombstone t
            where t.job_id = v_id and t.reason in ('c', 'r') and (t.group_id is null or t.group_id = v_group.group_id));
        select d.job_id, d.dead_id into redriven_from, redriven_from_dead_id from forebay.dead_letter d where d.redriven_as = v_id limit 1;
        select d.redriven_as, d.dead_id into redriven_as, dead_id from (
            -- Not through the index that has the order: its plan would read all dead letters.
            select i.redriven_as, i.dead_id from forebay.dead_letter i where i.job_id = v_id and i.group_id = v_group.group_id offset 0) d
        order by d.dead_id desc limit 1;

        if v_wait.job_id is not null then
            priority := v_wait.lane_priority;
            kind := v_wait.kind; args := v_wait.args; attempt := coalesce(v_wait.attempt, 0) + 1;
            max_attempts := v_wait.max_attempts; enqueued_at := v_wait.enqueued_at; run_at := v_wait.run_at;
            expires_at := coalesce(v_wait.expires_at, v_wait.enqueued_at + interval '30 days');
            tag := v_wait.tag; correlation_id := v_wait.correlation_id; headers := v_wait.headers;
            state := forebay._state_of_deferred(v_wait.attempt, v_wait.pauses);
            if cancel_requested then
                state := 'cancelled';
                attempt := attempt - 1;
            end if;
            max_attempts := coalesce(max_attempts, forebay._queue_attempts(v_group.queue), forebay._attempts_known(v_id, v_group.group_id, enqueued_at));
            return next;
            continue;
        end if;
        continue when v_row.seq is null;
        continue when v_row.audience = 0 and v_group.start_after is not null
                      and pg_visible_in_snapshot(v_row.xid, v_group.start_after);
        priority := v_row.lane_priority;
        kind := v_row.kind; args := v_row.args; attempt := coalesce(v_row.attempt, 0) + 1; enqueued_at := v_row.enqueued_at;
        max_attempts := coalesce(v_row.max_attempts, forebay._attempts_known(v_id, v_group.group_id, v_row.enqueued_at));
        expires_at := coalesce(v_row.expires_at, v_row.enqueued_at + interval '30 days');
        tag := v_row.tag; correlation_id := v_row.correlation_id; headers := v_row.headers;

        select b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq into v_cur
        from forebay.batch b left join forebay.segment s on s.segment_id = b.pos_segment
        where b.group_id = v_group.group_id and b.lane = v_row.lane order by b.no desc limit 1;
        if v_row.seq >= v_archived
           and (v_cur.snap_from is null
                or not forebay._is_consumed(v_row.xid, v_row.seq, v_cur.snap_from, v_cur.snap_to, v_cur.lo, v_cur.hi,
                                            v_cur.pos_xid, v_cur.pos_seq)) then
            state := 'ready';
            if exists (select from forebay.tombstone t where t.job_id = v_id and t.reason = 'e'
                       and (t.group_id is null or t.group_id = v_group.group_id)) then
                state := 'expired';
                attempt := attempt - 1;
            end if;
            return next;
            continue;
        end if;
        if v_row.ordering_key is not null then
            if forebay._is_parked(v_group.group_id, v_row.ordering_key, v_row.seq) then
                state := case when cancel_requested then 'cancelled' else 'ready' end;
                attempt := attempt - cancel_requested::integer;
                return next;
                continue;
            end if;
            v_batch := forebay._keyed_batch_of(v_group.group_id, v_row.ordering_key, v_row.seq);
        elsif v_row.limit_key is not null then
            if forebay._is_limit_parked(v_group.group_id, v_row.limit_key, v_row.xid, v_row.seq) then
                state := 'ready';
                return next;
                continue;
            end if;
            v_batch := forebay._limited_batch_of(v_group.group_id, v_row.limit_key, v_row.lane, v_row.seq);
        end if;
        if v_row.limit_key is null and (v_row.ordering_key is null or v_batch.seqs is null) then
            v_batch := forebay._batch_of(v_group.group_id, v_row.lane, v_row.seq);
        end if;
        claimed_at := v_batch.claimed_at;
        if v_row.seq = any (v_batch.skipped) then
            state := case v_batch.skipped_as[array_position(v_batch.skipped, v_row.seq)] when 'c' then 'cancelled' else 'expired' end;
            ended_at := v_batch.claimed_at;
            attempt := attempt - 1;
            return next;
            continue;
        end if;
        select l.worker into worker from forebay.lease l where l.lease_id = v_batch.lease_id;
        select coalesce(s.outcomes[array_position(s.offsets, array_position(v_batch.seqs, v_row.seq)::smallint)], 'd') as code,
               s.settled_at
        into v_end
        from forebay.settlement s
        where s.lease_id = v_batch.lease_id and s.claim_no = v_batch.claim_no
          and (s.offsets is null or array_position(v_batch.seqs, v_row.seq)::smallint = any (s.offsets))
        limit 1;
        ended_at := v_end.settled_at;
        if v_end.code in ('d', 'c', 'x', 'y') then
            state := case v_end.code when 'd' then 'done' when 'c' then 'cancelled' else 'dead' end;
        elsif v_batch.seqs is not null and v_end.code is distinct from 'k' then
            state := case when v_id = any (forebay._running_jobs(v_batch.lease_id, v_batch.claimed_at))
                          then 'running' else 'claimed' end;
        else  -- In no batch, or requeued in its last one: skipped in a later key run.
            state := case when exists (select from forebay.dead_letter d
                                       where d.job_id = v_id and d.group_id = v_group.group_id and d.reason = 'expired'
                                         and d.enqueued_at = v_row.enqueued_at) then 'expired' else 'cancelled' end;
            attempt := attempt - 1;
        end if;
        return next;
    end loop;
end
$$;


-- The maximum attempts of a job, as a worker reported with its last failed attempt; null when none did.
create function forebay._attempts_known(p_job_id bigint, p_group_id bigint, p_enqueued_at timestamptz) returns integer
language sql stable
as $$
    select f.max_attempts
    from (select i.max_attempts, i.failed_at from forebay.failure i
          where i.job_id = p_job_id and i.group_id = p_group_id and i.enqueued_at = p_enqueued_at and i.max_attempts is not null offset 0) f
    order by f.failed_at desc limit 1
$$;


-- functions/operate/jobs.sql

-- grant: operator, reader

-- The newest jobs, newest first, one row for each group that reads the job's queue.
--
-- Newest by the number of a job's latest row: an enqueue, a retry or a redrive brings it to the top. Bounded by
-- design: it walks back over the log, some thousand numbers at a time, and stops after `most` rows, after
-- the states of 2,000 jobs, or after 1,000,000 numbers; with a rare state it may end early.
--
-- Parameters: filter, a JSON object as that of forebay.change_jobs() but for its ids and state, null: none; for the others null means any; state as in forebay.job; most, 1 to 1000 rows; before, only jobs whose
--   latest row has a lower number (position of the last row of the previous page).
-- Errors: JQ001 a bad state or most.
-- pages: 500 + 400 a job
create function forebay.jobs(
    only_queue text default null, only_kind text default null, only_state text default null,
    most integer default 50, before bigint default null, filter jsonb default null)
returns table (job_id bigint, group_name text, state text, queue text, priority integer, kind text, args jsonb,
               attempt integer, max_attempts integer, enqueued_at timestamptz, run_at timestamptz,
               expires_at timestamptz, tag text, correlation_id text, headers jsonb, cancel_requested boolean,
               worker text, claimed_at timestamptz, ended_at timestamptz, redriven_from bigint, redriven_as bigint,
               redriven_from_dead_id bigint, dead_id bigint, place bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_step  constant bigint := 5000;
    v_last  constant bigint := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    v_hi    bigint := least(v_last + 1, jobs.before);
    v_lo    bigint;
    v_end   bigint := v_hi - 1000000;
    v_lanes bigint[];
    v_filter  constant jsonb := case when jobs.filter is not null then forebay._checked_filter(jobs.filter) end;
    v_seen  bigint[] := '{}';
    v_left  integer := jobs.most;
    v_examined integer := 0;
    v_found record;
    v_row   record;
begin
    if jobs.most is null or jobs.most not between 1 and 1000 then
        raise exception using errcode = 'JQ001', column = 'most',
            message = format('most %s is outside 1 to 1000', coalesce(jobs.most::text, 'null'));
    elsif jobs.only_state not in ('scheduled', 'ready', 'claimed', 'running', 'retrying', 'done', 'cancelled', 'expired', 'dead') then
        raise exception using errcode = 'JQ001', column = 'state',
            message = format('unknown state %s', quote_literal(left(jobs.only_state, 40))),
            hint = 'States are scheduled, ready, claimed, running, retrying, done, cancelled, expired and dead.';
    end if;
    if v_filter ?| array['ids', 'state'] then
        raise exception using errcode = 'JQ001', column = 'filter', message = 'the filter of a list has no ids and no state',
            hint = 'Use only_state, or forebay.job() for single jobs.';
    elsif jobs.only_queue is not null or v_filter ? 'queue' then
        v_lanes := array(select distinct l.lane from forebay.lane l
                         where (jobs.only_queue is null or l.queue = jobs.only_queue)
                           and (v_filter ->> 'queue' is null or l.queue = v_filter ->> 'queue'));
    end if;

    while v_hi > greatest(v_end, 1) loop
        v_lo := greatest(v_hi - v_step, 1);
        for v_found in execute forebay._rows_between_sql(v_lo, v_hi, forebay._filter_sql(v_filter))
            using v_lo, v_hi, jobs.only_kind, v_lanes
        loop
            continue when v_found.job_id = any (v_seen);
            v_seen := v_seen || v_found.job_id;
            v_examined := v_examined + 1;
            for v_row in
                select j.* from forebay.job(v_found.job_id) j
                where (jobs.only_state is null or j.state = jobs.only_state)
            loop
                return query select v_row.job_id, v_row.group_name, v_row.state, v_row.queue, v_row.priority,
                    v_row.kind, v_row.args, v_row.attempt, v_row.max_attempts, v_row.enqueued_at, v_row.run_at,
                    v_row.expires_at, v_row.tag, v_row.correlation_id, v_row.headers, v_row.cancel_requested,
                    v_row.worker, v_row.claimed_at, v_row.ended_at, v_row.redriven_from, v_row.redriven_as,
                    v_row.redriven_from_dead_id, v_row.dead_id, v_found.place;
                v_left := v_left - 1;
            end loop;
            if v_left <= 0 or v_examined >= 2000 then
                return;
            end if;
        end loop;
        v_hi := v_lo;
    end loop;
end
$$;


-- A query for the rows of the log and of the deferred jobs with numbers from $1 to below $2, of kind $3 and in
-- lanes $4 where these are not null, which meet a condition on j, highest number first. It names the segments of that range only.
create function forebay._rows_between_sql(p_lo bigint, p_hi bigint, p_condition text) returns text
language sql stable
as $$
    select coalesce(string_agg(format(
               'select coalesce(j.job_id, j.seq) as job_id, j.seq as place from forebay.log_%s j
                where j.seq >= $1 and j.seq < $2 and j.kind <> '''' and ($3 is null or j.kind = $3) and ($4 is null or j.lane = any ($4)) and %s
                union all ', s.segment_id, p_condition), ''), '')
        || format('select j.job_id, j.job_id as place from forebay.deferred j
            where j.kind <> '''' and j.job_id >= $1 and j.job_id < $2 and ($3 is null or j.kind = $3) and ($4 is null or j.lane = any ($4)) and %s
            order by place desc', p_condition)
    from forebay.segment s
    where s.lo < p_hi and s.hi > p_lo and s.removed_at is null and forebay._has_table(s.segment_id)
$$;


-- functions/operate/keep_dead.sql

-- grant: operator

-- Set how long dead letters are kept, for a queue or, with null, for all queues without their own setting; returns the
-- number of days before, null forever.
--
-- Without this call dead letters are kept forever. Maintenance deletes older ones in steps, redriven or not, and counts what it
-- deletes: see forebay.dead_summary().
--
-- Parameters: days since the death of the job, 1 to 36500; null: forever. inherit: remove the setting of the queue.
-- Errors: JQ001 a bad name or number.
create function forebay.keep_dead(queue text default null, days integer default null, inherit boolean default false) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue  constant text := coalesce(keep_dead.queue, '');
    v_before integer := forebay._days_of_dead(v_queue);
begin
    if keep_dead.queue !~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$' or keep_dead.days not between 1 and 36500
       or keep_dead.inherit is null or (keep_dead.inherit and (keep_dead.days is not null or keep_dead.queue is null)) then
        raise exception using errcode = 'JQ001',
            message = format('cannot keep dead letters of queue %s for %s days%s', coalesce(quote_literal(left(keep_dead.queue, 40)), 'null'),
                             coalesce(keep_dead.days::text, 'null'), case when keep_dead.inherit then ', inherited' else '' end),
            hint = 'days is 1 to 36500, or null forever. inherit is for a queue, and without days.';
    end if;
    if keep_dead.inherit then
        delete from forebay.dead_retention r where r.queue = v_queue;
    else
        insert into forebay.dead_retention (queue, days) values (v_queue, keep_dead.days)
        on conflict on constraint dead_retention_pkey do update set days = excluded.days;
    end if;
    if v_before is distinct from forebay._days_of_dead(v_queue) then
        perform forebay._record_event('dead.keep', keep_dead.queue, p_old => jsonb_build_object('days', v_before),
                                      p_new => jsonb_build_object('days', forebay._days_of_dead(v_queue)));
    end if;
    return v_before;
end
$$;


-- How many days dead letters of a queue are kept; null: forever.
create function forebay._days_of_dead(p_queue text) returns integer
language sql stable
as $$
    select r.days from forebay.dead_retention r where r.queue in (p_queue, '') order by r.queue desc limit 1
$$;


-- Delete dead letters past the time set for them.
create function forebay._trim_dead_letters(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_queue record;
begin
    rows := 0;
    if not exists (select from forebay.dead_retention r where r.days is not null) then
        return;
    end if;
    for v_queue in
        with recursive queue as (
            (select d.queue from forebay.dead_letter d order by d.queue limit 1)
            union all
            select n.queue from queue q, lateral (
                select d.queue from forebay.dead_letter d where d.queue > q.queue order by d.queue limit 1) n
        )
        select q.queue, forebay._days_of_dead(q.queue) as days from queue q
    loop
        continue when v_queue.days is null;
        rows := rows + forebay._delete_dead(
            v_queue.queue, forebay._now() - make_interval(days => v_queue.days), (p_most - rows)::integer);
        exit when rows >= p_most;
    end loop;
    delete from forebay.dead_deletion c where c.died_on < forebay._now() - interval '400 days';
    next := case when rows >= p_most then '[]' end;
end
$$;


-- Delete and count at most p_most dead letters of a queue, and of a cause unless it is null, that died before a time, the oldest first; returns their number.
-- p_ends_holds: also those that hold their key, which is free then; otherwise these stay.
create function forebay._delete_dead(p_queue text, p_before timestamptz, p_most integer, p_cause text default null,
                                     p_ends_holds boolean default false) returns bigint
language plpgsql volatile
as $$
declare
    v_count bigint;
    v_ids   bigint[];
begin
    -- With the time set for them: a letter that holds its key waits for an operator.
    v_ids := array(
        select i.dead_id from forebay.dead_letter i
        where i.queue = p_queue and i.died_at <= p_before and (p_cause is null or i.cause = p_cause) and (not i.holds_key or p_ends_holds and i.redriven_as is null)
        order by i.died_at limit p_most for update skip locked);
    if p_ends_holds then
        perform forebay._end_holds(v_ids);
    end if;
    with gone as (
        delete from forebay.dead_letter d
        where d.dead_id = any (v_ids)
        returning d.queue, d.kind, d.reason, d.died_at, d.errors),
    sorts as (
        select (g.died_at at time zone 'UTC')::date as died_on, g.queue, g.kind, g.reason,
               coalesce(left(g.errors -> -1 ->> 'type', 200), '') as error_type, count(*) as deleted
        from gone g group by 1, 2, 3, 4, 5),
    counted as (
        insert into forebay.dead_deletion as c (died_on, queue, kind, reason, error_type, deleted)
        select s.died_on, s.queue, s.kind, s.reason, s.error_type, s.deleted from sorts s
        order by 1, 2, 3, 4, 5
        on conflict on constraint dead_deletion_pkey do update set deleted = c.deleted + excluded.deleted)
    select coalesce(sum(s.deleted), 0) into v_count from sorts s;
    return v_count;
end
$$;


-- functions/operate/key.sql

-- grant: operator, reader

-- One key of a queue, with the columns of forebay.keys(): a row for each consumer group, also when no job of the key waits.
--
-- Parameters: the ordering key or the limit key, not both.
-- Errors: JQ001 both keys or neither.
-- pages: 500 + 40 an open lease + 2 a waiting job
create function forebay.key(queue text, ordering_key text default null, limit_key text default null)
returns table (group_name text, sort text, key text, waiting bigint, running bigint, reason text, until timestamptz,
               blocking_jobs bigint[], blocking_workers text[], held_by bigint, first_job_id bigint, waits_for text, pause_at timestamptz, resume_at timestamptz, limits jsonb)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
    if num_nonnulls(key.ordering_key, key.limit_key) <> 1 then
        raise exception using errcode = 'JQ001', column = 'key', message = 'key: give an ordering_key or a limit_key, and not both';
    end if;
    return query
    select g.name, k.*
    from forebay.queue_group g
    cross join lateral forebay._show_keys(g.group_id, array_remove(array[key.ordering_key], null), array_remove(array[key.limit_key], null)) k
    where g.queue = key.queue
    order by g.name;
end
$$;


-- functions/operate/keys.sql

-- grant: operator, reader

-- The keys of which jobs wait, most waiting jobs first: a row for each consumer group.
--
-- waiting: jobs that a claim has met and that wait for their key; jobs that no claim has met yet are not counted, cancelled ones are until
-- their turn comes. running: jobs of the key that workers have. first_job_id: the first waiting one.
-- reason: why the next job of the key does not run:
--   group_closing, group_paused   the consumer group is being closed, or paused
--   paused                        the key is paused, until `until`; null: until it is resumed
--   held                          the dead letter held_by holds the ordering key
--   retry                         it is behind a job that runs again at `until`; null: that job is ready again
--   running                       it is behind a job that a worker has
--   concurrency, rate             the limit key has as many jobs running as it may have, or has no start left before `until`
--   queue_concurrency, queue_rate the same of the queue
--   due                           nothing: a claim takes it
--   free                          nothing holds the key back, and no job waits for it; only forebay.key() returns it
-- blocking_jobs, blocking_workers: the job of the ordering key that must end first, or the running jobs of the limit key, at most 10,
-- and the worker of each; null: no worker has it. waits_for: the limit key that holds back the first waiting job of an ordering key.
-- pause_at, resume_at: begin and end of a planned pause of the key; null: none is planned, or it has no end.
-- limits: of a limit key that has limits itself, an object with rate, burst, concurrency, empty_until, as far as they are set; else null.
--
-- Visits every key that the log knows, and every job that waits for its ordering key.
--
-- Parameters: only_queue, null: all; most, 1 to 1000 rows.
-- Errors: JQ001 a bad most.
-- pages: 500 + 2 a lane + 100 a waiting key + 5 a waiting job + 40 an open lease
create function forebay.keys(only_queue text default null, most integer default 100)
returns table (queue text, group_name text, sort text, key text, waiting bigint, running bigint, reason text, until timestamptz,
               blocking_jobs bigint[], blocking_workers text[], held_by bigint, first_job_id bigint, waits_for text, pause_at timestamptz, resume_at timestamptz, limits jsonb)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
    if keys.most is null or keys.most not between 1 and 1000 then
        raise exception using errcode = 'JQ001', column = 'most',
            message = format('most %s is outside 1 to 1000', coalesce(keys.most::text, 'null'));
    end if;
    return query
    with found as materialized (
        select g.queue, g.name, w.*
        from (select p.group_id, p.ordering_key, null as limit_key, count(*) as waiting
              from forebay._all_ordering_parked() p
              where pg_sequence_last_value('forebay.key_seq') is not null
              group by p.group_id, p.ordering_key
              union all
              select i.group_id, null, t.limit_key, t.waiting
              from forebay.queue_group i cross join lateral forebay._waiting_limit_keys(i.group_id) t
              where pg_sequence_last_value('forebay.limit_parked_seq') is not null) w
        join forebay.queue_group g on g.group_id = w.group_id
        where keys.only_queue is null or g.queue = keys.only_queue
        order by w.waiting desc, g.queue, g.name, w.limit_key, w.ordering_key
        limit keys.most)
    select f.queue, f.name, k.*
    from (select i.group_id, i.queue, i.name,
                 coalesce(array_agg(i.ordering_key) filter (where i.ordering_key is not null), '{}') as ordering_keys,
                 coalesce(array_agg(i.limit_key) filter (where i.limit_key is not null), '{}') as limit_keys
          from found i group by i.group_id, i.queue, i.name) f
    cross join lateral forebay._show_keys(f.group_id, f.ordering_keys, f.limit_keys) k
    order by k.waiting desc, f.queue, f.name, k.sort, k.key;
end
$$;


-- Some keys of a group, as forebay.keys() shows them.
create function forebay._show_keys(p_group_id bigint, p_ordering_keys text[], p_limit_keys text[])
returns table (sort text, key text, waiting bigint, running bigint, reason text, until timestamptz, blocking_jobs bigint[],
               blocking_workers text[], held_by bigint, first_job_id bigint, waits_for text, pause_at timestamptz, resume_at timestamptz, limits jsonb)
language plpgsql volatile
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    g          forebay.queue_group;
    v          forebay._limiter_view;
    v_position forebay.promotion;
    v_full     boolean;  -- the queue has as many jobs running as it may have
begin
    select i.* into g from forebay.queue_group i where i.group_id = p_group_id;
    v := forebay._read_limiter(p_group_id, g.queue);
    v_full := coalesce((select sum(o) from unnest(v.opens) o) >= (v.limits).concurrency, false);
    select p.* into v_position from forebay.promotion p order by p.no desc limit 1;

    return query
    with state as materialized (
        select s.* from forebay._key_states(p_group_id, p_ordering_keys) s),
    -- The limit keys asked for, and those for which ordering keys wait.
    met as materialized (
        select array(select s.waits_for from state s where s.waits_for is not null union select u from unnest(p_limit_keys) u) as limit_keys),
    running as materialized (
        select o.*, row_number() over (partition by o.sort, o.key order by o.nr) as rank, count(*) over (partition by o.sort, o.key) as jobs
        from met m cross join lateral forebay._running_of_keys(p_group_id, p_ordering_keys, m.limit_keys) o),
    -- Of an ordering key only the first one blocks.
    first_running as materialized (
        select r.sort, r.key, max(r.jobs) as jobs, array_agg(coalesce(j.job_id, r.seq) order by r.rank) as job_ids,
               array_agg(r.worker order by r.rank) as workers
        from running r
        cross join lateral forebay._job_ids(array[r.lane], array[r.xid], array[r.seq]) j
        where r.rank <= case r.sort when 'ordering' then 1 else 10 end
        group by r.sort, r.key),
    ordering_keys as (
        select 'ordering' as sort, s.ordering_key as key, cardinality(s.waiting_seqs) + p.jobs as waiting, s.open > 0 as is_taken, s.head, h.held_by,
               (select min(d.run_at) from forebay.deferred d
                join lateral (select l.audience from forebay.lane l where l.lane = d.lane limit 1) i on i.audience in (g.group_id, -g.group_id)
                where d.job_id = s.head
                  and not (v_position.no is not null and pg_visible_in_snapshot(d.xid, v_position.snap)
                           and (d.run_at, d.deferred_id) <= (v_position.run_at, v_position.deferred_id))) as retry_at,
               s.waits_for as limit_key, forebay._job_id_of(coalesce(s.waiting_seqs[1], p.first)) as first_job_id
        from state s
        -- A redriven letter does not stand in the way: its new job is the head.
        left join lateral (
            select case when d.redriven_as is null then d.dead_id end as held_by from forebay.dead_letter d
            where d.group_id = p_group_id and d.ordering_key = s.ordering_key and d.holds_key order by d.dead_id limit 1) h on true
        cross join lateral (
            select count(*) as jobs, (array_agg(i.seq order by i.parked_no))[1] as first from forebay.parked i
            where i.group_id = p_group_id and i.ordering_key = s.ordering_key and i.parked_no > s.taken_up_to) p),
    limits as materialized (
        select s.*, forebay._next_start(s.tat, s.rate, s.burst) as start_at
        from met m cross join lateral unnest(forebay._limit_states(p_group_id, m.limit_keys, v.limits, v.at)) s),
    limit_keys as (
        select 'limit' as sort, s.limit_key as key, s.waiting, false as is_taken, null::bigint as head, null::bigint as held_by,
               null::timestamptz as retry_at, s.limit_key,
               (select case when p.ordering_key is not null then forebay._job_id_of(p.seq) else coalesce(j.job_id, j.seq) end
                from (select i.* from forebay.limit_parked i
                      where s.waiting > 0 and i.group_id = p_group_id and i.limit_key = s.limit_key
                        and i.parked_no > s.taken_up_to order by i.parked_no limit 1) p
                -- The row of a job with an ordering key too may be gone: null fetches nothing.
                cross join lateral forebay._fetch_limited(
                    array[1::bigint], array[p.lane], array[p.xid], array[greatest(p.seq - 1, s.taken_seq)],
                    array[case when p.ordering_key is null then p.seq_to end], array[1::bigint]) f
                left join lateral unnest(f.jobs) j on true) as first_job_id
        from limits s where s.limit_key = any (p_limit_keys)),
    pauses as materialized (
        select z.sort, z.key, z.begins_at, z.resume_at, coalesce(z.begins_at <= v.at, true) as is_on
        from forebay.key_pause z where z.queue = g.queue and coalesce(z.resume_at > v.at, true)),
    -- The only place that decides about the reason.
    keys as (
        select k.*, coalesce(r.jobs, 0) as running, l.start_at, d.reason,
               case when d.reason = 'concurrency' then f.job_ids else r.job_ids end as job_ids,
               case when d.reason = 'concurrency' then f.workers else r.workers end as workers,
               case when z.is_on then z.resume_at when d.reason = 'paused' then x.resume_at end as until_resumed,
               case when z.begins_at > v.at then z.begins_at end as pause_at, z.resume_at,
               case when k.sort = 'ordering' and z.is_on is not true and d.reason in ('paused', 'concurrency', 'rate') then k.limit_key end as waits_for
        from (select * from ordering_keys union all select * from limit_keys) k
        left join first_running r on r.sort = k.sort and r.key = k.key
        left join pauses z on z.sort = k.sort and z.key = k.key
        left join limits l on l.limit_key = k.limit_key
        left join first_running f on f.sort = 'limit' and f.key = k.limit_key
        left join pauses x on x.sort = 'limit' and x.key = k.limit_key
        cross join lateral (
            select case when g.closing_at is not null then 'group_closing'
                        when forebay._paused_since(g.paused_at, g.resume_at) is not null then 'group_paused'
                        when z.is_on then 'paused'
                        when k.held_by is not null then 'held'
                        when k.head is not null then 'retry'
                        when k.is_taken then 'running'
                        when x.is_on then 'paused'
                        when f.jobs >= l.concurrency then 'concurrency'
                        when l.tokens = 0 then 'rate'
                        when v_full then 'queue_concurrency'
                        when v.free_slots <= 0 then 'queue_rate'
                        when k.waiting > 0 then 'due'
                        else 'free' end as reason) d)
    select k.sort, k.key, k.waiting, k.running, k.reason,
           case k.reason when 'paused' then k.until_resumed
                         when 'retry' then k.retry_at
                         when 'rate' then k.start_at
                         when 'queue_rate' then forebay._next_start(v.tat, (v.limits).rate, (v.limits).burst) end,
           case when k.head is not null then array[k.head] else coalesce(k.job_ids, '{}') end,
           case when k.head is not null then array[null::text] else coalesce(k.workers, '{}') end,
           k.held_by, k.first_job_id, k.waits_for, k.pause_at, case when k.pause_at is not null then k.resume_at end,
           case when k.sort = 'limit' then (
               select forebay._key_limit_facts(i) from forebay.key_limits i
               where pg_sequence_last_value('forebay.key_limits_seq') is not null and i.queue = g.queue and i.key = k.key) end
    from keys k;
end
$$;


-- The unsettled jobs of some keys in batches of open leases, in the order in which they were claimed.
create function forebay._running_of_keys(p_group_id bigint, p_ordering_keys text[], p_limit_keys text[])
returns table (sort text, key text, nr bigint, worker text, lane bigint, xid xid8, seq bigint)
language sql stable
as $$
    select k.sort, k.key, row_number() over (order by b.claimed_at, b.claim_no, k.nr),
           e.worker, coalesce(b.lanes[k.nr], b.lane), case when cardinality(b.xids) = 1 then b.xids[1] else b.xids[k.nr] end, b.seqs[k.nr]
    from forebay.lease e
    cross join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f
    join forebay.batch b on b.lease_id = e.lease_id and b.claim_no >= f.floor
    cross join lateral (
        select 'ordering' as sort, u.key, u.nr from unnest(b.keys) with ordinality u (key, nr) where u.key = any (p_ordering_keys)
        union all
        select 'limit', u.key, u.nr from unnest(b.limit_keys) with ordinality u (key, nr) where u.key = any (p_limit_keys)) k
    where e.closed_at is null and b.group_id = p_group_id
      and not exists (select from forebay.settlement s
                      where s.lease_id = b.lease_id and s.claim_no = b.claim_no
                        and (s.offsets is null or k.nr::smallint = any (s.offsets)))
$$;


-- functions/operate/mute_cause.sql

-- grant: operator

-- Expect the deaths of a cause, for a time or until forebay.unmute_cause(); returns the end, null for none. They are recorded and counted
-- as before. Workers log them as information, not as errors, from their next heartbeat on, and the doctor does not report them.
--
-- Parameters: duration, positive; null: without an end.
-- Errors: JQ001 a bad duration, or 1,000 causes are muted; JQ015 no dead letter has the cause.
create function forebay.mute_cause(cause text, duration interval default null) returns timestamptz
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_until constant timestamptz := forebay._now() + duration;
    v_kind  text;
begin
    if duration <= interval '0' or duration > interval '10 years' then
        raise exception using errcode = 'JQ001', column = 'duration',
            message = format('duration %s is not within ten years', duration);
    end if;
    select d.kind into v_kind from forebay.dead_letter d where d.cause = mute_cause.cause and d.cause <> '' limit 1;
    if v_kind is null then
        raise exception using errcode = 'JQ015',
            message = format('no dead letter has the cause %s', coalesce(quote_literal(left(mute_cause.cause, 40)), 'null')),
            hint = 'List causes with forebay dead groups.';
    end if;
    delete from forebay.muted_cause m where m.until <= forebay._now();
    if (select count(*) from forebay.muted_cause) >= 1000 then
        raise exception using errcode = 'JQ001', column = 'cause', message = '1000 causes are muted',
            hint = 'Unmute others first, or mute for a time.';
    end if;
    insert into forebay.muted_cause (cause, muted_at, until) values (mute_cause.cause, forebay._now(), v_until)
    on conflict on constraint muted_cause_pkey do update set muted_at = excluded.muted_at, until = excluded.until;
    perform forebay._record_event('dead.mute', p_kind => v_kind, p_new => jsonb_build_object('cause', mute_cause.cause, 'until', v_until));
    return v_until;
end
$$;


-- Let the deaths of a cause be errors again; returns whether it was muted.
create function forebay.unmute_cause(cause text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_until timestamptz;
begin
    delete from forebay.muted_cause m where m.cause = unmute_cause.cause returning coalesce(m.until, 'infinity') into v_until;
    if v_until is null or v_until <= forebay._now() then
        return false;
    end if;
    perform forebay._record_event('dead.unmute', p_old => jsonb_build_object('cause', unmute_cause.cause, 'until', v_until));
    return true;
end
$$;


-- functions/operate/open_group.sql

-- grant: worker, operator

-- Open a consumer group, an independent reader of a queue; returns its id. Opening it again changes nothing.
--
-- A group that is implied becomes this one, under its name: it has the cursors, expiries and pauses of a queue that no worker had
-- served yet. With start 'now' it forgets its cursors and starts now.
--
-- Parameters:
--   start  'beginning': every job still in the log; 'now': jobs that become visible from now on; null: the
--          beginning for the first group of a queue, now for a later one
-- Errors: JQ001 a bad name or start, JQ017 a group of this name is being closed.
-- Locks: to open a group, the table queue_group against others that open one, until the transaction ends.
create function forebay.open_group(queue text, name text default 'default', start text default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_name    constant text := '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$';
    v_id      bigint;
    v_closing timestamptz;
begin
    if (open_group.queue ~ v_name and open_group.name ~ v_name) is not true
       or open_group.start not in ('beginning', 'now') then
        raise exception using errcode = 'JQ001',
            message = format('cannot open group %s of queue %s at %s', coalesce(quote_literal(left(open_group.name, 40)), 'null'),
                             coalesce(quote_literal(left(open_group.queue, 40)), 'null'), coalesce(open_group.start, 'its default')),
            hint = 'Names have letters, digits and _ . : - only; start is beginning or now.';
    end if;
    for v_attempt in 1 .. 2 loop
        select g.group_id, g.closing_at into v_id, v_closing from forebay.queue_group g
        where g.queue = open_group.queue and g.name = open_group.name and not g.is_implied;
        if v_closing is not null then
            raise exception using errcode = 'JQ017',
                message = format('group %s of queue %s is being closed', open_group.name, open_group.queue),
                detail = jsonb_build_object('queue', open_group.queue, 'group', open_group.name),
                hint = 'Open it again when forebay.groups() no longer shows it, or start the worker without this group.';
        elsif v_id is not null then
            return v_id;
        end if;
        -- Look again under the lock, in a later statement.
        lock table forebay.queue_group in share row exclusive mode;
    end loop;

    update forebay.queue_group g
    set name = open_group.name, is_implied = false,
        start_after = case when open_group.start = 'now' then pg_current_snapshot() else g.start_after end
    where g.queue = open_group.queue and g.is_implied
    returning g.group_id into v_id;
    if v_id is not null then
        if open_group.start = 'now' then
            lock table only forebay.lock_sweep in share update exclusive mode;  -- The sweep moves the cursors of groups without workers.
            delete from forebay.batch b
            where b.group_id = v_id and b.lane in (select l.lane from forebay.lane l where l.queue = open_group.queue and l.audience = 0);
            delete from forebay.queue_count c where c.queue = open_group.queue and c.group_id = v_id;  -- It counted from those cursors.
        end if;
    else
        v_id := forebay._make_group(
            open_group.queue, open_group.name, false,
            case when open_group.start = 'now'
                      or (open_group.start is null
                          and exists (select from forebay.queue_group g where g.queue = open_group.queue))
                 then pg_current_snapshot() else '1:1:' end);
    end if;
    if (open_group.name, open_group.start) is distinct from ('default', null) then  -- Each worker opens that one.
        perform forebay._record_event('groups.open', open_group.queue, open_group.name,
                                      p_new => jsonb_build_object('start', open_group.start));
    end if;
    return v_id;
end
$$;


-- Open a group for a queue that has none, so that its jobs expire and it can be paused. It is implied: the first group that a
-- worker or user opens takes it over. Returns its id, null when the queue has a group.
--
-- Locks: the table queue_group against others that open a group, until the transaction ends.
create function forebay._imply_group(p_queue text, p_start_after pg_snapshot default '1:1:') returns bigint
language plpgsql volatile
as $$
begin
    lock table forebay.queue_group in share row exclusive mode;
    if not exists (select from forebay.queue_group g where g.queue = p_queue) then
        return forebay._make_group(p_queue, 'default', true, p_start_after);
    end if;
    return null;
end
$$;


-- Write a group and its flag sequence; the caller has locked the table and found that there is none of this name.
create function forebay._make_group(p_queue text, p_name text, p_is_implied boolean, p_start_after pg_snapshot) returns bigint
language plpgsql volatile
as $$
declare
    v_id bigint;
begin
    insert into forebay.queue_group (group_id, queue, name, start_after, created_at, is_implied)
    values (forebay._random_name(), p_queue, p_name, p_start_after, forebay._now(), p_is_implied)
    on conflict do nothing  -- In a REPEATABLE READ transaction that does not see the group: raises 40001.
    returning group_id into v_id;
    execute format('create sequence forebay.leader_%s as bigint increment 262144000 cache 1', v_id);
    -- The first group of a queue has what was counted while there was none.
    insert into forebay.queue_count (
        queue, group_id, oldest, seq, deferred_seq, snap, counted_at, waiting, consumed, priorities, totals, scheduled, retrying, keyed)
    select p_queue, v_id, c.oldest, c.seq, c.deferred_seq, c.snap, c.counted_at, c.waiting, c.consumed, c.priorities, c.totals, c.scheduled,
           c.retrying, c.keyed
    from forebay.queue_count c
    where c.queue = p_queue and c.group_id = 0 and p_start_after::text = '1:1:'
      and not exists (select from forebay.queue_group g where g.queue = p_queue and g.group_id <> v_id)
    order by c.oldest desc, c.no desc limit 1;
    return v_id;
end
$$;


-- functions/operate/pause_key.sql

-- grant: operator

-- Pause one key of a queue, an ordering key or a limit key, for all groups: claims take no more jobs of it. Claimed jobs finish, and
-- enqueueing continues. Waiting jobs keep their places. Returns whether that changed anything.
--
-- A key has one pause. A call replaces the pause that lasts, or is planned: with pause_at, a key that is paused now is resumed.
--
-- Invariant "a paused key is not forgotten" (docs/design/limits.md).
-- Parameters: ordering_key, limit_key, exactly one of them; resume_after, positive: the pause ends by itself then. null: it ends with
--   forebay.resume_key(). pause_at: when the pause begins; null or past: now. resume_after counts from there.
-- Errors: JQ001 a bad name, key or time.
-- Locks, until the transaction ends: the row of the key, and the table queue_group in a mode that makes only the opening of new groups wait.
create function forebay.pause_key(
    queue text, ordering_key text default null, limit_key text default null, resume_after interval default null,
    pause_at timestamptz default null)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_sort   constant text := forebay._require_key(pause_key.queue, pause_key.ordering_key, pause_key.limit_key);
    v_key    constant text := coalesce(pause_key.ordering_key, pause_key.limit_key);
    v_at     constant timestamptz := forebay._now();
    v_begins constant timestamptz := case when pause_at > v_at then pause_at end;
    v_until  timestamptz;
    v_before forebay.key_pause;
    v_was_set boolean;     -- a pause lasts, or is planned
    v_was_paused boolean;  -- it lasts
begin
    if resume_after <= interval '0' or resume_after > interval '10 years' then
        raise exception using errcode = 'JQ001', column = 'resume_after',
            message = format('resume_after %s is not within ten years', resume_after);
    end if;
    if pause_at > v_at + interval '10 years' or pause_at < v_at - interval '10 years' then
        raise exception using errcode = 'JQ001', column = 'pause_at', message = format('pause_at %s is not within ten years', pause_at);
    end if;
    v_until := coalesce(pause_at, v_at) + resume_after;
    if v_until <= v_at then
        raise exception using errcode = 'JQ001', column = 'pause_at', message = format('the pause from %s would be over by now', pause_at);
    end if;
    perform nextval('forebay.key_pause_seq');
    if v_sort = 'limit' and pg_sequence_last_value('forebay.limiter_seq') is null then
        perform nextval('forebay.limiter_seq');  -- Jobs with an ordering key too may be the only ones with limit keys.
    end if;
    -- A row that pauses nothing, or the one that is there, locked: of two calls for one key the later one sees what the first has set.
    insert into forebay.key_pause as p (queue, sort, key, paused_at, resume_at) values (pause_key.queue, v_sort, v_key, v_at, v_at)
    on conflict on constraint key_pause_pkey do update set key = p.key
    returning p.* into v_before;
    v_was_set := coalesce(v_before.resume_at > v_at, true);
    v_was_paused := v_was_set and coalesce(v_before.begins_at <= v_at, true);
    if v_was_set and v_before.resume_at is not distinct from v_until
       and (v_was_paused and v_begins is null or v_before.begins_at = v_begins) then
        return false;
    end if;
    update forebay.key_pause p
    set begins_at = v_begins, resume_at = v_until,
        paused_at = case when v_was_paused and v_begins is null then coalesce(v_before.begins_at, v_before.paused_at) else v_at end
    where p.queue = pause_key.queue and p.sort = v_sort and p.key = v_key;
    delete from forebay.key_pause p
    where (p.queue, p.sort, p.key) in (
        select i.queue, i.sort, i.key from forebay.key_pause i
        where i.resume_at <= v_at order by i.resume_at limit 10 for update skip locked);
    if v_was_set then
        -- Claims have parked jobs until the end of the earlier pause. They look again, and schedule a recheck row for the new end.
        -- A planned pause that is replaced may begin before this transaction commits.
        perform forebay._announce_key(pause_key.queue, v_sort, v_key);
    end if;
    perform forebay._record_event(
        'keys.pause', pause_key.queue,
        p_old => case when v_was_set then forebay._pause_facts(v_sort, v_key, v_before.begins_at, v_before.resume_at) end,
        p_new => forebay._pause_facts(v_sort, v_key, v_begins, v_until));
    return true;
end
$$;


-- A pause of a key, as the event log has it.
create function forebay._pause_facts(p_sort text, p_key text, p_begins_at timestamptz, p_resume_at timestamptz) returns jsonb
language sql immutable
as $$
    select jsonb_build_object(p_sort || '_key', p_key, 'resume_at', p_resume_at)
           || case when p_begins_at is null then '{}' else jsonb_build_object('pause_at', p_begins_at) end
$$;


-- Is exactly one key named, of a queue? Returns its sort.
create function forebay._require_key(p_queue text, p_ordering_key text, p_limit_key text) returns text
language plpgsql stable
as $$
declare
    v_problem text := case
        when (p_queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$') is not true
            then format('queue %s is not a name: letters, digits and _ . : - only, at most 128', coalesce(quote_literal(left(p_queue, 40)), 'null'))
        when num_nonnulls(p_ordering_key, p_limit_key) <> 1 then 'exactly one of ordering_key and limit_key is needed'
        when length(coalesce(p_ordering_key, p_limit_key)) not between 1 and 200
            then format('the key %s must have 1 to 200 characters', quote_literal(left(coalesce(p_ordering_key, p_limit_key), 40))) end;
begin
    if v_problem is not null then
        raise exception using errcode = 'JQ001', message = v_problem,
            hint = 'Name the key as its jobs were enqueued: ordering_key => or limit_key =>.';
    end if;
    return case when p_ordering_key is not null then 'ordering' else 'limit' end;
end
$$;


-- Make the claims of every group of a queue look at a key again: append a recheck row of the key for each group.
--
-- Whether jobs of the key wait is not looked at: that would need the locks of the claims' decisions, and an operator's transaction may
-- be open for long. A claim in progress has a snapshot older than these rows, so the next one reads them, after what the first parked.
-- A group that is opened now would not have a row: it waits for the end of this transaction. A job that is enqueued now may be the first one
-- with a key: the row is written even if no lane is known yet.
create function forebay._announce_key(p_queue text, p_sort text, p_key text) returns void
language plpgsql volatile
as $$
declare
    v_group record;
begin
    lock table forebay.queue_group in row exclusive mode;
    for v_group in
        select g.group_id, l.priority
        from forebay.queue_group g
        cross join lateral (select coalesce(min(i.priority), 100) as priority from forebay.lane i
                            where i.queue = g.queue and i.sort = case p_sort when 'ordering' then 'keyed' else 'limited' end) l
        where g.queue = p_queue and g.closing_at is null
    loop
        if p_sort = 'ordering' then
            perform forebay._announce_keys(p_queue, v_group.priority, v_group.group_id, array[p_key]);
        else
            perform forebay._announce_limit_keys(
                forebay._record_limited_lane(p_queue, v_group.priority, v_group.group_id), array[p_key], null);
        end if;
    end loop;
    perform forebay._notify(p_queue);
end
$$;


-- functions/operate/pause_queue.sql

-- grant: operator

-- Pause a queue, for one group or all: claims stop; running jobs finish, and enqueueing continues. Returns how many groups changed.
--
-- A group has one pause: a call replaces the one that lasts.
--
-- Parameters: until, when claims continue, without a call: they compare it with the clock; at most ten years from now. null: with
--   forebay.resume_queue().
-- Errors: JQ001 a bad name or time, JQ014 no such group.
create function forebay.pause_queue(queue text, group_name text default null, until timestamptz default null) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_at    constant timestamptz := forebay._now();
    v_count integer;
begin
    if pause_queue.until <= v_at or pause_queue.until > v_at + interval '10 years' then
        raise exception using errcode = 'JQ001', column = 'until',
            message = format('until %s is not within the next ten years', pause_queue.until),
            hint = 'Nothing was changed. Give a time in the future, or none.';
    end if;
    if group_name is null and not exists (select from forebay.queue_group g where g.queue = pause_queue.queue) then
        if (pause_queue.queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$') is not true then
            perform forebay.open_group(pause_queue.queue);  -- Raises.
        end if;
        perform forebay._imply_group(pause_queue.queue);
    end if;
    perform forebay._require_group(pause_queue.queue, group_name);
    if pause_queue.until is not null and pg_sequence_last_value('forebay.timed_pause_seq') is null then
        perform nextval('forebay.timed_pause_seq');
    end if;
    update forebay.queue_group g
    set paused_at = coalesce(forebay._paused_since(g.paused_at, g.resume_at), v_at), resume_at = pause_queue.until
    where g.queue = pause_queue.queue and (group_name is null or g.name = group_name) and g.closing_at is null
      and (forebay._paused_since(g.paused_at, g.resume_at) is null or g.resume_at is distinct from pause_queue.until);
    get diagnostics v_count = row_count;
    if v_count > 0 then
        -- The pause may end earlier than the one that it replaces, which sessions remember.
        perform forebay._forget_polls();
        perform forebay._record_event(
            'queues.pause', queue, group_name, p_count => v_count,
            p_new => case when pause_queue.until is not null then jsonb_build_object('until', pause_queue.until) end);
    end if;
    return v_count;
end
$$;


-- functions/operate/purge_dead.sql

-- grant: operator

-- Delete dead letters that died longer ago than `age`, and count them for forebay.dead_summary(); returns their number. Ordering keys that they hold are free.
--
-- Parameters: age, not negative; queue and cause, null for all.
-- Errors: JQ001 a bad age.
create function forebay.purge_dead(age interval, queue text default null, cause text default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_count bigint := 0;
    v_queue text;
begin
    if age is null or age < interval '0' then
        raise exception using errcode = 'JQ001', message = format('age %s is negative or missing', coalesce(age::text, 'null')),
            hint = 'Give the minimum age of a dead letter, for example 30 days.';
    end if;
    for v_queue in
        select distinct d.queue from forebay.dead_letter d
        where d.died_at <= forebay._now() - age and (purge_dead.queue is null or d.queue = purge_dead.queue)
          and (purge_dead.cause is null or d.cause = purge_dead.cause)
        order by 1
    loop
        v_count := v_count + forebay._delete_dead(v_queue, forebay._now() - age, null, purge_dead.cause, true);
    end loop;
    if v_count > 0 then
        perform forebay._record_event('dead.purge', purge_dead.queue, p_new => jsonb_strip_nulls(jsonb_build_object('age', age::text, 'cause', purge_dead.cause)), p_count => v_count);
    end if;
    return v_count;
end
$$;


-- functions/operate/queue_known.sql

-- grant: producer, worker, operator, reader

-- Whether a queue is in use: has_jobs, jobs were enqueued there and it has not been idle for so long that it was forgotten; is_served, a
-- worker has served it, or forebay.open_group() has opened a group. A name with neither may be misspelt.
--
-- Errors: none.
create function forebay.queue_known(queue text, out has_jobs boolean, out is_served boolean)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
    select exists (select from forebay.lane l where l.queue = queue_known.queue),
           exists (select from forebay.queue_group g where g.queue = queue_known.queue and not g.is_implied)
$$;


-- functions/operate/redrive.sql

-- grant: operator

-- Redrive a dead letter: create a new job for its group, with new attempts; returns the new job's id.
--
-- The new job keeps queue, priority, tag, correlation id, headers and max_attempts; its expiry begins again. It does not take the
-- unique key, which may belong to another job by now. The dead letter stays, and both refer to each other.
--
-- Errors: JQ014 its group was closed, JQ015 no such dead letter, JQ016 redriven before.
-- Locks: the dead letter's row, and its group's row (SHARE).
create function forebay.redrive(dead_id bigint) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    d forebay.dead_letter := forebay._redrive(dead_id);
begin
    perform forebay._record_event('dead.redrive', d.queue, forebay._group_name(d.group_id), d.kind, d.dead_id,
                                  p_new => jsonb_build_object('job_id', d.redriven_as), p_count => 1);
    return d.redriven_as;
end
$$;


-- Redrive a dead letter without an event; returns it with the id of the new job.
create function forebay._redrive(p_dead_id bigint) returns forebay.dead_letter
language plpgsql volatile
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    d        forebay.dead_letter;
    v_job_id bigint;
begin
    select i.* into d from forebay.dead_letter i where i.dead_id = p_dead_id for update;
    if not found then
        raise exception using errcode = 'JQ015',
            message = format('dead letter %s not found', coalesce(p_dead_id::text, 'null')),
            hint = coalesce(
                (select format('Job %s is dead letter %s.', p_dead_id, string_agg(i.dead_id::text, ', ' order by i.dead_id))
                 from forebay.dead_letter i where i.job_id = p_dead_id having count(*) > 0),
                'List dead letters with forebay dead list.');
    elsif d.redriven_at is not null then
        raise exception using errcode = 'JQ016',
            message = format('dead letter %s was redriven as job %s', d.dead_id, d.redriven_as),
            detail = jsonb_build_object('job_id', d.job_id, 'new_job_id', d.redriven_as),
            hint = 'Look at that job; if it died too, redrive its own dead letter.';
    end if;
    -- A group that begins to close waits for this transaction, or is seen here.
    perform from forebay.queue_group g where g.group_id = d.group_id and g.closing_at is null for share;
    if not found then
        raise exception using errcode = 'JQ014',
            message = format('the group of dead letter %s was closed', d.dead_id),
            detail = jsonb_build_object('queue', d.queue, 'group', forebay._group_name(d.group_id)),
            hint = 'The dead letter can be read. To run the job again, enqueue it with the arguments that the dead letter shows.';
    end if;
    insert into forebay.log (
        lane, enqueued_at, max_attempts, kind, args, tag, correlation_id, headers, ordering_key, limit_key)
    values (forebay._record_private_lane(d.queue, d.priority, d.group_id, d.ordering_key, d.limit_key), forebay._now(), d.max_attempts,
            d.kind, d.args, d.tag, d.correlation_id, d.headers, d.ordering_key, d.limit_key)
    returning seq into v_job_id;
    update forebay.dead_letter i set redriven_at = forebay._now(), redriven_as = v_job_id where i.dead_id = d.dead_id;
    perform forebay._notify(d.queue);
    d.redriven_as := v_job_id;
    return d;
end
$$;


-- functions/operate/redrive_matching.sql

-- grant: operator

-- Redrive every dead letter that matches, in the order the jobs had in the log; returns their number. Dead letters of closed
-- groups are left alone.
--
-- Parameters: null means any; died_after and died_before bound the time of death; most, the maximum number.
create function forebay.redrive_matching(
    queue text default null, kind text default null, reason text default null, tag text default null,
    group_name text default null, died_after timestamptz default null, died_before timestamptz default null,
    most integer default null, job_id bigint default null,
    cause text default null)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_id    bigint;
    v_count bigint := 0;
begin
    for v_id in
        select d.dead_id
        from forebay.dead_letter d
        join forebay.queue_group g on g.group_id = d.group_id
        where d.redriven_at is null and g.closing_at is null
          and (redrive_matching.queue is null or d.queue = redrive_matching.queue)
          and (redrive_matching.kind is null or d.kind = redrive_matching.kind)
          and (redrive_matching.reason is null or d.reason = redrive_matching.reason)
          and (redrive_matching.tag is null or d.tag = redrive_matching.tag)
          and (redrive_matching.group_name is null or g.name = redrive_matching.group_name)
          and (redrive_matching.cause is null or d.cause = redrive_matching.cause)
          and (redrive_matching.job_id is null or d.job_id = redrive_matching.job_id)
          and (redrive_matching.died_after is null or d.died_at >= redrive_matching.died_after)
          and (redrive_matching.died_before is null or d.died_at < redrive_matching.died_before)
        order by d.enqueued_at, d.job_id
        limit redrive_matching.most
        for update of d skip locked
    loop
        perform forebay._redrive(v_id);
        v_count := v_count + 1;
    end loop;
    if v_count > 0 then
        perform forebay._record_event(
            'dead.redrive', redrive_matching.queue, redrive_matching.group_name, redrive_matching.kind,
            p_new => jsonb_strip_nulls(jsonb_build_object(
                'reason', redrive_matching.reason, 'tag', redrive_matching.tag, 'died_after', redrive_matching.died_after,
                'died_before', redrive_matching.died_before, 'most', redrive_matching.most, 'job_id', redrive_matching.job_id, 'cause', redrive_matching.cause)),
            p_count => v_count);
    end if;
    return v_count;
end
$$;


-- functions/operate/resume_key.sql

-- grant: operator

-- Resume a paused key of a queue, for all groups, or remove a planned pause. Returns whether there was one.
--
-- Invariant "a paused key is not forgotten" (docs/design/limits.md).
-- Errors: JQ001 a bad name or key.
-- Locks: as forebay.pause_key().
create function forebay.resume_key(queue text, ordering_key text default null, limit_key text default null) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_sort   constant text := forebay._require_key(resume_key.queue, resume_key.ordering_key, resume_key.limit_key);
    v_key    constant text := coalesce(resume_key.ordering_key, resume_key.limit_key);
    v_before forebay.key_pause;
begin
    delete from forebay.key_pause p
    where p.queue = resume_key.queue and p.sort = v_sort and p.key = v_key returning * into v_before;
    if v_before.queue is null then
        return false;
    end if;
    perform forebay._announce_key(resume_key.queue, v_sort, v_key);
    if v_before.resume_at <= forebay._now() then
        return false;
    end if;
    perform forebay._record_event(
        'keys.resume', resume_key.queue, p_old => forebay._pause_facts(v_sort, v_key, v_before.begins_at, v_before.resume_at));
    return true;
end
$$;


-- functions/operate/resume_queue.sql

-- grant: operator

-- Resume a paused queue, for one group or all. Returns how many groups changed.
create function forebay.resume_queue(queue text, group_name text default null) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_count integer;
begin
    perform forebay._require_group(resume_queue.queue, group_name);
    update forebay.queue_group g set paused_at = null, resume_at = null
    where g.queue = resume_queue.queue and (group_name is null or g.name = group_name) 
      and forebay._paused_since(g.paused_at, g.resume_at) is not null and g.closing_at is null;
    get diagnostics v_count = row_count;
    if v_count > 0 then
        perform forebay._forget_polls();
        perform forebay._record_event('queues.resume', queue, group_name, p_count => v_count);
    end if;
    perform forebay._notify(resume_queue.queue);
    return v_count;
end
$$;


-- functions/operate/set_concurrency.sql

-- grant: operator

-- Set how many jobs workers run at once; returns the number of workers. They follow with their next heartbeat. Running jobs
-- finish. It holds until a worker ends; one that starts again has the concurrency that it is started with.
--
-- Parameters:
--   concurrency  1 to 10,000; null: as the worker was started
--   worker       the name of a worker, or its beginning up to a colon: a host, or host:pid; null: all workers with an open lease
-- Errors: JQ001 a bad number.
create function forebay.set_concurrency(concurrency integer, worker text default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_workers text[];
begin
    if set_concurrency.concurrency not between 1 and 10000 then
        raise exception using errcode = 'JQ001', column = 'concurrency',
            message = format('concurrency is %s, not within 1 to 10000', set_concurrency.concurrency);
    end if;
    v_workers := array(select distinct l.worker from forebay.lease l
                       where l.closed_at is null
                         and (set_concurrency.worker is null or l.worker = set_concurrency.worker
                              or starts_with(l.worker, set_concurrency.worker || ':')));
    -- A name is never used again.
    delete from forebay.worker_setting s
    where s.worker = any (v_workers)
       or not exists (select from forebay.lease l where l.worker = s.worker and l.closed_at is null);
    if set_concurrency.concurrency is not null then
        insert into forebay.worker_setting (worker, concurrency)
        select w, set_concurrency.concurrency from unnest(v_workers) w
        on conflict (worker) do update set concurrency = excluded.concurrency;
    end if;
    if v_workers <> '{}' then
        perform forebay._record_event('workers.set', p_count => cardinality(v_workers), p_detail => set_concurrency.worker,
                                      p_new => jsonb_build_object('concurrency', set_concurrency.concurrency));
    end if;
    return cardinality(v_workers);
end
$$;


-- functions/operate/set_max_attempts.sql

-- grant: operator

-- Set the maximum number of attempts of a queue's jobs; null removes it. Returns the number before, null for none.
--
-- A job's own maximum comes first, then that of its queue, then that of its kind. Each settlement looks: the failures that are settled
-- after the commit are retried or final by the new number, of waiting and running jobs too. Dead letters stay.
--
-- Parameters: attempts, 1 to 10000; null: the kinds decide again.
-- Errors: JQ001 a bad name or number, or a queue of Forebay, whose handlers decide.
create function forebay.set_max_attempts(queue text, attempts integer default null) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_before integer := forebay._queue_attempts(set_max_attempts.queue);
begin
    if (set_max_attempts.queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$' and not starts_with(set_max_attempts.queue, 'forebay.')) is not true
       or set_max_attempts.attempts not between 1 and 10000 then
        raise exception using errcode = 'JQ001',
            message = format('cannot give jobs of queue %s %s attempts', coalesce(quote_literal(left(set_max_attempts.queue, 40)), 'null'),
                             coalesce(set_max_attempts.attempts::text, 'null')),
            hint = 'Names have letters, digits and _ . : - only, and do not begin with forebay.; the number is 1 to 10000.';
    end if;
    if v_before is not distinct from set_max_attempts.attempts then
        return v_before;
    end if;
    if pg_sequence_last_value('forebay.queue_attempts_seq') is null then
        perform nextval('forebay.queue_attempts_seq');
    end if;
    delete from forebay.queue_attempts a where a.queue = set_max_attempts.queue and set_max_attempts.attempts is null;
    insert into forebay.queue_attempts (queue, max_attempts)
    select set_max_attempts.queue, set_max_attempts.attempts where set_max_attempts.attempts is not null
    on conflict on constraint queue_attempts_pkey do update set max_attempts = excluded.max_attempts;
    perform forebay._record_event('queues.max_attempts', queue, p_old => to_jsonb(v_before), p_new => to_jsonb(attempts));
    return v_before;
end
$$;


-- functions/operate/shard_queue.sql

-- grant: operator

-- Trade the order of a queue's jobs for parallel claims: split the queue into this number of lanes of each priority, so that
-- claims of different workers do not wait for each other. 1 restores the order for jobs enqueued from then on. Waiting jobs stay
-- in their lanes. Returns the number before.
--
-- Parameters: lanes, 1 to 64; about the number of worker processes that claim at once.
-- Errors: JQ001 a bad name or number.
create function forebay.shard_queue(queue text, lanes integer) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_before integer := forebay._shards_of(queue);
begin
    if (shard_queue.queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$' and shard_queue.lanes between 1 and 64) is not true then
        raise exception using errcode = 'JQ001',
            message = format('cannot split queue %s into %s shards', coalesce(quote_literal(left(shard_queue.queue, 40)), 'null'),
                             coalesce(shard_queue.lanes::text, 'null')),
            hint = 'Names have letters, digits and _ . : - only; the number is 1 to 64.';
    end if;
    perform nextval('forebay.shard_seq'), setval('forebay.lane_secret', pg_sequence_last_value('forebay.lane_secret') | 1)
    where shard_queue.lanes > 1;
    insert into forebay.queue_shards (queue, lanes) values (shard_queue.queue, shard_queue.lanes)
    on conflict on constraint queue_shards_pkey do update set lanes = excluded.lanes;
    if v_before <> shard_queue.lanes then
        perform forebay._record_event('queues.shard', queue, p_old => to_jsonb(v_before), p_new => to_jsonb(lanes));
    end if;
    return v_before;
end
$$;


-- functions/operate/skip_dead.sql

-- grant: operator

-- Free the ordering key that a dead letter holds, without its job; returns whether it held the key. The dead letter stays, and
-- can be redriven later: then as a new job, behind the others of its key.
--
-- Errors: JQ015 no such dead letter, JQ016 it was redriven, and the key waits for that job.
-- Locks: the dead letter's row.
create function forebay.skip_dead(dead_id bigint) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    d forebay.dead_letter;
begin
    select i.* into d from forebay.dead_letter i where i.dead_id = skip_dead.dead_id for update;
    if not found then
        raise exception using errcode = 'JQ015',
            message = format('dead letter %s not found', coalesce(skip_dead.dead_id::text, 'null')),
            hint = 'List dead letters with forebay dead list.';
    elsif d.holds_key and d.redriven_as is not null then
        raise exception using errcode = 'JQ016',
            message = format('dead letter %s was redriven as job %s', d.dead_id, d.redriven_as),
            detail = jsonb_build_object('job_id', d.job_id, 'new_job_id', d.redriven_as),
            hint = 'Its ordering key waits for that job. To skip it, cancel it.';
    elsif not d.holds_key then
        return false;
    end if;
    perform forebay._end_holds(array[d.dead_id]);
    perform forebay._record_event('keys.skip', d.queue, forebay._group_name(d.group_id), d.kind, d.dead_id,
                                  p_new => jsonb_build_object('ordering_key', d.ordering_key));
    return true;
end
$$;


-- functions/operate/workers.sql

-- grant: operator, reader

-- The workers with an open lease: who they are, since when, and what they run. A worker that was killed stays until its lease is
-- revoked; heartbeat_at shows it.
--
-- group_name, queues, app, app_version, forebay_version, host and pid are as the worker reported them with its lease; null for
-- workers that report nothing. concurrency: slots, as set by forebay.set_concurrency(), else as the worker was started. memory_bytes: resident
-- memory of its process, without children, at the last heartbeat; null where the system does not tell. running: jobs that run, at
-- most 1,000. running_jobs: the first of them, [{"job_id", "kind", "claimed_at"}]; kind is null for a job that has just ended.
--
-- Parameters: jobs, most elements of running_jobs, 0 to 100.
-- Errors: JQ001 a bad number.
-- pages: 40 + 20 an open lease + 10 a listed job
create function forebay.workers(jobs integer default 5)
returns table (worker text, host text, pid integer, group_name text, queues text[], app text, app_version text,
               forebay_version text, started_at timestamptz, heartbeat_at timestamptz, concurrency integer, memory_bytes bigint,
               running integer, running_jobs jsonb)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
begin
    if (workers.jobs between 0 and 100) is not true then
        raise exception using errcode = 'JQ001', column = 'jobs',
            message = format('jobs is %s, not within 0 to 100', coalesce(workers.jobs::text, 'null'));
    end if;
    return query
    with leases as (
        select l.worker, array_agg(l.lease_id order by l.opened_at desc) as ids, (array_agg(l.details order by l.opened_at desc))[1] as details,
               min(l.opened_at) as opened_at
        from forebay.lease l where l.closed_at is null group by l.worker)
    select l.worker, l.details ->> 'host', (l.details ->> 'pid')::integer, l.details ->> 'group',
           (select array_agg(q) from jsonb_array_elements_text(l.details -> 'queues') q),
           l.details ->> 'app', l.details ->> 'app_version', l.details ->> 'version',
           coalesce((l.details ->> 'started_at')::timestamptz, l.opened_at), h.heartbeat_at,
           coalesce(s.concurrency, (l.details ->> 'concurrency')::integer), h.memory_kb * 1024::bigint,
           coalesce(cardinality(h.running_jobs), 0), coalesce(j.list, '[]')
    from leases l
    left join lateral (select b.heartbeat_at, b.running_jobs, b.memory_kb
                       from unnest(l.ids) i (lease_id)
                       cross join lateral (select n.* from forebay.heartbeat n where n.lease_id = i.lease_id
                                           order by n.heartbeat_at desc limit 1) b
                       order by b.heartbeat_at desc limit 1) h on true
    left join forebay.worker_setting s on s.worker = l.worker
    left join lateral (
        select jsonb_agg(jsonb_build_object('job_id', r.job_id, 'kind', r.kind, 'claimed_at', r.claimed_at) order by r.nr) as list
        from (select u.job_id, u.nr, f.kind, f.claimed_at
              from unnest(h.running_jobs) with ordinality u (job_id, nr)
              left join forebay._claimed_jobs(l.ids, h.running_jobs[1:workers.jobs]) f on f.job_id = u.job_id
              where u.nr <= workers.jobs) r) j on true
    order by l.worker;
end
$$;


-- The kinds of some jobs that leases hold, and when they were claimed. It looks at no more than 200 jobs of a worker: first at those
-- whose row has the number of the job.
create function forebay._claimed_jobs(p_lease_ids bigint[], p_job_ids bigint[])
returns table (job_id bigint, kind text, claimed_at timestamptz)
language sql stable
as $$
    select distinct on (r.job_id) r.job_id, r.kind, c.claimed_at
    from (select b.claimed_at, coalesce(b.lanes[u.nr], b.lane) as lane, coalesce(b.xids[u.nr], b.xids[1]) as xid, u.seq
          from unnest(p_lease_ids) l (lease_id)
          cross join lateral (select i.floor from forebay.batch i where i.lease_id = l.lease_id order by i.claim_no desc limit 1) f
          join forebay.batch b on b.lease_id = l.lease_id and b.claim_no >= f.floor
          cross join lateral unnest(b.seqs) with ordinality u (seq, nr)
          where cardinality(p_job_ids) > 0
          order by u.seq = any (p_job_ids) desc, b.claim_no desc
          limit 200) c
    cross join lateral (select coalesce(o.job_id, o.seq) as job_id, o.kind from forebay._row(c.lane, c.xid, c.seq) o) r
    where r.job_id = any (p_job_ids)
    order by r.job_id, c.claimed_at desc
$$;


-- functions/publish/activate.sql

-- grant: worker

-- Do one step of the activation of a subscription; returns whether it is over.
--
-- Invariant "from its start, and nothing twice": routers insert into `published` under the shared lock. Under the exclusive one no such
-- transaction is open, so each event is either in `published` now, and delivered by these steps, or will be expanded after the
-- subscription is active, and delivered by its router. Steps write deliveries in the order of route_no, before any that a router writes:
-- so the order of a key is kept.
--
-- A step looks at p_most events up to routed_bound, which no router can write any more. When few are left behind it, the last step
-- takes the lock, expands them, and activates; when many are, it only moves the bound.
-- Parameters: p_most, 1 to 10000.
-- Locks: the subscription's row; a step that finds it locked does nothing. In short steps that of the routers, alone.
-- pages: 200 + 30 an event
create function forebay.activate_v1(p_subscription_id bigint, p_most integer default 1000) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    s       forebay.subscription;
    v_most  constant integer := least(greatest(coalesce(p_most, 1000), 1), 10000);
    v_last  bigint;
    v_bound bigint;
begin
    perform forebay._require_alone('forebay.activate_v1()');
    select i.* into s from forebay.subscription i where i.subscription_id = p_subscription_id for update skip locked;
    if not found then
        return not exists (select from forebay.subscription i where i.subscription_id = p_subscription_id and i.active_at is null);
    elsif s.active_at is not null then
        return true;
    elsif s.routed_to < s.routed_bound then
        v_last := forebay._backfill(s, s.routed_bound, v_most);
        update forebay.subscription i set routed_to = coalesce(v_last, s.routed_bound) where i.subscription_id = s.subscription_id;
        return false;
    end if;
    perform forebay._lock_routing(false);
    v_bound := coalesce(pg_sequence_last_value(pg_get_serial_sequence('forebay.published', 'route_no')::regclass), 0);
    if (select count(*) from (select from forebay.published p
                              where p.event_type = s.event_type and p.route_no > s.routed_to limit v_most + 1) n) > v_most then
        update forebay.subscription i set routed_bound = v_bound where i.subscription_id = s.subscription_id;
        return false;
    end if;
    perform forebay._backfill(s, v_bound, v_most);
    update forebay.subscription i set routed_to = v_bound, routed_bound = v_bound, active_at = forebay._now()
    where i.subscription_id = s.subscription_id;
    return true;
end
$$;


-- Write the deliveries of a subscription for the next events that it looks at; returns the last route_no, or null when it looked at all up
-- to p_bound. Events past their expiry are not delivered.
create function forebay._backfill(s forebay.subscription, p_bound bigint, p_most integer) returns bigint
language plpgsql volatile
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_seen integer;
    v_last bigint;
    v_new  forebay._new_delivery[];
begin
    with looked as materialized (
        select p.* from forebay.published p
        where p.event_type = s.event_type and p.route_no > s.routed_to and p.route_no <= p_bound order by p.route_no limit p_most)
    select count(*), max(l.route_no),
           array_agg(row(l.route_no, s.endpoint_id, l.event_id, l.published_at, l.event_type, l.priority, l.ordering_key, l.correlation_id,
                         l.tag, l.expires_at)::forebay._new_delivery order by l.route_no)
               filter (where l.expires_at > forebay._now() and (s.filter is null or l.payload @> s.filter)
                         and forebay._is_admitted(l.published_at, l.xid, s.start_at, s.start_after))
    into v_seen, v_last, v_new from looked l;
    if not exists (select from forebay.endpoint e where e.endpoint_id = s.endpoint_id and e.disabled_at is not null) then
        perform forebay._add_deliveries(v_new);
    end if;
    return case when v_seen >= p_most then v_last end;
end
$$;


-- functions/publish/event_types.sql

-- grant: operator

-- Create an event type, or change its description; returns whether it is new.
--
-- Parameters: name, letters, digits and _ . : -, at most 128; not beginning with "forebay.".
-- Errors: JQ001 a bad name.
create function forebay.create_event_type(name text, description text default null) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_is_new boolean;
    v_before text;
begin
    if (create_event_type.name ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$') is not true then
        raise exception using errcode = 'JQ001', column = 'event_type',
            message = format('event type %s is not a name: letters, digits and _ . : - only, at most 128',
                             coalesce(quote_literal(left(create_event_type.name, 40)), 'null'));
    elsif create_event_type.name like 'forebay.%' then
        raise exception using errcode = 'JQ001', column = 'event_type',
            message = format('event type %s: names that begin with forebay. are reserved', quote_literal(create_event_type.name)),
            hint = 'Choose another name.';
    end if;
    insert into forebay.event_type (name, description, created_at)
    values (create_event_type.name, create_event_type.description, forebay._now())
    on conflict do nothing;
    v_is_new := found;
    if not v_is_new then
        select t.description into v_before from forebay.event_type t where t.name = create_event_type.name for update;
        if v_before is not distinct from create_event_type.description then
            return false;
        end if;
        update forebay.event_type t set description = create_event_type.description where t.name = create_event_type.name;
    end if;
    perform forebay._record_event('event_types.create', p_kind => create_event_type.name,
                                  p_old => case when not v_is_new then jsonb_build_object('description', v_before) end,
                                  p_new => jsonb_build_object('description', create_event_type.description));
    return v_is_new;
end
$$;


-- Drop an event type and its subscriptions; returns whether there was one. Deliveries that wait are still sent; events that no
-- router has expanded yet become dead letters.
--
-- Errors: JQ001 a reserved name.
create function forebay.drop_event_type(name text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_count bigint;
begin
    if drop_event_type.name like 'forebay.%' then
        raise exception using errcode = 'JQ001', column = 'event_type',
            message = format('event type %s is reserved', quote_literal(drop_event_type.name)), hint = 'Nothing was dropped.';
    end if;
    select count(*) into v_count from forebay.subscription s where s.event_type = drop_event_type.name;
    delete from forebay.event_type t where t.name = drop_event_type.name;
    if not found then
        return false;
    end if;
    perform forebay._record_event('event_types.drop', p_kind => drop_event_type.name, p_count => v_count);
    return true;
end
$$;


-- functions/publish/lists.sql

-- grant: operator, reader

-- The event types, with the number of their subscriptions.
create function forebay.event_types() returns table (name text, description text, subscriptions bigint, created_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select t.name, t.description, (select count(*) from forebay.subscription s where s.event_type = t.name), t.created_at
    from forebay.event_type t order by t.name
$$;


-- The subscriptions of an endpoint, or of all.
--
-- Returns: starts_at, null: it began with the events after created_at, or is_from_beginning; is_active, whether the router expands
--   events for it now; false: it still catches up.
create function forebay.subscriptions(only_endpoint text default null)
returns table (subscription_id bigint, endpoint text, event_type text, filter jsonb, starts_at timestamptz, is_from_beginning boolean,
               is_active boolean, created_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select s.subscription_id, e.name, s.event_type, s.filter, s.start_at, s.start_at is null and s.start_after is null,
           s.active_at is not null, s.created_at
    from forebay.subscription s join forebay.endpoint e using (endpoint_id)
    where subscriptions.only_endpoint is null or e.name = subscriptions.only_endpoint
    order by e.name, s.event_type
$$;


-- functions/publish/payloads.sql

-- grant: worker

-- The events of deliveries: payload, headers and what else a message has. An event that maintenance has deleted has no row.
--
-- Parameters: arrays of the two members of "event" in the arguments of a delivery; elements with one place belong together.
-- pages: 20 + 4 an event
create function forebay.event_payloads_v1(p_event_ids bigint[], p_times timestamptz[])
returns table (event_id bigint, published_at timestamptz, event_type text, payload jsonb, headers jsonb, ordering_key text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
    select p.event_id, p.published_at, p.event_type, p.payload, p.headers, p.ordering_key
    from unnest(p_event_ids, p_times) u (event_id, published_at)
    -- Not a join, which may read the whole index if the statistics are those of an empty table.
    cross join lateral (select i.* from forebay.published i where i.event_id = u.event_id and i.published_at = u.published_at limit 1) p
$$;


-- The payload and the headers of the event that the arguments of a delivery name; null: it is not there.
create function forebay._event_of_delivery(p_args jsonb) returns jsonb
language plpgsql stable
set enable_seqscan = off
set jit = off
as $$
begin
    return (select jsonb_build_object('payload', p.payload, 'headers', p.headers) from forebay.published p
            where p.event_id = (p_args -> 'event' ->> 0)::bigint and p.published_at = (p_args -> 'event' ->> 1)::timestamptz);
exception when data_exception then
    return null;  -- A job that no router wrote.
end
$$;


-- functions/publish/publish.sql

-- grant: producer, worker

-- Publish an event in the caller's transaction: each subscription of its type whose filter the payload contains gets a delivery.
--
-- Invariant "a publish is one row": a row of the log, whatever the number of subscriptions. Routers write the deliveries later.
--
-- Parameters: event_type, see forebay.create_event_type(); payload, a JSON object; the others as of forebay.enqueue(). Deliveries of
--   events with the same ordering_key are sent to each endpoint in the order of the events.
-- Returns: event_id, with unique_as perhaps that of an existing event; subscriptions, how many subscriptions of enabled endpoints the
--   type has, before filters, counted up to 100. 0: nothing will be delivered, unless a subscription is made that begins earlier.
-- Errors: JQ001 an unknown event type or a bad option; others as forebay.enqueue().
-- Locks: as forebay.enqueue().
-- pages: 150 + 8 a subscription
create function forebay.publish(
    event_type text, payload jsonb default '{}', priority integer default 100, delay interval default null,
    run_at timestamptz default null, expires_at timestamptz default null, tag text default null, correlation_id text default null,
    headers jsonb default null, unique_as jsonb default null, ordering_key text default null,
    out event_id bigint, out subscriptions integer)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    perform forebay._require_event_types(array[publish.event_type]);
    if jsonb_typeof(publish.payload) is distinct from 'object' then
        raise exception using errcode = 'JQ001', column = 'payload',
            message = format('payload must be a JSON object, not %s', coalesce(jsonb_typeof(publish.payload), 'null')),
            hint = 'Nothing was published.';
    end if;
    event_id := forebay.enqueue(
        kind => publish.event_type, args => publish.payload, queue => 'forebay.publish', priority => publish.priority, delay => publish.delay,
        run_at => publish.run_at, expires_at => publish.expires_at, tag => publish.tag, correlation_id => publish.correlation_id,
        headers => publish.headers, unique_as => publish.unique_as, ordering_key => publish.ordering_key);
    subscriptions := (
        select count(*) from (
            select from forebay.subscription s join forebay.endpoint e using (endpoint_id)
            where s.event_type = publish.event_type and e.disabled_at is null limit 100) n);
end
$$;


-- Publish many events in the caller's transaction; returns their ids in input order. All or none: a bad event fails the call, and the
-- message has its index, from 0.
--
-- Parameters: events, a JSON array of objects with the keys event_type, payload, priority, delay (seconds), run_at, expires_at, tag,
--   correlation_id, headers, unique_as and ordering_key; all but event_type optional.
-- Errors: as forebay.publish().
-- pages: 80 + 8 an event
create function forebay.publish_many(events jsonb) returns bigint[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_keys constant text[] := array['event_type', 'payload', 'priority', 'delay', 'run_at', 'expires_at', 'tag', 'correlation_id',
                                    'headers', 'unique_as', 'ordering_key'];
    v_bad  record;
begin
    if jsonb_typeof(publish_many.events) is distinct from 'array' then
        raise exception using errcode = 'JQ001', column = 'events',
            message = format('events must be a JSON array, not %s', coalesce(jsonb_typeof(publish_many.events), 'null')),
            hint = 'Pass an array of objects, one for each event.';
    end if;
    select e.nr - 1 as index, case
        when jsonb_typeof(e.value) <> 'object' then format('must be a JSON object, not %s', jsonb_typeof(e.value))
        when (e.value - v_keys) <> '{}' then format('unknown option %s', (select k from jsonb_object_keys(e.value - v_keys) k limit 1))
        when jsonb_typeof(e.value -> 'event_type') is distinct from 'string' then 'has no event_type'
        when jsonb_typeof(coalesce(e.value -> 'payload', '{}')) <> 'object'
            then format('payload must be a JSON object, not %s', jsonb_typeof(e.value -> 'payload')) end as problem
    into v_bad
    from jsonb_array_elements(publish_many.events) with ordinality e (value, nr)
    where case when jsonb_typeof(e.value) = 'object'
               then (e.value - v_keys) <> '{}' or jsonb_typeof(e.value -> 'event_type') is distinct from 'string'
                    or jsonb_typeof(coalesce(e.value -> 'payload', '{}')) <> 'object'
               else true end
    order by e.nr limit 1;
    if found then
        raise exception using errcode = 'JQ001', column = 'events', message = format('event %s: %s', v_bad.index, v_bad.problem),
            detail = jsonb_build_object('index', v_bad.index),
            hint = 'Nothing was published. The options are ' || array_to_string(v_keys, ', ') || '.';
    end if;
    perform forebay._require_event_types(array(
        select distinct e.value ->> 'event_type' from jsonb_array_elements(publish_many.events) e));
    return (forebay._enqueue_json((
        select coalesce(jsonb_agg((e.value - 'event_type' - 'payload') || jsonb_build_object(
                   'kind', e.value -> 'event_type', 'args', coalesce(e.value -> 'payload', '{}'), 'queue', 'forebay.publish') order by e.nr), '[]')
        from jsonb_array_elements(publish_many.events) with ordinality e (value, nr)))).ids;
end
$$;


-- Errors: JQ001 when one of the event types does not exist.
create function forebay._require_event_types(p_names text[]) returns void
language plpgsql stable
as $$
declare
    v_missing text;
begin
    select n.name into v_missing from unnest(p_names) n (name)
    where not exists (select from forebay.event_type t where t.name = n.name) limit 1;
    if found then
        raise exception using errcode = 'JQ001', column = 'event_type',
            message = format('event type %s does not exist', coalesce(quote_literal(left(v_missing, 128)), 'null')),
            detail = jsonb_build_object('event_type', v_missing),
            hint = 'Create it with forebay.create_event_type(); forebay.event_types() lists them.';
    end if;
end
$$;


-- functions/publish/replay.sql

-- grant: operator

-- Deliver events once more to an endpoint: those that were published from `since` to before `until`, and that its subscriptions and their
-- filters, as they are then, select. Returns the number of the job that does it in steps. The messages have the ids that they had.
--
-- Parameters: until, null: now. The deliveries expire 30 days, or max_age of the endpoint, after they are written.
-- Errors: JQ001 it is disabled, or a bad time; JQ050 no endpoint has this name.
create function forebay.replay_endpoint(name text, since timestamptz, until timestamptz default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_endpoint_id constant bigint := forebay._subscriber(replay_endpoint.name);
    v_until       constant timestamptz := coalesce(replay_endpoint.until, forebay._now());
    v_id          bigint;
    v_job_id      bigint;
begin
    if (isfinite(replay_endpoint.since) and replay_endpoint.since < v_until) is not true then
        raise exception using errcode = 'JQ001', column = 'since',
            message = format('since %s is not a time before %s', coalesce(replay_endpoint.since::text, 'null'), v_until);
    elsif exists (select from forebay.endpoint e where e.endpoint_id = v_endpoint_id and e.disabled_at is not null) then
        raise exception using errcode = 'JQ001', column = 'endpoint',
            message = format('endpoint %s is disabled', quote_literal(replay_endpoint.name)), hint = 'Enable it with forebay.enable_endpoint() first.';
    end if;
    insert into forebay.replay (endpoint_id, since, until, routed_to, routed_bound, created_at)
    values (v_endpoint_id, replay_endpoint.since, v_until, 0,
            coalesce(pg_sequence_last_value(pg_get_serial_sequence('forebay.published', 'route_no')::regclass), 0), forebay._now())
    returning replay_id into v_id;
    v_job_id := (forebay._enqueue_jobs(array[row(
        'forebay.replay', jsonb_build_object('replay', v_id), 'forebay.publish', 0, null, null, null, null, null, null, null, null,
        null)::forebay._job_input]))[1];
    perform forebay._record_event('endpoints.replay', 'forebay.deliver', p_subject_id => v_job_id, p_detail => replay_endpoint.name,
                                  p_new => jsonb_build_object('since', replay_endpoint.since, 'until', v_until));
    return v_job_id;
end
$$;


-- Redrive every dead letter of an endpoint, oldest first; returns their number. Messages of events have the ids that they had.
--
-- Parameters: most, the maximum number; null: all.
-- Errors: JQ050 no endpoint has this name.
create function forebay.redrive_endpoint(name text, most integer default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_id    bigint;
    v_count bigint := 0;
begin
    perform forebay._subscriber(redrive_endpoint.name);
    for v_id in
        select d.dead_id from forebay.dead_letter d join forebay.queue_group g on g.group_id = d.group_id
        where d.queue = 'forebay.deliver' and d.limit_key = redrive_endpoint.name and d.redriven_at is null and g.closing_at is null
        order by d.enqueued_at, d.job_id
        limit redrive_endpoint.most
        for update of d skip locked
    loop
        perform forebay._redrive(v_id);
        v_count := v_count + 1;
    end loop;
    if v_count > 0 then
        perform forebay._record_event('endpoints.redrive', 'forebay.deliver', p_detail => redrive_endpoint.name, p_count => v_count);
    end if;
    return v_count;
end
$$;


-- functions/publish/replay_step.sql

-- grant: worker

-- Do one step of a replay: look at p_most events; returns whether the replay is over.
--
-- In the order of route_no over all event types of the endpoint, so that the order of a key is kept. The events are kept until their
-- new deliveries have expired.
-- Parameters: p_most, 1 to 10000.
-- Locks: the replay's row; a step that finds it locked does nothing. The rows of the events.
-- pages: 200 + 40 an event
create function forebay.replay_step_v1(p_replay_id bigint, p_most integer default 1000) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    r        forebay.replay;
    v_most   constant integer := least(greatest(coalesce(p_most, 1000), 1), 10000);
    v_ends   timestamptz;
    v_seen   integer;
    v_last   bigint;
    v_new    forebay._new_delivery[];
    v_count  bigint;
begin
    perform forebay._require_alone('forebay.replay_step_v1()');
    select i.* into r from forebay.replay i where i.replay_id = p_replay_id for update skip locked;
    if not found then
        return not exists (select from forebay.replay i where i.replay_id = p_replay_id and i.ended_at is null);
    elsif r.ended_at is not null then
        return true;
    end if;
    select forebay._now() + least(coalesce(e.max_age, interval '30 days'), interval '30 days') into v_ends
    from forebay.endpoint e where e.endpoint_id = r.endpoint_id;
    with looked as materialized (
        select p.*, s.filter
        from forebay.subscription s
        cross join lateral (select i.* from forebay.published i
                            where i.event_type = s.event_type and i.route_no > r.routed_to and i.route_no <= r.routed_bound
                            order by i.route_no limit v_most) p
        where s.endpoint_id = r.endpoint_id
        order by p.route_no limit v_most)
    select count(*), max(l.route_no),
           array_agg(row(l.route_no, r.endpoint_id, l.event_id, l.published_at, l.event_type, l.priority, l.ordering_key, l.correlation_id,
                         l.tag, v_ends)::forebay._new_delivery order by l.route_no)
               filter (where l.published_at >= r.since and l.published_at < r.until and (l.filter is null or l.payload @> l.filter))
    into v_seen, v_last, v_new from looked l;
    -- By their places, since a join with the events may read all of the table.
    update forebay.published p set keep_until = v_ends
    where p.ctid = any (array(
        select f.place from unnest(v_new) n
        cross join lateral (select i.ctid as place from forebay.published i
                            where i.event_id = n.event_id and i.published_at = n.published_at and i.keep_until < v_ends
                            for no key update) f));
    v_count := forebay._add_deliveries(v_new);
    update forebay.replay i
    set routed_to = case when v_seen >= v_most then v_last else r.routed_bound end, deliveries = i.deliveries + v_count,
        ended_at = case when v_seen < v_most then forebay._now() end
    where i.replay_id = r.replay_id;
    return v_seen < v_most;
end
$$;


-- functions/publish/route.sql

-- Expansion of events to deliveries. See docs/design/endpoints.md.
-- grant: worker

-- Expand claimed events: write a row of `published` and the deliveries of each. An event that was expanded before is left alone.
--
-- Invariants "expanded once", "each filter once per event".
-- Parameters: p_job_ids, jobs of the queue forebay.publish that an open lease has. The payloads are read from the log.
-- Returns: deliveries, how many were written; unknown, jobs whose kind is not an event type; missing, jobs that no open lease has.
-- Errors: JQ012 not called alone; 53400 the queue forebay.deliver is full.
-- Locks: that of the routers, shared.
-- pages: 250 + 25 a job + 25 a delivery
create function forebay.route_v1(p_job_ids bigint[], out deliveries bigint, out unknown bigint[], out missing bigint[])
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_rows  forebay.log[];
    v_found bigint[];
    v_new   forebay._new_delivery[];
begin
    perform forebay._require_alone('forebay.route_v1()');
    perform forebay._lock_routing(true);
    v_rows := forebay._claimed_rows('forebay.publish', p_job_ids);
    v_found := array(select coalesce(r.job_id, r.seq) from unnest(v_rows) r);
    missing := array(select i from unnest(p_job_ids) i where i <> all (v_found));
    unknown := array(select coalesce(r.job_id, r.seq) from unnest(v_rows) r
                     where not exists (select from forebay.event_type t where t.name = r.kind));

    -- A later statement than the lock: it sees the subscriptions that were activated.
    with event as materialized (
        select row_number() over (order by r.xid, r.seq) as nr, coalesce(r.job_id, r.seq) as event_id, r.enqueued_at as published_at, r.xid,
               r.kind as event_type, r.args as payload, r.headers, r.tag, l.priority, r.ordering_key, r.correlation_id,
               coalesce(r.expires_at, r.enqueued_at + interval '30 days') as expires_at
        from unnest(v_rows) r
        join forebay.event_type t on t.name = r.kind
        cross join lateral (select i.priority from forebay.lane i where i.lane = r.lane limit 1) l),
    -- Each event looks up its subscriptions by itself, whatever the planner knows of the tables: a join of events with candidates would be
    -- quadratic in the events if the statistics are those of empty tables.
    matched as materialized (
        select e.*, array(
            select s.endpoint_id
            from (select i.* from forebay.subscription i where i.event_type = e.event_type and i.filter_member is null
                  union all
                  select i.*
                  from jsonb_each(e.payload) m
                  cross join lateral (select * from forebay.subscription i
                                      where i.event_type = e.event_type and i.filter_member = m.key and i.filter_value = m.value offset 0) i
                  where jsonb_typeof(m.value) in ('string', 'number', 'boolean', 'null')) s
            where s.active_at is not null and (s.filter is null or e.payload @> s.filter)
              and forebay._is_admitted(e.published_at, e.xid, s.start_at, s.start_after)
              and (select p.disabled_at is null from forebay.endpoint p where p.endpoint_id = s.endpoint_id)
            order by s.endpoint_id) as endpoints
        from event e),
    written as (
        insert into forebay.published (
            event_id, published_at, xid, event_type, payload, headers, tag, priority, ordering_key, correlation_id, expires_at, keep_until,
            routed_at, deliveries)
        select e.event_id, e.published_at, e.xid, e.event_type, e.payload, e.headers, e.tag, e.priority, e.ordering_key, e.correlation_id,
               e.expires_at, greatest(e.expires_at, e.published_at + forebay._retention(1)), forebay._now(), cardinality(e.endpoints)
        from matched e
        order by e.nr
        on conflict do nothing
        returning event_id, published_at)
    select array_agg(row(e.nr, p.endpoint_id, e.event_id, e.published_at, e.event_type, e.priority, e.ordering_key, e.correlation_id, e.tag,
                         e.expires_at)::forebay._new_delivery order by e.nr, p.endpoint_id)
    into v_new
    from matched e
    cross join lateral unnest(e.endpoints) p (endpoint_id)
    -- In a case the rows are hashed; a join could be a nested loop.
    where case when (e.event_id, e.published_at) in (select w.event_id, w.published_at from written w) then true else false end;
    deliveries := forebay._add_deliveries(v_new);
end
$$;


-- Does a subscription with that start get an event?
create function forebay._is_admitted(p_published_at timestamptz, p_xid xid8, p_start_at timestamptz, p_start_after pg_snapshot) returns boolean
language sql immutable
as $$
    select case when p_start_at is not null then p_published_at >= p_start_at
                when p_start_after is not null then not pg_visible_in_snapshot(p_xid, p_start_after)
                else true end
$$;


-- The rows of jobs of a queue that open leases have, whether settled or not.
create function forebay._claimed_rows(p_queue text, p_job_ids bigint[]) returns forebay.log[]
language plpgsql stable
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_lanes bigint[];
    v_xids  xid8[];
    v_seqs  bigint[];
    v_left  bigint[];
    v_piece record;
    v_some  forebay.log[];
    v_rows  forebay.log[] := '{}';
begin
    select array_agg(o.lane), array_agg(o.xid), array_agg(o.seq) into v_lanes, v_xids, v_seqs
    from (select coalesce(b.lanes[u.nr], b.lane) as lane, coalesce(b.xids[u.nr], b.xids[1]) as xid, u.seq
          from forebay.lease e
          join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f on true
          join forebay.batch b on b.lease_id = e.lease_id and b.claim_no >= f.floor
          join forebay.queue_group g on g.group_id = b.group_id and g.queue = p_queue
          cross join lateral unnest(b.seqs) with ordinality u (seq, nr)
          where e.closed_at is null) o;
    -- The first row of a job has its id as number. Only what is missing then is looked for in the other rows.
    for v_pass in 1 .. 2 loop
        v_left := case v_pass when 1 then p_job_ids
                              else array(select i from unnest(p_job_ids) i except select coalesce(r.job_id, r.seq) from unnest(v_rows) r) end;
        exit when v_left = '{}';
        for v_piece in
            select s.segment_id, array_agg(u.lane) as lanes, array_agg(u.xid) as xids, array_agg(u.seq) as seqs
            from unnest(v_lanes, v_xids, v_seqs) as u (lane, xid, seq)
            cross join lateral (select i.segment_id from forebay.segment i where i.lo <= u.seq order by i.lo desc limit 1) s
            where v_pass = 2 or u.seq = any (v_left)
            group by s.segment_id
        loop
            execute format(
                'select array_agg(l.row) from (
                     select distinct on (coalesce(l.job_id, l.seq)) row(l.*)::forebay.log as row
                     from unnest($1, $2, $3) u (lane, xid, seq)
                     cross join lateral (select * from forebay.log_%s i
                                         where i.lane = u.lane and i.xid = u.xid and i.seq = u.seq limit 1) l
                     where coalesce(l.job_id, l.seq) = any ($4)
                     order by coalesce(l.job_id, l.seq), l.seq desc) l', v_piece.segment_id)
                into v_some using v_piece.lanes, v_piece.xids, v_piece.seqs, v_left;
            v_rows := v_rows || v_some;
        end loop;
    end loop;
    return array(select r from (select distinct on (coalesce(u.job_id, u.seq)) u as r from unnest(v_rows) u order by coalesce(u.job_id, u.seq), u.seq desc) d);
end
$$;


-- Write deliveries, in their order; returns how many. Those beyond max_waiting of their endpoint are dropped and counted.
create function forebay._add_deliveries(p_new forebay._new_delivery[]) returns bigint
language plpgsql volatile
set enable_seqscan = off
set jit = off
as $$
declare
    v_now     constant timestamptz := forebay._now();
    v_jobs    forebay._job_input[];
    v_bounded bigint[];  -- endpoints with a max_waiting
    v_dropped bigint[];
    v_one     record;
begin
    if p_new is null then
        return 0;
    end if;
    with endpoint as materialized (
        select e.endpoint_id, e.name, e.max_age, e.max_waiting,
               case when e.max_waiting is not null then e.max_waiting - (select w.waiting from forebay._endpoint_waiting(e.name) w) end as free
        from forebay.endpoint e where e.endpoint_id = any (array(select distinct n.endpoint_id from unnest(p_new) n))),
    ranked as materialized (
        select n.*, e.name, e.free, least(n.expires_at, v_now + e.max_age) as ends_at,
               case when e.max_waiting is not null then row_number() over (partition by n.endpoint_id order by n.nr) end as place
        from unnest(p_new) n join endpoint e using (endpoint_id)),
    bounded as (
        select r.endpoint_id, count(*) filter (where r.place > r.free) as dropped
        from ranked r where r.place is not null group by r.endpoint_id)
    select (select array_agg(row(
                r.event_type,
                jsonb_build_object('event', jsonb_build_array(r.event_id, to_char(r.published_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')),
                                   'endpoint', r.endpoint_id),
                'forebay.deliver', r.priority, null, null, r.ends_at, null, r.tag, r.correlation_id, null,
                case when r.ordering_key is not null then forebay._delivery_key(r.name, r.ordering_key) end, r.name)::forebay._job_input
                order by r.nr, r.endpoint_id)
            from ranked r where (r.place > r.free) is not true and r.ends_at > v_now),
           (select array_agg(b.endpoint_id order by b.endpoint_id) from bounded b),
           (select array_agg(b.dropped order by b.endpoint_id) from bounded b)
    into v_jobs, v_bounded, v_dropped;

    for v_one in select b.* from unnest(v_bounded, v_dropped) b (endpoint_id, dropped) loop
        perform forebay._record_dropped(v_one.endpoint_id, v_one.dropped);
    end loop;
    if v_jobs is null then
        return 0;
    end if;
    perform forebay._enqueue_jobs(v_jobs);
    return cardinality(v_jobs);
end
$$;


-- Count dropped deliveries, and record in the event log when an endpoint begins to drop them, and when it takes all again.
create function forebay._record_dropped(p_endpoint_id bigint, p_dropped bigint) returns void
language plpgsql volatile
as $$
declare
    v_endpoint forebay.endpoint;
begin
    if p_dropped > 0 then
        insert into forebay.endpoint_activity (endpoint_id, at, accepted, failed, rejected, dropped, latencies)
        values (p_endpoint_id, forebay._now(), 0, 0, 0, p_dropped, '{}');
    end if;
    if coalesce((select t.is_overfull from forebay.endpoint_state t where t.endpoint_id = p_endpoint_id), false) = (p_dropped > 0) then
        return;
    end if;
    insert into forebay.endpoint_state as t (endpoint_id, is_overfull) values (p_endpoint_id, p_dropped > 0)
    on conflict (endpoint_id) do update set is_overfull = excluded.is_overfull where t.is_overfull <> excluded.is_overfull;
    if found then
        select * into v_endpoint from forebay.endpoint e where e.endpoint_id = p_endpoint_id;
        if p_dropped > 0 then
            perform forebay._record_event('endpoints.overfull', 'forebay.deliver', p_subject_id => p_endpoint_id, p_detail => v_endpoint.name,
                                          p_new => jsonb_build_object('max_waiting', v_endpoint.max_waiting), p_count => p_dropped);
        else
            perform forebay._record_event('endpoints.takes_all', 'forebay.deliver', p_subject_id => p_endpoint_id, p_detail => v_endpoint.name);
        end if;
    end if;
end
$$;


-- functions/publish/subscribe.sql

-- grant: operator

-- Subscribe an endpoint to an event type, in the caller's transaction; returns the id of the subscription. For an endpoint that is
-- subscribed already, the call changes the filter and nothing else.
--
-- A router activates the subscription after the commit. Each event from its start on is delivered once, also events that are
-- published, or expanded for other endpoints, in the meantime.
--
-- Parameters: filter, a JSON object that the payload must contain, as payload @> filter; null: all events. start: now, events whose
--   transaction commits after this call; beginning, all events that are kept; or a time, events published since then.
-- Errors: JQ001 the event type does not exist, or a bad filter or start; JQ050 no endpoint has this name.
-- Locks: the subscription's row.
create function forebay.subscribe(endpoint text, event_type text, filter jsonb default null, start text default 'now') returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_endpoint_id constant bigint := forebay._subscriber(subscribe.endpoint);
    v_filter      constant jsonb := nullif(subscribe.filter, '{}');
    v_start_at    timestamptz;
    v_after       pg_snapshot;
    v_last        bigint := 0;
    v_before      forebay.subscription;
    v_member      record;
    v_id          bigint;
begin
    perform forebay._require_event_types(array[subscribe.event_type]);
    if v_filter is not null and (jsonb_typeof(v_filter) <> 'object' or octet_length(v_filter::text) > 8192) then
        raise exception using errcode = 'JQ001', column = 'filter',
            message = case when jsonb_typeof(v_filter) <> 'object' then format('filter must be a JSON object, not %s', jsonb_typeof(v_filter))
                           else format('filter takes %s bytes, the limit is 8192', octet_length(v_filter::text)) end,
            hint = 'An event matches if its payload contains the filter: payload @> filter.';
    end if;
    if subscribe.start = 'now' then
        -- An event that the snapshot does not show is expanded after it, under a number that is drawn after this one was read.
        if current_setting('transaction_isolation') = 'read committed' then
            v_last := coalesce(pg_sequence_last_value(pg_get_serial_sequence('forebay.published', 'route_no')::regclass), 0);
        end if;
        v_after := pg_current_snapshot();
    elsif subscribe.start is distinct from 'beginning' then
        v_start_at := forebay._as_instant(subscribe.start);
        if v_start_at is null or not isfinite(v_start_at) then
            raise exception using errcode = 'JQ001', column = 'start',
                message = format('start %s is neither now nor beginning nor a time', coalesce(quote_literal(left(subscribe.start, 40)), 'null'));
        end if;
    end if;
    -- A short scalar member of the filter, by which routers look it up; text tells more events apart than a number, and that more than a boolean.
    select f.key, f.value into v_member from jsonb_each(v_filter) f
    where jsonb_typeof(f.value) in ('string', 'number', 'boolean', 'null') and octet_length(f.value::text) <= 500 and length(f.key) <= 200
    order by array_position(array['string', 'number', 'boolean', 'null'], jsonb_typeof(f.value)), f.key limit 1;

    insert into forebay.subscription (
        event_type, endpoint_id, filter, filter_member, filter_value, start_at, start_after, routed_to, routed_bound, created_at)
    values (subscribe.event_type, v_endpoint_id, v_filter, v_member.key, v_member.value, v_start_at, v_after, v_last, v_last, forebay._now())
    on conflict do nothing
    returning subscription_id into v_id;
    if v_id is null then
        select * into v_before from forebay.subscription s
        where s.event_type = subscribe.event_type and s.endpoint_id = v_endpoint_id for update;
        if v_before.filter is distinct from v_filter then
            update forebay.subscription s
            set filter = v_filter, filter_member = v_member.key, filter_value = v_member.value
            where s.subscription_id = v_before.subscription_id;
            perform forebay._record_event('subscriptions.change', p_kind => subscribe.event_type, p_subject_id => v_before.subscription_id,
                                          p_old => jsonb_build_object('endpoint', subscribe.endpoint, 'filter', v_before.filter),
                                          p_new => jsonb_build_object('endpoint', subscribe.endpoint, 'filter', v_filter));
        end if;
        return v_before.subscription_id;
    end if;
    perform forebay._enqueue_jobs(array[row(
        'forebay.activate', jsonb_build_object('subscription', v_id), 'forebay.publish', 0, null, null, null, null, null, null, null, null,
        null)::forebay._job_input]);
    perform forebay._record_event('subscriptions.create', p_kind => subscribe.event_type, p_subject_id => v_id,
                                  p_new => jsonb_build_object('endpoint', subscribe.endpoint, 'filter', v_filter, 'start', subscribe.start));
    return v_id;
end
$$;


-- End the subscription of an endpoint; returns whether there was one. Deliveries that wait are still sent.
--
-- Errors: JQ050 no endpoint has this name.
create function forebay.unsubscribe(endpoint text, event_type text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_endpoint_id constant bigint := forebay._subscriber(unsubscribe.endpoint);
    v_before      forebay.subscription;
begin
    delete from forebay.subscription s
    where s.event_type = unsubscribe.event_type and s.endpoint_id = v_endpoint_id
    returning s.* into v_before;
    if not found then
        return false;
    end if;
    perform forebay._record_event('subscriptions.end', p_kind => unsubscribe.event_type, p_subject_id => v_before.subscription_id,
                                  p_old => jsonb_build_object('endpoint', unsubscribe.endpoint, 'filter', v_before.filter));
    return true;
end
$$;


-- The id of an endpoint.
--
-- Errors: JQ050 when there is none of that name.
create function forebay._subscriber(p_name text) returns bigint
language plpgsql stable
as $$
declare
    v_id bigint;
begin
    select e.endpoint_id into v_id from forebay.endpoint e where e.name = p_name;
    if not found then
        perform forebay._raise_no_endpoint(p_name);
    end if;
    return v_id;
end
$$;


-- functions/publish/trim_published.sql

-- Delete published events that no delivery refers to any more.
create function forebay._trim_published(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$ select * from forebay._trim_by_time('published', 'keep_until', forebay._now(), p_after, p_most) $$;


-- Delete replays that ended.
create function forebay._trim_replays(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$ select * from forebay._trim_by_time('replay', 'ended_at', forebay._now() - interval '30 days', p_after, p_most) $$;


-- functions/redact/redact_queue.sql

-- grant: operator

-- Erase what jobs of a queue that have ended have brought with them, in steps: arguments and headers in the log and of cancelled scheduled
-- jobs, messages and tracebacks of errors, results, notes of progress; with dead also dead letters. Segments of the log hold the jobs
-- of all queues, so retention cannot keep those of one queue for a shorter time. See docs/design/redact.md.
--
-- Invariant "only what has ended": a row is erased when every group of the queue has passed it, no worker has it, and it does not wait for its
-- key. That is what lets a segment be emptied, and it is final. Ids, kind, tag, correlation id, keys, times and states stay.
--
-- Parameters: before, only of jobs that were enqueued before, and of errors and results recorded before; null: now. dead, delete the dead
--   letters too. after, next of the call before; null: from the beginning. most, rows that a step looks at, 1 to 100000. event_id, of the
--   call before, so that the event log has one row for all.
-- Returns: redacted, how many rows were erased; next, where the next call continues; null: everything was looked at.
-- Errors: JQ001 a bad name, position or number; JQ030 foreign cluster.
-- Locks: the rows, until the transaction ends; of a segment, SHARE UPDATE EXCLUSIVE. Emptying a segment waits for the step, or fails and is tried again.
create function forebay.redact_queue(
    queue text, before timestamptz default null, dead boolean default false, after jsonb default null, most integer default 1000,
    event_id bigint default null, out redacted bigint, out next jsonb, out event bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
set enable_seqscan = off
set jit = off
as $$
declare
    v_places constant text[] := array['log', 'deferred', 'errors', 'results', 'progress'] || case when redact_queue.dead then array['dead'] end;
    v_place  text := coalesce(redact_queue.after ->> 'place', 'log');
    v_before constant timestamptz := coalesce(redact_queue.before, (redact_queue.after ->> 'before')::timestamptz, forebay._now());
begin
    if (redact_queue.queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$' and not starts_with(redact_queue.queue, 'forebay.')
        and v_place = any (v_places) and redact_queue.most between 1 and 100000) is not true then
        raise exception using errcode = 'JQ001',
            message = format('cannot redact queue %s, at most %s rows from %s', coalesce(quote_literal(left(redact_queue.queue, 40)), 'null'),
                             coalesce(redact_queue.most::text, 'null'), left(coalesce(redact_queue.after::text, 'the beginning'), 100)),
            hint = 'Give a queue that is not one of Forebay, next of the call before, and 1 to 100000 rows.';
    end if;
    perform forebay._require_same_cluster();
    case v_place
        when 'log' then select r.rows, r.next into redacted, next from forebay._redact_log(redact_queue.queue, v_before, redact_queue.after, redact_queue.most) r;
        when 'deferred' then select r.rows, r.next into redacted, next from forebay._redact_deferred(redact_queue.queue, v_before, redact_queue.after, redact_queue.most) r;
        when 'errors' then select r.rows, r.next into redacted, next from forebay._redact_errors(redact_queue.queue, v_before, redact_queue.after, redact_queue.most) r;
        when 'results' then select r.rows, r.next into redacted, next from forebay._redact_results(redact_queue.queue, v_before, redact_queue.after, redact_queue.most) r;
        when 'progress' then select r.rows, r.next into redacted, next from forebay._redact_progress(redact_queue.queue, v_before, redact_queue.after, redact_queue.most) r;
        when 'dead' then
            redacted := forebay._delete_dead(redact_queue.queue, v_before, redact_queue.most);
            next := case when redacted >= redact_queue.most then '{}'::jsonb end;
    end case;
    if next is not null then
        next := next || jsonb_build_object('place', v_place, 'before', v_before);
    elsif v_place <> v_places[cardinality(v_places)] then
        next := jsonb_build_object('place', v_places[array_position(v_places, v_place) + 1], 'before', v_before);
    end if;
    event := redact_queue.event_id;
    if redacted > 0 then
        update forebay.event e set count = e.count + redacted
        where forebay._is_own_event(e, redact_queue.event_id, 'redact') and e.queue = redact_queue.queue;
        if not found then
            event := forebay._record_event(
                'queues.redact', queue, p_count => redacted, p_new => jsonb_build_object('before', v_before, 'dead', redact_queue.dead));
        end if;
    end if;
end
$$;


-- The groups of a queue, closed ones too.
create function forebay._groups_ever(p_queue text) returns bigint[]
language sql stable
as $$
    select array(select g.group_id from forebay.queue_group g where g.queue = p_queue
                 union all select c.group_id from forebay.closed_group c where c.queue = p_queue)
$$;


-- Has a job ended in every group that has it, or is it past retention?
create function forebay._has_ended(p_job_id bigint) returns boolean
language sql volatile
as $$
    select coalesce(bool_and(j.state in ('done', 'cancelled', 'expired', 'dead')), true) from forebay.job(p_job_id) j
$$;


-- Where the groups of a queue are in its lanes, and the numbers of rows of the log that workers have or that wait for their key.
--
-- Stable and one query, so that one snapshot shows all: see forebay._segment_holders(). A lane without a group is one that no group has passed.
create function forebay._redactable(p_queue text, out cursors forebay._cursor[], out busy int8multirange)
language sql stable
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
    select (select coalesce(array_agg(row(l.audience, l.lane, case l.audience when 0 then g.start_after end, b.snap_from, b.snap_to, s.lo, s.hi,
                                          b.pos_xid, b.pos_seq)::forebay._cursor), '{}')
            from (select distinct i.lane, i.audience from forebay.lane i where i.queue = p_queue) l
            left join forebay.queue_group g on g.queue = p_queue and (l.audience = 0 or g.group_id = abs(l.audience))
            left join lateral (select i.snap_from, i.snap_to, i.pos_segment, i.pos_xid, i.pos_seq from forebay.batch i
                               where i.group_id = g.group_id and i.lane = l.lane order by i.no desc limit 1) b on true
            left join forebay.segment s on s.segment_id = b.pos_segment),
           (select coalesce(range_agg(int8range(w.low, w.high, '[]')), '{}')
            from (select o.seq as low, o.seq as high from forebay._open_jobs() o
                  union all
                  select p.seq, p.seq from forebay._all_ordering_parked() p where pg_sequence_last_value('forebay.key_seq') is not null
                  union all
                  select p.after + 1, p.seq_to from forebay._all_limit_parked() p
                  where pg_sequence_last_value('forebay.limit_parked_seq') is not null) w)
$$;


-- Erase arguments and headers of rows of the log. The position is a segment, a lane, and xid and number of a row.
--
-- Cursors go by the columns xid and seq, which stay, so a claim does not notice. What has ended stays so: cursors of an earlier snapshot
-- than that of the update are enough.
create function forebay._redact_log(p_queue text, p_before timestamptz, p_after jsonb, p_most integer, out rows bigint, out next jsonb)
language plpgsql volatile
set enable_seqscan = off
set jit = off
as $$
declare
    v         record;
    v_segment record;
    v_lane    bigint;
    v_xid     xid8 := coalesce(p_after ->> 'xid', '0')::xid8;
    v_seq     bigint := coalesce((p_after ->> 'seq')::bigint, 0);
    v_left    bigint := p_most;
    v_step    record;
begin
    rows := 0;
    select r.* into v from forebay._redactable(p_queue) r;
    for v_segment in
        select s.segment_id from forebay.segment s
        where s.removed_at is null and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0) and forebay._has_table(s.segment_id)
          and s.segment_id >= coalesce((p_after ->> 'segment')::bigint, 0)
        order by s.segment_id
    loop
        for v_lane in
            select distinct c.lane from unnest(v.cursors) c
            where (v_segment.segment_id, c.lane) >= ((p_after ->> 'segment')::bigint, (p_after ->> 'lane')::bigint) or p_after ->> 'lane' is null
            order by 1
        loop
            if (v_segment.segment_id, v_lane) is distinct from ((p_after ->> 'segment')::bigint, (p_after ->> 'lane')::bigint) then
                v_xid := '0';
                v_seq := 0;
            end if;
            execute format(
                'with looked_at as materialized (
                     select i.xid, i.seq, i.enqueued_at from forebay.log_%1$s i
                     where i.lane = $1 and (i.xid, i.seq) > ($2, $3) order by i.xid, i.seq limit $4),
                 erased as (
                     update forebay.log_%1$s l set args = ''{}'', headers = null
                     from looked_at r
                     where l.lane = $1 and l.xid = r.xid and l.seq = r.seq and l.kind <> '''' and (l.args <> ''{}'' or l.headers is not null)
                       and r.enqueued_at < $5 and not r.seq <@ $6
                       and not exists (
                           select from unnest($7) c
                           where c.lane = $1
                             and not case when c.snap_from is null then coalesce(pg_visible_in_snapshot(r.xid, c.start), false)
                                          else forebay._is_consumed(r.xid, r.seq, c.snap_from, c.snap_to, c.lo, c.hi, c.pos_xid, c.pos_seq)
                                               or coalesce(pg_visible_in_snapshot(r.xid, c.start), false) end)
                     returning 1)
                 select (select count(*) from looked_at) as looked_at, (select count(*) from erased) as erased,
                        (select i.xid from looked_at i order by i.xid desc, i.seq desc limit 1) as xid,
                        (select i.seq from looked_at i order by i.xid desc, i.seq desc limit 1) as seq',
                v_segment.segment_id)
            into v_step using v_lane, v_xid, v_seq, v_left, p_before, v.busy, v.cursors;
            rows := rows + v_step.erased;
            v_left := v_left - v_step.looked_at;
            if v_step.erased > 0 then
                -- Look-ups by a job's id read pages that this index does not know from end to end.
                perform brin_summarize_new_values(format('forebay.log_%s_seq_idx', v_segment.segment_id)::regclass);
            end if;
            if v_left <= 0 then
                next := jsonb_build_object('segment', v_segment.segment_id, 'lane', v_lane, 'xid', v_step.xid, 'seq', v_step.seq);
                return;
            end if;
        end loop;
    end loop;
end
$$;


-- Erase arguments and headers of scheduled and retrying jobs that were cancelled, replaced or debounced: their rows wait for their time.
create function forebay._redact_deferred(p_queue text, p_before timestamptz, p_after jsonb, p_most integer, out rows bigint, out next jsonb)
language plpgsql volatile
set enable_seqscan = off
set jit = off
as $$
declare
    v_found record;
begin
    with looked_at as materialized (
        select w.run_at, w.deferred_id from forebay.withdrawn w
        where w.queue = p_queue and w.group_id is null
          and (w.run_at, w.deferred_id) > (coalesce((p_after ->> 'run_at')::timestamptz, '-infinity'), coalesce((p_after ->> 'id')::bigint, 0))
        order by w.run_at, w.deferred_id limit p_most),
    erased as (
        update forebay.deferred d set args = '{}', headers = null
        from looked_at r
        where d.run_at = r.run_at and d.deferred_id = r.deferred_id and d.enqueued_at < p_before and (d.args <> '{}' or d.headers is not null)
        returning 1)
    select (select count(*) from looked_at) as looked_at, (select count(*) from erased) as erased,
           (select jsonb_build_object('run_at', i.run_at, 'id', i.deferred_id) from looked_at i order by i.run_at desc, i.deferred_id desc limit 1) as last
    into v_found;
    rows := v_found.erased;
    next := case when v_found.looked_at >= p_most then v_found.last end;
end
$$;


-- Erase messages and tracebacks of errors of jobs that have ended.
create function forebay._redact_errors(p_queue text, p_before timestamptz, p_after jsonb, p_most integer, out rows bigint, out next jsonb)
language plpgsql volatile
set enable_seqscan = off
set jit = off
as $$
declare
    v_groups constant bigint[] := forebay._groups_ever(p_queue);
    v_found  record;
begin
    with looked_at as materialized (
        select f.failed_at, f.job_id, f.group_id, f.message is not null or f.traceback is not null as has_text from forebay.failure f
        where f.failed_at > coalesce((p_after ->> 'at')::timestamptz, '-infinity') and f.failed_at < p_before
        order by f.failed_at fetch first (p_most) rows with ties),
    ended as materialized (
        select j.job_id from (select distinct i.job_id from looked_at i where i.has_text and i.group_id = any (v_groups)) j
        where forebay._has_ended(j.job_id)),
    erased as (
        update forebay.failure f set message = null, traceback = null
        from ended e
        where f.job_id = e.job_id and f.group_id = any (v_groups) and f.failed_at < p_before and (f.message is not null or f.traceback is not null)
        returning 1)
    select (select count(*) from looked_at) as looked_at, (select count(*) from erased) as erased, (select max(i.failed_at) from looked_at i) as last
    into v_found;
    rows := v_found.erased;
    -- With all rows of the last time: rows of one settlement have the same.
    next := case when v_found.looked_at >= p_most then jsonb_build_object('at', v_found.last) end;
end
$$;


-- Erase the results of jobs: only jobs that are done have one.
create function forebay._redact_results(p_queue text, p_before timestamptz, p_after jsonb, p_most integer, out rows bigint, out next jsonb)
language plpgsql volatile
set enable_seqscan = off
set jit = off
as $$
declare
    v_groups constant bigint[] := forebay._groups_ever(p_queue);
    v_found  record;
begin
    with looked_at as materialized (
        select r.kept_until, r.job_id from forebay.result r
        where r.kept_until > coalesce((p_after ->> 'until')::timestamptz, '-infinity') order by r.kept_until fetch first (p_most) rows with ties),
    erased as (
        update forebay.result r set value = null, problem = 'it was redacted'
        where r.job_id in (select i.job_id from looked_at i) and r.group_id = any (v_groups) and r.kept_at < p_before and r.value is not null
        returning 1)
    select (select count(*) from looked_at) as looked_at, (select count(*) from erased) as erased, (select max(i.kept_until) from looked_at i) as last
    into v_found;
    rows := v_found.erased;
    next := case when v_found.looked_at >= p_most then jsonb_build_object('until', v_found.last) end;
end
$$;


-- Erase the notes that handlers of ended jobs have recorded with their progress.
create function forebay._redact_progress(p_queue text, p_before timestamptz, p_after jsonb, p_most integer, out rows bigint, out next jsonb)
language plpgsql volatile
set enable_seqscan = off
set jit = off
as $$
declare
    v_groups constant bigint[] := forebay._groups_ever(p_queue);
    v_found  record;
begin
    with looked_at as materialized (
        select p.recorded_at, p.job_id, p.group_id, p.note from forebay.progress p
        where p.recorded_at > coalesce((p_after ->> 'at')::timestamptz, '-infinity') and p.recorded_at < p_before
        order by p.recorded_at fetch first (p_most) rows with ties),
    ended as materialized (
        select j.job_id from (select distinct i.job_id from looked_at i where i.note <> '' and i.group_id = any (v_groups)) j
        where forebay._has_ended(j.job_id)),
    erased as (
        update forebay.progress p set note = ''
        from ended e where p.job_id = e.job_id and p.group_id = any (v_groups) and p.recorded_at < p_before and p.note <> ''
        returning 1)
    select (select count(*) from looked_at) as looked_at, (select count(*) from erased) as erased, (select max(i.recorded_at) from looked_at i) as last
    into v_found;
    rows := v_found.erased;
    next := case when v_found.looked_at >= p_most then jsonb_build_object('at', v_found.last) end;
end
$$;


-- functions/results/job_history.sql

-- grant: operator, reader

-- What happened to a job so far, for each group: failed attempts, progress, and result.
--
-- errors: a JSON array of attempt, max_attempts (null: unknown), failed_at, outcome, type, message, traceback and worker, oldest
--   first.
-- Errors: none; a group without any of these has no row.
-- pages: 60
create function forebay.job_history(job_id bigint)
returns table (group_name text, errors jsonb, done double precision, note text, recorded_at timestamptz,
               value jsonb, problem text, kept_at timestamptz, kept_until timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_group record;
begin
    for v_group in
        select g.group_id, g.name from forebay.queue_group g
        where g.group_id in (select f.group_id from forebay.failure f where f.job_id = job_history.job_id
                             union select p.group_id from forebay.progress p where p.job_id = job_history.job_id
                             union select r.group_id from forebay.result r where r.job_id = job_history.job_id)
        order by g.created_at, g.group_id
    loop
        group_name := v_group.name;
        select coalesce(jsonb_agg(jsonb_build_object(
                   'attempt', f.attempt, 'failed_at', f.failed_at, 'outcome', f.outcome, 'type', f.error_type,
                   'message', f.message, 'traceback', f.traceback, 'worker', f.worker, 'max_attempts', f.max_attempts) order by f.failed_at), '[]')
        into errors
        from forebay.failure f where f.job_id = job_history.job_id and f.group_id = v_group.group_id;
        select p.done, p.note, p.recorded_at into done, note, recorded_at
        from forebay.progress p where p.job_id = job_history.job_id and p.group_id = v_group.group_id
        order by p.recorded_at desc limit 1;
        select r.value, r.problem, r.kept_at, r.kept_until into value, problem, kept_at, kept_until
        from forebay.result r where r.job_id = job_history.job_id and r.group_id = v_group.group_id
        order by r.kept_at desc limit 1;
        return next;
    end loop;
end
$$;


-- functions/results/keep.sql

-- Keep the return value of a handler. A value that is too large is not a failure: the job is done, and its result has the reason.
create function forebay._keep_result(p_row forebay.log, p_group_id bigint, p_kept jsonb) returns void
language plpgsql volatile
as $$
declare
    v_value   jsonb := p_kept -> 'value';
    v_problem text := left(p_kept ->> 'problem', 1000);
    v_most    constant bigint := forebay._setting_value('result_bytes_max');
    v_bytes   bigint := octet_length(v_value::text);
begin
    if v_value is null and v_problem is null then
        v_problem := 'nothing was sent';
    elsif v_problem is not null then
        v_value := null;
    elsif v_bytes > v_most then
        v_value := null;
        v_problem := format('%s bytes, more than result_bytes_max %s', v_bytes, v_most);
    end if;
    insert into forebay.result (job_id, group_id, enqueued_at, kept_at, kept_until, value, problem)
    values (coalesce(p_row.job_id, p_row.seq), p_group_id, p_row.enqueued_at, forebay._now(),
            forebay._now() + make_interval(secs => least((p_kept ->> 'seconds')::double precision, 315360000)),
            v_value, v_problem);
end
$$;


-- Wake callers that wait for a job's end. The conditions are those of the workers' wake-up; waiting callers also poll from time
-- to time.
create function forebay._announce_ended(p_job_id bigint) returns void
language plpgsql volatile
as $$
begin
    if forebay._is_ahead(pg_sequence_last_value('forebay.result_wakeup'))
       and forebay._may_notify() then
        perform pg_notify('forebay_result', p_job_id::text);
    end if;
end
$$;


-- functions/results/record_progress.sql

-- grant: worker

-- Record the progress of some running jobs; returns how many were recorded.
--
-- Parameters: p_items, a JSON array of {"job_id", "group_id", "done": 0 to 1, "note": at most 200 characters}
-- A closed lease records nothing. Locks: none.
-- pages: 20 + 5 a job
create function forebay.record_progress_v1(p_lease_id bigint, p_items jsonb) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_rows integer;
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into forebay.progress (job_id, group_id, recorded_at, done, note)
    select (i.value ->> 'job_id')::bigint, (i.value ->> 'group_id')::bigint, forebay._now(),
           greatest(0, least(1, (i.value ->> 'done')::double precision)), left(coalesce(i.value ->> 'note', ''), 200)
    from jsonb_array_elements(p_items) i
    where exists (select from forebay.lease l where l.lease_id = p_lease_id and l.closed_at is null);
    get diagnostics v_rows = row_count;
    return v_rows;
end
$$;


-- functions/results/result.sql

-- grant: worker, operator, reader

-- How a job ended for one group, and the return value of its handler.
--
-- value is null unless the job is done and its handler keeps results (keep_result); problem then has the reason.
-- For a dead job: the reason, and its last error.
--
-- Parameters: wait_millis, how long the caller sleeps if the job has not ended; it is notified on channel forebay_result with
--   the job's id; 0 to 60000, null: no notification.
-- Errors: JQ001 a bad wait_millis, JQ013 no such job, JQ014 no such group.
-- pages: 450 + 60 a segment
create function forebay.result(job_id bigint, group_name text default 'default', wait_millis integer default null)
returns table (state text, value jsonb, problem text, kept_until timestamptz, reason text, error_type text, error_message text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_now   constant bigint := (extract(epoch from clock_timestamp()) * 1000)::bigint;
    v_group bigint;
    v_found boolean := false;
    v_job   record;
begin
    if wait_millis not between 0 and 60000 then
        raise exception using errcode = 'JQ001', column = 'wait_millis',
            message = format('wait_millis %s is outside 0 to 60000', wait_millis);
    elsif wait_millis > 0 and not coalesce(pg_sequence_last_value('forebay.result_wakeup') between v_now + wait_millis and v_now + 70000, false) then
        -- Before the look: a later settlement notifies. For longer than requested, since the caller looks once more.
        perform setval('forebay.result_wakeup', v_now + wait_millis + 5000);
    end if;
    select 'done', r.value, r.problem, r.kept_until into state, value, problem, kept_until
    from (select i.* from forebay.result i where i.job_id = result.job_id offset 0) r  -- First, whatever the statistics.
    cross join lateral (select from forebay.queue_group i where i.group_id = r.group_id and i.name = result.group_name offset 0) g
    where r.kept_until > forebay._now()
    order by r.kept_at desc limit 1;
    if state is not null then
        return next;
        return;
    end if;
    for v_job in select j.group_name, j.state from forebay.job(result.job_id) j loop
        v_found := true;
        continue when v_job.group_name <> result.group_name;
        state := v_job.state;
    end loop;
    if state is null and v_found then
        raise exception using errcode = 'JQ014',
            message = format('job %s has no group %s', result.job_id, quote_literal(left(result.group_name, 40))),
            detail = jsonb_build_object('group', result.group_name),
            hint = 'Groups are opened by the first worker that serves them, or by forebay.open_group().';
    elsif state is null then
        raise exception using errcode = 'JQ013',
            message = format('job %s not found', coalesce(result.job_id::text, 'null')),
            detail = jsonb_build_object('job_id', result.job_id),
            hint = 'The job may not be committed yet, or be past retention.';
    end if;
    if state = 'done' then
        problem := 'its handler keeps no results, or its retention time is over';
    elsif state = 'dead' then
        select d.reason, d.errors -> -1 ->> 'type', d.errors -> -1 ->> 'message'
        into reason, error_type, error_message
        from forebay.dead_letter d join forebay.queue_group g on g.group_id = d.group_id
        where d.job_id = result.job_id and g.name = result.group_name
        order by d.dead_id desc limit 1;
    end if;
    return next;
end
$$;


-- functions/results/trim.sql

-- Delete results past their time.
create function forebay._trim_results(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$
    select * from forebay._trim_by_time('result', 'kept_until', forebay._now(), p_after, p_most)
$$;


-- Delete progress older than a day.
create function forebay._trim_progress(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$
    select * from forebay._trim_by_time('progress', 'recorded_at', forebay._now() - interval '1 day', p_after, p_most)
$$;


-- functions/roles/grant.sql

-- Roles and grants. PUBLIC gets nothing; producers call functions only.

-- Grant each role its rights, if the role exists. Run this again after creating a role by hand.
-- The roles that may call a function are in the head of the function's file: `-- grant: producer, worker`.
create function forebay._grant() returns void
language plpgsql volatile
as $$
declare
    v_role  text;
    v_calls text[];
    v_call  regprocedure;
begin
    revoke all on schema forebay from public;
    revoke all on all tables in schema forebay from public;
    revoke all on all sequences in schema forebay from public;
    revoke all on all functions in schema forebay from public;
    foreach v_role in array array['forebay_producer', 'forebay_worker', 'forebay_operator', 'forebay_reader'] loop
        continue when not exists (select from pg_roles where rolname = v_role);
        execute format('grant usage on schema forebay to %I', v_role);
        v_calls := case v_role
            when 'forebay_producer' then array[
                'backfill', 'backfill_begin', 'backfill_count_v1', 'backfill_done_v1', 'backfill_enqueued_v1',
                'backfill_next', 'backfill_plan', 'backfill_record_v1', 'backfill_run_v1', 'backfill_take_v1',
                'backfill_token_v1', 'backfill_waiting_v1', 'backfill_write_v1', 'cancel', 'enqueue',
                'enqueue_each', 'enqueue_many', 'enqueue_unique', 'publish', 'publish_many', 'queue_known',
                'queue_of', 'record_direct', 'send', 'throttled']
            when 'forebay_worker' then array[
                'activate_v1', 'backfill', 'backfill_begin', 'backfill_count_v1', 'backfill_done_v1',
                'backfill_enqueued_v1', 'backfill_next', 'backfill_plan', 'backfill_record_v1', 'backfill_run_v1',
                'backfill_take_v1', 'backfill_token_v1', 'backfill_waiting_v1', 'backfill_write_v1', 'cancel',
                'claim_v1', 'close_groups', 'close_lease_v1', 'compare_queues', 'count_v1', 'drop_segments_v1',
                'endpoint_settings_v1', 'enqueue', 'enqueue_each', 'enqueue_many', 'enqueue_unique',
                'event_payloads_v1', 'extend_v1', 'forget_v1', 'heartbeat_v1', 'job', 'lead_v1', 'mirror_audits',
                'mirror_status', 'missing_batches_v1', 'open_group', 'open_lease_v1', 'promote_v1', 'proofs_v1',
                'publish', 'publish_many', 'queue_known', 'queue_of', 'ready_v1', 'record_audit', 'record_direct',
                'record_duty_v1', 'record_kinds_v1', 'record_progress_v1', 'record_repair', 'record_sink_types_v1',
                'renew_counts_v1', 'replay_step_v1', 'report_deliveries_v1', 'resend_v1', 'resign_v1', 'result',
                'retain_v1', 'revoke_lost_v1', 'route_v1', 'sample_mirror', 'schema_version', 'seal_v1', 'send',
                'settle_v1', 'start_suspect_v1', 'summarize_v1', 'sweep_v1', 'trim_v1', 'unfinished']
            when 'forebay_operator' then array[
                'alter_endpoint', 'apply_queues', 'cancel', 'change_jobs', 'close_group', 'close_groups',
                'compare_queues', 'create_endpoint', 'create_event_type', 'dead_groups', 'dead_summary', 'depth',
                'disable_endpoint', 'drop_endpoint', 'drop_event_type', 'drop_queue', 'enable_endpoint',
                'endpoints', 'event_types', 'events', 'explain_job', 'groups', 'job', 'job_history', 'jobs',
                'keep_dead', 'key', 'keys', 'limit_key', 'limit_queue', 'limits', 'mirror_audits', 'mirror_status',
                'mute_cause', 'open_group', 'pause_key', 'pause_queue', 'plan_change', 'purge_dead', 'queue_known',
                'queue_of', 'record_act', 'record_audit', 'record_outcome', 'record_repair', 'redact_queue',
                'redrive', 'redrive_endpoint', 'redrive_matching', 'replay_endpoint', 'reset_endpoint', 'result',
                'resume_key', 'resume_queue', 'rotate_secret', 'sample_mirror', 'schema_version', 'segment_held_by',
                'set_concurrency', 'set_max_attempts', 'shard_queue', 'skip_dead', 'subscribe', 'subscriptions',
                'test_endpoint', 'truncate_queue', 'unfinished', 'unmute_cause', 'unsubscribe', 'workers']
            when 'forebay_reader' then array[
                'compare_queues', 'dead_groups', 'dead_summary', 'depth', 'endpoints', 'event_types', 'events',
                'explain_job', 'groups', 'job', 'job_history', 'jobs', 'key', 'keys', 'limits', 'mirror_audits',
                'mirror_status', 'queue_known', 'queue_of', 'result', 'schema_version', 'segment_held_by',
                'subscriptions', 'throttled', 'unfinished', 'workers']
        end;
        for v_call in
            select p.oid::regprocedure from pg_proc p
            where p.pronamespace = 'forebay'::regnamespace
              and p.proname = any (v_calls)
        loop
            execute format('grant execute on function %s to %I', v_call, v_role);
        end loop;
        if v_role in ('forebay_operator', 'forebay_reader') then
            execute format('grant select on all tables in schema forebay to %I', v_role);
            execute format('grant select on all sequences in schema forebay to %I', v_role);
            execute format('revoke select on sequence forebay.lane_secret from %I', v_role);
        end if;
    end loop;
end
$$;


-- functions/settle/failure.sql

-- Record how an attempt failed, or ended otherwise with an error. p_error may have the worker's maximum number of attempts.
create function forebay._record_failure(
    p_row forebay.log, p_group_id bigint, p_attempt integer, p_outcome text, p_error jsonb, p_worker text)
returns void
language sql volatile
as $$
    insert into forebay.failure (
        job_id, group_id, enqueued_at, attempt, failed_at, outcome, error_type, message, traceback, worker,
        max_attempts, cause, place)
    values (
        coalesce(p_row.job_id, p_row.seq), p_group_id, p_row.enqueued_at, p_attempt, forebay._now(), p_outcome,
        left(p_error ->> 'type', 200), left(p_error ->> 'message', 4096), left(p_error ->> 'traceback', 16384), p_worker,
        coalesce(p_row.max_attempts, (p_error ->> 'max_attempts')::integer),
        substring(p_error ->> 'cause' from '^[0-9a-f]{1,20}$'), left(p_error ->> 'place', 200))
$$;


-- functions/settle/settle.sql

-- Settlement: how jobs of a batch ended, appended; and the jobs that continue in a new row.
-- grant: worker

-- Settle jobs of a lease's batches.
--
-- Invariants: "single holder" (a late settlement changes nothing and returns an error), "nothing lost".
-- Inside an open transaction the settlement commits together with everything else that the transaction wrote; the
-- transaction's idle time is then limited, so that a vanished handler cannot delay a revocation.
--
-- Parameters: p_flushes, a JSON array of
--   {"claim_no", "flush_no", "done": null (the whole batch) or [offsets], "millis": [..] or null,
--    "ended": [{"offset", "outcome", "after": seconds, "reason", "error": {"type", "message", "traceback", "max_attempts"}, "millis",
--              "kept": {"value", "seconds", "problem"}}],
--    "counters": [..], for forebay._record_counters(), counted if and only if the flush is settled}
--   An entry of "ended" with outcome done has the handler's return value, which is kept for some seconds.
--   outcome: retried (costs an attempt), lost (the same, returns as a suspect), snoozed, unknown (kind),
--   released, cancelled, dead (reason exhausted, permanent or worker lost; with "holds_key": true it holds its ordering key).
--   In a queue with a maximum of attempts, that decides whether a failed attempt is retried: see forebay.set_max_attempts().
--   A job with a request to cancel is cancelled instead of retried, snoozed or released.
--   A job with an ordering key that would run again while an earlier one of its key in the lease has not ended is requeued
--   behind it instead, whatever its outcome, without using an attempt.
--   A negative flush_no names the settlement of the single job at that offset.
-- Returns: one row per flush: settled, repeated (this very flush was settled before; nothing written),
--   unknown_batch, refused (an offset is not in the batch or was settled before; nothing written).
-- Errors: JQ010 the lease is closed; 40001 when a REPEATABLE READ transaction is older than the revocation.
-- Locks, in order: the lease (KEY SHARE); unless flush_no is negative, for jobs with limit keys the group's limiter, for jobs with
--   ordering keys the lock of these (both shared).
-- pages: 40 + 12 a job
create function forebay.settle_v1(p_lease_id bigint, p_flushes jsonb)
returns table (claim_no bigint, flush_no integer, status text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_worker   text;
    v_was      text;
    v_flush    jsonb;
    v_item     jsonb;
    v_batch    record;
    v_ended    jsonb;
    v_offsets  smallint[];
    v_outcomes "char"[];
    v_millis   integer[];
    v_done     integer;
    v_at       constant timestamptz := forebay._now();
begin
    select l.worker into v_worker from forebay.lease l
    where l.lease_id = p_lease_id and l.closed_at is null for key share;
    if not found then
        raise exception using errcode = 'JQ010',
            message = format('lease %s is closed', p_lease_id),
            detail = jsonb_build_object('lease', p_lease_id),
            hint = 'Its jobs were given to other workers; this settlement changed nothing.';
    end if;
    v_was := set_config('idle_in_transaction_session_timeout', '5s', true);

    for v_index in 0 .. coalesce(jsonb_array_length(p_flushes), 0) - 1 loop
        v_flush := p_flushes -> v_index;
        claim_no := (v_flush ->> 'claim_no')::bigint;
        flush_no := (v_flush ->> 'flush_no')::integer;
        v_ended := coalesce(v_flush -> 'ended', '[]');
        v_offsets := null;
        v_outcomes := null;
        v_millis := case when jsonb_typeof(v_flush -> 'millis') = 'array'
                         then translate(v_flush ->> 'millis', '[]', '{}')::integer[] end;

        -- Nearly always all of a batch is done, and nothing of it was settled before: one statement.
        if jsonb_typeof(v_flush -> 'done') is distinct from 'array' and v_ended = '[]' then
            insert into forebay.settlement (lease_id, claim_no, flush_no, settled_at, millis)
            select p_lease_id, b.claim_no, settle_v1.flush_no, v_at, v_millis
            from forebay.batch b
            where b.lease_id = p_lease_id and b.claim_no = settle_v1.claim_no and b.keys is null and b.limit_keys is null
              and not exists (select from forebay.settlement s
                              where s.lease_id = p_lease_id and s.claim_no = settle_v1.claim_no)
            on conflict do nothing;
            if found then
                if v_flush ? 'counters' then
                    perform forebay._record_counters(t.value, v_worker) from jsonb_array_elements(v_flush -> 'counters') t;
                end if;
                status := 'settled';
                return next;
                continue;
            end if;
        end if;

        select b.group_id, b.lane, b.seqs, b.xids, cardinality(b.seqs) as size, b.lanes, b.keys, b.tails, b.parked_no,
               b.limit_keys into v_batch
        from forebay.batch b where b.lease_id = p_lease_id and b.claim_no = settle_v1.claim_no;
        if not found then
            status := 'unknown_batch';
            return next;
            continue;
        end if;
        if exists (select from forebay.settlement s
                   where s.lease_id = p_lease_id and s.claim_no = settle_v1.claim_no and s.flush_no = settle_v1.flush_no) then
            status := 'repeated';
            return next;
            continue;
        end if;

        if v_ended <> '[]'::jsonb then
            if pg_sequence_last_value('forebay.queue_attempts_seq') is not null then
                v_ended := forebay._with_queue_attempts(v_batch.lane, v_batch.lanes, v_batch.xids, v_batch.seqs, v_ended);
            end if;
        end if;
        if jsonb_typeof(v_flush -> 'done') = 'array' or v_ended <> '[]'::jsonb then
            if jsonb_typeof(v_flush -> 'done') = 'array' then
                v_offsets := array(select o::smallint from jsonb_array_elements_text(v_flush -> 'done') o);
            else
                v_offsets := '{}';
            end if;
            v_done := cardinality(v_offsets);
            v_offsets := v_offsets || array(select (e.value ->> 'offset')::smallint from jsonb_array_elements(v_ended) e);
            if v_offsets = '{}' or exists (select from unnest(v_offsets) o where o is null or o not between 1 and v_batch.size)
               or cardinality(v_offsets) <> (select count(distinct o) from unnest(v_offsets) o) then
                status := 'refused';
                return next;
                continue;
            end if;
            if v_ended <> '[]'::jsonb then
                v_outcomes := array_fill('d'::"char", array[v_done]) || array(
                    select forebay._outcome_code(e.value ->> 'outcome', (e.value ->> 'holds_key')::boolean and v_batch.keys[(e.value ->> 'offset')::integer] is not null,
                                                 v_batch.seqs[(e.value ->> 'offset')::integer],
                                                 coalesce(v_batch.lanes[(e.value ->> 'offset')::integer], v_batch.lane),
                                                 v_batch.xids, (e.value ->> 'offset')::integer, v_batch.group_id)
                    from jsonb_array_elements(v_ended) e);
                if v_batch.keys is not null then
                    v_outcomes := forebay._requeued(v_batch.group_id, p_lease_id, settle_v1.claim_no, v_batch.keys, v_offsets, v_outcomes);
                end if;
            end if;
        end if;
        if exists (select from forebay.settlement s
                   where s.lease_id = p_lease_id and s.claim_no = settle_v1.claim_no
                     and (s.offsets is null or v_offsets is null or s.offsets && v_offsets)) then
            status := 'refused';
            return next;
            continue;
        end if;

        insert into forebay.settlement (lease_id, claim_no, flush_no, settled_at, offsets, outcomes, millis)
        values (p_lease_id, settle_v1.claim_no, settle_v1.flush_no, v_at, v_offsets, v_outcomes, v_millis)
        on conflict do nothing;
        if not found then
            status := 'repeated';
            return next;
            continue;
        end if;
        for v_item in select e.value from jsonb_array_elements(v_ended) e loop
            v_done := v_done + 1;
            perform forebay._end(v_batch.group_id, v_batch.lane,
                                 forebay._row(coalesce(v_batch.lanes[(v_item ->> 'offset')::integer], v_batch.lane),
                                              coalesce(v_batch.xids[(v_item ->> 'offset')::integer], v_batch.xids[1]),
                                              v_batch.seqs[(v_item ->> 'offset')::integer]),
                                 v_outcomes[v_done], v_item, v_worker);
        end loop;
        if v_batch.keys is not null then
            -- Claims take the locks in this order.
            if (v_batch.limit_keys is not null or jsonb_array_length(p_flushes) > 1)
               and pg_sequence_last_value('forebay.limiter_seq') is not null and forebay._may_look(settle_v1.flush_no) then
                perform forebay._lock_limiter(v_batch.group_id, true);
            end if;
            perform forebay._release_keys(p_lease_id, settle_v1.claim_no, v_batch.lane, v_batch.group_id, v_batch.keys,
                                          v_batch.tails, v_batch.parked_no, settle_v1.flush_no, v_offsets, v_outcomes);
        end if;
        if v_batch.limit_keys is not null then
            perform forebay._release_limits(
                v_batch.lane, v_batch.group_id,
                case when v_offsets is null then v_batch.limit_keys else array(select v_batch.limit_keys[o] from unnest(v_offsets) o) end,
                forebay._may_look(settle_v1.flush_no));
        end if;
        if v_flush ? 'counters' then
            perform forebay._record_counters(t.value, v_worker) from jsonb_array_elements(v_flush -> 'counters') t;
        end if;
        status := 'settled';
        return next;
    end loop;
end
$$;


-- The code of an outcome; c for cancelled when the job would run again and its cancellation was requested, or it was replaced.
create function forebay._outcome_code(
    p_outcome text, p_holds_key boolean, p_seq bigint, p_lane bigint, p_xids xid8[], p_offset integer, p_group_id bigint)
returns "char"
language plpgsql stable
as $$
declare
    v_row forebay.log;
begin
    if p_outcome = 'done' then
        return 'd';
    elsif p_outcome = 'cancelled' then
        return 'c';
    elsif p_outcome = 'dead' then
        return case when p_holds_key then 'y' else 'x' end;
    elsif p_outcome is null or p_outcome not in ('retried', 'snoozed', 'released', 'unknown', 'lost') then
        raise exception using errcode = 'JQ001', message = format('unknown outcome %s', coalesce(quote_literal(p_outcome), 'null')),
            hint = 'One of done, retried, lost, snoozed, unknown, released, cancelled, dead.';
    end if;
    if pg_sequence_last_value('forebay.tombstone_seq') is not null then
        v_row := forebay._row(p_lane, coalesce(p_xids[p_offset], p_xids[1]), p_seq);
        if exists (select from forebay.tombstone t
                   where t.job_id = coalesce(v_row.job_id, v_row.seq) and t.reason in ('c', 'r')
                     and (t.group_id is null or t.group_id = p_group_id)) then
            return 'c';
        end if;
    end if;
    return case p_outcome when 'retried' then 'r' when 'snoozed' then 's' when 'released' then 'h'
                          when 'unknown' then 'u' else 'l' end;
end
$$;


-- Effects of the end of one job: the new row in which it continues, or its dead letter, and its error.
create function forebay._end(
    p_group_id bigint, p_lane bigint, p_row forebay.log, p_code "char", p_item jsonb, p_worker text)
returns void
language plpgsql volatile
as $$
declare
    v_lane    record;
    v_attempt integer := coalesce(p_row.attempt, 0) + case when p_code in ('r', 'l', 'x', 'y') then 1 else 0 end;
    v_target  bigint;
    v_run_at  timestamptz;
    v_dead_id bigint;
begin
    -- Jobs with limit keys that were parked may be of another lane than the batch.
    select l.queue, i.priority, l.audience into v_lane
    from forebay.lane l, forebay.lane i where l.lane = p_lane and i.lane = p_row.lane limit 1;
    if p_item ? 'error' and jsonb_typeof(p_item -> 'error') = 'object' then
        perform forebay._record_failure(
            p_row, p_group_id, coalesce(p_row.attempt, 0) + 1,
            case p_code when 'r' then 'retried' when 'l' then 'worker lost' when 'x' then 'dead' when 'y' then 'dead' when 'c' then 'cancelled'
                        when 'u' then 'unknown kind' when 's' then 'snoozed' else 'released' end,
            p_item -> 'error', p_worker);
    end if;
    if p_code in ('x', 'y') then
        v_dead_id := forebay._write_dead_letter(
            p_group_id, v_lane.queue, v_lane.priority, p_row, coalesce(p_item ->> 'reason', 'permanent'), v_attempt, p_code = 'y');
        if p_item ? 'is_decided_here' then
            perform forebay._report_deaths(array[v_dead_id]);  -- The worker expects a retry.
        end if;
    elsif p_code in ('r', 'l', 's', 'u', 'h') then
        -- A suspect that is released unstarted remains a suspect; a suspect that ended normally is cleared.
        v_target := forebay._record_private_lane(
            v_lane.queue, v_lane.priority,
            case when p_code = 'l' or (p_code = 'h' and v_lane.audience < 0) then -p_group_id else p_group_id end,
            p_row.ordering_key, p_row.limit_key);
        if coalesce((p_item ->> 'after')::double precision, 0) > 0 then
            v_run_at := forebay._now() + make_interval(secs => (p_item ->> 'after')::double precision);
        end if;
        perform forebay._continue_job(p_row, v_target, v_attempt,
                               case when p_code in ('r', 'l') then 0
                                    else coalesce(p_row.pauses, 0) + case when p_code in ('s', 'u') then 1 else 0 end end,
                               v_run_at);
    end if;
    if p_code = 'd' and p_item ? 'kept' then
        perform forebay._keep_result(p_row, p_group_id, p_item -> 'kept');
    end if;
    if p_code in ('d', 'x', 'y', 'c') then
        perform forebay._announce_ended(coalesce(p_row.job_id, p_row.seq));
    end if;
end
$$;


-- functions/settle/start_suspect.sql

-- grant: worker

-- Record that a suspect is about to start: if its holder dies now, the death is attributed to the job.
-- Repeating it changes nothing.
--
-- Errors: JQ010 the lease is closed.
-- pages: 20
create function forebay.start_suspect_v1(p_lease_id bigint, p_claim_no bigint) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
begin
    perform from forebay.lease l where l.lease_id = p_lease_id and l.closed_at is null for key share;
    if not found then
        raise exception using
            errcode = 'JQ010',
            message = format('lease %s is closed', p_lease_id),
            detail = jsonb_build_object('lease', p_lease_id),
            hint = 'Its jobs were given to other workers; do not start this job.';
    end if;
    insert into forebay.suspect_start (lease_id, claim_no, started_at)
    values (p_lease_id, p_claim_no, forebay._now())
    on conflict do nothing;
end
$$;


-- functions/shared/alone.sql

-- Is the call alone: autocommitted, READ COMMITTED, with no earlier write? See forebay._require_alone().
create function forebay._is_alone() returns boolean
language sql volatile
as $$
    select current_setting('transaction_isolation') = 'read committed'
       and pg_current_xact_id_if_assigned() is null
       and statement_timestamp() - transaction_timestamp() <= interval '3 seconds'
$$;


-- Raise unless the call is alone: autocommitted, READ COMMITTED, with no earlier write.
--
-- Claims, seals and promotions read what other transactions committed up to this very statement. An older snapshot or an
-- already drawn xid would break them, and their locks must not last. A function cannot see that it runs in a transaction
-- block; it can see that the transaction is older than the statement. A difference of up to three seconds is accepted: the
-- parts of one statement arrive one by one, and a busy machine delays them.
--
-- Errors: JQ012.
create function forebay._require_alone(p_what text) returns void
language plpgsql volatile
as $$
begin
    if not forebay._is_alone() then
        raise exception using
            errcode = 'JQ012',
            message = format('%s must be called alone, in its own READ COMMITTED transaction', p_what),
            detail = jsonb_build_object('function', p_what),
            hint = 'Call it on a connection in autocommit mode, as a separate statement.';
    end if;
end
$$;


-- functions/shared/attempts.sql

-- The maximum number of attempts of a queue's jobs; null: their kinds decide.
create function forebay._queue_attempts(p_queue text) returns integer
language sql stable
as $$
    select a.max_attempts from forebay.queue_attempts a
    where pg_sequence_last_value('forebay.queue_attempts_seq') is not null and a.queue = p_queue
$$;


-- The ends of attempts as the maximum of the queue has them: a failed attempt that a worker would retry may be the last one, and one
-- that it takes for the last may not be. Jobs with their own maximum stay as they are.
--
-- The worker learns the number with its heartbeats and tells its handlers; this decides, so the number holds from its commit on.
--
-- Parameters: of the batch, its lane, lanes, xids and seqs; p_ended as in forebay.settle_v1().
create function forebay._with_queue_attempts(p_lane bigint, p_lanes bigint[], p_xids xid8[], p_seqs bigint[], p_ended jsonb) returns jsonb
language plpgsql stable
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_most  constant integer := forebay._queue_attempts((select l.queue from forebay.lane l where l.lane = p_lane limit 1));
    v_all   jsonb := '[]';
    v_item  jsonb;
    v_row   forebay.log;
    v_nr    integer;
    v_used  integer;
    v_lost  boolean;
begin
    if v_most is null then
        return p_ended;
    end if;
    for v_item in select e.value from jsonb_array_elements(p_ended) e loop
        v_nr := (v_item ->> 'offset')::integer;
        if v_item ->> 'outcome' in ('retried', 'lost') or v_item ->> 'outcome' = 'dead' and v_item ->> 'reason' in ('exhausted', 'worker lost') then
            v_row := forebay._row(coalesce(p_lanes[v_nr], p_lane), coalesce(p_xids[v_nr], p_xids[1]), p_seqs[v_nr]);
            v_used := coalesce(v_row.attempt, 0) + 1;
            v_lost := v_item ->> 'outcome' = 'lost' or coalesce(v_item ->> 'reason' = 'worker lost', false);
            if v_row.seq is not null and v_row.max_attempts is null then
                if jsonb_typeof(v_item -> 'error') = 'object' then
                    v_item := jsonb_set(v_item, '{error,max_attempts}', to_jsonb(v_most));
                end if;
                if v_used >= v_most and v_item ->> 'outcome' <> 'dead' then
                    v_item := v_item - 'after' || jsonb_build_object(
                        'outcome', 'dead', 'reason', case when v_lost then 'worker lost' else 'exhausted' end, 'is_decided_here', true,
                        'holds_key', v_row.ordering_key is not null
                                     and exists (select from forebay.kind_queue k where k.kind = v_row.kind and k.holds_key));
                elsif v_used < v_most and v_item ->> 'outcome' = 'dead' then
                    v_item := v_item - '{reason,holds_key}'::text[] || jsonb_build_object(
                        'outcome', case when v_lost then 'lost' else 'retried' end, 'after', least(3600, 5 * 2 ^ least(v_used - 1, 20)));
                end if;
            end if;
        end if;
        v_all := v_all || jsonb_build_array(v_item);
    end loop;
    return v_all;
end
$$;


-- functions/shared/clock.sql

-- The only clock. Tests replace it in their database to shift time.
create function forebay._now() returns timestamptz
language sql volatile
as $$ select clock_timestamp() $$;


-- functions/shared/consumed.sql

-- Numbers below this one belong to the archive of another cluster, which an adoption sealed without an xid: their jobs have
-- ended, or continue in newer rows. 0 in a log that was never adopted.
create function forebay._archived_below() returns bigint
language sql stable
as $$
    select coalesce(max(s.hi), 0) from forebay.seal f join forebay.segment s using (segment_id) where f.xid = '0'
$$;


-- Is a row of the log behind a cursor?
create function forebay._is_consumed(
    p_xid xid8, p_seq bigint, p_from pg_snapshot, p_to pg_snapshot, p_pos_lo bigint, p_pos_hi bigint, p_pos_xid xid8,
    p_pos_seq bigint)
returns boolean
language sql immutable
as $$
    select pg_visible_in_snapshot(p_xid, p_from)
        or (p_to is not null and pg_visible_in_snapshot(p_xid, p_to)
            and (p_seq < p_pos_lo or (p_seq < p_pos_hi and (p_xid, p_seq) <= (p_pos_xid, p_pos_seq))
                 or p_pos_xid = '0' and p_seq <= p_pos_seq))  -- Keyed lanes are read in the order of numbers.
$$;


-- functions/shared/dead_letter.sql

-- The id of a cause by which dead letters are grouped: a kind with the class of an error, or with a reason. Workers compute that of an
-- exception, which has a place too; see src/forebay/policy/cause.py.
create function forebay._cause(p_kind text, p_what text) returns text
language sql immutable
as $$ select left(encode(sha256(convert_to(concat_ws(E'\n', p_kind, p_what), 'UTF8')), 'hex'), 10) $$;


-- Write a dead letter, with the whole error history of the job in this group; returns the dead letter's id. p_holds: it holds its ordering key.
create function forebay._write_dead_letter(
    p_group_id bigint, p_queue text, p_priority integer, p_row forebay.log, p_reason text, p_attempt integer,
    p_holds boolean default false)
returns bigint
language sql volatile
as $$
    insert into forebay.dead_letter (
        group_id, job_id, seq, reason, died_at, queue, priority, enqueued_at, expires_at, attempt, max_attempts,
        kind, args, tag, correlation_id, headers, ordering_key, unique_key, limit_key, cause, place, holds_key, errors)
    select
        p_group_id, coalesce(p_row.job_id, p_row.seq), p_row.seq, p_reason, forebay._now(), p_queue, p_priority,
        p_row.enqueued_at, coalesce(p_row.expires_at, p_row.enqueued_at + interval '30 days'), p_attempt,
        p_row.max_attempts, p_row.kind, case when v.event is null then p_row.args else p_row.args || jsonb_build_object('payload', v.event -> 'payload') end,
        p_row.tag, p_row.correlation_id, case when v.event is null then p_row.headers else nullif(v.event -> 'headers', 'null') end,
        p_row.ordering_key, p_row.unique_key, p_row.limit_key,
        coalesce(last.cause, forebay._cause(p_row.kind, coalesce(last.error_type, p_reason))), last.place,
        p_holds and forebay._begin_hold(p_group_id, p_queue, p_row), coalesce((select jsonb_agg(jsonb_build_object(
                             'attempt', f.attempt, 'failed_at', f.failed_at, 'outcome', f.outcome,
                             'type', f.error_type, 'message', f.message, 'traceback', f.traceback, 'worker', f.worker,
                             'max_attempts', f.max_attempts)
                         order by f.failed_at)
                  from forebay.failure f
                  where f.job_id = coalesce(p_row.job_id, p_row.seq) and f.group_id = p_group_id
                    and f.enqueued_at = p_row.enqueued_at), '[]')
    -- A delivery refers to the payload of its event; the letter contains it.
    from (select case when p_queue = 'forebay.deliver' and not p_row.args ? 'payload'
                      then forebay._event_of_delivery(p_row.args) end as event offset 0) v
    left join lateral (
        select f.cause, f.error_type, f.place
        from (select i.* from forebay.failure i  -- Not through the index by time.
              where i.job_id = coalesce(p_row.job_id, p_row.seq) and i.group_id = p_group_id and i.enqueued_at = p_row.enqueued_at
              offset 0) f
        order by f.failed_at desc limit 1) last on p_reason in ('exhausted', 'permanent')
    returning dead_id
$$;


-- Tell the caller which jobs this call itself made dead letters: a message INFO beside the answer, which the server always sends to
-- the client, and whose detail is JSON: total, and the first 20 jobs. Nothing runs for it where nothing died.
--
-- Invariant "told after the commit": a message of a call that fails must be ignored, since its dead letters were rolled back.
create function forebay._report_deaths(p_dead_ids bigint[]) returns void
language plpgsql volatile
as $$
begin
    raise info using message = 'forebay: dead letters', detail = jsonb_build_object(
        'total', cardinality(p_dead_ids),
        'jobs', (select jsonb_agg(jsonb_build_object(
                            'job_id', d.job_id, 'kind', d.kind, 'queue', d.queue, 'reason', d.reason, 'attempt', d.attempt,
                            'max_attempts', d.max_attempts, 'tag', d.tag, 'correlation_id', d.correlation_id, 'cause', d.cause)
                        order by i.nr)
                 from unnest(p_dead_ids[:20]) with ordinality i (dead_id, nr)
                 cross join lateral (select l.* from forebay.dead_letter l where l.dead_id = i.dead_id offset 0) d));
end
$$;


-- Record that a dead letter begins to hold its key, for claims and operators; true.
create function forebay._begin_hold(p_group_id bigint, p_queue text, p_row forebay.log) returns boolean
language plpgsql volatile
as $$
begin
    if pg_sequence_last_value('forebay.hold_seq') is null then
        perform nextval('forebay.hold_seq');
    end if;
    perform forebay._record_event('keys.hold', p_queue, forebay._group_name(p_group_id), p_row.kind, coalesce(p_row.job_id, p_row.seq),
                                  p_new => jsonb_build_object('ordering_key', p_row.ordering_key));
    return true;
end
$$;


-- End what dead letters hold: the next jobs of their keys may run. Claims look at the keys again.
create function forebay._end_holds(p_dead_ids bigint[]) returns void
language plpgsql volatile
as $$
declare
    v_key record;
begin
    for v_key in
        with ended as (
            update forebay.dead_letter d set holds_key = false
            where d.dead_id = any (p_dead_ids) and d.holds_key returning d.queue, d.priority, d.group_id, d.ordering_key)
        select e.queue, e.priority, e.group_id, array_agg(distinct e.ordering_key) as keys from ended e group by 1, 2, 3 order by 1, 2, 3
    loop
        perform forebay._announce_keys(v_key.queue, v_key.priority, v_key.group_id, v_key.keys);
        perform forebay._notify(v_key.queue);
    end loop;
end
$$;


-- functions/shared/declared_queues.sql

-- Check declared queues, and return each setting in the form in which it is compared. A rate and its burst are one setting: neither
-- means anything without the other, so they change, are kept and are removed together.
--
-- Errors: JQ001.
create function forebay._declared_settings(p_queues jsonb, out no bigint, out queue text, out setting text, out value jsonb)
returns setof record
language plpgsql stable
set extra_float_digits = 1
as $$
declare
    v_name    constant text := '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$';
    v_problem text;
begin
    v_problem := case when jsonb_typeof(p_queues) is distinct from 'array' then 'queues is not a JSON array' else coalesce(
        (select format('queue %s is not a name: letters, digits and _ . : - only, at most 128', left(i.item ->> 'queue', 40))
         from jsonb_array_elements(p_queues) i (item)
         where (jsonb_typeof(i.item) = 'object' and i.item ->> 'queue' ~ v_name) is not true limit 1),
        (select format('queue %s is declared twice', i.item ->> 'queue')
         from jsonb_array_elements(p_queues) i (item) group by i.item ->> 'queue' having count(*) > 1 limit 1)) end;
    if v_problem is null then
        select format('queue %s: %s', i.item ->> 'queue', p.problem) into v_problem
        from jsonb_array_elements(p_queues) i (item)
        cross join jsonb_each(i.item - 'queue') s (name, value)
        left join (values ('max_waiting', 1, 9223372036854775807, true), ('rate', 0.000001, 1000000, false), ('burst', 1, 1000000, true),
                          ('concurrency', 1, 1000000, true), ('key_rate', 0.000001, 1000000, false), ('key_burst', 1, 1000000, true),
                          ('key_concurrency', 1, 1000000, true), ('shards', 1, 64, true), ('dead_keep_days', 1, 36500, true))
               b (name, low, high, is_whole) on b.name = s.name
        cross join lateral (values (case
            when s.value = 'null' then null
            when s.name = 'groups' then
                case when jsonb_typeof(s.value) <> 'array' then 'groups is not an array of names'
                     else (select format('group %s is not a name, or is named twice', left(g.name, 40))
                           from jsonb_array_elements_text(s.value) g (name)
                           group by g.name having count(*) > 1 or (g.name ~ v_name) is not true limit 1) end
            when s.name = 'max_waiting_group' then
                case when (jsonb_typeof(s.value) = 'string' and s.value #>> '{}' ~ v_name) is not true
                          then format('max_waiting_group %s is not a name', left(s.value::text, 40))
                     when coalesce(i.item -> 'max_waiting', 'null') = 'null' then 'max_waiting_group is given without max_waiting' end
            when b.name is null then format('%s is not a setting', left(s.name, 40))
            when s.name = 'dead_keep_days' and s.value = '"forever"' then null
            when jsonb_typeof(s.value) <> 'number' then format('%s is %s, not a number', s.name, left(s.value::text, 40))
            when s.value::numeric not between b.low and b.high or (b.is_whole and s.value::numeric <> trunc(s.value::numeric))
                then format('%s is %s, not %s %s to %s', s.name, left(s.value::text, 40),
                            case when b.is_whole then 'an integer of' else 'within' end, b.low, b.high)
            when s.name in ('burst', 'key_burst') and coalesce(i.item -> replace(s.name, 'burst', 'rate'), 'null') = 'null'
                then format('%s is given without %s', s.name, replace(s.name, 'burst', 'rate')) end)) p (problem)
        where p.problem is not null limit 1;
    end if;
    if v_problem is not null then
        raise exception using errcode = 'JQ001', message = v_problem,
            hint = 'Nothing was changed. See the function forebay.apply_queues in the reference.';
    end if;
    return query
    select row_number() over (order by i.item ->> 'queue', v.no, v.part), i.item ->> 'queue', v.setting, v.value
    from jsonb_array_elements(p_queues) i (item)
    cross join lateral (
        select s.no, 0::bigint, s.setting, nullif(s.value, 'null') from (values
            (1, 'max_waiting', forebay._waiting_setting((i.item ->> 'max_waiting')::numeric::bigint, i.item ->> 'max_waiting_group')),
            (2, 'rate', forebay._rate_setting((i.item ->> 'rate')::double precision, (i.item ->> 'burst')::numeric::integer)),
            (3, 'concurrency', to_jsonb((i.item ->> 'concurrency')::numeric::integer)),
            (4, 'key_rate', forebay._rate_setting((i.item ->> 'key_rate')::double precision, (i.item ->> 'key_burst')::numeric::integer)),
            (5, 'key_concurrency', to_jsonb((i.item ->> 'key_concurrency')::numeric::integer)),
            (6, 'shards', to_jsonb((i.item ->> 'shards')::numeric::integer)),
            (7, 'dead_keep_days', case when i.item ->> 'dead_keep_days' = 'forever' then '"forever"'
                                       else to_jsonb((i.item ->> 'dead_keep_days')::numeric::integer) end)) s (no, setting, value)
        union all
        select 8, g.no, 'group ' || g.name, '"open"'
        from jsonb_array_elements_text(nullif(i.item -> 'groups', 'null')) with ordinality g (name, no)) v (no, part, setting, value)
    where v.value is not null;
end
$$;


create function forebay._rate_setting(p_rate double precision, p_burst integer) returns jsonb
language sql immutable
as $$ select case when p_rate is not null then jsonb_strip_nulls(jsonb_build_object('rate', p_rate, 'burst', p_burst)) end $$;


-- A number, or for another group than default an object with the name of the group.
create function forebay._waiting_setting(p_max_waiting bigint, p_group text) returns jsonb
language sql immutable
as $$
    select case when nullif(p_group, 'default') is null then to_jsonb(p_max_waiting)
                else jsonb_build_object('max_waiting', p_max_waiting, 'max_waiting_group', p_group) end
$$;


-- The settings that a queue has in the database, in the same form, without those that have their default.
create function forebay._queue_settings(p_queue text, out setting text, out value jsonb) returns setof record
language sql stable
set extra_float_digits = 1
as $$
    select s.setting, s.value
    from forebay.queue_limits l
    cross join lateral (values
        ('max_waiting', forebay._waiting_setting(l.max_waiting, l.max_waiting_group)), ('rate', forebay._rate_setting(l.rate, l.burst)), ('concurrency', to_jsonb(l.concurrency)),
        ('key_rate', forebay._rate_setting(l.key_rate, l.key_burst)), ('key_concurrency', to_jsonb(l.key_concurrency))) s (setting, value)
    where l.queue = p_queue and s.value is not null
    union all
    select 'shards', to_jsonb(h.lanes) from forebay.queue_shards h where h.queue = p_queue and h.lanes > 1
    union all
    select 'dead_keep_days', coalesce(to_jsonb(r.days), '"forever"') from forebay.dead_retention r where r.queue = p_queue
    union all
    select 'group ' || g.name, '"open"' from forebay.queue_group g where g.queue = p_queue and not g.is_implied and g.closing_at is null
$$;


-- Compare code, database and what was applied last, for each setting that is declared or that p_app applied; ordered as declared.
--
-- action: set, change, remove: what applying does. kept: changed by hand, the code did not change. conflict: set by hand, and the code
-- has another value than the one applied last, or another application applied the setting. forget: no longer declared, but it was
-- changed by hand, or is a group, which is never closed; it stays. record: nothing differs, but that is not recorded yet.
create function forebay._compare_queues(p_app text, p_queues jsonb, p_overwrite boolean) returns setof forebay._queue_difference
language sql stable
set enable_seqscan = off
set jit = off
as $$
    select c.queue, c.setting, c.value, c.code, c.applied, c.app, c.applied_at, c.action, e.changed_by, e.at
    from (
        select w.*, a.value, case
            when w.code is null and a.value is not distinct from w.initial then 'record'
            when w.code is null and w.setting not like 'group %' and a.value = w.applied then 'remove'
            when w.code is null then 'forget'
            when a.value = w.code and (w.applied = w.code or w.app <> p_app) then null
            when a.value = w.code then 'record'
            when w.applied is null and a.value is not distinct from w.initial then 'set'
            when w.app = p_app and a.value = w.applied or p_overwrite
                then case when a.value is not distinct from w.initial then 'set' else 'change' end
            when w.app = p_app and w.applied = w.code then 'kept'
            else 'conflict' end as action
        from (
            select d.no, coalesce(d.queue, l.queue) as queue, coalesce(d.setting, l.setting) as setting,
                   d.value as code, l.value as applied, l.app, l.applied_at,
                   case coalesce(d.setting, l.setting) when 'shards' then '1'::jsonb end as initial
            from forebay._declared_settings(p_queues) d
            full join forebay.applied_setting l on l.queue = d.queue and l.setting = d.setting
            where d.queue is not null or l.app = p_app) w
        left join lateral (
            select coalesce((select s.value from forebay._queue_settings(w.queue) s where s.setting = w.setting), w.initial)) a (value) on true) c
    left join lateral (
        select coalesce(i.actor, i.role), i.at from forebay.event i
        where c.action in ('kept', 'conflict', 'forget') and i.queue = c.queue and case
            when c.setting = 'shards' then i.act = 'queues.shard'
            when c.setting = 'dead_keep_days' then i.act = 'dead.keep'
            when c.setting like 'group %' then i.act in ('groups.open', 'groups.close') and i.group_name = substr(c.setting, 7)
            else i.act = 'queues.limit' and (i.old -> c.setting is distinct from i.new -> c.setting
                 or i.old -> (c.setting || '_group') is distinct from i.new -> (c.setting || '_group')
                 or i.old -> replace(c.setting, 'rate', 'burst') is distinct from i.new -> replace(c.setting, 'rate', 'burst')) end
        order by i.at desc, i.event_id desc limit 1) e (changed_by, at) on true
    where c.action is not null
    order by c.queue, c.no nulls last, c.setting
$$;


-- functions/shared/event.sql

-- Record an act of an operator, in the transaction of the act; returns the number of the event.
--
-- Invariant "no act without its event": both commit, or neither. The caller records no act that changes nothing.
create function forebay._record_event(
    p_act text, p_queue text default null, p_group text default null, p_kind text default null, p_subject_id bigint default null,
    p_old jsonb default null, p_new jsonb default null, p_count bigint default null, p_detail text default null)
returns bigint
language sql volatile
as $$
    insert into forebay.event (at, role, actor, act, queue, group_name, kind, subject_id, old, new, count, detail)
    values (forebay._now(), session_user, left(nullif(current_setting('forebay.actor', true), ''), 200), p_act, p_queue, p_group, p_kind,
            p_subject_id, p_old, p_new, p_count, left(p_detail, 1000))
    returning event_id
$$;


-- functions/shared/locks.sql

-- Locks until the end of the transaction; see tables/lock.sql and the table "Locks" in docs/design/engine.md. What a lock protects
-- must be read by a later statement: that one sees what the last holder committed.

-- Take the lock of that name, or return false when another session has it.
create function forebay._try_lock(p_name text) returns boolean
language plpgsql volatile
as $$
begin
    execute format('lock table only forebay.lock_%s in share update exclusive mode nowait', p_name);
    return true;
exception when lock_not_available then
    return false;
end
$$;


-- Take the lock of a group's lane; see also fragments/lock_lane.sql.
create function forebay._lock_lane(p_group_id bigint, p_lane bigint) returns void
language plpgsql volatile
as $$
begin
    execute 'lock table only forebay.lock_lane_' || (hashint8(p_group_id # p_lane) & 127) || ' in share update exclusive mode';
end
$$;


-- Take the lock of a group's lane, or return false when another session has it.
create function forebay._try_lock_lane(p_group_id bigint, p_lane bigint) returns boolean
language sql volatile
as $$ select forebay._try_lock('lane_' || (hashint8(p_group_id # p_lane) & 127)) $$;


-- May a settlement lock and read what claims decided? Not in the transaction of a handler, which may be open for seconds, and not where
-- later statements would not see what the lock's last holder committed.
--
-- Parameters: p_flush_no, see forebay.settle_v1().
create function forebay._may_look(p_flush_no integer) returns boolean
language sql stable
as $$
    select p_flush_no > 0 and current_setting('transaction_isolation') = 'read committed'
           and statement_timestamp() - transaction_timestamp() <= interval '3 seconds'
$$;


-- Take the lock of a group's limiter: alone to decide about limits, shared to read what was decided.
create function forebay._lock_limiter(p_group_id bigint, p_shared boolean) returns void
language plpgsql volatile
as $$
begin
    execute format('lock table only forebay.lock_limiter_%s in %s mode', hashint8(p_group_id) & 63,
                   case when p_shared then 'row exclusive' else 'share row exclusive' end);
end
$$;


-- Take the lock of a group's ordering keys: alone to decide about them, shared to read what was decided.
create function forebay._lock_keys(p_group_id bigint, p_shared boolean) returns void
language plpgsql volatile
as $$
begin
    execute format('lock table only forebay.lock_keys_%s in %s mode', hashint8(p_group_id) & 63,
                   case when p_shared then 'row exclusive' else 'share row exclusive' end);
end
$$;


-- Take the lock of the routers: shared to expand events, alone to activate a subscription.
create function forebay._lock_routing(p_shared boolean) returns void
language plpgsql volatile
as $$
begin
    if p_shared then
        lock table only forebay.lock_routing in row exclusive mode;
    else
        lock table only forebay.lock_routing in share row exclusive mode;
    end if;
end
$$;


-- functions/shared/paused.sql

-- Since when a group is paused; null: it is not, or its pause has ended by itself.
create function forebay._paused_since(p_paused_at timestamptz, p_resume_at timestamptz) returns timestamptz
language sql volatile
as $$ select case when p_resume_at <= forebay._now() then null else p_paused_at end $$;


-- functions/shared/random_name.sql

-- A random name, from 1 to 2^62: for rows that another transaction will name after this one has committed.
--
-- A number from a sequence is given out again after a lost commit: the sequence returns with the rest of the server to an earlier
-- state. A client that still uses the old name would then reach the new row. The primary key of the table refuses the rest.
create function forebay._random_name() returns bigint
language sql volatile
as $$
    -- 64 of a version 4 UUID's random bits: its first 12 and its last 4 hexadecimal digits.
    select 1 + (('x' || substr(u.hex, 1, 12) || substr(u.hex, 29))::bit(64)::bigint & 4611686018427387903)
    from (select replace(gen_random_uuid()::text, '-', '') as hex) u
$$;


-- functions/shared/require_group.sql

-- Errors: JQ014 when the queue has no such group.
create function forebay._require_group(p_queue text, p_group_name text) returns void
language plpgsql stable
as $$
begin
    if not exists (select from forebay.queue_group g
                   where g.queue = p_queue and (p_group_name is null or g.name = p_group_name)) then
        raise exception using errcode = 'JQ014',
            message = format('queue %s has no group%s', coalesce(quote_literal(p_queue), 'null'),
                             coalesce(' ' || quote_literal(p_group_name), '')),
            detail = jsonb_build_object('queue', p_queue, 'group', p_group_name),
            hint = 'Groups are opened by the first worker that serves them, or by forebay.open_group().';
    end if;
end
$$;


-- The name of a group, also of one that was closed; null: no such group.
create function forebay._group_name(p_group_id bigint) returns text
language sql stable
as $$
    select coalesce((select g.name from forebay.queue_group g where g.group_id = p_group_id),
                    (select c.name from forebay.closed_group c where c.group_id = p_group_id))
$$;


-- functions/shared/rows.sql

-- One row of the log, found by its position in the claim index.
create function forebay._row(p_lane bigint, p_xid xid8, p_seq bigint) returns forebay.log
language plpgsql stable
as $$
declare
    v_segment bigint;
    v_row     forebay.log;
begin
    select s.segment_id into v_segment from forebay.segment s where s.lo <= p_seq order by s.lo desc limit 1;
    if v_segment is null then
        return null;
    end if;
    execute format('select l.* from forebay.log_%s l where l.lane = $1 and l.xid = $2 and l.seq = $3', v_segment)
        into v_row using p_lane, p_xid, p_seq;
    return v_row;
end
$$;


-- Continue a job in a new row: at once in the log, or deferred until p_run_at. The row always goes to a private
-- lane of the group, so that no other group sees the job again.
--
-- Invariant "nothing lost": called in the same transaction that ends the job's previous row.
create function forebay._continue_job(
    p_row forebay.log, p_lane bigint, p_attempt integer, p_pauses integer, p_run_at timestamptz)
returns void
language plpgsql volatile
as $$
declare
    v_expires_at constant timestamptz := p_row.expires_at;
begin
    if p_run_at is null then
        insert into forebay.log (
            lane, enqueued_at, job_id, expires_at, attempt, max_attempts, pauses, kind, args, tag, correlation_id, headers,
            ordering_key, unique_key, limit_key)
        values (
            p_lane, p_row.enqueued_at, coalesce(p_row.job_id, p_row.seq), v_expires_at, nullif(p_attempt, 0),
            p_row.max_attempts, nullif(p_pauses, 0), p_row.kind, p_row.args, p_row.tag, p_row.correlation_id, p_row.headers,
            p_row.ordering_key, p_row.unique_key, p_row.limit_key);
    else
        insert into forebay.deferred (
            run_at, lane, enqueued_at, job_id, expires_at, attempt, max_attempts, pauses, kind, args, tag, correlation_id, headers,
            ordering_key, unique_key, limit_key)
        values (
            p_run_at, p_lane, p_row.enqueued_at, coalesce(p_row.job_id, p_row.seq), v_expires_at, nullif(p_attempt, 0),
            p_row.max_attempts, nullif(p_pauses, 0), p_row.kind, p_row.args, p_row.tag, p_row.correlation_id, p_row.headers,
            p_row.ordering_key, p_row.unique_key, p_row.limit_key);
    end if;
end
$$;


-- Did an operator move a job of a group from this row, or an older one, to a newer row?
create function forebay._is_moved(p_job_id bigint, p_group_id bigint, p_seq bigint) returns boolean
language sql stable
as $$
    select pg_sequence_last_value('forebay.tombstone_seq') is not null
       and exists (select from forebay.tombstone t
                   where t.job_id = p_job_id and t.reason = 'm' and p_seq <= t.up_to and (t.group_id is null or t.group_id = p_group_id))
$$;


-- Every row of a job in the log, oldest first, with its lane's audience and whether the row still exists.
create function forebay._rows_of(p_job_id bigint)
returns setof forebay.log
language plpgsql stable
as $$
declare
    v_segment record;
begin
    for v_segment in
        select s.segment_id, s.lo, s.hi from forebay.segment s
        where s.hi > p_job_id and s.removed_at is null and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)
          and forebay._has_table(s.segment_id)
        order by s.segment_id
    loop
        return query execute format(
            'select l.* from forebay.log_%1$s l where l.job_id = $1
             union all
             select l.* from forebay.log_%1$s l where l.seq = $1 and l.job_id is null and l.kind <> ''''
             order by 2', v_segment.segment_id) using p_job_id;
    end loop;
end
$$;


-- functions/shared/settings.sql

create function forebay._setting_value(p_name text) returns bigint
language sql stable
as $$ select s.value from forebay.setting s where s.name = p_name $$;


-- functions/shared/states.sql

-- The state of a deferred job, by its row: retrying after a failed attempt, else scheduled. A failed attempt sets pauses
-- to null; each later snooze or postponement adds one.
create function forebay._state_of_deferred(p_attempt integer, p_pauses integer) returns text
language sql immutable
as $$ select case when p_attempt > 0 and p_pauses is null then 'retrying' else 'scheduled' end $$;


-- The running jobs in the process of a lease, by its last heartbeat; null when that is older than p_since or had none.
create function forebay._running_jobs(p_lease_id bigint, p_since timestamptz) returns bigint[]
language sql stable
as $$
    select h.running_jobs
    from (select i.heartbeat_at, i.running_jobs from forebay.heartbeat i where i.lease_id = p_lease_id order by i.heartbeat_at desc limit 1) h
    where h.heartbeat_at >= p_since
$$;


-- functions/shared/unread.sql

-- Has a segment a table? The catalog is read as it is now, also in a transaction with an old snapshot of the registry.
create function forebay._has_table(p_segment_id bigint) returns boolean
language sql stable
as $$ select to_regclass('forebay.log_' || p_segment_id) is not null $$;


-- The rows in front of cursors, in one snapshot: for each, the number of the cursor and p_columns of the row l.
--
-- Invariant "flat cost": reads segments that may have such rows, each by name. Reading the partitioned log would lock all of them.
-- A cursor's `start` is what the group has not to read of the lane: '1:1:' for a private lane.
create function forebay._unread_sql(p_cursors forebay._cursor[], p_columns text) returns text
language sql stable
as $$
    select coalesce(string_agg(format(
        'select c.nr, %s
         from unnest($1) c
         cross join lateral unnest(forebay._xid_ranges(coalesce(c.snap_from, c.start), pg_current_snapshot()) || forebay._own_xid_range()) r
         cross join lateral (
             select i.* from forebay.log_%s i
             where i.lane = c.lane and i.xid >= r.low and i.xid < r.high and i.kind <> ''''
               and case when c.snap_from is null then not pg_visible_in_snapshot(i.xid, c.start)
                        else not forebay._is_consumed(i.xid, i.seq, c.snap_from, c.snap_to, c.lo, c.hi, c.pos_xid, c.pos_seq) end
             offset 0) l',
        p_columns, s.segment_id), ' union all ' order by s.segment_id),
        format('select c.nr, %s from unnest($1) c, (select (null::forebay.log).* where false) l', p_columns))
    from forebay.segment s left join forebay.seal f using (segment_id),
         (select min(pg_snapshot_xmin(coalesce(c.snap_from, c.start))) as xid from unnest(p_cursors) c) oldest
    where s.removed_at is null and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)
      and s.lo >= forebay._archived_below() and (f.xid is null or f.xid > oldest.xid) and forebay._has_table(s.segment_id)
$$;


-- How many rows are in front of each cursor, how many of them are the caller's own, and when the oldest job was enqueued.
-- With p_most no more rows than that are visited.
create function forebay._count_unread(p_cursors forebay._cursor[], p_most bigint default null)
returns table (nr bigint, unread bigint, own bigint, oldest timestamptz)
language plpgsql stable
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
begin
    return query execute
        'select u.nr, count(*), count(*) filter (where u.xid = pg_current_xact_id_if_assigned()), min(u.enqueued_at) from ('
        || forebay._unread_sql(p_cursors, 'l.xid, l.enqueued_at') || coalesce(' limit ' || p_most, '') || ') u group by u.nr'
        using p_cursors;
end
$$;


-- The rows of a kind in front of each cursor.
create function forebay._unread_of_kind(p_cursors forebay._cursor[], p_kind text)
returns table (nr bigint, job_id bigint, seq bigint, tag text, attempt integer, enqueued_at timestamptz, expires_at timestamptz)
language plpgsql stable
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
begin
    return query execute
        'select u.nr, u.job_id, u.seq, u.tag, u.attempt, u.enqueued_at, u.expires_at from ('
        || forebay._unread_sql(p_cursors, 'l.kind, l.job_id, l.seq, l.tag, l.attempt, l.enqueued_at, l.expires_at') || ') u where u.kind = $2'
        using p_cursors, p_kind;
end
$$;


-- The ids of jobs, by their rows' lanes, xids and numbers.
create function forebay._job_ids(p_lanes bigint[], p_xids xid8[], p_seqs bigint[]) returns table (seq bigint, job_id bigint)
language plpgsql stable
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_piece record;
begin
    for v_piece in
        select s.segment_id, array_agg(u.lane) as lanes, array_agg(u.xid) as xids, array_agg(u.seq) as seqs
        from unnest(p_lanes, p_xids, p_seqs) as u (lane, xid, seq)
        cross join lateral (select i.segment_id from forebay.segment i where i.lo <= u.seq order by i.lo desc limit 1) s
        group by s.segment_id
    loop
        return query execute format(
            'select u.seq, l.job_id from unnest($1, $2, $3) u (lane, xid, seq)
             cross join lateral (select i.job_id from forebay.log_%s i
                                 where i.lane = u.lane and i.xid = u.xid and i.seq = u.seq limit 1) l', v_piece.segment_id)
            using v_piece.lanes, v_piece.xids, v_piece.seqs;
    end loop;
end
$$;


-- functions/unique/enqueue_mixed.sql

-- The jobs of a bulk enqueue that have a unique key, in the order in which keys are taken.
--
-- Errors: JQ001 naming the first bad job by its index.
create function forebay._key_inputs(p_jobs forebay._job_input[], p_unique_as jsonb[]) returns forebay._key_input[]
language plpgsql volatile
as $$
declare
    v_now    constant timestamptz := forebay._now();
    v_shards constant jsonb := forebay._shards(array(select distinct j.queue from unnest(p_jobs) j));
    v_row    record;
begin
    for v_row in
        select u.ordinality - 1 as index,
               forebay._unique_problem(u.unique_as, make_interval(secs => u.delay), u.run_at, u.expires_at) as problem
        from (select j.delay, j.run_at, j.expires_at, j.unnest as unique_as, forebay._uniqueness_mode(j.unnest) as mode, j.ordinality
              from unnest(p_jobs, p_unique_as) with ordinality j
              where j.unnest is not null offset 0) u
        where (u.mode in ('once', 'idempotent', 'coalesce', 'replace') and jsonb_typeof(u.unique_as -> u.mode) = 'string'
               and length(u.unique_as ->> u.mode) between 1 and 200 and u.unique_as ->> u.mode !~ E'[\x01-\x1f\x7f]'
               and u.unique_as - u.mode = '{}') is not true
        order by u.ordinality
    loop
        if v_row.problem is not null then
            raise exception using errcode = 'JQ001', message = format('job %s: %s', v_row.index, v_row.problem),
                detail = jsonb_build_object('index', v_row.index),
                hint = 'Nothing was enqueued: a bulk call is all or none.';
        end if;
    end loop;
    for v_row in
        select distinct j.queue, j.priority, j.ordering_key is not null as is_keyed, j.limit_key is not null as is_limited from unnest(p_jobs, p_unique_as) j where j.unnest is not null
    loop
        if v_row.is_keyed then
            perform forebay._record_keyed_lane(v_row.queue, v_row.priority, 0);
        elsif v_row.is_limited then
            perform forebay._record_limited_lane(v_row.queue, v_row.priority, 0);
        else
            perform forebay._record_lanes(v_row.queue, v_row.priority, v_shards);
        end if;
    end loop;
    return array(
        select row(u.nr, first_value(u.nr) over same, u.digest <> first_value(u.digest) over same, u.queue, left(u.mode, 1)::"char", u.word,
                   u.unique_as, u.lane, u.start, u.expires_at, u.digest)::forebay._key_input
        from (select j.ordinality as nr, j.queue, j.mode, j.unique_as ->> j.mode as word, j.unique_as, j.expires_at,
                     case when j.ordering_key is not null then forebay._keyed_lane_id(j.queue, j.priority, 0)
                          when j.limit_key is not null then forebay._limited_lane_id(j.queue, j.priority, 0)
                          else forebay._lane_for_place(j.queue, j.priority, j.ordinality, v_shards) end as lane,
                     coalesce(j.run_at, v_now + make_interval(secs => j.delay)) as start,
                     case when j.mode = 'idempotent' then sha256(convert_to(j.kind || ' ' || j.args::text, 'UTF8')) end as digest
              from (select i.*, i.unnest as unique_as, forebay._uniqueness_mode(i.unnest) as mode from unnest(p_jobs, p_unique_as) with ordinality i
                    where i.unnest is not null offset 0) j) u
        window same as (partition by u.queue collate "C", u.mode collate "C", u.word collate "C" order by u.nr)
        order by u.queue collate "C", u.mode collate "C", u.word collate "C", u.nr);
end
$$;


-- Write checked jobs of which some have a unique key; returns their ids in input order, and which are new. Keys are taken in sorted order, so
-- that two calls with the same keys cannot deadlock.
--
-- A key that another transaction took first is taken separately. The keys after it, of which none was taken yet, are read
-- again, at first a few.
--
-- Errors: JQ001, JQ004 and JQ005 naming the job by its index.
create function forebay._enqueue_mixed(p_jobs forebay._job_input[], p_unique_as jsonb[], out ids bigint[], out news boolean[])
language plpgsql volatile
as $$
declare
    v_ids    bigint[] := array_fill(null::bigint, array[cardinality(p_jobs)]);
    v_news   boolean[] := array_fill(null::boolean, array[cardinality(p_jobs)]);
    v_items  forebay._key_input[] := forebay._key_inputs(p_jobs, p_unique_as);
    v_first  forebay._key_input[] := array(select i from unnest(v_items) i where i.nr = i.first_nr);
    v_item   forebay._key_input;
    v_taken  forebay._key_taken[] := '{}';
    v_part   forebay._key_taken[];
    v_most   integer;
    v_made   record;
    v_row    record;
begin
    -- A caller that will not wait takes each key separately.
    v_most := case when exists (select from unnest(v_items) i where i.unique_as ->> 'on_busy' = 'raise') then 0 else 1000 end;
    while cardinality(v_taken) < cardinality(v_first) loop
        v_part := case when v_most > 0 then forebay._take_keys(v_first[cardinality(v_taken) + 1 : cardinality(v_taken) + v_most]) else '{}' end;
        v_taken := v_taken || v_part;
        if cardinality(v_part) < v_most and cardinality(v_taken) < cardinality(v_first) or v_most = 0 then
            v_item := v_first[cardinality(v_taken) + 1];
            select u.* into v_made from forebay._enqueue_unique(
                p_jobs[v_item.nr], v_item.start, v_item.unique_as, format('job %s: ', v_item.nr - 1)) u;
            v_taken := v_taken || row(v_made.job_id, false, null, null)::forebay._key_taken;  -- It is written.
            v_news[v_item.nr] := v_made.is_new;
            v_most := least(v_most, 8);
        end if;
        v_most := least(v_most * 4, 1000);
    end loop;

    for v_row in
        select i.its_queue as queue, count(*) as more, bool_or((i.starts_at > i.since) is not true) as is_ready from unnest(v_first, v_taken) i
        where i.is_new group by 1
    loop
        if pg_sequence_last_value('forebay.limit_seq') is not null then
            perform forebay._require_below_max_waiting(v_row.queue, v_row.more);
        end if;
        if v_row.is_ready then
            perform forebay._notify(v_row.queue);
        end if;
    end loop;
    -- Their numbers were drawn after their xid, with the generations.
    insert into forebay.log (
        seq, lane, enqueued_at, expires_at, max_attempts, kind, args, tag, correlation_id, headers, unique_key, ordering_key,
        limit_key)
    select i.stands_for, i.its_lane, i.since, i.ends, j.max_attempts, j.kind, j.args, j.tag, j.correlation_id, j.headers, i.word,
           j.ordering_key, j.limit_key
    from unnest(v_first, v_taken) i join unnest(p_jobs) with ordinality j on j.ordinality = i.nr
    where i.is_new and (i.starts_at > i.since) is not true;
    insert into forebay.deferred (
        run_at, lane, enqueued_at, job_id, expires_at, max_attempts, kind, args, tag, correlation_id, headers, unique_key, ordering_key,
        limit_key)
    select i.starts_at, i.its_lane, i.since, i.stands_for, coalesce(i.ends, i.starts_at + interval '30 days'), j.max_attempts,
           j.kind, j.args, j.tag, j.correlation_id, j.headers, i.word, j.ordering_key, j.limit_key
    from unnest(v_first, v_taken) i join unnest(p_jobs) with ordinality j on j.ordinality = i.nr
    where i.is_new and i.starts_at > i.since;

    for v_row in select i.nr, i.stands_for, i.is_new from unnest(v_first, v_taken) i loop
        v_ids[v_row.nr] := v_row.stands_for;
        v_news[v_row.nr] := coalesce(v_news[v_row.nr], v_row.is_new);
    end loop;
    -- Further jobs of a key: this transaction has the open generation, so they wait for no other session.
    for v_item in select i.* from unnest(v_items) i where i.nr <> i.first_nr loop
        if v_item.code in ('r', 'd') then
            select u.* into v_made from forebay._enqueue_unique(
                p_jobs[v_item.nr], v_item.start, v_item.unique_as, format('job %s: ', v_item.nr - 1)) u;
            v_ids[v_item.nr] := v_made.job_id;
            v_news[v_item.nr] := v_made.is_new;
        elsif v_item.differs then
            perform forebay._raise_differs(v_item.word, v_ids[v_item.first_nr], format('job %s: ', v_item.nr - 1));
        else
            v_ids[v_item.nr] := v_ids[v_item.first_nr];
            v_news[v_item.nr] := false;
        end if;
    end loop;

    if cardinality(v_items) < cardinality(p_jobs) then
        for v_row in
            select p.nr, p.job_id
            from unnest(
                array(select j.ordinality from unnest(p_jobs, p_unique_as) with ordinality j where j.unnest is null order by j.ordinality),
                forebay._enqueue_jobs(array(
                    select row(j.kind, j.args, j.queue, j.priority, j.delay, j.run_at, j.expires_at, j.max_attempts, j.tag,
                               j.correlation_id, j.headers, j.ordering_key, j.limit_key)::forebay._job_input
                    from unnest(p_jobs, p_unique_as) with ordinality j where j.unnest is null order by j.ordinality))) p (nr, job_id)
        loop
            v_ids[v_row.nr] := v_row.job_id;
        end loop;
    end if;
    ids := v_ids;
    news := v_news;
end
$$;


-- functions/unique/enqueue_one.sql

-- Enqueue a checked job that has a unique key.
--
-- If several producers would make the same generation, one does; the others wait for its commit or rollback, in the insert,
-- or, with on_busy raise, fail at once. A generation is made while the row of its predecessor is locked, so that maintenance, which
-- deletes old generations, cannot restart the numbering between the read and the insert.
--
-- A call that joins a waiting job (coalesce) locks its row until the caller's transaction ends, and reads again whether it
-- still waits: the claim that starts the job sees the lock. See forebay._follow_up().
create function forebay._enqueue_unique(
    p_job forebay._job_input, p_start timestamptz, p_unique_as jsonb, p_where text,
    out job_id bigint, out is_new boolean, out replaced bigint)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_now     constant timestamptz := forebay._now();
    v_mode  constant text := forebay._uniqueness_mode(p_unique_as);
    v_code    constant "char" := left(v_mode, 1);
    v_key     constant text := p_unique_as ->> v_mode;
    v_raise   constant boolean := coalesce(p_unique_as ->> 'on_busy' = 'raise', false);
    v_payload bytea;
    v_start   timestamptz := p_start;
    v_first   timestamptz;
    v_last    forebay.unique_key;
    v_key_state   text;
    v_lane    bigint;
begin
    is_new := false;
    if v_mode = 'idempotent' then
        v_payload := sha256(convert_to(p_job.kind || ' ' || p_job.args::text, 'UTF8'));
    end if;
    v_lane := case when p_job.ordering_key is not null then forebay._record_keyed_lane(p_job.queue, p_job.priority, 0)
                   when p_job.limit_key is not null then forebay._record_limited_lane(p_job.queue, p_job.priority, 0)
                   else forebay._pick_lane(p_job.queue, p_job.priority) end;
    loop
        replaced := null;
        v_key_state := 'ended';
        select u.* into v_last from forebay.unique_key u
        where u.queue = p_job.queue and u.mode = v_code and u.key = v_key
        order by u.gen desc limit 1;
        if v_last.gen is not null then
            if v_mode = 'throttle' then
                v_key_state := case when v_last.free_at > v_now then 'waiting' else 'ended' end;
            else
                v_key_state := forebay._key_state(v_last);
            end if;
            job_id := v_last.job_id;
            if v_mode in ('once', 'idempotent', 'throttle') and v_key_state <> 'ended' then
                if v_payload <> v_last.payload then
                    perform forebay._raise_differs(v_key, v_last.job_id, p_where);
                end if;
                return;
            end if;
            if not forebay._hold_key(v_last, v_mode = 'coalesce' and v_key_state = 'waiting', v_raise, p_where) then
                continue;
            end if;
            if v_mode = 'coalesce' and v_key_state = 'waiting' then
                if forebay._key_state(v_last) = 'waiting' then
                    return;
                end if;
                continue;
            end if;
        end if;

        if v_mode = 'debounce' then
            v_first := case when v_key_state = 'waiting' then v_last.first_at else v_now end;
            v_start := least(v_now + make_interval(secs => forebay._unique_seconds(p_unique_as, 'wait')),
                             v_first + make_interval(secs => forebay._unique_seconds(p_unique_as, 'max_wait')));
        end if;
        job_id := forebay._make_generation(
            p_job.queue, v_code, v_key, v_last, v_raise, p_where, v_lane, v_start > v_now,
            coalesce(p_job.expires_at, greatest(v_start, v_now) + interval '30 days'),
            case when v_mode = 'throttle' then v_now + make_interval(secs => forebay._unique_seconds(p_unique_as, 'period')) end,
            v_first, v_payload, case when v_key_state = 'running' then v_last.gen end);
        exit when job_id is not null;
    end loop;
    is_new := true;
    if v_key_state <> 'ended' then
        -- Whatever the state of the predecessor, it does not start again.
        insert into forebay.tombstone (job_id, reason, recorded_at) values (v_last.job_id, 'r', v_now);
        perform forebay._withdraw(array[v_last.job_id]);
        if v_key_state = 'waiting' then
            replaced := v_last.job_id;
        end if;
    end if;
    if v_mode = 'coalesce' then
        insert into forebay.tombstone (job_id, reason, recorded_at) values (job_id, 'k', v_now);
    end if;

    if pg_sequence_last_value('forebay.limit_seq') is not null then
        perform forebay._require_below_max_waiting(p_job.queue, 1);
    end if;
    if v_start > v_now then
        insert into forebay.deferred (
            run_at, lane, enqueued_at, job_id, expires_at, max_attempts, kind, args, tag, correlation_id, headers, unique_key,
            ordering_key, limit_key)
        values (
            v_start, v_lane, v_now, job_id, coalesce(p_job.expires_at, v_start + interval '30 days'), p_job.max_attempts,
            p_job.kind, p_job.args, p_job.tag, p_job.correlation_id, p_job.headers, v_key, p_job.ordering_key, p_job.limit_key);
    else
        -- Its number was drawn after its xid, with the generation.
        insert into forebay.log (
            seq, lane, enqueued_at, expires_at, max_attempts, kind, args, tag, correlation_id, headers, unique_key, ordering_key,
            limit_key)
        values (
            job_id, v_lane, v_now, p_job.expires_at, p_job.max_attempts, p_job.kind, p_job.args, p_job.tag,
            p_job.correlation_id, p_job.headers, v_key, p_job.ordering_key, p_job.limit_key);
        perform forebay._notify(p_job.queue);
    end if;
end
$$;


-- Lock the row of a generation until the transaction ends; false when maintenance has deleted it.
--
-- Parameters: p_join, lock it so that the claim that starts the job notices; p_where, text before the message of an error.
-- Errors: JQ004 with p_raise, when it cannot be locked at once.
create function forebay._hold_key(p_key forebay.unique_key, p_join boolean, p_raise boolean, p_where text) returns boolean
language plpgsql volatile
as $$
declare
    v_timeout constant text := current_setting('lock_timeout');
    v_held    boolean;
begin
    if p_raise then
        begin
            perform set_config('lock_timeout', '10ms', true);
            v_held := forebay._hold_key(p_key, p_join, false, p_where);
            perform set_config('lock_timeout', v_timeout, true);
            return v_held;
        exception when lock_not_available then
            perform forebay._raise_busy(p_key.key, p_where);
        end;
    elsif p_join then
        perform from forebay.unique_key u
        where u.queue = p_key.queue and u.mode = p_key.mode and u.key = p_key.key and u.gen = p_key.gen for share;
    else
        perform from forebay.unique_key u
        where u.queue = p_key.queue and u.mode = p_key.mode and u.key = p_key.key and u.gen = p_key.gen for key share;
    end if;
    return found;
end
$$;


-- functions/unique/enqueue_unique.sql

-- grant: producer, worker

-- Enqueue one job under a unique key; returns its id and whether it is new.
--
-- Invariants "one generation", "commit decides".
--
-- Parameters: unique_as, one of
--     {"once": key}                                no new job while a job of the key waits or runs
--     {"idempotent": key}                          the same, and kind and arguments must be the same
--     {"coalesce": key}                            no new job while one waits
--     {"replace": key}                             a waiting job is replaced
--     {"debounce": key, "wait": s, "max_wait": s}  the same; starts s after the last call, at most max_wait after the first
--     {"throttle": key, "period": s}               no new job within s of the last new one
--   with "on_busy": "raise" to fail instead of waiting when another open transaction is taking the key. A key is a
--   text of 1 to 200 characters and belongs to its queue and uniqueness mode. Other parameters as for forebay.enqueue.
-- Returns: job_id, of the new job or the existing one; is_new; replaced, the waiting job that the new one replaces.
-- Errors: JQ001 a bad option, JQ002 and JQ003 args too large or too deep, JQ004 the key is busy (on_busy raise), JQ005 an idempotency
--   key with another kind or other arguments; 40001 in a REPEATABLE READ transaction that does not see the key's newest job.
-- Locks: the key's newest row, until the transaction ends; waits for another open transaction that is taking the same key.
-- pages: 150
create function forebay.enqueue_unique(
    kind text, args jsonb, unique_as jsonb, queue text default null, priority integer default 100,
    delay interval default null, run_at timestamptz default null, expires_at timestamptz default null,
    max_attempts integer default null, tag text default null, correlation_id text default null,
    headers jsonb default null, ordering_key text default null, limit_key text default null, out job_id bigint, out is_new boolean, out replaced bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_problem text;
    v_made    record;
begin
    enqueue_unique.queue := coalesce(enqueue_unique.queue, forebay.queue_of(enqueue_unique.kind), 'default');
    v_problem := coalesce(
        forebay._job_problem(
            enqueue_unique.kind, enqueue_unique.args, enqueue_unique.queue, enqueue_unique.priority, enqueue_unique.delay,
            enqueue_unique.run_at, enqueue_unique.expires_at, enqueue_unique.max_attempts, enqueue_unique.tag,
            enqueue_unique.correlation_id, enqueue_unique.headers, enqueue_unique.ordering_key, enqueue_unique.limit_key),
        forebay._unique_problem(enqueue_unique.unique_as, enqueue_unique.delay, enqueue_unique.run_at, enqueue_unique.expires_at));
    if v_problem is not null then
        raise exception using errcode = 'JQ001', message = v_problem,
            hint = 'Nothing was enqueued. See the function forebay.enqueue_unique in the reference.';
    end if;
    perform forebay._check_args(enqueue_unique.args, null);
    select u.* into v_made
    from forebay._enqueue_unique(
        row(enqueue_unique.kind, enqueue_unique.args, enqueue_unique.queue, enqueue_unique.priority, null, null,
            enqueue_unique.expires_at, enqueue_unique.max_attempts, enqueue_unique.tag, enqueue_unique.correlation_id,
            enqueue_unique.headers, enqueue_unique.ordering_key, enqueue_unique.limit_key)::forebay._job_input,
        coalesce(enqueue_unique.run_at, forebay._now() + enqueue_unique.delay), enqueue_unique.unique_as, '') u;
    job_id := v_made.job_id;
    is_new := v_made.is_new;
    replaced := v_made.replaced;
end
$$;


-- functions/unique/errors.sql

-- Errors: JQ005.
create function forebay._raise_differs(p_key text, p_job_id bigint, p_where text) returns void
language plpgsql stable
as $$
begin
    raise exception using
        errcode = 'JQ005',
        message = format('%skey %s belongs to job %s, whose kind or arguments differ', p_where, quote_literal(left(p_key, 80)), p_job_id),
        detail = jsonb_strip_nulls(jsonb_build_object('index', substring(p_where, '[0-9]+')::bigint, 'job_id', p_job_id)),
        hint = 'An idempotency key identifies one request: use another key, or wait until that job has ended.';
end
$$;


-- Errors: JQ004.
create function forebay._raise_busy(p_key text, p_where text) returns void
language plpgsql stable
as $$
begin
    raise exception using
        errcode = 'JQ004',
        message = format('%skey %s is being taken by another open transaction', p_where, quote_literal(left(p_key, 80))),
        detail = jsonb_strip_nulls(jsonb_build_object('index', substring(p_where, '[0-9]+')::bigint, 'key', p_key)),
        hint = 'Try again when that transaction has ended, or let the enqueue wait for it: on_busy wait.';
end
$$;


-- functions/unique/follow_up.sql

-- Follow up jobs that a claim hands out and that an open transaction has joined (coalesce): these runs do not see what that
-- transaction wrote, so each job gets a successor, at its first start in any group.
--
-- The successor waits briefly for that transaction to end. If it has not ended, the successor is followed up too, later
-- each time, up to ten seconds. The claim itself waits for no transaction.
--
-- Parameters: p_group_id, the group whose claim takes the rows.
-- Locks: the follow-up lock; the rows of the generations, without waiting.
create function forebay._follow_up(p_rows forebay.log[], p_group_id bigint) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_keys   forebay.unique_key[];
    v_key    forebay.unique_key;
    v_row    forebay.log;
    v_free   bigint[];
    v_open   bigint;
    v_job_id bigint;
begin
    v_keys := array(
        select k.u from unnest(p_rows) r,
             lateral (select u, u.queue, u.key from forebay.unique_key u
                      where u.job_id = coalesce(r.job_id, r.seq) and u.mode = 'c'
                      offset 0) k  -- An index probe for each, whatever the planner's estimate of the table.
        where r.unique_key is not null
        order by k.queue, k.key);
    if cardinality(v_keys) = 0 then
        return;
    end if;
    lock table only forebay.lock_follow_up in share update exclusive mode;
    foreach v_key in array v_keys loop
        -- A key with a newer generation, or started by another group, has been followed up.
        continue when exists (select from forebay.unique_key u
                              where u.queue = v_key.queue and u.mode = 'c' and u.key = v_key.key and u.gen > v_key.gen);
        continue when forebay._key_state(v_key, p_group_id) <> 'waiting';
        v_free := array(
            select u.gen from forebay.unique_key u
            where u.queue = v_key.queue and u.mode = 'c' and u.key = v_key.key and u.gen between v_key.origin and v_key.gen
            for update skip locked);
        select min(u.gen) into v_open from forebay.unique_key u
        where u.queue = v_key.queue and u.mode = 'c' and u.key = v_key.key and u.gen between v_key.origin and v_key.gen
          and u.gen <> all (v_free);
        continue when v_open is null;
        begin
            v_job_id := forebay._make_generation(
                v_key.queue, 'c', v_key.key, v_key, true, '', v_key.lane, true, v_key.expires_at, null, null, null, v_open);
        exception when sqlstate 'JQ004' then
            continue;  -- An open transaction is making the successor.
        end;
        continue when v_job_id is null;
        insert into forebay.tombstone (job_id, reason, recorded_at)
        values (v_key.job_id, 'r', forebay._now()), (v_job_id, 'k', forebay._now());
        select r.* into v_row from unnest(p_rows) r where coalesce(r.job_id, r.seq) = v_key.job_id;
        v_row.job_id := v_job_id;
        v_row.enqueued_at := forebay._now();
        v_row.expires_at := v_key.expires_at;
        perform forebay._continue_job(
            v_row, v_key.lane, 0, 0,
            forebay._now() + make_interval(secs => least(10, 0.25 * 2 ^ least(v_key.gen - v_open, 6))));
    end loop;
end
$$;


-- functions/unique/generation.sql

-- Append a generation; returns its job's number, or null when another transaction has made it meanwhile.
--
-- Errors: JQ004 with p_raise, when another open transaction is making it; 40001 in a REPEATABLE READ transaction when another
--   transaction has made it.
create function forebay._make_generation(
    p_queue text, p_mode "char", p_key text, p_last forebay.unique_key, p_raise boolean, p_where text, p_lane bigint, p_is_deferred boolean,
    p_expires_at timestamptz, p_free_at timestamptz, p_first_at timestamptz, p_payload bytea, p_origin bigint)
returns bigint
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_timeout constant text := current_setting('lock_timeout');
    v_gen     constant bigint := coalesce(p_last.gen, 0) + 1;
    v_job_id  bigint;
begin
    if not p_raise then
        insert into forebay.unique_key (
            queue, mode, key, gen, lane, is_deferred, taken_at, expires_at, free_at, first_at, payload, origin)
        values (
            p_queue, p_mode, p_key, v_gen, p_lane, coalesce(p_is_deferred, false), forebay._now(), p_expires_at, p_free_at,
            p_first_at, p_payload, coalesce(p_origin, v_gen))
        on conflict do nothing
        returning job_id into v_job_id;
        return v_job_id;
    end if;
    begin
        perform set_config('lock_timeout', '10ms', true);
        v_job_id := forebay._make_generation(
            p_queue, p_mode, p_key, p_last, false, p_where, p_lane, p_is_deferred, p_expires_at, p_free_at, p_first_at, p_payload, p_origin);
        perform set_config('lock_timeout', v_timeout, true);
        return v_job_id;
    exception when lock_not_available then
        perform forebay._raise_busy(p_key, p_where);
    end;
end
$$;


-- functions/unique/options.sql

-- The uniqueness mode in a unique_as, or null. An expression, since it is evaluated for each job of a bulk enqueue.
create function forebay._uniqueness_mode(p_unique_as jsonb) returns text
language sql immutable
as $$
    select case when jsonb_typeof(p_unique_as) = 'object'
                     and (p_unique_as ? 'once')::integer + (p_unique_as ? 'idempotent')::integer + (p_unique_as ? 'coalesce')::integer
                         + (p_unique_as ? 'replace')::integer + (p_unique_as ? 'debounce')::integer + (p_unique_as ? 'throttle')::integer = 1
                then case when p_unique_as ? 'once' then 'once' when p_unique_as ? 'idempotent' then 'idempotent'
                          when p_unique_as ? 'coalesce' then 'coalesce' when p_unique_as ? 'replace' then 'replace'
                          when p_unique_as ? 'debounce' then 'debounce' else 'throttle' end end
$$;


-- A positive number of seconds in a unique_as, at most ten years; null for any other value.
create function forebay._unique_seconds(p_unique_as jsonb, p_name text) returns double precision
language plpgsql immutable
as $$
begin
    if jsonb_typeof(p_unique_as -> p_name) = 'number' and (p_unique_as ->> p_name)::numeric between 0.001 and 315576000 then
        return (p_unique_as ->> p_name)::double precision;
    end if;
    return null;
end
$$;


-- The problem with a unique_as, or null. One line, lower case, with the value.
create function forebay._unique_problem(p_unique_as jsonb, p_delay interval, p_run_at timestamptz, p_expires_at timestamptz) returns text
language plpgsql stable
as $$
declare
    v_mode constant text := forebay._uniqueness_mode(p_unique_as);
    v_known  constant text[] := array['on_busy'] || v_mode
        || case v_mode when 'debounce' then array['wait', 'max_wait'] when 'throttle' then array['period'] else '{}' end;
    v_key    constant text := p_unique_as ->> v_mode;
begin
    if v_mode is null then
        return format('unique_as %s must be an object with one of once, idempotent, coalesce, replace, debounce and throttle',
                      left(p_unique_as::text, 80));
    elsif jsonb_typeof(p_unique_as -> v_mode) <> 'string' or length(v_key) not between 1 and 200 or v_key ~ E'[\x01-\x1f\x7f]' then
        return format('unique key %s must be text of 1 to 200 characters, none of them a control character',
                      left((p_unique_as -> v_mode)::text, 40));
    elsif (p_unique_as - v_known) <> '{}' then
        return format('unique_as has the unknown entry %s', (select quote_literal(left(k, 40)) from jsonb_object_keys(p_unique_as - v_known) k limit 1));
    elsif p_unique_as ? 'on_busy' and ((p_unique_as ->> 'on_busy') in ('wait', 'raise')) is not true then
        return format('on_busy %s is neither wait nor raise', left((p_unique_as -> 'on_busy')::text, 40));
    elsif v_mode = 'throttle' and forebay._unique_seconds(p_unique_as, 'period') is null then
        return format('period %s is not a number of seconds within 0.001 and ten years', coalesce(left((p_unique_as -> 'period')::text, 40), 'null'));
    elsif v_mode = 'debounce' then
        if forebay._unique_seconds(p_unique_as, 'wait') is null then
            return format('wait %s is not a number of seconds within 0.001 and ten years', coalesce(left((p_unique_as -> 'wait')::text, 40), 'null'));
        elsif p_unique_as ? 'max_wait' and (forebay._unique_seconds(p_unique_as, 'max_wait') >= forebay._unique_seconds(p_unique_as, 'wait')) is not true then
            return format('max_wait %s is not a number of seconds from wait to ten years', left((p_unique_as -> 'max_wait')::text, 40));
        elsif p_delay is not null or p_run_at is not null then
            return 'debounce sets the start time: delay and run_at are not allowed';
        elsif p_expires_at <= forebay._now() + make_interval(secs => forebay._unique_seconds(p_unique_as, 'wait')) then
            return format('expires_at %s is not after the end of the wait', p_expires_at);
        end if;
    end if;
    return null;
end
$$;


-- functions/unique/state.sql

-- State of one log row for a group: waiting, running, ended, or superseded by a newer row of the job.
--
-- The batch that disposed of the row is the first one whose cursor has passed it. The search goes backwards from the newest
-- batch, in steps that double, since the batch is mostly near; the oldest batches, where rows may be deleted, are not read.
create function forebay._row_state(p_group_id bigint, p_lane bigint, p_xid xid8, p_seq bigint) returns text
language plpgsql stable
as $$
declare
    v_hi     bigint;
    v_lo     bigint;
    v_try    bigint;
    v_step   bigint := 1;
    v_passed boolean;
    v_batch  record;
    v_code   "char";
    v_row    forebay.log;
    v_other  forebay.batch;
begin
    if p_seq < forebay._archived_below() then
        return 'superseded';
    end if;
    select b.no,
           b.high_seq >= p_seq and forebay._is_consumed(p_xid, p_seq, b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq)
    into v_hi, v_passed
    from forebay.batch b left join forebay.segment s on s.segment_id = b.pos_segment
    where b.group_id = p_group_id and b.lane = p_lane order by b.no desc limit 1;
    if v_passed is not true then
        return 'waiting';
    end if;
    v_lo := v_hi;
    loop
        v_try := case when v_lo = v_hi then v_hi - v_step else (v_lo + v_hi) / 2 end;
        v_passed := false;  -- Also when the batch of this number was deleted.
        select b.high_seq >= p_seq and forebay._is_consumed(p_xid, p_seq, b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq)
        into v_passed
        from forebay.batch b left join forebay.segment s on s.segment_id = b.pos_segment
        where b.group_id = p_group_id and b.lane = p_lane and b.no = v_try;
        if v_lo < v_hi then
            if v_passed then
                v_hi := v_try;
            else
                v_lo := v_try;
            end if;
        elsif v_passed then
            v_lo := v_try;
            v_hi := v_try;
            v_step := v_step * 2;
        else
            v_lo := v_try;
        end if;
        exit when v_hi = v_lo + 1;
    end loop;

    select b.lease_id, b.claim_no, array_position(b.seqs, p_seq) as place, array_position(b.skipped, p_seq) as skip, b.skipped_as
    into v_batch
    from forebay.batch b where b.group_id = p_group_id and b.lane = p_lane and b.no = v_hi;
    if v_batch.skip is not null then
        return case when v_batch.skipped_as[v_batch.skip] in ('c', 'e') then 'ended' else 'superseded' end;
    elsif v_batch.place is null then
        -- Jobs with keys: the row may have been parked when its batch passed it.
        v_row := forebay._row(p_lane, p_xid, p_seq);
        if v_row.ordering_key is not null then
            if forebay._is_parked(p_group_id, v_row.ordering_key, p_seq) then
                return 'waiting';
            end if;
            v_other := forebay._keyed_batch_of(p_group_id, v_row.ordering_key, p_seq);
        elsif v_row.limit_key is not null then
            if forebay._is_limit_parked(p_group_id, v_row.limit_key, p_xid, p_seq) then
                return 'waiting';
            end if;
            v_other := forebay._limited_batch_of(p_group_id, v_row.limit_key, p_lane, p_seq);
        end if;
        select v_other.lease_id, v_other.claim_no, array_position(v_other.seqs, p_seq) as place, array_position(v_other.skipped, p_seq) as skip,
               v_other.skipped_as
        into v_batch;
        if v_batch.skip is not null then
            return case when v_batch.skipped_as[v_batch.skip] in ('c', 'e') then 'ended' else 'superseded' end;
        end if;
    end if;
    if v_batch.place is null then
        return 'superseded';
    end if;
    select coalesce(s.outcomes[array_position(s.offsets, v_batch.place::smallint)], 'd') into v_code
    from forebay.settlement s
    where s.lease_id = v_batch.lease_id and s.claim_no = v_batch.claim_no
      and (s.offsets is null or v_batch.place::smallint = any (s.offsets))
    limit 1;
    if v_code = 'k' then  -- Requeued behind an earlier job of its ordering key.
        v_row := forebay._row(p_lane, p_xid, p_seq);
        if forebay._is_parked(p_group_id, v_row.ordering_key, p_seq) then
            return 'waiting';
        end if;
        v_other := forebay._keyed_batch_of(p_group_id, v_row.ordering_key, p_seq);
        if (v_other.lease_id, v_other.claim_no) is distinct from (v_batch.lease_id, v_batch.claim_no) then
            v_code := (select coalesce(s.outcomes[array_position(s.offsets, array_position(v_other.seqs, p_seq)::smallint)], 'd')
                       from forebay.settlement s
                       where s.lease_id = v_other.lease_id and s.claim_no = v_other.claim_no
                         and (s.offsets is null or array_position(v_other.seqs, p_seq)::smallint = any (s.offsets)) limit 1);
        end if;
    end if;
    return case when v_code is null then 'running' when v_code in ('d', 'c', 'x', 'y') then 'ended' else 'superseded' end;
end
$$;


-- State of the job of a generation for one group, or for a queue without groups: waiting, running, ended; null when
-- the group does not read it.
--
-- A waiting job that was cancelled, replaced or has expired has ended: no claim will start it.
create function forebay._key_state_in(p_key forebay.unique_key, p_group_id bigint, p_start_after pg_snapshot) returns text
language plpgsql stable
as $$
declare
    v_row_state    text := 'superseded';
    v_position    forebay.promotion;
    v_segment bigint;
    v_row     record;
begin
    if not p_key.is_deferred then
        if pg_visible_in_snapshot(p_key.xid, p_start_after) then
            return null;
        end if;
        if not forebay._is_moved(p_key.job_id, p_group_id, p_key.job_id) then
            v_row_state := forebay._row_state(p_group_id, p_key.lane, p_key.xid, p_key.job_id);
        end if;
    end if;
    if v_row_state = 'superseded' then
        select p.* into v_position from forebay.promotion p order by p.no desc limit 1;
        if exists (
            select from forebay.deferred d
            join lateral (select l.audience from forebay.lane l where l.lane = d.lane limit 1) a on true
            where d.job_id = p_key.job_id and a.audience in (0, p_group_id, -p_group_id)
              and not (v_position.no is not null and pg_visible_in_snapshot(d.xid, v_position.snap)
                       and (d.run_at, d.deferred_id) <= (v_position.run_at, v_position.deferred_id))) then
            v_row_state := 'waiting';
        else
            v_row_state := 'ended';
            for v_segment in
                select s.segment_id from forebay.segment s
                where s.hi > p_key.job_id and s.removed_at is null
                  and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0) and forebay._has_table(s.segment_id)
                order by s.segment_id desc
            loop
                execute format(
                    'select l.lane, l.xid, l.seq, a.audience from forebay.log_%s l
                     join lateral (select i.audience from forebay.lane i where i.lane = l.lane limit 1) a on true
                     where l.job_id = $1 and a.audience in (0, $2, -$2)
                     order by l.seq desc limit 1', v_segment)
                    into v_row using p_key.job_id, p_group_id;
                if v_row.seq is not null then
                    if v_row.audience = 0 and pg_visible_in_snapshot(v_row.xid, p_start_after) then
                        return null;
                    end if;
                    v_row_state := forebay._row_state(p_group_id, v_row.lane, v_row.xid, v_row.seq);
                    exit;
                end if;
            end loop;
        end if;
    end if;
    if v_row_state = 'waiting'
       and (p_key.expires_at <= forebay._now()
            or exists (select from forebay.tombstone t
                       where t.job_id = p_key.job_id and t.reason not in ('k', 'm') and (t.group_id is null or t.group_id = p_group_id))) then
        return 'ended';
    end if;
    return case v_row_state when 'superseded' then 'ended' else v_row_state end;
end
$$;


-- State of the job of a generation: waiting (for every group of its queue), ended (for every group), else running. For the group
-- p_claiming, whose claim is taking the job, it counts as waiting.
create function forebay._key_state(p_key forebay.unique_key, p_claiming bigint default null) returns text
language plpgsql stable
as $$
declare
    v_group   record;
    v_key_state   text;
    v_waiting boolean := false;
    v_ended   boolean := false;
    v_any     boolean := false;
begin
    for v_group in
        select g.group_id, g.start_after
        from (select * from forebay.queue_group i where i.queue = p_key.queue collate "default" offset 0) g  -- As in its index.
        order by g.created_at, g.group_id
    loop
        v_any := true;
        v_key_state := case when v_group.group_id = p_claiming then 'waiting'
                            else forebay._key_state_in(p_key, v_group.group_id, v_group.start_after) end;
        if v_key_state = 'running' then
            return v_key_state;
        end if;
        v_waiting := v_waiting or coalesce(v_key_state = 'waiting', false);
        v_ended := v_ended or coalesce(v_key_state = 'ended', false);
    end loop;
    if not v_any then
        return coalesce(forebay._key_state_in(p_key, null, null), 'ended');
    end if;
    return case when not v_waiting then 'ended' when v_ended then 'running' else 'waiting' end;
end
$$;


-- functions/unique/states.sql

-- The states of one job in two groups, merged: n not read, ? not known, else as forebay._key_state().
create function forebay._merged_key_state(p_one text, p_other text) returns text
language sql immutable
as $$
    select case when p_one is null or p_one = 'n' then p_other
                when p_other in ('n', p_one) then p_one
                when p_one = '?' or p_other = '?' then '?'
                else 'running' end
$$;


-- States of the jobs of many generations, as in forebay._key_state(), in the order of the generations. A generation may be null:
-- ended. A throttle waits until its period is over.
--
-- In each lane with many of them, the batches of all are searched together by their highest numbers, which only rise. A batch
-- that contains the number has disposed of it; for all other numbers forebay._key_state() decides.
create function forebay._key_states_of(p_keys forebay.unique_key[]) returns text[]
language plpgsql stable
as $$
declare
    v_now      constant timestamptz := forebay._now();
    v_archived constant bigint := forebay._archived_below();
    v_key_states   text[] := array_fill(null::text, array[cardinality(p_keys)]);
    v_lane     record;
    v_newest   record;
    v_row      record;
    v_key      forebay.unique_key;
    v_places   bigint[];
    v_seqs     bigint[];
    v_lo       bigint;
    v_step     bigint;
    v_nos      bigint[];
    v_highs    bigint[];
    v_place    integer := 0;
begin
    for v_lane in
        select l.queue, l.lane, g.group_id, g.start_after
        from (select k.queue, k.lane from unnest(p_keys) k
              where not k.is_deferred and k.mode <> 't' group by 1, 2 having count(*) >= 8) l
        left join forebay.queue_group g on g.queue = l.queue
    loop
        select b.no, b.high_seq, b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq into v_newest
        from forebay.batch b left join forebay.segment s on s.segment_id = b.pos_segment
        where b.group_id = v_lane.group_id and b.lane = v_lane.lane order by b.no desc limit 1;
        v_places := '{}';
        v_seqs := '{}';
        for v_row in
            select k.ordinality as place, k.job_id,
                   case when pg_visible_in_snapshot(k.xid, v_lane.start_after) then 'n'
                        when k.job_id < v_archived or forebay._is_moved(k.job_id, v_lane.group_id, k.job_id) then '?'
                        when v_newest.high_seq >= k.job_id
                             and forebay._is_consumed(k.xid, k.job_id, v_newest.snap_from, v_newest.snap_to, v_newest.lo, v_newest.hi,
                                                      v_newest.pos_xid, v_newest.pos_seq) then null
                        when k.expires_at <= v_now
                             or exists (select from forebay.tombstone t
                                        where t.job_id = k.job_id and t.reason <> 'k'
                                          and (t.group_id is null or t.group_id = v_lane.group_id)) then 'ended'
                        else 'waiting' end as key_state
            from unnest(p_keys) with ordinality k
            where k.queue = v_lane.queue and k.lane = v_lane.lane and not k.is_deferred and k.mode <> 't'
        loop
            if v_row.key_state is null then
                v_places := v_places || v_row.place;
                v_seqs := v_seqs || v_row.job_id;
            else
                v_key_states[v_row.place] := forebay._merged_key_state(v_key_states[v_row.place], v_row.key_state);
            end if;
        end loop;
        continue when cardinality(v_places) = 0;

        -- A batch before all of them, searched backwards from the newest one; then some between, evenly.
        v_lo := v_newest.no;
        v_step := 1;
        loop
            v_lo := greatest(v_lo - v_step, 0);
            exit when not exists (select from forebay.batch b
                                  where b.group_id = v_lane.group_id and b.lane = v_lane.lane and b.no = v_lo
                                    and b.high_seq >= (select min(q) from unnest(v_seqs) q));
            v_step := v_step * 2;
        end loop;
        select array_agg(m.no), array_agg(m.high_seq) into v_nos, v_highs
        from (select b.no, b.high_seq
              from generate_series(v_lo + 1, v_newest.no, 1 + (v_newest.no - v_lo) / 256) n,
                   lateral (select b.no, b.high_seq from forebay.batch b
                            where b.group_id = v_lane.group_id and b.lane = v_lane.lane and b.no = n offset 0) b
              order by b.no) m;
        v_nos := v_lo || v_nos || v_newest.no;
        v_highs := 0::bigint || v_highs || v_newest.high_seq;

        for v_row in
            with recursive sought (place, seq, lo, hi) as (
                select q.place, q.seq, v_nos[q.bucket], v_nos[q.bucket + 1]
                from (select u.place, u.seq, width_bucket(u.seq - 1, v_highs) as bucket
                      from unnest(v_places, v_seqs) u (place, seq) offset 0) q
                union all
                select q.place, q.seq,
                       case when b.high_seq >= q.seq then q.lo else (q.lo + q.hi) / 2 end,
                       case when b.high_seq >= q.seq then (q.lo + q.hi) / 2 else q.hi end
                from sought q
                left join lateral (select b.high_seq from forebay.batch b
                                   where b.group_id = v_lane.group_id and b.lane = v_lane.lane and b.no = (q.lo + q.hi) / 2
                                   offset 0) b on true
                where q.hi - q.lo > 1)
            select q.place,
                   case when f.at is not null and b.is_whole then 'ended'
                        when f.at is not null then coalesce((
                            select case when coalesce(s.outcomes[array_position(s.offsets, f.at)], 'd') in ('d', 'c', 'x', 'y') then 'ended' else '?' end
                            from forebay.settlement s
                            where s.lease_id = b.lease_id and s.claim_no = b.claim_no and f.at = any (s.offsets) limit 1), 'running')
                        when b.skipped_as[array_position(b.skipped, q.seq)] in ('c', 'e') then 'ended'
                        else '?' end as key_state
            from (select q.hi as no, array_agg(q.place) as places, array_agg(q.seq) as seqs from sought q
                  where q.hi - q.lo = 1 group by q.hi) n
            cross join lateral (
                select b.lease_id, b.claim_no, b.seqs || '{}'::bigint[] as seqs, b.skipped || '{}'::bigint[] as skipped, b.skipped_as,
                       exists (select from forebay.settlement s
                               where s.lease_id = b.lease_id and s.claim_no = b.claim_no and s.offsets is null) as is_whole
                from forebay.batch b where b.group_id = v_lane.group_id and b.lane = v_lane.lane and b.no = n.no
                offset 0) b
            cross join lateral unnest(n.places, n.seqs) q (place, seq)
            cross join lateral (select array_position(b.seqs, q.seq)::smallint as at offset 0) f
        loop
            v_key_states[v_row.place] := forebay._merged_key_state(v_key_states[v_row.place], v_row.key_state);
        end loop;
    end loop;

    foreach v_key in array p_keys loop
        v_place := v_place + 1;
        if v_key_states[v_place] is null or v_key_states[v_place] in ('?', 'n') then
            v_key_states[v_place] := case when v_key.gen is null or v_key_states[v_place] = 'n' then 'ended'
                                      when v_key.mode <> 't' then forebay._key_state(v_key)
                                      when v_key.free_at > v_now then 'waiting' else 'ended' end;
        end if;
    end loop;
    return v_key_states;
end
$$;


-- functions/unique/take_keys.sql

-- What a call does about a key: keep the existing job, join it, or make a generation.
create function forebay._key_action(p_code "char", p_state text) returns text
language sql immutable
as $$
    select case when p_state <> 'ended' and p_code in ('o', 'i', 't') then 'keep'
                when p_state = 'waiting' and p_code = 'c' then 'join'
                else 'make' end
$$;


-- Append generations, one after the other, up to the first one that another transaction has made meanwhile, or until the states
-- read for their keys are too old; returns their jobs' numbers. None is made after one that was not, so a call always takes the
-- first of its keys. The first generation is tried whatever the time.
--
-- The number made is in a setting of the transaction, forebay.taken, which each written row advances; a row is processed only
-- when all before it were written. If the server did not work row by row, it would make fewer, and none out of order.
create function forebay._make_generations(p_keys forebay.unique_key[], p_until timestamptz) returns bigint[]
language plpgsql volatile
as $$
declare
    v_job_ids bigint[];
begin
    perform set_config('forebay.taken', '0', true);
    with made as (
        insert into forebay.unique_key (
            queue, mode, key, gen, lane, is_deferred, taken_at, expires_at, free_at, first_at, payload, origin)
        select k.queue, k.mode, k.key, k.gen, k.lane, k.is_deferred, k.taken_at, k.expires_at, k.free_at, k.first_at, k.payload, k.origin
        from unnest(p_keys) with ordinality k
        where k.ordinality - 1 = current_setting('forebay.taken')::bigint and (k.ordinality = 1 or clock_timestamp() < p_until)
        on conflict do nothing
        returning job_id, set_config('forebay.taken', (current_setting('forebay.taken')::bigint + 1)::text, true))
    select coalesce(array_agg(m.job_id), '{}') into v_job_ids from made m;
    return v_job_ids;
end
$$;


-- Do for many different keys at once what forebay._enqueue_unique() does for one: read, lock, read again, append. Returns the
-- results of the first keys, up to one that another transaction took first, or that was not taken within a quarter of a second
-- after the read: a key before it had to wait, and the states of the others may have changed. New jobs are not written yet.
--
-- Errors: JQ005 naming the job by its index.
create function forebay._take_keys(p_items forebay._key_input[]) returns forebay._key_taken[]
language plpgsql volatile
set enable_bitmapscan = off
as $$
declare
    v_now    timestamptz;
    v_until  timestamptz;
    v_lasts  forebay.unique_key[];
    v_key_states text[];
    v_later  text[];
    v_taken  forebay._key_taken[];
    v_cut    bigint;
    v_make   record;
    v_made   bigint[];
    v_row    record;
begin
    v_lasts := array(
        select k.last from unnest(p_items) with ordinality i
        left join lateral (select u as last from forebay.unique_key u
                           where u.queue = i.its_queue and u.mode = i.code and u.key = i.word
                           order by u.gen desc limit 1) k on true
        order by i.ordinality);
    v_key_states := forebay._key_states_of(v_lasts);
    v_now := forebay._now();  -- Not before the read: a period counts from the job for which it was over.
    v_until := clock_timestamp() + interval '250 ms';
    for v_row in
        select k.nr, k.word, k.job_id from unnest(p_items, v_lasts, v_key_states) k where k.code = 'i' and k.unnest <> 'ended' and k.digest <> k.payload
    loop
        perform forebay._raise_differs(v_row.word, v_row.job_id, format('job %s: ', v_row.nr - 1));
    end loop;

    -- Lock the predecessors, so that maintenance keeps them.
    select coalesce(min(k.ordinality), cardinality(p_items) + 1) into v_cut
    from (select i.* from unnest(p_items, v_lasts, v_key_states) with ordinality i
          where i.gen is not null and forebay._key_action(i.code, i.unnest) = 'make' offset 0) k
    left join lateral (select true as is_held from forebay.unique_key u
                       where u.queue = k.queue and u.mode = k.mode and u.key = k.key and u.gen = k.gen for key share) h on true
    where h.is_held is null;
    -- Join, so that the claim notices, and read again.
    if exists (select from unnest(p_items, v_key_states) i where forebay._key_action(i.code, i.unnest) = 'join') then
        select least(v_cut, min(k.ordinality)) into v_cut
        from (select i.* from unnest(p_items, v_lasts, v_key_states) with ordinality i
              where forebay._key_action(i.code, i.unnest) = 'join' offset 0) k
        left join lateral (select true as is_held from forebay.unique_key u
                           where u.queue = k.queue and u.mode = k.mode and u.key = k.key and u.gen = k.gen for share) h on true
        where h.is_held is null;
        v_later := forebay._key_states_of(v_lasts);
        select least(v_cut, min(s.nr)) into v_cut
        from unnest(array(select forebay._key_action(i.code, i.unnest) from unnest(p_items, v_key_states) i), v_later)
             with ordinality s (action, later, nr)
        where s.action = 'join' and s.later <> 'waiting';
    end if;

    v_taken := array(select row(k.job_id, false, null, null)::forebay._key_taken from unnest(v_lasts) with ordinality k order by k.ordinality);
    select coalesce(array_agg(m.ordinality), '{}') as places, array_agg(m.start) as starts,
           array_agg(case when m.key_state <> 'ended' then m.job_id end) as gone,
           array_agg(row(null, m.its_queue, m.code, m.word, m.next, null, m.its_lane, coalesce(m.start > v_now, false), v_now,
                         coalesce(m.ends, greatest(m.start, v_now) + interval '30 days'),
                         case when m.code = 't' then v_now + make_interval(secs => forebay._unique_seconds(m.unique_as, 'period')) end,
                         m.first, m.digest, case when m.key_state = 'running' then m.gen else m.next end)::forebay.unique_key) as keys
    into v_make
    from (select k.ordinality, k.its_queue, k.code, k.word, k.unique_as, k.its_lane, k.ends, k.digest, k.gen, k.job_id, k.key_state, k.first,
                 coalesce(k.gen, 0) + 1 as next,
                 case when k.code <> 'd' then k.start
                      else least(v_now + make_interval(secs => forebay._unique_seconds(k.unique_as, 'wait')),
                                 k.first + make_interval(secs => forebay._unique_seconds(k.unique_as, 'max_wait'))) end as start
          from (select i.*, i.unnest as key_state,
                       case when i.code <> 'd' then null when i.unnest = 'waiting' then i.first_at else v_now end as first
                from unnest(p_items, v_lasts, v_key_states) with ordinality i) k
          where k.ordinality < v_cut and forebay._key_action(k.code, k.key_state) = 'make'
          order by k.ordinality) m;
    if cardinality(v_make.places) > 0 then
        v_made := forebay._make_generations(v_make.keys, v_until);
        v_cut := coalesce(v_make.places[cardinality(v_made) + 1], v_cut);
        if clock_timestamp() >= v_until and cardinality(v_made) > 0 then
            v_cut := v_make.places[cardinality(v_made)] + 1;  -- The last one waited: so do all after it, also those not to be made.
        end if;
        for v_row in select m.* from unnest(v_make.places, v_made, v_make.starts) m (place, job_id, start) where m.job_id is not null loop
            v_taken[v_row.place] := row(v_row.job_id, true, v_now, v_row.start)::forebay._key_taken;
        end loop;
        insert into forebay.tombstone (job_id, reason, recorded_at)
        -- Whatever the state of the predecessors, they do not start again.
        select g.job_id, 'r'::"char", v_now from unnest(v_make.gone, v_made) g (job_id, made) where g.made is not null and g.job_id is not null
        union all
        select k.unnest, 'k', v_now from unnest(v_make.keys, v_made) k where k.unnest is not null and k.mode = 'c';
        perform forebay._withdraw(array(select g.job_id from unnest(v_make.gone, v_made) g (job_id, made) where g.made is not null and g.job_id is not null));
    end if;
    return v_taken[1 : v_cut - 1];
end
$$;


-- functions/unique/throttled.sql

-- grant: producer, reader

-- The jobs that hold throttle keys of a queue: a row for each key that has one, with the newest job. A key is there until a day after
-- its period, whatever became of the job.
--
-- Parameters: keys, at most 10,000 in one call are wise.
-- Errors: none.
-- pages: 20 + 4 a key
create function forebay.throttled(queue text, keys text[])
returns table (key text, job_id bigint)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
    select k.key, u.job_id
    from unnest(throttled.keys) k (key)
    cross join lateral (select i.job_id from forebay.unique_key i
                        where i.queue = throttled.queue and i.mode = 't' and i.key = k.key
                        order by i.gen desc limit 1) u
$$;


-- functions/unique/trim.sql

-- Delete generations that are no longer needed: superseded or ended, and older than a day; those of a throttle a day after their period.
--
-- The newest of a key is deleted only when no transaction has it locked: see forebay._enqueue_unique().
create function forebay._trim_unique_keys(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_before constant timestamptz := forebay._now() - interval '1 day';
    v_ctids tid[];
    v_key   forebay.unique_key;
    v_at    timestamptz;
    v_job   bigint;
begin
    rows := 0;
    select array_agg(u.ctid), max(u.at), (array_agg(u.job_id order by u.at desc, u.job_id desc))[1] into v_ctids, v_at, v_job
    from (select i.ctid, coalesce(i.free_at, i.taken_at) as at, i.job_id from forebay.unique_key i
          where coalesce(i.free_at, i.taken_at) < v_before
            and (coalesce(i.free_at, i.taken_at), i.job_id) > (coalesce((p_after::jsonb ->> 0)::timestamptz, '-infinity'), coalesce((p_after::jsonb ->> 1)::bigint, 0))
          order by coalesce(i.free_at, i.taken_at), i.job_id limit p_most) u;
    for v_key in select u.* from forebay.unique_key u where u.ctid = any (v_ctids) for update skip locked loop
        if exists (select from forebay.unique_key u
                   where u.queue = v_key.queue and u.mode = v_key.mode and u.key = v_key.key and u.gen > v_key.gen) then
            continue when exists (
                select from forebay.unique_key u
                where u.queue = v_key.queue and u.mode = v_key.mode and u.key = v_key.key
                  and u.gen > v_key.gen and u.origin <= v_key.gen);
        else
            continue when forebay._key_state(v_key) <> 'ended';
        end if;
        delete from forebay.unique_key u
        where u.queue = v_key.queue and u.mode = v_key.mode and u.key = v_key.key and u.gen = v_key.gen;
        rows := rows + 1;
    end loop;
    next := case when cardinality(v_ctids) >= p_most then jsonb_build_array(v_at, v_job) end;
end
$$;


-- functions/version/schema_version.sql

-- grant: worker, operator, reader

-- The version of the schema: the number of its newest migration; null when none is recorded.
create function forebay.schema_version() returns integer
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$ select max(m.version) from forebay.schema_migration m $$;


-- functions/version/upgrade.sql

-- Raise while a worker of an older version lives. A migration calls it that removes what such workers call.
--
-- Invariant "deployed code keeps working" (docs/design/upgrades.md). Until the caller's transaction ends no lease is opened or
-- closed: a worker that starts meanwhile waits, and forebay.open_lease_v1() then refuses it. Claims and settlements continue.
--
-- Parameters: p_version, of the migration.
-- Errors: JQ020, with the workers; 55P03 when the lock is not granted within lock_timeout.
-- Locks: SHARE on the leases.
create function forebay._require_gone(p_version integer) returns void
language plpgsql volatile
as $$
declare
    v_count   bigint;
    v_workers text;
begin
    lock table forebay.lease in share mode;
    select count(*), string_agg(o.line, E'\n' order by o.nr) filter (where o.nr <= 20) into v_count, v_workers
    from (select row_number() over (order by l.opened_at) as nr,
                 format('%s, made for version %s', l.worker, coalesce(l.version::text, 'unknown')) as line
          from forebay.lease l
          left join lateral (select b.heartbeat_at from forebay.heartbeat b
                             where b.lease_id = l.lease_id order by b.heartbeat_at desc limit 1) h on true
          left join lateral (select b.claimed_at from forebay.batch b
                             where b.lease_id = l.lease_id order by b.claim_no desc limit 1) c on true
          where l.closed_at is null and (l.version < p_version) is not false
            and greatest(l.opened_at, h.heartbeat_at, c.claimed_at) > forebay._now() - make_interval(secs => l.lease_seconds)) o;
    if v_count > 0 then
        raise exception using errcode = 'JQ020',
            message = format('%s of an older version still %s: migration %s removes what they call',
                             case v_count when 1 then '1 worker' else v_count || ' workers' end,
                             case v_count when 1 then 'runs' else 'run' end, p_version),
            detail = v_workers,
            hint = 'Run forebay migrate again when they have ended, or use --wait.';
    end if;
end
$$;


-- Move a function out of the way of a new one with more parameters, for a pre migration: calls that have begun continue
-- with the old one, later ones find the new one. A post migration drops it there.
--
-- If it were dropped at once, running statements would miss it; under another name its body would not know its
-- own parameters; beside the new one, calls would be ambiguous.
create function forebay._set_aside(p_function regprocedure) returns void
language plpgsql volatile
as $$
begin
    create schema if not exists forebay_set_aside;
    revoke all on schema forebay_set_aside from public;
    execute format('alter function %s set schema forebay_set_aside', p_function);
end
$$;


-- first_rows.sql

-- The first rows of a new schema: its secret, its database, the grants, and segments, so that the first enqueue can write.

-- gen_random_uuid() draws from a cryptographic source: 122 bits, of which the first and the last 32 have no fixed ones.
select setval('forebay.lane_secret', ('x' || left(u.id, 8) || right(u.id, 8))::bit(64)::bigint & -2)
from (select gen_random_uuid()::text as id offset 0) u;

-- No lane was retired yet.
select setval('forebay.lane_horizon', 1);

insert into forebay.cluster (system_identifier, database_oid)
select i.system_identifier, i.database_oid from forebay._identity() i;

-- The sinks of the library. A test compares them with their classes.
insert into forebay.sink_type (name, settings, required, is_ours) values
    ('celery', '{url,queue,tasks,app,connect_timeout}', '{}', true),
    ('dramatiq', '{url,queue,tasks,namespace,max_priority,connect_timeout}', '{url}', true),
    ('forebay', '{url,queue,kinds,remember_days,connect_timeout}', '{url}', true),
    ('http', '{url,method,headers,auth,secrets,batch,cloudevents,source,concurrency,connect_timeout,timeout,response_bytes_max,show_response,ca_file,proxy,destinations}', '{url}', true),
    ('kafka', '{url,topic,create,sasl_mechanism,connect_timeout,delivery_timeout,options}', '{url,topic}', true),
    ('nats', '{url,subject,stream,ack_timeout,connect_timeout}', '{url,subject}', true),
    ('rabbitmq', '{url,routing_key,exchange,persistent,confirm_timeout,connect_timeout,heartbeat}', '{url,routing_key}', true),
    ('redis-list', '{url,key,connect_timeout}', '{url,key}', true),
    ('redis-stream', '{url,stream,maxlen,create,connect_timeout}', '{url,stream}', true),
    ('rq', '{url,queue,tasks,serializer,job_timeout,result_ttl,failure_ttl,connect_timeout}', '{url}', true),
    ('sqs', '{queue_url,region,endpoint_url,profile,requests,connect_timeout,read_timeout}', '{queue_url}', true);
insert into forebay.event_type (name, description, created_at)
values ('forebay.endpoint_failing', 'An endpoint fails and will be disabled: endpoint, percent of the time until then, since, error.', forebay._now());

select forebay._grant();

select forebay.extend_v1();


select set_config('check_function_bodies', current_setting('forebay.check_function_bodies_before'), true),
       set_config('quote_all_identifiers', current_setting('forebay.quote_all_identifiers_before'), true);
