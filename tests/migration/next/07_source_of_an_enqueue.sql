-- A public function gets an additional parameter.

do $$
declare
    v_old constant regprocedure := (select p.oid from pg_proc p
                                    where p.pronamespace = 'forebay'::regnamespace and p.proname = 'enqueue');
    v_new constant text := replace(
        pg_get_functiondef(v_old), 'limit_key text DEFAULT NULL::text)',
        'limit_key text DEFAULT NULL::text, source text DEFAULT NULL::text)');
begin
    perform forebay._set_aside(v_old);
    execute v_new;
end
$$;
