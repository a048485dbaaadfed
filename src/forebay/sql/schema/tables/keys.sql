-- Ordering keys: jobs of one key run one at a time, in order. See docs/design/ordering.md.
--
-- Jobs with keys have separate lanes. A claim of such a lane takes a *key run* of each free key: some of the key's jobs, in
-- order, for one lease. A lease that has a key run of a key gets further runs that continue it. Jobs whose key another lease has
-- are *parked*: the cursor has passed them, and a small row records each. When a key run ends and jobs wait, a *recheck row*, a
-- row of the log without a kind, makes the group's claims look at the key again.

-- A key run is what one claim took of a key's jobs. The newest row of a (group, key) has the state of the key.
create table forebay.key_run (
    -- Many keys have one job in a claim: then a key run should be small. So nulls stand for what is usual.
    group_id     bigint not null,
    no           bigint not null,
    since        bigint,                 -- first key run that this one continues: one lease has the jobs of all of them; null: no
    lease_id     bigint,                 -- null: nothing was taken, jobs were only skipped
    claim_no     bigint,
    low_seq      bigint not null,        -- lowest and highest number among the run's jobs and its rest; high_seq null: low_seq
    high_seq     bigint,
    taken_up_to  bigint,                 -- parked jobs up to this number have been taken; null: 0
    place        smallint,               -- within that batch, of the only job of the key,
    is_suspect   boolean,                -- runs alone: its lease gets no more of the key; null: false
    ordering_key text collate "C" not null,
    offsets      smallint[],             --   or of all of them, in order
    jobs         bigint[],               -- ids of these jobs; null: low_seq
    rest_lanes   bigint[],               -- requeued by an earlier key run and not taken by this one, in order
    rest_seqs    bigint[],
    primary key (group_id, ordering_key, no)
);
create index key_run_with_rest on forebay.key_run (group_id, ordering_key) where rest_seqs is not null;

-- Parked jobs: a group's cursor has passed them while their key was taken. They keep their order.
create sequence forebay.parked_seq as bigint cache 1;

-- Lets a claim see, without reading a table, that no job ever had an ordering key.
create sequence forebay.key_seq as bigint cache 1;

create table forebay.parked (
    group_id     bigint not null,
    ordering_key text collate "C" not null,
    parked_no    bigint not null default nextval('forebay.parked_seq'),
    lane         bigint not null,
    seq          bigint not null,
    primary key (group_id, ordering_key, parked_no)
);
create index parked_by_seq on forebay.parked (seq);
