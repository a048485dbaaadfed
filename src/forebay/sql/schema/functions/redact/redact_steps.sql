-- Erase the values of steps, among them payloads of signals, and what children have returned: those of the queue, and those of its flows. What
-- a flow needs that has not ended, or can be redriven, stays. The position is a job, then a gather.
create function forebay._redact_steps(p_queue text, p_before timestamptz, p_after jsonb, p_most integer, out rows bigint, out next jsonb)
language plpgsql volatile
-- planner: in order
as $$
declare
    v_groups constant bigint[] := forebay._groups_ever(p_queue);
    v_after  constant bigint := coalesce((p_after ->> 'job_id')::bigint, 0);
    v_found  record;
    v_gone   bigint;
begin
    rows := 0;
    if pg_sequence_last_value('forebay.flow_seq') is null then
        return;
    end if;
    if not coalesce((p_after ->> 'ends')::boolean, false) then
        select array_agg(distinct i.job_id) filter (where i.group_id = any (v_groups) and i.has_value) as jobs, max(i.job_id) as last, count(*) as looked_at
        into v_found
        from (select s.job_id, s.group_id, s.value is not null as has_value from forebay.step s
              where s.job_id > v_after order by s.job_id fetch first (p_most) rows with ties) i;
        update forebay.step s set value = null
        where s.job_id in (select u from unnest(v_found.jobs) u where forebay._flow_has_ended(u)) and s.group_id = any (v_groups)
          and s.at < p_before and s.value is not null and s.kind not in ('g', 'z', 'p');
        get diagnostics rows = row_count;
        next := case when v_found.looked_at >= p_most then jsonb_build_object('job_id', v_found.last) else jsonb_build_object('ends', true) end;
        return;
    end if;
    select array_agg(i.gather_id) as gathers, max(i.gather_id) as last, count(*) as looked_at into v_found
    from (select g.gather_id from forebay.gather g where g.gather_id > coalesce((p_after ->> 'gather')::bigint, -9223372036854775808)
          order by g.gather_id limit greatest(1, p_most / 100)) i;
    update forebay.gather_end e set value = null, problem = 'it was redacted'
    from (select g.gather_id, g.group_id = any (v_groups) or g.group_id = 0 and forebay._is_in_queue(g.job_id, p_queue) as is_own from forebay.gather g
          where g.gather_id = any (v_found.gathers) and forebay._flow_has_ended(g.job_id)) g
    where e.gather_id = g.gather_id and e.at < p_before and (e.value is not null or e.problem is distinct from 'it was redacted')
      and (g.is_own or forebay._is_in_queue(e.job_id, p_queue));
    get diagnostics v_gone = row_count;
    rows := rows + v_gone;
    next := case when v_found.looked_at > 0 then jsonb_build_object('ends', true, 'gather', v_found.last) end;
end
$$;


-- Has a job rows of this queue?
create function forebay._is_in_queue(p_job_id bigint, p_queue text) returns boolean
language sql volatile
as $$
    select exists (select from forebay._rows_of(p_job_id) r
                   cross join lateral (select l.queue from forebay.lane l where l.lane = r.lane limit 1) q where q.queue = p_queue)
$$;


-- Has a job ended, so that no attempt will read its checkpoints?
create function forebay._flow_has_ended(p_job_id bigint) returns boolean
language sql volatile
as $$
    select forebay._has_ended(p_job_id)
           and not exists (select from (select d.redriven_at from forebay.dead_letter d where d.job_id = p_job_id offset 0) d where d.redriven_at is null)
$$;
