-- grant: producer, worker, operator

-- Request the cancellation of a job, in the caller's transaction; returns 'requested'.
--
-- The job's next claim or settlement decides, first writer wins: a job that finishes first stays done. A
-- worker learns of the request for a running handler at its next heartbeat.
--
-- Parameters: group_name, null for every group.
-- Errors: JQ013 no job has had this id, JQ014 no such group.
-- pages: 60
create function forebay.cancel(job_id bigint, group_name text default null) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_group_id bigint;
    v_queue    text;
begin
    if cancel.job_id is null or cancel.job_id < 1
       or cancel.job_id > coalesce(pg_sequence_last_value('forebay.log_seq'), 0) then
        raise exception using errcode = 'JQ013',
            message = format('job %s not found', coalesce(cancel.job_id::text, 'null')),
            detail = jsonb_build_object('job_id', cancel.job_id),
            hint = 'forebay.enqueue returns ids; no id is that high yet.';
    end if;
    if cancel.group_name is not null then
        select j.queue into v_queue from forebay.job(cancel.job_id) j limit 1;
        perform forebay._require_group(v_queue, cancel.group_name);
        select g.group_id into v_group_id from forebay.queue_group g where g.queue = v_queue and g.name = cancel.group_name;
    end if;
    if not exists (select from forebay.tombstone t
                   where t.job_id = cancel.job_id and t.reason = 'c'
                     and (t.group_id is null or t.group_id = v_group_id)) then
        insert into forebay.tombstone (job_id, group_id, reason, recorded_at)
        values (cancel.job_id, v_group_id, 'c', forebay._now());
    end if;
    return 'requested';
end
$$;
