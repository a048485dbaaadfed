-- Flows: jobs whose handlers do several things, each with a checkpoint. See docs/design/flows.md.

-- Lets others see, without reading a table, that no handler ever recorded a checkpoint or waited.
create sequence forebay.flow_seq as bigint cache 1;

-- What a flow has done, appended; read when an attempt begins. The number is that of the writer's list, so of two writers with one
-- number the first counts, and the second is refused.
create table forebay.step (
    job_id   bigint not null,
    group_id bigint not null,            -- 0: what a callback waited for, which is a job for all groups
    at       timestamptz not null,
    no       integer not null,           -- its place among the checkpoints of the job, from 1
    kind     "char" not null,            -- named in forebay.code
    name     text collate "C" not null,
    key      text collate "C",           -- of one of several checkpoints with that name
    value    jsonb,                      -- the result; null: nothing is returned
    constraint step_pkey primary key (job_id, group_id, no)
);
comment on table forebay.step is 'Checkpoints of flows; see docs/design/flows.md.';

-- Signals that no flow has taken yet: the first one for a name and key counts.
create table forebay.signal (
    name    text collate "C" not null,
    key     text collate "C" not null,
    payload jsonb,
    sent_at timestamptz not null,
    role    text not null,               -- session_user
    constraint signal_pkey primary key (name, key)
);
create index signal_by_time on forebay.signal (sent_at);

-- The flow that waits for a signal, or has waited, and its attempt has not ended. See forebay._leave_wait().
create table forebay.waiter (
    name     text collate "C" not null,
    key      text collate "C" not null,
    job_id   bigint not null,
    group_id bigint not null,
    step     text collate "C" not null,  -- name and key of the checkpoint that ends the wait
    step_key text collate "C",
    since    timestamptz not null,
    until    timestamptz,                -- when the wait is over; null: it has no timeout
    constraint waiter_pkey primary key (name, key)
);
create index waiter_by_job on forebay.waiter (job_id);

-- Flows that were cancelled while they waited: they compensate, instead of ending at once.
create table forebay.flow_cancelled (
    job_id       bigint not null,
    group_id     bigint not null,
    requested_at timestamptz not null,
    constraint flow_cancelled_pkey primary key (job_id, group_id)
);

-- Jobs that a flow waits for together: its children.
create table forebay.gather (
    gather_id bigint primary key,        -- random, so that no gather has the id of a lost one
    job_id    bigint not null,           -- the parent, or the callback
    group_id  bigint not null,           -- 0 for a callback
    no        integer not null,          -- number of its checkpoint
    name      text collate "C" not null,
    children  integer not null,
    begun_at  timestamptz not null
);
create index gather_by_job on forebay.gather (job_id);

create table forebay.gather_part (
    gather_id bigint not null,
    first_nr  integer not null,          -- which child the first id is, from 1
    job_ids   bigint[] not null,
    primary key (gather_id, first_nr)
);

-- How children ended. A child that was redriven has an end for each of its jobs, and the newest counts.
create table forebay.gather_end (
    gather_id bigint not null,
    nr        integer not null,
    job_id    bigint not null,
    outcome   "char" not null,           -- as in settlement.outcomes: d, x or c
    at        timestamptz not null,
    value     jsonb,                     -- what its handler returned
    problem   text,                      -- why that is missing, or how it died
    primary key (gather_id, nr, job_id)
);

-- Ends that promotions have counted, never too few; the newest row counts.
create table forebay.gather_count (
    gather_id bigint not null,
    no        bigint not null,
    ended     bigint not null,
    primary key (gather_id, no)
);

-- Recorded steps that the code of a kind did not ask for at the end of a flow: since when flows that wait may have steps that no code has.
create table forebay.unasked_step (
    kind     text collate "C" not null,
    name     text collate "C" not null,
    noted_at timestamptz not null,       -- the newest such end
    constraint unasked_step_pkey primary key (kind, name)
);
