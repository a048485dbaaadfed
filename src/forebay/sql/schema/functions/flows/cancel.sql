-- Cancel flows that wait: a wake row for each lets it continue, and its verb raises JobCancelled. Returns those that were cancelled now; other
-- jobs, those that were cancelled before, and flows that do not wait are left alone. For one group or, with null, all: where a job waits as a
-- flow in one group, it is cancelled in each other one as any job is.
--
-- Invariant "woken once": the promotion that visits the wake row looks whether the flow still waits.
create function forebay._cancel_flows(p_job_ids bigint[], p_group_id bigint default null) returns bigint[]
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_jobs  bigint[] := '{}';
    v_found record;
    v_other record;
begin
    if pg_sequence_last_value('forebay.flow_seq') is null then
        return v_jobs;
    end if;
    for v_found in
        select distinct d.job_id, abs(l.audience) as group_id, l.queue
        from unnest(p_job_ids) u (job_id)
        cross join lateral (select i.job_id, i.lane from forebay.deferred i where i.job_id = u.job_id offset 0) d
        cross join lateral (select i.audience, i.queue from forebay.lane i where i.lane = d.lane limit 1) l
        where l.audience <> 0 and (p_group_id is null or abs(l.audience) = p_group_id)
          and exists (select from forebay.step s where s.job_id = d.job_id and s.group_id = abs(l.audience))
          and (forebay._flow_waits(d.job_id, abs(l.audience))).waits_for is not null
        order by 1, 2
    loop
        insert into forebay.flow_cancelled (job_id, group_id, requested_at) values (v_found.job_id, v_found.group_id, forebay._now())
        on conflict do nothing;
        continue when not found;
        perform forebay._wake_flows_later(jsonb_build_object('cancel', v_found.job_id, 'group', v_found.group_id));
        v_jobs := v_jobs || v_found.job_id;
        for v_other in
            select g.group_id from forebay.queue_group g
            where p_group_id is null and g.queue = v_found.queue and g.group_id <> v_found.group_id
              and not exists (select from forebay.flow_cancelled c where c.job_id = v_found.job_id and c.group_id = g.group_id)
              and (forebay._flow_waits(v_found.job_id, g.group_id)).waits_for is null
              and not exists (select from forebay.tombstone t
                              where t.job_id = v_found.job_id and t.reason = 'c' and (t.group_id is null or t.group_id = g.group_id))
        loop
            perform forebay._cancel_job(v_found.job_id, v_other.group_id);
        end loop;
    end loop;
    return v_jobs;
end
$$;


-- Cancel a job without an event, for a group or, with null, all.
create function forebay._cancel_job(p_job_id bigint, p_group_id bigint) returns void
language plpgsql volatile
as $$
begin
    insert into forebay.tombstone (job_id, group_id, reason, recorded_at) values (p_job_id, p_group_id, 'c', forebay._now());
    perform forebay._withdraw(array[p_job_id], p_group_id);
    perform forebay._note_cancelled_jobs(array[p_job_id], p_group_id);
    perform forebay._after_cancelled(array[p_job_id]);
end
$$;


-- Jobs were cancelled that have not started, or whose flows end at once: the next promotion tells the parents of those that are children,
-- and takes the rows of flows out of those that wait for a time. While no handler ever recorded a checkpoint it does nothing.
create function forebay._after_cancelled(p_job_ids bigint[]) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_flows    bigint[];
    v_children bigint[];
begin
    if pg_sequence_last_value('forebay.flow_seq') is null then
        return;
    end if;
    v_flows := array(
        select u from unnest(p_job_ids) u
        where exists (select from forebay.step s where s.job_id = u) and exists (select from forebay.deferred d where d.job_id = u));
    v_children := array(
        select u from unnest(p_job_ids) u
        where exists (select from forebay._rows_of(u) r where r.headers ? 'forebay-parent')
           or exists (select from forebay.deferred d where d.job_id = u and d.headers ? 'forebay-parent'));
    perform forebay._wake_flows_later(jsonb_build_object('drop', v_flows[i : i + 99])) from generate_series(1, cardinality(v_flows), 100) i;
    perform forebay._wake_flows_later(jsonb_build_object('cancelled', v_children[i : i + 99]))
    from generate_series(1, cardinality(v_children), 100) i;
end
$$;


-- Wake rows of cancellations were promoted.
--
-- Locks: the promotion lock, which the caller has.
create function forebay._wake_cancelled(p_what jsonb[]) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    w      jsonb;
    v_job  bigint;
