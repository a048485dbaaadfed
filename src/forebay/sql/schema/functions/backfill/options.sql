-- The options of a backfill with their defaults, checked. The default queue is that of the kind.
--
-- Errors: JQ001.
create function forebay._backfill_options(p_kind text, p_options jsonb) returns jsonb
language plpgsql stable
as $$
declare
    v_subjects constant boolean := coalesce(p_options -> 'subjects' = 'true', false);
    v_keys constant text[] := array['args', 'queue', 'priority', 'delay', 'run_at', 'expires_at', 'subjects', {options keys}]
        || case when v_subjects then 'version' else 'expires_in' end;
    v_given jsonb;
begin
    if p_options is null or jsonb_typeof(p_options) <> 'object' then
        raise exception using errcode = 'JQ001', column = 'options',
            message = format('options must be a JSON object, not %s', coalesce(jsonb_typeof(p_options), 'null'));
    elsif p_options - v_keys <> '{}' then
        raise exception using errcode = 'JQ001', column = 'options',
            message = format('unknown option %s', (select quote_literal(left(k, 40)) from jsonb_object_keys(p_options - v_keys) k limit 1)),
            hint = format('The options for all jobs are %s. Options that differ from job to job, such as unique_as, are columns of the query.',
                          array_to_string(v_keys, ', '));
    end if;
    v_given := coalesce((select jsonb_object_agg(o.key, o.value) from jsonb_each(p_options) o where o.value <> 'null'), '{}');
    if jsonb_typeof(coalesce(v_given -> 'args', '{}')) <> 'object' then
        raise exception using errcode = 'JQ001', column = 'options',
            message = format('option args must be a JSON object, not %s', jsonb_typeof(v_given -> 'args'));
    end if;
    if jsonb_typeof(coalesce(v_given -> 'subjects', 'true')) <> 'boolean' then
        raise exception using errcode = 'JQ001', column = 'options',
            message = format('option subjects must be true or false, not %s', v_given -> 'subjects');
    end if;
    return jsonb_build_object('queue', coalesce(v_given ->> 'queue', forebay.queue_of(p_kind), 'default'))
        -- Jobs of a backfill run behind all others. A subject stays, and comes again as any of its kind.
        || case when v_subjects then '{}' else '{"priority": 1000, "tag": "backfill"}'::jsonb end
        || (v_given - case when v_subjects then '' else 'subjects' end);
end
$$;
