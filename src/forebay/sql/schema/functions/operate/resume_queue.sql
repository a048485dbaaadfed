-- grant: operator

-- Start claiming jobs of a paused queue again, for one group or all. Returns how many groups
-- changed.
--
-- Errors: JQ014 no such queue or group.
-- Locks: as forebay.pause_queue().
create function forebay.resume_queue(queue text, group_name text default null) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
declare
    v_count integer;
begin
    perform forebay._require_group(resume_queue.queue, group_name);
    update forebay.queue_group g set paused_at = null, resume_at = null
    where g.queue = resume_queue.queue and (group_name is null or g.name = group_name) 
      and forebay._paused_since(g.paused_at, g.resume_at) is not null and g.closing_at is null;
    get diagnostics v_count = row_count;
    if v_count > 0 then
        perform forebay._forget_polls();
        perform forebay._record_event('queues.resume', queue, group_name, p_count => v_count);
    end if;
    perform forebay._notify(resume_queue.queue);
    return v_count;
end
$$;
