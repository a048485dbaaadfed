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
--   dry_run    change nothing, but take the locks; without them, see forebay.compare_schedules()
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
begin
    lock table forebay.schedule in share update exclusive mode;  -- One call at a time. Schedulers do not wait for it.
    perform from forebay.schedule s where s.name in (select e ->> 'name' from jsonb_path_query(apply_schedules.schedules, 'lax $[*]') e) order by s.name for update;
    return query select d.* from forebay._apply_schedules(apply_schedules.app, apply_schedules.schedules, apply_schedules.overwrite, apply_schedules.dry_run) d;
end
$$;


-- What forebay.apply_schedules() does behind its locks; with p_dry_run it only reads.
create function forebay._apply_schedules(p_app text, p_schedules jsonb, p_overwrite boolean, p_dry_run boolean)
returns table (name text, action text, detail text)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_one    record;
    v_new    forebay.schedule;
    v_before forebay.schedule;
    v_facts  jsonb;
begin
    if (length(p_app) between 1 and 200 and p_app !~ E'[{control}]') is not true then
        raise exception using errcode = 'JQ001', column = 'app',
            message = format('app %s is not a name of 1 to 200 characters', coalesce(quote_literal(left(p_app, 40)), 'null'));
    elsif jsonb_typeof(p_schedules) is distinct from 'array' then
        raise exception using errcode = 'JQ001', column = 'schedules',
            message = format('schedules must be a JSON array, not %s', coalesce(jsonb_typeof(p_schedules), 'null'));
    end if;
    for v_one in select e.value from jsonb_array_elements(p_schedules) e order by e.value ->> 'name' loop
        v_new := forebay._schedule_of(v_one.value);
        v_new.cron := regexp_replace(btrim(v_new.cron), E'\\s+', ' ', 'g');
        perform forebay._check_schedule(v_new);
        v_facts := forebay._schedule_facts(v_new) || jsonb_build_object('starts_at', v_new.starts_at);
        name := v_new.name;
        detail := null;
        select s.* into v_before from forebay.schedule s where s.name = v_new.name;
        action := case
            when v_before.schedule_id is null then 'create'
            when p_overwrite is not true and v_before.declared_by is distinct from p_app then 'conflict'
            when forebay._schedule_facts(v_before) = forebay._schedule_facts(v_new)
                 and v_before.starts_at = coalesce(v_new.starts_at, v_before.starts_at) then 'same'
            when p_overwrite is not true and v_before.declared = v_facts then 'kept'
            else 'change' end;
        if action = 'conflict' then
            detail := coalesce('declared by ' || v_before.declared_by, 'made by hand');
        end if;
        if p_dry_run is not true and action <> 'conflict' then
            if action in ('create', 'change') then
                perform forebay._put_schedule(v_new);
            end if;
            update forebay.schedule s set declared_by = p_app, declared = v_facts, vanished_at = null
            where s.name = v_new.name
              and (s.declared_by, s.declared, s.vanished_at) is distinct from (p_app, v_facts, null::timestamptz);
        end if;
        if action <> 'same' then
            return next;
        end if;
    end loop;
    for v_one in
        select s.schedule_id, s.name, s.vanished_at from forebay.schedule s
        where s.declared_by = p_app
          and not exists (select from jsonb_array_elements(p_schedules) e where e.value ->> 'name' = s.name)
        order by s.name
    loop
        if p_dry_run is not true and v_one.vanished_at is null then
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
