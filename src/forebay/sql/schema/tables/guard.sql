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
