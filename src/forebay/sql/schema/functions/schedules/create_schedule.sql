-- grant: operator

-- Create a schedule, or replace the definition of the one of this name, except `starts_at` if it is
-- null; returns `created`, `changed` or `unchanged`. With another `cron`, `every`, `tz` or
-- `starts_at`, earlier instants are not caught up.
--
-- Parameters:
--   kind, args, queue, priority
--                     of its jobs, see forebay.enqueue()
--   cron              five fields, minute to day of week, or six with seconds first; names and `* /
--                     , - # L` as in Debian's cron, or `@hourly`, `@daily`, `@midnight`,
--                     `@weekly`, `@monthly`, `@yearly`, `@annually`
--   every             instead of `cron`: this time apart, counted from `starts_at` in real time;
--                     whole seconds, 1 second to 366 days
--   tz                the time zone of `cron`
--   overlap           when the job before has not ended in each group: `allow`, enqueue another;
--                     `skip`; `queue`, enqueue it to run after, if none waits; `cancel`, cancel the
--                     job before; `replace`, cancel it only if it waits
--   missed            instants that no scheduler decided within 60 seconds: `skip`; `latest`,
--                     enqueue the newest; `all`
--   jitter            a job starts up to this much after its instant; all schedulers compute the
--                     same time. At most 1 day
--   catch_up          missed instants older than this are not enqueued; at most 366 days
--   missed_max        with missed `all`: maximum number of jobs, the newest instants; 1 to 10000
--   starts_at         no instant before it; null: now, or as it is
--   options           of the jobs: {options marked but ordering_key}, `expires_in` in seconds
--   pause_on_failure  pause the schedule before its next instant when one of its jobs is dead
--
-- Errors: JQ001 a bad parameter, JQ002 and JQ003 args too large or too deep.
-- Locks: the schedule's row.
create function forebay.create_schedule(
    name text, kind text, cron text default null, every interval default null, tz text default 'UTC', args jsonb default '{}',
    queue text default null, priority integer default 100, overlap text default 'skip', missed text default 'latest',
    jitter interval default '0', catch_up interval default '1 day', missed_max integer default 100, starts_at timestamptz default null,
    options jsonb default '{}', pause_on_failure boolean default false)
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
declare
    s forebay.schedule;
begin
    s.name := create_schedule.name;
    s.kind := create_schedule.kind;
    s.args := create_schedule.args;
    s.queue := create_schedule.queue;
    s.priority := create_schedule.priority;
    s.options := create_schedule.options;
    s.cron := create_schedule.cron;
    s.every := create_schedule.every;
    s.tz := create_schedule.tz;
    s.jitter := create_schedule.jitter;
    s.overlap := create_schedule.overlap;
    s.missed := create_schedule.missed;
    s.catch_up := create_schedule.catch_up;
    s.missed_max := create_schedule.missed_max;
    s.starts_at := create_schedule.starts_at;
    s.pause_on_failure := create_schedule.pause_on_failure;
    return forebay._put_schedule(s);
end
$$;


-- Create or change a schedule; see forebay.create_schedule().
create function forebay._put_schedule(p_new forebay.schedule) returns text
language plpgsql volatile
-- planner: indexed
as $$
declare
    s        forebay.schedule := p_new;
    v_now    constant timestamptz := forebay._now();
    v_before forebay.schedule;
begin
    s.cron := regexp_replace(btrim(s.cron), E'\\s+', ' ', 'g');
    perform forebay._check_schedule(s);
    -- Without months and days, whose length would depend on the zone of the session.
    s.every := make_interval(secs => extract(epoch from s.every)::double precision);
    s.jitter := make_interval(secs => extract(epoch from s.jitter)::double precision);
    s.catch_up := make_interval(secs => extract(epoch from s.catch_up)::double precision);
    insert into forebay.schedule (
        name, kind, args, queue, priority, options, cron, every, tz, starts_at, jitter, overlap, missed, catch_up, missed_max,
        pause_on_failure, created_at, revision, decided_to, decisions)
    values (s.name, s.kind, s.args, s.queue, s.priority, s.options, s.cron, s.every, s.tz, coalesce(s.starts_at, date_trunc('second', v_now)),
            s.jitter, s.overlap, s.missed, s.catch_up, s.missed_max, s.pause_on_failure, v_now, 1,
            greatest(v_now, s.starts_at - interval '1 microsecond'), 0)
    on conflict on constraint schedule_name_key do nothing;
    if found then
        perform forebay._record_event('schedules.create', s.queue, p_kind => s.kind, p_detail => s.name, p_new => forebay._recorded_schedule(s));
        return 'created';
    end if;
    v_before := forebay._lock_schedule(s.name);
    if forebay._schedule_facts(v_before) = forebay._schedule_facts(s) and coalesce(s.starts_at, v_before.starts_at) = v_before.starts_at then
        return 'unchanged';
    end if;
    update forebay.schedule i
    set kind = s.kind, args = s.args, queue = s.queue, priority = s.priority, options = s.options, cron = s.cron, every = s.every,
        tz = s.tz, starts_at = coalesce(s.starts_at, i.starts_at), jitter = s.jitter, overlap = s.overlap, missed = s.missed,
        catch_up = s.catch_up, missed_max = s.missed_max, pause_on_failure = s.pause_on_failure, problem = null,
        revision = i.revision + 1,
        -- The instants of another timing were not due under the old one.
        decided_to = case when (i.cron, i.every, i.tz, i.starts_at) is not distinct from (s.cron, s.every, s.tz, coalesce(s.starts_at, i.starts_at))
                          then i.decided_to else greatest(v_now, i.decided_to, s.starts_at - interval '1 microsecond') end
    where i.schedule_id = v_before.schedule_id;
    perform forebay._record_event('schedules.change', s.queue, p_kind => s.kind, p_subject_id => v_before.schedule_id, p_detail => s.name,
                                  p_old => forebay._recorded_schedule(v_before), p_new => forebay._recorded_schedule(s, v_before));
    return 'changed';
end
$$;
