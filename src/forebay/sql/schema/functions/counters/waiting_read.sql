-- The jobs that wait, for the groups of some queues (null: all) or one group: by priority, and as a count that may be appended.
--
-- The sum over the states of forebay.job(), in the caller's snapshot, the caller's own jobs included. From the last count on it visits
-- what was appended, promoted, moved and, in keyed lanes, claimed since; and the cancelled scheduled jobs that are not due yet.
--
-- Parameters: p_most, a first count ends there: then visited is at least p_most and the numbers are lower bounds.
-- Returns: last, the count to append, without the caller's own rows; its no and its numbers of sequences are null. base_no: the number
--   of the count that it begins with. visited: rows.
create function forebay._waiting_read(p_queues text[], p_group_id bigint default null, p_most bigint default null)
returns table (queue text, group_id bigint, group_name text, priorities integer[], ready bigint[], scheduled bigint[], retrying bigint[],
               cancelled bigint[], last forebay.counter_waiting, base_no bigint, visited bigint, is_first boolean)
language plpgsql stable
-- planner: hot
as $$
#variable_conflict use_column
declare
    v_now      constant pg_snapshot := pg_current_snapshot();
    v_own      constant xid8 := pg_current_xact_id_if_assigned();
    v_own_range constant forebay._xid_range[] := forebay._own_xid_range();
    v_bases    forebay._waiting_base[];
    v_lanes    forebay._waiting_lane[];
    v_rows     forebay._waiting_rows[];
    v_passed   forebay._waiting_rows[] := '{}';
    v_position forebay.promotion;
