-- Lock lanes of jobs with limit keys of one priority for a claim and read them, each from its cursor: the public lane and the
-- group's private lane, or the lane of suspects alone. A lane that another session has locked is left out, except p_lane. The items are
-- in the order of their numbers, as far as that leaves each lane in its order. Null cursors: the group is paused.
create function forebay._read_limited(
    p_group_id bigint, p_lane bigint, p_queue text, p_priority integer, p_alone boolean, p_most integer,
    out cursors forebay._limit_cursor[], out items forebay._limit_item[])
language plpgsql volatile
-- planner: hot
as $$
declare
    v_lanes  bigint[] := array[p_lane];
    v_lane   bigint;
    v_read   record;
    v_window record;
    v_items  forebay._limit_item[];
    v_cursor forebay._limit_cursor;
begin
    perform forebay._lock_lane(p_group_id, p_lane);
    for v_lane in
        select distinct l.lane from forebay.lane l
        where l.queue = p_queue and l.sort = 'limited' and l.priority = p_priority and l.lane <> p_lane
          and l.audience in (0, p_group_id) and not p_alone
    loop
        -- Not waited for: forebay.sweep_v1() has several such locks, and waits for more.
        if forebay._try_lock_lane(p_group_id, v_lane) then
            v_lanes := v_lanes || v_lane;
        end if;
    end loop;
    if cardinality(v_lanes) > 1 then
        v_lanes := array(select u from unnest(v_lanes) u order by u);
    end if;
    cursors := '{}';
    items := '{}';
    foreach v_lane in array v_lanes loop
        -- A later statement than the locks.
        select f.xid as seal_xid, forebay._paused_since(g.paused_at, g.resume_at) as paused_at,
               -- include: unsealed_segments
               row(v_lane, coalesce(b.no, 0), coalesce(b.snap_from, w.first), coalesce(b.snap_to, b.snap_from, w.first), b.snap_to is not null,
                   b.pos_segment, b.pos_xid, b.pos_seq, coalesce(b.high_seq, 0), coalesce(b.handed_total, 0), coalesce(b.skipped_total, 0),
                   b.claimed_at, forebay._snapshot_of_others(), 0, 0, false, 0)::forebay._limit_cursor as cursor
        into v_read
        from forebay.queue_group g
        cross join lateral (select i.audience from forebay.lane i where i.lane = v_lane limit 1) l
        left join lateral (select s.xid, i.hi from forebay.seal s join forebay.segment i using (segment_id)
                           order by s.segment_id desc limit 1) f on true
        left join lateral (select i.no, i.snap_from, i.snap_to, i.pos_segment, i.pos_xid, i.pos_seq, i.high_seq, i.handed_total,
                                  i.skipped_total, i.claimed_at
                           from forebay.batch i
                           where i.group_id = p_group_id and i.lane = v_lane order by i.no desc limit 1) b on true
        cross join lateral (select case l.audience when 0 then g.start_after else '1:1:' end as first) w
        where g.group_id = p_group_id;
        if v_read.paused_at is not null then
            cursors := null;
            return;
        end if;
        v_cursor := v_read.cursor;
        perform forebay._require_not_ahead(v_lane, v_cursor.stop, v_cursor.now);
        v_items := '{}';
        if v_cursor.has_window then
            v_window := forebay._window_limited(v_lane, forebay._xid_ranges(v_cursor.start, v_cursor.stop), v_cursor.pos_segment,
                                                v_cursor.pos_xid, v_cursor.pos_seq, p_most, v_read.unsealed, v_read.seal_xid);
            v_items := v_window.items;
            v_cursor.old := cardinality(v_items);
            v_cursor.looked := v_window.looked;
            v_cursor.is_more := v_window.is_more;
        end if;
        if not v_cursor.is_more then
            v_window := forebay._window_limited(v_lane, forebay._xid_ranges(v_cursor.stop, v_cursor.now), 0, '0', 0, p_most,
                                                v_read.unsealed, v_read.seal_xid);
            v_items := v_items || v_window.items;
            v_cursor.looked := v_cursor.looked + v_window.looked;
            v_cursor.is_more := v_window.is_more;
        end if;
        v_cursor.items := cardinality(v_items);
        cursors := cursors || v_cursor;
        items := items || v_items;
    end loop;
    if cardinality(cursors) > 1 then
        items := array(
            select row(u.lane, u.segment_id, u.xid, u.seq, u.seq_to, u.jobs, u.limit_key, u.turn)::forebay._limit_item
            from (select i.*, max(i.seq) over (partition by i.lane order by i.ordinality) as after
                  from unnest(items) with ordinality i) u
            order by u.after, u.ordinality);
    end if;
end
$$;


-- Errors: JQ030 the cursor is ahead of this cluster.
create function forebay._require_not_ahead(p_lane bigint, p_stop pg_snapshot, p_now pg_snapshot) returns void
language plpgsql stable
as $$
declare
    c record;
begin
    select p_stop as stop, p_now as now into c;
    -- include: cursor_ahead
end
$$;


-- Where cursors stand after the items that a claim used: the first ones of each lane. is_moved: further than before.
create function forebay._limited_positions(p_cursors forebay._limit_cursor[], p_items forebay._limit_item[])
returns table (lane bigint, no bigint, snap_from pg_snapshot, snap_to pg_snapshot, pos_segment bigint, pos_xid xid8, pos_seq bigint,
               high_seq bigint, handed_total bigint, skipped_total bigint, is_moved boolean)
language sql stable
as $$
    select c.lane, c.no,
           case when u.is_up then c.now when i.used = 0 or i.used <= c.old then c.start else c.stop end,
           case when u.is_up then null when i.used = 0 then case when c.has_window then c.stop end when i.used <= c.old then c.stop else c.now end,
           case when u.is_up then 0 when i.used = 0 then coalesce(c.pos_segment, 0) else i.segment_id end,
           case when u.is_up then '0' when i.used = 0 then coalesce(c.pos_xid, '0') else i.xid end,
           case when u.is_up then 0 when i.used = 0 then coalesce(c.pos_seq, 0) else i.seq_to end,
           greatest(c.high_seq, i.high), c.handed_total, c.skipped_total,
           i.used > 0 or u.is_up and (c.has_window or c.looked > 2)
    from unnest(p_cursors) c
    cross join lateral (select count(*) as used, max(n.seq_to) as high, (array_agg(n.segment_id order by n.ordinality desc))[1] as segment_id,
                               (array_agg(n.xid order by n.ordinality desc))[1] as xid, (array_agg(n.seq_to order by n.ordinality desc))[1] as seq_to
                        from unnest(p_items) with ordinality n where n.lane = c.lane) i
    cross join lateral (select i.used = c.items and not c.is_more as is_up) u
$$;


-- Move cursors over the items that a claim used.
create function forebay._move_limited(
    p_group_id bigint, p_cursors forebay._limit_cursor[], p_items forebay._limit_item[], p_at timestamptz) returns void
language sql volatile
as $$
    insert into forebay.batch (
        group_id, lane, no, snap_from, snap_to, pos_segment, pos_xid, pos_seq, high_seq, handed_total, skipped_total, claimed_at)
    select p_group_id, p.lane, p.no + 1, p.snap_from, p.snap_to, p.pos_segment, p.pos_xid, p.pos_seq, p.high_seq,
           p.handed_total, p.skipped_total, p_at
    from forebay._limited_positions(p_cursors, p_items) p
    join unnest(p_cursors) c on c.lane = p.lane
    where p.is_moved or c.items = 0 and (forebay._should_move(c.start, c.now, c.claimed_at) or forebay._is_old_cursor(c.start))
$$;
