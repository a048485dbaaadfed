-- grant: worker

-- The time of the database, and the definitions of the schedules that are not paused, if they
-- changed since the call that returned `p_digest`; null: return them all. `schedules` is a JSON
-- array; null: nothing changed. `digest` also covers `decided_to`, which each firing moves.
--
-- Errors: JQ030 foreign cluster.
-- pages: 40 + 2 a schedule
create function forebay.schedules_v1(p_digest text default null, out server_time timestamptz, out digest text, out schedules text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform forebay._require_same_cluster();
    select coalesce(sum(hashtextextended(format('%s %s %s', s.schedule_id, s.revision, s.decided_to at time zone 'UTC'), 0)), 0)::text
    into digest from forebay.schedule s where s.paused_at is null;
    if digest is distinct from p_digest then
        select coalesce(json_agg(json_build_object(
                   'schedule_id', s.schedule_id, 'name', s.name, 'revision', s.revision, 'cron', s.cron, 'every', extract(epoch from s.every),
                   'tz', s.tz, 'starts_at', s.starts_at, 'decided_to', s.decided_to, 'catch_up', extract(epoch from s.catch_up),
                   'missed_max', s.missed_max, 'has_problem', s.problem is not null)), '[]')::text
        into schedules from forebay.schedule s where s.paused_at is null;
    end if;
    server_time := forebay._now();
end
$$;
