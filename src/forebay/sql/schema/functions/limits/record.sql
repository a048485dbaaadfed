-- Append the limiter's state after a claim that took p_count jobs of a key and found no more jobs of the keys p_gone.
--
-- A key is remembered while it waits, while its bucket is not full, or while another key waits that was not served since: a
-- key that returns at once must not come first.
create function forebay._record_limiter(
    v forebay._limiter_view, p_group_id bigint, p_gone bigint[], p_lease_id bigint, p_claim_no bigint, p_key bigint, p_count integer)
returns void
language plpgsql volatile
-- planner: arrays
as $$
begin
    with line as materialized (
        select l.lane, l.key, l.dispatch_lane, l.nr from unnest(v.lanes, v.lane_keys, v.dispatch_lanes) with ordinality l (lane, key, dispatch_lane, nr)
        where l.lane <> all (p_gone)
    ), known as materialized (
        select k.key, case when k.key = p_key and p_count > 0 then v.no + 1 else k.served end as served,
               case when k.key = p_key and p_count > 0
                    then forebay._tat_after(k.tat, (v.limits).key_rate, v.at, p_count) else k.tat end as tat
        from unnest(v.keys, v.served, v.tats) k (key, served, tat)
        union all
        select p_key, v.no + 1, forebay._tat_after(null, (v.limits).key_rate, v.at, p_count)
        where p_count > 0 and p_key <> 0 and p_key <> all (v.keys)
    ), first as materialized (
        select min(coalesce(k.served, 0)) as served from line l left join known k on k.key = l.key
    ), kept as materialized (
        select k.* from known k, first f where k.tat > v.at or k.served >= f.served
    ), flight as materialized (
        select b.* from (
            select u.*, count(*) over () - u.nr as younger
            from (select i.lease_id, i.claim_no, i.key, i.size, i.nr
                  from unnest(v.leases, v.claims, v.claim_keys, v.sizes) with ordinality i (lease_id, claim_no, key, size, nr)
                  union all
                  select p_lease_id, p_claim_no, p_key, p_count, cardinality(v.leases) + 1 where p_count > 0) u) b
        -- Without a limit on concurrency this only decides which key is next.
        where b.younger < 256 or num_nonnulls((v.limits).concurrency, (v.limits).key_concurrency) > 0
    )
    insert into forebay.limiter (
        group_id, no, decided_at, snap, limits_at, seed_until, tat, leases, claims, claim_keys, sizes, lanes, lane_keys, dispatch_lanes,
        keys, served, tats)
    select p_group_id, v.no + 1, v.at, v.snap, (v.limits).starts_set_at, v.seed_until,
           case when p_count > 0 then forebay._tat_after(v.tat, (v.limits).rate, v.at, p_count) else v.tat end,
           f.leases, f.claims, f.keys, f.sizes, l.lanes, l.keys, l.dispatch_lanes, k.keys, k.served, k.tats
    from (select coalesce(array_agg(i.lease_id order by i.nr), '{}') as leases, coalesce(array_agg(i.claim_no order by i.nr), '{}') as claims,
                 coalesce(array_agg(i.key order by i.nr), '{}') as keys, coalesce(array_agg(i.size order by i.nr), '{}') as sizes
          from flight i) f,
         (select coalesce(array_agg(i.lane order by i.nr), '{}') as lanes, coalesce(array_agg(i.key order by i.nr), '{}') as keys,
                 coalesce(array_agg(i.dispatch_lane order by i.nr), '{}') as dispatch_lanes from line i) l,
         (select coalesce(array_agg(i.key order by i.served), '{}') as keys, coalesce(array_agg(i.served order by i.served), '{}') as served,
                 coalesce(array_agg(i.tat order by i.served), '{}') as tats from kept i) k;
end
$$;
