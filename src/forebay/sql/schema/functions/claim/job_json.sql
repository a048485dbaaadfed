-- One job as a claim returns it: a JSON array of seq, kind, time of the enqueue (microseconds since 1970) and args; and, when
-- one of them is set, of job_id, expires_at (microseconds), attempt, max_attempts, pauses, tag, correlation_id
-- and headers.
create function forebay._job_json(
    p_seq bigint, p_job_id bigint, p_enqueued_at timestamptz, p_expires_at timestamptz, p_attempt integer,
    p_max_attempts integer, p_pauses integer, p_kind text, p_args jsonb, p_tag text, p_correlation_id text, p_headers jsonb)
returns text
language sql stable
as $$
    select '[' || p_seq || ',"' || p_kind || '",' || (date_part('epoch', p_enqueued_at) * 1000000)::bigint || ',' || p_args
           || case when num_nonnulls(p_job_id, p_expires_at, p_attempt, p_max_attempts, p_pauses, p_tag, p_correlation_id, p_headers) = 0
                   then ']'
                   else ',' || ltrim(json_build_array(
                       coalesce(p_job_id, p_seq), (date_part('epoch', p_expires_at) * 1000000)::bigint, p_attempt, p_max_attempts, p_pauses,
                       p_tag, p_correlation_id, p_headers)::text, '[') end
$$;
