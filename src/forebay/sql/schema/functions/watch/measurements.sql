-- grant: operator, reader, worker

-- What alerts and metrics are made of, as one JSON object: queues by group, dead letters, workers,
-- due jobs that nothing has made ready, forebay.ticks(), workers lost in the last ten minutes, endpoints, open breakers of limit keys by queue, mirrors, schedules, subjects by
-- state and the database. Times are seconds since 1970. It does not visit waiting jobs: it continues from the last counts, as
-- forebay.depth() does, and reads the counters up to the last fold, the newest 100 batches of each
-- lane and its first 100 unread rows.
--
-- Parameters:
--   within_seconds  60 to 86,400: the time to which numbers such as `completed`, `lately` and
--                   `missed` refer
--   with_counters   false leaves out the counters by kind and by tag: the parts `counters` and
--                   `label_sets` are null, and the call is cheaper where there are many queues
--
-- Errors: JQ001 a bad number.
-- Transaction: the caller's; reads only.
-- See: docs/howto/monitoring.md
--
-- Inside: the only place that reads it: counters with more detail replace a part here, and nothing
-- else. Invariant "a scrape does not scan": the cost grows with lanes, kinds and tags, endpoints
-- and workers, and not with jobs.
-- pages: 3000 + 400 a lane + 60 a cell + 4 an uncounted job + 20 an open lease
create function forebay.measurements(within_seconds double precision default 900, with_counters boolean default true) returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
#variable_conflict use_column
declare
    v_now   constant timestamptz := forebay._now();
    v_since constant timestamptz := v_now - make_interval(secs => least(greatest(within_seconds, 0), 1000000));
begin
    if (measurements.within_seconds between 60 and 86400) is not true then
        raise exception using errcode = 'JQ001', column = 'within_seconds',
            message = format('within_seconds is %s, not within 60 to 86400', coalesce(measurements.within_seconds::text, 'null'));
    end if;
    return jsonb_build_object(
        'at', extract(epoch from v_now), 'within', within_seconds,
        'installed_at', (select extract(epoch from min(m.applied_at)) from forebay.schema_migration m),
        'checked_at', (select extract(epoch from c.checked_at) from forebay.alert_check c),
        'queues', forebay._measured_queues(v_now, v_since),
        'counters', case when with_counters then forebay._measured_counters() end,
        'label_sets', case when with_counters then forebay._measured_label_sets() end,
        'dead', forebay._measured_dead(v_since),
        'overdue', forebay._measured_overdue(v_now),
        'workers', forebay._measured_workers(v_now),
        'ticks', (select coalesce(jsonb_agg(jsonb_build_object(
                             'group', t.group_name, 'queues', t.queues, 'schedules', t.schedules, 'alone', t.alone,
                             'ended_at', extract(epoch from t.ended_at), 'expected_by', extract(epoch from t.expected_by))
                         order by t.ended_at desc), '[]') from forebay.ticks() t),
        'apps', (select coalesce(jsonb_agg(jsonb_build_object('app', a.app, 'group', a.group_name, 'queues', a.queues)), '[]')
                 from forebay._known_apps() a),
        'lost_workers', (select coalesce(jsonb_agg(jsonb_build_object('worker', e.worker, 'ended_at', extract(epoch from e.ended_at), 'kinds', e.kinds)
                                                   order by e.ended_at, e.worker), '[]')
                         from forebay.ended_workers(v_now - interval '10 minutes', 1000) e where e.how in ('lost', 'crashed')),
        'endpoints', forebay._measured_endpoints(v_now),
        'breakers', forebay._measured_breakers(),
        'mirrors', forebay._measured_mirrors(v_now),
        'schedules', forebay._measured_schedules(v_since),
        'subjects', (select coalesce(jsonb_agg(jsonb_build_object('queue', c.queue, 'state', c.state, 'subjects', c.subjects)), '[]')
                     from forebay.subject_counts() c),
        'database', forebay._measured_database(),
        'space', forebay._measured_space(v_now),
        'alerts', (select coalesce(jsonb_agg(jsonb_build_object(
                              'code', a.code, 'subject', a.subject, 'group', a.group_name, 'severity', a.severity, 'problem', a.problem, 'hint', a.hint,
                              'since', extract(epoch from a.since), 'seen_at', extract(epoch from a.seen_at),
                              'fired_at', extract(epoch from a.fired_at))
                          order by a.code, a.subject, a.group_name), '[]') from forebay.alert a),
        'thresholds', (select coalesce(jsonb_agg(jsonb_build_object('name', t.name, 'queue', t.queue, 'tag', t.tag, 'value', t.value)), '[]')
                       from forebay.alert_threshold t));
