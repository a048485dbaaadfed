-- A delay as it counts: one before now is now. Null stays null.
create function forebay._delay_from_now(p_delay interval) returns interval
language sql immutable
as $$ select case when p_delay < interval '0' then interval '0' else p_delay end $$;


-- The problem with headers, or null. By paths: a query for each job would cost more than all its other checks.
create function forebay._headers_problem(p_headers jsonb) returns text
language sql stable
as $$
    select case when jsonb_typeof(p_headers) <> 'object' then format('headers must be a JSON object of strings, not %s', jsonb_typeof(p_headers))
                when octet_length(p_headers::text) > 8192 then format('headers take %s bytes, the limit is 8192', octet_length(p_headers::text))
                when jsonb_array_length(jsonb_path_query_array(p_headers, 'strict $.*')) > 64 then 'headers have more than 64 entries'
                when jsonb_path_exists(p_headers, 'strict $.* ? (@.type() != "string")') then 'headers must have string values' end
$$;


-- The problem with one job, or null. One line, lower case, with the value. Its delay is p_delay.
create function forebay._job_problem(p_job forebay._job_input, p_delay interval default null) returns text
language plpgsql stable
as $$
declare
    v_name constant text := '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$';
    v_starts timestamptz;
begin
    if p_job.kind is null or p_job.kind !~ v_name then
        return format('kind %s is not a name: letters, digits and _ . : - only, at most 128', coalesce(quote_literal(left(p_job.kind, 40)), 'null'));
    elsif p_job.queue is null or p_job.queue !~ v_name then
        return format('queue %s is not a name: letters, digits and _ . : - only, at most 128', coalesce(quote_literal(left(p_job.queue, 40)), 'null'));
    elsif p_job.args is null or jsonb_typeof(p_job.args) <> 'object' then
        return format('args must be a JSON object, not %s', coalesce(jsonb_typeof(p_job.args), 'null'));
    elsif p_job.priority is null or p_job.priority not between -32768 and 32767 then
        return format('priority %s is outside -32768 to 32767', coalesce(p_job.priority::text, 'null'));
    elsif p_delay is not null and p_job.run_at is not null then
        return 'delay and run_at exclude each other';
    elsif p_delay is not null and (p_delay < interval '0' or p_delay > interval '100 years') then
        return format('delay %s is outside 0 to 100 years', p_delay);
    elsif p_job.run_at is not null and not isfinite(p_job.run_at) then
        return format('run_at %s is not a finite time', p_job.run_at);
    elsif p_job.run_at is not null and p_job.run_at > forebay._now() + interval '100 years' then
        return format('run_at %s is more than 100 years away', p_job.run_at);
    elsif p_job.expires_at is not null and (not isfinite(p_job.expires_at) or p_job.expires_at > forebay._now() + interval '200 years') then
        return format('expires_at %s is not a time within 200 years', p_job.expires_at);
    elsif p_job.max_attempts is not null and p_job.max_attempts not between 1 and 10000 then
        return format('max_attempts %s is outside 1 to 10000', p_job.max_attempts);
    elsif p_job.tag is not null and (length(p_job.tag) not between 1 and 200 or p_job.tag ~ E'[{control}]') then
        return format('tag %s must have 1 to 200 characters, none of them a control character', quote_literal(left(p_job.tag, 40)));
    elsif p_job.correlation_id is not null and (length(p_job.correlation_id) not between 1 and 200 or p_job.correlation_id ~ E'[{control}]') then
        return format('correlation_id %s must have 1 to 200 characters, none of them a control character', quote_literal(left(p_job.correlation_id, 40)));
    elsif p_job.ordering_key is not null and (length(p_job.ordering_key) not between 1 and 200 or p_job.ordering_key ~ E'[{control}]') then
        return format('ordering_key %s must have 1 to 200 characters, none of them a control character', quote_literal(left(p_job.ordering_key, 40)));
    elsif p_job.limit_key is not null and (length(p_job.limit_key) not between 1 and 200 or p_job.limit_key ~ E'[{control}]') then
        return format('limit_key %s must have 1 to 200 characters, none of them a control character', quote_literal(left(p_job.limit_key, 40)));
    end if;
    if p_job.headers is not null and forebay._headers_problem(p_job.headers) is not null then
        return forebay._headers_problem(p_job.headers);
    end if;
    if p_job.expires_at is not null then
        v_starts := coalesce(p_job.run_at, forebay._now() + coalesce(p_delay, interval '0'));
        if p_job.expires_at <= v_starts then
            return format('expires_at %s is not after the job''s start %s', p_job.expires_at, v_starts);
        end if;
    end if;
    return null;
end
$$;


-- Refuse arguments that are too large, too deep, or contain a number that clients do not read. A value of at most 500
-- bytes and 500 characters passes: each level takes 8 bytes. Both sizes count, since a number like 1e100000
-- takes a few bytes and a hundred thousand characters.
--
-- Errors: JQ001 a number of more than 4300 digits, which Python refuses to read; JQ002 too large, JQ003 too deep.
create function forebay._check_args(p_args jsonb, p_index bigint, p_noun text default 'job') returns void
language plpgsql stable
as $$
declare
    v_bytes_max bigint := forebay._setting_value('args_bytes_max');
    v_depth_max bigint := forebay._setting_value('args_depth_max');
    v_bytes     bigint := octet_length(p_args::text);
    v_where     text := case when p_index is null then '' else format('%s %s: ', p_noun, p_index) end;
begin
    if v_bytes > v_bytes_max then
        raise exception using
            errcode = 'JQ002',
            message = format('%sargs take %s bytes, the limit is %s', v_where, v_bytes, v_bytes_max),
            detail = jsonb_strip_nulls(jsonb_build_object('index', p_index, 'bytes', v_bytes, 'limit', v_bytes_max)),
            hint = 'Store the data in your own table and pass its key.';
    end if;
    if jsonb_path_exists(p_args, format('strict $.**{%s}', v_depth_max + 1)::jsonpath) then
        raise exception using
            errcode = 'JQ003',
            message = format('%sargs are nested deeper than %s levels', v_where, v_depth_max),
            detail = jsonb_strip_nulls(jsonb_build_object('index', p_index, 'depth', v_depth_max + 1, 'limit', v_depth_max)),
            hint = 'Pass flat arguments, or the nested document as a string.';
    end if;
    if v_bytes > 4300 and jsonb_path_exists(
           p_args, 'strict $.** ? (@.type() == "number" && (@ >= 1e4300 || @ <= -1e4300))') then
        raise exception using
            errcode = 'JQ001', column = 'args',
            message = format('%sargs contain a number of more than 4300 digits', v_where),
            detail = jsonb_strip_nulls(jsonb_build_object('index', p_index, 'field', 'args')),
            hint = 'Pass it as a string.';
    end if;
end
$$;
