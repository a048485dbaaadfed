-- What limiters would let through now: for each group its dispatch lanes and its other lanes, and a row without a lane for a
-- group whose limiter holds jobs back.
create function forebay._ready_limited(
    p_group_ids bigint[], p_places forebay._place[], p_moved boolean[], p_now pg_snapshot, p_before xid8)
returns table (group_id bigint, lane bigint, queue text, priority integer, audience bigint)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_group record;
    v       forebay._limiter_view;
    v_plain bigint[];
    v_open  bigint[];
begin
    for v_group in select g.group_id, g.queue from forebay.queue_group g where g.group_id = any (p_group_ids) loop
        v := forebay._read_limiter(v_group.group_id, v_group.queue);
        v_plain := array(
            select p.lane
            from rows from (unnest(p_places), unnest(p_moved))
                 as p (group_id, lane, queue, priority, audience, snap, claimed_at, moved)
            where p.group_id = v_group.group_id
              and (p.moved
                   or pg_snapshot_xmin(p.snap) <> pg_snapshot_xmax(p.snap) and p_before > pg_snapshot_xmin(p.snap)
                      and exists (select from pg_snapshot_xip(p.snap) x where x < p_before and pg_visible_in_snapshot(x, p_now))
                   or forebay._should_move(p.snap, p_now, p.claimed_at)));
        v_open := array(select distinct l.dispatch_lane from forebay._choose_keys(v, null, 1) l);
        if v.free_slots > 0 or v.is_back then
            v_open := v_open || v_plain || case when v.is_back then v.dispatch_lanes end;
        end if;
        if v_open = '{}' and cardinality(v.lanes) + cardinality(v_plain) > 0 then
            group_id := v_group.group_id;
            lane := null;
            return next;
        end if;
        return query
        select v_group.group_id, o.lane, n.queue, n.priority, n.audience
        from (select distinct u from unnest(v_open) u) o (lane)
        cross join lateral (select l.queue, l.priority, l.audience from forebay.lane l where l.lane = o.lane limit 1) n;
    end loop;
end
$$;
