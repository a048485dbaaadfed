-- A JSON value without its texts and numbers, for the event log: of an object each member is masked, with its name. A value that differs from
-- that before says so.
create function forebay._masked(p_value jsonb, p_before jsonb default null) returns jsonb
language sql immutable
as $$
    select case jsonb_typeof(p_value)
           when 'null' then p_value
           when 'object' then (
               select coalesce(jsonb_object_agg(i.key, '***' || case when p_before is not null and i.value is distinct from p_before -> i.key
                                                                     then ' (changed)' else '' end), '{}')
               from jsonb_each(p_value) i)
           else to_jsonb('***' || case when p_value <> p_before then ' (changed)' else '' end) end
$$;


-- What the event log says of a schedule: its arguments and headers are masked. p_before: the schedule before a change.
create function forebay._recorded_schedule(s forebay.schedule, p_before forebay.schedule default null) returns jsonb
language sql stable
as $$
    select f || jsonb_build_object('args', forebay._masked(s.args, (p_before).args))
           || case when s.options ? 'headers'
                   then jsonb_build_object('options', s.options || jsonb_build_object(
                            'headers', forebay._masked(s.options -> 'headers', (p_before).options -> 'headers')))
                   else '{}' end
    from forebay._schedule_facts(s) f
$$;


-- What the event log says of an endpoint: of addresses only the host, and its headers are masked. Its secrets are references. p_before: the
-- endpoint before a change.
create function forebay._recorded_endpoint(e forebay.endpoint, p_before forebay.endpoint default null) returns jsonb
language sql stable
as $$
    select forebay._endpoint_facts(e) || jsonb_build_object('config', (
        select coalesce(jsonb_object_agg(i.key, case
                   when i.key = 'headers' then forebay._masked(i.value, (p_before).config -> 'headers')
                   when i.value::text ~ '://' then
                       to_jsonb(regexp_replace(i.value #>> '{}', '://([^/?#"]*@)?([^/?#"]*)[^"]*', E'://\\2/***', 'g')
                                || case when i.value <> (p_before).config -> i.key then ' (changed)' else '' end)
                   else i.value end), '{}')
        from jsonb_each(e.config) i))
$$;
