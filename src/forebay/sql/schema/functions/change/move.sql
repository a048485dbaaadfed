-- Move deferred jobs: into the log, to another time, or to another priority. Returns the ids of those that it moved.
--
-- A promotion and a move never both decide: both happen under the promotion lock, and a later statement reads what the last holder committed.
--
-- Invariant "one live row": the old row is deleted by the statement that writes the new one.
-- Locks: the promotion lock.
create function forebay._move_deferred(p_act text, p_options jsonb, p_jobs bigint[], p_ids bigint[]) returns bigint[]
language plpgsql volatile
as $$
begin
    if cardinality(p_ids) = 0 then
        return '{}';
    end if;
    lock table only forebay.lock_promotion in share update exclusive mode;
    return forebay._move_deferred_rows(p_act, p_options, p_jobs, p_ids);
end
$$;


-- The move itself, for a caller that has the promotion lock. A row is named by its job, whose rows an index has, and its own number, which is
-- the second column of one: alone, it would be looked for among all rows.
create function forebay._move_deferred_rows(p_act text, p_options jsonb, p_jobs bigint[], p_ids bigint[]) returns bigint[]
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_position forebay.promotion;
    v_run_at   constant timestamptz := p_options ->> 'run_at';
    v_is_due   constant boolean := p_act = 'retry' or coalesce(v_run_at <= forebay._now(), false);
    v_from     bigint[];
    v_to       bigint[];
    v_jobs     bigint[];
    v_lanes    bigint[];
    v_left     record;
    v_withdrawn record;
begin
    if cardinality(p_ids) = 0 then
        return '{}';
    end if;
    select * into v_position from forebay.promotion p order by p.no desc limit 1;
    if p_act = 'reprioritise' then
        select array_agg(l.lane), array_agg(forebay._lane_beside(l.lane, (p_options ->> 'priority')::integer)) into v_from, v_to
        from (select distinct d.lane from unnest(p_jobs, p_ids) u (job_id, deferred_id)
              join forebay.deferred d on d.job_id = u.job_id and d.deferred_id + 0 = u.deferred_id) l;
    end if;
    with gone as (
        delete from forebay.deferred d
        using unnest(p_jobs, p_ids) u (job_id, deferred_id)
        where d.job_id = u.job_id and d.deferred_id + 0 = u.deferred_id
          and not (v_position.no is not null and pg_visible_in_snapshot(d.xid, v_position.snap)
                   and (d.run_at, d.deferred_id) <= (v_position.run_at, v_position.deferred_id))
        returning d.*
    ), later as (
        insert into forebay.deferred (
            run_at, lane, enqueued_at, job_id, expires_at, attempt, pauses, unique_key, {job})
        select coalesce(v_run_at, g.run_at), coalesce(v_to[array_position(v_from, g.lane)], g.lane), g.enqueued_at, g.job_id, g.expires_at, g.attempt,
               g.pauses, g.unique_key, {job of g}
        from gone g where not v_is_due order by g.run_at, g.deferred_id
    ), now as (
        insert into forebay.log (
            lane, enqueued_at, job_id, expires_at, attempt, pauses, unique_key, ready_at, {job})
        select g.lane, g.enqueued_at, g.job_id, g.expires_at, g.attempt, g.pauses, g.unique_key, forebay._now(), {job of g}
        from gone g where v_is_due order by g.run_at, g.deferred_id
        returning lane, seq, job_id
    )
    select (select array_agg(n.lane) from now n) as new_lanes, (select array_agg(n.seq) from now n) as new_seqs,
           (select array_agg(n.job_id) from now n) as new_jobs,
           array_agg(distinct g.job_id) as jobs, array_agg(distinct g.lane) filter (where v_is_due) as due_lanes,
           array_agg(g.lane) as lanes, array_agg(g.xid) as xids, array_agg(forebay._state_of_deferred(g.attempt, g.pauses)) as states,
           array_agg(g.run_at) as times, array_agg(g.deferred_id) as ids, array_agg(g.job_id) as row_jobs,
           array_agg(g.kind) as kinds, array_agg(g.tag) as tags
    into v_left from gone g;
    if not v_is_due then
        perform forebay._announce_due(v_run_at);
    end if;
    v_jobs := v_left.jobs;
    v_lanes := v_left.due_lanes;
    perform forebay._record_left(v_left.lanes, v_left.xids, v_left.states, v_left.kinds, v_left.tags);
    -- A job that was cancelled for one of several groups: the new row is withdrawn for it, or noted.
    perform forebay._note_cancelled_again(v_left.new_lanes, v_left.new_seqs, v_left.new_jobs);
    for v_withdrawn in
        with old as (
            delete from forebay.withdrawn w
            using unnest(v_left.times, v_left.ids, v_left.row_jobs) u (run_at, deferred_id, job_id)
            where w.run_at = u.run_at and w.deferred_id = u.deferred_id
            returning u.job_id, w.group_id
        )
        select o.group_id, array_agg(distinct o.job_id) as jobs from old o group by o.group_id
    loop
        perform forebay._withdraw(v_withdrawn.jobs, v_withdrawn.group_id);
    end loop;
    if v_lanes <> '{}' then
        perform forebay._use_lanes(v_lanes);
        perform forebay._notify(q.queue)
        from (select distinct l.queue from unnest(v_lanes) u (lane) cross join lateral (select i.queue from forebay.lane i where i.lane = u.lane limit 1) l) q;
    end if;
    return coalesce(v_jobs, '{}');
end
$$;


