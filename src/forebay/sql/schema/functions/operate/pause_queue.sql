-- grant: operator

-- Stop claiming jobs of a queue, for one group or all. Running jobs finish; enqueueing and expiry
-- continue. Returns how many groups changed. A queue without a group gets an implied one, paused.
-- With `until` the pause ends at that time, at most ten years from now, without a call: claims
-- compare it with the clock. A group has one pause: a call replaces the one that lasts.
--
-- Errors: JQ001 a bad name or time, JQ014 no such group.
-- Locks: the group's row, until the transaction ends; claims do not wait for it.
create function forebay.pause_queue(queue text, group_name text default null, until timestamptz default null) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
declare
    v_at    constant timestamptz := forebay._now();
    v_count integer;
begin
    if pause_queue.until <= v_at or pause_queue.until > v_at + interval '10 years' then
        raise exception using errcode = 'JQ001', column = 'until',
            message = format('until %s is not within the next ten years', pause_queue.until),
            hint = 'Nothing was changed. Give a time in the future, or none.';
    end if;
    if group_name is null and not exists (select from forebay.queue_group g where g.queue = pause_queue.queue) then
        if (pause_queue.queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$') is not true then
            perform forebay.open_group(pause_queue.queue);  -- Raises.
        end if;
        perform forebay._imply_group(pause_queue.queue);
    end if;
    perform forebay._require_group(pause_queue.queue, group_name);
    if pause_queue.until is not null and pg_sequence_last_value('forebay.timed_pause_seq') is null then
        perform nextval('forebay.timed_pause_seq');
    end if;
    update forebay.queue_group g
    set paused_at = coalesce(forebay._paused_since(g.paused_at, g.resume_at), v_at), resume_at = pause_queue.until
    where g.queue = pause_queue.queue and (group_name is null or g.name = group_name) and g.closing_at is null
      and (forebay._paused_since(g.paused_at, g.resume_at) is null or g.resume_at is distinct from pause_queue.until);
    get diagnostics v_count = row_count;
    if v_count > 0 then
        -- The pause may end earlier than the one that it replaces, which sessions remember.
        perform forebay._forget_polls();
        perform forebay._record_event(
            'queues.pause', queue, group_name, p_count => v_count,
            p_new => case when pause_queue.until is not null then jsonb_build_object('until', pause_queue.until) end);
    end if;
    return v_count;
end
$$;
