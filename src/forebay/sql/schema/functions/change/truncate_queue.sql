-- grant: operator

-- Cancel the jobs of a queue that wait at this call: ready, scheduled and retrying ones. Running
-- jobs finish, and may run again; jobs that are enqueued later stay. Returns the number of jobs. In
-- steps: `forebay.change_jobs('truncate', ...)`. With the `token` of
-- `forebay.plan_change('truncate', ...)`, only jobs that it counted.
--
-- Errors: JQ001 no queue is given; JQ042 the token of another act.
-- See: docs/howto/manage-queues.md#cancel-what-waits-now
create function forebay.truncate_queue(queue text, token text default null) returns bigint
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(sum(c.jobs), 0)::bigint
    from forebay.change_jobs('truncate', jsonb_build_object('queue', queue), token => truncate_queue.token) c
$$;
