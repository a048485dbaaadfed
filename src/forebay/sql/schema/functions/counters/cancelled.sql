-- Note that the jobs of rows of the log were cancelled or replaced: while no claim has passed the rows, they do not count as ready. Arrays
-- belong together.
--
-- It takes no lock, as a cancellation takes none. So a claim may take a job at the same moment, and two calls may note a job twice: each read
-- decides from the rows and the cursors what counts.
create function forebay._note_cancelled(p_lanes bigint[], p_xids xid8[], p_seqs bigint[], p_group_id bigint) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_piece record;
begin
    for v_piece in
        select s.segment_id, array_agg(u.lane) as lanes, array_agg(u.xid) as xids, array_agg(u.seq) as seqs
        from unnest(p_lanes, p_xids, p_seqs) u (lane, xid, seq)
        cross join lateral (select i.segment_id from forebay.segment i where i.lo <= u.seq order by i.lo desc limit 1) s
        group by s.segment_id
    loop
        execute format(
            'insert into forebay.counter_cancelled (queue, lane, group_id, kind, tag, limit_key, jobs, low, high, oldest, newest, xids, seqs)
             select l.queue, r.lane, r.group_id, r.kind, r.tag, r.limit_key, count(*), min(r.seq), max(r.seq), min(r.xid), max(r.xid),
                    array_agg(r.xid order by r.seq), array_agg(r.seq order by r.seq)
             from (select i.*, (row_number() over (partition by i.lane, i.group_id, i.kind, i.tag, i.limit_key order by i.seq) - 1) / 1000 as part
                   from (select u.lane, u.xid, u.seq, g.group_id, j.kind, j.tag, case when u.lane & 1 = 1 then j.limit_key end as limit_key
                         from unnest($1, $2, $3) u (lane, xid, seq)
                         cross join lateral (select k.kind, k.tag, k.limit_key, coalesce(k.job_id, k.seq) as job_id from forebay.log_%s k
                                             where k.lane = u.lane and k.xid = u.xid and k.seq = u.seq and k.kind <> '''' limit 1) j
                         cross join lateral forebay._groups_of_row(u.lane, u.seq, j.job_id, $4) g) i) r
             cross join lateral (select i.queue from forebay.lane i where i.lane = r.lane limit 1) l
             group by l.queue, r.lane, r.group_id, r.kind, r.tag, r.limit_key, r.part', v_piece.segment_id)
        using v_piece.lanes, v_piece.xids, v_piece.seqs, p_group_id;
    end loop;
end
$$;


-- For which groups a row counts as cancelled: null, for all that read it. The row of a job that was moved, or that the sweep has expired, does
-- not wait for that group any more; then it is noted for each of the others.
create function forebay._groups_of_row(p_lane bigint, p_seq bigint, p_job_id bigint, p_group_id bigint) returns table (group_id bigint)
language plpgsql stable
-- planner: indexed
as $$
declare
    v_left constant bigint[] := array(
        select distinct t.group_id from forebay.tombstone t
        where t.job_id = p_job_id and (t.reason = 'e' or t.reason = 'm' and p_seq <= t.up_to) and t.group_id is not null);
begin
    if v_left = '{}' then
        return query select p_group_id;
    else
        return query
        select g.group_id from (select i.queue from forebay.lane i where i.lane = p_lane limit 1) l join forebay.queue_group g on g.queue = l.queue
        where g.group_id <> all (v_left) and (p_group_id is null or g.group_id = p_group_id);
    end if;
end
$$;


-- The same for all rows of some jobs. A row that every claim has passed counts nowhere.
create function forebay._note_cancelled_jobs(p_job_ids bigint[], p_group_id bigint default null) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_found record;
begin
    select array_agg(r.lane) as lanes, array_agg(r.xid) as xids, array_agg(r.seq) as seqs into v_found
    from unnest(p_job_ids) j (job_id) cross join lateral forebay._rows_of(j.job_id) r where r.kind <> '';
    perform forebay._note_cancelled(v_found.lanes, v_found.xids, v_found.seqs, p_group_id);
end
$$;


-- The same for rows that this transaction has written, of jobs that may have been cancelled before. Arrays belong together.
create function forebay._note_cancelled_again(p_lanes bigint[], p_seqs bigint[], p_job_ids bigint[]) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_group record;
begin
    if pg_sequence_last_value('forebay.tombstone_seq') is null then
        return;
    end if;
    for v_group in
        select d.group_id, array_agg(d.lane) as lanes, array_agg(d.seq) as seqs
        from (select distinct t.group_id, u.lane, u.seq
              from unnest(p_lanes, p_seqs, p_job_ids) u (lane, seq, job_id)
              cross join lateral (select i.group_id from forebay.tombstone i where i.job_id = u.job_id and i.reason in ('c', 'r') offset 0) t) d
        group by d.group_id
    loop
        perform forebay._note_cancelled(v_group.lanes, array_fill(pg_current_xact_id(), array[cardinality(v_group.seqs)]), v_group.seqs, v_group.group_id);
    end loop;
end
$$;


-- The lanes of some queues (null: all) that have such rows, for each group that reads them.
create function forebay._cancelled_places(p_queues text[]) returns setof forebay._cancelled_place
language sql stable
-- planner: in order
as $$
    select q.queue, q.lane, l.priority, coalesce(g.group_id, 0),
           row(0, q.lane, case l.audience when 0 then coalesce(g.start_after, '1:1:') else '1:1:' end, b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid,
               b.pos_seq)::forebay._cursor
    from (select distinct i.queue, i.lane from forebay.counter_cancelled i where p_queues is null or i.queue = any (p_queues)) q
    cross join lateral (select i.audience, i.priority from forebay.lane i where i.lane = q.lane limit 1) l
    left join forebay.queue_group g on g.queue = q.queue
    left join lateral (select i.* from forebay.batch i where i.group_id = g.group_id and i.lane = q.lane order by i.no desc limit 1) b on true
    left join forebay.segment s on s.segment_id = b.pos_segment
    where l.audience in (0, coalesce(g.group_id, 0), -coalesce(g.group_id, 0))
$$;


-- On which side of a cursor are rows between two numbers and two transactions? 1: all are in front of it, -1: all are behind it, 0: each has
-- to be compared. See forebay._is_behind().
create function forebay._side_of(p_oldest xid8, p_newest xid8, p_low bigint, p_high bigint, c forebay._cursor) returns integer
language sql immutable
as $$
    select case
        when p_newest < pg_snapshot_xmin(f.snap) then -1
        when p_oldest < pg_snapshot_xmax(f.snap) then 0
        when c.snap_to is null or p_oldest >= pg_snapshot_xmax(c.snap_to) then 1
        when c.pos_xid = '0' then case when p_low > c.pos_seq then 1 when p_high <= c.pos_seq and p_newest < pg_snapshot_xmin(c.snap_to) then -1 else 0 end
        when p_low >= c.hi or p_low >= c.lo and (p_oldest > c.pos_xid or p_oldest = p_newest and p_oldest = c.pos_xid and p_low > c.pos_seq) then 1
        when p_newest < pg_snapshot_xmin(c.snap_to)
             and (p_high < c.lo or p_high < c.hi and (p_newest < c.pos_xid or p_oldest = p_newest and p_newest = c.pos_xid and p_high <= c.pos_seq)) then -1
        else 0 end
    from (select coalesce(c.snap_from, c.start) as snap) f
$$;


-- Jobs that were cancelled or replaced and that no claim has passed, in the caller's snapshot: in front of cursors, and parked for their limit key.
--
-- Invariant "flat cost": a thousand rows count as one, unless a cursor is among them, another row of the table overlaps them, or they have
-- limit keys. Such rows are compared one by one, and each counts once.
create function forebay._cancelled_ahead(p_queues text[])
returns table (queue text, group_id bigint, priority integer, kind text, tag text, jobs bigint, parked bigint)
language plpgsql stable
-- planner: in order
as $$
#variable_conflict use_column
begin
    if pg_sequence_last_value('forebay.tombstone_seq') is null then
        return;
    end if;
    return query
    with found as materialized (
        select p.queue, p.group_id, p.priority, p.lane, p.cursor, e.kind, e.tag, e.limit_key, e.jobs, e.low, e.high, e.xids, e.seqs,
               forebay._side_of(e.oldest, e.newest, e.low, e.high, p.cursor) as side
        from forebay._cancelled_places(p_queues) p
        cross join lateral (select i.* from forebay.counter_cancelled i
                            where i.queue = p.queue and i.lane = p.lane and (i.group_id is null or i.group_id = p.group_id) offset 0) e
    ), entry as materialized (
        select f.*, coalesce(max(f.high) over (o rows between unbounded preceding and 1 preceding) >= f.low, false)
                    or coalesce(min(f.low) over (o rows between 1 following and unbounded following) <= f.high, false) as is_overlapped
        from found f
        where f.side >= 0 or f.limit_key is not null
        window o as (partition by f.group_id, f.lane, f.kind, f.tag, f.limit_key order by f.low, f.high)
    ), parked as materialized (
        select a.group_id, a.limit_key, a.lane, a.xid, a.after, a.seq_to from forebay._all_limit_parked() a
        where (select bool_or(e.limit_key is not null and e.side < 1) from entry e)
    ), each as (
        select e.queue, e.group_id, e.priority, e.kind, e.tag, u.seq, not forebay._is_behind(u.xid, u.seq, e.cursor) as is_ahead,
               e.limit_key is not null
               and exists (select from parked p
                           where p.group_id = e.group_id and p.limit_key = e.limit_key and p.lane = e.lane and p.xid = u.xid
                             and u.seq > p.after and u.seq <= p.seq_to) as is_parked
        from entry e cross join lateral unnest(e.xids, e.seqs) u (xid, seq)
        where e.side < 1 or e.is_overlapped
    )
    select n.queue, n.group_id, n.priority, n.kind, n.tag, sum(n.jobs)::bigint, sum(n.parked)::bigint
    from (select e.queue, e.group_id, e.priority, e.kind, e.tag, e.jobs::bigint as jobs, 0::bigint as parked
          from entry e where e.side = 1 and not e.is_overlapped
          union all
          select e.queue, e.group_id, e.priority, e.kind, e.tag, count(distinct e.seq) filter (where e.is_ahead),
                 count(distinct e.seq) filter (where not e.is_ahead and e.is_parked)
          from each e group by 1, 2, 3, 4, 5) n
    group by n.queue, n.group_id, n.priority, n.kind, n.tag
    having sum(n.jobs + n.parked) > 0;
end
$$;


-- Delete what every group has passed, and what no group reads any more.
create function forebay._trim_cancelled(p_most integer) returns bigint
language plpgsql volatile
-- planner: in order
as $$
declare
    v_gone bigint;
begin
    with place as materialized (
        select p.* from forebay._cancelled_places(null) p
    ), parked as materialized (
        select a.* from forebay._all_limit_parked() a where exists (select from forebay.counter_cancelled e where e.limit_key is not null)
    )
    delete from forebay.counter_cancelled c
    where c.ctid = any (array(
        select e.ctid from forebay.counter_cancelled e
        where not exists (
            select from place p
            where p.queue = e.queue and p.lane = e.lane and (e.group_id is null or e.group_id = p.group_id)
              and (forebay._side_of(e.oldest, e.newest, e.low, e.high, p.cursor) >= 0
                   or e.limit_key is not null
                      and exists (select from parked a
                                  where a.group_id = p.group_id and a.limit_key = e.limit_key and a.lane = e.lane and a.xid between e.oldest and e.newest
                                    and a.after < e.high and a.seq_to >= e.low)))
        limit p_most));
    get diagnostics v_gone = row_count;
    return v_gone;
end
$$;
