-- A public function gets an additional parameter.

do $$
declare
    v_old constant regprocedure := (select p.oid from pg_proc p
                                    where p.pronamespace = 'forebay'::regnamespace and p.proname = 'enqueue');
    v_new constant text := replace(
        pg_get_functiondef(v_old), 'unique_as jsonb DEFAULT NULL::jsonb)',
        'unique_as jsonb DEFAULT NULL::jsonb, source text DEFAULT NULL::text)');
begin
    assert v_new like '%source text%', 'the last parameter is another one';
    perform forebay._set_aside(v_old);
    execute v_new;
end
$$;
