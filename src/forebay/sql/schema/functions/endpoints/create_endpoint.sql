-- grant: operator

-- Create an endpoint, a destination of events and messages, which is enabled; returns its id.
--
-- Parameters:
--   name               1 to 100 letters, digits and `_ . -`
--   sink               the type of the sink
--   config             the settings of the sink, a JSON object. Unknown settings are refused, and of
--                      `http` values that the sink does not take, and addresses that are not public
--                      unless forebay.allow_hosts() has them.
--                      Secrets of HTTP endpoints (`secrets`, `auth`) must be references: `env:NAME`
--                      or `file:/path`
--   retry              `"standard"` (10 tries over 75 h 35 min), `"ulak"` (10 tries over 25 min 10
--                      s), at most 100 delays in seconds, 0 to 2592000 each, with one try more than
--                      delays, or a policy, an object: forebay.retry_plan() says what it means.
--                      This, `concurrency`, `breaker_threshold` and `breaker_cooldown` are those of
--                      the database if null: `endpoint_retry`, `endpoint_concurrency`,
--                      `breaker_failures` and `breaker_cooldown_seconds` of forebay.configure(),
--                      also when these change
--   rate, burst        deliveries started per second, 0.000001 to 1000000, and at once after an
--                      idle time; null: no limit, and those of one second
--   concurrency        deliveries that run at once, over all deliverers
--   breaker_threshold  failures in a row that open the breaker, 1 to 1000
--   breaker_cooldown   seconds between two probes of an open breaker, 5 to 3600
--   disable_after      12 hours to 365 days: an endpoint without a success for that long is
--                      disabled when a delivery fails; null: never
--   max_waiting        deliveries that may wait for this endpoint, to 10^12; 0: no bound. Beyond it
--                      forebay.send() is refused
--   when_full          what becomes of events beyond it: `refuse`, forebay.publish() is refused; or
--                      `drop`, they are dropped for this endpoint
--   max_age            age at which a delivery expires, 1 second to 10 years; null: that of its
--                      event
--   keeps_response     the answer is kept as the result of the delivery, for `retention_days`: of
--                      `http` the status and `seconds`, and with `show_response` type and body
--   disable_on_gone    an answer that says that the endpoint wants no messages any more (410) disables
--                      it; false: that message becomes a dead letter, and no more
--
-- Errors: JQ001 a bad option, JQ051 the name is taken. On an error nothing is written.
-- Locks: the name, and those of forebay.limit_key(), until the transaction ends.
-- See: docs/howto/sinks.md
create function forebay.create_endpoint(
    name text, sink text, config jsonb, retry jsonb default null, rate double precision default null,
    burst integer default null, concurrency integer default null, breaker_threshold integer default null,
    breaker_cooldown integer default null, disable_after interval default null, max_waiting bigint default 1000000,
    max_age interval default null, keeps_response boolean default false, disable_on_gone boolean default true,
    when_full text default 'refuse')
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_at  constant timestamptz := forebay._now();
    v_new forebay.endpoint;
begin
    v_new.name := create_endpoint.name;
    v_new.sink := create_endpoint.sink;
    v_new.config := create_endpoint.config;
    v_new.retry := create_endpoint.retry;
    v_new.rate := create_endpoint.rate;
    v_new.burst := create_endpoint.burst;
    v_new.concurrency := create_endpoint.concurrency;
    v_new.breaker_threshold := create_endpoint.breaker_threshold;
    v_new.breaker_cooldown := create_endpoint.breaker_cooldown;
    v_new.disable_after := create_endpoint.disable_after;
    v_new.max_waiting := nullif(create_endpoint.max_waiting, 0);
    v_new.max_age := create_endpoint.max_age;
    v_new.keeps_response := create_endpoint.keeps_response;
    v_new.disable_on_gone := create_endpoint.disable_on_gone;
    v_new.when_full := create_endpoint.when_full;
    perform forebay._check_endpoint(v_new);
    perform from forebay.setting s where s.name = 'endpoint_concurrency' for share;
    insert into forebay.endpoint as e (
        name, sink, config, retry, rate, burst, concurrency, breaker_threshold, breaker_cooldown, disable_after, max_waiting, max_age,
        keeps_response, disable_on_gone, when_full, created_at, changed_at, version)
    values (v_new.name, v_new.sink, v_new.config, v_new.retry, v_new.rate, v_new.burst, v_new.concurrency, v_new.breaker_threshold,
            v_new.breaker_cooldown, v_new.disable_after, v_new.max_waiting, v_new.max_age, v_new.keeps_response, v_new.disable_on_gone, v_new.when_full, v_at, v_at, 0)
    on conflict on constraint endpoint_name_key do nothing
    returning e.* into v_new;
    if v_new.endpoint_id is null then
        raise exception using errcode = 'JQ051', message = format('endpoint %s exists already', quote_literal(create_endpoint.name)),
            detail = jsonb_build_object('endpoint', create_endpoint.name), hint = 'Change it with forebay.alter_endpoint().';
    end if;
    insert into forebay.endpoint_state (endpoint_id) values (v_new.endpoint_id);
    -- The first counts, so that no sender has to make them.
    perform forebay._waiting(q.queue, forebay._waiting_group(q.queue, null), 9223372036854775807, 0)
    from unnest('{forebay.deliver,forebay.publish}'::text[]) q (queue);
    perform forebay._renew_endpoint(v_new.endpoint_id);
    perform forebay._set_key_limits('forebay.deliver', v_new.name, v_new.rate, v_new.burst, (forebay._with_defaults(v_new)).concurrency);
    perform forebay._record_event('endpoints.create', p_subject_id => v_new.endpoint_id, p_new => forebay._recorded_endpoint(v_new));
    return v_new.endpoint_id;
end
$$;