end
$$;


-- The groups of all queues: jobs by state, claims and completions, and the oldest ready job.
create function forebay._measured_queues(p_now timestamptz, p_since timestamptz) returns jsonb
language sql stable
-- planner: hot
as $$
    with counts as materialized (
        select d.queue, d.group_name, sum(d.scheduled)::bigint as scheduled, sum(d.ready)::bigint as ready, sum(d.claimed)::bigint as claimed,
               sum(d.running)::bigint as running, sum(d.retrying)::bigint as retrying, sum(d.cancelled)::bigint as cancelled
        from forebay.depth() d group by d.queue, d.group_name),
    -- Only these have an oldest ready job: of a thousand queues, most are empty.
    waiting as materialized (select distinct c.queue from counts c where c.ready > 0),
    lanes as materialized (
        select g.queue, g.group_id, l.lane, g.start_after, l.audience
        from forebay.queue_group g
        join lateral (select distinct i.lane, i.audience from forebay.lane i
                      where i.queue = g.queue and i.audience in (0, g.group_id, -g.group_id)) l on true),
    newest as materialized (
        select l.queue, l.group_id, l.lane, l.audience, l.start_after, n.*
        from lanes l
        join waiting w on w.queue = l.queue
        left join lateral (
            select i.snap_from, i.snap_to, i.pos_segment, i.pos_xid, i.pos_seq, i.handed_total
            from forebay.batch i where i.group_id = l.group_id and i.lane = l.lane order by i.no desc limit 1) n on true),
    claims as materialized (
        select l.group_id, sum(n.handed_total)::bigint as claimed, max(n.claimed_at) as claimed_at
        from lanes l
        cross join lateral (select i.handed_total, i.claimed_at from forebay.batch i
                            where i.group_id = l.group_id and i.lane = l.lane and i.lease_id is not null order by i.no desc limit 1) n
        group by l.group_id),
    done as materialized (
        select b.group_id, max(b.settled_at) as completed_at, coalesce(sum(b.jobs) filter (where b.settled_at > p_since), 0)::bigint as completed
        from (
            select l.group_id, s.settled_at, d.jobs
            from lanes l
            cross join lateral (
                select i.lease_id, i.claim_no, cardinality(i.seqs) as jobs from forebay.batch i
                where i.group_id = l.group_id and i.lane = l.lane and i.lease_id is not null order by i.no desc limit 100) n
            join forebay.settlement s on s.lease_id = n.lease_id and s.claim_no = n.claim_no
            cross join lateral (
                -- Of an older one it matters whether there is any.
                select case when s.outcomes is not null and s.settled_at > p_since then cardinality(array_positions(s.outcomes, 'd'))
                            when s.outcomes is not null then (array_position(s.outcomes, 'd') is not null)::integer
                            when s.offsets is not null then cardinality(s.offsets) else n.jobs end as jobs) d
            where d.jobs > 0) b
        group by b.group_id),
    cursors as materialized (
        select n.queue, n.group_id, row(row_number() over (), n.lane, n.start_after, n.snap_from, n.snap_to, n.lo, n.hi, n.pos_xid,
                                        n.pos_seq)::forebay._cursor as cursor
        from (select n.queue, n.group_id, n.lane, case n.audience when 0 then n.start_after else '1:1:' end as start_after, n.snap_from, n.snap_to,
                     s.lo, s.hi, n.pos_xid, n.pos_seq
              from newest n left join forebay.segment s on s.segment_id = n.pos_segment
              union all
              select l.queue, null, l.lane, '1:1:'::pg_snapshot, null, null, null, null, null, null
              from (select distinct i.queue, i.lane from forebay.lane i
                    join waiting w on w.queue = i.queue
                    where i.audience = 0 and not exists (select from forebay.queue_group g where g.queue = i.queue)) l) n),
    oldest as materialized (
        select c.queue, c.group_id, min(u.oldest) as oldest
        from forebay._oldest_unread(array(select i.cursor from cursors i)) u
        join cursors c on (c.cursor).nr = u.nr
        group by c.queue, c.group_id),
    ticks as materialized (select * from forebay.ticks() t where t.expected_by > p_now),
    -- On its own, so that each of the others is hashed once.
    groups as materialized (
        select i.*, g.group_id, g.name, g.created_at, g.paused_at, g.resume_at
        from counts i left join forebay.queue_group g on g.queue = i.queue and g.name = i.group_name)
    select coalesce(jsonb_agg(jsonb_build_object(
               'queue', d.queue, 'group', d.group_name, 'scheduled', d.scheduled, 'ready', d.ready, 'claimed', d.claimed, 'running', d.running,
               'retrying', d.retrying, 'cancelled', d.cancelled, 'created_at', extract(epoch from d.created_at),
               'paused_at', extract(epoch from forebay._paused_since(d.paused_at, d.resume_at)),
               'is_served', d.group_id is not null and (d.claimed + d.running > 0 or forebay._leader_of(d.group_id) is not null or exists (
                   select from forebay.lease l
                   join lateral (select h.heartbeat_at from forebay.heartbeat h where h.lease_id = l.lease_id order by h.heartbeat_at desc limit 1) h on true
                   where l.closed_at is null and l.details ->> 'group' = d.name and l.details -> 'queues' ? d.queue
                     and h.heartbeat_at > p_now - make_interval(secs => l.lease_seconds))
                   or exists (select from ticks t where t.group_name = d.name and d.queue = any (t.queues))),
               'claims', coalesce(c.claimed, 0), 'claimed_at', extract(epoch from c.claimed_at),
               -- The counters have what is folded; the newest batches, what is not yet.
               'completed', greatest(o.completed, t.completed, 0), 'completed_at', extract(epoch from o.completed_at),
               'oldest_ready_at', case when d.ready > 0 then extract(epoch from u.oldest) end) order by d.queue, d.group_name), '[]')
    from groups d
    left join claims c on c.group_id = d.group_id
    left join done o on o.group_id = d.group_id
    left join lateral (select sum(forebay._counter_since(i.cell_id, 4, p_since))::bigint as completed
                       from forebay.counter_cell i where i.group_id = d.group_id) t on true
    left join oldest u on u.queue = d.queue and u.group_id is not distinct from d.group_id
