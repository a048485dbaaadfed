-- grant: operator

-- Drop a schedule with its history; returns whether there was one. Its jobs stay.
--
-- Locks: the schedule's row.
create function forebay.drop_schedule(name text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
declare
    s forebay.schedule;
begin
    delete from forebay.schedule i where i.name = drop_schedule.name returning i.* into s;
    if s.schedule_id is null then
        return false;
    end if;
    perform forebay._record_event('schedules.drop', s.queue, p_kind => s.kind, p_subject_id => s.schedule_id, p_detail => s.name,
                                  p_old => forebay._recorded_schedule(s));
    return true;
end
$$;
