-- grant: operator

-- Let a flow continue again from one of its steps: the checkpoints before it stay, that step and all
-- later ones are forgotten. A flow that waits or will be tried again continues at once; of a dead
-- one a new job is made, as forebay.redrive() does. Returns the id of the job that continues.
--
-- Jobs that a forgotten step had enqueued run on, and no flow waits for them. With a wait that is
-- not over, the signal that was sent for it is forgotten, as one that was taken is.
--
-- Parameters:
--   step, key   the step; of several checkpoints with that name and key the first
--   group_name  null: the only group in which the job can be rewound
--
-- Errors: JQ001 the job has no such step, or it neither waits nor is dead in exactly one group;
--   JQ013 no such job; JQ012 not called alone; otherwise as forebay.redrive().
-- Transaction: alone.
-- Locks: the promotion lock, then the signal; of a dead job those of forebay.redrive().
-- pages: 500 + 60 a segment
create function forebay.rewind(job_id bigint, step text, key text default null, group_name text default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
-- planner: indexed
as $$
declare
    v      record;
    v_new  bigint := rewind.job_id;
    d      forebay.dead_letter;
begin
    perform forebay._require_alone('forebay.rewind()');
    perform forebay._require_same_cluster();
    -- Before the look: what waits is not promoted meanwhile.
    lock table only forebay.lock_promotion in share update exclusive mode;
    select t.* into v from forebay._rewind_target(rewind.job_id, rewind.step, rewind.key, rewind.group_name) t;
    if v.dead_id is not null then
        d := forebay._redrive(v.dead_id, null, v.no);
        v_new := d.redriven_as;
    else
        perform forebay._move_deferred_rows('retry', '{}', array[rewind.job_id], array[forebay._parked_row(rewind.job_id, v.group_id)]);
        -- No promotion has brought it to the flow: it would end the new wait at once.
        delete from forebay.signal s using forebay.waiter w, forebay.step p
        where w.job_id = rewind.job_id and w.group_id = v.group_id and s.name = w.name and s.key = w.key
          and p.job_id = w.job_id and p.group_id = w.group_id and p.kind = 'p' and p.name = w.step and p.key is not distinct from w.step_key
          and p.no >= v.no;
        perform forebay._forget_steps(rewind.job_id, v.group_id, v.no);
    end if;
    perform forebay._record_event(
        'jobs.rewind', v.queue, forebay._group_name(v.group_id), v.kind, rewind.job_id, p_count => 1,
        p_new => jsonb_strip_nulls(jsonb_build_object('step', rewind.step, 'key', rewind.key, 'forgotten', v.dropped, 'job_id', nullif(v_new, rewind.job_id))));
    return v_new;
end
$$;


-- What forebay.rewind() would do. Changes nothing.
--
-- Columns:
--   group_name, state  in which group it would continue, and the state of the job there
--   kept, dropped      how many checkpoints stay, and how many are forgotten
--   children           how many jobs that a forgotten step waits for have not ended
--
-- Parameters: as forebay.rewind(); `only_group` is its `group_name`.
--
-- Errors: as forebay.rewind().
-- pages: 500 + 60 a segment
create function forebay.plan_rewind(job_id bigint, step text, key text default null, only_group text default null)
returns table (group_name text, state text, kept integer, dropped integer, children integer)
language plpgsql stable security definer
rows 1
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
begin
    return query
    select forebay._group_name(t.group_id), t.state, t.kept, t.dropped,
           coalesce((select sum(g.children - forebay._ended_children(g.gather_id))
                     from forebay.gather g where g.job_id = plan_rewind.job_id and g.group_id = t.group_id and g.no >= t.no), 0)::integer
    from forebay._rewind_target(plan_rewind.job_id, plan_rewind.step, plan_rewind.key, plan_rewind.only_group) t;
end
$$;


-- Where a job would be rewound: the group in which it waits or is dead, and the number of the step.
--
-- Errors: JQ001, JQ013.
create function forebay._rewind_target(
    p_job_id bigint, p_step text, p_key text, p_group text, out group_id bigint, out dead_id bigint, out no integer, out queue text, out kind text,
    out state text, out kept integer, out dropped integer)
language plpgsql stable
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_found record;
    v_no    integer;
    v_group bigint;
    v_count integer := 0;
    v_states text;
    v_waits  boolean := false;
begin
    for v_found in
        select g.group_id, j.queue, j.kind, j.state,
               (select max(d.dead_id) from forebay.dead_letter d
                where d.job_id = p_job_id and d.group_id = g.group_id and d.redriven_at is null) as dead_id
        from forebay.job(p_job_id) j
        left join forebay.queue_group g on g.queue = j.queue and g.name = j.group_name
        where (p_group is null or j.group_name = p_group)
    loop
        v_states := concat_ws(' and ', v_states, v_found.state);
        -- A callback is parked in group 0, from the start.
        v_waits := v_waits or v_found.state = 'scheduled' and exists (
            select from forebay.step s where s.job_id = p_job_id and s.group_id = 0);
        if v_found.dead_id is not null and v_found.state in ('dead', 'expired')
           or v_found.state in ('scheduled', 'retrying') and exists (
               select from forebay.step s where s.job_id = p_job_id and s.group_id = v_found.group_id) then
            v_count := v_count + 1;
            v_group := v_found.group_id;
            group_id := v_group;
            dead_id := case when v_found.state in ('dead', 'expired') then v_found.dead_id end;
            queue := v_found.queue;
            kind := v_found.kind;
            state := v_found.state;
        end if;
    end loop;
    if v_states is null then
        raise exception using errcode = 'JQ013', message = format('job %s does not exist%s', coalesce(p_job_id::text, 'null'),
                                                                  coalesce(' in group ' || quote_literal(left(p_group, 128)), '')),
            detail = jsonb_build_object('job_id', p_job_id),
            hint = 'It was never enqueued, is not committed, or is past retention.';
    elsif v_count <> 1 then
        raise exception using errcode = 'JQ001', column = 'job_id',
            message = case v_count when 0 then case when v_waits then format('job %s waits for the jobs before it: it has recorded no steps', p_job_id) else format('job %s is %s: only a flow that waits or is dead can be rewound', p_job_id, v_states) end
                      else format('job %s can be rewound in %s groups', p_job_id, v_count) end,
            hint = case v_count when 0 then case when v_waits then 'Nothing was changed. It is the callback of a gather, and runs when these jobs have ended.'
                                                 else 'Nothing was changed. ' || case
                                                     when v_states ~ 'ready|running|claimed' then format('Repeat it when the job waits again; or cancel it: forebay jobs cancel %s.', p_job_id)
                                                     when v_states ~ 'dead|expired' then 'Of a job that was redriven, rewind the new one.'
                                                     when v_states ~ 'scheduled|retrying' then 'It has recorded no steps.'
                                                     else 'It has ended: enqueue it anew.' end end else 'Name the group.' end;
    end if;
    select min(s.no) filter (where s.name = p_step and s.key is not distinct from p_key) into v_no
    from forebay.step s where s.job_id = p_job_id and s.group_id = v_group;
    no := v_no;
    if v_no is null then
        raise exception using errcode = 'JQ001', column = 'step',
            message = format('job %s has recorded no step %s%s', p_job_id, coalesce(quote_literal(left(p_step, 200)), 'null'),
                             coalesce(' with key ' || quote_literal(left(p_key, 200)), '')),
            hint = format('Nothing was changed. forebay jobs show %s lists its steps.', p_job_id);
    end if;
    select count(*) filter (where s.no < v_no), count(*) filter (where s.no >= v_no) into kept, dropped
    from forebay.step s where s.job_id = p_job_id and s.group_id = v_group;
end
$$;


-- Forget the checkpoints of a job from a number on, with what they wait for.
create function forebay._forget_steps(p_job_id bigint, p_group_id bigint, p_from integer) returns void
language plpgsql volatile
-- planner: indexed
as $$
begin
    delete from forebay.step s where s.job_id = p_job_id and s.group_id = p_group_id and s.no >= p_from;
    perform forebay._leave_wait(p_job_id, p_group_id);
    delete from forebay.flow_cancelled c where c.job_id = p_job_id and c.group_id = p_group_id;
    perform forebay._delete_gathers(array(
        select g.gather_id from forebay.gather g where g.job_id = p_job_id and g.group_id = p_group_id and g.no >= p_from));
end
$$;
