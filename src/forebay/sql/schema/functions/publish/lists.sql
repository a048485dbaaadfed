-- grant: operator, reader

-- The event types, with the number of their subscriptions.
create function forebay.event_types() returns table (name text, description text, subscriptions bigint, created_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select t.name, t.description, (select count(*) from forebay.subscription s where s.event_type = t.name), t.created_at
    from forebay.event_type t order by t.name
$$;


-- The subscriptions of an endpoint, or of all. `starts_at` is null for those that began with the
-- events after `created_at` and for those with `is_from_beginning`. `is_active`: the router expands
-- events for it now; false: it still catches up.
create function forebay.subscriptions(only_endpoint text default null)
returns table (subscription_id bigint, endpoint text, event_type text, filter jsonb, starts_at timestamptz, is_from_beginning boolean,
               is_active boolean, created_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select s.subscription_id, e.name, s.event_type, s.filter, s.start_at, s.start_at is null and s.start_after is null,
           s.active_at is not null, s.created_at
    from forebay.subscription s join forebay.endpoint e using (endpoint_id)
    where subscriptions.only_endpoint is null or e.name = subscriptions.only_endpoint
    order by e.name, s.event_type
$$;
