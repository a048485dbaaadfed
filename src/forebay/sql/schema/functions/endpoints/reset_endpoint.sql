-- grant: operator

-- Close the breaker of an endpoint, and count its failures from 0. Returns whether the breaker was
-- open. The deliveries that wait for a probe are sent; one that is retrying keeps its
-- time: forebay.change_jobs('retry', '{"endpoint": NAME}') sends it, too.
--
-- Errors: JQ050 no such endpoint.
-- Locks: as forebay.alter_endpoint().
create function forebay.reset_endpoint(name text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_endpoint constant forebay.endpoint := forebay._lock_endpoint(reset_endpoint.name);
    v_before   constant forebay.breaker := forebay._close_breaker('forebay.deliver', v_endpoint.name);
begin
    if v_before.opened_at is null then
        return false;
    end if;
    perform forebay._renew_endpoint(v_endpoint.endpoint_id);
    perform forebay._record_event(
        'circuit.reset', p_subject_id => v_endpoint.endpoint_id,
        p_old => jsonb_build_object('name', v_endpoint.name, 'opened_at', v_before.opened_at, 'failures', v_before.failures));
    return true;
end
$$;
