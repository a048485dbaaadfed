-- grant: operator, reader

-- The steps of a job, and what it waits for: a row for each group in which it has recorded one. No
-- row: it is no flow, or its steps are past retention.
--
-- Columns:
--   steps        an array in their order, of objects with `no` (from 1; 0: what the callback of a
--                gather waited for, in each group of its queue), `kind`, `name`, `key`
--                (null: it has only a name), `at`, `bytes` of the value as JSON text, and, with
--                `with_values`, `value`
--   waits_for    of a job that has given its slot back: `signal`, `sleep` or `children`; null: it
--                runs, will run, or has ended
--   step, step_key
--                the step that waits
--   since        when the wait began
--   until        when it is over at the latest; null: it waits without a limit
--   signal_name, signal_key
--                `forebay.signal(signal_name, signal_key)` wakes it
--   children, ended, first_dead
--                how many jobs it waits for, how many of them have ended, and the first of those
--                that is dead or was cancelled
--   cancelled_at  when it was cancelled while it waited: its handler compensates, and ends
--   died_of      of a dead job that follows its children: an object with `job_id`, `kind`, `dead_id`,
--                `redriven_as` and `cause` of the child to redrive first; `dead_id` is null if it was
--                cancelled, or its dead letter deleted. Null: it died of something else
--
-- A step is of the kind step, once, item, failed, sleep, wait, signal, timeout, taken, children, died
-- or cancelled. `with_values` adds what the steps have returned, at most 16 megabytes.
-- pages: 60 + 60 a job
create function forebay.flow(job_id bigint, with_values boolean default false)
returns table (group_name text, steps jsonb, waits_for text, step text, step_key text, since timestamptz, until timestamptz,
               signal_name text, signal_key text, children integer, ended integer, first_dead bigint, cancelled_at timestamptz, died_of jsonb)
language plpgsql stable security definer
rows 2
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_group    record;
    v_callback jsonb := '[]';            -- what a callback waited for, which concerns all groups
    v_waits    record := forebay._flow_waits(flow.job_id, 0);
    v_seen     text[] := '{}';
begin
    for v_group in
        select s.group_id, forebay._group_name(s.group_id) as name,
               jsonb_agg(jsonb_build_object('no', case s.group_id when 0 then 0 else s.no end, 'kind', forebay._step_word(s.kind), 'name', s.name,
                                            'key', s.key, 'at', s.at, 'bytes', coalesce(octet_length(s.value::text), 0))
                         || case when flow.with_values then jsonb_build_object('value', s.value) else '{}' end order by s.no) as steps,
               max(s.at) filter (where s.kind = 'c') as cancelled_at
        from forebay.step s where s.job_id = flow.job_id group by s.group_id order by s.group_id <> 0
    loop
        if v_group.group_id = 0 then
            v_callback := v_group.steps;
            continue;
        end if;
        v_seen := v_seen || v_group.name;
        group_name := v_group.name;
        steps := v_callback || v_group.steps;
        cancelled_at := v_group.cancelled_at;
        died_of := forebay._died_of(flow.job_id, v_group.name);
        select w.waits_for, w.step, w.step_key, w.since, w.until, w.signal_name, w.signal_key, w.children, w.ended, w.first_dead
        into waits_for, step, step_key, since, until, signal_name, signal_key, children, ended, first_dead
        from forebay._flow_waits(flow.job_id, v_group.group_id) w;
        return next;
    end loop;
    if v_callback <> '[]' then
        return query
        select j.group_name, v_callback, v_waits.waits_for, v_waits.step, v_waits.step_key, v_waits.since, v_waits.until,
               v_waits.signal_name, v_waits.signal_key, v_waits.children, v_waits.ended, v_waits.first_dead, null::timestamptz,
               forebay._died_of(flow.job_id, j.group_name)
        from (select distinct i.group_name from forebay.job(flow.job_id) i) j
        where j.group_name is not null and j.group_name <> all (v_seen);
    end if;
end
$$;


-- What a flow waits for in a group; nulls: it is not parked. A row of it that was not promoted says that it waits, and its last checkpoint of a
-- wait that is not over says for what. Later ones may stand behind it: an operator let the flow run in between, with code that has a step more.
create function forebay._flow_waits(
    p_job_id bigint, p_group_id bigint, out waits_for text, out step text, out step_key text, out since timestamptz, out until timestamptz,
    out signal_name text, out signal_key text, out children integer, out ended integer, out first_dead bigint, out gather_id bigint)
