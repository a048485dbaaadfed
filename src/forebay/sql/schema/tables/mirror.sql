-- What is known of mirrors: what their passes did, how many jobs waited, which breakers are open, and what audits found.
--
-- All of it is appended; maintenance folds and removes what is old. Counts of a pass are part of the settlement of its jobs: they
-- are there exactly if that is. Invariant "counted with the settlement": docs/design/reconcile.md.

-- What passes and direct writes did. Rows are folded as they grow old: level 0 as they came, 1 by the minute, 2 by the hour,
-- 3 all that is older than retention, at -infinity. The sum over all levels is all that ever happened.
create table forebay.mirror_count (
    mirror     text not null,
    at       timestamptz not null,
    level    smallint not null default 0 check (level between 0 and 3),
    outcome  text not null,
    tag      text,
    priority integer,                    -- null: of no job, as a direct write
    count    bigint not null
);
create index mirror_count_by_time on forebay.mirror_count (mirror, at);
create index mirror_count_by_level on forebay.mirror_count (level, at);

-- How many jobs were due, once a minute while passes run or somebody asks.
create table forebay.mirror_sample (
    mirror    text not null,
    at      timestamptz not null,
    due     bigint not null,             -- without those that are left out of alerts
    due_all bigint not null,
    waiting bigint not null              -- also what is in its grace, or is to be done later
);
create index mirror_sample_by_time on forebay.mirror_sample (mirror, at);

-- Circuit breakers, when they open, fail again and close.
create table forebay.mirror_breaker (
    mirror       text not null,
    at         timestamptz not null,
    who        text not null,            -- the worker, or the process of direct writes
    place      text not null check (place in ('pass', 'direct')),
    open_until timestamptz,              -- null: closed
    why        text
);
create index mirror_breaker_by_time on forebay.mirror_breaker (mirror, at);

-- Audits that ended.
create table forebay.mirror_audit (
    audit_id bigint generated always as identity primary key,
    mirror     text not null,
    ended_at timestamptz not null,
    seconds  double precision not null,
    compared text not null,              -- version or hash
    items    bigint not null,
    copies   bigint not null,
    rows     bigint not null,            -- read of both stores together
    ranges   bigint not null,            -- compared by their checksums
    differed bigint not null,            -- of these
    suspects bigint not null,
    missing  bigint not null,
    stale    bigint not null,
    orphaned bigint not null,
    ahead    bigint not null,
    repaired bigint not null default 0   -- jobs enqueued for what was found
);
create index mirror_audit_by_time on forebay.mirror_audit (mirror, ended_at);

comment on table forebay.mirror_count is 'What synchronisations did, by outcome, tag and priority; read it with forebay.mirror_status().';
