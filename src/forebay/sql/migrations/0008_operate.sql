-- Operating the log: groups, pauses, cancellation, inspection, dead letters, settings.


-- Open a group, an independent reader of a queue; returns its id. Opening it again changes nothing.
--
-- Parameters:
--   start  'beginning': every job still in the log; 'now': jobs that become visible from now on; null: the
--          beginning for the first group of a queue, now for a later one
-- Errors: JQ001 a bad name or start.
create function forebay.open_group(queue text, name text default 'default', start text default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name constant text := '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$';
    v_id   bigint;
begin
    if (open_group.queue ~ v_name and open_group.name ~ v_name) is not true
       or open_group.start not in ('beginning', 'now') then
        raise exception using errcode = 'JQ001',
            message = format('cannot open group %s of queue %s at %s', coalesce(quote_literal(left(open_group.name, 40)), 'null'),
                             coalesce(quote_literal(left(open_group.queue, 40)), 'null'), coalesce(open_group.start, 'its default')),
            hint = 'Names have letters, digits and _ . : - only; start is beginning or now.';
    end if;
    select g.group_id into v_id from forebay.queue_group g
    where g.queue = open_group.queue and g.name = open_group.name;
    if v_id is not null then
        return v_id;
    end if;
    insert into forebay.queue_group (queue, name, start_after, created_at)
    values (open_group.queue, open_group.name,
            case when open_group.start = 'now'
                      or (open_group.start is null
                          and exists (select from forebay.queue_group g where g.queue = open_group.queue))
                 then pg_current_snapshot() else '1:1:' end,
            forebay._now())
    on conflict do nothing
    returning group_id into v_id;
    if v_id is not null then
        execute format('create sequence forebay.post_%s as bigint cache 1', v_id);
        return v_id;
    end if;
    select g.group_id into v_id from forebay.queue_group g
    where g.queue = open_group.queue and g.name = open_group.name;
    return v_id;
end
$$;


-- Pause a queue, for one group or all: nothing more is claimed; what runs goes on. Returns how many groups changed.
create function forebay.pause_queue(queue text, group_name text default null) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_count integer;
begin
    if group_name is null and not exists (select from forebay.queue_group g where g.queue = pause_queue.queue) then
        perform forebay.open_group(pause_queue.queue);
    end if;
    perform forebay._require_group(pause_queue.queue, group_name);
    update forebay.queue_group g set paused_at = forebay._now()
    where g.queue = pause_queue.queue and (group_name is null or g.name = group_name) and g.paused_at is null;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;


-- Resume a paused queue, for one group or all. Returns how many groups changed.
create function forebay.resume_queue(queue text, group_name text default null) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_count integer;
begin
    perform forebay._require_group(resume_queue.queue, group_name);
    update forebay.queue_group g set paused_at = null
    where g.queue = resume_queue.queue and (group_name is null or g.name = group_name) and g.paused_at is not null;
    get diagnostics v_count = row_count;
    perform forebay._ring(resume_queue.queue);
    return v_count;
end
$$;


-- Give up the order of a queue's jobs: new ones are spread over so many lanes of each priority, so that claims of
-- different workers need not take turns. 1 keeps the order again, for jobs enqueued from then on. What waits stays where
-- it is. Returns the number before.
--
-- Parameters: lanes, 1 to 64; about as many as worker processes claim at once.
-- Errors: JQ001 a bad name or number.
create function forebay.spread_queue(queue text, lanes integer) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_before integer := forebay._spread_of(queue);
begin
    if (spread_queue.queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$' and spread_queue.lanes between 1 and 64) is not true then
        raise exception using errcode = 'JQ001',
            message = format('cannot spread queue %s over %s lanes', coalesce(quote_literal(left(spread_queue.queue, 40)), 'null'),
                             coalesce(spread_queue.lanes::text, 'null')),
            hint = 'Names have letters, digits and _ . : - only; the number is 1 to 64.';
    end if;
    perform nextval('forebay.spread_seq') where spread_queue.lanes > 1;
    insert into forebay.spread (queue, lanes) values (spread_queue.queue, spread_queue.lanes)
    on conflict on constraint spread_pkey do update set lanes = excluded.lanes;
    return v_before;
end
$$;


-- Errors: JQ014 when the queue has no such group.
create function forebay._require_group(p_queue text, p_group_name text) returns void
language plpgsql stable
as $$
begin
    if not exists (select from forebay.queue_group g
                   where g.queue = p_queue and (p_group_name is null or g.name = p_group_name)) then
        raise exception using errcode = 'JQ014',
            message = format('queue %s has no group%s', coalesce(quote_literal(p_queue), 'null'),
                             coalesce(' ' || quote_literal(p_group_name), '')),
            detail = jsonb_build_object('queue', p_queue, 'group', p_group_name),
            hint = 'Groups are opened by the first worker that serves them, or by forebay.open_group().';
    end if;
end
$$;


-- Ask for a job to be cancelled, in the caller's transaction; answers 'requested'.
--
-- Decided at its next claim or settlement, first writer wins: a job that finishes first stays done. A
-- running handler is told at its worker's next heartbeat.
--
-- Parameters: group_name, null for every group.
-- Errors: JQ013 no job has had this id, JQ014 no such group.
create function forebay.cancel(job_id bigint, group_name text default null) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_group_id bigint;
    v_queue    text;
begin
    if cancel.job_id is null or cancel.job_id < 1
       or cancel.job_id > coalesce(pg_sequence_last_value('forebay.log_seq'), 0) then
        raise exception using errcode = 'JQ013',
            message = format('there is no job %s', coalesce(cancel.job_id::text, 'null')),
            detail = jsonb_build_object('job_id', cancel.job_id),
            hint = 'Ids are given out by forebay.enqueue; the newest is not that high.';
    end if;
    if cancel.group_name is not null then
        select j.queue into v_queue from forebay.job(cancel.job_id) j limit 1;
        perform forebay._require_group(v_queue, cancel.group_name);
        select g.group_id into v_group_id from forebay.queue_group g where g.queue = v_queue and g.name = cancel.group_name;
    end if;
    if not exists (select from forebay.tombstone t
                   where t.job_id = cancel.job_id and t.reason = 'c'
                     and (t.group_id is null or t.group_id = v_group_id)) then
        insert into forebay.tombstone (job_id, group_id, reason, noted_at)
        values (cancel.job_id, v_group_id, 'c', forebay._now());
    end if;
    return 'requested';
end
$$;


-- Is a row of the log behind a cursor?
create function forebay._is_consumed(
    p_xid xid8, p_seq bigint, p_from pg_snapshot, p_to pg_snapshot, p_pos_lo bigint, p_pos_hi bigint, p_pos_xid xid8,
    p_pos_seq bigint)
returns boolean
language sql immutable
as $$
    select pg_visible_in_snapshot(p_xid, p_from)
        or (p_to is not null and pg_visible_in_snapshot(p_xid, p_to)
            and (p_seq < p_pos_lo or (p_seq < p_pos_hi and (p_xid, p_seq) <= (p_pos_xid, p_pos_seq))
                 or p_pos_xid = '0' and p_seq <= p_pos_seq))  -- Keyed lanes are read in the order of numbers.
$$;


-- The batch of a (group, lane) that disposed of a row, or null. Numbers are dense and high_seq only
-- rises: a binary search finds the first batch that can have it, late committers are a little further on.
create function forebay._batch_of(p_group_id bigint, p_lane bigint, p_seq bigint) returns forebay.batch
language plpgsql stable
as $$
declare
    v_low  bigint;
    v_high bigint;
    v_mid  bigint;
    v_at   bigint;
    v_row  forebay.batch;
begin
    select b.no into v_low from forebay.batch b where b.group_id = p_group_id and b.lane = p_lane order by b.no limit 1;
    select b.no into v_high from forebay.batch b where b.group_id = p_group_id and b.lane = p_lane order by b.no desc limit 1;
    while v_low < v_high loop
        v_mid := (v_low + v_high) / 2;
        select b.high_seq into v_at from forebay.batch b where b.group_id = p_group_id and b.lane = p_lane and b.no = v_mid;
        if v_at >= p_seq then
            v_high := v_mid;
        else
            v_low := v_mid + 1;
        end if;
    end loop;
    select b.* into v_row from forebay.batch b
    where b.group_id = p_group_id and b.lane = p_lane and b.no >= v_low
      and (p_seq = any (b.seqs) or p_seq = any (b.skipped))
    order by b.no limit 1;
    return v_row;
end
$$;


-- Every row of a job in the log, oldest first, with its lane's audience and whether each is there.
create function forebay._rows_of(p_job_id bigint)
returns setof forebay.log
language plpgsql stable
as $$
declare
    v_segment record;
begin
    for v_segment in
        select s.segment_id, s.lo, s.hi from forebay.segment s
        where s.hi > p_job_id and s.removed_at is null and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)
        order by s.segment_id
    loop
        return query execute format(
            'select l.* from forebay.log_%1$s l where l.job_id = $1
             union all
             select l.* from forebay.log_%1$s l where l.seq = $1 and l.job_id is null and l.kind <> ''''
             order by 2', v_segment.segment_id) using p_job_id;
    end loop;
end
$$;


-- The state of a job, one row for each group that reads its queue.
--
-- state: deferred, ready, leased, done, cancelled, expired, dead. No row: no such job, or it was settled
-- so long ago that its segment has left the archive.
-- For people and tests, not for a hot path: it costs a few index probes for each retry and group.
create function forebay.job(id bigint)
returns table (job_id bigint, group_name text, state text, queue text, priority integer, kind text, args jsonb,
               attempt integer, max_attempts integer, enqueued_at timestamptz, run_at timestamptz,
               expires_at timestamptz, tag text, correlation_id text, headers jsonb, cancel_requested boolean,
               worker text, claimed_at timestamptz, ended_at timestamptz, redriven_from bigint, redriven_as bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_group record;
    v_row   record;
    v_wait  record;
    v_mark  forebay.promotion;
    v_batch forebay.batch;
    v_cur   record;
    v_end   record;
    v_id    constant bigint := job.id;
    v_archived constant bigint := forebay._archived_below();
begin
    select p.* into v_mark from forebay.promotion p order by p.no desc limit 1;
    for v_group in
        select q.queue, g.group_id, g.name, g.start_after
        from (select i.queue from forebay.lane i
              where i.lane in (select r.lane from forebay._rows_of(v_id) r
                               union select d.lane from forebay.deferred d where d.job_id = v_id)
              limit 1) q
        left join forebay.queue_group g on g.queue = q.queue
        order by g.group_id
    loop
        queue := v_group.queue;
        group_name := coalesce(v_group.name, 'default');
        job_id := v_id;
        state := null;
        run_at := null;
        worker := null;
        claimed_at := null;
        ended_at := null;

        select d.*, i.priority as lane_priority into v_wait
        from forebay.deferred d
        join lateral (select l.priority, l.audience from forebay.lane l where l.lane = d.lane limit 1) i on true
        where d.job_id = v_id and i.audience in (0, v_group.group_id, -v_group.group_id)
          and not (v_mark.no is not null and pg_visible_in_snapshot(d.xid, v_mark.snap)
                   and (d.run_at, d.deferred_id) <= (v_mark.run_at, v_mark.deferred_id))
        order by d.deferred_id desc limit 1;
        select r.*, i.priority as lane_priority, i.audience into v_row
        from forebay._rows_of(v_id) r
        join lateral (select l.priority, l.audience from forebay.lane l where l.lane = r.lane limit 1) i on true
        where i.audience in (0, v_group.group_id, -v_group.group_id)
        order by r.seq desc limit 1;
        cancel_requested := exists (
            select from forebay.tombstone t
            where t.job_id = v_id and t.reason in ('c', 'r') and (t.group_id is null or t.group_id = v_group.group_id));
        select d.job_id into redriven_from from forebay.dead_letter d where d.redriven_as = v_id limit 1;
        select d.redriven_as into redriven_as from forebay.dead_letter d
        where d.job_id = v_id and d.group_id = v_group.group_id order by d.dead_id desc limit 1;

        if v_wait.job_id is not null then
            priority := v_wait.lane_priority;
            kind := v_wait.kind; args := v_wait.args; attempt := coalesce(v_wait.attempt, 0);
            max_attempts := v_wait.max_attempts; enqueued_at := v_wait.enqueued_at; run_at := v_wait.run_at;
            expires_at := coalesce(v_wait.expires_at, v_wait.enqueued_at + interval '30 days');
            tag := v_wait.tag; correlation_id := v_wait.correlation_id; headers := v_wait.headers;
            state := case when cancel_requested then 'cancelled' else 'deferred' end;
            return next;
            continue;
        end if;
        continue when v_row.seq is null;
        continue when v_row.audience = 0 and v_group.start_after is not null
                      and pg_visible_in_snapshot(v_row.xid, v_group.start_after);
        priority := v_row.lane_priority;
        kind := v_row.kind; args := v_row.args; attempt := coalesce(v_row.attempt, 0);
        max_attempts := v_row.max_attempts; enqueued_at := v_row.enqueued_at;
        expires_at := coalesce(v_row.expires_at, v_row.enqueued_at + interval '30 days');
        tag := v_row.tag; correlation_id := v_row.correlation_id; headers := v_row.headers;

        select b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq into v_cur
        from forebay.batch b left join forebay.segment s on s.segment_id = b.pos_segment
        where b.group_id = v_group.group_id and b.lane = v_row.lane order by b.no desc limit 1;
        if v_row.seq >= v_archived
           and (v_cur.snap_from is null
                or not forebay._is_consumed(v_row.xid, v_row.seq, v_cur.snap_from, v_cur.snap_to, v_cur.lo, v_cur.hi,
                                            v_cur.pos_xid, v_cur.pos_seq)) then
            state := 'ready';
            if exists (select from forebay.tombstone t where t.job_id = v_id and t.reason = 'e'
                       and (t.group_id is null or t.group_id = v_group.group_id)) then
                state := 'expired';
            end if;
            return next;
            continue;
        end if;
        if v_row.ordering_key is not null then
            if forebay._is_parked(v_group.group_id, v_row.ordering_key, v_row.seq) then
                state := case when cancel_requested then 'cancelled' else 'ready' end;
                return next;
                continue;
            end if;
            v_batch := forebay._keyed_batch_of(v_group.group_id, v_row.ordering_key, v_row.seq);
        end if;
        if v_row.ordering_key is null or v_batch.seqs is null then
            v_batch := forebay._batch_of(v_group.group_id, v_row.lane, v_row.seq);
        end if;
        claimed_at := v_batch.claimed_at;
        if v_row.seq = any (v_batch.skipped) then
            state := case v_batch.skipped_as[array_position(v_batch.skipped, v_row.seq)] when 'c' then 'cancelled' else 'expired' end;
            ended_at := v_batch.claimed_at;
            return next;
            continue;
        end if;
        select l.worker into worker from forebay.lease l where l.lease_id = v_batch.lease_id;
        select coalesce(s.outcomes[array_position(s.offsets, array_position(v_batch.seqs, v_row.seq)::smallint)], 'd') as code,
               s.settled_at
        into v_end
        from forebay.settlement s
        where s.lease_id = v_batch.lease_id and s.claim_no = v_batch.claim_no
          and (s.offsets is null or array_position(v_batch.seqs, v_row.seq)::smallint = any (s.offsets))
        limit 1;
        state := case v_end.code when 'd' then 'done' when 'c' then 'cancelled' when 'x' then 'dead'
                                 else case when v_batch.seqs is not null then 'leased'
                                           when exists (select from forebay.dead_letter d
                                                        where d.job_id = v_id and d.group_id = v_group.group_id and d.reason = 'expired'
                                                          and d.enqueued_at = v_row.enqueued_at) then 'expired'
                                           else 'cancelled' end end;
        ended_at := v_end.settled_at;
        if state = 'dead' or (state = 'done' and v_end.code = 'd') then
            attempt := attempt + 1;
        end if;
        return next;
    end loop;
end
$$;


-- How many jobs wait and run, by queue, priority and group, counted anew in one snapshot.
--
-- A full recount: costs a visit to every waiting job.
create function forebay.depth(only_queue text default null)
returns table (queue text, priority integer, group_name text, ready bigint, leased bigint, deferred bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
    v_mark     forebay.promotion;
    v_archived constant bigint := forebay._archived_below();
begin
    select p.* into v_mark from forebay.promotion p order by p.no desc limit 1;
    return query
    with lanes as (
        select distinct l.lane, l.queue, l.priority, l.audience from forebay.lane l
        where only_queue is null or l.queue = only_queue),
    readers as (
        select l.lane, l.queue, l.priority, l.audience, g.group_id, coalesce(g.name, 'default') as name, g.start_after,
               b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq
        from lanes l
        left join forebay.queue_group g on g.queue = l.queue and (l.audience = 0 or g.group_id = abs(l.audience))
        left join lateral (select i.* from forebay.batch i
                           where i.group_id = g.group_id and i.lane = l.lane order by i.no desc limit 1) b on true
        left join forebay.segment s on s.segment_id = b.pos_segment),
    parked_jobs as materialized (
        select p.group_id, p.lane from forebay._all_parked() p where pg_sequence_last_value('forebay.key_seq') is not null),
    open_jobs as (
        select b.group_id, b.lane,
               sum(cardinality(b.seqs) - case when s.whole then cardinality(b.seqs) else s.settled end) as open
        from forebay.lease e
        join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f on true
        join forebay.batch b on b.lease_id = e.lease_id and b.claim_no >= f.floor
        cross join lateral (
            select coalesce(bool_or(j.offsets is null), false) as whole, coalesce(sum(cardinality(j.offsets)), 0) as settled
            from forebay.settlement j where j.lease_id = b.lease_id and j.claim_no = b.claim_no) s
        where e.closed_at is null
        group by b.group_id, b.lane)
    select r.queue, r.priority, r.name,
           sum((select count(*) from forebay.log l
                where l.lane = r.lane and l.seq >= v_archived and l.kind <> ''
                  and l.xid >= pg_snapshot_xmin(coalesce(r.snap_from, '1:1:'))
                  and (r.snap_from is null or not forebay._is_consumed(
                          l.xid, l.seq, r.snap_from, r.snap_to, r.lo, r.hi, r.pos_xid, r.pos_seq))
                  and (r.snap_from is not null or r.audience <> 0 or r.start_after is null
                       or not pg_visible_in_snapshot(l.xid, r.start_after))))::bigint
           + coalesce(sum((select count(*) from parked_jobs p where p.group_id = r.group_id and p.lane = r.lane)), 0)::bigint,
           coalesce(sum(o.open), 0)::bigint,
           sum((select count(*) from forebay.deferred d
                where d.lane = r.lane
                  and not (v_mark.no is not null and pg_visible_in_snapshot(d.xid, v_mark.snap)
                           and (d.run_at, d.deferred_id) <= (v_mark.run_at, v_mark.deferred_id))))::bigint
    from readers r
    left join open_jobs o on o.group_id = r.group_id and o.lane = r.lane
    group by r.queue, r.priority, r.name
    order by r.queue, r.priority, r.name;
end
$$;


-- Redrive a dead letter: a new job for its group, with its own attempts; returns the new job's id.
--
-- Queue, priority, tag, correlation id, headers and max_attempts are kept; expiry begins anew; a unique key may belong to
-- another job by now and is not taken. The dead letter stays, and
-- each names the other.
--
-- Errors: JQ015 no such dead letter, JQ016 redriven before.
-- Locks: the dead letter's row.
create function forebay.redrive(dead_id bigint) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    d        forebay.dead_letter;
    v_job_id bigint;
begin
    select i.* into d from forebay.dead_letter i where i.dead_id = redrive.dead_id for update;
    if not found then
        raise exception using errcode = 'JQ015',
            message = format('there is no dead letter %s', coalesce(redrive.dead_id::text, 'null')),
            hint = 'forebay dead list shows them.';
    elsif d.redriven_at is not null then
        raise exception using errcode = 'JQ016',
            message = format('dead letter %s was redriven as job %s', d.dead_id, d.redriven_as),
            detail = jsonb_build_object('job_id', d.job_id, 'new_job_id', d.redriven_as),
            hint = 'Look at that job; if it died too, redrive its own dead letter.';
    end if;
    insert into forebay.log (
        lane, enqueued_at, max_attempts, kind, args, tag, correlation_id, headers, ordering_key)
    values (forebay._note_private_lane(d.queue, d.priority, d.group_id, d.ordering_key, d.limit_key), forebay._now(), d.max_attempts,
            d.kind, d.args, d.tag, d.correlation_id, d.headers, d.ordering_key)
    returning seq into v_job_id;
    update forebay.dead_letter i set redriven_at = forebay._now(), redriven_as = v_job_id where i.dead_id = d.dead_id;
    perform forebay._ring(d.queue);
    return v_job_id;
end
$$;


-- Redrive every dead letter that fits, in the order the jobs had in the log; returns how many.
--
-- Parameters: null means any; died_after and died_before bound the time of death; most, at most so many.
create function forebay.redrive_matching(
    queue text default null, kind text default null, reason text default null, tag text default null,
    group_name text default null, died_after timestamptz default null, died_before timestamptz default null,
    most integer default null)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_id    bigint;
    v_count bigint := 0;
begin
    for v_id in
        select d.dead_id
        from forebay.dead_letter d
        join forebay.queue_group g on g.group_id = d.group_id
        where d.redriven_at is null
          and (redrive_matching.queue is null or d.queue = redrive_matching.queue)
          and (redrive_matching.kind is null or d.kind = redrive_matching.kind)
          and (redrive_matching.reason is null or d.reason = redrive_matching.reason)
          and (redrive_matching.tag is null or d.tag = redrive_matching.tag)
          and (redrive_matching.group_name is null or g.name = redrive_matching.group_name)
          and (redrive_matching.died_after is null or d.died_at >= redrive_matching.died_after)
          and (redrive_matching.died_before is null or d.died_at < redrive_matching.died_before)
        order by d.enqueued_at, d.job_id
        limit redrive_matching.most
        for update of d skip locked
    loop
        perform forebay.redrive(v_id);
        v_count := v_count + 1;
    end loop;
    return v_count;
end
$$;


-- Delete dead letters that died longer ago than `age`; returns how many. Nothing is purged unless asked.
--
-- Parameters: age, not negative; queue, null for all.
-- Errors: JQ001 a bad age.
create function forebay.purge_dead(age interval, queue text default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_count bigint;
begin
    if age is null or age < interval '0' then
        raise exception using errcode = 'JQ001', message = format('age %s is negative or missing', coalesce(age::text, 'null')),
            hint = 'Say how old a dead letter must be, for example 30 days.';
    end if;
    delete from forebay.dead_letter d
    where d.died_at <= forebay._now() - age and (purge_dead.queue is null or d.queue = purge_dead.queue);
    get diagnostics v_count = row_count;
    return v_count;
end
$$;


-- Change a database-wide setting; returns its value before.
--
-- Settings: segment_rows 100 to 100000000, reserve_rows 1000 to 10^12, retention_days 0 to 36500, retention_bytes
-- from 0, args_bytes_max 1024 to 104857600, args_depth_max 64 to 200, result_bytes_max 1024 to 104857600.
-- Errors: JQ001 an unknown name or a value outside its range.
create function forebay.configure(name text, value bigint) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_before bigint;
    v_range  int8range := case configure.name
        when 'segment_rows' then int8range(100, 100000000, '[]')
        when 'reserve_rows' then int8range(1000, 1000000000000, '[]')
        when 'retention_days' then int8range(0, 36500, '[]')
        when 'retention_bytes' then int8range(0, null, '[]')
        when 'args_bytes_max' then int8range(1024, 104857600, '[]')
        when 'result_bytes_max' then int8range(1024, 104857600, '[]')
        when 'args_depth_max' then int8range(64, 200, '[]') end;  -- Small arguments are never deeper: see _check_args.
begin
    if v_range is null then
        raise exception using errcode = 'JQ001', message = format('unknown setting %s', coalesce(quote_literal(configure.name), 'null')),
            hint = 'One of args_bytes_max, args_depth_max, reserve_rows, result_bytes_max, retention_bytes, retention_days, segment_rows.';
    elsif configure.value is null or not v_range @> configure.value then
        raise exception using errcode = 'JQ001', message = format('%s %s is outside %s', configure.name, coalesce(configure.value::text, 'null'), v_range),
            hint = 'Nothing was changed.';
    end if;
    select s.value into v_before from forebay.setting s where s.name = configure.name;
    update forebay.setting s set value = configure.value where s.name = configure.name;
    return v_before;
end
$$;
