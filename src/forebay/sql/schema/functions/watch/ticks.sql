-- grant: operator, reader

-- Where no worker stays: the runs of the last 25 hours that ended by themselves, by `forebay tick` and
-- `forebay worker --until-idle`. A row for those with the same group and queues. The newest 500 leases that have ended are read.
--
-- Columns:
--   queues       those that the runs serve; at most 100
--   schedules    whether they decide the instants of schedules
--   ended_at     when the last one ended
--   expected_by  when the next one is late: after twice the longest time between the ends of two of them, at
--                least two minutes, at most 25 hours. Until then the queues count as served
--
-- Transaction: the caller's; reads only.
-- See: docs/howto/ticks.md
-- pages: 20 + 2 an ended lease
create function forebay.ticks()
returns table (group_name text, queues text[], schedules boolean, ended_at timestamptz, expected_by timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
    with ended as materialized (
        select l.details, l.closed_at
        from forebay.lease l
        where l.closed_at > forebay._now() - interval '25 hours' and l.closed_as <> 'retired'
        order by l.closed_at desc limit 500),
    -- Details are what a worker says: nothing in them may make this fail.
    run as (
        select e.details ->> 'group' as group_name, e.details -> 'queues' as queues,
               e.details -> 'schedules' is distinct from 'false' as schedules, e.closed_at
        from ended e
        where e.details -> 'until_idle' = 'true' and jsonb_typeof(e.details -> 'queues') = 'array'),
    gap as (
        select r.*, r.closed_at - lag(r.closed_at) over (partition by r.group_name, r.queues, r.schedules order by r.closed_at) as gap
        from run r)
    select g.group_name, array(select q from jsonb_array_elements_text(g.queues) q), g.schedules, max(g.closed_at),
           max(g.closed_at) + least(greatest(2 * max(g.gap), interval '2 minutes'), interval '25 hours')
    from gap g
    group by g.group_name, g.queues, g.schedules
$$;
