-- grant: producer, worker

-- How many jobs wait, now or for a time, for the group of a queue that is furthest behind: in all, and of one priority.
-- It visits each of them. Errors: JQ001 bad options.
create function forebay.backfill_waiting_v1(options jsonb, out waiting bigint, out waiting_alike bigint)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(max(g.waiting), 0)::bigint, coalesce(max(g.alike), 0)::bigint
    from (select sum(d.scheduled + d.ready + d.retrying) as waiting,
                 sum(d.scheduled + d.ready + d.retrying) filter (where d.priority::text = o.options ->> 'priority') as alike
          from (select forebay._backfill_options(backfill_waiting_v1.options) as options) o, forebay.depth(o.options ->> 'queue') d
          group by d.group_name) g
$$;
