-- Backfills in chunks. A chunk is a range of the key, fixed at the beginning, and is done in the transaction that
-- enqueues its jobs.
create table forebay.backfill (
    backfill_id bigint generated always as identity primary key,
    made_at     timestamptz not null,
    made_by     name not null,           -- the query is run again for nobody else
    kind        text not null,
    query       text not null,
    options     jsonb not null,
    key         text not null,           -- a column of the query
    is_fixed    boolean not null,        -- begun with a token: a chunk that has other jobs than counted is refused
    jobs        bigint not null          -- counted at the beginning
);

create table forebay.backfill_chunk (
    backfill_id bigint not null references forebay.backfill on delete cascade,
    no          integer not null,        -- from 1
    upto        text not null,           -- the last key of the chunk; it begins behind that of the chunk before
    jobs        bigint not null,         -- counted at the beginning
    digest      numeric not null,
    enqueued    bigint,
    done_at     timestamptz,
    primary key (backfill_id, no),
    check ((enqueued is null) = (done_at is null))
);

comment on table forebay.backfill is 'Backfills in chunks, and how far they are: forebay.backfill_chunk.';
