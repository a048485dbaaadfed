-- grant: worker, operator, reader

-- The batch of a (group, lane) that disposed of a row, or null. Numbers are dense and high_seq only
-- rises: a binary search finds the first candidate; for late committers the batch is a few later.
create function forebay._batch_of(p_group_id bigint, p_lane bigint, p_seq bigint) returns forebay.batch
language plpgsql stable
-- planner: in order
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


-- The batch of a group that disposed of a row, by the row's lane, number and keys; or null.
create function forebay._batch_of_row(p_group_id bigint, p_lane bigint, p_seq bigint, p_ordering_key text, p_limit_key text) returns forebay.batch
language plpgsql stable
as $$
declare
    v_batch forebay.batch;
begin
    if p_ordering_key is not null then
        v_batch := forebay._keyed_batch_of(p_group_id, p_ordering_key, p_seq);
    elsif p_limit_key is not null then
        return forebay._limited_batch_of(p_group_id, p_limit_key, p_lane, p_seq);
    end if;
    return case when v_batch.seqs is null then forebay._batch_of(p_group_id, p_lane, p_seq) else v_batch end;
end
$$;


-- The state of a job, one row for each group of its queue. No row: this snapshot sees no such job,
-- or it has left the archive. Costs some index probes per retry and group: for people and tests,
-- not for a hot path.
--
-- States:
--   scheduled  waits for its time: delayed, snoozed, or postponed because no handler or no store
--              was there
--   ready      can be claimed
--   claimed    a worker has it, and has not reported that its handler runs
--   running    its handler runs, by the last heartbeat of its worker, or by progress that it
--              reported. A job shorter than
--              `heartbeat_seconds` may be claimed until it ends; of one process 1,000 jobs are
--              running at most, the others claimed
--   retrying   its last attempt failed, and it waits for the next one
--   done, cancelled, expired, dead
--              ended
--
-- Columns:
--   run_at                when a scheduled or retrying job is due; null: it is neither, or a flow
--                         that waits without a limit
--   attempt               the attempt that runs, or runs next, from 1; of a job that has ended, the
--                         last that ran, 0 if none did
--   max_attempts          the job's own number, else what the worker reported when an attempt
--                         failed; of a delivery that lives, that of its endpoint; null while none
--                         is known
--   dead_id, redriven_as  the job's dead letter, and the job that was made from it
--   redriven_from, redriven_from_dead_id
--                         of a job that a redrive made: the job that died, and its dead letter
-- pages: 400 + 60 a segment
create function forebay.job(id bigint)
returns table (job_id bigint, group_name text, state text, queue text, priority integer, attempt integer, enqueued_at timestamptz,
               run_at timestamptz, expires_at timestamptz, {job types}, cancel_requested boolean,
               worker text, claimed_at timestamptz, ended_at timestamptz, redriven_from bigint, redriven_as bigint,
               redriven_from_dead_id bigint, dead_id bigint, unique_key text)
language plpgsql stable security definer
rows 2
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_group record;
    v_row   record;
    v_wait  record;
    v_position  forebay.promotion;
    v_batch forebay.batch;
    v_cur   record;
    v_end   record;
    v_id    constant bigint := job.id;
    v_rows  constant forebay.log[] := array(select r from forebay._rows_of(v_id) r);
    v_archived constant bigint := forebay._archived_below();
