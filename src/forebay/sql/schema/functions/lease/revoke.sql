-- Revoke a lease: close it and send its unsettled jobs to the group's private lanes.
--
-- Invariants: "single holder", "nothing lost". The lease row is locked FOR UPDATE, which waits for
-- every claim and settlement that holds it FOR KEY SHARE; later statements read what is settled.
-- A death is attributed to a job only if the job was a suspect, claimed alone, and its start is recorded.
--
-- Parameters: p_suspects, whether the jobs return as suspects; false when the worker itself reports
--   that it never started them; p_signal, the signal that ended the process, if that is known.
-- Returns: the number of jobs sent back; null when the lease was closed already.
-- Errors: 55P03 when a transaction holds a settlement open; try again.
-- Locks: the lease (FOR UPDATE).
create function forebay._revoke(p_lease_id bigint, p_closed_as text, p_suspects boolean, p_signal integer default null) returns bigint
language plpgsql volatile
as $$
declare
    v_worker  text;
    v_floor   bigint;
    v_batch   record;
    v_lane    record;
    v_row     forebay.log;
    v_attempt integer;
    v_target  bigint;
    v_open    integer;
    v_started boolean;
    v_sent    bigint := 0;
    v_held    text[];  -- keys whose next job is in a new row
    v_dead    text[];
    v_requeued text[]; -- keys of jobs that wait behind one that was settled before
    v_back    text[] := '{}';  -- groups and keys of jobs that this revocation sent back
    v_letters bigint[] := '{}';
    v_kinds   text[] := '{}';  -- of each job that it held, with the ids
    v_ids     bigint[] := '{}';
    v_used    integer := 0;  -- jobs that have used an attempt
    v_holds   boolean;
    v_claims  bigint[] := '{}';  -- the settlements that it writes
    v_flushes integer[] := '{}';
begin
    select l.worker into v_worker from forebay.lease l
    where l.lease_id = p_lease_id and l.closed_at is null for update;
    if not found then
        return null;
    end if;
    update forebay.lease l set closed_at = forebay._now(), closed_as = p_closed_as, signal = p_signal where l.lease_id = p_lease_id;

    select b.floor into v_floor from forebay.batch b
    where b.lease_id = p_lease_id order by b.claim_no desc limit 1;

    for v_batch in
        select b.claim_no, b.group_id, b.lane, b.seqs, b.xids, b.lanes, b.keys, b.limit_keys, s.whole, s.offsets
        from forebay.batch b
        cross join lateral (
            select coalesce(bool_or(i.offsets is null), false) as whole,
                   array(select o from forebay.settlement j, unnest(j.offsets) o
                         where j.lease_id = p_lease_id and j.claim_no = b.claim_no) as offsets
            from forebay.settlement i
            where i.lease_id = p_lease_id and i.claim_no = b.claim_no) s
        where b.lease_id = p_lease_id and b.claim_no >= coalesce(v_floor, 0)
        order by b.claim_no
    loop
        continue when v_batch.whole;
        select l.queue, l.priority, l.audience into v_lane from forebay.lane l where l.lane = v_batch.lane limit 1;
        v_held := null;
        v_dead := '{}';
        v_requeued := '{}';
        if v_batch.keys is not null then
            v_held := forebay._keys_in_transit(p_lease_id, v_batch.claim_no, v_batch.keys)
                      || forebay._keys_before(v_batch.group_id, p_lease_id, v_batch.claim_no, v_batch.keys);
        end if;
        v_started := v_lane.audience < 0 and exists (
            select from forebay.suspect_start s where s.lease_id = p_lease_id and s.claim_no = v_batch.claim_no);
        for v_open in
            select i from generate_subscripts(v_batch.seqs, 1) i
            where i <> all (v_batch.offsets) order by i
        loop
            v_sent := v_sent + 1;
            v_claims := v_claims || v_batch.claim_no;
            v_flushes := v_flushes || -v_open;
            v_row := forebay._row(coalesce(v_batch.lanes[v_open], v_batch.lane),
                                  coalesce(v_batch.xids[v_open], v_batch.xids[1]), v_batch.seqs[v_open]);
            v_kinds := v_kinds || v_row.kind;
            v_ids := v_ids || coalesce(v_row.job_id, v_row.seq);
            -- A later job of a key had begun only if the end of those before it was not yet recorded: it becomes a suspect after them.
            if v_batch.keys[v_open] = any (v_held) then
                insert into forebay.settlement (lease_id, claim_no, flush_no, settled_at, offsets, outcomes)
                values (p_lease_id, v_batch.claim_no, -v_open, forebay._now(), array[v_open::smallint], array['k'::"char"]);
                if format('%s %s', v_batch.group_id, v_batch.keys[v_open]) <> all (v_back) then
                    v_requeued := v_requeued || v_batch.keys[v_open];
                end if;
                perform forebay._look_if_cancelled(v_row);
                continue;
            end if;
            v_attempt := coalesce(v_row.attempt, 0);
            if p_suspects and v_started then
                v_attempt := v_attempt + 1;
                v_used := v_used + 1;
                perform forebay._record_failure(v_row, v_batch.group_id, v_attempt, 'worker lost',
                    jsonb_build_object('type', 'WorkerLost', 'message', 'the worker died while it ran this job alone',
                                       'max_attempts', forebay._setting_value('max_attempts')), v_worker);
                if v_attempt >= coalesce(v_row.max_attempts, forebay._queue_attempts(v_lane.queue), forebay._setting_value('max_attempts')) then
                    v_holds := v_row.ordering_key is not null
                               and exists (select from forebay.kind_queue k where k.kind = v_row.kind and k.holds_key);
                    v_letters := v_letters || forebay._write_dead_letter(
                        v_batch.group_id, v_lane.queue, v_lane.priority, v_row, 'worker lost', v_attempt, v_holds);
                    insert into forebay.settlement (lease_id, claim_no, flush_no, settled_at, offsets, outcomes)
                    values (p_lease_id, v_batch.claim_no, -v_open, forebay._now(), array[v_open::smallint], array[case when v_holds then 'y' else 'x' end::"char"]);
                    if v_holds then
                        v_held := v_held || v_row.ordering_key;
                        v_back := v_back || format('%s %s', v_batch.group_id, v_row.ordering_key);
                    elsif v_row.ordering_key is not null then
                        v_dead := v_dead || v_row.ordering_key;
                    end if;
                    continue;
                end if;
            end if;
            if v_row.ordering_key is not null then
                v_held := v_held || v_row.ordering_key;
                v_back := v_back || format('%s %s', v_batch.group_id, v_row.ordering_key);
            end if;
            v_target := forebay._record_private_lane(
                v_lane.queue, (select l.priority from forebay.lane l where l.lane = v_row.lane limit 1),
                case when p_suspects or v_lane.audience < 0 then -v_batch.group_id else v_batch.group_id end,
                v_row.ordering_key, v_row.limit_key);
            perform forebay._leave_wait(coalesce(v_row.job_id, v_row.seq), v_batch.group_id);
            perform forebay._continue_job(v_row, v_target, v_attempt,
                case when p_suspects and v_started then 0 else coalesce(v_row.pauses, 0) end,
                case when p_suspects and v_started
                     then forebay._now() + make_interval(secs => least(3600, 5 * 2 ^ least(v_attempt - 1, 20))) end);
            insert into forebay.settlement (lease_id, claim_no, flush_no, settled_at, offsets, outcomes)
            values (p_lease_id, v_batch.claim_no, -v_open, forebay._now(), array[v_open::smallint],
                    array[case when p_suspects then 'l' else 'h' end::"char"]);
        end loop;
        if v_batch.limit_keys is not null then
            perform forebay._release_limits(v_batch.lane, v_batch.group_id, v_batch.limit_keys, false);
        end if;
        -- Requeued behind a dead letter that may hold the key no longer: a claim that read the recheck row of its end found these jobs open.
        v_dead := v_dead || v_requeued;
        if v_dead <> '{}' then
            perform forebay._announce_keys(
                v_lane.queue, v_lane.priority, v_batch.group_id, array(select distinct k from unnest(v_dead) k order by k));
        end if;
    end loop;
    if v_letters <> '{}' then
        perform forebay._report_deaths(v_letters);
    end if;
    if v_claims <> '{}' and pg_sequence_last_value('forebay.notices_seq') is not null then
        perform forebay._announce_settled(p_lease_id, v_claims, v_flushes);
    end if;
    perform forebay._record_end(p_lease_id, v_kinds, v_ids, v_used);
    return v_sent;