begin
    v_bases := array(
        select row(row_number() over (order by w.queue, w.name), w.queue, w.group_id, w.name, w.start, c.no, c.snap, c.priorities, c.totals, c.scheduled,
                   c.retrying, c.keyed,
                   case when c.snap is not null then forebay._xid_ranges(c.snap, v_now) || v_own_range end)::forebay._waiting_base
        from (select q.queue, coalesce(g.group_id, 0) as group_id, coalesce(g.name, 'default') as name, coalesce(g.start_after, '1:1:') as start
              from forebay._queues_of(p_queues) q (queue) left join forebay.queue_group g on g.queue = q.queue) w
        left join lateral (select i.* from forebay.counter_waiting i
                           where i.queue = w.queue and i.group_id = w.group_id order by i.oldest desc, i.no desc limit 1) c on true
        where p_group_id is null or w.group_id = p_group_id);
    v_lanes := array(
        select row(row_number() over (), b.nr, l.priority, l.audience, l.sort = 'keyed',
                   case when l.sort = 'keyed' then 0 else coalesce(n.handed_total + n.skipped_total, 0) end,
                   row(0, l.lane, case l.audience when 0 then b.start else '1:1:' end, n.snap_from, n.snap_to, s.lo, s.hi, n.pos_xid,
                       n.pos_seq)::forebay._cursor,
                   n.high_seq, k.before)::forebay._waiting_lane
        from unnest(v_bases) b
        cross join lateral (select distinct i.lane, i.priority, i.audience, i.sort from forebay.lane i
                            where i.queue = b.queue and i.audience in (0, b.group_id, -b.group_id)) l
        left join lateral (select i.* from forebay.batch i
                           where i.group_id = b.group_id and i.lane = l.lane order by i.no desc limit 1) n on true
        left join forebay.segment s on s.segment_id = n.pos_segment
        left join lateral (select row(i.lane, i.unread, i.low, i.at)::forebay._waiting_keyed as before
                           from unnest(b.keyed) i where l.sort = 'keyed' and i.lane = l.lane limit 1) k on true);
    v_rows := array(select a from forebay._waiting_appended(v_bases, v_lanes) a union all select f from forebay._waiting_first(v_bases, v_lanes, p_most) f);
    if pg_sequence_last_value('forebay.key_seq') is not null then
        v_passed := array(select p from forebay._waiting_passed(v_bases, v_lanes) p);
    end if;
    select p.* into v_position from forebay.promotion p order by p.no desc limit 1;

    return query
    with lanes as materialized (
        select l.nr, l.base, l.priority, l.audience, l.is_keyed, l.consumed, l.cursor, l.high_seq, b.queue, b.snap, b.ranges,
               coalesce(r.jobs, 0) as jobs, coalesce(r.own, 0) as own, coalesce(p.jobs, 0) as passed,
               coalesce((l.before).unread, 0) + coalesce(r.jobs, 0) - coalesce(p.jobs, 0) as unread,
               -- The lowest number in front of the cursor: of the rows counted before, of the new ones, or above all that are behind it.
               least(p.low, r.low, coalesce(greatest((l.before).low, l.high_seq + 1), l.high_seq + 1)) as low
        from unnest(v_lanes) l
        join unnest(v_bases) b on b.nr = l.base
        left join unnest(v_rows) r on r.nr = l.nr
        left join unnest(v_passed) p on p.nr = l.nr),
    deferred_rows as materialized (
        select l.base, l.priority, count(*) as visited,
               count(*) filter (where d.state = 'scheduled' and d.is_waiting) as scheduled, count(*) filter (where d.state = 'retrying' and d.is_waiting) as retrying,
               count(*) filter (where d.state = 'scheduled' and d.is_waiting and d.is_own) as own_scheduled,
               count(*) filter (where d.state = 'retrying' and d.is_waiting and d.is_own) as own_retrying
        from lanes l
        cross join lateral unnest(coalesce(l.ranges, case when l.snap is null then array[row('0', '18446744073709551615')::forebay._xid_range] end)) r (low, high)
        cross join lateral (
            select forebay._state_of_deferred(i.attempt, i.pauses) as state, i.xid is not distinct from v_own as is_own,
                   not (v_position.no is not null and pg_visible_in_snapshot(i.xid, v_position.snap)
                        and (i.run_at, i.deferred_id) <= (v_position.run_at, v_position.deferred_id)) as is_waiting
            from forebay.deferred i where i.lane = (l.cursor).lane and i.kind <> '' and i.xid >= r.low and i.xid < r.high
            limit case when l.snap is null then p_most end offset 0) d
        group by l.base, l.priority),
    changes as materialized (
        select b.nr as base, u.priority, sum(u.jobs) as visited, sum(u.jobs) filter (where u.state = 'w') as moved,
               sum(u.jobs) filter (where u.state = 's') as scheduled, sum(u.jobs) filter (where u.state = 'r') as retrying
        from unnest(v_bases) b
        cross join lateral unnest(b.ranges) r
        cross join lateral (select i.* from forebay.counter_change i where i.queue = b.queue and i.xid >= r.low and i.xid < r.high offset 0) c
        cross join lateral unnest(c.priorities, c.audiences, c.states, c.row_xids, c.jobs) u (priority, audience, state, row_xid, jobs)
        where case u.state when 'w' then c.group_id = b.group_id
                           else u.audience in (0, b.group_id, -b.group_id) and pg_visible_in_snapshot(u.row_xid, b.snap) end
        group by b.nr, u.priority),
    withdrawn_rows as materialized (
        select w.base, w.priority, count(*) filter (where w.state = 'scheduled') as scheduled, count(*) filter (where w.state = 'retrying') as retrying
        from (select distinct b.nr as base, u.priority, u.state, u.deferred_id
              from unnest(v_bases) b
              cross join lateral (
                  select i.* from forebay.withdrawn i
                  where i.queue = b.queue and (v_position.no is null or (i.run_at, i.deferred_id) > (v_position.run_at, v_position.deferred_id))
                  union all
                  -- Committed since the last promotion: it may be past due.
                  select i.* from unnest(forebay._xid_ranges(v_position.snap, v_now) || v_own_range) r
                  cross join lateral (select j.* from forebay.withdrawn j where j.queue = b.queue and j.xid >= r.low and j.xid < r.high offset 0) i
                  where not pg_visible_in_snapshot(i.row_xid, v_position.snap)) u
              where u.audience in (0, b.group_id, -b.group_id) and (u.group_id is null or u.group_id = b.group_id)) w
        group by w.base, w.priority),
    cancelled_rows as materialized (
        select b.nr as base, c.priority, sum(c.jobs + c.parked) as jobs
        from forebay._cancelled_ahead(p_queues) c join unnest(v_bases) b on b.queue = c.queue and b.group_id = c.group_id
        group by b.nr, c.priority),
    parked_jobs as materialized (
        select b.nr as base, p.priority, sum(p.parked) as parked
        from forebay._waiting_parked(p_queues) p join unnest(v_bases) b on b.queue = p.queue and b.group_id = p.group_id
        group by b.nr, p.priority),
    limited_parked as materialized (
        select b.nr as base, l.priority, count(*) as parked
        from forebay._parked_jobs(case when cardinality(p_queues) = 1 then p_queues[1] end) p
        cross join lateral (select i.queue, i.priority from forebay.lane i where i.lane = (p.job).lane limit 1) l
        join unnest(v_bases) b on b.queue = l.queue and b.group_id = p.group_id
        where exists (select from unnest(v_bases) n where n.snap is null) and b.snap is null and (p.job).ordering_key is null
          -- Moved, or expired by the sweep: later counts subtracted these then.
          and not exists (select from forebay.tombstone t
                          where t.job_id = coalesce((p.job).job_id, (p.job).seq) and t.group_id = p.group_id
                            and (t.reason = 'e' or t.reason = 'm' and (p.job).seq <= t.up_to))
        group by b.nr, l.priority),
    gone as materialized (
        select b.nr as base, f.priority, f.total from unnest(v_bases) b join forebay.forgotten f on f.queue = b.queue and f.group_id = b.group_id),
    in_lanes as materialized (
        select l.base, l.priority, sum(l.jobs + l.passed) as visited, sum(l.jobs) filter (where not l.is_keyed) as jobs, sum(l.own) filter (where not l.is_keyed) as own,
               sum(l.consumed) as consumed, sum(l.unread) filter (where l.is_keyed) as keyed, sum(l.own) filter (where l.is_keyed) as own_keyed
        from lanes l group by l.base, l.priority),
    cells as materialized (
        select p.base, p.priority, b.snap is null as is_first, l.base is not null as has_lanes,
               coalesce(l.consumed, 0) + coalesce(f.total, 0) as consumed,
               coalesce(b.totals[p.place], case when b.snap is null then coalesce(l.consumed, 0) + coalesce(f.total, 0) else 0 end)
               + coalesce(l.jobs, 0) - coalesce(c.moved, 0) + coalesce(i.parked, 0) as total,
               coalesce(b.scheduled[p.place], 0) + coalesce(d.scheduled, 0) - coalesce(c.scheduled, 0) as scheduled,
               coalesce(b.retrying[p.place], 0) + coalesce(d.retrying, 0) - coalesce(c.retrying, 0) as retrying,
               coalesce(l.own, 0) as own, coalesce(d.own_scheduled, 0) as own_scheduled, coalesce(d.own_retrying, 0) as own_retrying,
               coalesce(l.keyed, 0) as keyed, coalesce(l.own_keyed, 0) as own_keyed, coalesce(k.parked, 0) as parked,
               coalesce(a.jobs, 0) as cancelled, coalesce(w.scheduled, 0) as withdrawn_scheduled, coalesce(w.retrying, 0) as withdrawn_retrying,
               coalesce(l.visited, 0) + coalesce(d.visited, 0) + coalesce(c.visited, 0) as visited
        from (select i.base, i.priority, array_position(b.priorities, i.priority) as place
              from (select l.base, l.priority from in_lanes l
                    union select b.nr, u from unnest(v_bases) b cross join lateral unnest(b.priorities) u
                    union select f.base, f.priority from gone f
                    union select k.base, k.priority from parked_jobs k
                    union select q.base, q.priority from limited_parked q) i
              join unnest(v_bases) b on b.nr = i.base) p
        join unnest(v_bases) b on b.nr = p.base
        left join in_lanes l on l.base = p.base and l.priority = p.priority
        left join deferred_rows d on d.base = p.base and d.priority = p.priority
        left join changes c on c.base = p.base and c.priority = p.priority
        left join withdrawn_rows w on w.base = p.base and w.priority = p.priority
        left join cancelled_rows a on a.base = p.base and a.priority = p.priority
        left join parked_jobs k on k.base = p.base and k.priority = p.priority
        left join gone f on f.base = p.base and f.priority = p.priority
        -- Behind the cursors, but not taken: the first count has them, later ones subtract what batches take.
        left join limited_parked i on i.base = p.base and i.priority = p.priority),
    keyed as materialized (
        select l.base, array_agg(row((l.cursor).lane, l.unread - l.own, l.low, l.cursor)::forebay._waiting_keyed) as keyed
        from lanes l where l.is_keyed group by l.base)
    select b.queue, b.group_id, b.group_name,
           coalesce(s.priorities, '{}'), coalesce(s.ready, '{}'), coalesce(s.scheduled, '{}'), coalesce(s.retrying, '{}'), coalesce(s.cancelled, '{}'),
           row(b.queue, b.group_id, null, null, null, null, forebay._snapshot_of_others(), null,
               coalesce(s.waiting, 0), coalesce(s.consumed, 0), coalesce(s.all_priorities, '{}'), coalesce(s.all_totals, '{}'),
               coalesce(s.all_scheduled, '{}'), coalesce(s.all_retrying, '{}'), coalesce(k.keyed, '{}'))::forebay.counter_waiting,
           b.no, coalesce(s.visited, 0)::bigint, b.snap is null
    from unnest(v_bases) b
    left join (
        select c.base, sum(c.visited) as visited, sum(c.consumed)::bigint as consumed,
               -- Without the caller's own jobs, those that it has withdrawn excepted: an enqueue that counts is rolled back or adds more. With
               -- those that were cancelled before a claim: what claims skip is subtracted from it.
               sum(c.total - c.own - c.consumed + c.keyed - c.own_keyed + c.parked + c.scheduled - c.own_scheduled - c.withdrawn_scheduled
                   + c.retrying - c.own_retrying - c.withdrawn_retrying)::bigint as waiting,
               array_agg(c.priority order by c.priority) filter (where c.is_shown) as priorities,
               array_agg((c.total - c.consumed + c.keyed + c.parked - c.cancelled)::bigint order by c.priority) filter (where c.is_shown) as ready,
               array_agg(c.cancelled::bigint order by c.priority) filter (where c.is_shown) as cancelled,
               array_agg((c.scheduled - c.withdrawn_scheduled)::bigint order by c.priority) filter (where c.is_shown) as scheduled,
               array_agg((c.retrying - c.withdrawn_retrying)::bigint order by c.priority) filter (where c.is_shown) as retrying,
               array_agg(c.priority order by c.priority) as all_priorities,
               array_agg((c.total - c.own)::bigint order by c.priority) as all_totals,
               array_agg((c.scheduled - c.own_scheduled)::bigint order by c.priority) as all_scheduled,
               array_agg((c.retrying - c.own_retrying)::bigint order by c.priority) as all_retrying
        from (select i.*, i.has_lanes or i.total - i.consumed + i.keyed + i.parked + i.scheduled + i.retrying <> 0 as is_shown from cells i) c
        group by c.base) s on s.base = b.nr
    left join keyed k on k.base = b.nr
    order by b.nr;
end
$$;


-- The queues of the registry of lanes, or p_queues.
create function forebay._queues_of(p_queues text[]) returns setof text
language sql stable
as $$
    with recursive queue as (
        (select l.queue from forebay.lane l where p_queues is null order by l.queue limit 1)
        union all
        select n.queue from queue q, lateral (
            select l.queue from forebay.lane l where l.queue > q.queue order by l.queue limit 1) n
    )
    select q.queue from queue q
    union
    select u from unnest(p_queues) u
$$;
