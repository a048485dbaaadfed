-- Record that the caller's transaction cancels or replaces jobs of some queues, before it looks for their rows. p_seen: its snapshot when it
-- began to; null: this one.
--
-- Invariant "crossings are found": of a cancellation and a new row of its job that do not see each other, the one that becomes visible last
-- finds the other. What writes a row draws its transaction id before it looks for cancellations, so it is in progress when a cancellation
-- that it misses is committed. See docs/design/backpressure.md.
create function forebay._record_crossing(p_queues text[], p_seen pg_snapshot default null) returns void
language sql volatile
as $$
    insert into forebay.counter_crossing (queue, seen)
    select u.queue, coalesce(p_seen, forebay._snapshot_of_others()) from (select distinct i as queue from unnest(p_queues) i) u
$$;


-- The same for rows that this transaction has written, if its snapshot may be older than its transaction id, and than cancellations.
create function forebay._record_old_snapshot(p_lanes bigint[]) returns void
language plpgsql volatile
-- planner: indexed
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform forebay._record_crossing(array(
            select l.queue from unnest(p_lanes) u (lane) cross join lateral (select i.queue from forebay.lane i where i.lane = u.lane limit 1) l));
    end if;
end
$$;


-- A snapshot that shows nothing that one of some snapshots does not.
create function forebay._oldest_snapshot(p_snaps pg_snapshot[]) returns pg_snapshot
language sql immutable
as $$
    select (coalesce(min(x.xid), e.xmax) || ':' || e.xmax || ':' || coalesce(string_agg(x.xid::text, ',' order by x.xid), ''))::pg_snapshot
    from (select min(pg_snapshot_xmax(s)) as xmax from unnest(p_snaps) s) e
    left join lateral (select distinct i as xid from unnest(p_snaps) s cross join lateral pg_snapshot_xip(s) i where i < e.xmax) x on true
    group by e.xmax
$$;


-- The queues of cancellations that were committed since rows and cancellations were compared last, and what these have seen.
create function forebay._new_crossings(p_queues text[]) returns table (queue text, seen pg_snapshot)
language sql stable
-- planner: in order
as $$
    select c.queue, forebay._oldest_snapshot(array_agg(c.seen))
    from (select coalesce((select i.snap from forebay.counter_crossed i order by i.no desc limit 1), '1:1:') as snap) s
    cross join lateral unnest(forebay._xid_ranges(s.snap, pg_current_snapshot()) || forebay._own_xid_range()) r
    cross join lateral (select i.queue, i.seen from forebay.counter_crossing i where i.xid >= r.low and i.xid < r.high offset 0) c
    where p_queues is null or c.queue = any (p_queues)
    group by c.queue
$$;


-- May a job be cancelled whose row is not noted, or whose deferred row is not withdrawn? It walks over no act that is over.
create function forebay._has_crossings() returns boolean
language sql stable
-- planner: in order
as $$
    select coalesce((select i.queues <> '{}' from forebay.counter_crossed i order by i.no desc limit 1), false)
           or exists (select from forebay._new_crossings(null))
$$;


-- What has to be compared: in queues with new cancellations, the rows that these have not seen; in queues with cancellations that are not
-- over, the rows of transactions that were in progress at the last comparison and have ended since.
--
-- Invariant "flat cost": no row is compared twice with the same cancellation, however long a transaction stays open.
create function forebay._crossing_ranges(p_queues text[]) returns forebay._crossing_range[]
language plpgsql stable
-- planner: in order
as $$
declare
    v_now  constant pg_snapshot := pg_current_snapshot();
    v_last forebay.counter_crossed;
begin
    if pg_sequence_last_value('forebay.tombstone_seq') is null then
        return '{}';
    end if;
    select c.* into v_last from forebay.counter_crossed c order by c.no desc limit 1;
    return array(
        select distinct row(l.queue, l.lane, l.audience, l.priority, r.low, r.high)::forebay._crossing_range
        from (select n.queue, i.low, i.high
              from forebay._new_crossings(p_queues) n
              cross join lateral unnest(forebay._xid_ranges(n.seen, v_now) || forebay._own_xid_range()) i
              union all
              select q, i.low, least(i.high, v_last.up_to)
              from unnest(v_last.queues) q
              cross join lateral unnest(forebay._xid_ranges(v_last.snap, v_now)) i
              where i.low < v_last.up_to and (p_queues is null or q = any (p_queues))) r
        cross join lateral (select i.queue, i.lane, i.audience, i.priority from forebay.lane i where i.queue = r.queue offset 0) l);
