-- The first rows of runs of jobs with limit keys, at most p_most of each run, with the number of the run.
create function forebay._fetch_limited(
    p_nrs bigint[], p_lanes bigint[], p_xids xid8[], p_after bigint[], p_seqs_to bigint[], p_most bigint[],
    out nrs bigint[], out jobs forebay.log[])
language plpgsql stable
-- planner: in order
as $$
declare
    v_piece record;
    v_part  record;
begin
    nrs := '{}';
    jobs := '{}';
    for v_piece in
        select s.segment_id, array_agg(u.nr) as nrs, array_agg(u.lane) as lanes, array_agg(u.xid) as xids, array_agg(u.after) as afters,
               array_agg(u.seq_to) as seqs_to, array_agg(u.most) as most
        from unnest(p_nrs, p_lanes, p_xids, p_after, p_seqs_to, p_most) u (nr, lane, xid, after, seq_to, most)
        cross join lateral (select i.segment_id from forebay.segment i where i.lo <= u.seq_to order by i.lo desc limit 1) s
        group by s.segment_id
    loop
        execute 'select array_agg(f.nr) as nrs, array_agg(f.job) as jobs from forebay._fetch_limited_' || v_piece.segment_id
                || '($1, $2, $3, $4, $5, $6) f'
            into v_part using v_piece.nrs, v_piece.lanes, v_piece.xids, v_piece.afters, v_piece.seqs_to, v_piece.most;
        nrs := nrs || v_part.nrs;
        jobs := jobs || v_part.jobs;
    end loop;
end
$$;