$$;


-- By how much a total of a cell has grown since a time, up to the last fold. Folds of a cell have dense numbers and rising times, so its first
-- one after that time is found by halving. Where the fold before it was deleted, the newest sample of a minute has its totals.
create function forebay._counter_since(p_cell_id bigint, p_event integer, p_since timestamptz) returns bigint
language plpgsql stable
-- planner: in order
as $$
declare
    v_low    bigint;
    v_high   bigint;
    v_mid    bigint;
    v_at     timestamptz;
    v_first  timestamptz;
    v_total  bigint;
    v_before bigint;
begin
    select i.no, i.counted_at, i.totals[p_event] into v_high, v_first, v_total
    from forebay.counter i where i.cell_id = p_cell_id and i.segment_id = -1 order by i.no desc limit 1;
    if v_first is null or v_first <= p_since then
        return 0;
    end if;
    select i.no into v_low from forebay.counter i where i.cell_id = p_cell_id and i.segment_id = -1 order by i.no limit 1;
    while v_low < v_high loop
        v_mid := (v_low + v_high) / 2;
        select i.counted_at into v_at from forebay.counter i where i.cell_id = p_cell_id and i.segment_id = -1 and i.no = v_mid;
        if v_at > p_since then
            v_high := v_mid;
            v_first := v_at;
        else
            v_low := v_mid + 1;
        end if;
    end loop;
    select i.totals[p_event] into v_before from forebay.counter i where i.cell_id = p_cell_id and i.segment_id = -1 and i.no = v_low - 1;
    if not found then
        select i.totals[p_event] into v_before from forebay.counter_sample i
        where i.step = 'minute' and i.cell_id = p_cell_id and i.at <= v_first order by i.at desc limit 1;
    end if;
    return v_total - coalesce(v_before, 0);
end
$$;


-- Since when the oldest of the first 100 rows in front of each cursor could be claimed. One query for all of them: to plan one for each
-- would take longer than to run it.
create function forebay._oldest_unread(p_cursors forebay._cursor[]) returns table (nr bigint, oldest timestamptz)
language plpgsql stable
-- planner: in order
as $$
begin
    return query execute
        'select o.nr, u.oldest from unnest($1) o cross join lateral (select min(coalesce(u.ready_at, u.enqueued_at)) as oldest from ('
        || replace(forebay._unread_sql(p_cursors, 'l.enqueued_at, l.ready_at'), 'unnest($1)', 'unnest(array[o])') || ' limit 100) u) u'
        using p_cursors;
end
$$;


