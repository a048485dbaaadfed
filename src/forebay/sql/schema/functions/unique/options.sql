-- The uniqueness mode in a unique_as, or null. An expression, since it is evaluated for each job of a bulk enqueue.
create function forebay._uniqueness_mode(p_unique_as jsonb) returns text
language sql immutable
as $$
    select case when jsonb_typeof(p_unique_as) = 'object'
                     and (p_unique_as ? 'once')::integer + (p_unique_as ? 'idempotent')::integer + (p_unique_as ? 'coalesce')::integer
                         + (p_unique_as ? 'replace')::integer + (p_unique_as ? 'debounce')::integer + (p_unique_as ? 'throttle')::integer = 1
                then case when p_unique_as ? 'once' then 'once' when p_unique_as ? 'idempotent' then 'idempotent'
                          when p_unique_as ? 'coalesce' then 'coalesce' when p_unique_as ? 'replace' then 'replace'
                          when p_unique_as ? 'debounce' then 'debounce' else 'throttle' end end
$$;


-- A positive number of seconds in a unique_as, at most ten years; null for any other value.
create function forebay._unique_seconds(p_unique_as jsonb, p_name text) returns double precision
language plpgsql immutable
as $$
begin
    if jsonb_typeof(p_unique_as -> p_name) = 'number' and (p_unique_as ->> p_name)::numeric between 0.001 and 315576000 then
        return (p_unique_as ->> p_name)::double precision;
    end if;
    return null;
end
$$;


-- The problem with a unique_as, or null. One line, lower case, with the value.
create function forebay._unique_problem(p_unique_as jsonb, p_delay interval, p_run_at timestamptz, p_expires_at timestamptz) returns text
language plpgsql stable
as $$
declare
    v_mode constant text := forebay._uniqueness_mode(p_unique_as);
    v_known  constant text[] := array['on_busy'] || v_mode
        || case v_mode when 'debounce' then array['wait', 'max_wait'] when 'throttle' then array['period']
                       when 'idempotent' then array['request'] else '{}' end;
    v_key    constant text := p_unique_as ->> v_mode;
begin
    if v_mode is null then
        return format('unique_as %s must be an object with one of once, idempotent, coalesce, replace, debounce and throttle',
                      left(p_unique_as::text, 80));
    elsif jsonb_typeof(p_unique_as -> v_mode) <> 'string' or length(v_key) not between 1 and 200 or v_key ~ E'[{control}]' then
        return format('unique key %s must be text of 1 to 200 characters, none of them a control character',
                      left((p_unique_as -> v_mode)::text, 40));
    elsif (p_unique_as - v_known) <> '{}' then
        return format('unique_as has the unknown entry %s', (select quote_literal(left(k, 40)) from jsonb_object_keys(p_unique_as - v_known) k limit 1));
    elsif p_unique_as ? 'on_busy' and ((p_unique_as ->> 'on_busy') in ('wait', 'raise')) is not true then
        return format('on_busy %s is neither wait nor raise', left((p_unique_as -> 'on_busy')::text, 40));
    elsif v_mode = 'throttle' and forebay._unique_seconds(p_unique_as, 'period') is null then
        return format('period %s is not a number of seconds within 0.001 and ten years', coalesce(left((p_unique_as -> 'period')::text, 40), 'null'));
    elsif v_mode = 'debounce' then
        if forebay._unique_seconds(p_unique_as, 'wait') is null then
            return format('wait %s is not a number of seconds within 0.001 and ten years', coalesce(left((p_unique_as -> 'wait')::text, 40), 'null'));
        elsif p_unique_as ? 'max_wait' and (forebay._unique_seconds(p_unique_as, 'max_wait') >= forebay._unique_seconds(p_unique_as, 'wait')) is not true then
            return format('max_wait %s is not a number of seconds from wait to ten years', left((p_unique_as -> 'max_wait')::text, 40));
        elsif p_delay is not null or p_run_at is not null then
            return 'debounce sets the start time: delay and run_at are not allowed';
        elsif p_expires_at <= forebay._now() + make_interval(secs => forebay._unique_seconds(p_unique_as, 'wait')) then
            return format('expires_at %s is not after the end of the wait', p_expires_at);
        end if;
    end if;
    return null;
end
$$;
