-- The four roles that functions are granted to; see functions/roles/grant.sql. PUBLIC gets nothing.
do $$
declare
    v_role text;
begin
    foreach v_role in array array['forebay_producer', 'forebay_worker', 'forebay_operator', 'forebay_reader'] loop
        if not exists (select from pg_roles where rolname = v_role) then
            begin
                execute format('create role %I nologin', v_role);
            exception
                when insufficient_privilege then
                    raise notice 'role % was not created: no privilege to do so; forebay doctor will say so', v_role;
                when duplicate_object or unique_violation then
                    null;  -- Another database of this cluster created it at the same time.
            end;
        end if;
    end loop;
end
$$;
