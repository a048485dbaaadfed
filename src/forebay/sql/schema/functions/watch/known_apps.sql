-- The applications that workers have reported, by group and queues, the newest first: those of open leases, and of the newest 500 leases
-- that ended in the last 25 hours. It is what a worker says of itself, so a reader judges whether it is an address.
create function forebay._known_apps() returns table (app text, group_name text, queues jsonb, until timestamptz)
language sql stable
-- planner: in order
as $$
    select l.details ->> 'app', coalesce(l.details ->> 'group', 'default'), l.details -> 'queues', max(coalesce(l.closed_at, 'infinity')) as until
    from (select i.details, i.closed_at from forebay.lease i where i.closed_at is null
          union all
          (select i.details, i.closed_at from forebay.lease i
           where i.closed_at > forebay._now() - interval '25 hours' and i.closed_as <> 'retired'
           order by i.closed_at desc limit 500)) l
    where l.details ->> 'app' is not null and jsonb_typeof(l.details -> 'queues') = 'array'
    group by 1, 2, 3
    order by until desc, 1, 2, 3
    limit 100
$$;
