-- Backfills in chunks, and those that were begun with a token. A chunk is a range of the key, fixed when the backfill begins. The transaction that enqueues the jobs of
-- a chunk also marks the chunk done.
create table forebay.backfill (
    backfill_id bigint primary key,      -- random
    made_at     timestamptz not null,
    made_by     name not null,           -- only this login may continue it,
    made_as     name not null,           -- and only in this role: the query runs with its rights
    kind        text not null,
    query       text not null,
    options     jsonb not null,
    key         text,                    -- a column of the query; null: enqueued in one statement
    is_fixed    boolean not null,        -- begun with a token: a chunk whose jobs differ from those counted is refused
    jobs        bigint not null,         -- counted at the beginning, by the caller
    token       text unique              -- with which it was begun: each call with it means this backfill
);

create table forebay.backfill_chunk (
    backfill_id bigint not null references forebay.backfill on delete cascade,
    no          integer not null,        -- from 1
    upto        text not null,           -- last key of the chunk; the chunk begins after the last key of the previous one
    jobs        bigint not null,         -- counted at the beginning
    digest      numeric not null,
    enqueued    bigint,                  -- counted by what wrote them
    done_at     timestamptz,
    primary key (backfill_id, no),
    check (done_at is null or enqueued is not null)
);

comment on table forebay.backfill is 'Backfills in chunks or with a token; forebay.backfill_chunk has their progress.';
