-- The newest row of a subject.
create function forebay._newest_state(p_subject_id bigint) returns forebay.subject_state
language sql stable
as $$
    select s from forebay.subject_state s where s.subject_id = p_subject_id order by s.no desc, s.part desc limit 1
$$;


-- State of the run that a row names: waiting, running, ended; or withdrawn: it waited when it was cancelled or replaced, but a claim at
-- the same moment may still start it.
create function forebay._run_state(p_queue text, p_row forebay.subject_state) returns text
language plpgsql stable
as $$
declare
    v_key      constant forebay.unique_key := row(
        p_row.job_xid, p_queue, 'o', '', 0, p_row.job_id, p_row.lane, false, p_row.at, 'infinity', null, null, null, 0);
    v_audience bigint;
    v_state    text;
begin
    if p_row.lane is null then
        return 'ended';
    end if;
    select l.audience into v_audience from forebay.lane l where l.lane = p_row.lane limit 1;
    if v_audience <> 0 then  -- Redriven: its group alone has it.
        v_state := (select forebay._key_state_in(v_key, g.group_id, g.start_after) from forebay.queue_group g where g.group_id = abs(v_audience));
    else
        v_state := forebay._key_state(v_key);
    end if;
    if coalesce(v_state, 'ended') = 'ended'
       and exists (select from forebay.tombstone t where t.job_id = p_row.job_id and t.reason in ('c', 'r')) then
        return 'withdrawn';
    end if;
    return coalesce(v_state, 'ended');
end
$$;


-- Can no claim start a withdrawn run any more? Claims that began before its withdrawal was committed hold locks; later ones see it.
-- False when one of the locks is not free: try again. A later statement sees what these claims did.
--
-- Locks: of each group of the queue, tries those that a claim of the run has.
create function forebay._is_fenced(p_queue text, p_row forebay.subject_state) returns boolean
language plpgsql volatile
as $$
declare
    v_keyed   constant boolean := p_row.options ? 'ordering_key';
    v_limited constant boolean := p_row.options ? 'limit_key';
    v_group   bigint;
    v_lane    bigint;
begin
    for v_group in select g.group_id from forebay.queue_group g where g.queue = p_queue order by g.group_id loop
        if v_limited and not forebay._try_lock('limiter_' || (hashint8(v_group) & 63)) then
            return false;
        end if;
        for v_lane in
            select p_row.lane
            union
            select case when v_keyed then forebay._keyed_lane_id(p_queue, p_row.priority, a)
                        when v_limited then forebay._limited_lane_id(p_queue, p_row.priority, a)
                        else forebay._lane_id(p_queue, p_row.priority, a) end
            from unnest(array[v_group, -v_group]) a
        loop
            if not forebay._try_lock_lane(v_group, v_lane) then
                return false;
            end if;
        end loop;
        if v_keyed and not forebay._try_lock('keys_' || (hashint8(v_group) & 63)) then
            return false;
        end if;
    end loop;
    return true;
end
$$;


-- Write wake rows: the calendar looks at these subjects when the times have come.
create function forebay._wake_subjects(p_ids bigint[], p_at timestamptz[]) returns void
language sql volatile
as $$
    insert into forebay.deferred (run_at, lane, enqueued_at, job_id, kind, args)
    select u.at, 0, forebay._now(), -u.id, '', '{}'
    from unnest(p_ids, p_at) u (id, at);
    select forebay._announce_due(min(u)) from unnest(p_at) u
$$;


-- Add to the number of subjects of a queue in a state, and tell listeners: with forebay._end_subject() the only place that does.
create function forebay._count_subjects(p_queue text, p_from "char", p_to "char", p_subjects bigint default 1) returns void
language sql volatile
as $$
    insert into forebay.subject_count (queue, state, before, subjects)
    select p_queue, p_to, p_from, p_subjects
    where p_from is distinct from p_to and p_subjects <> 0
      and case when pg_sequence_last_value('forebay.notices_seq') is null then true
               else forebay._announce_subjects(p_queue, p_from, p_to, p_subjects) end
$$;


-- Wake rows of these subjects were promoted: issue a run of each that is due. Returns the number of runs.
--
-- Invariants "one run at a time", "nothing forgotten": a subject that another transaction has locked is looked at again in a second.
create function forebay._wake_due_subjects(p_ids bigint[]) returns integer
language plpgsql volatile
-- planner: in order
as $$
declare
    v_ids    constant bigint[] := array(select distinct u from unnest(p_ids) u);
    v_locked bigint[];
    v_busy   bigint[];
begin
    v_locked := array(select i.subject_id
                      from (select s.subject_id from forebay.subject s where s.subject_id = any (v_ids)
                            order by s.subject_id for no key update skip locked) i);
    v_busy := array(select s.subject_id from forebay.subject s where s.subject_id = any (v_ids) and s.subject_id <> all (v_locked));
    if v_busy <> '{}' then
        perform forebay._wake_subjects(v_busy, array_fill(forebay._now() + interval '1 second', array[cardinality(v_busy)]));
    end if;
    return forebay._issue_subjects(v_locked, true);
