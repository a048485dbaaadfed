-- Roles and grants. PUBLIC gets nothing; producers call functions only.

-- Grant each role its rights, if the role exists. Run this again after creating a role by hand.
-- The roles that may call a function are in the head of the function's file: `-- grant: producer, worker`.
create function forebay._grant() returns void
language plpgsql volatile
as $$
declare
    v_role  text;
    v_calls text[];
    v_call  regprocedure;
begin
    revoke all on schema forebay from public;
    revoke all on all tables in schema forebay from public;
    revoke all on all sequences in schema forebay from public;
    revoke all on all functions in schema forebay from public;
    foreach v_role in array array['forebay_producer', 'forebay_worker', 'forebay_operator', 'forebay_reader'] loop
        continue when not exists (select from pg_roles where rolname = v_role);
        execute format('grant usage on schema forebay to %I', v_role);
        v_calls := case v_role
            -- build: grants
        end;
        for v_call in
            select p.oid::regprocedure from pg_proc p
            where p.pronamespace = 'forebay'::regnamespace
              and p.proname = any (v_calls)
        loop
            execute format('grant execute on function %s to %I', v_call, v_role);
        end loop;
        if v_role in ('forebay_operator', 'forebay_reader') then
            execute format('grant select on all tables in schema forebay to %I', v_role);
            execute format('grant select on all sequences in schema forebay to %I', v_role);
            execute format('revoke select on sequence forebay.lane_secret from %I', v_role);
        end if;
    end loop;
end
$$;
