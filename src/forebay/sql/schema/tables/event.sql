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
