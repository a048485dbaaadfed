-- grant: worker

-- Whether deliveries wait that can run soon: those behind the rate or the concurrency of an endpoint
-- that is enabled, not paused, and whose breaker is closed. A deliverer that ends when it is idle
-- asks.
-- pages: 50 + 50 an endpoint
create function forebay.deliveries_wait_v1() returns boolean
language sql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
    select exists (
        select from forebay.queue_group g
        cross join forebay.endpoint e
        cross join lateral forebay._endpoint_waiting(e.name) w
        where g.queue = 'forebay.deliver' and g.name = 'default' and g.closing_at is null
          and forebay._paused_since(g.paused_at, g.resume_at) is null
          and e.disabled_at is null and (forebay._endpoint_breaker(e.name)).opened_at is null and w.waiting > 0
          and not exists (select from forebay.key_pause p
                          where p.queue = g.queue and p.sort = 'limit' and p.key = e.name
                            and coalesce(p.begins_at <= forebay._now(), true) and coalesce(p.resume_at > forebay._now(), true)))
$$;
