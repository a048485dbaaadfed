-- Settlement: how jobs of a batch ended, appended; and the jobs that continue in a new row.
-- grant: worker

-- Record how jobs of a lease's batches ended. List batches with ordering keys in the order in which
-- they were claimed. Returns one row per flush. `p_flushes` is an array of objects, processed in
-- order:
--
-- Keys:
--   claim_no, flush_no  the flush's name; a repeated name is recognised. A negative `flush_no`
--                       settles the single job at that offset, and no other
--   done                offsets of done jobs; null, with nothing in `ended`: the whole batch
--   millis              durations in the order of `done`, or null
--   ended               objects with `offset`, `outcome`, and as needed `after` (seconds),
--                       `reason`, `error` (`type`, `message`, `traceback`, and `max_attempts` if it
--                       is known), `millis`, `kept`, `follow_up` and `subject`. With
--                       `"holds_key": true` a dead job holds its ordering key
--   kept                in `ended`, with outcome done: `value`, `seconds`, `problem`; the handler's
--                       return value, which is kept for this time
--   follow_up           in `ended`, with outcome done or dead: the job that this transaction
--                       enqueues, with `kind`, its options, and `returned` as `kept`, if that is
--                       not given; null: none. Without it, a dead job has the follow-up that
--                       forebay.record_kinds_v1() recorded
--   subject             in `ended`: `then` (again, complete or drop), `at` or `after` or `interval`
--                       or `every`, `data`, `args`
--   attempts            in `ended`: how many attempts count as used, this one included; without it,
--                       one more than before. A flow that recorded a checkpoint begins anew
--   of_step             in `ended`: true, a step has failed, and its policy has decided; the
--                       queue's maximum of attempts does not count
--   flow                in `ended`, with outcome snoozed: what the flow waits for: `steps`, its
--                       checkpoints as for forebay.record_steps_v1(); `until` or `after` (seconds), when
--                       it continues at the latest; `wait` (`name`, `key`, `no`, `step`, `step_key`) or `gather`
--   children            of `done`: those that are children of a gather, with `gather`, `nr`,
--                       `job_id`, and as needed `value` and `problem`
--   counters            the counters of mirrors, as for forebay.record_direct(); kept if, and only
--                       if, the flush is settled
--
-- Outcomes:
--   retried    uses an attempt
--   lost       the same; the job comes back as a suspect
--   snoozed, unknown, released
--              it comes back; `unknown`: its kind is
--   cancelled  it has ended
--   dead       with the reason exhausted, permanent or worker lost
--
-- A job with a cancellation request is cancelled where it would run again. In a queue with a
-- maximum of attempts, that decides whether a failed attempt is retried: see
-- forebay.set_max_attempts(). A job with an ordering key that would run again while an earlier one
-- of its key in the lease has not ended is requeued behind it instead, whatever its outcome,
-- without using an attempt.
--
-- Statuses:
--   settled        the only one that wrote anything
--   repeated       this flush was settled before
--   unknown_batch  a server crash undid the claim
--   refused        an offset is not in the batch or was settled before
--
-- Errors: JQ001 an unknown outcome, JQ010 the lease is closed; 40001 in a REPEATABLE READ
--   transaction older than the revocation.
-- Transaction: any. Inside an open transaction the settlement commits with it, and
--   `idle_in_transaction_session_timeout` is set to 5 s for that transaction, so that a vanished
--   handler cannot delay a revocation.
-- Locks: in this order, the lease (KEY SHARE), until the transaction ends; unless `flush_no` is
--   negative, for jobs with limit keys the group's limiter, for jobs with ordering keys the lock of
--   these (both shared). Claims wait for the latter: call the function alone.
--
-- Inside: Invariants: "single holder" (a late settlement changes nothing and returns an error),
-- "nothing lost".
-- pages: 40 + 12 a job + 40 a job that follows
create function forebay.settle_v1(p_lease_id bigint, p_flushes jsonb)
returns table (claim_no bigint, flush_no integer, status text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
declare
    v_worker   text;
    v_was      text;
    v_flush    jsonb;
    v_item     jsonb;
    v_batch    record;
    v_ended    jsonb;
    v_offsets  smallint[];
    v_outcomes "char"[];
    v_millis   integer[];
    v_done     integer;
    v_at       constant timestamptz := forebay._now();
    v_has_notices constant boolean := pg_sequence_last_value('forebay.notices_seq') is not null;
    v_claims   bigint[];                 -- with notices: the flushes that were settled
    v_flushes  integer[];
begin
    select l.worker into v_worker from forebay.lease l
    where l.lease_id = p_lease_id and l.closed_at is null for key share;
    if not found then
        raise exception using errcode = 'JQ010',
            message = format('lease %s is closed', p_lease_id),
            detail = jsonb_build_object('lease', p_lease_id),
            hint = 'Its jobs were given to other workers; this settlement changed nothing.';
    end if;
    v_was := set_config('idle_in_transaction_session_timeout', '5s', true);

    for v_index in 0 .. coalesce(jsonb_array_length(p_flushes), 0) - 1 loop
        v_flush := p_flushes -> v_index;
        claim_no := (v_flush ->> 'claim_no')::bigint;
        flush_no := (v_flush ->> 'flush_no')::integer;
        v_ended := coalesce(v_flush -> 'ended', '[]');
        v_offsets := null;
        v_outcomes := null;
        v_millis := case when jsonb_typeof(v_flush -> 'millis') = 'array'
                         then translate(v_flush ->> 'millis', '[]', '{}')::integer[] end;

        -- Nearly always all of a batch is done, and nothing of it was settled before: one statement.
        if jsonb_typeof(v_flush -> 'done') is distinct from 'array' and v_ended = '[]' and flush_no >= 0 then
            insert into forebay.settlement (lease_id, claim_no, flush_no, settled_at, millis)
            select p_lease_id, b.claim_no, settle_v1.flush_no, v_at, v_millis
            from forebay.batch b
            where b.lease_id = p_lease_id and b.claim_no = settle_v1.claim_no and b.keys is null and b.limit_keys is null
              and not exists (select from forebay.settlement s
                              where s.lease_id = p_lease_id and s.claim_no = settle_v1.claim_no)
            on conflict do nothing;
            if found then
                if v_flush ? 'counters' then
                    perform forebay._record_counters(t.value, v_worker) from jsonb_array_elements(v_flush -> 'counters') t;
                end if;
                if v_flush ? 'children' then
                    perform forebay._end_children(v_flush -> 'children');
                end if;
                if v_has_notices then
                    v_claims := v_claims || claim_no;
                    v_flushes := v_flushes || flush_no;
                end if;
                status := 'settled';
                return next;
                continue;
            end if;
        end if;

        select b.group_id, b.lane, b.seqs, b.xids, cardinality(b.seqs) as size, b.lanes, b.keys, b.tails, b.parked_no,
               b.limit_keys into v_batch
        from forebay.batch b where b.lease_id = p_lease_id and b.claim_no = settle_v1.claim_no;
        if not found then
            status := 'unknown_batch';
            return next;
            continue;
        end if;
        if exists (select from forebay.settlement s
                   where s.lease_id = p_lease_id and s.claim_no = settle_v1.claim_no and s.flush_no = settle_v1.flush_no) then
            status := 'repeated';
            return next;
            continue;
        end if;

        if v_ended <> '[]'::jsonb then
            if pg_sequence_last_value('forebay.queue_attempts_seq') is not null then
                v_ended := forebay._with_queue_attempts(v_batch.lane, v_batch.lanes, v_batch.xids, v_batch.seqs, v_ended);
            end if;
        end if;
        if jsonb_typeof(v_flush -> 'done') = 'array' or v_ended <> '[]'::jsonb then
            if jsonb_typeof(v_flush -> 'done') = 'array' then
                v_offsets := array(select o::smallint from jsonb_array_elements_text(v_flush -> 'done') o);
            else
                v_offsets := '{}';
            end if;
            v_done := cardinality(v_offsets);
            v_offsets := v_offsets || array(select (e.value ->> 'offset')::smallint from jsonb_array_elements(v_ended) e);
            if v_offsets = '{}' or flush_no < 0 and (v_offsets[1] <> -flush_no or cardinality(v_offsets) > 1)
               or exists (select from unnest(v_offsets) o where o is null or o not between 1 and v_batch.size)
               or cardinality(v_offsets) <> (select count(distinct o) from unnest(v_offsets) o) then
                status := 'refused';
                return next;
                continue;
            end if;
            if v_ended <> '[]'::jsonb then
                v_outcomes := array_fill('d'::"char", array[v_done]) || array(
                    select forebay._outcome_code(e.value ->> 'outcome', (e.value ->> 'holds_key')::boolean and v_batch.keys[(e.value ->> 'offset')::integer] is not null,
                                                 v_batch.seqs[(e.value ->> 'offset')::integer],
                                                 coalesce(v_batch.lanes[(e.value ->> 'offset')::integer], v_batch.lane),
                                                 v_batch.xids, (e.value ->> 'offset')::integer, v_batch.group_id)
                    from jsonb_array_elements(v_ended) e);
                v_millis := coalesce(v_millis, array_fill(null::integer, array[v_done]))
                            || array(select (e.value ->> 'millis')::integer from jsonb_array_elements(v_ended) e);
                if v_batch.keys is not null then
                    v_outcomes := forebay._requeued(v_batch.group_id, p_lease_id, settle_v1.claim_no, v_batch.keys, v_offsets, v_outcomes);
                end if;
            end if;
        end if;
        if flush_no < 0 and v_offsets is null or exists (
                   select from forebay.settlement s
                   where s.lease_id = p_lease_id and s.claim_no = settle_v1.claim_no
                     and (s.offsets is null or v_offsets is null or s.offsets && v_offsets)) then
            status := 'refused';
            return next;
            continue;
        end if;

        insert into forebay.settlement (lease_id, claim_no, flush_no, settled_at, offsets, outcomes, millis)
        values (p_lease_id, settle_v1.claim_no, settle_v1.flush_no, v_at, v_offsets, v_outcomes, v_millis)
        on conflict do nothing;
        if not found then
            status := 'repeated';
            return next;
            continue;
        end if;
        for v_item in select e.value from jsonb_array_elements(v_ended) e loop
            v_done := v_done + 1;
            perform forebay._end(v_batch.group_id, v_batch.lane,
                                 forebay._row(coalesce(v_batch.lanes[(v_item ->> 'offset')::integer], v_batch.lane),
                                              coalesce(v_batch.xids[(v_item ->> 'offset')::integer], v_batch.xids[1]),
                                              v_batch.seqs[(v_item ->> 'offset')::integer]),
                                 v_outcomes[v_done], v_item, v_worker);
        end loop;
        if v_batch.keys is not null then
            -- Claims take the locks in this order.
            if (v_batch.limit_keys is not null or jsonb_array_length(p_flushes) > 1)
               and pg_sequence_last_value('forebay.limiter_seq') is not null and forebay._may_look(settle_v1.flush_no) then
                perform forebay._lock_limiter(v_batch.group_id, true);
            end if;
            perform forebay._release_keys(p_lease_id, settle_v1.claim_no, v_batch.lane, v_batch.group_id, v_batch.keys,
                                          v_batch.tails, v_batch.parked_no, settle_v1.flush_no, v_offsets, v_outcomes);
        end if;
        if v_batch.limit_keys is not null then
            perform forebay._release_limits(
                v_batch.lane, v_batch.group_id,
                case when v_offsets is null then v_batch.limit_keys else array(select v_batch.limit_keys[o] from unnest(v_offsets) o) end,
                forebay._may_look(settle_v1.flush_no));
        end if;
        if v_flush ? 'counters' then
            perform forebay._record_counters(t.value, v_worker) from jsonb_array_elements(v_flush -> 'counters') t;
        end if;
        if v_flush ? 'children' then
            perform forebay._end_children(v_flush -> 'children');
        end if;
        if v_has_notices then
            v_claims := v_claims || claim_no;
            v_flushes := v_flushes || flush_no;
        end if;
        status := 'settled';
        return next;
    end loop;
    if v_claims is not null then
        perform forebay._announce_settled(p_lease_id, v_claims, v_flushes);
    end if;
end
$$;


-- Settle one job as done, as the last act of its handler's transaction: what forebay.settle_v1()
-- does with the flush that is named minus the offset. It raises an error where forebay.settle_v1()
-- returns a status, so the commit may follow in the same message.
--
-- Parameters:
--   p_offset  of the job in its batch, from 1
--   p_millis  how long its handler ran
--   p_clear   also clear what the transaction leaves in the session: cursors, settings (that of the
--             idle time too: send the commit in the same message), LISTEN, locks of the session,
--             sequences and temporary tables. Roles stay: a function cannot reset them
--
-- Errors: JQ010 the lease is closed, JQ019 the batch is unknown, the job is not in it, or it was
--   settled before; 40001 in a REPEATABLE READ transaction older than the revocation.
-- Transaction: any. Without `p_clear`, `idle_in_transaction_session_timeout` is set to 5 s for that
--   transaction.
-- Locks: the lease (KEY SHARE); for jobs with ordering or limit keys as forebay.settle_v1().
--
-- Inside: Invariant "one settlement, two forms": it writes the row that settle_v1 would write, and
-- takes the same locks, so either may repeat or contradict the other. A settlement with a negative
-- flush_no has exactly that offset; so the primary key refuses a second one, and of the others only
-- those of flushes are read: the cost does not grow with the jobs of the batch that were settled
-- one by one.
-- pages: 60
create function forebay.settle_job_v1(
    p_lease_id bigint, p_claim_no bigint, p_offset integer, p_millis integer, p_clear boolean default false)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
declare
    v_status text;
begin
    insert into forebay.settlement (lease_id, claim_no, flush_no, settled_at, offsets, millis)
    select l.lease_id, b.claim_no, -p_offset, forebay._now(), array[p_offset::smallint], array[p_millis]
    from forebay.lease l, forebay.batch b
    where l.lease_id = p_lease_id and l.closed_at is null
      and b.lease_id = p_lease_id and b.claim_no = p_claim_no and b.keys is null and b.limit_keys is null
      and p_offset between 1 and cardinality(b.seqs)
      and not exists (select from forebay.settlement s
                      where s.lease_id = p_lease_id and s.claim_no = p_claim_no and s.flush_no >= 0
                        and (s.offsets is null or p_offset = any (s.offsets)))
    for key share of l
    on conflict do nothing;
    if not found then
        select s.status into v_status
        from forebay.settle_v1(p_lease_id, jsonb_build_array(jsonb_build_object(
            'claim_no', p_claim_no, 'flush_no', -p_offset, 'done', jsonb_build_array(p_offset), 'millis', jsonb_build_array(p_millis)))) s;
        if v_status is distinct from 'settled' then
            raise exception using errcode = 'JQ019',
                message = format('job %s of batch %s of lease %s cannot be settled: %s', p_offset, p_claim_no, p_lease_id, v_status),
                detail = jsonb_build_object('lease', p_lease_id, 'claim_no', p_claim_no),
                hint = 'It was settled before, or its claim was lost. This call changed nothing.';
        end if;
    elsif pg_sequence_last_value('forebay.notices_seq') is not null then
        perform forebay._announce_settled(p_lease_id, array[p_claim_no], array[-p_offset]);
    end if;
    if p_clear then
        perform forebay._clear_session();
    else
        perform set_config('idle_in_transaction_session_timeout', '5s', true);
    end if;
end
$$;


-- Clear what the transaction of a handler leaves in its session, except for roles, which a function cannot reset.
create function forebay._clear_session() returns void
language plpgsql volatile
as $$
begin
    execute 'close all';
    reset all;
    unlisten *;
    perform pg_advisory_unlock_all();
    discard sequences;
    discard temp;
end
$$;


-- The code of an outcome; c for cancelled when the job would run again and its cancellation was requested, or it was replaced.
create function forebay._outcome_code(
    p_outcome text, p_holds_key boolean, p_seq bigint, p_lane bigint, p_xids xid8[], p_offset integer, p_group_id bigint)
returns "char"
language plpgsql stable
as $$
declare
    v_row forebay.log;
begin
    if p_outcome = 'done' then
        return 'd';
    elsif p_outcome = 'cancelled' then
        return 'c';
    elsif p_outcome = 'dead' then
        return case when p_holds_key then 'y' else 'x' end;
    elsif p_outcome is null or p_outcome not in ('retried', 'snoozed', 'released', 'unknown', 'lost') then
        raise exception using errcode = 'JQ001', message = format('unknown outcome %s', coalesce(quote_literal(p_outcome), 'null')),
            hint = 'One of done, retried, lost, snoozed, unknown, released, cancelled, dead.';
    end if;
    if pg_sequence_last_value('forebay.tombstone_seq') is not null then
        v_row := forebay._row(p_lane, coalesce(p_xids[p_offset], p_xids[1]), p_seq);
        if exists (select from forebay.tombstone t
                   where t.job_id = coalesce(v_row.job_id, v_row.seq) and t.reason in ('c', 'r')
                     and (t.group_id is null or t.group_id = p_group_id)) then
            return 'c';
        end if;
    end if;
    return case p_outcome when 'retried' then 'r' when 'snoozed' then 's' when 'released' then 'h'
                          when 'unknown' then 'u' else 'l' end;
end
$$;


-- Effects of the end of one job: the new row in which it continues, or its dead letter, and its error.
create function forebay._end(
    p_group_id bigint, p_lane bigint, p_row forebay.log, p_code "char", p_item jsonb, p_worker text)
returns void
language plpgsql volatile
as $$
declare
    v_lane    record;
    v_attempt integer := coalesce((p_item ->> 'attempts')::integer, coalesce(p_row.attempt, 0) + case when p_code in ('r', 'l', 'x', 'y') then 1 else 0 end);
    v_target  bigint;
    v_run_at  timestamptz;
    v_dead_id bigint;
begin
    -- Jobs with limit keys that were parked may be of another lane than the batch.
    select l.queue, i.priority, l.audience into v_lane
    from forebay.lane l, forebay.lane i where l.lane = p_lane and i.lane = p_row.lane limit 1;
    perform forebay._leave_wait(coalesce(p_row.job_id, p_row.seq), p_group_id);
    if p_item #> '{flow,steps}' is not null then
        perform forebay._record_steps(p_item #> '{flow,steps}');
    end if;
    if p_item ? 'error' and jsonb_typeof(p_item -> 'error') = 'object' then
        perform forebay._record_failure(
            p_row, p_group_id, coalesce(p_row.attempt, 0) + 1,
            case p_code when 'r' then 'retried' when 'l' then 'worker lost' when 'x' then 'dead' when 'y' then 'dead' when 'c' then 'cancelled'
                        when 'u' then 'unknown kind' when 's' then 'snoozed' else 'released' end,
            p_item -> 'error', p_worker);
    end if;
    if p_code in ('x', 'y') then
        v_dead_id := forebay._write_dead_letter(
            p_group_id, v_lane.queue, v_lane.priority, p_row, coalesce(p_item ->> 'reason', 'permanent'), v_attempt, p_code = 'y',
            p_item -> 'follow_up');
        if p_item ? 'is_decided_here' then
            perform forebay._report_deaths(array[v_dead_id]);  -- The worker expects a retry.
        end if;
    elsif p_code in ('r', 'l', 's', 'u', 'h') then
        -- A suspect that is released unstarted remains a suspect; a suspect that ended normally is cleared.
        v_target := forebay._record_private_lane(
            v_lane.queue, v_lane.priority,
            case when p_code = 'l' or (p_code = 'h' and v_lane.audience < 0) then -p_group_id else p_group_id end,
            p_row.ordering_key, p_row.limit_key);
        if coalesce((p_item ->> 'after')::double precision, 0) > 0 then
            v_run_at := forebay._now() + make_interval(secs => (p_item ->> 'after')::double precision);
        end if;
        if p_item ? 'flow' then
            if p_code = 's' then
                v_run_at := forebay._park(p_row, p_group_id, p_item -> 'flow');
            end if;
        end if;
        perform forebay._continue_job(p_row, v_target, v_attempt,
                               case when p_code in ('r', 'l') then 0
                                    else coalesce(p_row.pauses, 0) + case when p_code in ('s', 'u') then 1 else 0 end end,
                               v_run_at);
    end if;
    if p_code = 'd' and p_item ? 'kept' then
        perform forebay._keep_result(p_row, p_group_id, p_item -> 'kept');
    end if;
    if p_code = 'd' and jsonb_typeof(p_item -> 'follow_up') = 'object' then
        perform forebay._follow_done(p_row, p_group_id, p_item);
    end if;
    if p_row.headers ? 'forebay-subject' and (p_code = 'd' and p_item ? 'subject' or p_code = 'c') then
        perform forebay._end_subject(v_lane.queue, p_row, p_code, p_item, p_item ->> 'reason');
    end if;
    if p_code = 'c' and p_row.headers ? 'forebay-parent' then
        perform forebay._end_child(p_row, 'c', p_item ->> 'reason');
    end if;
    if p_code in ('d', 'x', 'y', 'c') then
        perform forebay._announce_ended(coalesce(p_row.job_id, p_row.seq));
    end if;
end
$$;
