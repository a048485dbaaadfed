-- grant: operator

-- Resume a paused schedule; returns whether it was paused. Instants of the pause are not decided,
-- and have no row in the history.
--
-- Errors: JQ060 no such schedule.
-- Locks: the schedule's row.
create function forebay.resume_schedule(name text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
declare
    s constant forebay.schedule := forebay._lock_schedule(resume_schedule.name);
begin
    if s.paused_at is null then
        return false;
    end if;
    update forebay.schedule i
    set paused_at = null, pause_note = null, revision = i.revision + 1, decided_to = greatest(i.decided_to, forebay._now())
    where i.schedule_id = s.schedule_id;
    -- The failure that paused it does not pause it again.
    update forebay.occurrence o set is_open = false
    where o.schedule_id = s.schedule_id and o.is_open
      and exists (select from forebay.job(o.job_id) j where j.state = 'dead');
    perform forebay._record_event('schedules.resume', s.queue, p_kind => s.kind, p_subject_id => s.schedule_id, p_detail => s.name);
    return true;
end
$$;
