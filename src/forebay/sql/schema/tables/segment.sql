-- Segments: the partitions of the log. Each is a range of seq with its read functions.
create table forebay.segment (
    segment_id bigint primary key,
    lo         bigint not null unique,   -- first number
    hi         bigint not null,          -- first number of the next segment
    created_at timestamptz not null,
    removed_at timestamptz,              -- emptied by retention
    due_at     timestamptz,              -- when retention would have emptied it, had an export not held it back
    check (hi > lo)
);

-- A sealed segment gets no more rows, and all its rows have an xid below `xid`. Appended in order.
create table forebay.seal (
    segment_id bigint primary key,
    xid        xid8 not null,
    sealed_at  timestamptz not null
);
create index seal_by_xid on forebay.seal (xid);
