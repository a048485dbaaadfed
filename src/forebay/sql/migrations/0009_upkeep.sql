-- Upkeep: expiry where nobody claims, retention, and removal of what lies behind the cursors.


-- Expire jobs that nobody claims; returns how many.
--
-- Two kinds of place: jobs with an expiry of their own anywhere (a tombstone, which the claim later reads), and expired
-- jobs at the head of a lane (the cursor moves over them). Each under the lane's key, so that a claim and the
-- sweep never both decide. Bounded: p_most jobs of the first kind, p_most a lane of the second in p_lanes lanes, in
-- random order. When p_most or more came back, there may be more: call it again with the same p_since.
--
-- Parameters: p_since, look at expiries after this time only (the last pass that was not cut short, with an overlap);
--   null: all. p_most, p_lanes, at least 1.
-- Errors: JQ001 a bad number, JQ012 not called alone, JQ030 foreign cluster.
create function forebay.sweep_v1(p_since timestamptz default null, p_most integer default 1000, p_lanes integer default 50)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '1s'
as $$
declare
    v_queue   text;
    v_place   record;
    v_segment bigint;
    v_row     record;
    v_before  bigint;
    v_count   bigint := 0;
    v_at      constant timestamptz := forebay._now();
    v_rows       forebay.log[] := '{}';
    v_groups     bigint[] := '{}';
    v_queues     text[] := '{}';
    v_priorities integer[] := '{}';
    v_audiences  bigint[] := '{}';
    v_starts     pg_snapshot[] := '{}';
