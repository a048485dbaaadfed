-- Lanes of limit keys of a queue with new rows between two snapshots; null when there are more than p_most pairs of a
-- transaction and a lane. It skips from one pair to the next, however many jobs each has.
create function forebay._arrivals(p_queue text, p_from pg_snapshot, p_to pg_snapshot, p_most integer) returns bigint[]
language plpgsql volatile
as $$
declare
    v_shelf   constant bigint := (forebay._secret_hash(p_queue) << 48) >> 48;
    v_ranges  constant forebay._xid_range[] := forebay._xid_ranges(p_from, p_to);
    v_lanes   bigint[] := '{}';
    v_left    integer := p_most;
    v_segment bigint;
    v_found   record;
begin
    for v_segment in
        select s.segment_id from forebay.segment s left join forebay.seal f using (segment_id)
        where s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0) and s.removed_at is null
          and (f.xid is null or f.xid > v_ranges[1].low)
        order by s.segment_id desc
    loop
        execute 'select * from forebay._arrivals_' || v_segment || '($1, $2, $3)' into v_found using v_shelf, v_ranges, v_left;
        v_left := v_left - v_found.pairs;
        if v_left <= 0 then
            return null;
        end if;
        v_lanes := v_lanes || v_found.lanes;
    end loop;
    return v_lanes;
end
$$;


-- All lanes of limit keys of a queue that may have something to claim for a group, decided for each as in forebay.ready_v1().
create function forebay._unclaimed_lanes(p_group_id bigint, p_queue text) returns bigint[]
language plpgsql volatile
as $$
declare
    v_places  forebay._place[];
    v_moved   boolean[];
    v_segment bigint;
    v_before  xid8;
    v_now     pg_snapshot;
    v_ended   forebay._xid_range[];
begin
    -- Older than the last sealed segment: let the claim read.
    select f.xid into v_before from forebay.seal f order by f.segment_id desc offset 1 limit 1;
    select array_agg(row(p_group_id, p.lane, null, null, null, p.snap, null)::forebay._place),
           array_agg(p.in_hand or coalesce(v_before > pg_snapshot_xmax(p.snap), false)
                     or coalesce(v_before > pg_snapshot_xmin(p.snap), false) and pg_snapshot_xmin(p.snap) <> pg_snapshot_xmax(p.snap)),
           pg_current_snapshot()
    into v_places, v_moved, v_now
    from (select l.lane, b.snap_to is not null as in_hand,
                 coalesce(b.snap_from, case l.audience when 0 then g.start_after else '1:1:' end) as snap
          from forebay.queue_group g
          join lateral (select distinct i.lane, i.audience from forebay.lane i
                        where i.queue = p_queue and i.sort = 'limited' and i.state <> 'dormant' and i.audience in (0, p_group_id, -p_group_id)) l on true
          left join lateral (select c.snap_from, c.snap_to from forebay.batch c
                             where c.group_id = p_group_id and c.lane = l.lane order by c.no desc limit 1) b on true
          where g.group_id = p_group_id) p;
    v_ended := forebay._xid_ranges('1:1:', v_now);
    for v_segment in
        select s.segment_id from forebay.segment s
        where s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)
          and s.segment_id >= coalesce((select f.segment_id from forebay.seal f order by f.segment_id desc limit 1), 0)
        order by s.segment_id
    loop
        exit when array_position(v_moved, false) is null;
        execute 'select forebay._moved_' || v_segment || '($1, $2, $3, $4)' into v_moved using v_places, v_moved, v_now, v_ended;
    end loop;
    return array(select (p.place).lane from (select unnest(v_places) as place, unnest(v_moved) as moved) p where p.moved);
end
$$;