begin
    foreach w in array p_what loop
        if w ? 'cancel' then
            perform forebay._cancel_parked((w ->> 'cancel')::bigint, (w ->> 'group')::bigint);
        elsif w ? 'drop' then
            for v_job in select j.value::bigint from jsonb_array_elements_text(w -> 'drop') j order by 1 loop
                perform forebay._drop_parked(v_job);
            end loop;
        elsif w ? 'cancelled' then
            perform forebay._end_cancelled_children(array(select j.value::bigint from jsonb_array_elements_text(w -> 'cancelled') j));
        elsif w ? 'children_of' then
            perform forebay._cancel_children((w ->> 'children_of')::bigint, (w ->> 'after')::integer);
        end if;
    end loop;
end
$$;


-- Let a flow continue that was cancelled while it waited: the cancellation is a checkpoint at the place of its verb, and the new row of the job
-- is in the same commit. If it does not wait any more, it is cancelled as any job is.
create function forebay._cancel_parked(p_job_id bigint, p_group_id bigint) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_waits record := forebay._flow_waits(p_job_id, p_group_id);
begin
    if v_waits.waits_for is null then
        if not exists (select from forebay.step s where s.job_id = p_job_id and s.group_id = p_group_id and s.kind = 'c')
           and not forebay._is_over(p_job_id, p_group_id) then
            perform forebay._cancel_job(p_job_id, p_group_id);
        end if;
        return;
    end if;
    if forebay._move_deferred_rows('retry', '{}', array[p_job_id], array[forebay._parked_row(p_job_id, p_group_id)]) = '{}' then
        return;
    end if;
    insert into forebay.step (job_id, group_id, at, no, kind, name, key)
    values (p_job_id, p_group_id, forebay._now(), forebay._next_step(p_job_id, p_group_id), 'c', v_waits.step, v_waits.step_key);
    delete from forebay.waiter i where i.job_id = p_job_id and i.group_id = p_group_id;
    if v_waits.gather_id is not null then
        perform forebay._cancel_children(v_waits.gather_id, 0);
    end if;
end
$$;


-- Take the rows of a flow that was cancelled at once out of those that wait for a time: a claim or the sweep passes them in the log.
create function forebay._drop_parked(p_job_id bigint) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_group record;
begin
    for v_group in
        select distinct s.group_id from forebay.step s
        where s.job_id = p_job_id
          and exists (select from forebay.tombstone t
                      where t.job_id = p_job_id and t.reason in ('c', 'r') and (t.group_id is null or t.group_id = s.group_id))
    loop
        perform forebay._move_deferred_rows('retry', '{}', array[p_job_id], array[forebay._parked_row(p_job_id, v_group.group_id)]);
        delete from forebay.waiter i where i.job_id = p_job_id and i.group_id = v_group.group_id;
        perform forebay._cancel_children(g.gather_id, 0) from forebay.gather g where g.job_id = p_job_id and g.group_id = v_group.group_id;
    end loop;
end
$$;


-- Cancel the children of a gather that have not started, a step for each promotion.
create function forebay._cancel_children(p_gather_id bigint, p_after integer) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_child record;
    v_last  integer := p_after;
    v_seen  integer := 0;
begin
    for v_child in
        select p.first_nr + i.place::integer - 1 as nr, i.job_id
        from forebay.gather_part p cross join lateral unnest(p.job_ids) with ordinality i (job_id, place)
        where p.gather_id = p_gather_id and p.first_nr > p_after - 200 and p.first_nr + i.place - 1 > p_after
          and not exists (select from forebay.gather_end e where e.gather_id = p_gather_id and e.nr = p.first_nr + i.place - 1)
        order by 1 limit 200
    loop
        v_last := v_child.nr;
        v_seen := v_seen + 1;
        if (select bool_and(j.state in ('scheduled', 'ready') and j.attempt = 1) from forebay.job(v_child.job_id) j)
           and not exists (select from forebay.step s where s.job_id = v_child.job_id) then
            perform forebay._cancel_job(v_child.job_id, null);
        end if;
    end loop;
    if v_seen = 200 then
        perform forebay._wake_flows_later(jsonb_build_object('children_of', p_gather_id, 'after', v_last));
    end if;
end
$$;


-- Children were cancelled: those that have ended by now have an end. Others are in a worker, whose settlement tells it.
create function forebay._end_cancelled_children(p_job_ids bigint[]) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_ends jsonb;
begin
    select jsonb_agg(jsonb_build_object('gather', c.child[2], 'nr', c.child[1], 'job_id', u.job_id, 'outcome', 'c',
                                        'problem', 'it was cancelled before it started'))
    into v_ends
    from unnest(p_job_ids) u (job_id)
    cross join lateral (select forebay._child_in((array_agg(j.headers))[1]) as child
                        from forebay.job(u.job_id) j having bool_and(j.state = 'cancelled')) c
    where c.child is not null;
    if v_ends is not null then
        perform forebay._end_children(v_ends);
    end if;
end
$$;
