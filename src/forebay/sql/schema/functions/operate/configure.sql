-- grant: operator

-- Change a setting of the whole database; returns the previous value, null for none. Null gives the
-- built-in value back. forebay.settings() lists the names, with what each may be.
--
-- What an endpoint, a queue, a kind or a process has set itself comes first. A running worker knows
-- the change with its next heartbeat after the commit, a deliverer within a second, an enqueue and
-- maintenance at once.
--
-- Parameters:
--   name     the name of the setting
--   value    a number, a boolean, or a text: `'linear'`, `'600'`. For `endpoint_retry` also JSON, as
--            jsonb or text; null: the built-in value
--   dry_run  only check the value, and return the present one
--
-- Errors: JQ001 an unknown name, or a value out of range; the message has the range and the unit.
--   42501 `segment_rows` and `reserve_rows` are for the owner of the schema only.
-- Transaction: the caller's. The event log has each change as `configure`.
-- Locks: the table of settings, until the transaction ends: only other calls wait. With a setting
--   of endpoints also each endpoint that has none itself, as forebay.alter_endpoint().
-- See: docs/reference/settings.md#settings-of-the-database
create function forebay.configure(name text, value anycompatible, dry_run boolean default false) returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_rule   record;
    v_before forebay.setting;
    v_value  jsonb := to_jsonb(configure.value);
    v_resets boolean;
    v_range  text;
