-- grant: operator, reader

-- Dead letters by queue, kind, reason and class of the last error (empty: no error): those that
-- exist, those of them that were not redriven, those that were deleted, of jobs that died in the
-- last 400 days, and the day of the last death, in UTC. `keep_days`: how long the queue keeps them,
-- null forever. Reads all dead letters.
create function forebay.dead_summary(only_queue text default null)
returns table (queue text, kind text, reason text, error_type text, kept bigint, not_redriven bigint, deleted bigint, last_died_on date,
               keep_days integer)
language sql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
    select u.queue, u.kind, u.reason, u.error_type, sum(u.kept)::bigint, sum(u.not_redriven)::bigint, sum(u.deleted)::bigint,
           max(u.died_on), forebay._days_of_dead(u.queue)
    from (select d.queue, d.kind, d.reason, coalesce(left(d.errors -> -1 ->> 'type', 200), '') as error_type,
                 (d.died_at at time zone 'UTC')::date as died_on, 1 as kept, (d.redriven_at is null)::integer as not_redriven, 0 as deleted
          from forebay.dead_letter d
          union all
          select c.queue, c.kind, c.reason, c.error_type, c.died_on, 0, 0, c.deleted from forebay.dead_deletion c) u
    where only_queue is null or u.queue = only_queue
    group by u.queue, u.kind, u.reason, u.error_type
    order by sum(u.not_redriven) desc, u.queue, u.kind, u.reason, u.error_type
$$;