-- The counters up to the last fold, which is a second old where a worker runs, by queue, group and kind; with the histograms of waits and
-- durations. The numbers of elements are those of forebay.counter_event. forebay.stats() adds what came since. `first` orders them by their first job.
create function forebay._measured_counters() returns jsonb
language sql stable
-- planner: in order
as $$
    select jsonb_build_object('bounds', to_jsonb(forebay._counter_bounds()), 'cells', coalesce(jsonb_agg(jsonb_build_object(
               'queue', c.queue, 'group', c.name, 'kind', c.kind, 'first', c.first, 'counted_at', extract(epoch from c.counted_at), 'enqueued', c.n[2], 'done', c.n[4], 'failed', c.n[5], 'dead', c.n[6], 'expired', c.n[7],
               'cancelled', c.n[8] + c.n[9], 'snoozed', c.n[10], 'released', c.n[11], 'lost', c.n[12],
               'waits', to_jsonb(c.n[18:37]), 'wait_ms', c.n[17], 'durations', to_jsonb(c.n[38:57]), 'duration_ms', c.n[58])
           order by c.queue, c.name, c.kind), '[]'))
    from (with cells as materialized (
              select e.queue, g.name, e.kind, e.cell_id, t.totals, t.counted_at, count(*) over w > 1 as is_split, min(e.cell_id) over w as first
              from forebay.counter_cell e
              join forebay.queue_group g on g.group_id = e.group_id
              cross join lateral (select i.totals, i.counted_at from forebay.counter i
                                  where i.cell_id = e.cell_id and i.segment_id = -1 order by i.no desc limit 1) t
              window w as (partition by e.queue, g.name, e.kind))
          -- Most have one cell, of which nothing is added up.
          select i.queue, i.name, i.kind, i.totals as n, i.counted_at, i.cell_id as first from cells i where not i.is_split
          union all
          select f.queue, f.name, f.kind, s.n, s.counted_at, f.first
          from (select u.first, array_agg(u.total order by u.element) as n, max(u.counted_at) as counted_at
                from (select i.first, e.element, sum(e.total)::bigint as total, max(i.counted_at) as counted_at
                      from cells i cross join lateral unnest(i.totals) with ordinality e (total, element)
                      where i.is_split
                      group by i.first, e.element) u
                group by u.first) s
          join cells f on f.cell_id = s.first) c
$$;


-- The label sets of the metrics by tag, up to the last fold: the cells that have a place within the setting metric_label_sets, and for each group
-- one set without names that adds up the others, with their number. Null: there are no such metrics.
--
-- Cancelled and replaced jobs that wait do not count, but those that wait for an ordering key until its claim has passed them.
create function forebay._measured_label_sets() returns jsonb
language plpgsql stable
-- planner: in order
as $$
declare
    v_most  constant bigint := forebay._setting_value('metric_label_sets');
    v_bases forebay._counter_base[];
begin
    if v_most is null or v_most = 0 then
        return null;
    end if;
    v_bases := array(
        select row(g.group_id, g.queue, g.group_id, g.name, null, null, null, null, null, null)::forebay._counter_base
        from forebay.queue_group g where g.closing_at is null);
    return (
        with cell as materialized (
            select e.cell_id, e.group_id, e.queue, g.name, e.priority, e.kind, e.tag, t.totals as t,
                   case when e.kind <> '' and e.place between 1 and v_most then e.place end as place
            from forebay.counter_cell e
            join forebay.queue_group g on g.group_id = e.group_id
            cross join lateral (select i.totals from forebay.counter i
                                where i.cell_id = e.cell_id and i.segment_id = -1 order by i.no desc limit 1) t
        ), gone as (
            select a.group_id, a.priority, a.kind, a.tag, 1 as event, a.jobs + a.parked as jobs from forebay._cancelled_ahead(null) a
            union all
            select w.base, w.priority, w.kind, w.tag, -w.event, w.jobs from forebay._counter_withdrawn(v_bases) w
        ), gone_of as materialized (
            select coalesce(c.cell_id, o.cell_id) as cell_id, sum(d.jobs) filter (where d.event = 1) as ready,
                   sum(d.jobs) filter (where d.event = 15) as scheduled, sum(d.jobs) filter (where d.event = 16) as retrying
            from gone d
            left join cell c on c.group_id = d.group_id and c.priority = d.priority and c.kind = d.kind and c.tag is not distinct from d.tag
            left join cell o on c.cell_id is null and o.group_id = d.group_id and o.priority = d.priority and o.kind = ''
            group by 1
        ), counted as (
            select c.queue, c.name, c.group_id, c.place, c.priority, c.kind, c.tag, c.t,
                   -- What was withdrawn or passed since the fold may be more than it has.
                   greatest(c.t[15] - coalesce(g.scheduled, 0), 0) as scheduled,
                   greatest(c.t[1] + c.t[13] - c.t[3] - c.t[7] - c.t[8] - c.t[14] - coalesce(g.ready, 0), 0) as ready,
                   c.t[3] - c.t[4] - c.t[5] - c.t[6] - c.t[9] - c.t[10] - c.t[11] - c.t[12] - c.t[13] as claimed,
                   greatest(c.t[16] - coalesce(g.retrying, 0), 0) as retrying
            from cell c left join gone_of g on g.cell_id = c.cell_id
        ), label_set as (
            select c.queue, c.name, c.group_id, c.place, min(c.priority) as priority, min(c.kind) as kind, min(c.tag) as tag, count(*) as sets,
                   sum(c.scheduled) as scheduled, sum(c.ready) as ready, sum(c.claimed) as claimed, sum(c.retrying) as retrying,
                   sum(c.t[4]) as done, sum(c.t[5]) as failed, sum(c.t[6]) as dead, sum(c.t[7]) as expired, sum(c.t[8] + c.t[9]) as cancelled,
                   sum(c.t[10]) as snoozed, sum(c.t[11]) as released, sum(c.t[12]) as lost
            from counted c group by c.queue, c.name, c.group_id, c.place
        )
        select coalesce(jsonb_agg(jsonb_build_object(
                   'queue', l.queue, 'group', l.name, 'place', l.place,
                   'priority', case when l.place is not null then l.priority end, 'kind', case when l.place is not null then l.kind end,
                   'tag', case when l.place is not null then l.tag end, 'sets', l.sets,
                   'scheduled', l.scheduled, 'ready', l.ready, 'claimed', l.claimed, 'retrying', l.retrying,
                   'done', l.done, 'failed', l.failed, 'dead', l.dead, 'expired', l.expired, 'cancelled', l.cancelled, 'snoozed', l.snoozed,
                   'released', l.released, 'lost', l.lost) order by l.group_id, l.place), '[]')
        from label_set l);
