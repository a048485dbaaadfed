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
    unique_key     text,
    errors         jsonb not null,       -- oldest first
    redriven_at    timestamptz,
    redriven_as    bigint,               -- job_id of the new job
    cause          text collate "C" not null default '',  -- see forebay._cause()
    place          text,                 -- the innermost function of the application that raised the last error; null: unknown
    holds_key      boolean not null default false,  -- later jobs of its ordering key wait for it, or for the job it was redriven as
    check ((redriven_at is null) = (redriven_as is null)),
    -- include: job_columns
);
create index dead_letter_by_job on forebay.dead_letter (job_id);
create index dead_letter_by_new_job on forebay.dead_letter (redriven_as) where redriven_as is not null;
create index dead_letter_by_queue on forebay.dead_letter (queue, died_at);
create index dead_letter_holding on forebay.dead_letter (group_id, ordering_key) where holds_key;
create index dead_letter_by_cause on forebay.dead_letter (cause, died_at);
-- The limit key of a delivery is the name of its endpoint.
create index dead_letter_by_endpoint on forebay.dead_letter (limit_key, died_at) where queue = 'forebay.deliver' and redriven_at is null;

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
    endpoint   text collate "C" not null default '',  -- of deliveries; empty: no delivery
    primary key (died_on, queue, kind, reason, error_type, endpoint)
);
