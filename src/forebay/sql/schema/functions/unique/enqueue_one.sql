-- Enqueue a checked job that has a unique key.
--
-- If several producers would make the same generation, one does; the others wait for its commit or rollback, in the insert,
-- or, with on_busy raise, fail at once. A generation is made while the row of its predecessor is locked, so that maintenance, which
-- deletes old generations, cannot restart the numbering between the read and the insert.
--
-- A call that joins a waiting job (coalesce) locks its row until the caller's transaction ends, and reads again whether it
-- still waits: the claim that starts the job sees the lock. See forebay._append_successors().
create function forebay._enqueue_unique(
    p_job forebay._job_input, p_start timestamptz, p_unique_as jsonb, p_where text,
    out job_id bigint, out is_new boolean, out replaced bigint)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_now     constant timestamptz := forebay._now();
    v_mode  constant text := forebay._uniqueness_mode(p_unique_as);
    v_code    constant "char" := left(v_mode, 1);
    v_key     constant text := p_unique_as ->> v_mode;
    v_raise   constant boolean := coalesce(p_unique_as ->> 'on_busy' = 'raise', false);
    v_payload bytea;
    v_start   timestamptz := p_start;
    v_first   timestamptz;
    v_last    forebay.unique_key;
    v_key_state   text;
    v_lane    bigint;
begin
    is_new := false;
    if v_mode = 'idempotent' then
        v_payload := sha256(convert_to(p_job.kind || ' ' || coalesce(p_unique_as -> 'request', p_job.args)::text, 'UTF8'));
    end if;
    v_lane := case when p_job.ordering_key is not null then forebay._record_keyed_lane(p_job.queue, p_job.priority, 0)
                   when p_job.limit_key is not null then forebay._record_limited_lane(p_job.queue, p_job.priority, 0)
                   else forebay._pick_lane(p_job.queue, p_job.priority) end;
    loop
        replaced := null;
        v_key_state := 'ended';
        select u.* into v_last from forebay.unique_key u
        where u.queue = p_job.queue and u.mode = v_code and u.key = v_key
        order by u.gen desc limit 1;
        if v_last.gen is not null then
            if v_mode = 'throttle' then
                v_key_state := case when v_last.free_at > v_now then 'waiting' else 'ended' end;
            else
                v_key_state := forebay._key_state(v_last);
            end if;
            job_id := v_last.job_id;
            if v_mode in ('once', 'idempotent', 'throttle') and v_key_state <> 'ended' then
                if v_payload <> v_last.payload then
                    perform forebay._raise_differs(v_key, v_last.job_id, p_where);
                end if;
                return;
            end if;
            if not forebay._hold_key(v_last, v_mode = 'coalesce' and v_key_state = 'waiting', v_raise, p_where) then
                continue;
            end if;
            if v_mode = 'coalesce' and v_key_state = 'waiting' then
                if forebay._key_state(v_last) = 'waiting' then
                    return;
                end if;
                continue;
            end if;
        end if;

        if v_mode = 'debounce' then
            v_first := case when v_key_state = 'waiting' then v_last.first_at else v_now end;
            v_start := least(v_now + make_interval(secs => forebay._unique_seconds(p_unique_as, 'wait')),
                             v_first + make_interval(secs => forebay._unique_seconds(p_unique_as, 'max_wait')));
        end if;
        job_id := forebay._make_generation(
            p_job.queue, v_code, v_key, v_last, v_raise, p_where, v_lane, v_start > v_now,
            coalesce(p_job.expires_at, greatest(v_start, v_now) + interval '30 days'),
            case when v_mode = 'throttle' then v_now + make_interval(secs => forebay._unique_seconds(p_unique_as, 'period')) end,
            v_first, v_payload, case when v_key_state = 'running' then v_last.gen end);
        exit when job_id is not null;
    end loop;
    is_new := true;
    if v_key_state <> 'ended' then
        -- Whatever the state of the predecessor, it does not start again.
        insert into forebay.tombstone (job_id, reason, recorded_at) values (v_last.job_id, 'r', v_now);
        perform forebay._withdraw(array[v_last.job_id]);
        perform forebay._note_cancelled_jobs(array[v_last.job_id]);
        if v_key_state = 'waiting' then
            perform forebay._announce_jobs(p_job.queue, null, 'cancelled', array[v_last.job_id]);
            replaced := v_last.job_id;
        end if;
    end if;
    if v_mode = 'coalesce' then
        insert into forebay.tombstone (job_id, reason, recorded_at) values (job_id, 'k', v_now);
    end if;

    if pg_sequence_last_value('forebay.limit_seq') is not null then
        perform forebay._require_below_max_waiting(p_job.queue, 1);
    end if;
    if v_start > v_now then
        insert into forebay.deferred (run_at, lane, enqueued_at, job_id, expires_at, unique_key, {job})
        values (
            v_start, v_lane, v_now, job_id, coalesce(p_job.expires_at, v_start + interval '30 days'), v_key, {job of p_job});
        perform forebay._announce_due(v_start);
    else
        -- Its number was drawn after its xid, with the generation.
        insert into forebay.log (seq, lane, enqueued_at, expires_at, unique_key, {job})
        values (job_id, v_lane, v_now, p_job.expires_at, v_key, {job of p_job});
        perform forebay._notify(p_job.queue);
    end if;
end
$$;


-- Lock the row of a generation until the transaction ends; false when maintenance has deleted it.
--
-- Parameters: p_join, lock it so that the claim that starts the job notices; p_where, text before the message of an error.
-- Errors: JQ004 with p_raise, when it cannot be locked at once.
create function forebay._hold_key(p_key forebay.unique_key, p_join boolean, p_raise boolean, p_where text) returns boolean
language plpgsql volatile
as $$
declare
    v_timeout constant text := current_setting('lock_timeout');
    v_held    boolean;
begin
    if p_raise then
        begin
            perform set_config('lock_timeout', '10ms', true);
            v_held := forebay._hold_key(p_key, p_join, false, p_where);
            perform set_config('lock_timeout', v_timeout, true);
            return v_held;
        exception when lock_not_available then
            perform forebay._raise_busy(p_key.key, p_where);
        end;
    elsif p_join then
        perform from forebay.unique_key u
        where u.queue = p_key.queue and u.mode = p_key.mode and u.key = p_key.key and u.gen = p_key.gen for share;
    else
        perform from forebay.unique_key u
        where u.queue = p_key.queue and u.mode = p_key.mode and u.key = p_key.key and u.gen = p_key.gen for key share;
    end if;
    return found;
end
$$;
