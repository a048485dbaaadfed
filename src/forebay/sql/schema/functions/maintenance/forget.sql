-- grant: worker

-- Do one step of forgetting lanes (queue and priority) that have had no jobs for `lane_idle_hours`,
-- at most `p_most` of them; returns their number. Call it until it returns 0. An open transaction
-- that is older than the step delays it.
--
-- Errors: JQ001 a bad number, JQ012, JQ030.
-- Transaction: alone.
-- Locks: the lock of forgetting.
--
-- Inside: a lane that was not looked at for lane_idle_hours, and in which every group has had every
-- job, is *retired*: a transaction that enqueues relies no longer on its row, and writes another
-- one. When all transactions that may have relied on it have ended, the lane becomes *dormant* if
-- still every group has had every job, and polls do not look at it; or it is in use again. When the
-- segments that may have rows of a dormant lane are emptied, its row and its cursors are deleted.
--
-- Invariant "commit decides", the protocol with forebay._is_recorded() and forebay._is_known():
--   1. A retirement sets the horizon, outside of transactions, to its transaction id, and then
--      marks the rows. A transaction that enqueues draws its id, then reads the horizon, then the
--      row; and relies on the row, or on a flag sequence with this horizon, only if the horizon's
--      transaction is visible to it: then it sees the marks. Old snapshots do not see it.
--   2. A later call draws the barrier, a transaction id above those of all who read the horizon
--      before.
--   3. A call after all these have ended looks for rows again, and then decides.
--
-- While a transaction is open that is older than the barrier, nothing happens.
-- pages: 100 + 60 a lane
create function forebay.forget_v1(p_most integer default 1000) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
declare
    v_horizon bigint;
    v_barrier bigint;
    v_count   integer;
begin
    if (p_most >= 1) is not true then
        raise exception using errcode = 'JQ001', message = format('a step of %s lanes does nothing', coalesce(p_most::text, 'null'));
    end if;
    perform forebay._require_alone('forebay.forget_v1()');
    perform forebay._require_same_cluster();
    if not forebay._try_lock('forgetting') then
        return 0;
    end if;
    v_count := forebay._wake_lanes(p_most);
    if v_count > 0 then
        return v_count;
    end if;
    v_horizon := coalesce(pg_sequence_last_value('forebay.lane_horizon'), 1);
    v_barrier := coalesce(pg_sequence_last_value('forebay.lane_barrier'), 0);
    if not exists (select from forebay.lane l where l.state = 'retired') then
        v_count := forebay._delete_lanes(p_most);
        return v_count + forebay._retire_lanes(p_most);
    elsif v_barrier <= v_horizon then
        -- Drawn after the retirement was committed, so after the horizon was set.
        perform setval('forebay.lane_barrier', pg_current_xact_id()::text::bigint);
        return 1;
    elsif pg_snapshot_xmin(pg_current_snapshot()) > v_barrier::text::xid8 then
        return forebay._finish_retired(p_most);
    end if;
    return 0;
end
$$;


-- Of some lanes those in which every group has had every job that is visible now, and no group has just taken one.
create function forebay._quiet_lanes(p_lanes bigint[]) returns bigint[]
language plpgsql volatile
as $$
declare
    v_since   constant timestamptz := forebay._now() - make_interval(hours => forebay._setting_value('lane_idle_hours')::integer);
    v_places  forebay._place[];
    v_moved   boolean[];
    v_oldest  xid8;
    v_now     pg_snapshot;
    v_ended   forebay._xid_range[];
    v_segment bigint;
