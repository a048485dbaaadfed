-- grant: producer, worker, operator, reader

-- The queue of a kind, as the worker that started last declares it; null when no worker has
-- declared the kind. An enqueue without a queue goes there, or to `default`.
-- pages: 10
create function forebay.queue_of(kind text) returns text
language sql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$ select k.queue from forebay.kind_queue k where k.kind = queue_of.kind $$;
