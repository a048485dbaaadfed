-- Rows of one lane in ranges of transactions, which are in order, after a position; in the order (xid, seq).
create function forebay._read_{segment}(
    p_lane bigint, p_ranges forebay._xid_range[], p_pos_xid xid8, p_pos_seq bigint, p_limit integer) returns forebay.log[]
language plpgsql stable
as $$
declare
    v_rows  forebay.log[] := '{}';
    v_range forebay._xid_range;
begin
    foreach v_range in array p_ranges loop
        continue when v_range.high <= p_pos_xid;
        -- One lower bound, so that the index finds it: a second one would be compared with each row of the transaction.
        v_rows := v_rows || array(
            select row(l.*)::forebay.log
            from forebay.log_{segment} l
            where l.lane = p_lane
              and (l.xid, l.seq) > (greatest(v_range.low, p_pos_xid), case when p_pos_xid >= v_range.low then p_pos_seq else -1 end)
              and l.xid < v_range.high
            order by l.xid, l.seq
            limit p_limit - cardinality(v_rows));
        exit when cardinality(v_rows) >= p_limit;
    end loop;
    return v_rows;
end
$$;
