-- grant: operator

-- Send a message of the kind `forebay.test` to an endpoint, before its other deliveries; returns
-- the id of the delivery, a job. Breaker, limits and retries of the endpoint apply.
--
-- Errors: JQ050 no such endpoint, JQ052 it is disabled.
create function forebay.test_endpoint(name text) returns bigint
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
    select forebay.send(
        test_endpoint.name, jsonb_build_object('endpoint', test_endpoint.name, 'sent_at', forebay._now()), 'forebay.test', -32768,
        expires_at => forebay._now() + interval '1 hour', tag => 'forebay.test_endpoint')
$$;
