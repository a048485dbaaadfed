-- grant: operator

-- Close a consumer group: from the commit on it gets no jobs, and those that wait for it, retries
-- included, are cancelled for it; other groups keep theirs. Running jobs finish.
-- forebay.close_groups() does the rest in steps: workers call it, and so does `forebay groups
-- close`. Then the group is gone, and segments that only it kept can be emptied. Its dead letters
-- stay. If it is the queue's only group, jobs that are enqueued later wait for the next group that
-- is opened.
--
-- Parameters:
--   force    close it although workers serve it
--   dry_run  change nothing
--
-- Columns:
--   cancelled        jobs that wait now
--   running          jobs that workers have
--   segments, bytes  what can be emptied then
--
-- Errors: JQ014 no such group, JQ017 workers serve it and `force` is not set.
-- Locks: the group's row, until the transaction ends; claims do not wait for it.
-- See: docs/howto/several-groups.md#close-a-group
create function forebay.close_group(
    queue text, name text default 'default', force boolean default false, dry_run boolean default false,
    out cancelled bigint, out running bigint, out segments bigint, out bytes bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: short
as $$
declare
    v_group forebay.queue_group;
    v_state record;
begin
    if close_group.name is null then
        raise exception using errcode = 'JQ001', message = 'name null: give the group to close';
    end if;
    perform forebay._require_group(close_group.queue, close_group.name);
    select g.* into v_group from forebay.queue_group g
    where g.queue = close_group.queue and g.name = close_group.name for no key update;
    if not found then
        perform forebay._require_group(close_group.queue, close_group.name);  -- It went meanwhile.
    end if;
    select * into v_state from forebay.groups(close_group.queue) g where g.group_name = close_group.name;
    if v_state.is_served and v_group.closing_at is null and close_group.force is not true and close_group.dry_run is not true then
        raise exception using errcode = 'JQ017',
            message = format('workers serve group %s of queue %s: they have %s jobs of it', close_group.name, close_group.queue, v_state.running),
            detail = jsonb_build_object('queue', close_group.queue, 'group', close_group.name),
            hint = 'Stop the workers of this group first, or force it: running jobs finish, and the workers get no more.';
    end if;
    cancelled := v_state.unread + (
        select count(*) from forebay.deferred d
        where d.kind <> '' and d.lane in (select l.lane from forebay.lane l
                         where l.queue = v_group.queue and abs(l.audience) = v_group.group_id)
          and not exists (select from (select p.* from forebay.promotion p order by p.no desc limit 1) p
                          where pg_visible_in_snapshot(d.xid, p.snap) and (d.run_at, d.deferred_id) <= (p.run_at, p.deferred_id)));
    running := v_state.running;
    segments := v_state.held_segments;
    bytes := v_state.held_bytes;
    if v_group.closing_at is null and close_group.dry_run is not true then
        -- A pause is what claims look at.
        update forebay.queue_group g
        set paused_at = coalesce(g.paused_at, forebay._now()), resume_at = null, closing_at = forebay._now(), closing_snap = forebay._snapshot_of_others()
        where g.group_id = v_group.group_id;
        perform forebay._announce_jobs(close_group.queue, close_group.name, 'cancelled', null, close_group.cancelled);
        perform forebay._record_event('groups.close', close_group.queue, close_group.name, p_count => close_group.cancelled,
                                      p_new => jsonb_build_object('force', close_group.force is true, 'running', close_group.running));
    end if;
end
$$;
