-- grant: worker, operator

-- Continue to close groups, one step; returns how much was done. 0: nothing is left to do, or
-- running jobs of a closing group must end first. `p_most` is 1 to 1000000.
--
-- Errors: JQ001 a bad number, JQ012, JQ030; 55P03 another session holds a lock, try again.
-- Transaction: alone.
-- Locks: the sweep's lock, and the locks of the lanes, or the lock of forgetting and the table
--   `queue_group`, or the lock of trimming.
--
-- Inside: forebay.close_group() stops the claims that begin later. This function then
--   1. waits in each lane for a claim that began before, some lanes in each call: a claim holds the
--      lock of its lane,
--   2. when no unsettled job of the group is in an open batch, deletes the group and its private
--      lanes, in one transaction,
--   3. deletes the rows of the group, about p_most in each call.
-- After 2. no other function meets these rows: segments, depth and claims know only groups and
-- lanes that exist. A crash between two calls leaves the group in one of these states, and the next
-- call continues.
--
-- Invariant "nothing lost": of the queue's only group the last cursors pass to an implied group: it
-- begins where the closing began.
create function forebay.close_groups(p_most integer default 10000) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
set lock_timeout = '2s'
as $$
declare
    v_group  forebay.queue_group;
    v_closed forebay.closed_group;
    v_lanes  bigint[];
    v_lane   bigint;
    v_done   bigint := 0;
begin
    if (p_most between 1 and 1000000) is not true then
        raise exception using errcode = 'JQ001', message = format('%s is outside 1 to 1000000', coalesce(p_most::text, 'null'));
    end if;
    perform forebay._require_alone('forebay.close_groups()');
    perform forebay._require_same_cluster();
    if not exists (select from forebay.queue_group g where g.closing_at is not null)
       and not exists (select from forebay.closed_group c where c.lanes is not null) then
        return 0;
    end if;
    -- Like the sweep it holds the locks of several lanes; only one of the two runs.
    if not forebay._try_lock('sweep') then
        return 0;
    end if;

    for v_group in select g.* from forebay.queue_group g where g.closing_at is not null order by g.group_id loop
        v_lanes := array(
            select distinct l.lane from forebay.lane l
            where l.queue = v_group.queue and l.audience in (0, v_group.group_id, -v_group.group_id)
              and l.lane > coalesce(v_group.fenced_lane, -9223372036854775808)
            order by l.lane limit 200);
        if v_lanes <> '{}' then
            foreach v_lane in array v_lanes loop
                perform forebay._lock_lane(v_group.group_id, v_lane);
            end loop;
            update forebay.queue_group g set fenced_lane = v_lanes[cardinality(v_lanes)] where g.group_id = v_group.group_id;
            return cardinality(v_lanes);
        end if;
        continue when exists (select from forebay._open_jobs() o where o.group_id = v_group.group_id);
        perform forebay._delete_group(v_group);
        return 1;
    end loop;

    -- Trimming deletes the same rows, in another order.
    lock table only forebay.lock_trim in share update exclusive mode;
    for v_closed in select c.* from forebay.closed_group c where c.lanes is not null order by c.group_id loop
        v_done := v_done + forebay._clear_group(v_closed.group_id, v_closed.lanes, p_most);
        exit when v_done >= p_most;
        update forebay.closed_group c set lanes = null where c.group_id = v_closed.group_id;
        v_done := v_done + 1;
    end loop;
    return v_done;
end
$$;


-- Delete a group and its private lanes. No claim of it runs, none can begin, and it has no open batch: no more rows are written
-- for it.
create function forebay._delete_group(v_group forebay.queue_group) returns void
language plpgsql volatile
as $$
declare
    v_lanes   bigint[];
    v_heir_id bigint;
