-- Where a search looks: summaries of blocks of the log, see docs/design/archive.md. Maintenance writes them; nothing on the path of a job does.

-- A block: the numbers from lo to below hi of one segment, and what its rows have.
create table forebay.archive_block (
    lo         bigint primary key,
    hi         bigint not null,
    segment_id bigint not null,
    row_count  integer not null,
    first_at   timestamptz,              -- of the enqueueing of its jobs; null: it has no rows
    last_at    timestamptz,
    terms      integer[] not null,       -- see forebay._term()
    check (hi > lo)
);
-- Without a list of pending entries, which each search would read.
create index archive_block_terms on forebay.archive_block using gin (terms) with (fastupdate = off);

-- All rows with numbers below hi have transaction ids below xid, like a seal.
create table forebay.archive_mark (
    hi  bigint primary key,
    xid xid8 not null
);

-- Replays: jobs that are enqueued again, in steps.
create table forebay.job_replay (
    replay_id  bigint primary key,       -- random: clients keep it across transactions
    filter     jsonb not null,
    options    jsonb not null,
    position   bigint not null,          -- rows with numbers below this one were copied, if they match
    until_seq  bigint not null,          -- the number at which it ends
    jobs       bigint not null,          -- copied so far
    redacted   bigint not null,          -- left out so far, because they were erased
    event_id   bigint,
    begun_at   timestamptz not null,
    ended_at   timestamptz,
    token      text unique,              -- with which it was begun: each call with it means this replay
    snapshot   pg_snapshot               -- that of the dry run: only rows that it shows; null: without a token
);

-- Exports that emptying a segment waits for.
create table forebay.export (
    name       text primary key,
    hold_hours integer not null,         -- how long a segment waits for it, from segment.due_at
    created_at timestamptz not null,
    missed     bigint not null,          -- segments that were emptied before it had written them
    missed_at  timestamptz
);

-- What an export has written. Deleted with the segment.
create table forebay.exported_segment (
    name        text not null,
    segment_id  bigint not null,
    exported_at timestamptz not null,
    jobs        bigint not null,         -- lines: one for each ended job and group
    file        text not null,
    primary key (name, segment_id)
);
