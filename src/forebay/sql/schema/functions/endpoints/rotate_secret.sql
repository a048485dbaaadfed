-- grant: operator

-- Sign the messages of an endpoint with a new secret, a reference: `env:NAME` or `file:/path`. The
-- old secrets sign too until `grace` has passed, 0 to 30 days, so that the receiver can change to
-- the new one meanwhile.
--
-- Errors: JQ001 the sink does not sign, the secret is not a reference or is in use, or more than 10
--   secrets would sign; JQ050 no such endpoint.
-- Locks: the endpoint, until the transaction ends. Reports about its deliveries wait.
create function forebay.rotate_secret(endpoint text, secret text, grace interval default '24 hours') returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_at       constant timestamptz := forebay._now();
    v_endpoint constant forebay.endpoint := forebay._lock_endpoint(rotate_secret.endpoint);
    v_current  constant jsonb := coalesce(nullif(v_endpoint.config -> 'secrets', 'null'), '[]');
    v_retired  jsonb;
    v_problem  text;
begin
    select coalesce(jsonb_agg(r), '[]') into v_retired
    from (select i from jsonb_array_elements(v_endpoint.retired_secrets) i where (i ->> 'until')::timestamptz > v_at
          union all
          select jsonb_build_object('secret', s, 'until', v_at + grace) from jsonb_array_elements(v_current) s where grace > interval '0') o (r);
    v_problem := case
        when not exists (select from forebay.sink_type t where t.name = v_endpoint.sink and 'secrets' = any (t.settings))
            then format('the sink %s of endpoint %s does not sign', v_endpoint.sink, quote_literal(v_endpoint.name))
        when (rotate_secret.secret ~ '^(env|file):.') is not true then 'secret is not a reference, "env:NAME" or "file:/path"'
        when v_current ? rotate_secret.secret then format('secret %s is in use already', quote_literal(left(rotate_secret.secret, 80)))
        when (grace between interval '0' and interval '30 days') is not true
            then format('grace %s is outside 0 to 30 days', coalesce(grace::text, 'null'))
        when jsonb_array_length(v_retired) >= 10 then format('%s secrets are in their grace, the limit is 9', jsonb_array_length(v_retired)) end;
    if v_problem is not null then
        raise exception using errcode = 'JQ001', column = case when v_problem like 'grace%' then 'grace' else 'secret' end,
            message = v_problem, hint = 'Nothing was changed.';
    end if;
    update forebay.endpoint e
    set config = jsonb_set(e.config, '{secrets}', jsonb_build_array(rotate_secret.secret)), retired_secrets = v_retired, changed_at = v_at
    where e.endpoint_id = v_endpoint.endpoint_id;
    perform forebay._renew_endpoint(v_endpoint.endpoint_id);
    perform forebay._record_event(
        'endpoints.rotate', p_subject_id => v_endpoint.endpoint_id,
        p_old => jsonb_build_object('name', v_endpoint.name, 'secrets', v_current),
        p_new => jsonb_build_object('name', v_endpoint.name, 'secrets', jsonb_build_array(rotate_secret.secret), 'grace', grace));
end
$$;