begin
    -- A lane without a group to read it has had nothing read; a private lane without its group is over.
    select array_agg(row(p.group_id, p.lane, null, null, null, p.snap, null)::forebay._place),
           array_agg(p.group_id is null and p.audience = 0 or p.snap_to is not null
                     or p.lease_id is not null and p.claimed_at > v_since),
           min(pg_snapshot_xmin(p.snap)::text::bigint)::text::xid8, pg_current_snapshot()
    into v_places, v_moved, v_oldest, v_now
    from (select g.group_id, l.lane, l.audience, b.snap_to, b.lease_id, b.claimed_at,
                 coalesce(b.snap_from, case when l.audience = 0 then g.start_after end, '1:1:') as snap
          from (select distinct i.lane, i.queue, i.audience from unnest(p_lanes) u (lane)
                cross join lateral (select n.* from forebay.lane n where n.lane = u.lane limit 1) i) l
          left join forebay.queue_group g on g.queue = l.queue and (l.audience = 0 or g.group_id = abs(l.audience))
          left join lateral (select c.snap_from, c.snap_to, c.lease_id, c.claimed_at from forebay.batch c
                             where c.group_id = g.group_id and c.lane = l.lane order by c.no desc limit 1) b on true) p;
    v_ended := forebay._xid_ranges('1:1:', v_now);
    for v_segment in
        select s.segment_id from forebay.segment s left join forebay.seal f using (segment_id)
        where s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0) and s.removed_at is null
          and (f.xid is null or f.xid > v_oldest)
        order by s.segment_id desc
    loop
        exit when array_position(v_moved, false) is null;
        execute 'select forebay._moved_' || v_segment || '($1, $2, $3, $4)' into v_moved using v_places, v_moved, v_now, v_ended;
    end loop;
    return array(
        select p.lane from rows from (unnest(v_places), unnest(v_moved)) as p (group_id, lane, queue, priority, audience, snap, claimed_at, moved)
        group by p.lane having not bool_or(p.moved));
end
$$;


-- Retire quiet lanes that were not looked at for a while; returns their number.
create function forebay._retire_lanes(p_most integer) returns integer
language plpgsql volatile
as $$
declare
    v_at    constant timestamptz := forebay._now();
    v_rows  bigint[];
    v_lanes bigint[];
    v_quiet bigint[];
begin
    select array_agg(l.row_no), array_agg(distinct l.lane) into v_rows, v_lanes
    from (select i.row_no, i.lane from forebay.lane i
          where i.state = 'used'
            and i.recorded_at <= v_at - make_interval(hours => forebay._setting_value('lane_idle_hours')::integer)
          order by i.recorded_at
          limit greatest(1, p_most * 10 / (10 + (
              select count(*) from forebay.segment s
              where s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0) and s.removed_at is null)))) l;
    if v_rows is null then
        return 0;
    end if;
    v_quiet := forebay._quiet_lanes(v_lanes);
    update forebay.lane l set recorded_at = v_at where l.row_no = any (v_rows) and l.lane <> all (v_quiet);
    if v_quiet <> '{}' then
        perform setval('forebay.lane_horizon', pg_current_xact_id()::text::bigint);
        update forebay.lane l set state = 'retired' where l.lane = any (v_quiet) and l.state = 'used';
    end if;
    return cardinality(v_quiet);
end
$$;


-- Decide on retired lanes when all who may have relied on their rows have ended; returns the number of lanes.
create function forebay._finish_retired(p_most integer) returns integer
language plpgsql volatile
as $$
declare
    v_at    constant timestamptz := forebay._now();
    v_lanes bigint[];
    v_quiet bigint[];
begin
    v_lanes := array(select distinct l.lane from (
        select i.lane from forebay.lane i where i.state = 'retired' order by i.row_no limit p_most) l);
    v_quiet := forebay._quiet_lanes(v_lanes);
    -- One row of each lane is enough, and none where a row in use has the name.
    delete from forebay.lane l
    where l.lane = any (v_lanes) and l.state <> 'used'
      and exists (select from forebay.lane i where i.lane = l.lane and (i.state = 'used' or l.state <> 'used' and i.row_no < l.row_no));
    update forebay.lane l set state = 'used', recorded_at = v_at, dormant_xid = null, dormant_seq = null
    where l.lane = any (v_lanes) and l.state <> 'used' and l.lane <> all (v_quiet);
    update forebay.lane l
    set state = 'dormant', dormant_xid = pg_current_xact_id(), dormant_seq = coalesce(pg_sequence_last_value('forebay.log_seq'), 0)
    where l.lane = any (v_quiet) and l.state <> 'used';
    return cardinality(v_lanes);
end
$$;


-- Put lanes in use that became dormant before a new group was seen, if the group may not have had their jobs; returns their number.
create function forebay._wake_lanes(p_most integer) returns integer
language plpgsql volatile
as $$
declare
    v_group record;
    v_count integer;
