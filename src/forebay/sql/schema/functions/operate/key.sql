-- grant: operator, reader

-- One key of a queue, with the columns of forebay.keys: a row for each group of the queue, also if
-- no job of the key waits or the key was never used. It does not visit other keys.
--
-- Errors: JQ001 both keys or neither.
-- Transaction: the caller's; reads only.
-- pages: 500 + 40 an open lease + 2 a waiting job
create function forebay.key(queue text, ordering_key text default null, limit_key text default null)
returns table (group_name text, sort text, key text, waiting bigint, running bigint, reason text, until timestamptz,
               blocking_jobs bigint[], blocking_workers text[], held_by bigint, first_job_id bigint, waits_for text, pause_at timestamptz, resume_at timestamptz, limits jsonb, breaker jsonb)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_column
begin
    if num_nonnulls(key.ordering_key, key.limit_key) <> 1 then
        raise exception using errcode = 'JQ001', column = 'key', message = 'key: give an ordering_key or a limit_key, and not both';
    end if;
    return query
    select g.name, k.*
    from forebay.queue_group g
    cross join lateral forebay._show_keys(g.group_id, array_remove(array[key.ordering_key], null), array_remove(array[key.limit_key], null)) k
    where g.queue = key.queue
    order by g.name;
end
$$;
