-- A filter of jobs, checked: names without values are left out, and an endpoint is the limit key of its deliveries.
--
-- Errors: JQ001 an unknown name, a value of the wrong type, or nothing that restricts it.
create function forebay._checked_filter(p_filter jsonb) returns jsonb
language plpgsql stable
as $$
declare
    v_texts  constant text[] := array['queue', 'kind', 'tag', 'state', 'ordering_key', 'limit_key', 'unique_key', 'correlation_id', 'subject', 'endpoint'];
    v_states constant text[] := array['scheduled', 'ready', 'claimed', 'running', 'retrying'];
    v_given  jsonb;
    v_name   text;
begin
    if p_filter is null or jsonb_typeof(p_filter) <> 'object' then
        raise exception using errcode = 'JQ001', column = 'filter',
            message = format('filter must be a JSON object, not %s', coalesce(jsonb_typeof(p_filter), 'null'));
    end if;
    v_given := jsonb_strip_nulls(p_filter);
    for v_name in select jsonb_object_keys(v_given) loop
        if v_name = any (v_texts) and jsonb_typeof(v_given -> v_name) = 'string'
           or v_name = 'all' and v_given -> v_name in ('true', 'false')
           or v_name = 'ids' and jsonb_typeof(v_given -> v_name) = 'array'
              and not jsonb_path_exists(v_given -> v_name, '$[*] ? (@.type() != "number" || @ < 0 || @ > 9223372036854775807)')
           or v_name in ('enqueued_after', 'enqueued_before') and forebay._as_instant(v_given ->> v_name) is not null then
            continue;
        end if;
        raise exception using errcode = 'JQ001', column = 'filter',
            message = format('filter has %s: %s', quote_literal(left(v_name, 40)), left((v_given -> v_name)::text, 60)),
            hint = format('It has texts %s, times enqueued_after and enqueued_before, an array ids, or all: true.', array_to_string(v_texts, ', '));
    end loop;
    if v_given ->> 'state' <> all (v_states) then
        raise exception using errcode = 'JQ001', column = 'filter', message = format('state %s is not a state of an unfinished job', quote_literal(left(v_given ->> 'state', 40))),
            hint = format('States are %s.', array_to_string(v_states, ', '));
    elsif v_given - 'all' = '{}' and v_given -> 'all' is distinct from 'true' then
        raise exception using errcode = 'JQ001', column = 'filter', message = 'the filter is empty and would take every job',
            hint = 'Nothing was changed. Name a queue, kind or tag, or say all: true.';
    end if;
    if v_given ? 'endpoint' then
        if v_given ?| '{queue,limit_key}' then
            raise exception using errcode = 'JQ001', column = 'filter', message = 'the filter has endpoint with a queue or a limit key',
                hint = 'Nothing was changed. The deliveries of an endpoint are of one queue, and have its name as their limit key.';
        end if;
        v_given := v_given - 'endpoint' || jsonb_build_object('queue', 'forebay.deliver', 'limit_key', v_given ->> 'endpoint');
    end if;
    return v_given - 'all';
end
$$;


-- A text as an instant; null if it is none.
create function forebay._as_instant(p_text text) returns timestamptz
language plpgsql stable
as $$
begin
    return p_text::timestamptz;
exception when data_exception then
    return null;
end
$$;


-- The conditions of a filter on columns job_id, kind, tag and others of j, as SQL. Queue and state are not among them.
create function forebay._filter_sql(p_filter jsonb) returns text
language sql stable
as $$
    select coalesce(string_agg(format(
        case f.key when 'ids' then 'j.job_id = any (%L::bigint[])'
                   when 'enqueued_after' then 'j.enqueued_at >= %L::timestamptz'
                   when 'enqueued_before' then 'j.enqueued_at < %L::timestamptz'
                   when 'subject' then 'forebay._subject_of(j.headers) = %L'
                   else 'j.' || f.key || ' = %L' end,
        case f.key when 'ids' then translate(f.value, '[]', '{}') else f.value end), ' and '), 'true')
    from jsonb_each_text(p_filter) f
    where f.key not in ('queue', 'state')
$$;


-- The subject that a job is a run of, by its headers; null for another job. Headers can be forged, so text that is no JSON object is no error.
create function forebay._subject_of(p_headers jsonb) returns text
language plpgsql stable
as $$
begin
    if p_headers is null or not p_headers ? 'forebay-subject' then
        return null;
    end if;
    return (p_headers ->> 'forebay-subject')::jsonb ->> 'subject';
exception when data_exception or program_limit_exceeded then
    return null;
end
$$;
