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


-- Jobs were cancelled: the next promotion looks at those that are children, and takes the rows of flows out of those that wait for a time.
-- While no handler ever recorded a checkpoint it does nothing.
create function forebay._after_cancelled(p_job_ids bigint[]) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_flows bigint[];
begin
    if pg_sequence_last_value('forebay.flow_seq') is null then
        return;
    end if;
    v_flows := array(
        select u from unnest(p_job_ids) u
        where exists (select from forebay.step s where s.job_id = u) and exists (select from forebay.deferred d where d.job_id = u));
    perform forebay._wake_flows_later(jsonb_build_object('drop', v_flows[i : i + 99])) from generate_series(1, cardinality(v_flows), 100) i;
    -- With their places: what is cancelled may be redacted before the promotion.
    perform forebay._wake_flows_later(jsonb_build_object('look_at', jsonb_agg(c.place)))
    from (select jsonb_build_array(h.child[2], h.child[1], u.job_id) as place, row_number() over (order by u.nr) as nr
          from unnest(p_job_ids) with ordinality u (job_id, nr)
          cross join lateral (
              select forebay._child_in(r.headers) as child
              from (select i.headers from forebay._rows_of(u.job_id) i union all select d.headers from forebay.deferred d where d.job_id = u.job_id) r
              where r.headers ? 'forebay-parent' limit 1) h
          where h.child is not null) c
    group by (c.nr - 1) / 100;
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
        elsif w ? 'look_at' then
            perform forebay._look_at_children(w -> 'look_at', coalesce((w ->> 'again')::integer, 5));
        elsif w ? 'look_at_all' then
            perform forebay._look_at_all_children((w -> 'look_at_all' ->> 0)::bigint, (w -> 'look_at_all' ->> 1)::integer);
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
    perform forebay._leave_wait(p_job_id, p_group_id);
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
        perform forebay._leave_wait(p_job_id, v_group.group_id);
        perform forebay._cancel_children(g.gather_id, 0) from forebay.gather g where g.job_id = p_job_id and g.group_id = v_group.group_id;
    end loop;
end
$$;


-- A group is gone, and with it jobs that waited for their time: end what the flows among them waited for.
create function forebay._drop_waits(p_job_ids bigint[], p_group_id bigint) returns void
language plpgsql volatile
-- planner: indexed
as $$
begin
    if pg_sequence_last_value('forebay.flow_seq') is not null then
        perform forebay._leave_wait(u, p_group_id) from unnest(p_job_ids) u;
        perform forebay._wake_flows_later(jsonb_build_object('children_of', g.gather_id, 'after', 0))
        from forebay.gather g
        where g.job_id = any (p_job_ids) and g.group_id = p_group_id and forebay._ended_children(g.gather_id) < g.children;
    end if;
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


-- Look whether children can still run, and record the end of those that cannot and have none. One that a worker was requested to stop is looked
-- at again, first after p_again seconds: its settlement tells its end, but a revocation tells none, nor does a settlement that began before the
-- cancellation and lets the job run again.
--
-- Invariant "each child ends once": whatever way a child ends, a settlement or a dead letter tells it in the same transaction, or this function
-- finds it. So who takes a job away without either writes a wake row.
--
-- Parameters: p_children, arrays of a gather, the number of a child in it, and its job.
create function forebay._look_at_children(p_children jsonb, p_again integer default 5) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_ends  jsonb;
    v_again jsonb;
