-- grant: worker

-- Let endpoints have sinks of other packages: record their types, an array of `{"name", "settings",
-- "required"}`. Types of Forebay are ignored. Returns how many are new or changed.
--
-- Errors: JQ001 something else.
create function forebay.record_sink_types_v1(p_types jsonb) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_count bigint;
begin
    if not coalesce(jsonb_typeof(p_types) = 'array' and octet_length(p_types::text) <= 1000000
                    and (select coalesce(bool_and(coalesce(
                             jsonb_typeof(t) = 'object' and t ->> 'name' ~ '^[A-Za-z0-9_.-]{1,100}$'
                             and jsonb_typeof(t -> 'settings') = 'array' and jsonb_typeof(t -> 'required') = 'array', false)), true)
                         from jsonb_array_elements(case when jsonb_typeof(p_types) = 'array' then p_types end) t), false) then
        raise exception using errcode = 'JQ001', column = 'p_types', message = 'types of sinks need name, settings and required';
    end if;
    insert into forebay.sink_type as s (name, settings, required, is_ours)
    select t ->> 'name', array(select jsonb_array_elements_text(t -> 'settings')), array(select jsonb_array_elements_text(t -> 'required')), false
    from (select distinct on (i ->> 'name') i from jsonb_array_elements(p_types) i) d (t)
    order by t ->> 'name'
    on conflict on constraint sink_type_pkey do update set settings = excluded.settings, required = excluded.required
    where not s.is_ours and (s.settings, s.required) is distinct from (excluded.settings, excluded.required);
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
