-- What the counters of some queues (null: all) do not have yet, in the caller's snapshot: what was appended since the last folds.
--
-- Everything is read in one snapshot, that of the calling statement. Rows of the log, of deferred and of counter_change are found by
-- ranges of transactions, as a claim finds them. The batches of a lane are numbered under its lock, so those that a snapshot shows are
-- all up to some number. A settlement has its batch: those of new batches and of batches that were open at the fold are looked up.
--
-- Parameters: p_most, at most about as many batches of each lane, for a fold; null: all.
create function forebay._counter_read(
    p_queues text[], p_most bigint, out bases forebay._counter_base[], out lanes forebay._counter_lane[], out opens forebay._counter_open[],
    out open_bases bigint[], out deltas forebay._counter_delta[])
language plpgsql stable
-- planner: folds
as $$
#variable_conflict use_column
declare
    v_now   constant pg_snapshot := pg_current_snapshot();
    v_own   constant forebay._xid_range[] := forebay._own_xid_range();
    v_bases forebay._counter_base[];
    v_lanes forebay._counter_lane[];
    v_los   bigint[];
    v_ids   bigint[];
    v_named record;
    v_piece record;
    v_found forebay._counter_delta[];
    v_runs  bigint[] := '{}';            -- batches that are done with
    v_sort  text;
