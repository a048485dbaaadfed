-- Has a segment a table? The catalog is read as it is now, also in a transaction with an old snapshot of the registry.
create function forebay._has_table(p_segment_id bigint) returns boolean
language sql stable
as $$ select to_regclass('forebay.log_' || p_segment_id) is not null $$;


-- The rows in front of cursors, in one snapshot: for each, the number of the cursor and p_columns of the row l.
--
-- Invariant "flat cost": reads segments that may have such rows, each by name. Reading the partitioned log would lock all of them.
-- A cursor's `start` is what the group has not to read of the lane: '1:1:' for a private lane.
-- Parameters: p_condition, on a row i of the log; the index on lane, xid and seq can use it.
create function forebay._unread_sql(p_cursors forebay._cursor[], p_columns text, p_condition text default 'true') returns text
language sql stable
as $$
    select coalesce(string_agg(format(
        'select c.nr, %s
         from unnest($1) c
         cross join lateral unnest(forebay._xid_ranges(coalesce(c.snap_from, c.start), pg_current_snapshot()) || forebay._own_xid_range()) r
         cross join lateral (
             select i.* from forebay.log_%s i
             where i.lane = c.lane and i.xid >= r.low and i.xid < r.high and i.kind <> '''' and %s
               and case when c.snap_from is null then not pg_visible_in_snapshot(i.xid, c.start)
                        else not forebay._is_consumed(i.xid, i.seq, c.snap_from, c.snap_to, c.lo, c.hi, c.pos_xid, c.pos_seq) end
             offset 0) l',
        p_columns, s.segment_id, p_condition), ' union all ' order by s.segment_id),
        format('select c.nr, %s from unnest($1) c, (select (null::forebay.log).* where false) l', p_columns))
    from forebay.segment s left join forebay.seal f using (segment_id),
         (select min(pg_snapshot_xmin(coalesce(c.snap_from, c.start))) as xid from unnest(p_cursors) c) oldest
    where s.removed_at is null and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)
      and s.lo >= forebay._archived_below() and (f.xid is null or f.xid > oldest.xid) and forebay._has_table(s.segment_id)
$$;


-- How many rows are in front of each cursor, how many of them are the caller's own, and when the oldest job was enqueued.
-- With p_most no more rows than that are visited.
create function forebay._waiting_unread(p_cursors forebay._cursor[], p_most bigint default null)
returns table (nr bigint, unread bigint, own bigint, oldest timestamptz)
language plpgsql stable
-- planner: in order
as $$
begin
    return query execute
        'select u.nr, count(*), count(*) filter (where u.xid = pg_current_xact_id_if_assigned()), min(u.enqueued_at) from ('
        || forebay._unread_sql(p_cursors, 'l.xid, l.enqueued_at') || coalesce(' limit ' || p_most, '') || ') u group by u.nr'
        using p_cursors;
end
$$;


-- The rows of a kind in front of each cursor.
create function forebay._unread_of_kind(p_cursors forebay._cursor[], p_kind text)
returns table (nr bigint, job_id bigint, seq bigint, tag text, attempt integer, enqueued_at timestamptz, expires_at timestamptz)
language plpgsql stable
-- planner: in order
as $$
begin
    return query execute
        'select u.nr, u.job_id, u.seq, u.tag, u.attempt, u.enqueued_at, u.expires_at from ('
        || forebay._unread_sql(p_cursors, 'l.kind, l.job_id, l.seq, l.tag, l.attempt, l.enqueued_at, l.expires_at') || ') u where u.kind = $2'
        using p_cursors, p_kind;
end
$$;


-- The ids of jobs, by their rows' lanes, xids and numbers.
create function forebay._job_ids(p_lanes bigint[], p_xids xid8[], p_seqs bigint[]) returns table (seq bigint, job_id bigint)
language plpgsql stable
-- planner: in order
as $$
declare
    v_piece record;
begin
    for v_piece in
        select s.segment_id, array_agg(u.lane) as lanes, array_agg(u.xid) as xids, array_agg(u.seq) as seqs
        from unnest(p_lanes, p_xids, p_seqs) as u (lane, xid, seq)
        cross join lateral (select i.segment_id from forebay.segment i where i.lo <= u.seq order by i.lo desc limit 1) s
        group by s.segment_id
    loop
        return query execute format(
            'select u.seq, l.job_id from unnest($1, $2, $3) u (lane, xid, seq)
             cross join lateral (select i.job_id from forebay.log_%s i
                                 where i.lane = u.lane and i.xid = u.xid and i.seq = u.seq limit 1) l', v_piece.segment_id)
            using v_piece.lanes, v_piece.xids, v_piece.seqs;
    end loop;
end
$$;
