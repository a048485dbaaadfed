-- Which lanes exist. No unique key on purpose: with one, the first user of a lane would make every
-- other producer of it wait for his commit. Concurrent first users leave a few equal rows.
create table forebay.lane (
    lane     bigint not null,
    queue    text not null,
    priority integer not null,
    audience bigint not null,            -- 0 everybody, g retries of group g, -g suspects of group g
    part     integer not null default 0, -- which of an unordered queue's public lanes; -1: the lane of jobs with ordering keys;
                                         -- 1000: the lane of a limit key, 1001: the desk of such lanes, which has no jobs itself
    noted_at timestamptz not null,
    limit_key text collate "C"
);
create index lane_by_id on forebay.lane (lane);
create index lane_by_queue on forebay.lane (queue, part);


-- A lane that a group may claim from, and up to which snapshot it has.
create type forebay._place as (
    group_id bigint, lane bigint, queue text, priority integer, audience bigint, snap pg_snapshot, claimed_at timestamptz);
