-- grant: operator

-- Cancel, retry, reschedule or reprioritise the unfinished jobs that match a filter. Returns the
-- number of jobs by answer; with `ids`, a row for each of them, with `job_id`.
--
-- Parameters:
--   act       `cancel`; `purge`, the same for a whole queue; `truncate`, the same for the jobs that
--             wait there at the first call; `retry`: scheduled and retrying jobs are ready now;
--             `reschedule`; `reprioritise`
--   filter    a JSON object with one or more of `queue`, `kind`, `tag`, `state`, `ordering_key`,
--             `limit_key`, `unique_key`, `correlation_id`, `subject`, `enqueued_after`,
--             `enqueued_before`, `ids` (at most 10,000); or `{"all": true}`
--   options   `{"run_at": ...}` to reschedule, `{"priority": ...}` to reprioritise; `{"now": true}`
--             to cancel or purge: flows that wait end without running again, as with a truncation
--   token     from forebay.plan_change(): take only jobs that it counted; give it to each call
--   most      at most this many jobs, 1 to 100,000; call again while as many were taken. Optional
--             for `cancel`, `purge` and `truncate`; the first step of a truncation takes all
--             scheduled and retrying jobs, and it ends with the step that takes none
--   event_id  `event` of the previous call, so that the event log has one row, and a truncation
--             goes by what the first call saw
--
-- Answers:
--   cancelled               it will not start
--   requested               a worker has it, and its handler is requested to stop; or it is a flow
--                           that waits, which continues to compensate, see forebay.cancel()
--   changed                 retried, rescheduled or reprioritised
--   unchanged               with `ids`: it is ready already, or has this time or priority
--   running                 with `ids`: a worker has it
--   ordering key            with `ids`: it would lose its place
--   expires before          with `ids`: the new time is after its expiry
--   already ended, unknown  with `ids`
--
-- Errors: JQ001 a bad act, filter, option or number; JQ042 the token of another change;
--   except for `cancel`, `purge` and `truncate` JQ012 not called alone, JQ030
--   foreign cluster.
-- Transaction: the caller's for `cancel`, `purge` and `truncate`; alone for the others.
-- Locks: with a token, for `cancel`, `purge` and `truncate` the cancellation lock, until the
--   transaction ends; for `retry`, `reschedule` and `reprioritise` the promotion lock, or those of the sweep and
--   of the lanes that jobs leave.
-- See: docs/howto/many-jobs.md, docs/design/change.md
--
-- Inside: Invariants: "a change takes only what it changes": a call that is repeated takes the jobs
-- that are left, so a crash between calls leaves some jobs changed and the next call finishes. "one
-- live row": of the rows of a job that wait for a group only the newest is ever handed out, so that
-- a job which a claim takes at the same moment is either moved or claimed.
-- pages: 500 + 60 a lane + 3 a waiting job + 40 a job + 20 an open lease
create function forebay.change_jobs(
    act text, filter jsonb, options jsonb default '{}', token text default null, most integer default null, event_id bigint default null)