end
$$;


-- Rows of the log in these ranges whose jobs are cancelled or replaced, as rows of forebay.counter_cancelled. Only later rows of a job: who
-- cancels a job sees its first one. Some may have been noted.
create function forebay._crossed_rows(p_ranges forebay._crossing_range[]) returns setof forebay.counter_cancelled
language plpgsql stable
-- planner: in order
as $$
declare
    v_oldest constant xid8 := (select min(r.low) from unnest(p_ranges) r);
    v_sql    text;
begin
    if v_oldest is null then
        return;
    end if;
    select string_agg(format(
        'select r.queue, r.lane, i.xid, i.seq, i.job_id, i.kind, i.tag, i.limit_key
         from unnest($1) r
         cross join lateral (select j.* from forebay.log_%s j
                             where j.lane = r.lane and j.xid >= r.low and j.xid < r.high and j.job_id is not null and j.kind <> '''' offset 0) i',
        s.segment_id), ' union all ')
    into v_sql
    from forebay.segment s left join forebay.seal f using (segment_id)
    where s.removed_at is null and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0) and s.lo >= forebay._archived_below()
      and (f.xid is null or f.xid > v_oldest) and forebay._has_table(s.segment_id);
    if v_sql is null then
        return;
    end if;
    return query execute
        'select u.queue, u.lane, g.group_id, u.kind, u.tag, case when u.lane & 1 = 1 then u.limit_key end, 1, u.seq, u.seq, u.xid, u.xid,
                array[u.xid], array[u.seq]
         from (' || v_sql || ') u
         cross join lateral (select distinct i.group_id
                             from (select t.group_id from forebay.tombstone t where t.job_id = u.job_id and t.reason in (''c'', ''r'') offset 0) i) t
         cross join lateral forebay._groups_of_row(u.lane, u.seq, u.job_id, t.group_id) g' using p_ranges;
end
$$;


-- The same for rows of deferred that wait, as rows of forebay.withdrawn.
create function forebay._crossed_deferred(p_ranges forebay._crossing_range[]) returns setof forebay.withdrawn
language plpgsql stable
-- planner: in order
as $$
declare
    v_position forebay.promotion;
begin
    if cardinality(p_ranges) = 0 then
        return;
    end if;
    select p.* into v_position from forebay.promotion p order by p.no desc limit 1;
    return query
    select distinct d.xid, r.queue, r.priority, r.audience, t.group_id, forebay._state_of_deferred(d.attempt, d.pauses), d.xid, d.run_at, d.deferred_id,
           d.kind, d.tag
    from unnest(p_ranges) r
    cross join lateral (
        select i.* from forebay.deferred i
        where i.lane = r.lane and i.xid >= r.low and i.xid < r.high and i.job_id > 0
          and (pg_visible_in_snapshot(i.xid, v_position.snap) and (i.run_at, i.deferred_id) <= (v_position.run_at, v_position.deferred_id)) is not true
        offset 0) d
    cross join lateral (select i.group_id from forebay.tombstone i where i.job_id = d.job_id and i.reason in ('c', 'r') offset 0) t
    where t.group_id is null or r.audience in (0, t.group_id, -t.group_id);
end
$$;


-- Rows that were moved or expired in these ranges: a note of them does not count for that group.
create function forebay._crossed_left(p_ranges forebay._crossing_range[]) returns setof forebay.counter_left
language sql stable
-- planner: in order
as $$
    select i.* from (select distinct r.queue, r.low, r.high from unnest(p_ranges) r) r
    cross join lateral (select l.* from forebay.counter_left l where l.xid >= r.low and l.xid < r.high and l.queue = r.queue offset 0) i
$$;


-- Note what a read would find, and how far rows and cancellations are compared. Under the lock of the counters.
create function forebay._note_crossed() returns void
language plpgsql volatile
-- planner: in order
as $$
declare
    v_last  forebay.counter_crossed;
    v_up_to xid8;
    v_found record;
    v_group record;
begin
    -- Its number, drawn below, has to be above those of all transactions that the comparison does not see.
    if pg_current_xact_id_if_assigned() is not null then
        return;
    end if;
    select c.* into v_last from forebay.counter_crossed c order by c.no desc limit 1;
    if not forebay._has_crossings()
       and not exists (select from unnest(forebay._xid_ranges(coalesce(v_last.snap, '1:1:'), pg_current_snapshot())) r
                       cross join lateral (select from forebay.counter_left i where i.xid >= r.low and i.xid < r.high limit 1) l) then
        return;
    end if;
    -- In one snapshot.
    select pg_current_snapshot() as snap, array(select c from forebay._crossed_rows(r.ranges) c) as rows,
           array(select d from forebay._crossed_deferred(r.ranges) d) as deferred,
           array(select l from forebay._crossed_left(r.ranges) l) as gone
    into v_found from (select forebay._crossing_ranges(null) as ranges offset 0) r;
    v_up_to := pg_current_xact_id();
    insert into forebay.counter_cancelled (queue, lane, group_id, kind, tag, limit_key, jobs, low, high, oldest, newest, xids, seqs)
    select r.queue, r.lane, r.group_id, r.kind, r.tag, r.limit_key, count(*), min(r.low), max(r.low), min(r.oldest), max(r.oldest),
           array_agg(r.oldest order by r.low), array_agg(r.low order by r.low)
    from (select i.*, (row_number() over (partition by i.lane, i.group_id, i.kind, i.tag, i.limit_key order by i.low) - 1) / 1000 as part
          from (select distinct u.* from unnest(v_found.rows) u) i) r
    group by r.queue, r.lane, r.group_id, r.kind, r.tag, r.limit_key, r.part;
    insert into forebay.withdrawn (queue, priority, audience, group_id, state, row_xid, run_at, deferred_id, kind, tag)
    select d.queue, d.priority, d.audience, d.group_id, d.state, d.row_xid, d.run_at, d.deferred_id, d.kind, d.tag from unnest(v_found.deferred) d;
    -- Note again the rows beside those that have left, and these for other groups.
    for v_group in
        with old as (
            delete from forebay.counter_cancelled c using unnest(v_found.gone) l
            where c.queue = l.queue and c.lane = l.lane and c.low <= l.seq and l.seq = any (c.seqs) and (c.group_id is null or c.group_id = l.group_id)
            returning c.group_id, c.lane, c.xids, c.seqs
        )
        select o.group_id, array_agg(o.lane) as lanes, array_agg(u.xid) as xids, array_agg(u.seq) as seqs
        from old o cross join lateral unnest(o.xids, o.seqs) u (xid, seq) group by o.group_id
    loop
        perform forebay._note_cancelled(v_group.lanes, v_group.xids, v_group.seqs, v_group.group_id);
    end loop;

    if pg_snapshot_xmin(v_found.snap) >= v_last.until then
        delete from forebay.counter_crossing c where c.xid >= v_last.low and pg_visible_in_snapshot(c.xid, v_last.waits);
        delete from forebay.counter_left l where l.xid >= v_last.low and pg_visible_in_snapshot(l.xid, v_last.waits);
        v_last.low := pg_snapshot_xmin(v_last.waits);
        v_last.until := null;
    end if;
    v_last.low := coalesce(v_last.low, '0');
    insert into forebay.counter_crossed (no, snap, up_to, waits, until, low, queues)
    values (coalesce(v_last.no, 0) + 1, v_found.snap, v_up_to, case when v_last.until is null then v_found.snap else v_last.waits end,
            coalesce(v_last.until, v_up_to), v_last.low,
            array(select c.queue from forebay.counter_crossing c where c.xid >= v_last.low and pg_visible_in_snapshot(c.xid, v_found.snap)
                  union
                  select l.queue from forebay.counter_left l where l.xid >= v_last.low and pg_visible_in_snapshot(l.xid, v_found.snap)));
    delete from forebay.counter_crossed c where c.no <= v_last.no;
end
$$;
