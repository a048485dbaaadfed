-- Rows of one lane in ranges of transactions, which are in order, after a position; in the order (xid, seq). It ends with the row
-- that brings the jobs to p_bytes or more.
create function forebay._read_{segment}(
    p_lane bigint, p_ranges forebay._xid_range[], p_pos_xid xid8, p_pos_seq bigint, p_limit integer, p_bytes bigint,
    out rows forebay.log[], out bytes bigint)
language plpgsql stable
as $$
declare
    v_range forebay._xid_range;
    v_row   forebay.log;
begin
    rows := '{}';
    bytes := 0;
    foreach v_range in array p_ranges loop
        continue when v_range.high <= p_pos_xid;
        -- One lower bound, so that the index finds it: a second one would be compared with each row of the transaction.
        for v_row in
            select l.*
            from forebay.log_{segment} l
            where l.lane = p_lane
              and (l.xid, l.seq) > (greatest(v_range.low, p_pos_xid), case when p_pos_xid >= v_range.low then p_pos_seq else -1 end)
              and l.xid < v_range.high
            order by l.xid, l.seq
            limit p_limit - cardinality(rows)
        loop
            rows := rows || v_row;
            bytes := bytes + forebay._job_bytes(v_row.args, v_row.headers);
            if bytes >= p_bytes then
                return;
            end if;
        end loop;
        exit when cardinality(rows) >= p_limit;
    end loop;
end
$$;
