-- grant: worker

-- Record why a scheduler cannot use a schedule; null: it can. Nothing is written if the schedule
-- was changed, or has this problem already.
--
-- Locks: the schedule's row.
-- pages: 20
create function forebay.schedule_problem_v1(p_schedule_id bigint, p_revision integer, p_problem text) returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
    update forebay.schedule s set problem = left(p_problem, 1000)
    where s.schedule_id = p_schedule_id and s.revision = p_revision and s.problem is distinct from left(p_problem, 1000)
$$;