begin
    if (p_most >= 1 and p_lanes >= 1) is not true then
        raise exception using errcode = 'JQ001',
            message = format('a sweep of %s jobs in %s lanes does nothing', coalesce(p_most::text, 'null'), coalesce(p_lanes::text, 'null'));
    end if;
    perform forebay._require_alone('forebay.sweep_v1()');
    perform forebay._require_home();
    if not pg_try_advisory_xact_lock(forebay._lock_class(), 3) then
        return 0;
    end if;
    -- A queue that no worker ever served has no group yet; its jobs expire for the default one.
    for v_queue in
        select distinct l.queue from forebay.lane l
        where not exists (select from forebay.queue_group g where g.queue = l.queue)
    loop
        perform forebay.open_group(v_queue);
    end loop;

    -- First all that is to be looked for, then the locks: claims must not wait for the search.
    for v_segment in
        select s.segment_id from forebay.segment s
        where s.removed_at is null and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)
          and s.lo >= forebay._archived_below()
        order by s.segment_id
    loop
        for v_row in execute format(
            'select row(l.*)::forebay.log as r, p.group_id, p.queue, p.priority, p.audience, p.start_after
             from (select * from forebay.log_%s x where x.expires_at <= $1 and x.expires_at > $2 offset 0) l
             join (select g.group_id, g.queue, g.start_after, i.lane, i.priority, i.audience, c.*
                   from forebay.queue_group g
                   join lateral (select distinct j.lane, j.priority, j.audience from forebay.lane j
                                 where j.queue = g.queue and j.audience in (0, g.group_id, -g.group_id)) i on true
                   left join lateral (select b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq
                                      from forebay.batch b left join forebay.segment s on s.segment_id = b.pos_segment
                                      where b.group_id = g.group_id and b.lane = i.lane order by b.no desc limit 1) c on true
                   offset 0) p on p.lane = l.lane
             where (p.snap_from is not null or p.audience <> 0 or not pg_visible_in_snapshot(l.xid, p.start_after))
               and (p.snap_from is null
                    or not forebay._is_consumed(l.xid, l.seq, p.snap_from, p.snap_to, p.lo, p.hi, p.pos_xid, p.pos_seq))
               and not exists (select from forebay.tombstone t
                               where t.job_id = coalesce(l.job_id, l.seq) and t.reason <> ''k''
                                 and (t.group_id is null or t.group_id = p.group_id))
             limit $3', v_segment)
            using v_at, coalesce(p_since, '-infinity'), p_most - cardinality(v_rows)
        loop
            v_rows := v_rows || v_row.r;
            v_groups := v_groups || v_row.group_id;
            v_queues := v_queues || v_row.queue;
            v_priorities := v_priorities || v_row.priority;
            v_audiences := v_audiences || v_row.audience;
            v_starts := v_starts || v_row.start_after;
        end loop;
        exit when cardinality(v_rows) >= p_most;
    end loop;
    for v_nr in 1 .. cardinality(v_rows) loop
        v_count := v_count + forebay._expire_one(
            v_rows[v_nr], v_groups[v_nr], v_queues[v_nr], v_priorities[v_nr], v_audiences[v_nr], v_starts[v_nr]);
    end loop;

    for v_place in
        select g.group_id, l.lane
        from forebay.queue_group g
        join lateral (select distinct i.lane, i.audience from forebay.lane i
                      where i.queue = g.queue and i.audience in (0, g.group_id, -g.group_id) and i.part >= 0) l on true
        left join lateral (select b.claimed_at from forebay.batch b
                           where b.group_id = g.group_id and b.lane = l.lane order by b.no desc limit 1) c on true
        where c.claimed_at is null or c.claimed_at < v_at - interval '5 seconds'
        order by random()
        limit p_lanes
    loop
        select coalesce(max(b.skipped_total), 0) into v_before
        from (select i.skipped_total from forebay.batch i
              where i.group_id = v_place.group_id and i.lane = v_place.lane order by i.no desc limit 1) b;
        perform forebay._take(null, null, null, v_place.group_id, v_place.lane, p_most, true);
        select v_count + coalesce(max(b.skipped_total), 0) - v_before into v_count
        from (select i.skipped_total from forebay.batch i
              where i.group_id = v_place.group_id and i.lane = v_place.lane order by i.no desc limit 1) b;
    end loop;

    return v_count;
end
$$;


-- Expire one job of a group under its lane's key, unless the cursor has passed it; returns 1 or 0.
create function forebay._expire_one(
    p_row forebay.log, p_group_id bigint, p_queue text, p_priority integer, p_audience bigint, p_start_after pg_snapshot)
returns integer
language plpgsql volatile
as $$
declare
    v_cur record;
begin
    perform pg_advisory_xact_lock(forebay._lock_class(), hashint8(p_group_id # p_row.lane));
    select b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq into v_cur
    from forebay.batch b left join forebay.segment s on s.segment_id = b.pos_segment
    where b.group_id = p_group_id and b.lane = p_row.lane order by b.no desc limit 1;
    if v_cur.snap_from is null then
        if p_audience = 0 and pg_visible_in_snapshot(p_row.xid, p_start_after) then
            return 0;
        end if;
    elsif forebay._is_consumed(p_row.xid, p_row.seq, v_cur.snap_from, v_cur.snap_to, v_cur.lo, v_cur.hi, v_cur.pos_xid, v_cur.pos_seq) then
        return 0;
    end if;
    insert into forebay.tombstone (job_id, group_id, reason, noted_at, enqueued_at)
    values (coalesce(p_row.job_id, p_row.seq), p_group_id, 'e', forebay._now(), p_row.enqueued_at);
    perform forebay._bury(p_group_id, p_queue, p_priority, p_row, 'expired', coalesce(p_row.attempt, 0));
    return 1;
end
$$;


-- Why a sealed segment cannot be emptied yet, or null when every job in it is settled for every group.
create function forebay._segment_held_by(p_segment_id bigint) returns text
language plpgsql volatile
as $$
declare
    v_lo   bigint;
    v_hi   bigint;
    v_seal xid8;
    v_lane record;
    v_any  boolean;
    v_open record;
begin
    select s.lo, s.hi, f.xid into v_lo, v_hi, v_seal
    from forebay.segment s join forebay.seal f using (segment_id) where s.segment_id = p_segment_id;
    -- Whoever wrote to it has ended: the later statements see all its rows, and no new one can come.
    if pg_snapshot_xmin(pg_current_snapshot()) < v_seal then
        return 'a transaction that may have written to it is still open';
    end if;
    for v_lane in
        select l.lane, l.queue, l.priority, g.group_id, g.name
        from (select distinct i.lane, i.queue, i.priority, i.audience from forebay.lane i) l
        left join forebay.queue_group g on g.queue = l.queue and (l.audience = 0 or g.group_id = abs(l.audience))
        left join lateral (select b.snap_from from forebay.batch b
                           where b.group_id = g.group_id and b.lane = l.lane order by b.no desc limit 1) c on true
        where c.snap_from is null or pg_snapshot_xmin(c.snap_from) < v_seal
    loop
        execute format('select exists (select from forebay.log_%s l where l.lane = $1)', p_segment_id)
            into v_any using v_lane.lane;
        if v_any then
            return format('queue %s, priority %s: group %s has not passed it', v_lane.queue, v_lane.priority, coalesce(v_lane.name, 'default'));
        end if;
    end loop;
    select e.worker, b.claim_no into v_open
    from forebay.lease e
    join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f on true
    join forebay.batch b on b.lease_id = e.lease_id and b.claim_no >= f.floor
    where e.closed_at is null
      and exists (select from unnest(b.seqs) with ordinality u (seq, nr)
                  where u.seq >= v_lo and u.seq < v_hi
                    and not exists (select from forebay.settlement s
                                    where s.lease_id = b.lease_id and s.claim_no = b.claim_no
                                      and (s.offsets is null or u.nr::smallint = any (s.offsets))))
    limit 1;
    if found then
        return format('worker %s still has jobs of it', v_open.worker);
    end if;
    if pg_sequence_last_value('forebay.key_seq') is not null
       and exists (select from forebay._all_parked() p where p.seq >= v_lo and p.seq < v_hi) then
        return 'jobs of it wait for their ordering key';
    end if;
    return null;
end
$$;


-- Why a sealed segment cannot be emptied yet; null when it can, or when it is not sealed.
--
-- Reads the segment's rows, and tells only whose they are.
create function forebay.segment_held_by(segment_id bigint) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    if not exists (select from forebay.seal f where f.segment_id = segment_held_by.segment_id) then
        return null;
    end if;
    return forebay._segment_held_by(segment_held_by.segment_id);
end
$$;


-- Empty the oldest segment that may go, if there is one; returns its number, or null.
--
-- Sealed longer ago than retention_days, or beyond retention_bytes in total; never one with an unsettled job.
-- TRUNCATE of the leaf under a short lock_timeout: it waits only for those who touched this very leaf, and
-- nobody waits for it. The empty table stays in its place; nothing is detached.
--
-- Errors: 55P03 when somebody holds a lock on the segment, try again; JQ030 foreign cluster.
-- Locks: the maintenance key, ACCESS EXCLUSIVE on the leaf.
create function forebay.retain_v1() returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
    v_segment record;
    v_total   numeric;
    v_days    bigint := forebay._setting_value('retention_days');
    v_bytes   bigint := forebay._setting_value('retention_bytes');
begin
    perform forebay._require_home();
    if not pg_try_advisory_xact_lock(forebay._lock_class(), 4) then
        return null;
    end if;
    select sum(pg_total_relation_size(format('forebay.log_%s', s.segment_id)::regclass)) into v_total
    from forebay.segment s where s.removed_at is null and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    for v_segment in
        select s.segment_id, f.sealed_at from forebay.segment s join forebay.seal f using (segment_id)
        where s.removed_at is null
        order by s.segment_id
    loop
        continue when v_segment.sealed_at > forebay._now() - make_interval(days => v_days::integer) and v_total <= v_bytes;
        continue when forebay._segment_held_by(v_segment.segment_id) is not null;
        execute format('truncate forebay.log_%s', v_segment.segment_id);
        update forebay.segment s set removed_at = forebay._now() where s.segment_id = v_segment.segment_id;
        return v_segment.segment_id;
    end loop;
    return null;
end
$$;


-- Bring the block index on numbers up to date for the segments in use; returns how many page ranges were added.
--
-- That index finds a job by its id. It learns about new pages only when it is told to, and reads those it does not
-- know about from end to end.
--
-- Errors: 55P03 when somebody holds a lock on the segment, try again.
-- Locks: the maintenance key; SHARE UPDATE EXCLUSIVE on the segment.
create function forebay.summarize_v1() returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
    v_segment bigint;
    v_added   integer := 0;
begin
    if not pg_try_advisory_xact_lock(forebay._lock_class(), 6) then
        return 0;
    end if;
    for v_segment in
        select s.segment_id from forebay.segment s
        where s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0) and s.removed_at is null
        order by s.lo desc limit 3
    loop
        v_added := v_added + brin_summarize_new_values(format('forebay.log_%s_seq_idx', v_segment)::regclass);
    end loop;
    return v_added;
end
$$;


-- Does a job still wait, run or lie ahead of a cursor, for any group?
create function forebay._is_unfinished(p_job_id bigint) returns boolean
language sql stable
as $$
    select exists (select from forebay.deferred d where d.job_id = p_job_id)
        or exists (
            select from forebay._rows_of(p_job_id) r
            join lateral (select l.queue, l.audience from forebay.lane l where l.lane = r.lane limit 1) i on true
            left join forebay.queue_group g on g.queue = i.queue and (i.audience = 0 or abs(i.audience) = g.group_id)
            left join lateral (select b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq
                               from forebay.batch b left join forebay.segment s on s.segment_id = b.pos_segment
                               where b.group_id = g.group_id and b.lane = r.lane order by b.no desc limit 1) c on true
            where r.seq >= forebay._archived_below()
              and (c.snap_from is null
                   or not forebay._is_consumed(r.xid, r.seq, c.snap_from, c.snap_to, c.lo, c.hi, c.pos_xid, c.pos_seq)))
        or exists (select from forebay.job(p_job_id) j where j.state = 'leased')
$$;


-- Delete what lies behind: promoted deferred rows, old heartbeats and acts of the guard, and batches, settlements, leases
-- and failures whose segments are gone. Returns how many rows. Never the newest row of a cursor, never an open batch.
--
-- Invariant "flat cost": while somebody holds a snapshot, deleted rows stay in the indexes, and lie in front of what is to
-- be deleted next. So each call goes on with deferred rows where the last one stopped, and everything else waits for a pass,
-- every ten minutes; once an hour that takes deferred rows from the beginning, for those that a late commit, or a call that
-- was undone, left behind.
--
-- Parameters: p_most, about how many rows of a kind in this call; p_pass, make a pass now: from the beginning, and of
--   everything. Null: when it is due.
-- Errors: JQ030 foreign cluster.
create function forebay.trim_v1(p_most integer default 20000, p_pass boolean default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '1s'
as $$
declare
    v_now    constant timestamptz := forebay._now();
    v_second constant bigint := extract(epoch from v_now);
    v_last   bigint;
    v_pass   boolean;
    v_rows   bigint;
    v_total  bigint;
begin
    perform forebay._require_home();
    if not pg_try_advisory_xact_lock(forebay._lock_class(), 5) then
        return 0;
    end if;
    v_last := coalesce(pg_sequence_last_value('forebay.trim_pass_seq'), 0);
    v_pass := coalesce(p_pass, v_last <= v_second - 600);
    v_total := forebay._trim_deferred(p_most, v_pass and coalesce(p_pass, v_last / 3600 < v_second / 3600));
    if v_pass then
        v_rows := forebay._trim_turns(p_most) + forebay._trim_batches(p_most) + forebay._trim_gates(null);
        v_total := v_total + v_rows + forebay._trim_by_age() + forebay._trim_keys(p_most);
        if v_rows < p_most then
            perform setval('forebay.trim_pass_seq', v_second);
        end if;
    end if;
    return v_total;
end
$$;


-- Promoted rows, from the mark on or from the beginning, and the promoter's old cursors.
create function forebay._trim_deferred(p_most integer, p_from_the_beginning boolean) returns bigint
language plpgsql volatile
as $$
declare
    v_cursor forebay.promotion;
    v_from   timestamptz := '-infinity';
    v_gone   timestamptz;
    v_rows   bigint;
begin
    select * into v_cursor from forebay.promotion p order by p.no desc limit 1;
    if not found then
        return 0;
    end if;
    if not p_from_the_beginning then
        v_from := to_timestamp(coalesce(pg_sequence_last_value('forebay.trim_mark_seq'), 0) / 1000000.0);
    end if;
    with gone as (
        delete from forebay.deferred d
        where d.ctid = any (array(
            select i.ctid from forebay.deferred i
            where (i.run_at, i.deferred_id) <= (v_cursor.run_at, v_cursor.deferred_id)
              and i.run_at >= v_from
              and pg_visible_in_snapshot(i.xid, v_cursor.snap)
            order by i.run_at, i.deferred_id limit p_most))
        returning d.run_at)
    select count(*), max(g.run_at) into v_rows, v_gone from gone g;
    -- Just below: of what is as old as the mark, some may be left.
    perform setval('forebay.trim_mark_seq', greatest(
        1, (extract(epoch from case when v_rows < p_most then v_cursor.run_at else v_gone end) * 1000000)::bigint - 1));
    delete from forebay.promotion p
    where p.no < v_cursor.no - 100 and (p_from_the_beginning or p.no >= v_cursor.no - 10000);
    return v_rows;
end
$$;


-- Batches whose jobs left the archive, with their settlements and starts of suspects.
create function forebay._trim_batches(p_most integer) returns bigint
language plpgsql volatile
as $$
declare
    v_first bigint;
    v_lane  record;
    v_rows  bigint;
    v_total bigint := 0;
begin
    select coalesce(min(s.lo), 0) into v_first from forebay.segment s where s.removed_at is null;
    for v_lane in
        select g.group_id, l.lane
        from forebay.queue_group g
        join lateral (select distinct i.lane from forebay.lane i
                      where i.queue = g.queue and i.audience in (0, g.group_id, -g.group_id)) l on true
    loop
        exit when v_total >= p_most;
        -- high_seq rises with no: what can go is at the front, and mostly the first row says that nothing can.
        continue when (select b.high_seq >= v_first from forebay.batch b
                       where b.group_id = v_lane.group_id and b.lane = v_lane.lane order by b.no limit 1) is not false;
        with gone as (
            delete from forebay.batch b
            where b.group_id = v_lane.group_id and b.lane = v_lane.lane and b.high_seq < v_first
              and b.no < (select i.no from forebay.batch i
                          where i.group_id = v_lane.group_id and i.lane = v_lane.lane order by i.no desc limit 1)
              and b.no <= (select i.no from forebay.batch i
                           where i.group_id = v_lane.group_id and i.lane = v_lane.lane order by i.no limit 1) + p_most
              and not exists (select from forebay.lease l where l.lease_id = b.lease_id and l.closed_at is null
                              and b.claim_no >= (select i.floor from forebay.batch i
                                                 where i.lease_id = l.lease_id order by i.claim_no desc limit 1))
              -- A turn that is still there says where its key stands: a job of it goes on, long after its first row has gone.
              and (b.keys is null or not exists (
                  select from unnest(b.keys) k (key)
                  join forebay.key_turn t on t.group_id = b.group_id and t.ordering_key = k.key
                                         and t.lease_id = b.lease_id and t.claim_no = b.claim_no))
            returning b.lease_id, b.claim_no),
        settled as (
            delete from forebay.settlement s using gone g
            where s.lease_id = g.lease_id and s.claim_no = g.claim_no returning 1),
        started as (
            delete from forebay.suspect_start s using gone g
            where s.lease_id = g.lease_id and s.claim_no = g.claim_no returning 1)
        select (select count(*) from gone) + (select count(*) from settled) + (select count(*) from started) into v_rows;
        v_total := v_total + v_rows;
    end loop;
    return v_total;
end
$$;


-- Old heartbeats, closed leases, errors, acts of the guard, and tombstones that nobody can ask for any more.
create function forebay._trim_by_age() returns bigint
language plpgsql volatile
as $$
declare
    v_rows bigint;
    v_days constant bigint := forebay._setting_value('retention_days');
begin
    delete from forebay.heartbeat h
    where h.beat_at < forebay._now() - interval '10 minutes'
      and (exists (select from forebay.heartbeat n where n.lease_id = h.lease_id and n.beat_at > h.beat_at)
           or not exists (select from forebay.lease l where l.lease_id = h.lease_id and l.closed_at is null));
    get diagnostics v_rows = row_count;
    delete from forebay.lease l
    where l.closed_at < forebay._now() - make_interval(days => v_days::integer)
      and not exists (select from forebay.batch b where b.lease_id = l.lease_id);
    -- Errors outlive their jobs' attempts; a tombstone is needed for as long as a claim or a settlement may ask for it.
    delete from forebay.failure f
    where f.failed_at < forebay._now() - make_interval(days => greatest(60, 2 * v_days::integer));
    delete from forebay.guard_event e
    where e.at < forebay._now() - make_interval(days => greatest(60, 2 * v_days::integer));
    delete from forebay.tombstone t
    where t.noted_at < forebay._now() - make_interval(days => 2 * v_days::integer)
      and not forebay._is_unfinished(t.job_id);
    v_rows := v_rows + forebay._trim_results() + forebay._trim_syncs();
    return v_rows;
end
$$;
