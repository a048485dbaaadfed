-- New bodies for functions that are called all the time, including the functions of each segment.

do $$
declare
    v_segment record;
begin
    execute replace(
        pg_get_functiondef('forebay.settle_v1(bigint, jsonb)'::regprocedure), E'\nbegin\n', E'\nbegin\n    -- As of the next release.\n');
    execute replace(
        pg_get_functiondef('forebay._make_segment_functions(bigint, bigint)'::regprocedure),
        'v_jobs text;', 'v_jobs text;  -- as of the next release');
    for v_segment in select s.segment_id, s.hi from forebay.segment s loop
        perform forebay._make_segment_functions(v_segment.segment_id, v_segment.hi);
    end loop;
end
$$;
