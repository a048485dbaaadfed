-- Rows of keyed jobs by lane and number.
create function forebay._fetch_{segment}(p_lanes bigint[], p_seqs bigint[]) returns forebay.log[]
language plpgsql stable
as $$
begin
    return array(
        select row(l.*)::forebay.log
        from unnest(p_lanes, p_seqs) as u (lane, seq),
             lateral (select * from forebay.log_{segment} i
                      where i.lane = u.lane and i.seq = u.seq and i.ordering_key is not null limit 1) l);
end
$$;