end
$$;


-- Dead letters that were not redriven, by queue, kind, tag and reason; muted causes do not count. At most 100,000 are read, the
-- newest of each queue.
create function forebay._measured_dead(p_since timestamptz) returns jsonb
language sql stable
-- planner: in order
as $$
    select coalesce(jsonb_agg(jsonb_build_object(
               'queue', d.queue, 'kind', d.kind, 'tag', d.tag, 'reason', d.reason, 'dead', d.dead, 'lately', d.lately, 'newest_at', extract(epoch from d.newest))
           order by d.queue, d.kind, d.tag, d.reason), '[]')
    from (select i.queue, i.kind, i.tag, i.reason, count(*) as dead, count(*) filter (where i.died_at > p_since) as lately, max(i.died_at) as newest
          from (select q.queue from forebay._queues_of(null) q (queue) union select 'forebay.deliver') q
          cross join lateral (select * from forebay.dead_letter e where e.queue = q.queue order by e.died_at desc limit 100000) i
          where i.redriven_at is null
            and not exists (select from forebay.muted_cause m where m.cause = i.cause and m.cause <> '' and (m.until is null or m.until > forebay._now()))
          group by i.queue, i.kind, i.tag, i.reason) d
$$;


-- Jobs and wake-ups that were due 15 seconds ago and that no promotion has made ready, by queue. At most 1,000 behind the position of the last
-- promotion are read, the longest due first; and of what became visible since at or before it, 100 of each range. Withdrawn jobs do not count.
create function forebay._measured_overdue(p_now timestamptz) returns jsonb
language sql stable
-- planner: in order
as $$
    with position as materialized (
        select coalesce(p.snap, '1:1:') as snap, coalesce(p.run_at, '-infinity') as run_at, coalesce(p.deferred_id, 0) as deferred_id
        from (values (1)) one
        left join lateral (select * from forebay.promotion i order by i.no desc limit 1) p on true),
    due as (
        (select d.run_at, d.deferred_id, d.lane from position m
         cross join lateral (select * from forebay.deferred i
                             where (i.run_at, i.deferred_id) > (m.run_at, m.deferred_id) and i.run_at < p_now - interval '15 seconds'
                             order by i.run_at, i.deferred_id limit 1000) d)
        union all
        (select d.run_at, d.deferred_id, d.lane from position m
         cross join unnest(forebay._xid_ranges(m.snap, pg_current_snapshot())) r (low, high)
         cross join lateral (select * from forebay.deferred i where i.xid >= r.low and i.xid < r.high limit 100) d
         where (d.run_at, d.deferred_id) <= (m.run_at, m.deferred_id) and d.run_at < p_now - interval '15 seconds')),
    late as (
        select d.run_at, l.queue
        from due d
        -- What wakes a flow has no lane.
        left join lateral (select i.queue from forebay.lane i where i.lane = d.lane limit 1) l on true
        where not exists (select from forebay.withdrawn w where w.run_at = d.run_at and w.deferred_id = d.deferred_id
                            and (w.group_id is null or w.audience <> 0)))
    select coalesce(jsonb_agg(jsonb_build_object('queue', coalesce(q.queue, ''), 'jobs', q.jobs, 'due_at', extract(epoch from q.due_at)) order by q.queue), '[]')
    from (select l.queue, count(*) as jobs, min(l.run_at) as due_at from late l group by l.queue) q
