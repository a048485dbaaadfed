-- grant: worker, operator

-- Record which conditions of alerts hold, and return what fired or cleared (`act`). An alert fires
-- when its condition was found by every check for its time, and ends when no check has found it for
-- `p_clear_seconds`, 0 to 86400. Both write a row of the event log, and publish an event of the
-- type `forebay.alert` if it has a subscription. `p_found` is a JSON array of `{"code", "subject",
-- "group", "severity", "problem", "hint", "since" (seconds since 1970; null: now), "for"
-- (seconds)}`, at most 1,000.
--
-- Errors: JQ001 a bad array or number; JQ030 foreign cluster.
-- Locks: the lock of alerts, if it is free; otherwise nothing is recorded.
-- See: docs/design/alerts.md
--
-- Inside: Invariant "one alert, two events". A crash before the commit leaves the state of the
-- check before; the next check does the same.
-- pages: 200 + 60 an alert
create function forebay.record_alerts_v1(p_found jsonb, p_clear_seconds double precision default 120)
returns table (act text, code text, subject text, group_name text, severity text, problem text, hint text, since timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_now    constant timestamptz := forebay._now();
    v_before timestamptz;  -- the check before this one
    v_row    record;
begin
    if (jsonb_typeof(p_found) = 'array' and jsonb_array_length(p_found) <= 1000 and p_clear_seconds between 0 and 86400) is not true then
        raise exception using errcode = 'JQ001', message = 'alerts are an array of at most 1,000 objects, and p_clear_seconds is 0 to 86400';
    end if;
    perform forebay._require_same_cluster();
    if not forebay._try_lock('alert') then
        return;
    end if;
    v_before := (select max(c.checked_at) from forebay.alert_check c);
    insert into forebay.alert_check (checked_at) values (v_now) on conflict on constraint alert_check_pkey do update set checked_at = excluded.checked_at;
    perform forebay._sample_space(v_now);
    insert into forebay.alert as a (code, subject, group_name, severity, problem, hint, since, seen_at)
    select distinct on (f.code, f.subject, f.grp) left(f.code, 100), left(f.subject, 200), left(f.grp, 200), f.severity, left(f.problem, 1000), left(f.hint, 1000),
           least(coalesce(f.since, v_now), v_now), v_now
    from (select e.value ->> 'code' as code, coalesce(e.value ->> 'subject', '') as subject, coalesce(e.value ->> 'group', '') as grp,
                 coalesce(e.value ->> 'severity', 'warning') as severity, coalesce(e.value ->> 'problem', '') as problem, coalesce(e.value ->> 'hint', '') as hint,
                 to_timestamp((e.value ->> 'since')::double precision) as since
          from jsonb_array_elements(p_found) e) f
    on conflict on constraint alert_pkey do update
    set severity = excluded.severity, problem = excluded.problem, hint = excluded.hint, seen_at = excluded.seen_at,
        -- What the check before did not find was over, and begins anew, although its alert has not cleared yet.
        since = case when a.fired_at is not null and a.seen_at < v_before or a.fired_at is null and a.seen_at < v_now - interval '3 minutes' then excluded.since
                     else least(a.since, excluded.since) end;

    for v_row in
        update forebay.alert a set fired_at = v_now
        from (select e.value ->> 'code' as code, coalesce(e.value ->> 'subject', '') as subject, coalesce(e.value ->> 'group', '') as grp,
                     coalesce((e.value ->> 'for')::double precision, 0) as seconds
              from jsonb_array_elements(p_found) e) f
        where a.code = f.code and a.subject = f.subject and a.group_name = f.grp and a.fired_at is null
          and a.since <= v_now - make_interval(secs => f.seconds)
        returning 'fired' as act, a.code, a.subject, a.group_name, a.severity, a.problem, a.hint, a.since
    loop
        perform forebay._announce_alert(v_row.act, v_row.code, v_row.subject, v_row.group_name, v_row.severity, v_row.problem, v_row.hint, v_row.since);
        return query select v_row.act, v_row.code, v_row.subject, v_row.group_name, v_row.severity, v_row.problem, v_row.hint, v_row.since;
    end loop;

    for v_row in
        -- A condition that has not lasted long enough has to last without a break.
        delete from forebay.alert a
        where a.seen_at < v_now and (a.fired_at is null or a.seen_at <= v_now - make_interval(secs => p_clear_seconds))
        returning 'cleared' as act, a.code, a.subject, a.group_name, a.severity, a.problem, a.hint, a.since, a.fired_at
    loop
        continue when v_row.fired_at is null;
        perform forebay._announce_alert(v_row.act, v_row.code, v_row.subject, v_row.group_name, v_row.severity, v_row.problem, v_row.hint, v_row.since);
        return query select v_row.act, v_row.code, v_row.subject, v_row.group_name, v_row.severity, v_row.problem, v_row.hint, v_row.since;
    end loop;
end
$$;


-- Write the event of an alert that fired or cleared, and publish it.
create function forebay._announce_alert(
    p_act text, p_code text, p_subject text, p_group text, p_severity text, p_problem text, p_hint text, p_since timestamptz)
returns void
language plpgsql volatile
as $$
begin
    perform forebay._record_event(
        'alerts.' || p_act, p_kind => p_code, p_queue => nullif(p_subject, ''), p_group => nullif(p_group, ''),
        p_new => jsonb_build_object('severity', p_severity, 'since', p_since), p_detail => p_problem);
    -- An event without a router would wait, and be an alert.
    if not exists (select from forebay.subscription s where s.event_type = 'forebay.alert') then
        return;
    end if;
    perform forebay.publish(
        'forebay.alert',
        jsonb_build_object('state', p_act, 'code', p_code, 'subject', p_subject, 'group', p_group, 'severity', p_severity, 'problem', p_problem,
                           'hint', p_hint, 'since', p_since));
exception
    when configuration_limit_exceeded or sqlstate 'JQ001' then
        -- The queue of events is full, or an operator dropped the event type. The alert counts nevertheless.
        perform forebay._record_event(
            'alerts.' || p_act, p_kind => p_code, p_queue => nullif(p_subject, ''), p_group => nullif(p_group, ''),
            p_new => jsonb_build_object('severity', p_severity, 'since', p_since, 'published', false), p_detail => p_problem);
end
$$;


-- Append the sizes if the last sample is a quarter of an hour old, delete those of the day before yesterday, and add to the ballast.
create function forebay._sample_space(p_now timestamptz) returns void
language plpgsql volatile
as $$
begin
    if exists (select from forebay.space_sample i where i.at > p_now - interval '15 minutes') then
        return;
    end if;
    insert into forebay.space_sample (at, log_bytes, schema_bytes, database_bytes)
    select p_now, n.log_bytes, n.schema_bytes, n.database_bytes from forebay._space('infinity') n;
    delete from forebay.space_sample i where i.at < p_now - interval '2 days';
    perform forebay._keep_ballast(p_now);
end
$$;