end
$$;


-- Issue a run of each of these subjects that is due; the caller has locked them. Returns the number of runs.
--
-- A subject that is not due, or whose run before has not ended, gets a wake row.
--
-- Parameters: p_decides, the call may decide that no claim starts a withdrawn run any more; a call in a producer's transaction may not,
--   since claims do not see yet what it wrote.
create function forebay._issue_subjects(p_ids bigint[], p_decides boolean) returns integer
language plpgsql volatile
-- planner: in order
as $$
declare
    v_now   constant timestamptz := forebay._now();
    v_all   forebay._subject_look[];
    v_due   forebay._subject_look[];
    v_ids   bigint[];
    v_fenced bigint[];
    v_at    timestamptz[];
begin
    v_all := array(
        select row(s.subject_id, s.queue, s.subject, n.newest,
                   case when (n.newest).state not in ('k', 'g') and ((n.newest).state <> 's' or (n.newest).due_at > v_now) then null
                        when (n.newest).lane is null then 'ended'
                        else forebay._run_state(s.queue, n.newest) end,
                   case when (n.newest).run_no is not null then forebay._end_of_carried(n.newest) end)::forebay._subject_look
        from unnest(p_ids) u (id)
        cross join lateral (select * from forebay.subject i where i.subject_id = u.id offset 0) s
        cross join lateral (select i as newest from forebay.subject_state i where i.subject_id = s.subject_id
                            order by i.no desc, i.part desc limit 1) n);
    if p_decides and exists (select from unnest(v_all) l where l.run_state = 'withdrawn') then
        v_fenced := array(select l.subject_id from unnest(v_all) l where l.run_state = 'withdrawn' and forebay._is_fenced(l.queue, l.newest));
        v_all := array(
            select row(l.subject_id, l.queue, l.subject, l.newest,
                       case when l.subject_id = any (v_fenced)
                            then case when forebay._run_state(l.queue, l.newest) = 'running' then 'running' else 'ended' end
                            else l.run_state end,
                       forebay._end_of_carried(l.newest))::forebay._subject_look
            from unnest(v_all) l);
    end if;
    -- Not due yet, or behind a run that has not ended.
    select array_agg(l.subject_id),
           array_agg(case when (l.newest).state = 's' and (l.newest).due_at > v_now then (l.newest).due_at
                          when l.run_state = 'withdrawn' and (l.newest).at > v_now - interval '1 second' then v_now
                          else v_now + greatest(interval '0.25 seconds', least(interval '10 seconds', (v_now - (l.newest).at) / 4)) end)
    into v_ids, v_at
    from unnest(v_all) l
    where (l.newest).state = 's' and (l.newest).due_at > v_now or l.run_state <> 'ended';
    perform forebay._wake_subjects(v_ids, v_at);

    -- A run that had not ended when its subject was changed has ended.
    perform forebay._forget_carried(l) from unnest(v_all) l where l.run_state = 'ended' and (l.newest).lane is not null;
    delete from forebay.subject s using unnest(v_all) l
    where s.subject_id = l.subject_id and (l.newest).state = 'g' and l.run_state = 'ended';
    insert into forebay.subject_state (
        subject_id, no, part, state, at, kind, version, priority, args, data, options, iterations, last_at, reason)
    select l.subject_id, (l.newest).no + 1, 0, 'k', v_now, (l.newest).kind, (l.newest).version, (l.newest).priority, (l.newest).args,
           case when l.keeps_end then (l.ended).data else (l.newest).data end, (l.newest).options,
           case when l.keeps_end then (l.ended).iterations else (l.newest).iterations end,
           case when l.keeps_end then (l.ended).last_at else (l.newest).last_at end,
           case (l.newest).state when 's' then 'expired' else (l.newest).reason end
    from (select i.*, (i.newest).run_no > 0 and (i.ended).no is not null as keeps_end from unnest(v_all) i) l
    where l.run_state = 'ended'
      and ((l.newest).state = 'k' and (l.newest).lane is not null
           or (l.newest).state = 's' and ((l.newest).options ->> 'expires_at')::timestamptz <= v_now);

    v_due := array(
        select l from unnest(v_all) l
        where (l.newest).state = 's' and l.run_state = 'ended'
          and (((l.newest).options ->> 'expires_at')::timestamptz <= v_now) is not true);
    perform forebay._count_subjects(l.queue, 's', 'k', count(*))
    from unnest(v_all) l
    where (l.newest).state = 's' and l.run_state = 'ended' and ((l.newest).options ->> 'expires_at')::timestamptz <= v_now
    group by l.queue;
    if v_due <> '{}' then
        perform forebay._write_runs(v_due, v_now);
    end if;
    return cardinality(v_due);
end
$$;