$$;


-- The workers with an open lease.
create function forebay._measured_workers(p_now timestamptz) returns jsonb
language sql stable
-- planner: indexed
as $$
    select coalesce(jsonb_agg(jsonb_build_object(
               'worker', l.worker, 'group', l.details ->> 'group', 'app', l.details ->> 'app', 'concurrency', l.details -> 'concurrency',
               'delivers', coalesce(l.details -> 'queues' <@ '["forebay.publish", "forebay.deliver"]', false),
               'is_alive', coalesce(h.heartbeat_at > p_now - make_interval(secs => l.lease_seconds), false), 'heartbeat_at', extract(epoch from h.heartbeat_at),
               'memory_bytes', h.memory_kb * 1024::bigint, 'running', coalesce(cardinality(h.running_jobs), 0),
               'silent_after', forebay._silent_after(l, h.running_jobs), 'lease_seconds', l.lease_seconds,
               -- Workers of an older release do not say it.
               'schedules', coalesce(l.details ->> 'schedules', 'true')::boolean) order by l.worker), '[]')
    from forebay.lease l
    left join lateral (select b.heartbeat_at, b.memory_kb, b.running_jobs from forebay.heartbeat b
                       where b.lease_id = l.lease_id order by b.heartbeat_at desc limit 1) h on true
    where l.closed_at is null
$$;


-- After how many seconds without a heartbeat something is wrong with a worker; an idle one sends them less often.
create function forebay._silent_after(l forebay.lease, p_running bigint[]) returns double precision
language sql immutable
as $$ select greatest(l.suspect_seconds, case when coalesce(cardinality(p_running), 0) = 0 then l.lease_seconds / 2 end) $$;


-- Endpoints: what waits, dead letters that were not redriven, up to 10,000 of each, the breaker, and calls of the last two minutes.
create function forebay._measured_endpoints(p_now timestamptz) returns jsonb
language sql volatile
-- planner: indexed
as $$
    select coalesce(jsonb_agg(jsonb_build_object(
               'endpoint', e.name, 'waiting', e.waiting, 'waiting_since', extract(epoch from e.waiting_since),
               'dead', d.dead, 'breaker', e.breaker, 'opened_at', extract(epoch from e.opened_at),
               'probe_at', extract(epoch from e.next_probe_at),
               'is_disabled', e.disabled_at is not null, 'is_overfull', e.is_overfull,
               'is_full', coalesce(e.waiting >= e.max_waiting, false), 'when_full', e.when_full, 'dropped_per_second', e.dropped_per_second, 'accepted_per_second', e.accepted_per_second,
               'failed_per_second', e.failed_per_second, 'rejected_per_second', e.rejected_per_second, 'p99_seconds', e.p99_seconds,
               'error', left(e.last_error, 200)) order by e.name), '[]')
    from forebay.endpoints() e
    cross join lateral (select count(*) as dead
                        from (select from forebay.dead_letter i
                              where i.queue = 'forebay.deliver' and i.limit_key = e.name and i.redriven_at is null limit 10000) i) d
$$;


-- Open breakers of limit keys by queue, without those of endpoints: how many, at most 10,000 in all, since when the first one is open, and
-- the three that opened last.
create function forebay._measured_breakers() returns jsonb
language sql stable
-- planner: indexed
as $$
    select coalesce(jsonb_agg(jsonb_build_object(
               'queue', q.queue, 'open', q.open, 'opened_at', extract(epoch from q.opened_at), 'newest', q.newest) order by q.queue), '[]')
    from (select b.queue, count(*) as open, min(b.opened_at) as opened_at,
                 jsonb_agg(jsonb_build_object('key', left(b.key, 200), 'error', left(b.error, 200), 'probe_at', extract(epoch from b.probe_at))
                           order by b.opened_at desc, b.key) filter (where b.rank <= 3) as newest
          from (select i.*, row_number() over (partition by i.queue order by i.opened_at desc, i.key) as rank
                from (select o.* from forebay.breaker o
                      where o.opened_at is not null and o.queue <> 'forebay.deliver' order by o.queue, o.key limit 10000) i) b
          group by b.queue) q
