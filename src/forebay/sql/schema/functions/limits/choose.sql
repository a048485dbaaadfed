-- The lanes of limit keys that a limiter lets through, best first, each with a maximum number of jobs: first the key with the
-- fewest jobs in flight, then the one served longest ago. A key that the limiter does not
-- remember counts as never served. Among equals the choice is random.
create function forebay._choose_keys(v forebay._limiter_view, p_lane bigint, p_limit integer)
returns table (lane bigint, key bigint, dispatch_lane bigint, most integer)
language plpgsql stable
-- planner: arrays
as $$
#variable_conflict use_column
begin
    return query
    select w.lane, w.key, w.dispatch_lane, least(w.most, p_limit, v.free_slots, greatest(1, least(p_limit, v.free_slots) / count(*) over ()))::integer
    from (select l.lane, l.key, l.dispatch_lane, coalesce(o.open, 0) as open, k.served,
                 least(coalesce((v.limits).key_concurrency - coalesce(o.open, 0), 9223372036854775807),
                       case when (v.limits).key_rate is null then 9223372036854775807
                            else forebay._permits(k.tat, (v.limits).key_rate, (v.limits).key_burst, v.at) end) as most
          from unnest(v.lanes, v.lane_keys, v.dispatch_lanes) l (lane, key, dispatch_lane)
          left join unnest(v.keys, v.served, v.tats) k (key, served, tat) on k.key = l.key
          left join (select u.key, sum(u.open) as open from unnest(v.claim_keys, v.opens) u (key, open) group by u.key) o
                 on o.key = l.key
          where v.free_slots > 0 and (p_lane is null or l.dispatch_lane = p_lane or l.lane = p_lane)) w
    where w.most > 0
    order by w.open, w.served nulls first, random();
end
$$;
