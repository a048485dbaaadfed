-- grant: worker

-- The ready lanes of some groups: lanes with something to claim, or with a cursor to advance.
--
-- One call per poll. When no lane is ready and p_sleep_millis is given, it sets the wake-ups of p_queues: a worker
-- sleeps for that long. It may report a lane that turns out empty; it never omits a ready lane for good. For a queue with limits
-- on starts (is_limited) it reports lanes only while the queue's limiter lets something through, see docs/design/limits.md;
-- jobs that the limiter holds back set no wake-up.
--
-- Errors: JQ030 foreign cluster.
-- pages: 70 + 6 a lane + 5 an open transaction
create function forebay.ready_v1(p_group_ids bigint[], p_sleep_millis integer default null)
returns table (group_id bigint, lane bigint, queue text, priority integer, is_private boolean, is_suspect boolean, is_limited boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
declare
    v_places  forebay._place[];
    v_moved   boolean[];
    v_now     pg_snapshot;
    v_ended   forebay._xid_range[];
    v_last    bigint;
    v_seal_id bigint;
    v_below   xid8;
    v_hi      bigint;
    v_before  xid8;
    v_tail    bigint[];
    v_segment bigint;
    v_until   bigint;
    v_limiters   bigint[] := '{}';
    v_shut    bigint[] := '{}';
    v_any     boolean;
begin
    if not forebay._is_same_cluster() then
        perform forebay._require_same_cluster();
    end if;
    if pg_sequence_last_value('forebay.limiter_seq') is not null then
        v_limiters := array(select g.group_id from forebay.queue_group g
                         where g.group_id = any (p_group_ids) and g.paused_at is null
                           and exists (select from forebay.queue_limits l where l.queue = g.queue and l.starts_set_at is not null));
    end if;
    v_last := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    select f.segment_id, f.xid, i.hi into v_seal_id, v_below, v_hi
    from forebay.seal f join forebay.segment i using (segment_id) order by f.segment_id desc limit 1;
    v_tail := array(
        select s.segment_id from forebay.segment s
        where s.lo >= coalesce(v_hi, 0) and s.lo <= v_last
        order by s.lo);
    -- The last sealed segment counts too, so that a quiet lane is not reported as ready at each new seal.
    select f.xid into v_before from forebay.seal f where f.segment_id = v_seal_id - 1;
    if v_seal_id is not null then
        v_tail := v_seal_id || v_tail;
    end if;

    -- A lane has moved when it has a current window, or when it is so far behind that the claim has to read it.
    select array_agg(row(p.group_id, p.lane, p.queue, p.priority, p.audience, p.snap, p.claimed_at)::forebay._place),
           array_agg(p.in_hand or coalesce(v_before > pg_snapshot_xmax(p.snap), false)),
           pg_current_snapshot(),
           case when pg_snapshot_xmin(pg_current_snapshot()) = pg_snapshot_xmax(pg_current_snapshot())
                then array[row('1', pg_snapshot_xmax(pg_current_snapshot()))::forebay._xid_range] end
    into v_places, v_moved, v_now, v_ended
    from (select g.group_id, l.lane, l.queue, l.priority, l.audience, b.claimed_at, b.snap_to is not null as in_hand,
                 coalesce(b.snap_from, case l.audience when 0 then g.start_after else '1:1:' end) as snap
          from forebay.queue_group g
          join lateral (
              select distinct i.lane, i.queue, i.priority, i.audience
              from forebay.lane i
              where i.queue = g.queue and i.state <> 'dormant'
                and i.audience in (0, g.group_id, -g.group_id)) l on true
          left join lateral (
              select c.snap_from, c.snap_to, c.claimed_at
              from forebay.batch c
              where c.group_id = g.group_id and c.lane = l.lane
              order by c.no desc limit 1) b on true
          where g.group_id = any (p_group_ids) and g.paused_at is null) p;

    if v_ended is null then
        v_ended := forebay._xid_ranges('1:1:', v_now);
    end if;
    foreach v_segment in array v_tail loop
        exit when array_position(v_moved, false) is null;
        execute 'select forebay._moved_' || v_segment || '($1, $2, $3, $4, $5)'
            into v_moved using v_places, v_moved, v_now, v_ended, case when v_segment = v_seal_id then v_below end;
    end loop;

    if v_limiters <> '{}' then
        v_shut := forebay._shut_limiters(v_limiters);
    end if;
    return query
    select p.group_id, p.lane, p.queue, p.priority, p.audience <> 0, p.audience < 0, p.group_id = any (v_limiters)
    from rows from (unnest(v_places), unnest(v_moved)) with ordinality
         as p (group_id, lane, queue, priority, audience, snap, claimed_at, moved, nr)
    where p.group_id <> all (v_shut) and case
        when p.moved then true
        -- A late committer of an older segment: let the claim read.
        when pg_snapshot_xmin(p.snap) <> pg_snapshot_xmax(p.snap) and v_before > pg_snapshot_xmin(p.snap)
             and exists (select from pg_snapshot_xip(p.snap) x where x < v_before and pg_visible_in_snapshot(x, v_now)) then true
        else forebay._should_move(p.snap, v_now, p.claimed_at) end;
    v_any := found;
    if v_shut <> '{}' then
        -- A shut limiter behind which nothing waits needs a wake-up, like an idle queue.
        v_shut := array(select distinct p.group_id
                        from rows from (unnest(v_places), unnest(v_moved)) as p (group_id, lane, queue, priority, audience, snap, claimed_at, moved)
                        where p.group_id = any (v_shut) and p.moved);
    end if;

    if not v_any and p_sleep_millis is not null then
        perform set_config('synchronous_commit', 'off', true);  -- Setting a flag sequence writes WAL; the commit need not wait for it.
        if not forebay._is_same_cluster() then
            perform forebay._record_same_cluster();
        end if;
        v_until := (extract(epoch from clock_timestamp()) * 1000)::bigint + p_sleep_millis;
        perform forebay._advance_flag(wakeup.flag, v_until, 250)
        from (select distinct forebay._wakeup(g.queue) as flag
              from forebay.queue_group g where g.group_id = any (p_group_ids) and g.group_id <> all (v_shut)) wakeup
        -- A time in the future is from before the clock was set back.
        where not coalesce(pg_sequence_last_value(wakeup.flag) between v_until and v_until + 70000, false);
    end if;
end
$$;
