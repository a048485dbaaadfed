-- grant: operator

-- Change settings of an endpoint, also while it delivers; returns whether that changed anything.
-- Null leaves a setting unchanged. First the settings named in `remove` are removed, then the given
-- ones are set: `rate` (with its `burst`), `burst`, `disable_after`, `max_waiting`, `max_age`, or
-- `all`; without `retry`, `concurrency`, `breaker_threshold` or `breaker_cooldown` those of the
-- database hold. The others are those of forebay.create_endpoint().
--
-- A configuration replaces the old one as a whole. New limits apply from the next claim on; if the
-- breaker is open, when it closes. A new retry policy applies from the next failure on.
--
-- Errors: JQ001 a bad option, JQ050 no such endpoint. On an error nothing is changed.
-- Locks: the endpoint, and those of forebay.limit_key(), until the transaction ends. Reports about
--   the endpoint's deliveries wait.
create function forebay.alter_endpoint(
    name text, sink text default null, config jsonb default null, retry jsonb default null, rate double precision default null,
    burst integer default null, concurrency integer default null, breaker_threshold integer default null,
    breaker_cooldown integer default null, disable_after interval default null, max_waiting bigint default null,
    max_age interval default null, keeps_response boolean default null, remove text[] default '{}',
    disable_on_gone boolean default null, when_full text default null)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_names  constant text[] := '{retry,rate,burst,concurrency,breaker_threshold,breaker_cooldown,disable_after,max_waiting,max_age}';
    v_remove text[] := coalesce(alter_endpoint.remove, '{}');
    v_bad    text;
    v_before constant forebay.endpoint := forebay._lock_endpoint(alter_endpoint.name);
    v_new    forebay.endpoint := v_before;
    v_held   constant forebay.endpoint := forebay._with_defaults(v_before);
    v_holds  forebay.endpoint;
    v_open   forebay.breaker;
begin
    select coalesce(quote_literal(left(r.name, 40)), 'null') into v_bad
    from unnest(v_remove) r (name) where (r.name = any (v_names || 'all'::text)) is not true limit 1;
    if v_bad is not null then
        raise exception using errcode = 'JQ001', column = 'remove',
            message = format('remove has %s, which is none of %s, all', v_bad, array_to_string(v_names, ', ')), hint = 'Nothing was changed.';
    end if;
    v_remove := case when 'all' = any (v_remove) then v_names
                     else v_remove || case when 'rate' = any (v_remove) then '{burst}'::text[] end end;
    v_new.sink := coalesce(alter_endpoint.sink, v_before.sink);
    v_new.config := coalesce(alter_endpoint.config, v_before.config);
    v_new.retry := coalesce(alter_endpoint.retry, case when 'retry' <> all (v_remove) then v_before.retry end);
    v_new.rate := coalesce(alter_endpoint.rate, case when 'rate' <> all (v_remove) then v_before.rate end);
    v_new.burst := coalesce(alter_endpoint.burst, case when 'burst' <> all (v_remove) then v_before.burst end);
    v_new.concurrency := coalesce(alter_endpoint.concurrency, case when 'concurrency' <> all (v_remove) then v_before.concurrency end);
    v_new.breaker_threshold := coalesce(alter_endpoint.breaker_threshold, case when 'breaker_threshold' <> all (v_remove) then v_before.breaker_threshold end);
    v_new.breaker_cooldown := coalesce(alter_endpoint.breaker_cooldown, case when 'breaker_cooldown' <> all (v_remove) then v_before.breaker_cooldown end);
    v_new.disable_after := coalesce(alter_endpoint.disable_after, case when 'disable_after' <> all (v_remove) then v_before.disable_after end);
    v_new.max_waiting := nullif(coalesce(alter_endpoint.max_waiting, case when 'max_waiting' <> all (v_remove) then v_before.max_waiting end), 0);
    v_new.max_age := coalesce(alter_endpoint.max_age, case when 'max_age' <> all (v_remove) then v_before.max_age end);
    v_new.keeps_response := coalesce(alter_endpoint.keeps_response, v_before.keeps_response);
    v_new.when_full := coalesce(alter_endpoint.when_full, v_before.when_full);
    v_new.disable_on_gone := coalesce(alter_endpoint.disable_on_gone, v_before.disable_on_gone);
    perform forebay._check_endpoint(v_new);
    if v_new is not distinct from v_before then
        return false;
    end if;
    v_holds := forebay._with_defaults(v_new);
    if v_new.sink <> v_before.sink then
        v_new.retired_secrets := '[]';
    end if;
    update forebay.endpoint e
    set sink = v_new.sink, config = v_new.config, retired_secrets = v_new.retired_secrets, retry = v_new.retry, rate = v_new.rate,
        burst = v_new.burst, concurrency = v_new.concurrency, breaker_threshold = v_new.breaker_threshold,
        breaker_cooldown = v_new.breaker_cooldown, disable_after = v_new.disable_after, max_waiting = v_new.max_waiting,
        max_age = v_new.max_age, keeps_response = v_new.keeps_response, disable_on_gone = v_new.disable_on_gone, when_full = v_new.when_full,
        changed_at = forebay._now()
    where e.endpoint_id = v_new.endpoint_id;
    if v_new.when_full = 'refuse' or v_new.max_waiting is null then
        update forebay.endpoint_state s set is_overfull = false where s.endpoint_id = v_new.endpoint_id and s.is_overfull;
    end if;
    perform forebay._renew_endpoint(v_new.endpoint_id);
    perform forebay._set_key_limits('forebay.deliver', v_new.name, v_new.rate, v_new.burst, v_holds.concurrency);
    if v_holds.breaker_cooldown <> v_held.breaker_cooldown then
        update forebay.breaker b
        set cooldown = v_holds.breaker_cooldown, cooldown_max = v_holds.breaker_cooldown,
            probe_at = case when b.opened_at is not null
                            then greatest(b.opened_at, b.failed_at) + make_interval(secs => v_holds.breaker_cooldown) end
        where b.queue = 'forebay.deliver' and b.key = v_new.name returning b.* into v_open;
        if v_open.opened_at is not null then
            perform forebay._set_key_probes('forebay.deliver', v_new.name, v_holds.breaker_cooldown, v_open.probe_at);
        end if;
    end if;
    -- Only what has changed, with the values that hold.
    perform forebay._record_event(
        'endpoints.alter', p_subject_id => v_new.endpoint_id,
        p_old => (select jsonb_object_agg(o.key, o.value) from jsonb_each(forebay._recorded_endpoint(v_held)) o
                  where o.key = 'name' or forebay._endpoint_facts(v_held) -> o.key is distinct from forebay._endpoint_facts(v_holds) -> o.key),
        p_new => (select jsonb_object_agg(n.key, n.value) from jsonb_each(forebay._recorded_endpoint(v_holds, v_held)) n
                  where n.key = 'name' or forebay._endpoint_facts(v_holds) -> n.key is distinct from forebay._endpoint_facts(v_held) -> n.key));
    return true;
end
$$;
