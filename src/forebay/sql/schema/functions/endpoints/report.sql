-- grant: worker

-- Report what calls of endpoints found; returns the state of each reported endpoint that exists. It
-- counts failures in a row, opens and closes the breaker, pauses and disables the endpoint. A
-- report that changes no state updates no row, except the time of the last success and the last
-- failure every 5 seconds.
--
-- `p_worker` is the name of the process, `p_reports` an array of objects, one for each endpoint:
--
-- Keys:
--   endpoint_id    the endpoint
--   accepted, failed, rejected
--                  messages since the last report
--   latencies      of the accepted ones, from publication: element n, from 0, counts those below
--                  2^n ms, and not below 2^(n-1) ms
--   failures       failed calls in a row, since the last answer if there was one
--   answered       whether the endpoint answered at all
--   error          of the last call that failed; null: none
--   pause_seconds  the endpoint asked for a pause, at most an hour is granted; null: it did not
--   gone           the endpoint wants no messages any more: it is disabled, unless it has
--                  `disable_on_gone` false
--
-- Errors: JQ001 no array.
-- Transaction: any; meant to be autocommitted.
-- Locks: each endpoint whose state changes, in the order of the ids, until the transaction ends;
--   and, if a breaker changes, as forebay.limit_key().
--
-- Inside: Invariant: an answer ends the row of failures, also a permanent error. At
-- breaker_threshold failures in a row, over all processes, the breaker opens, once.
-- pages: 50 + 150 an endpoint
create function forebay.report_deliveries_v1(p_worker text, p_reports jsonb)
returns table (endpoint_id bigint, opened_at timestamptz, disabled_at timestamptz, version bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_at     constant timestamptz := forebay._now();
    v_report forebay._delivery_report;
begin
    if jsonb_typeof(p_reports) is distinct from 'array' then
        raise exception using errcode = 'JQ001', column = 'p_reports',
            message = format('reports are %s, not a JSON array', coalesce(jsonb_typeof(p_reports), 'null'));
    end if;
    insert into forebay.endpoint_activity (endpoint_id, at, accepted, failed, rejected, dropped, latencies)
    select r.endpoint_id, v_at, coalesce(r.accepted, 0), coalesce(r.failed, 0), coalesce(r.rejected, 0), 0, coalesce(r.latencies, '{}')
    from jsonb_populate_recordset(null::forebay._delivery_report, p_reports) r
    where coalesce(r.accepted, 0) + coalesce(r.failed, 0) + coalesce(r.rejected, 0) > 0
      and exists (select from forebay.endpoint e where e.endpoint_id = r.endpoint_id);
    for v_report in
        select r.*
        from jsonb_populate_recordset(null::forebay._delivery_report, p_reports) r
        join forebay.endpoint_state s on s.endpoint_id = r.endpoint_id
        where r.failures > 0 or r.failed > 0 or r.rejected > 0 or r.pause_seconds > 0 or r.gone
           or r.answered and (forebay._endpoint_breaker((select e.name from forebay.endpoint e where e.endpoint_id = r.endpoint_id))).queue is not null
           or r.accepted > 0 and (s.failing_since is not null or coalesce(s.last_success_at <= v_at - interval '5 seconds', true))
        order by r.endpoint_id
    loop
        perform forebay._report_endpoint(p_worker, v_report, v_at);
    end loop;
    return query
    select e.endpoint_id, b.opened_at, e.disabled_at, e.version
    from jsonb_populate_recordset(null::forebay._delivery_report, p_reports) r
    join forebay.endpoint e on e.endpoint_id = r.endpoint_id
    left join forebay.breaker b on b.queue = 'forebay.deliver' and b.key = e.name
    order by e.endpoint_id;
end
$$;


-- Record the report about one endpoint.
create function forebay._report_endpoint(p_worker text, r forebay._delivery_report, p_at timestamptz) returns void
language plpgsql volatile
as $$
declare
    e         forebay.endpoint;
    s         forebay.endpoint_state;
    n         forebay.endpoint_state;
    b         record;
    v_failed  constant boolean := coalesce(r.failed, 0) + coalesce(r.rejected, 0) + coalesce(r.failures, 0) > 0;
    v_is_due  constant interval := interval '5 seconds';
    v_percent integer := 0;
    v_why     text;
begin
    select i.* into s from forebay.endpoint_state i where i.endpoint_id = r.endpoint_id for update;
    if not found then
        return;  -- It was dropped meanwhile.
    end if;
    -- Who changes an endpoint has locked its state.
    select d.* into e from forebay.endpoint i cross join lateral forebay._with_defaults(i) d where i.endpoint_id = r.endpoint_id;
    n := s;
    n.failing_since := case when r.accepted > 0 then case when r.failures > 0 then p_at end
                            else coalesce(s.failing_since, case when v_failed then p_at end) end;
    if n.failing_since is distinct from s.failing_since then
        n.failing_percent := 0;
    end if;
    if v_failed and e.disabled_at is null and e.disable_after is not null then
        v_percent := (select coalesce(max(l), 0) from unnest('{50,70,90,100}'::integer[]) l
                      where p_at >= n.failing_since + e.disable_after * (l / 100.0));
        n.failing_percent := greatest(n.failing_percent, v_percent);
    end if;

    if (n.failing_since, n.failing_percent) is distinct from (s.failing_since, s.failing_percent)
       or v_failed and coalesce(s.last_failure_at <= p_at - v_is_due, true)
       or r.accepted > 0 and coalesce(s.last_success_at <= p_at - v_is_due, true) then
        update forebay.endpoint_state i
        set failing_since = n.failing_since, failing_percent = n.failing_percent,
            last_success_at = case when r.accepted > 0 then p_at else i.last_success_at end,
            last_failure_at = case when v_failed then p_at else i.last_failure_at end,
            last_error = case when v_failed then left(r.error, 1000) else i.last_error end
        where i.endpoint_id = r.endpoint_id;
    end if;
    select * into b from forebay._step_breaker(
        row('forebay.deliver', e.name, e.breaker_threshold, e.breaker_cooldown, e.breaker_cooldown, coalesce(r.failures, 0),
            coalesce(r.answered, false), null, null, r.error)::forebay._breaker_report, p_at)
    where r.failures > 0 or (forebay._endpoint_breaker(e.name)).queue is not null;
    if (b.after).opened_at is distinct from (b.before).opened_at then
        perform forebay._renew_endpoint(e.endpoint_id);
        perform forebay._record_event(
            case when (b.after).opened_at is null then 'circuit.closed' else 'circuit.opened' end, p_subject_id => e.endpoint_id,
            p_old => case when (b.after).opened_at is null then jsonb_build_object('name', e.name, 'opened_at', (b.before).opened_at) end,
            p_new => case when (b.after).opened_at is not null
                          then jsonb_build_object('name', e.name, 'failures', (b.after).failures, 'error', left(r.error, 1000)) end,
            p_detail => 'reported by ' || p_worker);
    end if;

    v_why := case when e.disabled_at is not null then null
                  when r.gone and e.disable_on_gone then coalesce('gone: ' || left(r.error, 900), 'gone')
                  when v_percent = 100 then format('no success since %s', n.failing_since) end;
    if n.failing_percent > s.failing_percent then
        perform forebay._publish_failing(e, n, r.error);
    end if;
    if v_why is not null then
        perform forebay._disable_endpoint(e, v_why);
    elsif e.disabled_at is null and r.pause_seconds > 0 then
        perform forebay._pause_endpoint(e, s.throttled_until, least(r.pause_seconds, 3600), p_at, r.error);
    end if;
end
$$;


-- Pause the key of an endpoint that asked for it. A pause of an operator, also a planned one, and one that is about as long are left alone.
--
-- Invariant "an event is a change": an endpoint that answers 429 again and again is throttled all the time. Only the first pause after five
-- minutes without one is an event.
create function forebay._pause_endpoint(e forebay.endpoint, p_until timestamptz, p_seconds double precision, p_at timestamptz, p_error text)
returns void
language plpgsql volatile
as $$
begin
    if not exists (select from forebay.key_pause p
                   where p.queue = 'forebay.deliver' and p.sort = 'limit' and p.key = e.name
                     and (coalesce(p.resume_at > p_at + make_interval(secs => greatest(p_seconds - 1, 0)), true)
                          or coalesce(p.begins_at > p_at, false))) then
        perform forebay._set_key_pause('forebay.deliver', 'limit', e.name, null, p_at + make_interval(secs => p_seconds), p_at);
        update forebay.endpoint_state i set throttled_until = p_at + make_interval(secs => p_seconds) where i.endpoint_id = e.endpoint_id;
        if coalesce(p_until < p_at - interval '5 minutes', true) then
            perform forebay._record_event(
                'endpoints.throttled', p_subject_id => e.endpoint_id,
                p_new => jsonb_build_object('name', e.name, 'seconds', p_seconds, 'error', left(p_error, 1000)));
        end if;
    end if;
end
$$;


-- Publish that an endpoint has had no success for a part of the time after which it is disabled.
create function forebay._publish_failing(e forebay.endpoint, s forebay.endpoint_state, p_error text) returns void
language plpgsql volatile
as $$
begin
    perform forebay.publish(
        'forebay.endpoint_failing',
        jsonb_build_object('endpoint', e.name, 'percent', s.failing_percent, 'since', s.failing_since, 'error', left(p_error, 1000)));
exception
    when configuration_limit_exceeded or sqlstate 'JQ001' then
        null;  -- The queue of events is full, or an operator dropped the event type. The report counts nevertheless.
end
$$;