-- The lane of another priority that is otherwise like this one, recorded in the registry.
create function forebay._lane_beside(p_lane bigint, p_priority integer) returns bigint
language plpgsql volatile
as $$
declare
    l forebay.lane;
begin
    select i.* into l from forebay.lane i where i.lane = p_lane limit 1;
    return case l.sort when 'keyed' then forebay._record_keyed_lane(l.queue, p_priority, l.audience)
                       when 'limited' then forebay._record_limited_lane(l.queue, p_priority, l.audience)
                       else forebay._add_lane(
                           case l.audience when 0 then forebay._shard_id(l.queue, p_priority, l.shard) else forebay._lane_id(l.queue, p_priority, l.audience) end,
                           l.queue, p_priority, l.audience, 'plain', l.shard) end;
end
$$;


-- Move ready jobs of groups to a later time or another priority. Returns the ids of those that it moved.
--
-- A claim and a move never both decide: both happen under the lock of the lane, and a later statement reads the cursor. The old row
-- stays, with a tombstone: claims skip it, and a group that is opened later reads it. The new row is private to the group, like that of a retry.
--
-- Locks: the sweep lock, for jobs with limit keys the limiters of their groups, then the lanes of the jobs.
create function forebay._move_ready(p_act text, p_options jsonb, p_found forebay._match[]) returns bigint[]
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_jobs  bigint[] := '{}';
    v_row   record;
    v_log   forebay.log;
    v_lane  forebay.lane;
    v_group_id bigint;
    v_target   bigint;
begin
    if cardinality(p_found) = 0 then
        return '{}';
    end if;
    lock table only forebay.lock_sweep in share update exclusive mode;
    -- A queue that was never served has no group yet.
    perform forebay._imply_group(q.queue)
    from (select distinct l.queue from unnest(p_found) f cross join lateral (select i.queue from forebay.lane i where i.lane = f.lane limit 1) l
          where f.group_id is null) q;
    -- Before the lanes, as a claim does.
    for v_row in
        select distinct g.group_id, hashint8(g.group_id) & 63 as nr
        from unnest(p_found) f
        cross join lateral (select i.queue from forebay.lane i where i.lane = f.lane limit 1) l
        join forebay.queue_group g on g.queue = l.queue and (g.group_id = f.group_id or f.group_id is null)
        where f.lane & 1 = 1
        order by 2
    loop
        perform forebay._lock_limiter(v_row.group_id, false);
    end loop;
    -- In the order of the locks.
    for v_row in
        select distinct g.group_id, f.lane, hashint8(g.group_id # f.lane) & 127 as nr
        from unnest(p_found) f
        cross join lateral (select i.queue from forebay.lane i where i.lane = f.lane limit 1) l
        join forebay.queue_group g on g.queue = l.queue and (g.group_id = f.group_id or f.group_id is null)
        order by 3
    loop
        perform forebay._lock_lane(v_row.group_id, v_row.lane);
    end loop;
    for v_row in
        select f.job_id, f.lane, f.xid, f.seq, g.group_id
        from unnest(p_found) f
        cross join lateral (select i.queue from forebay.lane i where i.lane = f.lane limit 1) l
        join forebay.queue_group g on g.queue = l.queue and (g.group_id = f.group_id or f.group_id is null)
        left join lateral (
            select b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq
            from forebay.batch b left join forebay.segment s on s.segment_id = b.pos_segment
            where b.group_id = g.group_id and b.lane = f.lane order by b.no desc limit 1) c on true
        where g.closing_at is null
          and (c.snap_from is null
               or not forebay._is_consumed(f.xid, f.seq, c.snap_from, c.snap_to, c.lo, c.hi, c.pos_xid, c.pos_seq)
               -- A lane of jobs with limit keys.
               or f.lane & 1 = 1
                  and forebay._is_limit_parked(g.group_id, (forebay._row(f.lane, f.xid, f.seq)).limit_key, f.xid, f.seq))
          and not exists (select from forebay.tombstone t
                          where t.job_id = f.job_id and (t.reason = 'e' or t.reason = 'm' and f.seq <= t.up_to)
                            and (t.group_id is null or t.group_id = g.group_id))
        order by f.seq
    loop
        if (v_row.lane, v_row.group_id) is distinct from (v_lane.lane, v_group_id) then
            select i.* into v_lane from forebay.lane i where i.lane = v_row.lane limit 1;
            v_group_id := v_row.group_id;
            v_target := forebay._record_private_lane(
                v_lane.queue, coalesce((p_options ->> 'priority')::integer, v_lane.priority),
                case when v_lane.audience < 0 then v_lane.audience else v_group_id end, null,
                case when v_lane.sort = 'limited' then '' end);
        end if;
        v_log := forebay._row(v_row.lane, v_row.xid, v_row.seq);
        perform forebay._continue_job(v_log, v_target, coalesce(v_log.attempt, 0), coalesce(v_log.pauses, 0), (p_options ->> 'run_at')::timestamptz);
        insert into forebay.tombstone (job_id, group_id, reason, recorded_at, up_to)
        values (v_row.job_id, v_row.group_id, 'm', forebay._now(), v_row.seq);
        perform forebay._record_row_left(v_lane.queue, v_row.group_id, v_lane.priority, v_log, 'm');
        v_jobs := v_jobs || v_row.job_id;
    end loop;
    if p_act = 'reprioritise' and v_jobs <> '{}' then
        perform forebay._notify(q.queue)
        from (select distinct l.queue from unnest(p_found) f cross join lateral (select i.queue from forebay.lane i where i.lane = f.lane limit 1) l) q;
    end if;
    return v_jobs;
end
$$;
