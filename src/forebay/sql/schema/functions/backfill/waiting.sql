-- grant: producer, worker

-- The queue of a backfill, and how many jobs wait there, ready or scheduled, for the group that is
-- furthest behind: in all, and of the priority in `options`. It visits each of these jobs.
--
-- Errors: JQ001 bad options.
create function forebay.backfill_waiting_v1(kind text, options jsonb, out waiting bigint, out waiting_alike bigint, out queue text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(max(g.waiting), 0)::bigint, coalesce(max(g.alike), 0)::bigint, max(o.options ->> 'queue')
    from (select forebay._backfill_options(backfill_waiting_v1.kind, backfill_waiting_v1.options) as options) o
    left join lateral (
        select sum(d.scheduled + d.ready + d.retrying) as waiting,
               sum(d.scheduled + d.ready + d.retrying) filter (where d.priority::text = o.options ->> 'priority') as alike
        from forebay.depth(o.options ->> 'queue') d
        group by d.group_name) g on true
$$;
