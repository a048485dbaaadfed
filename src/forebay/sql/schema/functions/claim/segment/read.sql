-- Rows of one lane that a window covers, in the order (xid, seq), after a position.
-- Range part: from the window's start on. Late part: xids in progress at its start.
-- It ends with the row that brings the jobs to p_bytes or more.
create function forebay._read_{segment}(
    p_lane bigint, p_from_xmax xid8, p_to pg_snapshot, p_late xid8[],
    p_pos_xid xid8, p_pos_seq bigint, p_limit integer, p_bytes bigint, out rows forebay.log[], out bytes bigint)
language plpgsql stable
as $$
declare
    v_lo_xid xid8 := p_from_xmax;
    v_lo_seq bigint := -1;
    v_row    forebay.log;
begin
    rows := '{}';
    bytes := 0;
    if p_pos_xid >= p_from_xmax then
        v_lo_xid := p_pos_xid;
        v_lo_seq := p_pos_seq;
    end if;
    if cardinality(p_late) = 0 then
        for v_row in
            select l.*
            from forebay.log_{segment} l
            where l.lane = p_lane
              and (l.xid, l.seq) > (v_lo_xid, v_lo_seq)
              and l.xid < pg_snapshot_xmax(p_to)
              and pg_visible_in_snapshot(l.xid, p_to)
            order by l.xid, l.seq
            limit p_limit
        loop
            rows := rows || v_row;
            bytes := bytes + forebay._job_bytes(v_row.args, v_row.headers);
            exit when bytes >= p_bytes;
        end loop;
        return;
    end if;
    for v_row in
        select w.*
        from (
            (select l.*
             from unnest(p_late) as late (xid),
                  lateral (select * from forebay.log_{segment} i
                           where i.lane = p_lane and i.xid = late.xid
                             and (i.xid, i.seq) > (p_pos_xid, p_pos_seq)
                           order by i.seq limit p_limit) l)
            union all
            (select l.*
             from forebay.log_{segment} l
             where l.lane = p_lane
               and (l.xid, l.seq) > (v_lo_xid, v_lo_seq)
               and l.xid < pg_snapshot_xmax(p_to)
               and pg_visible_in_snapshot(l.xid, p_to)
             order by l.xid, l.seq
             limit p_limit)
        ) w
        order by w.xid, w.seq
        limit p_limit
    loop
        rows := rows || v_row;
        bytes := bytes + forebay._job_bytes(v_row.args, v_row.headers);
        exit when bytes >= p_bytes;
    end loop;
end
$$;
