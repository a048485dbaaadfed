-- grant: producer, worker

-- Send a message to one endpoint; returns the id of the delivery, a job.
--
-- Parameters:
--   endpoint      the name of an enabled endpoint
--   payload       any JSON value, the body of the message
--   kind          for the receiver: letters, digits and `_ . : -`
--   expires_at    as of forebay.enqueue(), as the others; the endpoint's `max_age`, if it has one,
--                 bounds it
--   ordering_key  messages of the endpoint with the same key are sent one at a time, in order
--   url_suffix    a path below the address of the endpoint, such as `/orders/7`, if its setting
--                 `url_suffixes` is true: at most 500 letters, digits and `- . _ ~ : , = +`
--                 between single slashes
--   timeout       of the request, from 0.1 s to the endpoint's `timeout_max`; null: its `timeout`
--
-- Errors: those of forebay.enqueue(), JQ050 no such endpoint, JQ052 it is disabled, 53400 as many
--   deliveries wait for it as its `max_waiting` allows, unless `unique_as` finds the message there.
--   After an error nothing is written.
-- Transaction: the caller's. The message is sent if, and only if, it commits.
-- Locks: as forebay.enqueue().
create function forebay.send(
    endpoint text, payload jsonb, kind text default 'message', priority integer default 100, delay interval default null,
    run_at timestamptz default null, expires_at timestamptz default null, {options parameters but max_attempts, limit_key},
    unique_as jsonb default null, url_suffix text default null, timeout interval default null)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_endpoint constant forebay.endpoint := forebay._open_endpoint(send.endpoint);
    v_waiting  bigint;
    v_made     record;
    v_args     jsonb := jsonb_build_object('payload', send.payload, 'endpoint', v_endpoint.endpoint_id);
begin
    if send.payload is null then
        raise exception using errcode = 'JQ001', column = 'payload', message = 'payload is null',
            hint = $h$Nothing was sent. The value null of JSON is 'null'::jsonb.$h$;
    end if;
    if num_nonnulls(send.url_suffix, send.timeout) > 0 then
        perform forebay._check_request(v_endpoint, send.url_suffix, extract(epoch from send.timeout));
        v_args := v_args || forebay._request_args(send.url_suffix, extract(epoch from send.timeout));
    end if;
    v_waiting := forebay._waiting_beyond(v_endpoint, 1);
    if v_waiting is not null then
        -- A message that was sent before, and whose answer was lost, adds nothing.
        if coalesce(nullif(send.unique_as, 'null'), '"none"') <> '"none"' then
            v_made := forebay.enqueue_unique(
                send.kind, v_args, send.unique_as, 'forebay.deliver',
                send.priority, send.delay, send.run_at,
                forebay._delivery_end(send.expires_at, send.run_at, send.delay, v_endpoint.max_age),
                ordering_key => forebay._delivery_key(v_endpoint.name, send.ordering_key), limit_key => v_endpoint.name,
                {options passed of send but max_attempts, limit_key, ordering_key});
            if not v_made.is_new then
                return v_made.job_id;
            end if;
        end if;
        perform forebay._raise_full(v_endpoint.name, v_waiting, 1, v_endpoint.max_waiting, 'sent');
    end if;
    return forebay.enqueue(
        send.kind, v_args, 'forebay.deliver', send.priority,
        send.delay, send.run_at,
        forebay._delivery_end(send.expires_at, send.run_at, send.delay, v_endpoint.max_age),
        unique_as => send.unique_as, ordering_key => forebay._delivery_key(v_endpoint.name, send.ordering_key), limit_key => v_endpoint.name,
        {options passed of send but max_attempts, limit_key, ordering_key});
end
$$;


-- The endpoint of a name, if messages can be sent to it.
--
-- Errors: JQ050, JQ052.
create function forebay._open_endpoint(p_name text) returns forebay.endpoint
language plpgsql stable
-- planner: indexed
as $$
declare
    v_endpoint forebay.endpoint;
begin
    select e.* into v_endpoint from forebay.endpoint e where e.name = p_name;
    if v_endpoint.endpoint_id is null then
        perform forebay._raise_no_endpoint(p_name);
    elsif v_endpoint.disabled_at is not null then
        raise exception using errcode = 'JQ052', message = format('endpoint %s is disabled', quote_literal(v_endpoint.name)),
            detail = jsonb_build_object('endpoint', v_endpoint.name, 'why', v_endpoint.disabled_why),
            hint = 'Nothing was sent. forebay.enable_endpoint() enables it.';
    end if;
    return v_endpoint;
end
$$;


-- When a message expires: at the time given, and not later than its endpoint allows after its start; null: neither says. A delay that is
-- out of range is refused later.
create function forebay._delivery_end(p_expires_at timestamptz, p_run_at timestamptz, p_delay interval, p_max_age interval) returns timestamptz
language sql volatile
as $$
    select case when p_max_age is null then p_expires_at
                else least(p_expires_at, coalesce(p_run_at, forebay._now()
                           + coalesce(least(greatest(p_delay, interval '0'), interval '101 years'), interval '0')) + p_max_age) end
$$;


-- The ordering key of a delivery: that of the message, for one endpoint. One that would be too long is replaced by its hash.
create function forebay._delivery_key(p_endpoint text, p_key text) returns text
language sql immutable
as $$
    select case when length(p_endpoint) + 1 + length(p_key) <= 200 or p_key ~ E'[{control}]' then p_endpoint || '/' || p_key
                else p_endpoint || '/' || encode(sha256(convert_to(p_key, 'UTF8')), 'hex') end
$$;
