-- grant: operator, reader

-- The counters of jobs, exact in the caller's snapshot, by queue, group, priority, kind and tag.
-- The kind `''` stands for further kinds and tags, beyond 2,000 of a group. The cost depends on the
-- number of kinds and tags, not on the jobs that wait or have ended; where no worker has run yet it
-- visits every job.
--
-- Columns:
--   scheduled, ready, claimed, retrying
--                         jobs now, with the states of forebay.job()
--   held                  those of the ready jobs that wait for their ordering key or limit key
--   running               those of the claimed jobs that a heartbeat has named
--   enqueued              jobs enqueued to run at once; this and the next columns count since the
--                         group was opened
--   handed                once for each claim
--   done, dead, expired, cancelled
--                         how jobs ended
--   failed                attempts that ended with an error and were repeated
--   snoozed               with those sent back for an unknown kind
--   released              sent back unstarted
--   lost                  sent back from lost workers
--   requeued              behind an earlier job of their ordering key
--   waits, durations      histograms with the bounds of forebay.stats_bounds()
--   wait_ms, duration_ms  their sums
--
-- See: docs/howto/stats.md, docs/design/counters.md
--
-- Inside: it adds what was appended since the last fold to the totals of that fold; maintenance
-- folds every second.
-- pages: 1000 + 100 a lane + 8 a cell + 12 an uncounted job + 20 an open lease
create function forebay.stats(only_queue text default null)
returns table (queue text, group_name text, priority integer, kind text, tag text, scheduled bigint, ready bigint, held bigint, claimed bigint, running bigint,
               retrying bigint, enqueued bigint, handed bigint, done bigint, failed bigint, dead bigint, expired bigint, cancelled bigint, snoozed bigint,
               released bigint, lost bigint, requeued bigint, wait_ms bigint, duration_ms bigint, waits bigint[], durations bigint[])
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
#variable_conflict use_column
declare
    v_found record;
begin
    select r.* into v_found from forebay._counter_read(case when only_queue is not null then array[only_queue] end, null) r;
    return query
    with base as materialized (
        select b.nr, b.queue, b.group_id, b.group_name from unnest(v_found.bases) b
    ), waiting as materialized (
        -- Of jobs that wait for a key, of those that were cancelled before a claim, and of those whose handlers run.
        select r.base, r.priority, r.kind, r.tag, r.event, sum(r.jobs) as jobs from forebay._counter_held(v_found.bases) r group by 1, 2, 3, 4, 5
        union all
        select b.nr, r.priority, r.kind, r.tag, 1, -r.jobs
        from forebay._cancelled_ahead(case when only_queue is not null then array[only_queue] end) r
        join base b on b.queue = r.queue and b.group_id = r.group_id
        where r.jobs > 0
        union all
        select r.base, r.priority, r.kind, r.tag, 60, sum(r.jobs) from forebay._counter_running(v_found.bases, v_found.lanes) r group by 1, 2, 3, 4
    ), folded as (
        select b.nr, c.priority, c.kind, c.tag, n.totals
        from base b
        cross join lateral (select i.cell_id, i.priority, i.kind, i.tag from forebay.counter_cell i where i.group_id = b.group_id offset 0) c
        cross join lateral (select i.totals from forebay.counter i where i.cell_id = c.cell_id and i.segment_id = -1 order by i.no desc limit 1) n
    ), full_group as materialized (
        select b.nr from base b where (select count(*) from forebay.counter_cell i where i.group_id = b.group_id) >= forebay._counter_cells()
    ), added as (
        select a.nr, a.priority, a.kind, a.tag, array_agg(a.event) as events, array_agg(a.jobs) as jobs
        from (select i.nr, i.priority, case when o.is_other then '' else i.kind end as kind, case when not o.is_other then i.tag end as tag, i.event, sum(i.jobs)::bigint as jobs
              from (select d.base as nr, d.priority, d.kind, d.tag, abs(d.event) as event, sum(case when d.event < 0 then -d.jobs else d.jobs end) as jobs
                    from unnest(v_found.deltas) d group by 1, 2, 3, 4, 5
                    union all
                    select w.* from waiting w) i
              join base b on b.nr = i.nr
              cross join lateral (select exists (select from full_group f where f.nr = i.nr)
                                     and not exists (select from forebay.counter_cell c
                                                     where c.group_id = b.group_id and c.priority = i.priority and c.kind = i.kind
                                                       and c.tag is not distinct from i.tag) as is_other) o
              group by 1, 2, 3, 4, 5) a
        group by 1, 2, 3, 4
    ), cell as materialized (
        select coalesce(f.nr, a.nr) as nr, coalesce(f.priority, a.priority) as priority, coalesce(f.kind, a.kind) as kind, coalesce(f.tag, a.tag) as tag,
               case when a.nr is null then f.totals || array[0, 0]::bigint[]
                    else array(select (coalesce(f.totals[i], 0) + coalesce(a.jobs[array_position(a.events, i)], 0))::bigint from generate_series(1, 60) i) end as t
        from folded f full join added a on a.nr = f.nr and a.priority = f.priority and a.kind = f.kind and coalesce(a.tag, '') = coalesce(f.tag, '')
                                           and (a.tag is null) = (f.tag is null)
    )
    select b.queue, b.group_name, c.priority, c.kind, c.tag,
           c.t[15], c.t[1] + c.t[13] - c.t[3] - c.t[7] - c.t[8] - c.t[14], c.t[59],
           c.t[3] - c.t[4] - c.t[5] - c.t[6] - c.t[9] - c.t[10] - c.t[11] - c.t[12] - c.t[13], c.t[60], c.t[16],
           c.t[2], c.t[3], c.t[4], c.t[5], c.t[6], c.t[7], c.t[8] + c.t[9], c.t[10], c.t[11], c.t[12], c.t[13], c.t[17], c.t[58],
           c.t[18:37], c.t[38:57]
    from cell c join base b on b.nr = c.nr
    order by b.queue, b.group_name, c.priority, c.kind, c.tag;
