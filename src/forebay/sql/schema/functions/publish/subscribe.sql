-- grant: operator

-- Subscribe an endpoint to an event type; returns the id of the subscription. For an endpoint that
-- is subscribed already, the call changes the filter and nothing else. A router activates the
-- subscription after the commit. Each event from the start on is delivered once, also if it is
-- published or routed while the subscription is made.
--
-- Parameters:
--   filter  any JSON value; an event matches if `payload @> filter`; null: all events
--   start   `now`, events whose transaction commits after this call; `beginning`, all events that
--           are kept; or a time, events published since then
--
-- Errors: JQ001 the event type does not exist, or the filter or start is refused; JQ050 no such
--   endpoint.
-- Locks: the subscription's row.
create function forebay.subscribe(endpoint text, event_type text, filter jsonb default null, start text default 'now') returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_endpoint_id constant bigint := forebay._subscriber(subscribe.endpoint);
    v_filter      constant jsonb := nullif(subscribe.filter, '{}');
    v_start_at    timestamptz;
    v_after       pg_snapshot;
    v_last        bigint := 0;
    v_before      forebay.subscription;
    v_member      record;
    v_id          bigint;
begin
    perform forebay._require_event_types(array[subscribe.event_type]);
    if octet_length(v_filter::text) > 8192 then
        raise exception using errcode = 'JQ001', column = 'filter',
            message = format('filter takes %s bytes, the limit is 8192', octet_length(v_filter::text)),
            hint = 'An event matches if its payload contains the filter: payload @> filter.';
    end if;
    if subscribe.start = 'now' then
        -- An event that the snapshot does not show is expanded after it, under a number that is drawn after this one was read.
        if current_setting('transaction_isolation') = 'read committed' then
            v_last := coalesce(pg_sequence_last_value(pg_get_serial_sequence('forebay.published', 'route_no')::regclass), 0);
        end if;
        v_after := forebay._snapshot_of_others();
    elsif subscribe.start is distinct from 'beginning' then
        v_start_at := forebay._as_instant(subscribe.start);
        if v_start_at is null or not isfinite(v_start_at) then
            raise exception using errcode = 'JQ001', column = 'start',
                message = format('start %s is neither now nor beginning nor a time', coalesce(quote_literal(left(subscribe.start, 40)), 'null'));
        end if;
    end if;
    -- A short scalar member of the filter, by which routers look it up; text tells more events apart than a number, and that more than a boolean.
    select f.key, f.value into v_member from jsonb_each(case when jsonb_typeof(v_filter) = 'object' then v_filter end) f
    where jsonb_typeof(f.value) in ('string', 'number', 'boolean', 'null') and octet_length(f.value::text) <= 500 and length(f.key) <= 200
    order by array_position(array['string', 'number', 'boolean', 'null'], jsonb_typeof(f.value)), f.key limit 1;

    insert into forebay.subscription (
        event_type, endpoint_id, filter, filter_member, filter_value, start_at, start_after, routed_to, routed_bound, created_at)
    values (subscribe.event_type, v_endpoint_id, v_filter, v_member.key, v_member.value, v_start_at, v_after, v_last, v_last, forebay._now())
    on conflict do nothing
    returning subscription_id into v_id;
    if v_id is null then
        select * into v_before from forebay.subscription s
        where s.event_type = subscribe.event_type and s.endpoint_id = v_endpoint_id for update;
        if v_before.filter is distinct from v_filter then
            update forebay.subscription s
            set filter = v_filter, filter_member = v_member.key, filter_value = v_member.value
            where s.subscription_id = v_before.subscription_id;
            perform forebay._record_event('subscriptions.change', p_kind => subscribe.event_type, p_subject_id => v_before.subscription_id,
                                          p_old => jsonb_build_object('endpoint', subscribe.endpoint, 'filter', v_before.filter),
                                          p_new => jsonb_build_object('endpoint', subscribe.endpoint, 'filter', v_filter));
        end if;
        return v_before.subscription_id;
    end if;
    perform forebay._enqueue_jobs(array[jsonb_populate_record(null::forebay._job_input, jsonb_build_object(
        'kind', 'forebay.activate', 'args', jsonb_build_object('subscription', v_id), 'queue', 'forebay.publish', 'priority', 0))]);
    perform forebay._record_event('subscriptions.create', p_kind => subscribe.event_type, p_subject_id => v_id,
                                  p_new => jsonb_build_object('endpoint', subscribe.endpoint, 'filter', v_filter, 'start', subscribe.start));
    return v_id;
end
$$;


-- End a subscription; returns whether there was one. Deliveries that wait are still sent.
--
-- Errors: JQ050 no such endpoint.
-- Locks: the subscription's row.
create function forebay.unsubscribe(endpoint text, event_type text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_endpoint_id constant bigint := forebay._subscriber(unsubscribe.endpoint);
    v_before      forebay.subscription;
begin
    delete from forebay.subscription s
    where s.event_type = unsubscribe.event_type and s.endpoint_id = v_endpoint_id
    returning s.* into v_before;
    if not found then
        return false;
    end if;
    perform forebay._record_event('subscriptions.end', p_kind => unsubscribe.event_type, p_subject_id => v_before.subscription_id,
                                  p_old => jsonb_build_object('endpoint', unsubscribe.endpoint, 'filter', v_before.filter));
    return true;
end
$$;


-- The id of an endpoint.
--
-- Errors: JQ050 when there is none of that name.
create function forebay._subscriber(p_name text) returns bigint
language plpgsql stable
as $$
declare
    v_id bigint;
begin
    select e.endpoint_id into v_id from forebay.endpoint e where e.name = p_name;
    if not found then
        perform forebay._raise_no_endpoint(p_name);
    end if;
    return v_id;
end
$$;