begin
    v_bases := array(
        select row(row_number() over (order by q.queue, g.name), q.queue, coalesce(g.group_id, 0), coalesce(g.name, 'default'),
                   coalesce(g.start_after, '1:1:'), f.no, f.snap, f.folded_at, coalesce(f.open, '{}'),
                   forebay._xid_ranges(coalesce(f.snap, '1:1:'), v_now) || v_own)::forebay._counter_base
        from forebay._queues_of(p_queues) q (queue)
        left join forebay.queue_group g on g.queue = q.queue
        left join lateral (select i.* from forebay.counter_fold i where i.group_id = g.group_id order by i.no desc limit 1) f on true
        where g.closing_at is null);
    v_lanes := array(
        select row(b.nr, b.group_id, l.lane, l.priority,
                   case when b.snap is null and l.audience = 0 then forebay._xid_ranges(b.start, v_now) || v_own else b.ranges end,
                   coalesce(f.no, 0), case when n.no - coalesce(f.no, 0) > p_most then coalesce(f.no, 0) + p_most else n.no end)::forebay._counter_lane
        from unnest(v_bases) b
        cross join lateral (select distinct i.lane, i.priority, i.audience from forebay.lane i
                            where i.queue = b.queue and i.audience in (0, b.group_id, -b.group_id)) l
        left join lateral (select u.no from forebay.counter_fold i cross join lateral unnest(i.lanes, i.nos) u (lane, no)
                           where i.group_id = b.group_id and i.no = b.no and u.lane = l.lane limit 1) f on true
        left join lateral (select i.no from forebay.batch i where i.group_id = b.group_id and i.lane = l.lane order by i.no desc limit 1) n on true);
    select coalesce(array_agg(s.lo order by s.lo), '{}'), coalesce(array_agg(s.segment_id order by s.lo), '{}') into v_los, v_ids
    from forebay.segment s
    where s.removed_at is null and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0) and s.lo >= forebay._archived_below()
      and forebay._has_table(s.segment_id);
    bases := v_bases;
    lanes := v_lanes;

    deltas := array(select a from forebay._counter_arrived(v_lanes, v_ids) a)
           || array(select d from forebay._counter_deferred(v_bases, v_lanes) d)
           || array(select c from forebay._counter_changed(v_bases) c);

    -- New batches, and those that were open; and which of their jobs were settled since. A batch that was settled as a whole has no ends.
    with named as materialized (
        select l.base, b.lane, b.lease_id, b.claim_no, b.seqs, b.xids, b.lanes, b.claimed_at, true as is_new, '{}'::integer[] as flushes
        from unnest(v_lanes) l
        cross join lateral (select i.* from forebay.batch i
                            where i.group_id = l.group_id and i.lane = l.lane and i.no > l.no and i.no <= l.last_no offset 0) b
        where b.seqs is not null
        union all
        select b.nr, i.lane, i.lease_id, i.claim_no, i.seqs, i.xids, i.lanes, i.claimed_at, false, o.flushes
        from unnest(v_bases) b
        cross join lateral unnest(b.open) o
        cross join lateral (select j.* from forebay.batch j where j.lease_id = o.lease_id and j.claim_no = o.claim_no offset 0) i
    ), numbered as materialized (
        select n.*, row_number() over () as nr, cardinality(n.seqs) as size from named n
    ), settled as materialized (
        select n.nr, s.flush_no, s.offsets, s.outcomes, s.millis
        from numbered n
        cross join lateral (select i.* from forebay.settlement i
                            where i.lease_id = n.lease_id and i.claim_no = n.claim_no and i.flush_no <> all (n.flushes) offset 0) s
    ), ended as materialized (
        select s.nr, u.place, coalesce(u.code, 'd') as code, u.millis
        from settled s cross join lateral unnest(s.offsets, s.outcomes, s.millis) u (place, code, millis)
        where s.offsets is not null and u.place is not null
    ), over as materialized (
        select s.nr, bool_or(s.offsets is null) as is_whole, sum(cardinality(s.offsets)) as jobs, array_agg(s.flush_no) as flushes
        from settled s group by s.nr
    ), open as materialized (
        select n.base, row(n.lease_id, n.claim_no, n.flushes || o.flushes)::forebay._counter_open as open
        from numbered n left join over o on o.nr = n.nr
        where o.is_whole is not true
          and n.size > coalesce(o.jobs, 0) + case when n.flushes = '{}' then 0 else (
              select coalesce(sum(cardinality(i.offsets)), 0) from forebay.settlement i
              where i.lease_id = n.lease_id and i.claim_no = n.claim_no and i.flush_no = any (n.flushes)) end
    )
    select array(select o.open from open o) as opens, array(select o.base from open o) as open_bases,
           (select array_agg(e.nr) from ended e) as nrs, (select array_agg(e.place) from ended e) as places,
           (select array_agg(e.code) from ended e) as codes, (select array_agg(e.millis) from ended e) as millis,
           array(select row(n.nr, n.base, n.lane, n.lease_id, n.claim_no, n.flushes, width_bucket(n.seqs[1], v_los), n.size, n.seqs, n.xids, n.lanes,
                            n.xids[1], n.xids[cardinality(n.xids)], n.seqs[1], n.seqs[n.size], n.claimed_at, n.is_new, coalesce(o.is_whole, false),
                            w.millis)::forebay._counter_batch
                 from numbered n
                 left join over o on o.nr = n.nr
                 left join settled w on w.nr = n.nr and w.offsets is null
                 where n.is_new or o.nr is not null) as batches
    into v_named;
    opens := v_named.opens;
    open_bases := v_named.open_bases;

    -- Nearly every batch is a run of rows in one segment.
    for v_piece in
        select b.segment, array_agg(b) as batches from unnest(v_named.batches) b
        where b.segment > 0 and b.lanes is null and width_bucket(b.last_seq, v_los) = b.segment group by b.segment
    loop
        foreach v_sort in array array['one', 'mixed'] loop
            if v_sort = 'one' then
                v_found := array(select r from forebay._counter_runs(v_lanes, v_ids[v_piece.segment], v_piece.batches, v_named.nrs, v_named.codes, v_named.millis) r);
            else
                v_found := array(select r from forebay._counter_mixed(
                    v_lanes, v_ids[v_piece.segment], array(select b from unnest(v_piece.batches) b where b.nr <> all (v_runs)), v_named.nrs, v_named.places,
                    v_named.codes, v_named.millis) r);
            end if;
            deltas := deltas || array(select f from unnest(v_found) f where f.event <> 0);
            v_runs := v_runs || array(select f.base from unnest(v_found) f where f.event = 0);
            exit when cardinality(v_piece.batches) = (select count(*) from unnest(v_found) f where f.event = 0);
        end loop;
    end loop;
    for v_piece in
        select j.segment, array_agg(j.base) as bases, array_agg(j.lane) as lanes, array_agg(j.xid) as xids, array_agg(j.seq) as seqs,
               array_agg(j.is_new) as news, array_agg(j.claimed_at) as times, array_agg(j.code) as codes, array_agg(j.millis) as millis
        from (select b.base, coalesce(u.lane, b.lane) as lane, coalesce(u.xid, b.first_xid) as xid, u.seq, b.is_new, b.claimed_at,
                     case when b.is_whole then 'd' else e.code end as code, case when b.is_whole then u.millis else e.millis end as millis,
                     width_bucket(u.seq, v_los) as segment
              from unnest(v_named.batches) b
              cross join lateral unnest(b.seqs, b.xids, b.lanes, b.millis) with ordinality u (seq, xid, lane, millis, place)
              left join unnest(v_named.nrs, v_named.places, v_named.codes, v_named.millis) e (nr, place, code, millis) on e.nr = b.nr and e.place = u.place
              where b.nr <> all (v_runs) and u.seq is not null and (b.is_new or b.is_whole or e.code is not null)) j
        where j.segment > 0
        group by j.segment
    loop
        deltas := deltas || array(select h from forebay._counter_handed(v_lanes, v_ids[v_piece.segment], v_piece.bases, v_piece.lanes, v_piece.xids,
                                                                        v_piece.seqs, v_piece.news, v_piece.times, v_piece.codes, v_piece.millis) h);
    end loop;
    deltas := deltas || array(select s from forebay._counter_skipped(v_bases, v_lanes, v_los, v_ids) s);
