-- grant: operator

-- Erase what ended jobs of a queue have brought with them, a step each call: arguments and headers
-- in the log and of scheduled jobs that were cancelled or have started, messages and tracebacks of errors, results, notes of
-- progress, values of steps and what children returned to flows; with `dead` also dead letters. Ids, kind, tag, correlation id, keys, times and states
-- stay. It is final.
--
-- Parameters:
--   before    only of jobs that were enqueued before, and of errors and results recorded before;
--             null: now
--   dead      delete dead letters, too
--   after     `next` of the call before; null: from the beginning
--   most      rows that a step looks at, 1 to 100,000
--   event_id  `event` of the call before, so that the event log has one row for all
--
-- Columns:
--   redacted  how many rows were erased
--   next      where the next call continues; null: everything was looked at
--
-- Errors: JQ001 a bad name, position or number, or a queue of Forebay; JQ030 foreign cluster.
-- Locks: the rows, and SHARE UPDATE EXCLUSIVE on the segment, until the transaction ends. Enqueues,
--   claims and settlements do not wait. Emptying a segment waits for the step, or fails and is
--   tried again.
-- See: docs/howto/manage-queues.md#erase-personal-data, docs/design/redact.md
--
-- Inside: segments of the log hold the jobs of all queues, so retention cannot keep those of one
-- queue for a shorter time. Invariant "only what has ended": a row is erased when every group of
-- the queue has passed it, no worker has it, and it does not wait for its key. That is what lets a
-- segment be emptied.
create function forebay.redact_queue(
    queue text, before timestamptz default null, dead boolean default false, after jsonb default null, most integer default 1000,
    event_id bigint default null, out redacted bigint, out next jsonb, out event bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
-- planner: indexed
as $$
declare
    v_places constant text[] := array['log', 'deferred', 'errors', 'results', 'progress'] || case when redact_queue.dead then array['dead'] end || array['steps'];
    v_place  text := coalesce(redact_queue.after ->> 'place', 'log');
    v_before constant timestamptz := coalesce(redact_queue.before, (redact_queue.after ->> 'before')::timestamptz, forebay._now());
begin
    if (redact_queue.queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$' and not starts_with(redact_queue.queue, 'forebay.')
        and v_place = any (v_places) and redact_queue.most between 1 and 100000) is not true then
        raise exception using errcode = 'JQ001',
            message = format('cannot redact queue %s, at most %s rows from %s', coalesce(quote_literal(left(redact_queue.queue, 40)), 'null'),
                             coalesce(redact_queue.most::text, 'null'), left(coalesce(redact_queue.after::text, 'the beginning'), 100)),
            hint = 'Give a queue that is not one of Forebay, next of the call before, and 1 to 100000 rows.';
    end if;
    perform forebay._require_same_cluster();
    case v_place
        when 'log' then select r.rows, r.next into redacted, next from forebay._redact_log(redact_queue.queue, v_before, redact_queue.after, redact_queue.most) r;
        when 'deferred' then select r.rows, r.next into redacted, next from forebay._redact_deferred(redact_queue.queue, v_before, redact_queue.after, redact_queue.most) r;
        when 'errors' then select r.rows, r.next into redacted, next from forebay._redact_errors(redact_queue.queue, v_before, redact_queue.after, redact_queue.most) r;
        when 'results' then select r.rows, r.next into redacted, next from forebay._redact_results(redact_queue.queue, v_before, redact_queue.after, redact_queue.most) r;
        when 'progress' then select r.rows, r.next into redacted, next from forebay._redact_progress(redact_queue.queue, v_before, redact_queue.after, redact_queue.most) r;
        when 'steps' then select r.rows, r.next into redacted, next from forebay._redact_steps(redact_queue.queue, v_before, redact_queue.after, redact_queue.most) r;
        when 'dead' then
            redacted := forebay._delete_dead(redact_queue.queue, v_before, redact_queue.most);
            next := case when redacted >= redact_queue.most then '{}'::jsonb end;
    end case;
    if next is not null then
        next := next || jsonb_build_object('place', v_place, 'before', v_before);
    elsif v_place <> v_places[cardinality(v_places)] then
        next := jsonb_build_object('place', v_places[array_position(v_places, v_place) + 1], 'before', v_before);
    end if;
    event := redact_queue.event_id;
    if redacted > 0 then
        update forebay.event e set count = e.count + redacted
        where forebay._is_own_event(e, redact_queue.event_id, 'redact') and e.queue = redact_queue.queue;
        if not found then
            event := forebay._record_event(
                'queues.redact', queue, p_count => redacted, p_new => jsonb_build_object('before', v_before, 'dead', redact_queue.dead));
        end if;
    end if;
end
$$;


-- The groups of a queue, closed ones too.
create function forebay._groups_ever(p_queue text) returns bigint[]
language sql stable
as $$
    select array(select g.group_id from forebay.queue_group g where g.queue = p_queue
                 union all select c.group_id from forebay.closed_group c where c.queue = p_queue)
$$;


-- Has a job ended in every group that has it, or is it past retention?
create function forebay._has_ended(p_job_id bigint) returns boolean
language sql volatile
as $$
    select coalesce(bool_and(j.state in ('done', 'cancelled', 'expired', 'dead')), true) from forebay.job(p_job_id) j
$$;


-- Where the groups of a queue are in its lanes, and the numbers of rows of the log that workers have or that wait for their key.
--
-- Stable and one query, so that one snapshot shows all: see forebay._segment_holders(). A lane without a group is one that no group has passed.
create function forebay._redactable(p_queue text, out cursors forebay._cursor[], out busy int8multirange)
language sql stable
-- planner: in order
as $$
    select (select coalesce(array_agg(row(l.audience, l.lane, case l.audience when 0 then g.start_after end, b.snap_from, b.snap_to, s.lo, s.hi,
                                          b.pos_xid, b.pos_seq)::forebay._cursor), '{}')
            from (select distinct i.lane, i.audience from forebay.lane i where i.queue = p_queue) l
            left join forebay.queue_group g on g.queue = p_queue and (l.audience = 0 or g.group_id = abs(l.audience))
            left join lateral (select i.snap_from, i.snap_to, i.pos_segment, i.pos_xid, i.pos_seq from forebay.batch i
                               where i.group_id = g.group_id and i.lane = l.lane order by i.no desc limit 1) b on true
            left join forebay.segment s on s.segment_id = b.pos_segment),
           (select coalesce(range_agg(int8range(w.low, w.high, '[]')), '{}')
            from (select o.seq as low, o.seq as high from forebay._open_jobs() o
                  union all
                  select p.seq, p.seq from forebay._all_ordering_parked() p where pg_sequence_last_value('forebay.key_seq') is not null
                  union all
                  select p.after + 1, p.seq_to from forebay._all_limit_parked() p
                  where pg_sequence_last_value('forebay.limit_parked_seq') is not null) w)
$$;


-- Erase arguments and headers of rows of the log. The position is a segment, a lane, and xid and number of a row.
--
-- Cursors go by the columns xid and seq, which stay, so a claim does not notice. What has ended stays so: cursors of an earlier snapshot
-- than that of the update are enough.
create function forebay._redact_log(p_queue text, p_before timestamptz, p_after jsonb, p_most integer, out rows bigint, out next jsonb)
language plpgsql volatile
-- planner: indexed
as $$
declare
    v         record;
    v_segment record;
    v_lane    bigint;
    v_xid     xid8 := coalesce(p_after ->> 'xid', '0')::xid8;
    v_seq     bigint := coalesce((p_after ->> 'seq')::bigint, 0);
    v_left    bigint := p_most;
    v_step    record;
begin
    rows := 0;
    select r.* into v from forebay._redactable(p_queue) r;
    for v_segment in
        select s.segment_id from forebay.segment s
        where s.removed_at is null and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0) and forebay._has_table(s.segment_id)
          and s.segment_id >= coalesce((p_after ->> 'segment')::bigint, 0)
        order by s.segment_id
    loop
        for v_lane in
            select distinct c.lane from unnest(v.cursors) c
            where (v_segment.segment_id, c.lane) >= ((p_after ->> 'segment')::bigint, (p_after ->> 'lane')::bigint) or p_after ->> 'lane' is null
            order by 1
        loop
            if (v_segment.segment_id, v_lane) is distinct from ((p_after ->> 'segment')::bigint, (p_after ->> 'lane')::bigint) then
                v_xid := '0';
                v_seq := 0;
            end if;
            execute format(
                'with looked_at as materialized (
                     select i.xid, i.seq, i.enqueued_at from forebay.log_%1$s i
                     where i.lane = $1 and (i.xid, i.seq) > ($2, $3) order by i.xid, i.seq limit $4),
                 erased as (
                     update forebay.log_%1$s l set args = ''{}'', headers = forebay._redacted()
                     from looked_at r
                     where l.lane = $1 and l.xid = r.xid and l.seq = r.seq and l.kind <> '''' and (l.args <> ''{}'' or l.headers <> forebay._redacted())
                       and r.enqueued_at < $5 and not r.seq <@ $6
                       and not exists (
                           select from unnest($7) c
                           where c.lane = $1
                             and not case when c.snap_from is null then coalesce(pg_visible_in_snapshot(r.xid, c.start), false)
                                          else forebay._is_consumed(r.xid, r.seq, c.snap_from, c.snap_to, c.lo, c.hi, c.pos_xid, c.pos_seq)
                                               or coalesce(pg_visible_in_snapshot(r.xid, c.start), false) end)
                     returning 1)
                 select (select count(*) from looked_at) as looked_at, (select count(*) from erased) as erased,
                        (select i.xid from looked_at i order by i.xid desc, i.seq desc limit 1) as xid,
                        (select i.seq from looked_at i order by i.xid desc, i.seq desc limit 1) as seq',
                v_segment.segment_id)
            into v_step using v_lane, v_xid, v_seq, v_left, p_before, v.busy, v.cursors;
            rows := rows + v_step.erased;
            v_left := v_left - v_step.looked_at;
            if v_step.erased > 0 then
                -- Look-ups by a job's id read pages that this index does not know from end to end.
                perform brin_summarize_new_values(format('forebay.log_%s_seq_idx', v_segment.segment_id)::regclass);
            end if;
            if v_left <= 0 then
                next := jsonb_build_object('segment', v_segment.segment_id, 'lane', v_lane, 'xid', v_step.xid, 'seq', v_step.seq);
                return;
            end if;
        end loop;
    end loop;
end
$$;


-- What is left of the headers of an erased row. No such job is given out again: a replay, and what sends lost messages again, leave it out.
create function forebay._redacted() returns jsonb
language sql immutable
as $$ select '{"forebay-redacted": "true"}'::jsonb $$;


-- Erase arguments and headers of scheduled and retrying jobs that were cancelled, replaced or debounced, whose rows wait for their time, and of
-- jobs that have ended since they were promoted, whose rows wait for maintenance.
create function forebay._redact_deferred(p_queue text, p_before timestamptz, p_after jsonb, p_most integer, out rows bigint, out next jsonb)
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_after constant timestamptz := coalesce((p_after ->> 'run_at')::timestamptz, '-infinity');
    v_id    constant bigint := coalesce((p_after ->> 'id')::bigint, 0);
    v_lanes constant bigint[] := forebay._lanes_of(p_queue, false);
    v_position forebay.promotion;
    v_found record;
begin
    select p.* into v_position from forebay.promotion p order by p.no desc limit 1;
    with withdrawn as materialized (
        select w.run_at, w.deferred_id from forebay.withdrawn w
        where w.queue = p_queue and w.group_id is null and (w.run_at, w.deferred_id) > (v_after, v_id)
        order by w.run_at, w.deferred_id limit p_most),
    promoted as materialized (
        select d.run_at, d.deferred_id, d.lane, d.xid, d.job_id from forebay.deferred d
        where (d.run_at, d.deferred_id) > (v_after, v_id) and (d.run_at, d.deferred_id) <= (v_position.run_at, v_position.deferred_id)
        order by d.run_at, d.deferred_id limit p_most),
    looked_at as materialized (
        select u.run_at, u.deferred_id, bool_or(u.has_ended) as has_ended
        from (select w.run_at, w.deferred_id, true as has_ended from withdrawn w
              union all
              select p.run_at, p.deferred_id,
                     p.lane = any (v_lanes) and pg_visible_in_snapshot(p.xid, v_position.snap) and forebay._has_ended(p.job_id) from promoted p) u
        group by u.run_at, u.deferred_id order by u.run_at, u.deferred_id limit p_most),
    erased as (
        update forebay.deferred d set args = '{}', headers = forebay._redacted()
        from looked_at r
        where d.run_at = r.run_at and d.deferred_id = r.deferred_id and r.has_ended and d.kind <> '' and d.enqueued_at < p_before
          and (d.args <> '{}' or d.headers <> forebay._redacted())
        returning 1)
    select (select count(*) from looked_at) as looked_at, (select count(*) from erased) as erased,
           (select jsonb_build_object('run_at', i.run_at, 'id', i.deferred_id) from looked_at i order by i.run_at desc, i.deferred_id desc limit 1) as last
    into v_found;
    rows := v_found.erased;
    next := case when v_found.looked_at >= p_most then v_found.last end;
end
$$;


-- Erase messages and tracebacks of errors of jobs that have ended.
create function forebay._redact_errors(p_queue text, p_before timestamptz, p_after jsonb, p_most integer, out rows bigint, out next jsonb)
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_groups constant bigint[] := forebay._groups_ever(p_queue);
    v_found  record;
begin
    with looked_at as materialized (
        select f.failed_at, f.job_id, f.group_id, f.message is not null or f.traceback is not null as has_text from forebay.failure f
        where f.failed_at > coalesce((p_after ->> 'at')::timestamptz, '-infinity') and f.failed_at < p_before
        order by f.failed_at fetch first (p_most) rows with ties),
    ended as materialized (
        select j.job_id from (select distinct i.job_id from looked_at i where i.has_text and i.group_id = any (v_groups)) j
        where forebay._has_ended(j.job_id)),
    erased as (
        update forebay.failure f set message = null, traceback = null
        from ended e
        where f.job_id = e.job_id and f.group_id = any (v_groups) and f.failed_at < p_before and (f.message is not null or f.traceback is not null)
        returning 1)
    select (select count(*) from looked_at) as looked_at, (select count(*) from erased) as erased, (select max(i.failed_at) from looked_at i) as last
    into v_found;
    rows := v_found.erased;
    -- With all rows of the last time: rows of one settlement have the same.
    next := case when v_found.looked_at >= p_most then jsonb_build_object('at', v_found.last) end;
end
$$;


-- Erase the results of jobs: only jobs that are done have one.
create function forebay._redact_results(p_queue text, p_before timestamptz, p_after jsonb, p_most integer, out rows bigint, out next jsonb)
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_groups constant bigint[] := forebay._groups_ever(p_queue);
    v_found  record;
begin
    with looked_at as materialized (
        select r.kept_until, r.job_id from forebay.result r
        where r.kept_until > coalesce((p_after ->> 'until')::timestamptz, '-infinity') order by r.kept_until fetch first (p_most) rows with ties),
    erased as (
        update forebay.result r set value = null, problem = 'it was redacted'
        where r.job_id in (select i.job_id from looked_at i) and r.group_id = any (v_groups) and r.kept_at < p_before and r.value is not null
        returning 1)
    select (select count(*) from looked_at) as looked_at, (select count(*) from erased) as erased, (select max(i.kept_until) from looked_at i) as last
    into v_found;
    rows := v_found.erased;
    next := case when v_found.looked_at >= p_most then jsonb_build_object('until', v_found.last) end;
end
$$;


-- Erase the notes that handlers of ended jobs have recorded with their progress.
create function forebay._redact_progress(p_queue text, p_before timestamptz, p_after jsonb, p_most integer, out rows bigint, out next jsonb)
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_groups constant bigint[] := forebay._groups_ever(p_queue);
    v_found  record;
begin
    with looked_at as materialized (
        select p.recorded_at, p.job_id, p.group_id, p.note from forebay.progress p
        where p.recorded_at > coalesce((p_after ->> 'at')::timestamptz, '-infinity') and p.recorded_at < p_before
        order by p.recorded_at fetch first (p_most) rows with ties),
    ended as materialized (
        select j.job_id from (select distinct i.job_id from looked_at i where i.note <> '' and i.group_id = any (v_groups)) j
        where forebay._has_ended(j.job_id)),
    erased as (
        update forebay.progress p set note = ''
        from ended e where p.job_id = e.job_id and p.group_id = any (v_groups) and p.recorded_at < p_before and p.note <> ''
        returning 1)
    select (select count(*) from looked_at) as looked_at, (select count(*) from erased) as erased, (select max(i.recorded_at) from looked_at i) as last
    into v_found;
    rows := v_found.erased;
    next := case when v_found.looked_at >= p_most then jsonb_build_object('at', v_found.last) end;
end
$$;
