-- grant: producer, worker, operator

-- Cancel a job, for one group or, with null, all. The job's next claim or settlement decides, and
-- the first writer wins. A running handler learns of the request at its worker's next heartbeat. A
-- repeated request changes nothing.
--
-- Answers:
--   cancelled      the job waits, or was cancelled before. It will not start; a claim at the same
--                  moment may still start it, and its handler is then requested to stop
--   requested      a worker has the job in one of the groups. A job that finishes before stays done.
--                  Or it is a flow that waits: it continues, its step raises JobCancelled, and its
--                  handler may compensate with further steps before the job ends
--   already ended  the job is done, expired or dead; nothing was changed
--   unknown        no such job: never enqueued, not visible to this transaction, or past retention;
--                  nothing was changed
--
-- Parameters: `now`, a flow that waits, or compensates, ends without running again. Jobs that a
-- flow waits for and that have not started are cancelled with it.
--
-- Errors: JQ014 no such group.
-- pages: 460 + 60 a segment
create function forebay.cancel(job_id bigint, group_name text default null, now boolean default false) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_group_id bigint;
    v_queue    text;
    v_states   text[];
begin
    select min(j.queue), array_agg(j.state) filter (where cancel.group_name is null or j.group_name = cancel.group_name)
    into v_queue, v_states
    from forebay.job(cancel.job_id) j;
    if v_queue is null then
        return 'unknown';
    end if;
    if cancel.group_name is not null then
        perform forebay._require_group(v_queue, cancel.group_name);
        select g.group_id into v_group_id from forebay.queue_group g where g.queue = v_queue and g.name = cancel.group_name;
    end if;
    if v_states is null then  -- The group was opened after the job, and does not read it.
        return 'unknown';
    elsif v_states <@ array['cancelled'] then
        return 'cancelled';
    elsif v_states <@ array['done', 'cancelled', 'expired', 'dead'] then
        return 'already ended';
    end if;
    if not cancel.now then
        if forebay._cancel_flows(array[cancel.job_id], v_group_id) <> '{}' then
            perform forebay._record_event('jobs.cancel', v_queue, cancel.group_name, p_subject_id => cancel.job_id, p_count => 1);
            return 'requested';
        elsif pg_sequence_last_value('forebay.flow_seq') is not null
              and exists (select from forebay.flow_cancelled c where c.job_id = cancel.job_id and (v_group_id is null or c.group_id = v_group_id)) then
            return 'requested';
        end if;
    end if;
    if not exists (select from forebay.tombstone t
                   where t.job_id = cancel.job_id and t.reason = 'c'
                     and (t.group_id is null or t.group_id = v_group_id)) then
        insert into forebay.tombstone (job_id, group_id, reason, recorded_at)
        values (cancel.job_id, v_group_id, 'c', forebay._now());
        perform forebay._withdraw(array[cancel.job_id], v_group_id);
        perform forebay._note_cancelled_jobs(array[cancel.job_id], v_group_id);
        if not v_states <@ array['claimed', 'running', 'done', 'cancelled', 'expired', 'dead'] then
            perform forebay._announce_jobs(v_queue, cancel.group_name, 'cancelled', array[cancel.job_id]);
        end if;
        perform forebay._after_cancelled(array[cancel.job_id]);
        perform forebay._record_event('jobs.cancel', v_queue, cancel.group_name, p_subject_id => cancel.job_id, p_count => 1,
                                      p_new => case when cancel.now then '{"now": true}'::jsonb end);
    end if;
    return case when v_states && array['claimed', 'running'] then 'requested' else 'cancelled' end;
end
$$;
