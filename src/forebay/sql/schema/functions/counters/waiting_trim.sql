-- Delete counts of waiting jobs behind the newest ones, and those of groups that are gone: an enqueue that was open when its group was
-- deleted may commit one afterwards. Then what only older counts need: changes, withdrawn jobs that were promoted, and cancelled ones that
-- every group has passed.
create function forebay._trim_waiting(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
-- planner: in order
as $$
declare
    v_queue text := coalesce(p_after::jsonb ->> 0, '');
    v_group bigint := coalesce((p_after::jsonb ->> 1)::bigint, -9223372036854775808);
    v_next  record;
    v_left  bigint := p_most;
    v_is_used boolean;
    v_gone  bigint;
begin
    rows := 0;
    loop
        select c.queue, c.group_id, c.oldest, c.no into v_next from forebay.counter_waiting c
        where (c.queue, c.group_id) > (v_queue, v_group) order by c.queue, c.group_id, c.oldest desc, c.no desc limit 1;
        exit when not found;
        -- 0 stands for the group of a queue that has none.
        v_is_used := exists (select from forebay.queue_group g where g.queue = v_next.queue and g.group_id = v_next.group_id)
                     or v_next.group_id = 0 and not exists (select from forebay.queue_group g where g.queue = v_next.queue);
        delete from forebay.counter_waiting c
        where c.ctid = any (array(
            select o.ctid from forebay.counter_waiting o
            where o.queue = v_next.queue and o.group_id = v_next.group_id and (not v_is_used or (o.oldest, o.no) < (v_next.oldest, v_next.no))
            order by o.oldest desc, o.no desc limit v_left));
        get diagnostics v_gone = row_count;
        rows := rows + v_gone;
        if v_gone < v_left then
            v_queue := v_next.queue;
            v_group := v_next.group_id;
        end if;
        v_left := v_left - v_gone - 1;
        if v_left <= 0 then
            next := jsonb_build_array(v_queue, v_group);
            return;
        end if;
    end loop;
    v_gone := forebay._trim_changes(p_most) + forebay._trim_withdrawn(p_most) + forebay._trim_cancelled(p_most);
    rows := rows + v_gone;
    next := case when v_gone >= p_most then jsonb_build_array(v_queue, v_group) end;
end
$$;


-- Delete changes that the newest counts have. A count that an open transaction appends is read only if its snapshot is as new.
create function forebay._trim_changes(p_most integer) returns bigint
language plpgsql volatile
-- planner: in order
as $$
declare
    v_queue text;
    v_up_to xid8;
    v_gone  bigint;
    v_total bigint := 0;
begin
    for v_queue in
        with recursive queue as (
            (select c.queue from forebay.counter_change c order by c.queue limit 1)
            union all
            select n.queue from queue q, lateral (
                select c.queue from forebay.counter_change c where c.queue > q.queue order by c.queue limit 1) n
        )
        select q.queue from queue q
    loop
        select case when bool_and(c.oldest is not null) then min(c.oldest) end into v_up_to
        from (select coalesce(i.group_id, 0) as group_id
              from (select) one left join forebay.queue_group i on i.queue = v_queue) g
        left join lateral (select i.oldest from forebay.counter_waiting i
                           where i.queue = v_queue and i.group_id = g.group_id order by i.oldest desc, i.no desc limit 1) c on true;
        -- A group without a count keeps all changes, also those that the counts of other groups need.
        continue when v_up_to is null;
        -- The counters have them too. A group that was never folded never counted the rows.
        select least(v_up_to, min(pg_snapshot_xmin(f.snap))) into v_up_to
        from forebay.queue_group g
        cross join lateral (select i.snap from forebay.counter_fold i where i.group_id = g.group_id order by i.no desc limit 1) f
        where g.queue = v_queue and g.closing_at is null;
        delete from forebay.counter_change c
        where c.ctid = any (array(
            select i.ctid from forebay.counter_change i where i.queue = v_queue and i.xid < v_up_to order by i.xid limit p_most - v_total));
        get diagnostics v_gone = row_count;
        v_total := v_total + v_gone;
        exit when v_total >= p_most;
    end loop;
    return v_total;
end
$$;


-- Delete withdrawn jobs whose rows were promoted.
create function forebay._trim_withdrawn(p_most integer) returns bigint
language plpgsql volatile
-- planner: in order
as $$
declare
    v_gone bigint;
begin
    delete from forebay.withdrawn w
    where w.ctid = any (array(
        select i.ctid from (select p.* from forebay.promotion p order by p.no desc limit 1) p
        cross join lateral (
            select j.ctid from forebay.withdrawn j
            where (j.run_at, j.deferred_id) <= (p.run_at, p.deferred_id) and pg_visible_in_snapshot(j.row_xid, p.snap)
            order by j.run_at, j.deferred_id limit p_most) i));
    get diagnostics v_gone = row_count;
    return v_gone;
end
$$;
