-- Claim from a lane whose lock is held, into v_jobs. Null: no jobs; if v_rows is null as well, the lane was not read.

-- Where the current window continues, else the newest segment: nearly always all jobs lie there.
v_segment := coalesce(
    (select case when b.snap_to is not null then b.pos_segment end from forebay.batch b
     where b.group_id = p_group_id and b.lane = p_lane order by b.no desc limit 1),
    (select s.segment_id from forebay.segment s
     where s.lo <= pg_sequence_last_value('forebay.log_seq') order by s.lo desc limit 1));
if v_segment is not null then
    execute 'select forebay._take_' || v_segment || '($1, $2, $3, $4, $5, $6)'
        into v_jobs
        using p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit;
end if;
if v_jobs is null then
    v_rows := forebay._take(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit, false);
    select string_agg(forebay._job_json(
               u.seq, u.job_id, u.enqueued_at, u.expires_at, u.attempt, u.pauses,
               {job of u but ordering_key, limit_key}), ',' order by u.ordinality)
    into v_jobs
    from unnest(v_rows) with ordinality u;
end if;
