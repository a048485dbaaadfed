-- The claims of several lanes in one statement: forebay._take_{segment}() for each of them, under the same conditions, except that a
-- lane need not have a cursor. It returns the jobs of those lanes where they hold, and writes nothing for the others. All lanes are read with one snapshot, taken before this transaction
-- has an id: no cursor has the claim itself as a transaction in progress.
create function forebay._take_lanes_{segment}(
    p_lease_id bigint, p_claim_nos bigint[], p_floor bigint, p_group_ids bigint[], p_lanes bigint[], p_limits integer[])
returns table (claim_no bigint, jobs text)
language plpgsql volatile
as $$
#variable_conflict use_column
begin
    return query
    with held as materialized (
        select from forebay.lease i
        where i.lease_id = p_lease_id and i.closed_at is null
        for key share
    ), cur as materialized (
        select a.claim_no, a.group_id, a.lane, a.most, b.no, b.snap_from, b.snap_to, b.stop, b.pos_xid, b.pos_seq, b.high_seq,
               b.handed_total, b.skipped_total, b.whole, u.upto, forebay._now() as at,
               forebay._claim_bytes() / (select sum(m) from unnest(p_limits) m) + 1024 as share,
               case when pg_snapshot_xmin(u.upto) <> pg_snapshot_xmax(u.upto)
                         and exists (select from pg_snapshot_xip(u.upto) open (xid) where open.xid >= pg_snapshot_xmax(b.snap_from))
                    then forebay._xid_ranges(b.snap_from, u.upto)
                    else array[row(pg_snapshot_xmax(b.snap_from), pg_snapshot_xmax(u.upto))::forebay._xid_range] end as ranges
        from rows from (unnest(p_claim_nos), unnest(p_group_ids), unnest(p_lanes), unnest(p_limits)) as a (claim_no, group_id, lane, most),
             lateral (select n.no, n.snap_from, n.snap_to, n.pos_segment, n.pos_xid, n.pos_seq, n.high_seq, n.handed_total,
                             n.skipped_total, s.stop,
                             pg_sequence_last_value('forebay.log_seq') < {end}
                             and (pg_snapshot_xmin(s.stop) = pg_snapshot_xmax(s.stop)
                                  or not exists (select from pg_snapshot_xip(s.stop) late (xid)
                                                 where pg_visible_in_snapshot(late.xid, pg_current_snapshot())
                                                   and ((select true from forebay.log_{segment} l where l.lane = a.lane and l.xid = late.xid limit 1)
                                                        or (select true from forebay.seal f where f.segment_id = {segment} - 1 and f.xid > late.xid limit 1))))
                             and {sealed_before} as whole
                      from (
                          -- Without a cursor the lane is read from the start of its group.
                          select coalesce(i.no, 0) as no, coalesce(i.snap_from, case l.audience when 0 then g.start_after else '1:1:' end) as snap_from,
                                 i.snap_to, coalesce(i.pos_segment, 0) as pos_segment, coalesce(i.pos_xid, '0') as pos_xid,
                                 coalesce(i.pos_seq, 0) as pos_seq, coalesce(i.high_seq, 0) as high_seq,
                                 coalesce(i.handed_total, 0) as handed_total, coalesce(i.skipped_total, 0) as skipped_total
                          from forebay.queue_group g
                          cross join lateral (select i.audience from forebay.lane i where i.lane = a.lane limit 1) l
                          left join lateral (select * from forebay.batch i
                                             where i.group_id = a.group_id and i.lane = a.lane order by i.no desc limit 1) i on true
                          where g.group_id = a.group_id and (g.paused_at is null or g.resume_at <= forebay._now())
                            and l.audience >= 0) n,
                           lateral (select coalesce(n.snap_to, n.snap_from) as stop) s) b,
             lateral (select case when b.whole then pg_current_snapshot() else b.snap_to end as upto) u
        where (b.snap_to is null
               or b.pos_segment = {segment}
               and (pg_snapshot_xmin(b.snap_from) = pg_snapshot_xmax(b.snap_from)
                    or not exists (select from pg_snapshot_xip(b.snap_from) late (xid)
                                   where pg_visible_in_snapshot(late.xid, b.snap_to))))
    ), taken as materialized (
        select c.claim_no, t.*
        from cur c, lateral (
            select count(*)::integer as size, array_agg(t.seq) as seqs, array_agg(t.xid) as xids, max(t.seq) as high,
                   array_agg(t.job_id) as job_ids,
                   min(case when t.job is not null then coalesce(t.expires_at, t.enqueued_at + interval '30 days') else '-infinity' end) as expires,
                   string_agg(t.job, ',') as jobs
            from (
                select j.seq, j.xid, j.expires_at, j.enqueued_at, j.job_id, case when octet_length(j.job) <= c.share then j.job end as job
                from (select unnest(c.ranges) as xids) r, lateral (
                    select j.seq, j.xid, j.expires_at, j.enqueued_at, coalesce(j.job_id, j.seq) as job_id,
                           case when pg_column_size(j.args) <= c.share
                                then forebay._job_json(j.seq, j.job_id, j.enqueued_at, j.expires_at, j.attempt, j.pauses,
                                                       {job of j but ordering_key, limit_key}) end as job
                    from forebay.log_{segment} j
                    where j.lane = c.lane
                      and (j.xid, j.seq) > (greatest((r.xids).low, c.pos_xid), case when c.pos_xid >= (r.xids).low then c.pos_seq else -1 end)
                      and j.xid < (r.xids).high
                    order by j.xid, j.seq
                    limit c.most) j
                limit c.most) t) t
    ), written as (
        insert into forebay.batch (
            group_id, lane, no, lease_id, claim_no, floor, snap_from, snap_to, pos_segment, pos_xid, pos_seq,
            high_seq, handed_total, skipped_total, claimed_at, seqs, xids)
        select c.group_id, c.lane, c.no + 1, p_lease_id, c.claim_no, p_floor,
               -- Used up, still in the current window, or in the next one.
               case when t.size < c.most then c.upto when t.xids[t.size] < pg_snapshot_xmax(c.stop) then c.snap_from else c.stop end,
               case when t.size < c.most then null when t.xids[t.size] < pg_snapshot_xmax(c.stop) then c.snap_to else c.upto end,
               case when t.size < c.most then 0 else {segment} end,
               case when t.size < c.most then '0' else t.xids[t.size] end,
               case when t.size < c.most then 0 else t.seqs[t.size] end,
               greatest(c.high_seq, t.high), c.handed_total + t.size, c.skipped_total, c.at,
               t.seqs, case when t.xids[1] = all (t.xids) then t.xids[:1] else t.xids end
        from held, cur c join taken t on t.claim_no = c.claim_no
        where t.size > 0 and (c.whole or t.size = c.most) and t.expires > c.at
          and (pg_sequence_last_value('forebay.tombstone_seq') is null
               or not exists (select from forebay.tombstone x where x.job_id = any (t.job_ids)))
        returning claim_no
    )
    select t.claim_no, t.jobs from written w join taken t on t.claim_no = w.claim_no;
end
$$;
