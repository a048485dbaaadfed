-- grant: operator

-- Close the breaker of a limit key by hand, and count its failures from 0: the jobs that wait for
-- a probe run at once. A job that is retrying keeps its time.
-- Returns whether the breaker was open. To stop the jobs of a key by hand, pause the key:
-- forebay.pause_key().
--
-- Errors: JQ001 a bad name or key, or the key of an endpoint: forebay.reset_endpoint().
-- Transaction: the caller's. Claims see it once it commits.
-- Locks: the settings lock, the row of the breaker, and as forebay.limit_key() without remove, until the
--   transaction ends.
-- See: docs/howto/limits.md#a-breaker-for-each-key
create function forebay.reset_key(queue text, limit_key text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_was forebay.breaker;
begin
    perform forebay._require_key(reset_key.queue, null, reset_key.limit_key);
    if reset_key.queue = 'forebay.deliver' then
        raise exception using errcode = 'JQ001', column = 'queue',
            message = format('limit key %s of queue forebay.deliver is an endpoint', quote_literal(left(reset_key.limit_key, 100))),
            hint = 'Close its breaker with forebay.reset_endpoint().';
    end if;
    perform forebay._lock_settings();
    v_was := forebay._close_breaker(reset_key.queue, reset_key.limit_key);
    if v_was.opened_at is null then
        return false;
    end if;
    perform forebay._record_event(
        'circuit.reset', reset_key.queue, p_old => jsonb_build_object('limit_key', reset_key.limit_key) || forebay._breaker_facts(v_was));
    return true;
end
$$;