begin
    select r.* into v_rule from forebay._setting_rules() r where r.name = configure.name;
    if v_rule.name is null then
        raise exception using errcode = 'JQ001', column = 'name',
            message = format('unknown setting %s', coalesce(quote_literal(left(configure.name, 100)), 'null')),
            hint = format('One of %s.', (select string_agg(r.name, ', ' order by r.name) from forebay._setting_rules() r));
    end if;
    if v_rule.is_owners and not pg_has_role(forebay._role_in_use(), current_user, 'usage') then
        raise exception using errcode = '42501', message = format('%s is for the owner of the schema only', v_rule.name),
            hint = format('Nothing was changed. Set it as %s: it lays out the log.', current_user);
    end if;
    v_resets := coalesce(v_value, 'null') = 'null';
    v_value := case when v_resets then v_rule.built_in else forebay._read_setting(v_rule.sort, v_value) end;
    if not v_resets and not forebay._is_in_range(v_rule.sort, v_value, v_rule.lowest, v_rule.highest, v_rule.choices) then
        v_range := forebay._range_in_words(v_rule.sort, v_rule.lowest, v_rule.highest, v_rule.choices, v_rule.unit);
        raise exception using errcode = 'JQ001', column = 'value',
            message = case when v_rule.sort = 'retries' then format('%s: value: %s', v_rule.name, forebay._retry_problem(v_value))
                           else format('%s: value %s is not %s', v_rule.name, left(to_jsonb(configure.value) #>> '{}', 100), v_range) end,
            hint = format('Nothing was changed. Null gives the built-in value %s back.', coalesce(v_rule.built_in #>> '{}', 'none'));
    end if;
    if dry_run is not true then
        lock table only forebay.setting in share row exclusive mode;
    end if;
    select s.* into v_before from forebay.setting s where s.name = v_rule.name;
    perform forebay._require_fitting(v_rule.name, v_value);
    if dry_run is not true and (v_before.value <> v_value or (v_before.set_at is null) <> v_resets) then
        update forebay.setting s
        set value = v_value, set_at = case when not v_resets then forebay._now() end, role = case when not v_resets then session_user end,
            actor = case when not v_resets then left(nullif(current_setting('forebay.actor', true), ''), 200) end
        where s.name = v_rule.name;
        perform forebay._record_event('configure', p_old => jsonb_build_object(v_rule.name, v_before.value),
                                      p_new => jsonb_build_object(v_rule.name, v_value), p_detail => case when v_resets then 'reset' end);
        if v_before.value <> v_value then
            perform forebay._follow_setting(v_rule.name, v_value);
        end if;
    end if;
    return nullif(v_before.value, 'null');
end
$$;


-- A value as a setting keeps it: a text that says a number, a boolean or JSON is one. What cannot be read is returned as it is.
create function forebay._read_setting(p_sort text, p_value jsonb) returns jsonb
language plpgsql immutable
as $$
declare
    v_text constant text := btrim(p_value #>> '{}');
begin
    if jsonb_typeof(p_value) = 'number' then
        -- One form for each number: 2.0 and 2 are the same setting.
        return to_jsonb(trim_scale(v_text::numeric));
    elsif jsonb_typeof(p_value) <> 'string' then
        return p_value;
    elsif p_sort in ('integer', 'number') and v_text ~ '^[+-]?([0-9]{1,30}([.][0-9]{0,30})?|[.][0-9]{1,30})(e[+-]?[0-9]{1,2})?$' then
        return to_jsonb(trim_scale(v_text::numeric));
    elsif p_sort = 'boolean' and lower(v_text) in ('true', 'on', 'yes', 'false', 'off', 'no') then
        return to_jsonb(lower(v_text) in ('true', 'on', 'yes'));
    elsif p_sort = 'retries' and v_text ~ E'^[\\[{"]' then
        begin
            return v_text::jsonb;
        exception
            when invalid_text_representation or untranslatable_character or statement_too_complex then
                return p_value;
        end;
    end if;
    return to_jsonb(v_text);
end
$$;


-- May a setting have this value?
create function forebay._is_in_range(p_sort text, p_value jsonb, p_lowest numeric, p_highest numeric, p_choices text[]) returns boolean
language sql immutable
as $$
    select coalesce(case p_sort
        when 'integer' then case when jsonb_typeof(p_value) = 'number' then p_value::numeric between p_lowest and p_highest and p_value::numeric % 1 = 0 end
        when 'number' then case when jsonb_typeof(p_value) = 'number' then p_value::numeric between p_lowest and p_highest end
        when 'boolean' then jsonb_typeof(p_value) = 'boolean'
        when 'choice' then jsonb_typeof(p_value) = 'string' and p_value #>> '{}' = any (p_choices)
        when 'retries' then forebay._retry_problem(p_value) is null end, false)
$$;


-- What a setting may be, for people.
create function forebay._range_in_words(p_sort text, p_lowest numeric, p_highest numeric, p_choices text[], p_unit text) returns text
language sql immutable
as $$
    select case p_sort
        when 'integer' then format('an integer within %s to %s %s', p_lowest, p_highest, p_unit)
        when 'number' then format('a number within %s to %s %s', p_lowest, p_highest, p_unit)
        when 'boolean' then 'true or false'
        when 'choice' then 'one of ' || array_to_string(p_choices, ', ')
        when 'retries' then 'a preset, delays in seconds or a policy' end
$$;


-- Refuse a value that contradicts another setting.
--
-- Errors: JQ001.
create function forebay._require_fitting(p_name text, p_value jsonb) returns void
language plpgsql stable
as $$
declare
    v_base constant numeric := case when p_name = 'retry_base_seconds' then p_value::numeric
                                    else (select s.value::numeric from forebay.setting s where s.name = 'retry_base_seconds') end;
    v_cap  constant numeric := case when p_name = 'retry_cap_seconds' then p_value::numeric
                                    else (select s.value::numeric from forebay.setting s where s.name = 'retry_cap_seconds') end;
begin
    if p_name in ('retry_base_seconds', 'retry_cap_seconds') and v_base > v_cap then
        raise exception using errcode = 'JQ001', column = 'value',
            message = format('retry_base_seconds %s would be above retry_cap_seconds %s', v_base, v_cap),
            hint = format('Nothing was changed. Change %s first.', case when p_name = 'retry_base_seconds' then 'retry_cap_seconds' else 'retry_base_seconds' end);
    end if;
end
$$;


-- Let those who do not read a setting each time know that it has changed.
create function forebay._follow_setting(p_name text, p_value jsonb) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    e forebay.endpoint;
begin
    if p_name = 'max_waiting' and p_value <> 'null' then
        -- From now on enqueues look: see forebay.enqueue().
        perform nextval('forebay.limit_seq'), setval('forebay.lane_secret', pg_sequence_last_value('forebay.lane_secret') | 1);
    end if;
    for e in
        select i.* from forebay.endpoint i
        where case p_name when 'endpoint_retry' then i.retry is null when 'endpoint_concurrency' then i.concurrency is null
                          when 'breaker_failures' then i.breaker_threshold is null when 'breaker_cooldown_seconds' then i.breaker_cooldown is null
                          else false end
        order by i.endpoint_id
    loop
        perform from forebay.endpoint_state s where s.endpoint_id = e.endpoint_id for update;
        -- As it is now that it is locked; gone, or with its own value, it needs nothing.
        select i.* into e from forebay.endpoint i where i.endpoint_id = e.endpoint_id;
        continue when not found;
        perform forebay._renew_endpoint(e.endpoint_id);
        if p_name = 'endpoint_concurrency' then
            perform forebay._set_key_limits('forebay.deliver', e.name, e.rate, e.burst, (forebay._with_defaults(e)).concurrency);
        end if;
    end loop;
end
$$;
