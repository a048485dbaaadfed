-- grant: operator, reader

-- Dead letters by queue, endpoint, kind, reason and class of the last error (empty: no error).
-- Null means any. Reads all dead letters, or those of all endpoints.
--
-- Columns:
--   kept, not_redriven   those that exist, and those of them that were not redriven
--   deleted              those that were deleted, of jobs that died in the last 400 days
--   last_died_on         the day of the last death, in UTC
--   keep_days            how long the queue keeps them; null: forever
--   endpoint             of deliveries: the name of the endpoint; null: they are no deliveries
--   redriven             those that exist and were redriven
--   oldest_at, newest_at  when the first and the last of those that exist died; null: none exists
create function forebay.dead_summary(only_queue text default null, only_endpoint text default null)
returns table (queue text, kind text, reason text, error_type text, kept bigint, not_redriven bigint, deleted bigint, last_died_on date,
               keep_days integer, endpoint text, redriven bigint, oldest_at timestamptz, newest_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
    select u.queue, u.kind, u.reason, u.error_type, sum(u.kept)::bigint, sum(u.kept - u.redriven)::bigint, sum(u.deleted)::bigint,
           max(u.died_on), forebay._days_of_dead(u.queue), u.endpoint, sum(u.redriven)::bigint, min(u.died_at), max(u.died_at)
    from (select d.queue, d.kind, d.reason, coalesce(left(d.errors -> -1 ->> 'type', 200), '') as error_type,
                 (d.died_at at time zone 'UTC')::date as died_on, 1 as kept, (d.redriven_at is not null)::integer as redriven, 0 as deleted,
                 case when d.queue = 'forebay.deliver' then d.limit_key end as endpoint, d.died_at
          from forebay.dead_letter d
          where dead_summary.only_endpoint is null or d.queue = 'forebay.deliver' and d.limit_key = dead_summary.only_endpoint
          union all
          select c.queue, c.kind, c.reason, c.error_type, c.died_on, 0, 0, c.deleted, nullif(c.endpoint, ''), null
          from forebay.dead_deletion c
          where dead_summary.only_endpoint is null or c.endpoint = dead_summary.only_endpoint) u
    where only_queue is null or u.queue = only_queue
    group by u.queue, u.kind, u.reason, u.error_type, u.endpoint
    order by sum(u.kept - u.redriven) desc, u.queue, u.endpoint, u.kind, u.reason, u.error_type
$$;
