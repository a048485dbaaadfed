-- What a group's limiter sees now: its newest row, minus ended jobs, plus new ones.
--
-- A batch is in flight until it is settled or its lease is closed; so nothing needs to be released after a crash. For one second
-- after limits on starts were set, everything is counted from the leases: claims in progress then did not pass the limiter.
create function forebay._read_limiter(p_group_id bigint, p_queue text) returns forebay._limiter_view
language plpgsql volatile
as $$
declare
    v forebay._limiter_view;
begin
    -- One statement: in each transaction an expression costs more to prepare than to evaluate.
    select coalesce(c.no, 0), n.at, n.snap, c.seed_until, c.tat,
           coalesce(o.leases, '{}'), coalesce(o.claims, '{}'), coalesce(o.keys, '{}'), coalesce(o.sizes, '{}'), coalesce(o.opens, '{}'),
           coalesce(c.lanes, '{}'), coalesce(c.lane_keys, '{}'), coalesce(c.dispatch_lanes, '{}'),
           coalesce(c.keys, '{}'), coalesce(c.served, '{}'), coalesce(c.tats, '{}'),
           c.no is null or q.starts_set_at is distinct from c.limits_at or c.decided_at > n.at, coalesce(c.decided_at > n.at, false),
           q.starts_set_at is distinct from c.limits_at,
           case when not exists (select from forebay.lane l where l.queue = p_queue and l.sort = 'limited' and l.state <> 'dormant') then '{}'
                when c.no is not null then forebay._arrivals(p_queue, c.snap, n.snap, 2000) end,
           0, q
    into v
    from (select forebay._now() as at, pg_current_snapshot() as snap offset 0) n
    left join forebay.queue_limits q on q.queue = p_queue
    left join lateral (select g.* from forebay.limiter g where g.group_id = p_group_id order by g.no desc limit 1) c on true
    left join lateral (
        select array_agg(i.lease_id order by i.nr) as leases, array_agg(i.claim_no order by i.nr) as claims,
               array_agg(i.key order by i.nr) as keys, array_agg(i.size order by i.nr) as sizes,
               array_agg(i.size - s.settled order by i.nr) as opens
        from unnest(c.leases, c.claims, c.claim_keys, c.sizes) with ordinality i (lease_id, claim_no, key, size, nr)
        cross join lateral (
            select coalesce(bool_or(j.offsets is null), false) as whole, coalesce(sum(cardinality(j.offsets)), 0)::integer as settled
            from forebay.settlement j where j.lease_id = i.lease_id and j.claim_no = i.claim_no) s
        where not s.whole and s.settled < i.size
          and exists (select from forebay.lease l where l.lease_id = i.lease_id and l.closed_at is null)
          and exists (select from forebay.batch b where b.lease_id = i.lease_id and b.claim_no = i.claim_no)) o on true;

    if v.is_changed or v.seed_until >= v.at then
        v := forebay._read_limiter_fully(v, p_group_id);
    end if;
    v.free_slots := least(coalesce((v.limits).concurrency - (select sum(o) from unnest(v.opens) o), (v.limits).concurrency, 9223372036854775807),
                    forebay._permits(v.tat, (v.limits).rate, (v.limits).burst, v.at));
    if v.came is null or v.came <> '{}' then
        if v.came is null then
            v.came := forebay._unclaimed_lanes(p_group_id, p_queue);
            v.is_changed := true;
        end if;
        select v.lanes || coalesce(array_agg(n.lane), '{}'), v.lane_keys || coalesce(array_agg(forebay._limit_key_id(n.limit_key)), '{}'),
               v.dispatch_lanes || coalesce(array_agg(forebay._dispatch_lane_id(n.queue, n.priority, n.audience)), '{}'), v.is_changed or count(*) > 0
        into v.lanes, v.lane_keys, v.dispatch_lanes, v.is_changed
        from (select distinct a from unnest(v.came) a except select unnest(v.lanes)) u (lane)
        cross join lateral (select * from forebay.lane l where l.lane = u.lane limit 1) n
        where n.queue = p_queue and n.audience in (0, p_group_id, -p_group_id);
    end if;
    return v;
end
$$;


-- Rare work of a limiter. After limits on starts were set it counts jobs in flight from the leases, and no bucket owes more than
-- it can hold; a clock that was set back resets the buckets.
create function forebay._read_limiter_fully(v forebay._limiter_view, p_group_id bigint) returns forebay._limiter_view
language plpgsql volatile
as $$
declare
    v_back interval := interval '0';
begin
    if v.has_new_limits then
        v.seed_until := v.at + interval '1 second';
    end if;
    if v.seed_until >= v.at and num_nonnulls((v.limits).concurrency, (v.limits).key_concurrency) > 0 then
        select coalesce(array_agg(f.lease_id), '{}'), coalesce(array_agg(f.claim_no), '{}'), coalesce(array_agg(f.key), '{}'),
               coalesce(array_agg(f.size), '{}'), coalesce(array_agg(f.open), '{}')
        into v.leases, v.claims, v.claim_keys, v.sizes, v.opens
        from forebay._in_flight(p_group_id) f;
    end if;
    if v.is_back then
        v_back := (select g.decided_at - v.at from forebay.limiter g where g.group_id = p_group_id and g.no = v.no);
    end if;
    v.tat := v.tat - v_back;
    v.tats := array(select t - v_back from unnest(v.tats) with ordinality u (t, nr) order by u.nr);
    if v.has_new_limits then
        v.tat := forebay._tat_within(v.tat, (v.limits).rate, (v.limits).burst, (v.limits).starts_set_at);
        v.tats := array(select forebay._tat_within(t, (v.limits).key_rate, (v.limits).key_burst, (v.limits).starts_set_at)
                        from unnest(v.tats) with ordinality u (t, nr) order by u.nr);
    end if;
    return v;
end
$$;