$$;


-- Mirrors: the last sample, open breakers, and the last audit.
create function forebay._measured_mirrors(p_now timestamptz) returns jsonb
language sql stable
-- planner: in order
as $$
    select coalesce(jsonb_agg(jsonb_build_object(
               'mirror', m.mirror, 'due', s.due, 'waiting', s.waiting, 'sampled_at', extract(epoch from s.at), 'breakers', coalesce(b.breakers, '[]'),
               'drift', a.missing + a.stale + a.orphaned + a.ahead, 'repaired', a.repaired, 'audited_at', extract(epoch from a.ended_at)) order by m.mirror), '[]')
    from (with recursive each as (
              (select i.mirror from forebay.mirror_sample i order by i.mirror limit 1)
              union all
              select n.mirror from each e, lateral (select i.mirror from forebay.mirror_sample i where i.mirror > e.mirror order by i.mirror limit 1) n)
          select e.mirror from each e union select i.mirror from forebay.mirror_audit i
          -- Where no worker runs its passes, direct writes may have opened a breaker.
          union select i.mirror from forebay.mirror_breaker i where i.at > p_now - interval '1 hour') m
    left join lateral (select i.* from forebay.mirror_sample i where i.mirror = m.mirror order by i.at desc limit 1) s on true
    left join lateral (select i.* from forebay.mirror_audit i where i.mirror = m.mirror order by i.ended_at desc limit 1) a on true
    left join lateral (
        select jsonb_agg(jsonb_build_object('who', o.who, 'place', o.place, 'why', o.why, 'at', extract(epoch from o.at)) order by o.who, o.place) as breakers
        from (select distinct on (i.who, i.place) i.* from forebay.mirror_breaker i
              where i.mirror = m.mirror and i.at > p_now - interval '1 hour' order by i.who, i.place, i.at desc) o
        where o.open_until > p_now - interval '3 minutes') b on true
$$;


-- Schedules: where the decisions are, and instants that were missed lately.
create function forebay._measured_schedules(p_since timestamptz) returns jsonb
language sql stable
-- planner: in order
as $$
    select coalesce(jsonb_agg(jsonb_build_object(
               'schedule', s.name, 'kind', s.kind, 'cron', s.cron, 'every', extract(epoch from s.every), 'tz', s.tz, 'starts_at', extract(epoch from s.starts_at),
               'decided_to', extract(epoch from s.decided_to), 'is_paused', s.paused_at is not null, 'is_declared', s.vanished_at is null, 'problem', s.problem,
               'missed', coalesce(o.missed, 0)) order by s.name), '[]')
    from forebay.schedule s
    left join lateral (select sum(i.instants)::bigint as missed from forebay.occurrence i
                       where i.schedule_id = s.schedule_id and i.status = 'missed' and i.decided_at > p_since) o on true
$$;


