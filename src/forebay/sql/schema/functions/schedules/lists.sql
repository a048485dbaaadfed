-- grant: operator, reader

-- The schedules, or the one of a name. Times are in seconds.
--
-- Columns:
--   starts_at, decided_to  see forebay.create_schedule()
--   vanished_at            since then its application does not declare it any more
--   problem                why schedulers cannot use it
--   last_for, last_job, last_status
--                          its newest decision
create function forebay.schedules(only_name text default null)
returns table (name text, kind text, args jsonb, queue text, priority integer, options jsonb, cron text, every double precision, tz text,
               jitter double precision, overlap text, missed text, catch_up double precision, missed_max integer,
               pause_on_failure boolean, starts_at timestamptz, declared_by text, vanished_at timestamptz, paused_at timestamptz,
               pause_note text, problem text, created_at timestamptz, revision integer, decided_to timestamptz, decisions bigint,
               last_for timestamptz, last_job bigint, last_status text, server_time timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select s.name, s.kind, s.args, s.queue, s.priority, s.options, s.cron, extract(epoch from s.every)::double precision, s.tz,
           extract(epoch from s.jitter)::double precision, s.overlap, s.missed, extract(epoch from s.catch_up)::double precision,
           s.missed_max, s.pause_on_failure, s.starts_at, s.declared_by, s.vanished_at, s.paused_at, s.pause_note, s.problem,
           s.created_at, s.revision, s.decided_to, s.decisions, o.scheduled_for, o.job_id, o.status, forebay._now()
    from forebay.schedule s
    left join lateral (select i.* from forebay.occurrence i where i.schedule_id = s.schedule_id order by i.scheduled_for desc limit 1) o on true
    where schedules.only_name is null or s.name = schedules.only_name
    order by s.name
$$;


-- The decisions of a schedule, newest instant first. They are kept for 30 days, and at most the
-- newest 10,000. `most` is 1 to 10000; `before`: only earlier instants.
--
-- Columns:
--   status    enqueued; skipped, by its overlap; missed; manual, by forebay.run_schedule();
--             backfilled
--   instants  a row with status missed counts also missed instants before it
--
-- Errors: JQ060 no such schedule.
create function forebay.schedule_history(name text, most integer default 50, before timestamptz default null)
returns table (scheduled_for timestamptz, occurrence bigint, status text, instants bigint, job_id bigint, reason text, decided_at timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_column
declare
    v_id constant bigint := forebay._schedule_id(schedule_history.name);
begin
    return query
        select o.scheduled_for, o.occurrence, o.status, o.instants, o.job_id, o.reason, o.decided_at
        from forebay.occurrence o
        where o.schedule_id = v_id and o.scheduled_for < coalesce(schedule_history.before, 'infinity')
        order by o.scheduled_for desc limit least(greatest(schedule_history.most, 1), 10000);
end
$$;


-- When the jobs of instants of a schedule start, with its jitter, and what was decided about each;
-- null: nothing. A client computes the instants.
--
-- Errors: JQ060 no such schedule; JQ001 an instant is not a finite time.
create function forebay.schedule_starts(name text, instants timestamptz[])
returns table (scheduled_for timestamptz, starts_at timestamptz, status text, job_id bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_id     constant bigint := forebay._schedule_id(schedule_starts.name);
    v_jitter constant interval := (select s.jitter from forebay.schedule s where s.schedule_id = v_id);
begin
    perform forebay._require('instants', bool_and(isfinite(a.at)), string_agg(a.at::text, ', ') filter (where not isfinite(a.at)), 'finite times')
    from unnest(schedule_starts.instants) a (at) having count(a.at) > 0;
    return query
        select a.at, a.at + forebay._jitter_of(schedule_starts.name, a.at, v_jitter), o.status, o.job_id
        from unnest(schedule_starts.instants) with ordinality a (at, nr)
        left join forebay.occurrence o on o.schedule_id = v_id and o.scheduled_for = a.at
        order by a.nr;
end
$$;


-- The id of a schedule.
--
-- Errors: JQ060 no schedule has this name.
create function forebay._schedule_id(p_name text) returns bigint
language plpgsql stable
as $$
declare
    v_id bigint;
begin
    select s.schedule_id into v_id from forebay.schedule s where s.name = p_name;
    if not found then
        raise exception using errcode = 'JQ060', message = format('schedule %s not found', coalesce(quote_literal(left(p_name, 100)), 'null')),
            detail = jsonb_build_object('schedule', left(p_name, 100)), hint = 'forebay.schedules() lists all schedules.';
    end if;
    return v_id;
end
$$;
