-- grant: operator, reader

-- How many jobs wait and run, by queue, priority and group, counted in one snapshot. The states are those of forebay.job().
--
-- A full recount: it visits every waiting job.
-- pages: 300 + 60 a lane + 1 a waiting job + 20 an open lease
create function forebay.depth(only_queue text default null)
returns table (queue text, priority integer, group_name text, scheduled bigint, ready bigint, claimed bigint, running bigint,
               retrying bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: short
as $$
#variable_conflict use_column
declare
    v_position     forebay.promotion;
begin
    select p.* into v_position from forebay.promotion p order by p.no desc limit 1;
    return query
    with lanes as (
        select distinct l.lane, l.queue, l.priority, l.audience from forebay.lane l
        where only_queue is null or l.queue = only_queue),
    readers as materialized (
        select row_number() over () as nr, l.lane, l.queue, l.priority, g.group_id, coalesce(g.name, 'default') as name,
               case l.audience when 0 then coalesce(g.start_after, '1:1:') else '1:1:' end as start, b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq
        from lanes l
        left join forebay.queue_group g on g.queue = l.queue and (l.audience = 0 or g.group_id = abs(l.audience))
        left join lateral (select i.* from forebay.batch i
                           where i.group_id = g.group_id and i.lane = l.lane order by i.no desc limit 1) b on true
        left join forebay.segment s on s.segment_id = b.pos_segment),
    unread_jobs as materialized (
        select u.nr, sum(u.unread) as unread
        from (select array_agg(row(r.nr, r.lane, r.start, r.snap_from, r.snap_to, r.lo, r.hi, r.pos_xid, r.pos_seq)::forebay._cursor) as all
              from readers r) c
        cross join lateral forebay._count_unread(c.all) u
        group by u.nr),
    parked_jobs as materialized (
        select p.group_id, p.lane, sum(p.jobs) as jobs from forebay._all_parked() p group by p.group_id, p.lane),
    deferred_jobs as (
        select d.lane, count(*) filter (where d.state = 'scheduled') as scheduled, count(*) filter (where d.state = 'retrying') as retrying
        from (select i.lane, forebay._state_of_deferred(i.attempt, i.pauses) as state
              from forebay.deferred i
              where i.kind <> '' and not (v_position.no is not null and pg_visible_in_snapshot(i.xid, v_position.snap)
                         and (i.run_at, i.deferred_id) <= (v_position.run_at, v_position.deferred_id))) d
        group by d.lane),
    open_leases as materialized (
        select e.lease_id, f.floor, h.heartbeat_at, h.running_jobs
        from forebay.lease e
        join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f on true
        left join lateral (select i.heartbeat_at, i.running_jobs from forebay.heartbeat i
                           where i.lease_id = e.lease_id order by i.heartbeat_at desc limit 1) h on true
        where e.closed_at is null),
    open_batches as materialized (
        select b.lease_id, b.group_id, b.lane, b.seqs, b.xids, b.lanes, s.whole, s.offsets,
               e.running_jobs is not null and e.heartbeat_at >= b.claimed_at as is_reported
        from open_leases e
        join forebay.batch b on b.lease_id = e.lease_id and b.claim_no >= e.floor
        cross join lateral (
            select coalesce(bool_or(j.offsets is null), false) as whole,
                   coalesce(array_agg(o.nr) filter (where o.nr is not null), '{}') as offsets
            from forebay.settlement j left join lateral unnest(j.offsets) o (nr) on true
            where j.lease_id = b.lease_id and j.claim_no = b.claim_no) s),
    open_jobs as (
        select b.group_id, b.lane, sum(cardinality(b.seqs) - cardinality(b.offsets)) as open
        from open_batches b where not b.whole
        group by b.group_id, b.lane),
    -- Heartbeats have ids of jobs, batches have numbers of rows: for a job's first row they are equal; other rows are read, one
    -- index probe each.
    reported as materialized (
        select distinct e.lease_id, j.job_id from open_leases e cross join lateral unnest(e.running_jobs) j (job_id)),
    handed_out as materialized (
        select b.lease_id, b.group_id, b.lane, u.seq, coalesce(b.lanes[u.nr], b.lane) as row_lane,
               case when cardinality(b.xids) = 1 then b.xids[1] else b.xids[u.nr] end as xid
        from open_batches b cross join lateral unnest(b.seqs) with ordinality u (seq, nr)
        where b.is_reported and not b.whole and u.nr <> all (b.offsets)),
    first_rows as materialized (
        select h.*, r.job_id from handed_out h join reported r on r.lease_id = h.lease_id and r.job_id = h.seq),
    has_later_rows as materialized (
        select r.lease_id from reported r group by r.lease_id
        having count(*) > (select count(*) from first_rows f where f.lease_id = r.lease_id)),
    later_rows as (
        select h.*, l.job_id
        from (select array_agg(i.row_lane) as lanes, array_agg(i.xid) as xids, array_agg(i.seq) as seqs
              from handed_out i where i.lease_id in (select n.lease_id from has_later_rows n)) a
        cross join lateral (select distinct i.seq, i.job_id from forebay._job_ids(a.lanes, a.xids, a.seqs) i) l
        join handed_out h on h.seq = l.seq
        join reported r on r.lease_id = h.lease_id and r.job_id = l.job_id),
    running_jobs as (
        select h.group_id, h.lane, count(*) as running
        from (select * from first_rows union all select * from later_rows) h
        group by h.group_id, h.lane)
    select r.queue, r.priority, r.name,
           coalesce(sum(d.scheduled), 0)::bigint,
           coalesce(sum(u.unread), 0)::bigint
           + coalesce(sum((select p.jobs from parked_jobs p where p.group_id = r.group_id and p.lane = r.lane)), 0)::bigint,
           (coalesce(sum(o.open), 0) - coalesce(sum(j.running), 0))::bigint,
           coalesce(sum(j.running), 0)::bigint,
           coalesce(sum(d.retrying), 0)::bigint
    from readers r
    left join unread_jobs u on u.nr = r.nr
    left join open_jobs o on o.group_id = r.group_id and o.lane = r.lane
    left join running_jobs j on j.group_id = r.group_id and j.lane = r.lane
    left join deferred_jobs d on d.lane = r.lane
    group by r.queue, r.priority, r.name
    order by r.queue, r.priority, r.name;
end
$$;
