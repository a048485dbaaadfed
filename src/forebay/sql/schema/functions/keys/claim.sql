-- A job of a keyed lane as a claim returns it: like any other, with its ordering key, and its limit key last.
create function forebay._keyed_json(
    p_seq bigint, p_job_id bigint, p_enqueued_at timestamptz, p_expires_at timestamptz, p_attempt integer, p_pauses integer,
    {job types})
returns text
language sql stable
as $$
    select '[' || p_seq || ',"' || kind || '",' || (date_part('epoch', p_enqueued_at) * 1000000)::bigint || ',' || args
           || case when num_nonnulls(p_job_id, p_expires_at, p_attempt, p_pauses, {options but ordering_key}) = 0
                   then ',0,' || to_json(ordering_key) || ']'
                   else ',' || ltrim(json_build_array(
                       coalesce(p_job_id, p_seq), ordering_key, (date_part('epoch', p_expires_at) * 1000000)::bigint, p_attempt, p_pauses,
                       {options but ordering_key})::text, '[') end
$$;


-- forebay.claim_v1() for a keyed lane; v: the group's limiter, see forebay._take_keyed().
create function forebay._claim_keyed(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer,
    v forebay._limiter_view default null)
returns text
language plpgsql volatile
as $$
declare
    v_rows forebay.log[] := forebay._take_keyed(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit, v);
begin
    -- The order is that of the array, as nothing else happens to its rows.
    return (select string_agg(forebay._keyed_json(
                       u.seq, u.job_id, u.enqueued_at, u.expires_at, u.attempt, u.pauses,
                       {job of u}), ',')
            from unnest(v_rows) u);
end
$$;
