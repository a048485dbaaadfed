-- Rows of a lane of keyed jobs that a window covers, in the order of their numbers. Transactions that began after the window's
-- start have numbers above p_low; those in progress at the start are searched by xid below it.
-- It ends with the row that brings the jobs to p_bytes or more.
create function forebay._read_keyed_{segment}(
    p_lane bigint, p_from pg_snapshot, p_low bigint, p_to pg_snapshot, p_late xid8[], p_pos_seq bigint, p_limit integer,
    p_bytes bigint, out rows forebay.log[], out bytes bigint)
language plpgsql stable
as $$
declare
    v_row forebay.log;
begin
    rows := '{}';
    bytes := 0;
    for v_row in
        select w.*
        from (
            (select l.*
             from unnest(p_late) as late (xid),
                  lateral (select * from forebay.log_{segment} i
                           where i.lane = p_lane and i.xid = late.xid and i.seq > p_pos_seq and i.seq <= p_low
                           order by i.seq limit p_limit) l)
            union all
            (select l.*
             from forebay.log_{segment} l
             where l.lane = p_lane and l.ordering_key is not null and l.seq > greatest(p_low, p_pos_seq)
               and pg_visible_in_snapshot(l.xid, p_to)
               and not pg_visible_in_snapshot(l.xid, p_from)
             order by l.seq
             limit p_limit)
        ) w
        order by w.seq
        limit p_limit
    loop
        rows := rows || v_row;
        bytes := bytes + forebay._job_bytes(v_row.args, v_row.headers);
        exit when bytes >= p_bytes;
    end loop;
end
$$;
