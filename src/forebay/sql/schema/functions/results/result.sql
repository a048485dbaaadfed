-- grant: worker, operator, reader

-- The state of a job for one group, and its handler's return value if the job is done and its
-- handler keeps results (`keep_result`). If `value` is null although the job is done, `problem`
-- says why. Of a dead job: the reason, and its last error.
--
-- `wait_millis`, 0 to 60000, announces that the caller listens for this time on channel
-- `forebay_result`; null: it does not. While a caller waits, the ids of jobs that end are sent
-- there. Notifications can be lost, so also poll from time to time. Grant this function separately
-- to a producer's role that waits for results.
--
-- Errors: JQ001 a bad `wait_millis`, JQ013 no such job, JQ014 no such group.
-- Transaction: the caller's; it sees only committed jobs.
-- pages: 450 + 60 a segment
create function forebay.result(job_id bigint, group_name text default 'default', wait_millis integer default null)
returns table (state text, value jsonb, problem text, kept_until timestamptz, reason text, error_type text, error_message text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_now   constant bigint := (extract(epoch from clock_timestamp()) * 1000)::bigint;
    v_group bigint;
    v_found boolean := false;
    v_job   record;
begin
    if wait_millis not between 0 and 60000 then
        raise exception using errcode = 'JQ001', column = 'wait_millis',
            message = format('wait_millis %s is outside 0 to 60000', wait_millis);
    elsif wait_millis > 0 and not coalesce(pg_sequence_last_value('forebay.result_wakeup') between v_now + wait_millis and v_now + 70000, false) then
        -- Before the look: a later settlement notifies. For longer than requested, since the caller looks once more.
        perform setval('forebay.result_wakeup', v_now + wait_millis + 5000);
    end if;
    select 'done', r.value, r.problem, r.kept_until into state, value, problem, kept_until
    from (select i.* from forebay.result i where i.job_id = result.job_id offset 0) r  -- First, whatever the statistics.
    cross join lateral (select from forebay.queue_group i where i.group_id = r.group_id and i.name = result.group_name offset 0) g
    where r.kept_until > forebay._now()
    order by r.kept_at desc limit 1;
    if state is not null then
        return next;
        return;
    end if;
    for v_job in select j.group_name, j.state from forebay.job(result.job_id) j loop
        v_found := true;
        continue when v_job.group_name <> result.group_name;
        state := v_job.state;
    end loop;
    if state is null and v_found then
        raise exception using errcode = 'JQ014',
            message = format('job %s has no group %s', result.job_id, quote_literal(left(result.group_name, 40))),
            detail = jsonb_build_object('group', result.group_name),
            hint = 'Groups are opened by the first worker that serves them, or by forebay.open_group().';
    elsif state is null then
        raise exception using errcode = 'JQ013',
            message = format('job %s not found', coalesce(result.job_id::text, 'null')),
            detail = jsonb_build_object('job_id', result.job_id),
            hint = 'The job may not be committed yet, or be past retention.';
    end if;
    if state = 'done' then
        problem := 'its handler keeps no results, or its retention time is over';
    elsif state = 'dead' then
        select d.reason, d.errors -> -1 ->> 'type', d.errors -> -1 ->> 'message'
        into reason, error_type, error_message
        from forebay.dead_letter d join forebay.queue_group g on g.group_id = d.group_id
        where d.job_id = result.job_id and g.name = result.group_name
        order by d.dead_id desc limit 1;
    end if;
    return next;
end
$$;