begin
    lock table only forebay.lock_forgetting in share update exclusive mode;  -- It deletes cursors and adds them up, group by group.
    lock table forebay.queue_group in share row exclusive mode;
    delete from forebay.queue_group g where g.group_id = v_group.group_id;
    delete from forebay.forgotten f where f.group_id = v_group.group_id;
    with gone as (
        delete from forebay.lane l
        where l.queue = v_group.queue and l.audience in (v_group.group_id, -v_group.group_id)
        returning l.lane)
    select coalesce(array_agg(distinct n.lane), '{}') into v_lanes from gone n;
    insert into forebay.closed_group (group_id, queue, name, closed_at, lanes)
    values (v_group.group_id, v_group.queue, v_group.name, forebay._now(), v_lanes);
    v_heir_id := forebay._imply_group(v_group.queue, v_group.closing_snap);
    -- Where a claim read further than the snapshot of the closing, the implied group continues after it.
    insert into forebay.batch (
        group_id, lane, no, snap_from, snap_to, pos_segment, pos_xid, pos_seq, high_seq, handed_total, skipped_total, claimed_at,
        edge_from, low_from, edge_to, low_to)
    select v_heir_id, b.lane, 1, b.snap_from, b.snap_to, b.pos_segment, b.pos_xid, b.pos_seq, b.high_seq, 0, 0, b.claimed_at,
           b.edge_from, b.low_from, b.edge_to, b.low_to
    from (select distinct i.lane from forebay.lane i where i.queue = v_group.queue and i.audience = 0) l
    cross join lateral (select i.* from forebay.batch i
                        where i.group_id = v_group.group_id and i.lane = l.lane order by i.no desc limit 1) b
    cross join lateral (select coalesce(b.snap_to, b.snap_from) as snap) r
    where v_heir_id is not null
      and (pg_snapshot_xmax(r.snap) > pg_snapshot_xmax(v_group.closing_snap)
           or exists (select from pg_snapshot_xip(v_group.closing_snap) x where pg_visible_in_snapshot(x, r.snap)));
    execute format('drop sequence forebay.leader_%s', v_group.group_id);
    -- Children that waited for it have no other place: promotions tell their parents, step by step.
    if pg_sequence_last_value('forebay.flow_seq') is not null then
        perform forebay._wake_flows_later('{"look_at_all": []}');
    end if;
end
$$;


-- Delete rows of a group that is gone; returns their number: fewer than p_most when none is left.
create function forebay._clear_group(p_group_id bigint, p_lanes bigint[], p_most integer) returns bigint
language plpgsql volatile
as $$
declare
    v_table text;
    v_rows  bigint;
    v_total bigint;
    v_jobs  bigint[];
begin
    with gone as (
        delete from forebay.batch b
        using (select i.lane, i.no from forebay.batch i where i.group_id = p_group_id order by i.lane, i.no limit p_most) o
        where b.group_id = p_group_id and b.lane = o.lane and b.no = o.no
        returning b.lease_id, b.claim_no),
    settled as (
        delete from forebay.settlement s using gone g
        where s.lease_id = g.lease_id and s.claim_no = g.claim_no returning 1),
    started as (
        delete from forebay.suspect_start s using gone g
        where s.lease_id = g.lease_id and s.claim_no = g.claim_no returning 1)
    select count(*) into v_total from gone;
    with gone as (
        delete from forebay.deferred d
        where d.ctid = any (array(select i.ctid from forebay.deferred i where i.lane = any (p_lanes) limit p_most - v_total))
        returning d.job_id)
    select array_agg(g.job_id) into v_jobs from gone g;
    v_total := v_total + coalesce(cardinality(v_jobs), 0);
    perform forebay._drop_waits(v_jobs, p_group_id);
    foreach v_table in array array['parked', 'key_run', 'limit_parked', 'limit_run', 'limiter', 'counter_waiting'] loop
        execute format(
            'delete from forebay.%1$I d where d.ctid = any (array('
            'select i.ctid from forebay.%1$I i where i.group_id = $1 limit $2))', v_table)
        using p_group_id, p_most - v_total;
        get diagnostics v_rows = row_count;
        v_total := v_total + v_rows;
    end loop;
    perform forebay._delete_counters(p_group_id);
    return v_total;
end
$$;
