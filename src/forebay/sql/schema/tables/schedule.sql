-- Schedules, and the instants that were decided. See docs/design/schedules.md.

create table forebay.schedule (
    schedule_id      bigint generated always as identity primary key,
    name             text collate "C" not null unique,
    kind             text not null,              -- of the jobs, also the following
    args             jsonb not null,
    queue            text,                       -- null: forebay.queue_of() the kind, or default
    priority         integer not null,
    options          jsonb not null,             -- {options but ordering_key}, expires_in (seconds)
    cron             text,                       -- five fields, or six with seconds
    every            interval,                   -- exactly one of the two; whole seconds
    tz               text not null,
    starts_at        timestamptz not null,       -- no instant before it; intervals count from it
    jitter           interval not null,          -- a job starts up to this much after its instant
    overlap          text not null check (overlap in ('allow', 'skip', 'queue', 'cancel', 'replace')),
    missed           text not null check (missed in ('skip', 'latest', 'all')),
    catch_up         interval not null,
    missed_max       integer not null,
    pause_on_failure boolean not null,
    declared_by      text,                       -- the application; null: made by hand
    declared         jsonb,                      -- what it declared
    vanished_at      timestamptz,                -- since then the application does not declare it any more; null: it does
    paused_at        timestamptz,                -- null: not paused
    pause_note       text,
    problem          text,                       -- why a scheduler cannot use it; null: it can
    created_at       timestamptz not null,
    revision         integer not null,           -- rises with each change but the following two
    decided_to       timestamptz not null,       -- all instants up to this one are decided
    decisions        bigint not null,            -- number of rows of occurrence that it has had
    constraint schedule_is_timed check (num_nonnulls(cron, every) = 1)
) with (fillfactor = 50);

comment on table forebay.schedule is 'Schedules; change them with forebay.create_schedule() and its relatives.';

-- Decided instants. Maintenance deletes old ones, never one at or after decided_to of its schedule.
create table forebay.occurrence (
    schedule_id   bigint not null references forebay.schedule on delete cascade,
    scheduled_for timestamptz not null,
    occurrence    bigint not null,               -- its number among the decisions of the schedule, from 1
    status        text not null check (status in ('enqueued', 'skipped', 'missed', 'manual', 'backfilled')),
    instants      bigint not null default 1,     -- a row with status missed counts also instants before it
    job_id        bigint,                        -- null: no job
    reason        text,
    is_open       boolean not null default false,  -- the job may not have ended, and the next decision looks at it
    decided_at    timestamptz not null,
    constraint occurrence_pkey primary key (schedule_id, scheduled_for)
);
create index occurrence_open on forebay.occurrence (schedule_id, scheduled_for) where is_open;
