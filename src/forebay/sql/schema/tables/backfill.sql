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
