-- The record of a limited claim that met keys whose jobs wait: it parks what was not taken, writes the new state of each key, and passes turns on.
create function forebay._record_limit_turns(
    p_lease_id bigint, p_claim_no bigint, p_group_id bigint, p_queue text, p_priority integer, p_items forebay._limit_item[],
    p_states forebay._limit_state[], p_plan forebay._limit_plan, p_pieces forebay._limit_pieces, p_runs forebay._limit_runs, p_suspect boolean,
    p_paused text[], p_ends timestamptz[], v forebay._limiter_view) returns void
language plpgsql volatile
as $$
declare
    v_after record;
begin
    with piece as materialized (
        select p.key, p.class, p.place, p.jobs, coalesce(k.jobs, 0) as kept, k.seq,
               row_number() over (partition by p.key, p.class order by p.place) = 1 as is_first
        from unnest(p_pieces.nrs, p_pieces.keys, p_pieces.classes, p_pieces.places, p_pieces.jobs) p (piece_no, key, class, place, jobs)
        left join unnest(p_runs.kept_nrs, p_runs.kept_jobs, p_runs.kept_seqs) k (piece_no, jobs, seq) on k.piece_no = p.piece_no
    ), parking as (
        insert into forebay.limit_parked (group_id, limit_key, lane, xid, seq, seq_to, jobs)
        select p_group_id, i.limit_key, i.lane, i.xid, coalesce(p.seq + 1, i.seq), i.seq_to, i.jobs - coalesce(p.kept, 0)
        from unnest(p_items) with ordinality i
        left join piece p on p.class = 2 and p.place = i.ordinality
        where i.jobs > coalesce(p.kept, 0) and i.ordinality <= p_plan.used
        order by i.ordinality
        returning limit_key, parked_no, jobs
    ), parked as materialized (
        select p.limit_key, max(p.parked_no) as last, sum(p.jobs) as jobs from parking p group by p.limit_key
    ), progress as materialized (
        select p.key, sum(p.kept) as jobs, max(p.place) filter (where p.kept = p.jobs) as whole,
               max(p.seq) filter (where p.kept between 1 and p.jobs - 1) as seq,
               max(p.kept) filter (where p.kept between 1 and p.jobs - 1) as rest,
               coalesce(bool_or(p.is_first) filter (where p.kept between 1 and p.jobs - 1), false) as is_first
        from piece p where p.class = 1 group by p.key
    ), next as materialized (
        -- A key that waits and has no turn stays as it is; its newer jobs were parked behind.
        select s.limit_key, s.no, s.turn, s.waiting, s.is_full, s.leases, s.claims, s.offsets, s.parked_up_to,
               s.waiting > 0 and not w.has_turn or p_suspect as is_behind, coalesce(r.jobs, 0)::integer as run, r.first, r.low, r.high,
               d.last, d.jobs as newly, g.jobs as went, coalesce(o.jobs, 0)::integer as granted, s.waiting - coalesce(g.jobs, 0) + coalesce(d.jobs, 0) as left,
               coalesce(g.whole, s.taken_up_to) as up_to,
               case when g.seq is not null then g.seq when g.whole is not null then 0 else s.taken_seq end as seq,
               case when g.seq is not null then g.rest + case when g.is_first then s.taken_jobs else 0 end
                    when g.whole is not null then 0 else s.taken_jobs end as jobs,
               case when r.jobs > 0 then forebay._tat_after(s.tat, s.rate, v.at, r.jobs::integer) else s.tat end as tat,
               s.tokens - coalesce(r.jobs, 0) - coalesce(o.jobs, 0) as tokens,
               coalesce(cardinality(s.leases) + coalesce(r.jobs, 0) + coalesce(o.jobs, 0) >= s.concurrency, false) as fills,
               s.rate, s.burst, s.concurrency, s.limits_no, s.has_new_limits
        from unnest(p_states) with ordinality s
        join unnest(p_plan.has_turn) with ordinality w (has_turn, nr) on w.nr = s.ordinality
        left join unnest(p_runs.run_keys, p_runs.run_jobs, p_runs.run_firsts, p_runs.run_lows, p_runs.run_highs) r (key, jobs, first, low, high)
               on r.key = s.limit_key
        left join parked d on d.limit_key = s.limit_key
        left join progress g on g.key = s.ordinality
        left join (select u as key, count(*) as jobs from unnest(p_runs.granted_limits) u group by u) o on o.key = s.limit_key
    ), written as (
        insert into forebay.limit_run (
            group_id, limit_key, no, lease_id, claim_no, place, jobs, high_seq, low_seq, turn, waiting, parked_up_to, taken_up_to, taken_seq,
            taken_jobs, is_full, tat, decided_at, leases, claims, offsets, limits_no)
        select p_group_id, n.limit_key, n.no + 1,
               case when n.run > 0 then p_lease_id end, case when n.run > 0 then p_claim_no end, n.first, nullif(n.run, 0)::smallint,
               coalesce(n.high, 0), n.low, nullif(n.turn + case when n.is_behind then 0 else 1 end, 0), nullif(n.left, 0),
               nullif(coalesce(n.last, n.parked_up_to), 0), nullif(n.up_to, 0), nullif(n.seq, 0), nullif(n.jobs, 0),
               case when n.is_behind then n.is_full else n.left > 0 and n.fills end, n.tat, case when n.tat is not null then v.at end,
               nullif(n.leases, '{}'), nullif(n.claims, '{}'), nullif(n.offsets, '{}'), n.limits_no
        from next n
        where n.newly > 0 or n.went > 0 or n.waiting > 0 and not n.is_behind
           or n.run > 0 and (n.rate is not null or n.has_new_limits or n.concurrency is not null and not v.is_bare)
        returning limit_key, turn
    )
    select array_agg(w.limit_key order by w.limit_key) as keys, array_agg(w.turn order by w.limit_key) as turns,
           array_agg(n.fills order by w.limit_key) as fills, array_agg(n.tokens order by w.limit_key) as tokens,
           -- A key with an ordering key that got the turn takes its job soon.
           array_agg(case when n.granted > 0 then forebay._tat_after(n.tat, n.rate, v.at, n.granted) else n.tat end
                     order by w.limit_key) as tats,
           array_agg(n.rate order by w.limit_key) as rates, array_agg(n.burst order by w.limit_key) as bursts
    into v_after
    from written w join next n on n.limit_key = w.limit_key
    where n.left > 0 and not n.is_behind;
    perform forebay._grant_turns(p_queue, p_priority, p_group_id, p_runs.granted_keys, p_runs.granted_limits, p_runs.granted_seqs);
    perform forebay._give_turns(v, p_queue, p_priority, p_group_id, v_after.keys, v_after.turns, v_after.fills, v_after.tokens,
                                v_after.tats, v_after.rates, v_after.bursts, p_paused, p_ends);
end
$$;
