-- grant: operator

-- Ask workers to stop; returns how many were asked. With its next heartbeat after the commit a worker
-- stops as at SIGTERM: it claims no more, its running jobs have its grace time, and the rest goes
-- back without using an attempt. The worker logs who asked, and forebay.ended_workers() shows it.
-- The event log has it as `workers.stop`. Whatever starts the process again, such as systemd or
-- Kubernetes, does so after it too.
--
-- Parameters:
--   worker       the name of a worker, or its beginning up to a colon: a host, or `host:pid`; null:
--                all workers with an open lease
--   app_version  only workers of this version of the application
--   token        from forebay.plan_stop(): exactly those workers
--
-- A worker that was asked before is not counted again, and a worker of forebay.enter() is never
-- asked. A request is over with its worker: no later worker has its name.
--
-- Errors: JQ042 other workers than those of the token.
-- See: docs/howto/run-workers.md#stop-workers-from-elsewhere
create function forebay.stop_workers(worker text default null, app_version text default null, token text default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_plan  record;
    v_asked text[];
begin
    select p.* into v_plan from forebay.plan_stop(stop_workers.worker, stop_workers.app_version) p;
    if stop_workers.token <> v_plan.token then
        perform forebay._refuse_token(stop_workers.token, 'workers');
    end if;
    delete from forebay.worker_setting s
    where not exists (select from forebay.lease l where l.worker = s.worker and l.closed_at is null);
    with asked as (
        insert into forebay.worker_setting as s (worker, stop_at, stop_by)
        select w, forebay._now(), left(coalesce(nullif(current_setting('forebay.actor', true), ''), session_user), 200)
        from unnest(v_plan.workers) w
        on conflict (worker) do update set stop_at = excluded.stop_at, stop_by = excluded.stop_by where s.stop_at is null
        returning s.worker)
    select coalesce(array_agg(a.worker order by a.worker), '{}') into v_asked from asked a;
    if v_asked <> '{}' then
        perform forebay._record_event(
            'workers.stop', p_count => cardinality(v_asked), p_detail => stop_workers.worker,
            p_new => jsonb_strip_nulls(jsonb_build_object('app_version', stop_workers.app_version, 'workers', to_jsonb(v_asked[1:20]))));
    end if;
    return cardinality(v_asked);
end
$$;


-- What forebay.stop_workers() would ask: the token, the workers by name, and how many jobs they run.
-- Changes nothing.
create function forebay.plan_stop(
    worker text default null, app_version text default null, out token text, out workers text[], out jobs bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
begin
    select coalesce(array_agg(w.worker order by w.worker), '{}'), coalesce(sum(w.running), 0) into workers, jobs
    from forebay.workers(0) w
    where w.stop_at is null
      and (plan_stop.worker is null or w.worker = plan_stop.worker or starts_with(w.worker, plan_stop.worker || ':'))
      and (plan_stop.app_version is null or w.app_version = plan_stop.app_version)
      and not exists (select from forebay.lease l
                      where l.worker = w.worker and l.closed_at is null and l.details ->> 'interface' = 'sql');
    token := forebay._token(cardinality(workers), 'w', jsonb_build_array('stop', plan_stop.worker, plan_stop.app_version, workers));
end
$$;
