-- The text of a JSON value in which equal values are equal: the form of Python's forebay.arguments.keys. Names are sorted, a whole number
-- is an integer, a time with an offset is its instant.
create function forebay._canonical(p_value jsonb) returns text
language plpgsql stable
as $$
declare
    v_text constant text := p_value #>> '{}';
begin
    case jsonb_typeof(p_value)
        when 'object' then
            return '{' || coalesce((select string_agg(to_jsonb(e.key)::text || ':' || forebay._canonical(e.value), ',' order by e.key collate "C")
                                    from jsonb_each(p_value) e), '') || '}';
        when 'array' then
            return '[' || coalesce((select string_agg(forebay._canonical(e.value), ',' order by e.ordinality)
                                    from jsonb_array_elements(p_value) with ordinality e), '') || ']';
        when 'number' then
            return case when v_text::numeric = trunc(v_text::numeric) then trunc(v_text::numeric)::text
                        when abs(v_text::numeric) < 1e300 then v_text::double precision::text else v_text end;
        when 'string' then
            return to_jsonb(forebay._in_utc(v_text))::text;
        else
            return coalesce(p_value::text, 'null');
    end case;
end
$$;


-- A text; one that is a time with an offset, as that instant in UTC.
create function forebay._in_utc(p_text text) returns text
language plpgsql stable
as $$
declare
    v_at timestamp;
begin
    if p_text ~ E'^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d(\\.\\d+)?(Z|[+-]\\d\\d:\\d\\d)$' then
        v_at := p_text::timestamptz at time zone 'UTC';
        return to_char(v_at, 'YYYY-MM-DD"T"HH24:MI:SS') || case when date_trunc('second', v_at) <> v_at then to_char(v_at, '.US') else '' end || 'Z';
    end if;
    return p_text;
exception when data_exception then
    return p_text;  -- There is no such time.
end
$$;


-- A key as it is where it is short and printable, else the hash of a text.
create function forebay._printable_key(p_key text, p_text text) returns text
language sql immutable
as $$
    select case when p_key ~ E'^[^{control}]{1,200}$' then p_key
                else 'sha256:' || encode(sha256(convert_to(p_text, 'UTF8')), 'hex') end
$$;


-- The limit key or ordering key that arguments make: one text is the key itself. Null: all of them are null.
create function forebay._plain_key(p_values jsonb) returns text
language plpgsql stable
as $$
declare
    v_only constant jsonb := case when jsonb_array_length(p_values) = 1 then p_values -> 0 else p_values end;
    v_text constant text := forebay._canonical(v_only);
    v_key  constant text := case when jsonb_typeof(v_only) = 'string' then forebay._in_utc(v_only #>> '{}') else v_text end;
begin
    return case when not exists (select from jsonb_array_elements(p_values) e where e.value <> 'null') then null
                else forebay._printable_key(v_key, v_text) end;
end
$$;


-- The keys of a job: those that are given, else those that its kind declares. Not for the queues of the library itself, whose kinds are names
-- of event types and sinks. `"none"` as uniqueness mode gives none.
create function forebay._declared_keys(
    p_kind text, p_args jsonb, p_queue text, inout limit_key text, inout ordering_key text, inout unique_as jsonb)
language plpgsql stable
-- planner: indexed
as $$
declare
    v_keys constant jsonb := (select k.keys from forebay.kind_queue k where k.kind = p_kind and coalesce(p_queue, '') not like 'forebay.%');
    v_by   record;
    v_key  text;
begin
    for v_by in
        select b.key as name, (select jsonb_agg(coalesce(p_args -> n.name, v_keys -> 'defaults' -> n.name, 'null') order by n.nr)
                               from jsonb_array_elements_text(b.value) with ordinality n (name, nr)) as values
        from jsonb_each(v_keys) b where b.key in ('limit_by', 'order_by', 'unique_by')
    loop
        if v_by.name = 'limit_by' then
            limit_key := coalesce(limit_key, forebay._plain_key(v_by.values));
        elsif v_by.name = 'order_by' then
            ordering_key := coalesce(ordering_key, forebay._plain_key(v_by.values));
        elsif unique_as is null then
            v_key := p_kind || ':' || forebay._canonical(v_by.values);
            unique_as := jsonb_build_object(
                v_keys ->> 'mode', forebay._printable_key(v_key, v_key)) || (v_keys -> 'more');
        end if;
    end loop;
    unique_as := nullif(unique_as, '"none"');
end
$$;


-- Jobs, or subjects, of a bulk call, with the keys that their kinds declare.
create function forebay._with_declared_keys(p_jobs jsonb) returns jsonb
language plpgsql volatile
-- planner: indexed
as $$
begin
    if pg_sequence_last_value('forebay.kind_keys_seq') is null then
        return p_jobs;
    end if;
    perform from forebay.kind_queue k
    where k.keys is not null and k.kind in (select j.value ->> 'kind' from jsonb_array_elements(p_jobs) j);
    if not found then
        return p_jobs;
    end if;
    return (
        select jsonb_agg(j.value || jsonb_build_object('limit_key', d.limit_key, 'ordering_key', d.ordering_key, 'unique_as', d.unique_as)
                         order by j.ordinality)
        from jsonb_array_elements(p_jobs) with ordinality j
        cross join lateral forebay._declared_keys(
            j.value ->> 'kind', j.value -> 'args', j.value ->> 'queue', j.value ->> 'limit_key', j.value ->> 'ordering_key',
            nullif(j.value -> 'unique_as', 'null')) d);
end
$$;
