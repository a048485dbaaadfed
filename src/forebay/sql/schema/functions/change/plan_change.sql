-- grant: operator

-- What forebay.change_jobs() would do: the token, and a row for each answer and state with the
-- number of jobs, the oldest and the newest of them. Changes nothing. One row with only a token if
-- no job matches. A job that waits for several groups counts once, with its first answer. Reads
-- every waiting job of the queues. The answer `children` has the number of jobs that flows among
-- them wait for and that have not ended: those that have not started are cancelled, too.
--
-- With the token the act takes only jobs that were counted here: those of them that still match.
--
-- Errors: JQ001 a bad act, filter or option.
-- See: docs/howto/many-jobs.md
-- pages: 400 + 60 a lane + 3 a waiting job + 20 an open lease
create function forebay.plan_change(act text, filter jsonb, options jsonb default '{}')
returns table (token text, answer text, state text, jobs bigint, oldest_at timestamptz, newest_at timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: short
as $$
#variable_conflict use_column
declare
    v_filter  constant jsonb := forebay._checked_filter(plan_change.filter);
    v_options constant jsonb := forebay._checked_change(plan_change.act, v_filter, plan_change.options);
    v_act     constant text := case plan_change.act when 'purge' then 'cancel' else plan_change.act end;
    v_until   constant bigint := coalesce(pg_sequence_last_value('forebay.log_seq'), 0) + 1;
begin
    return query
    with found as materialized (
        select m.job_id, (array_agg(m.answer order by m.answer))[1] as answer, (array_agg(m.state order by m.answer))[1] as state,
               min(m.enqueued_at) as enqueued_at
        from forebay._matching(v_act, v_filter, v_options, false, null) m group by m.job_id),
    total as (
        select forebay._token(count(*), v_until, pg_current_snapshot(), jsonb_build_array(plan_change.act, v_filter, v_options)) as token from found f
        where f.answer in ('changed', 'requested'))
    select t.token, case when v_act in ('cancel', 'truncate') and f.answer = 'changed' then 'cancelled' else f.answer end, f.state, count(f.job_id),
           min(f.enqueued_at), max(f.enqueued_at)
    from total t left join found f on true
    group by 1, 2, 3
    union all
    select t.token, 'children', null, sum(w.children - w.ended)::bigint, null, null
    from total t
    cross join (select f.job_id from found f where f.state = 'scheduled' and f.answer = 'changed' and v_act in ('cancel', 'truncate')
                  and pg_sequence_last_value('forebay.flow_seq') is not null) f
    cross join lateral (select distinct s.group_id from forebay.step s where s.job_id = f.job_id) s
    cross join lateral forebay._flow_waits(f.job_id, s.group_id) w
    where w.children > w.ended
    group by t.token
    order by 2, 3;
end
$$;


-- The options of a change, checked.
--
-- Errors: JQ001.
create function forebay._checked_change(p_act text, p_filter jsonb, p_options jsonb) returns jsonb
language plpgsql stable
as $$
declare
    v_problem text;
begin
    v_problem := case
        when (p_act in ('cancel', 'purge', 'truncate', 'retry', 'reschedule', 'reprioritise')) is not true
            then format('unknown act %s: cancel, purge, truncate, retry, reschedule or reprioritise', coalesce(quote_literal(left(p_act, 40)), 'null'))
        when p_options is null or jsonb_typeof(p_options) <> 'object' then 'options must be a JSON object'
        when p_act = 'reschedule' and (p_options - 'run_at' <> '{}' or forebay._as_instant(p_options ->> 'run_at') is null)
            then 'a reschedule needs the option run_at, a time, and no other'
        when p_act = 'reprioritise' and (p_options - 'priority' <> '{}' or (jsonb_typeof(p_options -> 'priority') = 'number') is not true
             or (p_options ->> 'priority')::numeric not between -32768 and 32767 or (p_options ->> 'priority')::numeric % 1 <> 0)
            then 'a reprioritisation needs the option priority, -32768 to 32767, and no other'
        when p_act in ('cancel', 'purge') and (p_options - 'now' <> '{}' or jsonb_typeof(coalesce(p_options -> 'now', 'true')) <> 'boolean')
            then format('%s takes the option now, true or false, and no other', p_act)
        when p_act in ('truncate', 'retry') and p_options <> '{}' then format('%s takes no options', p_act)
        when p_act in ('purge', 'truncate') and (not p_filter ? 'queue' or p_filter - 'queue' <> '{}')
            then format('a %s takes a queue and no other filter', p_act) end;
    if v_problem is not null then
        raise exception using errcode = 'JQ001', column = 'options', message = v_problem, hint = 'Nothing was changed.';
    end if;
    return p_options;
end
$$;


-- What a token lets a change take, as further options for forebay._matching().
--
-- Errors: JQ042 it is the token of another change.
create function forebay._seen_by_change(p_token text, p_act text, p_filter jsonb, p_options jsonb) returns jsonb
language plpgsql stable
as $$
declare
    v_seen constant record := forebay._seen_by_token(p_token);
begin
    if forebay._token(v_seen.jobs, v_seen.until_seq, v_seen.snapshot, jsonb_build_array(p_act, p_filter, p_options)) is distinct from p_token then
        perform forebay._refuse_token(p_token);
    end if;
    -- The state of a job is that of its newest row, which a dry run of jobs in a state has seen. In whatever state a job is cancelled,
    -- it is that of the dry run as long as its first row is.
    return jsonb_build_object('snapshot', v_seen.snapshot)
        || case when p_act in ('cancel', 'purge') and not p_filter ? 'state' then jsonb_build_object('until', v_seen.until_seq) else '{}' end;
end
$$;
