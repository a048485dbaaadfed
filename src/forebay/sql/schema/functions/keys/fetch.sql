-- Rows of keyed jobs by lane and number, in no order.
create function forebay._fetch(p_lanes bigint[], p_seqs bigint[]) returns forebay.log[]
language plpgsql stable
as $$
declare
    v_rows  forebay.log[] := '{}';
    v_part  forebay.log[];
    v_piece record;
begin
    for v_piece in
        select s.segment_id, array_agg(u.lane) as lanes, array_agg(u.seq) as seqs
        from unnest(p_lanes, p_seqs) as u (lane, seq)
        cross join lateral (select i.segment_id from forebay.segment i where i.lo <= u.seq order by i.lo desc limit 1) s
        group by s.segment_id
    loop
        execute 'select forebay._fetch_' || v_piece.segment_id || '($1, $2)' into v_part using v_piece.lanes, v_piece.seqs;
        v_rows := v_rows || v_part;
    end loop;
    return v_rows;
end
$$;
