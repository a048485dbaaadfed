-- grant: operator

-- Pause a queue, for one group or all: claims stop; running jobs finish, and enqueueing continues. Returns how many groups changed.
create function forebay.pause_queue(queue text, group_name text default null) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
declare
    v_count integer;
begin
    if group_name is null and not exists (select from forebay.queue_group g where g.queue = pause_queue.queue) then
        if (pause_queue.queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$') is not true then
            perform forebay.open_group(pause_queue.queue);  -- Raises.
        end if;
        perform forebay._imply_group(pause_queue.queue);
    end if;
    perform forebay._require_group(pause_queue.queue, group_name);
    update forebay.queue_group g set paused_at = forebay._now()
    where g.queue = pause_queue.queue and (group_name is null or g.name = group_name) and g.paused_at is null;
    get diagnostics v_count = row_count;
    if v_count > 0 then
        perform forebay._record_event('queues.pause', queue, group_name, p_count => v_count);
    end if;
    return v_count;
end
$$;
