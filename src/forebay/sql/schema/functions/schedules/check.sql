-- Refuse a definition of a schedule.
--
-- SQL does not compute cron expressions. What passes here and is still wrong, a scheduler reports in `problem`.
-- Errors: JQ001.
create function forebay._check_schedule(s forebay.schedule) returns void
language plpgsql stable
as $$
declare
    v_options constant text[] := array[{options keys but ordering_key}, 'expires_in'];
    v_problem text;
    v_field   text;
begin
    if (s.name ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$') is not true then
        v_field := 'name';
        v_problem := format('schedule %s is not a name: letters, digits and _ . : - only, at most 128', coalesce(quote_literal(left(s.name, 40)), 'null'));
    elsif num_nonnulls(s.cron, s.every) <> 1 then
        v_field := 'cron';
        v_problem := 'exactly one of cron and every is needed';
    elsif length(s.cron) > 200 or s.cron !~ '^([0-9A-Za-z*/,#-]+( [0-9A-Za-z*/,#-]+){4,5}|@(yearly|annually|monthly|weekly|daily|midnight|hourly))$' then
        v_field := 'cron';
        v_problem := format('cron %s does not have five or six fields of digits, names and * / , - #', quote_literal(left(s.cron, 40)));
    elsif s.every is not null and (s.every not between interval '1 second' and interval '366 days'
                                   or extract(epoch from s.every) % 1 <> 0) then
        v_field := 'every';
        v_problem := format('every %s is not a whole number of seconds within 1 second to 366 days', s.every);
    elsif (s.tz ~ '^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$' and length(s.tz) <= 64
           and lower(s.tz) not in ('localtime', 'posixrules', 'factory')) is not true then
        v_field := 'tz';
        v_problem := format('tz %s is not the name of a time zone', coalesce(quote_literal(left(s.tz, 40)), 'null'));
    elsif (s.jitter between interval '0' and interval '1 day') is not true then
        v_field := 'jitter';
        v_problem := format('jitter %s is outside 0 to 1 day', coalesce(s.jitter::text, 'null'));
    elsif s.jitter > s.every then
        v_field := 'jitter';
        v_problem := format('jitter %s is longer than every %s', s.jitter, s.every);
    elsif (s.overlap in ('allow', 'skip', 'queue', 'cancel', 'replace')) is not true then
        v_field := 'overlap';
        v_problem := format('overlap %s is not one of allow, skip, queue, cancel, replace', coalesce(quote_literal(left(s.overlap, 40)), 'null'));
    elsif (s.missed in ('skip', 'latest', 'all')) is not true then
        v_field := 'missed';
        v_problem := format('missed %s is not one of skip, latest, all', coalesce(quote_literal(left(s.missed, 40)), 'null'));
    elsif (s.catch_up between interval '0' and interval '366 days') is not true then
        v_field := 'catch_up';
        v_problem := format('catch_up %s is outside 0 to 366 days', coalesce(s.catch_up::text, 'null'));
    elsif (s.missed_max between 1 and 10000) is not true then
        v_field := 'missed_max';
        v_problem := format('missed_max %s is outside 1 to 10000', coalesce(s.missed_max::text, 'null'));
    elsif s.starts_at not between '0001-01-02 00:00+00' and '9990-01-01 00:00+00' then  -- Schedulers read no other times.
        v_field := 'starts_at';
        v_problem := format('starts_at %s is outside the years 1 to 9989', s.starts_at);
    elsif s.pause_on_failure is null then
        v_field := 'pause_on_failure';
        v_problem := 'pause_on_failure is null';
    elsif jsonb_typeof(s.options) is distinct from 'object' then
        v_field := 'options';
        v_problem := format('options must be a JSON object, not %s', coalesce(jsonb_typeof(s.options), 'null'));
    elsif s.options - v_options <> '{}' then
        v_field := 'options';
        v_problem := format('unknown option %s', (select quote_literal(left(k, 40)) from jsonb_object_keys(s.options - v_options) k limit 1));
    elsif exists (select from jsonb_each(s.options) o
                  where jsonb_typeof(o.value) <> case o.key when 'headers' then 'object' when 'max_attempts' then 'number'
                                                            when 'expires_in' then 'number' else 'string' end) then
        v_field := 'options';
        v_problem := 'an option has a value of the wrong type';
    elsif (s.options ->> 'max_attempts')::numeric not between 1 and 10000 or (s.options ->> 'max_attempts')::numeric % 1 <> 0 then
        v_field := 'options';
        v_problem := format('max_attempts %s is not an integer within 1 to 10000', left(s.options ->> 'max_attempts', 40));
    elsif (s.options ->> 'expires_in')::numeric not between 0.001 and 3110400000 then
        v_field := 'options';
        v_problem := format('expires_in %s is outside 0.001 to 3110400000 seconds', left(s.options ->> 'expires_in', 40));
    elsif exists (select from jsonb_object_keys(s.options -> 'headers') h where h like 'forebay-%') then
        v_field := 'options';
        v_problem := 'headers that begin with forebay- are reserved';
    else
        v_problem := forebay._job_problem(jsonb_populate_record(null::forebay._job_input, s.options || jsonb_build_object(
            'kind', s.kind, 'args', s.args, 'queue', coalesce(s.queue, 'default'), 'priority', s.priority)));
    end if;
    if v_problem is not null then
        raise exception using errcode = 'JQ001', column = coalesce(v_field, 'schedule'), message = v_problem,
            hint = 'Nothing was changed. See the function forebay.create_schedule in the reference.';
    end if;
    perform forebay._check_args(s.args, null);
    begin
        perform forebay._now() at time zone s.tz;
    exception when invalid_parameter_value then
        raise exception using errcode = 'JQ001', column = 'tz', message = format('tz %s is not the name of a time zone', quote_literal(s.tz)),
            hint = 'Nothing was changed. Use a name such as Europe/Rome.';
    end;
end
$$;


-- What a schedule does, as JSON; times in seconds.
create function forebay._schedule_facts(s forebay.schedule) returns jsonb
language sql stable
as $$
    select jsonb_build_object(
        'name', s.name, 'kind', s.kind, 'args', s.args, 'queue', s.queue, 'priority', s.priority, 'options', s.options, 'cron', s.cron,
        'every', extract(epoch from s.every), 'tz', s.tz, 'jitter', extract(epoch from s.jitter), 'overlap', s.overlap,
        'missed', s.missed, 'catch_up', extract(epoch from s.catch_up), 'missed_max', s.missed_max,
        'pause_on_failure', s.pause_on_failure)
$$;


-- The schedule that JSON as of _schedule_facts() describes; a missing member has its default.
--
-- Errors: JQ001 it is none.
create function forebay._schedule_of(p_facts jsonb) returns forebay.schedule
language plpgsql stable
as $$
declare
    v_known constant text[] := array['name', 'kind', 'args', 'queue', 'priority', 'options', 'cron', 'every', 'tz', 'jitter', 'overlap',
                                     'missed', 'catch_up', 'missed_max', 'pause_on_failure', 'starts_at'];
    v_given constant jsonb := case when jsonb_typeof(p_facts) = 'object' then jsonb_strip_nulls(p_facts - 'args') end;
    s       forebay.schedule;
begin
    if v_given is null or v_given - v_known <> '{}' then
        raise exception using errcode = 'JQ001', column = 'schedules', message = 'a schedule is not an object with known members',
            hint = format('The members are %s.', array_to_string(v_known, ', '));
    end if;
    s.name := v_given ->> 'name';
    s.kind := v_given ->> 'kind';
    s.args := coalesce(p_facts -> 'args', '{}');
    s.queue := v_given ->> 'queue';
    s.priority := coalesce((v_given ->> 'priority')::integer, 100);
    s.options := coalesce(v_given -> 'options', '{}');
    s.cron := v_given ->> 'cron';
    s.every := make_interval(secs => (v_given ->> 'every')::double precision);
    s.tz := coalesce(v_given ->> 'tz', 'UTC');
    s.jitter := make_interval(secs => coalesce((v_given ->> 'jitter')::double precision, 0));
    s.overlap := coalesce(v_given ->> 'overlap', 'skip');
    s.missed := coalesce(v_given ->> 'missed', 'latest');
    s.catch_up := make_interval(secs => coalesce((v_given ->> 'catch_up')::double precision, 86400));
    s.missed_max := coalesce((v_given ->> 'missed_max')::integer, 100);
    s.pause_on_failure := coalesce((v_given ->> 'pause_on_failure')::boolean, false);
    s.starts_at := (v_given ->> 'starts_at')::timestamptz;
    return s;
exception when data_exception then
    raise exception using errcode = 'JQ001', column = 'schedules', message = format('a schedule is refused: %s', sqlerrm);
end
$$;


-- The schedule of a name, locked.
--
-- Errors: JQ060 there is none.
create function forebay._lock_schedule(p_name text) returns forebay.schedule
language plpgsql volatile
-- planner: indexed
as $$
declare
    s forebay.schedule;
begin
    select i.* into s from forebay.schedule i where i.name = p_name for update;
    if not found then
        raise exception using errcode = 'JQ060', message = format('schedule %s not found', coalesce(quote_literal(left(p_name, 100)), 'null')),
            detail = jsonb_build_object('schedule', left(p_name, 100)), hint = 'forebay.schedules() lists all schedules.';
    end if;
    return s;
end
$$;
