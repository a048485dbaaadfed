-- New segments get an index on tags.

do $$
begin
    execute replace(
        pg_get_functiondef('forebay._make_segment(bigint, bigint, bigint)'::regprocedure),
        'execute format(''create index on %s using brin',
        'execute format(''create index %s_tag on %s (tag) where tag is not null'', replace(v_leaf, ''forebay.'', ''''), v_leaf);
    execute format(''create index on %s using brin');
end
$$;
