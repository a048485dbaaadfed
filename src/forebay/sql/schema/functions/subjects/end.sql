-- Record how a run of a subject ended, with its settlement or dead letter: a row of part 1.
--
-- Takes no lock and never waits. Invariant "no revival": a newer row of part 0 hides this one. The header may be forged, so the run
-- must be the one that part 0 issued.
--
-- Parameters: p_code of the outcome, d, c or x; p_item, see forebay.settle_v1(); p_reason, for operators.
create function forebay._end_subject(p_queue text, p_row forebay.log, p_code "char", p_item jsonb, p_reason text) returns void
language plpgsql volatile
-- planner: in order
as $$
declare
    v_now   constant timestamptz := forebay._now();
    v_name  constant text[] := forebay._subject_in(p_row.headers);
    v_what  constant jsonb := p_item -> 'subject';
    r       forebay.subject_state;
    v_state "char";
    v_due   timestamptz;
begin
    select * into r from forebay.subject_state s
    where s.subject_id = v_name[1]::bigint and s.no = v_name[2]::bigint and s.part = 0 and s.state = 'i'
      and s.job_id = coalesce(p_row.job_id, p_row.seq);
    if not found then
        return;
    end if;
    if p_code = 'd' and v_what ->> 'then' = 'again' then
        v_state := 's';
        v_due := least(forebay._next_due(v_what, r.due_at, v_now), v_now + interval '100 years');
    else
        v_state := case when p_code = 'd' then case v_what ->> 'then' when 'drop' then 'g' else 'c' end when p_code = 'c' then 'k' else 'x' end;
    end if;
    insert into forebay.subject_state (
        subject_id, no, part, state, at, due_at, wake_at, kind, version, priority, args, data, options, iterations, last_at, job_id, reason)
    values (
        r.subject_id, r.no, 1, v_state, v_now, v_due, v_due, r.kind, r.version, r.priority,
        case when jsonb_typeof(v_what -> 'args') = 'object' then v_what -> 'args' else r.args end,
        case when v_what ? 'data' then nullif(v_what -> 'data', 'null') else r.data end, r.options,
        r.iterations + case when p_code = 'd' then 1 else 0 end, case when p_code = 'd' then v_now else r.last_at end, r.job_id, p_reason)
    on conflict do nothing;
    if not found then
        return;  -- Another group ended the run before.
    end if;
    if v_state in ('s', 'g') then
        perform forebay._wake_subjects(array[r.subject_id], array[coalesce(v_due, v_now)]);
    end if;
    insert into forebay.subject_count (queue, state, before, subjects) values (p_queue, nullif(v_state, 'g'), 'i', 1);
    if pg_sequence_last_value('forebay.notices_seq') is not null
       and not exists (select from forebay.subject_state s where s.subject_id = r.subject_id and s.no > r.no) then
        perform forebay._announce_subjects(p_queue, 'i', nullif(v_state, 'g'), 1, r.job_id);
    end if;
end
$$;


-- When a subject is due again: p_what has one of at, after (seconds), interval and every (seconds: the next instant of the grid that p_due
-- begins, after p_now).
create function forebay._next_due(p_what jsonb, p_due timestamptz, p_now timestamptz) returns timestamptz
language sql stable
as $$
    select case
        when p_what ? 'at' then (p_what ->> 'at')::timestamptz
        when p_what ? 'interval' then p_now + (p_what ->> 'interval')::interval
        when p_what ? 'every' then p_due + make_interval(secs => (p_what ->> 'every')::double precision
            * (floor(extract(epoch from greatest(p_now, p_due) - p_due)::double precision / (p_what ->> 'every')::double precision) + 1))
        else p_now + make_interval(secs => coalesce((p_what ->> 'after')::double precision, 0)) end
$$;


-- A dead letter of a run is redriven as a new job: name that in the subject; returns the headers of the new job.
--
-- Errors: JQ016 the subject was revived, changed or dropped since.
create function forebay._redrive_subject(p_letter forebay.dead_letter, p_job_id bigint, p_lane bigint) returns jsonb
language plpgsql volatile
-- planner: in order
as $$
declare
    v_header constant text := p_letter.headers ->> 'forebay-subject';
    v_name   constant text[] := forebay._subject_in(p_letter.headers);
    v_queue  text;
    n        forebay.subject_state;
begin
    if v_name is null then
        return p_letter.headers;
    end if;
    select s.queue into v_queue from forebay.subject s where s.subject_id = v_name[1]::bigint for no key update;
    n := forebay._newest_state(v_name[1]::bigint);
    if v_queue is null or (n.no, n.state, n.job_id) is distinct from (v_name[2]::bigint, 'x'::"char", p_letter.job_id) then
        raise exception using errcode = 'JQ016',
            message = format('dead letter %s is of a subject that was revived, changed or dropped since', p_letter.dead_id),
            detail = jsonb_build_object('job_id', p_letter.job_id),
            hint = 'Look at the subject: forebay subjects show. Revive it if it is not due again.';
    end if;
    insert into forebay.subject_state (
        subject_id, no, part, state, at, due_at, kind, version, priority, args, data, options, iterations, last_at, job_id, run_no, lane,
        job_xid, reason)
    values (
        n.subject_id, n.no + 1, 0, 'i', forebay._now(), n.due_at, n.kind, n.version, n.priority, n.args, n.data, n.options, n.iterations,
        n.last_at, p_job_id, n.no + 1, p_lane, pg_current_xact_id(), 'redriven');
    perform forebay._count_subjects(v_queue, 'x', 'i');
    return p_letter.headers || jsonb_build_object('forebay-subject', jsonb_set(v_header::jsonb, '{no}', to_jsonb(n.no + 1))::text);
end
$$;


-- Subject and number of the row of a run, by the headers of its job, which may be forged; null: they name none.
create function forebay._subject_in(p_headers jsonb) returns text[]
language sql immutable
as $$ select regexp_match(p_headers ->> 'forebay-subject', E'^\\{"id": (\\d{1,18}), "no": (\\d{1,18}),') $$;
