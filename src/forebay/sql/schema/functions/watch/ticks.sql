-- grant: operator, reader

-- Where no worker stays: the runs of the last 25 hours that ended by themselves, by `forebay tick` and
-- `forebay worker --until-idle`. A row for those with the same group and queues. The newest 500 leases that have ended are read.
-- Where a worker that stays was there since, a run says nothing of when the next one comes: such a queue is not among those of the
-- run, and schedules likewise.
--
-- Columns:
--   queues       those that the runs serve; at most 100
--   schedules    whether they decide the instants of schedules
--   alone        whether no worker that stays, of any queue, was there since
--   ended_at     when the last one ended
--   expected_by  when the next one is late: after twice the longest time between the ends of two of them, at
--                least two minutes, at most 25 hours. Until then the queues count as served
--
-- Transaction: the caller's; reads only.
-- See: docs/howto/ticks.md
-- pages: 20 + 2 an ended lease
create function forebay.ticks()
returns table (group_name text, queues text[], schedules boolean, alone boolean, ended_at timestamptz, expected_by timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
    with lease as materialized (select * from forebay._recent_leases()),
    -- Details are what a worker says: nothing in them may make this fail.
    said as materialized (
        select coalesce(e.details ->> 'group', 'default') as group_name, e.details -> 'queues' as queues,
               e.details -> 'schedules' is distinct from 'false' as schedules, e.details -> 'until_idle' = 'true' as is_run, e.closed_at
        from lease e
        where jsonb_typeof(e.details -> 'queues') = 'array'),
    stayed as materialized (
        select s.group_name, q.queue, max(s.closed_at) as until
        from said s cross join lateral jsonb_array_elements_text(s.queues) q (queue)
        where s.is_run is not true
        group by s.group_name, q.queue),
    stayed_last as materialized (
        select coalesce(max(s.closed_at), '-infinity') as until,
               coalesce(max(s.closed_at) filter (where s.schedules), '-infinity') as decided_until
        from said s where s.is_run is not true),
    run as (
        select r.group_name, u.queues, r.schedules and r.closed_at > l.decided_until as schedules, r.closed_at > l.until as alone, r.closed_at
        from said r
        cross join stayed_last l
        cross join lateral (
            select array_agg(q.queue order by q.nr) as queues
            from jsonb_array_elements_text(r.queues) with ordinality q (queue, nr)
            left join stayed s on s.group_name = r.group_name and s.queue = q.queue
            where r.closed_at > coalesce(s.until, '-infinity')) u
        where r.is_run and r.closed_at < 'infinity'),
    gap as (
        select r.*, r.closed_at - lag(r.closed_at) over (partition by r.group_name, r.queues, r.schedules order by r.closed_at) as gap
        from run r where r.queues is not null or r.schedules)
    select g.group_name, coalesce(g.queues, '{}'), g.schedules, (array_agg(g.alone order by g.closed_at desc))[1], max(g.closed_at),
           max(g.closed_at) + least(greatest(2 * max(g.gap), interval '2 minutes'), interval '25 hours')
    from gap g
    group by g.group_name, g.queues, g.schedules
$$;
