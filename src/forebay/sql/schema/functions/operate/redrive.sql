-- grant: operator

-- Make a new job from a dead letter, for its group or, with `to_group`, for another group of its
-- queue; returns the new job's id. The job keeps queue,
-- priority, tag, correlation id, headers and `max_attempts`; attempts and expiry start again. It
-- does not take the unique key, which may belong to another job by now. The dead letter stays, and
-- both refer to each other. If it holds its ordering key, the new job takes its place before the
-- later jobs of the key. A flow continues behind its checkpoints; what failed last is tried again.
--
-- Parameters: `from_step` and `from_key`, a step of a flow: it and all later ones are done again.
--
-- Errors: JQ001 it belongs to its group, since it is the run of a subject or holds its ordering key;
--   JQ014 its group was closed, or there is no group `to_group`, JQ015 no such dead letter, JQ016 redriven before. If the
--   number is the id of a job that died, the hint names its dead letters.
-- Locks: the dead letter's row, and its group's row (SHARE).
create function forebay.redrive(dead_id bigint, to_group text default null, from_step text default null, from_key text default null)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
declare
    d        forebay.dead_letter;
    v_before integer;
begin
    if from_step is not null then
        select min(s.no) into v_before
        from forebay.dead_letter i join forebay.step s on s.job_id = i.job_id and s.group_id = i.group_id
        where i.dead_id = redrive.dead_id and s.name = from_step and s.key is not distinct from from_key;
        if v_before is null and exists (select from forebay.dead_letter i where i.dead_id = redrive.dead_id) then
            raise exception using errcode = 'JQ001', column = 'from_step',
                message = format('the job of dead letter %s has recorded no step %s%s', redrive.dead_id, quote_literal(left(from_step, 200)),
                                 coalesce(' with key ' || quote_literal(left(from_key, 200)), '')),
                hint = 'Nothing was redriven. forebay jobs show lists the steps of a job.';
        end if;
    end if;
    d := forebay._redrive(dead_id, to_group, v_before);
    perform forebay._record_event('dead.redrive', d.queue, forebay._group_name(d.group_id), d.kind, d.dead_id,
                                  p_new => jsonb_strip_nulls(jsonb_build_object('job_id', d.redriven_as, 'to_group', to_group, 'step', from_step, 'key', from_key)), p_count => 1);
    return d.redriven_as;
end
$$;


-- Redrive a dead letter without an event; returns it with the id of the new job. p_before: of a flow, the first checkpoint that is done again.
create function forebay._redrive(p_dead_id bigint, p_to_group text default null, p_before integer default null) returns forebay.dead_letter
language plpgsql volatile
-- planner: in order
as $$
#variable_conflict use_column
declare
    d        forebay.dead_letter;
    v_job_id bigint;
    v_lane   bigint;
    v_group  bigint;
begin
    select i.* into d from forebay.dead_letter i where i.dead_id = p_dead_id for update;
    if not found then
        raise exception using errcode = 'JQ015',
            message = format('dead letter %s not found', coalesce(p_dead_id::text, 'null')),
            hint = coalesce(
                (select format('Job %s is dead letter %s.', p_dead_id, string_agg(i.dead_id::text, ', ' order by i.dead_id))
                 from forebay.dead_letter i where i.job_id = p_dead_id having count(*) > 0),
                'List dead letters with forebay dead list.');
    elsif d.redriven_at is not null then
        raise exception using errcode = 'JQ016',
            message = format('dead letter %s was redriven as job %s', d.dead_id, d.redriven_as),
            detail = jsonb_build_object('job_id', d.job_id, 'new_job_id', d.redriven_as),
            hint = 'Look at that job; if it died too, redrive its own dead letter.';
    end if;
    -- A group that begins to close waits for this transaction, or is seen here.
    select g.group_id into v_group from forebay.queue_group g
    where g.queue = d.queue and g.closing_at is null and case when p_to_group is null then g.group_id = d.group_id else g.name = p_to_group end
    for share;
    if not found and p_to_group is not null then
        raise exception using errcode = 'JQ014', message = format('queue %s has no group %s', d.queue, quote_literal(left(p_to_group, 128))),
            detail = jsonb_build_object('queue', d.queue, 'group', p_to_group), hint = 'Nothing was redriven. Open the group first.';
    elsif v_group <> d.group_id and (d.holds_key or d.headers ? 'forebay-subject') then
        raise exception using errcode = 'JQ001', column = 'to_group', message = format('dead letter %s belongs to its group', d.dead_id),
            hint = 'Nothing was redriven. It is the run of a subject, or later jobs of its ordering key wait for it: redrive it for its own group.';
    elsif not found then
        raise exception using errcode = 'JQ014',
            message = format('the group of dead letter %s was closed', d.dead_id),
            detail = jsonb_build_object('queue', d.queue, 'group', forebay._group_name(d.group_id)),
            hint = 'The dead letter can be read. To run the job again, enqueue it with the arguments that the dead letter shows.';
    end if;
    v_lane := forebay._record_private_lane(d.queue, d.priority, v_group, d.ordering_key, d.limit_key);
    v_job_id := case when pg_current_xact_id() is not null then nextval('forebay.log_seq') end;
    if d.headers ? 'forebay-subject' then
        d.headers := forebay._redrive_subject(d, v_job_id, v_lane);
    end if;
    insert into forebay.log (
        seq, lane, enqueued_at, expires_at, {job})
    values (v_job_id, v_lane, forebay._now(), case when d.headers ? 'forebay-subject' then greatest(d.expires_at, forebay._now() + interval '30 days') end,
            {job of d});
    perform forebay._copy_steps(d.job_id, d.group_id, v_job_id, v_group, p_before);
    update forebay.dead_letter i set redriven_at = forebay._now(), redriven_as = v_job_id where i.dead_id = d.dead_id;
    perform forebay._notify(d.queue);
    perform forebay._announce_jobs(d.queue, forebay._group_name(d.group_id), 'redriven', array[d.job_id]);
    d.redriven_as := v_job_id;
    return d;
end
$$;