end
$$;


-- Rows of the log, by the transactions that have ended since the folds.
create function forebay._counter_arrived(p_lanes forebay._counter_lane[], p_segments bigint[]) returns setof forebay._counter_delta
language plpgsql stable
-- planner: folds
as $$
declare
    v_oldest xid8 := (select min((l.ranges[1]).low) from unnest(p_lanes) l);
    v_sql    text;
begin
    select string_agg(format(
        'select l.base, %1$s::bigint as segment_id, l.priority, i.kind, i.tag, sum(i.jobs)::bigint as jobs, sum(i.first)::bigint as first
         from unnest($1) l cross join lateral unnest(l.ranges) r
         cross join lateral (select i.kind, i.tag, count(*) as jobs, count(*) - count(i.job_id) as first from forebay.log_%1$s i
                             where i.lane = l.lane and i.xid >= r.low and i.xid < r.high and i.kind <> '''' group by i.kind, i.tag) i
         group by l.base, l.priority, i.kind, i.tag', s.segment_id), ' union all ')
    into v_sql
    from forebay.segment s left join forebay.seal f using (segment_id)
    where s.segment_id = any (p_segments) and (f.xid is null or f.xid > v_oldest);
    if v_sql is null or v_oldest is null then
        return;
    end if;
    return query execute
        'select u.base, u.segment_id, u.priority, u.kind, u.tag, e.event, e.jobs
         from (' || v_sql || ') u cross join lateral (values (1, u.jobs), (2, u.first)) e (event, jobs) where e.jobs > 0' using p_lanes;
end
$$;


-- Rows of deferred that came since the folds and wait; and scheduled jobs that were withdrawn.
create function forebay._counter_deferred(p_bases forebay._counter_base[], p_lanes forebay._counter_lane[]) returns setof forebay._counter_delta
language plpgsql stable
-- planner: folds
as $$
#variable_conflict use_column
declare
    v_position forebay.promotion;
begin
    select p.* into v_position from forebay.promotion p order by p.no desc limit 1;
    return query
    select l.base, -1::bigint, l.priority, d.kind, d.tag, case d.state when 'scheduled' then 15 else 16 end, count(*)
    from unnest(p_lanes) l
    join unnest(p_bases) b on b.nr = l.base
    cross join lateral unnest(b.ranges) r
    cross join lateral (
        select i.kind, i.tag, forebay._state_of_deferred(i.attempt, i.pauses) as state
        from forebay.deferred i
        where i.lane = l.lane and i.kind <> '' and i.xid >= r.low and i.xid < r.high
          and not (v_position.no is not null and pg_visible_in_snapshot(i.xid, v_position.snap)
                   and (i.run_at, i.deferred_id) <= (v_position.run_at, v_position.deferred_id))
        offset 0) d
    group by l.base, l.priority, d.kind, d.tag, d.state;
    return query select * from forebay._counter_withdrawn(p_bases);
end
$$;


-- Scheduled jobs of groups that were cancelled or replaced and are not due yet: with a negative event.
create function forebay._counter_withdrawn(p_bases forebay._counter_base[]) returns setof forebay._counter_delta
language plpgsql stable
-- planner: folds
as $$
#variable_conflict use_column
declare
    v_position forebay.promotion;
begin
    if not exists (select from forebay.withdrawn) then
        return;
    end if;
    select p.* into v_position from forebay.promotion p order by p.no desc limit 1;
    return query
    select w.base, -1::bigint, w.priority, w.kind, w.tag, case w.state when 'scheduled' then -15 else -16 end, count(*)
    from (select distinct b.nr as base, u.priority, u.kind, u.tag, u.state, u.deferred_id
          from unnest(p_bases) b
          cross join lateral (
              select i.* from forebay.withdrawn i
              where i.queue = b.queue and (v_position.no is null or (i.run_at, i.deferred_id) > (v_position.run_at, v_position.deferred_id))
              union all
              -- Committed since the last promotion: it may be past due.
              select i.* from unnest(forebay._xid_ranges(v_position.snap, pg_current_snapshot()) || forebay._own_xid_range()) r
              cross join lateral (select j.* from forebay.withdrawn j where j.queue = b.queue and j.xid >= r.low and j.xid < r.high offset 0) i
              where not pg_visible_in_snapshot(i.row_xid, v_position.snap)) u
          where u.audience in (0, b.group_id, -b.group_id) and (u.group_id is null or u.group_id = b.group_id)) w
    group by w.base, w.priority, w.kind, w.tag, w.state;
end
$$;


-- Rows that left without a claim since the folds: promoted, moved or expired. A deferred row that its fold does not have is not subtracted.
create function forebay._counter_changed(p_bases forebay._counter_base[]) returns setof forebay._counter_delta
language sql stable
-- planner: folds
as $$
    select b.nr, coalesce(c.segment_id, -1), u.priority, u.kind, u.tag,
           case u.state when 's' then 15 when 'r' then 16 else case c.why when 'e' then 7 else 14 end end,
           sum(case when u.state in ('s', 'r') then -u.jobs else u.jobs end)
    from unnest(p_bases) b
    cross join lateral unnest(b.ranges) r
    cross join lateral (select i.* from forebay.counter_change i where i.queue = b.queue and i.xid >= r.low and i.xid < r.high and i.kinds is not null offset 0) c
    cross join lateral unnest(c.priorities, c.audiences, c.states, c.row_xids, c.jobs, c.kinds, c.tags) u (priority, audience, state, row_xid, jobs, kind, tag)
    where case when u.state in ('s', 'r') then u.audience in (0, b.group_id, -b.group_id) and b.snap is not null and pg_visible_in_snapshot(u.row_xid, b.snap)
               else c.group_id = b.group_id end
    group by 1, 2, 3, 4, 5, 6
$$;


-- The jobs of batches in one segment, read as runs of rows: all rows of the lane from the first to the last job, where these are exactly
-- the jobs of the batch, and have one kind and tag. It names the batches that it has counted, by number, as event 0.
create function forebay._counter_runs(
    p_lanes forebay._counter_lane[], p_segment_id bigint, p_batches forebay._counter_batch[], p_nrs bigint[], p_codes "char"[], p_millis integer[])
returns setof forebay._counter_delta
language plpgsql stable
-- planner: folds
as $$
begin
    return query execute format(
        'with run as materialized (
             select b.nr, b.base, b.lane, b.is_new, b.is_whole, b.size, case when b.is_whole then b.millis end as millis, f.kind, f.tag,
                    case when b.is_new and r.later = 0 then r.times end as times, r.first, r.last, b.claimed_at,
                    width_bucket(date_part(''epoch'', b.claimed_at - r.first) * 1000, $5) as longest,
                    width_bucket(date_part(''epoch'', b.claimed_at - r.last) * 1000, $5) as shortest
             from unnest($1) b
             cross join lateral (select i.kind, i.tag from forebay.log_%1$s i
                                 where i.lane = b.lane and i.xid = b.first_xid and i.seq = b.first_seq limit 1) f
             cross join lateral (
                 select array_agg(i.seq) as seqs, bool_and(i.kind = f.kind and i.tag is not distinct from f.tag) as is_one, count(i.job_id) as later,
                        min(i.enqueued_at) as first, max(i.enqueued_at) as last, array_agg(i.enqueued_at) as times
                 from (select j.seq, j.kind, j.tag, j.job_id, j.enqueued_at from forebay.log_%1$s j
                       where j.lane = b.lane and (j.xid, j.seq) >= (b.first_xid, b.first_seq) and (j.xid, j.seq) <= (b.last_xid, b.last_seq)
                       order by j.xid, j.seq limit b.size + 1) i) r
             where r.seqs = b.seqs and r.is_one and r.later in (0, b.size)
         ), ran as materialized (
             select r.base, r.lane, r.kind, r.tag, m.millis, m.jobs
             from run r cross join lateral (select u as millis, count(*) as jobs from unnest(r.millis) u where u is not null group by u) m
         ), event as (
             select r.base, r.lane, r.kind, r.tag, 3 as event, r.size::bigint as jobs from run r where r.is_new
             union all
             select r.base, r.lane, r.kind, r.tag, 18 + r.longest, r.size from run r where r.times is not null and r.longest = r.shortest
             union all
             select r.base, r.lane, r.kind, r.tag, 18 + w.bucket, w.jobs
             from run r
             cross join lateral (select width_bucket(date_part(''epoch'', r.claimed_at - u) * 1000, $5) as bucket, count(*) as jobs
                                 from unnest(r.times) u group by 1) w
             where r.longest <> r.shortest
             union all
             select r.base, r.lane, r.kind, r.tag, 17, (1000 * case
                 when r.first = r.last then r.size * date_part(''epoch'', r.claimed_at - r.first)
                 else (select sum(date_part(''epoch'', r.claimed_at - u)) from unnest(r.times) u) end)::bigint
             from run r where r.times is not null
             union all
             select r.base, r.lane, r.kind, r.tag, 4, r.size from run r where r.is_whole
             union all
             select r.base, r.lane, r.kind, r.tag, 38 + width_bucket(r.millis::double precision - 0.5, $5), r.jobs from ran r
             union all
             select r.base, r.lane, r.kind, r.tag, 58, r.millis * r.jobs from ran r
             union all
             select r.base, r.lane, r.kind, r.tag, c.event, c.jobs
             from run r
             join (select e.nr, e.code, 38 + width_bucket(e.millis::double precision - 0.5, $5) as run, count(*) as jobs, sum(e.millis) as ran
                   from unnest($2, $3, $4) e (nr, code, millis) group by 1, 2, 3) e on e.nr = r.nr
             cross join lateral forebay._counter_events(false, e.code, null, e.run, e.jobs, null, e.ran) c
         )
         select e.base, %1$s::bigint, l.priority, e.kind, e.tag, e.event, sum(e.jobs)::bigint
         from event e
         join unnest($6) l on l.base = e.base and l.lane = e.lane
         where e.jobs > 0
         group by e.base, l.priority, e.kind, e.tag, e.event
         union all
         select r.nr, 0, 0, null, null, 0, 0 from run r', p_segment_id)
    using p_batches, p_nrs, p_codes, p_millis, forebay._counter_bounds()::double precision[], p_lanes;
end
$$;


-- The same where the jobs of a batch differ in kind or tag: the n-th row is that of the n-th job.
create function forebay._counter_mixed(
    p_lanes forebay._counter_lane[], p_segment_id bigint, p_batches forebay._counter_batch[], p_nrs bigint[], p_places smallint[], p_codes "char"[],
    p_millis integer[])
returns setof forebay._counter_delta
language plpgsql stable
-- planner: folds
as $$
begin
    return query execute format(
        'with run as materialized (
             select b.nr, b.base, b.lane, b.is_new, b.is_whole, b.millis, b.size, r.kinds, r.tags, r.waits
             from unnest($1) b
             cross join lateral (
                 select array_agg(i.seq) as seqs, array_agg(i.kind) as kinds, array_agg(i.tag) as tags,
                        case when b.is_new then array_agg(case when i.job_id is null then date_part(''epoch'', b.claimed_at - i.enqueued_at) * 1000 end) end as waits
                 from (select j.seq, j.kind, j.tag, j.job_id, j.enqueued_at from forebay.log_%1$s j
                       where j.lane = b.lane and (j.xid, j.seq) >= (b.first_xid, b.first_seq) and (j.xid, j.seq) <= (b.last_xid, b.last_seq)
                       order by j.xid, j.seq limit b.size + 1) i) r
             where r.seqs = b.seqs
         ), job as materialized (
             select r.base, r.lane, r.is_new, u.kind, u.tag, case when r.is_whole then ''d'' else e.code end as code,
                    18 + width_bucket(u.wait, $6) as wait, 38 + width_bucket((case when r.is_whole then u.millis else e.millis end)::double precision - 0.5, $6) as run,
                    count(*) as jobs, sum(greatest(u.wait, 0)) as waited, sum(case when r.is_whole then u.millis else e.millis end) as ran
             from run r
             cross join lateral unnest(r.kinds, r.tags, r.waits, r.millis) with ordinality u (kind, tag, wait, millis, place)
             left join unnest($2, $3, $4, $5) e (nr, place, code, millis) on e.nr = r.nr and e.place = u.place
             where u.place <= r.size and (r.is_new or r.is_whole or e.code is not null)
             group by 1, 2, 3, 4, 5, 6, 7, 8
         )
         select j.base, %1$s::bigint, l.priority, j.kind, j.tag, e.event, sum(e.jobs)::bigint
         from job j
         join unnest($7) l on l.base = j.base and l.lane = j.lane
         cross join lateral forebay._counter_events(j.is_new, j.code, j.wait, j.run, j.jobs, j.waited::bigint, j.ran) e
         group by j.base, l.priority, j.kind, j.tag, e.event
         union all
         select r.nr, 0, 0, null, null, 0, 0 from run r', p_segment_id)
    using p_batches, p_nrs, p_places, p_codes, p_millis, forebay._counter_bounds()::double precision[], p_lanes;
end
$$;


-- The events of jobs that were handed out or ended.
create function forebay._counter_events(p_is_new boolean, p_code "char", p_wait integer, p_run integer, p_jobs bigint, p_waited bigint, p_ran bigint)
returns table (event integer, jobs bigint)
language sql immutable
as $$
    select e.event, e.jobs
    from (values
        (case when p_is_new then 3 end, p_jobs), (p_wait, p_jobs), (p_run, p_jobs), (17, p_waited), (58, p_ran),
        (case p_code when 'd' then 4 when 'r' then 5 when 'x' then 6 when 'y' then 6 when 'c' then 9 when 's' then 10 when 'u' then 10
                     when 'h' then 11 when 'l' then 12 when 'k' then 13 end, p_jobs)) e (event, jobs)
    where e.event is not null and e.jobs > 0
$$;


-- The jobs of batches in one segment, each found by its row: handed out since the folds, ended since, or both.
create function forebay._counter_handed(
    p_lanes forebay._counter_lane[], p_segment_id bigint, p_bases bigint[], p_of_lanes bigint[], p_xids xid8[], p_seqs bigint[], p_news boolean[],
    p_times timestamptz[], p_codes text[], p_millis integer[])
returns setof forebay._counter_delta
language plpgsql stable
-- planner: folds
as $$
begin
    return query execute format(
        'with job as materialized (
             select u.base, u.lane, i.kind, i.tag, u.is_new, u.code, count(*) as jobs,
                    18 + width_bucket(case when u.is_new and i.job_id is null then date_part(''epoch'', u.claimed_at - i.enqueued_at) * 1000 end, $9) as wait,
                    38 + width_bucket(u.millis::double precision - 0.5, $9) as run,
                    sum(case when u.is_new and i.job_id is null then greatest(date_part(''epoch'', u.claimed_at - i.enqueued_at) * 1000, 0) end) as waited,
                    sum(u.millis) as ran
             from unnest($1, $2, $3, $4, $5, $6, $7, $8) u (base, lane, xid, seq, is_new, claimed_at, code, millis)
             cross join lateral (select i.kind, i.tag, i.job_id, i.enqueued_at from forebay.log_%1$s i
                                 where i.lane = u.lane and i.xid = u.xid and i.seq = u.seq limit 1) i
             group by u.base, u.lane, i.kind, i.tag, u.is_new, u.code, wait, run)
         select j.base, %1$s::bigint, l.priority, j.kind, j.tag, e.event, sum(e.jobs)::bigint
         from job j
         join unnest($10) l on l.base = j.base and l.lane = j.lane
         cross join lateral forebay._counter_events(j.is_new, j.code::"char", j.wait, j.run, j.jobs, j.waited::bigint, j.ran) e
         group by j.base, l.priority, j.kind, j.tag, e.event', p_segment_id)
    using p_bases, p_of_lanes, p_xids, p_seqs, p_news, p_times, p_codes, p_millis, forebay._counter_bounds()::double precision[], p_lanes;
end
$$;


-- Jobs that new batches skipped: cancelled or expired. Those that were moved, and those that the sweep has expired, were counted then.
create function forebay._counter_skipped(p_bases forebay._counter_base[], p_lanes forebay._counter_lane[], p_los bigint[], p_segments bigint[])
returns setof forebay._counter_delta
language plpgsql stable
-- planner: indexed
as $$
declare
    v_piece record;
begin
    for v_piece in
        select width_bucket(u.seq, p_los) as segment, array_agg(n.base) as bases, array_agg(n.group_id) as groups, array_agg(u.seq) as seqs, array_agg(u.code) as codes,
               min(u.seq) as low, max(u.seq) as high
        from (select l.base, l.group_id, b.no, b.lane, b.skipped, b.skipped_as
              from unnest(p_lanes) l
              cross join lateral (select i.no, i.lane, i.skipped, i.skipped_as from forebay.batch i
                                  where i.group_id = l.group_id and i.lane = l.lane and i.no > l.no and i.no <= l.last_no offset 0) b
              where b.skipped <> '{}') n
        cross join lateral unnest(n.skipped, n.skipped_as) u (seq, code)
        where u.code in ('c', 'e')
        group by 1, n.lane, n.no
    loop
        continue when v_piece.segment = 0;
        return query execute format(
            'select u.base, %1$s::bigint, l.priority, i.kind, i.tag, case u.code when ''c'' then 8 else 7 end, count(*)
             from (select j.* from forebay.log_%1$s j where j.seq >= $1 and j.seq <= $2 and j.kind <> '''' offset 0) i
             join unnest($3, $4, $5, $6) u (base, group_id, seq, code) on u.seq = i.seq
             join unnest($7) l on l.base = u.base and l.lane = i.lane
             where u.code = ''c''
                or not exists (select from forebay.tombstone t where t.job_id = coalesce(i.job_id, i.seq) and t.reason = ''e'' and t.group_id = u.group_id)
             group by u.base, l.priority, i.kind, i.tag, u.code', p_segments[v_piece.segment])
        using v_piece.low, v_piece.high, v_piece.bases, v_piece.groups, v_piece.seqs, v_piece.codes, p_lanes;
    end loop;
end
$$;


-- Upper bounds of the histograms of waits and durations, in milliseconds; the last of the 20 buckets has no bound.
create function forebay._counter_bounds() returns bigint[]
language sql immutable
as $$ select array[5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000, 1800000, 3600000]::bigint[] $$;


-- The most cells of one group.
create function forebay._counter_cells() returns integer
language sql immutable
as $$ select 2000 $$;