end
$$;


-- Record with a lease that is closed its worker's last sign of life, who asked it to stop, and what it held, and in the event log that it was lost.
--
-- Invariant "each end is recorded": this is the transaction that closes the lease and sends its jobs back, so there are all three, or none.
-- `held` has at most 20 kinds with their counts and 20 jobs, those first that ran at the last heartbeat.
create function forebay._record_end(p_lease_id bigint, p_kinds text[], p_job_ids bigint[], p_used integer) returns void
language plpgsql volatile
as $$
declare
    v_lease   forebay.lease;
    v_alive   timestamptz;
    v_running bigint[];
begin
    select h.heartbeat_at, h.running_jobs into v_alive, v_running from forebay.heartbeat h
    where h.lease_id = p_lease_id and h.heartbeat_at <= forebay._now() + interval '1 second' order by h.heartbeat_at desc limit 1;
    update forebay.lease l
    set alive_at = greatest(v_alive, (select b.claimed_at from forebay.batch b where b.lease_id = p_lease_id order by b.claim_no desc limit 1)),
        stop_by = (select s.stop_by from forebay.worker_setting s where s.worker = l.worker),
        held = case when p_kinds <> '{}' then jsonb_build_object(
            'jobs', cardinality(p_kinds), 'used_attempt', p_used,
            'kinds', (select jsonb_object_agg(k.kind, k.jobs)
                      from (select u.kind, count(*) as jobs from unnest(p_kinds) u (kind) where u.kind is not null
                            group by u.kind order by count(*) desc, u.kind limit 20) k),
            'job_ids', (select jsonb_agg(i.id order by i.nr)
                        from (select u.id, row_number() over (order by (u.id = any (v_running)) is not true, u.nr) as nr
                              from unnest(p_job_ids) with ordinality u (id, nr)) i where i.nr <= 20)) end
    where l.lease_id = p_lease_id returning l.* into v_lease;
    if v_lease.closed_as = 'revoked' then
        perform forebay._record_event(
            'workers.lost', p_group => v_lease.details ->> 'group', p_detail => v_lease.worker,
            p_count => cardinality(p_kinds),
            p_new => jsonb_strip_nulls(jsonb_build_object('alive_at', v_lease.alive_at, 'signal', v_lease.signal, 'held', v_lease.held)));
    end if;
end
$$;
