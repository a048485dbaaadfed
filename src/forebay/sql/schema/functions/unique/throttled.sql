-- grant: producer, reader

-- The jobs that hold throttle keys of a queue: a row for each of the keys that has one, with its
-- newest job. A key is there until a day after its period, whatever became of the job. The sink
-- `forebay` reads back with it what it enqueued. At most 10,000 keys in one call are wise.
--
-- See: docs/design/unique.md#keys-that-outlive-their-jobs
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
