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
    attempt        integer not null,     -- the last one that ran, from 1; 0: none did
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
