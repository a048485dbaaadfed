-- grant: worker

-- The lanes of the given groups with jobs to claim, or with a cursor to advance. Call it once per
-- poll. It may name a lane that turns out to be empty; it never leaves a lane out permanently.
--
-- With `p_sleep_millis`, if no lane is ready, it records that a worker sleeps for that time, so
-- that enqueues notify: `NOTIFY forebay_wakeup` with the queue's name as payload. Of a queue with
-- limits on starts (`is_limited`) it names lanes only while the limiter lets something through; a
-- claim there may return fewer jobs than wait, and jobs that the limiter holds back set no wake-up.
--
-- Errors: JQ030 foreign cluster.
-- Transaction: any; meant to be autocommitted.
-- See: docs/design/limits.md
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
    v_before  xid8;
    v_tail    bigint[];
    v_segment bigint;
    v_limiters   bigint[] := '{}';
    v_shut    bigint[] := '{}';
    v_any     boolean;
    v_poll    forebay._idle_poll;  -- this poll, if it finds nothing
    v_idle    forebay._idle_poll;  -- the last one that did, see idle_poll.sql
    v_changed bigint[];            -- lanes with rows since then; null: any lane may have some
begin
    if not forebay._is_same_cluster() then
        perform forebay._require_same_cluster();
    end if;
    v_poll.horizon := coalesce(pg_sequence_last_value('forebay.poll_horizon'), 0);
    v_last := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    -- Alone, so that the memory of the session is about what each transaction committed until now.
    if forebay._is_alone() then
        v_poll.hash := hash_array_extended(p_group_ids, 0);
        v_poll.last_seq := v_last;
        v_poll.next_xid := forebay._next_xid();
        v_poll.checked_at := (extract(epoch from forebay._now()) * 1000)::bigint;
        v_idle := forebay._recall_poll(v_poll.hash);
        if (v_idle.horizon = v_poll.horizon and v_poll.checked_at between v_idle.checked_at and v_idle.checked_at + 5000) is not true then
            v_idle := null;
            if not forebay._may_remember() then
                v_poll.hash := null;
            end if;
        elsif forebay._is_still_idle(v_idle, v_last) then
            perform forebay._announce_sleep(v_idle.flags, p_sleep_millis);
            return;
        end if;
    end if;
    -- The last sealed segment counts too, so that a quiet lane is not reported as ready at each new seal.
    select s.segments, s.sealed, s.below, s.before into v_tail, v_seal_id, v_below, v_before from forebay._newest_segments(v_last) s;
    -- Few groups are looked at as fast.
    if v_idle.queues is not null and cardinality(p_group_ids) > 8 then
        select c.lanes, c.snap into v_changed, v_poll.snap
        from forebay._changed_lanes(p_group_ids, v_idle, v_tail, v_seal_id, v_below, v_before) c;
        v_poll.checked_at := case when v_changed is null then v_poll.checked_at else v_idle.checked_at end;
        if v_changed = '{}' then
            perform forebay._remember_poll(p_group_ids, v_idle, v_poll), forebay._announce_sleep(v_idle.flags, p_sleep_millis);
            return;
        end if;
    end if;
    if pg_sequence_last_value('forebay.limiter_seq') is not null then
        v_limiters := array(select g.group_id from forebay.queue_group g
                            cross join lateral (select from forebay.queue_limits i
                                                where i.queue = g.queue and i.starts_set_at is not null offset 0) l
                            where g.group_id = any (p_group_ids) and (g.paused_at is null or g.resume_at <= forebay._now()));
    end if;
    if v_limiters <> '{}' then
        v_poll.hash := null;
        v_changed := null;
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
              where (v_changed is null or i.lane = any (v_changed))
                and i.queue = g.queue and i.state <> 'dormant'
                and i.audience in (0, g.group_id, -g.group_id)) l on true
          left join lateral (
              select c.snap_from, c.snap_to, c.claimed_at
              from forebay.batch c
              where c.group_id = g.group_id and c.lane = l.lane
              order by c.no desc limit 1) b on true
          where g.group_id = any (p_group_ids) and (g.paused_at is null or g.resume_at <= forebay._now())) p;

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
        -- A late committer of an older segment: let the claim read. It would not read for one that was rolled back, nor move.
        when pg_snapshot_xmin(p.snap) <> pg_snapshot_xmax(p.snap) and v_before > pg_snapshot_xmin(p.snap)
             and exists (select from pg_snapshot_xip(p.snap) x
                         where x < v_before and pg_visible_in_snapshot(x, v_now) and pg_xact_status(x) is distinct from 'aborted') then true
        else forebay._should_move(p.snap, v_now, p.claimed_at) end;
    v_any := found;
    if v_shut <> '{}' then
        -- A shut limiter behind which nothing waits needs a wake-up, like an idle queue.
        v_shut := array(select distinct p.group_id
                        from rows from (unnest(v_places), unnest(v_moved)) as p (group_id, lane, queue, priority, audience, snap, claimed_at, moved)
                        where p.group_id = any (v_shut) and p.moved);
    end if;

    if not v_any and v_poll.hash is not null then
        v_poll.snap := coalesce(v_poll.snap, v_now);
        -- The end of a pause makes lanes ready without a row of the log: the memory ends with it.
        if pg_sequence_last_value('forebay.timed_pause_seq') is not null then
            v_poll.checked_at := least(v_poll.checked_at, (
                select (extract(epoch from min(g.resume_at)) * 1000)::bigint - 5000
                from forebay.queue_group g where g.group_id = any (p_group_ids) and g.resume_at > to_timestamp(v_poll.checked_at / 1000.0)));
        end if;
        perform forebay._remember_poll(p_group_ids, v_idle, v_poll);
    end if;
    if not v_any and p_sleep_millis is not null then
        perform forebay._announce_sleep(array(
            select distinct forebay._wakeup(g.queue)::oid
            from forebay.queue_group g where g.group_id = any (p_group_ids) and g.group_id <> all (v_shut)), p_sleep_millis);
    end if;
end
$$;
