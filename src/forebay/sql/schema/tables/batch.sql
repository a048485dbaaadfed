-- Batches: what each claim took. The newest row of a (group, lane) is the cursor of that group in that lane.
create table forebay.batch (
    group_id      bigint not null,
    lane          bigint not null,
    no            bigint not null,       -- dense per (group, lane); lease_id and claim_no name the batch
    lease_id      bigint,                -- null: only moves the cursor
    claim_no      bigint,                -- counted by the worker, never reused
    floor         bigint,                -- oldest claim_no of the lease still open
    snap_from     pg_snapshot not null,
    snap_to       pg_snapshot,           -- null: same as snap_from, the window is used up
    pos_segment   bigint not null,
    pos_xid       xid8 not null,
    pos_seq       bigint not null,
    high_seq      bigint not null,       -- highest number in this and all earlier batches
    handed_total  bigint not null,       -- running totals; with limit keys, of jobs of that priority
    skipped_total bigint not null,
    claimed_at    timestamptz not null,
    seqs          bigint[],              -- jobs handed out, in order: offset 1 is the first
    xids          xid8[],                -- one per seq, or a single one when all are equal
    skipped       bigint[],
    skipped_as    "char"[],              -- named in forebay.code
    lanes         bigint[],              -- lane of each job's row; null: all in the batch's lane
    limit_keys    text[] collate "C",    -- one per seq, in lanes of jobs with limit keys
    -- Only in lanes of jobs with ordering keys:
    keys          text[] collate "C",    -- one per seq
    tails         smallint[],            -- one per seq: the offset of the last job of its key; null: each is the last one of its key
    edge_from     xid8,                  -- transactions that began after this one have numbers above low_from,
    low_from      bigint,                --   and transactions visible in snap_from began before it
    edge_to       xid8,                  -- the same for snap_to
    low_to        bigint,
    parked_no     bigint,                -- last number of forebay.parked when nothing waited for any of the keys; null: something did
    primary key (group_id, lane, no)
);
create unique index batch_by_name on forebay.batch (lease_id, claim_no) where lease_id is not null;
