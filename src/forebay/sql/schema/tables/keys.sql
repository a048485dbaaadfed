-- Ordering keys: of a key's jobs one at a time, in order. See docs/design/ordering.md.
--
-- Jobs with keys have lanes of their own. A claim of such a lane takes a *turn* of each key that is free: some of its jobs,
-- in order, for one holder; who has a turn already gets another that goes on with it. Jobs of keys that somebody else has are
-- *parked*: the cursor has passed them, a small row says which. When a turn is over and something waits, a *token*, a row of
-- the log without a kind, tells the group's claims to look at the key again.

-- Ordering keys, see docs/design/ordering.md. A turn is what one claim took of a key's jobs; the newest row of a
-- (group, key) says where the key stands.
create table forebay.key_run (
    group_id     bigint not null,
    ordering_key text collate "C" not null,
    no           bigint not null,
    since        bigint not null,        -- the first turn that this one goes on with: one lease has all jobs of theirs
    lease_id     bigint,                 -- null: nothing was taken, jobs were only skipped
    claim_no     bigint,
    offsets      smallint[],             -- the key's jobs within that batch, in order
    jobs         bigint[],               -- their ids
    taken_up_to         bigint not null,        -- parked jobs up to this number have been taken
    rest_lanes   bigint[],               -- requeued by an earlier turn and not taken by this one, in order
    rest_seqs    bigint[],
    low_seq      bigint not null,        -- lowest and highest number among the turn's jobs and its rest
    high_seq     bigint not null,
    is_suspect   boolean not null,       -- runs alone: its holder gets no more of the key
    taken_at     timestamptz not null,
    primary key (group_id, ordering_key, no)
);

-- Parked: a group's cursor has passed these jobs while their key was taken. They keep the order they came in.
create sequence forebay.parked_seq as bigint cache 1;

-- Tells a claim, without a look at any table, that nobody ever used an ordering key.
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