begin
    for v_group in select g.group_id, g.queue, g.start_after from forebay.queue_group g where not g.has_all_lanes order by g.group_id loop
        -- Transactions that see the one that made a lane dormant see all its rows.
        update forebay.lane l set state = 'used', recorded_at = forebay._now(), dormant_xid = null, dormant_seq = null
        where l.row_no = any (array(
            select i.row_no from forebay.lane i
            where i.queue = v_group.queue and i.state = 'dormant' and i.audience = 0
              and not pg_visible_in_snapshot(i.dormant_xid, v_group.start_after)
            limit p_most));
        get diagnostics v_count = row_count;
        if v_count > 0 then
            perform forebay._forget_polls();
            return v_count;
        end if;
        update forebay.queue_group g set has_all_lanes = true where g.group_id = v_group.group_id;
    end loop;
    return 0;
end
$$;


-- Delete dormant lanes, with their cursors, when no segment is left that may have rows of them; returns their number.
create function forebay._delete_lanes(p_most integer) returns integer
language plpgsql volatile
as $$
declare
    v_first bigint;
    v_rows  bigint[];
    v_kept  bigint[];
begin
    select coalesce(min(s.lo), 0) into v_first from forebay.segment s where s.removed_at is null;
    v_rows := array(
        select l.row_no from forebay.lane l
        where l.state = 'dormant' and l.dormant_seq < v_first order by l.dormant_seq limit p_most);
    if v_rows = '{}' then
        return 0;
    end if;
    -- Jobs that wait for a time; batches not yet trimmed, or that a worker may still name.
    v_kept := array(
        select l.row_no from forebay.lane l
        where l.row_no = any (v_rows)
          and (exists (select from forebay.deferred d where d.lane = l.lane)
               or exists (select from forebay.queue_group g
                          cross join lateral (select b.no, b.lease_id, b.claim_no from forebay.batch b
                                              where b.group_id = g.group_id and b.lane = l.lane order by b.no desc limit 1) n
                          where g.queue = l.queue and (l.audience = 0 or g.group_id = abs(l.audience))
                            and (exists (select from forebay.batch b
                                         where b.group_id = g.group_id and b.lane = l.lane and b.no < n.no)
                                 or exists (select from forebay.lease e where e.lease_id = n.lease_id and e.closed_at is null
                                            and n.claim_no >= (select i.floor from forebay.batch i
                                                               where i.lease_id = e.lease_id order by i.claim_no desc limit 1))))));
    -- Looked at again when the present segment is emptied.
    update forebay.lane l set dormant_seq = coalesce(pg_sequence_last_value('forebay.log_seq'), 0) where l.row_no = any (v_kept);

    with gone as (
        delete from forebay.lane l
        where l.row_no = any (v_rows) and l.row_no <> all (v_kept)
        returning l.lane, l.queue, l.priority, l.audience, l.sort),
    -- Where another row has the name, the lane stays, and its cursors.
    over as (
        select g.* from gone g
        where not exists (select from forebay.lane i where i.lane = g.lane and i.row_no <> all (v_rows))),
    batches as (
        delete from forebay.batch b
        using over o, forebay.queue_group g
        where g.queue = o.queue and (o.audience = 0 or g.group_id = abs(o.audience)) and b.group_id = g.group_id and b.lane = o.lane
        returning b.group_id, o.queue, o.priority, o.sort <> 'keyed' as is_counted, b.handed_total + b.skipped_total as total,
                  b.lease_id, b.claim_no),
    settlements as (
        delete from forebay.settlement s using batches b where s.lease_id = b.lease_id and s.claim_no = b.claim_no),
    starts as (
        delete from forebay.suspect_start s using batches b where s.lease_id = b.lease_id and s.claim_no = b.claim_no)
    -- Counts of waiting jobs subtract the totals of all plain lanes.
    insert into forebay.forgotten (queue, group_id, priority, total)
    select b.queue, b.group_id, b.priority, sum(b.total) from batches b where b.is_counted group by b.queue, b.group_id, b.priority
    on conflict on constraint forgotten_pkey do update set total = forgotten.total + excluded.total;
    return cardinality(v_rows) - cardinality(v_kept);
end
$$;
