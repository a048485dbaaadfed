-- grant: producer, reader

-- The jobs that hold throttle keys of a queue: a row for each key that has one, with the newest job. A key is there until a day after
-- its period, whatever became of the job.
--
-- Parameters: keys, at most 10,000 in one call are wise.
-- Errors: none.
-- pages: 20 + 4 a key
create function forebay.throttled(queue text, keys text[])
returns table (key text, job_id bigint)
language sql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
    select k.key, u.job_id
    from unnest(throttled.keys) k (key)
    cross join lateral (select i.job_id from forebay.unique_key i
                        where i.queue = throttled.queue and i.mode = 't' and i.key = k.key
                        order by i.gen desc limit 1) u
$$;
