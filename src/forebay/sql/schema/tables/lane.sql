-- The existing lanes. No unique key on purpose: with one, the first user of a lane would make every
-- other producer wait for its commit. Concurrent first users leave a few equal rows.
create table forebay.lane (
    lane     bigint not null,
    queue    text not null,
    priority integer not null,
    audience bigint not null,            -- 0 all groups, g retries of group g, -g suspects of group g
    sort     text collate "C" not null check (sort in ('plain', 'keyed', 'limited')),
                                         -- jobs without a key; with an ordering key; with a limit key
    shard    integer check (shard between 0 and 63),  -- of a plain public lane: its shard; 0 is the first
    recorded_at timestamptz not null,    -- or last found in use; a lane is looked at again a while later
    row_no   bigint generated always as identity primary key,
    state    text collate "C" not null default 'used' check (state in ('used', 'retired', 'dormant')),
                                         -- see forebay.forget_v1()
    dormant_xid xid8,                    -- the transaction that made it dormant; transactions that see it see all its rows
    dormant_seq bigint,                  -- all its rows have numbers up to this one
    check ((sort = 'plain' and audience = 0) = (shard is not null)),
    check ((state = 'dormant') = (dormant_xid is not null) and (state = 'dormant') = (dormant_seq is not null))
);
create index lane_by_id on forebay.lane (lane);
create index lane_by_queue on forebay.lane (queue, sort);
create index lane_in_use on forebay.lane (queue, sort) where state <> 'dormant';
create index lane_to_check on forebay.lane (recorded_at) where state = 'used';
create index lane_retired on forebay.lane (row_no) where state = 'retired';
create index lane_dormant on forebay.lane (dormant_seq) where state = 'dormant';

-- Flag sequence: the transaction that last retired lanes. Who does not see it relies on no row of the registry.
create sequence forebay.lane_horizon as bigint cache 1;

-- Flag sequence: a transaction id above those of all who relied on the lanes that are retired now.
create sequence forebay.lane_barrier as bigint cache 1;


-- A lane that a group may claim from, and the snapshot that the group has reached.
create type forebay._place as (
    group_id bigint, lane bigint, queue text, priority integer, audience bigint, snap pg_snapshot, claimed_at timestamptz);


-- What a session remembers of a poll that found no ready lane: everything that `snap` shows has been claimed, by all of the groups.
-- The text of one is the value of a parameter of the session, see forebay._recall_poll().
create type forebay._idle_poll as (
    hash       bigint,       -- of the ids of the groups
    horizon    bigint,       -- forebay.poll_horizon then
    last_seq   bigint,       -- the last number of the log that was drawn before
    next_xid   xid8,         -- transactions with those numbers have ids below it
    snap       pg_snapshot,
    checked_at bigint,       -- when all lanes were last looked at, in milliseconds since 1970
    queues     text[],       -- of the groups; null: too many to remember
    flags      oid[]);       -- the wake-up sequences of these queues

-- Flag sequence: counts the transactions that make a lane ready without a row of the log, open ones too.
create sequence forebay.poll_horizon as bigint cache 1;
