-- Rows of one lane that a window covers, in the order (xid, seq), after a position.
-- Range part: from the window's start on. Late part: xids in progress at its start.
create function forebay._read_{segment}(
    p_lane bigint, p_from_xmax xid8, p_to pg_snapshot, p_late xid8[],
    p_pos_xid xid8, p_pos_seq bigint, p_limit integer) returns forebay.log[]
language plpgsql stable
as $$
declare
    v_lo_xid xid8 := p_from_xmax;
    v_lo_seq bigint := -1;
begin
    if p_pos_xid >= p_from_xmax then
        v_lo_xid := p_pos_xid;
        v_lo_seq := p_pos_seq;
    end if;
    if cardinality(p_late) = 0 then
        return array(
            select row(l.*)::forebay.log
            from forebay.log_{segment} l
            where l.lane = p_lane
              and (l.xid, l.seq) > (v_lo_xid, v_lo_seq)
              and l.xid < pg_snapshot_xmax(p_to)
              and pg_visible_in_snapshot(l.xid, p_to)
            order by l.xid, l.seq
            limit p_limit);
    end if;
    return array(
        select w.r
        from (
            (select row(l.*)::forebay.log as r, l.xid as x, l.seq as s
             from unnest(p_late) as late (xid),
                  lateral (select * from forebay.log_{segment} i
                           where i.lane = p_lane and i.xid = late.xid
                             and (i.xid, i.seq) > (p_pos_xid, p_pos_seq)
                           order by i.seq limit p_limit) l)
            union all
            (select row(l.*)::forebay.log, l.xid, l.seq
             from forebay.log_{segment} l
             where l.lane = p_lane
               and (l.xid, l.seq) > (v_lo_xid, v_lo_seq)
               and l.xid < pg_snapshot_xmax(p_to)
               and pg_visible_in_snapshot(l.xid, p_to)
             order by l.xid, l.seq
             limit p_limit)
        ) w
        order by w.x, w.s
        limit p_limit);
end
$$;
