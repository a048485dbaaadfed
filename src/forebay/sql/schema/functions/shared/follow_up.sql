-- The problem with what a kind declares as its follow-up, or null: see forebay._enqueue_follow_up() for its keys.
create function forebay._follow_up_problem(p_follow_up jsonb) returns text
language plpgsql stable
as $$
declare
    v_keys constant text[] := array['kind', 'queue', 'priority', 'delay', 'expires_in', {options keys}];
    v_key  text;
begin
    if jsonb_typeof(p_follow_up) is distinct from 'object' then
        return 'a follow-up is not an object';
    end if;
    -- Also those that _enqueue_follow_up() would read without a check: it must not fail.
    v_key := (select k from jsonb_object_keys(p_follow_up - v_keys) k order by 1 limit 1);
    if v_key is not null then
        return format('%s is no option of a follow-up: %s', left(v_key, 40), array_to_string(v_keys, ', '));
    end if;
    foreach v_key in array array['priority', 'max_attempts', 'delay', 'expires_in'] loop
        if p_follow_up ->> v_key !~ (case when v_key in ('priority', 'max_attempts') then '^-?[0-9]{1,9}$'
                                          else '^[0-9]{1,10}([.][0-9]{1,20})?$' end) then
            return format('%s %s of a follow-up is not such a number', v_key, left(p_follow_up ->> v_key, 40));
        end if;
    end loop;
    if (p_follow_up ->> 'expires_in')::numeric <= 0 then
        return format('expires_in %s of a follow-up is not above 0', p_follow_up ->> 'expires_in');
    end if;
    return forebay._job_problem(
        row(coalesce(p_follow_up ->> 'queue', 'default'), coalesce((p_follow_up ->> 'priority')::integer, 100), null, null, null,
            {job of j})::forebay._job_input,
        make_interval(secs => coalesce((p_follow_up ->> 'delay')::double precision, 0)))
    from jsonb_populate_record(null::forebay._job_input, p_follow_up - '{run_at,expires_at}'::text[] || '{"args": {}}') j;
end
$$;


-- Enqueue the follow-up of a job that has ended in a group.
--
-- Invariant "one end, one follow-up": called in the transaction that ends the job in its group, where it ends it, once. So it must not
-- fail: what it gets was checked by forebay._follow_up_problem(), or by the worker; no unique key applies, and max_waiting of its queue
-- counts for producers only.
--
-- Parameters:
--   p_follow_up  `kind`; as needed `queue`, `priority`, `delay` and `expires_in` (seconds), `max_attempts`, `tag`, `correlation_id`,
--                `headers`, `ordering_key`, `limit_key`. What belongs to the work comes from the job that has ended: tag, correlation id,
--                limit key and headers, without those of the library; its parent is that job
--   p_row        that job's row
--   p_end        how it ended: the rest of the arguments, after its id, kind, group and arguments
create function forebay._enqueue_follow_up(p_follow_up jsonb, p_row forebay.log, p_group_id bigint, p_end jsonb) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_now      constant timestamptz := forebay._now();
    v_kind     constant text := p_follow_up ->> 'kind';
    v_queue    constant text := coalesce(p_follow_up ->> 'queue', forebay.queue_of(v_kind), 'default');
    v_priority constant integer := coalesce((p_follow_up ->> 'priority')::integer, 100);
    v_start    constant timestamptz := v_now + make_interval(secs => coalesce((p_follow_up ->> 'delay')::double precision, 0));
    v_expires  constant timestamptz := v_start + make_interval(secs => (p_follow_up ->> 'expires_in')::double precision);
    -- Follow-ups of follow-ups are counted: kinds of two applications may follow each other without end.
    v_nth      constant integer := 1 + coalesce(substring(p_row.headers ->> 'forebay-follow-up' from '^[0-9]{1,4}$')::integer, 0);
    v_lane     bigint;
    j          forebay._job_input;
