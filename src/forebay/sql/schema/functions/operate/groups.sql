-- grant: operator, reader

-- The consumer groups of all queues, or of one. Visits every waiting job.
--
-- Columns:
--   is_implied                no worker or user has opened it
--   is_served                 a worker serves the group now: an idle one leads it, or one has jobs
--                             of it
--   paused_at, resume_at      of a pause that lasts
--   unread, oldest_unread_at  jobs that wait for the group, without scheduled, retrying and snoozed
--                             ones, and when the oldest of them was enqueued
--   running                   jobs that workers have
--   held_segments, held_bytes
--                             segments of the log that only this group keeps from being emptied,
--                             whatever their age
--   claimed_at                the last claim of a worker
create function forebay.groups(only_queue text default null)
returns table (queue text, group_name text, is_implied boolean, is_served boolean, created_at timestamptz, paused_at timestamptz,
               resume_at timestamptz, closing_at timestamptz, unread bigint, oldest_unread_at timestamptz, running bigint, open_batches bigint,
               held_segments bigint, held_bytes bigint, claimed_at timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: short
as $$
#variable_conflict use_column
begin
    return query
    with cursors as materialized (
        select row_number() over () as nr, g.group_id, l.lane,
               case l.audience when 0 then g.start_after else '1:1:' end as start,
               b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq
        from forebay.queue_group g
        join lateral (select distinct i.lane, i.audience from forebay.lane i
                      where i.queue = g.queue and i.audience in (0, g.group_id, -g.group_id)) l on true
        left join lateral (select i.* from forebay.batch i
                           where i.group_id = g.group_id and i.lane = l.lane order by i.no desc limit 1) b on true
        left join forebay.segment s on s.segment_id = b.pos_segment
        where groups.only_queue is null or g.queue = groups.only_queue),
    unread_rows as materialized (
        select c.group_id, sum(u.unread) as unread, min(u.oldest) as oldest
        from (select array_agg(row(i.nr, i.lane, i.start, i.snap_from, i.snap_to, i.lo, i.hi, i.pos_xid, i.pos_seq)::forebay._cursor) as all
              from cursors i) a
        cross join lateral forebay._waiting_unread(a.all) u
        join cursors c on c.nr = u.nr
        group by c.group_id),
    parked_rows as materialized (
        select p.group_id, sum(p.jobs) as parked from forebay._all_parked() p group by p.group_id),
    open_rows as materialized (
        select o.group_id, count(*) as jobs, count(distinct (o.lease_id, o.claim_no)) as batches from forebay._open_jobs() o group by o.group_id),
    held as materialized (
        select h.group_id, count(*) as segments,
               sum(pg_total_relation_size(to_regclass('forebay.log_' || h.segment_id)))::bigint as bytes
        from (select i.segment_id, min(i.group_id) as group_id
              from forebay._segment_holders(array(select s.segment_id from forebay.segment s join forebay.seal f using (segment_id)
                                                  where s.removed_at is null and forebay._has_table(s.segment_id)), false) i
              group by i.segment_id having count(distinct i.group_id) = 1) h
        group by 1)
    select g.queue, g.name, g.is_implied, o.jobs is not null or forebay._leader_of(g.group_id) is not null, g.created_at,
           case when g.closing_at is null then forebay._paused_since(g.paused_at, g.resume_at) end,
           case when g.resume_at > forebay._now() then g.resume_at end, g.closing_at,
           (coalesce(u.unread, 0) + coalesce(p.parked, 0))::bigint, u.oldest, coalesce(o.jobs, 0), coalesce(o.batches, 0),
           coalesce(h.segments, 0), coalesce(h.bytes, 0),
           (select max(b.claimed_at) from (select distinct c.lane from cursors c where c.group_id = g.group_id) c
            cross join lateral (select i.claimed_at from forebay.batch i
                                where i.group_id = g.group_id and i.lane = c.lane and i.lease_id is not null
                                order by i.no desc limit 1) b)
    from forebay.queue_group g
    left join unread_rows u on u.group_id = g.group_id
    left join parked_rows p on p.group_id = g.group_id
    left join open_rows o on o.group_id = g.group_id
    left join held h on h.group_id = g.group_id
    where groups.only_queue is null or g.queue = groups.only_queue
    order by g.queue, g.name;
end
$$;


-- The unsettled jobs of open leases.
create function forebay._open_jobs()
returns table (group_id bigint, lease_id bigint, claim_no bigint, seq bigint)
language sql stable
as $$
    select b.group_id, b.lease_id, b.claim_no, u.seq
    from forebay.lease e
    join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f on true
    join forebay.batch b on b.lease_id = e.lease_id and b.claim_no >= f.floor
    cross join lateral unnest(b.seqs) with ordinality u (seq, nr)
    where e.closed_at is null
      and not exists (select from forebay.settlement s
                      where s.lease_id = b.lease_id and s.claim_no = b.claim_no
                        and (s.offsets is null or u.nr::smallint = any (s.offsets)))
$$;
