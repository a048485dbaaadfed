-- grant: operator, reader

-- How many jobs wait and run, by queue, priority and group, counted anew in one snapshot.
--
-- A full recount: costs a visit to every waiting job.
create function forebay.depth(only_queue text default null)
returns table (queue text, priority integer, group_name text, ready bigint, leased bigint, deferred bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: short
as $$
#variable_conflict use_column
declare
    v_position     forebay.promotion;
    v_archived constant bigint := forebay._archived_below();
begin
    select p.* into v_position from forebay.promotion p order by p.no desc limit 1;
    return query
    with lanes as (
        select distinct l.lane, l.queue, l.priority, l.audience from forebay.lane l
        where only_queue is null or l.queue = only_queue),
    readers as (
        select l.lane, l.queue, l.priority, l.audience, g.group_id, coalesce(g.name, 'default') as name, g.start_after,
               b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq
        from lanes l
        left join forebay.queue_group g on g.queue = l.queue and (l.audience = 0 or g.group_id = abs(l.audience))
        left join lateral (select i.* from forebay.batch i
                           where i.group_id = g.group_id and i.lane = l.lane order by i.no desc limit 1) b on true
        left join forebay.segment s on s.segment_id = b.pos_segment),
    parked_jobs as materialized (
        select p.group_id, p.lane from forebay._all_parked() p where pg_sequence_last_value('forebay.key_seq') is not null),
    open_jobs as (
        select b.group_id, b.lane,
               sum(cardinality(b.seqs) - case when s.whole then cardinality(b.seqs) else s.settled end) as open
        from forebay.lease e
        join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f on true
        join forebay.batch b on b.lease_id = e.lease_id and b.claim_no >= f.floor
        cross join lateral (
            select coalesce(bool_or(j.offsets is null), false) as whole, coalesce(sum(cardinality(j.offsets)), 0) as settled
            from forebay.settlement j where j.lease_id = b.lease_id and j.claim_no = b.claim_no) s
        where e.closed_at is null
        group by b.group_id, b.lane)
    select r.queue, r.priority, r.name,
           sum((select count(*) from forebay.log l
                where l.lane = r.lane and l.seq >= v_archived and l.kind <> ''
                  and l.xid >= pg_snapshot_xmin(coalesce(r.snap_from, '1:1:'))
                  and (r.snap_from is null or not forebay._is_consumed(
                          l.xid, l.seq, r.snap_from, r.snap_to, r.lo, r.hi, r.pos_xid, r.pos_seq))
                  and (r.snap_from is not null or r.audience <> 0 or r.start_after is null
                       or not pg_visible_in_snapshot(l.xid, r.start_after))))::bigint
           + coalesce(sum((select count(*) from parked_jobs p where p.group_id = r.group_id and p.lane = r.lane)), 0)::bigint,
           coalesce(sum(o.open), 0)::bigint,
           sum((select count(*) from forebay.deferred d
                where d.lane = r.lane
                  and not (v_position.no is not null and pg_visible_in_snapshot(d.xid, v_position.snap)
                           and (d.run_at, d.deferred_id) <= (v_position.run_at, v_position.deferred_id))))::bigint
    from readers r
    left join open_jobs o on o.group_id = r.group_id and o.lane = r.lane
    group by r.queue, r.priority, r.name
    order by r.queue, r.priority, r.name;
end
$$;
