-- grant: operator

-- Pause a schedule: its instants are not decided. Jobs that it enqueued run. Returns whether that
-- changed anything; a pause with another note does. `note`, for people, has at most 1000
-- characters.
--
-- Errors: JQ060 no such schedule.
-- Locks: the schedule's row.
create function forebay.pause_schedule(name text, note text default null) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
declare
    s constant forebay.schedule := forebay._lock_schedule(pause_schedule.name);
begin
    if s.paused_at is not null and s.pause_note is not distinct from left(pause_schedule.note, 1000) then
        return false;
    end if;
    perform forebay._pause_schedule(s, pause_schedule.note);
    return true;
end
$$;


create function forebay._pause_schedule(s forebay.schedule, p_note text) returns void
language plpgsql volatile
as $$
begin
    update forebay.schedule i
    set paused_at = coalesce(i.paused_at, forebay._now()), pause_note = left(p_note, 1000), revision = i.revision + 1
    where i.schedule_id = s.schedule_id;
    perform forebay._record_event('schedules.pause', s.queue, p_kind => s.kind, p_subject_id => s.schedule_id, p_detail => s.name,
                                  p_new => jsonb_build_object('note', left(p_note, 1000)));
end
$$;
