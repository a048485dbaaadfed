-- Subjects: standing jobs, each with a name in its queue, arguments, a state, and the time at which it is due again. A run of a subject is
-- a job of the log. See docs/design/subjects.md.

-- The name. The row is inserted once and never updated; locking it locks the subject.
create table forebay.subject (
    subject_id bigint generated always as identity primary key,
    queue      text collate "C" not null,
    subject    text collate "C" not null,
    created_at timestamptz not null,
    constraint subject_name unique (queue, subject)
);
comment on table forebay.subject is 'Subjects; use forebay.push_subjects() and its relatives.';

create sequence forebay.subject_row_seq as bigint cache 1;

-- What is known of a subject, appended; the newest row by (no, part) counts. Part 0 is written under the lock of the subject, part 1 by
-- the settlement of the run that part 0 of this number issued.
create table forebay.subject_state (
    subject_id bigint not null,
    no         bigint not null,
    part       smallint not null,
    row_no     bigint not null default nextval('forebay.subject_row_seq'),
    state      "char" not null,              -- named in forebay.code
    at         timestamptz not null,
    due_at     timestamptz,                  -- of s and i: when it is, or was, due
    wake_at    timestamptz,                  -- of s: while this is in the future, a wake row of this time waits
    kind       text not null,
    version    integer not null,
    priority   integer not null,
    args       jsonb not null,
    data       jsonb,                        -- the state that handlers change; null: none yet
    options    jsonb not null,               -- {options}, expires_at
    iterations bigint not null,              -- runs that ended well
    last_at    timestamptz,                  -- when the last of these ended
    -- The run that part 0 issued; or a run that may not have ended when this row replaced it.
    job_id     bigint,                       -- in part 1: the run that ended
    run_no     bigint,                       -- the number of its row i; negative: of a subject of this name that was dropped
    lane       bigint,                       -- where that row of the log is; null: the row names no run that may not have ended
    job_xid    xid8,
    reason     text,
    constraint subject_state_pkey primary key (subject_id, no, part)
);
create unique index subject_state_by_row on forebay.subject_state (row_no);

-- Where trimming of subject_state continues.
create sequence forebay.subject_trim_seq as bigint minvalue 0 start 0 cache 1;

-- Numbers of subjects whose newest row got the state, s, i, c, x or k, and had the state before; appended, and added up by maintenance.
create table forebay.subject_count (
    queue    text collate "C" not null,
    state    "char",  -- null: dropped
    before   "char",  -- null: new
    subjects bigint not null
);
alter table forebay.subject_count replica identity full;

-- One subject of a call, checked.
create type forebay._subject_input as (
    nr integer, queue text, subject text, kind text, args jsonb, start_at timestamptz, priority integer, version integer, options jsonb);

-- A subject under its lock: its newest row, the state of the run that this names, and how that run ended.
create type forebay._subject_look as (
    subject_id bigint, queue text, subject text, newest forebay.subject_state, run_state text, ended forebay.subject_state);

-- A subject of a call, what was known of it, and what becomes of it.
create type forebay._subject_change as (
    new forebay._subject_input, subject_id bigint, old forebay.subject_state, run_state text, answer text);

-- What became of it: created, updated, unchanged or skipped, and why.
create type forebay._subject_put as (nr integer, result text, reason text);

-- Progress of forebay.upgrade_subject() for a queue, kind and version.
create table forebay.subject_upgrade (
    queue        text collate "C" not null,
    kind         text not null,
    from_version integer not null,
    to_version   integer not null,
    after        text collate "C" not null,  -- subjects up to this one were looked at in the present pass
    upgraded     bigint not null,
    changed_at   timestamptz not null,
    primary key (queue, kind, from_version)
);
