-- grant: producer, worker

-- Publish an event: each subscription of its type whose filter the payload contains gets a
-- delivery. This writes one row of the log, whatever the number of subscriptions; a router writes
-- the deliveries later. Deliveries have priority, tag, correlation id and expiry of their event.
--
-- Parameters:
--   event_type    see forebay.create_event_type()
--   payload       any JSON value
--   ordering_key  events with the same key are sent to each endpoint in their order
--
-- The other options are those of forebay.enqueue().
--
-- Columns:
--   event_id       with `unique_as` perhaps that of an existing event
--   subscriptions  how many subscriptions of enabled endpoints the type has, before filters,
--                  counted up to 100; with 0 nothing will be delivered, unless a subscription is
--                  made later that begins earlier
--   dropping       of how many of these endpoints events are dropped now, since they are full and
--                  have `when_full` drop: forebay.replay_endpoint() can deliver them later
--
-- Errors: JQ001 the event type does not exist, the payload is null, or an option is refused; 53400 as
--   many deliveries wait for a subscriber as its `max_waiting` allows, and it has `when_full` refuse;
--   others as forebay.enqueue(). After an error nothing is written.
-- Locks: as forebay.enqueue().
--
-- Inside: Invariant "a publish is one row".
-- pages: 250 + 10 a subscription
create function forebay.publish(
    event_type text, payload jsonb default '{}', priority integer default 100, delay interval default null,
    run_at timestamptz default null, expires_at timestamptz default null, {options parameters but max_attempts, limit_key},
    unique_as jsonb default null,
    out event_id bigint, out subscriptions integer, out dropping integer)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
begin
    perform forebay._require_event_types(array[publish.event_type]);
    if publish.payload is null then
        raise exception using errcode = 'JQ001', column = 'payload', message = 'payload is null',
            hint = $h$Nothing was published. The value null of JSON is 'null'::jsonb.$h$;
    end if;
    perform forebay._require_below_bounds(array[publish.event_type], array[publish.payload]);
    event_id := forebay.enqueue(
        kind => publish.event_type, args => forebay._event_args(publish.payload), queue => 'forebay.publish', priority => publish.priority, delay => publish.delay,
        run_at => publish.run_at, expires_at => publish.expires_at, unique_as => publish.unique_as,
        {options passed of publish but max_attempts, limit_key});
    select count(*), count(*) filter (where n.is_overfull) into subscriptions, dropping
    from (select t.is_overfull
          from forebay.subscription s join forebay.endpoint e using (endpoint_id) left join forebay.endpoint_state t using (endpoint_id)
          where s.event_type = publish.event_type and e.disabled_at is null limit 100) n;
end
$$;


-- Publish events, all or none; returns their ids in input order. `events` is a JSON array of objects
-- with the parameters of forebay.publish as keys, `delay` in seconds; all but `event_type` are
-- optional.
--
-- Errors: as forebay.publish; the message has the index of the event, from 0.
-- pages: 200 + 8 an event
create function forebay.publish_many(events jsonb) returns bigint[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
declare
    v_keys constant text[] := array['event_type', 'payload', 'priority', 'delay', 'run_at', 'expires_at', {options keys but max_attempts, limit_key}, 'unique_as'];
    v_bad  record;
begin
    if jsonb_typeof(publish_many.events) is distinct from 'array' then
        raise exception using errcode = 'JQ001', column = 'events',
            message = format('events must be a JSON array, not %s', coalesce(jsonb_typeof(publish_many.events), 'null')),
            hint = 'Pass an array of objects, one for each event.';
    end if;
    select e.nr - 1 as index, case
        when jsonb_typeof(e.value) <> 'object' then format('must be a JSON object, not %s', jsonb_typeof(e.value))
        when (e.value - v_keys) <> '{}' then format('unknown option %s', (select k from jsonb_object_keys(e.value - v_keys) k limit 1))
        when jsonb_typeof(e.value -> 'event_type') is distinct from 'string' then 'has no event_type' end as problem
    into v_bad
    from jsonb_array_elements(publish_many.events) with ordinality e (value, nr)
    where case when jsonb_typeof(e.value) = 'object'
               then (e.value - v_keys) <> '{}' or jsonb_typeof(e.value -> 'event_type') is distinct from 'string'
               else true end
    order by e.nr limit 1;
    if found then
        raise exception using errcode = 'JQ001', column = 'events', message = format('event %s: %s', v_bad.index, v_bad.problem),
            detail = jsonb_build_object('index', v_bad.index),
            hint = 'Nothing was published. The options are ' || array_to_string(v_keys, ', ') || '.';
    end if;
    perform forebay._require_event_types(array(
        select distinct e.value ->> 'event_type' from jsonb_array_elements(publish_many.events) e));
    perform forebay._require_below_bounds(array_agg(e.value ->> 'event_type' order by e.nr), array_agg(coalesce(e.value -> 'payload', '{}') order by e.nr))
    from jsonb_array_elements(publish_many.events) with ordinality e (value, nr) having count(*) > 0;
    return (forebay._enqueue_json((
        select coalesce(jsonb_agg((e.value - 'event_type' - 'payload') || jsonb_build_object(
                   'kind', e.value -> 'event_type', 'args', forebay._event_args(coalesce(e.value -> 'payload', '{}')),
                   'queue', 'forebay.publish') order by e.nr), '[]')
        from jsonb_array_elements(publish_many.events) with ordinality e (value, nr)), 'event')).ids;
end
$$;


-- The arguments of the job that publishes an event: its payload. One that is no object is a member of them, and so is one that has that
-- member itself.
create function forebay._event_args(p_payload jsonb) returns jsonb
language sql immutable
as $$
    select case when jsonb_typeof(p_payload) = 'object' and not p_payload ? 'forebay.payload' then p_payload
                else jsonb_build_object('forebay.payload', p_payload) end
$$;


-- The payload of an event, from those arguments.
create function forebay._event_payload(p_args jsonb) returns jsonb
language sql immutable
as $$ select case when p_args ? 'forebay.payload' then p_args -> 'forebay.payload' else p_args end $$;


-- Errors: JQ001 when one of the event types does not exist.
create function forebay._require_event_types(p_names text[]) returns void
language plpgsql stable
as $$
declare
    v_missing text;
begin
    select n.name into v_missing from unnest(p_names) n (name)
    where not exists (select from forebay.event_type t where t.name = n.name) limit 1;
    if found then
        raise exception using errcode = 'JQ001', column = 'event_type',
            message = format('event type %s does not exist', coalesce(quote_literal(left(v_missing, 128)), 'null')),
            detail = jsonb_build_object('event_type', v_missing),
            hint = 'Create it with forebay.create_event_type(); forebay.event_types() lists them.';
    end if;
end
$$;
