-- Settlements: how jobs of a batch ended. (lease, claim_no, flush_no) names a flush, so that a flush whose answer was lost can
-- be repeated. A negative flush_no settles the single job at offset -flush_no.
create table forebay.settlement (
    lease_id   bigint not null,
    claim_no   bigint not null,
    flush_no   integer not null,
    settled_at timestamptz not null,
    offsets    smallint[],               -- null: the whole batch
    outcomes   "char"[],                 -- named in forebay.code; null: all done
    millis     integer[],                -- in the order of offsets, else of the batch; null: no handler ran, or it was not measured
    primary key (lease_id, claim_no, flush_no)
);
create index settlement_that_requeues on forebay.settlement (lease_id, claim_no) where 'k' = any (outcomes);

-- A suspect is claimed alone and its start is recorded, so that a death of the worker can be attributed to it.
create table forebay.suspect_start (
    lease_id   bigint not null,
    claim_no   bigint not null,
    started_at timestamptz not null,
    primary key (lease_id, claim_no)
);
