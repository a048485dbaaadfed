-- grant: producer, worker

-- Enqueue jobs of any kinds, and one job, the callback, that starts when the last of them has ended:
-- done, dead or cancelled. Without jobs it starts at once. Returns the id of the callback.
--
-- The worker gives the callback's handler the arguments `results` and `died`, if it names them; see
-- forebay.gathered(). Cancelling the callback while it waits cancels the jobs that have not started.
--
-- Parameters:
--   jobs      at most 100,000, as for forebay.enqueue_many(); none has a unique key
--   callback  an object with the keys of such a job, without `delay`, `run_at`, `expires_at` and
--             `unique_as`
--   on_dead   `raise`: if a job died or was cancelled, the callback becomes a dead letter, and is
--             redriven when each such job was redriven and is done. `collect`: it runs in any case
--
-- Example:
--   select forebay.enqueue_gather('[{"kind": "part", "args": {"n": 1}}, {"kind": "part", "args": {"n": 2}}]', '{"kind": "whole"}');
--
-- Errors: JQ001 a callback that is no such job, a job with a unique key, too many jobs; those of
--   forebay.enqueue_many(). Nothing is enqueued then.
-- Transaction: any. Jobs and callback exist if, and only if, it commits.
-- pages: 120 + 8 a job
create function forebay.enqueue_gather(jobs jsonb, callback jsonb, on_dead text default 'raise') returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_variable
declare
    v_id       constant bigint := forebay._random_name();
    v_children constant integer := case jsonb_typeof(jobs) when 'array' then jsonb_array_length(jobs) end;
    v_headers  jsonb;
    v_job_id   bigint;
    v_bad      record;
begin
    select p.field, p.problem, p.hint into v_bad from (values
        ('on_dead', case when on_dead not in ('raise', 'collect') or on_dead is null
            then format('on_dead %s is neither raise nor collect', coalesce(quote_literal(left(on_dead, 40)), 'null')) end, null),
        ('callback', case when jsonb_typeof(callback) is distinct from 'object'
            then format('callback must be a JSON object, not %s', coalesce(jsonb_typeof(callback), 'null')) end, null),
        ('callback', case when jsonb_typeof(callback) = 'object' then (
            select format('a callback cannot have the option %s', k.key) from jsonb_each(callback) k
            where k.key in ('delay', 'run_at', 'expires_at', 'unique_as') and k.value not in ('null', '"none"') order by 1 limit 1) end,
            'It starts when the last job has ended; nothing else decides.'),
        ('callback', case when jsonb_typeof(callback -> 'headers') not in ('object', 'null') then 'headers must be a JSON object of strings' end, null),
        ('jobs', case when v_children > 100000 then format('%s jobs are more than 100000', v_children) end,
            'Let each job of a first gather enqueue a part of them.'),
        ('jobs', case when jobs @? '$[*].unique_as ? (@ != null && (@.type() != "string" || @ != "none"))' then 'a job has a unique key' end,
            'The key could belong to a job that is no part of the gather.')) p (field, problem, hint)
    where p.problem is not null limit 1;
    if found then
        raise exception using errcode = 'JQ001', column = v_bad.field, message = v_bad.problem,
            hint = concat_ws(' ', 'Nothing was enqueued.', v_bad.hint);
    end if;
    v_headers := coalesce(nullif(callback -> 'headers', 'null'), '{}') || jsonb_build_object('forebay-gather', on_dead);
    select e.ids[1] into v_job_id from forebay._enqueue_json(jsonb_build_array(
        callback - '{delay,run_at,expires_at}'::text[] || jsonb_build_object('unique_as', 'none', 'headers', v_headers)
        || case when v_children > 0 then jsonb_build_object('run_at', forebay._now() + interval '100 years') else '{}' end), 'callback') e;
    -- Group 0 is that of no queue: a job for all groups has these rows in none of them, where its handler may have steps.
    perform forebay._record_steps(jsonb_build_array(jsonb_build_object(
        'job_id', v_job_id, 'group_id', 0, 'no', 1, 'kind', 'g', 'name', 'gather',
        'value', jsonb_build_object('gather', v_id::text, 'children', v_children))));
    insert into forebay.gather (gather_id, job_id, group_id, no, name, children, begun_at)
    values (v_id, v_job_id, 0, 1, 'gather', coalesce(v_children, 0), forebay._now());
    perform forebay._enqueue_children(v_id, v_job_id, 1, jobs, 'job');
    return v_job_id;
end
$$;
