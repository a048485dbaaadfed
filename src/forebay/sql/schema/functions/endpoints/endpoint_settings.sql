-- grant: worker

-- Settings of endpoints for deliverers: those that changed after the call that returned `p_since`
-- as `version`, and the ids of all endpoints. 0 returns all; pass it also after each new
-- connection.
--
-- `endpoints` is an array of objects with `endpoint_id`, `name`, `sink`, `config`,
-- `retired_secrets` (`[{"secret", "until"}]`, which sign too until then), `retry`, `concurrency`,
-- `keeps_response`, `disable_on_gone`, `breaker_threshold`, `disabled_at` and `opened_at` (null: it is enabled, and
-- the breaker is closed), and `version`. An endpoint may be returned several times; the same
-- `version` of it has the same settings. Changes of transactions that were open during this call
-- are returned by the next one.
-- pages: 20 + 3 an endpoint
create function forebay.endpoint_settings_v1(p_since bigint, out version bigint, out ids bigint[], out endpoints jsonb)
language sql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
    -- A transaction that is open now, and one that begins later, has no number below xmin.
    select pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
           array(select e.endpoint_id from forebay.endpoint e order by e.endpoint_id),
           (select coalesce(jsonb_agg(jsonb_build_object(
                'endpoint_id', e.endpoint_id, 'name', e.name, 'sink', e.sink, 'config', e.config, 'retired_secrets', e.retired_secrets,
                'retry', e.retry, 'concurrency', e.concurrency, 'keeps_response', e.keeps_response, 'disable_on_gone', e.disable_on_gone, 'breaker_threshold', e.breaker_threshold,
                'disabled_at', e.disabled_at, 'opened_at', (forebay._endpoint_breaker(e.name)).opened_at, 'version', e.version) order by e.endpoint_id), '[]')
            from forebay.endpoint i cross join lateral forebay._with_defaults(i) e
            where i.version >= p_since)
$$;
