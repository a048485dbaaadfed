-- What the parts of a claim pass to each other, in lanes of ordering keys and of limit keys. Arrays belong together.

-- Jobs that may be taken, in the order of their keys and in that order of each key, and the states of the keys. classes: see
-- forebay._keyed_candidates(). fetch_lanes, fetch_seqs: jobs whose rows were not read yet.
create type forebay._key_candidates as (
    keys text[], classes integer[], lanes bigint[], seqs bigint[], parked bigint[], fetch_lanes bigint[], fetch_seqs bigint[],
    state_keys text[], state_nos bigint[], state_since bigint[], state_positions bigint[], state_busy boolean[], state_waiting bigint[],
    state_waits_at bigint[]);

-- The jobs that a claim takes, and those that it skips. high: the highest number read. fresh, fresh_skipped: how many of them come from public
-- lanes. waiting_...: jobs that wait for a turn of their limit key from now on.
create type forebay._key_choice as (
    is_plain boolean, lanes bigint[], seqs bigint[], xids xid8[], keys text[], tails smallint[], limit_keys text[], high bigint, jobs forebay.log[],
    fresh bigint, fresh_skipped bigint, skipped bigint[], skipped_as "char"[], waiting_limits text[], waiting_keys text[], waiting_nos bigint[],
    waiting_lanes bigint[], waiting_xids xid8[], waiting_seqs bigint[]);

-- How many items a limited claim uses, and for each key how many jobs it gets, its place in the order of the turns, and whether it has the turn.
create type forebay._limit_plan as (used integer, jobs bigint[], places bigint[], has_turn boolean[]);

-- Pieces of runs to take, in order. keys: the numbers of their keys. classes: 1 parked, 2 just read; places: the number of the parked row or
-- item. jobs, takes: how many jobs it has, and how many of them to take.
create type forebay._limit_pieces as (
    nrs bigint[], keys bigint[], classes integer[], places bigint[], lanes bigint[], xids xid8[], afters bigint[], seqs_to bigint[], jobs bigint[],
    takes bigint[], ordering_keys text[]);

-- What a limited claim took: of each key, of each piece, and the turns that it gave to ordering keys.
create type forebay._limit_runs as (
    run_keys text[], run_jobs bigint[], run_firsts smallint[], run_lows bigint[], run_highs bigint[], kept_nrs bigint[], kept_jobs bigint[],
    kept_seqs bigint[], granted_keys text[], granted_limits text[], granted_seqs bigint[]);
