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
