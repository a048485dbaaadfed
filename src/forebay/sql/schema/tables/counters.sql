-- Counters of jobs by group, queue, priority, kind and tag; those of waiting jobs are in counters_waiting.sql. See docs/design/counters.md.
--
-- They are folded from the rows that enqueues, claims, settlements and promotions append. The newest row of counter_fold of a group
-- says which rows are folded; a read adds the others. Rows are appended and read newest first; none is updated, but a cell gets its place.


-- A batch that was not settled as a whole when it was folded, and the settlements of it that were.
create type forebay._counter_open as (lease_id bigint, claim_no bigint, flushes integer[]);

create table forebay.counter_fold (
    group_id  bigint not null,
    no        bigint not null,
    snap      pg_snapshot not null,      -- rows of the log, of deferred and of counter_change that it shows are folded
    folded_at timestamptz not null,
    lanes     bigint[] not null,         -- in each of these lanes
    nos       bigint[] not null,         --   the batches up to this number are folded
    open      forebay._counter_open[] not null,
    primary key (group_id, no)
);

-- What is counted apart from each other. A group has at most forebay._counter_cells() of them: further kinds and tags count together, as
-- the kind '' without a tag.
create table forebay.counter_cell (
    cell_id  bigint generated always as identity primary key,
    group_id bigint not null,
    queue    text not null,
    priority integer not null,
    kind     text not null,
    tag      text,
    -- Among the label sets of the metrics by tag, from 1. Below 0: there was no free one when metric_label_sets was that number. Null: no fold has looked.
    place    integer,
    constraint counter_cell_key unique nulls not distinct (group_id, priority, kind, tag)
);
create index counter_cell_by_place on forebay.counter_cell (place) where kind <> '';

-- The totals of a cell up to a fold, in the order of forebay.counter_event.
create table forebay.counter (
    cell_id    bigint not null,
    segment_id bigint not null,          -- of rows in this segment of the log; -1: all; -2: those in segments that were emptied
    no         bigint not null,
    counted_at timestamptz not null,
    totals     bigint[] not null,
    primary key (cell_id, segment_id, no)
);

-- Totals at the beginning of a minute or an hour, of cells that had changed. The rows of forebay.counter are those of the seconds.
create table forebay.counter_sample (
    step    text collate "C" not null check (step in ('minute', 'hour')),
    cell_id bigint not null,
    at      timestamptz not null,
    totals  bigint[] not null,
    primary key (step, cell_id, at)
);
create index counter_sample_by_time on forebay.counter_sample (step, at);
create index counter_by_time on forebay.counter (counted_at) where segment_id = -1;

-- The elements of counter.totals. Elements 18 to 37 and 38 to 57 are histograms of waits and durations.
create view forebay.counter_event (element, name) as values
    (1, 'arrived'), (2, 'enqueued'), (3, 'handed'), (4, 'done'), (5, 'failed'), (6, 'dead'), (7, 'expired'), (8, 'cancelled before a claim'),
    (9, 'cancelled after a claim'), (10, 'snoozed'), (11, 'released'), (12, 'lost'), (13, 'requeued'), (14, 'moved'), (15, 'scheduled'), (16, 'retrying'),
    (17, 'milliseconds waited'), (58, 'milliseconds run');

-- A group whose counters are read: the last fold, and the transactions that have ended since.
create type forebay._counter_base as (
    nr bigint, queue text, group_id bigint, group_name text, start pg_snapshot, no bigint, snap pg_snapshot, folded_at timestamptz,
    open forebay._counter_open[], ranges forebay._xid_range[]);

-- A lane of it: the transactions whose rows of the log are not folded, and the first and the last batch to read.
create type forebay._counter_lane as (
    base bigint, group_id bigint, lane bigint, priority integer, ranges forebay._xid_range[], no bigint, last_no bigint);

-- What is to be added to a cell. segment_id -1: to no segment. A negative event is that of a scheduled job that was withdrawn: it is shown and not folded.
create type forebay._counter_delta as (
    base bigint, segment_id bigint, priority integer, kind text, tag text, event integer, jobs bigint);

-- A batch with news: new itself, or settled since the folds. seqs[1] and seqs[size] with these xids are its first and last job.
create type forebay._counter_batch as (
    nr bigint, base bigint, lane bigint, lease_id bigint, claim_no bigint, flushes integer[], segment integer, size integer, seqs bigint[], xids xid8[], lanes bigint[],
    first_xid xid8, last_xid xid8, first_seq bigint, last_seq bigint, claimed_at timestamptz, is_new boolean, is_whole boolean, millis integer[]);
