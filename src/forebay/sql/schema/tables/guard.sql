-- The guard's acts: whose transaction it ended, when, and what came of it.

-- One row for each act, written and committed before the act. outcome is filled in afterwards; a row without one
-- is an act of a guard that was stopped in between, so that it may have happened or not.
create table forebay.guard_event (
    event_id      bigint generated always as identity primary key,
    at            timestamptz not null,
    acted_as      text not null,         -- the login role the guard ran as
    server        text not null,         -- leader, or which replica
    action        text not null check (action in ('cancel', 'terminate', 'rollback prepared')),
    holder        text not null,         -- session, idle in transaction, handler, prepared transaction
    name          text not null,         -- pid, or global transaction id
    user_name     text,
    application   text,
    database_name text,
    state         text,
    xact_start    timestamptz,
    seconds       double precision,      -- how old the transaction was
    age           bigint,                -- and how many were begun since
    reason        text not null,
    query         text,                  -- its last statement, the first 200 characters
    outcome       text,                  -- ended, still there, gone before, or what the server said
    outcome_at    timestamptz,
    check ((outcome is null) = (outcome_at is null))
);
create index guard_event_by_time on forebay.guard_event (at);

comment on table forebay.guard_event is 'Transactions that forebay guard ended, or tried to; kept as long as errors of jobs.';