end
$$;


-- The jobs that wait for a key: they are part of those that are ready. The rows of cancelled ones are not ready (event 1).
create function forebay._counter_held(p_bases forebay._counter_base[]) returns setof forebay._counter_delta
language plpgsql stable
-- planner: hot
as $$
begin
    if pg_sequence_last_value('forebay.key_seq') is null and pg_sequence_last_value('forebay.limit_parked_seq') is null then
        return;
    end if;
    return query
    select b.nr, -1::bigint, l.priority, (p.job).kind, (p.job).tag, case when c.is_cancelled then 1 else 59 end,
           case when c.is_cancelled then -count(*) else count(*) end
    from forebay._parked_jobs() p
    join unnest(p_bases) b on b.group_id = p.group_id
    cross join lateral (
        select exists (select from forebay.tombstone t
                       where t.job_id = coalesce((p.job).job_id, (p.job).seq) and t.reason in ('c', 'r')
                         and (t.group_id is null or t.group_id = p.group_id)) as is_cancelled) c
    cross join lateral (select i.priority from forebay.lane i where i.lane = (p.job).lane limit 1) l
    where (p.job).kind <> ''
    group by b.nr, l.priority, (p.job).kind, (p.job).tag, c.is_cancelled;
end
$$;


-- The jobs whose handlers run, by the last heartbeats of open leases: see forebay.depth().
create function forebay._counter_running(p_bases forebay._counter_base[], p_lanes forebay._counter_lane[]) returns setof forebay._counter_delta
language plpgsql stable
-- planner: hot
as $$
declare
    v_piece record;
begin
    for v_piece in
        with open_lease as materialized (
            select e.lease_id, f.floor, h.heartbeat_at, h.running_jobs
            from forebay.lease e
            join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f on true
            join lateral (select i.heartbeat_at, i.running_jobs from forebay.heartbeat i
                          where i.lease_id = e.lease_id order by i.heartbeat_at desc limit 1) h on true
            where e.closed_at is null and h.running_jobs is not null
        ), open_job as (
            select e.lease_id, n.nr as base, e.running_jobs, coalesce(u.lane, b.lane) as lane, coalesce(u.xid, b.xids[1]) as xid, u.seq
            from open_lease e
            join forebay.batch b on b.lease_id = e.lease_id and b.claim_no >= e.floor and b.claimed_at <= e.heartbeat_at
            join unnest(p_bases) n on n.group_id = b.group_id
            cross join lateral unnest(b.seqs, b.xids, b.lanes) with ordinality u (seq, xid, lane, place)
            where not exists (select from forebay.settlement s
                              where s.lease_id = b.lease_id and s.claim_no = b.claim_no and (s.offsets is null or u.place::smallint = any (s.offsets)))
        )
        select s.segment_id, array_agg(o.base) as bases, array_agg(o.lease_id) as leases, array_agg(o.lane) as lanes, array_agg(o.xid) as xids, array_agg(o.seq) as seqs
        from open_job o
        cross join lateral (select i.segment_id from forebay.segment i where i.lo <= o.seq order by i.lo desc limit 1) s
        group by s.segment_id
    loop
        return query execute format(
            'select u.base, -1::bigint, l.priority, i.kind, i.tag, 60, count(*)
             from unnest($1, $2, $3, $4, $5) u (base, lease_id, lane, xid, seq)
             cross join lateral (select i.kind, i.tag, coalesce(i.job_id, i.seq) as job_id from forebay.log_%s i
                                 where i.lane = u.lane and i.xid = u.xid and i.seq = u.seq limit 1) i
             join unnest($6) l on l.base = u.base and l.lane = u.lane
             join lateral (select h.running_jobs from forebay.heartbeat h where h.lease_id = u.lease_id order by h.heartbeat_at desc limit 1) r
                  on i.job_id = any (r.running_jobs)
             group by u.base, l.priority, i.kind, i.tag', v_piece.segment_id)
        using v_piece.bases, v_piece.leases, v_piece.lanes, v_piece.xids, v_piece.seqs, p_lanes;
    end loop;
end
$$;


-- The upper bounds, in milliseconds, of the buckets of `waits` and `durations`; the last bucket has
-- none.
create function forebay.stats_bounds() returns bigint[]
language sql immutable security definer
set search_path = pg_catalog, pg_temp
as $$ select forebay._counter_bounds() $$;