language plpgsql stable
-- planner: indexed
as $$
#variable_conflict use_variable
declare
    v_step   record;
    v_next   constant integer := forebay._next_step(p_job_id, p_group_id);
    v_parked constant timestamptz := forebay._parked_until(p_job_id, p_group_id);
begin
    if v_parked is null then
        return;
    end if;
    for v_step in
        select s.no, s.kind, s.name, s.key, s.value, s.at from forebay.step s where s.job_id = p_job_id and s.group_id = p_group_id
        order by s.no desc
    loop
        -- Behind a cancellation the flow compensates: what it waited for before is over.
        exit when v_step.kind = 'c';
        if v_step.kind = 'z' then
            until := coalesce((v_step.value ->> 'until')::timestamptz, v_step.at + make_interval(secs => (v_step.value ->> 'seconds')::double precision));
            -- Behind its end the row is that of a snooze or a retry.
            waits_for := case when until > forebay._now() then 'sleep' end;
            since := v_step.at;
        elsif v_step.kind = 'p' then
            select 'signal', least(w.since, v_step.at), case when v_step.value ->> 'seconds' is not null then w.until end, w.name, w.key
            into waits_for, since, until, signal_name, signal_key
            from forebay.waiter w
            where w.job_id = p_job_id and w.group_id = p_group_id and w.step = v_step.name and w.step_key is not distinct from v_step.key;
        elsif v_step.kind = 'g' then
            select 'children', g.gather_id, g.children, g.begun_at into waits_for, gather_id, children, since
            from forebay.gather g
            where g.job_id = p_job_id and g.group_id = p_group_id and g.no = v_step.no
              and (v_step.no = v_next - 1 or g.children > coalesce((select c.ended from forebay.gather_count c
                                                            where c.gather_id = g.gather_id order by c.no desc limit 1), 0));
        end if;
        exit when waits_for is not null;
        since := null; until := null;
    end loop;
    if waits_for is null then
        return;
    elsif gather_id is not null then
        select count(*), min(e.job_id) filter (where e.outcome <> 'd') into ended, first_dead
        from (select distinct on (i.nr) i.nr, i.job_id, i.outcome from forebay.gather_end i where i.gather_id = _flow_waits.gather_id
              order by i.nr, i.job_id desc) e;
    end if;
    step := v_step.name;
    step_key := v_step.key;
end
$$;


-- The time of the deferred row that a flow has in a group, if it was not promoted and was not cancelled; null: it has none.
create function forebay._parked_until(p_job_id bigint, p_group_id bigint) returns timestamptz
language sql stable
as $$
    select d.run_at
    from (select i.run_at, i.deferred_id, i.lane, i.xid, i.attempt, i.pauses from forebay.deferred i where i.job_id = p_job_id offset 0) d
    cross join lateral (select i.audience from forebay.lane i where i.lane = d.lane limit 1) l
    left join lateral (select p.snap, p.run_at, p.deferred_id from forebay.promotion p order by p.no desc limit 1) p on true
    where l.audience in (0, p_group_id, -p_group_id)
      and (pg_visible_in_snapshot(d.xid, p.snap) and (d.run_at, d.deferred_id) <= (p.run_at, p.deferred_id)) is not true
      and forebay._state_of_deferred(d.attempt, d.pauses) = 'scheduled'
      and not exists (select from forebay.tombstone t
                      where t.job_id = p_job_id and t.reason in ('c', 'r') and (t.group_id is null or t.group_id = p_group_id))
    order by d.deferred_id desc limit 1
$$;


-- The time that people see for a job that waits: null for a flow that waits without a limit, whose row is a hundred years away.
create function forebay._shown_time(p_job_id bigint, p_run_at timestamptz) returns timestamptz
language sql stable
as $$
    select case when p_run_at > forebay._now() + interval '50 years' and pg_sequence_last_value('forebay.flow_seq') is not null
                     and exists (select from forebay.step s where s.job_id = p_job_id)
                then null else p_run_at end
$$;


-- The word for a kind of checkpoint.
create function forebay._step_word(p_kind "char") returns text
language sql immutable
as $$
    select case p_kind when 's' then 'step' when 'o' then 'once' when 'e' then 'item' when 'f' then 'failed' when 'z' then 'sleep' when 'p' then 'wait'
                       when 'w' then 'signal' when 't' then 'timeout' when 'x' then 'taken' when 'g' then 'children' when 'd' then 'died'
                       when 'c' then 'cancelled' end
$$;