-- The database: the oldest snapshot, dead rows, the reserve of segments, duties of maintenance, and sizes.
-- PostgreSQL shows since when the transaction of another role is open to pg_read_all_stats only: while a session that is not shown holds a
-- snapshot, the oldest is not known. Which sessions there are, and their ages in transactions, are shown to every role.
create function forebay._measured_database() returns jsonb
language sql volatile
-- planner: indexed
as $$
    with session as materialized (
        select a.usesysid, a.backend_xmin, a.backend_type is null as is_hidden,
               extract(epoch from clock_timestamp() - coalesce(a.xact_start, a.query_start)) as seconds
        from pg_stat_activity a
        where a.backend_type is distinct from 'walsender' and a.pid <> pg_backend_pid()
          and (a.datid is null or a.datid = (select d.oid from pg_database d where d.datname = current_database()))
          and not exists (select from pg_stat_replication r where r.pid = a.pid)),
    snapshot as materialized (
        select coalesce(max(s.seconds), 0) as seconds, coalesce(bool_or(s.seconds is null), false) as is_unknown,
               max(age(s.backend_xmin)) filter (where s.seconds is null) as unknown_age
        from session s where s.backend_xmin is not null)
    select jsonb_build_object(
        'snapshot_seconds', (select case when not s.is_unknown then s.seconds end from snapshot s),
        -- Of the sessions that the owner sees; and how many transactions began since the oldest snapshot of the others, null without one.
        'snapshot_seen_seconds', (select s.seconds from snapshot s),
        'snapshot_unseen_age', (select s.unknown_age from snapshot s),
        -- Processes of the server are no clients.
        'sessions_unseen', (select count(*) from session s where s.is_hidden and s.usesysid is not null),
        'owner', quote_ident(current_user),
        'prepared_seconds', (select coalesce(extract(epoch from max(clock_timestamp() - p.prepared)), 0) from pg_prepared_xacts p where p.database = current_database()),
        'xmin_age', greatest(
            (select coalesce(max(age(a.backend_xmin)), 0) from pg_stat_activity a where a.pid <> pg_backend_pid()),
            (select coalesce(max(greatest(age(r.xmin), age(r.catalog_xmin))), 0) from pg_replication_slots r),
            (select coalesce(max(age(p.transaction)), 0) from pg_prepared_xacts p)),
        'dead_rows', (select coalesce(sum(t.n_dead_tup), 0)::bigint from pg_stat_user_tables t where t.schemaname = 'forebay'),
        'live_rows', (select coalesce(sum(t.n_live_tup), 0)::bigint from pg_stat_user_tables t where t.schemaname = 'forebay'),
        'numbers_left', (select max(s.hi) from forebay.segment s) - 1 - coalesce(pg_sequence_last_value('forebay.log_seq'), 0),
        'numbers_drawn', coalesce(pg_sequence_last_value('forebay.log_seq'), 0),
        'reserve_rows', (select s.value from forebay.setting s where s.name = 'reserve_rows'),
        'segments', (select count(*) from forebay.segment s where s.removed_at is null and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)),
        'exports', (select coalesce(jsonb_agg(jsonb_build_object(
                               'export', e.name, 'hold_hours', e.hold_hours, 'due', e.due, 'due_at', extract(epoch from e.due_at),
                               'missed', e.missed, 'missed_at', extract(epoch from e.missed_at)) order by e.name), '[]') from forebay.exports() e),
        'duties', (select coalesce(jsonb_agg(jsonb_build_object(
                              'duty', d.name, 'error', d.error, 'since', extract(epoch from d.since), 'recorded_at', extract(epoch from d.recorded_at))
                          order by d.name), '[]') from forebay.duty d))
$$;


-- Sizes now, and the growth of the database in bytes a day, null where no hour of samples shows it. A table that a session holds exclusively is
-- left out: nothing here waits. Listing the files of a database takes long where there are very many, so its size continues from the last sample.
create function forebay._measured_space(p_now timestamptz) returns jsonb
language sql stable
-- planner: indexed
as $$
    select jsonb_build_object(
               'log_bytes', n.log_bytes, 'schema_bytes', n.schema_bytes, 'database_bytes', n.database_bytes, 'ballast_bytes', n.ballast_bytes,
               'growth_bytes', (n.database_bytes - b.database_bytes) / extract(epoch from p_now - b.at) * 86400)
    from forebay._space(p_now - interval '1 hour') n
    left join lateral (select i.at, i.database_bytes from forebay.space_sample i
                       where i.at between p_now - interval '25 hours' and p_now - interval '1 hour' order by i.at limit 1) b on true
$$;


-- The sizes of the log, of the schema with the log, and of the database, each without the ballast; and of the ballast. That of the database
-- continues from a sample that is not older than p_fresh.
create function forebay._space(p_fresh timestamptz, out log_bytes bigint, out schema_bytes bigint, out database_bytes bigint, out ballast_bytes bigint)
language sql stable
-- planner: indexed
as $$
    select t.log_bytes, t.schema_bytes,
           coalesce((select i.database_bytes - i.schema_bytes from forebay.space_sample i where i.at >= p_fresh order by i.at desc limit 1)
                        + t.schema_bytes,
                    case when has_database_privilege(current_database(), 'connect') then pg_database_size(current_database()) - t.ballast_bytes end),
           t.ballast_bytes
    from (select coalesce(sum(s.bytes) filter (where s.name ~ '^log_[0-9]+$'), 0)::bigint as log_bytes,
                 coalesce(sum(s.bytes) filter (where s.name <> 'ballast'), 0)::bigint as schema_bytes,
                 coalesce(sum(s.bytes) filter (where s.name = 'ballast'), 0)::bigint as ballast_bytes
          from (select pg_total_relation_size(c.oid) as bytes, c.relname as name
                from pg_class c
                where c.relnamespace = 'forebay'::regnamespace and c.relkind in ('r', 'm')
                  and c.oid <> all (array(select l.relation from pg_locks l
                                          where l.locktype = 'relation' and l.mode = 'AccessExclusiveLock' and l.granted
                                            and l.pid <> pg_backend_pid()))
                -- So that the size of a table is found once, and not for each sum.
                offset 0) s) t
$$;
