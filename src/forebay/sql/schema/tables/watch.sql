-- Every row of a job, for each group that reads it, with what became of it: what forebay.stats() adds up, for anybody who wants to count again.
--
-- A job has a row for each time it became ready or was scheduled. state: scheduled, ready, claimed, retrying; done, dead, expired, cancelled, of
-- jobs that have ended; failed, snoozed, released, lost, moved, of rows that were followed by another one; withdrawn, of jobs cancelled while
-- they were ready and not passed by a claim yet; requeued, once for each time, beside
-- the present state. jobs is 1. For rows in segments that were emptied there is a row for each kind, tag and state, with their number; these
-- numbers were counted before the segments were emptied.
--
-- It reads all jobs. Run it in one statement with what it is compared with: then both have one snapshot.
create view forebay.counted_row as
with groups as (
    select q.queue, coalesce(g.group_id, 0) as group_id, coalesce(g.name, 'default') as group_name, coalesce(g.start_after, '1:1:') as start_after
    from (select distinct l.queue from forebay.lane l) q
    left join forebay.queue_group g on g.queue = q.queue
    where g.closing_at is null
), lanes as (
    select distinct l.lane, l.queue, l.priority, l.audience from forebay.lane l
), named as (
    select b.group_id, u.seq, b.lease_id, b.claim_no, u.place, b.claimed_at, b.no
    from forebay.batch b cross join lateral unnest(b.seqs) with ordinality u (seq, place)
), ended as (
    select s.lease_id, s.claim_no, u.place, coalesce(u.code, 'd') as code
    from forebay.settlement s cross join lateral unnest(s.offsets, s.outcomes) u (place, code)
    where s.offsets is not null
    union all
    select s.lease_id, s.claim_no, u.place::smallint, 'd'
    from forebay.settlement s
    join forebay.batch b on b.lease_id = s.lease_id and b.claim_no = s.claim_no
    cross join lateral generate_series(1, cardinality(b.seqs)) u (place)
    where s.offsets is null
), handed as (
    select n.group_id, n.seq, e.code from named n
    -- A full join is never a nested loop, whatever the planner believes of the sizes.
    full join ended e on e.lease_id = n.lease_id and e.claim_no = n.claim_no and e.place = n.place
    where coalesce(n.seq, -1) <> -1
), requeued as materialized (
    select h.group_id, h.seq from handed h where h.code = 'k'
), skipped as (
    select b.group_id, u.seq, u.code from forebay.batch b cross join lateral unnest(b.skipped, b.skipped_as) u (seq, code)
), log_row as (
    select g.queue, g.group_id, g.group_name, l.priority, r.kind, r.tag, r.seq, coalesce(r.job_id, r.seq) as job_id,
           r.ordering_key, r.ordering_key is not null or r.limit_key is not null as has_key
    from forebay.log r
    join lanes l on l.lane = r.lane
    join groups g on g.queue = l.queue and l.audience in (0, g.group_id, -g.group_id)
    where r.kind <> '' and r.seq >= (select coalesce(max(s.hi), 0) from forebay.seal f join forebay.segment s using (segment_id) where f.xid = '0') and not (l.audience = 0 and pg_visible_in_snapshot(r.xid, g.start_after))
), position as (
    select p.* from forebay.promotion p order by p.no desc limit 1
)
-- Rows of the log: the last claim that named the row decides.
select r.queue, r.group_name, r.priority, r.kind, r.tag,
       case h.code when 'd' then 'done' when 'r' then 'failed' when 'x' then 'dead' when 'y' then 'dead' when 'c' then 'cancelled' when 's' then 'snoozed'
                   when 'u' then 'snoozed' when 'h' then 'released' when 'l' then 'lost'
                   else case when h.is_open then 'claimed'
                             when s.code = 'c' then 'cancelled' when s.code = 'e' then 'expired' when s.code = 'm' then 'moved'
                             when exists (select from forebay.tombstone t where t.job_id = r.job_id and t.reason = 'm' and r.seq <= t.up_to and t.group_id = r.group_id)
                                  -- A job that came before its turn was appended again. A job has one row that can run.
                                  or r.has_key and (
                                      exists (select from forebay.log n join lanes l on l.lane = n.lane
                                              where n.job_id = r.job_id and n.seq > r.seq and l.audience in (r.group_id, -r.group_id))
                                      or exists (select from forebay.deferred n join lanes l on l.lane = n.lane left join position p on true
                                                 where n.job_id = r.job_id and l.audience in (r.group_id, -r.group_id)
                                                   and (pg_visible_in_snapshot(n.xid, p.snap) and (n.run_at, n.deferred_id) <= (p.run_at, p.deferred_id)) is not true)) then 'moved'
                             when exists (select from forebay.tombstone t where t.job_id = r.job_id and t.reason = 'e' and t.group_id = r.group_id) then 'expired'
                             -- Cancelled while it waits: it is counted as cancelled by the claim that skips it.
                             when exists (select from forebay.tombstone t
                                          where t.job_id = r.job_id and t.reason in ('c', 'r') and (t.group_id is null or t.group_id = r.group_id)) then 'withdrawn'
                             else 'ready' end end as state,
       1::bigint as jobs
from log_row r
full join (select i.group_id, i.seq, max(i.code) filter (where i.code <> 'k') as code, bool_or(i.code is null) as is_open from handed i group by 1, 2) h
       on h.group_id = r.group_id and h.seq = r.seq
full join skipped s on s.group_id = r.group_id and s.seq = r.seq
where coalesce(r.seq, -1) <> -1
union all
select r.queue, r.group_name, r.priority, r.kind, r.tag, 'requeued', 1 from log_row r join requeued h on h.group_id = r.group_id and h.seq = r.seq
union all
-- Rows that wait for a time, but those of jobs that were withdrawn.
select g.queue, g.group_name, l.priority, d.kind, d.tag, case when d.attempt > 0 and d.pauses is null then 'retrying' else 'scheduled' end, 1
from forebay.deferred d
join lanes l on l.lane = d.lane
join groups g on g.queue = l.queue and l.audience in (0, g.group_id, -g.group_id)
left join position p on true
where d.kind <> '' and (pg_visible_in_snapshot(d.xid, p.snap) and (d.run_at, d.deferred_id) <= (p.run_at, p.deferred_id)) is not true
  and not exists (select from forebay.withdrawn w
                  where w.run_at = d.run_at and w.deferred_id = d.deferred_id and (w.group_id is null or w.group_id = g.group_id))
union all
select g.queue, g.group_name, c.priority, c.kind, c.tag, e.state, e.jobs
from groups g
join forebay.counter_cell c on c.group_id = g.group_id
cross join lateral (select i.totals as t from forebay.counter i where i.cell_id = c.cell_id and i.segment_id = -2 order by i.no desc limit 1) n
cross join lateral (values ('done', n.t[4]), ('failed', n.t[5]), ('dead', n.t[6]), ('expired', n.t[7]), ('cancelled', n.t[8] + n.t[9]), ('snoozed', n.t[10]),
                           ('released', n.t[11]), ('lost', n.t[12]), ('requeued', n.t[13]), ('moved', n.t[14])) e (state, jobs)
where e.jobs <> 0;

comment on view forebay.counted_row is 'Every row of a job and what became of it: count them to check forebay.stats().';