begin
    select p.* into v_position from forebay.promotion p order by p.no desc limit 1;
    for v_group in
        select q.queue, g.group_id, g.name, g.start_after
        from (select i.queue
              from (select r.lane from unnest(v_rows) r union select d.lane from forebay.deferred d where d.job_id = v_id) u
              cross join lateral (select l.queue from forebay.lane l where l.lane = u.lane limit 1) i
              limit 1) q
        left join forebay.queue_group g on g.queue = q.queue
        order by g.created_at, g.group_id
    loop
        queue := v_group.queue;
        group_name := coalesce(v_group.name, 'default');
        job_id := v_id;
        state := null;
        run_at := null;
        worker := null;
        claimed_at := null;
        ended_at := null;
        unique_key := (select r.unique_key from unnest(v_rows) r limit 1);

        select d.*, i.priority as lane_priority into v_wait
        from forebay.deferred d
        join lateral (select l.priority, l.audience from forebay.lane l where l.lane = d.lane limit 1) i on true
        where d.job_id = v_id and i.audience in (0, v_group.group_id, -v_group.group_id)
          and not (v_position.no is not null and pg_visible_in_snapshot(d.xid, v_position.snap)
                   and (d.run_at, d.deferred_id) <= (v_position.run_at, v_position.deferred_id))
        order by d.deferred_id desc limit 1;
        select r.*, i.priority as lane_priority, i.audience into v_row
        from unnest(v_rows) r
        join lateral (select l.priority, l.audience from forebay.lane l where l.lane = r.lane limit 1) i on true
        where i.audience in (0, v_group.group_id, -v_group.group_id)
        order by r.seq desc limit 1;
        cancel_requested := exists (
            select from forebay.tombstone t
            where t.job_id = v_id and t.reason in ('c', 'r') and (t.group_id is null or t.group_id = v_group.group_id));
        select d.job_id, d.dead_id into redriven_from, redriven_from_dead_id from forebay.dead_letter d where d.redriven_as = v_id limit 1;
        select d.redriven_as, d.dead_id into redriven_as, dead_id from (
            -- Not through the index that has the order: its plan would read all dead letters.
            select i.redriven_as, i.dead_id from forebay.dead_letter i where i.job_id = v_id and i.group_id = v_group.group_id offset 0) d
        order by d.dead_id desc limit 1;

        if v_wait.job_id is not null then
            priority := v_wait.lane_priority;
            select {job of v_wait} into {job};
            unique_key := v_wait.unique_key;
            attempt := coalesce(v_wait.attempt, 0) + 1; enqueued_at := v_wait.enqueued_at; run_at := forebay._shown_time(v_id, v_wait.run_at);
            expires_at := case when run_at is not null then coalesce(v_wait.expires_at, v_wait.enqueued_at + interval '30 days') end;
            state := forebay._state_of_deferred(v_wait.attempt, v_wait.pauses);
            if cancel_requested then
                state := 'cancelled';
                attempt := attempt - 1;
            end if;
            max_attempts := coalesce(max_attempts, forebay._queue_attempts(v_group.queue), forebay._delivery_tries(v_group.queue, limit_key),
                                     forebay._attempts_known(v_id, v_group.group_id, enqueued_at));
            return next;
            continue;
        end if;
        continue when v_row.seq is null;
        continue when v_row.audience = 0 and v_group.start_after is not null
                      and pg_visible_in_snapshot(v_row.xid, v_group.start_after);
        priority := v_row.lane_priority;
        select {job of v_row} into {job};
        attempt := coalesce(v_row.attempt, 0) + 1; enqueued_at := v_row.enqueued_at;
        max_attempts := coalesce(max_attempts, case when dead_id is null then forebay._delivery_tries(v_group.queue, limit_key) end,
                                 forebay._attempts_known(v_id, v_group.group_id, v_row.enqueued_at));
        expires_at := coalesce(v_row.expires_at, v_row.enqueued_at + interval '30 days');

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
                attempt := attempt - 1;
            elsif cancel_requested then
                state := 'cancelled';
                attempt := attempt - 1;
            end if;
            return next;
            continue;
        end if;
        if v_row.ordering_key is not null then
            if forebay._is_parked(v_group.group_id, v_row.ordering_key, v_row.seq) then
                state := case when cancel_requested then 'cancelled' else 'ready' end;
                attempt := attempt - cancel_requested::integer;
                return next;
                continue;
            end if;
        elsif v_row.limit_key is not null then
            if forebay._is_limit_parked(v_group.group_id, v_row.limit_key, v_row.xid, v_row.seq) then
                state := case when cancel_requested then 'cancelled' else 'ready' end;
                attempt := attempt - cancel_requested::integer;
                return next;
                continue;
            end if;
        end if;
        v_batch := forebay._batch_of_row(v_group.group_id, v_row.lane, v_row.seq, v_row.ordering_key, v_row.limit_key);
        claimed_at := v_batch.claimed_at;
        if v_row.seq = any (v_batch.skipped) then
            state := case v_batch.skipped_as[array_position(v_batch.skipped, v_row.seq)] when 'c' then 'cancelled' else 'expired' end;
            ended_at := v_batch.claimed_at;
            attempt := attempt - 1;
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
        ended_at := v_end.settled_at;
        if v_end.code in ('d', 'c', 'x', 'y') then
            state := case v_end.code when 'd' then 'done' when 'c' then 'cancelled' else 'dead' end;
        elsif v_batch.seqs is not null and v_end.code is distinct from 'k' then
            state := case when v_id = any (forebay._running_jobs(v_batch.lease_id, v_batch.claimed_at))
                               or exists (select from forebay.progress p where p.job_id = v_id and p.group_id = v_group.group_id
                                          and p.recorded_at >= v_batch.claimed_at)
                          then 'running' else 'claimed' end;
        else  -- In no batch, or requeued in its last one: skipped in a later key run.
            state := case when exists (select from forebay.dead_letter d
                                       where d.job_id = v_id and d.group_id = v_group.group_id and d.reason = 'expired'
                                         and d.enqueued_at = v_row.enqueued_at) then 'expired' else 'cancelled' end;
            attempt := attempt - 1;
        end if;
        return next;
    end loop;
end
$$;


-- The maximum attempts of a job, as a worker reported with its last failed attempt; null when none did.
create function forebay._attempts_known(p_job_id bigint, p_group_id bigint, p_enqueued_at timestamptz) returns integer
language sql stable
as $$
    select f.max_attempts
    from (select i.max_attempts, i.failed_at from forebay.failure i
          where i.job_id = p_job_id and i.group_id = p_group_id and i.enqueued_at = p_enqueued_at and i.max_attempts is not null offset 0) f
    order by f.failed_at desc limit 1
$$;
