-- What workers have said of themselves: those of open leases, and of the newest 500 leases that ended in the last 25 hours. An open one
-- ends at infinity.
create function forebay._recent_leases() returns table (details jsonb, closed_at timestamptz)
language sql stable
-- planner: in order
as $$
    (select l.details, l.closed_at
     from forebay.lease l
     where l.closed_at > forebay._now() - interval '25 hours' and l.closed_as <> 'retired'
     order by l.closed_at desc limit 500)
    union all
    select l.details, 'infinity' from forebay.lease l where l.closed_at is null
$$;


-- The applications that workers have reported, by group and queues, the newest first. It is what a worker says of itself, so a reader judges whether it is an address.
create function forebay._known_apps() returns table (app text, group_name text, queues jsonb, until timestamptz)
language sql stable
-- planner: in order
as $$
    select l.details ->> 'app', coalesce(l.details ->> 'group', 'default'), l.details -> 'queues', max(l.closed_at) as until
    from forebay._recent_leases() l
    where l.details ->> 'app' is not null and jsonb_typeof(l.details -> 'queues') = 'array'
    group by 1, 2, 3
    order by until desc, 1, 2, 3
    limit 100
$$;
