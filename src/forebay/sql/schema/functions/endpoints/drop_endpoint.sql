-- grant: operator

-- Drop an endpoint, with its subscriptions. With `discard` also if deliveries wait: they become
-- dead letters when a deliverer claims them. Deliveries that wait for a retry, or that no
-- deliverer has met yet, are not seen here.
--
-- Errors: JQ050 no such endpoint, JQ053 deliveries wait.
-- Locks: as forebay.alter_endpoint().
create function forebay.drop_endpoint(name text, discard boolean default false) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_endpoint constant forebay.endpoint := forebay._lock_endpoint(drop_endpoint.name);
    v_waiting  bigint;
begin
    select w.waiting into v_waiting from forebay._endpoint_waiting(v_endpoint.name) w;
    if v_waiting > 0 and discard is not true then
        raise exception using errcode = 'JQ053', message = format('endpoint %s has %s waiting deliveries', quote_literal(v_endpoint.name), v_waiting),
            detail = jsonb_build_object('endpoint', v_endpoint.name, 'waiting', v_waiting),
            hint = 'Wait until they are delivered, or drop it with discard => true: they become dead letters.';
    end if;
    delete from forebay.endpoint e where e.endpoint_id = v_endpoint.endpoint_id;
    perform nextval('forebay.endpoint_seq');
    perform forebay._close_breaker('forebay.deliver', v_endpoint.name);
    perform forebay._set_key_limits('forebay.deliver', v_endpoint.name, null, null, null);
    perform forebay.resume_key('forebay.deliver', limit_key => v_endpoint.name);
    perform forebay._record_event(
        'endpoints.drop', p_subject_id => v_endpoint.endpoint_id, p_old => forebay._recorded_endpoint(v_endpoint), p_count => v_waiting);
end
$$;
