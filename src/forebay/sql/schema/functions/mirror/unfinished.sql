-- grant: worker, operator, reader

-- The jobs of a kind that have not ended, for one group of a queue, with `state` and `attempt` as
-- in forebay.job(). `due_at` is when a job was first due, also if it was retried since;
-- `expires_seconds` says how long after that a job of the kind expires. Visits every such job, in
-- one snapshot: with millions of them it takes seconds. Does not see jobs that wait behind another
-- job of their ordering key. No row when the queue is not known.
-- Errors: JQ001 a negative or missing `expires_seconds`.
-- pages: 300 + 60 a lane + 1 a waiting job + 20 an open lease
create function forebay.unfinished(
    kind text, queue text default 'default', group_name text default 'default', expires_seconds double precision default 2592000)
returns table (job_id bigint, state text, priority integer, tag text, attempt integer, enqueued_at timestamptz, due_at timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: short
as $$
#variable_conflict use_column
declare
    v_position     forebay.promotion;
    v_now      constant timestamptz := forebay._now();
    v_expires  constant interval := make_interval(secs => least(greatest(unfinished.expires_seconds, 0), 3e9));
begin
    perform forebay._require('expires_seconds', unfinished.expires_seconds >= 0, unfinished.expires_seconds::text, '0 or more seconds');
    select p.* into v_position from forebay.promotion p order by p.no desc limit 1;
    return query
    with readers as materialized (
        select row_number() over () as nr, l.lane, l.priority, g.group_id,
               case l.audience when 0 then coalesce(g.start_after, '1:1:') else '1:1:' end as start, b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq
        from (select distinct i.lane, i.priority, i.audience from forebay.lane i where i.queue = unfinished.queue) l
        left join forebay.queue_group g on g.queue = unfinished.queue and g.name = unfinished.group_name
        left join lateral (select i.* from forebay.batch i
                           where i.group_id = g.group_id and i.lane = l.lane order by i.no desc limit 1) b on true
        left join forebay.segment s on s.segment_id = b.pos_segment
        where l.audience = 0 or abs(l.audience) = g.group_id),
    found as (
        select coalesce(l.job_id, l.seq) as job_id, 'ready' as state, r.priority, l.tag, l.attempt, l.enqueued_at, l.expires_at, v_now as latest
        from (select array_agg(row(r.nr, r.lane, r.start, r.snap_from, r.snap_to, r.lo, r.hi, r.pos_xid, r.pos_seq)::forebay._cursor) as all
              from readers r) c
        cross join lateral forebay._unread_of_kind(c.all, unfinished.kind) l
        join readers r on r.nr = l.nr
        union all
        select coalesce(l.job_id, l.seq),
               case when coalesce(l.job_id, l.seq) = any (h.running_jobs) and h.heartbeat_at >= b.claimed_at then 'running' else 'claimed' end,
               r.priority, l.tag, l.attempt, l.enqueued_at, l.expires_at, v_now
        from forebay.lease e
        join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f on true
        left join lateral (select i.heartbeat_at, i.running_jobs from forebay.heartbeat i
                           where i.lease_id = e.lease_id order by i.heartbeat_at desc limit 1) h on true
        join forebay.batch b on b.lease_id = e.lease_id and b.claim_no >= f.floor
        join readers r on r.group_id = b.group_id and r.lane = b.lane
        join lateral unnest(b.seqs) with ordinality u (seq, nr) on not exists (
            select from forebay.settlement s
            where s.lease_id = b.lease_id and s.claim_no = b.claim_no
              and (s.offsets is null or u.nr::smallint = any (s.offsets)))
        join lateral (select i.* from forebay._row(coalesce(b.lanes[u.nr], b.lane), coalesce(b.xids[u.nr], b.xids[1]), u.seq) i
                      where i.kind = unfinished.kind) l on true
        where e.closed_at is null
        union all
        select d.job_id, forebay._state_of_deferred(d.attempt, d.pauses), r.priority, d.tag, d.attempt, d.enqueued_at, d.expires_at,
               case when d.attempt is null and d.pauses is null then d.run_at else v_now end
        from readers r
        join forebay.deferred d on d.lane = r.lane and d.kind = unfinished.kind
        where not (v_position.no is not null and pg_visible_in_snapshot(d.xid, v_position.snap)
                   and (d.run_at, d.deferred_id) <= (v_position.run_at, v_position.deferred_id)))
    select o.job_id, o.state, o.priority, o.tag, coalesce(o.attempt, 0) + 1, o.enqueued_at,
           -- The expiry gives the due time; a job in the log is due no later than now, a deferred one no later than its start.
           greatest(o.enqueued_at, least(coalesce(o.expires_at, o.enqueued_at + interval '30 days') - v_expires, o.latest))
    from found o;
end
$$;
