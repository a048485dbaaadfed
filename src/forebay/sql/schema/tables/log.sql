-- Tables of the job log. Everything a claim, a settlement or an enqueue touches is append-only:
-- rows are inserted, read newest first, and removed in bulk from behind. See docs/design/engine.md.

-- Numbers of the log. CACHE 1 and never altered: sealing a segment relies on
-- "a transaction with a number below last_value has drawn its xid already".
create sequence forebay.log_seq as bigint cache 1;

-- The log. xid stands before seq on purpose: defaults are evaluated in column order, and a row must draw its transaction id
-- before its number.
create table forebay.log (
    xid            xid8 not null default pg_current_xact_id(),
    seq            bigint not null default nextval('forebay.log_seq'),
    lane           bigint not null,
    enqueued_at    timestamptz not null,
    job_id         bigint,               -- null: the first row of its job, whose id is seq
    expires_at     timestamptz,          -- null: 30 days after enqueued_at
    attempt        integer,              -- attempts used before this row; null: none
    pauses         integer,              -- snoozes and unknown-kind pauses since the last failed attempt; null: none
    unique_key     text,
    ready_at       timestamptz,          -- of a later row of its job: since when it may be claimed; null: a first row, since enqueued_at
    -- include: job_columns
) partition by range (seq);
alter table forebay.log replica identity full;

comment on table forebay.log is
    'Every job, append-only. seq numbers rows; job_id names the job across its retries.';