begin
    select jsonb_agg(jsonb_build_object('gather', c.gather_id::text, 'nr', c.nr, 'job_id', c.job_id, 'outcome', j.outcome, 'problem', j.problem))
               filter (where j.is_over),
           jsonb_agg(jsonb_build_array(c.gather_id::text, c.nr, c.job_id)) filter (where j.is_asked)
    into v_ends, v_again
    from (select (e.value ->> 0)::bigint as gather_id, (e.value ->> 1)::integer as nr, (e.value ->> 2)::bigint as job_id
          from jsonb_array_elements(p_children) e) c
    join forebay.gather g on g.gather_id = c.gather_id
    cross join lateral (
        select coalesce(bool_and(s.state in ('done', 'cancelled', 'expired', 'dead')), true) as is_over,
               coalesce(bool_or(s.cancel_requested and s.state in ('claimed', 'running')), false) as is_asked,
               case when bool_or(s.state = 'done') then 'd' when bool_or(s.state in ('expired', 'dead')) then 'x' else 'c' end as outcome,
               case when count(*) = 0 then 'no group has it any more'
                    when bool_or(s.state = 'done') then 'its result is not known'
                    when bool_or(s.state in ('expired', 'dead')) then 'it died'
                    when bool_and(s.attempt = 0) then 'it was cancelled before it started' else 'it was cancelled' end as problem
        from forebay.job(c.job_id) s) j
    where not exists (select from forebay.gather_end e where e.gather_id = c.gather_id and e.nr = c.nr and e.job_id = c.job_id);
    if v_ends is not null then
        perform forebay._end_children(v_ends);
    end if;
    if v_again is not null then
        perform forebay._wake_flows_later(jsonb_build_object('look_at', v_again, 'again', least(2 * p_again, 300)),
                                          forebay._now() + make_interval(secs => p_again));
    end if;
end
$$;


-- A job continues in a new row, or waits for its ordering key again. If it is a child that was cancelled, no claim hands it out, and none tells
-- its end: the next promotion looks at it.
create function forebay._look_if_cancelled(p_row forebay.log) returns void
language plpgsql volatile
as $$
declare
    v_job_id constant bigint := coalesce(p_row.job_id, p_row.seq);
    v_child  constant text[] := forebay._child_in(p_row.headers);
begin
    if v_child is not null and exists (select from forebay.tombstone t where t.job_id = v_job_id and t.reason in ('c', 'r')) then
        perform forebay._wake_flows_later(jsonb_build_object('look_at', jsonb_build_array(jsonb_build_array(v_child[2], v_child[1], v_job_id))));
    end if;
end
$$;


-- Look at all children that have no end, a step for each promotion: a group was closed, or opened behind them, or wake rows were lost.
--
-- Parameters: the part of a gather behind which the step begins; null: the first step.
create function forebay._look_at_all_children(p_gather_id bigint default null, p_nr integer default null) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_part     record;
    v_parts    integer := 0;
    v_children jsonb := '[]';
begin
    if pg_sequence_last_value('forebay.flow_seq') is null then
        return;
    end if;
    for v_part in
        select p.gather_id, p.first_nr, case when not c.is_over then (
                   select jsonb_agg(jsonb_build_array(p.gather_id::text, p.first_nr + i.place - 1, i.job_id))
                   from unnest(p.job_ids) with ordinality i (job_id, place)
                   where not exists (select from forebay.gather_end e where e.gather_id = p.gather_id and e.nr = p.first_nr + i.place - 1)) end as children
        from (select i.* from forebay.gather_part i
              where (i.gather_id, i.first_nr) > (coalesce(p_gather_id, -9223372036854775808), coalesce(p_nr, 0))
              order by i.gather_id, i.first_nr limit 500) p
        cross join lateral (select coalesce((select n.ended from forebay.gather_count n where n.gather_id = p.gather_id order by n.no desc limit 1), 0)
                                   >= (select g.children from forebay.gather g where g.gather_id = p.gather_id) as is_over) c
        order by 1, 2
    loop
        v_parts := v_parts + 1;
        v_children := v_children || coalesce(v_part.children, '[]');
        exit when jsonb_array_length(v_children) >= 200;
    end loop;
    perform forebay._look_at_children(v_children);
    if v_parts = 500 or jsonb_array_length(v_children) >= 200 then
        perform forebay._wake_flows_later(jsonb_build_object('look_at_all', jsonb_build_array(v_part.gather_id, v_part.first_nr)));
    end if;
end
$$;
