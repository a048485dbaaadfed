-- grant: operator, reader

-- What a retry policy means: how many tries, and how long it waits between them, without the random
-- part and the tries themselves. It takes every form of forebay.create_endpoint(), and policies of
-- kinds: Python computes the same.
--
-- Columns:
--   tries          tries in all: one more than retries
--   delays         seconds before each retry
--   total_seconds  their sum
--   jitter         whether the delays are random: those of a policy are drawn from the upper half of
--                  their length, those of a preset or list are up to 10 % longer
--
-- Example:
--   select * from forebay.retry_plan('{"max_retries": 4, "backoff": "linear", "base_delay": 10}');
--
-- Errors: JQ001 it is no retry policy.
-- Transaction: any; reads only.
-- See: docs/howto/retries.md#a-policy-as-json
create function forebay.retry_plan(retry jsonb, out tries integer, out delays double precision[], out total_seconds double precision,
                                   out jitter boolean)
language plpgsql immutable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_problem constant text := forebay._retry_problem(retry_plan.retry);
    v_list    jsonb;
begin
    if v_problem is not null then
        raise exception using errcode = 'JQ001', column = 'retry', message = v_problem, hint = forebay._retry_hint();
    end if;
    v_list := case
        when retry_plan.retry = '"standard"' then '[5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400]'
        when retry_plan.retry = '"ulak"' then '[10, 20, 40, 80, 160, 300, 300, 300, 300]'
        when jsonb_typeof(retry_plan.retry) = 'array' then retry_plan.retry
        when jsonb_typeof(retry_plan.retry) = 'object' then retry_plan.retry -> 'delays' end;
    jitter := coalesce(case when jsonb_typeof(retry_plan.retry) = 'object' then (retry_plan.retry ->> 'jitter')::boolean end, true);
    if v_list is not null then
        delays := array(select d.value::double precision from jsonb_array_elements(v_list) with ordinality d (value, nr) order by d.nr);
    else
        delays := array(select forebay._policy_delay(retry_plan.retry, n)
                        from generate_series(1, coalesce((retry_plan.retry ->> 'max_retries')::numeric::integer, 19)) n order by n);
    end if;
    tries := cardinality(delays) + 1;
    total_seconds := (select coalesce(sum(d), 0) from unnest(delays) d);
end
$$;


-- The delay of a policy after a failed try, before the random part. The formula is that of backoff_seconds() in forebay.policy, with its steps in
-- their order: both give the same number.
create function forebay._policy_delay(p_policy jsonb, p_attempt integer) returns double precision
language sql immutable
as $$
    select least(i.base * case i.backoff
                     when 'fixed' then 1
                     when 'linear' then 1 + (p_attempt - 1) * i.increment / i.base
                     when 'exponential' then power(2::double precision, least(p_attempt - 1, 1000))
                     when 'polynomial' then power(p_attempt::double precision, 3) end,
                 coalesce((p_policy ->> 'max_delay')::double precision, greatest(3600, i.base)))
    from (select coalesce(p_policy ->> 'backoff', 'exponential') as backoff, coalesce((p_policy ->> 'base_delay')::double precision, 5) as base,
                 coalesce((p_policy ->> 'increment')::double precision, (p_policy ->> 'base_delay')::double precision, 5) as increment) i
$$;


-- The delay after a failed attempt by the settings of the database, with its random part.
create function forebay._retry_delay(p_attempt integer) returns double precision
language sql volatile
as $$
    select forebay._policy_delay(
               jsonb_build_object('backoff', s.all ->> 'retry_strategy', 'base_delay', s.all -> 'retry_base_seconds', 'max_delay', s.all -> 'retry_cap_seconds'),
               p_attempt)
           * case when (s.all -> 'retry_jitter')::boolean then 0.5 + random() / 2 else 1 end
    from (select jsonb_object_agg(i.name, i.value) as all from forebay.setting i where i.name like E'retry\\_%') s
$$;


-- The problem with a policy, a JSON object, or null.
create function forebay._policy_problem(p_policy jsonb) returns text
language sql immutable
as $$
    select coalesce(
        case when p_policy = '{}' then 'retry is an empty object' end,
        (select format('retry has %s, which is none of max_retries, backoff, base_delay, increment, max_delay, jitter, delays', quote_literal(left(k, 40)))
         from jsonb_object_keys(p_policy) k
         where k <> all ('{max_retries,backoff,base_delay,increment,max_delay,jitter,delays}') order by k limit 1),
        case when p_policy ? 'delays' then coalesce(
            (select format('retry has %s beside delays', k) from jsonb_object_keys(p_policy) k where k not in ('delays', 'jitter') order by k limit 1),
            case when jsonb_typeof(p_policy -> 'delays') <> 'array' then 'retry: delays is not a list' else forebay._retry_problem(p_policy -> 'delays') end) end,
        (select format('retry: %s is %s, not %s', r.name, left((p_policy -> r.name)::text, 40), r.range)
         from (values (1, 'max_retries', 'an integer within 0 to 9999', 0, 9999), (2, 'base_delay', 'a number of seconds within 0.001 to 2592000', 0.001, 2592000),
                      (3, 'max_delay', 'a number of seconds within 0.001 to 2592000', 0.001, 2592000),
                      (4, 'increment', 'a number of seconds within 0 to 2592000', 0, 2592000)) r (nr, name, range, lowest, highest)
         where p_policy ? r.name
           and case when jsonb_typeof(p_policy -> r.name) = 'number'
                    then (p_policy -> r.name)::numeric not between r.lowest and r.highest or r.nr = 1 and (p_policy -> r.name)::numeric % 1 <> 0
                    else true end
         order by r.nr limit 1),
        case
            when p_policy ? 'backoff' and (p_policy -> 'backoff' in ('"fixed"', '"linear"', '"exponential"', '"polynomial"')) is not true
                then format('retry: backoff is %s, not one of fixed, linear, exponential, polynomial', left((p_policy -> 'backoff')::text, 40))
            when p_policy ? 'jitter' and jsonb_typeof(p_policy -> 'jitter') <> 'boolean'
                then format('retry: jitter is %s, not true or false', left((p_policy -> 'jitter')::text, 40))
            when p_policy ? 'increment' and p_policy -> 'backoff' is distinct from '"linear"' then 'retry: increment has no meaning without "backoff": "linear"'
            when p_policy ? 'max_delay' and (p_policy ->> 'max_delay')::numeric < coalesce((p_policy ->> 'base_delay')::numeric, 5)
                then format('retry: max_delay is %s, below base_delay %s', left(p_policy ->> 'max_delay', 40), left(coalesce(p_policy ->> 'base_delay', '5'), 40)) end)
$$;


-- What can be given as retries.
create function forebay._retry_hint() returns text
language sql immutable
as $$
    select 'Give "standard", "ulak", at most 100 delays in seconds, such as [10, 60, 600], or a policy such as {"max_retries": 10, "backoff": "linear", "base_delay": 10}.'
$$;
