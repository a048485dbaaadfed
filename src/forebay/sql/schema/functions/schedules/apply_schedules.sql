-- grant: worker, operator

-- Make schedules what an application declares. Returns a row for each schedule that is not, or was
-- not, as declared. A declaration that changes replaces what was changed by hand. Pauses are never
-- changed.
--
-- Parameters:
--   app        the name of the application
--   schedules  a JSON array of objects with the members `name`, `kind`, `args`, `queue`,
--              `priority`, `options`, `cron`, `every`, `tz`, `jitter`, `overlap`, `missed`,
--              `catch_up`, `missed_max`, `pause_on_failure` and `starts_at`, see
--              forebay.create_schedule(); times in seconds
--   overwrite  take the declaration also for what is kept or in conflict
--   dry_run    change nothing
--
-- Actions:
--   create, change  done
--   kept            changed by hand since it was declared so; the declaration did not change. The
--                   database's definition stays
--   conflict        made by hand, or declared by another application: not touched
--   vanished        no longer declared. It still runs; forebay.drop_schedule() removes it
--
-- Errors: JQ001 a declaration is refused.
-- Locks: the rows of the schedules; two calls wait for each other.
create function forebay.apply_schedules(app text, schedules jsonb, overwrite boolean default false, dry_run boolean default false)
returns table (name text, action text, detail text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_one    record;
    v_new    forebay.schedule;
    v_before forebay.schedule;
    v_facts  jsonb;
begin
    if (length(apply_schedules.app) between 1 and 200 and apply_schedules.app !~ E'[{control}]') is not true then
        raise exception using errcode = 'JQ001', column = 'app',
            message = format('app %s is not a name of 1 to 200 characters', coalesce(quote_literal(left(apply_schedules.app, 40)), 'null'));
    elsif jsonb_typeof(apply_schedules.schedules) is distinct from 'array' then
        raise exception using errcode = 'JQ001', column = 'schedules',
            message = format('schedules must be a JSON array, not %s', coalesce(jsonb_typeof(apply_schedules.schedules), 'null'));
    end if;
    lock table forebay.schedule in share update exclusive mode;  -- One call at a time. Schedulers do not wait for it.
    for v_one in select e.value from jsonb_array_elements(apply_schedules.schedules) e order by e.value ->> 'name' loop
        v_new := forebay._schedule_of(v_one.value);
        v_new.cron := regexp_replace(btrim(v_new.cron), E'\\s+', ' ', 'g');
        perform forebay._check_schedule(v_new);
        v_facts := forebay._schedule_facts(v_new) || jsonb_build_object('starts_at', v_new.starts_at);
        name := v_new.name;
        detail := null;
        select s.* into v_before from forebay.schedule s where s.name = v_new.name for update;
        action := case
            when v_before.schedule_id is null then 'create'
            when apply_schedules.overwrite is not true and v_before.declared_by is distinct from apply_schedules.app then 'conflict'
            when forebay._schedule_facts(v_before) = forebay._schedule_facts(v_new)
                 and v_before.starts_at = coalesce(v_new.starts_at, v_before.starts_at) then 'same'
            when apply_schedules.overwrite is not true and v_before.declared = v_facts then 'kept'
            else 'change' end;
        if action = 'conflict' then
            detail := coalesce('declared by ' || v_before.declared_by, 'made by hand');
        end if;
        if apply_schedules.dry_run is not true and action <> 'conflict' then
            if action in ('create', 'change') then
                perform forebay._put_schedule(v_new);
            end if;
            update forebay.schedule s set declared_by = apply_schedules.app, declared = v_facts, vanished_at = null
            where s.name = v_new.name
              and (s.declared_by, s.declared, s.vanished_at) is distinct from (apply_schedules.app, v_facts, null::timestamptz);
        end if;
        if action <> 'same' then
            return next;
        end if;
    end loop;
    for v_one in
        select s.schedule_id, s.name, s.vanished_at from forebay.schedule s
        where s.declared_by = apply_schedules.app
          and not exists (select from jsonb_array_elements(apply_schedules.schedules) e where e.value ->> 'name' = s.name)
        order by s.name
    loop
        if apply_schedules.dry_run is not true and v_one.vanished_at is null then
            update forebay.schedule s set vanished_at = forebay._now() where s.schedule_id = v_one.schedule_id;
            perform forebay._record_event('schedules.vanish', p_subject_id => v_one.schedule_id, p_detail => v_one.name);
        end if;
        name := v_one.name;
        action := 'vanished';
        detail := null;
        return next;
    end loop;
end
$$;
