-- Refuse an endpoint whose settings are out of range, or whose configuration its sink does not take.
--
-- Errors: JQ001; COLUMN names the setting. The message repeats no value of the configuration: it may be a secret.
create function forebay._check_endpoint(e forebay.endpoint) returns void
language plpgsql stable
as $$
declare
    v_problem record;
begin
    select * into v_problem from forebay._endpoint_problems(e) p limit 1;
    if found then
        raise exception using errcode = 'JQ001', column = v_problem.field, message = v_problem.problem, hint = v_problem.hint;
    end if;
end
$$;


-- What is wrong with the settings of an endpoint, in the order of the parameters.
create function forebay._endpoint_problems(e forebay.endpoint) returns table (field text, problem text, hint text)
language plpgsql stable
-- planner: indexed
as $$
declare
    v_type forebay.sink_type;
begin
    select * into v_type from forebay.sink_type t where t.name = e.sink;
    return query
    select p.field, p.text, coalesce(p.hint, case p.field
        when 'sink' then format('Types: %s. Those of other packages are known once a process with the package has recorded them.',
                                (select string_agg(t.name, ', ' order by t.name) from forebay.sink_type t))
        when 'config' then case when v_type.name is not null then format('Settings of %s that an endpoint can have: %s. The setting endpoint_settings of the deliverers gives others.',
                                                                      v_type.name, array_to_string(v_type.settings, ', ')) end
        when 'retry' then forebay._retry_hint() end,
        'Nothing was changed. See the function forebay.create_endpoint in the reference.')
    from (
        select 1 as place, 'name' as field, format('name %s of an endpoint must have 1 to 100 characters: letters, digits and _ . - only',
                                                   coalesce(quote_literal(left(e.name, 40)), 'null')) as text, null as hint
        where (e.name ~ '^[A-Za-z0-9_.-]{1,100}$') is not true
        union all
        select 2, 'sink', format('sink %s is an unknown type', coalesce(quote_literal(left(e.sink, 40)), 'null')), null where v_type.name is null
        union all
        select 3, 'config', format('config is %s, not a JSON object', coalesce(jsonb_typeof(e.config), 'null')), null
        where jsonb_typeof(e.config) is distinct from 'object'
        union all
        select 4, 'config', p, null from forebay._config_problem(e.config, v_type) p where p is not null
        union all
        select 5, h.field, h.problem, h.hint from forebay._http_problems(e.config) h
        where v_type.name = 'http' and jsonb_typeof(e.config) = 'object' and octet_length(e.config::text) <= 65536
        union all
        select 6, 'retry', p, null from forebay._retry_problem(e.retry) p where e.retry is not null and p is not null
        union all
        select 7, r.field, format('%s %s is outside %s', r.field, r.value, r.range), null
        from (values ('rate', e.rate::numeric, '0.000001 to 1000000 per second', e.rate between 0.000001 and 1000000),
                     ('burst', e.burst, '1 to 1000000', e.burst between 1 and 1000000),
                     ('concurrency', e.concurrency, '1 to 1000000', e.concurrency between 1 and 1000000),
                     ('breaker_threshold', e.breaker_threshold, '1 to 1000', e.breaker_threshold between 1 and 1000),
                     ('breaker_cooldown', e.breaker_cooldown, '5 to 3600 seconds', e.breaker_cooldown between 5 and 3600),
                     ('max_waiting', e.max_waiting, '1 to 10^12', e.max_waiting between 1 and 1000000000000)) r (field, value, range, is_within)
        where not r.is_within
        union all
        select 7, 'when_full', format('when_full %s is neither refuse nor drop', coalesce(quote_literal(left(e.when_full, 40)), 'null')), null
        where (e.when_full in ('refuse', 'drop')) is not true
        union all
        select 8, 'burst', format('burst %s without a rate', e.burst), null where e.burst is not null and e.rate is null
        union all
        select 9, r.field, format('%s %s is outside %s', r.field, r.value, r.range), null
        from (values ('disable_after', e.disable_after, '12 hours to 365 days', e.disable_after between interval '12 hours' and interval '365 days'),
                     ('max_age', e.max_age, '1 second to 10 years', e.max_age between interval '1 second' and interval '10 years'))
             r (field, value, range, is_within)
        where not r.is_within
        union all
        select 10, r.field, format('%s is null', r.field), null
        from (values ('keeps_response', e.keeps_response is null),
                     ('disable_on_gone', e.disable_on_gone is null)) r (field, is_null)
        where r.is_null) p
    order by p.place, p.field collate "C";
end
$$;


-- The problem with the configuration of a sink, or null.
create function forebay._config_problem(p_config jsonb, p_type forebay.sink_type) returns text
language sql stable
as $$
    select case
        when p_type.name is null or jsonb_typeof(p_config) is distinct from 'object' then null
        when octet_length(p_config::text) > 65536 then format('config takes %s bytes, the limit is 65536', octet_length(p_config::text))
        else coalesce(
            (select format('config has %s, which is not a setting of the sink %s', quote_literal(left(k, 40)), p_type.name)
             from jsonb_object_keys(p_config) k where k <> all (p_type.settings) order by k limit 1),
            (select format('config lacks %s, which the sink %s needs', quote_literal(r.name), p_type.name)
             from unnest(p_type.required) with ordinality r (name, nr) where not p_config ? r.name order by r.nr limit 1),
            case when p_type.name = 'http' then forebay._http_secret_problem(p_config) end) end
