-- One job as a claim returns it: a JSON array of seq, kind, time of the enqueue (microseconds since 1970) and args; and, when
-- one of them is set, of job_id, the ordering key (null: see forebay._keyed_json()), expires_at (microseconds), attempt, pauses, and the
-- options that handlers see. A job with a limit key has it last: forebay._limited_json().
create function forebay._job_json(
    p_seq bigint, p_job_id bigint, p_enqueued_at timestamptz, p_expires_at timestamptz, p_attempt integer, p_pauses integer,
    {job types but ordering_key, limit_key})
returns text
language sql stable
as $$
    select '[' || p_seq || ',"' || kind || '",' || (date_part('epoch', p_enqueued_at) * 1000000)::bigint || ',' || args
           || case when num_nonnulls(p_job_id, p_expires_at, p_attempt, p_pauses, {options but ordering_key, limit_key}) = 0
                   then ']'
                   else ',' || ltrim(json_build_array(
                       coalesce(p_job_id, p_seq), null, (date_part('epoch', p_expires_at) * 1000000)::bigint, p_attempt, p_pauses,
                       {options but ordering_key, limit_key})::text, '[') end
$$;
