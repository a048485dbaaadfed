-- grant: worker, operator, reader

-- The rows that forebay.apply_schedules() would return. Changes nothing.
--
-- Errors: JQ001 a declaration is refused.
-- See: docs/howto/declare-queues.md
create function forebay.compare_schedules(app text, schedules jsonb, overwrite boolean default false)
returns table (name text, action text, detail text)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
    select d.* from forebay._apply_schedules(compare_schedules.app, compare_schedules.schedules, compare_schedules.overwrite, true) d
$$;
