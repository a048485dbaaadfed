-- grant: producer, worker, operator

-- Drop a subject: its name is free. Returns `dropped`; or `requested`, when a worker has a run of
-- it: its handler is requested to stop, and a subject that is made again under this name runs after
-- that has ended.
--
-- Errors: JQ065 no such subject.
-- Locks: the row of the subject.
-- pages: 600 + 60 a segment
create function forebay.drop_subject(queue text, subject text) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_variable
declare
    v_answer text := forebay._drop_subject(queue, subject);
begin
    perform forebay._record_event('subjects.drop', queue, p_detail => left(subject, 200), p_count => 1);
    return v_answer;
end
$$;


-- Drop a subject; the caller records the act.
create function forebay._drop_subject(queue text, subject text) returns text
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    v_look constant forebay._subject_look := forebay._locked_subject(queue, subject);
begin
    perform forebay._append_subject_state(v_look, 'g', null);
    perform forebay._count_subjects(queue, (v_look.newest).state, null);
    if v_look.run_state <> 'running' then
        perform forebay._issue_subjects(array[v_look.subject_id], false);  -- Deletes it, unless a claim may start its run.
        return 'dropped';
    end if;
    perform forebay._wake_subjects(array[v_look.subject_id], array[forebay._now() + interval '1 second']);
    return 'requested';
end
$$;


-- Kill a subject: it is not due again until it is revived, and a push of its name is skipped.
-- Returns `killed`; `requested`, when a worker has a run of it: its handler is requested to stop,
-- and the state that it saves counts, but it is not due again; or `unchanged`, when it is killed
-- already. `reason` is for operators.
--
-- Errors: JQ065 no such subject.
-- Locks: the row of the subject.
-- pages: 600 + 60 a segment
create function forebay.kill_subject(queue text, subject text, reason text default null) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_variable
declare
    v_look constant forebay._subject_look := forebay._locked_subject(queue, subject);
begin
    if (v_look.newest).state = 'k' then
        return 'unchanged';
    end if;
    perform forebay._append_subject_state(v_look, 'k', left(reason, 1000));
    perform forebay._count_subjects(queue, (v_look.newest).state, 'k');
    perform forebay._record_event('subjects.kill', queue, p_kind => (v_look.newest).kind, p_subject_id => v_look.subject_id,
                                  p_detail => left(subject, 200));
    if (v_look.newest).lane is not null then
        perform forebay._wake_subjects(array[v_look.subject_id], array[forebay._now() + interval '1 second']);
    end if;
    return case v_look.run_state when 'running' then 'requested' else 'killed' end;
end
$$;


-- Schedule a subject that is completed, dead or killed, for `run_at`; null: now. Returns `revived`;
-- or `unchanged`, when it is scheduled, ready or running.
--
-- Errors: JQ001 a bad `run_at`, JQ065 no such subject.
-- Locks: the row of the subject.
-- pages: 300
create function forebay.revive_subject(queue text, subject text, run_at timestamptz default null) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_variable
declare
    v_look constant forebay._subject_look := forebay._locked_subject(queue, subject);
    v_put  forebay._subject_put[];
begin
    if (v_look.newest).state not in ('c', 'x', 'k') and not ((v_look.newest).state = 'i' and v_look.run_state in ('ended', 'withdrawn')) then
        return 'unchanged';
    end if;
    v_put := forebay._put_subjects(
        forebay._subject_inputs(jsonb_build_array(jsonb_strip_nulls(
            jsonb_build_object('queue', queue, 'subject', subject, 'run_at', run_at)))), true, true);
    perform forebay._record_event('subjects.revive', queue, p_kind => (v_look.newest).kind, p_subject_id => v_look.subject_id,
                                  p_detail => left(subject, 200));
    return 'revived';
end
$$;


-- Drop subjects of a queue in the order of their names, at most `most` of them (1 to 100000);
-- returns their number, and in `next` the `after` of the next call, null at the end.
--
-- Errors: JQ001 a bad number.
-- Locks: the rows of these subjects.
create function forebay.drop_subjects(queue text, after text default '', most integer default 1000, out dropped bigint, out next text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_variable
declare
    v_one record;
begin
    if most is null or most not between 1 and 100000 then
        raise exception using errcode = 'JQ001', column = 'most', message = format('most %s is outside 1 to 100000', coalesce(most::text, 'null'));
    end if;
    dropped := 0;
    for v_one in
        select s.subject, s.subject_id from forebay.subject s
        where s.queue = drop_subjects.queue and s.subject > coalesce(drop_subjects.after, '') order by s.subject limit most
    loop
        next := v_one.subject;
        continue when (forebay._newest_state(v_one.subject_id)).state = 'g';
        perform forebay._drop_subject(drop_subjects.queue, v_one.subject);
        dropped := dropped + 1;
    end loop;
    if dropped > 0 then
        perform forebay._record_event('subjects.drop', drop_subjects.queue, p_count => dropped);
    end if;
    if next is not null and not exists (select from forebay.subject s where s.queue = drop_subjects.queue and s.subject > next) then
        next := null;
    end if;
end
$$;


-- Lock a subject and look at it.
--
-- Errors: JQ065 no such subject.
create function forebay._locked_subject(p_queue text, p_subject text) returns forebay._subject_look
language plpgsql volatile
-- planner: in order
as $$
declare
    l forebay._subject_look;
begin
    select s.subject_id into l.subject_id from forebay.subject s where s.queue = p_queue and s.subject = p_subject for no key update;
    if l.subject_id is not null then
        l.newest := forebay._newest_state(l.subject_id);
    end if;
    if l.subject_id is null or (l.newest).state = 'g' then
        raise exception using errcode = 'JQ065',
            message = format('subject %s not found in queue %s', coalesce(quote_literal(left(p_subject, 100)), 'null'), coalesce(quote_literal(left(p_queue, 100)), 'null')),
            detail = jsonb_build_object('queue', left(p_queue, 128), 'subject', left(p_subject, 512)),
            hint = 'forebay.subjects() lists the subjects of a queue.';
    end if;
    l.queue := p_queue;
    l.subject := p_subject;
    l.run_state := forebay._run_state(p_queue, l.newest);
    return l;
end
$$;


-- Append a row that ends what a subject does: its run that has not ended is cancelled, and the row names it.
create function forebay._append_subject_state(p_look forebay._subject_look, p_state "char", p_reason text) returns void
language plpgsql volatile
as $$
declare
    n      constant forebay.subject_state := p_look.newest;
begin
    if n.lane is not null and p_look.run_state <> 'ended' and not forebay._is_cancelled(n.job_id) then
        insert into forebay.tombstone (job_id, reason, recorded_at) values (n.job_id, 'c', forebay._now());
        perform forebay._withdraw(array[n.job_id]);
        perform forebay._note_cancelled_jobs(array[n.job_id]);
        if p_look.run_state = 'waiting' then
            perform forebay._announce_jobs(p_look.queue, null, 'cancelled', array[n.job_id]);
        end if;
    end if;
    insert into forebay.subject_state (
        subject_id, no, part, state, at, kind, version, priority, args, data, options, iterations, last_at, job_id, run_no, lane, job_xid, reason)
    values (
        n.subject_id, n.no + 1, 0, p_state, forebay._now(), n.kind, n.version, n.priority, n.args, n.data, n.options, n.iterations, n.last_at,
        case when n.lane is not null then n.job_id end, n.run_no, n.lane, n.job_xid, p_reason);
end
$$;
