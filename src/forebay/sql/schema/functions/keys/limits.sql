-- What the claim of a keyed lane did to the limit keys of its jobs: the jobs that it took, and those that wait now for a turn of their limit
-- key. The lock of the group's limiter is held.
--
-- Invariant "no key is forgotten": a limit key that has parked jobs now, or passed its turn on to an ordering key of this claim, gets its
-- next turn.
--
-- Parameters: p_states, of the limit keys that the claim met; p_paused and p_ends, which of them are paused, and the ends of the pauses.
--   p_keys, p_seqs: of the jobs taken, in their order; a key is null for a job without one. p_granted: limit keys that passed their turn on.
--   The others: the jobs that wait.
create function forebay._record_keyed_limits(
    v forebay._limiter_view, p_queue text, p_priority integer, p_group_id bigint, p_lease_id bigint, p_claim_no bigint,
    p_states forebay._limit_state[], p_paused text[], p_ends timestamptz[], p_keys text[], p_seqs bigint[], p_granted text[],
    p_limit_keys text[], p_ordering_keys text[], p_parked_nos bigint[], p_lanes bigint[], p_xids xid8[], p_waiting bigint[])
returns void
language plpgsql volatile
-- planner: arrays
as $$
declare
    v_turns record;
begin
    with run as materialized (
        select u.key, array_agg(u.place::smallint order by u.place) as places, max(u.seq) as high
        from unnest(p_keys, p_seqs) with ordinality u (key, seq, place)
        where u.key is not null group by u.key
    ), parking as (
        insert into forebay.limit_parked (group_id, limit_key, parked_no, lane, xid, seq, seq_to, jobs, ordering_key)
        select p_group_id, u.limit_key, u.parked_no, u.lane, u.xid, u.seq, u.seq, 1, u.ordering_key
        from unnest(p_limit_keys, p_ordering_keys, p_parked_nos, p_lanes, p_xids, p_waiting) u (limit_key, ordering_key, parked_no, lane, xid, seq)
        returning limit_key, parked_no
    ), parked as materialized (
        select p.limit_key, max(p.parked_no) as last, count(*) as jobs from parking p group by p.limit_key
    ), next as materialized (
        select s.limit_key, s.no, s.turn, s.taken_up_to, s.taken_seq, s.taken_jobs, s.leases, s.claims, s.offsets, r.places, r.high,
               coalesce(d.last, s.parked_up_to) as parked_up_to, s.waiting + coalesce(d.jobs, 0) as left, s.is_full, d.jobs as newly,
               s.waiting = 0 or s.limit_key = any (p_granted) as gets_turn, n.run, s.tokens - n.run as tokens,
               case when n.run > 0 then forebay._tat_after(s.tat, s.rate, v.at, n.run) else s.tat end as tat,
               coalesce(cardinality(s.leases) + n.run >= s.concurrency, false) as fills,
               case when s.concurrency is not null then n.run else 0 end as slots, s.rate, s.burst, s.concurrency, s.limits_no, s.has_new_limits
        from unnest(p_states) s
        left join run r on r.key = s.limit_key
        left join parked d on d.limit_key = s.limit_key
        cross join lateral (select coalesce(cardinality(r.places), 0) as run) n
    ), written as (
        insert into forebay.limit_run (
            group_id, limit_key, no, high_seq, turn, waiting, parked_up_to, taken_up_to, taken_seq, taken_jobs, is_full, tat, decided_at,
            leases, claims, offsets, limits_no)
        select p_group_id, n.limit_key, n.no + 1, coalesce(n.high, 0), nullif(n.turn, 0), nullif(n.left, 0), nullif(n.parked_up_to, 0),
               nullif(n.taken_up_to, 0), nullif(n.taken_seq, 0), nullif(n.taken_jobs, 0),
               case when n.gets_turn then n.left > 0 and n.fills else n.is_full end, n.tat, case when n.tat is not null then v.at end,
               nullif(n.leases || array_fill(p_lease_id, array[n.slots]), '{}'), nullif(n.claims || array_fill(p_claim_no, array[n.slots]), '{}'),
               nullif(n.offsets || case when n.slots > 0 then n.places end, '{}'), n.limits_no
        from next n
        where n.newly > 0 or n.run > 0 and (num_nonnulls(n.concurrency, n.rate) > 0 or n.has_new_limits)
    )
    select array_agg(n.limit_key order by n.limit_key) as keys, array_agg(n.turn order by n.limit_key) as turns,
           array_agg(n.fills order by n.limit_key) as fills, array_agg(n.tokens order by n.limit_key) as tokens,
           array_agg(n.tat order by n.limit_key) as tats, array_agg(n.rate order by n.limit_key) as rates,
           array_agg(n.burst order by n.limit_key) as bursts
    into v_turns
    from next n where n.left > 0 and n.gets_turn;
    if v_turns.keys is not null then
        perform forebay._give_turns(v, p_queue, p_priority, p_group_id, v_turns.keys, v_turns.turns, v_turns.fills, v_turns.tokens, v_turns.tats,
                                    v_turns.rates, v_turns.bursts, p_paused, p_ends);
    end if;
end
$$;


-- The states of limit keys without the permits that jobs of ordering keys have: the states lack claims that were in progress when the limits
-- were set.
create function forebay._less_in_flight(p_group_id bigint, p_states forebay._limit_state[]) returns forebay._limit_state[]
language sql stable
-- planner: arrays
as $$
    select array(
        select row(s.limit_key, s.no, s.turn, s.waiting, s.parked_up_to, s.taken_up_to, s.taken_seq, s.taken_jobs, s.is_full, s.tat,
                   s.leases, s.claims, s.offsets, least(s.permits, s.concurrency - coalesce(f.jobs, 0)),
                   s.tokens, s.rate, s.burst, s.concurrency, s.limits_no, s.has_new_limits)::forebay._limit_state
        from unnest(p_states) s
        left join (select u.key, count(*) as jobs
                   from forebay._in_flight(p_group_id) i cross join lateral unnest(i.limit_keys) with ordinality u (key, place)
                   where not exists (select from forebay.settlement e
                                     where e.lease_id = i.lease_id and e.claim_no = i.claim_no and u.place::smallint = any (e.offsets))
                   group by u.key) f on f.key = s.limit_key)
$$;
