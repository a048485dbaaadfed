-- Counters of the jobs that wait: of depth(), and of max_waiting, which enqueues check while no worker runs, too. A row is a count.
--
-- A count holds for a queue, a group and a snapshot. Rows that are visible now and were not visible then are added; jobs that the
-- newest batches handed out or skipped are subtracted. Counts are appended and read newest first; no count is updated.
-- See docs/design/backpressure.md.
create sequence forebay.counter_waiting_seq as bigint cache 1;


-- A keyed lane when it was counted: its rows in front of the cursor, the lowest number that one of them may have, and the cursor.
create type forebay._waiting_keyed as (lane bigint, unread bigint, low bigint, at forebay._cursor);

create table forebay.counter_waiting (
    queue      text not null,
    group_id   bigint not null,            -- 0: the queue has no group yet
    no         bigint not null default nextval('forebay.counter_waiting_seq'),
    oldest     xid8 not null,              -- the oldest transaction that may be missing in snap
    seq        bigint not null,            -- the last number drawn before the snapshot, in the log and in deferred
    deferred_seq bigint not null,
    snap       pg_snapshot not null,
    counted_at timestamptz not null,
    waiting    bigint not null,            -- the sum: how many jobs waited
    consumed   bigint not null,            -- how many jobs the batches of plain lanes had handed out or skipped
    priorities integer[] not null,         -- the following ones belong together:
    totals     bigint[] not null,          --   jobs appended to plain lanes, less those moved or expired before a claim
    scheduled  bigint[] not null,          --   scheduled rows of deferred that were not promoted, with those of cancelled jobs
    retrying   bigint[] not null,
    keyed      forebay._waiting_keyed[] not null
);
-- The count that is read is the one with the newest snapshot: a transaction with an old snapshot may append its count late.
create unique index counter_waiting_newest on forebay.counter_waiting (queue, group_id, oldest desc, no desc);
-- Not the whole row: a subscriber cannot compare snapshots.
alter table forebay.counter_waiting replica identity using index counter_waiting_newest;

-- Rows that left their place in another way than through a claim. Counts whose snapshot does not show this row subtract its jobs.
-- Arrays belong together.
create table forebay.counter_change (
    xid        xid8 not null default pg_current_xact_id(),
    queue      text not null,
    group_id   bigint,                   -- of ready jobs
    priorities integer[] not null,
    audiences  bigint[] not null,
    states     "char"[] not null,        -- s scheduled, r retrying: promoted or moved. w, a: ready, moved or expired before a claim; a with an ordering key
    row_xids   xid8[] not null,          -- of deferred rows: a count that does not show this transaction never counted the row
    jobs       integer[] not null,
    -- For the totals in forebay.counter; null where these need nothing:
    kinds      text[],
    tags       text[],
    why        "char",                   -- of ready jobs: e expired, m moved to a newer row
    segment_id bigint                    -- of the row of a ready job
);
create index counter_change_by_xid on forebay.counter_change (queue, xid);
alter table forebay.counter_change replica identity full;

-- Jobs that were cancelled, replaced or debounced while they were scheduled or retrying. Their rows of deferred remain until they are due.
create table forebay.withdrawn (
    xid         xid8 not null default pg_current_xact_id(),
    queue       text not null,
    priority    integer not null,
    audience    bigint not null,         -- of the row's lane
    group_id    bigint,                  -- null: for every group
    state       text not null check (state in ('scheduled', 'retrying')),
    row_xid     xid8 not null,
    run_at      timestamptz not null,
    deferred_id bigint not null,
    kind        text not null,
    tag         text
);
create index withdrawn_by_time on forebay.withdrawn (queue, run_at, deferred_id);
create index withdrawn_by_xid on forebay.withdrawn (queue, xid);
create index withdrawn_to_trim on forebay.withdrawn (run_at, deferred_id);
alter table forebay.withdrawn replica identity full;

-- Rows of the log whose jobs were cancelled or replaced: while they are in front of a cursor, or parked for their limit key, their jobs are
-- not ready. A row has up to 1,000 of them, of one lane, kind, tag and limit key, in the order of their numbers.
create table forebay.counter_cancelled (
    queue     text not null,
    lane      bigint not null,
    group_id  bigint,                    -- null: for every group
    kind      text not null,
    tag       text,
    limit_key text,
    jobs      integer not null,
    low       bigint not null,           -- the first and the last number
    high      bigint not null,
    oldest    xid8 not null,             -- the lowest and the highest transaction
    newest    xid8 not null,
    xids      xid8[] not null,           -- these belong together
    seqs      bigint[] not null
);
create index counter_cancelled_by_lane on forebay.counter_cancelled (queue, lane, low);
alter table forebay.counter_cancelled replica identity full;


-- What is counted: a queue and a group, with the last count, and the transactions whose rows it does not have.
create type forebay._waiting_base as (
    nr bigint, queue text, group_id bigint, group_name text, start pg_snapshot, no bigint, snap pg_snapshot, priorities integer[], totals bigint[],
    scheduled bigint[], retrying bigint[], keyed forebay._waiting_keyed[], ranges forebay._xid_range[]);

-- A lane of it: what its newest batch has handed out and skipped, the cursor and the highest number behind it; for a keyed lane, what
-- was counted before.
create type forebay._waiting_lane as (
    nr bigint, base bigint, priority integer, audience bigint, is_keyed boolean, consumed bigint, cursor forebay._cursor, high_seq bigint,
    before forebay._waiting_keyed);

-- Rows that were found in a lane, how many of them are the caller's own, and the lowest number of the others.
create type forebay._waiting_rows as (nr bigint, jobs bigint, own bigint, low bigint);

-- A group and a lane with cancelled rows, and the group's cursor there.
create type forebay._cancelled_place as (queue text, lane bigint, priority integer, group_id bigint, cursor forebay._cursor);
