-- grant: none

-- Change a setting of the whole database; returns the previous value.
--
-- Settings:
--   segment_rows      100 to 100,000,000; default 1,000,000
--   reserve_rows      1,000 to 10^12; default 64,000,000
--   retention_days    0 to 36,500; default 30
--   retention_bytes   from 0; default 20,000,000,000
--   lane_idle_hours   0 to 876,000; default 24
--   args_bytes_max    1,024 to 104,857,600; default 1,048,576
--   args_depth_max    64 to 200; default 64
--   result_bytes_max  1,024 to 104,857,600; default 65,536
--
-- Errors: JQ001 an unknown name or a value out of range.
-- See: docs/reference/settings.md
create function forebay.configure(name text, value bigint) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_before bigint;
    v_range  int8range := case configure.name
        when 'segment_rows' then int8range(100, 100000000, '[]')
        when 'reserve_rows' then int8range(1000, 1000000000000, '[]')
        when 'retention_days' then int8range(0, 36500, '[]')
        when 'retention_bytes' then int8range(0, null, '[]')
        when 'lane_idle_hours' then int8range(0, 876000, '[]')
        when 'args_bytes_max' then int8range(1024, 104857600, '[]')
        when 'result_bytes_max' then int8range(1024, 104857600, '[]')
        when 'args_depth_max' then int8range(64, 200, '[]') end;  -- Small arguments are never deeper: see _check_args.
begin
    if v_range is null then
        raise exception using errcode = 'JQ001', message = format('unknown setting %s', coalesce(quote_literal(configure.name), 'null')),
            hint = 'One of args_bytes_max, args_depth_max, lane_idle_hours, reserve_rows, result_bytes_max, retention_bytes, retention_days, segment_rows.';
    elsif configure.value is null or not v_range @> configure.value then
        raise exception using errcode = 'JQ001', message = format('%s %s is outside %s', configure.name, coalesce(configure.value::text, 'null'), v_range),
            hint = 'Nothing was changed.';
    end if;
    select s.value into v_before from forebay.setting s where s.name = configure.name;
    update forebay.setting s set value = configure.value where s.name = configure.name;
    if v_before is distinct from configure.value then
        perform forebay._record_event('configure', p_old => jsonb_build_object(configure.name, v_before),
                                      p_new => jsonb_build_object(configure.name, configure.value));
    end if;
    return v_before;
end
$$;
