-- grant: operator

-- Enqueue a job of a schedule now, also of a paused one, whatever its overlap; returns the id of
-- the job. It is in the history as manual.
--
-- Errors: JQ060 no such schedule; others as forebay.enqueue().
-- Locks: the schedule's row.
create function forebay.run_schedule(name text) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
declare
    s        constant forebay.schedule := forebay._lock_schedule(run_schedule.name);
    v_at     timestamptz := forebay._now();
    v_job_id bigint;
begin
    if date_trunc('second', v_at) = v_at then
        v_at := v_at + interval '1 microsecond';  -- It must not take the place of an instant of the schedule.
    end if;
    v_job_id := forebay._enqueue_occurrence(s, v_at, s.decisions + 1, v_at);
    insert into forebay.occurrence (schedule_id, scheduled_for, occurrence, status, job_id, is_open, decided_at)
    values (s.schedule_id, v_at, s.decisions + 1, 'manual', v_job_id, s.overlap <> 'allow' or s.pause_on_failure, v_at);
    update forebay.schedule i set decisions = i.decisions + 1 where i.schedule_id = s.schedule_id;
    perform forebay._record_event('schedules.run', s.queue, p_kind => s.kind, p_subject_id => v_job_id, p_detail => s.name);
    return v_job_id;
end
$$;
