-- grant: worker, operator

-- Open a consumer group, an independent reader of a queue; returns its id. Opening it again changes
-- nothing. Workers open the groups they serve.
--
-- Parameters:
--   start  `beginning`: every job still in the log; `now`: jobs that become visible from now on;
--          null: `beginning` for the queue's first group, otherwise `now`
--
-- An implied group becomes the opened group, under its name: it has the cursors, expiries and
-- pauses of a queue that no worker had served yet. With start `now` it forgets its cursors.
--
-- Errors: JQ001 a bad name or start, JQ017 a group of this name is being closed.
-- Locks: to open a group, the settings lock, with `start` `now` the sweep lock, and the table
--   `queue_group` against others that open one, until the transaction ends.
create function forebay.open_group(queue text, name text default 'default', start text default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
declare
    v_name    constant text := '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$';
    v_id      bigint;
    v_closing timestamptz;
begin
    if (open_group.queue ~ v_name and open_group.name ~ v_name) is not true
       or open_group.start not in ('beginning', 'now') then
        raise exception using errcode = 'JQ001',
            message = format('cannot open group %s of queue %s at %s', coalesce(quote_literal(left(open_group.name, 40)), 'null'),
                             coalesce(quote_literal(left(open_group.queue, 40)), 'null'), coalesce(open_group.start, 'its default')),
            hint = 'Names have letters, digits and _ . : - only; start is beginning or now.';
    end if;
    for v_attempt in 1 .. 2 loop
        select g.group_id, g.closing_at into v_id, v_closing from forebay.queue_group g
        where g.queue = open_group.queue and g.name = open_group.name and not g.is_implied;
        if v_closing is not null then
            raise exception using errcode = 'JQ017',
                message = format('group %s of queue %s is being closed', open_group.name, open_group.queue),
                detail = jsonb_build_object('queue', open_group.queue, 'group', open_group.name),
                hint = 'Open it again when forebay.groups() no longer shows it, or start the worker without this group.';
        elsif v_id is not null then
            return v_id;
        end if;
        -- Look again under the locks, in a later statement. The sweep moves the cursors of groups without workers, and opens groups.
        if open_group.start = 'now' then  -- Others do not wait for changes of settings: workers open groups.
            perform forebay._lock_settings();
            lock table only forebay.lock_sweep in share update exclusive mode;
        end if;
        lock table forebay.queue_group in share row exclusive mode;
    end loop;

    update forebay.queue_group g
    set name = open_group.name, is_implied = false,
        start_after = case when open_group.start = 'now' then forebay._snapshot_of_others() else g.start_after end
    where g.queue = open_group.queue and g.is_implied
    returning g.group_id into v_id;
    if v_id is not null then
        if open_group.start = 'now' then
            delete from forebay.batch b
            where b.group_id = v_id and b.lane in (select l.lane from forebay.lane l where l.queue = open_group.queue and l.audience = 0);
            delete from forebay.counter_waiting c where c.queue = open_group.queue and c.group_id = v_id;  -- It counted from those cursors.
            lock table only forebay.lock_counters in share update exclusive mode;
            perform forebay._delete_counters(v_id);
        end if;
    else
        v_id := forebay._make_group(
            open_group.queue, open_group.name, false,
            case when open_group.start = 'now'
                      or (open_group.start is null
                          and exists (select from forebay.queue_group g where g.queue = open_group.queue))
                 then forebay._snapshot_of_others() else '1:1:' end);
    end if;
    if open_group.start = 'now' then
        perform forebay._wake_flows_later('{"look_at_all": []}')  -- Children that it does not read may have no other group.
        from (select) s where pg_sequence_last_value('forebay.flow_seq') is not null;
    end if;
    if (open_group.name, open_group.start) is distinct from ('default', null) then  -- Each worker opens that one.
        perform forebay._record_event('groups.open', open_group.queue, open_group.name,
                                      p_new => jsonb_build_object('start', open_group.start));
    end if;
    return v_id;
end
$$;


-- Open a group for a queue that has none, so that its jobs expire and it can be paused. It is implied: the first group that a
-- worker or user opens takes it over. Returns its id, null when the queue has a group.
--
-- Locks: the table queue_group against others that open a group, until the transaction ends.
create function forebay._imply_group(p_queue text, p_start_after pg_snapshot default '1:1:') returns bigint
language plpgsql volatile
as $$
begin
    lock table forebay.queue_group in share row exclusive mode;
    if not exists (select from forebay.queue_group g where g.queue = p_queue) then
        return forebay._make_group(p_queue, 'default', true, p_start_after);
    end if;
    return null;
end
$$;


-- Write a group and its flag sequence; the caller has locked the table and found that there is none of this name.
create function forebay._make_group(p_queue text, p_name text, p_is_implied boolean, p_start_after pg_snapshot) returns bigint
language plpgsql volatile
as $$
declare
    v_id bigint;
begin
    insert into forebay.queue_group (group_id, queue, name, start_after, created_at, is_implied)
    values (forebay._random_name(), p_queue, p_name, p_start_after, forebay._now(), p_is_implied)
    on conflict do nothing  -- In a REPEATABLE READ transaction that does not see the group: raises 40001.
    returning group_id into v_id;
    execute format('create sequence forebay.leader_%s as bigint increment 262144000 cache 1', v_id);
    -- The first group of a queue has what was counted while there was none.
    insert into forebay.counter_waiting (
        queue, group_id, oldest, seq, deferred_seq, snap, counted_at, waiting, consumed, priorities, totals, scheduled, retrying, keyed)
    select p_queue, v_id, c.oldest, c.seq, c.deferred_seq, c.snap, c.counted_at, c.waiting, c.consumed, c.priorities, c.totals, c.scheduled,
           c.retrying, c.keyed
    from forebay.counter_waiting c
    where c.queue = p_queue and c.group_id = 0 and p_start_after::text = '1:1:'
      and not exists (select from forebay.queue_group g where g.queue = p_queue and g.group_id <> v_id)
    order by c.oldest desc, c.no desc limit 1;
    return v_id;
end
$$;