$$;


-- The problem with the secrets in the configuration of an HTTP endpoint, or null: all must be references.
create function forebay._http_secret_problem(p_config jsonb) returns text
language sql immutable
as $$
    select case
        when jsonb_typeof(p_config -> 'secrets') <> 'array' then 'config: secrets is not a list of references'
        when jsonb_array_length(case when jsonb_typeof(p_config -> 'secrets') = 'array' then p_config -> 'secrets' end) > 10
            then 'config: secrets has more than 10 entries'
        when exists (select from jsonb_array_elements(case when jsonb_typeof(p_config -> 'secrets') = 'array' then p_config -> 'secrets' end) s
                     where not forebay._is_reference(s))
            then 'config: secrets has an entry that is not a reference to a secret, "env:NAME" or "file:/path"'
        when jsonb_typeof(p_config -> 'auth') = 'null' then null
        when not forebay._is_reference(case when jsonb_typeof(p_config -> 'auth') = 'string'
                                            then to_jsonb(regexp_replace(p_config ->> 'auth', '^(bearer|basic) ', '', 'i')) else p_config -> 'auth' end)
            then 'config: auth is not a reference to a secret, such as "bearer env:NAME"' end
$$;


-- Does a value name a secret, instead of being one?
create function forebay._is_reference(p_value jsonb) returns boolean
language sql immutable
as $$ select case when p_value is not null then coalesce(jsonb_typeof(p_value) = 'string' and (p_value #>> '{}') ~ '^(env|file):.', false) end $$;


-- The problem with a retry policy, or null.
create function forebay._retry_problem(p_retry jsonb) returns text
language sql immutable
as $$
    select case
        when p_retry in ('"standard"', '"ulak"') then null
        when jsonb_typeof(p_retry) = 'object' then forebay._policy_problem(p_retry)
        when jsonb_typeof(p_retry) is distinct from 'array'
            then format('retry %s is neither a preset, a list of delays nor a policy', coalesce(quote_literal(left(p_retry::text, 40)), 'null'))
        when jsonb_array_length(p_retry) > 100 then format('retry has %s delays, the limit is 100', jsonb_array_length(p_retry))
        else (select format('retry has the delay %s, not a number of seconds from 0 to 2592000', left(d::text, 40))
              from jsonb_array_elements(p_retry) d
              where case when jsonb_typeof(d) = 'number' then d::numeric not between 0 and 2592000 else true end limit 1) end
$$;


-- The endpoint of a name, locked until the transaction ends.
--
-- Reports of deliverers lock the state first too, in the order of the ids, so that no two of them wait for each other.
-- Errors: JQ050.
create function forebay._lock_endpoint(p_name text) returns forebay.endpoint
language plpgsql volatile
as $$
declare
    v_endpoint forebay.endpoint;
    v_id       bigint;
begin
    -- Before the endpoint, as forebay.configure(): a default that it has is changed before this, or after its commit.
    perform from forebay.setting s where s.name = 'endpoint_concurrency' for share;
    select e.endpoint_id into v_id from forebay.endpoint e where e.name = p_name;
    perform from forebay.endpoint_state s where s.endpoint_id = v_id for update;
    select e.* into v_endpoint from forebay.endpoint e where e.endpoint_id = v_id;
    if v_endpoint.endpoint_id is null then
        perform forebay._raise_no_endpoint(p_name);
    end if;
    return v_endpoint;
end
$$;


-- Errors: JQ050.
create function forebay._raise_no_endpoint(p_name text) returns void
language plpgsql stable
as $$
begin
    raise exception using errcode = 'JQ050', message = format('endpoint %s not found', coalesce(quote_literal(left(p_name, 100)), 'null')),
        detail = jsonb_build_object('endpoint', left(p_name, 100)), hint = 'forebay.endpoints() lists all endpoints.';
end
$$;


-- The settings of an endpoint, as the event log has them.
create function forebay._endpoint_facts(e forebay.endpoint) returns jsonb
language sql stable
as $$
    select jsonb_strip_nulls(to_jsonb(e) - '{endpoint_id,retired_secrets,disabled_at,disabled_why,created_at,changed_at,version}'::text[])
$$;


-- Let deliverers see a change of an endpoint once this transaction has committed.
create function forebay._renew_endpoint(p_endpoint_id bigint) returns void
language sql volatile
as $$
    update forebay.endpoint e set version = pg_current_xact_id()::text::bigint where e.endpoint_id = p_endpoint_id;
    select nextval('forebay.endpoint_seq');
$$;


-- The breaker of an endpoint, whose key has the name; null: it has not failed since its last answer.
create function forebay._endpoint_breaker(p_name text) returns forebay.breaker
language sql stable
as $$ select b from forebay.breaker b where b.queue = 'forebay.deliver' and b.key = p_name $$;
