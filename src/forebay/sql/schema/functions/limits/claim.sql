-- forebay.claim_v1() for a lane of jobs with limit keys, or for a lane whose queue has limits on starts: as many jobs as the limiter
-- lets through.
--
-- Invariants "no more at once" and "no more per second" (docs/design/limits.md): all claims of the group that pass here run one
-- after another, and the limiter's row and the batch are one commit.
-- Locks, in order: the limiter, then as any claim.
create function forebay._claim_limited(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer)
returns text
language plpgsql volatile
as $$
declare
    v      forebay._limiter_view;
    v_lane record;
    v_jobs text;
    v_size integer := 0;
    v_seeds boolean;
begin
    perform set_config('synchronous_commit', 'off', true), forebay._lock_limiter(p_group_id, false);
    -- Later statements than the lock: they see what its last holder committed.
    select l.queue, l.sort, g.group_id, forebay._paused_since(g.paused_at, g.resume_at) as paused_at into v_lane
    from forebay.lane l left join forebay.queue_group g on g.group_id = p_group_id
    where l.lane = p_lane limit 1;
    if v_lane.group_id is null then
        -- include: no_such_group
    elsif v_lane.paused_at is not null then
        return null;
    end if;
    v := forebay._read_limiter(p_group_id, v_lane.queue);
    v.is_bare := v.is_bare and v_lane.sort = 'limited';
    v_seeds := v.has_new_limits or v.seed_until >= v.at;
    -- The claim of a lane of ordering keys must not have written anything before.
    if v_seeds and v_lane.sort <> 'keyed' then
        perform forebay._seed_limit_keys(v, p_group_id);
    end if;
    if v.free_slots > 0 then
        v_jobs := forebay._claim_one(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, least(p_limit, v.free_slots)::integer,
                                     v_lane.sort, v);
    end if;
    if v_seeds and v_lane.sort = 'keyed' then
        perform forebay._seed_limit_keys(v, p_group_id);
    end if;
    if v_jobs is not null and (v.limits).starts_set_at is not null then
        select cardinality(b.seqs) into v_size from forebay.batch b where b.lease_id = p_lease_id and b.claim_no = p_claim_no;
    end if;
    if v_size > 0 or v.is_changed then
        perform forebay._record_limiter(v, p_group_id, p_lease_id, p_claim_no, coalesce(v_size, 0));
    end if;
    return v_jobs;
end
$$;


-- The claim of one lane behind a limiter, whose lock is held: as in forebay.claim_v1().
create function forebay._claim_one(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer, p_sort text,
    v forebay._limiter_view)
returns text
language plpgsql volatile
as $$
declare
    v_segment bigint;
    v_jobs    text;
    v_rows    forebay.log[];
begin
    if p_sort = 'limited' then
        v_rows := forebay._take_limited(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit, v);
        select string_agg(forebay._limited_json(
                   u.seq, u.job_id, u.enqueued_at, u.expires_at, u.attempt, u.pauses,
                   {job of u but ordering_key}), ',' order by u.ordinality)
        into v_jobs
        from unnest(v_rows) with ordinality u;
        return v_jobs;
    elsif p_sort = 'keyed' then
        return forebay._claim_keyed(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit, v);
    end if;
    -- include: lock_lane
    -- include: claim_one_lane
    return v_jobs;
end
$$;


-- A job of a limited lane as a claim returns it: like any other, with its limit key last.
create function forebay._limited_json(
    p_seq bigint, p_job_id bigint, p_enqueued_at timestamptz, p_expires_at timestamptz, p_attempt integer, p_pauses integer,
    {job types but ordering_key})
returns text
language sql stable
as $$
    select '[' || p_seq || ',"' || kind || '",' || (date_part('epoch', p_enqueued_at) * 1000000)::bigint || ',' || args || ','
           || ltrim(json_build_array(
                  coalesce(p_job_id, p_seq), null, (date_part('epoch', p_expires_at) * 1000000)::bigint, p_attempt, p_pauses,
                  {options but ordering_key})::text, '[')
$$;
