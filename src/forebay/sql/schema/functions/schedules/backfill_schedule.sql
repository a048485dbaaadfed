-- grant: operator

-- Enqueue the jobs of past instants of a schedule that have none; with `token` null, only count
-- them. Instants with a job in the history are left out, and so are those after `decided_to`: the
-- schedulers decide them. Instants that are no longer in the history count as without a job. The
-- overlap of the schedule is not looked at, except that the jobs of overlap `queue` run one at a
-- time.
--
-- Parameters:
--   instants  computed by a client, at most 10000
--   revision  of the schedule that it computed them from
--   token     from the call that counted: exactly those instants are enqueued, or nothing
--
-- Columns:
--   jobs   their number
--   token  of these instants
--
-- Errors: JQ001 bad instants, JQ060 no such schedule, JQ061 the schedule has another revision, or
--   the instants are not those of the token.
-- Locks: the schedule's row.
create function forebay.backfill_schedule(
    name text, instants timestamptz[], revision integer, inout token text default null, out jobs integer)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    s      constant forebay.schedule := forebay._lock_schedule(backfill_schedule.name);
    v_now  constant timestamptz := forebay._now();
    v_all  timestamptz[];
    v_made text;
    v_no   bigint := s.decisions;
    v_at   timestamptz;
    v_job  bigint;
begin
    if (cardinality(backfill_schedule.instants) <= 10000) is not true then
        raise exception using errcode = 'JQ001', column = 'instants',
            message = format('%s instants are more than 10000', coalesce(cardinality(backfill_schedule.instants)::text, 'no'));
    elsif s.revision is distinct from backfill_schedule.revision then
        raise exception using errcode = 'JQ061', message = format('schedule %s was changed', quote_literal(s.name)),
            detail = jsonb_build_object('schedule', s.name), hint = 'Do a new dry run.';
    end if;
    perform forebay._require('instants', bool_and(isfinite(a.at)), string_agg(a.at::text, ', ') filter (where not isfinite(a.at)), 'finite times')
    from unnest(backfill_schedule.instants) a (at) having count(a.at) > 0;
    v_all := array(
        select distinct a.at from unnest(backfill_schedule.instants) a (at)
        where a.at <= s.decided_to
          and not exists (select from forebay.occurrence o where o.schedule_id = s.schedule_id and o.scheduled_for = a.at and o.job_id is not null)
        order by a.at);
    jobs := cardinality(v_all);
    v_made := forebay._token(jobs, s.revision::text, jsonb_build_array(s.schedule_id, array(
        select (extract(epoch from a) * 1000000)::bigint from unnest(v_all) a order by a)));
    if backfill_schedule.token is null then
        token := v_made;
        return;
    elsif backfill_schedule.token <> v_made then
        raise exception using errcode = 'JQ061', message = format('the instants of schedule %s are not those of the token', quote_literal(s.name)),
            detail = jsonb_build_object('schedule', s.name), hint = 'Do a new dry run.';
    end if;
    foreach v_at in array v_all loop
        v_no := v_no + 1;
        v_job := forebay._enqueue_occurrence(s, v_at, v_no, v_now);
        insert into forebay.occurrence (schedule_id, scheduled_for, occurrence, status, job_id, is_open, decided_at)
        values (s.schedule_id, v_at, v_no, 'backfilled', v_job, s.overlap <> 'allow' or s.pause_on_failure, v_now)
        on conflict on constraint occurrence_pkey do update
        set occurrence = excluded.occurrence, status = excluded.status, instants = 1, job_id = excluded.job_id, reason = null,
            is_open = excluded.is_open, decided_at = excluded.decided_at;
    end loop;
    if jobs > 0 then
        update forebay.schedule i set decisions = v_no where i.schedule_id = s.schedule_id;
        perform forebay._record_event('schedules.backfill', s.queue, p_kind => s.kind, p_subject_id => s.schedule_id, p_detail => s.name,
                                      p_count => jobs, p_new => jsonb_build_object('from', v_all[1], 'to', v_all[jobs]));
    end if;
end
$$;
