-- grant: worker, operator, reader

-- How the jobs ended that a callback of forebay.enqueue_gather() waited for, in their order.
--
-- Columns:
--   nr       which of the jobs, from 1
--   job_id   its id; of one that was redriven, the newest
--   outcome  done, dead or cancelled; null: it has not ended
--   value    what its handler returned, as JSON text; null for nothing, and without `with_values`
--   problem  why the value is missing, or how the job died
--
-- Errors: JQ013 the job is no callback, or what it waited for is past retention. A job that was
--   replayed is no callback.
-- pages: 60 + 2 a job
create function forebay.gathered(callback_id bigint, with_values boolean default true)
returns table (nr integer, job_id bigint, outcome text, value text, problem text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_gather forebay.gather;
begin
    select g.* into v_gather
    from forebay.step s join forebay.gather g on g.gather_id = (s.value ->> 'gather')::bigint
    where s.job_id = gathered.callback_id and s.group_id = 0 and s.kind = 'g';
    if not found then
        raise exception using errcode = 'JQ013',
            message = format('job %s is no callback of a gather, or what it waited for is past retention', coalesce(gathered.callback_id::text, 'null')),
            detail = jsonb_build_object('job_id', gathered.callback_id),
            hint = 'forebay.enqueue_gather() makes a callback. A replayed job has no results: gather again.';
    end if;
    return query
    select g.nr, g.job_id, g.outcome, case when gathered.with_values then g.value end, g.problem from forebay.gathered_v1(v_gather.gather_id) g;
end
$$;