begin
    if v_nth > 16 then
        perform forebay._record_event(
            'follow_ups.end', p_queue => v_queue, p_group => forebay._group_name(p_group_id), p_kind => p_row.kind,
            p_subject_id => coalesce(p_row.job_id, p_row.seq), p_detail => format('the follow-up %s would be number %s in a row', v_kind, v_nth));
        return;
    end if;
    j := jsonb_populate_record(null::forebay._job_input, p_follow_up - '{delay,args,headers}'::text[]);
    j.args := jsonb_build_object('job_id', coalesce(p_row.job_id, p_row.seq), 'kind', p_row.kind, 'group', forebay._group_name(p_group_id),
                                 'args', p_row.args) || p_end;
    j.headers := (select coalesce(jsonb_object_agg(h.key, h.value), '{}') from jsonb_each(p_row.headers) h where h.key not like 'forebay-%')
                 || coalesce(nullif(p_follow_up -> 'headers', 'null'), '{}') || jsonb_build_object(
                     'forebay-follow-up', v_nth::text, 'forebay-parent', coalesce(p_row.job_id, p_row.seq)::text);
    if pg_sequence_last_value('forebay.kind_keys_seq') is not null then
        select d.limit_key, d.ordering_key into j.limit_key, j.ordering_key
        from forebay._declared_keys(v_kind, j.args, v_queue, j.limit_key, j.ordering_key, '"none"') d;
    end if;
    j.limit_key := coalesce(j.limit_key, p_row.limit_key);
    j.tag := coalesce(j.tag, p_row.tag);
    j.correlation_id := coalesce(j.correlation_id, p_row.correlation_id);
    v_lane := forebay._find_lane(v_queue, v_priority, j.ordering_key, j.limit_key);
    if v_start > v_now then
        insert into forebay.deferred (run_at, lane, enqueued_at, job_id, expires_at, {job})
        values (v_start, v_lane, v_now, nextval('forebay.log_seq'), coalesce(v_expires, v_start + interval '30 days'), {job of j});
        perform forebay._announce_due(v_start);
    else
        insert into forebay.log (lane, enqueued_at, expires_at, {job}) values (v_lane, v_now, v_expires, {job of j});
        perform forebay._notify(v_queue);
    end if;
end
$$;


-- Enqueue the follow-up of a job that is done; p_item as in forebay.settle_v1().
create function forebay._follow_done(p_row forebay.log, p_group_id bigint, p_item jsonb) returns void
language plpgsql volatile
as $$
declare
    v_result record;
begin
    v_result := forebay._bounded_result(coalesce(p_item #> '{follow_up,returned}', p_item -> 'kept'));
    perform forebay._enqueue_follow_up(
        p_item -> 'follow_up', p_row, p_group_id,
        jsonb_build_object('outcome', 'done', 'attempts', coalesce(p_row.attempt, 0) + 1, 'result', v_result.value,
                           'problem', v_result.problem, 'reason', null, 'error', null, 'dead_id', null));
end
$$;


-- Enqueue the follow-up of a job that has become a dead letter, and return the letter's id.
--
-- Parameters: p_follow_up, as the worker declares it whose handler ran; a JSON null: it declares none; null: no handler decided, and the
-- declaration that was recorded last counts. p_errors, the letter's.
create function forebay._follow_death(
    p_dead_id bigint, p_follow_up jsonb, p_row forebay.log, p_group_id bigint, p_queue text, p_reason text, p_attempt integer, p_errors jsonb)
returns bigint
language plpgsql volatile
-- planner: indexed
as $$
begin
    if p_follow_up is null and p_queue not like 'forebay.%' then
        select k.on_dead into p_follow_up from forebay.kind_queue k where k.kind = p_row.kind;
    end if;
    if jsonb_typeof(p_follow_up) = 'object' then
        perform forebay._enqueue_follow_up(
            p_follow_up, p_row, p_group_id,
            jsonb_build_object('outcome', 'dead', 'attempts', p_attempt, 'result', null, 'problem', null,
                               'reason', p_reason, 'error', p_errors -> -1, 'dead_id', p_dead_id));
    end if;
    return p_dead_id;
end
$$;
