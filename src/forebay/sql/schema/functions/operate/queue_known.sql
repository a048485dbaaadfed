-- grant: producer, worker, operator, reader

-- Whether a queue is in use. `has_jobs`: jobs were enqueued there, and it has not been idle for so
-- long that it was forgotten. `is_served`: a worker has served it, or forebay.open_group has opened
-- a group. A name with neither may be misspelt.
create function forebay.queue_known(queue text, out has_jobs boolean, out is_served boolean)
language sql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
    select exists (select from forebay.lane l where l.queue = queue_known.queue),
           exists (select from forebay.queue_group g where g.queue = queue_known.queue and not g.is_implied)
$$;
