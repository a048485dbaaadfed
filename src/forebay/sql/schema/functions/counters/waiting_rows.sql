-- Is a row of the log behind a cursor, or older than the group?
create function forebay._is_behind(p_xid xid8, p_seq bigint, c forebay._cursor) returns boolean
language sql immutable
as $$
    select case when c.snap_from is null then pg_visible_in_snapshot(p_xid, c.start)
                else forebay._is_consumed(p_xid, p_seq, c.snap_from, c.snap_to, c.lo, c.hi, c.pos_xid, c.pos_seq) end
$$;


-- The rows of the log that the last counts do not have: in plain lanes all, in keyed lanes those in front of the cursor.
--
-- Invariant "flat cost": reads segments that may have such rows, each by name, and the rows by ranges of transactions.
create function forebay._waiting_appended(p_bases forebay._waiting_base[], p_lanes forebay._waiting_lane[]) returns setof forebay._waiting_rows
language plpgsql stable
-- planner: in order
as $$
declare
    v_oldest xid8 := (select min((b.ranges[1]).low) from unnest(p_bases) b);
    v_sql    text;
begin
    select string_agg(format(
        'select l.nr, i.xid, i.seq from unnest($1) b cross join lateral unnest(b.ranges) r join unnest($2) l on l.base = b.nr and not l.is_keyed
         cross join lateral (
             select i.xid, i.seq from forebay.log_%1$s i
             where i.lane = (l.cursor).lane and i.xid >= r.low and i.xid < r.high and (i.lane & 1 = 0 or i.kind <> '''') offset 0) i
         union all
         select l.nr, i.xid, i.seq from unnest($1) b cross join lateral unnest(b.ranges) r join unnest($2) l on l.base = b.nr and l.is_keyed
         cross join lateral (
             select i.xid, i.seq from forebay.log_%1$s i
             where i.lane = (l.cursor).lane and i.xid >= r.low and i.xid < r.high and i.kind <> '''' and not forebay._is_behind(i.xid, i.seq, l.cursor)
             offset 0) i', s.segment_id), ' union all ')
    into v_sql
    from forebay.segment s left join forebay.seal f using (segment_id)
    where s.removed_at is null and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0) and s.lo >= forebay._archived_below()
      and (f.xid is null or f.xid > v_oldest) and forebay._has_table(s.segment_id);
    if v_sql is null or v_oldest is null then
        return;
    end if;
    return query execute
        'select u.nr, count(*), count(*) filter (where u.xid = pg_current_xact_id_if_assigned()),
                min(u.seq) filter (where u.xid is distinct from pg_current_xact_id_if_assigned())
         from (' || v_sql || ') u group by u.nr' using p_bases, p_lanes;
end
$$;


-- The rows of keyed lanes that the last count had in front of the cursor, and that are behind it now; low is the lowest number of
-- those that are still in front of it and not above the highest number behind it.
--
-- A keyed lane is read in the order of numbers, so these rows lie between the lowest number in front of the earlier cursor and the
-- highest number behind the present one.
create function forebay._waiting_passed(p_bases forebay._waiting_base[], p_lanes forebay._waiting_lane[]) returns setof forebay._waiting_rows
language plpgsql stable
-- planner: in order
as $$
declare
    v_low  bigint;
    v_high bigint;
    v_sql  text;
begin
    select min((l.before).low), max(l.high_seq) into v_low, v_high from unnest(p_lanes) l where l.is_keyed;
    if v_low is null then
        return;
    end if;
    select string_agg(format(
        'select l.nr, i.seq, i.is_behind from unnest($1) b join unnest($2) l on l.base = b.nr and l.is_keyed
         cross join lateral (
             select i.seq, forebay._is_behind(i.xid, i.seq, l.cursor) as is_behind from forebay.log_%s i
             where i.lane = (l.cursor).lane and i.ordering_key is not null and i.seq >= (l.before).low and i.seq <= l.high_seq and i.kind <> ''''
               and pg_visible_in_snapshot(i.xid, b.snap) and not forebay._is_behind(i.xid, i.seq, (l.before).at)
             offset 0) i', s.segment_id), ' union all ')
    into v_sql
    from forebay.segment s
    where s.removed_at is null and s.hi > v_low and s.lo <= v_high and s.lo >= forebay._archived_below() and forebay._has_table(s.segment_id);
    if v_sql is null then
        return;
    end if;
    return query execute
        'select u.nr, count(*) filter (where u.is_behind), 0::bigint, min(u.seq) filter (where not u.is_behind) from (' || v_sql || ') u group by u.nr'
        using p_bases, p_lanes;
end
$$;


-- The rows in front of the cursors of lanes that were never counted. Ready jobs of plain lanes that were moved, or that the sweep has
-- expired, do not count. With p_most no more rows than that are visited.
create function forebay._waiting_first(p_bases forebay._waiting_base[], p_lanes forebay._waiting_lane[], p_most bigint)
returns setof forebay._waiting_rows
language plpgsql stable
-- planner: in order
as $$
declare
    v_cursors forebay._cursor[];
    v_nrs     bigint[];
    v_groups  bigint[];
    v_keyed   boolean[];
begin
    select array_agg(row(l.place, (l.cursor).lane, (l.cursor).start, (l.cursor).snap_from, (l.cursor).snap_to, (l.cursor).lo, (l.cursor).hi,
                         (l.cursor).pos_xid, (l.cursor).pos_seq)::forebay._cursor order by l.place),
           array_agg(l.nr order by l.place), array_agg(l.group_id order by l.place), array_agg(l.is_keyed order by l.place)
    into v_cursors, v_nrs, v_groups, v_keyed
    from (select i.nr, i.cursor, i.is_keyed, b.group_id, row_number() over (order by i.nr) as place
          from unnest(p_lanes) i join unnest(p_bases) b on b.nr = i.base where b.snap is null) l;
    if v_cursors is null then
        return;
    end if;
    return query execute
        'select ($2)[u.nr], count(*), count(*) filter (where u.xid = pg_current_xact_id_if_assigned()),
                min(u.seq) filter (where u.xid is distinct from pg_current_xact_id_if_assigned())
         from (' || forebay._unread_sql(v_cursors, 'l.xid, l.seq, l.job_id') || coalesce(' limit ' || p_most, '') || ') u
         where $5 or ($4)[u.nr]
            or not exists (select from forebay.tombstone t
                           where t.job_id = coalesce(u.job_id, u.seq) and t.group_id = ($3)[u.nr]
                             and (t.reason = ''e'' or t.reason = ''m'' and u.seq <= t.up_to))
         group by u.nr'
        using v_cursors, v_nrs, v_groups, v_keyed, pg_sequence_last_value('forebay.tombstone_seq') is null;
end
$$;
