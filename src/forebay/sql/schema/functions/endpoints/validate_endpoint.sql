-- grant: operator

-- What forebay.create_endpoint() would refuse about an endpoint with these settings; no row: it
-- would take them. Nothing is written. A name that is taken is no problem, so that a change can be
-- checked before forebay.alter_endpoint(). What a name of a host leads to is not known here:
-- forebay.test_endpoint() tells it.
--
-- Columns:
--   field    the parameter, or `config.` and the setting of the sink
--   problem  what is wrong with it; no value of the configuration is repeated, but for scheme and
--            host of an address
--   hint     what to do
create function forebay.validate_endpoint(
    name text, sink text, config jsonb, retry jsonb default null, rate double precision default null,
    burst integer default null, concurrency integer default null, breaker_threshold integer default null,
    breaker_cooldown integer default null, disable_after interval default null, max_waiting bigint default 1000000,
    max_age interval default null, keeps_response boolean default false, disable_on_gone boolean default true,
    when_full text default 'refuse')
returns table (field text, problem text, hint text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select p.field, p.problem, p.hint
    from forebay._endpoint_problems(jsonb_populate_record(null::forebay.endpoint, jsonb_build_object(
             'name', validate_endpoint.name, 'sink', validate_endpoint.sink, 'config', validate_endpoint.config,
             'retry', validate_endpoint.retry, 'rate', validate_endpoint.rate, 'burst', validate_endpoint.burst,
             'concurrency', validate_endpoint.concurrency, 'breaker_threshold', validate_endpoint.breaker_threshold,
             'breaker_cooldown', validate_endpoint.breaker_cooldown, 'disable_after', validate_endpoint.disable_after,
             'max_waiting', nullif(validate_endpoint.max_waiting, 0), 'max_age', validate_endpoint.max_age,
             'keeps_response', validate_endpoint.keeps_response, 'disable_on_gone', validate_endpoint.disable_on_gone, 'when_full', validate_endpoint.when_full))) p
$$;