-- Write a run of each of these subjects, which are due and have none, in this order.
create function forebay._write_runs(p_due forebay._subject_look[], p_now timestamptz) returns void
language plpgsql volatile
-- planner: in order
as $$
declare
    v_xid      constant xid8 := pg_current_xact_id();  -- Drawn before the numbers of the log.
    v_shards   constant jsonb := forebay._shards(array(select distinct l.queue from unnest(p_due) l));
    v_target   record;
    v_queue    text;
    v_priority integer;
    v_lanes    bigint[];                 -- the lanes of that queue and priority, which most runs have
begin
    for v_target in
        select distinct l.queue, (l.newest).priority, (l.newest).options ? 'ordering_key' as is_keyed, (l.newest).options ? 'limit_key' as is_limited
        from unnest(p_due) l
    loop
        if v_target.is_keyed then
            perform forebay._record_keyed_lane(v_target.queue, v_target.priority, 0);
        elsif v_target.is_limited then
            perform forebay._record_limited_lane(v_target.queue, v_target.priority, 0);
        else
            v_lanes := forebay._record_lanes(v_target.queue, v_target.priority, v_shards);
            v_queue := v_target.queue;
            v_priority := v_target.priority;
        end if;
    end loop;
    with run as materialized (
        select l.queue, l.subject, (l.newest).*, case when (l.newest).run_no > 0 then (l.ended).no end as ended_no, (l.ended).data as ended_data,
               (l.ended).iterations as ended_iterations, (l.ended).last_at as ended_at, nextval('forebay.log_seq') as seq,
               case when (l.newest).options ? 'ordering_key' then forebay._keyed_lane_id(l.queue, (l.newest).priority, 0)
                    when (l.newest).options ? 'limit_key' then forebay._limited_lane_id(l.queue, (l.newest).priority, 0)
                    when l.queue = v_queue and (l.newest).priority = v_priority then v_lanes[1 + l.ordinality % cardinality(v_lanes)]
                    else forebay._lane_for_place(l.queue, (l.newest).priority, l.ordinality, v_shards) end as target
        from unnest(p_due) with ordinality l),
    known as materialized (
        select r.*, case when r.ended_no is null then r.data else r.ended_data end as data_now,
               case when r.ended_no is null then r.iterations else r.ended_iterations end as iterations_now,
               case when r.ended_no is null then r.last_at else r.ended_at end as last_now
        from run r),
    written as (
        insert into forebay.log (
            seq, lane, enqueued_at, expires_at, kind, args, headers, {options but headers})
        select k.seq, k.target, p_now,
               -- A subject does not expire unless told, and neither do its runs.
               coalesce(o.expires_at, p_now + interval '100 years'),
               k.kind || case when k.version > 0 then '.v' || k.version else '' end, k.args,
               coalesce(o.headers, '{}') || jsonb_build_object('forebay-subject', jsonb_build_object(
                   'id', k.subject_id, 'no', k.no + 1, 'subject', k.subject, 'iterations', k.iterations_now, 'version', k.version,
                   'state', k.data_now, 'due_at', forebay._iso(k.due_at), 'last_at', forebay._iso(k.last_now))::text),
               {options of o but headers}
        from known k
        left join lateral (
            select i.* from jsonb_populate_record(null::forebay._job_input, k.options) i where k.options <> '{}' offset 0) o on true
        order by k.seq)
    insert into forebay.subject_state (
        subject_id, no, part, state, at, due_at, kind, version, priority, args, data, options, iterations, last_at, job_id, run_no, lane,
        job_xid)
    select k.subject_id, k.no + 1, 0, 'i', p_now, k.due_at, k.kind, k.version, k.priority, k.args, k.data_now, k.options, k.iterations_now,
           k.last_now, k.seq, k.no + 1, k.target, v_xid
    from known k;
    perform forebay._notify(q.queue), forebay._count_subjects(q.queue, 's', 'i', q.runs)
    from (select l.queue, count(*) as runs from unnest(p_due) l group by l.queue) q;
end
$$;


-- How the run ended that a row names and that had not ended when the row was written; null: not yet, or without a row.
create function forebay._end_of_carried(p_row forebay.subject_state) returns forebay.subject_state
language sql stable
as $$
    select s from forebay.subject_state s
    where p_row.state <> 'i' and s.subject_id = p_row.subject_id and s.no = abs(p_row.run_no) and s.part = 1
$$;


-- Take back what the end of such a run changed in the number of subjects: another row had decided about the subject.
--
-- Called once for each, under the lock, when a row that names the run is followed by one that does not.
create function forebay._forget_carried(p_look forebay._subject_look) returns void
language sql volatile
as $$
    select forebay._count_subjects(p_look.queue, nullif((p_look.ended).state, 'g'), 'i')
    where (p_look.newest).lane is not null and (p_look.ended).no is not null
$$;


-- A time as text for programs.
create function forebay._iso(p_at timestamptz) returns text
language sql stable
as $$ select to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"') $$;
