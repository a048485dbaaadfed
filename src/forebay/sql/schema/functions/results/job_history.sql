-- grant: operator, reader

-- The history of a job, a row for each group that has any: failed attempts (`errors`, oldest
-- first), the newest progress, the kept result. An error has `attempt` (from 1), `max_attempts`
-- (null: unknown), `failed_at`, `outcome`, `type`, `message`, `traceback` and `worker`.
-- pages: 60
create function forebay.job_history(job_id bigint)
returns table (group_name text, errors jsonb, done double precision, note text, recorded_at timestamptz,
               value jsonb, problem text, kept_at timestamptz, kept_until timestamptz)
language plpgsql stable security definer
rows 2
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_group record;
begin
    for v_group in
        select g.group_id, g.name from forebay.queue_group g
        where g.group_id in (select f.group_id from forebay.failure f where f.job_id = job_history.job_id
                             union select p.group_id from forebay.progress p where p.job_id = job_history.job_id
                             union select r.group_id from forebay.result r where r.job_id = job_history.job_id)
        order by g.created_at, g.group_id
    loop
        group_name := v_group.name;
        select coalesce(jsonb_agg(jsonb_build_object(
                   'attempt', f.attempt, 'failed_at', f.failed_at, 'outcome', f.outcome, 'type', f.error_type,
                   'message', f.message, 'traceback', f.traceback, 'worker', f.worker, 'max_attempts', f.max_attempts) order by f.failed_at), '[]')
        into errors
        from forebay.failure f where f.job_id = job_history.job_id and f.group_id = v_group.group_id;
        select p.done, p.note, p.recorded_at into done, note, recorded_at
        from forebay.progress p where p.job_id = job_history.job_id and p.group_id = v_group.group_id
        order by p.recorded_at desc limit 1;
        select r.value, r.problem, r.kept_at, r.kept_until into value, problem, kept_at, kept_until
        from forebay.result r where r.job_id = job_history.job_id and r.group_id = v_group.group_id
        order by r.kept_at desc limit 1;
        return next;
    end loop;
end
$$;
