-- The first rows of runs of jobs, at most p_most of each run, with the number of the run.
create function forebay._fetch_limited_{segment}(
    p_nrs bigint[], p_lanes bigint[], p_xids xid8[], p_after bigint[], p_seqs_to bigint[], p_most bigint[])
returns table (nr bigint, job forebay.log)
language plpgsql stable
as $$
begin
    return query
    select u.nr, row(l.*)::forebay.log
    from unnest(p_nrs, p_lanes, p_xids, p_after, p_seqs_to, p_most) u (nr, lane, xid, after, seq_to, most),
         lateral (select * from forebay.log_{segment} i
                  where i.lane = u.lane and i.xid = u.xid and i.seq > u.after and i.seq <= u.seq_to
                  order by i.seq limit u.most) l;
end
$$;
