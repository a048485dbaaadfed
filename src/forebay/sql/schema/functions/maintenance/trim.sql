-- grant: worker

-- Delete rows of one kind that are no longer needed, one step of about `p_most` rows (1 to
-- 1000000): `rows` is their number, and `next` is `p_after` of the call that continues, or null at
-- the end of the pass. `p_after` null: begin a pass.
--
-- Parts:
--   deferred          promoted rows, from a stored position on
--   late_deferred     promoted rows from the beginning, for rows that a late commit, or a call that
--                     was rolled back, left behind
--   promotions        old cursors of the promoter
--   batches           whose jobs left the archive, with their settlements; never the newest row of
--                     a cursor, never an open batch
--   counts, counters  but the newest of each
--   dead_letters      past the time that forebay.keep_dead() set
--   mirror_counts, subject_counts
--                     which are added up instead
--   published         events past the time for which they are kept
--   occurrences       old decisions of schedules
--   subject_states    superseded a day ago
--   flows             checkpoints of jobs that left the log, and signals that no flow took in 30 days
--   key_runs, limit_runs, limiters, heartbeats, leases, failures, events, guard_events, tombstones, results, progress, mirror_samples, mirror_breakers, mirror_audits, unique_keys, endpoint_activities, replays, breakers
--                     old ones
--
-- Errors: JQ001 an unknown part or a bad number, JQ030.
-- Transaction: any; meant to be autocommitted.
-- Locks: the trimming lock; without it nothing is done, and `next` is null.
--
-- Inside: each part is a pass over one kind of rows, oldest first, in steps: a call looks at about
-- p_most rows, by an index, and begins behind those that earlier calls of the pass looked at. So a
-- call takes as long with a backlog of a million rows as with one of a few thousand, rows that must
-- stay are passed over once in a pass, and a pass visits no rows that it deleted itself. Invariant
-- "flat cost": while a snapshot is held, deleted rows stay in the indexes. A part that fails stops
-- no other part.
-- pages: 60 + 30 a job
create function forebay.trim_v1(p_part text, p_after text default null, p_most integer default 5000, out rows bigint, out next text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
set lock_timeout = '1s'
as $$
begin
    if (p_part = any (forebay._trim_parts()) and p_most between 1 and 1000000) is not true then
        raise exception using errcode = 'JQ001',
            message = format('cannot trim %s rows of %s', coalesce(p_most::text, 'null'), coalesce(quote_literal(p_part), 'null')),
            hint = format('The number is 1 to 1000000, the part one of %s.', array_to_string(forebay._trim_parts(), ', '));
    end if;
    perform forebay._require_same_cluster();
    rows := 0;
    if not forebay._try_lock('trim') then
        return;
    end if;
    execute format('select t.rows, t.next from forebay._trim_%s($1, $2) t', p_part) into rows, next using p_after, p_most;
end
$$;


-- The parts of trimming.
create function forebay._trim_parts() returns text[]
language sql immutable
as $$
    select array[
        'deferred', 'late_deferred', 'promotions', 'batches', 'key_runs', 'limit_runs', 'limiters', 'waiting', 'counters', 'heartbeats', 'leases', 'failures',
        'events', 'guard_events', 'dead_letters', 'tombstones', 'results', 'progress', 'mirror_counts', 'mirror_samples', 'mirror_breakers', 'mirror_audits',
        'unique_keys', 'endpoint_activities', 'published', 'replays', 'occurrences', 'subject_states', 'subject_counts', 'breakers', 'flows']
$$;


-- Delete promoted rows from the stored position on.
create function forebay._trim_deferred(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
-- planner: in order
as $$
declare
    v_cursor forebay.promotion;
    v_from   timestamptz;
    v_gone   timestamptz;
begin
    rows := 0;
    select * into v_cursor from forebay.promotion p order by p.no desc limit 1;
    if not found then
        return;
    end if;
    v_from := to_timestamp(coalesce(pg_sequence_last_value('forebay.trim_position_seq'), 0) / 1000000.0);
    with gone as (
        delete from forebay.deferred d
        where d.ctid = any (array(
            select i.ctid from forebay.deferred i
            where (i.run_at, i.deferred_id) <= (v_cursor.run_at, v_cursor.deferred_id)
              and i.run_at >= v_from
              and pg_visible_in_snapshot(i.xid, v_cursor.snap)
            order by i.run_at, i.deferred_id limit p_most))
        returning d.run_at)
    select count(*), max(g.run_at) into rows, v_gone from gone g;
    if rows = 0 then
        return;
    end if;
    -- Just below: some rows as old as the position may be left.
    perform setval('forebay.trim_position_seq', greatest(
        1, (extract(epoch from case when rows < p_most then v_cursor.run_at else v_gone end) * 1000000)::bigint - 1));
    next := case when rows >= p_most then '[]' end;
end
$$;


-- Delete promoted rows from the beginning on.
create function forebay._trim_late_deferred(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
-- planner: in order
as $$
declare
    v_cursor forebay.promotion;
    v_gone   tid[];
    v_seen   integer;
    v_run_at timestamptz;
    v_id     bigint;
begin
    rows := 0;
    select * into v_cursor from forebay.promotion p order by p.no desc limit 1;
    if not found then
        return;
    end if;
    select array_agg(d.ctid) filter (where d.is_promoted), count(*), max(d.run_at),
           (array_agg(d.deferred_id order by d.run_at desc, d.deferred_id desc))[1]
    into v_gone, v_seen, v_run_at, v_id
    from (select i.ctid, i.run_at, i.deferred_id, pg_visible_in_snapshot(i.xid, v_cursor.snap) as is_promoted
          from forebay.deferred i
          where (i.run_at, i.deferred_id) <= (v_cursor.run_at, v_cursor.deferred_id)
            and (i.run_at, i.deferred_id) > (coalesce((p_after::jsonb ->> 0)::timestamptz, '-infinity'), coalesce((p_after::jsonb ->> 1)::bigint, 0))
          order by i.run_at, i.deferred_id limit p_most) d;
    delete from forebay.deferred d where d.ctid = any (v_gone);
    get diagnostics rows = row_count;
    next := case when v_seen >= p_most then jsonb_build_array(v_run_at, v_id) end;
end
$$;


-- Delete old cursors of the promoter.
create function forebay._trim_promotions(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_no bigint;
begin
    with gone as (
        delete from forebay.promotion p
        where p.no = any (array(
            select o.no from forebay.promotion o
            where o.no < (select n.no from forebay.promotion n order by n.no desc limit 1) - 100
              and o.no > coalesce((p_after::jsonb ->> 0)::bigint, 0)
            order by o.no limit p_most))
        returning p.no)
    select count(*), max(g.no) into rows, v_no from gone g;
    next := case when rows >= p_most then jsonb_build_array(v_no) end;
end
$$;


-- Delete batches whose jobs left the archive, with their settlements and starts of suspects.
create function forebay._trim_batches(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_first  bigint;
    v_lane   record;
    v_group  bigint := coalesce((p_after::jsonb ->> 0)::bigint, -9223372036854775808);
    v_at     bigint := coalesce((p_after::jsonb ->> 1)::bigint, -9223372036854775808);
    v_no     bigint := coalesce((p_after::jsonb ->> 2)::bigint, 0);
    v_left   bigint := p_most;
    v_end    bigint;
    v_gone   bigint;
begin
    rows := 0;
    select coalesce(min(s.lo), 0) into v_first from forebay.segment s where s.removed_at is null;
    while v_left > 0 loop
        select b.group_id, b.lane, b.no, b.high_seq into v_lane from forebay.batch b
        where (b.group_id, b.lane, b.no) > (v_group, v_at, v_no) order by b.group_id, b.lane, b.no limit 1;
        if not found then
            return;
        end if;
        v_left := v_left - 1;
        v_group := v_lane.group_id;
        v_at := v_lane.lane;
        select i.no into v_end from forebay.batch i
        where i.group_id = v_group and i.lane = v_at order by i.no desc limit 1;
        -- high_seq rises with no: mostly the first row of a lane shows that there is nothing to delete.
        if v_lane.no >= v_end or v_lane.high_seq >= v_first then
            v_no := 9223372036854775807;
            continue;
        end if;
        v_end := least(v_end, v_lane.no + v_left + 1);
        with gone as (
            delete from forebay.batch b
            where b.group_id = v_group and b.lane = v_at and b.no >= v_lane.no and b.no < v_end and b.high_seq < v_first
              and not exists (select from forebay.lease l where l.lease_id = b.lease_id and l.closed_at is null
                              and b.claim_no >= (select i.floor from forebay.batch i
                                                 where i.lease_id = l.lease_id order by i.claim_no desc limit 1))
              -- A key run that still exists has the state of its key: a job of it may run long after its first row has gone.
              and (b.keys is null or not exists (
                  select from unnest(b.keys) k (key)
                  join forebay.key_run t on t.group_id = b.group_id and t.ordering_key = k.key
                                         and t.lease_id = b.lease_id and t.claim_no = b.claim_no))
            returning b.lease_id, b.claim_no),
        settled as (
            delete from forebay.settlement s using gone g
            where s.lease_id = g.lease_id and s.claim_no = g.claim_no returning 1),
        started as (
            delete from forebay.suspect_start s using gone g
            where s.lease_id = g.lease_id and s.claim_no = g.claim_no returning 1)
        select (select count(*) from gone) + (select count(*) from settled) + (select count(*) from started) into v_gone;
        rows := rows + v_gone;
        v_left := v_left - (v_end - v_lane.no);
        v_no := v_end - 1;
    end loop;
    next := jsonb_build_array(v_group, v_at, v_no);
end
$$;


-- Delete heartbeats older than ten minutes, but not the newest of an open lease; and those from before the clock was set back.
create function forebay._trim_heartbeats(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_now    constant timestamptz := forebay._now();
    v_lease  bigint := coalesce((p_after::jsonb ->> 0)::bigint, -9223372036854775808);
    v_next   bigint;
    v_before timestamptz;
    v_left   bigint := p_most;
    v_gone   bigint;
begin
    rows := 0;
    loop
        select h.lease_id into v_next from forebay.heartbeat h where h.lease_id > v_lease order by h.lease_id limit 1;
        if not found then
            return;
        end if;
        v_before := v_now - interval '10 minutes';
        if exists (select from forebay.lease l where l.lease_id = v_next and l.closed_at is null) then
            v_before := least(v_before, (select h.heartbeat_at from forebay.heartbeat h
                                         where h.lease_id = v_next and h.heartbeat_at <= v_now + interval '1 minute'
                                         order by h.heartbeat_at desc limit 1));
        end if;
        delete from forebay.heartbeat h
        where h.ctid = any (array(
            select o.ctid from forebay.heartbeat o
            where o.lease_id = v_next and (o.heartbeat_at < v_before or o.heartbeat_at > v_now + interval '1 minute')
            order by o.heartbeat_at desc limit v_left));
        get diagnostics v_gone = row_count;
        rows := rows + v_gone;
        if v_gone < v_left then
            v_lease := v_next;
        end if;
        v_left := v_left - v_gone - 1;
        exit when v_left <= 0;
    end loop;
    next := jsonb_build_array(v_lease);
end
$$;


-- Delete leases that closed long ago and have no batch; for a day forebay.ended_workers() shows them.
create function forebay._trim_leases(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_before constant timestamptz := forebay._now() - greatest(interval '1 day', forebay._retention(1));  -- A constant: the index is read up to it.
    v_leases bigint[];
    v_at     timestamptz;
begin
    select array_agg(l.lease_id order by l.closed_at, l.lease_id), max(l.closed_at) into v_leases, v_at
    from (select i.lease_id, i.closed_at from forebay.lease i
          where i.closed_at < v_before
            and (i.closed_at, i.lease_id) > (coalesce((p_after::jsonb ->> 0)::timestamptz, '-infinity'),
                                             coalesce((p_after::jsonb ->> 1)::bigint, -9223372036854775808))
          order by i.closed_at, i.lease_id limit p_most) l;
    delete from forebay.lease l
    where l.lease_id = any (v_leases)
      and (select b.lease_id from forebay.batch b where b.lease_id = l.lease_id limit 1) is null;  -- a probe each, never a join
    get diagnostics rows = row_count;
    next := case when cardinality(v_leases) >= p_most then jsonb_build_array(v_at, v_leases[cardinality(v_leases)]) end;
end
$$;


-- Delete tombstones of jobs that have no row any more: a claim or a settlement may read the others.
--
-- A job has none when its first segment was emptied, none of those in use has a row of it, and it does not wait for a time. This
-- takes a probe of each segment in use for each job, so a call looks at fewer rows where there are many segments.
create function forebay._trim_tombstones(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_before   constant timestamptz := forebay._now() - forebay._retention(2);
    v_segments bigint[];
    v_segment  bigint;
    v_most     integer;
    v_last     forebay.tombstone;
    v_seen     integer;
    v_jobs     bigint[];
    v_some     bigint[];
    v_used     bigint[] := '{}';
    v_ctids    tid[];
begin
    v_segments := array(select s.segment_id from forebay.segment s
                        where s.removed_at is null and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0));
    v_most := greatest(1, least(p_most, 200000 / greatest(cardinality(v_segments), 1)));
    select count(*), array_agg(t.ctid), array_agg(distinct t.job_id) filter (where not t.is_kept)
    into v_seen, v_ctids, v_jobs
    from (select i.ctid, i.job_id, exists (
              select from (select s.hi, s.removed_at from forebay.segment s where s.lo <= i.job_id order by s.lo desc limit 1) f
              where f.hi > i.job_id and f.removed_at is null) as is_kept
          from forebay.tombstone i
          where i.recorded_at < v_before
            and (i.recorded_at, i.tombstone_no) > (coalesce((p_after::jsonb ->> 0)::timestamptz, '-infinity'),
                                                   coalesce((p_after::jsonb ->> 1)::bigint, 0))
          order by i.recorded_at, i.tombstone_no limit v_most) t;
    rows := 0;
    if v_seen = 0 then
        return;
    end if;
    select t.* into v_last from forebay.tombstone t where t.ctid = v_ctids[cardinality(v_ctids)];
    if v_jobs is not null then
        foreach v_segment in array v_segments loop
            execute format('select array_agg(distinct l.job_id) from forebay.log_%s l where l.job_id = any ($1)', v_segment)
                into v_some using v_jobs;
            v_used := v_used || v_some;
        end loop;
        select array_agg(distinct d.job_id) into v_some from forebay.deferred d where d.job_id = any (v_jobs);
        v_used := v_used || v_some;
        select array_agg(u.job_id) into v_jobs from (select unnest(v_jobs) as job_id except select unnest(v_used)) u;
        delete from forebay.tombstone t
        where t.ctid = any (v_ctids) and t.job_id in (select unnest(v_jobs));
        get diagnostics rows = row_count;
    end if;
    next := case when v_seen >= v_most then jsonb_build_array(v_last.recorded_at, v_last.tombstone_no) end;
end
$$;


-- Delete errors; they outlive the attempts of their jobs.
create function forebay._trim_failures(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$
    select * from forebay._trim_by_time(
        'failure', 'failed_at', forebay._now() - greatest(interval '60 days', forebay._retention(2)), p_after, p_most)
$$;


-- Delete what operators did.
create function forebay._trim_events(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$
    select * from forebay._trim_by_time(
        'event', 'at', forebay._now() - greatest(interval '60 days', forebay._retention(2)), p_after, p_most)
$$;


-- Delete acts of the guard.
create function forebay._trim_guard_events(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$
    select * from forebay._trim_by_time(
        'guard_event', 'at', forebay._now() - greatest(interval '60 days', forebay._retention(2)), p_after, p_most)
$$;


-- Delete counts of calls of endpoints: the health of an endpoint is that of the last minutes.
create function forebay._trim_endpoint_activities(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$
    select * from forebay._trim_by_time('endpoint_activity', 'at', forebay._now() - interval '1 hour', p_after, p_most)
$$;


-- p_times the retention of the log.
create function forebay._retention(p_times integer) returns interval
language sql stable
as $$
    select make_interval(days => (p_times * forebay._setting_value('retention_days'))::integer)
$$;


-- Delete the oldest rows of a table with an index on a column of times, up to a time; returns their number and where to continue.
create function forebay._trim_by_time(
    p_table text, p_column text, p_before timestamptz, p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_at timestamptz;
begin
    execute format(
        'with old as materialized (
             select o.ctid, o.%2$I as at from forebay.%1$I o where o.%2$I < $1 and o.%2$I >= $2 order by o.%2$I limit $3),
         gone as (
             delete from forebay.%1$I t where t.ctid = any (array(select o.ctid from old o)))
         select count(*), max(o.at) from old o', p_table, p_column)
        into rows, v_at using p_before, coalesce((p_after::jsonb ->> 0)::timestamptz, '-infinity'), p_most;
    next := case when rows >= p_most then jsonb_build_array(v_at) end;
end
$$;
