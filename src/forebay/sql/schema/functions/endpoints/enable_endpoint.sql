-- grant: operator

-- Enable an endpoint: deliveries that wait are sent, and its breaker is closed. Returns whether it
-- was disabled. Events that were published while it was disabled are not delivered;
-- forebay.replay_endpoint() since `disabled_at` does that.
--
-- Errors: JQ050 no such endpoint.
-- Locks: as forebay.alter_endpoint(), and as forebay.resume_key().
create function forebay.enable_endpoint(name text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_endpoint constant forebay.endpoint := forebay._lock_endpoint(enable_endpoint.name);
begin
    if v_endpoint.disabled_at is null then
        return false;
    end if;
    update forebay.endpoint e set disabled_at = null, disabled_why = null, changed_at = forebay._now()
    where e.endpoint_id = v_endpoint.endpoint_id;
    -- Or the first failure would disable it again.
    update forebay.endpoint_state s set failing_since = null, failing_percent = 0
    where s.endpoint_id = v_endpoint.endpoint_id;
    perform forebay._renew_endpoint(v_endpoint.endpoint_id);
    perform forebay._close_breaker('forebay.deliver', v_endpoint.name);
    perform forebay.resume_key('forebay.deliver', limit_key => v_endpoint.name);
    perform forebay._record_event(
        'endpoints.enable', p_subject_id => v_endpoint.endpoint_id,
        p_old => jsonb_build_object('name', v_endpoint.name, 'disabled_at', v_endpoint.disabled_at, 'why', v_endpoint.disabled_why));
    return true;
end
$$;


-- Disable an endpoint: its deliveries wait, and events published from now on are not delivered to
-- it. Calls that run finish. Returns whether it was enabled. `why` is for the event log and
-- forebay.endpoints(), at most 1,000 characters.
--
-- Errors: JQ050 no such endpoint.
-- Locks: as forebay.alter_endpoint(), and as forebay.pause_key().
create function forebay.disable_endpoint(name text, why text default null) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_endpoint constant forebay.endpoint := forebay._lock_endpoint(disable_endpoint.name);
begin
    if v_endpoint.disabled_at is not null then
        return false;
    end if;
    perform forebay._disable_endpoint(v_endpoint, why);
    return true;
end
$$;


-- Disable an endpoint that is enabled and locked.
create function forebay._disable_endpoint(e forebay.endpoint, p_why text) returns void
language plpgsql volatile
as $$
declare
    v_at constant timestamptz := forebay._now();
begin
    update forebay.endpoint i set disabled_at = v_at, disabled_why = left(p_why, 1000), changed_at = v_at where i.endpoint_id = e.endpoint_id;
    perform forebay._renew_endpoint(e.endpoint_id);
    perform forebay.pause_key('forebay.deliver', limit_key => e.name);
    perform forebay._record_event(
        'endpoints.disable', p_subject_id => e.endpoint_id, p_new => jsonb_build_object('name', e.name), p_detail => p_why);
end
$$;
