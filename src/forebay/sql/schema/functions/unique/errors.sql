-- Errors: JQ005.
create function forebay._raise_differs(p_key text, p_job_id bigint, p_where text) returns void
language plpgsql stable
as $$
begin
    raise exception using
        errcode = 'JQ005',
        message = format('%skey %s belongs to job %s, whose kind or arguments differ', p_where, quote_literal(left(p_key, 80)), p_job_id),
        detail = jsonb_strip_nulls(jsonb_build_object('index', substring(p_where, '[0-9]+')::bigint, 'job_id', p_job_id)),
        hint = 'An idempotency key identifies one request: use another key, or wait until that job has ended.';
end
$$;


-- Errors: JQ004.
create function forebay._raise_busy(p_key text, p_where text) returns void
language plpgsql stable
as $$
begin
    raise exception using
        errcode = 'JQ004',
        message = format('%skey %s is being taken by another open transaction', p_where, quote_literal(left(p_key, 80))),
        detail = jsonb_strip_nulls(jsonb_build_object('index', substring(p_where, '[0-9]+')::bigint, 'key', p_key)),
        hint = 'Try again when that transaction has ended, or let the enqueue wait for it: on_busy wait.';
end
$$;
