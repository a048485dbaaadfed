-- grant: operator, reader

-- How many jobs wait and run, by queue, priority and group, in one snapshot; states as in
-- forebay.job(). It continues from the counts that the leader of maintenance renews every two
-- seconds, so its cost does not depend on how many jobs wait: it visits the jobs enqueued, promoted
-- or moved since, in lanes of ordering keys those claimed since, and scheduled jobs that were
-- cancelled or replaced and are not due yet. Where no worker has run yet it visits every waiting
-- job.
--
-- `cancelled` is the number of jobs that were cancelled or replaced while they were ready and that
-- no worker has passed yet. They never start, and count in no other column.
-- pages: 1000 + 100 a lane + 4 an uncounted job + 20 an open lease
create function forebay.depth(only_queue text default null)
returns table (queue text, priority integer, group_name text, scheduled bigint, ready bigint, claimed bigint, running bigint,
               retrying bigint, cancelled bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
#variable_conflict use_column
begin
    return query
    with waiting as materialized (
        select w.queue, w.group_id, w.group_name, u.priority, u.ready, u.scheduled, u.retrying, u.cancelled
        from forebay._waiting_read(case when only_queue is not null then array[only_queue] end) w
        cross join lateral unnest(w.priorities, w.ready, w.scheduled, w.retrying, w.cancelled) u (priority, ready, scheduled, retrying, cancelled)),
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
        cross join lateral (select i.* from forebay.batch i where i.lease_id = e.lease_id and i.claim_no >= e.floor offset 0) b
        cross join lateral (
            select coalesce(bool_or(j.offsets is null), false) as whole,
                   coalesce(array_agg(o.nr) filter (where o.nr is not null), '{}') as offsets
            from forebay.settlement j left join lateral unnest(j.offsets) o (nr) on true
            where j.lease_id = b.lease_id and j.claim_no = b.claim_no) s),
    open_jobs as (
        select o.group_id, o.lane, sum(o.open) as open
        from (select b.group_id, b.lane, cardinality(b.seqs) - cardinality(b.offsets) as open
              from open_batches b where not b.whole and b.lanes is null
              union all
              -- A claim of ordering keys takes jobs of several lanes.
              select b.group_id, u.lane, 1
              from open_batches b cross join lateral unnest(b.lanes) with ordinality u (lane, nr)
              where not b.whole and u.nr <> all (b.offsets)) o
        group by o.group_id, o.lane),
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
        select h.group_id, h.row_lane as lane, count(*) as running
        from (select * from first_rows union all select * from later_rows) h
        group by h.group_id, h.row_lane),
    by_priority as materialized (
        select o.group_id, l.priority, sum(o.open) as open, coalesce(sum(j.running), 0) as running
        from open_jobs o
        left join running_jobs j on j.group_id = o.group_id and j.lane = o.lane
        cross join lateral (select i.priority from forebay.lane i where i.lane = o.lane limit 1) l
        group by o.group_id, l.priority)
    select w.queue, w.priority, w.group_name, w.scheduled, w.ready, coalesce(p.open - p.running, 0)::bigint, coalesce(p.running, 0)::bigint,
           w.retrying, w.cancelled
    from waiting w
    left join by_priority p on p.group_id = w.group_id and p.priority = w.priority
    order by w.queue, w.priority, w.group_name;
end
$$;
