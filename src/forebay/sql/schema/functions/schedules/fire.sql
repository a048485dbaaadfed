-- grant: worker

-- Decide instants of a schedule, in one transaction: enqueue their jobs, and record them as
-- decided.
--
-- Parameters:
--   p_instants  all instants after `p_decided_to`, ascending, or the newest of them; the last one
--               is not in the future of the database's clock. 1 to 20000
--   p_older     an instant after `p_decided_to` and before `p_instants`; null: there is none
--
-- Statuses:
--   decided  `enqueued` has the number of jobs, `decided_to` how far it is decided now
--   stale    another scheduler decided first, or the schedule was changed, paused or dropped: look
--            again
--   busy     another transaction has the schedule: try again soon
--   paused   a job of the schedule is dead, and `pause_on_failure` is set; nothing was decided
--
-- Errors: JQ001 bad instants, JQ030 foreign cluster, 53400 the queue is full. On an error nothing
--   is decided.
-- Locks: the schedule's row, not waited for.
--
-- Inside: Invariants "one instant, one job": the primary key of forebay.occurrence; "decided once,
-- in order": the caller names the revision and the position that it computed the instants from, and
-- is refused when one of the two has changed.
-- pages: 12000 + 1500 an instant
create function forebay.fire_v1(
    p_schedule_id bigint, p_revision integer, p_decided_to timestamptz, p_instants timestamptz[], p_older timestamptz default null,
    out status text, out enqueued integer, out decided_to timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
declare
    v_now    timestamptz;
    s        forebay.schedule;
    v_open   bigint[];
    v_dead   bigint;
    v_chosen timestamptz[];
    v_left   timestamptz[];  -- missed, and not chosen
    v_no     bigint;
    v_at     timestamptz;
    v_reason text;
    v_job_id bigint;
begin
    perform forebay._require_same_cluster();
    enqueued := 0;
    select i.* into s from forebay.schedule i where i.schedule_id = p_schedule_id for update skip locked;
    if not found then
        status := case when exists (select from forebay.schedule i where i.schedule_id = p_schedule_id) then 'busy' else 'stale' end;
        return;
    elsif s.paused_at is not null or (s.revision, s.decided_to) is distinct from (p_revision, p_decided_to) then
        status := 'stale';
        return;
    end if;
    v_now := forebay._now();  -- After the lock.
    if (cardinality(p_instants) between 1 and 20000 and array_position(p_instants, null) is null
        and coalesce(p_older, p_instants[1]) > s.decided_to and coalesce(p_older, p_instants[1]) >= s.starts_at
        and coalesce(p_older < p_instants[1], true) and p_instants[cardinality(p_instants)] <= v_now
        and not exists (select from unnest(p_instants) with ordinality a (at, nr) where a.at >= p_instants[a.nr + 1])) is not true then
        raise exception using errcode = 'JQ001', column = 'p_instants',
            message = format('the instants of schedule %s are not ascending, from after %s to now', quote_literal(s.name), s.decided_to);
    end if;

    select o.open, o.dead into v_open, v_dead from forebay._open_occurrences(s.schedule_id) o;
    if s.pause_on_failure and v_dead is not null then
        perform forebay._pause_schedule(s, format('job %s is dead', v_dead));
        status := 'paused';
        return;
    end if;
    v_chosen := forebay._chosen_instants(s, p_instants, v_now);
    v_left := array(select a from unnest(p_instants) a where a <> all (v_chosen) order by a);
    v_no := s.decisions;
    if v_left <> '{}' or p_older is not null then
        v_no := v_no + 1;
        insert into forebay.occurrence (schedule_id, scheduled_for, occurrence, status, instants, reason, decided_at)
        values (s.schedule_id, coalesce(v_left[cardinality(v_left)], p_older), v_no, 'missed', cardinality(v_left) + (p_older is not null)::integer,
                concat_ws(', ', format('missed: %s', s.missed), case when p_older is not null then format('at least: also from %s on', p_older) end), v_now)
        on conflict do nothing;
    end if;
    foreach v_at in array v_chosen loop
        v_reason := case s.overlap
            when 'skip' then case when v_open <> '{}' then format('job %s has not ended', v_open[1]) end
            when 'queue' then forebay._queued_behind(v_open) end;
        v_no := v_no + 1;
        insert into forebay.occurrence (schedule_id, scheduled_for, occurrence, status, reason, is_open, decided_at)
        values (s.schedule_id, v_at, v_no, case when v_reason is null then 'enqueued' else 'skipped' end, v_reason,
                v_reason is null and (s.overlap <> 'allow' or s.pause_on_failure), v_now)
        on conflict do nothing;
        continue when not found or v_reason is not null;
        if s.overlap in ('cancel', 'replace') then
            v_open := forebay._cancel_before(v_open, s.overlap = 'cancel');
        end if;
        v_job_id := forebay._enqueue_occurrence(s, v_at, v_no, v_at + forebay._jitter_of(s.name, v_at, s.jitter));
        update forebay.occurrence o set job_id = v_job_id where o.schedule_id = s.schedule_id and o.scheduled_for = v_at;
        v_open := v_open || v_job_id;
        enqueued := enqueued + 1;
    end loop;
    update forebay.schedule i
    set decided_to = p_instants[cardinality(p_instants)], decisions = v_no, problem = null
    where i.schedule_id = s.schedule_id
    returning i.decided_to into decided_to;
    status := 'decided';
end
$$;


-- Which instants get a job? Those of the last minute, and of the missed ones what the schedule says.
create function forebay._chosen_instants(s forebay.schedule, p_instants timestamptz[], p_now timestamptz) returns timestamptz[]
language sql stable
as $$
    select coalesce(array_agg(c.at order by c.at), '{}')
    from (select a.at, a.at >= p_now - interval '60 seconds' as is_fresh,
                 row_number() over (partition by a.at >= p_now - interval '60 seconds' order by a.at desc) as place
          from unnest(p_instants) a (at)) c
    where c.is_fresh
       or c.at >= p_now - s.catch_up
          and case s.missed
              when 'all' then c.place <= s.missed_max
              -- An instant that is not missed is newer.
              when 'latest' then c.place = 1 and p_instants[cardinality(p_instants)] < p_now - interval '60 seconds'
              else false end
$$;


-- Jobs of a schedule that have not ended in some group, oldest first, at most 20; dead, one that is dead in some group. Those that ended
-- otherwise are not looked at again.
create function forebay._open_occurrences(p_schedule_id bigint, out open bigint[], out dead bigint)
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_one    record;
    v_states text[];
begin
    open := '{}';
    for v_one in
        select o.scheduled_for, o.job_id from forebay.occurrence o
        where o.schedule_id = p_schedule_id and o.is_open order by o.scheduled_for limit 20
    loop
        -- A cancelled job that waits has this state only after the next claim.
        v_states := array(select case when j.cancel_requested and j.state not in ('claimed', 'running') then 'cancelled' else j.state end
                          from forebay.job(v_one.job_id) j);
        if not v_states <@ array['done', 'cancelled', 'expired', 'dead'] then
            open := open || v_one.job_id;
            continue;
        elsif 'dead' = any (v_states) then
            dead := coalesce(dead, v_one.job_id);
        end if;
        update forebay.occurrence o set is_open = false
        where o.schedule_id = p_schedule_id and o.scheduled_for = v_one.scheduled_for;
    end loop;
end
$$;


-- Why may no job of a schedule with overlap queue be added behind these? null: it may.
create function forebay._queued_behind(p_open bigint[]) returns text
language sql volatile
as $$
    select case
        when cardinality(p_open) > 1 then format('job %s waits', p_open[cardinality(p_open)])
        when exists (select from forebay.job(p_open[1]) j where j.state in ('ready', 'scheduled')) then format('job %s waits', p_open[1]) end
$$;


-- Cancel jobs, or with p_running false those of them that no worker has; returns the ones that were not cancelled.
create function forebay._cancel_before(p_open bigint[], p_running boolean) returns bigint[]
language plpgsql volatile
as $$
declare
    v_id   bigint;
    v_left bigint[] := '{}';
begin
    foreach v_id in array p_open loop
        if p_running or not exists (select from forebay.job(v_id) j where j.state in ('claimed', 'running')) then
            perform forebay.cancel(v_id);
        else
            v_left := v_left || v_id;
        end if;
    end loop;
    return v_left;
end
$$;


-- Enqueue the job of an instant; returns its id.
create function forebay._enqueue_occurrence(s forebay.schedule, p_at timestamptz, p_no bigint, p_run_at timestamptz) returns bigint
language sql volatile
as $$
    select forebay.enqueue(
        kind => s.kind, args => s.args, queue => s.queue, priority => s.priority,
        run_at => case when p_run_at > n.at then p_run_at end,
        expires_at => greatest(p_run_at, n.at) + make_interval(secs => (s.options ->> 'expires_in')::double precision),
        {options passed of o but headers, ordering_key},
        headers => coalesce(o.headers, '{}') || jsonb_build_object(
            'forebay-schedule', s.name,
            'forebay-scheduled-for', to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'),
            'forebay-occurrence', p_no::text,
            'forebay-late-by', round(extract(epoch from n.at - p_at), 3)::text),
        ordering_key => case when s.overlap = 'queue' then 'schedule:' || s.name end)
    from (select forebay._now() as at offset 0) n, jsonb_populate_record(null::forebay._job_input, s.options) o
$$;


-- How much after an instant its job starts: from 0 to below p_most, the same for all that compute it.
create function forebay._jitter_of(p_name text, p_at timestamptz, p_most interval) returns interval
language sql immutable
as $$
    select p_most * (('x' || left(encode(sha256(convert_to(
        p_name || ' ' || (extract(epoch from p_at) * 1000000)::bigint, 'UTF8')), 'hex'), 12))::bit(48)::bigint / 281474976710656.0)
$$;