returns table (job_id bigint, answer text, jobs bigint, event bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
-- planner: short
as $$
#variable_conflict use_column
declare
    v_filter  constant jsonb := forebay._checked_filter(change_jobs.filter);
    v_given   constant jsonb := forebay._checked_change(change_jobs.act, v_filter, change_jobs.options);
    v_options jsonb := v_given;
    v_act     constant text := case change_jobs.act when 'purge' then 'cancel' else change_jobs.act end;
    v_cancels constant boolean := v_act in ('cancel', 'truncate');
    v_most    constant bigint := coalesce(change_jobs.most, 9223372036854775807);
    v_ids     constant bigint[] := translate(v_filter ->> 'ids', '[]', '{}');
    v_found   forebay._match[];
    v_taken   bigint[] := '{}';
    v_asked   bigint[] := '{}';
    v_held    bigint[] := '{}';  -- jobs that a worker has for one group
    v_partly  bigint[];          -- jobs that were not found for each group
    v_flows   bigint[] := '{}';  -- flows that wait, and continue
    v_count   bigint;
begin
    if (v_most between 1 and 100000) is not true and (not v_cancels or change_jobs.most is not null) then
        raise exception using errcode = 'JQ001', column = 'most', message = format('most %s is outside 1 to 100000', coalesce(change_jobs.most::text, 'null'));
    elsif cardinality(v_ids) > 10000 then
        raise exception using errcode = 'JQ001', column = 'filter', message = format('%s ids are more than 10000', cardinality(v_ids));
    end if;
    if not v_cancels then
        perform forebay._require_alone('forebay.change_jobs()');
        perform forebay._require_same_cluster();
    end if;
    if change_jobs.token is not null then
        if v_cancels then
            -- Two people with one token take turns, so that each job has one answer and the event log counts it once.
            lock table only forebay.lock_cancellation in share update exclusive mode;
        end if;
        v_options := v_options || forebay._seen_by_change(change_jobs.token, change_jobs.act, v_filter, v_given);
    elsif v_act = 'truncate' then
        v_options := jsonb_build_object('own', true, 'snapshot', coalesce(
            (select e.new ->> 'snapshot' from forebay.event e
             where forebay._is_own_event(e, change_jobs.event_id, change_jobs.act) and e.queue = v_filter ->> 'queue'),
            pg_current_snapshot()::text));
    end if;

    select array_agg(row(m.*)::forebay._match) into v_found
    from (select f.* from forebay._matching(v_act, v_filter, v_options, v_ids is null, case when v_ids is null then change_jobs.most end) f
          limit case when v_ids is null and v_act <> 'truncate' then v_most end) m;
    if v_cancels then
        select array_agg(distinct f.job_id) filter (where f.answer = 'changed'), array_agg(distinct f.job_id) filter (where f.answer = 'requested')
        into v_taken, v_asked from unnest(v_found) f;
        if v_act = 'cancel' and not coalesce((v_options ->> 'now')::boolean, false) then
            v_flows := forebay._cancel_flows(array(select distinct f.job_id from unnest(v_found) f));
            v_taken := array(select u from unnest(v_taken) u where u <> all (v_flows));
            v_asked := coalesce(v_asked, '{}') || v_flows;
            v_found := array(select f from unnest(v_found) f where f.job_id <> all (v_flows));
        end if;
        -- A job that waits for one group and runs for another: a truncation cancels it for the first only.
        if v_act = 'truncate' and (select count(*) > 1 from forebay.queue_group g where g.queue = v_filter ->> 'queue') then
            v_held := array(select m.job_id from unnest(array['claimed', 'running']) s
                            cross join lateral forebay._matching('cancel', v_filter || jsonb_build_object('state', s), '{}', true, null) m);
            perform forebay._cancel_waiting(v_found, v_held);
        end if;
        insert into forebay.tombstone (job_id, reason, recorded_at)
        select distinct f.job_id, 'c'::"char", forebay._now() from unnest(v_found) f where f.job_id <> all (v_held) order by 1;
        v_partly := forebay._partly_found(v_found, v_held);
        perform forebay._withdraw(array(select distinct f.job_id from unnest(v_found) f where f.place = 'd' and f.job_id <> all (v_held)) || v_partly);
        perform forebay._note_cancelled_matches(v_found, v_held || v_partly, false, null);
        perform forebay._note_cancelled_jobs(v_partly);
        perform forebay._announce_cancelled(v_found, coalesce(v_asked, '{}') || v_held);
        perform forebay._after_cancelled(array(select distinct f.job_id from unnest(v_found) f));
    elsif exists (select from unnest(v_found) f where f.answer = 'changed') then
        v_taken := forebay._move_deferred(
                v_act, v_options, array(select f.job_id from unnest(v_found) f where f.place = 'd' and f.answer = 'changed' order by f.seq),
                array(select f.seq from unnest(v_found) f where f.place = 'd' and f.answer = 'changed' order by f.seq))
            || forebay._move_ready(v_act, v_options, array(select f from unnest(v_found) f where f.place = 'l' and f.answer = 'changed'));
    end if;
    v_asked := coalesce(v_asked, '{}');
    v_taken := coalesce(array(select distinct u from unnest(v_taken) u where u <> all (v_asked)), '{}');
    v_count := cardinality(v_taken) + cardinality(v_asked);
    if v_count > 0 then
        event := forebay._record_change(
            change_jobs.event_id, change_jobs.act, v_filter,
            v_given || case when v_act = 'truncate' then jsonb_build_object('snapshot', v_options -> 'snapshot') else '{}' end, v_count);
    else
        event := change_jobs.event_id;
    end if;

    if v_ids is null then
        for answer, jobs in
            select * from (values (case when v_cancels then 'cancelled' else 'changed' end, cardinality(v_taken)), ('requested', cardinality(v_asked))) n
            where n.column2 > 0
        loop
            return next;
        end loop;
        return;
    end if;
    jobs := 1;
    for job_id in select distinct u from unnest(v_ids) u order by 1 loop
        answer := case when job_id = any (v_asked) then 'requested'
                       when job_id = any (v_taken) then case v_act when 'cancel' then 'cancelled' else 'changed' end
                       else (select min(f.answer) from unnest(v_found) f where f.job_id = change_jobs.job_id and f.answer <> 'changed') end;
        answer := coalesce(answer, (
            select case when bool_and(j.state = 'cancelled') and v_act = 'cancel' then 'cancelled'
                        when bool_and(j.state in ('done', 'cancelled', 'expired', 'dead')) then 'already ended'
                        when bool_or(j.state in ('claimed', 'running')) then case v_act when 'cancel' then 'requested' else 'running' end
                        when v_act = 'cancel' and exists (select from forebay.flow_cancelled c where c.job_id = change_jobs.job_id)
                             and not bool_or(j.cancel_requested) then 'requested'
                        when v_act = 'cancel' and count(*) > 0 then 'cancelled'
                        when bool_and(j.cancel_requested) then 'already ended'
                        when count(*) > 0 then 'unchanged' end
            from forebay.job(change_jobs.job_id) j), 'unknown');
        return next;
    end loop;
end
$$;


-- Cancel jobs that a worker has for one group, for the groups that they wait for.
create function forebay._cancel_waiting(p_found forebay._match[], p_held bigint[]) returns void
language plpgsql volatile
as $$
declare
    v_group record;
begin
    for v_group in
        select f.group_id, array_agg(distinct f.job_id) as jobs
        from unnest(p_found) f where f.job_id = any (p_held) and f.group_id is not null group by f.group_id
    loop
        insert into forebay.tombstone (job_id, group_id, reason, recorded_at)
        select u, v_group.group_id, 'c', forebay._now() from unnest(v_group.jobs) u order by 1;
        perform forebay._withdraw(v_group.jobs, v_group.group_id);
        perform forebay._note_cancelled_matches(p_found, v_group.jobs, true, v_group.group_id);
        perform forebay._announce_jobs(g.queue, g.name, 'cancelled', v_group.jobs)
        from forebay.queue_group g where g.group_id = v_group.group_id;
    end loop;
end
$$;


-- Jobs of queues with several groups that were not found ready for each of them, but those in p_but: a filter by state, or the number of jobs
-- of a step, leaves out rows that wait for other groups, and the jobs are cancelled for these too.
create function forebay._partly_found(p_found forebay._match[], p_but bigint[]) returns bigint[]
language plpgsql stable
as $$
begin
    if not exists (select from forebay.queue_group g group by g.queue having count(*) > 1) then
        return '{}';
    end if;
    return array(
        select f.job_id
        from unnest(p_found) f
        cross join lateral (select i.queue from forebay.lane i where i.lane = f.lane limit 1) l
        where f.job_id <> all (p_but)
        group by f.job_id, l.queue
        having (select count(*) from forebay.queue_group g where g.queue = l.queue) not in (1, count(distinct f.group_id) filter (where f.place = 'l')));
end
$$;


-- Note the rows of the log that matched: those of the jobs p_jobs, or those of all others; for a group or, with null, all.
create function forebay._note_cancelled_matches(p_found forebay._match[], p_jobs bigint[], p_only boolean, p_group_id bigint) returns void
language plpgsql volatile
as $$
declare
    v_rows record;
begin
    select array_agg(r.lane) as lanes, array_agg(r.xid) as xids, array_agg(r.seq) as seqs into v_rows
    from (select distinct f.lane, f.xid, f.seq from unnest(p_found) f
          where f.place = 'l' and (f.job_id = any (p_jobs)) = p_only and (p_group_id is null or f.group_id = p_group_id)) r;
    perform forebay._note_cancelled(v_rows.lanes, v_rows.xids, v_rows.seqs, p_group_id);
end
$$;


-- Is this the event of an earlier step of a change, of the same role and act, and not older than a day?
create function forebay._is_own_event(e forebay.event, p_event_id bigint, p_act text) returns boolean
language sql volatile
as $$
    select e.event_id = p_event_id and e.role = session_user and e.act in ('jobs.' || p_act, 'queues.' || p_act)
           and e.at > forebay._now() - interval '1 day'
$$;


-- Record a change, or add to the event of an earlier step of it: one with the same filter and options. Of more than 20 ids an event has the first.
create function forebay._record_change(p_event_id bigint, p_act text, p_filter jsonb, p_options jsonb, p_count bigint) returns bigint
language plpgsql volatile
as $$
declare
    v_ids constant jsonb := p_filter -> 'ids';
    v_new constant jsonb := p_options || (p_filter - '{queue,kind}'::text[])
        || case when jsonb_array_length(v_ids) > 20 then jsonb_build_object('ids', v_ids -> 0) else '{}' end;
begin
    update forebay.event e set count = e.count + p_count
    where forebay._is_own_event(e, p_event_id, p_act)
      and (e.queue, e.kind) is not distinct from (p_filter ->> 'queue', p_filter ->> 'kind')
      and (e.new = v_new
           or jsonb_typeof(e.new -> 'ids') = 'number' and jsonb_typeof(v_new -> 'ids') = 'number' and e.new - 'ids' = v_new - 'ids');
    if found then
        return p_event_id;
    end if;
    return forebay._record_event(
        case when p_act in ('purge', 'truncate') then 'queues.' else 'jobs.' end || p_act, p_filter ->> 'queue', p_kind => p_filter ->> 'kind', p_count => p_count,
        p_new => v_new);
end
$$;
