-- The claim of jobs that all lie in this segment, in one statement: the common case, at half the
-- cost of forebay._take(), which handles all other cases. It takes nothing, and returns null, unless
--   * the lane has a cursor, its group is not paused, and it is not a lane of suspects,
--   * no late committer is among the rows that the current window, or the next one, has to deliver,
--   * either nothing outside this segment can be in either window (`whole`), or p_limit jobs of the current window
--     are found here,
--   * none of the jobs is cancelled or expired,
--   * none of the jobs is larger than a kilobyte and its share of forebay._claim_bytes(): the size of all of them is known before they are read,
--   * the lease is open.
-- With `whole` both windows are one range of the index: without late committers, a transaction that began before the end of the
-- first and is visible in it is visible now, and the reverse. A transaction that ended since counts as one only if it has rows of the
-- lane here, or may have some in an earlier segment, which is sealed with a higher id. Settlements and claims of others have none.
--
-- Most of the cost is preparing the expressions, again in each transaction: each column counts.
create function forebay._take_{segment}(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer)
returns text
language plpgsql volatile
as $$
declare
    v_jobs text;
begin
    with cur as materialized (
        select b.no, b.snap_from, b.snap_to, b.stop, b.pos_xid, b.pos_seq, b.high_seq, b.handed_total, b.skipped_total,
               b.whole, u.upto, forebay._now() as at, forebay._claim_bytes() / p_limit + 1024 as share,
               case when pg_snapshot_xmin(u.upto) <> pg_snapshot_xmax(u.upto)
                         and exists (select from pg_snapshot_xip(u.upto) open (xid) where open.xid >= pg_snapshot_xmax(b.snap_from))
                    then forebay._xid_ranges(b.snap_from, u.upto)
                    else array[row(pg_snapshot_xmax(b.snap_from), pg_snapshot_xmax(u.upto))::forebay._xid_range] end as ranges
        from (select n.no, n.snap_from, n.snap_to, n.pos_segment, n.pos_xid, n.pos_seq, n.high_seq, n.handed_total,
                     n.skipped_total, s.stop,
                     pg_sequence_last_value('forebay.log_seq') < {end}
                     and (pg_snapshot_xmin(s.stop) = pg_snapshot_xmax(s.stop)
                          or not exists (select from pg_snapshot_xip(s.stop) late (xid)
                                         where pg_visible_in_snapshot(late.xid, pg_current_snapshot())
                                           and ((select true from forebay.log_{segment} l where l.lane = p_lane and l.xid = late.xid limit 1)
                                                or (select true from forebay.seal f where f.segment_id = {segment} - 1 and f.xid > late.xid limit 1))))
                     and {sealed_before} as whole
              from forebay.batch n, lateral (select coalesce(n.snap_to, n.snap_from) as stop) s
              where n.group_id = p_group_id and n.lane = p_lane
              order by n.no desc limit 1) b,
             lateral (select case when b.whole then pg_current_snapshot() else b.snap_to end as upto) u
        where (b.snap_to is null
               or b.pos_segment = {segment}
               and (pg_snapshot_xmin(b.snap_from) = pg_snapshot_xmax(b.snap_from)
                    or not exists (select from pg_snapshot_xip(b.snap_from) late (xid)
                                   where pg_visible_in_snapshot(late.xid, b.snap_to))))
          and exists (select from forebay.queue_group g where g.group_id = p_group_id and (g.paused_at is null or g.resume_at <= forebay._now()))
          and not exists (select from forebay.lane l where l.lane = p_lane and l.audience < 0)
    ), taken as materialized (
        select count(*)::integer as size, array_agg(t.seq) as seqs, array_agg(t.xid) as xids, max(t.seq) as high,
               array_agg(t.job_id) as job_ids, -- A job that is too large counts as expired: nothing is written.
               min(case when t.job is not null then coalesce(t.expires_at, t.enqueued_at + interval '30 days') else '-infinity' end) as expires,
               string_agg(t.job, ',') as jobs
        from cur, lateral (
            select j.seq, j.xid, j.expires_at, j.enqueued_at, j.job_id, case when octet_length(j.job) <= cur.share then j.job end as job
            from (select unnest(cur.ranges) as xids) r, lateral (
            select j.seq, j.xid, j.expires_at, j.enqueued_at, coalesce(j.job_id, j.seq) as job_id,
                   case when pg_column_size(j.args) <= cur.share
                        then forebay._job_json(j.seq, j.job_id, j.enqueued_at, j.expires_at, j.attempt, j.pauses,
                                               {job of j but ordering_key, limit_key}) end as job
            from forebay.log_{segment} j
            where j.lane = p_lane
              and (j.xid, j.seq) > (greatest((r.xids).low, cur.pos_xid), case when cur.pos_xid >= (r.xids).low then cur.pos_seq else -1 end)
              and j.xid < (r.xids).high
            order by j.xid, j.seq
            limit p_limit) j
            limit p_limit) t
    ), written as (
        insert into forebay.batch (
            group_id, lane, no, lease_id, claim_no, floor, snap_from, snap_to, pos_segment, pos_xid, pos_seq,
            high_seq, handed_total, skipped_total, claimed_at, seqs, xids)
        select p_group_id, p_lane, c.no + 1, p_lease_id, p_claim_no, p_floor,
               -- Used up, still in the current window, or in the next one.
               case when t.size < p_limit then c.upto when t.xids[t.size] < pg_snapshot_xmax(c.stop) then c.snap_from else c.stop end,
               case when t.size < p_limit then null when t.xids[t.size] < pg_snapshot_xmax(c.stop) then c.snap_to else c.upto end,
               case when t.size < p_limit then 0 else {segment} end,
               case when t.size < p_limit then '0' else t.xids[t.size] end,
               case when t.size < p_limit then 0 else t.seqs[t.size] end,
               greatest(c.high_seq, t.high), c.handed_total + t.size, c.skipped_total, c.at,
               t.seqs, case when t.xids[1] = all (t.xids) then t.xids[:1] else t.xids end
        from cur c, taken t,
             (select from forebay.lease i
              where i.lease_id = p_lease_id and i.closed_at is null
              for key share) held
        where t.size > 0 and (c.whole or t.size = p_limit) and t.expires > c.at
          and (pg_sequence_last_value('forebay.tombstone_seq') is null
               or not exists (select from forebay.tombstone x where x.job_id = any (t.job_ids)))
        returning true
    )
    select t.jobs into v_jobs from written, taken t;
    return v_jobs;
end
$$;
